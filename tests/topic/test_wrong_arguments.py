"""Arguments of a wrong kind at the doors of managed ledgers, cursors, dispatchers and trackers: each is refused, and
changes nothing. A float was cut to an int in a kernel, and a tuple of three was a position."""
from contextlib import suppress

import pytest

from seglog.clock import ManualClock
from seglog.delayed.worker import InlineWorker
from seglog.errors import InvalidArgumentError, InvalidConfigError, SeglogError
from seglog.ledger.ledger import Ledger
from seglog.pulsar import DelayedDelivery, ManagedLedger, Position
from support.topics import batch, delayed, message

NOW = 1_700_000_000_000
NO_INT = ["5", None, 1.5, 1.0, float("nan"), True, b"1", object()]
NO_POSITION = [
    "0:1", "ab", None, 1.5, 5, (1,), (0, 1, 2), (0.5, 0), (0, 1.0), (0, float("nan")), ("0", "1"), (None, None),
    (0, True), [0, 1], Position(0, 1.5), Position("0", 1), object(),
]
NO_TEXT = [5, 1.5, True, ("a",), object(), "\ud800"]
NO_BYTES = ["text", None, 5, 1.5, [1], object()]
NO_MAPPING = [5, "x", [("a", "b")], object(), {1: "a"}, {"a": 1}]
P = Position(0, 2)      # a batch of three


class Topic:
    def __init__(self, path, kind):
        config = {"managedLedgerMaxEntriesPerLedger": 4}
        self.log = ManagedLedger(path, config=config, clock=(clock := ManualClock(NOW)))
        self.cursor = self.log.open_cursor("one", "earliest")
        kind = {"enableBucketDelayedDeliveryTracker": kind == "bucket"}
        self.delayed = DelayedDelivery(self.log, kind, clock=clock, new_worker=InlineWorker)
        self.dispatcher = self.delayed.dispatcher(self.cursor)
        entries = [delayed(n, NOW + 1000) if n % 2 else message(n) for n in range(10)]
        self.log.add_entries([*entries[:2], batch(2, 3), *entries[3:]])
        self.tracker = self.delayed.tracker(self.cursor)
        self.tracker.count(0, 2**63)

    def state(self):
        cursor = self.cursor
        return (
            self.log.entry_count, cursor.backlog, cursor.mark_delete_position, cursor.acknowledged_batch_indexes(P),
            cursor.properties, self.log.properties, self.tracker.list(0, 2**63), list(self.log.cursors),
        )


def of_ints(topic):
    log, cursor, tracker, dispatcher = topic.log, topic.cursor, topic.tracker, topic.dispatcher
    yield dispatcher.read
    yield cursor.read
    yield cursor.skip
    yield cursor.unacknowledged_in
    yield cursor.seek_by_time
    yield cursor.seek_by_index
    yield lambda value: cursor.acknowledge(P, [value])
    yield lambda value: cursor.acknowledge(P, [0], 3.0 if value is None else value)
    yield lambda value: log.read_entries(P, value)
    yield log.position_at_time
    yield log.position_at_index
    yield tracker.get_scheduled_messages
    yield tracker._pending_in
    yield lambda value: tracker.list(value, 5)
    yield lambda value: tracker.list(0, value)
    yield lambda value: tracker.count(value, 5)
    yield lambda value: tracker.histogram([0, value])
    yield lambda value: tracker.reschedule(0, 1, value)
    yield lambda value: tracker.add_message(0, 1, value)
    yield lambda value: tracker.add_message(9, value, 2**60)
    yield lambda value: tracker.add_message(value, 9, 2**60)
    yield lambda value: tracker.add_messages(value, value, value) if value != b"1" else dispatcher.read(value)
    for name in ("contains_message", "cancel", "forget", "deliver_now", "trim"):
        yield lambda value, name=name: getattr(tracker, name)(value, 1)
        yield lambda value, name=name: getattr(tracker, name)(0, value)
    yield lambda value: topic.delayed.publish(b"x", deliver_at_ms=1.5 if value is None else value)


def of_positions(topic):
    log, cursor, dispatcher = topic.log, topic.cursor, topic.dispatcher
    yield dispatcher.cancel
    yield lambda value: dispatcher.redeliver([value])
    yield cursor.acknowledge
    yield lambda value: cursor.acknowledge_many([P, value])
    yield cursor.mark_delete
    yield cursor.seek
    yield cursor.is_acknowledged
    yield cursor.acknowledged_batch_indexes
    yield cursor.is_aside
    yield lambda value: cursor.set_aside([(value, 1)])
    yield cursor.read_after
    yield log.read
    yield lambda value: log.read_entries(value, 2)
    yield log.next_valid
    yield log.previous_valid
    yield log.is_valid
    yield lambda value: log.entries_between(value, P)
    yield lambda value: log.entries_between(P, value)
    yield lambda value: log.position_at_time(5, value)
    yield lambda value: log.find_newest_matching(bool, 1.5 if value is None else value)
    yield lambda value: log.open_cursor("new", value)


