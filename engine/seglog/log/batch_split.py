"""How many records fit into one batch of a log, and how records that need several batches are split.

max.message.bytes limits a batch and, if it is compressed, max.decompressed.message.bytes, too: a larger one could not
be read with the same settings. A compressed batch is kept so small that it fits however badly it compresses, as
`append_columns` does.
"""
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from seglog._kernels.batch_encode import EncodedBatch
from seglog._kernels.growing_batch import GrowingBatch
from seglog._kernels.record_batch import Record as StoredRecord
from seglog.config import LogConfig
from seglog.errors import RecordTooLargeError
from seglog.format.batch import BatchEncoder
from seglog.format.compression import Codec
from seglog.log.linger import Linger
from seglog.reading.times import to_timestamp_ms

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from seglog._kernels.batch_encode import Headers, Key, Record


def split(records: "Sequence[Record]", encoder: BatchEncoder, config: LogConfig, now_ms: int) -> list[EncodedBatch]:
    """The records as batches, one after the other, each as large as the limits allow. Raises what `many` raises."""
    if not records:
        return [encoder.many(records, now_ms)]      # raises
    batch = Linger(config, encoder)
    made = []
    for number, record in enumerate(records):
        key, value, headers, timestamp = _fields(record, number)
        if timestamp is not None and type(timestamp) is not int:
            timestamp = to_timestamp_ms(timestamp, now_ms=now_ms)
        if not batch.add(key, value, headers, timestamp, now_ms):
            made.append(batch.take(now_ms, 0))
            batch.add(key, value, headers, timestamp, now_ms)
    made.append(batch.take(now_ms, 0))
    return made


def refusal(
    error: RecordTooLargeError, records: "Sequence[Record]", encoder: BatchEncoder, config: LogConfig, now_ms: int
) -> RecordTooLargeError:
    """The error that `many` raised for the records, with how many of them fit into one batch."""
    count = _fitting(records, encoder, config, now_ms)
    if not 0 < count < len(records):
        return error
    return RecordTooLargeError(
        f"{error.what}; the first {count} of {len(records)} records fit", file=error.file,
        hint="append fewer at a time, or pass atomic=False to append them as several batches",
    )


def _fitting(records: "Sequence[Record]", encoder: BatchEncoder, config: LogConfig, now_ms: int) -> int:
    """How many records, from the first on, fit into one batch. If it is compressed, more may fit: how well records
    compress shows only when a batch is made of them."""
    limits = [encoder.uncompressed_bytes_max(config.batch_bytes_max)]
    if encoder.codec is not Codec.NONE:
        limits.insert(0, config.max_decompressed_message_bytes)
    for limit in limits:
        count = _below(records, limit)
        # A growing batch counts the longest encoding of a record's lengths: one more record may fit.
        for candidate in (count + 1, count):
            if candidate and _fits(records[:candidate], encoder, now_ms):
                return candidate
    return 0


def _below(records: "Sequence[Record]", size_bytes: int) -> int:
    """How many records, from the first on, certainly fit into an uncompressed batch of this size."""
    batch = GrowingBatch(size_bytes, Codec.NONE, None, False)
    for number, record in enumerate(records):
        key, value, headers, _ = _fields(record, number)
        if not batch.add(key, value, headers, 0):
            break
    return len(batch)


def _fits(records: "Sequence[Record]", encoder: BatchEncoder, now_ms: int) -> bool:
    try:
        encoder.many(records, now_ms)
    except RecordTooLargeError:
        return False
    return True


def _fields(record: "Record", number: int) -> "tuple[Key, Buffer | None, Headers | None, Any]":
    if isinstance(record, StoredRecord):
        return record.key, record.value, record.headers, record.timestamp
    if not isinstance(record, tuple | list) or not 2 <= len(record) <= 4:
        raise TypeError(f"record {number} must be (key, value[, headers[, timestamp]]), not {record!r:.60}")
    key, value, headers, timestamp = (*record, None, None)[:4]
    return key, value, headers, timestamp
