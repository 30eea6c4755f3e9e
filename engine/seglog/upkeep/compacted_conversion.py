"""Converts a compacted ledger to another form of its batches, with the proof that its messages stay the same.

    old form (Pulsar 4.0)    placeholders, no compacted_batch_indexes
    new form (Pulsar 4.2)    placeholders and compacted_batch_indexes
    retained-only            the remaining messages, and compacted_batch_indexes

The digest of each side is SHA-256 over every remaining message: its position, its metadata and its value as stored, and
the contents of its entry except how its payload is packed.
"""
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from seglog.errors import CorruptRecordError, ProofMismatchError
from seglog.ledger.compacted.batch import BatchForm, has_form, is_readable_batch, open_batch, rewritten_batch
from seglog.ledger.compacted.compacted_ledger import CompactedLedger, CompactedProperties
from seglog.ledger.compacted.raw_message import CompactedEntry
from seglog.ledger.entry import Entry
from seglog.ledger.message_position import MessagePosition, last_message
from seglog.ledger.position import Position

FORMS = {
    "old": BatchForm("placeholders", has_indexes=False),
    "new": BatchForm("placeholders", has_indexes=True),
    "retained-only": BatchForm("retained-only", has_indexes=True),
}


@dataclass(frozen=True, slots=True)
class MessagesDigest:
    """The remaining messages: their number, the number of entries, and SHA-256 over them, in hex."""

    entries: int
    messages: int
    sha256: str


def digest_of(entries: Iterable[CompactedEntry]) -> MessagesDigest:
    """Digest entries. Batches that cannot be opened count by their bytes. Raises what opening batches raises."""
    digest = hashlib.sha256()
    count = messages = 0
    for stored in entries:
        entry = stored.entry
        parts = _messages_of(entry, stored)
        if not parts:
            continue        # only placeholders: no message
        count += 1
        messages += len(parts)
        for part in (repr(stored.position).encode(), bytes(entry.broker_bytes()), *parts):
            digest.update(len(part).to_bytes(8, "big") + part)
    return MessagesDigest(count, messages, digest.hexdigest())


def _messages_of(entry: Entry, stored: CompactedEntry) -> list[bytes]:
    whole = [bytes(entry.without_broker_part())]
    fields = entry.fields()
    if not is_readable_batch(fields):
        return whole
    try:
        batch = open_batch(entry, stored.payload_form, fields)
    except CorruptRecordError:
        return whole
    metadata = entry.metadata
    metadata.ClearField("uncompressed_size")
    del metadata.compacted_batch_indexes[:]
    packed = metadata.SerializeToString()
    return [
        b"%d" % batch.places[n] + packed + bytes(batch.messages.metadata_bytes(n)) + bytes(batch.messages.value(n))
        for n in batch.messages.live()
    ]


class ConversionRound:
    """The replacement of a compacted ledger: the same in another form. Swapped in like a CompactionRound."""

    def __init__(self, before: CompactedLedger, form: BatchForm) -> None:
        self._before = before
        self._form = form
        self.horizon = before.horizon
        self._last = MessagePosition.EARLIEST

    def kept(self) -> Iterator[tuple[Position, int, bytes]]:
        """Yield (an entry's position, its publish time, its bytes), in order."""
        for stored in self._before:
            made = converted_entry(stored, self._form)
            if made is not None:
                entry = Entry(made)
                self._last = last_message(stored.position, entry) or self._last
                yield stored.position, entry.fields().publish_time, made

    def properties(self, name: str) -> CompactedProperties:
        """Return the ledger's properties, after all entries were given."""
        return replace(self._before.properties, form=self._form, last=self._last)

    def check(self, written: CompactedLedger) -> None:
        """Read both sides again from the disk, and compare. Raises ProofMismatchError."""
        prove(self._before, written)


def prove(before: CompactedLedger, after: CompactedLedger) -> MessagesDigest:
    """Digest both sides. Raises ProofMismatchError if they differ."""
    source, target = digest_of(before), digest_of(after)
    if source != target or before.get_last_message_position() != after.get_last_message_position():
        raise ProofMismatchError(
            f"the proof failed: {source.messages} messages with digest {source.sha256[:16]}, the last at "
            f"{before.get_last_message_position()}, became {target.messages} with {target.sha256[:16]} and "
            f"{after.get_last_message_position()}",
            file=before.path,
        )
    return source


def converted_entry(stored: CompactedEntry, form: BatchForm) -> bytes | None:
    """Return the entry in another form; None if it has only placeholders. If it cannot be opened, it stays unchanged.

    Raises MissingCodecError, RecordTooLargeError.
    """
    entry = stored.entry
    fields = entry.fields()
    if not is_readable_batch(fields):
        return bytes(entry.raw())
    try:
        batch = open_batch(entry, stored.payload_form, fields)
    except CorruptRecordError:
        return bytes(entry.raw())
    live = batch.messages.live()
    if not live:
        return None
    if has_form(entry, batch, stored.payload_form, form):
        return bytes(entry.raw())
    return rewritten_batch(entry, batch, live, form)
