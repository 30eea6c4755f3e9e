"""The same work as a user of aiokafka or kafka-python would write it."""
import struct

import pyarrow as pa
from aiokafka.record._crecords import DefaultRecordBatchBuilder, LegacyRecordBatchBuilder, MemoryRecords
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords


def _batches(segment: bytes):
    records = MemoryRecords(segment)
    while (batch := records.next_batch()) is not None:
        yield batch


def aiokafka_scan_with_crc(segment: bytes) -> int:
    n = 0
    for batch in _batches(segment):
        if not batch.validate_crc():
            raise ValueError("bad CRC")
        n += 1
    return n


def aiokafka_iterate(segment: bytes) -> int:
    n = 0
    for batch in _batches(segment):
        if not batch.validate_crc():
            raise ValueError("bad CRC")
        for _ in batch:
            n += 1
    return n


def aiokafka_iterate_without_crc(segment: bytes) -> int:
    n = 0
    for batch in _batches(segment):
        for _ in batch:
            n += 1
    return n


def aiokafka_read_four_fields(segment: bytes) -> int:
    n = 0
    for batch in _batches(segment):
        for r in batch:
            r.offset, r.timestamp, r.key, r.value  # noqa: B018
            n += 1
    return n


def aiokafka_to_arrow(segment: bytes) -> int:
    offsets, timestamps, keys, values = [], [], [], []
    for batch in _batches(segment):
        for r in batch:
            offsets.append(r.offset)
            timestamps.append(r.timestamp)
            keys.append(r.key)
            values.append(r.value)
    table = pa.table({
        "offset": pa.array(offsets, pa.int64()),
        "timestamp": pa.array(timestamps, pa.timestamp("ms", "UTC")),
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
    })
    return table.num_rows


def aiokafka_to_v2(segment: bytes, batch_bytes: int = 16384) -> int:
    """Iterate, check CRCs and rebuild as uncompressed v2: a conversion with aiokafka's parser and builder."""
    out = bytearray()
    builder = None
    base = 0

    def close() -> None:
        nonlocal out
        batch = builder.build()
        struct.pack_into(">q", batch, 0, base)
        out += batch

    for batch in _batches(segment):
        if not batch.validate_crc():
            raise ValueError("bad CRC")
        for r in batch:
            if builder is None:
                builder, base = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, batch_bytes), r.offset
            if builder.append(r.offset - base, r.timestamp, r.key, r.value, []) is None:
                close()
                builder, base = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, batch_bytes), r.offset
                builder.append(0, r.timestamp, r.key, r.value, [])
    close()
    return len(out)


def aiokafka_to_v1(segment: bytes, codec: int) -> int:
    """Iterate v2 batches, check CRCs and rebuild each as v1 messages."""
    made = 0
    for batch in _batches(segment):
        if not batch.validate_crc():
            raise ValueError("bad CRC")
        builder = LegacyRecordBatchBuilder(1, codec, 1 << 30)
        for r in batch:
            builder.append(r.offset, r.timestamp, r.key, r.value)
        made += len(builder.build())
    return made


def aiokafka_build(batches: list) -> int:
    """Build each list of (key, value, headers, timestamp) as one uncompressed batch."""
    made = 0
    for records in batches:
        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
        for offset, (key, value, _, timestamp) in enumerate(records):
            builder.append(offset, timestamp, key, value, [])
        made += len(builder.build())
    return made


def kafka_python_scan_with_crc(segment: bytes) -> int:
    n = 0
    for batch in KafkaPythonRecords(segment):
        if not batch.validate_crc():
            raise ValueError("bad CRC")
        n += 1
    return n


def kafka_python_iterate(segment: bytes) -> int:
    n = 0
    for batch in KafkaPythonRecords(segment):
        for _ in batch:
            n += 1
    return n
