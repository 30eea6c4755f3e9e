"""The order in which a java.util.HashMap<Long, ?> is iterated, because it is the order of a snapshot's bitmaps.

Pulsar collects the bitmaps of a segment in such a map and writes them as it comes across them, so whoever wants its
bytes has to put ledgers in that order. Readers take any.
"""

FIRST_BINS = 16


class JavaHashMapOrder:
    """Keys of a HashMap<Long, ?> that is filled by computeIfAbsent and emptied by clear(), over and over.

    computeIfAbsent (OpenJDK 17) tests for growth before it inserts and puts the new node at the head of its bin;
    clear() keeps the bins. A bin of eight keys would become a tree; ledger ids, which rise one by one, do not get
    there.
    """

    def __init__(self) -> None:
        self._bins: list[list[int]] = [[] for _ in range(FIRST_BINS)]
        self._count = 0

    def add(self, key: int) -> None:
        """Put a key, which may be there already."""
        if self._count > len(self._bins) * 3 // 4:
            self._grow()
        into = self._bins[self._slot(key)]
        if key not in into:
            into.insert(0, key)
            self._count += 1

    def drain(self) -> list[int]:
        """The keys in order; the map is empty afterwards and as wide as before."""
        keys = [key for held in self._bins for key in held]
        for held in self._bins:
            held.clear()
        self._count = 0
        return keys

    def _slot(self, key: int) -> int:
        folded = (key ^ (key >> 32)) & 0xFFFFFFFF  # Long.hashCode
        return (folded ^ (folded >> 16)) & (len(self._bins) - 1)

    def _grow(self) -> None:
        keys = [key for held in self._bins for key in held]
        self._bins = [[] for _ in range(2 * len(self._bins))]
        for key in keys:
            self._bins[self._slot(key)].append(key)
