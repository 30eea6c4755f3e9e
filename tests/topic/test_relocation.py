"""seglog.delayed.relocate: a message with a long delay does not keep the ledgers after its own, and is what it was."""
import contextlib
import os
import signal

import pytest
from pyroaring import BitMap

from seglog.clock import ManualClock
from seglog.delayed.worker import InlineWorker
from seglog.errors import InvalidArgumentError
from seglog.ledger.managed import relocated_entries
from seglog.ledger.position import Position
from seglog.pulsar import ManagedLedger
from seglog.topic.delayed_delivery import DelayedDelivery
from seglog.upkeep.topic_compaction import PulsarTopicCompactionService
from support.command import seglog_json
from support.faultfs import RecordingFs
from support.topics import batch, delayed, message, numbers

NOW, DAY = 1_700_000_000_000, 86_400_000
KINDS = {
    "memory": {"enableBucketDelayedDeliveryTracker": False},
    "bucket": {"delayedDeliveryLedgerStepPerBucket": 1, "delayedDeliveryMinIndexCountPerBucket": 2},
}
KINDS["shared"] = KINDS["bucket"] | {"enableShareDelayedMessageIndex": True}
STATES = 1000 if os.environ.get("SEGLOG_TORTURE") else 16


class Topic:
    """Ledgers of four entries, one subscription that reads."""

    def __init__(self, path, kind, clock, fs=None, relocate=True):
        self.path, self.kind, self.clock = path, kind, clock
        config = {"managedLedgerMaxEntriesPerLedger": 4}
        self.log = ManagedLedger(path, config=config, clock=clock, fs=fs)
        self.cursor = self.log.open_cursor("billing", "earliest")
        config = KINDS[kind] | {"seglog.delayed.relocate": relocate}
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


def published(path, kind, count=1, **others):
    """Ten ledgers, and in the second of them what is due in a day: 1:2, a message or a batch of several."""
    topic = Topic(path, kind, ManualClock(NOW), **others)
    late = delayed(6, NOW + DAY) if count == 1 else batch(6, count, deliver_at=NOW + DAY)
    topic.log.add_entries(late if n == 6 else message(n) for n in range(40))
    topic.log.roll()
    return topic


@pytest.fixture
def tmp_path(in_memory):
    """Each step of a relocation is synced."""
    return in_memory


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
    assert topic.cursor.backlog == 1
    topic.cursor.flush()
    told = seglog_json("ledger", "ls", topic.path)
    assert sum(line["backlog"] for line in told if line["type"] == "cursor") == 1
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
    assert topic.cursor.backlog == 0
    topic.pass_a_second()
    assert list(topic.path.glob("relocated/*/*")) == [], "its copy goes"


def test_it_is_known_after_a_restart_by_either_kind(topic):
    topic.consume()
    topic.pass_a_second()
    topic.log.add_entry(message(40))
    for kind in ("bucket", "memory", "shared", "bucket", "shared", "memory"):
        again = topic.reopened(kind=kind, relocate=False)
        assert again.tracker.count(0, 2**63) == 1
        assert ledgers(again)[0] >= 10
        topic.__dict__.update(again.__dict__)
    assert topic.consume() == [40]
    topic.clock.set(NOW + DAY)
    assert topic.consume() == [6]
    topic.__dict__.update(topic.reopened().__dict__)
    assert topic.consume() == []
    assert topic.cursor.backlog == 0


def damage_copy(topic):
    (copy,) = topic.path.glob("relocated/*/ledger-*/*.log")
    raw = bytearray(copy.read_bytes())
    raw[-1] ^= 1
    copy.write_bytes(raw)


def test_a_damaged_copy_is_told_and_stays_aside_and_others_are_delivered(topic, caplog):
    assert len(topic.consume()) == 39
    assert topic.pass_a_second() == []
    topic.close()
    damage_copy(topic)
    again = Topic(topic.path, topic.kind, topic.clock)
    again.log.add_entry(message(40))
    assert again.consume() == [40]
    assert "relocated messages cannot be read" in caplog.text
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
    assert topic.cursor.backlog == 0


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
    assert topic.cursor.backlog == 0
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


