"""What is due comes out in order and once, whatever was pushed, sorted, handed over or dropped before."""
import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pyroaring import BitMap

from seglog._kernels.due_rows import DueRows
from seglog._kernels.due_runs import DueRuns
from seglog._kernels.pending_set import PendingSet
from seglog.errors import InvalidArgumentError

FOREVER = 2**62


def drain(runs, pending, cutoff=FOREVER, limit=10**9, moved=None):
    return runs.pop(cutoff, limit, pending, moved or {})


def pushed(triples):
    runs, pending = DueRuns(), PendingSet(BitMap)
    for row in triples:
        assert runs.push_new(*row, pending)
    return runs, {0: pending}


def rows_of(triples):
    rows = DueRows()
    for row in triples:
        rows.append(*row)
    return rows


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3), st.integers(0, 200)), unique_by=lambda r: r[1:]))
def test_pushed_rows_come_out_by_time_then_position(triples):
    runs, pending = pushed(triples)
    assert drain(runs, pending) == [row[1:] for row in sorted(triples)]
    assert (len(runs), pending[0].count, runs.next_at()) == (0, 0, -1)


def test_nothing_comes_out_that_is_not_due():
    runs, pending = pushed([(10, 1, 0), (20, 1, 1)])
    assert drain(runs, pending, cutoff=9) == []
    assert drain(runs, pending, cutoff=10) == [(1, 0)]
    assert runs.next_at() == 20


def test_no_more_come_out_than_asked_for():
    runs, pending = pushed([(n, 1, n) for n in range(10)])
    assert drain(runs, pending, limit=0) == []
    assert drain(runs, pending, limit=3) == [(1, 0), (1, 1), (1, 2)]
    assert (len(runs), pending[0].count) == (7, 7)


def test_a_row_without_its_bit_is_stale():
    runs, pending = pushed([(1, 1, 0), (2, 1, 1), (3, 1, 2)])
    pending[0].remove(1, 0)
    assert drain(runs, pending, cutoff=1) == []
    pending[0].remove(1, 1)
    runs.drop_stale_heads(pending, {})
    assert runs.next_at() == 3


def test_a_row_that_moved_to_another_time_is_stale():
    runs, pending = pushed([(5, 1, 0)])
    runs.push(9, 1, 0)
    assert drain(runs, pending, cutoff=8, moved={(1, 0): 9}) == []
    assert drain(runs, pending, cutoff=9, moved={(1, 0): 9}) == [(1, 0)]


def test_a_position_is_pushed_once():
    runs, pending = pushed([(5, 1, 0)])
    assert not runs.push_new(6, 1, 0, pending[0])
    assert len(runs) == 1


def test_runs_from_the_tail_stay_few():
    chance = random.Random(5)
    runs, pending = DueRuns(), {0: PendingSet(BitMap)}
    for n in range(3000):
        runs.push_new(100 + chance.randrange(10**6), 1, n, pending[0])
        if n % 7 == 0:
            runs.push_new(1, 2, n, pending[0])
            assert drain(runs, pending, cutoff=50) == [(2, n)]
    assert runs.runs <= 14
    assert len(drain(runs, pending)) == 3000


def test_columns_are_pushed_as_single_rows_are():
    runs, pending = DueRuns(), {0: PendingSet(BitMap)}
    at, ledger, entry = array("q", range(20_000, 0, -1)), array("q", [7] * 20_000), array("q", range(20_000))
    pending[0].adopt(7, BitMap(range(100, 19_900)))
    runs.push_range(at, ledger, entry, 100, 19_900)
    assert drain(runs, pending) == [(7, n) for n in range(19_899, 99, -1)]


def test_a_run_of_another_owner_is_popped_by_its_own_promises():
    runs, pending = pushed([(5, 1, 0), (7, 1, 1)])
    pending[3] = PendingSet(BitMap)
    pending[3].adopt(1, BitMap([5]))
    runs.add_run(3, rows_of([(6, 1, 1), (6, 1, 5)]))
    assert drain(runs, pending) == [(1, 0), (1, 5), (1, 1)]


def test_an_owners_rows_are_handed_over_sorted_or_not():
    runs, pending = pushed([(5, 1, 0), (50, 1, 1)])
    assert drain(runs, pending, cutoff=5) == [(1, 0)]
    runs.push_new(60, 1, 2, pending[0])
    runs.hand_over(0, 4)
    runs.push_new(70, 1, 3, pending[0])
    pending[4] = pending[0]
    assert sorted(runs.rows_of(4)) == [(50, 1, 1), (60, 1, 2)]
    assert sorted(runs.rows_of(0)) == [(70, 1, 3)]
    runs.drop_owner(4)
    assert len(runs) == 1
    assert drain(runs, pending) == [(1, 3)]


