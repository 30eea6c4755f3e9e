"""`seglog dump --format`: every golden record as a table, and a table of what is asked for."""
import base64
import csv
import datetime as dt
import io
import json
import math
import shutil
import uuid
from decimal import Decimal

import pyarrow
import pyarrow.parquet
import pytest

import seglog as engine
from support.command import seglog, seglog_json
from support.schemas import avro, framed, schema_key, schema_value, write_schemas, write_topic
from support.table_rows import COLUMNS, by_partition, directories, expected_rows, rows_of_table


@pytest.fixture(scope="module")
def expected():
    return {k: rows for k, rows in expected_rows().items() if rows}


def test_parquet_and_arrow_have_every_golden_record(tmp_path, expected):
    for kind in ("parquet", "arrow"):
        seglog("dump", "--format", kind, "-o", tmp_path / kind, *directories())
    assert by_partition(rows_of_table(pyarrow.parquet.read_table(tmp_path / "parquet"))) == expected
    assert by_partition(rows_of_table(pyarrow.ipc.open_stream(tmp_path / "arrow").read_all())) == expected


def test_json_lines_have_every_golden_record(expected):
    lines = [json.loads(line) for line in seglog("dump", "--format", "jsonl", *directories()).stdout.splitlines()]
    decoded = [None if text is None else base64.b64decode(text) for text in (line["value"] for line in lines)]
    assert [list(line) for line in lines] == [list(COLUMNS)] * len(lines)
    whole = sorted((row for rows in expected.values() for row in rows), key=lambda row: (row[2], row[4]))
    assert [(line["topic"], line["offset"]) for line in lines] == [(row[2], row[4]) for row in whole]
    assert [v for v, row in zip(decoded, whole, strict=True) if not isinstance(row[1], tuple)] == [
        row[1] for row in whole if not isinstance(row[1], tuple)]
    assert [line["timestamp"] is None for line in lines] == [row[5] is None for row in whole]


def test_csv_tells_nothing_from_empty(tmp_path):
    with engine.open(tmp_path / "t-0") as log:
        log.append_many([(None, b"a"), (b"", b'say "hi",\nthere'), (b"k", None, (("h", b"\xff"),))])
    chosen = "--decode", "utf8", "--columns", "offset,key,value,headers"
    out = seglog("dump", "--format", "csv", *chosen, tmp_path / "t-0")
    assert out.stdout_bytes.decode().split("\r\n") == [
        "offset,key,value,headers", '0,,"a","[]"', '1,"","say ""hi"",\nthere","[]"',
        '2,"k",,"[{""key"": ""h"", ""value"": ""/w==""}]"', "",
    ]
    rows = list(csv.DictReader(io.StringIO(out.stdout_bytes.decode(), newline="")))
    assert rows[1]["value"] == 'say "hi",\nthere'


def test_what_does_not_go_together_is_refused(tmp_path):
    with engine.open(tmp_path / "t-0") as log:
        log.append(b"\xff")
    for options in (["--batches"], ["--json"], ["--limit", 3], ["--follow"], ["--max-bytes", 4]):
        assert "be combined only with" in seglog("dump", "--format", "csv", *options, tmp_path / "t-0", status=2).output
    assert "--output needs --format" in seglog("dump", "-o", tmp_path / "x", tmp_path / "t-0", status=2).output
    assert "not UTF-8" in seglog("dump", "--format", "csv", "--decode", "utf8", "-o", tmp_path / "x", tmp_path / "t-0",
                                 status=2).output
    assert not (tmp_path / "x").exists()
    (tmp_path / "x").write_text("mine")
    seglog("dump", "--format", "csv", "-o", tmp_path / "x", tmp_path / "t-0", status=None)
    assert (tmp_path / "x").read_text() == "mine"