def test_messages_of_a_batch_are_acknowledged_one_by_one(tmp_path):
    topic = published(tmp_path / "orders", "bucket", count=4)
    topic.consume()
    topic.cursor.acknowledge(PINNED, [1])
    topic.pass_a_second()
    for kind, index, acknowledged in (("memory", 0, {0, 1}), ("shared", 2, {0, 1, 2}), ("bucket", 2, {0, 1, 2})):
        topic = topic.reopened(kind=kind)
        assert ledgers(topic) == []
        assert not topic.cursor.is_acknowledged(PINNED)
        topic.cursor.acknowledge(PINNED, [index])
        assert topic.cursor.acknowledged_batch_indexes(PINNED) == acknowledged
    for indexes, size in (([4], None), ([3], 5)):
        with pytest.raises(InvalidArgumentError, match="message"):
            topic.cursor.acknowledge(PINNED, indexes, size)
    topic.clock.set(NOW + DAY)
    (entry,) = topic.dispatcher.read()
    assert (entry.position, entry.message_count, numbers([entry])) == (PINNED, 4, [6])
    topic.cursor.acknowledge(PINNED, [3])
    assert topic.cursor.is_acknowledged(PINNED)
    assert topic.cursor.backlog == 0
    topic = topic.reopened()
    assert topic.consume() == []
    topic.pass_a_second()
    assert list(topic.path.glob("relocated/*/*")) == []
    topic.close()


def test_a_seek_back_brings_every_message_of_a_batch_again(tmp_path):
    topic = published(tmp_path / "orders", "memory", count=4)
    topic.consume()
    topic.cursor.acknowledge(PINNED, [1])
    topic.pass_a_second()
    topic.cursor.seek(Position(0, 0))
    topic.dispatcher.rewind()
    topic = topic.reopened()
    assert topic.cursor.acknowledged_batch_indexes(PINNED) == frozenset()
    topic.cursor.acknowledge(PINNED, [0, 1, 2, 3])
    assert topic.cursor.backlog == 0
    topic.close()


def both_subscribed(path, count=1):
    """`published` over a shared index, and a second subscription, "audit", whose dispatcher comes too."""
    topic = published(path, "shared", count)
    audit = topic.log.open_cursor("audit", "earliest")
    other = topic.delayed.dispatcher(audit)
    assert len(topic.consume()) == 39
    assert len(given(other)) == 39
    return topic, other


def given(dispatcher):
    """Acknowledged, too."""
    entries = dispatcher.read(1000)
    dispatcher.cursor.acknowledge_many(entry.position for entry in entries)
    return numbers(entries)


def test_each_subscription_of_a_shared_index_gets_it_once(tmp_path):
    topic, other = both_subscribed(tmp_path / "orders", count=2)
    other.cursor.acknowledge(PINNED, [0])
    topic.pass_a_second()
    assert ledgers(topic) == []
    assert [cursor.backlog for cursor in (topic.cursor, other.cursor)] == [1, 1]
    late = topic.delayed.dispatcher(topic.log.open_cursor("late", "earliest"))     # its ledger was gone before
    topic.clock.set(NOW + DAY)
    assert topic.consume() == [6]
    topic.pass_a_second()
    assert other.cursor.acknowledged_batch_indexes(PINNED) == {0}
    assert given(other) == [6]
    assert given(other) == given(late) == topic.consume() == []
    topic.pass_a_second()
    assert list(topic.path.glob("relocated/*/*")) == []
    topic.close()


