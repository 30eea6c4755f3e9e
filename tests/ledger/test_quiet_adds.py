"""Adds of entries that need only a write and a sync, which a kernel makes: the same as by the slow path."""
import errno
import os
import random

import pytest

from seglog._kernels.message_entry import encode_message
from seglog._kernels.quiet_ledger import QuietAdds, QuietWriter
from seglog.clock import ManualClock
from seglog.errors import ForkedHandleError, LogClosedError, LogFailedError, RecordTooLargeError, SeglogError
from seglog.fs.files import OsFileSystem
from seglog.pulsar import ManagedLedger
from support.faultfs import FailingFs

NOW = 1_700_000_000_000


def entry_of(number, size_bytes=100, at_ms=NOW):
    return encode_message(b"p", number, at_ms, None, None, False, None, bytes([number % 256]) * size_bytes)


def files_of(directory):
    """The bytes of all logs and indexes. (The names of ledgers are their numbers.)"""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*")) if path.suffix in (".log", ".index", ".timeindex")
    }


def add_slowly(ledger, entry, at_ms):
    return ledger.add_entry(entry)


def add_quietly_or_not(ledger, entry, at_ms):
    return ledger._appender.add_built(entry, at_ms)


def add_only_quietly(ledger, entry, at_ms):
    found = ledger._appender.add_quietly(entry, at_ms)
    quiet[found is not None] += 1
    return found or ledger.add_entry(entry)


quiet = {True: 0, False: 0}


@pytest.mark.parametrize("config", [
    {}, {"managedLedgerMaxEntriesPerLedger": 7}, {"managedLedgerMaxSizePerLedgerMbytes": 1},
    {"managedLedgerMaxLedgerRolloverTimeMinutes": 1}, {"brokerEntryMetadataInterceptors": ["timestamp", "index"]},
])
@pytest.mark.parametrize("fsync", ["batch", "never"])
def test_a_quiet_add_writes_the_same_bytes_as_the_slow_path(in_memory, config, fsync):
    config = {"managedLedgerMinLedgerRolloverTimeMinutes": 0} | config
    for add in (add_slowly, add_only_quietly):
        chance, clock = random.Random(7), ManualClock(NOW)
        quiet.update({True: 0, False: 0})
        with ManagedLedger(in_memory / add.__name__, config=config, clock=clock, fsync=fsync) as ledger:
            positions = []
            for number in range(80):
                size_bytes = chance.choice([0, 1, 100, 100, 9000, 60_000])
                positions.append(tuple(add(ledger, entry_of(number, size_bytes, clock.now_ms()), clock.now_ms())))
                if chance.random() < 0.2:
                    clock.advance(chance.randrange(30_000))
            state = positions, [(info.ledger_id, info.end and info.end.entries) for info in ledger.ledgers]
        if add is add_slowly:
            expected = state
    assert state == expected
    assert files_of(in_memory / "add_slowly") == files_of(in_memory / "add_only_quietly")
    assert bool(quiet[True]) == (fsync == "batch" and "brokerEntryMetadataInterceptors" not in config)


def test_nearly_all_adds_are_quiet(in_memory):
    with ManagedLedger(in_memory / "ledger", clock=ManualClock(NOW)) as ledger:
        quiet.update({True: 0, False: 0})
        for number in range(100):
            add_only_quietly(ledger, entry_of(number), NOW)
        assert quiet == {True: 99, False: 1}     # the first one makes the ledger
        assert [entry.position for entry in ledger.read_entries((0, 0), 200)] == [(0, number) for number in range(100)]


def test_a_listener_hears_of_a_quiet_add_once_it_can_be_read(in_memory):
    heard = []
    with ManagedLedger(in_memory / "ledger", clock=ManualClock(NOW)) as ledger:
        ledger.listen(lambda: heard.append(ledger.last_position))
        for number in range(3):
            add_quietly_or_not(ledger, entry_of(number), NOW)
        assert heard == [(0, 0), (0, 1), (0, 2)]


def test_an_entry_that_is_too_large_is_refused(in_memory):
    with ManagedLedger(in_memory / "ledger", config={"maxMessageSize": 1000}, clock=ManualClock(NOW)) as ledger:
        add_quietly_or_not(ledger, entry_of(0), NOW)
        with pytest.raises(RecordTooLargeError):
            add_quietly_or_not(ledger, entry_of(1, 1000), NOW)
        assert add_quietly_or_not(ledger, entry_of(2), NOW) == (0, 1)


def test_a_closed_ledger_refuses_a_quiet_add(in_memory):
    ledger = ManagedLedger(in_memory / "ledger", clock=ManualClock(NOW))
    add_quietly_or_not(ledger, entry_of(0), NOW)
    ledger.close()
    with pytest.raises(LogClosedError):
        add_quietly_or_not(ledger, entry_of(1), NOW)


def test_a_forked_child_adds_nothing_quietly(in_memory):
    with ManagedLedger(in_memory / "ledger", clock=ManualClock(NOW)) as ledger:
        add_quietly_or_not(ledger, entry_of(0), NOW)
        child = os.fork()
        if not child:
            status = 1
            try:
                add_quietly_or_not(ledger, entry_of(1), NOW)
            except ForkedHandleError:
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert add_quietly_or_not(ledger, entry_of(2), NOW) == (0, 1)


def outcome_of(path, add, point):
    """What adds tell their callers if change `point` fails, and what the next opening finds."""
    fs, answers = FailingFs(OsFileSystem(), fail_at=point, error=errno.EIO, once=True), []
    try:
        with ManagedLedger(path, fs=fs, clock=ManualClock(NOW)) as ledger:
            for number in range(6):
                try:
                    answers.append(tuple(add(ledger, entry_of(number), NOW)))
                except SeglogError as error:
                    answers.append(type(error))
    except SeglogError as error:
        answers.append(("at its end", type(error)))
    with ManagedLedger(path, clock=ManualClock(NOW)) as ledger:
        return answers, ledger.entry_count


def test_a_write_or_sync_that_fails_ends_as_in_the_slow_path(in_memory):
    failed = 0
    for point in range(60):
        slow = outcome_of(in_memory / f"slow-{point}", add_slowly, point)
        assert outcome_of(in_memory / f"quiet-{point}", add_quietly_or_not, point) == slow
        failed += LogFailedError in slow[0]
    assert failed > 5


def test_adds_without_their_fields_are_refused():
    with pytest.raises(TypeError, match="without a managed ledger"):
        QuietAdds().add_quietly(b"", 0)
    for entry in (None, "text", bytearray(b"a"), 7):
        with pytest.raises(TypeError):
            QuietAdds().add_quietly(entry, 0)
    with pytest.raises(AttributeError):
        QuietWriter().sync()
