"""Values in Avro as typed columns: every type, by the rules for a writer's and a reader's schema, at every door."""
import datetime as dt
import decimal
import io
import json
import pickle
import uuid
from concurrent.futures import ThreadPoolExecutor

import duckdb
import fastavro
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seglog
import seglog.polars
from seglog.errors import InvalidArgumentError, SchemaNotFoundError, UndecodableRecordError
from support.command import seglog as command
from support.schemas import NOW, V1, V2, V3, avro, framed, schema_key, write_orders, write_schemas, write_topic

UTC = dt.UTC
ADDRESS = {"type": "record", "name": "Address", "fields": [
    {"name": "street", "type": "string"}, {"name": "zip", "type": ["null", "string"], "default": None}]}
EVERYTHING = {"type": "record", "name": "Everything", "namespace": "shop", "fields": [
    {"name": "yes", "type": "boolean"},
    {"name": "small", "type": "int"},
    {"name": "large", "type": "long"},
    {"name": "single", "type": "float"},
    {"name": "double", "type": "double"},
    {"name": "raw", "type": "bytes"},
    {"name": "text", "type": "string"},
    {"name": "maybe", "type": ["null", "long"]},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}},
    {"name": "huge", "type": {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 2}},
    {"name": "fixed_price", "type": {"type": "fixed", "name": "Price", "size": 8, "logicalType": "decimal",
                                     "precision": 10, "scale": 2}},
    {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "at_ms", "type": {"type": "int", "logicalType": "time-millis"}},
    {"name": "at_us", "type": {"type": "long", "logicalType": "time-micros"}},
    {"name": "when_ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "when_us", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "local_us", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
    {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
    {"name": "suit", "type": {"type": "enum", "name": "Suit", "symbols": ["SPADES", "HEARTS"]}},
    {"name": "numbers", "type": {"type": "array", "items": "long"}},
    {"name": "counts", "type": {"type": "map", "values": "int"}},
    {"name": "home", "type": ADDRESS},
    {"name": "work", "type": ["null", "Address"]},
    {"name": "visited", "type": {"type": "array", "items": ["null", "Address"]}},
    {"name": "one_of", "type": ["null", "string", "long", "Address", "Suit"]},
]}
VALUE = {
    "yes": True, "small": -5, "large": 1 << 62, "single": 1.5, "double": 2.25, "raw": b"\x00\xff", "text": "Grüße",
    "maybe": None, "price": decimal.Decimal("-12345.678"), "huge": decimal.Decimal("9" * 50 + ".25"),
    "fixed_price": decimal.Decimal("19.99"), "hash": b"abcd", "day": dt.date(2024, 2, 29),
    "at_ms": dt.time(1, 2, 3, 4000), "at_us": dt.time(23, 59, 59, 999_999),
    "when_ms": dt.datetime(2024, 2, 29, 12, 0, 0, 1000, UTC), "when_us": dt.datetime(1969, 12, 31, 23, 0, 0, 7, UTC),
    "local_us": dt.datetime(2024, 1, 1, 2, 3, 4, 5), "id": uuid.UUID(int=77), "suit": "HEARTS", "numbers": [1, 2, 3],
    "counts": {"a": 1, "b": 2}, "home": {"street": "A", "zip": None}, "work": {"street": "B", "zip": "1"},
    "visited": [None, {"street": "C", "zip": None}], "one_of": "text",
}
OTHER = VALUE | {"maybe": 7, "numbers": [], "counts": {}, "work": None, "visited": [], "suit": "SPADES"}
TYPES = {
    "yes": pa.bool_(), "small": pa.int32(), "large": pa.int64(), "single": pa.float32(), "double": pa.float64(),
    "raw": pa.binary(), "text": pa.string(), "maybe": pa.int64(), "price": pa.decimal128(12, 3),
    "huge": pa.decimal256(60, 2), "fixed_price": pa.decimal128(10, 2), "hash": pa.binary(4), "day": pa.date32(),
    "at_ms": pa.time32("ms"), "at_us": pa.time64("us"), "when_ms": pa.timestamp("ms", "UTC"),
    "when_us": pa.timestamp("us", "UTC"), "local_us": pa.timestamp("us"), "id": pa.uuid(),
    "suit": pa.dictionary(pa.int32(), pa.string()), "numbers": pa.list_(pa.int64()),
    "counts": pa.map_(pa.string(), pa.int32()),
    "home": pa.struct([("street", pa.string()), ("zip", pa.string())]),
}


