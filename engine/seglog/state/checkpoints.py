"""The checkpoint files of a log dir: an offset a partition. docs/formats/checkpoints.md.

`recovery-point-offset-checkpoint` (flushed up to), `replication-offset-checkpoint` (high watermarks),
`log-start-offset-checkpoint` (KIP-107), `cleaner-offset-checkpoint`: Kafka's OffsetCheckpointFile.
Their names: `seglog.format.names`. One file speaks for all partitions: who writes merges, under a lock
(state.log_dir_state).
"""
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from seglog.errors import CorruptCheckpointError
from seglog.format import names
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file
from seglog.state.text_files import decode, format_checkpoint, parse_checkpoint, parse_int

_LOG = logging.getLogger(__name__)

TopicPartition = tuple[str, int]


def parse_offset_checkpoint(
    raw: bytes, *, file: str | os.PathLike[str] | None = None
) -> dict[TopicPartition, int]:
    """(topic, partition) -> offset, in the file's order. Raises CorruptCheckpointError."""
    offsets: dict[TopicPartition, int] = {}
    for number, line in enumerate(parse_checkpoint(decode(raw, file), file), start=3):
        fields = line.split(" ")
        if len(fields) != 3 or not fields[0]:
            raise CorruptCheckpointError(
                f"line {number}: {line[:80]!r} is not `<topic> <partition> <offset>`", file=file)
        where = (fields[0], parse_int(fields[1], file, number))
        if where in offsets:
            raise CorruptCheckpointError(f"line {number}: {where[0]}-{where[1]} stands twice", file=file)
        offsets[where] = parse_int(fields[2], file, number)
    return offsets


def read_offset_checkpoint(path: Path) -> dict[TopicPartition, int]:
    """Raises FileNotFoundError where there is none, and what `parse_offset_checkpoint` raises."""
    return parse_offset_checkpoint(read_file(path), file=path)


def format_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """The bytes of the file."""
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    return format_checkpoint(lines).encode()


def offsets_or_none(path: Path) -> dict[TopicPartition, int] | None:
    """The offsets, empty where there is no file; None and a warning where it does not parse: to Kafka all are 0."""
    try:
        raw = read_file(path)
    except FileNotFoundError:
        return {}
    return parse_offsets_or_none(raw, path)


def parse_offsets_or_none(raw: bytes, file: str | os.PathLike[str]) -> dict[TopicPartition, int] | None:
    """The same of the bytes of a file."""
    try:
        return parse_offset_checkpoint(raw, file=file)
    except CorruptCheckpointError as error:
        _LOG.warning("%s: its offsets are taken for 0, as Kafka does", error)
        return None


def merged_offsets(
    found: Mapping[TopicPartition, int], lines: Mapping[TopicPartition, int | None]
) -> dict[TopicPartition, int]:
    """The offsets of a file with these lines in it, None for no line; the lines of others stay, in their order."""
    offsets = dict(found)
    for where, offset in lines.items():
        if offset is None:
            offsets.pop(where, None)
        else:
            offsets[where] = offset
    return offsets


def merge_offset(fs: FileSystem, path: Path, where: TopicPartition, offset: int | None) -> bool:
    """Let one partition's line say `offset`, or be gone; the lines of others stay. The caller holds a lock.

    False where it says so already. Else it is durable when the caller has synced the directory.
    A file that does not parse is kept beside as `<name>.bak`: its other lines cannot be.
    """
    found = offsets_or_none(path)
    offsets = merged_offsets(found or {}, {where: offset})
    if offsets == found:
        return False
    backup = None
    if found is None:
        backup = path.with_name(path.name + names.BACKUP_SUFFIX)
        _LOG.warning("%s: kept as %s, and begun anew", path, backup.name)
    write_atomically(fs, path, format_offset_checkpoint(offsets), backup=backup, sync_names=False)
    return True
