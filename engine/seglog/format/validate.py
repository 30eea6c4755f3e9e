"""Checks encoded batches before they enter a log, by a broker's rules, and assigns their offsets.

The kernel append_rules checks, and assigns in place. Some batches cannot be stored as they are: another codec or format
version is wanted; a v1 wrapper's relative offsets do not start at 0 (old clients); a v0 wrapper has its offsets inside
compressed bytes. These are rebuilt here, as LogValidator does it: the same records, as one batch.
"""
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from seglog._kernels.append_result import Assigned, Unfit, trusted
from seglog._kernels.append_rules import AppendCheck
from seglog._kernels.batch_builder import BatchBuilder, MessageSetBuilder
from seglog.config import LogConfig
from seglog.errors import CorruptRecordError, RecordTooLargeError
from seglog.format.compression import Codec, compress, decompress, decompressor, harmless_bytes, may_exceed
from seglog.named_tuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from seglog._kernels.segment_scan import BatchTable

__all__ = ["AppendRules", "Assigned", "assign", "assign_trusted", "check_follower"]


class AppendRules(NamedTuple):
    """What a log requires of batches. Create it once from the configuration, and keep it."""

    check: AppendCheck
    is_log_append_time: bool
    decompressed_bytes_max: int
    levels: dict[int, int]      # of the codecs that have them

    @classmethod
    def of(cls, config: LogConfig) -> Self:
        is_log_append_time = config.message_timestamp_type == "LogAppendTime"
        check = AppendCheck(
            max_message_bytes=config.max_message_bytes,
            segment_bytes=config.segment_bytes,
            is_compacted=config.is_compacted,
            is_log_append_time=is_log_append_time,
            before_max_ms=config.message_timestamp_before_max_ms,
            after_max_ms=config.message_timestamp_after_max_ms,
            codec=None if config.codec is None else Codec.of(config.codec),
            decompress=decompressor(config.max_decompressed_message_bytes),
            magic=config.message_format_version,
            asks_unit=config.timestamp_check,
            harmless_bytes=[harmless_bytes(codec, config.max_decompressed_message_bytes) for codec in Codec],
        )
        levels = {
            Codec.GZIP: config.compression_gzip_level,
            Codec.LZ4: config.compression_lz4_level,
            Codec.ZSTD: config.compression_zstd_level,
        }
        by_number = {int(codec): level for codec, level in levels.items()}
        return cls(check, is_log_append_time, config.max_decompressed_message_bytes, by_number)


def assign(
    raw: "Buffer",
    next_offset: int,
    rules: AppendRules,
    *,
    now_ms: int,
    leader_epoch: int = 0,
    allow_control: bool = False,
) -> Assigned:
    """Assign offsets from `next_offset` on to the batches of `raw`, as a leader appends them; `raw` is not changed.

    `raw`: one batch, or any number of uncompressed v0 or v1 messages: Kafka accepts no more in one append.
    `allow_control`: they come from a coordinator (AppendOrigin.COORDINATOR), not from a producer.

    A batch of another format version than the log's is converted (AppendRules.magic).

    Raises CorruptRecordError (torn, trailing bytes, wrong checksum, a record that is inconsistent),
    InvalidRecordError, InvalidTimestampError, RecordTooLargeError, UnsupportedCompressionTypeError, MissingCodecError,
    UnsupportedForMessageFormatError (headers or a producer's batch to be converted to v0 or v1).
    """
    found = rules.check.assign(raw, next_offset, now_ms, leader_epoch, allow_control)
    if isinstance(found, Assigned):
        return found
    try:
        return rules.check.accept(_rebuilt(found, next_offset, rules, now_ms, leader_epoch), next_offset, found.count)
    except RecordTooLargeError as error:
        if found.magic != found.from_magic:
            error.what = f"converted from format v{found.from_magic} to v{found.magic}: {error.what}"
        raise