@pytest.fixture
def log_dir(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    return path


@pytest.fixture
def orders(log_dir):
    return write_orders(log_dir)


AS_V3 = [
    {"total": 1.0, "currency": "EUR", "tags": None}, {"total": 2.0, "currency": "USD", "tags": None}, None,
    {"total": 3.5, "currency": "JPY", "tags": "x"},
]
AVRO = {"value": "avro", "key": "utf8"}


def test_every_type_is_the_arrow_type_that_it_names(log_dir):
    write_schemas(log_dir, ("all-value", 1, 5, EVERYTHING))
    write_topic(log_dir / "all-0", [framed(5, avro(EVERYTHING, value)) for value in (VALUE, OTHER)])
    column = seglog.scan(log_dir / "all-0", decode={"value": "avro"}).to_arrow()["value"]
    column.validate(full=True)
    types = {field.name: field.type for field in column.type}
    assert {name: types[name] for name in TYPES} == TYPES
    for row, value in zip(column.to_pylist(), (VALUE, OTHER), strict=True):
        expected = value | {
            "counts": list(value["counts"].items()),
            "one_of": {"member0": "text", "member1": None, "member2": None, "member3": None},
        }
        assert {name: row[name] for name in value} == expected


@pytest.mark.parametrize(("value", "member"), [
    ("text", 0), (1 << 40, 1), (("Address", {"street": "S", "zip": None}), 2), (("Suit", "HEARTS"), 3),
])
def test_a_union_sets_the_member_of_its_type(log_dir, value, member):
    schema = {"type": "record", "name": "U", "fields": [{"name": "u", "type": [
        "null", "string", "long", ADDRESS, {"type": "enum", "name": "Suit", "symbols": ["SPADES", "HEARTS"]}]}]}
    write_schemas(log_dir, ("u-value", 1, 5, schema))
    write_topic(log_dir / "u-0", [framed(5, avro(schema, {"u": value})), framed(5, avro(schema, {"u": None}))])
    rows = seglog.scan(log_dir / "u-0", decode={"value": "avro"}).to_arrow()["value"].to_pylist()
    plain = value[1] if isinstance(value, tuple) else value
    assert rows[0]["u"] == {f"member{n}": plain if n == member else None for n in range(4)}
    assert rows[1]["u"] is None


def test_a_time_that_python_has_no_datetime_for_is_right(log_dir):
    schema = {"type": "long", "logicalType": "timestamp-millis"}
    nanos = {"type": "long", "logicalType": "timestamp-nanos"}
    late = 300_000_000_000_000      # the year 11476
    for name, one in (("ms", schema), ("ns", nanos)):
        write_topic(log_dir / f"{name}-0", [avro("long", late)])
        typed = seglog.Typed("avro", schema=json.dumps(one), frame="none")
        column = seglog.scan(log_dir / f"{name}-0", decode={"value": typed}).to_arrow()["value"]
        assert column.type == pa.timestamp(name, "UTC")
        assert column.cast(pa.int64()).to_pylist() == [late]


# --- the writer's schema and ours --------------------------------------------------------------------


def test_values_of_all_versions_are_read_as_the_newest_has_them(orders):
    scan = seglog.scan(orders, decode=AVRO)
    table = scan.to_arrow()
    assert table["value"].to_pylist() == AS_V3
    assert table["key"].to_pylist() == ["a", "b", "c", "d"]
    assert scan.undecodable == {"value": 0}
    # As fastavro resolves them by itself.
    written = [(V1, {"amount": 1, "note": "old"}), (V2, {"amount": 2, "currency": "USD"})]
    theirs = [fastavro.schemaless_reader(io.BytesIO(avro(schema, value)), schema, V3) for schema, value in written]
    assert theirs == AS_V3[:2]


def test_a_schema_may_be_given_to_read_with(orders):
    narrow = {"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "double", "aliases": ["total"]}]}
    typed = seglog.Typed("avro", schema=json.dumps(narrow))
    table = seglog.scan(orders, decode={"value": typed}).to_arrow()
    assert table["value"].to_pylist() == [{"amount": 1.0}, {"amount": 2.0}, None, {"amount": 3.5}]


def test_a_union_of_all_versions_has_the_fields_of_each(orders, log_dir):
    typed = seglog.Typed("avro", reader="union")
    rows = seglog.scan(orders, decode={"value": typed}).to_arrow()["value"].to_pylist()
    assert [row and (row["total"], row["note"], row["tags"]) for row in rows] == [
        (1.0, "old", None), (2.0, None, None), None, (3.5, None, "x")]


def test_a_schema_that_ours_cannot_read_is_undecodable(log_dir):
    text = {"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "string"}]}
    write_schemas(log_dir, ("orders-value", 1, 1, text), ("orders-value", 2, 2, V1))
    good, other = framed(2, avro(V1, {"amount": 1, "note": ""})), framed(1, avro(text, {"amount": "x"}))
    write_topic(log_dir / "orders-0", [good, other])
    with pytest.raises(UndecodableRecordError) as caught:
        seglog.scan(log_dir / "orders-0", decode={"value": "avro"}).to_arrow()
    assert (caught.value.offset, "schema id 1" in str(caught.value)) == (1, True)


def test_a_time_in_another_unit_is_not_taken_for_one_of_ours(log_dir):
    """Both are a long, so Avro's rules let it pass; the number would be a thousand times too large."""
    def of(unit):
        kind = {"type": "long", "logicalType": f"timestamp-{unit}"}
        return {"type": "record", "name": "R", "fields": [{"name": "at", "type": kind}]}

    write_schemas(log_dir, ("t-value", 1, 1, of("micros")), ("t-value", 2, 2, of("millis")))
    write_topic(log_dir / "t-0", [framed(1, avro(of("micros"), {"at": 5}))])
    with pytest.raises(UndecodableRecordError, match="at was written as timestamp-micros, and is read as"):
        seglog.scan(log_dir / "t-0", decode={"value": "avro"}).to_arrow()


@pytest.mark.parametrize(("schema", "why"), [
    ({"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}, "contains itself"),
    ({"type": "array", "items": "null"}, "take no bytes"),
    ({"type": "array", "items": {"type": "record", "name": "Empty", "fields": []}}, "take no bytes"),
    ({"type": "record", "name": "R", "fields": [{"name": "x", "type": "Unknown"}]}, "unknown type 'Unknown'"),
    ({"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}] * 2}, "same name"),
    ({"type": "record"}, "name"), ([], "not an Avro schema"), (7, "not an Avro schema"), ({"type": "fixed", "name": "F",
     "size": -1}, "-1 bytes"), ({"type": "record", "name": "R", "fields": 5}, "not an Avro schema"),
])
def test_a_schema_without_columns_is_refused_with_its_reason(log_dir, schema, why):
    write_topic(log_dir / "x-0", [b""])
    typed = seglog.Typed("avro", schema=json.dumps(schema), frame="none")
    with pytest.raises(InvalidArgumentError, match=why):
        seglog.scan(log_dir / "x-0", decode={"value": typed}).to_arrow()


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"type":"array","items":' * 5000, "null", '"x"'])
def test_text_that_is_no_schema_is_refused(log_dir, text):
    write_topic(log_dir / "x-0", [b""])
    with pytest.raises(InvalidArgumentError):
        seglog.scan(log_dir / "x-0", decode={"value": seglog.Typed("avro", schema=text, frame="none")}).to_arrow()


# --- what does not decode ----------------------------------------------------------------------------


@pytest.fixture
def spoiled(orders):
    """Behind the good ones: no frame, an unknown id, a torn value, bytes behind a value."""
    good = avro(V3, {"total": 3.5, "currency": "JPY", "tags": "x"})
    bad = [b"plain", framed(99, good), framed(13, good[:-1]), framed(13, good + b"x"), b""]
    with seglog.open(orders, fsync="never") as log:
        for value in bad:
            log.append(value, timestamp=NOW)
        log.append(framed(13, good), timestamp=NOW)
    return orders, bad


def test_it_fails_after_the_rows_before_it_and_names_the_offset(spoiled):
    path, _ = spoiled
    found = []
    batches = seglog.scan(path, decode=AVRO, columns=["value"]).batches()
    with pytest.raises(UndecodableRecordError) as caught:
        found.extend(row for rows in batches for row in pa.record_batch(rows).column("value").to_pylist())
    assert found == AS_V3
    assert (caught.value.offset, caught.value.code) == (4, "undecodable_record")
    assert caught.value.file.endswith(".log")


@pytest.mark.parametrize("offset", [5, 6, 7, 8])
def test_each_fault_names_its_offset(spoiled, offset):
    path, _ = spoiled
    with pytest.raises((UndecodableRecordError, SchemaNotFoundError)) as caught:
        seglog.scan(path, decode=AVRO, from_offset=offset).to_arrow()
    assert caught.value.offset == offset
    assert offset == 8 or "schema id" in str(caught.value) or "99" in str(caught.value)


def test_it_is_null_and_counted_on_request(spoiled):
    path, bad = spoiled
    scan = seglog.scan(path, decode=AVRO, on_undecodable="null")
    rows = scan.to_arrow()["value"].to_pylist()
    assert rows == [*AS_V3, *[None] * len(bad), AS_V3[-1]]
    assert scan.undecodable == {"value": len(bad)}


def test_its_bytes_are_kept_on_request(spoiled):
    path, bad = spoiled
    scan = seglog.scan(path, decode=AVRO, on_undecodable="raw")
    rows = scan.to_arrow()["value"].to_pylist()
    nothing = {"total": None, "currency": None, "tags": None}
    good = [row and row | {"_undecodable": None} for row in AS_V3]
    assert rows == [*good, *(nothing | {"_undecodable": raw} for raw in bad), good[-1]]
    assert scan.undecodable == {"value": len(bad)}
    typed = seglog.Typed("avro", schema='"string"', frame="none")
    with pytest.raises(InvalidArgumentError, match="needs a schema of records"):
        seglog.scan(path, decode={"value": typed}, on_undecodable="raw").to_arrow()


@pytest.mark.parametrize(("schema", "raw", "why"), [
    ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, avro("bytes", b"\x7f\xff"), "4 digits"),
    ({"type": "string", "logicalType": "uuid"}, avro("string", "no uuid"), "not a UUID"),
    ("string", b"\x04\xff\xff", "not a value of its schema"),
    ("int", avro("long", 1 << 40), "int"),
    ("long", b"\xff" * 20, "."),
])
@pytest.mark.parametrize("many", [1, 40])
def test_a_value_that_its_column_cannot_hold_is_undecodable(log_dir, schema, raw, why, many):
    good = avro(schema if isinstance(schema, str) else schema["type"], {"bytes": b"\1", "string": str(uuid.UUID(int=3)),
                "int": 3, "long": 3}[schema if isinstance(schema, str) else schema["type"]])
    write_topic(log_dir / "x-0", [*[good] * many, raw, good])
    typed = seglog.Typed("avro", schema=json.dumps(schema), frame="none")
    with pytest.raises(UndecodableRecordError, match=why) as caught:
        seglog.scan(log_dir / "x-0", decode={"value": typed}).to_arrow()
    assert caught.value.offset == many
    scan = seglog.scan(log_dir / "x-0", decode={"value": typed}, on_undecodable="null")
    assert [row is None for row in scan.to_arrow()["value"].to_pylist()] == [*[False] * many, True, False]
    assert scan.undecodable == {"value": 1}


def test_a_hole_in_the_offsets_does_not_shift_the_one_that_is_named(log_dir):
    with seglog.open(log_dir / "x-0", fsync="never") as log:
        log.append(avro("long", 1))
        log.append_batch(seglog.build_batch([(None, b"bad")], base_offset=70), assign_offsets=False)
    typed = seglog.Typed("avro", schema='"long"', frame="none")
    with pytest.raises(UndecodableRecordError) as caught:
        seglog.scan(log_dir / "x-0", decode={"value": typed}, columns=["value"]).to_arrow()
    assert caught.value.offset == 70


def test_another_frame_is_a_function(log_dir):
    write_schemas(log_dir, ("x-value", 1, 3, V1))
    value = avro(V1, {"amount": 1, "note": "n"})
    write_topic(log_dir / "x-0", [b"MAGIC" + bytes([3]) + value])
    typed = seglog.Typed("avro", frame=lambda raw: (raw[5], 6))
    assert seglog.scan(log_dir / "x-0", decode={"value": typed}).to_arrow()["value"].to_pylist() == [
        {"amount": 1, "note": "n"}]


# --- through every door ------------------------------------------------------------------------------


def test_polars_selects_and_filters_fields(orders):
    frame = seglog.polars.scan_topic(orders, decode=AVRO)
    found = frame.filter(pl.col("value").struct.field("total") > 1.5).select(
        "offset", pl.col("value").struct.field("currency")).collect()
    assert found.rows() == [(1, "USD"), (3, "JPY")]
    assert frame.select("offset").collect().height == 4
    assert seglog.scan(orders, decode=AVRO).to_polars()["value"].to_list() == AS_V3
    assert frame.collect_schema()["value"] == pl.Struct(
        {"total": pl.Float64, "currency": pl.String, "tags": pl.String})


def test_polars_takes_every_type(log_dir):
    write_schemas(log_dir, ("all-value", 1, 5, EVERYTHING))
    write_topic(log_dir / "all-0", [framed(5, avro(EVERYTHING, VALUE | {"huge": decimal.Decimal(1)}))])
    narrow = EVERYTHING | {"fields": [field for field in EVERYTHING["fields"] if field["name"] != "huge"]}
    typed = seglog.Typed("avro", schema=json.dumps(narrow))
    frame = seglog.polars.scan_topic(log_dir / "all-0", decode={"value": typed}).collect()
    (row,) = frame["value"].to_list()
    assert (row["price"], row["day"], row["suit"], row["numbers"]) == (
        VALUE["price"], VALUE["day"], "HEARTS", [1, 2, 3])


def test_a_filter_on_a_typed_key_is_not_held_against_statistics_of_the_bytes(log_dir):
    write_schemas(log_dir, ("orders-key", 1, 1, "string"))
    with seglog.open(log_dir / "orders-0", fsync="never") as log:
        for n in range(2000):
            log.append(bytes(300), key=framed(1, avro("string", f"user {n:04}")))
        log.roll()
    command("index", "stats", log_dir / "orders-0")
    frame = seglog.polars.scan_topic(log_dir / "orders-0", decode={"key": "avro"})
    assert frame.filter(pl.col("key") == "user 0700").select("offset").collect().rows() == [(700,)]
    dataset = seglog.scan(log_dir / "orders-0", decode={"key": "avro"}).dataset()       # noqa: F841
    assert duckdb.sql("select \"offset\" from dataset where key = 'user 0700'").fetchall() == [(700,)]


def test_duckdb_queries_fields(orders):
    scan = seglog.scan(orders, decode=AVRO)     # noqa: F841
    dataset = seglog.scan(orders, decode=AVRO).dataset()    # noqa: F841
    for source in ("scan", "dataset"):
        rows = duckdb.sql(f'select "offset", value.currency from {source} where value.total > 1.5').fetchall()
        assert rows == [(1, "USD"), (3, "JPY")], source


def test_a_table_has_typed_columns(orders, tmp_path):
    written = seglog.write_table(orders, tmp_path / "lake", decode=AVRO)
    assert sum(part.rows for part in written) == 4
    (path,) = written[0].files
    assert pq.read_table(path, partitioning=None)["value"].to_pylist() == AS_V3
    assert seglog.write_table(orders, tmp_path / "lake", decode=AVRO) == []
    assert duckdb.sql(
        f"select value.currency from read_parquet('{tmp_path}/lake/**/*.parquet') where value.total > 3"
    ).fetchall() == [("JPY",)]


@pytest.mark.parametrize(("one", "other"), [(AVRO, None), (None, AVRO), (AVRO, {"value": "json"})])
def test_a_table_of_fields_takes_no_bytes_and_no_text(orders, tmp_path, one, other):
    seglog.write_table(orders, tmp_path / "lake", decode=one, columns=["value"])
    with pytest.raises(InvalidArgumentError, match=r"column value of orders as .*what a schema says") as refused:
        seglog.write_table(orders, tmp_path / "lake", decode=other, columns=["value"])
    assert "decode=" in refused.value.hint


def test_every_type_survives_parquet(log_dir, tmp_path):
    write_schemas(log_dir, ("all-value", 1, 5, EVERYTHING))
    write_topic(log_dir / "all-0", [framed(5, avro(EVERYTHING, value)) for value in (VALUE, OTHER)])
    scan = seglog.scan(log_dir / "all-0", decode={"value": "avro"})
    (part,) = seglog.write_table(scan, tmp_path / "lake")
    found = pq.read_table(part.files[0], partitioning=None)["value"]
    assert found.to_pylist() == scan.to_arrow()["value"].to_pylist()


def test_pandas_and_numpy_and_streams(orders):
    scan = seglog.scan(orders, decode=AVRO)
    assert scan.to_pandas()["value"].tolist() == AS_V3
    assert scan.to_numpy()["value"].tolist() == AS_V3
    assert pa.table(scan)["value"].to_pylist() == AS_V3
    assert scan.to_reader().read_all()["value"].to_pylist() == AS_V3
    assert pa.schema(scan).field("value").type == scan.to_arrow()["value"].type
    assert scan.select(["offset"]).to_arrow().num_rows == 4


@pytest.mark.parametrize(("schema", "value", "found"), [
    ({"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}, 2**53 + 1, {"n": 2**53 + 1}),
    ("long", 2**53 + 1, 2**53 + 1),
])
def test_integers_beside_nulls_are_exact_in_pandas_and_numpy(log_dir, schema, value, found):
    """They were floats, and rounded: a tombstone has nulls in all fields."""
    raw = avro("long", value)
    write_topic(log_dir / "all-0", [raw, None])
    typed = seglog.Typed("avro", schema=json.dumps(schema), frame="none")
    scan = seglog.scan(log_dir / "all-0", decode={"value": typed})
    for column in (scan.to_pandas()["value"].tolist(), scan.to_numpy()["value"].tolist()):
        assert column == [found, None]
        assert "." not in str(column)


def test_a_schema_that_is_missing_names_the_record_and_where_schemas_are(log_dir, tmp_path):
    """It named the folder of schemas, with the offset of the record in the log."""
    write_topic(log_dir / "all-0", [framed(7, b"\x02")])
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/all-value.6.avsc").write_text('"int"')
    scan = seglog.scan(log_dir / "all-0", decode={"value": "avro"}, schemas=tmp_path / "folder")
    with pytest.raises(SchemaNotFoundError) as raised:
        scan.to_arrow()
    error = raised.value
    assert str(error).splitlines()[0].startswith(f"no file has the schema id 7: {tmp_path / 'folder'} (")
    assert (error.file, error.offset) == (str(log_dir / "all-0/00000000000000000000.log"), 0)
    assert "all-value" in error.hint or "<subject>.7.avsc" in error.hint


def test_parts_are_pickled_with_their_decoders(orders):
    scan = pickle.loads(pickle.dumps(seglog.scan(orders, decode=AVRO)))
    (part,) = pickle.loads(pickle.dumps(scan.parts()))
    assert [row for rows in part.batches() for row in pa.record_batch(rows).column("value").to_pylist()] == AS_V3


@pytest.mark.parametrize("threads", [1, 3])
def test_many_records_in_order_by_several_threads(log_dir, threads):
    write_schemas(log_dir, ("many-value", 1, 5, V1))
    values = [framed(5, avro(V1, {"amount": n, "note": "n" * 400})) for n in range(3000)]
    with seglog.open(log_dir / "many-0", fsync="never", config={"segment.bytes": 300_000}) as log:
        for begin in range(0, len(values), 50):
            log.append_many([(b"k", value) for value in values[begin : begin + 50]])
    table = seglog.scan(log_dir / "many-0", decode={"value": "avro"}, threads=threads).to_arrow()
    assert [row["amount"] for row in table["value"].to_pylist()] == [*range(3000)]


def test_threads_share_a_scan(log_dir):
    write_schemas(log_dir, ("many-value", 1, 5, V1))
    write_topic(log_dir / "many-0", [framed(5, avro(V1, {"amount": n, "note": ""})) for n in range(500)] + [b"bad"])
    scan = seglog.scan(log_dir / "many-0", decode={"value": "avro"}, on_undecodable="null")
    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(lambda _: scan.to_arrow(), range(8)))
    assert all(table == tables[0] for table in tables)
    assert [row and row["amount"] for row in tables[0]["value"].to_pylist()] == [*range(500), None]
    assert scan.undecodable == {"value": 8}


def test_keys_and_values_have_schemas_of_their_own(log_dir):
    write_schemas(log_dir, ("orders-key", 1, 1, "long"), ("orders-value", 1, 2, V1))
    write_topic(log_dir / "orders-0", [framed(2, avro(V1, {"amount": 1, "note": ""}))], [framed(1, avro("long", 42))])
    table = seglog.scan(log_dir / "orders-0", decode="avro").to_arrow()
    assert (table["key"].to_pylist(), table["value"].to_pylist()) == ([42], [{"amount": 1, "note": ""}])


# --- wrong questions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "why"), [
    ({"decode": {"value": "xml"}}, "decode must be one of"), ({"decode": {"body": "avro"}}, "decode must be one of"),
    ({"decode": 7}, "decode must be"), ({"schemas": "http://localhost:1"}, "needs decode"),
    ({"decode": "avro", "schemas": "/nowhere/at/all"}, "no such directory"),
    ({"decode": "avro", "schemas": 7}, "must be a URL or a path"),
    ({"decode": "avro", "on_undecodable": "skip"}, "on_undecodable must be"),
    ({"decode": "avro", "schemas": "http://:80"}, "not the URL"),
])
def test_a_wrong_argument_is_refused_at_once(log_dir, given, why):
    with pytest.raises(InvalidArgumentError, match=why):
        seglog.scan(log_dir / "orders-0", **given)


@pytest.mark.parametrize(("given", "why"), [
    ({"kind": "thrift"}, "unknown encoding"), ({"kind": "avro", "frame": "glue"}, "frame must be"),
    ({"kind": "avro", "reader": "oldest"}, "reader must be"), ({"kind": "avro", "schema": 7}, "schema must be text"),
    ({"kind": "avro", "schema": '"int"', "reader": "union"}, "either a schema"),
])
def test_a_wrong_description_is_refused(given, why):
    with pytest.raises(InvalidArgumentError, match=why):
        seglog.Typed(**given)


def test_without_schemas_it_says_what_to_give(log_dir):
    write_topic(log_dir / "orders-0", [b"x"])
    with pytest.raises(InvalidArgumentError, match="no topic _schemas beside"):
        seglog.scan(log_dir / "orders-0", decode={"value": "avro"}).to_arrow()
    write_schemas(log_dir, ("other-value", 1, 1, V1))
    with pytest.raises(InvalidArgumentError, match="no schema of the subject orders-value"):
        seglog.scan(log_dir / "orders-0", decode={"value": "avro"}).to_arrow()


def test_topics_with_different_schemas_are_not_one_table(log_dir):
    write_schemas(log_dir, ("a-value", 1, 1, V1), ("b-value", 1, 2, V2), ("c-value", 1, 3, V1))
    for topic in "abc":
        write_topic(log_dir / f"{topic}-0", [])
    paths = [log_dir / f"{topic}-0" for topic in "abc"]
    with pytest.raises(InvalidArgumentError, match="a-value and b-value have different schemas"):
        seglog.scan(paths, decode={"value": "avro"}).to_arrow()
    assert seglog.scan([paths[0], paths[2]], decode={"value": "avro"}).to_arrow().num_rows == 0


def test_deleted_versions_are_found_by_their_id_alone(log_dir):
    topic = write_schemas(
        log_dir, ("orders-value", 1, 1, V1), ("orders-value", 2, 2, V3, {"deleted": True}), ("gone-value", 1, 9, V2),
    )
    with seglog.open(topic, fsync="never") as log:
        log.append(None, key=schema_key("gone-value", 1))
        log.append(b'{"subject":"late-value","version":1}',
                   key=b'{"keytype":"DELETE_SUBJECT","subject":"late-value","magic":0}')
    write_topic(log_dir / "orders-0", [framed(2, avro(V3, {"total": 4.0, "currency": "X", "tags": None}))])
    typed = seglog.Typed("avro", schema=json.dumps(V1 | {"fields": [{"name": "total", "type": "double"}]}))
    table = seglog.scan(log_dir / "orders-0", decode={"value": typed}).to_arrow()
    assert table["value"].to_pylist() == [{"total": 4.0}]
    latest = seglog.scan(log_dir / "orders-0", decode={"value": "avro"})
    assert [field.name for field in pa.schema(latest).field("value").type] == ["amount", "note"]


def test_soft_deletion_of_a_subject_hides_its_versions(log_dir):
    topic = write_schemas(log_dir, ("orders-value", 1, 1, V1), ("orders-value", 2, 2, V2))
    with seglog.open(topic, fsync="never") as log:
        log.append(b'{"subject":"orders-value","version":2}',
                   key=b'{"keytype":"DELETE_SUBJECT","subject":"orders-value","magic":0}')
    write_topic(log_dir / "orders-0", [framed(2, avro(V2, {"amount": 2, "currency": "X"}))])
    with pytest.raises(InvalidArgumentError, match="no schema of the subject"):
        seglog.scan(log_dir / "orders-0", decode={"value": "avro"}).to_arrow()
    typed = seglog.Typed("avro", schema=json.dumps(V2))
    assert seglog.scan(log_dir / "orders-0", decode={"value": typed}).to_arrow().num_rows == 1
