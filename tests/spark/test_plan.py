"""Which task converts which segments: nothing twice, nothing forgotten, and no list of all of them anywhere."""
import os
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.errors import CorruptCheckpointError, NotALogError, UnfinishedChangeError
from seglog.spark.job import plan_partition
from seglog.spark.options import ConversionOptions
from seglog.spark.plan import (
    SEGMENT_BYTES,
    Shard,
    SourceSegment,
    Task,
    TaskPacker,
    read_task,
    segments_of,
    spread,
    tasks_to_bytes,
)
from seglog.spark.workplace import Workplace
from seglog.stores.store import LocalStore, StoredFile

PARTITIONS = st.lists(st.lists(st.integers(0, 200), min_size=1, max_size=30), min_size=1, max_size=12)


def shard(partition, sizes):
    last = len(sizes) - 1
    return Shard(
        partition,
        tuple(
            SourceSegment(n, size, "1", 2**63 - 1 if n == last else n + 1, n == last) for n, size in enumerate(sizes)
        ),
    )


def packed(partitions, task_bytes, tasks_max, lanes=None, at_least=1):
    packer = TaskPacker(task_bytes, tasks_max, at_least)
    for n, sizes in enumerate(partitions):
        packer.add(shard(f"t-{n}", sizes))
    return packer.tasks(lanes)


@given(PARTITIONS, st.integers(1, 500), st.integers(2, 40), st.none() | st.integers(1, 5), st.integers(1, 50))
def test_every_segment_is_in_one_task(partitions, task_segments, tasks_max, lanes, at_least):
    tasks = packed(partitions, task_segments * SEGMENT_BYTES, tasks_max, lanes, at_least)
    slots = [(name, slot) for task in tasks for name, first, stop in task.ranges for slot in range(first, stop)]
    assert sorted(slots) == sorted((f"t-{n}", slot) for n, sizes in enumerate(partitions) for slot in range(len(sizes)))
    for task in tasks:
        assert task.size_bytes == sum(
            partitions[int(name[2:])][slot] for name, first, stop in task.ranges for slot in range(first, stop)
        )
        assert task.segments == sum(stop - first for _, first, stop in task.ranges)
    assert len(tasks) <= (tasks_max if lanes is None else lanes)
    assert len(tasks) >= min(at_least, lanes or tasks_max, tasks_max, len(slots)) // 2
    weights = [task.weight_bytes for task in tasks]
    assert weights == sorted(weights, reverse=True)
    assert min(weights) > 0


@given(PARTITIONS, st.integers(1, 500))
def test_all_tasks_but_the_last_one_packed_are_heavy_enough(partitions, task_segments):
    tasks = packed(partitions, task_segments * SEGMENT_BYTES, 10**6)
    assert sum(task.weight_bytes < task_segments * SEGMENT_BYTES for task in tasks) <= 1


def test_lanes_are_about_equal():
    sizes = [random.Random(7).randrange(1, 10) << 20 for _ in range(500)]
    lanes = packed([sizes], 1, 10**6, lanes=4)
    weights = [lane.weight_bytes for lane in lanes]
    assert max(weights) - min(weights) <= (10 << 20) + SEGMENT_BYTES


def test_many_small_partitions_are_many_tasks():
    # One task of 4 000 segments kept one core for 208 s, and the others idle.
    tasks = packed([[5_000]] * 4_000, 64 << 20, 20_000)
    assert 100 <= len(tasks) <= 200
    assert max(task.segments for task in tasks) <= 32


def test_each_core_has_a_task_as_long_as_there_are_segments():
    assert [task.segments for task in packed([[5_000]] * 12, 64 << 20, 20_000, at_least=8)] == [2] * 4 + [1] * 4
    assert len(packed([[5_000]] * 3, 64 << 20, 20_000, at_least=8)) == 3
    assert len(packed([[5_000]] * 12, 64 << 20, 20_000, lanes=4, at_least=4)) == 4
    assert len(packed([[5_000] * 12], 64 << 20, 20_000, at_least=2)) == 2


