"""The index files of a segment: sorted, fixed-size entries, from its log's offsets or times to places in it.

    .index        OffsetIndex   docs/formats/offset_index.md
    .timeindex    TimeIndex     docs/formats/time_index.md
    .time.index   MinuteIndex   docs/formats/minute_index.md, seglog's own
    .tindex       TaggedOffsetIndex and TaggedTimeIndex, over the same bytes: docs/formats/tagged_index.md

An IndexFile uses the buffer that it was given, copies nothing, and never reads the log: whether an entry leads to its
batch is checked by `seglog.verification.verify`, and by `Segment` before it trusts an entry. The file of a crashed
broker ends in preallocated zeros, which are not entries.
"""
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from seglog._kernels.index_search import OffsetIndexSearch, TimeIndexSearch, count_entries
from seglog._kernels.window import Window
from seglog.errors import CorruptIndexError
from seglog.format import names
from seglog.format.dialect import KAFKA, TAGGED, Dialect, beside

if TYPE_CHECKING:
    from typing_extensions import Buffer

MINUTE_MS = 60_000


class IndexFile:
    """A sequence of (offset, position) or (timestamp, offset): see the classes below.

    `entries`: the number that the writer of the file has published; bytes after them are not read, and the order of
    all entries is not checked again each time that one is added.
    Raises CorruptIndexError if the size is not a multiple of the entry size, or the entries are not sorted (Kafka's
    sanityCheck checks only the last entry).
    """

    DIALECT: ClassVar[Dialect] = KAFKA
    ENTRY_SIZE: ClassVar[int]
    _SEARCH: ClassVar[type[OffsetIndexSearch] | type[TimeIndexSearch]]

    def __init__(
        self, buffer: "Buffer", base_offset: int, *, path: str | Path | None = None, entries: int | None = None
    ) -> None:
        size = -1 if entries is None else entries * self.ENTRY_SIZE
        self._window = self.DIALECT.window(buffer, path, size)
        self.base_offset = base_offset
        self.path = path
        self.size_bytes = len(self._window)
        if entries is None:
            entries = self._checked_entries()
        self._entries = entries
        self._search = self._SEARCH(self._window, base_offset, entries)
        # The search's own method, without a wrapper: a lookup takes some tens of nanoseconds.
        self.lookup = self._search.lookup

    def _checked_entries(self) -> int:
        """Count and check the entries in the file. Raises CorruptIndexError."""
        path = self.path
        if self.size_bytes % self.ENTRY_SIZE:
            raise CorruptIndexError(
                f"{self.size_bytes} bytes are not a multiple of the {self.ENTRY_SIZE}-byte entry",
                file=path, position=self.size_bytes - self.size_bytes % self.ENTRY_SIZE,
            )
        entries = count_entries(self._window, self.ENTRY_SIZE)
        search = self._SEARCH(self._window, self.base_offset, entries)
        disorder = search.first_disorder()
        if disorder >= 0:
            raise CorruptIndexError(
                f"entry {disorder} {search.entry(disorder)} does not follow "
                f"entry {disorder - 1} {search.entry(disorder - 1)}",
                file=path, position=disorder * self.ENTRY_SIZE,
            )
        return entries

    @property
    def entries(self) -> Window:
        """The bytes of the entries, without the zeros after them."""
        return self.DIALECT.window(self._window, self._window.name, self._entries * self.ENTRY_SIZE)

    @property
    def preallocated_bytes(self) -> int:
        """Zero bytes after the last entry: the file was not trimmed, because its broker crashed or still runs."""
        return self.size_bytes - self._entries * self.ENTRY_SIZE

    def __len__(self) -> int:
        return self._entries

    def __getitem__(self, slot: int) -> tuple[int, int]:
        return self._search.entry(slot + self._entries if slot < 0 else slot)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return (self._search.entry(slot) for slot in range(self._entries))

    def lookup_many(self, targets: "Buffer", out: "Buffer") -> None:
        """Look up each int64 of `targets`: write what the last entry at or below it says to the int64 buffer `out`."""
        self._search.lookup_many(targets, out)


class OffsetIndex(IndexFile):
    """`OffsetIndex(buffer, base_offset)`: the entries of a .index as a sequence of (offset, position).

    The offset is the first or the last of the batch at the position, or the last of an append of several batches,
    depending on the Kafka version that wrote it (KAFKA-6264): in each case a lower bound for a search. `lookup(offset)`
    returns the last entry at or below it, (base_offset, 0) if there is none; `lookup_many` returns positions.
    """

    ENTRY_SIZE = KAFKA.offset_entry_bytes       # relative offset int32, position int32
    _SEARCH = OffsetIndexSearch


class TimeIndex(IndexFile):
    """`TimeIndex(buffer, base_offset)`: the entries of a .timeindex as a sequence of (timestamp ms, offset).

    An entry says that no record up to and including `offset` has a later timestamp; timestamps rise strictly. Empty for
    v0, which has no timestamps. `lookup(timestamp)` returns the last entry at or below it, (-1, base_offset) if there
    is none; `lookup_many` returns offsets.
    """

    ENTRY_SIZE = KAFKA.time_entry_bytes         # timestamp int64, relative offset int32
    _SEARCH = TimeIndexSearch


class MinuteIndex(TimeIndex):
    """`MinuteIndex(buffer, base_offset)`: the entries of a .time.index as a sequence of (timestamp ms, offset).

    Written if `seglog.time.index.minute.enabled` is set. It serves the same lookups as the time index, with one entry a
    minute
    instead of one every index.interval.bytes. Kafka does not know it, and may rewrite the log under it (the cleaner, a
    truncation). So it is a hint that a search verifies. When a log is opened, the one of the last segment is compared
    with the time index, and rebuilt if it is stale.

    An entry holds the largest timestamp up to and including `offset`, and the last offset of the batch that has it; no
    two entries are in the same minute. `lookup(timestamp)` is a lower bound: everything at or after that time begins at
    the entry's batch or later, however disordered timestamps are.
    """


class TaggedOffsetIndex(OffsetIndex):
    """`TaggedOffsetIndex(buffer, base_offset)`: the entries of a .tindex as a sequence of (offset, position).

    The offset is the last one of the message or wrapper at the position.
    """

    DIALECT = TAGGED
    ENTRY_SIZE = TAGGED.offset_entry_bytes      # relative offset int32, timestamp int64, position int32


class TaggedTimeIndex(TimeIndex):
    """`TaggedTimeIndex(buffer, base_offset)`: the entries of a .tindex as a sequence of (timestamp ms, offset).

    The largest timestamp of all messages up to and including `offset`; it never falls, but may stay the same.
    """

    DIALECT = TAGGED
    ENTRY_SIZE = TAGGED.time_entry_bytes


# The index classes of each dialect, by its name.
OFFSET_INDEXES: Mapping[str, type[OffsetIndex]] = {KAFKA.name: OffsetIndex, TAGGED.name: TaggedOffsetIndex}
TIME_INDEXES: Mapping[str, type[TimeIndex]] = {KAFKA.name: TimeIndex, TAGGED.name: TaggedTimeIndex}


def minute_index_path(log: Path) -> Path:
    """Return the path of the minute index beside a .log file."""
    return beside(log, names.MINUTE_INDEX_SUFFIX)