def test_damage_ends_or_is_passed_over_with_status_7(tmp_path):
    with engine.open(tmp_path / "t-0") as log:
        for n in range(20):
            log.append(b"value %d" % n)
    [path] = (tmp_path / "t-0").glob("*.log")
    raw = bytearray(path.read_bytes())
    raw[300] ^= 1
    path.write_bytes(raw)
    done = seglog("dump", "--format", "jsonl", tmp_path / "t-0", status=None)
    assert done.exit_code not in (0, 7)
    assert path.name in done.output
    done = seglog("dump", "--format", "jsonl", "--on-corrupt", "skip", tmp_path / "t-0", status=7)
    assert len(done.stdout.splitlines()) == 19


def test_times_after_the_year_9999_have_longer_years(tmp_path):
    times = [0, 951_782_400_000, 253_402_300_799_999, 253_402_300_800_000, 265_996_828_800_000, 2**63 - 1]
    any_time = {"message.timestamp.before.max.ms": 2**63 - 1, "message.timestamp.after.max.ms": 2**63 - 1}
    with engine.open(tmp_path / "t-0", config=any_time) as log:
        log.append_batch(engine.build_batch([(b"k", b"v", (), time) for time in [*times, -1]]))
    expected = [
        "1970-01-01T00:00:00.000000Z", "2000-02-29T00:00:00.000000Z", "9999-12-31T23:59:59.999000Z",
        "10000-01-01T00:00:00.000000Z", "10399-02-08T00:00:00.000000Z", "294247-01-10T04:00:54.775807Z", None,
    ]
    out = seglog("dump", "--format", "jsonl", "--columns", "timestamp", tmp_path / "t-0").stdout
    assert [json.loads(line)["timestamp"] for line in out.splitlines()] == expected
    out = seglog("dump", "--format", "csv", "--columns", "timestamp", tmp_path / "t-0").stdout
    assert [line.strip('"') or None for line in out.splitlines()[1:]] == expected


# --- typed columns -------------------------------------------------------------------------------------

ORDER = {"type": "record", "name": "Order", "fields": [
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "tags", "type": {"type": "map", "values": "string"}}, {"name": "raw", "type": "bytes"},
    {"name": "id", "type": {"type": "string", "logicalType": "uuid"}}]}
SHOWN = {"price": "-3.50", "at": "2023-11-14T22:13:20+00:00", "tags": {"a": "b"}, "raw": "AP8=",
         "id": "00000000-0000-0000-0000-000000000007"}


@pytest.fixture
def typed(tmp_path):
    value = {"price": Decimal("-3.50"), "at": dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC), "tags": {"a": "b"},
             "raw": b"\x00\xff", "id": uuid.UUID(int=7)}
    write_schemas(tmp_path, ("orders-value", 1, 3, ORDER))
    return write_topic(tmp_path / "orders-0", [framed(3, avro(ORDER, value)), None, b"bad"], [b"a", b"b", b"c"])


def test_typed_values_are_objects_in_json_lines_and_csv(typed, tmp_path):
    words = ("dump", typed, "--decode", "key=utf8,value=avro", "--columns", "key,value", "--to-offset", 2, "--format")
    lines = [json.loads(line) for line in seglog(*words, "jsonl").stdout.splitlines()]
    assert lines == [{"key": "a", "value": SHOWN}, {"key": "b", "value": None}]
    rows = list(csv.reader(seglog(*words, "csv").stdout.splitlines()))
    assert [rows[1][0], json.loads(rows[1][1]), rows[2]] == ["a", SHOWN, ["b", ""]]
    elsewhere = shutil.copytree(typed, tmp_path / "elsewhere" / "orders-0")
    assert "no topic _schemas" in seglog("dump", elsewhere, *words[2:], "jsonl", status=None).output
    for where in (tmp_path, tmp_path / "_schemas-0"):
        again = seglog("dump", elsewhere, *words[2:], "jsonl", "--schemas", where)
        assert [json.loads(line) for line in again.stdout.splitlines()] == lines


