"""Which version of each partition counts, in an object store: one object, put last, and what it names.

    DST/seglog-manifest.json            {"partitions": {"orders-0": "v1-5f3c1e6b", ...}}
    DST/v1-5f3c1e6b/orders-0/...        the files of the partition, under Kafka's names
    DST/v1-5f3c1e6b/orders-0.files      their names and sizes: what else stands there an attempt left that died
    DST/v1-5f3c1e6b/meta.properties     and checkpoints of the log dir, of the partitions of this version

Putting the manifest is the one step in which a conversion comes to be seen. docs/formats/topics_manifest.md.
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
    """`partitions`: {name: prefix of the version that counts}. `serial` is one more with each manifest that is put."""

    serial: int = 0
    partitions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, store: Store, path: str) -> "TopicsManifest":
        """That of the log dir `path`; an empty one if there is none. Raises CorruptCheckpointError,
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
        """The next one, in which these have other prefixes; None for a partition that is not there any more."""
        merged = {**self.partitions, **partitions}
        return TopicsManifest(self.serial + 1, {name: prefix for name, prefix in merged.items() if prefix is not None})

    def next_prefix(self, directories: list[str]) -> str:
        """A prefix that no version has: neither here, nor among what stands in the log dir, nor that had one before."""
        found = map(VERSION_PREFIX.fullmatch, (*self.partitions.values(), *directories))
        last = max((int(match[1]) for match in found if match), default=0)
        return f"v{last + 1}-{secrets.token_hex(4)}"


def is_prefix(name: str) -> bool:
    """Whether a directory of a log dir is one of a version."""
    return has_shape(name, Shape.VERSION)


def removable(path: str) -> str:
    """`path`, which must be the manifest, or lie in a workplace or in a version: nothing else is ever removed.

    Raises ValueError.
    """
    *directories, name = path.split("/")
    return path if name == MANIFEST_FILE or any(map(is_prefix, directories)) else in_workplace(path)


def files_path(directory: str) -> str:
    """The list of the files of a partition, beside its directory."""
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
        raise NotALogError("the manifest names a partition that is not there", file=directory)
    return parse_json(raw, _FILES, VERSION, path, lambda body: judged_files(body["files"], path))


def judged_files(files: dict[str, Any], file: str) -> dict[str, int]:
    """{name: bytes} of the files of a partition, as `file` tells them. Raises CorruptCheckpointError."""
    return {
        judged(name, Shape.FILE, file, CorruptCheckpointError): judged_size(size_bytes, file, CorruptCheckpointError)
        for name, size_bytes in files.items()
    }
