"""A bucket's snapshot as bytes: metadata first, then segments by time.

The bytes are Pulsar 4.2.4's (MutableBucket.createImmutableBucketAndAsyncPersistent): see
docs/formats/delayed_index_snapshot.md. Rows go through the kernel; metadata is small and goes through protobuf.
"""
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
# Tag and value of SnapshotMetadata.metadata_entries.
_COUNT_FIELD_BYTES = 2 + 5


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


class SnapshotEncoder:
    """Encodes sorted rows segment by segment, and describes each segment. One snapshot each.

    A segment spans less than `time_step_ms` and holds at most `max_indexes` (-1: any number). `pause` is called after
    every segment: a background thread lets others have the interpreter there.
    """

    def __init__(
        self,
        *,
        time_step_ms: int,
        max_indexes: int,
        max_entry_bytes: int = MAX_ENTRY_BYTES,
        pause: Callable[[], None] = no_pause,
    ) -> None:
        fits = max_entry_bytes // _MAX_INDEX_BYTES
        self._most = fits if max_indexes < 0 else min(max_indexes, fits)
        self._time_step_ms = time_step_ms
        self._pause = pause
        self._order = JavaHashMapOrder()

    def segments(self, chunks: Iterable[DueRows]) -> Iterator[tuple[bytes, SegmentMetadata]]:
        """Entry and description of each segment of the rows in `chunks`, each chunk sorted and none before the one
        before it. Rows are held until their segment is full, and no longer."""
        held = DueRows()
        for rows in chunks:
            held.extend(rows)
            first = 0
            # What ends with the rows at hand may go on in the next chunk.
            while first < len(held) and (end := held.segment_end(first, self._time_step_ms, self._most)) < len(held):
                yield self._encode(held, first, end)
                first = end
            held.drop(first)
        if len(held):
            yield self._encode(held, 0, len(held))

    def _encode(self, rows: DueRows, first: int, end: int) -> tuple[bytes, SegmentMetadata]:
        from pyroaring import BitMap

        bitmaps: dict[int, bytes] = {}
        by_ledger = rows.entries_by_ledger(first, end)
        for ledger_id, entry_ids in by_ledger:
            self._order.add(ledger_id)
            bitmap = BitMap(entry_ids)
            bitmap.run_optimize()
            bitmaps[ledger_id] = bitmap.serialize()
        # Pulsar asks its map once a row. That matters after the last new ledger only: asking may make the map grow.
        newest, its_entries = by_ledger[-1]
        if len(its_entries) > 1 or rows[end - 1][1] != newest:
            self._order.add(newest)
        ordered = {ledger: bitmaps[ledger] for ledger in self._order.drain()}
        entry = rows.encode(first, end)
        self._pause()
        return entry, SegmentMetadata(rows[first][0], rows[end - 1][0], ordered)


def encode_snapshot(
    rows: DueRows,
    *,
    time_step_ms: int,
    max_indexes: int,
    max_entry_bytes: int = MAX_ENTRY_BYTES,
    pause: Callable[[], None] = no_pause,
) -> EncodedSnapshot:
    """The snapshot of sorted rows, whole.

    Raises RecordTooLargeError where one segment's metadata is larger than an entry may be.
    """
    encoder = SnapshotEncoder(
        time_step_ms=time_step_ms, max_indexes=max_indexes, max_entry_bytes=max_entry_bytes, pause=pause
    )
    encoded = list(encoder.segments([rows]))
    described = [says for _, says in encoded]
    return EncodedSnapshot(encode_metadata(described, max_entry_bytes), [entry for entry, _ in encoded], described)


