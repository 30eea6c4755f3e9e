"""The ledgers of a managed ledger at one moment, with their entries counted from 0: ordinals.

An Extent does not change, except that its last ledger may grow: then it has as many entries as are published. A roll or
a trim of the managed ledger makes a new one. An ordinal is meaningful within one extent only; `sealed` and what follows
it are the same in each.
"""
from bisect import bisect_left, bisect_right

from seglog.ledger.ledger import Ledger
from seglog.ledger.managed.manifest import LedgerInfo
from seglog.ledger.position import Position


class ShownLedgers:
    """What readers of a managed ledger see: the open ledgers, and `extent`, which is replaced as a whole and None once
    it is closed."""

    __slots__ = ("extent", "opened")

    def __init__(self) -> None:
        self.extent: LedgerExtent | None = None
        self.opened: dict[int, Ledger] = {}


class LedgerExtent:
    """`active`: the ledger of the last info, if it grows or has grown since."""

    __slots__ = ("_starts", "active", "growing_id", "ids", "infos")

    def __init__(self, infos: tuple[LedgerInfo, ...], active: Ledger | None) -> None:
        self.infos = infos
        self.active = active
        self.ids = [info.ledger_id for info in infos]
        # The id of the ledger that grows, -1 if none does.
        self.growing_id = infos[-1].ledger_id if infos and infos[-1].end is None else -1
        # The ordinal of the first entry of each ledger.
        starts, start = [], 0
        for info in infos:
            starts.append(start)
            start += 0 if info.end is None else info.end.entries
        self._starts = starts

    def entries_of(self, slot: int) -> int:
        """Return the number of one ledger's entries that readers see."""
        end = self.infos[slot].end
        if end is not None:
            return end.entries
        return 0 if self.active is None else self.active.entry_count

    def size_of(self, slot: int) -> int:
        """Return the size of one ledger's file of entries, in bytes."""
        end = self.infos[slot].end
        if end is not None:
            return end.length_bytes
        return 0 if self.active is None else self.active.length_bytes

    @property
    def count(self) -> int:
        """The number of entries in all ledgers."""
        return self._starts[-1] + self.entries_of(len(self.infos) - 1) if self.infos else 0

    @property
    def size_bytes(self) -> int:
        """The size of all files of entries."""
        return sum(map(self.size_of, range(len(self.infos))))

    def slot_of(self, ledger_id: int) -> int:
        """Return the slot of a ledger; -1 if there is none."""
        slot = bisect_left(self.ids, ledger_id)
        return slot if slot < len(self.ids) and self.ids[slot] == ledger_id else -1

    def before(self, position: Position) -> int:
        """Return the number of entries before a position, which need not exist: the ordinal of the entry at it."""
        return self._before(position.ledger_id, position.entry_id)

    def up_to(self, position: Position) -> int:
        """Return the number of entries at or before a position: the ordinal of the entry after it."""
        return self._before(position.ledger_id, position.entry_id + 1)

    def _before(self, ledger_id: int, entry_id: int) -> int:
        slot = bisect_left(self.ids, ledger_id)
        if slot == len(self.ids):
            return self.count
        if entry_id <= 0 or self.ids[slot] != ledger_id:
            return self._starts[slot]
        return self._starts[slot] + min(entry_id, self.entries_of(slot))

    def position(self, ordinal: int) -> Position | None:
        """Return the position of the entry with this ordinal; None if there is none."""
        if not 0 <= ordinal < self.count:
            return None
        slot = bisect_right(self._starts, ordinal) - 1
        return Position(self.ids[slot], ordinal - self._starts[slot])

    def run(self, start: int, stop: int) -> tuple[int, range]:
        """Return, of the existing entries with ordinals in [start, stop), those in the first one's ledger: (ledger id,
        entry ids)."""
        slot = bisect_right(self._starts, start) - 1
        before = self._starts[slot]
        end = stop if slot + 1 == len(self._starts) else min(stop, self._starts[slot + 1])
        return self.ids[slot], range(start - before, end - before)

    def holds(self, position: Position) -> bool:
        """Whether there is an entry at this position."""
        slot = self.slot_of(position.ledger_id)
        return slot >= 0 and 0 <= position.entry_id < self.entries_of(slot)
