"""The shape that Kafka's checkpoint files share (CheckpointFile.java): a version, a count, as many lines.

UTF-8 text, one value a line, each line ended by a line feed; a file is replaced whole, never edited.
"""
import os
from collections.abc import Sequence

from seglog.errors import CorruptCheckpointError, UnsupportedVersionError

VERSION = 0


def parse_checkpoint(text: str, file: str | os.PathLike[str] | None) -> list[str]:
    """The lines behind version and count. Raises CorruptCheckpointError, UnsupportedVersionError."""
    if not text:
        return []       # made, never written: Kafka reads no entries too
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if len(lines) < 2:
        raise CorruptCheckpointError(f"{len(lines)} lines where a version and a count begin", file=file)
    version, count = parse_int(lines[0], file, 1), parse_int(lines[1], file, 2)
    if version != VERSION:
        raise UnsupportedVersionError(f"version {version}, this release reads {VERSION}", file=file)
    if count != len(lines) - 2:
        raise CorruptCheckpointError(f"{len(lines) - 2} entries where the second line says {count}", file=file)
    return lines[2:]


def format_checkpoint(entries: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in (VERSION, len(entries), *entries))


def parse_int(text: str, file: str | os.PathLike[str] | None, line: int) -> int:
    try:
        if text.strip() != text or "_" in text:
            raise ValueError
        return int(text)
    except ValueError:
        raise CorruptCheckpointError(f"line {line}: {text[:80]!r} is no number", file=file) from None


def decode(raw: bytes, file: str | os.PathLike[str] | None) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as e:
        raise CorruptCheckpointError("not UTF-8 text", file=file, position=e.start) from None
