"""Writes the target segments of one source segment: one, or more if it would exceed a limit."""
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from seglog._kernels.batch_survey import first_disorder, first_larger
from seglog._kernels.segment_scan import Status, scan
from seglog._kernels.status import words
from seglog.config import LogConfig
from seglog.conversion.converted_segment import ConvertedPart, EpochTrail, ProducerTrail
from seglog.errors import CorruptRecordError
from seglog.format.compression import Decompress
from seglog.format.dialect import dialect_of_config
from seglog.fs.files import FileSystem
from seglog.segment.batches import first_offset_of
from seglog.segment.writer import SegmentWriter

if TYPE_CHECKING:
    from typing_extensions import Buffer


class SegmentParts:
    """Takes the converted batches of one source segment. A context manager: leaving it closes, finished or not.

    The first part has the base offset of the source segment, and may stay empty; each further one begins at its first
    batch, as in Kafka's rolls. All get `mtime_ns`, the time of the source's file: for retention, a segment without
    timestamps is as old as its file. `parts`: the finished ones; `larger_batches`: the number of batches above
    max.message.bytes.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        config: LogConfig,
        *,
        base_offset: int,
        mtime_ns: int,
        decompress: Decompress,
    ) -> None:
        self.parts: list[ConvertedPart] = []
        self.larger_batches = 0
        self._fs = fs
        self._directory = directory
        self._config = config
        self._mtime_ns = mtime_ns
        self._decompress = decompress
        self._begin(base_offset)

    def append(self, batches: "Buffer") -> None:
        """Write finished batches; if a part is full, into a new one.

        Raises CorruptRecordError if they are out of order: then a wrapper of the source begins within the batch before
        it.
        """
        window = dialect_of_config(self._config).window(batches)
        table = scan(window, decompress=self._decompress)
        if table.stop != Status.OK:
            raise CorruptRecordError(f"the conversion made an invalid batch: {words(table.stop)}")
        slot = first_disorder(table, self._writer.next_offset)
        if slot >= 0:
            raise CorruptRecordError(
                "a batch begins below the end of the one before it", offset=first_offset_of(table[slot])
            )
        first = 0
        while first < len(table):
            stop = self._writer.fits(table, first)
            if stop == first:
                self._roll(first_offset_of(table[first]))
                continue
            self._writer.append(window, table, first, stop)
            self._epochs.add(table, first, stop)
            self._producers.add(table, first, stop)
            first = stop
        slot = first_larger(table, self._config.max_message_bytes)
        while slot >= 0:
            self.larger_batches += 1
            slot = first_larger(table, self._config.max_message_bytes, slot + 1)

    def finish(self) -> None:
        """Sync and close the last part, after the last batch."""
        self._writer.finish(mtime_ns=self._mtime_ns)
        self.parts.append(ConvertedPart(
            file=self._writer.path.name,
            base_offset=self._writer.base_offset,
            size_bytes=self._writer.size_bytes,
            epochs=tuple(self._epochs.starts),
            producers=tuple(self._producers.batches()),
        ))

    def _begin(self, base_offset: int) -> None:
        self._writer = SegmentWriter(self._fs, self._directory, base_offset, self._config)
        self._epochs = EpochTrail()
        self._producers = ProducerTrail()

    def _roll(self, base_offset: int) -> None:
        self.finish()
        self._begin(base_offset)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
