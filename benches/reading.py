"""Reading benchmarks: our public face beside aiokafka and kafka-python, on the same bytes in memory or page cache."""
from array import array
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

import seglog
from benches import data, peers
from benches.runner import Bench, Goal


def partition_of(directory: Path, name: str, segment: bytes) -> seglog.Partition:
    """The segment as a partition directory on disk (page cache warm), opened."""
    path = directory / f"{name}-0"
    path.mkdir()
    (path / "00000000000000000000.log").write_bytes(segment)
    return seglog.open_partition(path)


def drain(iterator) -> int:
    n = 0
    for _ in iterator:
        n += 1
    return n


def four_fields(partition: seglog.Partition) -> None:
    for r in partition.records():
        r.offset, r.timestamp, r.key, r.value  # noqa: B018


def to_columns(partition: seglog.Partition) -> None:
    for _ in partition.columns():
        pass


def to_arrow(partition: seglog.Partition) -> int:
    rows = 0
    for chunk in partition.columns():
        rows += pa.record_batch(chunk).num_rows
    return rows


def scan_with_crc(partition: seglog.Partition) -> None:
    for _ in partition.tables(check_crc=True):
        pass


def run(bench: Bench, directory: Path, count: int) -> None:
    def case(name: str, segment: bytes) -> seglog.Partition | None:
        return partition_of(directory, name.replace("/", "-").replace(" ", "-"), segment) if bench.wanted(name) else None

    for magic, codec, batch_bytes, wanted in [
        (2, "none", 16384, {"scan": Goal(8, 11), "iterate": Goal(2.5, 6), "fields": Goal(1.1), "columns": Goal(5, 8), "arrow": Goal(15)}),
        (1, "none", 16384, {"columns": Goal(7, 11)}),
        (2, "lz4", 16384, {"columns": Goal(2.2)}),
        (2, "gzip", 16384, {"columns": Goal(2.2)}),
        (2, "zstd", 16384, {"columns": Goal(1.5)}),
        (2, "snappy", 16384, {"columns": Goal(1.5)}),
    ]:
        name = f"v{magic} {codec} {batch_bytes // 1024}K"
        if not any(bench.wanted(f"{name} {what}") for what in wanted):
            continue
        records = count if codec == "none" else count // 4
        segment = data.segment(magic, codec, batch_bytes, records)
        partition = partition_of(directory, name.replace(" ", "-"), segment)
        mega = records / 1e6
        runs: dict[str, tuple[Callable[[], object], str, Callable[[], object], float, str]] = {
            "scan": (lambda p=partition: scan_with_crc(p), "aiokafka",
                     lambda s=segment: peers.aiokafka_scan_with_crc(s), len(segment) / 1e9, "GB/s"),
            "iterate": (lambda p=partition: drain(p.records()), "aiokafka",
                        lambda s=segment: peers.aiokafka_iterate(s), mega, "M rec/s"),
            "fields": (lambda p=partition: four_fields(p), "aiokafka",
                       lambda s=segment: peers.aiokafka_read_four_fields(s), mega, "M rec/s"),
            "columns": (lambda p=partition: to_columns(p), "aiokafka iterate",
                        lambda s=segment: peers.aiokafka_iterate(s), mega, "M rec/s"),
            "arrow": (lambda p=partition: to_arrow(p), "aiokafka",
                      lambda s=segment: peers.aiokafka_to_arrow(s), mega, "M rec/s"),
        }
        for what, goal in wanted.items():
            ours, peer, theirs, amount, unit = runs[what]
            bench.compare(f"{name} {what}", amount, unit, {"seglog": ours, peer: theirs}, {("seglog", peer): goal})
        partition.close()
    _against_kafka_python(bench, directory, count)
    _index_lookup(bench)


def _against_kafka_python(bench: Bench, directory: Path, count: int) -> None:
    name = "v2 none 16K kafka-python"
    if not bench.wanted(name):
        return
    segment = data.segment(2, "none", 16384, count // 10)
    partition = partition_of(directory, "kafka-python", segment)
    bench.compare(f"{name} scan", len(segment) / 1e9, "GB/s", {
        "seglog": lambda: scan_with_crc(partition), "kafka-python": lambda: peers.kafka_python_scan_with_crc(segment),
    }, {("seglog", "kafka-python"): Goal(1)})
    bench.compare(f"{name} iterate", count / 1e7, "M rec/s", {
        "seglog": lambda: drain(partition.records()), "kafka-python": lambda: peers.kafka_python_iterate(segment),
    }, {("seglog", "kafka-python"): Goal(1)})
    partition.close()


def _index_lookup(bench: Bench) -> None:
    """One lookup from Python in an index of 262 144 entries, hot tail; the loop around it is taken off."""
    import time

    from seglog.segment.offset_index import OffsetIndex

    if not bench.wanted("index lookup"):
        return
    entries = 262_144
    raw = b"".join((i * 150 + 149).to_bytes(4, "big") + (i * 16384).to_bytes(4, "big", signed=False) for i in range(entries // 2))
    index = OffsetIndex(raw, 0)
    targets = array("q", range((entries // 2 - 500) * 150, entries // 2 * 150, 3))
    best = float("inf")
    for _ in range(9):
        start = time.thread_time()
        for target in targets:
            pass
        empty = time.thread_time() - start
        lookup = index.lookup
        start = time.thread_time()
        for target in targets:
            lookup(target)
        best = min(best, (time.thread_time() - start - empty) / len(targets))
    bench.limit("index lookup hot", "ns", "seglog", best * 1e9, 150)
