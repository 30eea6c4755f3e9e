"""Encodes records as batches: one batch of any format version (`build_batch`), or a log's by its configuration.

See docs/formats/record_batch.md, message.md and control_records.md.
"""
import struct
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from seglog._kernels.batch_builder import MessageSetBuilder
from seglog._kernels.batch_encode import EncodedBatch, encode_records, encode_single
from seglog._kernels.growing_batch import GrowingBatch
from seglog._kernels.record_batch import Record as StoredRecord
from seglog.clock import SystemClock
from seglog.config import LogConfig
from seglog.errors import (
    InvalidArgumentError,
    RecordTooLargeError,
    UnsupportedForMessageFormatError,
)
from seglog.format.compression import Codec, compress
from seglog.format.names import MAX_OFFSET
from seglog.format.validate import AppendRules, Assigned, assign, check_follower
from seglog.late_import import late

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from seglog._kernels.batch_encode import Headers, Record, TimeOf
    from seglog._kernels.segment_scan import BatchTable

# Times between 0 and this are probably in seconds, not in ms: seglog.timestamp.check, in the kernel append_rules.
SANE_TIME_MIN = 10**11

MAX_BATCH_BYTES = 2**31 - 1
NO_TIMESTAMP = -1
LOG_APPEND_TIME_BIT = 0x08
_FIELD_BITS = {"producer_id": 64, "producer_epoch": 16, "base_sequence": 32, "leader_epoch": 32}
# In every codec, incompressible data grows by less than one part in this many.
INCOMPRESSIBLE_SHARE = 64


def end_marker(commit: bool, coordinator_epoch: int) -> tuple[bytes, bytes]:
    """Return key and value of the control record that ends a transaction (docs/formats/control_records.md).

    Alone in its batch: `build_batch([end_marker(True, 0)], control=True, transactional=True,
    producer_id=..., producer_epoch=...)`.
    """
    try:
        return struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, coordinator_epoch)
    except struct.error as e:
        raise InvalidArgumentError(f"invalid coordinator epoch {coordinator_epoch!r}: {e}") from None


# --- one batch on request ---------------------------------------------------------------------------


