"""The times of a small .log, read in one go: a log may have many segments that nobody else comes to."""
import os

from seglog._kernels.header_walk import HeaderWalk
from seglog.format import names
from seglog.format.dialect import Dialect
from seglog.fs.mapping import read_small

# Of a file of so many bytes, a read costs less than a map.
_SMALL_BYTES = 64 << 10


def largest_in_headers(path: str, dialect: Dialect, base_offset: int, end_offset: int) -> int | None:
    """The largest timestamp that a batch header tells, -1 for none. None where it takes more than these headers: of a
    larger file, a damaged one, one with wrappers, or with time ranges beside it. Raises StorageError.
    """
    if os.path.lexists(path.removesuffix(dialect.log) + names.TIME_RANGES_SUFFIX):
        return None
    raw = read_small(path, _SMALL_BYTES)
    if raw is None:
        return None
    walk = HeaderWalk(base_offset)
    walk.advance(dialect.window(raw), None, None, end_offset)
    whole = walk.position == len(raw) and not walk.damaged and not walk.has_wrappers
    return walk.largest_timestamp if whole else None
