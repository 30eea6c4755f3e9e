"""The format that Kafka's checkpoint files share (CheckpointFile.java): a version, a count, and that many lines.

UTF-8 text; each line ends with a line feed; a file is replaced whole, never edited.
"""
import os
import re
from collections.abc import Sequence

from seglog.errors import CorruptCheckpointError

VERSION = 0
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")      # int() takes more than Long.parseLong


def parse_checkpoint(text: str, file: str | os.PathLike[str] | None) -> list[str]:
    """The lines after version and count. Raises CorruptCheckpointError.

    Another version is corruption, as in Kafka: there has only been one, and a flipped bit must not make the log beside
    the file unreadable.
    """
    if not text:
        return []       # created, never written: Kafka reads no entries either
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if len(lines) < 2:
        raise CorruptCheckpointError(f"expected a version and a count, found {len(lines)} lines", file=file)
    version, count = parse_int(lines[0], file, 1), parse_int(lines[1], file, 2)
    if version != VERSION:
        raise CorruptCheckpointError(f"line 1: unknown version {version}; expected {VERSION}", file=file)
    if count != len(lines) - 2:
        raise CorruptCheckpointError(f"line 2 says {count} entries, found {len(lines) - 2}", file=file)
    return lines[2:]


def format_checkpoint(entries: Sequence[str]) -> str:
    return checkpoint_head(len(entries)) + "".join(f"{line}\n" for line in entries)


def checkpoint_head(count: int) -> str:
    """The lines before the entries."""
    return f"{VERSION}\n{count}\n"


def parse_int(text: str, file: str | os.PathLike[str] | None, line: int) -> int:
    """A decimal number of at most 64 bits. Raises CorruptCheckpointError."""
    if not _NUMBER.fullmatch(text) or not -(1 << 63) <= int(text) < 1 << 63:
        raise CorruptCheckpointError(f"line {line}: {text[:80]!r} is not a number", file=file)
    return int(text)


def decode(raw: bytes, file: str | os.PathLike[str] | None) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as e:
        raise CorruptCheckpointError("not UTF-8 text", file=file, position=e.start) from None
