"""Checks names that others wrote: in a store's listing, a manifest, a journal, a marker, a checkpoint.

Such a name becomes part of a path only after `judged` has accepted it. Otherwise "../../etc/cron.d/x" in a listing
would make us write that file: a listing may come over plain HTTP, and a manifest from anybody who may put an object.
tests/format/test_foreign_names.py feeds every reader of foreign names the same list of bad ones.
"""
import enum
import os
import re

from seglog.errors import SeglogError, StorageError
from seglog.format import names

_NAME_BYTES_MAX = 255       # NAME_MAX of Linux and macOS
_SHOWN_CHARACTERS = 100


class Shape(enum.Enum):
    """The kinds of names. Each is one component of a path; the value is the kind's name in errors."""

    COMPONENT = "the name of a file or directory"
    PARTITION = "the name of a partition directory"           # orders-0, of a topic that Kafka would take
    FILE = "the name of a file of a partition"
    VERSION = "the prefix of a version"                       # v1-5f3c1e6b: docs/formats/topics_manifest.md


VERSION_PREFIX = re.compile(r"v(\d{1,18})-[0-9a-f]{8}", re.ASCII)
_FILE = re.compile(r"[A-Za-z0-9._-]+")


def judged(
    name: object, shape: Shape, file: str | os.PathLike[str] | None, error: type[SeglogError] = StorageError
) -> str:
    """Return the name if it has this shape. `file` is where it was found. Raises `error`, which says what is wrong."""
    why = _fault(name, shape)
    if why is None:
        return str(name)
    raise error(
        f"not {shape.value}: {ascii(name)[:_SHOWN_CHARACTERS]}: {why}", file=file,
        hint="nothing was written under this name: find out where it comes from before you trust the rest",
    )


def has_shape(name: str, shape: Shape) -> bool:
    """Whether `judged` would accept it: for choosing among the names of a listing."""
    return _fault(name, shape) is None


def judged_size(size_bytes: object, file: str | os.PathLike[str] | None, error: type[SeglogError]) -> int:
    """Return a file size that others stated, if it is a whole number from 0 to the largest size. Raises `error`."""
    if isinstance(size_bytes, int) and not isinstance(size_bytes, bool) and 0 <= size_bytes <= names.MAX_OFFSET:
        return size_bytes
    raise error(f"not a file size: {ascii(size_bytes)[:_SHOWN_CHARACTERS]}", file=file)


def _fault(name: object, shape: Shape) -> str | None:
    if not isinstance(name, str):
        return "it is not text"
    if not name:
        return "it is empty"
    if name in (".", ".."):
        return "it is a directory's own name"
    if "/" in name or "\0" in name:
        return "it contains a path separator" if "/" in name else "it contains a zero byte"
    try:
        if len(name.encode()) > _NAME_BYTES_MAX:
            return f"it is longer than {_NAME_BYTES_MAX} bytes"
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if shape is Shape.PARTITION:
        return _partition_fault(name)
    if shape is Shape.FILE and not _FILE.fullmatch(name):
        return "it may contain only ASCII letters, digits, '.', '_' and '-'"
    if shape is Shape.VERSION and not VERSION_PREFIX.fullmatch(name):
        return "it is not v<number>-<8 hex digits>"
    return None


def _partition_fault(name: str) -> str | None:
    parsed = names.parse_partition_dir(name)
    if parsed is None or parsed.mark or str(parsed) != name:
        return "it is not <topic>-<partition>"
    return names.topic_fault(parsed.topic)
