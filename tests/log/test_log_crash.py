"""Crashes of a log at every point: what was acknowledged is there, nothing is invented, and nobody has to lend a hand.

A workload runs once over a disk that remembers what was synced (support.faultfs). After each call the log is looked
at: that much is promised. Then every disk that a crash may leave (docs/durability.md) is opened: what is found lies
between what was promised and what the call that was interrupted would have brought about.
"""
import os
import queue
import shutil
import threading
from dataclasses import dataclass, replace

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.config import LogConfig
from seglog.format.batch import end_marker
from seglog.segment.indexes import index_bytes
from seglog.segment.segment import Segment
from support.columns import columns_of
from support.faultfs import RecordingFs

# `make torture` sets SEGLOG_TORTURE: the full count; otherwise a twentieth.
STATES = 1200 if os.environ.get("SEGLOG_TORTURE") else 60
NOW = 1_700_000_000_000
CONFIG = {
    "segment.bytes": 3000, "index.interval.bytes": 300, "seglog.time.index.minute.enabled": True,
    "num.recovery.threads.per.data.dir": 1,
}


@dataclass(frozen=True)
class Seen:
    """What a log shows: [start, end), its records by offset, and up to where it says that it is on the disk.

    `committed`: the offsets of committed records. `epochs`: (leader epoch, its first offset).
    """

    start: int = 0
    end: int = 0
    records: tuple = ()
    durable: int = 0
    committed: tuple = ()
    epochs: tuple = ()

    @classmethod
    def of(cls, log):
        records = tuple((r.offset, r.timestamp, r.key, r.value) for r in log.read(control=True))
        committed = tuple(r.offset for r in log.read(isolation="read_committed"))
        # (Those that begin at the end: one is assigned before its first batch is written.)
        epochs = tuple((e.epoch, e.start_offset) for e in log.leader_epochs if e.start_offset < log.log_end_offset)
        return cls(log.log_start_offset, log.log_end_offset, records, log.durable_offset, committed, epochs)

    def between(self, start, end):
        return tuple(record for record in self.records if start <= record[0] < end)


def check(found, before, after):
    """`found` is what a crash left of a call that was to lead from `before` to `after`."""
    assert found.start in (before.start, after.start)
    assert min(before.durable, after.durable) <= found.end <= max(before.end, after.end)
    whole = [seen for seen in (before, after) if seen.between(found.start, found.end) == found.records]
    assert whole != []
    assert found.durable == found.end
    same = [seen for seen in whole if (seen.start, seen.end) == (found.start, found.end)]
    assert same == [] or found.committed in [seen.committed for seen in same]
    assert same == [] or found.epochs in [seen.epochs for seen in same]


class Run:
    """A workload over a recorded disk. `do` makes one call, and what the log shows then is promised."""

    def __init__(self, root, fsync, config):
        self.record = RecordingFs(root)
        self.path = root / "orders-0"
        self.fsync = fsync
        self.config = CONFIG | config
        self.clock = ManualClock(NOW)
        self.seen = []
        self.log = None

    def open(self, *, leader_epoch=0, **config):
        self.log = seglog.open(
            self.path, config=self.config | config, fsync=self.fsync, clock=self.clock, fs=self.record,
            leader_epoch=leader_epoch,
        )
        self.promise(Seen.of(self.log))

    def close(self):
        seen = Seen.of(self.log)
        self.log.close()
        self.promise(replace(seen, durable=seen.end))

    def do(self, call, *args, **more):
        self.clock.advance(17_000)
        result = call(*args, **more)
        self.promise(Seen.of(self.log))
        return result

    def promise(self, seen):
        self.record.mark(len(self.seen))
        self.seen.append(seen)

    def expected(self, state):
        """(what was promised, what the interrupted call would have led to)"""
        done = state.marks[-1] if state.marks else -1
        return (self.seen[done] if done >= 0 else Seen()), self.seen[min(done + 1, len(self.seen) - 1)]


# --- workloads ---------------------------------------------------------------------------------------


def value(n, size_bytes=0):
    """Sizes such that batches begin and end at all sorts of places of a sector."""
    return b"%d." % n + b"v" * (size_bytes or (n * 83) % 400)


