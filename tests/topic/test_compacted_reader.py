"""Readers of a compacted topic: to the last message and no further, over any service, whatever comes in between."""
import threading

import pytest

from seglog.errors import CorruptRecordError, InvalidArgumentError
from seglog.ledger.compacted.batch import open_batch
from seglog.ledger.config import ManagedLedgerConfig
from seglog.ledger.entry import Entry, build_entry
from seglog.ledger.message_position import MessagePosition
from seglog.ledger.position import EARLIEST, Position
from seglog.ledger.stored_entry import EntryView
from seglog.pulsar import ManagedLedger
from seglog.topic.compacted_reader import PayloadMessage, pulsar_messages, read_compacted
from seglog.topic.compaction_service import TopicCompactionService
from seglog.upkeep import topic_compaction
from seglog.upkeep.topic_compaction import PulsarTopicCompactionService
from support.keyed_topic import encrypted_batch, keyed, keyed_batch, marker, metadata_of, read_all

CODECS = range(5)


class LinesService(TopicCompactionService):
    """Another one: its payloads are lines `number key value` without any SingleMessageMetadata, and nobody but its own
    reader opens them."""

    def __init__(self, topic):
        self._topic = topic
        self._horizon = EARLIEST
        self._entries = []

    def compact(self):
        latest = {}
        for stored in self._topic:
            for message in pulsar_messages(stored):
                latest[message.key] = (stored, message)
        kept = {}
        for key, (stored, message) in latest.items():
            if message.value:
                kept.setdefault(stored.position, (stored, []))[1].append((message.batch_index, key, message.value))
        self._entries = []
        for position, (stored, messages) in sorted(kept.items()):
            metadata = stored.entry.metadata
            metadata.ClearField("compression")
            lines = sorted(messages)
            if metadata.HasField("num_messages_in_batch"):
                metadata.compacted_batch_indexes.extend(index for index, _, _ in lines)
            payload = b"\n".join(b"%d %s %s" % (index, key, bytes(value)) for index, key, value in lines)
            self._entries.append(EntryView(position, memoryview(build_entry(metadata, payload))))
        self.new_compacted_ledger(self._topic.last_position, 0)

    def new_compacted_ledger(self, horizon, ledger_id):
        self._horizon = horizon

    def get_last_compacted_position(self):
        return self._horizon

    def read_compacted_entries(self, start, count):
        return [entry for entry in self._entries if entry.position >= start][:count]

    def find_entry_by_publish_time(self, timestamp_ms):
        return next((entry.position for entry in self._entries if entry.publish_time >= timestamp_ms), None)

    def get_last_message_position(self):
        if not self._entries:
            return MessagePosition.EARLIEST
        fields = self._entries[-1].entry.fields()
        index = fields.compacted_indexes[-1] if fields.compacted_indexes else -1
        return MessagePosition(*self._entries[-1].position, index, fields.publish_time)


def lines_of(stored):
    """The payload processor of what LinesService writes."""
    if not isinstance(stored, EntryView):
        return pulsar_messages(stored)
    found = (line.split(b" ", 2) for line in bytes(stored.entry.payload()).split(b"\n"))
    return [PayloadMessage(int(index), key, value) for index, key, value in found]


MESSAGES = [("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1"), ("c", None), ("d", b"1")]


def fill(topic):
    for number, codec in enumerate(CODECS):
        topic.add_entry(keyed_batch(number, [(key + str(number % 2), value) for key, value in MESSAGES], codec))
    topic.add_entry(keyed(9, "e", b"1", 1))
    topic.add_entry(keyed(10, "f", None))


def test_a_service_of_ones_own_is_read_unopened(tmp_path):
    """Its payloads hold no SingleMessageMetadata: has_message_available, the last position, the search by time."""
    with ManagedLedger(tmp_path / "t") as topic:
        fill(topic)
        own, ours = LinesService(topic), PulsarTopicCompactionService(topic)
        own.compact()
        ours.compact()
        assert own.get_last_message_position() == ours.get_last_message_position() == (0, 5, -1, 1009)
        assert read_all(topic, own, payload_processor=lines_of) == read_all(topic, ours)
        for time in range(998, 1014):
            assert own.find_entry_by_publish_time(time) == ours.find_entry_by_publish_time(time)
        topic.add_entry(keyed_batch(11, [("g", b"1"), ("h", b"1")]))
        assert read_all(topic, own, payload_processor=lines_of) == read_all(topic, ours)

        def never(stored):
            raise AssertionError("opened")

        reader = read_compacted(topic, own, payload_processor=never)
        assert reader.has_message_available()
        assert reader.get_last_message_position() == (0, 7, 1, 1011)
        for time, expected in ((1000, (0, 3)), (1005, (0, 5)), (1010, (0, 7)), (1011, (0, 7))):
            reader.seek_by_publish_time(time)
            assert reader.has_message_available(), time
            reader._process = lambda stored: [PayloadMessage(0, None, b"")]
            found = reader.read_next().position.position
            reader._process = never
            assert found == Position(*expected), time
        reader.seek_by_publish_time(5000)
        assert not reader.has_message_available()
        with pytest.raises(AssertionError, match="opened"):
            read_compacted(topic, own, payload_processor=never).read_next()


