"""The acknowledgements of one subscription to a managed ledger: all entries up to a position, and some after it.

Entries may be set aside: they are not acknowledged, but kept elsewhere (ledger.relocated_entries), so the mark-delete
position can pass them.

After the mark-delete position, acknowledged entries are kept as a roaring bitmap of entry ids for each ledger, and the
acknowledged messages of a partly acknowledged entry as a bitmap of their numbers. Nothing here knows files or locks.
"""
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from sortedcontainers import SortedDict

from seglog._kernels.quiet_cursor import AcknowledgedEnds
from seglog.late_import import late
from seglog.ledger.managed.extent import LedgerExtent
from seglog.ledger.position import EARLIEST, Position
from seglog.named_tuple import NamedTuple

if TYPE_CHECKING:
    from pyroaring import BitMap


def bitmap(values: Iterable[int] = ()) -> "BitMap":
    """Make a bitmap."""
    return bitmap_class()(values)


@cache
def bitmap_class() -> "type[BitMap]":
    """Import pyroaring, which costs more than most uses of a managed ledger, here only."""
    late("pyroaring")
    from pyroaring import BitMap

    return BitMap


class PartOfBatch(NamedTuple):
    """A partly acknowledged entry: of its `size` messages, those with the numbers `indexes` are acknowledged."""

    size: int
    indexes: "BitMap"

    def copy(self) -> "PartOfBatch":
        return PartOfBatch(self.size, bitmap(self.indexes))


