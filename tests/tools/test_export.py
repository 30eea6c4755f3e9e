"""`seglog export`: a topic into a table, and then what is new."""
import deltalake
import pyarrow.parquet
import pytest

import seglog as engine
from support.command import seglog, seglog_json
from support.schemas import avro, framed, write_schemas, write_topic

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}


@pytest.fixture
def topic(tmp_path):
    write_schemas(tmp_path / "d", ("t-value", 1, 1, SCHEMA))
    return write_topic(tmp_path / "d/t-0", [framed(1, avro(SCHEMA, {"a": n})) for n in range(3)])


@pytest.mark.parametrize("format_", ["parquet", "delta", "iceberg"])
def test_a_run_adds_what_is_new(topic, tmp_path, format_):
    arguments = ("export", topic, "--into", tmp_path / "lake", "--format", format_)
    assert seglog(*arguments, "--partition-by", "date").stdout == "t-0: offsets 0 to 2, 3 rows\n"
    assert seglog(*arguments, "--partition-by", "date").stdout == "nothing new\n"
    with engine.open(topic) as log:
        log.append(b"x")
    written, summary = seglog_json(*arguments, "--partition-by", "date")
    assert (written["start_offset"], written["stop_offset"], written["rows"]) == (3, 4, 1)
    assert (summary["rows"], summary["ranges"]) == (1, 1)


def test_values_are_decoded_and_what_does_not_decode_is_counted(topic, tmp_path):
    with engine.open(topic) as log:
        log.append(b"no frame")
    arguments = (
        "export", topic, "--into", tmp_path / "lake", "--format", "delta", "--decode", "value=avro", "--columns",
        "offset,value", "--partition-by", "",
    )
    assert "offset 3" in seglog(*arguments, status=1).stderr
    done = seglog(*arguments, "--on-undecodable", "null", status=7)
    assert "1 value could not be decoded" in done.stderr
    table = deltalake.DeltaTable(tmp_path / "lake").to_pyarrow_table()
    assert sorted(table.column_names) == ["offset", "timestamp", "value"]
    found = dict(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert found == {0: {"a": 0}, 1: {"a": 1}, 2: {"a": 2}, 3: None}


def test_transactions_count_unless_told_otherwise(tmp_path):
    path = tmp_path / "d/t-0"
    with engine.open(path) as log, log.producer(producer_id=3) as producer:
        producer.begin()
        producer.append(b"gone")
        producer.abort()
    assert seglog("export", path, "--into", tmp_path / "lake").stdout == "nothing new\n"
    seglog("export", path, "--into", tmp_path / "all", "--isolation", "read_uncommitted")
    [file] = (tmp_path / "all").rglob("*.parquet")
    assert pyarrow.parquet.read_table(file)["value"].to_pylist() == [b"gone"]


@pytest.mark.parametrize("arguments", [
    ("--decode", "base64"), ("--format", "orc"), ("--partition-by", "day"), ("--file-bytes", "0"), ("--columns", "x"),
    ("--decode", "nope"),
])
def test_wrong_options_are_refused(topic, tmp_path, arguments):
    seglog("export", topic, "--into", tmp_path / "lake", *arguments, status=2)
    assert not (tmp_path / "lake").exists()


def test_the_directory_must_be_named(topic):
    assert "--into" in seglog("export", topic, status=2).stderr
