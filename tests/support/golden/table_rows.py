"""Golden records as rows of a table, the columns of Spark's Kafka source: what real Kafka read, by all doors alike."""
import base64
import gzip
import hashlib
import json
from functools import cache

from support.golden import golden_cases

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
# Longer values are given as size and digest.
MAX_VALUE_BYTES = 4096
_TYPES = {"CreateTime": 0, "LogAppendTime": 1, "NoTimestampType": -1}


@cache
def expected_rows():
    """{(topic, partition): rows} of all cases: no control records; the time in microseconds, None where none."""
    return {(case.name, 0): [_row(case.name, line) for line in _lines(case) if not line["control"]]
            for case in golden_cases()}


def directories():
    return [str(case / f"{case.name}-0") for case in golden_cases()]


def _lines(case):
    with gzip.open(case / "expected.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def _row(topic, line):
    value = (line["value_size"], line["value_sha256"]) if "value_size" in line else _bytes(line["value"])
    return (
        _bytes(line["key"]), value, topic, 0, line["offset"],
        None if line["timestamp"] == -1 else 1000 * line["timestamp"], _TYPES[line["timestamp_type"]],
        tuple((name, _bytes(field)) for name, field in line["headers"]),
    )


def _bytes(text):
    return None if text is None else base64.b64decode(text)


def shortened(row):
    """A row as expected_rows has it: a long value by its size and digest."""
    value = row[1]
    if value is not None and len(value) > MAX_VALUE_BYTES:
        value = len(value), hashlib.sha256(value).hexdigest()
    return (*row[:1], value, *row[2:])


def by_partition(rows):
    found = {}
    for row in rows:
        found.setdefault((row[2], row[3]), []).append(shortened(row))
    return found


def rows_of_table(table):
    """Rows of a pyarrow.Table with all columns."""
    columns = []
    for name in COLUMNS:
        column = table[name]
        if name == "timestamp":
            column = column.cast("int64")
        columns.append(column.to_pylist())
    columns[-1] = [tuple((h["key"], h["value"]) for h in headers) for headers in columns[-1]]
    return list(zip(*columns, strict=True))
