"""Topics that Confluent's serializers wrote (tests/golden/confluent), and what fastavro, protobuf and json read."""
import base64
import datetime as dt
import decimal
import io
import json
import uuid
from pathlib import Path

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from support.schemas import write_schemas, write_topic

GOLDEN = Path(__file__).parents[2] / "golden"
TOPICS = {one["topic"]: one for one in json.loads((GOLDEN / "confluent/records.json").read_text())}
_MONEY = {"subject": "shop/money.proto", "version": 1, "name": "shop/money.proto"}


def write_all(log_dir, *, partitions=2):
    """The three topics and `_schemas`. Returns {topic: rows}, as the libraries decode them, in the order of the offsets
    of partition 0, then of 1."""
    records, expected = [], {}
    for topic, one in TOPICS.items():
        kind = {"avro": None, "json": "JSON", "protobuf": "PROTOBUF"}[topic]
        for number, (schema_id, text) in enumerate(zip(one["ids"], one["versions"], strict=True), 1):
            # Each topic has a double of a registry of its own, whose ids begin with 1.
            schema = text if kind == "PROTOBUF" else json.loads(text)
            more = {"kind": kind} | ({"references": [_MONEY]} if kind == "PROTOBUF" else {})
            records.append((f":.{topic}:{topic}-value", number, schema_id, schema, more))
        values = [base64.b64decode(value) for value in one["values"]]
        parts = [values[partition::partitions] for partition in range(partitions)]
        for partition, part in enumerate(parts):
            write_topic(log_dir / f"{topic}-{partition}", part)
        expected[topic] = [_DECODED[topic](one, value) for part in parts for value in part]
    money = (GOLDEN / "protobuf/money.proto").read_text()
    records.append(("shop/money.proto", 1, 7, money, {"kind": "PROTOBUF"}))
    write_schemas(log_dir, *records)
    return expected


def _avro(topic, value):
    writer = topic["versions"][topic["ids"].index(int.from_bytes(value[1:5], "big"))]
    return fastavro.schemaless_reader(
        io.BytesIO(value[5:]), fastavro.parse_schema(json.loads(writer)),
        fastavro.parse_schema(json.loads(topic["versions"][-1])),
    )


def _json(_, value):
    return json.loads(value[5:])


def _protobuf(_, value):
    message = _everything().FromString(value[6:])       # one byte: the first message of the schema
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


_DECODED = {"avro": _avro, "json": _json, "protobuf": _protobuf}


def _everything():
    if not _CLASSES:
        pool = descriptor_pool.DescriptorPool()
        from google.protobuf import any_pb2, duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2

        for module in (timestamp_pb2, duration_pb2, wrappers_pb2, struct_pb2, any_pb2, descriptor_pb2):
            pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        for file in descriptor_pb2.FileDescriptorSet.FromString(
            (GOLDEN / "protobuf/descriptors.pb").read_bytes()
        ).file:
            pool.AddSerializedFile(file.SerializeToString())
        _CLASSES.append(message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.v1.Everything")))
    return _CLASSES[0]


_CLASSES = []
_FLAT = ("f_double", "f_int32", "f_int64", "f_uint32", "f_uint64", "f_bool", "f_string", "f_bytes", "numbers")


def same_form(topic, row):
    """A row as any of the doors, or a library, gives it, in one form: times of day and UUIDs as numbers and bytes, as
    some tables store them, and maps as dicts."""
    if topic == "protobuf":
        kinds = {"f_int64": int, "f_uint64": int, "f_bytes": lambda raw: (
            base64.b64decode(raw) if isinstance(raw, str) else bytes(raw))}
        return {name: kinds.get(name, lambda same: same)(row[name]) for name in _FLAT}
    return {name: _form(name, one) for name, one in row.items()}


def _form(name, one):
    match one:
        case dict() if one and all(key.startswith("member") for key in one):
            return next((_form(name, part) for part in one.values() if part is not None), None)
        case dict():
            return {key: _form(key, part) for key, part in one.items()}
        case list() if name in ("counts", "sizes"):     # maps, by pairs or by objects with two fields
            pairs = (tuple(pair.values()) if isinstance(pair, dict) else pair for pair in one)
            return {key: _form(key, part) for key, part in pairs}
        case list() | tuple():
            return [_form("", part) for part in one]
        case uuid.UUID():
            return one.bytes
        case str() if name == "at":
            return dt.datetime.fromisoformat(one.replace("Z", "+00:00"))
        case str() if name == "day":
            return dt.date.fromisoformat(one)
        case dt.datetime() if one.tzinfo is not None:
            return one.astimezone(dt.UTC)
        case dt.time():
            micros = ((one.hour * 60 + one.minute) * 60 + one.second) * 1_000_000 + one.microsecond
            return micros // 1000 if name == "at_ms" else micros
        case bytearray() | memoryview():
            return bytes(one)
        case decimal.Decimal():
            return one.normalize()
    return one


