"""A bucket's snapshot as bytes: metadata first, then segments by time.

The bytes are those of Pulsar 4.2.4 (MutableBucket.createImmutableBucketAndAsyncPersistent): see
docs/formats/delayed_index_snapshot.md.
"""
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from seglog._kernels.due_rows import DueRows, decode_segment
from seglog._kernels.position_union import PositionUnion
from seglog._kernels.snapshot_encode import SegmentEncoder
from seglog._kernels.snapshot_metadata import MetadataReader
from seglog._kernels.window import Window
from seglog.delayed.bucket import SegmentTimes
from seglog.errors import CorruptDelayedIndexError, RecordTooLargeError
from seglog.late_import import late

# BookKeeper's frame is 5 MiB (nettyMaxFrameSizeBytes); Pulsar cannot store anything larger.
MAX_ENTRY_BYTES = 5 * (1 << 20) - 10 * (1 << 10)
# The most bytes that an index in a segment takes (cext/delayed/due_rows.pyx).
_MAX_INDEX_BYTES = 35
# Tag and value of SnapshotMetadata.metadata_entries.
_COUNT_FIELD_BYTES = 2 + 5


@dataclass(frozen=True, slots=True)
class SegmentMetadata:
    """The metadata of one segment. `bitmaps`: ledger id -> serialised roaring bitmap of entry ids, in the order in
    which they are written."""

    min_schedule_timestamp: int
    max_schedule_timestamp: int
    bitmaps: dict[int, bytes]


def no_pause() -> None:
    """Do nothing: the pause if no other thread waits."""


@dataclass(frozen=True, slots=True)
class EncodedSnapshot:
    """A snapshot to be stored: the metadata's entries (usually one), the segments' entries, and their times."""

    metadata: list[bytes]
    segments: list[bytes]
    times: SegmentTimes

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.metadata)) + sum(map(len, self.segments))


class MetadataEntries:
    """The entries with the metadata of a snapshot's segments: a single one if it fits, as in Pulsar.

    More than one is our extension: each is a SnapshotMetadata of some segments, in order, and the first has the count.
    """

    def __init__(self, max_entry_bytes: int = MAX_ENTRY_BYTES) -> None:
        self._max_entry_bytes = max_entry_bytes
        self._full: list[bytes] = []
        # Concatenated serialised messages are one message with all their repeated fields.
        self._last: list[bytes] = []
        self._last_bytes = 0

    def add(self, part: bytes) -> None:
        """Add a SnapshotMetadata of one segment. Raises RecordTooLargeError if its bitmaps alone are larger than an
        entry may be."""
        # The first entry may get one more field.
        most = self._max_entry_bytes - _COUNT_FIELD_BYTES
        if len(part) > most:
            raise RecordTooLargeError(
                f"the bitmaps of one snapshot segment take {len(part)} bytes, "
                f"more than an entry can hold: {self._max_entry_bytes}",
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
            late("seglog.pulsar_pb.delayed_index_pb2")
            from seglog.pulsar_pb.delayed_index_pb2 import SnapshotMetadata

            entries[0] += SnapshotMetadata(metadata_entries=len(entries)).SerializeToString()
        return entries


class SnapshotEncoder:
    """Encodes the segments of a snapshot, and collects their metadata and times.

    A segment spans less than `time_step_ms` and has at most `max_indexes` rows (-1: any number). `pause` is called now
    and then: a background thread lets others have the interpreter there.
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
        self._encoder = SegmentEncoder(time_step_ms, fits if max_indexes < 0 else min(max_indexes, fits))
        self._pause = pause
        self.metadata = MetadataEntries(max_entry_bytes)
        self.times = SegmentTimes()

    def segments(self, chunks: Iterable[DueRows]) -> Iterator[bytes]:
        """Yield the entry of each segment of the rows in `chunks`; each chunk is sorted, and follows the one before it.
        Rows are kept only until their segment is full.

        Raises RecordTooLargeError if one segment's metadata is larger than an entry may be.
        """
        held = DueRows()
        for rows in chunks:
            held.extend(rows)
            yield from self._encode(held, whole=False)
        yield from self._encode(held, whole=True)

    def _encode(self, rows: DueRows, *, whole: bool) -> Iterator[bytes]:
        """Yield the segments of `rows`, which are released when they are encoded."""
        first, end = 0, -1
        while first != end:
            first = max(end, 0)
            encoded, end = self._encoder.encode(rows, first, whole)
            for entry, part, first_at, last_at in encoded:
                self.metadata.add(part)
                self.times.append(first_at, last_at)
                yield entry
            self._pause()
        rows.drop(end)


def encode_snapshot(
    rows: DueRows,
    *,
    time_step_ms: int,
    max_indexes: int,
    max_entry_bytes: int = MAX_ENTRY_BYTES,
    pause: Callable[[], None] = no_pause,
) -> EncodedSnapshot:
    """Encode sorted rows as a complete snapshot. Raises RecordTooLargeError."""
    encoder = SnapshotEncoder(
        time_step_ms=time_step_ms, max_indexes=max_indexes, max_entry_bytes=max_entry_bytes, pause=pause
    )
    segments = list(encoder.segments([rows]))
    return EncodedSnapshot(encoder.metadata.entries(), segments, encoder.times)


def decode_metadata(entries: Sequence[bytes]) -> list[SegmentMetadata]:
    """Decode the metadata of a snapshot's segments. Raises CorruptDelayedIndexError."""
    reader = MetadataReader()
    described = [SegmentMetadata(*says) for entry in entries for says in reader.describe(Window(entry))]
    _check_entries(reader, entries)
    return described


def unite_metadata(entries: Sequence[bytes], positions: PositionUnion, after: int) -> SegmentTimes:
    """Return the times of a snapshot's segments; add the messages of those that end after `after` to `positions`.

    Reads one entry after the other, and keeps no bitmap: all bitmaps of a large snapshot would take more memory than
    their messages. Raises CorruptDelayedIndexError.
    """
    reader = MetadataReader()
    for entry in entries:
        reader.unite(Window(entry), positions, after)
    _check_entries(reader, entries)
    return SegmentTimes(reader.times)


def _check_entries(reader: MetadataReader, entries: Sequence[bytes]) -> None:
    if reader.entries != len(entries):
        raise CorruptDelayedIndexError(
            f"the metadata of the snapshot has {reader.entries} entries, found {len(entries)}"
        )


def bitmaps_of(segment: SegmentMetadata) -> dict[int, Any]:
    """Return {ledger id: BitMap of entries} of a segment. Raises CorruptDelayedIndexError."""
    late("pyroaring")
    from pyroaring import BitMap

    found: dict[int, Any] = {}
    for ledger_id, serialised in segment.bitmaps.items():
        try:
            found[ledger_id] = BitMap.deserialize(serialised)
        except (ValueError, IndexError) as e:
            raise CorruptDelayedIndexError(f"the bitmap of ledger {ledger_id} cannot be read: {e}") from None
    return found


def decode_rows(entry: bytes, name: str | None = None) -> DueRows:
    """Decode the rows of a segment's entry, sorted. Raises CorruptDelayedIndexError."""
    return decode_segment(Window(entry, name))
