"""A managed ledger over a disk that fails: no index is used up, nothing acknowledged is lost, opening again goes on."""
import errno
import os
import shutil
import threading
from contextlib import suppress

import pytest

from seglog._kernels.shield import work_in_background
from seglog.clock import ManualClock
from seglog.errors import LogClosedError, LogFailedError, LogLockedError, SeglogError, StorageError
from seglog.fs.files import OsFileSystem
from seglog.ledger import entry_writer
from seglog.ledger.managed.tail import ManagedTail
from seglog.ledger.position import EARLIEST
from seglog.pulsar import ManagedLedger
from support.faultfs import FailingFs, HeldNameFs, HeldWriteFs
from support.topic_program import CONFIG, Promise, TopicProgram, check_after, run
from support.topics import batch, message, numbers
from support.waiting import wait_for

TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))


@pytest.mark.parametrize(
    ("number", "short"), [(errno.EIO, False), (errno.ENOSPC, True)], ids=["EIO", "ENOSPC after half of a write"]
)
@pytest.mark.parametrize("seed", [0, 5])
def test_an_error_at_any_call_loses_nothing_that_was_acknowledged(tmp_path, number, short, seed):
    promises, added = [], {}

    def promise(program):
        promises.append(Promise.of(program))
        added.update(program.entries)

    count = FailingFs(OsFileSystem())
    run(TopicProgram(tmp_path / "whole", count, promise), seed)
    for k in range(number % 17, len(count.calls), 1 if TORTURE else 17):
        path, kept = tmp_path / f"{k}", []
        fs = FailingFs(OsFileSystem(), fail_at=k, error=number, once=True, short=short)
        program = met = None
        try:
            program = TopicProgram(path, fs, lambda program, kept=kept: kept.append(Promise.of(program)))
            run(program, seed)
        except StorageError as error:
            met = error.errno
        assert met in (None, number)
        last = kept[-1] if kept else Promise({}, {}, -1)
        following = promises[len(kept)] if len(kept) < len(promises) else last
        if program is not None and not program.topic.closed:
            assert last.last_index <= program.topic.last_index <= following.last_index
            assert last.entries.keys() & following.entries.keys() <= {entry.position for entry in program.topic}
            program.topic.close()
        check_after(path, last, following, added)
        shutil.rmtree(path)


class Breaking(FailingFs):
    """Works until it is told what is to break: calls that begin with `broken`, once."""

    broken = None

    def __init__(self):
        super().__init__(OsFileSystem(), fail_at=0, error=errno.ENOSPC)

    def _fails(self, text):
        if self.broken is None or not text.startswith(self.broken):
            return False
        self.broken = None
        return True


@pytest.mark.parametrize("what", ["write", "sync"])
def test_the_index_is_rolled_back_when_an_add_fails(tmp_path, what):
    config = {"brokerEntryMetadataInterceptors": "index"}
    fs = Breaking()
    topic = ManagedLedger(tmp_path / "b", config=config, fs=fs)
    topic.add_entry(batch(0, 3))
    fs.broken = what
    with pytest.raises(LogFailedError):
        topic.add_entry(batch(1, 3))
    assert topic.last_index == 2
    for call in (lambda: topic.add_entry(batch(1, 3)), topic.roll, topic.flush, lambda: topic.update_properties({})):
        with pytest.raises(LogFailedError):
            call()
    assert numbers(topic) == [0]
    topic.close()
    with ManagedLedger(tmp_path / "b", config=config) as topic:
        found = topic.entry_count       # the write may have come to the disk, whatever the sync said
        topic.add_entry(batch(2, 3))
        assert [entry.index for entry in topic] == [2, 5, 8][: found + 1]


def test_a_cursor_of_a_failed_managed_ledger_can_be_read_and_not_moved(tmp_path):
    config = CONFIG | {"managedLedgerDefaultMarkDeleteRateLimit": 0}
    fs = Breaking()
    topic = ManagedLedger(tmp_path / "orders", config=config, clock=ManualClock(), fs=fs)
    topic.add_entries(message(n) for n in range(3))
    cursor = topic.open_cursor("one", "earliest")
    fs.broken = "write"
    with pytest.raises(LogFailedError):
        topic.new_ledger_id()
    assert numbers(cursor.read()) == [0, 1, 2]
    with pytest.raises(LogFailedError, match="no space"):
        cursor.mark_delete(topic.last_position)
    topic.close()
    with ManagedLedger(tmp_path / "orders") as topic:
        assert topic.cursors["one"].backlog == 3


