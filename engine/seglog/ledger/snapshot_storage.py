"""Stores snapshots of delayed messages in ledgers: a tracker's buckets on the disk.

    storage = LedgerSnapshotStorage("topic/delayed/billing", owner=cursor, new_ledger_id=managed_ledger.new_ledger_id)
    tracker = BucketDelayedDeliveryTracker(storage)

A snapshot is a sealed ledger: entry 0 is its metadata, the segments follow. A property map, that of the cursor whose
index it is, says which snapshots are valid. docs/formats/delayed_snapshots.md.
"""
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from seglog._kernels.quick_lock import QuickLock
from seglog.clock import Clock
from seglog.delayed.storage import BucketSnapshotStorage, Properties
from seglog.errors import (
    CorruptDelayedIndexError,
    CorruptManifestError,
    CorruptRecordError,
    NotALogError,
    SnapshotMissingError,
)
from seglog.fs.aside import make_directories
from seglog.fs.files import FileSystem, WritableFile, checked_fs
from seglog.fs.mapping import Mapping as FileMapping
from seglog.fs.refusals import as_path
from seglog.ledger.ledger import DELETED_SUFFIX, Ledger, delete_ledger, remove_directory
from seglog.ledger.property_file import PropertyFile

# Besides these, Pulsar's ledgers name their bucket, topic and cursor (LedgerMetadataUtils).
COMPONENT = {"application": "pulsar", "component": "delayed-index-bucket"}
METADATA_ENTRIES = "seglog/metadata_entries"
# In a managed ledger's directory; it has a directory for each cursor that lists snapshots.
DIRECTORY = "delayed"
PREFIX = "ledger-"
SPOOL_SUFFIX = ".spool"
# Segments that wait for their metadata stay in memory up to this size: sealing needs less, large merges more.
SPOOL_FROM_BYTES = 8 << 20
# One batch of records. A reader checks a batch's checksum as a whole, once.
BATCH_BYTES = 1 << 20
# How many ledgers stay open, and how much is read from one before it is reopened, which frees its pages.
MOST_OPEN = 32
READ_BEFORE_REOPENING = 4 << 20


