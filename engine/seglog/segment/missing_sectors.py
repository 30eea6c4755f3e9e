"""Does damage look like a write that did not arrive?

What a write puts on the disk arrives by sectors, each as a whole or not at all, and of those that did not arrive the
file holds zeros (docs/durability.md). A sync that returned is the truth: so where a sector is missing, no sync has
covered it, nor anything that was written behind it, and nobody was told that it is on the disk. Bits that
changed on the platter look otherwise.
"""
from seglog.segment.recovery import LOG_OVERHEAD, MAGIC_POS, SIZE_POS, Damage

SECTOR_BYTES = 512
_CRC_END = 21       # of v2
_ZEROS = bytes(SECTOR_BYTES)


def lacks_a_sector(log: memoryview, damage: Damage) -> bool:
    """Whether a sector of the damaged bytes of a .log is missing, or its part of one that holds the batch's header."""
    start, stop = damage.start, damage.stop
    second = (start // SECTOR_BYTES + 1) * SECTOR_BYTES     # where the sector after that of `start` begins
    for begin, end in (start, min(second, stop)), (second, min(second + SECTOR_BYTES, stop)):
        if not any(log[begin:end]) and _must_differ(damage.first_offset, begin - start, end - start):
            return True
    # The last one may run on into the batch behind the damage, which begins with zeros and is whole without them.
    return any(log[at : at + SECTOR_BYTES] == _ZEROS for at in range(second, stop, SECTOR_BYTES))


def _must_differ(offset: int, start: int, stop: int) -> bool:
    """Whether the bytes [start, stop) of a batch that begins with this offset cannot all be zeros.

    An offset begins with zeros, and a size may; but a size is not 0, nor are magic and CRC together.
    """
    return (
        any(offset.to_bytes(SIZE_POS, "big")[start:stop])
        or (start <= SIZE_POS and stop >= LOG_OVERHEAD)
        or (start <= MAGIC_POS and stop >= _CRC_END)
    )
