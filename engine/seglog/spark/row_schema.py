"""The rows that are passed to Spark: the schema of its Kafka source, and Arrow batches that match it exactly."""
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from seglog.errors import InvalidArgumentError
from seglog.frames.lake_types import LakeTypes
from seglog.frames.options import checked_columns
from seglog.spark.losses import Loss
from seglog.spark.source_options import LOST, SourceOptions

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
# endOffset: the first one that is there again, null if it is not known. bytes: 0 if no segment holds the offsets.
_LOST = StructType([
    StructField("endOffset", LongType()), StructField("file", StringType()), StructField("position", LongType()),
    StructField("bytes", LongType()), StructField("reason", StringType()),
])
_TYPES: dict[str, DataType] = {
    "key": BinaryType(), "value": BinaryType(), "topic": StringType(), "partition": IntegerType(),
    "offset": LongType(), "timestamp": TimestampType(), "timestampType": IntegerType(), "headers": _HEADERS,
    LOST: _LOST,
}
# Times of day and UUIDs have no type in all versions of Spark that we support.
_DECODED = LakeTypes("Spark", has_time=False, has_fixed=False)
_NO_TIME_TYPE = -1
_NO_TIME_US = -1000     # Spark's Kafka source shows this for a record without a timestamp


def decoded_types(options: SourceOptions) -> dict[str, Any]:
    """The pyarrow.DataType of each column whose keys or values are decoded, as Spark can have it.

    Raises what `SourceOptions.decoders` raises, and InvalidArgumentError for a type that Spark has not.
    """
    import pyarrow  # type: ignore[import-untyped]

    found = {name: decoder.type for name, decoder in options.decoders().items()}
    found |= dict.fromkeys(options.texts, pyarrow.string())
    schema = _DECODED.schema(pyarrow.schema(list(found.items())))
    return {field.name: field.type for field in schema}


def schema_of(columns: tuple[str, ...], decoded: Mapping[str, Any] | None = None) -> StructType:
    """The schema of these columns, as in Spark's Kafka source except for headers, and for those that are `decoded`."""
    types = _TYPES | _spark_types(decoded or {})
    return StructType([StructField(name, types[name]) for name in columns])


def _spark_types(decoded: Mapping[str, Any]) -> dict[str, DataType]:
    if not decoded:
        return {}
    import pyarrow
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(pyarrow.schema(list(decoded.items())), prefer_timestamp_ntz=True)
    return {field.name: field.dataType for field in schema.fields}


def columns_of(schema: StructType, decoded: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns of a schema that a user gives by `.schema("offset long")`, LOST among them if it is asked for. Raises
    InvalidArgumentError."""
    types = _TYPES | _spark_types(decoded)
    columns = tuple(schema.fieldNames())
    checked_columns([name for name in columns if name != LOST], False)
    for field in schema.fields:
        if field.dataType != types[field.name]:
            raise InvalidArgumentError(
                f"column {field.name} has type {types[field.name].simpleString()}, not {field.dataType.simpleString()}",
                hint="load it again if its schema has changed since" if field.name in decoded else None,
            )
    return columns


def lost_rows(losses: Sequence[Loss], columns: tuple[str, ...], decoded: Mapping[str, Any]) -> Any:
    """A pyarrow.RecordBatch with a row for each loss: at its first offset, with nothing but LOST beside its place."""
    import pyarrow

    rows = [{
        "topic": loss.topic, "partition": loss.partition, "offset": loss.first_offset, "timestampType": _NO_TIME_TYPE,
        LOST: {
            "endOffset": loss.end_offset, "file": loss.file, "position": loss.position, "bytes": loss.size_bytes,
            "reason": loss.reason,
        },
    } for loss in losses]
    types = {**_arrow_types(), **decoded}
    return pyarrow.RecordBatch.from_arrays(
        [pyarrow.array([row.get(name) for row in rows], types[name]) for name in columns],
        schema=pyarrow.schema([pyarrow.field(name, types[name]) for name in columns]),
    )


def conformed(
    batch: Any, columns: tuple[str, ...], decoded: Mapping[str, Any] | None = None, *, null_timestamps: bool = False
) -> Any:
    """These columns of a pyarrow.RecordBatch, with the types that Spark derives from the schema, such as plain text.

    As in Spark's KafkaRecordToRowConverter, a record without headers has null for them, and one without a timestamp has
    -1 ms; with `null_timestamps`, null.
    """
    import pyarrow
    from pyarrow import compute

    arrays, fields = [], []
    for name in columns:
        array = pyarrow.nulls(len(batch), _arrow_types()[LOST]) if name == LOST else batch.column(name)
        if name == "topic":
            array = array.cast(pyarrow.string())
        elif name == "timestamp" and array.null_count and not null_timestamps:
            array = array.fill_null(pyarrow.scalar(_NO_TIME_US, array.type))
        elif name == "headers":
            none = compute.equal(compute.list_value_length(array), 0)
            array = compute.if_else(none, pyarrow.scalar(None, array.type), array)
        is_decoded = decoded is not None and name in decoded
        kind = decoded[name] if decoded is not None and is_decoded else _arrow_types()[name]
        if array.type != kind:
            # Finer digits of a time than Spark has are cut off.
            array = array.cast(kind, safe=not is_decoded)
        arrays.append(array)
        fields.append(pyarrow.field(name, kind))
    return pyarrow.RecordBatch.from_arrays(arrays, schema=pyarrow.schema(fields))


def _arrow_types() -> dict[str, Any]:
    if not _ARROW_TYPES:
        import pyarrow

        header = pyarrow.struct([pyarrow.field("key", pyarrow.string()), pyarrow.field("value", pyarrow.binary())])
        _ARROW_TYPES.update({
            "key": pyarrow.binary(), "value": pyarrow.binary(), "topic": pyarrow.string(),
            "partition": pyarrow.int32(), "offset": pyarrow.int64(),
            "timestamp": pyarrow.timestamp("us", tz="UTC"), "timestampType": pyarrow.int32(),
            "headers": pyarrow.list_(header),
            LOST: pyarrow.struct([
                ("endOffset", pyarrow.int64()), ("file", pyarrow.string()), ("position", pyarrow.int64()),
                ("bytes", pyarrow.int64()), ("reason", pyarrow.string()),
            ]),
        })
    return _ARROW_TYPES


_ARROW_TYPES: dict[str, Any] = {}
