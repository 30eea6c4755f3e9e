"""Damage that is a write which did not arrive, told from any other."""
import pytest

from seglog.segment.missing_sectors import lacks_a_sector
from seglog.segment.recovery import Damage

SIZE = 5000


def damaged(position, end, first_offset=5, changed=()):
    """Bytes [position, end) of a file without zeros are damaged; those of the spans `changed` are zeros."""
    raw = bytearray(b"x" * SIZE)
    for begin, stop in changed:
        raw[begin:stop] = bytes(stop - begin)
    return lacks_a_sector(memoryview(raw), Damage(position, end, first_offset, -1, "a checksum"))


@pytest.mark.parametrize(
    ("position", "end", "missing"),
    [
        (1000, 2000, (1024, 1536)),     # a sector of it
        (1000, 5000, (4096, 5000)),     # a page, up to the end of the file
        (1000, 1400, (1000, 1024)),     # what it has of the sector in which it begins
        (1024, 1100, (1024, 1100)),     # all of a small batch
        (1050, 1100, (1050, 1100)),
        (0, 512, (0, 512)),
        (1020, 1400, (1020, 1400)),     # all of a batch, with parts of two sectors that others have, too
        (1015, 1400, (1024, 1400)),     # the second of them: it has the lower bytes of the size, magic and CRC
        (1000, 1530, (1024, 1536)),     # one that runs on into the zeros with which the batch behind begins
    ],
)
def test_a_missing_sector_is_seen(position, end, missing):
    assert damaged(position, end, changed=[missing])


@pytest.mark.parametrize(
    ("position", "end", "zeros"),
    [
        (1000, 2000, ()),
        (1000, 2000, (1100, 1500)),     # of the bytes of a sector, but not all
        (1000, 2000, (1536, 2000)),     # the rest of it belongs to the batch behind, and that is there
        (1000, 2000, (512, 1000)),      # before it
        (1000, 2000, (2048, 2560)),     # behind it
        (1024, 1100, (1030, 1100)),
        (1000, 1400, (1024, 1400)),     # (it begins behind the CRC)
        (1020, 1400, (1030, 1400)),     # of a batch that begins in the sector before
        (1000, 1530, (1024, 1535)),     # the last byte of the sector is there
    ],
)
def test_other_damage_is_told_from_it(position, end, zeros):
    assert not damaged(position, end, changed=[zeros] if zeros else [])


@pytest.mark.parametrize("zeros", range(1, 12))
def test_the_upper_bytes_of_an_offset_are_zeros_anyway(zeros):
    """A batch that begins just before a sector does: only what its offset cannot begin with is a missing part."""
    position = 1024 - zeros
    assert damaged(position, 2000, first_offset=5, changed=[(position, 1024)]) == (zeros >= 8)
    assert damaged(position, 2000, first_offset=0x0100_0000_0000_0000, changed=[(position, 1024)])
