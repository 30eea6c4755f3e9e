"""Reads a JSON file of a log dir that only its owner may read: users and access control lists."""
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from seglog.errors import CorruptSettingsError
from seglog.format.checked_json import parse_json
from seglog.fs.mapping import read_file
from seglog.logger import Logger

_LOG = Logger(__name__)
_Parsed = TypeVar("_Parsed")


def read_owners_json(
    path: Path, what: str, name: str, version: int, make: Callable[[dict[str, Any]], _Parsed], hint: str
) -> _Parsed | None:
    """Return what `make` makes of the file's members (as in parse_json), or None if there is no file.

    `what`: what is in it, for messages. Warns if others than the owner can read or write it. Raises
    CorruptSettingsError with `hint`, also if it is no regular file; UnsupportedVersionError, StorageError.
    """
    try:
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode):
            raise CorruptSettingsError(f"the {what} of a log dir must be in a regular file", file=path, hint=hint)
        raw = read_file(path)
    except FileNotFoundError:
        return None
    if stat.S_IMODE(mode) & 0o077:
        _LOG.warning("%s can be read or written by others than its owner: chmod 600", path)
    try:
        return parse_json(raw, name, version, path, make, CorruptSettingsError)
    except CorruptSettingsError as error:
        raise CorruptSettingsError(error.what, file=path, hint=hint) from error