def test_typed_values_in_parquet_and_what_does_not_decode(typed, tmp_path):
    words = ("dump", typed, "--decode", "key=utf8,value=avro", "--format", "parquet", "-o")
    assert "offset 2" in seglog(*words, tmp_path / "a.parquet", status=1).output
    done = seglog(*words, tmp_path / "b.parquet", "--on-undecodable", "raw", status=7)
    assert "1 value could not be decoded" in done.output
    values = pyarrow.parquet.read_table(tmp_path / "b.parquet")["value"].to_pylist()
    assert values[0]["price"] == Decimal("-3.50")
    assert [values[1], values[2]["_undecodable"]] == [None, b"bad"]


@pytest.mark.parametrize("words", [
    ("--schemas", "http://localhost"), ("--decode", "value=xml", "--format", "csv"), ("--decode", "value=xml"),
    ("--decode", "body=avro", "--format", "csv"), ("--decode", "key=utf8,", "--format", "csv"),
    ("--on-undecodable", "null"), ("--decode", "utf8", "--on-undecodable", "null"),
    ("--decode", "key=utf8", "--schemas", "http://localhost"), ("--decode", "avro", "--schemas", "/no/such/folder"),
])
def test_a_wrong_way_to_decode_is_refused(typed, words):
    seglog("dump", typed, *words, status=2)


# --- the same in lines -----------------------------------------------------------------------------------


def test_typed_values_are_in_lines_of_text_of_json_and_of_a_template(typed):
    words = ("dump", typed, "--decode", "key=utf8,value=avro", "--to-offset", 2)
    lines = seglog_json(*words)
    assert [(line["key"], line["value"]) for line in lines] == [("a", SHOWN), ("b", None)]
    assert lines[0]["headers"] == []
    text = seglog(*words).stdout.splitlines()
    assert ' "a"     {"price":"-3.50","at":"2023-11-14T22:13:20+00:00",' in text[1]
    assert text[2].endswith(' "b"     null')
    made = seglog(*words, "--format", r"%k=%s\n").stdout.splitlines()
    assert [made[0].partition("=")[0], json.loads(made[0].partition("=")[2]), made[1]] == ["a", SHOWN, "b="]
    # A key without a kind is what it is without --decode.
    (line, _) = seglog_json("dump", typed, "--decode", "value=avro", "--to-offset", 2)
    assert line["key"] == "YQ=="
    assert ' "a"     {' in seglog("dump", typed, "--decode", "value=avro", "--to-offset", 1).stdout
    assert seglog("dump", typed, "--decode", "value=avro", "--to-offset", 1, "--format", "%k").stdout == "a"


def test_numbers_that_json_has_not_are_text(tmp_path):
    schema = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "double"}]}
    write_schemas(tmp_path, ("t-value", 1, 1, schema))
    path = write_topic(tmp_path / "t-0", [framed(1, avro(schema, {"n": n})) for n in (math.nan, math.inf, 1.5)])
    assert [line["value"]["n"] for line in seglog_json("dump", path, "--decode", "value=avro")] == ["nan", "inf", 1.5]
    assert "NaN" not in seglog("dump", path, "--decode", "value=avro", "--format", "jsonl").stdout


def test_what_does_not_decode_ends_a_dump_of_lines_at_its_offset_or_is_counted(typed):
    words = ("dump", typed, "--decode", "key=utf8,value=avro")
    done = seglog(*words, status=1)
    assert "the value cannot be decoded" in done.stderr
    assert "offset 2" in done.stderr
    assert '"b"     null' in done.stdout
    done = seglog(*words, "--on-undecodable", "raw", "--json", status=7)
    assert json.loads(done.stdout.splitlines()[2])["value"]["_undecodable"] == "YmFk"
    assert "1 value could not be decoded" in done.stderr
    done = seglog(*words, "--on-undecodable", "null", status=7)
    assert done.stdout.splitlines()[3].endswith(' "c"     null')


