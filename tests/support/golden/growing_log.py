"""A log that grows while it is read: what readers need of a writer, and no more (no lock, no recovery, no fsync)."""
from pathlib import Path

from seglog._kernels.batch_builder import BatchBuilder
from seglog._kernels.index_build import IndexBuilder
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.format import names
from seglog.format.compression import decompressor
from seglog.reading.extent import Extent
from seglog.reading.reader import LogReader
from seglog.segment.published_end import End, PublishedEnd
from seglog.segment.segment import Segment

INTERVAL_BYTES = 200


class GrowingLog(LogReader):
    """`append` writes a batch, its index entries, and publishes it. One thread at a time appends."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.topic, self.partition = "growing", 0
        self.decompress = decompressor()
        self.next_offset = 0
        path.mkdir(exist_ok=True)
        self._shown.extent = Extent([self._new_segment()], 0)

    def _new_segment(self):
        path = self.path / names.file_name(self.next_offset, names.LOG_SUFFIX)
        self._files = [
            open(path.with_suffix(suffix), "ab", buffering=0)  # noqa: SIM115
            for suffix in (names.LOG_SUFFIX, names.OFFSET_INDEX_SUFFIX, names.TIME_INDEX_SUFFIX)
        ]
        self._position = 0
        self._builder = IndexBuilder(self.next_offset, INTERVAL_BYTES)
        self._published = PublishedEnd(End(0, self.next_offset))
        return Segment(
            path, decompress=self.decompress, published=self._published, owned=True, reserve_bytes=1 << 20
        )

    def append(self, values, timestamp=0):
        """`timestamp`: of all, or one for each."""
        builder = BatchBuilder(self.next_offset)
        times = timestamp if isinstance(timestamp, list) else [timestamp] * len(values)
        for n, value in enumerate(values):
            builder.append(self.next_offset + n, times[n], None, value)
        self.append_raw(builder.finish())

    def append_raw(self, raw, *, publish=True):
        table = scan(Window(raw))
        self._builder.add(table, 0, len(table), self._position)
        for file, content in zip(
            self._files, (raw, self._builder.take_offset_entries(), self._builder.take_time_entries()), strict=True
        ):
            file.write(content)
        self._position += len(raw)
        self.next_offset = table[-1].last_offset + 1
        if publish:
            self.publish()

    def publish(self):
        self._published.at = End(
            self._position, self.next_offset, self._builder.offset_entries, self._builder.time_entries
        )

    def roll(self):
        for file in self._files:
            file.close()
        self._shown.extent = self._shown.extent.followed_by(self._new_segment())

    def delete_before(self, slot):
        """Let the first `slot` segments go."""
        old = self._shown.extent
        for segment in old.segments[:slot]:
            segment._retire()
        self._shown.extent = Extent(old.segments[slot:], old.segments[slot].base_offset)
        for segment in old.segments[:slot]:
            segment.path.unlink()

    def close(self):
        extent, self._shown.extent = self._shown.extent, None
        for segment in extent.segments if extent else ():
            segment.close()
        for file in self._files:
            file.close()

    last_stable_offset = LogReader.log_end_offset
    leader_epochs = None
