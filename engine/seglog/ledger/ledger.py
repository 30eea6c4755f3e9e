"""A ledger: a list of entries that grows at its end until it is sealed, and never changes afterwards.

    with Ledger.create("topic/ledger-7", 7) as ledger:
        first = ledger.add(b"entry")
    with Ledger.open("topic/ledger-7") as ledger:
        ledger.read(first)

It is one segment, which every tool for logs reads: an entry is a record, its id the record's offset, counted from 0.
ledger.entry_writer adds to it. Beside the segment is ledger.json, which says where the ledger ends once it is sealed. A
ledger that was not sealed, because its writer died, is recovered and sealed when it is next opened.
docs/formats/ledger.md
"""
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, get_args

from seglog._kernels.record_batch import Record
from seglog._kernels.shield import shielded
from seglog._kernels.write_gate import CallLock
from seglog.clock import Clock, checked_clock
from seglog.config import Fsync
from seglog.errors import (
    CorruptRecordError,
    InvalidArgumentError,
    LogClosedError,
    NotALogError,
    OffsetOutOfRangeError,
    StorageError,
)
from seglog.format import names
from seglog.fs import lock
from seglog.fs.aside import make_directories
from seglog.fs.files import FileSystem, checked_fs
from seglog.fs.handles import OpenHandle
from seglog.fs.refusals import as_path
from seglog.fs.removal import remove_tree
from seglog.ledger.entry_writer import SEGMENT, EntryWriter
from seglog.ledger.ledger_metadata import FILE_NAME, MAX_ID, LedgerEnd, LedgerMetadata, checked_properties
from seglog.ledger.ledger_recovery import check_ledger, recover_segment
from seglog.ledger.position import checked_int
from seglog.logger import Logger
from seglog.segment.positions import LostRange
from seglog.segment.segment import Segment
from seglog.threads.late_close import close_in_order

if TYPE_CHECKING:
    from typing_extensions import Buffer

logger = Logger("seglog")

LOG_NAME = names.file_name(0, names.LOG_SUFFIX)
# The suffix of a ledger's directory that is being removed.
DELETED_SUFFIX = names.DELETED_SUFFIX