def test_what_one_subscription_has_done_with_is_relocated_for_the_other(tmp_path):
    topic, other = both_subscribed(tmp_path / "orders")
    other.cursor.acknowledge(PINNED)
    topic.pass_a_second()
    assert ledgers(topic) == []
    assert [cursor.backlog for cursor in (topic.cursor, other.cursor)] == [1, 0]
    topic.clock.set(NOW + DAY)
    assert (topic.consume(), given(other)) == ([6], [])
    topic.close()


def test_a_subscription_that_lags_keeps_the_ledgers(tmp_path):
    topic = published(tmp_path / "orders", "shared")
    topic.log.open_cursor("audit", "earliest")
    topic.consume()
    topic.pass_a_second()
    assert len(ledgers(topic)) == 10
    topic.log.delete_cursor("audit")
    topic.pass_a_second()
    assert ledgers(topic) == []
    topic.close()


def test_cancelling_in_a_shared_index_is_for_all_that_had_it(tmp_path):
    topic, other = both_subscribed(tmp_path / "orders")
    topic.pass_a_second()
    topic.pass_a_second()
    topic.log.open_cursor("late", "earliest")
    assert other.cancel(PINNED)
    assert [cursor.backlog for cursor in (topic.cursor, other.cursor)] == [0, 0]
    topic.clock.set(NOW + DAY)
    assert topic.consume() == given(other) == []
    topic.close()


