"""Values in Protocol Buffers as typed columns: schemas against protoc, values against protobuf's own classes."""
import datetime as dt
import json
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    json_format,
    message_factory,
    struct_pb2,
    text_format,
    timestamp_pb2,
    wrappers_pb2,
)

import seglog
import seglog.polars
from seglog.errors import InvalidArgumentError, UndecodableRecordError
from seglog.frames.typed.proto_text import parse_proto
from seglog.frames.typed.protobuf import ProtobufSchema
from support.schemas import Registry, framed, serving, write_schemas, write_topic

GOLDEN = Path(__file__).parents[1] / "golden/protobuf"
EVERYTHING, MONEY, OLD = ((GOLDEN / f"{name}.proto").read_text() for name in ("everything", "money", "old"))
NANOS = 1_700_000_000_123_456_789


@pytest.fixture(scope="module")
def pool():
    """The descriptors as protoc made them."""
    made = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, duration_pb2, wrappers_pb2, struct_pb2, any_pb2, descriptor_pb2):
        made.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    for file in descriptor_pb2.FileDescriptorSet.FromString((GOLDEN / "descriptors.pb").read_bytes()).file:
        made.AddSerializedFile(file.SerializeToString())
    return made


@pytest.fixture(scope="module")
def everything(pool):
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.v1.Everything"))


def pb(raw, indexes=b"\0"):
    """The frame of Confluent's Protobuf serializers: the first message of schema 5."""
    return framed(5, indexes + raw)


def full(everything):
    message = everything(
        f_double=1.5, f_float=0.5, f_int32=-1, f_int64=-(1 << 60), f_uint32=(1 << 32) - 1, f_uint64=(1 << 64) - 1,
        f_sint32=-7, f_sint64=-8, f_fixed32=9, f_fixed64=10, f_sfixed32=-11, f_sfixed64=-12, f_bool=True,
        f_string="Grüße", f_bytes=b"\x00\xff", status=-2, numbers=[1, 2, 3], words=["a", ""],
        counts={"a": 1, "b": 2}, maybe=0, card="1234", note="",
    )
    message.lines_by_number[7].sku = "seven"
    message.lines.add(sku="x", kind=1).price.cents = 5
    message.line.deeper.yes = True
    message.at.FromNanoseconds(NANOS)
    message.took.FromNanoseconds(-5)
    message.wrapped.value = 0
    message.document.update({"a": [1, None, {"b": "c"}]})
    message.any.type_url, message.any.value = "type/x", b"y"
    message.times.add(seconds=-1)
    return message


def scanned(path, schemas=None, **typed):
    how = seglog.Typed("protobuf", **typed)
    return seglog.scan(path, decode={"value": how}, schemas=schemas, columns=["value"])


def read(path, schemas=None, **typed):
    return scanned(path, schemas, **typed).to_arrow()["value"].to_pylist()


@pytest.fixture
def topic(tmp_path, everything):
    write_schemas(
        tmp_path, ("money", 1, 4, MONEY, {"kind": "PROTOBUF"}),
        ("orders-value", 1, 5, EVERYTHING, {
            "kind": "PROTOBUF", "references": [{"name": "shop/money.proto", "subject": "money", "version": 1}]}),
    )
    return write_topic(tmp_path / "orders-0", [
        pb(full(everything).SerializeToString()), pb(everything().SerializeToString()), None])


# --- the text of a schema -----------------------------------------------------------------------------


