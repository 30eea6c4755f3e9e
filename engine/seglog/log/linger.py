"""Records of several appends that wait in memory to share one batch and one write: linger.ms, seglog.linger.bytes.

Waiting records have their offsets already; if the process dies, they are lost. Not thread-safe: the log's lock guards
it.
"""
from typing import TYPE_CHECKING

from seglog._kernels.batch_encode import EncodedBatch
from seglog.config import LogConfig
from seglog.errors import RecordTooLargeError
from seglog.format.batch import BatchEncoder

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from seglog._kernels.batch_encode import Headers


class Linger:
    """The waiting records of one log."""

    def __init__(self, config: LogConfig, encoder: BatchEncoder) -> None:
        # A batch never exceeds what the log accepts, whatever seglog.linger.bytes says.
        self._bytes_max = config.batch_bytes_max
        self.batch = encoder.growing(self._bytes_max)
        self._encoder = encoder
        self._needs_keys = config.is_compacted
        self._before_max_ms = config.message_timestamp_before_max_ms
        self._times_from = encoder.times_from

    def add(
        self,
        key: "Buffer | str | None",
        value: "Buffer | None",
        headers: "Headers | None",
        timestamp: int | None,
        now_ms: int,
    ) -> bool:
        """Add a record. False, and nothing has changed, if the waiting records must be written first.

        Raises what BatchEncoder.one raises for the record: it is refused now, not later together with valid ones.
        """
        if timestamp is None:
            timestamp = now_ms
        elif not self._times_from <= timestamp <= now_ms or now_ms - timestamp > self._before_max_ms:
            self._encoder.one(now_ms, key, value, headers, timestamp)
        if key is None and self._needs_keys:
            self._encoder.one(now_ms, key, value, headers)
        if self.batch.add(key, value, headers, timestamp):
            return True
        if not self.batch:
            self._encoder.one(now_ms, key, value, headers)
            raise RecordTooLargeError(f"the record does not fit into the largest batch: {self._bytes_max} bytes")
        return False

    def take(self, now_ms: int, base_offset: int) -> EncodedBatch:
        """Return the waiting records as a batch, and remove them."""
        return self.batch.take(base_offset, now_ms)