def test_crash_states_where_only_one_of_two_cursors_has_set_it_aside(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    topic, _ = both_subscribed(disk / "orders", count=2)
    topic.close()
    record = RecordingFs(disk)
    topic = Topic(disk / "orders", "shared", topic.clock, fs=record)
    topic.consume()
    record.mark("opened")
    assert topic.delayed.index(topic.cursor).relocate() == 1
    record.mark("relocated")
    topic.pass_a_second()
    topic.close()
    apart = 0
    for state in record.crash_states(limit=4 * STATES, seed=5):
        with state.materialise() as root:
            again = Topic(root / "orders", "shared", ManualClock(NOW + 2000))
            cursors = again.log.open_cursor("billing"), again.log.open_cursor("audit")
            aside = [cursor.is_aside(PINNED) for cursor in cursors]
            apart += aside[0] != aside[1]
            assert "relocated" not in state.marks or all(aside)
            audit = again.delayed.dispatcher(cursors[1])
            assert again.tracker.count(0, 2**63) == 1, state.story()
            for _ in range(3):
                assert again.pass_a_second() == []
            again.log.trim()        # a cursor that had passed them before the crash passes nothing now
            assert ledgers(again) == [], state.story()
            again.clock.set(NOW + DAY)
            assert (again.consume(), given(audit)) == ([6], [6]), state.story()
            assert [cursor.backlog for cursor in cursors] == [0, 0]
            again.close()
    assert apart


def test_another_kind_of_tracker_keeps_the_time_of_what_was_relocated_and_rescheduled(topic):
    topic.consume()
    topic.pass_a_second()
    assert topic.tracker.reschedule(*PINNED, NOW + 3 * DAY)
    for kind in ("shared", "memory", "shared", "bucket"):
        topic.__dict__.update(topic.reopened(kind=kind).__dict__)
        assert topic.tracker.next_delivery_time() == NOW + 3 * DAY, kind
        topic.pass_a_second()


def test_a_damaged_copy_of_what_was_rescheduled_stops_no_other_kind_of_tracker(topic):
    """Its time was asked of the ledger that it was moved out of. When it can be read again, it has the time still."""
    topic.consume()
    topic.pass_a_second()
    assert topic.tracker.reschedule(*PINNED, NOW + 3 * DAY)
    topic.close()
    damage_copy(topic)
    again = Topic(topic.path, "shared", topic.clock)
    again.log.add_entry(message(40))
    assert again.consume() == [40]
    assert again.cursor.is_aside(PINNED)
    again.close()
    damage_copy(topic)      # back
    topic.__dict__.update(Topic(topic.path, "shared", topic.clock).__dict__)
    assert topic.tracker.next_delivery_time() == NOW + 3 * DAY


def test_what_was_brought_forward_and_given_comes_again_after_a_restart(topic):
    """The decision went with the ledgers that the cursor passed, and the copy is due in a day."""
    topic.consume()
    topic.pass_a_second()
    assert topic.tracker.deliver_now(*PINNED)
    (entry,) = topic.dispatcher.read()
    assert entry.position == PINNED
    topic.log.add_entries(message(n) for n in range(40, 48))
    for _ in range(3):
        topic.pass_a_second()
    topic.__dict__.update(topic.reopened().__dict__)
    assert topic.consume() == [6]


@pytest.mark.parametrize("kind", KINDS)
def test_crash_states_of_cancelling_what_was_relocated(tmp_path, kind):
    disk = tmp_path / "disk"
    disk.mkdir()
    topic = published(disk / "orders", kind)
    topic.consume()
    topic.pass_a_second()
    topic.close()
    record = RecordingFs(disk)
    topic = Topic(disk / "orders", kind, ManualClock(NOW + 2000), fs=record)
    topic.consume()
    record.mark("opened")
    assert topic.dispatcher.cancel(PINNED)
    record.mark("cancelled")
    topic.close()
    for state in record.crash_states(limit=STATES, seed=6):
        with state.materialise() as root:
            again = Topic(root / "orders", kind, ManualClock(NOW + DAY))
            found = again.consume()
            assert found == [] or (found == [6] and "cancelled" not in state.marks), state.story()
            assert again.cursor.backlog == 0, state.story()
            again.close()


def test_copies_go_with_the_subscription_that_they_were_made_for(topic):
    topic.consume()
    topic.pass_a_second()
    assert len(list(topic.path.glob("relocated/*/*"))) == 1
    topic.delayed.close()
    topic.log.delete_cursor("billing")
    topic.__dict__.update(topic.reopened().__dict__)
    topic.pass_a_second()
    topic.pass_a_second()
    assert list(topic.path.glob("relocated/*/*")) == []


def test_an_interrupt_while_it_is_set_aside_leaves_it_delayed(topic):
    """The ledger was trimmed by what memory said, and no cursor on the disk had set the entry aside."""
    topic.consume()
    topic.cursor.flush()
    written, home = topic.cursor._home.write_cursor, topic.cursor._home

    def interrupted(state):
        raise KeyboardInterrupt

    home.write_cursor = interrupted
    with pytest.raises(KeyboardInterrupt):
        topic.delayed.index(topic.cursor).relocate()
    home.write_cursor = written
    topic.log.trim()
    assert PINNED.ledger_id in ledgers(topic)
    topic.clock.set(NOW + DAY)
    assert topic.consume() == [6]


def test_compaction_passes_over_what_was_relocated(tmp_path):
    topic = published(tmp_path / "orders", "bucket")
    topic.consume()
    service = PulsarTopicCompactionService(topic.log)
    service.compact()
    topic.pass_a_second()
    assert ledgers(topic) == []
    topic.log.add_entries(message(n) for n in range(40, 44))
    service.compact()
    topic.consume()
    topic.pass_a_second()
    service.close()
    assert topic.tracker.count(0, 2**63) == 1
    topic.clock.set(NOW + DAY)
    assert topic.consume() == [6]
    topic.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_written_just_now", [False, True])
def test_crash_states_of_relocation(tmp_path, kind, is_written_just_now):
    """Also where the cursor was written within the second, and would not be by itself."""
    disk = tmp_path / "disk"
    disk.mkdir()
    record = RecordingFs(disk)
    topic = published(disk / "orders", kind, count=3, fs=record)
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
    for state in record.crash_states(limit=STATES, seed=5):
        if "consumed" not in state.marks:
            continue
        with state.materialise() as root:
            again = Topic(root / "orders", kind, ManualClock(NOW + 2000))
            known = again.tracker.count(0, 2**63)
            assert known == 1 or ("relocated" in state.marks and known == 0), state.story()
            again.pass_a_second()
            if "relocated" in state.marks:
                again.pass_a_second()
                again.log.trim()
                assert ledgers(again) == [], state.story()
            again.clock.set(NOW + DAY)
            found = again.consume()
            assert found == ([] if "done" in state.marks else [6]) or (found == [] and known == 0), state.story()
            assert again.consume() == []
            again.pass_a_second()
            assert again.cursor.backlog == 0, state.story()
            again.close()
            assert not list(root.glob("orders/relocated/*/*")), state.story()


@pytest.mark.parametrize("kind", KINDS)
def test_crash_states_of_copies_that_are_put_together(tmp_path, kind):
    """Five of ten copies are acknowledged: the others go into another ledger, and none is lost or comes twice."""
    disk = tmp_path / "disk"
    disk.mkdir()
    record = RecordingFs(disk)
    topic = Topic(disk / "orders", kind, ManualClock(NOW), fs=record)
    topic.log.add_entries(delayed(n, NOW + DAY) if n % 4 == 0 else message(n) for n in range(40))
    topic.log.roll()
    topic.consume()
    topic.pass_a_second()
    [before] = topic.path.glob("relocated/*/ledger-*")
    topic.cursor.acknowledge_many(Position(ledger_id, 0) for ledger_id in range(0, 10, 2))
    topic.cursor.flush()
    record.mark("acknowledged")
    topic.pass_a_second()
    record.mark("tidied")
    [after] = topic.path.glob("relocated/*/ledger-*")
    assert after != before
    assert len(list(topic.delayed.index(topic.cursor)._relocated.times())) == 5
    topic.close()
    for state in record.crash_states(limit=STATES, seed=8):
        if "acknowledged" not in state.marks:
            continue
        with state.materialise() as root:
            again = Topic(root / "orders", kind, ManualClock(NOW + 3000))
            again.pass_a_second()
            assert len(list(root.glob("orders/relocated/*/ledger-*"))) == 1, state.story()
            again.clock.set(NOW + DAY)
            assert sorted(again.consume()) == [4, 12, 20, 28, 36], state.story()
            again.pass_a_second()
            assert again.cursor.backlog() == 0, state.story()
            again.close()
            assert not list(root.glob("orders/relocated/*/*")), state.story()


@pytest.mark.usefixtures("no_collector_hooks")
def test_an_interrupt_while_copies_are_noted_leaves_all_of_them_or_none(tmp_path, monkeypatch):
    """A ledger of copies was listed without what is in it: every later look for those that are needed failed."""
    found = relocated_entries.copies_in

    def interrupted(ledger):
        for number, copy in enumerate(found(ledger)):
            if number == 2:
                signal.raise_signal(signal.SIGINT)
            yield copy

    clock = ManualClock(NOW)
    with ManagedLedger(tmp_path / "t", clock=clock) as log:
        cursor = log.open_cursor("billing", "earliest")
        positions = [log.add_entry(message(n)) for n in range(4)]
        copies = relocated_entries.RelocatedEntries(log)
        monkeypatch.setattr(relocated_entries, "copies_in", interrupted)
        is_open_to_it = True

        def interrupt(number, frame):
            if is_open_to_it:
                raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            # It comes in the middle of a step that is not shielded, and after one that is, at once or later.
            with contextlib.suppress(KeyboardInterrupt):
                copies.add("billing", [(position, NOW, log.read(position).data) for position in positions])
        finally:
            is_open_to_it = False
            signal.signal(signal.SIGINT, before)
        monkeypatch.undo()
        assert copies.count in (0, 4)
        copies.add("billing", [(position, NOW, log.read(position).data) for position in positions])
        cursor.set_aside([(position, 1) for position in positions])
        clock.advance(relocated_entries.TIDY_EVERY_NS // 1_000_000 + 1)
        copies.tidy()
        assert [copies.read(position).data for position in positions] == [log.read(one).data for one in positions]
        copies.close()
