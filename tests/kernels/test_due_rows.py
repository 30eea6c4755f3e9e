"""Rows of delayed messages are sorted by time, then position, whatever their numbers are."""
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels.due_rows import DueRows
from seglog.errors import InvalidArgumentError

rows = st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1))


def made(triples):
    held = DueRows()
    for row in triples:
        held.append(*row)
    return held


@given(st.lists(rows, max_size=100))
def test_few_rows_and_many_are_sorted_alike(triples):
    held = made(triples)
    held.sort()
    assert list(held) == sorted(triples)


@pytest.mark.parametrize("spread", [1, 100, 90_000_000, 2**40, 2**63 - 1])
@pytest.mark.parametrize("ordered", [True, False])
def test_rows_in_the_order_of_their_positions_and_others_are_sorted_alike(spread, ordered):
    chance = random.Random(spread)
    triples = [(chance.randrange(spread), n // 50, n % 50) for n in range(5000)]
    if not ordered:
        chance.shuffle(triples)
    held = made(triples)
    held.sort()
    assert list(held) == sorted(triples)


def test_entries_come_by_ledger_in_the_order_of_first_rows():
    held = made([(1, 9, 2**32 - 1), (2, 3, 7), (3, 9, 0), (4, 3, 1), (5, 4, 4)])
    found = [(ledger_id, list(entry_ids)) for ledger_id, entry_ids in held.entries_by_ledger(0, 5)]
    assert found == [(9, [0, 2**32 - 1]), (3, [1, 7]), (4, [4])]
    assert held.entries_by_ledger(2, 2) == []


def test_rows_that_are_due_are_let_go():
    held = made([(1, 1, 1), (2, 1, 2), (2, 1, 3), (5, 1, 4)])
    held.keep_after(2)
    assert list(held) == [(5, 1, 4)]
    held.keep_after(0)
    assert list(held) == [(5, 1, 4)]


def test_the_first_rows_are_let_go():
    rows = DueRows()
    for n in range(5):
        rows.append(n, n, n)
    rows.drop(2)
    rows.drop(0)
    assert list(rows) == [(2, 2, 2), (3, 3, 3), (4, 4, 4)]
    with pytest.raises(IndexError):
        rows.drop(4)
    rows.drop(3)
    assert len(rows) == 0


def test_rows_are_appended_to_rows():
    held = made([(1, 1, 1)])
    held.extend(made([(2, 1, 2)]))
    assert (len(held), list(held)) == (2, [(1, 1, 1), (2, 1, 2)])


# Tests of all the error paths of due_rows.pyx but those of decoding (tests/delayed/test_snapshot.py) follow:


@pytest.mark.parametrize("row", [(-1, 0, 0), (0, -1, 0), (0, 0, -1), (0, 0, 2**32)])
def test_a_row_that_cannot_be_is_refused(row):
    with pytest.raises(InvalidArgumentError, match="entry ids 0 to 4294967295; found"):
        made([row])


@pytest.mark.parametrize("bounds", [(-1, 0), (2, 1), (0, 2)])
def test_rows_outside_are_refused(bounds):
    held = made([(1, 1, 1)])
    with pytest.raises(IndexError):
        held.encode(*bounds)
    with pytest.raises(IndexError):
        held.entries_by_ledger(*bounds)


@pytest.mark.parametrize("slot", [-1, 1])
def test_a_row_outside_is_refused(slot):
    held = made([(1, 1, 1)])
    with pytest.raises(IndexError):
        held[slot]
