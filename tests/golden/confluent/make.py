"""Makes records.json: what the serializers of confluent-kafka write, and the schemas that they register.

    pip install 'confluent-kafka[avro,json,protobuf,schemaregistry]==2.16.1'
    python tests/golden/confluent/make.py > tests/golden/confluent/records.json

In tests/golden/protobuf, descriptors.pb is protoc's. The registry is the client's own double, which counts ids from 1.
"""
import base64
import datetime as dt
import decimal
import json
import sys
import uuid
from pathlib import Path

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

UTC = dt.UTC
PROTOBUF = Path(__file__).parents[1] / "protobuf"


def record(*fields):
    return {"type": "record", "name": "Everything", "namespace": "shop", "fields": list(fields)}


def field(name, kind, **more):
    return {"name": name, "type": kind, **more}


ADDRESS = {"type": "record", "name": "Address", "fields": [
    field("street", "string"), field("zip", ["null", "string"], default=None)]}
FIELDS = [
    field("yes", "boolean"), field("large", "long"), field("double", "double"), field("raw", "bytes"),
    field("text", "string"), field("maybe", ["null", "long"]),
    field("price", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}),
    field("fixed_price", {"type": "fixed", "name": "Price", "size": 8, "logicalType": "decimal", "precision": 10,
                          "scale": 2}),
    field("hash", {"type": "fixed", "name": "Hash", "size": 4}), field("day", {"type": "int", "logicalType": "date"}),
    field("at_ms", {"type": "int", "logicalType": "time-millis"}),
    field("at_us", {"type": "long", "logicalType": "time-micros"}),
    field("when_ms", {"type": "long", "logicalType": "timestamp-millis"}),
    field("when_us", {"type": "long", "logicalType": "timestamp-micros"}),
    field("local_us", {"type": "long", "logicalType": "local-timestamp-micros"}),
    field("id", {"type": "string", "logicalType": "uuid"}),
    field("suit", {"type": "enum", "name": "Suit", "symbols": ["SPADES", "HEARTS"]}),
    field("numbers", {"type": "array", "items": "long"}), field("counts", {"type": "map", "values": "int"}),
    field("home", ADDRESS), field("visited", {"type": "array", "items": ["null", "Address"]}),
    field("one_of", ["null", "string", "long", "Address"]),
]
# Three versions: a wider number and a field with a default; then an alias, and a field less.
V1 = record(field("small", "int"), field("gone", "string"), *FIELDS)
V2 = record(field("small", "long"), field("gone", "string"), field("single", "float", default=0.5), *FIELDS)
V3 = record(field("tiny", "double", aliases=["small"]), field("single", "float", default=0.5), *FIELDS)


def value(n):
    shared = {
        "yes": n % 2 == 0, "large": (1 << 62) - n, "double": n / 7, "raw": bytes(range(n % 256)), "text": f"Grüße {n}",
        "maybe": None if n % 3 else n, "price": decimal.Decimal(n - 50).scaleb(-3),
        "fixed_price": decimal.Decimal(1999 - 100 * n).scaleb(-2), "hash": n.to_bytes(4, "big"),
        "day": dt.date(2024, 2, 29) - dt.timedelta(400 * n), "at_ms": dt.time(n % 24, 2, 3, 4000),
        "at_us": dt.time(23, 59, n % 60, 999_999), "when_ms": dt.datetime(2024, 2, 29, 12, n % 60, 0, 1000, UTC),
        "when_us": dt.datetime(1969, 12, 31, 23, n % 60, 0, 7, UTC),
        "local_us": dt.datetime(2024, 1, 1, 2, 3, n % 60, 5),
        "id": uuid.UUID(int=n), "suit": ("SPADES", "HEARTS")[n % 2], "numbers": list(range(n % 4)),
        "counts": {f"k{m}": m for m in range(n % 3)}, "home": {"street": "A", "zip": None if n % 2 else "1"},
        "visited": [None, {"street": "C", "zip": None}][: n % 3],
        "one_of": (None, "text", n, {"street": "D", "zip": "2"})[n % 4],
    }
    return shared | {"small": n, "tiny": n / 2, "gone": "x", "single": n / 4}


SALE = {
    "$schema": "http://json-schema.org/draft-07/schema#", "title": "Sale", "type": "object", "properties": {
        "item": {"type": "string"}, "price": {"type": "number"}, "count": {"type": "integer"},
        "paid": {"type": ["null", "boolean"]}, "at": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"}, "state": {"type": "string", "enum": ["OPEN", "CLOSED"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "sizes": {"type": "object", "additionalProperties": {"type": "integer"}},
        "home": {"type": "object", "properties": {"street": {"type": "string"}}},
    },
}


def main():
    made = []
    for name, serializers, values in (
        ("avro", [partial_of(AvroSerializer, json.dumps(version)) for version in (V1, V2, V3)],
         [(n * 3 // 100, value(n)) for n in range(100)]),
        ("json", [partial_of(JSONSerializer, json.dumps(SALE))], [(0, {
            "item": f"item {n}", "price": n / 4, "count": n, "paid": (None, True, False)[n % 3],
            "at": f"2024-02-29T12:00:{n:02d}Z", "day": "2024-02-29", "state": ("OPEN", "CLOSED")[n % 2],
            "tags": ["a"] * (n % 3), "sizes": {"s": n}, "home": {"street": "A"}}) for n in range(50)]),
        ("protobuf", [lambda client: ProtobufSerializer(everything(), client, {"use.deprecated.format": False})],
         [(0, everything()(
             f_double=n / 7, f_int32=-n, f_int64=-(1 << 60) + n, f_uint32=n, f_uint64=(1 << 64) - 1 - n,
             f_bool=n % 2 == 0, f_string=f"Grüße {n}", f_bytes=bytes([n]), numbers=range(n % 4))) for n in range(50)]),
    ):
        client = SchemaRegistryClient.new_client({"url": "mock://"})
        context = SerializationContext(name, MessageField.VALUE)
        ready = [serializer(client) for serializer in serializers]
        raw = [ready[version](one, context) for version, one in values]
        made.append({
            "topic": name, "values": [base64.b64encode(one).decode() for one in raw],
            "versions": [client.get_version(f"{name}-value", number + 1).schema.schema_str
                         for number in range(len(serializers))],
            "ids": sorted({int.from_bytes(one[1:5], "big") for one in raw}),
        })
    # The client registers a descriptor; a registry shows its text.
    made[-1]["versions"] = [(PROTOBUF / "everything.proto").read_text()]
    json.dump(made, sys.stdout, indent=0)
    print()


def partial_of(kind, schema):
    if kind is JSONSerializer:
        return lambda client: JSONSerializer(schema, client)
    return lambda client: kind(client, schema)


def everything():
    pool = descriptor_pool.Default()
    assert timestamp_pb2
    from google.protobuf import any_pb2, duration_pb2, struct_pb2, wrappers_pb2

    assert all((any_pb2, duration_pb2, struct_pb2, wrappers_pb2))
    for file in descriptor_pb2.FileDescriptorSet.FromString((PROTOBUF / "descriptors.pb").read_bytes()).file:
        try:
            pool.FindFileByName(file.name)
        except KeyError:
            pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.v1.Everything"))


main()