def test_tasks_are_read_back_by_their_number():
    tasks = packed([[10] * 9, [3], [70]], 3 * SEGMENT_BYTES, 100)
    raw = tasks_to_bytes(tasks)
    assert [read_task(raw, number, "tasks") for number in range(len(tasks))] == tasks


def test_a_shard_is_read_back_and_knows_when_it_is_torn():
    before = shard("orders-0", [5, 6, 7])
    raw = before.to_bytes()
    assert Shard.parse(raw, "plan") == before
    for end in range(len(raw)):
        with pytest.raises(CorruptCheckpointError):
            Shard.parse(raw[:end], "plan")


def test_a_shard_is_another_when_a_segment_changes():
    before = shard("orders-0", [5, 6, 7])
    assert before.identity == shard("orders-0", [5, 6, 7]).identity
    assert before.identity != shard("orders-0", [5, 6, 8]).identity
    assert before.identity != shard("orders-0", [5, 6]).identity


def stored(*names):
    return [StoredFile(name, 10, "1") for name in names]


LOGS = ["00000000000000000000.log", "00000000000000000007.log", "00000000000000000009.log"]


def test_segments_end_where_the_next_one_begins():
    found = segments_of(stored(*LOGS, "00000000000000000000.index", "leader-epoch-checkpoint"), "orders-0")
    assert [(s.base_offset, s.end_offset, s.is_last) for s in found] == [
        (0, 7, False), (7, 9, False), (9, 2**63 - 1, True)
    ]
    assert [s.file for s in found] == LOGS


def test_the_active_segment_is_left_out_on_request():
    found = segments_of(stored(*LOGS), "orders-0", skip_active=True)
    assert [(s.base_offset, s.end_offset, s.is_last) for s in found] == [(0, 7, False), (7, 9, False)]
    with pytest.raises(NotALogError, match="the only one"):
        segments_of(stored(LOGS[0]), "orders-0", skip_active=True)


def test_a_directory_in_the_middle_of_a_change_is_refused():
    with pytest.raises(UnfinishedChangeError):
        segments_of(stored(*LOGS, "00000000000000000007.log.swap"), "orders-0")
    with pytest.raises(NotALogError):
        segments_of(stored("00000000000000000007.log.deleted", "x.log"), "orders-0")


def test_partitions_are_spread_over_a_few_tasks():
    lists = list(spread([f"t-{n}" for n in range(10)], 4))
    assert len(lists) == 4
    assert sorted(name for names in lists for name in names) == sorted(f"t-{n}" for n in range(10))
    assert list(spread(["t-0"], 4)) == [["t-0"]]


class SyntheticStore(LocalStore):
    """A log dir of any number of segments, of which nothing exists but the listing of one partition at a time."""

    def __init__(self, segments):
        super().__init__()
        self.segments = segments
        self.written_bytes = 0

    def files(self, path):
        return [
            StoredFile(f"{n * 1000:020d}.log", 1 << 20, f"17000000000000{n:05d}") for n in range(self.segments)
        ]

    def read(self, path):
        return None

    def write_draft(self, path, data):
        self.written_bytes += len(data)


def test_a_million_segments_are_planned_in_little_memory():
    partitions = 2_000 if os.environ.get("SEGLOG_TORTURE") else 100
    store = SyntheticStore(500)
    workplace = Workplace(store, store, "/source", "/target", ConversionOptions())
    packer = TaskPacker()
    tracemalloc.start()
    try:
        for n in range(partitions):
            packer.add(plan_partition(workplace, f"orders-{n}"))
        tasks = packer.tasks()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(task.segments for task in tasks) == 500 * partitions
    # A list of them all would take some 300 bytes each.
    assert store.written_bytes > 40 * 500 * partitions
    assert peak_bytes < (1 << 20) + 20 * 500 * partitions
    # A task is told by the ranges of its segments, not by their list.
    assert max(len(task.to_line()) for task in tasks) < 300
    assert all(isinstance(task, Task) and task.weight_bytes >= 64 << 20 for task in tasks[:-1])
