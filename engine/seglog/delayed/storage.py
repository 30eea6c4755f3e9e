"""Where snapshots of buckets are kept: the interface, and one in memory for tests.

A storage belongs to one tracker. It knows entries and properties as bytes and text, nothing of what they mean.
"""
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Protocol

from seglog.errors import CorruptDelayedIndexError, SeglogError, SnapshotMissingError

# What an operation on storage may end with and be tried again.
FAILURES = (SeglogError, OSError, MemoryError)
# Those of them that trying again does not mend: what the snapshot held is found in the log only.
DAMAGE = (CorruptDelayedIndexError, SnapshotMissingError)


class Properties(Protocol):
    """Who keeps a property map: a cursor, or a file."""

    @property
    def properties(self) -> dict[str, str]:
        """A copy of all properties."""
        ...

    def update_properties(self, changes: Mapping[str, str | None]) -> None:
        """Set properties, remove those that are None: all or, after a crash, none of it."""
        ...


class BucketSnapshotStorage(ABC):
    """Snapshots, each a list of entries, and a small map of properties.

    What a method has done when it returns survives a crash. A method that raises (SeglogError or OSError) may have done
    its work or not. Called from any thread, several at a time.
    """

    @abstractmethod
    def initialize(self) -> None:
        """Before anything else is called."""

    @abstractmethod
    def create_snapshot(self, metadata: Iterable[bytes], segments: Iterable[bytes]) -> int:
        """Store a snapshot's entries, metadata first; its id, which no other snapshot here ever had.

        All of `segments` is taken before the first of `metadata`, which may be known only then; and no more than a few
        segments are held at a time. What the iterables raise is raised.
        """

    @abstractmethod
    def get_metadata(self, snapshot_id: int) -> list[bytes]:
        """The entries that were given as metadata. Raises SnapshotMissingError."""

    @abstractmethod
    def get_segments(self, snapshot_id: int, start: int, stop: int) -> list[bytes]:
        """Segments [start, stop), the first of a snapshot is 0. Raises SnapshotMissingError."""

    @abstractmethod
    def get_length(self, snapshot_id: int) -> int:
        """Bytes that the snapshot takes. Raises SnapshotMissingError."""

    @abstractmethod
    def delete_snapshot(self, snapshot_id: int) -> None:
        """Delete a snapshot; nothing if there is none."""

    @abstractmethod
    def snapshot_ids(self) -> list[int]:
        """Every snapshot that is stored, listed in the properties or not: what is not is an orphan of a crash."""

    @abstractmethod
    def properties(self) -> dict[str, str]:
        """A copy of all properties."""

    @abstractmethod
    def update_properties(self, changes: Mapping[str, str | None]) -> None:
        """Set properties, remove those that are None: all or, after a crash, none of it."""

    @abstractmethod
    def close(self) -> None:
        """A second call does nothing."""


class InMemoryBucketSnapshotStorage(BucketSnapshotStorage):
    """Keeps what it is given for as long as the object lives: tests close a tracker and open the next on it."""

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
            raise SnapshotMissingError(f"no snapshot {snapshot_id}")
        return self._snapshots[snapshot_id]
