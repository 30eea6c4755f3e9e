"""For scan(decode="kafka"): batches of an internal topic with keys and values replaced by what they say, as JSON."""
import json
from binascii import b2a_base64
from collections.abc import Callable
from typing import Any

from seglog._kernels.batch_builder import BatchBuilder, MessageSetBuilder
from seglog._kernels.record_batch import RecordBatch
from seglog._kernels.segment_scan import BatchTable, scan
from seglog._kernels.status import Status, words
from seglog._kernels.window import Window
from seglog.errors import CorruptRecordError, InvalidArgumentError, ProtocolError, UnsupportedVersionError
from seglog.wire.internal_topics import InternalRecords
from seglog.wire.json_text import json_text

_LOG_APPEND_TIME = 1


class DecodedBatches:
    """Rewrites the batches of one topic. Offsets, timestamps and headers stay; control batches go."""

    def __init__(self, topic: str) -> None:
        records = InternalRecords.of(topic)
        if records is None:
            raise InvalidArgumentError(
                f"{topic!r} is not the name of an internal topic of Kafka",
                hint='leave out decode="kafka", or name only topics such as __consumer_offsets',
            )
        self._records = records

    def table(self, batch: RecordBatch) -> BatchTable:
        """The batch that takes the place of this one. Raises CorruptRecordError and what reading a batch raises."""
        return scan(Window(self._rewritten(batch)))

    def _rewritten(self, batch: RecordBatch) -> bytes:
        if not batch.crc_is_valid():
            raise CorruptRecordError(words(Status.BAD_CRC), position=batch.position, offset=batch.last_offset)
        records = list(batch)
        if batch.is_control or not records:
            return b""
        if batch.magic == 0:        # has no timestamps, and says so
            old = MessageSetBuilder(0)
            for record in records:
                old.append(record.offset, record.timestamp, *self._texts(record.key, record.value))
            return old.payload()
        is_append_time = batch.timestamp_type == _LOG_APPEND_TIME
        new = BatchBuilder(records[0].offset, log_append_time=batch.max_timestamp if is_append_time else None)
        for record in records:
            new.append(record.offset, record.timestamp, *self._texts(record.key, record.value), record.headers)
        return new.finish()

    def _texts(self, key: bytes | None, value: bytes | None) -> tuple[bytes | None, bytes | None]:
        records = self._records
        return (
            None if key is None else _text(lambda: records.key(key), key),
            None if value is None else _text(lambda: records.value(key, value), value),
        )


def _text(decode: Callable[[], dict[str, Any]], data: bytes) -> bytes:
    try:
        return json_text(decode()).encode()
    except (ProtocolError, UnsupportedVersionError):
        return json.dumps(b2a_base64(data, newline=False).decode()).encode()