class LedgerSnapshotStorage(BucketSnapshotStorage):
    """The snapshots of one tracker, in their own directory.

    `owner` keeps the property map, `new_ledger_id` assigns ids; without them, a file in the directory does both. Two
    processes must not open the same directory: the owner of the cursor ensures this.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        owner: Properties | None = None,
        new_ledger_id: Callable[[], int] | None = None,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.path = Path(os.path.abspath(as_path(path)))
        self._fs = checked_fs(fs)
        self._clock = clock
        self._owner = owner
        self._new_ledger_id = new_ledger_id
        # Guards the two fields below, and is held while reading. Taken last.
        self._lock = QuickLock()
        self._open: OrderedDict[int, Ledger] = OrderedDict()
        self._read_bytes: dict[int, int] = {}

    def initialize(self) -> None:
        """Create the directory, and remove what a crash left incomplete."""
        make_directories(self._fs, self.path)
        for entry in sorted(os.listdir(self.path)):
            if entry.endswith(SPOOL_SUFFIX):
                self._fs.unlink(self.path / entry)
            elif entry.startswith(PREFIX) and entry.endswith(DELETED_SUFFIX):
                remove_directory(self._fs, self.path / entry)
        if self._owner is None or self._new_ledger_id is None:
            file = PropertyFile(self._fs, self.path)
            self._owner = self._owner or file
            self._new_ledger_id = self._new_ledger_id or file.new_ledger_id

    # --- writing -----------------------------------------------------------------------------

    def create_snapshot(self, metadata: Iterable[bytes], segments: Iterable[bytes]) -> int:
        assert self._new_ledger_id is not None
        snapshot_id = self._new_ledger_id()
        with _Spool(self._fs, self.path / f"{PREFIX}{snapshot_id}{SPOOL_SUFFIX}") as spool:
            for segment in segments:
                spool.add(segment)
            listed = list(metadata)
            # Nothing waits for the disk before the end.
            ledger = Ledger.create(
                self._directory(snapshot_id),
                snapshot_id,
                properties={**COMPONENT, METADATA_ENTRIES: str(len(listed))},
                fsync="never",
                fs=self._fs,
                clock=self._clock,
                held=True,
            )
            with ledger:
                for batch in _batches(listed):
                    ledger.add_many(batch)
                for batch in _batches(spool):
                    ledger.add_many(batch)
        return snapshot_id

    def delete_snapshot(self, snapshot_id: int) -> None:
        self._let_go(snapshot_id)
        with suppress(NotALogError):
            delete_ledger(self._directory(snapshot_id), self._fs)

    # --- reading -----------------------------------------------------------------------------

    def get_metadata(self, snapshot_id: int) -> list[bytes]:
        return self._read(snapshot_id, lambda ledger: ledger.read_first(_metadata_entries(ledger)))

    def get_segments(self, snapshot_id: int, start: int, stop: int) -> list[bytes]:
        def entries(ledger: Ledger) -> list[bytes]:
            skipped = _metadata_entries(ledger)
            return [ledger.read(n) for n in range(skipped + start, min(skipped + stop, ledger.entry_count))]

        return self._read(snapshot_id, entries)

    def get_length(self, snapshot_id: int) -> int:
        with self._lock:
            return self._ledger(snapshot_id).length_bytes

    def snapshot_ids(self) -> list[int]:
        named = [name.removeprefix(PREFIX) for name in os.listdir(self.path) if name.startswith(PREFIX)]
        return sorted(int(text) for text in named if text.isdecimal())

    def _read(self, snapshot_id: int, read: Callable[[Ledger], list[bytes]]) -> list[bytes]:
        with self._lock:
            ledger = self._ledger(snapshot_id)
            try:
                found = read(ledger)
            except CorruptRecordError as e:
                raise CorruptDelayedIndexError(
                    f"snapshot {snapshot_id}: {e.what}", file=e.file, position=e.position
                ) from e
            self._read_bytes[snapshot_id] = self._read_bytes.get(snapshot_id, 0) + sum(map(len, found))
            if self._read_bytes[snapshot_id] > READ_BEFORE_REOPENING:
                self._let_go(snapshot_id)
            return found

    def _ledger(self, snapshot_id: int) -> Ledger:
        """Return an open ledger; the lock must be held."""
        if snapshot_id in self._open:
            self._open.move_to_end(snapshot_id)
            return self._open[snapshot_id]
        path = self._directory(snapshot_id)
        try:
            ledger = Ledger.open(path, fs=self._fs, held=True)
        except NotALogError:
            raise SnapshotMissingError(f"there is no snapshot {snapshot_id}", file=path) from None
        except (CorruptManifestError, CorruptRecordError) as e:
            raise CorruptDelayedIndexError(f"snapshot {snapshot_id}: {e.what}", file=e.file) from e
        self._open[snapshot_id] = ledger
        if len(self._open) > MOST_OPEN:
            self._let_go(next(iter(self._open)))
        return ledger

    def _let_go(self, snapshot_id: int) -> None:
        with self._lock:
            self._read_bytes.pop(snapshot_id, None)
            if snapshot_id in self._open:
                self._open.pop(snapshot_id).close()

    # --- properties --------------------------------------------------------------------------

    def properties(self) -> dict[str, str]:
        assert self._owner is not None
        return self._owner.properties

    def update_properties(self, changes: Mapping[str, str | None]) -> None:
        assert self._owner is not None
        self._owner.update_properties(changes)

    def close(self) -> None:
        with self._lock:
            for snapshot_id in list(self._open):
                self._let_go(snapshot_id)

    def _directory(self, snapshot_id: int) -> Path:
        return self.path / f"{PREFIX}{snapshot_id}"


def snapshot_directory(managed_ledger: Path, cursor_name: str) -> Path:
    """Return the directory of the snapshots that a cursor of a managed ledger lists."""
    return managed_ledger / DIRECTORY / quote(cursor_name, safe="").replace(".", "%2E")


def remove_snapshots(fs: FileSystem, managed_ledger: Path, besides: Set[Path] = frozenset()) -> None:
    """Remove the snapshots of every tracker of a managed ledger, except those in the directories `besides`.

    They must not be open. Remove what lists them first.
    """
    parent = managed_ledger / DIRECTORY
    if not parent.is_dir():
        return
    for directory in sorted(set(parent.iterdir()) - besides):
        remove_directory(fs, directory)


def _metadata_entries(ledger: Ledger) -> int:
    text = ledger.properties.get(METADATA_ENTRIES, "")
    if not text.isdecimal() or not 0 < int(text) <= ledger.entry_count:
        raise CorruptDelayedIndexError(
            f"invalid {METADATA_ENTRIES} {text!r} in ledger {ledger.ledger_id} of {ledger.entry_count} entries",
            file=ledger.path,
        )
    return int(text)


def _batches(entries: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size_bytes = 0
    for entry in entries:
        if batch and size_bytes + len(entry) > BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
        batch.append(entry)
        size_bytes += len(entry)
    if batch:
        yield batch


class _Spool:
    """Entries that wait until those before them are known: in memory, and in a scratch file if there are many."""

    def __init__(self, fs: FileSystem, path: Path) -> None:
        self._fs = fs
        self._path = path
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._sizes: list[int] = []     # of the entries in the file
        self._file: WritableFile | None = None

    def add(self, entry: bytes) -> None:
        self._held.append(entry)
        self._held_bytes += len(entry)
        if self._held_bytes > SPOOL_FROM_BYTES:
            if self._file is None:
                self._file = self._fs.create(self._path)
            self._file.append(*self._held)
            self._sizes += map(len, self._held)
            self._held.clear()
            self._held_bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        """Yield all entries, once, in the order in which they were added."""
        if self._sizes:
            position = 0
            with FileMapping(self._path) as mapped:
                data = memoryview(mapped)
                for size in self._sizes:
                    yield bytes(data[position : position + size])
                    position += size
        yield from self._held

    def __enter__(self) -> "_Spool":
        return self

    def __exit__(self, *exception: object) -> None:
        self._held.clear()
        if self._file is not None:
            self._file.close()
            self._fs.unlink(self._path)
