"""A bucket's snapshot as bytes: metadata first, then segments by time.

The bytes are Pulsar 4.2.4's (MutableBucket.createImmutableBucketAndAsyncPersistent): see
docs/formats/delayed_index_snapshot.md. Rows go through the kernel; metadata is small and goes through protobuf.
"""
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from seglog._kernels.due_rows import DueRows, decode_segment
from seglog._kernels.window import Window
from seglog.delayed.java_order import JavaHashMapOrder
from seglog.errors import CorruptDelayedIndexError, RecordTooLargeError
from seglog.wire.delayed_index_pb2 import SnapshotMetadata, SnapshotSegmentMetadata

# BookKeeper's frame is 5 MiB (nettyMaxFrameSizeBytes); what is larger Pulsar cannot store at all.
MAX_ENTRY_BYTES = 5 * (1 << 20) - 10 * (1 << 10)
# No index of a segment takes more (cext/due_rows.pyx).
_MAX_INDEX_BYTES = 35


@dataclass(frozen=True, slots=True)
class SegmentMetadata:
    """What the metadata says of one segment. `bitmaps`: ledger id -> serialised roaring bitmap of entry ids, in the
    order in which they are written."""

    min_schedule_timestamp: int
    max_schedule_timestamp: int
    bitmaps: dict[int, bytes]


@dataclass(frozen=True, slots=True)
class EncodedSnapshot:
    """A snapshot to be stored: the metadata's entries (one, as a rule), the segments' entries, and what they say."""

    metadata: list[bytes]
    segments: list[bytes]
    described: list[SegmentMetadata]

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.metadata)) + sum(map(len, self.segments))


def no_pause() -> None:
    """The pause of whoever encodes while nobody waits."""


def encode_snapshot(
    rows: DueRows,
    *,
    time_step_ms: int,
    max_indexes: int,
    max_entry_bytes: int = MAX_ENTRY_BYTES,
    pause: Callable[[], None] = no_pause,
) -> EncodedSnapshot:
    """The snapshot of sorted rows. A segment spans less than `time_step_ms` and holds at most `max_indexes` (-1: any
    number). `pause` is called after every segment: a background thread lets others have the interpreter there.

    Raises RecordTooLargeError where one segment's metadata is larger than an entry may be.
    """
    from pyroaring import BitMap

    fits = max_entry_bytes // _MAX_INDEX_BYTES
    most = fits if max_indexes < 0 else min(max_indexes, fits)
    order = JavaHashMapOrder()
    segments: list[bytes] = []
    described: list[SegmentMetadata] = []
    first = 0
    while first < len(rows):
        end = rows.segment_end(first, time_step_ms, most)
        bitmaps: dict[int, bytes] = {}
        by_ledger = rows.entries_by_ledger(first, end)
        for ledger_id, entry_ids in by_ledger:
            order.add(ledger_id)
            bitmap = BitMap(entry_ids)
            bitmap.run_optimize()
            bitmaps[ledger_id] = bitmap.serialize()
        # Pulsar asks its map once a row. That matters after the last new ledger only: asking may make the map grow.
        newest, its_entries = by_ledger[-1]
        if len(its_entries) > 1 or rows[end - 1][1] != newest:
            order.add(newest)
        described.append(
            SegmentMetadata(rows[first][0], rows[end - 1][0], {ledger: bitmaps[ledger] for ledger in order.drain()})
        )
        segments.append(rows.encode(first, end))
        first = end
        pause()
    return EncodedSnapshot(encode_metadata(described, max_entry_bytes), segments, described)


def encode_metadata(described: Iterable[SegmentMetadata], max_entry_bytes: int = MAX_ENTRY_BYTES) -> list[bytes]:
    """The entries that hold the metadata of a snapshot's segments: one where it fits, as in Pulsar.

    More than one is ours: each is a SnapshotMetadata of some segments, in order, and the first says how many there are.
    """
    parts = [SnapshotMetadata()]
    # Tag and length of a segment's metadata, and the field that the first entry may get, stay below this.
    size, slack = 0, 16
    for segment in described:
        message = _metadata_message(segment)
        message_bytes = message.ByteSize() + slack
        if message_bytes > max_entry_bytes:
            raise RecordTooLargeError(
                f"the bitmaps of one snapshot segment take {message_bytes} bytes, an entry holds {max_entry_bytes}",
                hint="lower delayedDeliveryMaxIndexesPerBucketSnapshotSegment",
            )
        if size + message_bytes > max_entry_bytes - slack and parts[-1].metadata_list:
            parts.append(SnapshotMetadata())
            size = 0
        parts[-1].metadata_list.append(message)
        size += message_bytes
    if len(parts) > 1:
        parts[0].metadata_entries = len(parts)
    return [part.SerializeToString() for part in parts]


def _metadata_message(segment: SegmentMetadata) -> SnapshotSegmentMetadata:
    message = SnapshotSegmentMetadata(
        max_schedule_timestamp=segment.max_schedule_timestamp, min_schedule_timestamp=segment.min_schedule_timestamp
    )
    for ledger_id, bitmap in segment.bitmaps.items():
        message.delayed_index_bit_map.add(key=ledger_id, value=bitmap)
    return message


def decode_metadata(entries: Sequence[bytes]) -> list[SegmentMetadata]:
    """What the metadata of a snapshot says of its segments. Raises CorruptDelayedIndexError."""
    from google.protobuf.message import DecodeError

    found: list[SegmentMetadata] = []
    for part, entry in enumerate(entries):
        try:
            message = SnapshotMetadata.FromString(entry)
        except DecodeError as e:
            raise CorruptDelayedIndexError(f"entry {part} of a snapshot is no metadata: {e}") from None
        if part == 0 and max(message.metadata_entries, 1) != len(entries):
            raise CorruptDelayedIndexError(
                f"the metadata of a snapshot takes {max(message.metadata_entries, 1)} entries, {len(entries)} found"
            )
        found += (
            SegmentMetadata(
                segment.min_schedule_timestamp,
                segment.max_schedule_timestamp,
                {entry.key: entry.value for entry in segment.delayed_index_bit_map},
            )
            for segment in message.metadata_list
        )
    for slot, (before, after) in enumerate(pairwise(found)):
        if after.min_schedule_timestamp < before.max_schedule_timestamp:
            raise CorruptDelayedIndexError(
                f"segment {slot + 2} of a snapshot begins at {after.min_schedule_timestamp}, "
                f"before the one before it ends, {before.max_schedule_timestamp}"
            )
    return found


def bitmaps_of(described: Iterable[SegmentMetadata], pause: Callable[[], None] = no_pause) -> dict[int, Any]:
    """Ledger id -> BitMap of its entries in all of these segments. Raises CorruptDelayedIndexError."""
    from pyroaring import BitMap

    found: dict[int, list[Any]] = {}
    for segment in described:
        for ledger_id, serialised in segment.bitmaps.items():
            try:
                bitmap = BitMap.deserialize(serialised)
            except (ValueError, IndexError) as e:
                raise CorruptDelayedIndexError(f"the bitmap of ledger {ledger_id} cannot be read: {e}") from None
            found.setdefault(ledger_id, []).append(bitmap)
        pause()
    return {ledger_id: BitMap.union(*bitmaps) for ledger_id, bitmaps in found.items()}


def decode_rows(entry: bytes, name: str | None = None) -> DueRows:
    """The rows of a segment's entry, sorted. Raises CorruptDelayedIndexError."""
    return decode_segment(Window(entry, name))