def bare(file):
    """A description without what the parser passes over."""
    def bare_message(message):
        for name in ("extension", "extension_range", "reserved_range", "reserved_name"):
            message.ClearField(name)
        if not message.options.map_entry:
            message.ClearField("options")
        for field in message.field:
            field.ClearField("json_name")
            field.ClearField("options")
            if field.type_name:     # protobuf resolves names and their kinds
                field.type_name = field.type_name.rpartition(".")[2]
                field.ClearField("type")
            elif field.type in (field.TYPE_DOUBLE, field.TYPE_FLOAT) and field.default_value:
                field.default_value = str(float(field.default_value))
        for one in message.oneof_decl:
            one.ClearField("options")
        for enum in message.enum_type:
            bare_enum(enum)
        for nested in message.nested_type:
            bare_message(nested)
        nested = sorted(message.nested_type, key=lambda one: one.name)
        del message.nested_type[:]
        message.nested_type.extend(nested)

    def bare_enum(enum):
        allows = enum.options.allow_alias
        for name in ("options", "reserved_range", "reserved_name"):
            enum.ClearField(name)
        if allows:
            enum.options.allow_alias = True
        for value in enum.value:
            value.ClearField("options")

    for message in file.message_type:
        bare_message(message)
    for enum in file.enum_type:
        bare_enum(enum)
    for name in ("service", "options", "extension", "source_code_info"):
        file.ClearField(name)
    kept = [path for path in file.dependency if path != "custom.proto"]
    del file.dependency[:]
    file.dependency.extend(kept)
    return text_format.MessageToString(file)


@pytest.mark.parametrize(("name", "text"), [
    ("everything.proto", EVERYTHING), ("shop/money.proto", MONEY), ("old.proto", OLD)])
def test_the_parser_describes_a_file_as_protoc_does(name, text):
    files = descriptor_pb2.FileDescriptorSet.FromString((GOLDEN / "descriptors.pb").read_bytes()).file
    (theirs,) = [file for file in files if file.name == name]
    assert bare(parse_proto(text, name)) == bare(theirs)


@pytest.mark.parametrize("text", [
    "", "syntax", 'syntax = "proto4";', 'edition = "2023";', "message A { int32 x = 1; int32 y = 1; }",
    "message A { int32 x = 0; }", "message A { int32 x = 99999999999; }", "message A {", "message A }", "nonsense;",
    "message A { Missing x = 1; }", 'import "other.proto"; message A {}', "message A { group G = 1 {} }",
    "message " * 50_000, "message A {" * 50_000, "{" * 100_000, '"', "/*", "\x00", "message A { int32 \u00e9 = 1; }",
    'import "schema.proto"; message A {}', "enum E { A = 1; }", "message A { map<A, int32> m = 1; }",
    "message A { int32 x = 1 [default = }", "option x = {;", "message A { oneof x { } }",
    "message A { int32 x = 1e3; }",
])
def test_text_that_is_no_schema_is_refused(text):
    with pytest.raises(InvalidArgumentError, match="not a Protobuf schema"):
        ProtobufSchema(text)


def test_a_message_that_contains_itself_is_refused_if_it_is_read(tmp_path, topic):
    with pytest.raises(InvalidArgumentError, match=r"shop\.v1\.Node contains itself"):
        read(topic, message="shop.v1.Node")
    with pytest.raises(InvalidArgumentError, match=r"it has no message shop\.v1\.Gone"):
        read(topic, message="shop.v1.Gone")


# --- values -------------------------------------------------------------------------------------------


