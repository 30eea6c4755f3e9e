"""delayed.relocate: a message with a long delay does not keep the ledgers after its own, and is what it was."""
import os

import pytest
from pyroaring import BitMap

from seglog.clock import ManualClock
from seglog.delayed.worker import InlineWorker
from seglog.errors import InvalidArgumentError
from seglog.ledger.managed_ledger import ManagedLedger
from seglog.ledger.position import Position
from seglog.topic.delayed_delivery import DelayedDelivery
from support.command import seglog_json
from support.faultfs import RecordingFs
from support.topics import delayed, message, numbers

NOW, DAY = 1_700_000_000_000, 86_400_000
KINDS = {
    "memory": {"enableBucketDelayedDeliveryTracker": False},
    "bucket": {"delayedDeliveryLedgerStepPerBucket": 1, "delayedDeliveryMinIndexCountPerBucket": 2},
}
TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))


class Topic:
    """Ledgers of four entries, one subscription."""

    def __init__(self, path, kind, clock, fs=None, relocate=True):
        self.path, self.kind, self.clock = path, kind, clock
        config = {"managedLedgerMaxEntriesPerLedger": 4}
        self.log = ManagedLedger(path, config=config, clock=clock, fs=fs)
        self.cursor = self.log.open_cursor("billing", "earliest")
        config = KINDS[kind] | {"delayed.relocate": relocate}
        self.delayed = DelayedDelivery(self.log, config, clock=clock, new_worker=InlineWorker)
        self.dispatcher = self.delayed.dispatcher(self.cursor)

    @property
    def tracker(self):
        return self.delayed.tracker(self.cursor)

    def consume(self):
        entries = self.dispatcher.read(1000)
        self.cursor.acknowledge_many(entry.position for entry in entries)
        return numbers(entries)

    def pass_a_second(self):
        self.clock.advance(1000)
        return self.consume()

    def close(self):
        self.delayed.close()
        self.log.close()

    def reopened(self, **others):
        self.close()
        return Topic(self.path, others.pop("kind", self.kind), self.clock, **others)


def published(path, kind, **others):
    """Ten ledgers, and in the second of them a message that is due in a day: 1:2."""
    topic = Topic(path, kind, ManualClock(NOW), **others)
    topic.log.add_entries(delayed(n, NOW + DAY) if n == 6 else message(n) for n in range(40))
    topic.log.roll()
    return topic


@pytest.fixture(params=KINDS)
def topic(request, tmp_path):
    topic = published(tmp_path / "orders", request.param)
    yield topic
    topic.close()


PINNED = Position(1, 2)


def ledgers(topic):
    return [info.ledger_id for info in topic.log.ledgers]


def test_without_it_one_message_keeps_all_ledgers_after_its_own(tmp_path):
    topic = published(tmp_path / "orders", "bucket", relocate=False)
    assert len(topic.consume()) == 39
    assert topic.pass_a_second() == []
    assert ledgers(topic) == list(range(1, 10))
    topic.close()


def test_its_ledger_and_those_after_it_are_trimmed_and_it_is_delivered_when_it_is_due(topic):
    assert len(topic.consume()) == 39
    assert topic.pass_a_second() == []
    assert ledgers(topic) == []
    assert topic.cursor.backlog() == 1
    topic.cursor.flush()
    told = seglog_json("ledger", "ls", topic.path)
    assert [line["backlog"] for line in told if line["type"] == "cursor"] == [1]
    assert not topic.cursor.is_acknowledged(PINNED)
    assert topic.tracker.contains_message(*PINNED)
    assert [tuple(found) for found in topic.tracker.list(0, 2**63)] == [(NOW + DAY, *PINNED)]
    topic.clock.set(NOW + DAY - 1)
    assert topic.consume() == []
    topic.clock.set(NOW + DAY)
    (entry,) = topic.dispatcher.read()
    assert (entry.position, numbers([entry])) == (PINNED, [6])
    topic.cursor.acknowledge(entry.position)
    assert topic.cursor.is_acknowledged(PINNED)
    assert topic.cursor.backlog() == 0
    topic.pass_a_second()
    assert list((topic.path / "relocated/billing").iterdir()) == [], "its copy goes"


def test_it_is_known_after_a_restart_by_either_kind(topic):
    topic.consume()
    topic.pass_a_second()
    topic.log.add_entry(message(40))
    for kind in ("bucket", "memory", "bucket"):
        again = topic.reopened(kind=kind, relocate=False)
        assert again.tracker.count(0, 2**63) == 1
        assert ledgers(again)[0] >= 10
        topic.__dict__.update(again.__dict__)
    assert topic.consume() == [40]
    topic.clock.set(NOW + DAY)
    assert topic.consume() == [6]
    topic.__dict__.update(topic.reopened().__dict__)
    assert topic.consume() == []
    assert topic.cursor.backlog() == 0


def test_a_damaged_copy_is_told_and_stays_aside_and_others_are_delivered(topic, caplog):
    assert len(topic.consume()) == 39
    assert topic.pass_a_second() == []
    topic.close()
    (copy,) = topic.path.glob("relocated/billing/ledger-*/*.log")
    raw = bytearray(copy.read_bytes())
    raw[-1] ^= 1
    copy.write_bytes(raw)
    again = Topic(topic.path, topic.kind, topic.clock)
    again.log.add_entry(message(40))
    assert again.consume() == [40]
    assert "were relocated cannot be read" in caplog.text
    assert again.cursor.mark_delete_position >= PINNED
    again.close()


