"""JSON objects that know whether they are whole: what a conversion on Spark keeps in its workplace.

docs/formats/spark_workplace.md. One object a file: `format` and `version` say what it is, `crc32c` covers the rest.
"""
import json
from collections.abc import Mapping
from typing import Any

from seglog._kernels.crc import crc32c
from seglog.errors import CorruptCheckpointError, UnsupportedVersionError

VERSION = 1


def to_bytes(kind: str, body: Mapping[str, Any]) -> bytes:
    """The bytes of a file of format `kind`."""
    whole = {"format": kind, "version": VERSION, **body}
    return _text({**whole, "crc32c": crc32c(_text(whole))}) + b"\n"


def parse(kind: str, raw: bytes, file: str) -> dict[str, Any]:
    """The members but `format`, `version` and `crc32c`.

    Raises CorruptCheckpointError where the file is torn or of another format, UnsupportedVersionError for a newer one.
    """
    try:
        body = json.loads(raw)
        found = body.pop("crc32c")
        if body["version"] > VERSION:
            raise UnsupportedVersionError(f"version {body['version']} of {kind}, expected {VERSION}", file=file)
        if found != crc32c(_text(body)) or body.pop("format") != kind:
            raise ValueError("the checksum does not match")
        del body["version"]
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise CorruptCheckpointError(
            f"no whole {kind}: {e}", file=file, hint="roll the conversion back with --rollback, and begin again"
        ) from e
    return dict(body)


def _text(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
