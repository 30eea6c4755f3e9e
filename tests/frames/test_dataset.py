"""`TopicScan.dataset()` under the whole interface of a pyarrow dataset, not only what DuckDB calls."""
import pickle
import subprocess
import sys
import threading

import pyarrow
import pyarrow.compute as pc
import pyarrow.dataset
import pytest

import seglog
from seglog.frames.rows import RowScan

T = 1_700_000_000_000
OFFSET = pc.field("offset")


@pytest.fixture(scope="module")
def topic(tmp_path_factory):
    path = tmp_path_factory.mktemp("dataset") / "orders-0"
    with seglog.open(path, fsync="never", config={"segment.bytes": 4_000, "retention.ms": -1}) as log:
        for n in range(300):
            log.append(b"value %d" % n, key=b"k%d" % n if n % 3 else None, timestamp=T + n)
    return path


@pytest.fixture
def dataset(topic):
    return seglog.scan(topic).dataset()


def offsets(table):
    return table["offset"].to_pylist()


NOT_PUSHED = (OFFSET == 5) | (OFFSET == 7) | pc.field("key").is_null()
DOORS = {
    "to_table": lambda dataset: dataset.to_table(filter=NOT_PUSHED).num_rows,
    "count_rows": lambda dataset: dataset.count_rows(filter=NOT_PUSHED),
    "to_batches": lambda dataset: sum(b.num_rows for b in dataset.to_batches(columns=["value"], filter=NOT_PUSHED)),
    "scanner": lambda dataset: dataset.scanner(filter=NOT_PUSHED).to_reader().read_all().num_rows,
    "expressions": lambda dataset: dataset.to_table({"next": OFFSET + 1}, filter=NOT_PUSHED).num_rows,
}


@pytest.mark.parametrize("door", DOORS)
def test_rows_are_read_and_dropped_by_the_thread_that_asks(dataset, monkeypatch, door):
    """A thread of pyarrow that drops the reader while the interpreter ends aborts the process."""
    threads = []

    def batches(self, *args, **options):
        try:
            for rows in original(self, *args, **options):
                threads.append(threading.current_thread())
                yield rows
        finally:
            threads.append(threading.current_thread())

    original = RowScan.batches
    monkeypatch.setattr(RowScan, "batches", batches)
    assert DOORS[door](dataset) == 102
    assert set(threads) == {threading.current_thread()}


def test_columns_may_repeat_and_be_expressions(dataset):
    table = dataset.to_table(columns=["offset", "key", "offset"], filter=OFFSET < 2)
    assert table.column_names == ["offset", "key", "offset"]
    assert [column.to_pylist() for column in table.columns] == [[0, 1], [None, b"k1"], [0, 1]]
    table = dataset.to_table(columns={"next": OFFSET + 1, "key": pc.field("key")}, filter=OFFSET >= 298)
    assert table.to_pydict() == {"next": [299, 300], "key": [b"k298", b"k299"]}
    assert dataset.to_table(columns={"next": OFFSET + 1}, filter=OFFSET > 999).schema.names == ["next"]
    assert dataset.to_table(columns=[]).num_rows == 300
    assert dataset.to_table(columns=[], filter=OFFSET < 7).num_rows == 7
    assert offsets(dataset.head(3, filter=OFFSET > 7)) == [8, 9, 10]
    assert offsets(dataset.take([1, 5])) == [1, 5]


def test_filters_of_the_dataset_and_of_the_scan_hold_together(dataset):
    late = dataset.filter(OFFSET >= 290)
    assert late.count_rows() == 10
    assert offsets(late.filter(OFFSET < 295).to_table(filter=OFFSET != 292)) == [290, 291, 293, 294]
    assert offsets(pickle.loads(pickle.dumps(late)).head(1)) == [290]
    assert dataset.count_rows() == 300


def test_a_dataset_is_sorted_and_joined(dataset):
    assert offsets(dataset.sort_by([("offset", "descending")]).head(2)) == [299, 298]
    other = pyarrow.dataset.dataset(pyarrow.table({"offset": [4, 7], "name": ["a", "b"]}))
    joined = dataset.filter(OFFSET < 10).join(other, "offset", join_type="inner").to_table()
    assert sorted(zip(offsets(joined), joined["name"].to_pylist(), strict=True)) == [(4, "a"), (7, "b")]
    assert dataset.join(dataset.filter(OFFSET < 5), "offset", join_type="inner", right_suffix="_r").count_rows() == 5


def test_what_does_not_ask_the_dataset_fails_and_lives(topic):
    """pyarrow's functions in C++: in a process of their own, because they ended it."""
    code = """
import pyarrow, pyarrow.dataset, seglog, sys
dataset = seglog.scan(sys.argv[1]).dataset()
other = pyarrow.dataset.dataset(pyarrow.table({"offset": [4, 7]}))
for door in (
    lambda: other.join(dataset, "offset", join_type="inner").to_table(),
    lambda: pyarrow.dataset.Scanner.from_dataset(dataset).to_table(),
):
    try:
        print(door())
    except FileNotFoundError as error:
        print("to_table" in str(error))
"""
    run = subprocess.run([sys.executable, "-c", code, topic], capture_output=True, text=True, timeout=120, check=False)
    assert (run.stdout.split(), run.returncode) == (["True", "True"], 0), run.stderr


def test_threads_of_a_library_may_drop_rows_while_the_interpreter_ends(topic):
    """DuckDB and pyarrow drop the last rows in threads of their own. One that waited for the GIL then was ended by
    force, which aborted about every third of these processes."""
    code = """
import duckdb, seglog, sys
dataset = seglog.scan(sys.argv[1]).dataset()
print(duckdb.sql('select count(*) from dataset where "offset" < 100').fetchall())
"""
    for _ in range(8):
        command = [sys.executable, "-c", code, topic]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert (run.stdout.strip(), run.returncode) == ("[(100,)]", 0), run.stderr[:500]


def test_a_child_that_was_forked_beside_a_query_ends_at_once(topic):
    """It has none of the calls that its parent's threads have begun, so it waits for none."""
    code = """
import os, seglog, sys, threading, time
import pyarrow

class Slow:
    def __iter__(self):
        return self
    def __next__(self):
        begun.set()
        time.sleep(3)

from seglog._kernels.arrow_stream import export_stream
begun = threading.Event()
scan = seglog.scan(sys.argv[1])

class Stream:
    __arrow_c_schema__ = scan.__arrow_c_schema__
    def __arrow_c_stream__(self, requested_schema=None):
        return export_stream(self, Slow())

threading.Thread(target=pyarrow.table, args=(Stream(),), daemon=True).start()
begun.wait()
start = time.monotonic()
if os.fork() == 0:
    sys.exit(0)
os.wait()
print(time.monotonic() - start)
os._exit(0)
"""
    command = [sys.executable, "-u", "-W", "ignore", "-c", code, topic]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert float(run.stdout) < 1.5, run.stderr
