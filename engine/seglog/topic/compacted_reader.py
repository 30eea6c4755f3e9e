"""Compacted reads of a topic: up to the horizon from the compacted ledger, after it from the topic itself.

    reader = read_compacted(managed_ledger, service)
    while reader.has_message_available():
        message = reader.read_next()

Reading ends exactly at the last message. A compaction may happen meanwhile: the reader continues after its position.
"""
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from seglog._kernels.entry_frame import HAS_MARKER
from seglog.errors import InvalidArgumentError
from seglog.ledger.compacted.batch import PLACEHOLDERS, is_readable_batch, open_batch
from seglog.ledger.compacted.raw_message import CompactedEntry
from seglog.ledger.entry import parse_message, pulsar_pb
from seglog.ledger.managed.reader import ManagedReader
from seglog.ledger.message_position import MessagePosition, last_message
from seglog.ledger.position import EARLIEST, Position, checked_position
from seglog.ledger.stored_entry import StoredEntry, as_consumers_get_them
from seglog.topic.compaction_service import TopicCompactionService

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from seglog.pulsar_pb.entry_pb2 import SingleMessageMetadata

_NO_INDEX = 2**31


@dataclass(frozen=True, slots=True)
class PayloadMessage:
    """A message in a payload. `batch_index` is -1 outside a batch. `metadata` is None if it has none of its own.

    `value`: for an encrypted payload or a chunk, the payload as stored.
    """

    batch_index: int
    key: bytes | None
    value: "Buffer"
    metadata: "SingleMessageMetadata | None" = None


@dataclass(frozen=True, slots=True)
class TopicMessage:
    """A message of a topic. `entry`: with the broker's metadata if the reader gets it."""

    position: MessagePosition
    key: bytes | None
    value: "Buffer"
    metadata: "SingleMessageMetadata | None"
    entry: StoredEntry


# Returns the messages of an entry, in order, without removed ones. (MessagePayloadProcessor)
PayloadProcessor = Callable[[StoredEntry], Iterable[PayloadMessage]]


def pulsar_messages(stored: StoredEntry) -> Iterable[PayloadMessage]:
    """The messages of an entry, for every form of payload that Pulsar and its compaction write.

    Raises CorruptRecordError, MissingCodecError, RecordTooLargeError.
    """
    entry = stored.entry
    fields = entry.fields()
    if not is_readable_batch(fields):
        index = fields.num_messages - 1 if fields.num_messages > 1 else -1
        is_plain = not fields.is_encrypted and not fields.is_chunk
        # An encrypted batch may contain messages with several keys.
        key = None if fields.is_batch else fields.key
        yield PayloadMessage(index, key, entry.opened_payload() if is_plain else entry.payload())
        return
    form = stored.payload_form if isinstance(stored, CompactedEntry) else PLACEHOLDERS
    batch = open_batch(entry, form, fields)
    messages = batch.messages
    for number in messages.live():
        metadata = parse_message(pulsar_pb().SingleMessageMetadata, messages.metadata_bytes(number), entry.name)
        yield PayloadMessage(batch.places[number], messages.key(number), messages.value(number), metadata)


def _before(start: Position | MessagePosition) -> tuple[Position, int]:
    if not isinstance(start, Position | MessagePosition):
        raise InvalidArgumentError(f"a reader must start at a Position, not {start!r}")
    ledger_id, entry_id = checked_position(Position(start.ledger_id, start.entry_id))
    return Position(ledger_id, entry_id - 1), _NO_INDEX


