"""Reads and checks the snapshots of delayed-message indexes in a managed ledger's directory.

Read-only and without a lock: snapshots never change. Does not see messages that are in no snapshot yet.
"""
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from seglog._kernels.due_rows import DueRows
from seglog.delayed.amendments import Amendments
from seglog.delayed.bucket import BUCKET_PROPERTY
from seglog.delayed.snapshot import SegmentMetadata, bitmaps_of, decode_metadata, decode_rows
from seglog.errors import CorruptDelayedIndexError, NotALogError, SnapshotMissingError
from seglog.ledger.managed.cursor_file import CursorState, cursor_files
from seglog.ledger.managed.manifest import FILE_NAME
from seglog.ledger.snapshot_storage import LedgerSnapshotStorage, snapshot_directory


@dataclass(frozen=True, slots=True)
class StoredBucket:
    """A bucket that a cursor lists."""

    start: int
    end: int
    """ledger ids, both inclusive"""
    snapshot_id: int


@dataclass(frozen=True, slots=True)
class SnapshotProblem:
    """What is wrong with a bucket; or a snapshot that is not listed (`code` orphan: harmless, removed at opening)."""

    code: str
    file: str
    what: str


class StoredIndex:
    """The snapshots that one cursor of a managed ledger lists.

    Raises NotALogError, CorruptManifestError, UnsupportedVersionError.
    """

    def __init__(self, path: Path, state: CursorState) -> None:
        self.name = state.name
        self.directory = snapshot_directory(path, state.name)
        self._storage = LedgerSnapshotStorage(self.directory)
        self.amendments = Amendments()
        self.amendments.read(state.properties)
        self.buckets: list[StoredBucket] = []
        self._unreadable: list[str] = []
        for name, value in state.properties.items():
            if name.startswith(BUCKET_PROPERTY):
                start, _, end = name.removeprefix(BUCKET_PROPERTY).partition("_")
                if start.isdecimal() and end.isdecimal() and value.isdecimal():
                    self.buckets.append(StoredBucket(int(start), int(end), int(value)))
                else:
                    self._unreadable.append(f"{name} = {value}")
        self.buckets.sort(key=lambda bucket: bucket.start)

    def metadata(self, bucket: StoredBucket) -> list[SegmentMetadata]:
        """Return the metadata of a bucket. Raises SnapshotMissingError, CorruptDelayedIndexError."""
        return decode_metadata(self._storage.get_metadata(bucket.snapshot_id))

    def size_bytes(self, bucket: StoredBucket) -> int:
        """Return the size of a bucket's snapshot. Raises as `metadata`."""
        return self._storage.get_length(bucket.snapshot_id)

    def segments(self, bucket: StoredBucket) -> Iterator[DueRows]:
        """Yield the rows of each segment: all messages pending when the snapshot was made. Raises as `metadata`."""
        slot = 0
        while entries := self._storage.get_segments(bucket.snapshot_id, slot, slot + 1):
            yield decode_rows(entries[0], str(self.directory))
            slot += 1

    def close(self) -> None:
        self._storage.close()

    # --- checking ----------------------------------------------------------------------------

    def check(self) -> Iterator[SnapshotProblem]:
        """Read every snapshot completely, and yield what is wrong."""
        directory = os.fspath(self.directory)
        for text in self._unreadable:
            yield SnapshotProblem(CorruptDelayedIndexError.code, directory, f"not a bucket: {text}")
        last = -1
        for bucket in self.buckets:
            file = f"{directory}/ledger-{bucket.snapshot_id}"
            if bucket.start > bucket.end or bucket.start <= last:
                what = f"bucket {bucket.start} to {bucket.end} overlaps the one before it"
                yield SnapshotProblem(CorruptDelayedIndexError.code, file, what)
            last = max(last, bucket.end)
            try:
                what = self._contradiction(bucket)
            except (SnapshotMissingError, CorruptDelayedIndexError) as error:
                yield SnapshotProblem(error.code, file, error.what)
                continue
            if what:
                yield SnapshotProblem(CorruptDelayedIndexError.code, file, what)
        listed = {bucket.snapshot_id for bucket in self.buckets}
        if self.directory.is_dir():
            for orphan in sorted(set(self._storage.snapshot_ids()) - listed):
                what = "it is not listed: the next opening of the index removes it"
                yield SnapshotProblem("orphan", f"{directory}/ledger-{orphan}", what)

    def _contradiction(self, bucket: StoredBucket) -> str:
        """Describe how the metadata of a bucket and its segments differ; empty if they do not."""
        described = self.metadata(bucket)
        slot = -1
        for slot, rows in enumerate(self.segments(bucket)):
            if slot >= len(described):
                break
            says = described[slot]
            if not len(rows):
                return f"segment {slot + 1} is empty"
            if (rows[0][0], rows[len(rows) - 1][0]) != (says.min_schedule_timestamp, says.max_schedule_timestamp):
                return f"segment {slot + 1} does not have the times that its metadata says"
            held = {ledger: set(entries) for ledger, entries in rows.entries_by_ledger(0, len(rows))}
            if held != {ledger: set(bitmap) for ledger, bitmap in bitmaps_of(says).items()}:
                return f"segment {slot + 1} does not have the messages of its bitmaps"
            if any(not bucket.start <= ledger <= bucket.end for ledger in held):
                return f"segment {slot + 1} has messages of ledgers outside {bucket.start} to {bucket.end}"
        if slot + 1 != len(described):
            return f"the metadata describes {len(described)} segments, but there are {slot + 1} or more"
        return ""


def stored_indexes(path: Path) -> list[StoredIndex]:
    """Return the indexes of every cursor of a managed ledger that lists or has snapshots, or has decisions about
    messages.

    Raises as StoredIndex.
    """
    if not (path / FILE_NAME).exists():
        raise NotALogError(f"not a managed ledger: it has no {FILE_NAME}", file=path)
    found = [StoredIndex(path, CursorState.read(file)) for file in cursor_files(path)]
    return [index for index in found if index.buckets or index.amendments or index.directory.is_dir()]


