"""Old brokers' directories searched by time: no record from that time on is left out."""
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

import seglog
from seglog.errors import CorruptRecordError
from support.lookups import offset_at
from support.old_brokers import Read
from support.old_directories import MODERN, client_cases, directory_of, partitions, root, seen

LOGS = [p for p in partitions("logs") if not p.values[1].name.startswith("__")]
CLIENTS = client_cases()
# v1 messages in v0 wrappers, which have no time.
V1_IN_V0 = {"kafka-node-gzip", "kafka-node-snappy"}
# Clients that gave a v1 wrapper the time of its first message, which 0.10.0 stored.
EARLY_WRAPPERS = {"franz-go-gzip", "franz-go-lz4", "franz-go-snappy"}
# Without time indexes Kafka takes a file's own time for the largest one of its segment, and looks no further.
NO_TIME_INDEX = {"franz-go-none"}
TIMES = 40 if os.environ.get("SEGLOG_TORTURE") else 3       # of a directory, spread over it


def times_of(records: list[Read]) -> list[int]:
    found = sorted({int(r.timestamp) for r in records if int(r.timestamp) >= 0})
    return sorted({time + around for time in found[:: len(found) // TIMES + 1] for around in (0, 1)})


def reads_by_time(directory):
    with seglog.open_partition(directory) as partition:
        finds_by_time(partition)


def finds_by_time(partition):
    records, everything = seen(partition.read()), seen(partition.read(control=True))
    for time in times_of(records):
        wanted = [r for r in records if int(r.timestamp) >= time]
        assert seen(partition.read(since=time)) == wanted, time
        # (A search answers with a transaction's marker, too, as Kafka's does.)
        wanted = [r for r in everything if int(r.timestamp) >= time]
        found = partition.offset_for_time(time)
        first = (wanted[0].offset, int(wanted[0].timestamp)) if wanted else None
        assert (found and (found.offset, found.timestamp)) == first, time
        assert offset_at(partition, time) == (wanted[0].offset if wanted else None)
    found = partition.offset_for_time(-3)
    latest = max(everything, key=lambda r: int(r.timestamp))
    if int(latest.timestamp) >= 0:
        assert (found.offset, found.timestamp) == (latest.offset, int(latest.timestamp))


@pytest.mark.parametrize(("version", "directory"), LOGS)
def test_a_time_finds_every_record_from_it_on(version, directory):
    reads_by_time(directory)


@pytest.mark.parametrize("case", CLIENTS)
def test_a_time_finds_every_record_from_it_on_of_a_clients_messages(case):
    reads_by_time(directory_of(case))


@pytest.mark.parametrize("case", [case for case in CLIENTS if case.id not in V1_IN_V0 | EARLY_WRAPPERS | NO_TIME_INDEX])
def test_kafka_finds_the_same_by_time_where_wrappers_tell_the_truth(case):
    with seglog.open_partition(directory_of(case)) as partition:
        for row in json.loads((case / f"times-{MODERN}.json").read_text()):
            found = partition.offset_for_time(row["target"])
            assert (found and {"offset": found.offset, "timestamp": found.timestamp}) == row["result"]


@pytest.mark.parametrize("case", [case for case in CLIENTS if case.id in V1_IN_V0 | EARLY_WRAPPERS])
def test_a_log_that_grows_finds_by_time_what_old_wrappers_hold_and_what_came_later(case, tmp_path):
    directory = shutil.copytree(directory_of(case), tmp_path / "logs" / "orders-0")
    with seglog.open(directory, config={"segment.bytes": 16384}) as log:
        finds_by_time(log)
        log.append(b"between", timestamp=1600000050000)
        for n in range(3):
            log.append(b"later", timestamp=1700000000000 + n)
        finds_by_time(log)
        assert [r.offset for r in log.read(since=1650000000000)] == [201, 202, 203]


def test_threads_that_search_at_once_find_the_same():
    directory = directory_of(root() / "clients/franz-go-gzip")
    with seglog.open_partition(directory) as partition:
        times = times_of(seen(partition.read()))
    for _ in range(5):
        with seglog.open_partition(directory) as partition, ThreadPoolExecutor(8) as threads:
            found = list(threads.map(lambda time: offset_at(partition, time), times * 8))
            assert found == [next((r.offset for r in partition.read() if r.timestamp >= t), None) for t in times] * 8


@pytest.mark.parametrize("name", ["kafka-go-lz4", "kafkajs-gzip"])
def test_a_damaged_wrapper_hides_no_later_time(name, tmp_path):
    """The index leads behind it, and what it held nobody can read."""
    directory = shutil.copytree(directory_of(root() / "clients" / name), tmp_path / "orders-0")
    with seglog.open_partition(directory) as partition:
        records = seen(partition.read())
        second = list(partition.batches())[1]
        damaged, last_lost = second.position + second.size_bytes // 2, second.last_offset
    log = directory / f"{0:020d}.log"
    raw = bytearray(log.read_bytes())
    raw[damaged] ^= 0x55
    log.write_bytes(raw)
    late = max(int(r.timestamp) for r in records if r.offset <= last_lost + 30)
    wanted = next(r for r in records if int(r.timestamp) > late)
    with seglog.open_partition(directory) as partition:
        assert offset_at(partition, late + 1) == wanted.offset
        with pytest.raises(CorruptRecordError):
            list(partition.read())