class CompactedReader:
    """A reader made by `read_compacted`. One thread at a time.

    Its methods raise what the managed ledger and the service raise (CorruptRecordError, LogClosedError, StorageError),
    and what the `payload_processor` raises.
    """

    def __init__(
        self, topic: ManagedReader, service: TopicCompactionService, start: Position | MessagePosition,
        payload_processor: PayloadProcessor, supports_broker_metadata: bool | None,
    ) -> None:
        self._topic = topic
        self._service = service
        self._process = payload_processor
        self._supports = supports_broker_metadata
        # The last message that was returned: its entry, and its index in it.
        self._at = _before(start)
        self._ahead: list[TopicMessage] = []
        # Of the entries after the horizon: how far they have been searched, and the last message found there.
        self._tail_end = EARLIEST
        self._tail_last = MessagePosition.EARLIEST

    def has_message_available(self) -> bool:
        """Whether `read_next` would return a message now. It opens no payloads, except of batches that were compacted
        before PIP-429."""
        if self._ahead:
            return True
        last = self.get_last_message_position()
        return last != MessagePosition.EARLIEST and (last.position, last.batch_index) > self._at

    def get_last_message_position(self) -> MessagePosition:
        """The position of the topic's last message, read or not; EARLIEST in an empty topic. (GetLastMessageId)"""
        horizon = self._service.get_last_compacted_position()
        end = self._topic.last_position or EARLIEST
        if end > horizon:
            self._look_at_tail(horizon, end)
            if self._tail_last.position > horizon:
                return self._tail_last
        return self._service.get_last_message_position()

    def _look_at_tail(self, horizon: Position, end: Position) -> None:
        """Search backwards from the end for the last message; the broker's markers are not messages."""
        at: Position | None = end
        while at is not None and at > max(horizon, self._tail_end):
            entry = self._topic.read(at).entry
            if not entry.fields().flags & HAS_MARKER:
                found = last_message(at, entry)
                if found is not None:
                    self._tail_last = found
                    break
            at = self._topic.previous_valid(at)
        self._tail_end = max(end, self._tail_end)

    def read_next(self) -> TopicMessage | None:
        """The next message; None until there is one."""
        while not self._ahead:
            entry = self._next_entry()
            if entry is None:
                return None
            self._open(entry)
        message = self._ahead[0]
        position = message.position
        self._at = (position.position, position.batch_index if len(self._ahead) > 1 else _NO_INDEX)
        return self._ahead.pop(0)

    def _next_entry(self) -> StoredEntry | None:
        while True:
            after, _ = self._at
            horizon = self._service.get_last_compacted_position()
            if after < horizon:
                found = self._service.read_compacted_entries(Position(after.ledger_id, after.entry_id + 1), 1)
                if found:
                    return found[0]
            at = self._topic.next_valid(max(after, horizon))
            entry = None if at is None else self._topic.read(at)
            # If a compaction happened meanwhile, entries before this one may have been trimmed.
            if self._service.get_last_compacted_position() == horizon:
                return entry

    def _open(self, entry: StoredEntry) -> None:
        fields = entry.entry.fields()
        [given] = as_consumers_get_them([entry], self._topic.config.exposes_broker_metadata, self._supports)
        messages = [] if fields.flags & HAS_MARKER else [
            TopicMessage(
                # -1 for a batch of one message, as in last_message.
                MessagePosition(
                    *entry.position, message.batch_index if fields.num_messages > 1 else -1, fields.publish_time
                ),
                message.key, message.value, message.metadata, given,
            )
            for message in self._process(entry)
        ]
        self._at = (entry.position, _NO_INDEX if not messages else -2)
        self._ahead = messages

    def seek(self, position: Position | MessagePosition) -> None:
        """Continue with the first entry at or after a position."""
        at = _before(position)
        self._ahead, self._at = [], at

    def seek_by_publish_time(self, timestamp_ms: int) -> None:
        """Continue with the first entry whose publish time is `timestamp_ms` or later; if there is none yet, with the
        next one that is added. For the topic's own entries, the broker's time counts if they have one."""
        horizon = self._service.get_last_compacted_position()
        found = self._service.find_entry_by_publish_time(timestamp_ms)
        if found is None:
            found = self._topic.position_at_time(timestamp_ms, horizon)
        if found is None:
            last = max(self._topic.last_position or EARLIEST, horizon)
            found = Position(last.ledger_id, last.entry_id + 1)
        self.seek(found)


def read_compacted(
    topic: ManagedReader,
    service: TopicCompactionService,
    start: Position | MessagePosition = EARLIEST,
    *,
    payload_processor: PayloadProcessor = pulsar_messages,
    supports_broker_metadata: bool | None = None,
) -> CompactedReader:
    """Read a topic from `start` on, compacted as far as compaction has come.

    `payload_processor`: returns the messages of an entry, for payloads that are not Pulsar's.
    `supports_broker_metadata`: whether the reader, like a client, asks for the broker's metadata of entries; it gets it
    if exposingBrokerEntryMetadataToClientEnabled is also set. With None, it gets what is stored.
    """
    if not isinstance(topic, ManagedReader) or not isinstance(service, TopicCompactionService):
        raise InvalidArgumentError(f"needs a ManagedLedger and a TopicCompactionService, not {topic!r} and {service!r}")
    if not callable(payload_processor):
        raise InvalidArgumentError(f"payload_processor must be callable, not {payload_processor!r}")
    return CompactedReader(topic, service, start, payload_processor, supports_broker_metadata)
