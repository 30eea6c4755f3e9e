"""The snapshot of many producers is written behind a roll, in the background: nobody who appends waits for it, and
nothing goes that it is the last to tell of."""
import contextlib
import errno
import os
import threading

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import LogFailedError, StorageError
from seglog.format import names
from seglog.fs.refusals import storage_error
from seglog.state.producer_snapshot import ProducerEntry, ProducerSnapshot
from seglog.state.producer_snapshots import WRITTEN_AT_ONCE
from support.faultfs import RecordingFs
from support.waiting import wait_for

NOW = 1_700_000_000_000
PRODUCERS = WRITTEN_AT_ONCE + 100
STATES = 60


class HeldFs(RecordingFs):
    """Lets snapshots wait until `go` is set; then writes them, or fails with `error`."""

    def __init__(self, root):
        super().__init__(root)
        self.go = threading.Event()
        self.error = None
        self.held = []

    def create(self, path, within=None, mode=0o666):
        if str(path).endswith(names.SNAPSHOT_SUFFIX + ".tmp"):
            self.held.append(int(os.path.basename(path)[:20]))
            assert self.go.wait(60)
            if self.error:
                raise storage_error(OSError(self.error, os.strerror(self.error)), "create", path)
        return super().create(path, within, mode)


@pytest.fixture
def disk(in_memory):
    """A log dir with the log of a record, and of many producers."""
    root = in_memory / "data"
    with seglog.open(root / "orders-0", clock=ManualClock(NOW)) as log:
        log.append(b"first")
        log.roll()
    entries = (ProducerEntry(n, 0, 0, 0, 0, NOW, -1, -1) for n in range(PRODUCERS))
    snapshot = root / "orders-0" / names.file_name(1, names.SNAPSHOT_SUFFIX)
    snapshot.write_bytes(ProducerSnapshot.of(entries).to_bytes())
    return root


@pytest.fixture
def held(disk):
    return HeldFs(disk.parent)


@contextlib.contextmanager
def opened(held, config=None):
    log = seglog.open(held.root / "data/orders-0", config=config or {}, fs=held, clock=ManualClock(NOW))
    try:
        yield log
    finally:
        held.go.set()
        with contextlib.suppress(LogFailedError):
            log.close()


def send(log, producer_id, sequence):
    log.append_batch(seglog.build_batch(
        [(None, b"%d" % sequence)], timestamp=NOW, producer_id=producer_id, producer_epoch=1, base_sequence=sequence,
    ))


def last_sequence(log, producer_id):
    return next(p for p in log.producers if p.producer_id == producer_id).last_sequence


def in_thread(function, *args):
    """A thread that runs it, and the list in which what came of it will be."""
    came = []

    def run():
        try:
            came.append(function(*args))
        except Exception as error:
            came.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, came


def test_a_roll_and_what_is_appended_behind_it_wait_for_no_snapshot(held):
    with opened(held) as log:
        send(log, 7, 0)
        thread, came = in_thread(log.roll)
        thread.join(30)
        assert came == [2]
        before = log.producers
        send(log, 7, 1)
        assert [r.value for r in log.read()] == [b"first", b"0", b"1"]
        wait_for(lambda: held.held == [2])
        held.go.set()
        path = log.path / names.file_name(2, names.SNAPSHOT_SUFFIX)
        wait_for(path.exists)
        # As of the roll: what came behind it does not stand in it.
        assert path.read_bytes() == ProducerSnapshot.of(before).to_bytes()
        assert last_sequence(log, 7) == 1


def test_a_log_that_rolls_more_quickly_leaves_snapshots_out(held):
    with opened(held) as log:
        for n in range(4):
            send(log, 7, n)
            log.roll()
            wait_for(lambda: held.held)
        held.go.set()
    assert held.held == [2, 5]
    assert {int(p.stem) for p in (held.root / "data/orders-0").glob("*.snapshot")} == {1, 2, 5}
    with opened(held) as log:
        assert last_sequence(log, 7) == 3


REMOVALS = {
    "delete_records": lambda log: log.delete_records(2),
    "truncate_to": lambda log: log.truncate_to(1),
    "snapshot": lambda log: log.snapshot(log.path.parent / "orders-1"),
    "close": lambda log: log.close(),
    "delete_old_segments": lambda log: log.delete_old_segments(),
}


@pytest.mark.parametrize("removal", REMOVALS)
def test_what_relies_on_a_snapshot_waits_for_it(held, removal):
    with opened(held, {"retention.bytes": 1} if removal == "delete_old_segments" else None) as log:
        send(log, 7, 0)
        log.roll()
        send(log, 7, 1)
        wait_for(lambda: held.held == [2])
        steps = held.steps
        thread, came = in_thread(REMOVALS[removal], log)
        if removal != "close":
            send(log, 7, 2)         # while it waits, others append
        thread.join(0.2)
        assert thread.is_alive()
        held.go.set()
        thread.join(30)
        assert not [error for error in came if isinstance(error, Exception)]
        words = held.operations
        name = names.file_name(2, names.SNAPSHOT_SUFFIX)
        written = next(n for n, text in enumerate(words) if text.startswith("replace ") and text.endswith(name))
        others = ("unlink", "rename", "link", "replace")
        assert not [t for t in words[steps:written] if t.startswith(others) and ".log" in t]


def test_a_crash_at_any_point_leaves_producers_whose_records_are_deleted(held):
    with opened(held) as log:
        held.go.set()
        for n in range(3):
            send(log, 7, n)
            held.mark(n)
            log.roll()
            log.delete_records(log.log_end_offset - 1)
    seen = 0
    for state in held.crash_states(limit=STATES, seed=1, shuffled=True):
        with state.materialise() as root, seglog.open(root / "data/orders-0", clock=ManualClock(NOW)) as log:
            told = max(state.marks, default=-1)
            assert len(log.producers) == PRODUCERS, state.story()
            known = next(p for p in log.producers if p.producer_id == 7)
            assert (known.last_sequence, known.producer_epoch) >= (max(told, 0), int(told >= 0)), state.story()
            seen += 1
    assert seen > STATES // 3


def test_after_a_snapshot_that_failed_nothing_is_removed_and_the_log_says_so(held):
    with opened(held) as log:
        send(log, 7, 0)
        log.roll()
        wait_for(lambda: held.held == [2])
        held.error = errno.EIO
        held.go.set()
        for _ in range(2):
            with pytest.raises(StorageError):
                log.delete_records(2)
        with pytest.raises(StorageError):
            log.close()
    held.error = None
    assert (held.root / "data/orders-0" / names.file_name(0, names.LOG_SUFFIX)).exists()
    with opened(held) as log:
        assert last_sequence(log, 7) == 0
