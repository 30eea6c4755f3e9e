"""Whatever lets the GIL go refuses a second thread, as generators do: the interpreter does not end.

support/hostile/shared_objects.py uses each object from four threads, in a process of its own.
"""
import json
import subprocess
import sys
from pathlib import Path

import pytest

from seglog import build_batch
from seglog._kernels.arena import ArenaPool
from seglog._kernels.batch_builder import BatchBuilder
from seglog._kernels.batch_packer import BatchPacker
from seglog._kernels.batch_pieces import BatchPieces
from seglog._kernels.chained import Chained
from seglog._kernels.columns import chunks
from seglog._kernels.entry_batch import EntryBatch
from seglog._kernels.growing_batch import GrowingBatch
from seglog._kernels.key_map import KeyMap
from seglog._kernels.segment_scan import scan
from seglog._kernels.time_ranges import TimeRangesBuilder
from seglog._kernels.topic_rows import RowLayout, topic_rows
from seglog._kernels.window import Window
from seglog.errors import InvalidArgumentError
from seglog.format.compression import compress, decompressor
from support.shared_objects import CASES

PROGRAM = Path(__file__).parent.parent / "support/hostile/shared_objects.py"
SECONDS = 0.7

# Nothing else is raised: a second thread would see half a step as a damaged batch, a wrong offset, a row twice.
REFUSALS = (
    "ValueError: iterator already executing", "ValueError: generator already executing", "serves one thread at a time",
)
# What the calls raise by themselves, in the order in which they happen to come.
EXPECTED = {
    "builders": ("offset must be above the one before it", "this batch is finished"),
    "batch_pieces": ("no record goes to target",),
    "index_builder": ("an offset at or below the one before it",),
    "time_ranges": ("a batch at byte 0, expected at",),
    "growing_batch": ("a batch must contain at least one record",),
    "entry_batch": ("a batch of no entries",),
    "avro_column": ("schema 7 was added before", "the buffers of this column were taken"),
    "snapshot_metadata": ("before the one before it ends",),
}
# These are for any number of threads.
THREAD_SAFE = {"producer_table", "file_map", "log_itself"}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.long
def test_four_threads_are_refused_and_end_no_interpreter(case):
    done = subprocess.run(
        [sys.executable, PROGRAM, case, str(SECONDS)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    raised = json.loads(done.stdout)
    strange = [words for words in raised if not any(
        allowed in words for allowed in (*REFUSALS, *EXPECTED.get(case, ())))]
    assert strange == []
    if case in THREAD_SAFE:
        assert raised == {}


# --- the same in one thread: a callback that calls in again ---------------------------------------


class Again:
    """A callable that tries `step` in the middle of another call, and keeps what came of it."""

    def __init__(self, then):
        self.then, self.step, self.told = then, None, []

    def __call__(self, *args):
        step, self.step = self.step, None
        if step is not None:
            with pytest.raises(ValueError, match=r"already executing|one thread at a time") as told:
                step()
            self.told.append(str(told.value).split(" (")[0])
        return self.then(*args)


def gzipped(count=3):
    return build_batch([(b"k", b"v")] * count, codec="gzip")


def opened_again(make):
    """What `next` says while `next` decompresses, of the iterator that `make` makes of a table."""
    again = Again(decompressor())
    it = make(scan(Window(gzipped()), decompress=again))
    again.step = lambda: next(it)
    assert len(list(it)) > 0
    return again.told


ITERATORS = {
    "records": lambda table: table.records(),
    "a batch": lambda table: iter(table[0]),
    "chained": lambda table: Chained([table.records()]),
    "columns": lambda table: chunks(table, ArenaPool()),
    "rows": lambda table: topic_rows(table, ArenaPool(), RowLayout(["offset"], "t", 0)),
}


@pytest.mark.parametrize("make", ITERATORS.values(), ids=ITERATORS)
def test_an_iterator_is_not_entered_twice(make):
    assert opened_again(make) == ["iterator already executing"]


def growing():
    again = Again(lambda codec, payload: compress(codec, 2, payload))
    batch = GrowingBatch(1 << 20, 1, again, False)
    batch.add(b"k", b"v", (), 5)
    again.step = lambda: batch.add(b"k", bytes(100_000), (), 5)
    batch.take(0, 5)
    return again


def pieces():
    again = Again(lambda codec, payload: compress(codec, 2, payload))
    made = BatchPieces(scan(Window(gzipped()), decompress=decompressor()), 0)
    again.step = lambda: made.piece(0, 0, again)
    made.piece(0, 0, again)
    return again


def packer():
    again = Again(lambda codec, payload: compress(codec, 2, payload))
    made = BatchPacker(codec=1, compress=again, decompress=decompressor())
    again.step = made.take
    made.add(scan(Window(build_batch([(b"k", b"v")]))), 0, 1)
    return again


def key_map():
    again, keys = Again(decompressor()), KeyMap()
    again.step = lambda: keys.put(b"k", 1)
    keys.add_batches(scan(Window(gzipped()), decompress=again))
    return again


def ranges():
    again, builder = Again(decompressor()), TimeRangesBuilder(0, 100)
    again.step = builder.finish
    builder.add(scan(Window(gzipped())), again)
    return again


class Time:
    """An int only when asked."""

    def __init__(self, again):
        self.again = again

    def __int__(self):
        return self.again()


def entries():
    again, batch = Again(lambda: 5), EntryBatch()
    again.step = lambda: batch.add([b"entry"], [5])
    batch.add([b"entry"], [Time(again)])
    return again


def headers():
    again, builder = Again(lambda: ("k", b"v")), BatchBuilder(0)
    again.step = lambda: builder.append(0, 5, b"k", b"v")
    builder.append(0, 5, b"k", b"v", (again() for _ in range(1)))
    return again


@pytest.mark.parametrize(
    "use", [growing, pieces, packer, key_map, ranges, entries, headers], ids=lambda use: use.__name__)
def test_an_object_is_not_entered_twice(use):
    told, = use().told
    assert told.endswith("serves one thread at a time")


def test_what_was_refused_goes_on_afterwards():
    again = Again(decompressor())
    it = scan(Window(gzipped(5)), decompress=again).records()
    again.step = lambda: next(it)
    assert [record.offset for record in it] == list(range(5))


def test_a_list_that_shrinks_while_its_times_are_asked_is_read_no_further():
    rows = [b"entry"] * 3

    class Clears:
        def __int__(self):
            rows.clear()
            return 5

    batch = EntryBatch()
    with pytest.raises(InvalidArgumentError, match="changed"):
        batch.add(rows, [Clears(), 5, 5])
    assert len(batch) == 0


# --- chained, as itertools.chain ------------------------------------------------------------------


def test_chained_gives_the_items_of_each():
    assert list(Chained([[1, 2], (), iter([3])])) == [1, 2, 3]
    assert list(Chained([])) == []
    it = Chained([[1]])
    assert (iter(it) is it, next(it), list(it), list(it)) == (True, 1, [], [])


def test_chained_goes_on_behind_an_error_of_one_and_ends_with_one_of_the_source():
    def failing():
        yield 1
        raise KeyError

    def source():
        yield failing()
        yield [2]
        raise LookupError

    it = Chained(source())
    assert next(it) == 1
    with pytest.raises(KeyError):
        next(it)
    assert next(it) == 2
    with pytest.raises(LookupError):
        next(it)
    assert list(it) == []
    with pytest.raises(TypeError):
        next(Chained([5]))
