"""`.seglog.deletion` in the log dir: topics whose deletion has begun. docs/formats/topic_deletion.md

A topic is a set of partition directories, which are deleted one after another. A broker's metadata have its number of
partitions, and say in one record that it is deleted: directories that are left over belong to no topic. Here, the first
step is this file, for all topics that are deleted together, and a start that finds it deletes the rest.
"""
from collections.abc import Collection
from pathlib import Path
from typing import Any

from seglog.errors import CorruptSettingsError
from seglog.format import names
from seglog.format.checked_json import format_json, parse_json
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file
from seglog.named_tuple import NamedTuple

FILE_NAME = ".seglog.deletion"
FORMAT = "seglog-topic-deletion"
VERSION = 1


class Deletion(NamedTuple):
    topic: str
    topic_id: bytes


def mark(fs: FileSystem, log_dir: Path, deletions: Collection[Deletion]) -> None:
    """Write down, durably, what is about to be deleted. Raises StorageError."""
    write_atomically(fs, log_dir / FILE_NAME, format_json(FORMAT, VERSION, topics=[
        {"topic": one.topic, "topic_id": one.topic_id.hex()} for one in deletions]))


def unmark(fs: FileSystem, log_dir: Path) -> None:
    """Remove the file, durably, if there is one: the topics are gone, or stay. Raises StorageError."""
    if (log_dir / FILE_NAME).exists():
        fs.unlink(log_dir / FILE_NAME)
        fs.sync_directory(log_dir)


def read_mark(log_dir: Path) -> list[Deletion]:
    """The topics of which a crash may have left a rest. Raises CorruptSettingsError, UnsupportedVersionError,
    StorageError."""
    try:
        raw = read_file(log_dir / FILE_NAME)
    except FileNotFoundError:
        return []
    return parse_json(raw, FORMAT, VERSION, log_dir / FILE_NAME, _deletions, CorruptSettingsError)


def _deletions(body: dict[str, Any]) -> list[Deletion]:
    found = [Deletion(one["topic"], bytes.fromhex(one["topic_id"])) for one in body["topics"]]
    for topic, topic_id in found:
        if not isinstance(topic, str) or names.topic_fault(topic) is not None or len(topic_id) != 16:
            raise ValueError(f"no topic can have the name {topic!r:.60}, or its id")
    return found