class MetadataEntries:
    """The entries that hold the metadata of a snapshot's segments: one where it fits, as in Pulsar.

    More than one is ours: each is a SnapshotMetadata of some segments, in order, and the first says how many there are.
    """

    def __init__(self, max_entry_bytes: int = MAX_ENTRY_BYTES) -> None:
        self._max_entry_bytes = max_entry_bytes
        self._full: list[bytes] = []
        # Serialised messages one after another are one message with all their repeated fields.
        self._last: list[bytes] = []
        self._last_bytes = 0

    def add(self, segment: SegmentMetadata) -> None:
        """Raises RecordTooLargeError where the segment's bitmaps alone are larger than an entry may be."""
        part = SnapshotMetadata(metadata_list=[_metadata_message(segment)]).SerializeToString()
        # The first entry may get one more field.
        most = self._max_entry_bytes - _COUNT_FIELD_BYTES
        if len(part) > most:
            raise RecordTooLargeError(
                f"the bitmaps of one snapshot segment take {len(part)} bytes, "
                f"an entry holds {self._max_entry_bytes}",
                hint="lower delayedDeliveryMaxIndexesPerBucketSnapshotSegment",
            )
        if self._last_bytes + len(part) > most:
            self._full.append(b"".join(self._last))
            self._last.clear()
            self._last_bytes = 0
        self._last.append(part)
        self._last_bytes += len(part)

    def entries(self) -> list[bytes]:
        entries = [*self._full, b"".join(self._last)]
        if len(entries) > 1:
            entries[0] += SnapshotMetadata(metadata_entries=len(entries)).SerializeToString()
        return entries


def encode_metadata(described: Iterable[SegmentMetadata], max_entry_bytes: int = MAX_ENTRY_BYTES) -> list[bytes]:
    """The entries of the metadata of these segments."""
    metadata = MetadataEntries(max_entry_bytes)
    for segment in described:
        metadata.add(segment)
    return metadata.entries()


def _metadata_message(segment: SegmentMetadata) -> SnapshotSegmentMetadata:
    message = SnapshotSegmentMetadata(
        max_schedule_timestamp=segment.max_schedule_timestamp, min_schedule_timestamp=segment.min_schedule_timestamp
    )
    for ledger_id, bitmap in segment.bitmaps.items():
        message.delayed_index_bit_map.add(key=ledger_id, value=bitmap)
    return message


def decode_metadata(entries: Sequence[bytes]) -> list[SegmentMetadata]:
    """What the metadata of a snapshot says of its segments. Raises CorruptDelayedIndexError."""
    return list(read_metadata(entries))


def read_metadata(entries: Sequence[bytes]) -> Iterator[SegmentMetadata]:
    """The same, one segment after the other: all bitmaps of a large snapshot take more memory than what is in them."""
    from google.protobuf.message import DecodeError

    last_at = 0
    slot = 0
    for part, entry in enumerate(entries):
        try:
            message = SnapshotMetadata.FromString(entry)
        except DecodeError as e:
            raise CorruptDelayedIndexError(f"entry {part} of a snapshot is no metadata: {e}") from None
        if part == 0 and max(message.metadata_entries, 1) != len(entries):
            raise CorruptDelayedIndexError(
                f"the metadata of a snapshot takes {max(message.metadata_entries, 1)} entries, {len(entries)} found"
            )
        for segment in message.metadata_list:
            slot += 1
            if segment.min_schedule_timestamp < last_at:
                raise CorruptDelayedIndexError(
                    f"segment {slot} of a snapshot begins at {segment.min_schedule_timestamp}, "
                    f"before the one before it ends, {last_at}"
                )
            last_at = segment.max_schedule_timestamp
            bitmaps = {entry.key: entry.value for entry in segment.delayed_index_bit_map}
            yield SegmentMetadata(segment.min_schedule_timestamp, last_at, bitmaps)


def bitmaps_of(described: Iterable[SegmentMetadata], pause: Callable[[], None] = no_pause) -> dict[int, Any]:
    """Ledger id -> BitMap of its entries in all of these segments. Raises CorruptDelayedIndexError."""
    from pyroaring import BitMap

    found: dict[int, Any] = {}
    for segment in described:
        for ledger_id, serialised in segment.bitmaps.items():
            try:
                bitmap = BitMap.deserialize(serialised)
            except (ValueError, IndexError) as e:
                raise CorruptDelayedIndexError(f"the bitmap of ledger {ledger_id} cannot be read: {e}") from None
            if ledger_id in found:
                found[ledger_id] |= bitmap
            else:
                found[ledger_id] = bitmap
        pause()
    return found


def decode_rows(entry: bytes, name: str | None = None) -> DueRows:
    """The rows of a segment's entry, sorted. Raises CorruptDelayedIndexError."""
    return decode_segment(Window(entry, name))
