"""The colours of record formats, and how much of a segment, a partition or a log dir is in each."""
from collections.abc import Iterable

from ..ls import Totals

# (CSS class, label) of each format.
FORMATS = (("v0", "format v0"), ("v1", "format v1"), ("v2", "format v2"), ("tagged", "messages with tags"))


def bytes_of(totals: Totals) -> tuple[int, ...]:
    """Return the bytes in each of FORMATS."""
    return totals.bytes_v0, totals.bytes_v1, totals.bytes_v2, totals.bytes_tagged


def shares_of(totals: Totals) -> list[tuple[str, float]]:
    """Return (class, share of all batches) of each format that occurs."""
    sizes = bytes_of(totals)
    whole = sum(sizes)
    return [(kind, size / whole) for (kind, _), size in zip(FORMATS, sizes, strict=True) if size]


def legend_of(all_totals: Iterable[Totals]) -> list[tuple[str, str]]:
    """Return (class, label) of each format that occurs in any of them."""
    whole = Totals()
    for totals in all_totals:
        whole.add(totals)
    return [pair for pair, size in zip(FORMATS, bytes_of(whole), strict=True) if size]
