"""`.seglog.creation` in the log dir: topics that were created and may not be on the disk yet.
docs/formats/topic_creation.md

A topic is a set of partition directories, each with its id and its settings in files of their own. A broker's metadata
have all of that in a few records. Here, the first step is this file, for all topics that are created together. Their
directories follow, and their names are synced once; the files in them are synced later, and then this file goes. A
start that finds it creates what is missing.
"""
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from seglog.errors import CorruptSettingsError
from seglog.format import names
from seglog.format.checked_json import format_json, parse_json
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file
from seglog.named_tuple import NamedTuple

FILE_NAME = ".seglog.creation"
FORMAT = "seglog-topic-creation"
VERSION = 1


class Creation(NamedTuple):
    """The partitions of a topic from `first` to before `end`, and their settings."""

    topic: str
    topic_id: bytes
    first: int
    end: int
    settings: Mapping[str, str]


def mark(fs: FileSystem, log_dir: Path, creations: Sequence[Creation]) -> None:
    """Write down, durably, what is about to be created, or may not be on the disk yet. Raises StorageError."""
    write_atomically(fs, log_dir / FILE_NAME, format_json(FORMAT, VERSION, topics=[
        {"topic": one.topic, "topic_id": one.topic_id.hex(), "first": one.first, "end": one.end,
         "settings": dict(one.settings)} for one in creations
    ]))


def unmark(fs: FileSystem, log_dir: Path) -> None:
    """Remove the file: everything is on the disk. Not durably: if it comes back, nothing of it is missing. Raises
    StorageError."""
    if (log_dir / FILE_NAME).exists():
        fs.unlink(log_dir / FILE_NAME)


def read_mark(log_dir: Path, partitions_max: int) -> list[Creation]:
    """What may be incomplete after a crash. `partitions_max`: of a topic. Raises CorruptSettingsError,
    UnsupportedVersionError, StorageError."""
    path = log_dir / FILE_NAME
    try:
        raw = read_file(path)
    except FileNotFoundError:
        return []
    return parse_json(raw, FORMAT, VERSION, path, partial(_creations, partitions_max), CorruptSettingsError)


def _creations(partitions_max: int, body: dict[str, Any]) -> list[Creation]:
    return [_creation(partitions_max, one) for one in body["topics"]]


def _creation(partitions_max: int, body: dict[str, Any]) -> Creation:
    topic, topic_id, settings = body["topic"], bytes.fromhex(body["topic_id"]), body["settings"]
    first, end = body["first"], body["end"]
    if not isinstance(topic, str) or names.topic_fault(topic) is not None:
        raise ValueError(f"no topic can have the name {topic!r:.60}")
    if len(topic_id) != 16 or type(first) is not int or type(end) is not int or not 0 <= first < end:
        raise ValueError("the id or the partitions are not valid")
    if end > partitions_max:
        raise ValueError(f"{end} partitions are more than seglog.max.topic.partitions = {partitions_max}")
    if not all(isinstance(text, str) for pair in settings.items() for text in pair):
        raise ValueError("a setting is not text")
    return Creation(topic, topic_id, first, end, dict(settings))