class Acknowledgements(AcknowledgedEnds):
    """`entries`: ledger id -> ids after `mark_delete`. `batches`: position -> PartOfBatch, none of it in `entries`.
    `aside`: ledger id -> ids of the entries set aside, wherever they are. `aside_parts`: position -> PartOfBatch of
    those among them with several messages, of which some or none are acknowledged.

    The first two are in order, so the entries that a mark-delete position passes come first.
    """

    mark_delete: Position
    entries: "SortedDict[int, BitMap]"
    batches: "SortedDict[Position, PartOfBatch]"

    def __init__(self, mark_delete: Position = EARLIEST) -> None:
        self.mark_delete = mark_delete
        self.entries = SortedDict()
        self.batches = SortedDict()
        self.aside: dict[int, BitMap] = {}
        self.aside_parts: dict[Position, PartOfBatch] = {}

    def copy(self) -> "Acknowledgements":
        """Return an independent copy."""
        same = Acknowledgements(self.mark_delete)
        same.entries.update((ledger_id, bitmap(ids)) for ledger_id, ids in self.entries.items())
        same.batches.update((at, part.copy()) for at, part in self.batches.items())
        same.aside = {ledger_id: bitmap(ids) for ledger_id, ids in self.aside.items()}
        same.aside_parts = {at: part.copy() for at, part in self.aside_parts.items()}
        return same

    def repair(self) -> None:
        """Sort by keys again, after an asynchronous exception in the middle of a change."""
        entries, batches = cast("Any", self.entries), cast("Any", self.batches)
        self.entries = SortedDict(dict.items(entries))
        self.batches = SortedDict(dict.items(batches))

    def holds(self, position: Position) -> bool:
        """Whether all of an entry is acknowledged."""
        return self.covers(position) and not (self.aside and self.is_aside(position))

    def is_aside(self, position: Position) -> bool:
        """Whether an entry was set aside, and is not acknowledged."""
        ids = self.aside.get(position.ledger_id)
        return ids is not None and position.entry_id in ids

    @property
    def aside_count(self) -> int:
        return sum(map(len, self.aside.values()))

    def set_aside(self, entries: Iterable[tuple[Position, int]]) -> None:
        """Let the mark-delete position pass these entries, which are not fully acknowledged, each with its number of
        messages; call `advance` afterwards."""
        for position, size in entries:
            part = self.batches.get(position)
            self.add(position)
            self.aside.setdefault(position.ledger_id, bitmap()).add(position.entry_id)
            if size > 1:
                self.aside_parts[position] = part or PartOfBatch(size, bitmap())

    def part_of(self, position: Position) -> PartOfBatch | None:
        """Return the acknowledged messages of an entry that may be partly acknowledged."""
        return self.batches.get(position) or self.aside_parts.get(position)

    def take_back(self, position: Position) -> bool:
        """If the entry was set aside, acknowledge it. Return whether it was."""
        if not self.is_aside(position):
            return False
        self.aside[position.ledger_id].discard(position.entry_id)
        if not self.aside[position.ledger_id]:
            del self.aside[position.ledger_id]
        self.aside_parts.pop(position, None)
        return True

    def take_back_up_to(self, position: Position) -> bool:
        """Acknowledge all entries up to `position` that were set aside. Return whether there was one."""
        before = self.aside_count
        for ledger_id in [one for one in self.aside if one <= position.ledger_id]:
            ids = self.aside[ledger_id]
            ids.remove_range(0, position.entry_id + 1 if ledger_id == position.ledger_id else 2**32)
            if not ids:
                del self.aside[ledger_id]
        self.aside_parts = {at: part for at, part in self.aside_parts.items() if at > position}
        return self.aside_count < before

    def after_seek(self, mark_delete: Position, extent: LedgerExtent) -> "Acknowledgements":
        """Return the state after a seek: all up to `mark_delete` is acknowledged, nothing after it. Entries after it
        that were set aside, and are no longer in any ledger, stay aside, with no message acknowledged."""
        found = Acknowledgements(mark_delete)
        for ledger_id, ids in self.aside.items():
            slot = extent.slot_of(ledger_id)
            end = 0 if slot < 0 else extent.entries_of(slot)
            if ledger_id == mark_delete.ledger_id:
                end = max(end, mark_delete.entry_id + 1)
            kept = bitmap(ids)
            kept.remove_range(0, end)
            if kept and ledger_id >= mark_delete.ledger_id:
                found.aside[ledger_id] = kept
        for position, part in self.aside_parts.items():
            if found.is_aside(position):
                found.aside_parts[position] = PartOfBatch(part.size, bitmap())
        return found

    def covers(self, position: Position) -> bool:
        """Whether an entry is acknowledged, or set aside."""
        if position <= self.mark_delete:
            return True
        ids = self.entries.get(position.ledger_id)
        return ids is not None and position.entry_id in ids

    def __len__(self) -> int:
        """The number of entries after the mark-delete position that are acknowledged."""
        return sum(map(len, self.entries.values()))

    def backlog(self, extent: LedgerExtent) -> int:
        """Count the entries that are not fully acknowledged."""
        return extent.count - extent.up_to(self.mark_delete) - len(self) + self.aside_count

    def run_from(self, position: Position) -> int:
        """Return the last id of the run of acknowledged entries that begins at `position`, which is one of them."""
        ids = self.entries[position.ledger_id]
        low, high = position.entry_id, ids.max()
        while low < high:
            middle = (low + high + 1) // 2
            if ids.range_cardinality(position.entry_id, middle + 1) == middle + 1 - position.entry_id:
                low = middle
            else:
                high = middle - 1
        return low

    def add(self, position: Position) -> None:
        """Acknowledge an entry after `mark_delete`; call `advance` afterwards."""
        ids = self.entries.get(position.ledger_id)
        if ids is None:
            ids = self.entries[position.ledger_id] = bitmap()
        ids.add(position.entry_id)
        self.batches.pop(position, None)

    def add_next(self, position: Position) -> bool:
        """Acknowledge the entry behind the mark-delete position if no other one of its ledger is; `advance` then need
        not be called. Return whether it was so: most entries are acknowledged in order."""
        ledger_id, entry_id = self.mark_delete
        if position != (ledger_id, entry_id + 1) or self.entries or self.batches:
            return False
        self.mark_delete = position
        return True

    def add_part(self, position: Position, size: int, indexes: Iterable[int]) -> bool:
        """Acknowledge messages of an entry with `size` messages. Return whether the entry is now fully acknowledged."""
        part = self.part_of(position)
        ids = bitmap() if part is None else part.indexes
        ids.update(indexes)
        if len(ids) == size:
            if not self.take_back(position):
                self.add(position)
            return True
        (self.aside_parts if self.is_aside(position) else self.batches)[position] = PartOfBatch(size, ids)
        return False

    def advance(self, extent: LedgerExtent) -> None:
        """Move the mark-delete position over the acknowledged entries that follow it without a gap."""
        while (position := extent.position(extent.up_to(self.mark_delete))) is not None:
            ids = self.entries.get(position.ledger_id)
            if ids is None or position.entry_id not in ids:
                return
            self.mark(Position(position.ledger_id, self.run_from(position)))

    def mark(self, position: Position) -> None:
        """Acknowledge all up to a position after `mark_delete`."""
        self.mark_delete = position
        while self.entries and self.entries.peekitem(0)[0] < position.ledger_id:
            self.entries.popitem(0)
        ids = self.entries.get(position.ledger_id)
        if ids is not None:
            ids.remove_range(0, position.entry_id + 1)
            if not ids:
                del self.entries[position.ledger_id]
        while self.batches and self.batches.peekitem(0)[0] <= position:
            self.batches.popitem(0)

    def within(self, extent: LedgerExtent, next_ledger_id: int) -> "Acknowledgements":
        """Return the same without entries that are not in the ledgers: those lost in a crash, and of trimmed ledgers.

        `next_ledger_id`: no ledger has had this id or a higher one yet. A mark-delete position there would hide every
        entry that is ever added.
        """
        kept = Acknowledgements(self.mark_delete)
        if self.mark_delete.ledger_id >= next_ledger_id:
            kept.mark_delete = extent.position(extent.count - 1) or EARLIEST
        slot = extent.slot_of(self.mark_delete.ledger_id)
        if slot >= 0:
            last = Position(self.mark_delete.ledger_id, extent.entries_of(slot) - 1)
            kept.mark_delete = min(self.mark_delete, last)
        for ledger_id, ids in self.entries.items():
            slot = extent.slot_of(ledger_id)
            found = bitmap(ids) & bitmap(range(extent.entries_of(slot))) if slot >= 0 else bitmap()
            if found:
                kept.entries[ledger_id] = found
        for position, part in self.batches.items():
            if extent.holds(position):
                kept.batches[position] = part
        kept.aside = {ledger_id: bitmap(ids) for ledger_id, ids in self.aside.items()}
        kept.aside_parts = dict(self.aside_parts)
        kept.advance(extent)
        return kept

    def reaches(self, next_ledger_id: int) -> bool:
        """Whether it holds entries of ledgers that there never were: `within` leaves them out."""
        last = max(self.mark_delete.ledger_id, *self.entries, *(one.ledger_id for one in self.batches), -1)
        return last >= next_ledger_id

    def unacknowledged(self, extent: LedgerExtent, start: int, stop: int) -> Iterator[Position]:
        """Yield the entries with ordinals in [start, stop) of the extent that are not fully acknowledged."""
        for ledger_id, ids in self.unacknowledged_runs(extent, start, stop):
            for entry_id in ids:
                yield Position(ledger_id, entry_id)

    def unacknowledged_runs(self, extent: LedgerExtent, start: int, stop: int) -> Iterator[tuple[int, range]]:
        """Yield the same as (ledger id, consecutive entry ids)."""
        while start < stop:
            ledger_id, ids = extent.run(start, stop)
            first = ids.start
            acknowledged = self.entries.get(ledger_id)
            if (ledger_id, first) <= self.mark_delete:
                start = extent.up_to(self.mark_delete)
            elif acknowledged is not None and first in acknowledged:
                start += self.run_from(Position(ledger_id, first)) - first + 1
            else:
                if acknowledged is not None:
                    ids = range(first, min(ids.stop, next(acknowledged.iter_equal_or_larger(first), ids.stop)))
                yield ledger_id, ids
                start += len(ids)