def _rebuilt(found: Unfit, next_offset: int, rules: AppendRules, now_ms: int, leader_epoch: int) -> bytes:
    """Rebuild `found` as a batch or as bare messages."""
    log_append_time = now_ms if rules.is_log_append_time else None

    def pack(payload: "Buffer") -> "Buffer":
        if memoryview(payload).nbytes > rules.decompressed_bytes_max:
            raise RecordTooLargeError(
                f"its records have {memoryview(payload).nbytes} bytes before compression, more than "
                f"max.decompressed.message.bytes = {rules.decompressed_bytes_max}"
            )
        return compress(found.codec, found.magic, payload, rules.levels.get(found.codec))

    if found.magic < 2:
        return _message_set(found, next_offset, log_append_time, pack)
    if found.from_magic < 2:
        return _batch(found, next_offset, log_append_time, leader_epoch, pack)
    return found.batch(pack(found.payload()), next_offset, leader_epoch, log_append_time)


def _batch(
    found: Unfit, next_offset: int, log_append_time: int | None, leader_epoch: int,
    pack: "Callable[[Buffer], Buffer]",
) -> bytes:
    """Encode v0 or v1 messages as one v2 batch."""
    batch = BatchBuilder(next_offset, log_append_time=log_append_time, leader_epoch=leader_epoch)
    for offset, record in enumerate(found.records(), next_offset):
        batch.append(offset, record.timestamp, record.key_view, record.value_view)      # with its own deltas of time
    if found.codec == Codec.NONE:
        return batch.finish()
    return batch.finish(pack(batch.payload()), found.codec)


def _message_set(
    found: Unfit, next_offset: int, log_append_time: int | None, pack: "Callable[[Buffer], Buffer]"
) -> bytes:
    """Encode records as v0 or v1 messages, bare or in a wrapper of `found.codec` (MemoryRecordsBuilder)."""
    timestamp_type = 0 if log_append_time is None or found.magic == 0 else 1
    is_wrapped = found.codec != Codec.NONE
    messages = MessageSetBuilder(
        found.magic, timestamp_type=timestamp_type, wrapped_from=next_offset if is_wrapped else None
    )
    for offset, record in enumerate(found.records(), next_offset):
        timestamp = record.timestamp if log_append_time is None else log_append_time
        messages.append(offset, timestamp, record.key_view, record.value_view)
    if not is_wrapped:
        return messages.payload()
    return messages.wrap(
        pack(messages.payload()), found.codec, timestamp=log_append_time, timestamp_type=timestamp_type
    )


def check_follower(raw: "Buffer | BatchTable", next_offset: int, rules: AppendRules) -> Assigned:
    """Check the batches of `raw`, which keep their offsets, leader epochs and timestamps: a leader has checked them.

    Each must begin at or above `next_offset` and after the one before it. If `raw` is a table, the checksums of its
    batches must have been checked, and its bytes must not change. Raises CorruptRecordError, InvalidRecordError,
    RecordTooLargeError (segment.bytes or max.decompressed.message.bytes), UnsupportedCompressionTypeError.
    """
    check = rules.check
    assigned = check.follow(raw, next_offset)
    # Refuse what could not be read under these settings. Most batches are too small for that, and a run of v1 may
    # hold ten thousand messages, each of which would be an object.
    slot = assigned.suspect
    while slot >= 0:
        table, limit_bytes = assigned.table, rules.decompressed_bytes_max
        batch = table[slot]
        with suppress(CorruptRecordError):      # damaged batches are stored as the leader has them
            if batch.codec and may_exceed(batch.codec, batch.payload(), limit_bytes):
                decompress(batch.codec, batch.magic, batch.payload(), limit_bytes)
        slot = check.next_suspect(table, slot)
    return assigned


def assign_trusted(raw: "Buffer") -> Assigned:
    """Accept our own encoder's output, which has its final offsets and leader epoch, without checks."""
    return trusted(raw)
