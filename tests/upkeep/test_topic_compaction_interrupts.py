"""Ctrl-C in compact(), at many moments: what is read stays the same, the next compaction goes on, and so does the next
opening."""
import os
import random
import shutil
from itertools import count

import pytest

from seglog.ledger.managed.compacted_home import DIRECTORY
from seglog.ledger.managed.cursor import ManagedCursor
from seglog.pulsar import ManagedLedger
from seglog.upkeep.topic_compaction import PulsarTopicCompactionService
from support.interrupts import Interrupter
from support.keyed_topic import keyed, keyed_batch, read_all

CONFIG = {"managedLedgerMaxEntriesPerLedger": 3, "managedLedgerDefaultMarkDeleteRateLimit": 0}
# Instructions from one interrupt to the next, at most; some 20 000 are the engine's.
STEP = 40 if os.environ.get("SEGLOG_TORTURE") else 1600
LAST_VALUES = {"a": b"10", "k0": b"1", "k2": b"1", "k3": b"1", "k4": b"1"}


def last_values(topic, service=None):
    found = {}
    for key, value in read_all(topic, service):
        found[key] = value
    return {key: value for key, value in found.items() if value}


def made(path):
    """A topic that was compacted and trimmed, and got two more messages."""
    with ManagedLedger(path, config=CONFIG, fsync="never") as topic:
        topic.add_entries([keyed_batch(n, [("a", b"%d" % n), (f"k{n}", b"1")]) for n in range(5)])
        PulsarTopicCompactionService(topic).compact()
        topic.open_cursor("sub", "earliest").clear_backlog()
        topic.roll()
        topic.add_entries([keyed(9, "k1", None), keyed(10, "a", b"10")])
    return path


def interrupted(made_at, path, at):
    """Whether an interrupt came, at the `at`-th instruction; and all is well behind it."""
    shutil.copytree(made_at, path)
    topic = ManagedLedger(path, config=CONFIG)
    service = PulsarTopicCompactionService(topic)
    interrupter = Interrupter(at)
    interrupter.run(service.compact)
    try:
        assert last_values(topic, service) == LAST_VALUES
        service.compact()
        assert last_values(topic, service) == LAST_VALUES
        topic.close()
        with ManagedLedger(path, config=CONFIG) as topic:
            assert len(os.listdir(path / DIRECTORY)) == 1
            assert last_values(topic) == LAST_VALUES
    except BaseException as error:
        error.add_note(f"instruction {at}: {interrupter.where}")
        topic.close()
        raise
    shutil.rmtree(path)
    return interrupter.where is not None


# A file that was opened when the interrupt came, and has no `with` around it yet, is the collector's to close.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_leaves_a_topic_that_reads_the_same_and_goes_on(tmp_path):
    topic, chance, at, points = made(tmp_path / "made"), random.Random(1), 0, 0
    while interrupted(topic, tmp_path / "t", at):
        at += chance.randint(1, STEP)
        points += 1
    assert points > 15


def test_an_interrupt_before_the_cursor_is_written_leaves_its_pointer_to_be_written(tmp_path, monkeypatch):
    """Else the next compaction deleted the ledger that the disk points to."""
    topic = ManagedLedger(made(tmp_path / "t"), config=CONFIG)
    service = PulsarTopicCompactionService(topic)
    for name in ("_mark_delete", "_write"):
        with monkeypatch.context() as patch:
            real, calls = getattr(ManagedCursor, name), count()

            def once(cursor, *arguments, real=real, calls=calls):
                if cursor.name == "__compaction" and not next(calls):
                    raise KeyboardInterrupt
                return real(cursor, *arguments)

            patch.setattr(ManagedCursor, name, once)
            with pytest.raises(KeyboardInterrupt):
                service.compact()
        service.compact()
        assert last_values(topic, service) == LAST_VALUES
        shutil.copytree(topic.path, tmp_path / name)        # as a kill leaves it
        with ManagedLedger(tmp_path / name, config=CONFIG) as opened:
            assert last_values(opened) == LAST_VALUES
        topic.add_entry(keyed(11, "a", b"10"))
    topic.close()
