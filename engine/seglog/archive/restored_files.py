"""The files of a partition that is being restored, written to its staging: all, or up to a time or an offset."""
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from seglog.archive.ends import content_until, is_until
from seglog.backups.manifest import BackedFile, PartitionBackup
from seglog.backups.pieces import PieceStore
from seglog.errors import CorruptRecordError
from seglog.format import names
from seglog.fs.files import FileSystem
from seglog.fs.staging import Staging
from seglog.segment.segment import Segment


@dataclass(frozen=True, slots=True)
class RestoreEnd:
    """Where a restored partition ends: before the first batch with a record later than `time_ms`, or before the batch
    that holds `offset`."""

    time_ms: int | None
    offset: int | None


class RestoredFiles:
    """`told` is called with the bytes of each file that is done."""

    def __init__(
        self, fs: FileSystem, staging: Staging, backed: PartitionBackup, pieces: PieceStore, told: Callable[[int], None]
    ) -> None:
        self._fs = fs
        self._staging = staging
        self._backed = backed
        self._pieces = pieces
        self._told = told

    def whole(self) -> PartitionBackup:
        """Write all files. Returns what was written."""
        data = self._pieces.get_each(piece for file in self._backed.files for piece in file.pieces)
        for file in self._backed.files:
            self._write(file, islice(data, len(file.pieces)) if file.inline is None else [file.inline])
        return self._backed

    def until(self, until: RestoreEnd) -> PartitionBackup:
        """Write the logs up to there, and the other files without what lies behind it."""
        backed = self._backed
        logs = sorted((file for file in backed.files if names.is_log_file(file.name)), key=lambda file: file.name)
        written: list[BackedFile] = []
        end = backed.next_offset
        for file in logs:
            base = names.parse_base_offset(file.name)
            if until.offset is not None and base >= until.offset:
                end = min(end, base)
                break
            self._write(file, self._pieces.get_each(file.pieces) if file.inline is None else [file.inline])
            cut = _first_behind(self._staging.path / file.name, until)
            if cut is not None:
                position, end = cut
                self._fs.truncate(self._staging.path / file.name, position)      # nobody else has seen it
                self._fs.set_mtime(self._staging.path / file.name, file.mtime_ns)
                file = replace(file, size_bytes=position)
            written.append(file)
            if cut is not None:
                break
        start = backed.log_start_offset
        if end < start or not written:
            return self._empty(written, logs[0], max(end, start))
        for file in backed.files:
            if not names.is_log_file(file.name) and is_until(file.name, end):
                written.append(self._write_until(file, end))
        return self._ending(written, start, end)

    def _empty(self, written: list[BackedFile], first: BackedFile, offset: int) -> PartitionBackup:
        """Nothing is left: an empty log that begins where the log began."""
        for file in written:
            self._fs.unlink(self._staging.path / file.name)
        log = replace(first, name=names.file_name(offset, first.name[20:]), size_bytes=0, pieces=(), inline=b"")
        self._write(log, [])
        kept = [log]
        for file in self._backed.files:
            if names.parse_file_name(file.name) is None and file.name != names.LEADER_EPOCH_CHECKPOINT:
                kept.append(self._write_until(file, offset))
        return self._ending(kept, offset, offset)

    def _write_until(self, file: BackedFile, end: int) -> BackedFile:
        raw = file.inline if file.inline is not None else b"".join(self._pieces.get_each(file.pieces))
        raw = content_until(raw, Path(file.name), end)
        self._write(file, [raw])
        return replace(file, size_bytes=len(raw))

    def _write(self, file: BackedFile, data: Iterable[bytes]) -> None:
        with self._staging.create(file.name) as made:
            for raw in data:
                made.append(raw)
            self._fs.set_mode(made.path, file.mode)
            self._fs.set_mtime(made.path, file.mtime_ns)    # a segment without timestamps is as old as its file
            made.sync()
        self._told(file.size_bytes)

    def _ending(self, files: list[BackedFile], start: int, end: int) -> PartitionBackup:
        high_watermark, cleaner_offset = (
            None if offset is None else min(offset, end)
            for offset in (self._backed.high_watermark, self._backed.cleaner_offset)
        )
        return replace(
            self._backed, files=tuple(files), log_start_offset=start, next_offset=end, high_watermark=high_watermark,
            cleaner_offset=cleaner_offset,
        )


def _first_behind(log: Path, until: RestoreEnd) -> tuple[int, int] | None:
    """The position of the first batch of a .log that is left out, and the end of the log before it; None if none is."""
    segment = Segment(log, is_last=False)
    end = segment.base_offset
    try:
        for table in segment.tables(check_crc=False):
            if until.offset is not None:
                slot = table.find_offset(until.offset)
            else:
                slot = table.find_timestamp((until.time_ms or 0) + 1)
            if slot >= 0:
                return table[slot].position, table[slot - 1].last_offset + 1 if slot else end
            if len(table):
                end = table[-1].last_offset + 1
    except CorruptRecordError as error:
        error.hint = "the source was damaged there: restore it whole, without an end"
        raise
    finally:
        segment.close()
    return None
