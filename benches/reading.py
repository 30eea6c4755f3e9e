"""Reading: our public interface beside aiokafka and kafka-python, on the same bytes, with a warm page cache."""
import time
from array import array
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa

import seglog
from benches import data, peers
from benches.runner import Bench, Goal
from seglog.segment.index_file import OffsetIndex

Run = Callable[[], object]


def partition_of(directory: Path, name: str, segment: bytes) -> seglog.Partition:
    """Write the segment as a partition directory on disk, and open it."""
    path = directory / f"{name.replace(' ', '-')}-0"
    path.mkdir()
    (path / "00000000000000000000.log").write_bytes(segment)
    return seglog.open_partition(path)


# --- ours ------------------------------------------------------------------------------------


def scan_with_crc(partition: seglog.Partition) -> None:
    for _ in partition.tables(check_crc=True):
        pass


def iterate(partition: seglog.Partition) -> None:
    for _ in partition.read():
        pass


def read_four_fields(partition: seglog.Partition) -> None:
    for r in partition.read():
        r.offset, r.timestamp, r.key, r.value  # noqa: B018


def to_columns(partition: seglog.Partition) -> None:
    for _ in partition.columns():
        pass


def to_arrow(partition: seglog.Partition) -> None:
    for chunk in partition.columns():
        pa.record_batch(chunk)


# --- cases -----------------------------------------------------------------------------------

# what: (ours, theirs, the peer's name)
WORK = {
    "scan+crc": (scan_with_crc, peers.aiokafka_scan_with_crc, "aiokafka"),
    "iterate": (iterate, peers.aiokafka_iterate, "aiokafka"),
    "four fields": (read_four_fields, peers.aiokafka_read_four_fields, "aiokafka"),
    "columns": (to_columns, peers.aiokafka_iterate, "aiokafka iterate"),
    # The same beside a peer that checks nothing: not a fair comparison, but informative.
    "iterate, peer no crc": (iterate, peers.aiokafka_iterate_without_crc, "aiokafka"),
    "columns, peer no crc": (to_columns, peers.aiokafka_iterate_without_crc, "aiokafka iterate"),
    "arrow": (to_arrow, peers.aiokafka_to_arrow, "aiokafka"),
    "scan+crc (kp)": (scan_with_crc, peers.kafka_python_scan_with_crc, "kafka-python"),
    "iterate (kp)": (iterate, peers.kafka_python_iterate, "kafka-python"),
}

# format version, codec, share of the records, what: goal
CASES: list[tuple[int, str, float, dict[str, Goal]]] = [
    (2, "none", 1, {
        "scan+crc": Goal(8, 11), "iterate": Goal(2.5, 6), "four fields": Goal(1.1),
        "columns": Goal(5, 8), "arrow": Goal(15),
        "iterate, peer no crc": Goal(), "columns, peer no crc": Goal(),
    }),
    (1, "none", 1, {"columns": Goal(7, 11), "columns, peer no crc": Goal()}),
    (2, "lz4", 0.25, {"columns": Goal(2.2), "columns, peer no crc": Goal()}),
    (2, "gzip", 0.25, {"columns": Goal(2.2), "columns, peer no crc": Goal()}),
    (2, "zstd", 0.25, {"columns": Goal(1.5), "columns, peer no crc": Goal()}),
    (2, "snappy", 0.25, {"columns": Goal(1.5), "columns, peer no crc": Goal()}),
    (2, "none", 0.1, {"scan+crc (kp)": Goal(1), "iterate (kp)": Goal(1)}),
]
BATCH_BYTES = 16384


def run(bench: Bench, directory: Path, count: int) -> None:
    for number, (magic, codec, share, goals) in enumerate(CASES):
        name = f"v{magic} {codec} 16K"
        wanted = {what: goal for what, goal in goals.items() if bench.wanted(f"{name} {what}")}
        if not wanted:
            continue
        records = int(count * share)
        segment = data.segment(magic, codec, BATCH_BYTES, records)
        with partition_of(directory, f"{name} {number}", segment) as partition:
            for what, goal in wanted.items():
                ours, theirs, peer = WORK[what]
                amount, unit = (len(segment) / 1e9, "GB/s") if what.startswith("scan") else (records / 1e6, "M rec/s")
                bench.compare(
                    f"{name} {what}", amount, unit,
                    {"seglog": partial(ours, partition), peer: partial(theirs, segment)},
                    {("seglog", peer): goal},
                )
    _scan_beside_raw_crc(bench, directory, count)
    _index_lookup(bench)


def _scan_beside_raw_crc(bench: Bench, directory: Path, count: int) -> None:
    """The share of our own CRC rate that remains when the batches must also be found."""
    from seglog._kernels.crc import crc32c

    name = "v2 none 16K scan+crc beside raw crc"
    if not bench.wanted(name):
        return
    segment = data.segment(2, "none", BATCH_BYTES, count)
    with partition_of(directory, "raw-crc", segment) as partition:
        window = partition.segments[0].window
        bench.compare(
            name, len(segment) / 1e9, "GB/s",
            {"seglog": lambda: scan_with_crc(partition), "own raw crc32c": lambda: crc32c(window)},
            {("seglog", "own raw crc32c"): Goal(0.6, 0.8)},
        )


def _index_lookup(bench: Bench) -> None:
    """One lookup from Python near the end of an index of 262 144 entries, without the loop around it."""
    if not bench.wanted("index lookup"):
        return
    entries = 262_144
    raw = b"".join((i * 30 + 29).to_bytes(4, "big") + (i * 4200).to_bytes(4, "big") for i in range(entries))
    lookup = OffsetIndex(raw, 0).lookup
    targets = array("q", range((entries - 500) * 30, entries * 30, 3))
    best = float("inf")
    for _ in range(9):
        began = time.thread_time()
        for _target in targets:
            pass
        empty = time.thread_time() - began
        began = time.thread_time()
        for target in targets:
            lookup(target)
        best = min(best, (time.thread_time() - began - empty) / len(targets))
    bench.limit("index lookup, hot", "ns", "seglog", best * 1e9, 150)
