"""Records of several appends that wait in memory to share one batch and one write: linger.ms, linger.bytes.

What waits has its offset already and is lost with the process. Nothing here is thread-safe: the log's lock guards it.
"""
from typing import TYPE_CHECKING

from seglog._kernels.batch_encode import EncodedBatch
from seglog.config import LogConfig
from seglog.format.batch import BatchEncoder

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from seglog._kernels.batch_encode import Headers, Record

# No record of a batch costs more beside its key, value and headers: length, attributes, timestamp and offset deltas,
# lengths of key and value, number of headers. And the header of the batch. docs/formats/record_batch.md
_RECORD_BYTES_MAX = 5 + 1 + 10 + 5 + 5 + 5 + 5
_BATCH_BYTES = 61


class Linger:
    """The records that wait. `size_bytes` is the most that their batch may need, not compressed."""

    def __init__(self, config: LogConfig, encoder: BatchEncoder) -> None:
        self.records: list[Record] = []
        self.size_bytes = _BATCH_BYTES
        self._encoder = encoder
        self._needs_keys = config.is_compacted
        self._bytes_max = config.linger_bytes
        # A batch stays below what a log refuses, whatever linger.bytes says.
        self._batch_bytes_max = min(config.max_message_bytes, config.segment_bytes)

    def add(
        self,
        key: "Buffer | None",
        value: "Buffer | None",
        headers: "Headers | None",
        timestamp: int | None,
        now_ms: int,
    ) -> bool:
        """Let a record wait, unless those that wait must be written first: then False, and nothing has changed.

        Raises what BatchEncoder.one raises of the record.
        """
        if type(value) is bytes and not headers and timestamp is None and (key is None or type(key) is bytes):
            size = len(value) + (len(key) if key else 0) + _RECORD_BYTES_MAX
            checked = not (key is None and self._needs_keys) and size + _BATCH_BYTES <= self._batch_bytes_max
        else:
            checked = False
        if not checked:
            # Refused now, by the words of a record that is written at once, and not with others that are good.
            size = len(self._encoder.one(0, now_ms, key, value, headers, timestamp))
            # What waits must not change meanwhile.
            value = None if value is None else bytes(value)
            key = None if key is None else bytes(key)
            headers = [(name, None if v is None else bytes(v)) for name, v in headers or ()]
        size_bytes = self.size_bytes + size
        if size_bytes > self._batch_bytes_max and self.records:
            return False
        self.records.append((key, value, headers or (), now_ms if timestamp is None else timestamp))
        self.size_bytes = size_bytes
        return True

    @property
    def is_full(self) -> bool:
        """Whether linger.bytes are reached."""
        return self.size_bytes - _BATCH_BYTES >= self._bytes_max

    def take(self, now_ms: int, base_offset: int) -> EncodedBatch:
        """The batch of what waits; nothing waits any more."""
        records, self.records, self.size_bytes = self.records, [], _BATCH_BYTES
        return self._encoder.many(records, now_ms, base_offset)