def test_every_kind_of_field_has_its_type_and_value(topic, everything):
    column = scanned(topic).to_arrow()["value"]
    column.validate(full=True)
    types = {field.name: field.type for field in column.type}
    plain = {"double": "float64", "float": "float32", "fixed32": "uint32", "fixed64": "uint64", "sint32": "int32",
             "sint64": "int64", "sfixed32": "int32", "sfixed64": "int64", "bytes": "binary"}
    for kind in ("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64",
                 "sfixed32", "sfixed64", "bool", "string", "bytes"):
        assert types[f"f_{kind}"] == pa.type_for_alias(plain.get(kind, kind)), kind
    assert types["status"] == pa.dictionary(pa.int32(), pa.string())
    assert (types["at"], types["took"]) == (pa.timestamp("ns", "UTC"), pa.duration("ns"))
    assert types["counts"] == pa.map_(pa.string(), pa.int64())
    first, second, third = column.combine_chunks()
    assert first["at"].value == NANOS
    assert first["took"].value == -5
    found, empty = first.as_py(), second.as_py()
    message = full(everything)
    for field in everything.DESCRIPTOR.fields:
        if field.cpp_type not in (field.CPPTYPE_MESSAGE, field.CPPTYPE_ENUM) and not field.is_repeated:
            assert found[field.name] == (getattr(message, field.name) if field.name != "cash" else None), field.name
    assert found["status"] == "CLOSED"
    assert found["numbers"] == [1, 2, 3]
    assert found["words"] == ["a", ""]
    assert dict(found["counts"]) == {"a": 1, "b": 2}
    line = {"sku": "", "price": None, "kind": "GOOD", "deeper": None}
    assert found["lines_by_number"] == [(7, line | {"sku": "seven"})]
    assert found["lines"] == [line | {"sku": "x", "kind": "SERVICE", "price": {"cents": 5, "currency": ""}}]
    assert found["line"] == line | {"deeper": {"yes": True}}
    assert (found["maybe"], found["note"], found["card"], found["cash"]) == (0, "", "1234", None)
    assert (found["wrapped"], found["wrapped_text"]) == (0, None)
    assert json.loads(found["document"]) == json_format.MessageToDict(message.document)
    assert found["any"] == {"type_url": "type/x", "value": b"y"}
    assert found["times"] == [dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=dt.UTC)]
    assert (empty["f_int32"], empty["f_string"], empty["status"], empty["numbers"], empty["counts"]) == (
        0, "", "UNKNOWN", [], [])
    assert (empty["maybe"], empty["note"], empty["card"], empty["line"], empty["at"], empty["wrapped"]) == (None,) * 6
    assert third.as_py() is None


def test_proto2_has_its_defaults_and_knows_what_is_not_set(tmp_path, pool):
    old = message_factory.GetMessageClass(pool.FindMessageTypeByName("old.Old"))
    messages = [old(id=1), old(id=2, kind=1, packed=[1])]
    path = write_topic(tmp_path / "old-0", [message.SerializeToString() for message in messages])
    rows = read(path, schema=OLD, frame="none")
    nothing = dict.fromkeys(("name", "rate", "kind", "raw", "yes"))
    assert rows == [nothing | {"id": 1, "packed": []}, nothing | {"id": 2, "kind": "A", "packed": [1]}]


def test_a_number_that_has_no_name_yet_is_its_digits(topic, everything):
    with seglog.open(topic, fsync="never") as log:
        log.append(pb(everything(status=77).SerializeToString()))
    rows = read(topic)
    assert [row and row["status"] for row in rows] == ["CLOSED", "UNKNOWN", None, "77"]
    frame = seglog.polars.scan_topic(topic, decode={"value": seglog.Typed("protobuf")}).collect()
    assert frame["value"].struct.field("status").to_list() == ["CLOSED", "UNKNOWN", None, "77"]


def test_the_frame_says_which_message_it_is(tmp_path, topic):
    other = ProtobufSchema('syntax = "proto3"; message Other { string name = 1; }')
    raw = other._class(name="n").SerializeToString()
    path = write_topic(tmp_path / "others-0", [pb(raw, b"\x02\x02")])         # [1]: Other
    assert read(path, subject="orders-value", message="shop.v1.Other") == [{"name": "n"}]
    with pytest.raises(UndecodableRecordError, match=r"it is a shop\.v1\.Other, not a shop\.v1\.Everything"):
        read(path, subject="orders-value")
    deeper = write_topic(tmp_path / "deeper-0", [pb(b"\x08\x01", b"\x06\x00\x00\x00")])   # [0, 0, 0]
    assert read(deeper, subject="orders-value", message="shop.v1.Everything.Line.Deeper") == [{"yes": True}]


@pytest.mark.parametrize("indexes", [b"", b"\x02", b"\x02\x63", b"\x01", b"\xff" * 9, b"\x02\x01", b"\x06\x00\x00\x63",
                                     b"\xfe\xff\xff\xff\x0f"])
def test_a_frame_that_names_no_message_is_undecodable(tmp_path, topic, indexes):
    path = write_topic(tmp_path / "bad-0", [framed(5, indexes)])
    with pytest.raises(UndecodableRecordError):
        read(path, subject="orders-value")


