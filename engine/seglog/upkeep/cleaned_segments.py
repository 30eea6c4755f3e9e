"""Writes the output of a compaction round: .cleaned files beside the segments that they will replace."""
from pathlib import Path

from seglog._kernels.segment_scan import scan
from seglog.config import MAX_INT, LogConfig
from seglog.format import names
from seglog.format.dialect import dialect_of_config
from seglog.fs.files import FileSystem
from seglog.log.removal import remove_cleaned
from seglog.segment.transaction_index import AbortedTransaction
from seglog.segment.writer import SegmentWriter


class CleanedSegments:
    """What remains of one group: one segment at `base_offset`, or more if it grew beyond what a file can hold.

    `index_bytes`: the size of the group's indexes, which is not too large for the new one. Without `fs`, only bytes are
    counted. A context manager: unless `finish` was called, leaving it removes what was written.
    """

    def __init__(
        self, fs: FileSystem | None, directory: Path, base_offset: int, config: LogConfig, index_bytes: int
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._dialect = dialect_of_config(config)
        # The group was formed by Kafka's limits: here only what a file can hold counts.
        self._config = config.replace(
            segment_bytes=MAX_INT, segment_index_bytes=max(config.segment_index_bytes, index_bytes)
        )
        self.logs: list[Path] = []
        self.size_bytes = 0
        self._writer: SegmentWriter | None = None
        self._mtime_ns: int | None = None
        self._is_finished = False
        if fs is not None:
            self._begin(base_offset)

    def _begin(self, base_offset: int) -> None:
        assert self._fs is not None
        # An earlier round may have left one, if removing it failed, too.
        log = self._dialect.log_name(base_offset, names.CLEANED_SUFFIX)
        remove_cleaned(self._fs, self._directory / log)
        self._writer = SegmentWriter(
            self._fs, self._directory, base_offset, self._config, state=names.CLEANED_SUFFIX,
            makes_ranges=names.TIME_RANGES_SUFFIX in self._dialect.indexes,
        )
        self.logs.append(self._writer.path)

    def append(self, batches: memoryview) -> None:
        """Write consecutive batches that remain."""
        self.size_bytes += len(batches)
        if self._writer is None or not len(batches):
            return
        window = self._dialect.window(batches)
        position = 0
        while position < len(window):
            table = scan(window, position)
            first = 0
            while first < len(table):
                stop = self._writer.fits(table, first)
                if stop == first:
                    self._writer.finish(mtime_ns=self._mtime_ns)
                    self._begin(table[first].base_offset)
                    continue
                self._writer.append(window, table, first, stop)
                first = stop
            position = table.end

    def add_aborted(self, transaction: AbortedTransaction) -> None:
        """Write an entry of the .txnindex."""
        if self._writer is not None:
            self._writer.add_aborted(transaction)

    def finish(self, mtime_ns: int) -> None:
        """Sync everything, including names. The files get the time of the last one that they replace."""
        if self._writer is not None and self._fs is not None:
            self._writer.finish(mtime_ns=mtime_ns)
            self._fs.sync_directory(self._directory)
        self._is_finished = True

    def remove(self) -> None:
        """Remove what was written."""
        if self._fs is None:
            return
        for log in self.logs:
            remove_cleaned(self._fs, log)

    def __enter__(self) -> "CleanedSegments":
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()
        if not self._is_finished:
            self.remove()