def test_due_rows_of_an_owner_are_handed_over():
    runs, pending = pushed([(n, 1, n) for n in range(10)])
    pending[1] = pending[0]
    assert runs.hand_over_due(0, 1, 3, pending) == 4
    assert sorted(runs.rows_of(1)) == [(n, 1, n) for n in range(4)]
    assert sorted(runs.rows_of(0)) == [(n, 1, n) for n in range(4, 10)]
    assert runs.hand_over_due(0, 1, 3, pending) == 0
    assert drain(runs, pending) == [(1, n) for n in range(10)]


def test_rows_are_taken_up_to_a_time_from_runs_and_tails():
    runs = DueRuns()
    for source, times in enumerate([(1, 4, 4, 9), (2, 4, 8)]):
        rows = DueRows()
        for n, at in enumerate(times):
            rows.append(at, source, n)
        runs.add_run(source, rows)
    runs.push(3, 7, 7)
    assert list(runs.take(4)) == [(1, 0, 0), (2, 1, 0), (3, 7, 7), (4, 0, 1), (4, 0, 2), (4, 1, 1)]
    assert list(runs.take(4)) == []
    assert list(runs.take(2**63 - 1)) == [(8, 1, 2), (9, 0, 3)]
    assert len(runs) == 0
    assert list(runs.take(2**63 - 1)) == []


def test_rows_between_two_times_are_those_still_pending():
    runs, pending = pushed([(n, 1, n) for n in range(10)])
    drain(runs, pending, cutoff=2)
    runs.push_new(5, 2, 0, pending[0])
    pending[0].remove(1, 4)
    found = sorted(runs.rows_between(1, 6, pending, {}))
    assert found == [(3, 1, 3), (5, 1, 5), (5, 2, 0)]


def test_memory_of_pushed_rows_is_at_most_32_bytes_a_row():
    runs = DueRuns()
    for n in range(50_000):
        runs.push(n, 1, n)
    assert runs.memory_bytes <= 32 * 50_000
    runs.clear()
    assert (len(runs), runs.memory_bytes) == (0, 0)


@pytest.mark.parametrize("row", [(-1, 0, 0), (0, -1, 0), (0, 0, -1), (0, 0, 2**32)])
def test_a_row_that_cannot_be_is_refused(row):
    runs, pending = DueRuns(), PendingSet(BitMap)
    with pytest.raises(InvalidArgumentError):
        runs.push(*row)
    with pytest.raises(InvalidArgumentError):
        runs.push_new(*row, pending)
    assert (len(runs), pending.count) == (0, 0)


def test_a_range_outside_its_columns_is_refused():
    column = array("q", [1])
    with pytest.raises(IndexError):
        DueRuns().push_range(column, column, column, 0, 2)


def test_an_owner_without_promises_is_a_programming_error():
    runs, _ = pushed([(1, 1, 1)])
    with pytest.raises(KeyError):
        drain(runs, {})


# --- the set of promises -------------------------------------------------------------------


def test_a_pending_set_counts_its_bits():
    pending = PendingSet(BitMap)
    assert pending.add(5, 1)
    assert not pending.add(5, 1)
    pending.adopt(5, BitMap([1, 2]))
    pending.adopt(6, BitMap([9]))
    assert (pending.count, len(pending), pending.ledger_ids()) == (3, 3, [5, 6])
    assert pending.contains(5, 2)
    assert not pending.contains(7, 2)
    assert not pending.contains(5, -1)
    assert pending.remove(5, 2)
    assert not pending.remove(5, 2)
    assert not pending.remove(5, -1)
    assert not pending.remove(8, 1)
    assert pending.drop(6) == 1
    assert pending.drop(6) == 0
    assert pending.count == 1


def test_a_pending_set_hands_over_what_is_still_pending():
    here, there = PendingSet(BitMap), PendingSet(BitMap)
    for entry_id in (1, 2, 3):
        here.add(5, entry_id)
    here.hand_over(there, 5, BitMap([2, 3, 4]))
    here.hand_over(there, 6, BitMap([1]))
    assert (list(here.bitmap(5)), list(there.bitmap(5)), here.count, there.count) == ([1], [2, 3], 1, 2)
    here.clear()
    assert (here.count, here.contains(5, 1), here.bitmap(5)) == (0, False, None)