@pytest.mark.parametrize("raw", [b"\xff", b"\x0a\x05ab", b"\x72\x01\xff", bytes([0xD2, 0x01, 4, 8]) + b"\xff\x01\x00"])
def test_bytes_that_are_no_message_are_undecodable(topic, raw):
    with seglog.open(topic, fsync="never") as log:
        log.append(pb(raw))
    with pytest.raises(UndecodableRecordError) as caught:
        read(topic)
    assert caught.value.offset == 3
    scan = seglog.scan(topic, decode={"value": "protobuf"}, on_undecodable="raw")
    assert scan.to_arrow()["value"].to_pylist()[-1]["_undecodable"] == pb(raw)


def test_a_time_without_a_place_in_nanoseconds_is_undecodable(topic, everything):
    late = everything()
    late.at.seconds = 253_402_300_799       # the end of the year 9999
    with seglog.open(topic, fsync="never") as log:
        log.append(pb(late.SerializeToString()))
    with pytest.raises(UndecodableRecordError, match="no place in nanoseconds"):
        read(topic)


def test_later_versions_are_read_by_the_numbers_of_the_fields(tmp_path):
    v1 = 'syntax = "proto3"; message A { int32 x = 1; string gone = 2; }'
    v2 = 'syntax = "proto3"; message A { int64 renamed = 1; repeated string new = 3; }'
    write_schemas(tmp_path, ("a-value", 1, 1, v1, {"kind": "PROTOBUF"}), ("a-value", 2, 2, v2, {"kind": "PROTOBUF"}))
    one, two = (ProtobufSchema(text)._class for text in (v1, v2))
    path = write_topic(tmp_path / "a-0", [
        framed(1, b"\0" + one(x=-5, gone="g").SerializeToString()),
        framed(2, b"\0" + two(renamed=1 << 40, new=["n"]).SerializeToString())])
    assert read(path) == [{"renamed": -5, "new": []}, {"renamed": 1 << 40, "new": ["n"]}]


def test_schemas_come_from_a_registry_and_a_folder_too(tmp_path, topic, everything):
    expected = read(topic)
    elsewhere = write_topic(tmp_path / "there" / "orders-0", [
        pb(full(everything).SerializeToString()), pb(everything().SerializeToString()), None])
    registry = Registry({
        "money": [(4, MONEY, "PROTOBUF", [])],
        "orders-value": [(5, EVERYTHING, "PROTOBUF", [{"name": "shop/money.proto", "subject": "money", "version": 1}])],
    })
    with serving(registry) as url:
        assert read(elsewhere, url) == expected
    folder = tmp_path / "schemas"
    folder.mkdir()
    own = EVERYTHING.replace('import "shop/money.proto";', "")
    own = own.replace(".shop.Money", "Money").replace("shop.Money", "Money")
    (folder / "orders-value.5.proto").write_text(f"{own}\nmessage Money {{ int64 cents = 1; string currency = 2; }}")
    assert read(elsewhere, folder) == expected


def test_parts_and_schemas_are_pickled(topic):
    (part,) = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(scanned(topic))).parts()))
    assert [row for rows in part.batches() for row in pa.record_batch(rows).column("value").to_pylist()] == read(topic)


def test_a_table_has_the_columns(topic, tmp_path):
    (part,) = seglog.write_table(topic, tmp_path / "lake", decode={"value": "protobuf"})
    found = pq.read_table(part.files[0], partitioning=None)["value"].to_pylist()
    assert [row and row["f_uint64"] for row in found] == [(1 << 64) - 1, 0, None]


@pytest.mark.parametrize(("given", "why"), [
    ({"reader": "union"}, 'is for "avro"'), ({"message": 5}, "message must be text"),
])
def test_what_a_description_cannot_say(given, why):
    with pytest.raises(InvalidArgumentError, match=why):
        seglog.Typed("protobuf", **given)
    with pytest.raises(InvalidArgumentError, match='message is for "protobuf"'):
        seglog.Typed("avro", message="a")
