"""The colours of record formats: of what a segment, a partition or a log dir holds in each."""
from collections.abc import Iterable

from ..ls import Totals

# (class of the style, words) of each format.
FORMATS = (("v0", "format v0"), ("v1", "format v1"), ("v2", "format v2"), ("tagged", "messages with tags"))


def bytes_of(totals: Totals) -> tuple[int, ...]:
    """In each of FORMATS."""
    return totals.bytes_v0, totals.bytes_v1, totals.bytes_v2, totals.bytes_tagged


def shares_of(totals: Totals) -> list[tuple[str, float]]:
    """(class, share of all batches) of the formats that there are."""
    sizes = bytes_of(totals)
    whole = sum(sizes)
    return [(kind, size / whole) for (kind, _), size in zip(FORMATS, sizes, strict=True) if size]


def legend_of(all_totals: Iterable[Totals]) -> list[tuple[str, str]]:
    """(class, words) of the formats that any of them has."""
    whole = Totals()
    for totals in all_totals:
        whole.add(totals)
    return [pair for pair, size in zip(FORMATS, bytes_of(whole), strict=True) if size]
