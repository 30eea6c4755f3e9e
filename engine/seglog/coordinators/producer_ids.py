"""Ids for new producers, each given out once, even after a crash. `.seglog.producer_ids` in the log dir.

Ids are reserved in blocks, as by Kafka's controller: the file says where the next block begins, and is written before
the first id of a block is used. A crash loses the rest of a block. docs/formats/producer_ids.md
"""
import os
from pathlib import Path
from typing import Any

from seglog.clock import Clock
from seglog.errors import CorruptSettingsError
from seglog.format.checked_json import format_json, parse_json
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file

FILE_NAME = ".seglog.producer_ids"
FORMAT = "seglog-producer-ids"
VERSION = 1

BLOCK_SIZE = 1000       # ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE
_MAX = 2**63 - 1


class ProducerIds:
    """Gives out producer ids, each one once."""

    def __init__(self, log_dir: str | os.PathLike[str], fs: FileSystem, clock: Clock) -> None:
        self._path = Path(log_dir) / FILE_NAME
        self._fs = fs
        self._clock = clock
        self._next = self._end = 0

    def next(self) -> int:
        """A new producer id. Raises StorageError, and what `read_next_block` raises."""
        if self._next >= self._end:
            self._next = read_next_block(self._path) or first_block(self._clock)
            self._end = self._next + BLOCK_SIZE
            write_atomically(self._fs, self._path, format_json(FORMAT, VERSION, next_block=self._end))
        self._next += 1
        return self._next - 1


def read_next_block(path: Path) -> int | None:
    """Where the next block begins, or None if none has been reserved. Raises CorruptSettingsError,
    UnsupportedVersionError, StorageError."""
    try:
        raw = read_file(path)
    except FileNotFoundError:
        return None
    return parse_json(raw, FORMAT, VERSION, path, _next_block, CorruptSettingsError)


def first_block(clock: Clock) -> int:
    """The first block of a log dir. It is far above a controller's ids, which begin at 0: so if a broker and a seglog
    server use the log dir in turns, neither gives out an id that its logs know already. It is derived from the time, in
    case the file gets lost."""
    return max(clock.now_ms(), 1) * BLOCK_SIZE


def _next_block(body: dict[str, Any]) -> int:
    begin = body["next_block"]
    if not isinstance(begin, int) or isinstance(begin, bool) or not 0 <= begin <= _MAX - BLOCK_SIZE:
        raise ValueError(f"a block cannot begin at {begin!r}")
    return begin
