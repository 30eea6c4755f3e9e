"""`quarantine/` in a partition directory: damaged bytes that recovery took out of the log. docs/formats/quarantine.md.

A broker ignores subdirectories of a partition. Each range is a separate file with the unchanged bytes; the index beside
them says where they were. A range that is there already, by place and content, is not kept twice, so that a killed
recovery may begin again.
"""
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seglog._kernels.crc import crc32c
from seglog.errors import CorruptCheckpointError, StorageError, UnsupportedVersionError
from seglog.fs.aside import make_directories, write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file
from seglog.named_tuple import NamedTuple
from seglog.segment.positions import LostRange

if TYPE_CHECKING:
    from typing_extensions import Buffer

DIRECTORY = "quarantine"
INDEX_FILE = "index.json"
SUFFIX = ".damaged"
FORMAT = "seglog-quarantine"
VERSION = 1


class QuarantinedRange(NamedTuple):
    """One range: its file in the quarantine, its place in the log, and the offsets that may be in it.

    `last_offset` is -1 if it is unknown. `crc32c` is that of the bytes, not of any batch in them.
    """

    file: str
    segment: str
    position: int
    size_bytes: int
    first_offset: int
    last_offset: int
    reason: str
    crc32c: int


def read_quarantine(partition_dir: Path) -> tuple[QuarantinedRange, ...]:
    """The ranges in the quarantine of a partition, in the order in which they came; empty if there are none.

    Raises CorruptCheckpointError, UnsupportedVersionError.
    """
    try:
        raw = read_file(partition_dir / DIRECTORY / INDEX_FILE)
    except FileNotFoundError:
        return ()
    return parse_index(raw, file=partition_dir / DIRECTORY / INDEX_FILE)


def quarantined_offsets(partition_dir: Path) -> list[tuple[int, int]]:
    """The offsets that may be in the quarantine of a partition, as (first, last); none if it cannot be read, which
    `verify` reports."""
    try:
        return [(one.first_offset, one.last_offset) for one in read_quarantine(partition_dir)]
    except (CorruptCheckpointError, UnsupportedVersionError, StorageError):
        return []


def quarantined_bytes(partition_dir: Path) -> int:
    """The size of all files with damaged bytes; 0 if there are none, or they cannot be listed."""
    try:
        with os.scandir(partition_dir / DIRECTORY) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.name.endswith(SUFFIX))
    except OSError:
        return 0


def offsets_within(ranges: Iterable[tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    """The offsets of (first, last) ranges, both included, between `first` and `last`: in order, merged."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted((max(start, first), min(end, last)) for start, end in ranges):
        if start > end:
            continue
        if merged and start <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def put_into_quarantine(fs: FileSystem, partition_dir: Path, ranges: Iterable[tuple[LostRange, "Buffer"]]) -> None:
    """Keep the bytes of damaged ranges, durably, before they leave the log."""
    kept = list(read_quarantine(partition_dir))
    known = {one.file for one in kept}
    directory = partition_dir / DIRECTORY
    for lost, raw in ranges:
        segment, checksum = os.path.basename(lost.file), crc32c(raw)
        name = f"{Path(segment).stem}-{lost.position:010d}-{checksum:08x}{SUFFIX}"
        if name in known:
            continue
        make_directories(fs, directory)
        write_atomically(fs, directory / name, raw, like=partition_dir / segment)
        known.add(name)
        kept.append(QuarantinedRange(
            name, segment, lost.position, lost.size_bytes, lost.first_offset, lost.last_offset, lost.reason, checksum
        ))
        write_atomically(fs, directory / INDEX_FILE, format_index(kept))


# --- the index ---------------------------------------------------------------------------------


def format_index(ranges: Iterable[QuarantinedRange]) -> bytes:
    """The bytes of the index file."""
    content: dict[str, Any] = {"format": FORMAT, "version": VERSION, "ranges": [one._asdict() for one in ranges]}
    content["crc32c"] = _checksum(content)
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def parse_index(raw: bytes, *, file: str | os.PathLike[str] | None = None) -> tuple[QuarantinedRange, ...]:
    """The ranges of an index file. Raises CorruptCheckpointError, UnsupportedVersionError for a newer version."""
    try:
        content = json.loads(raw)
        if content["format"] != FORMAT:
            raise KeyError("format")
        if content["version"] != VERSION:
            raise UnsupportedVersionError(
                f"the quarantine's index has version {content['version']}, this release reads {VERSION}", file=file
            )
        stored = content.pop("crc32c")
        ranges = tuple(QuarantinedRange(**one) for one in content["ranges"])
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise _corrupt("it does not parse", file) from e
    if stored != _checksum(content):
        raise _corrupt(f"the CRC is {stored}, the content gives {_checksum(content)}", file)
    return ranges


def _checksum(content: dict[str, Any]) -> int:
    return crc32c(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def _corrupt(why: str, file: str | os.PathLike[str] | None) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"the index of a quarantine: {why}", file=file,
        hint="move the quarantine directory away: the log does not need it"
    )
