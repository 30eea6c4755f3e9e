"""Storage of bucket snapshots: the interface, and an implementation in memory for tests.

A storage belongs to one tracker. It treats entries and properties as bytes and text, without knowing their meaning.
"""
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Protocol

from seglog.errors import CorruptDelayedIndexError, SeglogError, SnapshotMissingError

# The errors after which an operation on storage is retried.
FAILURES = (SeglogError, OSError, MemoryError)
# The errors that a retry cannot repair: the snapshot's messages can be found only in the log.
DAMAGE = (CorruptDelayedIndexError, SnapshotMissingError)


class Properties(Protocol):
    """An owner of a property map: a cursor, or a file."""

    @property
    def properties(self) -> dict[str, str]:
        """Return a copy of all properties."""
        ...

    def update_properties(self, changes: Mapping[str, str | None]) -> None:
        """Set properties, and remove those that are None. After a crash, all or none of them have changed."""
        ...


class BucketSnapshotStorage(ABC):
    """Snapshots, each a list of entries, and a small map of properties.

    The effect of a method that has returned survives a crash. A method that raises (SeglogError or OSError) may or may
    not have done its work. Methods are called from any thread, several at a time.
    """

    @abstractmethod
    def initialize(self) -> None:
        """Prepare the storage; called before everything else."""

    @abstractmethod
    def create_snapshot(self, metadata: Iterable[bytes], segments: Iterable[bytes]) -> int:
        """Store a snapshot's entries, metadata first; return its id, which no other snapshot here ever had.

        All of `segments` is consumed before the first of `metadata`, which may be known only then; and only a few
        segments are held at a time. Exceptions of the iterables are passed on.
        """

    @abstractmethod
    def get_metadata(self, snapshot_id: int) -> list[bytes]:
        """Return the entries that were given as metadata. Raises SnapshotMissingError."""

    @abstractmethod
    def get_segments(self, snapshot_id: int, start: int, stop: int) -> list[bytes]:
        """Return the segments [start, stop), counted from 0. Raises SnapshotMissingError."""

    @abstractmethod
    def get_length(self, snapshot_id: int) -> int:
        """Return the bytes that the snapshot takes. Raises SnapshotMissingError."""

    @abstractmethod
    def delete_snapshot(self, snapshot_id: int) -> None:
        """Delete a snapshot; has no effect if there is none."""

    @abstractmethod
    def snapshot_ids(self) -> list[int]:
        """Return every stored snapshot, listed in the properties or not: those not listed are orphans of a crash."""

    @abstractmethod
    def properties(self) -> dict[str, str]:
        """Return a copy of all properties."""

    @abstractmethod
    def update_properties(self, changes: Mapping[str, str | None]) -> None:
        """Set properties, and remove those that are None. After a crash, all or none of them have changed."""

    @abstractmethod
    def close(self) -> None:
        """Close the storage. Idempotent."""


class InMemoryBucketSnapshotStorage(BucketSnapshotStorage):
    """Keeps everything in memory as long as the object lives: tests close a tracker and open the next one on it."""

    def __init__(self, first_id: int = 1) -> None:
        self._next_id = first_id
        self._snapshots: dict[int, tuple[list[bytes], list[bytes]]] = {}
        self._lengths: dict[int, int] = {}
        self._properties: dict[str, str] = {}

    def initialize(self) -> None:
        pass

    def create_snapshot(self, metadata: Iterable[bytes], segments: Iterable[bytes]) -> int:
        snapshot_id = self._next_id
        self._next_id += 1
        held = list(segments)
        described = list(metadata)
        self._snapshots[snapshot_id] = (described, held)
        self._lengths[snapshot_id] = sum(map(len, described)) + sum(map(len, held))
        return snapshot_id

    def get_metadata(self, snapshot_id: int) -> list[bytes]:
        return list(self._find(snapshot_id)[0])

    def get_segments(self, snapshot_id: int, start: int, stop: int) -> list[bytes]:
        return self._find(snapshot_id)[1][start:stop]

    def get_length(self, snapshot_id: int) -> int:
        self._find(snapshot_id)
        return self._lengths[snapshot_id]

    def delete_snapshot(self, snapshot_id: int) -> None:
        self._snapshots.pop(snapshot_id, None)
        self._lengths.pop(snapshot_id, None)

    def snapshot_ids(self) -> list[int]:
        return list(self._snapshots)

    def properties(self) -> dict[str, str]:
        return dict(self._properties)

    def update_properties(self, changes: Mapping[str, str | None]) -> None:
        for name, value in changes.items():
            if value is None:
                self._properties.pop(name, None)
            else:
                self._properties[name] = value

    def close(self) -> None:
        pass

    def _find(self, snapshot_id: int) -> tuple[list[bytes], list[bytes]]:
        if snapshot_id not in self._snapshots:
            raise SnapshotMissingError(f"there is no snapshot {snapshot_id}")
        return self._snapshots[snapshot_id]
