"""Encodes records for logs that do not store v2 batches: first as v2, then in the log's format.

Records are encoded as v2 without a codec, outside the log's lock as in any log. Once they have their offsets, they are
converted to messages like a producer's v2 batch (format.validate): by the same rules, with the same errors.
"""
from collections.abc import Sequence
from typing import TYPE_CHECKING

from seglog._kernels.batch_encode import EncodedBatch, encode_records
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.config import MAX_INT, MAX_LONG, LogConfig
from seglog.errors import RecordTooLargeError
from seglog.format.batch import BatchEncoder
from seglog.format.validate import AppendRules, Assigned, assign

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from seglog._kernels.batch_encode import TimeOf


class MessageEncoder(BatchEncoder):
    """A BatchEncoder whose batches `stored` converts to messages. Keeps nothing between calls."""

    def __init__(self, config: LogConfig, leader_epoch: int = 0, time_of: "TimeOf | None" = None) -> None:
        self._bytes_max = config.batch_bytes_max
        stored = AppendRules.of(config)
        # Do not limit the sizes of the intermediate batches, nor, under LogAppendTime, the records' own times.
        config = config.replace(max_message_bytes=MAX_INT, segment_bytes=MAX_INT)
        if stored.is_log_append_time:
            config = config.replace(
                message_timestamp_before_max_ms=MAX_LONG, message_timestamp_after_max_ms=MAX_LONG, timestamp_check=False
            )
        made = config.replace(
            message_format_version=None, message_timestamp_type="CreateTime", compression_type="uncompressed"
        )
        super().__init__(made, leader_epoch, time_of)
        self.rules = stored
        self._conversion = AppendRules.of(config)

    def columns(
        self, columns: object, now_ms: int, base_offset: int = 0, batch_bytes: int | None = None
    ) -> list[EncodedBatch]:
        return super().columns(columns, now_ms, base_offset, min(self._bytes_max, batch_bytes or MAX_INT))

    def stored(self, made: "Buffer", first_offset: int, now_ms: int, leader_epoch: int) -> Assigned:
        """Return one of our batches as it is stored from `first_offset` on: a wrapper, or bare messages.

        Raises UnsupportedForMessageFormatError (headers), UnsupportedCompressionTypeError (zstd), RecordTooLargeError.
        """
        raise NotImplementedError

    def stored_in_pieces(
        self, made: "Buffer", first_offset: int, now_ms: int, leader_epoch: int
    ) -> Sequence[Assigned]:
        """Return the same in as many wrappers, or runs of messages, as the limits require."""
        try:
            return [self.stored(made, first_offset, now_ms, leader_epoch)]
        except RecordTooLargeError:
            records = [
                (r.key, r.value, r.headers, r.timestamp) for r in scan(Window(bytes(made))).records()
            ]
            if len(records) < 2:
                raise
        half = len(records) // 2
        pieces: list[Assigned] = []
        for part in (records[:half], records[half:]):
            pieces += self.stored_in_pieces(encode_records(part, 0, now_ms), first_offset, now_ms, leader_epoch)
            first_offset += len(part)
        return pieces


class OldFormatEncoder(MessageEncoder):
    """The encoder of a log whose message.format.version is 0 or 1."""

    def stored(self, made: "Buffer", first_offset: int, now_ms: int, leader_epoch: int) -> Assigned:
        found = assign(made, first_offset, self._conversion, now_ms=now_ms, leader_epoch=leader_epoch)
        return self.rules.check.accept(found.raw, first_offset, found.count)
