"""The two dialects that a partition directory can be in: what its files are called, and how kernels read them.

    KAFKA     .log .index .timeindex and others     batches of v0, v1 and v2
    TAGGED    .tlog .tindex                         messages with tags: docs/formats/tagged_message.md

A magic byte of 1 means another format in each, so the bytes never tell: the name of a file does (`dialect_of`), and a
setting that the directory keeps (state.directory_dialect). Code that has a path or a configuration asks here:
one value holds everything that differs.
"""
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from seglog._kernels.index_build import IndexBuilder
from seglog._kernels.window import Window
from seglog.config import LogConfig
from seglog.format import names

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class Dialect:
    """Suffixes, and what the entries of indexes look like. `log`: of the files with records.

    `offset_index`, `time_index`: the same file where one index says both. `other_indexes`: what a segment may have
    beside. `has_producers`: batches may name a producer, so that a log keeps snapshots and aborted transactions.
    """

    name: str               # as message.dialect says it
    log: str
    offset_index: str
    time_index: str
    offset_entry: str       # as struct has it, of (relative offset, position)
    time_entry_bytes: int
    other_indexes: tuple[str, ...] = ()
    is_tagged: bool = False
    has_producers: bool = True
    # Made of those above, once: each roll asks.
    offset_entry_bytes: int = field(init=False)
    has_one_index: bool = field(init=False)             # the offset index says the times, too
    own_indexes: tuple[str, ...] = field(init=False)    # of the files that every segment has beside its log
    indexes: tuple[str, ...] = field(init=False)        # of all files that belong to a segment, but its log
    suffixes: tuple[str, ...] = field(init=False)       # of all of them, the log first

    def __post_init__(self) -> None:
        has_one = self.time_index == self.offset_index
        own = (self.offset_index,) if has_one else (self.offset_index, self.time_index)
        object.__setattr__(self, "offset_entry_bytes", struct.calcsize(self.offset_entry))
        object.__setattr__(self, "has_one_index", has_one)
        object.__setattr__(self, "own_indexes", own)
        object.__setattr__(self, "indexes", (*own, *self.other_indexes))
        object.__setattr__(self, "suffixes", (self.log, *self.indexes))

    def log_name(self, base_offset: int, state: str = "") -> str:
        """The name of a segment's log."""
        return names.file_name(base_offset, self.log, state)

    def stem(self, log: str | os.PathLike[str]) -> str:
        """The path of a log without its suffix, to which those of its indexes are added."""
        return os.fspath(log).removesuffix(self.log)

    def window(self, buffer: "Buffer", path: str | os.PathLike[str] | None = None, size: int = -1) -> Window:
        """Bytes of a log or of an index, for kernels. `path`: for errors."""
        return Window(buffer, None if path is None else os.fspath(path), size, is_tagged=self.is_tagged)

    def index_builder(self, base_offset: int, config: LogConfig, *, is_bounded: bool = True) -> IndexBuilder:
        """What makes the indexes of a segment. Not `is_bounded`: larger than segment.index.bytes, too."""
        return IndexBuilder(
            base_offset, config.index_interval_bytes, is_tagged=self.is_tagged,
            max_index_bytes=config.segment_index_bytes if is_bounded else -1,
        )

    def index_files(
        self, offset_index: bytes | None, time_index: bytes | None, minute_index: bytes | None = None
    ) -> dict[str, bytes | None]:
        """What these files hold, by suffix: those that this dialect has, of what an IndexBuilder makes."""
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
    """That of a segment's file, in whatever state (names.STATES), by its name."""
    name = os.fspath(path).rpartition(os.sep)[2]
    return TAGGED if name.startswith((TAGGED.log, TAGGED.offset_index), _DIGITS) else KAFKA


def dialect_of_config(config: LogConfig) -> Dialect:
    """That in which a log with this configuration is written."""
    return DIALECTS[config.message_dialect]


def beside(log: Path, suffix: str) -> Path:
    """The segment's file with that suffix, there or not: beside the log, in the same state (names.STATES)."""
    stem, _, state = log.name.rpartition(dialect_of(log).log)
    return log.with_name(stem + suffix + state)


def segment_files(log: str | os.PathLike[str]) -> list[Path]:
    """The files of the segment whose log is at `log`, as far as they are there; the log first."""
    dialect = dialect_of(log)
    stem = dialect.stem(log)
    return [Path(path) for suffix in dialect.suffixes if os.path.lexists(path := stem + suffix)]
