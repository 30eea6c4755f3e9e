"""The checkpoint files of a log dir: one offset per partition. docs/formats/checkpoints.md.

`recovery-point-offset-checkpoint` (flushed up to), `replication-offset-checkpoint` (high watermarks),
`log-start-offset-checkpoint` (KIP-107), `cleaner-offset-checkpoint`: Kafka's OffsetCheckpointFile.
Their names: `seglog.format.names`. Each file is for all partitions: a writer must merge its lines, under a lock
(state.log_dir_state).
"""
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from seglog.errors import CorruptCheckpointError
from seglog.fs.mapping import read_file
from seglog.logger import Logger
from seglog.state.text_files import checkpoint_head, decode, parse_checkpoint, parse_int

_LOG = Logger(__name__)

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
            raise CorruptCheckpointError(f"line {number}: {where[0]}-{where[1]} appears twice", file=file)
        offsets[where] = parse_int(fields[2], file, number)
    return offsets


def read_offset_checkpoint(path: Path) -> dict[TopicPartition, int]:
    """Raises FileNotFoundError if there is none, and what `parse_offset_checkpoint` raises."""
    return parse_offset_checkpoint(read_file(path), file=path)


def format_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """The bytes of the file."""
    return join_offset_checkpoint([offset_checkpoint_line(where, offset) for where, offset in offsets.items()])


def offset_checkpoint_line(where: TopicPartition, offset: int) -> bytes:
    """One line of the file."""
    return f"{where[0]} {where[1]} {offset}\n".encode()


def join_offset_checkpoint(lines: Collection[bytes]) -> bytes:
    """The bytes of the file, from its lines."""
    return checkpoint_head(len(lines)).encode() + b"".join(lines)


def offsets_or_none(path: Path) -> dict[TopicPartition, int] | None:
    """The offsets, empty if there is no file; None and a warning if it does not parse: to Kafka all are 0."""
    try:
        raw = read_file(path)
    except FileNotFoundError:
        return {}
    return parse_offsets_or_none(raw, path)


def parse_offsets_or_none(raw: bytes, file: str | os.PathLike[str]) -> dict[TopicPartition, int] | None:
    """The same from the bytes of a file."""
    try:
        return parse_offset_checkpoint(raw, file=file)
    except CorruptCheckpointError as error:
        _LOG.warning("%s: its offsets count as 0, as in Kafka", error)
        return None


def merged_offsets(
    found: Mapping[TopicPartition, int], lines: Mapping[TopicPartition, int | None]
) -> dict[TopicPartition, int]:
    """The offsets of a file with these lines changed, None for no line; other lines stay, in their order."""
    offsets = dict(found)
    for where, offset in lines.items():
        if offset is None:
            offsets.pop(where, None)
        else:
            offsets[where] = offset
    return offsets