def appends(run):
    run.open()
    for n in range(9):
        run.do(run.log.append, value(n), key=b"k")
    run.do(run.log.append_many, [(b"k", value(n)) for n in range(9, 14)])
    run.do(run.log.flush)       # the index entries that wait, too
    run.do(run.log.append, value(14, 5000) if run.fsync == "batch" else value(14))
    run.do(run.log.append, value(15))
    run.close()


def rolls(run):
    run.open()
    for n in range(4):
        run.do(run.log.append, value(n))
        run.do(run.log.append, value(n))
        run.do(run.log.roll)
    run.do(run.log.append_many, [(None, b"x")] * 3)
    run.close()


def truncations(run):
    run.open()
    for n in range(12):
        run.do(run.log.append, value(n, 400))
    run.do(run.log.truncate_to, 10)
    run.do(run.log.append, b"again")
    run.do(run.log.truncate_to, 4)          # over a segment
    run.do(run.log.append_many, [(None, b"again"), (None, b"and again")])
    run.do(run.log.truncate_to, 5)          # inside of a batch
    run.do(run.log.append, b"last")
    run.do(run.log.delete_records, 3)
    run.do(run.log.truncate_to, 3)
    run.do(run.log.append, b"behind all")
    run.close()


def truncations_before_a_close(run):
    """Nothing is appended in between, and the cut takes no index entry with it, or some."""
    run.open()
    for n in range(6):
        run.do(run.log.append, value(n, 310))
    run.do(run.log.truncate_to, 5)
    run.close()
    run.open()
    run.do(run.log.append, value(6, 10))
    run.do(run.log.append, value(7, 10))
    run.do(run.log.truncate_to, 6)
    run.close()


def deletions(run):
    run.open()
    for n in range(12):
        run.do(run.log.append, value(n, 500))
    run.do(run.log.delete_records, 2)
    run.do(run.log.delete_records, 9)
    run.do(run.log.append, b"x")
    run.do(run.log.delete_records, run.log.log_end_offset)
    for _ in range(2):
        run.do(run.log.append, b"y")
    run.do(run.log.delete_records, run.log.log_end_offset - 1)
    for n in range(3):
        run.do(run.log.append, value(n, 600))
    run.close()


def closings(run):
    """Checkpoints and marks: clean, dirty, and clean again."""
    for n in range(3):
        run.open()
        run.do(run.log.append, value(n))
        run.do(run.log.flush)
        run.do(run.log.append, value(n))
        run.close()
    run.open()
    run.close()


def producers(run):
    """Idempotent and transactional batches, an abort, and snapshots at rolls."""
    run.open()

    def send(producer_id, sequence, *, transactional=False, count=2):
        run.do(run.log.append_batch, seglog.build_batch(
            [(None, value(sequence))] * count, timestamp=NOW, producer_id=producer_id, producer_epoch=0,
            base_sequence=sequence, transactional=transactional,
        ))

    def end(producer_id, commit):
        run.do(run.log.append_batch, seglog.build_batch(
            [end_marker(commit, 0)], timestamp=NOW, producer_id=producer_id, producer_epoch=0, control=True,
            transactional=True,
        ))

    send(1, 0)
    send(2, 0, transactional=True)
    end(2, commit=False)
    run.do(run.log.roll)
    send(1, 2)
    send(2, 2, transactional=True)
    end(2, commit=True)
    send(1, 4)
    run.do(run.log.flush)       # the index entries that wait, too
    send(1, 6)
    send(3, 0)
    run.close()


def epochs(run):
    """A leader after the other, and a follower that is cut back."""
    for epoch in (1, 3):
        run.open(leader_epoch=epoch)
        run.do(run.log.append, value(epoch))
        run.do(run.log.append, value(epoch))
        run.close()
    run.open(leader_epoch=4)
    for epoch in (4, 7):
        raw = seglog.build_batch([(None, value(epoch))], timestamp=NOW)
        run.do(run.log.append_batch, raw, leader_epoch=epoch)
    run.do(run.log.truncate_to, 3)
    run.do(run.log.append, b"x")
    run.do(run.log.delete_records, 1)
    run.close()