def test_what_is_given_and_not_acknowledged_comes_again(topic):
    topic.consume()
    topic.pass_a_second()
    topic.clock.set(NOW + DAY)
    assert numbers(topic.dispatcher.read()) == [6]
    assert topic.dispatcher.read() == []
    topic.dispatcher.redeliver([PINNED])
    assert numbers(topic.dispatcher.read()) == [6]
    topic.dispatcher.rewind()
    assert numbers(topic.dispatcher.read()) == [6]
    topic.__dict__.update(topic.reopened().__dict__)
    assert topic.consume() == [6]


def test_it_is_cancelled_and_rescheduled_by_its_position(topic):
    topic.consume()
    topic.pass_a_second()
    assert topic.tracker.reschedule(*PINNED, NOW + 2 * DAY)
    topic.log.add_entries(message(n) for n in range(40, 50))
    topic.consume()
    topic.pass_a_second()
    topic.__dict__.update(topic.reopened().__dict__)
    topic.clock.set(NOW + 2 * DAY - 1)
    assert topic.consume() == []
    assert topic.tracker.next_delivery_time() == NOW + 2 * DAY
    assert topic.dispatcher.cancel(PINNED)
    assert not topic.dispatcher.cancel(PINNED)
    topic.clock.set(NOW + 2 * DAY)
    assert topic.consume() == []
    topic.__dict__.update(topic.reopened().__dict__)
    assert topic.consume() == []
    assert topic.cursor.backlog() == 0


def test_a_rescheduled_message_is_relocated_with_its_time(topic):
    topic.consume()
    assert topic.tracker.reschedule(*PINNED, NOW + 3 * DAY)
    topic.pass_a_second()
    assert ledgers(topic) == []
    topic.__dict__.update(topic.reopened().__dict__)
    topic.clock.set(NOW + 2 * DAY)
    assert topic.consume() == []
    topic.clock.set(NOW + 3 * DAY)
    assert topic.consume() == [6]


def test_clearing_the_backlog_acknowledges_it_and_seeking_back_keeps_it(topic):
    topic.consume()
    topic.pass_a_second()
    topic.cursor.seek(Position(0, 0))
    topic.dispatcher.rewind()
    assert topic.tracker.count(0, 2**63) == 1
    topic.log.add_entry(message(40))
    topic.cursor.clear_backlog()
    assert topic.cursor.backlog() == 0
    topic.clock.set(NOW + DAY)
    assert topic.consume() == []


def test_a_ledger_with_many_delayed_messages_stays_and_so_do_messages_that_are_due_soon(topic):
    topic.log.add_entries([delayed(n, NOW + DAY) if n % 2 else message(n) for n in range(40, 48)])
    topic.log.add_entries([delayed(48, NOW + 30_000), *map(message, range(49, 52))])
    topic.log.roll()
    topic.consume()
    topic.pass_a_second()
    assert len(ledgers(topic)) == 3
    assert topic.cursor.aside == {1: BitMap([2])}


def test_a_shared_index_refuses_it(tmp_path):
    topic = published(tmp_path / "orders", "bucket")
    topic.consume()
    topic.pass_a_second()
    topic.delayed.close()
    for config in ({}, {"delayed.relocate": True}):
        with pytest.raises(InvalidArgumentError, match="relocated"):
            DelayedDelivery(topic.log, {"enableShareDelayedMessageIndex": True} | config)
    topic.log.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_written_just_now", [False, True])
def test_crash_states_of_relocation(tmp_path, kind, is_written_just_now):
    """Also where the cursor was written within the second, and would not be by itself."""
    disk = tmp_path / "disk"
    disk.mkdir()
    record = RecordingFs(disk)
    topic = published(disk / "orders", kind, fs=record)
    topic.consume()
    topic.cursor.flush()
    record.mark("consumed")
    if is_written_just_now:
        assert topic.delayed.index(topic.cursor).relocate() == 1
    else:
        topic.pass_a_second()
    record.mark("relocated")
    topic.clock.set(NOW + DAY)
    topic.consume()
    topic.cursor.flush()
    record.mark("done")
    topic.pass_a_second()
    topic.close()
    for state in record.crash_states(limit=1000 if TORTURE else 40, seed=5):
        if "consumed" not in state.marks:
            continue
        with state.materialise() as root:
            again = Topic(root / "orders", kind, ManualClock(NOW + 2000))
            known = again.tracker.count(0, 2**63)
            assert known == 1 or ("relocated" in state.marks and known == 0), state.story()
            if "relocated" in state.marks:
                assert ledgers(again) == [], state.story()
            again.pass_a_second()
            again.clock.set(NOW + DAY)
            found = again.consume()
            assert found == ([] if "done" in state.marks else [6]) or (found == [] and known == 0), state.story()
            assert again.consume() == []
            again.pass_a_second()
            assert again.cursor.backlog() == 0, state.story()
            again.close()
            assert not list(root.glob("orders/relocated/*/*")), state.story()
