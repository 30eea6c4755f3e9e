"""Recognizes damage that looks like a write that did not fully reach the disk.

The disk writes sectors, each as a whole or not at all, and the file has zeros where a sector did not arrive
(docs/durability.md). A sync that returned is proof: so if a sector is missing, no sync has covered it, nor anything
written after it, and no caller was told that it is on the disk. Bits that flipped on the disk look different.
"""
from seglog.format.batch_layout import ATTRIBUTES_POS, LOG_OVERHEAD, MAGIC_POS, SIZE_POS
from seglog.segment.recovery import Damage

SECTOR_BYTES = 512
_ZEROS = bytes(SECTOR_BYTES)


def lacks_a_sector(log: memoryview, damage: Damage) -> bool:
    """Whether a sector in the damaged bytes of a .log is missing, or the damaged part of the sector with the header."""
    start, stop = damage.start, damage.stop
    second = (start // SECTOR_BYTES + 1) * SECTOR_BYTES     # the start of the sector after that of `start`
    for begin, end in (start, min(second, stop)), (second, min(second + SECTOR_BYTES, stop)):
        if not any(log[begin:end]) and _must_differ(damage.first_offset, begin - start, end - start):
            return True
    # The last sector may extend into the batch after the damage, which may begin with zeros and still be intact.
    return any(log[at : at + SECTOR_BYTES] == _ZEROS for at in range(second, stop, SECTOR_BYTES))


def _must_differ(offset: int, start: int, stop: int) -> bool:
    """Whether the bytes [start, stop) of a batch that begins with this offset cannot all be zeros.

    An offset begins with zeros, and a size may; but a size is never 0, nor are magic and CRC together.
    """
    return (
        any(offset.to_bytes(SIZE_POS, "big")[start:stop])
        or (start <= SIZE_POS and stop >= LOG_OVERHEAD)
        or (start <= MAGIC_POS and stop >= ATTRIBUTES_POS)
    )
