"""The log dir that converted partitions go into: what it says of them, so that a broker starts as after a clean stop.

What the source's checkpoints say of a partition is carried over. Once every partition in the target is known to be
whole, Kafka's mark of a clean stop stands there, and a broker trusts the indexes.
"""
import contextlib
from pathlib import Path

from seglog.errors import LogLockedError
from seglog.format import names
from seglog.fs.aside import make_directories, write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file
from seglog.log.checkpoints import offsets_or_none
from seglog.log.log_dir_state import LogDirState

_CARRIED_CHECKPOINTS = (names.REPLICATION_CHECKPOINT, names.LOG_START_OFFSET_CHECKPOINT, names.CLEANER_CHECKPOINT)


def make_log_dir(fs: FileSystem, source: Path, target: Path) -> None:
    """Make the log dir `target` where it is not there. A new one gets meta.properties: it is to stand for `source`."""
    if target.is_dir() and any(names.parse_partition_dir(child.name) for child in target.iterdir()):
        return
    make_directories(fs, target)
    ours, theirs = target / names.META_PROPERTIES, source / names.META_PROPERTIES
    if theirs.exists() and not ours.exists():
        write_atomically(fs, ours, read_file(theirs))


def carry_offsets(fs: FileSystem, source: Path, target: Path, partition: str, end_offset: int) -> None:
    """The lines of a partition, before it is in the log dir `target`: none of them lies behind its new end."""
    parsed = names.parse_partition_dir(partition)
    assert parsed is not None
    where = (parsed.topic, parsed.partition)
    with LogDirState(fs, target) as state:
        state.put_offset(names.RECOVERY_POINT_CHECKPOINT, where, end_offset)
        for checkpoint in _CARRIED_CHECKPOINTS:
            offset = (offsets_or_none(source / checkpoint) or {}).get(where)
            state.put_offset(checkpoint, where, None if offset is None else min(offset, end_offset))


def tell_log_dir(fs: FileSystem, target: Path, partition: str) -> None:
    """The partition is in the log dir `target`, and whole. A broker that came in between looks for itself."""
    with contextlib.suppress(LogLockedError), LogDirState(fs, target) as state:
        state.make_clean(target / partition)


def lower_offsets(fs: FileSystem, log_dir: Path, partition: str, end_offset: int) -> None:
    """The partition ends at `end_offset` now: no line of it lies behind that."""
    parsed = names.parse_partition_dir(partition)
    assert parsed is not None
    where = (parsed.topic, parsed.partition)
    with LogDirState(fs, log_dir) as state:
        for checkpoint in names.OFFSET_CHECKPOINTS:
            offset = state.offset(checkpoint, where)
            if offset is not None and offset > end_offset:
                state.put_offset(checkpoint, where, end_offset)


def forget_offsets(fs: FileSystem, target: Path, partition: str) -> None:
    """The partition is gone from the log dir `target`, and so are its lines."""
    parsed = names.parse_partition_dir(partition)
    assert parsed is not None
    with LogDirState(fs, target) as state:
        for checkpoint in (names.RECOVERY_POINT_CHECKPOINT, *_CARRIED_CHECKPOINTS):
            state.put_offset(checkpoint, (parsed.topic, parsed.partition), None)