def build_batch(
    records: "Iterable[Record]",
    *,
    magic: int = 2,
    codec: str | int = "none",
    level: int | None = None,
    base_offset: int = 0,
    timestamp: int | None = None,
    timestamp_type: str = "CreateTime",
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = -1,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """Encode one batch, ready for `append_batch` or for a .log file; below v2, a message set.

    records: (key, value), (key, value, headers) or (key, value, headers, timestamp), numbered from `base_offset` on;
        bytes-like or None, headers pairs of str and bytes-like or None, timestamps in ms or None.
    magic: format version: 2, or 1 and 0, in which a codec makes one wrapper message, and no codec bare messages.
    codec, level: as compression.type and compression.<codec>.level.
    timestamp: in ms, for records without one; now by default. With timestamp_type="LogAppendTime", for the whole batch.
    The others are the fields of the batch header.

    Raises UnsupportedForMessageFormatError (headers, producers, transactions, control records below v2; timestamps
    below v1), UnsupportedCompressionTypeError (zstd below v2), InvalidArgumentError (no records, a wrong type, or what
    every broker would refuse), InvalidConfigError (a level that the codec does not have), RecordTooLargeError above
    2 GiB.
    """
    for name, value in (
        ("producer_id", producer_id), ("producer_epoch", producer_epoch), ("base_sequence", base_sequence),
        ("leader_epoch", leader_epoch),
    ):
        _check_field(name, value)
    try:
        if magic not in (0, 1, 2):
            raise InvalidArgumentError(f"unknown record format version {magic!r}; expected 0, 1 or 2")
        if timestamp_type not in ("CreateTime", "LogAppendTime"):
            raise InvalidArgumentError(
                f"unknown timestamp type {timestamp_type!r}; expected 'CreateTime' or 'LogAppendTime'")
        if not 0 <= base_offset < MAX_OFFSET:
            raise InvalidArgumentError(f"invalid base offset {base_offset}")
        codec = Codec.of(codec)
        log_append_time = None
        if magic > 0:
            timestamp = SystemClock().now_ms() if timestamp is None else timestamp
            if timestamp_type == "LogAppendTime":
                log_append_time = timestamp
        if magic < 2:
            _check_plain(magic, timestamp, timestamp_type, producer_id, transactional or control, delete_horizon_ms)
            return _build_message_set(records, magic, codec, level, base_offset, timestamp, log_append_time)
        _check_producer(producer_id, producer_epoch, base_sequence, transactional, control)
        assert timestamp is not None
        return bytes(encode_records(
            records, base_offset, timestamp,
            codec=codec, compress=partial(_compress, level), leader_epoch=leader_epoch, log_append_time=log_append_time,
            producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence,
            is_transactional=transactional, is_control=control, delete_horizon_ms=delete_horizon_ms,
        ))
    except TypeError as error:
        raise InvalidArgumentError(str(error), hint="a record must be (key, value[, headers[, timestamp]])") from None


def _check_field(name: str, value: int) -> None:
    bits = _FIELD_BITS[name]
    if not isinstance(value, int) or not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise InvalidArgumentError(f"{name} must be an int of {bits} bits, not {value!r}")


def _compress(level: int | None, codec: int, payload: memoryview) -> "Buffer":
    return compress(codec, 2, payload, level)


def _compress_within(level: int | None, max_bytes: int, codec: int, payload: memoryview) -> "Buffer":
    if payload.nbytes > max_bytes:
        raise RecordTooLargeError(
            f"the records of a batch have {payload.nbytes} bytes before compression, more than "
            f"max.decompressed.message.bytes = {max_bytes}: no reader with these settings could read them",
            hint="send smaller batches, or raise max.decompressed.message.bytes for all readers of the log",
        )
    return compress(codec, 2, payload, level)


def _check_producer(producer_id: int, epoch: int, sequence: int, transactional: bool, control: bool) -> None:
    """Apply the rules of MemoryRecordsBuilder.validateProducerState."""
    if transactional and producer_id == -1:
        raise InvalidArgumentError("a transactional batch needs a producer id")
    if producer_id != -1 and epoch < 0:
        raise InvalidArgumentError(f"invalid epoch {epoch} of producer {producer_id}")
    if producer_id != -1 and sequence < 0 and not control:
        raise InvalidArgumentError(f"invalid sequence {sequence} of producer {producer_id}")


# --- v0 and v1 -----------------------------------------------------------------------------------


def _check_plain(
    magic: int, timestamp: int | None, timestamp_type: str, producer_id: int, marked: bool, horizon: int | None
) -> None:
    if producer_id != -1 or marked or horizon is not None:
        raise UnsupportedForMessageFormatError(
            f"format v{magic} has no producers, transactions, control records or delete horizons: only v2 has them"
        )
    if magic == 0 and (timestamp not in (None, NO_TIMESTAMP) or timestamp_type != "CreateTime"):
        raise UnsupportedForMessageFormatError("format v0 has no timestamps: v1 and v2 have them")


def _build_message_set(
    records: "Iterable[Record]", magic: int, codec: Codec, level: int | None, base_offset: int,
    timestamp: int | None, log_append_time: int | None,
) -> bytes:
    timestamp_type = int(log_append_time is not None)
    timestamp = NO_TIMESTAMP if timestamp is None else _checked_timestamp(timestamp)
    messages = MessageSetBuilder(
        magic,
        timestamp_type=timestamp_type,
        wrapped_from=None if codec is Codec.NONE else base_offset,
    )
    for number, record in enumerate(records):
        key, value, own_timestamp = _message_of(record, number, magic)
        if log_append_time is not None or own_timestamp is None:
            own_timestamp = timestamp
        if base_offset + number >= MAX_OFFSET:
            raise InvalidArgumentError(f"offset {base_offset + number} is above the largest offset of a record")
        messages.append(base_offset + number, own_timestamp, key, value)
    if messages.count == 0:
        raise InvalidArgumentError("a batch must contain at least one record")
    if codec is Codec.NONE:
        made = messages.payload()
    else:
        payload = compress(codec, magic, messages.payload(), level)
        made = messages.wrap(payload, codec, timestamp=log_append_time, timestamp_type=timestamp_type)
    if len(made) > MAX_BATCH_BYTES:
        raise RecordTooLargeError(f"the messages have {len(made)} bytes; a batch may have {MAX_BATCH_BYTES}")
    return made


def _checked_timestamp(timestamp: int, where: str = "") -> int:
    """Check the timestamp as the kernels do for v2."""
    if not isinstance(timestamp, int):
        raise TypeError(f"the timestamp{where} must be an int (ms since 1970) or None, not {type(timestamp).__name__}")
    if not NO_TIMESTAMP <= timestamp < 2**63:
        raise InvalidArgumentError(f"the timestamp{where} must be from -1 (none) to {2**63 - 1}, not {timestamp}")
    return timestamp


def _message_of(record: "Record", number: int, magic: int) -> "tuple[Buffer | str | None, Buffer | None, int | None]":
    """Return key, value and the record's own timestamp."""
    if isinstance(record, StoredRecord):
        record = (record.key, record.value, record.headers, record.timestamp)
    if not isinstance(record, (tuple, list)) or not 2 <= len(record) <= 4:
        raise TypeError(f"record {number} must be (key, value[, headers[, timestamp]]), not {record!r:.60}")
    key, value, headers, timestamp = (*record, None, None)[:4]
    if headers:
        raise UnsupportedForMessageFormatError(f"record {number} has headers, which format v{magic} does not support")
    if timestamp is not None:
        _checked_timestamp(timestamp, f" of record {number}")
        if magic == 0 and timestamp != NO_TIMESTAMP:
            raise UnsupportedForMessageFormatError(f"record {number} has a timestamp, which format v0 does not support")
    return key, value, timestamp


# --- the batches of a log ------------------------------------------------------------------------


class BatchEncoder:
    """Encodes records as v2 batches of a log, and refuses what the log's configuration does not allow.

    Follows compression.type (producer: none), the codecs' levels, message.timestamp.type, and AppendRules: bounds of
    timestamps, sizes, and a key for every record of a compacted log. Keeps nothing between calls, so any thread may
    call at any time; a batch gets its offset only when it is written (EncodedBatch.place).

    Raises what `encode_records` raises, and InvalidTimestampError, InvalidRecordError, RecordTooLargeError.
    """

    def __init__(self, config: LogConfig, leader_epoch: int = 0, time_of: "TimeOf | None" = None) -> None:
        self._time_of = time_of     # converts a time that is not an int to ms; if None, such times are refused
        self.codec = Codec.of(config.codec or "none")
        self.leader_epoch = leader_epoch
        self.uses_log_append_time = config.message_timestamp_type == "LogAppendTime"
        self._attributes = LOG_APPEND_TIME_BIT if self.uses_log_append_time else 0
        # Batches must be readable under the same settings as they are written.
        self._decompressed_bytes_max = config.max_decompressed_message_bytes
        self._compress = partial(_compress_within, _level_of(config, self.codec), self._decompressed_bytes_max)
        # What a log requires of batches, both those that it encodes and those that are appended encoded.
        self.rules = AppendRules.of(config)
        self._own_check = self.rules.check
        # No timestamp from here up to the clock, and within before.max.ms, is refused.
        self.times_from = SANE_TIME_MIN if config.timestamp_check and not self.uses_log_append_time else 0
        self._batch_bytes_max = config.batch_bytes_max

    def one(
        self, now_ms: int, key: "Buffer | str | None", value: "Buffer | None", headers: "Headers | None" = (),
        timestamp: int | None = None,
    ) -> EncodedBatch:
        """Encode one record; `now_ms` is used if it has no timestamp of its own, or under LogAppendTime."""
        if self.codec is not Codec.NONE:
            return self.many(((key, value, headers, timestamp),), now_ms)
        if timestamp is None or self.uses_log_append_time:
            timestamp = now_ms
        made = encode_single(timestamp, key, value, headers, self._attributes)
        self._own_check.check_encoded(len(made), timestamp, timestamp, key is None, now_ms)
        return made

    def many(self, records: "Iterable[Record]", now_ms: int, base_offset: int = 0) -> EncodedBatch:
        """Encode all the records as one batch, compressed if the log is."""
        made = encode_records(
            records, base_offset, now_ms, codec=self.codec, compress=self._compress, leader_epoch=self.leader_epoch,
            log_append_time=now_ms if self.uses_log_append_time else None, time_of=self._time_of,
        )
        self._check(made, now_ms)
        return made

    def of_producer(
        self, records: "Iterable[Record]", now_ms: int, producer_id: int, producer_epoch: int, base_sequence: int
    ) -> EncodedBatch:
        """Encode all the records as one transactional batch, as a producer would send it: ready to be appended."""
        made = encode_records(
            records, 0, now_ms, codec=self.codec, compress=self._compress, producer_id=producer_id,
            producer_epoch=producer_epoch, base_sequence=base_sequence, is_transactional=True, time_of=self._time_of,
        )
        self._check(made, now_ms)
        return made

    def growing(self, max_bytes: int) -> GrowingBatch:
        """Begin a batch to which records are added one by one; it has at most `max_bytes`, however badly they compress.

        The caller must check each record against the configuration (`one`).
        """
        most = self.uncompressed_bytes_max(max_bytes)
        return GrowingBatch(most, self.codec, self._compress, self.uses_log_append_time)

    def columns(
        self, columns: object, now_ms: int, base_offset: int = 0, batch_bytes: int | None = None
    ) -> list[EncodedBatch]:
        """Encode records given as columns, as batches of up to `batch_bytes`, by default max.message.bytes.

        columns: Arrow data or seglog.Columns, or a mapping of key, value, timestamp and headers to lists, Arrow arrays
        or buffers: see cext/build/column_source.pyx and format.arrow_columns. A null timestamp means none.
        """
        late("seglog._kernels.column_encode")
        from seglog._kernels.column_encode import encode_columns
        late("seglog.format.arrow_columns")
        from seglog.format.arrow_columns import plain_columns

        most = self._batch_bytes_max if batch_bytes is None else min(batch_bytes, self._batch_bytes_max)
        most = self.uncompressed_bytes_max(most)
        made: list[EncodedBatch] = []
        time_of = None if self._time_of is None else partial(self._time_of, now_ms=now_ms)
        for piece in plain_columns(columns, time_of):
            made += encode_columns(
                piece, now_ms, max_batch_bytes=most, base_offset=made[-1].last_offset + 1 if made else base_offset,
                codec=self.codec, compress=self._compress, leader_epoch=self.leader_epoch,
                log_append_time=now_ms if self.uses_log_append_time else None,
            )
        if not made:
            raise InvalidArgumentError("a batch must contain at least one record")
        for batch in made:
            self._check(batch, now_ms)
        return made

    def assigned(
        self, raw: "Buffer", next_offset: int, *, now_ms: int, leader_epoch: int = 0, allow_control: bool = False
    ) -> Assigned:
        """Return a producer's batch as stored from `next_offset` on: see `validate.assign`."""
        return assign(
            raw, next_offset, self.rules, now_ms=now_ms, leader_epoch=leader_epoch, allow_control=allow_control
        )

    def followed(self, raw: "Buffer | BatchTable", next_offset: int) -> Assigned:
        """Return a leader's batches as stored: see `validate.check_follower`. A table must have correct checksums."""
        return check_follower(raw, next_offset, self.rules)

    def uncompressed_bytes_max(self, max_bytes: int) -> int:
        """Return how large a batch may be before compression, to have at most `max_bytes` after it."""
        if self.codec is Codec.NONE:
            return max_bytes
        return min(max_bytes - max_bytes // INCOMPRESSIBLE_SHARE, self._decompressed_bytes_max)

    def _check(self, made: EncodedBatch, now_ms: int) -> None:
        self._own_check.check_encoded(len(made), made.min_timestamp, made.max_timestamp, made.has_null_key, now_ms)


def _level_of(config: LogConfig, codec: Codec) -> int | None:
    match codec:
        case Codec.GZIP:
            return config.compression_gzip_level
        case Codec.LZ4:
            return config.compression_lz4_level
        case Codec.ZSTD:
            return config.compression_zstd_level
        case Codec.NONE | Codec.SNAPPY:
            return None