@pytest.mark.parametrize(
    ("payload", "has_indexes"), [("placeholders", True), ("placeholders", False), ("retained-only", True)]
)
def test_the_loop_ends_exactly_at_the_last_message(tmp_path, payload, has_indexes):
    """In every codec, with and without field 31 (then compressed payloads are opened: Pulsar 4.2.4 fails there)."""
    config = {"seglog.compaction.payload": payload, "seglog.compaction.batch.indexes": has_indexes}
    for codec in CODECS:
        with ManagedLedger(tmp_path / f"t{codec}", config=config, fsync="never") as topic:
            service = PulsarTopicCompactionService(topic)
            assert read_all(topic, service) == []
            topic.add_entry(keyed_batch(0, MESSAGES, codec))
            assert read_all(topic, service) == [(key, value or b"") for key, value in MESSAGES]
            service.compact()
            service.compacted_ledger._last = None           # as of a ledger whose properties do not say it
            assert service.get_last_message_position() == (0, 0, 5, 1000)
            expected = [("b", b"1"), ("a", b"2"), ("d", b"1")]
            assert read_all(topic, service) == expected
            topic.add_entry(marker(1))
            assert read_all(topic, service) == expected
            topic.add_entry(keyed_batch(2, [("d", None)], codec))
            assert read_all(topic, service) == [*expected, ("d", b"")]
            topic.add_entries([marker(3), marker(4)])
            assert read_all(topic, service) == [*expected, ("d", b"")]
            service.compact()
            assert read_all(topic, service) == expected[:2]
            assert service.get_last_message_position() == (0, 0, 2, 1000)


def test_readers_in_the_middle_of_compactions(tmp_path):
    """One goes on behind where it is, and misses no last value of a key."""
    with ManagedLedger(tmp_path / "t", config={"managedLedgerMaxEntriesPerLedger": 7}) as topic:
        service = PulsarTopicCompactionService(topic)
        expected = {}
        for number in range(60):
            topic.add_entry(keyed_batch(number, [(f"k{(number * m) % 11}", b"%d" % number) for m in range(5)]))
            expected |= {f"k{(number * m) % 11}": b"%d" % number for m in range(5)}
        reader, found = read_compacted(topic, service), {}
        count = 0
        while reader.has_message_available():
            message = reader.read_next()
            found[message.key.decode()] = bytes(message.value)
            count += 1
            if count in (3, 6, 9):
                service.compact()
            if count in (5, 8):
                topic.add_entry(keyed(100 + count, "k1", b"late"))
        assert found == expected | {"k1": b"late"}
        assert 11 < count < 30


def test_readers_in_threads_while_it_is_compacted(tmp_path):
    errors, done = [], threading.Event()
    with ManagedLedger(tmp_path / "t", config={"managedLedgerMaxEntriesPerLedger": 9}, fsync="never") as topic:
        service = PulsarTopicCompactionService(topic)
        topic.add_entry(keyed(0, "begin", b"0"))

        def read():
            try:
                while not done.is_set():
                    found = dict(read_all_of(topic, service))
                    assert found["begin"] == b"0"
                    rounds = [int(value) for key, value in found.items() if key != "begin"]
                    assert max(rounds, default=0) - min(rounds, default=0) <= 20
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for number in range(1, 21):
            topic.add_entry(keyed_batch(number, [(f"k{m}", b"%d" % number) for m in range(4)]))
            if number % 4 == 0:
                service.compact()
        done.set()
        for thread in threads:
            thread.join()
        assert not errors
        assert dict(read_all(topic, service)) == {"begin": b"0"} | {f"k{m}": b"20" for m in range(4)}


def read_all_of(topic, service):
    reader = read_compacted(topic, service)
    while reader.has_message_available():
        message = reader.read_next()
        if message is None:
            return
        yield message.key.decode(), bytes(message.value)


def test_an_encrypted_entry_is_given_as_it_is(tmp_path):
    with ManagedLedger(tmp_path / "t") as topic:
        topic.add_entry(encrypted_batch(0, 4))
        service = PulsarTopicCompactionService(topic)
        service.compact()
        reader = read_compacted(topic, service)
        message = reader.read_next()
        assert message.position == reader.get_last_message_position() == (0, 0, 3, 1000)
        assert bytes(message.value) == b"nobody reads this"
        assert not reader.has_message_available()


