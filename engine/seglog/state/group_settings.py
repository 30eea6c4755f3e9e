"""The settings that single groups have, beside those of the server. docs/formats/group_settings.md

What they mean and how large they may be is coordinators.group_settings' affair: here they are names and numbers.
"""
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seglog.errors import InvalidArgumentError
from seglog.format.checked_json import format_json
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.state.owners_json import read_owners_json

FILE_NAME = ".seglog.group_settings"
FORMAT = "seglog-group-settings"
VERSION = 1

SESSION_TIMEOUT, HEARTBEAT_INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
NAMES = (SESSION_TIMEOUT, HEARTBEAT_INTERVAL)
GROUPS_MAX = 10_000         # an entry takes about 100 bytes, and the file is written as a whole
NAME_LENGTH_MAX = 1024
VALUE_MAX = 2**31 - 1

GroupSettings = Mapping[str, Mapping[str, int]]

_HINT = "restore the file from a backup; or remove it, and set the groups' settings again"


def read_group_settings(log_dir: Path) -> dict[str, dict[str, int]]:
    """The settings by group; none if there is no file. Raises CorruptSettingsError, UnsupportedVersionError,
    StorageError."""
    found = read_owners_json(log_dir / FILE_NAME, "settings of groups", FORMAT, VERSION, _groups, _HINT)
    return {} if found is None else found


def write_group_settings(fs: FileSystem, log_dir: Path, groups: GroupSettings) -> None:
    """Replace the settings of all groups, durably; groups without settings are left out. Raises InvalidArgumentError if
    there are too many, StorageError."""
    entries = {name: dict(sorted(settings.items())) for name, settings in sorted(groups.items()) if settings}
    if len(entries) > GROUPS_MAX:
        raise InvalidArgumentError(f"at most {GROUPS_MAX} groups have settings of their own")
    write_atomically(fs, log_dir / FILE_NAME, format_json(FORMAT, VERSION, groups=entries), mode=0o600)


def _groups(body: dict[str, Any]) -> dict[str, dict[str, int]]:
    groups = body["groups"]
    if not isinstance(groups, dict) or len(groups) > GROUPS_MAX:
        raise ValueError(f"not an object of at most {GROUPS_MAX} groups")
    for name, settings in groups.items():
        if not 0 < len(name) <= NAME_LENGTH_MAX:
            raise ValueError(f"a name of a group has 1 to {NAME_LENGTH_MAX} characters")
        if not isinstance(settings, dict) or not settings or not settings.keys() <= set(NAMES):
            raise ValueError("a group has other settings than expected")
        if not all(type(value) is int and 0 < value <= VALUE_MAX for value in settings.values()):
            raise ValueError(f"a setting is a number from 1 to {VALUE_MAX}")
    return groups
