"""Rewriting the first segment of a log without the batches before the log start offset.

The copy keeps the base offset in its name: Kafka refuses a segment with another one, and a segment may begin with a
gap, as after compaction. Bytes are copied as they are; the copy's checksums are verified, and indexes are built from
it. Nothing is edited in place: a hot backup may have links to the current files.
"""
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from seglog.config import LogConfig
from seglog.errors import CorruptRecordError, StorageError
from seglog.format import names
from seglog.fs.files import FileSystem
from seglog.fs.mapping import Mapping
from seglog.segment.recovery import check_segment
from seglog.segment.segment import Segment
from seglog.segment.time_ranges import time_ranges_path
from seglog.segment.transaction_index import encode
from seglog.segment.writer import write_time_ranges

_COPY_BYTES = 1 << 20       # between two calls of the throttle


def rewritten_from(
    fs: FileSystem, segment: Segment, position: int, start: int, config: LogConfig,
    throttle: Callable[[int], None] | None = None,
) -> Path:
    """Write a sealed segment from `position`, the batch with offset `start`, on as .cleaned files beside it.

    They are durable when it returns. Returns the path of the .log.cleaned. After an error, nothing is left. Raises
    CorruptRecordError if the segment is damaged there, StorageError.
    """
    cleaned = segment.path.with_name(segment.path.name + names.CLEANED_SUFFIX)
    made: list[Path] = []
    try:
        mtime_ns = os.stat(segment.path).st_mtime_ns
        with Mapping(segment.path) as whole, fs.create(_made(made, cleaned)) as file:
            raw = memoryview(whole)
            for at in range(position, len(raw), _COPY_BYTES):
                piece = raw[at : at + _COPY_BYTES]
                if throttle is not None:
                    throttle(2 * len(piece))        # read and written
                file.append(piece)
            fs.set_mtime(cleaned, mtime_ns)
            file.sync()
        check = check_segment(cleaned, segment.base_offset, segment.end_offset, config)
        if check.damages:
            damage = check.damages[0]
            raise CorruptRecordError(
                damage.reason, file=segment.path, position=position + damage.start, offset=damage.first_offset,
                hint="the segment was not changed; `seglog recover --mode quarantine` lists the damage",
            )
        aborted = segment.transaction_index
        indexes = segment.dialect.index_files(
            check.offset_index, check.time_index, check.minute_index if config.time_index_minute_enabled else None
        )
        indexes[names.TRANSACTION_INDEX_SUFFIX] = (
            encode(a for a in aborted or () if a.last_offset >= start) or None
        )
        for suffix, content in indexes.items():
            if content is not None:
                path = segment.path.with_name(segment.path.stem + suffix + names.CLEANED_SUFFIX)
                with fs.create(_made(made, path)) as file:
                    file.append(content)
                    fs.set_mtime(path, mtime_ns)
                    file.sync()
        if config.time_index_ranges_enabled and not segment.dialect.is_tagged:
            made.append(time_ranges_path(cleaned))
            write_time_ranges(fs, cleaned, segment.decompress, mtime_ns)
        fs.sync_directory(segment.path.parent)
    except BaseException:
        for path in made:
            with contextlib.suppress(StorageError, FileNotFoundError):
                fs.unlink(path)
        raise
    return cleaned


def _made(made: list[Path], path: Path) -> Path:
    made.append(path)
    return path
