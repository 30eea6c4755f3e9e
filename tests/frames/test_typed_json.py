"""Values in JSON as typed columns, by a JSON Schema."""
import datetime as dt
import json
import pickle
import uuid

import pyarrow as pa
import pytest

import seglog
from seglog.errors import InvalidArgumentError, UndecodableRecordError
from support.schemas import framed, write_schemas, write_topic

SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "required": ["id"],
    "definitions": {
        "line": {"type": "object", "properties": {"sku": {"type": "string"}, "count": {"type": "integer"}}},
        "tree": {"type": "object", "properties": {"child": {"$ref": "#/definitions/tree"}, "name": {"type": "string"}}},
    },
    "properties": {
        "id": {"type": "integer"}, "amount": {"type": "number"}, "paid": {"type": ["null", "boolean"]},
        "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        "at": {"type": "string", "format": "date-time"}, "day": {"type": "string", "format": "date"},
        "key": {"type": "string", "format": "uuid"}, "state": {"type": "string", "enum": ["OPEN", "CLOSED"]},
        "lines": {"type": "array", "items": {"$ref": "#/definitions/line"}},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "mixed": {"type": ["string", "integer"]}, "free": {"type": "object"}, "any": True,
        "tree": {"$ref": "#/definitions/tree"}, "nothing": {"type": "null"},
    },
}
VALUE = {
    "id": 1, "amount": 3, "paid": None, "note": "n", "at": "2024-02-29T12:00:00.5+01:00", "day": "2024-02-29",
    "key": str(uuid.UUID(int=9)), "state": "OPEN", "lines": [{"sku": "a", "count": 2.0, "more": 1}, {}],
    "counts": {"x": 1}, "mixed": 5, "free": {"a": [1]}, "any": "x", "tree": {"child": {"child": None}, "name": "root"},
    "unknown": 1,
}
ROW = {
    "id": 1, "amount": 3.0, "paid": None, "note": "n", "at": dt.datetime(2024, 2, 29, 11, 0, 0, 500_000, dt.UTC),
    "day": dt.date(2024, 2, 29), "key": uuid.UUID(int=9), "state": "OPEN",
    "lines": [{"sku": "a", "count": 2}, {"sku": None, "count": None}], "counts": [("x", 1)], "mixed": "5",
    "free": '{"a":[1]}', "any": '"x"', "tree": {"child": '{"child":null}', "name": "root"}, "nothing": None,
}


def scanned(path, schema=SCHEMA, **more):
    typed = seglog.Typed("json", schema=json.dumps(schema), frame="none")
    return seglog.scan(path, decode={"value": typed}, **more)


def test_every_type_has_its_column(tmp_path):
    path = write_topic(tmp_path / "x-0", [json.dumps(VALUE).encode(), b'{"id": 2}', None])
    column = scanned(path).to_arrow()["value"]
    column.validate(full=True)
    assert column.to_pylist() == [ROW, dict.fromkeys(ROW) | {"id": 2}, None]
    types = {field.name: field.type for field in column.type}
    assert types["id"] == pa.int64()
    assert types["at"] == pa.timestamp("us", "UTC")
    assert types["key"] == pa.uuid()
    assert types["state"] == pa.dictionary(pa.int32(), pa.string())
    assert types["counts"] == pa.map_(pa.string(), pa.int64())
    assert types["mixed"] == types["free"] == types["any"] == pa.string()


def test_a_frame_is_taken_off_and_the_newest_schema_reads_all(tmp_path):
    old = {"type": "object", "properties": {"id": {"type": "integer"}}}
    new = {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}
    write_schemas(tmp_path, ("x-value", 1, 1, old, {"kind": "JSON"}), ("x-value", 2, 2, new, {"kind": "JSON"}))
    path = write_topic(tmp_path / "x-0", [framed(1, b'{"id":1}'), framed(2, b'{"id":2,"name":"n"}')])
    scan = pickle.loads(pickle.dumps(seglog.scan(path, decode={"value": seglog.Typed("json")})))
    assert scan.to_arrow()["value"].to_pylist() == [{"id": 1, "name": None}, {"id": 2, "name": "n"}]
    (part,) = pickle.loads(pickle.dumps(scan.parts()))
    assert [len(rows) for rows in part.batches()] == [2]


@pytest.mark.parametrize(("value", "why"), [
    (b"", "not JSON"), (b"{", "not JSON"), (b'{"id": NaN}', "not JSON"), (b"\xff", "not JSON"),
    (b"[" * 100_000, "not JSON"), (b'{"note": "\\ud800"}', "surrogates"), (b"[]", "expected an object"),
    (b'{"id": "1"}', "expected a whole number"), (b'{"id": 1.5}', "expected a whole number"),
    (b'{"id": true}', "expected a whole number"), (b'{"id": 9223372036854775808}', "64 bits"),
    (b'{"amount": "1"}', "expected a number"), (b'{"amount": 1' + b"0" * 400 + b"}", "a double"),
    (b'{"paid": 1}', "expected true or false"), (b'{"note": 1}', "expected text"),
    (b'{"at": "2024-01-01T00:00:00"}', "no time zone"), (b'{"at": "yesterday"}', "not a date-time"),
    (b'{"day": "2024-13-01"}', "not a date"), (b'{"key": "x"}', "not a UUID"), (b'{"state": "GONE"}', "unknown symbol"),
    (b'{"lines": {}}', "expected a list"), (b'{"lines": [1]}', "expected an object"),
    (b'{"counts": []}', "expected an object"),
    (b'{"nothing": 1}', "expected null"), (b'{"id": 1} x', "not JSON"),
])
def test_what_is_not_of_its_schema_is_undecodable(tmp_path, value, why):
    path = write_topic(tmp_path / "x-0", [b'{"id": 1}', value])
    with pytest.raises(UndecodableRecordError, match=why) as caught:
        scanned(path).to_arrow()
    assert caught.value.offset == 1
    scan = scanned(path, on_undecodable="raw")
    assert [row["_undecodable"] for row in scan.to_arrow()["value"].to_pylist()] == [None, value]
    assert scan.undecodable == {"value": 1}


@pytest.mark.parametrize("text", [
    "", "7", "[]", '{"$ref": "#/definitions/gone"}', '{"type": "object", "properties": 5}', '{"anyOf": 5}',
    '{"type":"array","items":' * 3000, '{"type": "object", "properties": {"a": {"$ref": "#/x/y"}}}',
])
def test_text_that_is_no_schema_is_refused(tmp_path, text):
    path = write_topic(tmp_path / "x-0", [])
    typed = seglog.Typed("json", schema=text, frame="none")
    with pytest.raises(InvalidArgumentError, match="not a JSON Schema"):
        seglog.scan(path, decode={"value": typed}).to_arrow()
