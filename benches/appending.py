"""Appending: our log beside SQLite, lmdb and aiokafka writing to a file, without a sync and with one per append."""
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

import seglog
from benches import data
from benches.floors import floors
from benches.peer_logs import AiokafkaLog, LmdbLog, Records, SqliteLog
from benches.runner import Bench, Fresh, Goal
from seglog.fs.files import OsFile

# records per batch: share of the records, goals beside lmdb, SQLite and aiokafka
CASES = {
    1: (0.03, Goal(3), Goal(7), Goal()),
    100: (0.3, Goal(3.5), Goal(12), Goal(1.4)),
    10_000: (0.3, Goal(6.5), Goal(20), Goal(1.6)),
}
LINGER = {"linger.ms": 1000, "seglog.linger.bytes": 65536}

DURABLE_TURNS = 200
THREADS = 8
APPENDS_A_THREAD = 25
# The gain depends on the duration of a sync, and the machine's disk has only one; so others are simulated.
SYNCS_MS = (0.3, 1)

Peer = SqliteLog | LmdbLog | AiokafkaLog
Batches = list[Records]


def batches_of(count: int, size: int) -> Batches:
    """Lists of `size` records, without keys and headers."""
    _, values, timestamps = data.messages(count)
    records = list(zip(repeat(None), values, repeat(()), timestamps))
    return [records[i : i + size] for i in range(0, count, size)]


# --- ours ------------------------------------------------------------------------------------


def append_one_by_one(log: seglog.Log, batches: Batches) -> None:
    append = log.append
    for ((_, value, _, timestamp),) in batches:
        append(value, timestamp=timestamp)


def append_encoded(floor: Any, encoded: list[bytes]) -> None:
    append = floor.append
    for batch in encoded:
        append(batch)


def append_batches(log: seglog.Log, batches: Batches) -> None:
    append_many = log.append_many
    for records in batches:
        append_many(records)


def append_lists(log: seglog.Log, columns: list[tuple[list[bytes], list[int]]]) -> None:
    for values, timestamps in columns:
        log.append_columns(values=values, timestamps=timestamps)


def append_to_peer(log: Peer, batches: Batches) -> None:
    append = log.append
    for records in batches:
        append(records)


# --- contenders ------------------------------------------------------------------------------


