"""The two dialects of partition directories: the names of their files, and how kernels read them.

    KAFKA     .log .index .timeindex and others     batches of v0, v1 and v2
    TAGGED    .tlog .tindex                         messages with tags: docs/formats/tagged_message.md

A magic byte of 1 means another format in each, so the bytes do not identify the dialect: the name of a file does
(`dialect_of`), and so does a setting that the directory stores (state.directory_dialect). Code that has a path or a
configuration asks here: one value holds all the differences.
"""
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from seglog._kernels.index_build import IndexBuilder
from seglog._kernels.window import Window
from seglog.config import LogConfig
from seglog.format import names

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Dialect:
    """Suffixes, and the layout of index entries. `log`: the suffix of the files with records.

    `offset_index`, `time_index`: the same file if one index serves both. `other_indexes`: other files that a segment
    may have. `has_producers`: batches may name a producer, so a log keeps snapshots and aborted transactions.
    """

    def __init__(
        self, name: str, log: str, offset_index: str, time_index: str, offset_entry: str, time_entry_bytes: int,
        other_indexes: tuple[str, ...] = (), *, is_tagged: bool = False, has_producers: bool = True,
    ) -> None:
        self.name = name                    # the value of seglog.message.dialect
        self.log = log
        self.offset_index = offset_index
        self.time_index = time_index
        self.offset_entry = offset_entry    # a struct format, of (relative offset, position)
        self.time_entry_bytes = time_entry_bytes
        self.is_tagged = is_tagged
        self.has_producers = has_producers
        # Derived from those above, once, since every roll needs them.
        self.offset_entry_bytes = struct.calcsize(offset_entry)
        self.has_one_index = time_index == offset_index     # the offset index also has the times
        # Of the files that every segment has in addition to its log; of all that belong to it; of those and the log.
        self.own_indexes = (offset_index,) if self.has_one_index else (offset_index, time_index)
        self.indexes = (*self.own_indexes, *other_indexes)
        self.suffixes = (log, *self.indexes)

    def log_name(self, base_offset: int, state: str = "") -> str:
        """Return the name of a segment's log."""
        return names.file_name(base_offset, self.log, state)

    def stem(self, log: str | os.PathLike[str]) -> str:
        """Return the path of a log without its suffix; add those of its indexes to it."""
        return os.fspath(log).removesuffix(self.log)

    def window(self, buffer: "Buffer", path: str | os.PathLike[str] | None = None, size: int = -1) -> Window:
        """Wrap bytes of a log or of an index for kernels. `path`: for error messages."""
        return Window(buffer, None if path is None else os.fspath(path), size, is_tagged=self.is_tagged)

    def index_builder(self, base_offset: int, config: LogConfig, *, is_bounded: bool = True) -> IndexBuilder:
        """Return the builder of a segment's indexes. Without `is_bounded`, they may exceed segment.index.bytes."""
        return IndexBuilder(
            base_offset, config.index_interval_bytes, is_tagged=self.is_tagged,
            max_index_bytes=config.segment_index_bytes if is_bounded else -1,
        )

    def index_files(
        self, offset_index: bytes | None, time_index: bytes | None, minute_index: bytes | None = None
    ) -> dict[str, bytes | None]:
        """Return the contents of the index files, by suffix: those of an IndexBuilder's that this dialect has."""
        files = {self.offset_index: offset_index}
        if not self.has_one_index:
            files[self.time_index] = time_index
            if minute_index is not None:
                files[names.MINUTE_INDEX_SUFFIX] = minute_index
        return files


KAFKA = Dialect(
    "kafka", names.LOG_SUFFIX, names.OFFSET_INDEX_SUFFIX, names.TIME_INDEX_SUFFIX, ">ii", 12,
    (names.TRANSACTION_INDEX_SUFFIX, names.MINUTE_INDEX_SUFFIX, *names.OF_WHOLE_LOGS),
)
TAGGED = Dialect(
    "tagged", names.TAGGED_LOG_SUFFIX, names.TAGGED_INDEX_SUFFIX, names.TAGGED_INDEX_SUFFIX, ">i8xi", 16,
    is_tagged=True, has_producers=False,
)
_DIGITS = 20        # of an offset, before the suffix
DIALECTS: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (KAFKA, TAGGED)}


def dialect_of(path: str | os.PathLike[str]) -> Dialect:
    """Return the dialect of a segment's file, in any state (names.STATES), by its name."""
    name = os.fspath(path).rpartition(os.sep)[2]
    return TAGGED if name.startswith((TAGGED.log, TAGGED.offset_index), _DIGITS) else KAFKA


def dialect_of_config(config: LogConfig) -> Dialect:
    """Return the dialect in which a log with this configuration is written."""
    return DIALECTS[config.message_dialect]


def beside(log: Path, suffix: str) -> Path:
    """Return the path of the segment's file with that suffix, in the log's state (names.STATES); it need not exist."""
    stem, _, state = log.name.rpartition(dialect_of(log).log)
    return log.with_name(stem + suffix + state)


def text_beside(log: str | os.PathLike[str], suffix: str) -> str:
    """Return the same as text: for the files of many segments, because making a Path costs as much as a system call."""
    text = os.fspath(log)
    stem, _, state = text.rpartition(dialect_of(text).log)
    return stem + suffix + state


def segment_files(log: str | os.PathLike[str]) -> list[Path]:
    """Return the existing files of the segment whose log is at `log`; the log first."""
    dialect = dialect_of(log)
    stem = dialect.stem(log)
    return [Path(path) for suffix in dialect.suffixes if os.path.lexists(path := stem + suffix)]