@pytest.mark.parametrize("indexes", [[], [0], [0, 1, 2], [2, 0], [0, 9]])
def test_retained_messages_that_do_not_fit_their_numbers_are_damage(indexes):
    entry = Entry(keyed_batch(0, [("a", b"1"), ("b", b"1")]))
    metadata = entry.metadata
    metadata.num_messages_in_batch = 5
    metadata.compacted_batch_indexes.extend(indexes)
    with pytest.raises(CorruptRecordError):
        open_batch(Entry(build_entry(metadata, entry.payload())), "retained-only")


def test_where_to_begin(tmp_path):
    with ManagedLedger(tmp_path / "t", config=ManagedLedgerConfig()) as topic:
        for number in range(6):
            topic.add_entry(keyed(number, f"k{number}", b"%d" % number))
        service = PulsarTopicCompactionService(topic)
        service.compact()
        topic.add_entry(keyed(6, "k6", b"6"))
        for number in range(7):
            reader = read_compacted(topic, service, Position(0, number))
            assert reader.read_next().position == (0, number, -1, 1000 + number)
        assert not read_compacted(topic, service, Position(0, 7)).has_message_available()
        assert metadata_of(1).publish_time == 1001


def test_what_is_no_topic_no_service_and_no_position_is_refused(tmp_path):
    with ManagedLedger(tmp_path / "t") as topic:
        topic.add_entries([keyed(n, f"k{n}", b"1") for n in range(3)])
        service = PulsarTopicCompactionService(topic)
        service.compact()
        for wrong in (None, (0, 0), "earliest", 0, Position("0", 1), Position(0, 1.5)):
            with pytest.raises(InvalidArgumentError):
                read_compacted(topic, service, wrong)
            with pytest.raises(InvalidArgumentError):
                read_compacted(topic, service).seek(wrong)
            with pytest.raises(InvalidArgumentError):
                service.read_compacted_entries(wrong, 1)
        for count in (None, "1", 1.0, True, 0, -1):
            with pytest.raises(InvalidArgumentError):
                service.read_compacted_entries(Position(0, 0), count)
        with pytest.raises(InvalidArgumentError):
            read_compacted(service, topic)
        with pytest.raises(InvalidArgumentError):
            read_compacted(topic, service, payload_processor="retained-only")
        with pytest.raises(InvalidArgumentError):
            PulsarTopicCompactionService(topic.path)
        with pytest.raises(InvalidArgumentError, match="old, new, retained-only"):
            service.convert("newest")
        with pytest.raises(InvalidArgumentError):
            service.convert(["new"])
        assert service.convert("retained-only") is not None
        reader = read_compacted(topic, service, MessagePosition(0, 1, -1, 0))
        assert reader.read_next().key == b"k1"


def test_a_reader_in_the_middle_of_the_swap_misses_nothing(tmp_path, monkeypatch):
    """The topic is trimmed when the cursor has its new pointer, a moment before the new ledger is read."""
    config = {"managedLedgerMaxEntriesPerLedger": 3, "managedLedgerDefaultMarkDeleteRateLimit": 0}
    with ManagedLedger(tmp_path / "t", config=config) as topic:
        subscription = topic.open_cursor("sub", "earliest")
        service = PulsarTopicCompactionService(topic)
        topic.add_entries([keyed(n, f"k{n}", b"1") for n in range(3)])
        service.compact()
        topic.add_entries([keyed(n, f"k{n}", b"1") for n in range(3, 6)])
        subscription.clear_backlog()
        topic.add_entries([keyed(n, f"k{n}", b"1") for n in range(6, 9)])
        topic.roll()
        reader, keys = read_compacted(topic, service), []
        while len(keys) < 3:
            keys.append(reader.read_next().key)
        looked, trimmed = [], threading.Event()
        next_valid = topic.next_valid

        def begins(position):
            if threading.current_thread() is thread and not trimmed.is_set():
                looked.append(position)
                began.set()
                assert trimmed.wait(60)
            return next_valid(position)

        began = threading.Event()
        thread = threading.Thread(target=lambda: keys.append(reader.read_next().key))
        monkeypatch.setattr(topic_compaction, "adopt", lambda *given, adopt=topic_compaction.adopt: (
            trimmed.set(), thread.join(0.5), adopt(*given))[-1])
        monkeypatch.setattr(topic, "next_valid", begins)
        thread.start()
        assert began.wait(60)
        service.compact()
        thread.join(60)
        while reader.has_message_available():
            keys.append(reader.read_next().key)
        assert keys == [b"k%d" % n for n in range(9)]
        assert looked == [Position(0, 2)]
