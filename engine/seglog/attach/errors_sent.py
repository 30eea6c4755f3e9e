"""Errors of seglog as they are sent to another process, and made again there."""
import os
from typing import Any

from seglog.errors import ProtocolError, SeglogError, StorageError


def error_sent(error: BaseException) -> dict[str, Any]:
    """What is sent of an error. One that is not of seglog is sent as StorageError, with its name."""
    if not isinstance(error, SeglogError):
        return {"code": StorageError.code, "what": f"the process that has the queue failed: {error!r}"[:1000]}
    file = error.file if error.file is None else os.fsdecode(error.file)
    return {"code": error.code, "what": error.what, "file": file, "position": error.position,
            "offset": error.offset, "hint": error.hint, "errno": getattr(error, "errno", None)}


def error_received(sent: object) -> SeglogError:
    """The error that was sent. Raises ProtocolError."""
    if not isinstance(sent, dict) or not isinstance(sent.get("what"), str):
        raise ProtocolError("an answer has an error that is none")
    kind = _KINDS.get(sent["code"], StorageError) if isinstance(sent.get("code"), str) else StorageError
    file, hint = sent.get("file"), sent.get("hint")
    error = kind(
        sent["what"], file=file if isinstance(file, str) else None, hint=hint if isinstance(hint, str) else None
    )
    error.position = sent["position"] if type(sent.get("position")) is int else None
    error.offset = sent["offset"] if type(sent.get("offset")) is int else None
    if isinstance(error, StorageError) and type(sent.get("errno")) is int:
        error.errno = sent["errno"]
    return error


def _kinds(kind: type[SeglogError]) -> dict[str, type[SeglogError]]:
    found = {kind.code: kind}
    for below in kind.__subclasses__():
        found |= _kinds(below)
    return found


_KINDS = _kinds(SeglogError)
