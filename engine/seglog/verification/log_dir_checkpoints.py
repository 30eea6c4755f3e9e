"""What the checkpoint files of a log dir say of one of its partitions."""
import os
from functools import lru_cache
from pathlib import Path

from seglog.errors import StorageError
from seglog.format import names
from seglog.fs.mapping import read_file
from seglog.fs.partition_locks import names_of
from seglog.state.checkpoints import TopicPartition, parse_offsets_or_none
from seglog.state.clean_marks import PERIOD_FILE

# Files of a log dir that a broker or a seglog writer has used.
_LOG_DIR_FILES = (names.CLEAN_SHUTDOWN, PERIOD_FILE, names.META_PROPERTIES, *names.OFFSET_CHECKPOINTS)


class LogDirCheckpoints:
    """The lines of one partition. `place`: its directory as the log dir names it; None if the directory above is no log
    dir: then this is a copy."""

    def __init__(self, directory: Path) -> None:
        self.place = next(
            (place for place in names_of(directory) if any((place.parent / file).exists() for file in _LOG_DIR_FILES)),
            None,
        )
        parsed = None if self.place is None else names.parse_partition_dir(self.place.name)
        self.is_metadata_log = parsed is not None and parsed.topic == names.METADATA_TOPIC
        # (The metadata log is not LogManager's, which writes these files; a marked directory has no line.)
        has_lines = parsed is not None and not parsed.mark and not self.is_metadata_log
        self._where = (parsed.topic, parsed.partition) if parsed is not None and has_lines else None

    def offset(self, checkpoint: str) -> int | None:
        """The partition's line in one of names.OFFSET_CHECKPOINTS; None if it has none, or the file cannot be read."""
        if self.place is None or self._where is None:
            return None
        return offsets_in(self.place.parent / checkpoint).get(self._where)


def offsets_in(path: Path) -> dict[TopicPartition, int]:
    """The lines of a checkpoint file; empty if it is missing or cannot be read: to Kafka all offsets are 0 then."""
    try:
        return _parsed(read_file(path), os.fspath(path))
    except (FileNotFoundError, StorageError):
        return {}


@lru_cache(8)       # of each partition of a log dir it is the same file
def _parsed(raw: bytes, path: str) -> dict[TopicPartition, int]:
    return parse_offsets_or_none(raw, path) or {}