@pytest.mark.parametrize("what", ["the sync of entries", "the write of a cursor"])
def test_what_failed_in_the_background_is_told_at_closing_if_nobody_met_it_before(tmp_path, what):
    fs = Breaking()
    path = tmp_path / "orders"
    # By a clock that stands still nobody but the thread writes the cursor; it syncs seldom enough to be behind an add.
    topic = ManagedLedger(path, config={"flush.ms": 200}, fsync="interval", fs=fs, clock=ManualClock())
    cursor = topic.open_cursor("one", "earliest")
    position = topic.add_entry(message(0))
    if what == "the sync of entries":
        fs.broken = "sync "
        topic.add_entry(message(1))
    else:
        fs.broken = "replace "
        cursor.mark_delete(position)
    wait_for(lambda: topic._tail.failure is not None)       # what the thread met, and nobody else
    with pytest.raises(LogFailedError, match="no space"):
        topic.close()
    assert topic.closed
    topic.close()
    ManagedLedger(path).close()     # nothing is held


def test_whoever_was_told_closes_without_an_error(tmp_path):
    fs = Breaking()
    topic = ManagedLedger(tmp_path / "orders", fs=fs)
    fs.broken = "sync "
    with pytest.raises(LogFailedError):
        topic.add_entry(message(0))
    topic.close()


def test_closing_tells_that_acknowledgements_were_not_stored(tmp_path):
    fs = Breaking()
    topic = ManagedLedger(tmp_path / "orders", fs=fs, clock=ManualClock())
    cursor, other = topic.open_cursor("one", "earliest"), topic.open_cursor("other", "earliest")
    cursor.acknowledge(topic.add_entry(message(0)))     # written when it is due, or at closing
    fs.broken = "sync "
    with pytest.raises(LogFailedError):
        topic.add_entry(message(1))
    with pytest.raises(LogFailedError):
        other.seek(EARLIEST)                            # its caller has the error
    with pytest.raises(LogFailedError, match="acknowledgements of cursor one were not stored") as refused:
        topic.close()
    assert "no space" in str(refused.value)
    assert topic.closed
    topic.close()
    with ManagedLedger(tmp_path / "orders") as topic:
        assert topic.cursors["one"].backlog == topic.entry_count      # delivered again


def test_who_changes_it_while_it_is_closed_finds_a_closed_one_and_fails_nothing(tmp_path, monkeypatch):
    """In the background: it became read-only by that, and close() raised though all was durable."""
    found = []
    real = ManagedTail.let_go

    def change(topic):
        work_in_background()
        try:
            topic.roll()
        except LogClosedError as error:
            found.append(error)

    def let_go(tail):
        thread = threading.Thread(target=change, args=(topic,))
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
        real(tail)

    topic = ManagedLedger(tmp_path / "orders")
    topic.add_entry(message(0))
    monkeypatch.setattr(ManagedTail, "let_go", let_go)
    topic.close()
    assert len(found) == 1


# --- closing beside other threads ----------------------------------------------------------------


@pytest.mark.parametrize("writes", ["an entry", "how much is synced"])
def test_closing_after_a_failure_waits_for_a_write_of_the_ledger(tmp_path, monkeypatch, writes):
    """Otherwise it would be in the ledger, or in place of its ledger.json, after the next opener has sealed it."""
    path = tmp_path / "topic"
    if writes == "an entry":
        fs = HeldWriteFs(".log")
    else:
        monkeypatch.setattr(entry_writer, "SYNCED_BYTES", 1)
        fs = HeldNameFs("ledger.json")
    topic = ManagedLedger(path, fs=fs)
    topic.add_entry(message(0))
    fs.armed = True

    def add():
        with suppress(SeglogError):
            topic.add_entry(message(1))

    def close():
        with suppress(LogFailedError):
            topic.close()

    adder, closer = threading.Thread(target=add), threading.Thread(target=close)
    adder.start()
    assert fs.begun.wait(10)
    with suppress(LogFailedError):
        topic._tail.fail_outside(StorageError("the disk failed", file=path))
    closer.start()
    closer.join(0.2)
    with pytest.raises(LogLockedError):
        ManagedLedger(path)
    fs.go.set()
    adder.join()
    closer.join()
    for number in (2, 3):
        with ManagedLedger(path) as again:
            assert numbers(again)[0] == 0
            again.add_entry(message(number))