def many_batches(run):
    """One call that makes several batches, and a follower's append of several."""
    run.open(**{"max.message.bytes": 700})
    columns = columns_of(seglog.build_batch([(b"k", value(n, 300)) for n in range(6)], timestamp=NOW))
    run.do(run.log.append_columns, columns)
    raw = b"".join(
        seglog.build_batch([(None, value(n, 300))], timestamp=NOW, base_offset=run.log.log_end_offset + n)
        for n in range(4)
    )
    run.do(run.log.append_batch, raw, assign_offsets=False)
    run.do(run.log.append, b"x")
    run.close()


# --- crashes ----------------------------------------------------------------------------------------


CASES = [
    (workload, fsync)
    for workload in (
        appends, rolls, truncations, truncations_before_a_close, deletions, closings, producers, epochs, many_batches,
    )
    for fsync in ("batch", "never")
]


@pytest.fixture(params=CASES, ids=[f"{workload.__name__}, {fsync}" for workload, fsync in CASES])
def run(request, in_memory):
    workload, fsync = request.param
    root = in_memory / "data"
    root.mkdir()
    run = Run(root, fsync, {"segment.bytes": 20_000} if workload is appends else {})
    workload(run)
    return run


def files(path):
    return {p.name: p.read_bytes() for p in sorted(path.iterdir()) if p.is_file() and not p.name.startswith(".")}


def opened(run, disk, **more):
    return seglog.open(disk / "orders-0", config=run.config, clock=run.clock, **more)


def test_a_crash_at_any_point_loses_nothing_and_invents_nothing(run):
    seen = 0
    for state in run.record.crash_states(limit=STATES, seed=1, shuffled=True):
        with state.materialise() as disk:
            try:
                with opened(run, disk) as log:
                    found = Seen.of(log)
                    check(found, *run.expected(state))
                    assert log.append(b"on it goes") == found.end
                with opened(run, disk) as log:
                    assert log.recovery.lost == ()
                    assert Seen.of(log).records[:-1] == found.records
                    check_indexes(log)
            except Exception as error:
                error.add_note(state.story())
                raise
        seen += 1
    assert seen > STATES // 3


def test_beside_the_mark_of_a_clean_stop_every_index_is_on_the_disk(run):
    """Whoever finds the mark, a broker too, takes them as they are."""
    seen = 0
    for state in run.record.crash_states(limit=4 * STATES, seed=5, shuffled=True):
        if ".kafka_cleanshutdown" not in state.files:
            continue
        seen += 1
        with state.materialise() as disk:
            for log in sorted((disk / "orders-0").glob("*.log")):
                alone = Segment(log)
                for suffix, raw in index_bytes(alone, LogConfig.of(run.config)).files(LogConfig.of(run.config)):
                    assert log.with_suffix(suffix).read_bytes() == raw, f"{log.name} {suffix}\n{state.story()}"
                alone.close()
    assert seen > 0


def check_indexes(log):
    """Of sealed segments; the active one's are compared when it is opened."""
    for segment in log.segments[:-1]:
        alone = Segment(segment.path)
        for suffix, raw in index_bytes(alone, log.config).files(log.config):
            assert segment.path.with_suffix(suffix).read_bytes() == raw, segment.path.with_suffix(suffix)
        alone.close()


