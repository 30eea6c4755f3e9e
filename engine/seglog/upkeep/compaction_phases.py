"""The two phases of a compaction, over entries from any reader: which message of each key is the last; what remains of
each entry.

Decides like PublishingOrderCompactor of Pulsar 4.2.4, with the exceptions in docs/topic_compaction.md.
"""
from dataclasses import dataclass

from seglog._kernels.entry_frame import HAS_MARKER, HAS_UNCOMPRESSED_SIZE, IS_NULL_VALUE, MessageFields
from seglog.errors import CorruptRecordError
from seglog.ledger.compacted.batch import (
    BatchForm,
    OpenedEntry,
    Payload,
    has_form,
    is_readable_batch,
    open_batch,
    rewritten_batch,
)
from seglog.ledger.config import ManagedLedgerConfig
from seglog.ledger.entry import Entry
from seglog.upkeep.latest_keys import LatestKeys

# The number of an entry that an earlier round compacted: no other entry of it has its keys.
COMPACTED_BEFORE = -1


@dataclass(slots=True)
class CompactionCount:
    """The counts of phase two. `unreadable`: batches that could not be opened, and stay unchanged."""

    entries_in: int = 0
    entries_out: int = 0
    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    unreadable: int = 0

    def add(self, other: "CompactionCount") -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class CompactionPhases:
    """Call `note` for each entry in order, then `kept` for each in the same order, with the same numbers from 0 on.

    `expired_before_ms`: a key whose last message is older is removed; None removes no key. Besides CorruptRecordError
    for a frame that does not parse, both raise MissingCodecError, RecordTooLargeError.
    """

    def __init__(self, config: ManagedLedgerConfig, expired_before_ms: int | None = None) -> None:
        self.form = BatchForm.of(config)
        self.latest = LatestKeys(config.compaction_key_map_bytes)
        self.count = CompactionCount()
        self._by_entry_key = config.compaction_by_entry_key
        self._retains_null_keys = config.retains_null_keys
        self._expired_before_ms = expired_before_ms
        # For each message in chunks, the number of its last chunk.
        self._last_chunk: dict[str, int] = {}

    # --- phase one ---------------------------------------------------------------------------

    def note(self, entry: Entry, number: int, payload: Payload) -> bool | None:
        """Note an entry. Return whether anything of it would remain if none followed. `payload`: the form of its batch.

        Returns None, and notes nothing, if its keys do not fit into memory with the noted ones. Those of the first
        entry always fit.
        """
        fields = entry.fields()
        if not self.latest.has_room(max(fields.num_messages, 1)):
            return None
        if fields.flags & HAS_MARKER:
            return False
        if is_readable_batch(fields):
            try:
                batch = open_batch(entry, payload, fields)
            except CorruptRecordError:
                self.latest.note_whole(number)
                return True
            return self.latest.note_batch(batch.messages, number, self._retains_null_keys)
        if fields.is_chunk:
            self._last_chunk[entry.metadata.uuid] = number
        key = self._key_of(fields)
        if key is None:
            return self._keeps_without_key(fields)
        is_deleted = _is_deleted(entry, fields)
        self.latest.note(key, number, is_deleted)
        return not is_deleted

    # --- phase two ---------------------------------------------------------------------------

    def kept(self, entry: Entry, number: int, payload: Payload, fields: MessageFields | None = None) -> bytes | None:
        """Return what remains of the entry, with unchanged broker metadata; None if nothing does.

        `number`: as in phase one, or COMPACTED_BEFORE.
        """
        fields = fields or entry.fields()
        count = self.count
        count.entries_in += 1
        count.messages_in += max(fields.num_messages, 1)
        count.bytes_in += len(entry)
        made = self._kept(entry, fields, number, payload)
        if made is not None:
            count.entries_out += 1
            count.bytes_out += len(made)
        return made

    def _kept(self, entry: Entry, fields: MessageFields, number: int, payload: Payload) -> bytes | None:
        if fields.flags & HAS_MARKER:
            return None
        if is_readable_batch(fields):
            if not self.latest.stays(number):
                return None
            try:
                batch = open_batch(entry, payload, fields)
            except CorruptRecordError:
                self.count.unreadable += 1
                self.count.messages_out += fields.num_messages
                return bytes(entry.raw())
            return self._kept_of_batch(entry, fields, batch, number, payload)
        key = self._key_of(fields)
        if key is None:
            stays = self._keeps_without_key(fields)
        else:
            if fields.is_chunk and number != COMPACTED_BEFORE:
                number = self._last_chunk[entry.metadata.uuid]
            stays = not self._is_expired(entry, fields) and self.latest.keeps(key, number)
        if not stays:
            return None
        self.count.messages_out += max(fields.num_messages, 1)
        return bytes(entry.raw())

    def _kept_of_batch(
        self, entry: Entry, fields: MessageFields, batch: OpenedEntry, number: int, payload: Payload
    ) -> bytes | None:
        messages = batch.messages
        if self._is_expired(entry, fields):
            live = messages.live() if self._retains_null_keys else []
            kept = [n for n in live if messages.key(n) is None]
        else:
            kept = self.latest.kept_of(messages, number, self._retains_null_keys)
        if not kept:
            return None
        self.count.messages_out += len(kept)
        if number == COMPACTED_BEFORE and kept == messages.live() and has_form(entry, batch, payload, self.form):
            return bytes(entry.raw())
        return rewritten_batch(entry, batch, kept, self.form)

    # --- both --------------------------------------------------------------------------------

    def _stays_whole(self, fields: MessageFields) -> bool:
        """Whether it is an encrypted batch whose entry key says nothing about its messages."""
        return fields.is_encrypted and fields.is_batch and not self._by_entry_key

    def _key_of(self, fields: MessageFields) -> bytes | None:
        """Return the key of an entry that counts as one message."""
        return None if self._stays_whole(fields) else fields.key

    def _keeps_without_key(self, fields: MessageFields) -> bool:
        return self._stays_whole(fields) or self._retains_null_keys

    def _is_expired(self, entry: Entry, fields: MessageFields) -> bool:
        if self._expired_before_ms is None:
            return False
        timestamp = entry.broker_fields()[0]
        return (fields.publish_time if timestamp is None else timestamp) < self._expired_before_ms


def _is_deleted(entry: Entry, fields: MessageFields) -> bool:
    """Whether it is a message without a value: from its metadata alone, since it may be encrypted. Clients other than
    Java's do not set uncompressed_size; then the payload is its value. (Pulsar's #25817)"""
    if fields.flags & IS_NULL_VALUE:
        return True
    if fields.flags & HAS_UNCOMPRESSED_SIZE:
        return fields.uncompressed_size == 0
    return len(entry.payload()) == 0
