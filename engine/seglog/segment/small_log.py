"""Reads the times of a small .log at once: a log may have many segments that are otherwise never used."""
import os

from seglog._kernels.header_walk import HeaderWalk
from seglog.format import names
from seglog.format.dialect import Dialect
from seglog.fs.mapping import read_small

# Up to this size, reading a file costs less than mapping it.
_SMALL_BYTES = 64 << 10


def largest_in_headers(path: str, dialect: Dialect, base_offset: int, end_offset: int) -> int | None:
    """Return the largest timestamp in the batch headers, -1 for none. None if these headers are not enough: the file is
    larger or damaged, has wrappers, or has time ranges beside it. Raises StorageError.
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
