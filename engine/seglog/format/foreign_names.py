"""The judge of names that somebody else wrote: a store's listing, a manifest, a journal, a marker, a checkpoint.

Such a name becomes part of a path only after `judged` has let it pass. "../../etc/cron.d/x" in a listing would
otherwise be a file that we write there: a listing may come over plain HTTP, and a manifest from anybody who may put
an object. tests/format/test_foreign_names.py feeds every reader of foreign names the same list of bad ones.
"""
import enum
import os
import re

from seglog.errors import SeglogError, StorageError
from seglog.format import names

_NAME_BYTES_MAX = 255       # NAME_MAX of Linux and macOS
_SHOWN_CHARACTERS = 100


class Shape(enum.Enum):
    """What a name is to be. Each is one component of a path; the value says what it is called in an error."""

    COMPONENT = "a name of a file or directory"
    PARTITION = "a name of a partition directory"           # orders-0, of a topic that Kafka would take
    FILE = "a name of a file of a partition"
    VERSION = "a prefix of a version"                       # v1-5f3c1e6b: docs/formats/topics_manifest.md


VERSION_PREFIX = re.compile(r"v(\d{1,18})-[0-9a-f]{8}", re.ASCII)
_FILE = re.compile(r"[A-Za-z0-9._-]+")


def judged(
    name: object, shape: Shape, file: str | os.PathLike[str] | None, error: type[SeglogError] = StorageError
) -> str:
    """The name, which is of this shape. `file` is where it stood. Raises `error`, which says what is wrong with it."""
    why = _fault(name, shape)
    if why is None:
        return str(name)
    raise error(
        f"not {shape.value}: {ascii(name)[:_SHOWN_CHARACTERS]}: {why}", file=file,
        hint="nothing was written under this name: find out where it comes from before you trust the rest",
    )


def has_shape(name: str, shape: Shape) -> bool:
    """Whether `judged` would let it pass: for choosing among the names of a listing."""
    return _fault(name, shape) is None


def judged_size(size_bytes: object, file: str | os.PathLike[str] | None, error: type[SeglogError]) -> int:
    """The size of a file, as somebody else told it: a whole number from 0 to the longest file. Raises `error`."""
    if isinstance(size_bytes, int) and not isinstance(size_bytes, bool) and 0 <= size_bytes <= names.MAX_OFFSET:
        return size_bytes
    raise error(f"not a size of a file: {ascii(size_bytes)[:_SHOWN_CHARACTERS]}", file=file)


def _fault(name: object, shape: Shape) -> str | None:
    if not isinstance(name, str):
        return "it is no text"
    if not name:
        return "it is empty"
    if name in (".", ".."):
        return "it is a directory's own name"
    if "/" in name or "\0" in name:
        return "it holds a separator of a path" if "/" in name else "it holds a zero byte"
    try:
        if len(name.encode()) > _NAME_BYTES_MAX:
            return f"it is longer than {_NAME_BYTES_MAX} bytes"
    except UnicodeEncodeError:
        return "it is no Unicode text"
    if shape is Shape.PARTITION:
        return _partition_fault(name)
    if shape is Shape.FILE and not _FILE.fullmatch(name):
        return "it may hold ASCII letters, digits, '.', '_' and '-' only"
    if shape is Shape.VERSION and not VERSION_PREFIX.fullmatch(name):
        return "it is not v<number>-<8 hex digits>"
    return None


def _partition_fault(name: str) -> str | None:
    parsed = names.parse_partition_dir(name)
    if parsed is None or parsed.mark or str(parsed) != name:
        return "it is not <topic>-<partition>"
    return names.topic_fault(parsed.topic)