class Place:
    """New directories inside one directory; each is removed after use."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent

    def new(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._parent))

    def fresh(self, opener: Callable[[Path], object], work: Callable[[object], object]) -> Fresh:
        """A contender that runs `work` on a log that `opener` creates in a new directory."""

        def make() -> tuple[Path, object]:
            path = self.new()
            return path, opener(path)

        def drop(made: tuple[Path, object]) -> None:
            path, log = made
            log.close()     # type: ignore[attr-defined]
            shutil.rmtree(path)

        return Fresh(make, lambda made: work(made[1]), drop)


def our_log(path: Path, **settings: object) -> seglog.Log:
    return seglog.open(path / "bench-0", **settings)      # type: ignore[arg-type]


def run(bench: Bench, directory: Path, count: int) -> None:
    place = Place(directory)
    for size, (share, beside_lmdb, beside_sqlite, beside_aiokafka) in CASES.items():
        name = f"append {size} a batch"
        if not bench.wanted(name):
            continue
        records = int(count * share)
        batches = batches_of(records, size)
        ours = append_one_by_one if size == 1 else append_batches
        theirs = partial(append_to_peer, batches=batches)
        bench.compare(
            name, records / 1e6, "M rec/s",
            {
                "seglog": place.fresh(
                    partial(our_log, fsync="never", config={"max.message.bytes": 1 << 30}),
                    partial(ours, batches=batches)),
                "lmdb": place.fresh(LmdbLog, theirs),
                "sqlite": place.fresh(SqliteLog, theirs),
                "aiokafka": place.fresh(AiokafkaLog, theirs),
            },
            {
                ("seglog", "lmdb"): beside_lmdb,
                ("seglog", "sqlite"): beside_sqlite,
                ("seglog", "aiokafka"): beside_aiokafka,
            },
        )
    _floor(bench, place, int(count * CASES[1][0]))
    _columns(bench, place, int(count * CASES[10_000][0]))
    _with_linger(bench, place, int(count * CASES[1][0]))
    _durable(bench, place)
    _many_threads(bench, place)


def _floor(bench: Bench, place: Place, records: int) -> None:
    """One record per call, written at once and lingering, beside what no append can do without."""
    cases = ("append 1 a call, floor", "append 1 a call, linger, floor")
    if not any(map(bench.wanted, cases)):
        return
    batches = batches_of(records, 1)
    encoded = [seglog.build_batch(one, leader_epoch=0) for one in batches]
    floor = place.fresh(
        lambda path: floors().AppendFloor(os.fsencode(path / "floor")), partial(append_encoded, encoded=encoded))
    ours = partial(append_one_by_one, batches=batches)
    for case, config, goal in zip(cases, ({}, LINGER), (Goal(0.9), Goal(2)), strict=True):
        bench.compare(
            case, records / 1e6, "M rec/s",
            {"seglog": place.fresh(partial(our_log, fsync="never", config=config), ours), "floor in C": floor},
            {("seglog", "floor in C"): goal},
        )


def _columns(bench: Bench, place: Place, records: int) -> None:
    """10 000 records per call, as lists of values and times; and 100-byte values as rows of a numpy array."""
    settings = partial(our_log, fsync="never", config={"max.message.bytes": 1 << 30})
    batches = batches_of(records, 10_000)
    lists = [([value for _, value, _, _ in batch], [time for *_, time in batch]) for batch in batches]
    bench.compare(
        "append 10 000 a call, lists", records / 1e6, "M rec/s",
        {
            "seglog": place.fresh(settings, partial(append_lists, columns=lists)),
            "lmdb": place.fresh(LmdbLog, partial(append_to_peer, batches=batches)),
        },
        {("seglog", "lmdb"): Goal(5)},
    )
    now = lists[-1][1][-1]
    matrices = [np.full((10_000, 100), n % 251, "u1") for n in range(len(batches))]
    rows = [[(None, row.tobytes(), (), now) for row in matrix] for matrix in matrices]

    def ours(log: object) -> None:
        for matrix in matrices:
            log.append_columns(values=matrix)     # type: ignore[attr-defined]

    bench.compare(
        "append 10 000 a call, matrix", len(matrices) / 100, "M rec/s",
        {
            "seglog": place.fresh(settings, ours),
            "aiokafka": place.fresh(AiokafkaLog, partial(append_to_peer, batches=rows)),
        },
        {("seglog", "aiokafka"): Goal(3)},
    )


def _with_linger(bench: Bench, place: Place, records: int) -> None:
    """One record per call, and one write per several hundred: a crash of the process loses lingering records."""
    batches = batches_of(records, 1)
    theirs = partial(append_to_peer, batches=batches)

    def ours(log: object) -> None:
        append_one_by_one(log, batches)     # type: ignore[arg-type]
        log.flush()                         # type: ignore[attr-defined]

    bench.compare(
        "append 1 a call, linger", records / 1e6, "M rec/s",
        {
            "seglog": place.fresh(partial(our_log, fsync="never", config=LINGER), ours),
            "lmdb": place.fresh(LmdbLog, theirs),
            "sqlite": place.fresh(SqliteLog, theirs),
        },
        {("seglog", "lmdb"): Goal(8), ("seglog", "sqlite"): Goal(20)},
    )


# --- durable ---------------------------------------------------------------------------------


@contextmanager
def counted_syncs(*, skip: bool = False) -> Iterator[list[int]]:
    """[the number of syncs requested in this context]; `skip`: count them, but do not sync."""
    calls = [0]
    originals = OsFile.sync_data, OsFile.sync, os.fsync

    def counting(original: Callable[[Any], None]) -> Callable[[Any], None]:
        def counted(file: Any) -> None:
            calls[0] += 1
            if not skip:
                original(file)

        return counted

    # A kernel syncs our files; os.fsync syncs directories.
    OsFile.sync_data, OsFile.sync, os.fsync = map(counting, originals)      # type: ignore[method-assign, assignment]
    try:
        yield calls
    finally:
        OsFile.sync_data, OsFile.sync, os.fsync = originals     # type: ignore[method-assign]


@contextmanager
def syncs_that_take(seconds: float) -> Iterator[None]:
    """Simulate a disk whose fdatasync takes this many seconds and no CPU; nothing is synced."""
    originals = OsFile.sync_data, os.fdatasync

    def slow(_: object) -> None:
        time.sleep(seconds)

    OsFile.sync_data, os.fdatasync = slow, slow     # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        OsFile.sync_data, os.fdatasync = originals  # type: ignore[method-assign]


class BareFile:
    """The lower limit of a durable append: the same bytes, one write and one fdatasync."""

    def __init__(self, path: Path, batch: bytes) -> None:
        self._fd = os.open(path / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._batch = batch

    def append(self) -> None:
        os.write(self._fd, self._batch)
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class BareSharedFile:
    """The lower limit for Python threads that share a sync: the same bytes, one write, and a lock to wait on each."""

    def __init__(self, path: Path, batch: bytes) -> None:
        self._fd = os.open(path / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._batch = batch
        self._lock = threading.Lock()
        self._busy = False
        self._queue: list[tuple[threading.Lock, list[bool]]] = []

    def append(self) -> None:
        turn = None
        with self._lock:
            os.write(self._fd, self._batch)
            if self._busy:
                turn = (threading.Lock(), [False])
                turn[0].acquire()
                self._queue.append(turn)
            self._busy = True
        if turn is not None:
            turn[0].acquire()
            if not turn[1][0]:
                return
        with self._lock:
            covered, self._queue = self._queue, []
        os.fdatasync(self._fd)
        with self._lock:
            self._busy = bool(self._queue)
            if self._busy:
                gate, leads = self._queue.pop(0)
                leads[0] = True
                gate.release()
        for gate, _ in covered:
            gate.release()

    def close(self) -> None:
        os.close(self._fd)


def _durable(bench: Bench, place: Place) -> None:
    """One 16 KB batch per append, on disk when the append returns."""
    name = "durable append of 16 KB"
    if not bench.wanted(name):
        return
    turns = DURABLE_TURNS if bench.repetitions > 1 else 10
    (records,) = batches_of(140, 140)
    path = place.new()
    with our_log(path) as log:
        log.append_many(records)
        bare = BareFile(path, bytes(next(log.batches()).raw()))
        bench.by_wall(
            name, 1, "app/s",
            {"seglog": partial(log.append_many, records), "bare": bare.append},
            {("seglog", "bare"): Goal(0.9)}, turns=turns,
        )
        with counted_syncs() as calls:
            for _ in range(turns):
                log.append_many(records)
        bench.limit("syncs a durable append", "syncs", "seglog", calls[0] / turns, 1)
        bare.close()
    shutil.rmtree(path)


def _many_threads(bench: Bench, place: Place) -> None:
    """Concurrent appenders share a sync: the same number of appends by one thread and by eight."""
    name = f"durable append, {THREADS} threads"
    if bench.wanted(name):
        _by_threads(bench, place, name)
    name = f"durable append, {THREADS} threads, floor"
    if bench.wanted(name):
        _beside_threads_in_c(bench, place, name)
    for sync_ms in SYNCS_MS:
        name = f"durable append, {THREADS} threads, syncs of {sync_ms} ms"
        if bench.wanted(name):
            with syncs_that_take(sync_ms / 1000):
                _by_threads(bench, place, name)


def _by_threads(bench: Bench, place: Place, name: str) -> None:
    path = place.new()
    value = b"v" * 100
    with our_log(path) as log:
        log.append(value)
        bare = BareSharedFile(path, bytes(next(log.batches()).raw()))
        appends = THREADS * APPENDS_A_THREAD
        append_some(partial(log.append, value), APPENDS_A_THREAD)
        bench.by_wall(
            name, appends, "app/s",
            {
                "seglog": partial(in_threads, partial(log.append, value)),
                "seglog, 1 thread": partial(append_some, partial(log.append, value), appends),
                f"bare, {THREADS} threads": partial(in_threads, bare.append),
            },
            {("seglog", "seglog, 1 thread"): Goal(4), ("seglog", f"bare, {THREADS} threads"): Goal()},
            turns=2 * bench.repetitions,
        )
        bare.close()
    shutil.rmtree(path)


def _beside_threads_in_c(bench: Bench, place: Place, name: str) -> None:
    """Eight of our threads beside eight threads in C that share syncs of the same disk."""
    path = place.new()
    value = b"v" * 100
    with our_log(path) as log:
        log.append(value)
        batch = bytes(next(log.batches()).raw())
        floor = floors().SharedSyncFloor(os.fsencode(path / "floor"))
        append_some(partial(log.append, value), APPENDS_A_THREAD)
        bench.by_wall(
            name, THREADS * APPENDS_A_THREAD, "app/s",
            {
                "seglog": partial(in_threads, partial(log.append, value)),
                "threads in C": partial(floor.append, batch, THREADS, APPENDS_A_THREAD),
            },
            {("seglog", "threads in C"): Goal(0.85)}, turns=2 * bench.repetitions,
        )
        floor.close()
    shutil.rmtree(path)


def append_some(append: Callable[[], object], times: int) -> None:
    for _ in range(times):
        append()


def in_threads(append: Callable[[], object]) -> None:
    threads = [threading.Thread(target=append_some, args=(append, APPENDS_A_THREAD)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
