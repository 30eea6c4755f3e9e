"""What each worker of pytest-xdist begins with: long tests first, and those of one Spark session in one place.

`--dist worksteal` gives each worker an equal part of the list, in order; one that is done takes from the end of
another's part. So a test at the head of a part is begun at once and stays where it is, and a short one ends the run.
"""
from collections.abc import Sequence

import pytest

SESSION = "spark"       # a fixture that takes ten seconds of two cores, once for each worker that needs it


def in_shares(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """The items by parts: tests with the mark `long` are dealt out to their heads, those of the session to the last."""
    long, session, others = [], [], []
    for item in items:
        if SESSION in getattr(item, "fixturenames", ()):
            session.append(item)
        else:
            (long if item.get_closest_marker("long") else others).append(item)
    if len(others) < 100 * workers:     # parts that are full of these alone would not be parts
        return list(items)
    dealt = max(workers - 1, 1)     # the last worker has the session to begin with
    heads = [long[n::dealt] for n in range(dealt)]
    if workers > 1:
        heads.append([])
    heads[-1] = session + heads[-1]
    shares, left, rest = [], len(items), iter(others)
    for head, following in zip(heads, range(workers, 0, -1), strict=True):
        size = left // following        # as xdist counts
        shares += head
        shares += [item for _, item in zip(range(size - len(head)), rest, strict=False)]
        left -= size
    return shares
