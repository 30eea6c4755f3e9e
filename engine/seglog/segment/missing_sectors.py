"""Does damage look like a write that did not arrive?

What a write puts on the disk arrives by sectors, each as a whole or not at all, and of those that did not arrive the
file holds zeros (docs/durability.md). A sync that returned is the truth: so where a sector is missing, no sync has
covered it, nor anything that was written behind it, and nobody was told that it is on the disk. Bits that
changed on the platter look otherwise.
"""
from seglog.segment.recovery import LOG_OVERHEAD, Damage

SECTOR_BYTES = 512
_ZEROS = bytes(SECTOR_BYTES)


def lacks_a_sector(log: memoryview, damage: Damage) -> bool:
    """Whether a sector of the damaged bytes of a .log is missing, or the part of one in which the damage begins."""
    begin = (damage.position // SECTOR_BYTES + 1) * SECTOR_BYTES
    head = bytes(log[damage.position : min(begin, damage.end)])
    # A batch may begin with zeros, the upper bytes of its offset. More than those are the missing part of one.
    offset = damage.first_offset.to_bytes(8, "big")
    if not any(head) and (len(head) >= LOG_OVERHEAD or any(offset[: len(head)])):
        return True
    return any(
        log[at : at + SECTOR_BYTES] == _ZEROS for at in range(begin, damage.end - SECTOR_BYTES + 1, SECTOR_BYTES)
    )
