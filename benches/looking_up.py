"""Reading a log after appending: all of it, one record by offset, the first record at or after a time.

Batches have 150 records, about 16 KB, as from a producer; lmdb has one entry per message.
"""
import random
from array import array
from functools import partial
from pathlib import Path

import seglog
from benches import data
from benches.appending import append_batches, append_to_peer, batches_of
from benches.peer_logs import AiokafkaLog, LmdbLog
from benches.runner import Bench, Goal

BATCH_RECORDS = 150
PEER_BATCH_RECORDS = 10_000
LOOKUPS = 0.05      # share of the records

Peer = LmdbLog | AiokafkaLog


def scan(log: seglog.Log) -> None:
    for _ in log.read():
        pass


def scan_columns(log: seglog.Log) -> None:
    for _ in log.columns():
        pass


def get(log: seglog.Log, offsets: list[int]) -> None:
    for offset in offsets:
        log[offset].value  # noqa: B018


def seek(log: seglog.Log, timestamps: list[int]) -> None:
    offset_for_time = log.offset_for_time
    for timestamp in timestamps:
        offset_for_time(timestamp)


def peer_get(log: Peer, offsets: list[int]) -> None:
    get = log.get
    for offset in offsets:
        get(offset)


def peer_seek(log: Peer, timestamps: list[int]) -> None:
    seek = log.seek
    for timestamp in timestamps:
        seek(timestamp)


def check(log: seglog.Log, lmdb: LmdbLog, aiokafka: AiokafkaLog, offsets: list[int], times: list[int]) -> None:
    """Check that all give the same answers, because wrong ones could be fast."""
    for offset in offsets[:200]:
        assert log[offset].value == lmdb.get(offset) == aiokafka.get(offset)
    for time in times[:200]:
        assert log.offset_for_time(time).offset == lmdb.seek(time) == aiokafka.seek(time)


def run(bench: Bench, directory: Path, count: int) -> None:
    cases = ["log scan, lazy", "log scan, columns", "get by offset", "seek by time"]
    if not any(map(bench.wanted, cases)):
        return
    _, _, timestamps = data.messages(count)
    paths = [directory / "looking-up" / name for name in ("ours", "lmdb", "aiokafka")]
    for path in paths:
        path.mkdir(parents=True)
    chance = random.Random(5)
    offsets = [chance.randrange(count) for _ in range(int(count * LOOKUPS))]
    # A separate array, because fetching the messages' own ints from all over memory would be measured too.
    times = array("q", [timestamps[chance.randrange(count)] for _ in offsets]).tolist()
    lmdb, aiokafka = LmdbLog(paths[1]), AiokafkaLog(paths[2])
    append_to_peer(lmdb, batches_of(count, PEER_BATCH_RECORDS))
    append_to_peer(aiokafka, batches_of(count, BATCH_RECORDS))
    with seglog.open(paths[0] / "bench-0", fsync="never") as log:
        append_batches(log, batches_of(count, BATCH_RECORDS))
        check(log, lmdb, aiokafka, offsets, times)
        bench.compare(
            cases[0], count / 1e6, "M rec/s", {"seglog": partial(scan, log), "lmdb": lmdb.scan},
            {("seglog", "lmdb"): Goal(3.5)},
        )
        bench.compare(
            cases[1], count / 1e6, "M rec/s", {"seglog": partial(scan_columns, log), "lmdb": lmdb.scan},
            {("seglog", "lmdb"): Goal(5)},
        )
        bench.compare(
            cases[2], len(offsets) / 1e6, "M/s",
            {
                "seglog": partial(get, log, offsets), "lmdb": partial(peer_get, lmdb, offsets),
                "aiokafka": partial(peer_get, aiokafka, offsets),
            },
            {("seglog", "lmdb"): Goal(1.2), ("seglog", "aiokafka"): Goal(10)},
        )
        bench.compare(
            cases[3], len(times) / 1e6, "M/s",
            {
                "seglog": partial(seek, log, times), "lmdb": partial(peer_seek, lmdb, times),
                "aiokafka": partial(peer_seek, aiokafka, times),
            },
            {("seglog", "lmdb"): Goal(1.5), ("seglog", "aiokafka"): Goal()},
        )
    lmdb.close()
    aiokafka.close()
