"""Bytes changed on purpose, in the ways of damage and of malice."""
import struct

from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from support import plain_format as plain

HOSTILE = [0, 1, 2, 0x7F, 0x80, 0xFF]
HOSTILE_I32 = [0, 1, -1, 13, 14, 2**31 - 1, -(2**31), 1 << 24]
# Where the headers of all versions have their fields.
FIELDS = [8, 12, 16, 17, 18, 21, 23, 26, 27, 35, 43, 51, 53, 57, 61]


def mutate(rng, data):
    """`data` with one to four changes of the kinds that damage and malice make."""
    data = bytearray(data)
    starts = [b.position for b in scan(Window(bytes(data)))] or [0]
    for _ in range(rng.randint(1, 4)):
        if len(data) < 4:
            break
        at = rng.randrange(len(data))
        match rng.randrange(8):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.choice(HOSTILE)
            case 2 | 3:
                at = min(rng.choice(starts) + rng.choice(FIELDS), len(data) - 4)
                struct.pack_into(">i", data, max(at, 0), rng.choice(HOSTILE_I32))
            case 4:
                del data[at:]
            case 5:
                data[at:at] = bytes(rng.randrange(40))
            case 6:
                del data[at : at + rng.randrange(40)]
            case 7:
                other = rng.randrange(len(data))
                data[at : at + 30] = data[other : other + 30]
    return bytes(data)


def mend_checksums(data):
    """Give each batch that still parses a right CRC, so that the damage gets past it."""
    data = bytearray(data)
    at = 0
    for batch in plain.split_batches(bytes(data)):
        struct.pack_into(">I", data, at + plain.crc_position(batch), plain.computed_crc(batch))
        at += len(batch)
    return bytes(data)
