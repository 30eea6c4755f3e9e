"""The rows that are passed to Spark: the schema of its Kafka source, and Arrow batches that match it exactly."""
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
from seglog.frames.options import checked_columns

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_TYPES: dict[str, DataType] = {
    "key": BinaryType(), "value": BinaryType(), "topic": StringType(), "partition": IntegerType(),
    "offset": LongType(), "timestamp": TimestampType(), "timestampType": IntegerType(), "headers": _HEADERS,
}
_NO_TIME_US = -1000     # Spark's Kafka source shows this for a record without a timestamp


def schema_of(columns: tuple[str, ...]) -> StructType:
    """The schema of these columns, as in Spark's Kafka source except for headers."""
    return StructType([StructField(name, _TYPES[name]) for name in columns])


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that a user gives by `.schema("offset long")`. Raises InvalidArgumentError."""
    columns = checked_columns(schema.fieldNames(), False)
    for field in schema.fields:
        if field.dataType != _TYPES[field.name]:
            raise InvalidArgumentError(
                f"column {field.name} has type {_TYPES[field.name].simpleString()}, not {field.dataType.simpleString()}"
            )
    return columns


def conformed(batch: Any, *, null_timestamps: bool = False) -> Any:
    """The pyarrow.RecordBatch with the types that Spark derives from the schema, such as plain text.

    As in Spark's KafkaRecordToRowConverter, a record without headers has null for them, and one without a timestamp has
    -1 ms; with `null_timestamps`, null.
    """
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import compute

    arrays, fields = [], []
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        if name == "topic":
            array = array.cast(pyarrow.string())
        elif name == "timestamp" and array.null_count and not null_timestamps:
            array = array.fill_null(pyarrow.scalar(_NO_TIME_US, array.type))
        elif name == "headers":
            none = compute.equal(compute.list_value_length(array), 0)
            array = compute.if_else(none, pyarrow.scalar(None, array.type), array)
        kind = _arrow_types()[name]
        if array.type != kind:
            array = array.cast(kind)
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
        })
    return _ARROW_TYPES


_ARROW_TYPES: dict[str, Any] = {}
