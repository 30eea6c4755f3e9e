"""What the source of Spark reads of directories that are not whole; no Spark is needed."""
import json
import pickle
import re
import shutil
import traceback

import pyarrow
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType

import seglog
from seglog.errors import (
    CorruptRecordError,
    InvalidArgumentError,
    LogLockedError,
    SchemaNotFoundError,
    StorageError,
    UndecodableRecordError,
)
from seglog.spark.offset_ranges import ranges
from seglog.spark.sink import BatchSink
from seglog.spark.source import SeglogSource
from seglog.spark.source_options import SourceOptions
from seglog.spark.source_splits import read_split, splits
from seglog.spark.spelling import as_options
from support.dead_swaps import dead_in_the_swap
from support.flipped import changed_transaction_indexes
from support.golden import golden_cases
from support.schemas import V1, write_schemas, write_topic

COLUMNS = StructType().add("topic", StringType()).add("partition", IntegerType()).add("value", BinaryType())
CASES = [pytest.param(case, id=case.name) for case in golden_cases() if case.name.startswith("txn-v2-")]


def rows_of(path, **given):
    """The offsets that the tasks of a batch read, each from a pickled split as an executor gets it."""
    options = SourceOptions.of(CaseInsensitiveDict({"path": str(path), **given}))
    found = []
    for split in splits(options, ranges(options)):
        for batch in read_split(pickle.loads(pickle.dumps(split))):
            found += batch["offset"].to_pylist()
    return found


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_compaction_that_died_in_its_swap_is_read_as_it_would_have_ended(tmp_path, isolation):
    states = list(dead_in_the_swap(tmp_path))
    assert len(states) > 10
    for state in states:
        expected = seglog.scan(state, isolation=isolation).to_arrow()["offset"].to_pylist()
        assert rows_of(state, isolation=isolation) == expected, state


@pytest.mark.parametrize("on_corrupt", ["failfast", "skip"])
def test_the_report_of_a_task_has_the_offsets_that_no_segment_holds(tmp_path, caplog, on_corrupt):
    path = tmp_path / "orders-0"
    with seglog.open(path, config={"segment.bytes": 1000}, fsync="never") as log:
        for n in range(60):
            log.append(b"%d" % n + b"v" * 30)
        bases = [segment.base_offset for segment in log.segments]
    for file in path.glob(f"{bases[1]:020d}.*"):
        file.unlink()
    assert rows_of(path, onCorrupt=on_corrupt) == [*range(bases[1]), *range(bases[2], 60)]
    assert f"no segment holds offsets {bases[1]} to {bases[2] - 1}" in caplog.text


@pytest.mark.parametrize("case", CASES)
def test_a_changed_byte_of_a_transaction_index_changes_nothing_that_is_read(case, tmp_path):
    here = shutil.copytree(case / f"{case.name}-0", tmp_path / f"{case.name}-0")
    right = rows_of(here, isolation="read_committed")
    assert right
    wrong = [
        where for where in changed_transaction_indexes(here) if rows_of(here, isolation="read_committed") != right
    ]
    assert not wrong, wrong


def test_hints_name_options_as_users_of_spark_write_them(tmp_path):
    """They named arguments of Python, and options of the command."""
    path = tmp_path / "data/orders-0"
    write_topic(path, [b"not in a frame", b"v" * 100, b"\xff"])
    with pytest.raises(InvalidArgumentError) as caught:
        SeglogSource({"path": str(path.parent), "decode": "avro"}).schema()
    assert caught.value.hint.startswith('.option("schemas", "https://registry:8081")')
    assert "seglog." not in caught.value.hint
    with pytest.raises(InvalidArgumentError) as caught:
        SeglogSource({"path": str(path.parent), "nonsense": "1"}).writer(COLUMNS, False)
    assert caught.value.hint == "see the page Topics as tables on Spark"
    for given, there in (({"subscribe": "order"}, "orders"), ({"assign": '{"orders": [1]}'}, "orders-0")):
        source = SeglogSource({"path": str(path.parent), **given})
        with pytest.raises(InvalidArgumentError) as caught:
            source.reader(source.schema()).partitions()
        assert caught.value.hint == f"there are {there}"
    write_schemas(path.parent, ("other-value", 1, 1, V1))
    with pytest.raises(InvalidArgumentError) as caught:
        SeglogSource({"path": str(path.parent), "subscribe": "orders", "decode": '{"value": "avro"}'}).schema()
    assert caught.value.hint == (
        """name the subject: .option("decode", '{"value": {"kind": "avro", "subject": "..."}}')""")
    given = {"decode": json.dumps({"value": {"kind": "avro", "subject": "other-value"}})}
    with pytest.raises(UndecodableRecordError) as caught:
        rows_of(path, **given)
    assert caught.value.hint.startswith('.option("onUndecodable", "null") or ')
    assert rows_of(path, onUndecodable="null", **given) == [0, 1, 2]
    with pytest.raises(InvalidArgumentError, match="is not UTF-8") as caught:
        rows_of(path, decode="utf8")
    assert '.option("onUndecodable", "null")' in caught.value.hint
    assert rows_of(path, decode="utf8", onUndecodable="null") == [0, 1, 2]
    log = next(path.glob("*.log"))
    raw = bytearray(log.read_bytes())
    raw[100] ^= 1
    log.write_bytes(raw)
    with pytest.raises(CorruptRecordError) as caught:
        rows_of(path)
    assert caught.value.hint.endswith('.option("onCorrupt", "skip") reads past it')
    for hint in (caught.value.hint, UndecodableRecordError.hint, SchemaNotFoundError.hint):
        assert not re.search(r"on_corrupt|on_undecodable|decode=", as_options(hint))


@pytest.mark.parametrize("door", ["schema", "reader", "streamReader", "writer", "streamWriter"])
def test_the_cause_stands_at_once_below_what_spark_says(tmp_path, door):
    """It shows the traceback of an error of Python, above the error: twenty frames of the engine."""
    source = SeglogSource({"path": str(tmp_path / "nowhere"), "nonsense": "1"})
    given = {"schema": (), "writer": (COLUMNS, False), "streamWriter": (COLUMNS, False)}.get(door, (COLUMNS,))
    with pytest.raises(InvalidArgumentError) as caught:
        getattr(source, door)(*given)
    check_short(caught.value)


def test_so_it_does_when_a_task_or_the_commit_fails(tmp_path):
    path = tmp_path / "data/orders-0"
    write_topic(path, [b"v" * 100])
    sink = BatchSink({"path": str(path.parent)}, COLUMNS, overwrite=False)
    rows = pyarrow.record_batch({"topic": ["orders"], "partition": [0], "value": [b"v"]})
    told = sink.write(iter([rows]))
    with seglog.open(path), pytest.raises(LogLockedError) as caught:
        sink.commit([told])
    check_short(caught.value)
    with pytest.raises(InvalidArgumentError) as caught:
        sink.write(iter([rows.set_column(1, "partition", pyarrow.array([-1]))]))
    check_short(caught.value)
    (given,) = splits(options := SourceOptions.of({"path": str(path.parent)}), ranges(options))
    shutil.rmtree(path)
    with pytest.raises(StorageError) as caught:
        list(read_split(given))
    check_short(caught.value)


def check_short(error):
    """As PySpark's worker formats it."""
    lines = traceback.format_exception(error)
    assert len(lines) <= 6, "".join(lines)
    assert str(error).splitlines()[0] in "".join(lines[-2:])
