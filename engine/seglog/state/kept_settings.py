"""`.seglog.config`: the settings that are kept with a log. docs/formats/log_settings.md."""
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seglog.errors import CorruptSettingsError
from seglog.format.checked_json import format_json, parse_json
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file

FILE_NAME = ".seglog.config"
FORMAT = "seglog-log-settings"
VERSION = 1


def read_settings(directory: Path) -> dict[str, str]:
    """The settings by their names; none if there is no file.

    Raises CorruptSettingsError, UnsupportedVersionError, StorageError.
    """
    path = directory / FILE_NAME
    try:
        raw = read_file(path)
    except FileNotFoundError:
        return {}
    return parse_settings(raw, path)


def parse_settings(raw: bytes, path: Path) -> dict[str, str]:
    """Raises CorruptSettingsError, UnsupportedVersionError."""
    return parse_json(raw, FORMAT, VERSION, path, _settings, CorruptSettingsError)


def put_settings(fs: FileSystem, directory: Path, settings: Mapping[str, str]) -> None:
    """Replace the settings in the file, durably. Raises StorageError, and leaves the file unchanged."""
    write_atomically(fs, directory / FILE_NAME, settings_to_bytes(settings))


def settings_to_bytes(settings: Mapping[str, str]) -> bytes:
    return format_json(FORMAT, VERSION, settings=dict(settings))


def _settings(body: dict[str, Any]) -> dict[str, str]:
    settings = body["settings"]
    if not all(isinstance(text, str) for pair in settings.items() for text in pair):
        raise ValueError("a setting is not text")
    return dict(settings)