class Ledger(OpenHandle):
    """An open ledger, made by `create` or `open`. Thread-safe.

    ledger_id, path, properties, created_ms: as when it was created. `lost`: what recovery cut at opening, or None.
    """

    def __init__(
        self,
        path: Path,
        metadata: LedgerMetadata,
        segment: Segment,
        *,
        fs: FileSystem,
        clock: Clock,
        writer: EntryWriter | None = None,
        held: lock.Lock | None = None,
        lost: LostRange | None = None,
    ) -> None:
        self.path = path
        self.ledger_id = metadata.ledger_id
        self.created_ms = metadata.created_ms
        self.lost = lost
        self._metadata = metadata
        self._segment = segment
        self._fs = fs
        self._clock = clock
        self._writer = writer
        self._held = held
        self._sealing = CallLock()
        self._closed = False
        # _get(entry_id) -> Record | None, for an int64 that is not negative: the fast path of `record`.
        self._get, self._get_all = segment.get, segment._get_all

    # --- creation --------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        ledger_id: int,
        *,
        properties: Mapping[str, str] | None = None,
        fsync: Fsync = "batch",
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        held: bool = False,
    ) -> Self:
        """Create an empty ledger, durably, in its own directory, which is created if it does not exist.

        `fsync`: when an entry is on the disk: "batch": when it was added; concurrent adds share one sync. "interval"
        and "never": when `flush` or `seal` is called, or the system writes it. `held`: the caller keeps other writers
        away. Raises InvalidArgumentError, also if the directory is not empty; StorageError.
        """
        if not isinstance(ledger_id, int) or isinstance(ledger_id, bool) or not 0 <= ledger_id <= MAX_ID:
            raise InvalidArgumentError(f"a ledger's id must be an int from 0 to {MAX_ID}, not {ledger_id!r}")
        if fsync not in get_args(Fsync):
            raise InvalidArgumentError(f'fsync must be "batch", "interval" or "never", not {fsync!r}')
        path, fs, clock = Path(os.path.abspath(as_path(path))), checked_fs(fs), checked_clock(clock)
        metadata = LedgerMetadata(ledger_id, clock.now_ms(), fsync, checked_properties(properties or {}))
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise InvalidArgumentError("the directory is not empty", file=path, hint="a ledger needs its own directory")
        make_directories(fs, path)
        keep = None if held else lock.lock_partition(fs, path)
        try:
            writer = EntryWriter(fs, path, clock, metadata.created_ms, fsync)
            try:
                metadata.write(fs, path)
            except BaseException:
                writer.close()
                raise
        except BaseException:
            if keep is not None:
                keep.release()
            raise
        segment = Segment(
            writer.path, published=writer.published, owned=True, reserve_bytes=SEGMENT.segment_bytes
        )
        writer.when_replaced = segment._let_go
        writer.when_synced = partial(_note_synced, fs, path, metadata)
        return cls(path, metadata, segment, fs=fs, clock=clock, writer=writer, held=keep)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        held: bool = False,
        truncate: bool = False,
        read_only: bool = False,
    ) -> Self:
        """Open a ledger for reading. If it was not sealed, it is recovered and sealed first.

        `read_only`: change nothing; read an unsealed ledger up to its last complete batch before damage.

        A torn tail is truncated. With `truncate`, or if not every add was synced, a ledger is also truncated at damage
        in its middle; otherwise that raises CorruptRecordError, and nothing has changed. Raises NotALogError,
        CorruptManifestError, LogLockedError while it is being written, StorageError; CorruptRecordError if a sealed
        ledger has lost bytes.
        """
        path, fs, clock = Path(os.path.abspath(as_path(path))), checked_fs(fs), checked_clock(clock)
        metadata = LedgerMetadata.read(path)
        lost = None
        if metadata.end is None and read_only:
            segment = Segment(path / LOG_NAME, owned=True)
            metadata = metadata.sealed(_end_of(segment))
            return cls(path, metadata, segment, fs=fs, clock=clock)
        if metadata.end is None:
            keep = None if held else lock.lock_partition(fs, path)
            try:
                metadata = LedgerMetadata.read(path)        # another process may have sealed it meanwhile
                if metadata.end is None:
                    metadata, lost = _recover(fs, path, metadata, clock.now_ms(), truncate=truncate)
            finally:
                if keep is not None:
                    keep.release()
        assert metadata.end is not None
        log = path / LOG_NAME
        size_bytes = log.stat().st_size if log.exists() else -1
        if size_bytes < 0 and not (path / FILE_NAME).exists():
            raise NotALogError("the ledger was removed while it was being opened", file=path)
        if size_bytes != metadata.end.length_bytes:
            raise CorruptRecordError(
                f"the ledger was sealed with {metadata.end.length_bytes} bytes, but has {max(size_bytes, 0)}",
                file=log, position=max(min(size_bytes, metadata.end.length_bytes), 0),
                hint="restore it from a copy, or let `seglog ledger recover --apply` seal it with what is left",
            )
        return cls(path, metadata, Segment(log, is_last=False, owned=True), fs=fs, clock=clock, lost=lost)

    # --- state --------------------------------------------------------------------------

    def __repr__(self) -> str:
        state = "closed" if self._closed else "sealed" if self.is_sealed else "open"
        return f"<Ledger {self.ledger_id}: {state}>"

    @property
    def properties(self) -> dict[str, str]:
        """The properties that the ledger was created with: a copy."""
        return dict(self._metadata.properties)

    @property
    def is_sealed(self) -> bool:
        """Whether the ledger has its end and takes no more entries."""
        return self._metadata.end is not None

    @property
    def entry_count(self) -> int:
        """The number of entries that readers see."""
        end = self._metadata.end
        return self._segment.next_offset if end is None else end.entries

    @property
    def last_entry_id(self) -> int:
        """The id of the last entry; -1 if there is none."""
        return self.entry_count - 1

    @property
    def length_bytes(self) -> int:
        """The size of the .log that readers see."""
        end = self._metadata.end
        return self._segment.size_bytes if end is None else end.length_bytes

    @property
    def end(self) -> LedgerEnd | None:
        """The end of the ledger; None while it is not sealed."""
        return self._metadata.end

    @property
    def segment(self) -> Segment:
        """The segment, for anything that reads logs."""
        return self._segment

    @property
    def writer(self) -> EntryWriter:
        """The writer, for callers that put entries and wait for them separately. Raises LogClosedError if sealed."""
        if self._writer is None:
            raise LogClosedError("the ledger is sealed: nothing can be added", file=self.path, hint="create a new one")
        return self._writer

    # --- adding ------------------------------------------------------------------------------

    def add(self, entry: "Buffer", timestamp_ms: int | None = None) -> int:
        """Add an entry and return its id. `timestamp_ms`: now by default.

        Raises InvalidArgumentError, RecordTooLargeError, and LogClosedError or LogFailedError if it is sealed or had an
        error.
        """
        at = self._clock.now_ms() if timestamp_ms is None else _checked_time(timestamp_ms)
        return self._add([_as_bytes(entry)], [at])

    def add_many(self, entries: "Iterable[Buffer]", timestamps_ms: Sequence[int] | None = None) -> int:
        """Add entries as one batch, all or none; return the id of the last one. Raises what `add` raises."""
        taken = [entry if type(entry) is bytes else _as_bytes(entry) for entry in entries]
        if not taken:
            raise InvalidArgumentError("there are no entries to add")
        if timestamps_ms is None:
            times = [self._clock.now_ms()] * len(taken)
        elif len(timestamps_ms) != len(taken):
            raise InvalidArgumentError(f"{len(taken)} entries, but {len(timestamps_ms)} times")
        else:
            times = list(map(_checked_time, timestamps_ms))
        return self._add(taken, times) + len(taken) - 1

    def _add(self, entries: list[bytes], timestamps: list[int]) -> int:
        writer = self.writer
        if self._held is not None:
            self._held.check()
        first, number = writer.put(entries, timestamps)
        writer.await_put(number)
        return first

    def flush(self) -> None:
        """Return when all added entries are on the disk, with every `fsync`. Raises LogClosedError, LogFailedError."""
        self.writer.flush()

    # --- reading -----------------------------------------------------------------------------

    def read(self, entry_id: int) -> bytes:
        """Read one entry. Raises OffsetOutOfRangeError, CorruptRecordError, LogClosedError."""
        return _value(self.record(entry_id))

    def record(self, entry_id: int) -> Record:
        """Return the entry's record: its value borrows the file's bytes. Raises as `read`."""
        found = self._get(entry_id) if type(entry_id) is int and 0 <= entry_id <= MAX_ID else None
        return self._find(entry_id) if found is None else found

    def _find(self, entry_id: int) -> Record:
        """Take the slow path: find the record, or say why there is none."""
        checked_int("an entry's id", entry_id)
        if not 0 <= entry_id < self.entry_count:
            raise OffsetOutOfRangeError(
                f"entry {entry_id} is not in [0, {self.entry_count}) of ledger {self.ledger_id}",
                file=self.path, offset=entry_id,
            )
        try:
            for _, record in self._records(entry_id, entry_id):
                return record
        except CorruptRecordError:
            found = self._behind_damage(entry_id)
            if found is None:
                raise
            return found
        raise CorruptRecordError(f"ledger {self.ledger_id} has no entry {entry_id}", file=self.path, offset=entry_id)

    def _behind_damage(self, entry_id: int) -> Record | None:
        """The record of an entry that is whole, though one before it is damaged; None if there is none."""
        segment = self._segment
        for table in segment.tables(segment.position_near(entry_id), on_lost=lambda lost: None):
            for record in table.records(entry_id, entry_id + 1, False):
                return record
            if table[-1].last_offset >= entry_id:
                break
        return None

    def read_range(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Yield (id, entry) of the entries from `first` to `last`, inclusive. Raises as `read`, before the first entry,
        if the range does not exist completely."""
        return self.read_ranges([(first, last)])

    def read_ranges(self, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
        """Do the same for several ranges (first, last), which need not be adjacent, in the order given."""
        listed = list(ranges)
        for found in listed:
            if not isinstance(found, tuple) or len(found) != 2:
                raise InvalidArgumentError(f"a range must be (first, last), not {repr(found)[:80]}")
            first, last = found
            checked_int("an entry's id", first)
            checked_int("an entry's id", last)
            if first > last:
                raise InvalidArgumentError(f"invalid range: from {first} to {last}")
            for entry_id in (first, last):
                if not 0 <= entry_id < self.entry_count:
                    self._find(entry_id)
        return ((entry_id, _value(record)) for first, last in listed for entry_id, record in self._records(first, last))

    def read_first(self, count: int) -> list[bytes]:
        """Read the first `count` entries, or all, by a walk from the beginning, for callers that open many ledgers only
        to read the head of each: this needs no index. Raises as `read`."""
        entries: list[bytes] = []
        checked_int("a number of entries", count)
        count = min(count, self.entry_count)
        if count > 0:
            for table in self._segment.tables(max_batches=1):
                entries += [_value(record) for record in table.records(len(entries), count, False)]
                if len(entries) == count:
                    return entries
            self._find(len(entries))
        return entries

    def _records(self, first: int, last: int) -> Iterator[tuple[int, Record]]:
        found = self._segment.find_offset(first)
        expected = first
        if found is not None:
            for table in self._segment.tables(found.position):
                for record in table.records(first, last + 1, False):
                    if record.offset != expected:
                        break
                    yield expected, record
                    expected += 1
                if expected > last or table[-1].last_offset >= last:
                    break
        if expected <= last:
            raise CorruptRecordError(
                f"ledger {self.ledger_id} has no entry {expected}", file=self._segment.path, offset=expected
            )

    # --- its end -----------------------------------------------------------------------------

    def seal(self, properties: Mapping[str, str] | None = None) -> None:
        """Seal it: nothing can be added afterwards, and its end is on the disk. It stays open for reading. Idempotent.

        `properties`: replace those from its creation. Raises LogFailedError.
        """
        shielded(self._seal, properties)

    def _seal(self, properties: Mapping[str, str] | None = None) -> None:
        # Not in a forked child, where the lock may be taken forever.
        if self._writer is not None and not self._is_forked():
            self._sealing.run(self._seal_once, properties)
        elif self._writer is not None and self._held is not None:       # (asked again: another thread may have sealed)
            self._held.check()

    def _seal_once(self, properties: Mapping[str, str] | None) -> None:
        writer = self._writer
        if writer is None:
            return
        end = writer.seal()
        made = self._metadata
        if properties is not None:
            made = replace(made, properties=checked_properties(properties))
        metadata = made.sealed(
            LedgerEnd(end.next_offset, end.position, writer.max_timestamp, self._clock.now_ms())
        )
        metadata.write(self._fs, self.path)
        self._metadata = metadata
        self._let_go()

    def close(self) -> None:
        """Seal it if it is being written, and close it. Idempotent; what was read stays readable.

        After a failed write or sync it only closes: the next opening recovers it. Raises LogFailedError if sealing
        fails, or if no caller has got the earlier failure yet. A signal's handler may call it: if it interrupts a call
        of the same thread, the ledger is closed right after that.
        """
        if not self._closed:
            close_in_order(self._close, self.path)

    def _close(self) -> None:
        writer = None if self._is_forked() else self._writer
        try:
            if writer is not None and writer.failure is None:
                self.seal()
        finally:
            self._closed = True
            if writer is not None:
                self._end_writes()
            self._let_go()
            self._segment.close()
        if writer is not None:
            writer.tell()

    def _abandon(self) -> None:
        """Close it without sealing: the next opening recovers it."""
        self._closed = True
        self._let_go()
        self._segment.close()

    def _retire(self) -> None:
        """Prepare for the removal of its files: present readers continue, and no new ones start."""
        self._segment._retire()

    def _is_forked(self) -> bool:
        return self._held is not None and not self._held.held

    def _end_writes(self) -> None:
        """Let no thread write it any more, and wait for one that does, before its lock is given back. Not in a forked
        child."""
        writer = self._writer
        if writer is not None:      # sealing failed, or something before
            writer.close_after_writes()

    def _let_go(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        if self._held is not None:
            self._held.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def reseal_ledger(path: Path, fs: FileSystem, now_ms: int, *, truncate: bool = False) -> LedgerEnd:
    """Seal a sealed ledger that lost bytes again, with the intact entries that are left; return its new end.

    The caller keeps other writers away. Raises CorruptRecordError for damage in its middle, unless `truncate`;
    StorageError.
    """
    metadata, _ = _recover(fs, path, LedgerMetadata.read(path), now_ms, truncate=truncate)
    assert metadata.end is not None
    return metadata.end


def delete_ledger(path: str | os.PathLike[str], fs: FileSystem | None = None) -> None:
    """Remove a ledger that no process writes; at return it is removed durably. Raises NotALogError, StorageError.

    A crash leaves it whole, or as a directory `<name>.deleted`, which deleting it again removes.
    """
    path, fs = Path(os.path.abspath(as_path(path))), checked_fs(fs)
    deleted = path.with_name(path.name + DELETED_SUFFIX)
    if path.exists():
        if deleted.exists():
            remove_directory(fs, deleted)
        fs.rename(path, deleted)
        fs.sync_directory(path.parent)
    elif not deleted.exists():
        raise NotALogError("there is no such ledger", file=path)
    remove_directory(fs, deleted)


def remove_directory(fs: FileSystem, directory: Path) -> None:
    """Remove a ledger's directory, or one of ledgers, durably. Raises StorageError."""
    remove_tree(fs, directory.parent, directory.name)
    fs.sync_directory(directory.parent)


def _recover(
    fs: FileSystem, path: Path, metadata: LedgerMetadata, now_ms: int, *, truncate: bool
) -> tuple[LedgerMetadata, LostRange | None]:
    check = check_ledger(path / LOG_NAME)
    # If adds did not wait for the disk, a later one may be there without an earlier one.
    end = recover_segment(
        fs, check, now_ms, truncate=truncate or metadata.fsync != "batch", synced_bytes=metadata.synced_bytes
    )
    lost = check.damages[0].of(check.path) if check.damages else None
    metadata = metadata.sealed(end)
    metadata.write(fs, path)
    return metadata, lost


def _note_synced(fs: FileSystem, path: Path, metadata: LedgerMetadata, synced_bytes: int) -> None:
    """Note how many bytes are on the disk. If this fails, recovery has more to do, but nothing is wrong."""
    try:
        metadata.synced_to(synced_bytes).write(fs, path)
    except StorageError as error:
        logger.warning("%s: could not note that %d bytes are on the disk: %s", path, synced_bytes, error)


def _end_of(segment: Segment) -> LedgerEnd:
    """Return the end of a segment that may be growing: its complete batches as of now."""
    next_id = position = 0
    largest = -1
    for table in segment.tables(check_crc=False, on_lost=lambda _: None):
        if table[0].position != position or table[0].base_offset != next_id:
            break
        next_id, position = table[-1].last_offset + 1, table.end
        largest = max(largest, table.max_timestamp)
    return LedgerEnd(next_id, position, largest, -1)


def _value(record: Record) -> bytes:
    value = record.value
    if value is None:
        raise CorruptRecordError("a record without a value is not an entry", offset=record.offset)
    return value


def _as_bytes(entry: "Buffer") -> bytes:
    try:
        return bytes(memoryview(entry))
    except TypeError:
        raise InvalidArgumentError(f"an entry must be bytes-like, not {type(entry).__name__}") from None


def _checked_time(timestamp_ms: int) -> int:
    if type(timestamp_ms) is not int or not -1 <= timestamp_ms <= MAX_ID:
        raise InvalidArgumentError(f"a time must be 0 or more, in ms, or -1 for none, not {timestamp_ms!r}")
    return timestamp_ms