@pytest.fixture(params=["memory", "bucket"])
def topic(in_memory, request):
    topic = Topic(in_memory / "t", request.param)
    yield topic
    topic.delayed.close()
    topic.log.close()


def refused(doors, values, topic):
    before = topic.state()
    for number, door in enumerate(doors):
        for value in values:
            try:
                door(value)
            except (InvalidArgumentError, InvalidConfigError):
                continue
            raise AssertionError(f"door {number} took {value!r}")
    assert topic.state() == before
    assert topic.log.add_entry(message(99)), "the topic goes on"


def test_what_is_no_int_is_refused(topic):
    refused(of_ints(topic), NO_INT, topic)


def test_what_is_no_position_is_refused(topic):
    refused(of_positions(topic), NO_POSITION, topic)


def test_what_is_no_text_is_refused(topic):
    def keyed(value):
        topic.delayed.publish(b"x", key=value)

    doors = [
        keyed, topic.log.open_cursor, lambda value: topic.log.open_cursor(b"x" if value == "\ud800" else value),
        lambda value: topic.delayed.publish(b"x", properties={"name": value}), topic.log.delete_cursor,
    ]
    refused(doors, NO_TEXT, topic)


def test_what_is_no_message_is_refused(topic):
    doors = [
        topic.log.add_entry, lambda value: topic.log.add_entries([value]), topic.delayed.add_entry,
        topic.delayed.publish,
    ]
    refused(doors, NO_BYTES, topic)


def test_what_is_no_mapping_is_refused(topic):
    """The properties of a new cursor made the topic read-only."""
    topic_of = topic.delayed
    doors = [
        lambda value: topic.log.open_cursor("new", "latest", value), topic.log.update_properties,
        topic.cursor.update_properties, lambda value: topic.cursor.mark_delete(Position(0, 0), value),
        lambda value: topic_of.publish(b"x", properties=value), topic_of.set_policies, topic_of.reconfigure,
        topic.tracker.reconfigure, lambda value: DelayedDelivery(topic.log, value),
    ]
    refused(doors, NO_MAPPING, topic)


def test_what_is_none_of_its_cursors_is_refused(topic, in_memory):
    doors = [topic.delayed.tracker, topic.delayed.index, topic.delayed.dispatcher]
    with ManagedLedger(in_memory / "other") as other:
        refused(doors, ["one", None, 5, object(), other.open_cursor("one")], topic)


def test_what_is_no_time_span_is_refused(topic):
    refused([lambda value: topic.delayed.publish(b"x", delay=value)], ["5", b"1", True, float("nan"), [], -1], topic)
    refused([lambda value: topic.dispatcher.read(1, value)], ["5", float("nan"), [], object()], topic)


@pytest.mark.parametrize("value", [-1, -5, 2**32, 2**63, 2**70])
def test_a_position_that_cannot_be_changes_nothing(topic, value):
    before = topic.state()
    for position in (Position(value, 0), Position(0, value)):
        for do in (
            topic.cursor.acknowledge, topic.cursor.mark_delete, topic.dispatcher.cancel, topic.log.read,
            lambda position: topic.dispatcher.redeliver([position]), topic.cursor.is_acknowledged, topic.log.is_valid,
            topic.cursor.acknowledged_batch_indexes, lambda position: topic.tracker.contains_message(*position),
            lambda position: topic.tracker.add_message(*position, 2**63),
        ):
            if do == topic.cursor.mark_delete and position.ledger_id <= 0:
                continue        # there are entries behind it
            with suppress(SeglogError):
                assert not do(position) or do == topic.cursor.is_acknowledged
    assert topic.state() == before


def test_a_ledgers_doors(in_memory):
    with Ledger.create(in_memory / "l", 1) as ledger:
        ledger.add_many([b"x"] * 4)
        doors = [
            ledger.read, ledger.record, lambda value: ledger.read_range(value, 2), ledger.read_first,
            lambda value: ledger.read_range(0, value), lambda value: ledger.read_ranges([value]),
            lambda value: ledger.add(b"x", 1.5 if value is None else value),
            lambda value: ledger.add_many([b"x"], [value]),
        ]
        for door in doors:
            for value in NO_INT:
                with pytest.raises(InvalidArgumentError):
                    door(value)
        assert ledger.entry_count == 4