def test_crashes_may_follow_one_another(run):
    """What recovery found is as safe as what was appended since; a writer may be slack after a strict one."""
    for state in run.record.crash_states(limit=max(STATES // 20, 4), seed=4, shuffled=True):
        with state.materialise() as disk:
            again = Run(disk, "never" if run.fsync == "batch" else "batch", run.config)
            again.open()
            for n in range(3):
                again.do(again.log.append, value(n, 200 * n))
            again.do(again.log.flush)
            again.do(again.log.append_many, [(b"k", value(n)) for n in range(2)])
            again.do(again.log.append, b"last")
            again.close()
            for crash in again.record.crash_states(limit=10, seed=state.number, shuffled=True):
                with crash.materialise() as disk_after:
                    try:
                        with opened(again, disk_after) as log:
                            before, after = again.expected(crash) if crash.marks else again.seen[:1] * 2
                            check(Seen.of(log), before, after)
                    except Exception as error:
                        error.add_note(f"{state.story()}\n{crash.story()}")
                        raise


def test_a_crash_of_the_recovery_ends_in_the_same_bytes(run):
    """So does a second recovery after one that was killed when it was done."""
    for state in run.record.crash_states(limit=max(STATES // 10, 4), seed=2, shuffled=True):
        with state.materialise() as disk:
            again = RecordingFs(disk)
            log = opened(run, disk, fs=again)
            found, whole = Seen.of(log), files(log.path)
            twice = shutil.copytree(disk, disk.with_name(f"{disk.name}-twice"))
            log.close()
            try:
                with opened(run, twice) as log:
                    assert files(log.path) == whole
                for crash in again.crash_states(limit=6, seed=3, shuffled=True):
                    with crash.materialise() as disk_after, opened(run, disk_after) as log:
                        assert Seen.of(log) == found, crash.story()
            except Exception as error:
                error.add_note(state.story())
                raise
            finally:
                shutil.rmtree(twice)


@pytest.mark.parametrize("seed", range(5))
def test_a_crash_beside_appenders_that_share_a_sync_keeps_what_each_was_told(in_memory, seed):
    root = in_memory / "data"
    root.mkdir()
    record = RecordingFs(root)
    given = {}

    def append(name):
        for n in range(6):
            value = b"%d-%d." % (name, n) + b"v" * ((name * 131 + n * 57) % 300)
            offset = log.append(value)
            given[offset] = value
            record.mark((offset, value))

    with seglog.open(root / "orders-0", config=CONFIG, fs=record) as log:
        threads = [threading.Thread(target=append, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for state in record.crash_states(limit=STATES // 5, seed=seed, shuffled=True):
        with state.materialise() as disk, seglog.open(disk / "orders-0", config=CONFIG) as log:
            found = {r.offset: r.value for r in log.read()}
            assert list(found) == list(range(len(found))), state.story()
            assert all(given[offset] == value for offset, value in found.items()), state.story()
            assert all(found.get(offset) == value for offset, value in state.marks), state.story()


@pytest.mark.parametrize("change", ["roll", "close", "truncate_to"])
def test_an_append_that_is_written_beside_a_sync_is_synced_by_what_seals_its_segment(tmp_path, change):
    """The sync began before the write was made: it does not cover it."""
    record, begun, go, told = RecordingFs(tmp_path), threading.Event(), threading.Event(), queue.SimpleQueue()
    path = record.root / "data" / "orders-0"

    def waits(name):
        if os.fspath(name).endswith(".log"):
            begun.set()
            assert go.wait(60)

    with seglog.open(path, fs=record, config=CONFIG, clock=ManualClock(NOW)) as log:
        log.append(b"before")
        first = log.append(b"first", wait=False)
        record.before_write = waits
        taken = []
        writing = threading.Thread(target=lambda: taken.append(log.append(b"second", wait=False)))
        writing.start()
        assert begun.wait(60)
        log.when_durable(first, told.put)       # while the second one is being written
        assert told.get(timeout=60) is None
        go.set()
        writing.join()
        getattr(log, change)(*[3] * (change == "truncate_to"))
        log.when_durable(*taken, told.put)
        assert told.get(timeout=60) is None
        acknowledged = record.steps
    for state in record.crash_states(limit=STATES, after=acknowledged):
        with state.materialise() as disk, seglog.open(disk / "data" / "orders-0", config=CONFIG) as log:
            assert [r.value for r in log.read()] == [b"before", b"first", b"second"], state.story()


@pytest.mark.parametrize("fsync", ["interval", "never"])
def test_what_was_written_before_an_interrupt_is_synced_by_what_seals_its_segment(tmp_path, fsync):
    record = RecordingFs(tmp_path)
    path = record.root / "data" / "orders-0"

    def interrupt(name):
        record.before_write = lambda name: None
        raise KeyboardInterrupt

    with seglog.open(path, fs=record, config=CONFIG, clock=ManualClock(NOW), fsync=fsync) as log:
        for n in range(10):
            log.append(b"%d" % n * 100)
        record.before_write = interrupt
        with pytest.raises(KeyboardInterrupt):
            log.append(b"interrupted")
        log.roll()
        index = log.segments[0].path.with_suffix(".index").read_bytes()
        assert index
        acknowledged = record.steps
    for state in record.crash_states(limit=STATES, after=acknowledged):
        with state.materialise() as disk:
            assert (disk / "data" / "orders-0" / "00000000000000000000.index").read_bytes() == index, state.story()
            with seglog.open(disk / "data" / "orders-0", config=CONFIG) as log:
                assert len(list(log.read(0, 10))) == 10, state.story()
