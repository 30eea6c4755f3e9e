"""What the offset index and the time index of a segment have in common: a file of sorted, fixed-size entries.

Holds the buffer that it was given, copies nothing, and never looks at the log: whether an entry leads
to its batch is `seglog.verification.verify`'s question, and `Segment` asks it before it believes one. The
file of a crashed broker ends in preallocated zeros; they are no entries.
"""
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from seglog._kernels.index_search import OffsetIndexSearch, TimeIndexSearch, count_entries
from seglog._kernels.window import Window
from seglog.errors import CorruptIndexError

if TYPE_CHECKING:
    from typing_extensions import Buffer


class IndexFile:
    """A sequence of (offset, position) or (timestamp, offset): see the two classes that it is made into.

    `entries`: so many, as whoever appends to the file has published; bytes behind them are not looked at, nor
    the order of all entries anew each time that one is added.
    Raises CorruptIndexError where the size is no multiple of the entry size, or the entries are not
    sorted (Kafka's sanityCheck looks at the last entry only).
    """

    ENTRY_SIZE: ClassVar[int]
    _SEARCH: ClassVar[type[OffsetIndexSearch] | type[TimeIndexSearch]]

    def __init__(
        self, buffer: "Buffer", base_offset: int, *, path: str | Path | None = None, entries: int | None = None
    ) -> None:
        size = -1 if entries is None else entries * self.ENTRY_SIZE
        self._window = Window(buffer, None if path is None else str(path), size)
        self.base_offset = base_offset
        self.path = path
        self.size_bytes = len(self._window)
        if entries is None:
            entries = self._checked_entries()
        self._entries = entries
        self._search = self._SEARCH(self._window, base_offset, entries)
        # The search's own method, not one around it: a lookup takes some tens of nanoseconds.
        self.lookup = self._search.lookup

    def _checked_entries(self) -> int:
        """How many there are in the file. Raises CorruptIndexError."""
        path = self.path
        if self.size_bytes % self.ENTRY_SIZE:
            raise CorruptIndexError(
                f"{self.size_bytes} bytes are no multiple of the {self.ENTRY_SIZE}-byte entry",
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
        """The bytes of the entries, and no zeros behind them."""
        return Window(self._window, self._window.name, self._entries * self.ENTRY_SIZE)

    @property
    def preallocated_bytes(self) -> int:
        """Zero bytes behind the last entry: the file was not trimmed, its broker crashed or still runs."""
        return self.size_bytes - self._entries * self.ENTRY_SIZE

    def __len__(self) -> int:
        return self._entries

    def __getitem__(self, slot: int) -> tuple[int, int]:
        return self._search.entry(slot + self._entries if slot < 0 else slot)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return (self._search.entry(slot) for slot in range(self._entries))

    def lookup_many(self, targets: "Buffer", out: "Buffer") -> None:
        """For each int64 of `targets` what the last entry at or below it says, into the int64 buffer `out`."""
        self._search.lookup_many(targets, out)