@pytest.mark.parametrize("position", [(-1, 0), (0, -1), (0, 2**32)])
def test_no_position_is_refused(position):
    with pytest.raises(InvalidArgumentError):
        PendingSet(BitMap).add(*position)


def test_a_ledger_is_handed_over_whole():
    here, there = PendingSet(BitMap), PendingSet(BitMap)
    here.adopt(5, BitMap([1, 2]))
    there.adopt(5, BitMap([7]))
    here.hand_over(there, 5)
    here.hand_over(there, 6)
    assert (here.ledger_ids(), here.count, list(there.bitmap(5)), there.count) == ([], 0, [1, 2, 7], 3)


# --- twins ---------------------------------------------------------------------------------


class DueRunsAreASortedList(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.runs = DueRuns()
        self.pending = {owner: PendingSet(BitMap) for owner in range(3)}
        self.model = {}  # position -> (at, owner)
        self.next = 0

    @rule(ats=st.lists(st.integers(0, 100), max_size=40))
    def push(self, ats):
        for at in ats:
            self.runs.push_new(at, self.next % 3, self.next, self.pending[0])
            self.model[self.next % 3, self.next] = (at, 0)
            self.next += 1

    @rule(ats=st.lists(st.integers(0, 100), max_size=40), owner=st.integers(1, 2))
    def add_run(self, ats, owner):
        rows = []
        for at in sorted(ats):
            rows.append((at, 5, self.next))
            self.pending[owner].add(5, self.next)
            self.model[5, self.next] = (at, owner)
            self.next += 1
        self.runs.add_run(owner, rows_of(rows))

    @rule(cutoff=st.integers(0, 110), limit=st.integers(0, 30))
    def pop(self, cutoff, limit):
        due = sorted((at, *position) for position, (at, _) in self.model.items() if at <= cutoff)[:limit]
        assert drain(self.runs, self.pending, cutoff, limit) == [row[1:] for row in due]
        for row in due:
            del self.model[row[1:]]

    @rule(data=st.data())
    def take_back(self, data):
        if self.model:
            position = data.draw(st.sampled_from(sorted(self.model)))
            assert self.pending[self.model.pop(position)[1]].remove(*position)

    @rule(cutoff=st.integers(0, 100), to=st.integers(1, 2))
    def hand_over_due(self, cutoff, to):
        self.runs.hand_over_due(0, to, cutoff, self.pending)
        for position, (at, owner) in self.model.items():
            if owner == 0 and at <= cutoff:
                self.model[position] = (at, to)

    @rule(to=st.integers(1, 2))
    def hand_over(self, to):
        self.runs.hand_over(0, to)
        for position, (at, owner) in self.model.items():
            if owner == 0:
                self.pending[0].remove(*position)
                self.pending[to].add(*position)
                self.model[position] = (at, to)

    @rule(owner=st.integers(0, 2))
    def drop(self, owner):
        self.runs.drop_owner(owner)
        self.pending[owner].clear()
        self.model = {position: held for position, held in self.model.items() if held[1] != owner}

    @invariant()
    def the_counts_are_those_of_the_model(self):
        assert sum(p.count for p in self.pending.values()) == len(self.model)
        assert len(self.runs) >= len(self.model)
        self.runs.drop_stale_heads(self.pending, {})
        if self.model:
            assert 0 <= self.runs.next_at() <= min(at for at, _ in self.model.values())


TestDueRunsAreASortedList = DueRunsAreASortedList.TestCase


def test_late_rows_have_an_owner_of_their_own():
    runs, pending = pushed([(5, 9, 0)])
    pending[1] = pending[0]
    assert runs.push_new(4, 1, 0, pending[0], late=True)
    runs.hand_over(0, 7)
    pending[7] = pending[0]
    assert sorted(runs.rows_of(1)) == [(4, 1, 0)]
    assert drain(runs, pending) == [(1, 0), (9, 0)]


def test_rows_are_kept_that_are_pending_at_their_time():
    pending = PendingSet(BitMap)
    pending.adopt(1, BitMap([1, 2]))
    rows = rows_of([(5, 1, 0), (5, 1, 1), (6, 1, 2)])
    pending.keep_pending(rows, {(1, 2): 7})
    assert list(rows) == [(5, 1, 1)]
