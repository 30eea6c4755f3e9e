"""The checkpoints of a log dir that receives converted partitions, so that a broker starts as after a clean stop.

The source's checkpoint lines of a partition are carried over. Once every partition in the target is known to be whole,
Kafka's clean-shutdown file is put there, and a broker trusts the indexes.
"""
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

from seglog.errors import LogLockedError
from seglog.format import names
from seglog.fs.aside import make_directories, write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file
from seglog.state.checkpoints import TopicPartition, parse_offsets_or_none
from seglog.state.log_dir_state import LogDirState

_CARRIED_CHECKPOINTS = (names.REPLICATION_CHECKPOINT, names.LOG_START_OFFSET_CHECKPOINT, names.CLEANER_CHECKPOINT)


def make_log_dir(fs: FileSystem, source: Path, target: Path) -> None:
    """Make the log dir `target` if it does not exist. A new one gets the meta.properties of `source`, to replace it."""
    theirs = source / names.META_PROPERTIES
    make_log_dir_with(fs, target, read_file(theirs) if theirs.exists() else None)


def make_log_dir_with(fs: FileSystem, target: Path, meta_properties: bytes | None) -> None:
    """The same, with the contents of the source's meta.properties; None if it has none."""
    if target.is_dir() and any(names.parse_partition_dir(child.name) for child in target.iterdir()):
        return
    make_directories(fs, target)
    ours = target / names.META_PROPERTIES
    if meta_properties is not None and not ours.exists():
        write_atomically(fs, ours, meta_properties)


class LogDirOffsets:
    """The checkpoints of a log dir, read once. `read` returns a file of the log dir, None if there is none."""

    def __init__(self, log_dir: str, read: Callable[[str], bytes | None]) -> None:
        self._offsets = {
            checkpoint: parse_offsets_or_none(raw, f"{log_dir}/{checkpoint}") or {}
            for checkpoint in names.OFFSET_CHECKPOINTS if (raw := read(checkpoint)) is not None
        }

    def of(self, partition: str) -> dict[str, int]:
        """{checkpoint: offset} of the lines of a partition."""
        where = topic_partition(partition)
        return {checkpoint: lines[where] for checkpoint, lines in self._offsets.items() if where in lines}

    def carried(self, partition: str, end_offset: int) -> dict[str, int | None]:
        """The lines of a partition that now ends at `end_offset`, for another log dir: None removes a line."""
        found = self.of(partition)
        carried: dict[str, int | None] = {names.RECOVERY_POINT_CHECKPOINT: end_offset}
        for checkpoint in _CARRIED_CHECKPOINTS:
            offset = found.get(checkpoint)
            carried[checkpoint] = None if offset is None else min(offset, end_offset)
        return carried


def carry_offsets(fs: FileSystem, source: Path, target: Path, end_offsets: Mapping[str, int]) -> None:
    """Write the lines of partitions to the log dir `target` before they are there: none is past a new end."""
    def read(checkpoint: str) -> bytes | None:
        path = source / checkpoint
        return read_file(path) if path.exists() else None

    found = LogDirOffsets(str(source), read)
    with LogDirState(fs, target) as state:
        state.put_lines({
            topic_partition(partition): found.carried(partition, end) for partition, end in end_offsets.items()
        })


def put_offsets(fs: FileSystem, target: Path, offsets: Mapping[str, Mapping[str, int | None]]) -> None:
    """Write to the checkpoints of the log dir `target`: {partition: {checkpoint: offset, None for no line}}.

    Each file is written once for all partitions.
    """
    if offsets:
        with LogDirState(fs, target) as state:
            state.put_lines({topic_partition(partition): lines for partition, lines in offsets.items()})


def tell_log_dir(fs: FileSystem, target: Path, *partitions: str) -> None:
    """Mark partitions as whole in the log dir `target`. If a broker has started meanwhile, it checks them itself."""
    if partitions:
        with contextlib.suppress(LogLockedError), LogDirState(fs, target) as state:
            state.make_clean(*(target / partition for partition in partitions))


def lower_offsets(fs: FileSystem, log_dir: Path, partition: str, end_offset: int) -> None:
    """Lower the lines of a partition that now ends at `end_offset`, so that none is past that."""
    where = topic_partition(partition)
    with LogDirState(fs, log_dir) as state:
        for checkpoint in names.OFFSET_CHECKPOINTS:
            offset = state.offset(checkpoint, where)
            if offset is not None and offset > end_offset:
                state.put_offset(checkpoint, where, end_offset)


def forget_offsets(fs: FileSystem, target: Path, *partitions: str) -> None:
    """Remove the lines of partitions that were removed from the log dir `target`."""
    none: dict[str, int | None] = dict.fromkeys((names.RECOVERY_POINT_CHECKPOINT, *_CARRIED_CHECKPOINTS))
    put_offsets(fs, target, dict.fromkeys(partitions, none))


def topic_partition(directory: str) -> TopicPartition:
    """("orders", 0) from orders-0, the name of a partition directory."""
    parsed = names.parse_partition_dir(directory)
    assert parsed is not None
    return parsed.topic, parsed.partition
