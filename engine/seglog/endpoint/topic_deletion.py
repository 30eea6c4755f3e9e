"""`.seglog.deletion`: the mark of a topic whose deletion has begun. docs/formats/topic_deletion.md

A topic is a set of partition directories, which are deleted one after another. A broker's metadata have its number of
partitions, and say in one record that it is deleted: directories that are left over belong to no topic. Here, the first
step of a deletion is this file in the last partition, which is deleted last: the next start finds it there, and deletes
the rest.
"""
from pathlib import Path
from typing import Any

from seglog.errors import CorruptSettingsError
from seglog.format.checked_json import format_json, parse_json
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file

FILE_NAME = ".seglog.deletion"
FORMAT = "seglog-topic-deletion"
VERSION = 1


def mark(fs: FileSystem, directory: Path, topic: str, topic_id: bytes) -> None:
    """Write the mark into the topic's last partition, durably. Raises StorageError."""
    write_atomically(fs, directory / FILE_NAME, format_json(FORMAT, VERSION, topic=topic, topic_id=topic_id.hex()))


def unmark(fs: FileSystem, directory: Path) -> None:
    """Remove the mark, if there is one: the deletion failed, and the topic stays. Raises StorageError."""
    if (directory / FILE_NAME).exists():
        fs.unlink(directory / FILE_NAME)
        fs.sync_directory(directory)


def is_marked(directory: Path, topic: str, topic_id: bytes) -> bool:
    """Whether the deletion of this topic has begun. The mark of another one means nothing: the directory was renamed,
    or a broker made the topic again. Raises CorruptSettingsError, UnsupportedVersionError, StorageError."""
    try:
        raw = read_file(directory / FILE_NAME)
    except FileNotFoundError:
        return False
    return parse_json(raw, FORMAT, VERSION, directory / FILE_NAME, _members, CorruptSettingsError) == (topic, topic_id)


def _members(body: dict[str, Any]) -> tuple[str, bytes]:
    return body["topic"], bytes.fromhex(body["topic_id"])