def test_text_that_is_not_utf8_is_null_on_request_and_counted(tmp_path):
    """It ended the dump, whatever --on-undecodable said."""
    write_topic(tmp_path / "t-0", [b"one", b"\xff", b'{"n": 1}', None])
    words = ("dump", tmp_path / "t-0", "--decode", "value=utf8")
    assert "--on-undecodable null" in seglog(*words, status=2).stderr
    words = (*words, "--on-undecodable", "null")
    done = seglog(*words, "--json", status=7)
    assert [json.loads(line)["value"] for line in done.stdout.splitlines()] == ["one", None, '{"n": 1}', None]
    assert "1 value could not be decoded" in done.stderr
    assert seglog(*words, status=7).stdout.splitlines()[2].endswith(" null")
    assert seglog(*words, "--format", r"%s\n", status=7).stdout.splitlines() == ["one", "", '{"n": 1}', ""]
    done = seglog(*words, "--format", "jsonl", status=7)
    assert [json.loads(line)["value"] for line in done.stdout.splitlines()] == ["one", None, '{"n": 1}', None]
    # What is no JSON, in lines, too. A table does not parse it.
    words = ("dump", tmp_path / "t-0", "--decode", "value=json", "--on-undecodable", "null")
    done = seglog(*words, "--json", status=7)
    assert [json.loads(line)["value"] for line in done.stdout.splitlines()] == [None, None, {"n": 1}, None]
    assert "2 values could not be decoded" in done.stderr
    for decode in ("utf8", "value=utf8"):
        seglog("export", tmp_path / "t-0", "--into", tmp_path / decode, "--decode", decode, "--on-undecodable", "null",
               status=7)
        made = pyarrow.parquet.read_table(tmp_path / decode).column("value").to_pylist()
        assert made == ["one", None, '{"n": 1}', None]


def test_a_log_dir_has_the_schemas_of_each_topic_and_its_internal_topics_are_as_without_schemas(typed, tmp_path):
    clicks = {"type": "record", "name": "Click", "fields": [{"name": "page", "type": "string"}]}
    with engine.open(tmp_path / "_schemas-0") as log:
        log.append(schema_value("clicks-value", 1, 9, clicks), key=schema_key("clicks-value", 1))
    write_topic(tmp_path / "clicks-0", [framed(9, avro(clicks, {"page": "/"}))], [b"k"])
    write_topic(tmp_path / "bare-0", [b"x"], [b"k"])
    done = seglog("dump", tmp_path, "--decode", "value=avro", "--on-undecodable", "null", "--json", status=7)
    topic, shown = None, {}
    for line in map(json.loads, done.stdout.splitlines()):
        if line.get("type") == "partition":
            topic = line["partition"]
        elif "value" in line:
            shown.setdefault(topic, []).append(line["value"])
    assert shown["clicks-0"] == [{"page": "/"}]
    assert shown["orders-0"] == [SHOWN, None, None]
    assert [json.loads(base64.b64decode(value))["subject"] for value in shown["_schemas-0"][1:]] == [
        "orders-value", "clicks-value"]
    assert "found no schema of the subject bare-value" in done.output


def test_lines_of_a_backup_are_typed_too(typed, tmp_path):
    engine.backup(tmp_path, tmp_path.parent / f"{tmp_path.name}-backups")
    (line,) = seglog_json(
        "dump", f"{tmp_path.parent}/{tmp_path.name}-backups#latest/orders-0", "--decode", "value=avro", "--to-offset", 1
    )
    assert line["value"] == SHOWN


def test_an_unnamed_directory_has_no_schema(typed, tmp_path):
    copy = shutil.copytree(typed, tmp_path / "copy")
    done = seglog("dump", copy, "--decode", "value=avro", status=2)
    assert "the directory has not the name of a partition" in done.stderr
    assert '"b"' in seglog("dump", copy, "--decode", "key=utf8").stdout
