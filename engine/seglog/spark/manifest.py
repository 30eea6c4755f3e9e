"""The current version of each partition in an object store: one object, put last, and the objects that it names.

    DST/seglog-manifest.json            {"partitions": {"orders-0": "v1-5f3c1e6b", ...}}
    DST/v1-5f3c1e6b/orders-0/...        the files of the partition, under Kafka's names
    DST/v1-5f3c1e6b/orders-0.files      their names and sizes: any other objects were left by an attempt that died
    DST/v1-5f3c1e6b/meta.properties     and checkpoints of the log dir, for the partitions of this version

Putting the manifest is the single step that makes a conversion visible. docs/formats/topics_manifest.md.
"""
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from seglog.errors import CorruptCheckpointError, NotALogError
from seglog.format.checked_json import format_json, parse_json
from seglog.format.foreign_names import VERSION_PREFIX, Shape, has_shape, judged, judged_size
from seglog.stores.store import Store, in_workplace

MANIFEST_FILE = "seglog-manifest.json"
VERSION = 1
_MANIFEST, _FILES = "seglog-topics-manifest", "seglog-partition-files"


@dataclass(frozen=True, slots=True)
class TopicsManifest:
    """`partitions`: {name: prefix of the current version}. `serial` grows by one with each manifest that is put."""

    serial: int = 0
    partitions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, store: Store, path: str) -> "TopicsManifest":
        """The manifest of the log dir `path`; an empty one if there is none. Raises CorruptCheckpointError,
        UnsupportedVersionError, StorageError.
        """
        file = f"{path}/{MANIFEST_FILE}"
        raw = store.read(file)
        return cls() if raw is None else cls.parse(raw, file)

    @classmethod
    def parse(cls, raw: bytes, file: str) -> "TopicsManifest":
        def make(body: dict[str, Any]) -> "TopicsManifest":
            partitions = dict(body["partitions"])
            for name, prefix in partitions.items():
                judged(name, Shape.PARTITION, file, CorruptCheckpointError)
                judged(prefix, Shape.VERSION, file, CorruptCheckpointError)
            return cls(int(body["serial"]), partitions)

        return parse_json(raw, _MANIFEST, VERSION, file, make)

    def to_bytes(self) -> bytes:
        return format_json(_MANIFEST, VERSION, serial=self.serial, partitions=dict(sorted(self.partitions.items())))

    def replaced(self, partitions: Mapping[str, str | None]) -> "TopicsManifest":
        """The next manifest, with new prefixes for these partitions; None for a removed partition."""
        merged = {**self.partitions, **partitions}
        return TopicsManifest(self.serial + 1, {name: prefix for name, prefix in merged.items() if prefix is not None})

    def next_prefix(self, directories: list[str]) -> str:
        """A new prefix: no version in the manifest or in the log dir has it, and none had it before."""
        found = map(VERSION_PREFIX.fullmatch, (*self.partitions.values(), *directories))
        last = max((int(match[1]) for match in found if match), default=0)
        return f"v{last + 1}-{secrets.token_hex(4)}"


def is_prefix(name: str) -> bool:
    """Whether the name of a directory in a log dir is a version's prefix."""
    return has_shape(name, Shape.VERSION)


def removable(path: str) -> str:
    """Return `path`, which must be the manifest, or in a workplace or a version: nothing else is ever removed.

    Raises ValueError.
    """
    *directories, name = path.split("/")
    return path if name == MANIFEST_FILE or any(map(is_prefix, directories)) else in_workplace(path)


def files_path(directory: str) -> str:
    """The path of the list of a partition's files, next to its directory."""
    return f"{directory}.files"


def files_to_bytes(files: Mapping[str, int]) -> bytes:
    """The list: {name: bytes}."""
    return format_json(_FILES, VERSION, files=dict(files))


def read_files(store: Store, directory: str) -> dict[str, int]:
    """The list of the partition at `directory`. Raises CorruptCheckpointError, UnsupportedVersionError, StorageError,
    NotALogError if there is none.
    """
    path = files_path(directory)
    raw = store.read(path)
    if raw is None:
        raise NotALogError("the manifest names a partition that does not exist", file=directory)
    return parse_json(raw, _FILES, VERSION, path, lambda body: judged_files(body["files"], path))


def judged_files(files: dict[str, Any], file: str) -> dict[str, int]:
    """{name: bytes} of a partition's files, read from `file`, once checked. Raises CorruptCheckpointError."""
    return {
        judged(name, Shape.FILE, file, CorruptCheckpointError): judged_size(size_bytes, file, CorruptCheckpointError)
        for name, size_bytes in files.items()
    }
