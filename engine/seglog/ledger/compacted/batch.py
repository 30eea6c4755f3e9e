"""A batch after compaction: which of its messages remain, and how its payload says so.

    placeholders     every message keeps its place; a removed one is an empty message with compacted_out (as in Pulsar)
    retained-only    only the remaining messages: message n has the number compacted_batch_indexes[n]

num_messages_in_batch is the count before compaction in both. docs/formats/compacted_ledger.md
"""
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from seglog._kernels.batched_messages import BatchedMessages
from seglog._kernels.entry_frame import MessageFields
from seglog.errors import CorruptRecordError, InvalidConfigError
from seglog.format.payload_compression import compress_payload
from seglog.ledger.config import ManagedLedgerConfig
from seglog.ledger.entry import Entry, build_entry

Payload = Literal["placeholders", "retained-only"]
PLACEHOLDERS: Payload = "placeholders"
RETAINED_ONLY: Payload = "retained-only"


@dataclass(frozen=True, slots=True)
class BatchForm:
    """The form of batches. `has_indexes`: write compacted_batch_indexes (field 31). Pulsar before 4.1 did not, and
    retained-only needs it."""

    payload: Payload = PLACEHOLDERS
    has_indexes: bool = True

    @classmethod
    def of(cls, config: ManagedLedgerConfig) -> "BatchForm":
        """Return the form that compaction writes. Raises InvalidConfigError."""
        return cls(config.compaction_payload, config.compaction_batch_indexes)

    def __post_init__(self) -> None:
        """Check the form. Raises InvalidConfigError."""
        if self.payload == RETAINED_ONLY and not self.has_indexes:
            raise InvalidConfigError(
                "seglog.compaction.payload=retained-only requires seglog.compaction.batch.indexes: without them "
                "it is unknown which "
                "messages remain"
            )


@dataclass(slots=True)
class OpenedEntry:
    """`places[n]`: the number in the batch of the payload's n-th message; `count`: the batch's messages before any was
    removed."""

    messages: BatchedMessages
    places: Sequence[int]
    count: int

    def live(self) -> list[int]:
        """Return the numbers in the batch of the messages that are present."""
        return [self.places[n] for n in self.messages.live()]


def is_readable_batch(fields: MessageFields) -> bool:
    """Whether an entry's messages can be separated: it is a batch, and not encrypted. (RawBatchConverter)"""
    return fields.is_batch and not fields.is_encrypted


def open_batch(entry: Entry, payload: Payload = PLACEHOLDERS, fields: MessageFields | None = None) -> OpenedEntry:
    """Read the messages of a readable batch, whose payload has this form. `fields`: the entry's, if known.

    Raises as Entry.opened_payload, and CorruptRecordError if the payload does not match the metadata.
    """
    fields = fields or entry.fields()
    count = fields.num_messages
    opened = entry.opened_payload(fields=fields)
    if payload != RETAINED_ONLY:
        return OpenedEntry(BatchedMessages(opened, count, entry.name), range(count), count)
    places = list(fields.compacted_indexes)
    if not places or places[0] < 0 or places[-1] >= count or any(a >= b for a, b in itertools.pairwise(places)):
        raise CorruptRecordError(
            f"a batch of {count} messages has compacted_batch_indexes {places}: they must rise from 0", file=entry.name
        )
    messages = BatchedMessages(opened, len(places), entry.name)
    if messages.trailing_bytes:
        raise CorruptRecordError(
            f"{messages.trailing_bytes} bytes after the {len(places)} retained messages", file=entry.name
        )
    return OpenedEntry(messages, places, count)


def rewritten_batch(entry: Entry, batch: OpenedEntry, numbers: list[int], form: BatchForm) -> bytes:
    """Encode the entry with only those messages of its payload whose numbers are in `numbers`, which is not empty.

    Its codec and its broker metadata stay unchanged. Raises MissingCodecError.
    """
    places = [batch.places[n] for n in numbers]
    if form.payload == RETAINED_ONLY:
        opened = batch.messages.rebuilt(numbers, list(range(len(numbers))), len(numbers))
    else:
        opened = batch.messages.rebuilt(numbers, places, batch.count)
    metadata = entry.metadata
    metadata.uncompressed_size = len(opened)
    del metadata.compacted_batch_indexes[:]
    if form.has_indexes:
        metadata.compacted_batch_indexes.extend(places)
    rewritten = build_entry(metadata, compress_payload(entry.fields().compression, opened))
    return bytes(entry.raw()[: entry.headers_pos]) + rewritten


def has_form(entry: Entry, batch: OpenedEntry, payload: Payload, form: BatchForm) -> bool:
    """Whether a batch in the form `payload` is what `form` would write for all messages that it has."""
    indexes = list(entry.fields().compacted_indexes)
    return payload == form.payload and indexes == (batch.live() if form.has_indexes else [])
