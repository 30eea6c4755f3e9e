"""Small files of ours: one JSON object, as a line, that carries its format's name, its version and its checksum.

    {"crc32c": 1234567890, "format": "seglog-partition-mark", "period": ..., "state": "dirty", "version": 1}

The checksum is the CRC-32C of the object without it, as JSON text with sorted keys, without spaces, non-ASCII escaped:
so whoever writes it anew with other spaces has written the same file.
"""
import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

from seglog._kernels.crc import crc32c
from seglog.errors import CorruptCheckpointError, SeglogError, UnsupportedVersionError

_Parsed = TypeVar("_Parsed")


def format_json(name: str, version: int, /, *, indent: int | None = None, **members: object) -> bytes:
    """The bytes of the file; with `indent` for people, too."""
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
    """What `make` makes of the members. It may raise ValueError, KeyError, TypeError or AttributeError.

    Raises `error` where the file is not one of `name`, UnsupportedVersionError where it is of another version; from
    `oldest` on, where that is given, versions are read.
    """
    try:
        body = json.loads(raw)
        crc = body.pop("crc32c")
        if crc != _crc(body) or body["format"] != name:
            raise ValueError("the checksum does not match")
        # Behind the checksum: a flipped bit must not look like the file of a newer seglog.
        if not (version if oldest is None else oldest) <= body["version"] <= version:
            raise UnsupportedVersionError(f"version {body['version']} of {name}, expected {version}", file=file)
        return make(body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise error(f"not a file of {name}: {e}", file=file) from e


def _crc(body: dict[str, object]) -> int:
    return crc32c(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
