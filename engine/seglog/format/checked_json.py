"""seglog's small files: one JSON object on a line, with its format's name, its version and its checksum.

    {"crc32c": 1234567890, "format": "seglog-partition-mark", "period": ..., "state": "dirty", "version": 1}

The checksum is the CRC-32C of the object without it, as JSON text with sorted keys, without spaces, non-ASCII escaped:
so a tool may rewrite the file with other white space, and the checksum stays the same.
"""
import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

from seglog._kernels.crc import crc32c
from seglog.errors import CorruptCheckpointError, SeglogError, UnsupportedVersionError

_Parsed = TypeVar("_Parsed")


def format_json(name: str, version: int, /, *, indent: int | None = None, **members: object) -> bytes:
    """Return the bytes of the file; `indent` makes it readable for people."""
    body = {"format": name, "version": version, **members}
    return json.dumps({**body, "crc32c": _crc(body)}, indent=indent, sort_keys=True).encode() + b"\n"


def parse_json(
    raw: bytes | str,
    name: str,
    version: int,
    file: str | os.PathLike[str] | None,
    make: Callable[[dict[str, Any]], _Parsed],
    error: type[SeglogError] = CorruptCheckpointError,
    *,
    oldest: int | None = None,
) -> _Parsed:
    """Return the result of `make` for the members. It may raise ValueError, KeyError, TypeError or AttributeError.

    Raises `error` if the file is not one of `name`, UnsupportedVersionError if it has another version; if `oldest` is
    given, all versions from it on are accepted.
    """
    try:
        body = json.loads(raw)
        crc = body.pop("crc32c")
        if crc != _crc(body) or body["format"] != name:
            raise ValueError("the checksum does not match")
        # After the checksum: a flipped bit must not look like a file of a newer seglog.
        if not (version if oldest is None else oldest) <= body["version"] <= version:
            raise UnsupportedVersionError(f"version {body['version']} of {name}, expected {version}", file=file)
        return make(body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise error(f"not a {name} file: {e}", file=file) from e


def _crc(body: dict[str, object]) -> int:
    return crc32c(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
