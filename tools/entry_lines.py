"""Entries as lines: JSON with the fields of the golden entries.jsonl, or text for people."""
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seglog.errors import NotALogError, SeglogError
from seglog.format.payload_compression import PayloadCodec
from seglog.ledger.compacted.compacted_ledger import CompactedLedger, is_compacted
from seglog.ledger.entry import Entry
from seglog.ledger.entry_fields import entry_fields
from seglog.ledger.ledger import Ledger
from seglog.ledger.managed.closed import ClosedManagedLedger
from seglog.ledger.position import Position
from seglog.verification.ledger_check import is_ledger, is_managed_ledger, read_stream

from . import report

CODECS = tuple(codec.name for codec in PayloadCodec)


@dataclass(frozen=True, slots=True)
class Placed:
    """An entry and its place in a ledger or in a plain file."""

    data: bytes | memoryview
    number: int
    position: Position | None = None

    @property
    def label(self) -> str:
        return str(self.number) if self.position is None else str(self.position)


def entries_of(path: Path, first: Position | None = None) -> Iterator[Placed]:
    """Return the entries of a managed ledger, a ledger, or a plain file of (size uint32 big-endian, entry), in order.

    Starts at `first`. Raises NotALogError if the path is none of them, and the errors of reading.
    """
    if is_managed_ledger(path):
        with ClosedManagedLedger(path) as topic:
            extent = topic.extent
            for ordinal in range(0 if first is None else extent.before(first), extent.count):
                position = extent.position(ordinal)
                assert position is not None
                yield Placed(topic.read(position).data, ordinal, position)
    elif is_ledger(path):
        with Ledger.open(path, read_only=True) as ledger:
            if is_compacted(ledger.properties):
                for number, stored in enumerate(CompactedLedger(ledger)):
                    if first is None or stored.position >= first:
                        yield Placed(stored.data, number, stored.position)
                return
            begin = 0 if first is None else max(first.entry_id, 0)
            if begin < ledger.entry_count:
                for entry_id, data in ledger.read_range(begin, ledger.last_entry_id):
                    yield Placed(data, entry_id, Position(ledger.ledger_id, entry_id))
    elif path.is_file():
        for _, number, data in read_stream(path):
            if first is None or number >= first.entry_id:
                yield Placed(data, number)
    else:
        raise no_entries(path)


def no_entries(path: Path) -> NotALogError:
    """Make the error for a path without entries that `seglog ledger` can read."""
    return NotALogError(
        "neither a managed ledger, nor a ledger, nor a file of entries", file=path,
        hint="pass a directory with a manifest, one of its ledger-<id>, or a file of entries preceded by their sizes",
    )


def fields_of(placed: Placed) -> dict[str, Any]:
    """Return a line of `ledger dump --json`. Raises what entry_fields raises."""
    where: dict[str, Any] = {"i": placed.number}
    if placed.position is not None:
        where = {"ledger_id": placed.position.ledger_id, "entry_id": placed.position.entry_id}
    return where | entry_fields(Entry(placed.data))


def text_of(placed: Placed) -> str:
    """Return a line of text."""
    try:
        entry = Entry(placed.data)
        fields, metadata = entry.fields(), entry.metadata
        timestamp, index = entry.broker_fields()
    except SeglogError as error:
        return f"{placed.label:>10}  {len(placed.data):>9,} B  damaged: {error}"
    parts = [f"{placed.label:>10}", f"{len(placed.data):>9,} B", f"{report.moment(fields.publish_time):>24}"]
    parts.append(f"{metadata.producer_name} {fields.sequence_id}")
    if fields.is_batch:
        parts.append(report.count_of(fields.num_messages, "message"))
    if fields.compression:
        parts.append(CODECS[fields.compression] if fields.compression < len(CODECS) else str(fields.compression))
    if fields.is_encrypted:
        parts.append("encrypted")
    if fields.key is not None:
        parts.append(f"key {fields.key!r}")
    if timestamp is not None:
        parts.append(f"broker {report.moment(timestamp)}")
    if index is not None:
        parts.append(f"index {index}")
    if not entry.crc_is_valid():
        parts.append("CHECKSUM WRONG")
    return "  ".join(parts)
