"""One growing segment, with all its index files.

The caller brings encoded batches, exactly as they go into the file; nothing is encoded here, and nothing checked but
what keeps the segment addressable. Bytes are written at the end of the .log, then their index entries at the ends of
their files: one decision for each batch (IndexBuilder), so that the files are a function of the log, however often it
was closed and opened. They contain only entries, no preallocated zeros. Some entries wait to be written together
(WAITING_ENTRIES), since two more writes would cost as much as that of a batch of 10 KB: a lookup of an offset or a time
among the last ones walks that many more headers. `write_entries` and `seal` leave none waiting.

A closed segment's time index ends with a closing entry, which names its largest timestamp, and which a growing log
would not have there. Opening does not count it and leaves it in the file: the next real entry, or the closing entry of
the next close, overwrites it, because timestamps only rise and one of the two always comes. So no index is truncated
while another process has it mapped, and opening writes nothing. Entries that `end` has counted never change.

After a failed write, the state on disk is unknown. `end` then stays where it was, `failure` says why, and everything
but `close` is refused: the next opening of the log recovers it.
"""
import os
from pathlib import Path
from typing import Self

from seglog._kernels.batch_encode import EncodedBatch
from seglog._kernels.index_build import IndexBuilder
from seglog._kernels.quiet_appender import QuietAppender
from seglog._kernels.segment_scan import BatchTable, scan
from seglog._kernels.window import Window
from seglog.config import LogConfig
from seglog.errors import CorruptIndexError, CorruptRecordError, InvalidArgumentError, StorageError
from seglog.format import names
from seglog.format.dialect import Dialect, dialect_of_config
from seglog.fs.aside import unshare
from seglog.fs.files import FileSystem, WritableFile
from seglog.fs.mapping import Mapping
from seglog.segment.index_file import TimeIndex
from seglog.segment.open_indexes import open_indexes
from seglog.segment.published_end import End, PublishedEnd
from seglog.segment.roll import RELATIVE_OFFSET_MAX, RollRule
from seglog.segment.transaction_index import ENTRY_SIZE as TRANSACTION_ENTRY_SIZE
from seglog.segment.transaction_index import AbortedTransaction

# Disk space is reserved for as much as a log already has, and at most this: allocating many blocks at a time makes a
# write of 10 KB a seventh cheaper, of 1 MB a fourth. A small log must not occupy ten times its size.
RESERVE_FROM_BYTES, RESERVE_BYTES_MAX = 256 << 10, 16 << 20
_INT64_MAX = 2**63 - 1


class SegmentAppender(QuietAppender):
    """The end of one log, which grows: `SegmentAppender.create(...)` or `.open(...)`.

    The caller must serialize calls, except `sync`, which may run concurrently with appends. Errors are StorageError.

    A caller that knows that a batch begins at or after `end` calls `append_quietly` first; if that returns False, it
    asks `should_roll` and then calls `append_batch`.
    """

    written: PublishedEnd
    _log: WritableFile

    def __init__(
        self,
        fs: FileSystem,
        path: Path,
        dialect: Dialect,
        config: LogConfig,
        rule: RollRule,
        builder: IndexBuilder,
        *,
        begun_ms: int,
    ) -> None:
        self.path = path
        self.dialect = dialect
        # The part of all file names before the suffix, and the state after it.
        self._stem, _, self._state = str(path).rpartition(dialect.log)
        self.base_offset = rule.base_offset
        self.written = PublishedEnd(End(0, rule.base_offset))
        self.failure: StorageError | None = None
        self._is_interrupted = False    # an asynchronous exception is the failure
        self.rule = rule
        self._fs = fs
        self._builder = builder
        self._begun_ms = begun_ms
        self._begun_bytes = 0
        self._idle_roll = config.segment_idle_roll
        self._files: list[WritableFile] = []
        self._reserved_bytes = RESERVE_FROM_BYTES       # up to here, appends need not reserve space
        self._offset_index: WritableFile
        self._time_index: WritableFile | None = None        # None if the offset index has the times
        self._minute_index: WritableFile | None = None
        self._transaction_index: WritableFile | None = None
        self._closing_entry = b""       # what follows the entries of `end` in the time index
        self._new_names = False         # a file was created and the directory not yet synced
        self.is_given_back = False      # the files are closed until `take_back`
        self.quiet_bytes = self.quiet_until_ms = -1
        self.quiet_until_offset = min(rule.base_offset + RELATIVE_OFFSET_MAX, _INT64_MAX)
        self._sealed = False
        self._takes_batches = True

    # --- creation ----------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        fs: FileSystem,
        directory: Path,
        base_offset: int,
        config: LogConfig,
        created_ms: int,
        *,
        jitter_ms: int = 0,
        sync_names: bool = True,
        state: str = "",
    ) -> Self:
        """Create an empty segment, whose names are durable at return. If that fails, created files are removed.

        `created_ms` is the clock now; `jitter_ms` is the segment's own (roll.segment_jitter_ms). `sync_names` False:
        the caller syncs the directory. `state`: what is appended to all its file names (names.CLEANED_SUFFIX).
        """
        dialect = dialect_of_config(config)
        path = directory / dialect.log_name(base_offset, state)
        builder = dialect.index_builder(base_offset, config)
        rule = RollRule(base_offset, config, created_ms, jitter_ms)
        self = cls(fs, path, dialect, config, rule, builder, begun_ms=created_ms)
        try:
            self._take_files(config, fs, creates=True)
            if sync_names:
                fs.sync_directory(directory)
        except BaseException as error:
            self.close()
            for file in self._files:
                try:
                    fs.unlink(file.path)
                except StorageError as refusal:
                    error.add_note(f"{file.path} could not be removed: {refusal.what}")
            raise
        return self

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        directory: Path,
        base_offset: int,
        config: LogConfig,
        end_position: int,
        next_offset: int,
        created_ms: int,
        *,
        jitter_ms: int = 0,
    ) -> Self:
        """Open an existing segment that consists of complete batches, after recovery if that was needed.

        `created_ms` is the current time: Kafka's segment.ms counts from the opening if records have no time. Writes
        nothing unless index files are missing or wrong: these are rebuilt, durably. Raises CorruptRecordError if the
        .log is not such a file, InvalidArgumentError if it has another size.
        """
        dialect = dialect_of_config(config)
        path = directory / dialect.log_name(base_offset)
        rule = RollRule(base_offset, config, created_ms, jitter_ms)
        stem = dialect.stem(path)
        for suffix in dialect.suffixes:
            if suffix not in names.OF_WHOLE_LOGS:       # (these are never written in place)
                unshare(fs, stem + suffix)
        with Mapping(path) as mapping:
            window = dialect.window(mapping, path)
            if len(window) != end_position:
                raise InvalidArgumentError(f"the log has {len(window)} bytes, expected {end_position}", file=path)
            indexes = open_indexes(fs, path, base_offset, config, window)
            if end_position:
                rule.first_timestamp = scan(window, max_batches=1)[0].max_timestamp
                if indexes.next_offset != next_offset:
                    raise CorruptRecordError(
                        f"the last batch ends before offset {indexes.next_offset}, expected {next_offset}", file=path
                    )
        begun_ms = min(created_ms, path.stat().st_mtime_ns // 1_000_000)
        self = cls(fs, path, dialect, config, rule, indexes.builder, begun_ms=begun_ms)
        self._closing_entry = indexes.closing_entry
        try:
            self.written.at = End(end_position, next_offset)
            self._begun_bytes = end_position
            self._take_files(config, fs, creates=False)
            self._put_end(end_position, next_offset)
        except BaseException:
            self.close()
            raise
        return self

    def _take_files(self, config: LogConfig, fs: FileSystem, *, creates: bool) -> None:
        """Create or open each file of the segment; an opened one is positioned where appends continue."""
        builder, dialect = self._builder, self.dialect
        positions = {
            dialect.log: self.written.at.position,
            dialect.offset_index: builder.offset_entries * dialect.offset_entry_bytes,
            dialect.time_index: builder.time_entries * dialect.time_entry_bytes,
        }
        has_minutes = bool(config.time_index_minute_enabled) and names.MINUTE_INDEX_SUFFIX in dialect.indexes
        if has_minutes:
            positions[names.MINUTE_INDEX_SUFFIX] = builder.minute_entries * TimeIndex.ENTRY_SIZE
        for suffix, position in positions.items():      # one by one: after an error, those already opened are closed
            path = f"{self._stem}{suffix}{self._state}"
            self._files.append(fs.create(path) if creates else fs.open_write(path, position))
        self._log, self._offset_index, *others = self._files
        self._time_index = None if dialect.has_one_index else others[0]
        self._minute_index = others[-1] if has_minutes else None

    # --- state ------------------------------------------------------------------------------

    @property
    def end(self) -> End:
        """How far the segment is written: the value for a PublishedEnd."""
        return self.written.at

    @property
    def next_offset(self) -> int:
        """One past the last offset."""
        return self.written.at.next_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of batches."""
        return self.written.at.position

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of the segment, -1 if no record has one."""
        return self._builder.max_timestamp

    @property
    def offset_of_max_timestamp(self) -> int:
        """The last offset of the first batch that has it, -1 if none does."""
        return self._builder.offset_of_max_timestamp

    @property
    def index_entries_left(self) -> int:
        """The number of entries that the indexes still have room for; 0 or less: one of them is full."""
        return self.rule.entries_left(self._builder.offset_entries, self._builder.time_entries)

    def should_roll(self, append_bytes: int, max_timestamp: int, last_offset: int, now_ms: int) -> bool:
        """Whether an append of this size, largest time and last offset goes to a new segment: see RollRule."""
        return self.rule.is_due(
            self.written.at.position, self.index_entries_left, append_bytes, max_timestamp, last_offset, now_ms
        )

    def idle_roll_is_due(self, now_ms: int) -> bool:
        """Whether seglog.segment.idle.roll is set and the segment is older than segment.ms by the clock.

        Its age counts from the creation of this appender, or from the last write, by the .log's modification time.
        """
        return self._idle_roll and self.rule.is_idle(self.written.at.position, self._begun_ms, now_ms)

    # --- appending -------------------------------------------------------------------------------

    def append_batch(self, raw: bytes | EncodedBatch, base_offset: int, last_offset: int, max_timestamp: int) -> None:
        """Write one encoded batch. The caller must know that the arguments match it: the batch is not scanned.

        Raises CorruptRecordError if an offset is not above those before it, or no index entry can express it,
        InvalidArgumentError if the indexes are full: then nothing has changed.
        """
        end = self.written.at
        self._check(base_offset)
        size_bytes = len(raw)
        try:
            self._builder.add_one(last_offset, max_timestamp, size_bytes)
            self._reserve(end.position + size_bytes)
            self._log.append_bytes(raw)
            self._appended(end, size_bytes, last_offset + 1, max_timestamp)
        except (CorruptRecordError, InvalidArgumentError):
            raise
        except BaseException as error:
            self._fail(error)
            raise

    def append(self, window: Window, table: BatchTable, first: int = 0, stop: int | None = None) -> None:
        """Write the batches [first, stop) of `table`, which was scanned from `window`, by one write.

        Raises what `append_batch` raises.
        """
        stop = len(table) if stop is None else stop
        if first == stop:
            return
        begin, last = table[first], table[stop - 1]
        end = self.written.at
        self._check(begin.last_offset if begin.magic in (0, 1) else begin.base_offset)      # (a wrapper has its last)
        size_bytes = last.position + last.size_bytes - begin.position
        try:
            self._builder.add(table, first, stop, end.position)
            self._reserve(end.position + size_bytes)
            self._log.append_bytes(memoryview(window)[begin.position : begin.position + size_bytes])
            self._appended(end, size_bytes, last.last_offset + 1, begin.max_timestamp)
        except (CorruptRecordError, InvalidArgumentError):
            raise
        except BaseException as error:
            self._fail(error)
            raise

    def add_aborted(self, transaction: AbortedTransaction) -> None:
        """Write an entry of the .txnindex, for a transaction whose abort marker is in this segment.

        Raises CorruptIndexError if the file ends with an incomplete entry.
        """
        self._check(self.written.at.next_offset)
        try:
            if self._transaction_index is None:
                self._transaction_index = self._open_transaction_index()
                self._files.append(self._transaction_index)
            self._transaction_index.append_bytes(transaction.to_bytes())
        except CorruptIndexError:
            raise
        except BaseException as error:
            self._fail(error)
            raise

    def _open_transaction_index(self) -> WritableFile:
        path = Path(f"{self._stem}{names.TRANSACTION_INDEX_SUFFIX}{self._state}")
        if not path.exists():
            self._new_names = True
            return self._fs.create(path)
        file = self._fs.open_write(path)
        if file.position % TRANSACTION_ENTRY_SIZE:
            file.close()
            raise CorruptIndexError(
                f"{file.position} bytes are not a multiple of the {TRANSACTION_ENTRY_SIZE}-byte entry", file=path
            )
        return file

    def _appended(self, end: End, size_bytes: int, next_offset: int, first_timestamp: int) -> None:
        """Note that `size_bytes` now follow `end`. `first_timestamp`: the largest of the first batch in them."""
        if end.position == 0:
            self.rule.first_timestamp = first_timestamp
        if self.has_enough_entries:
            self._write_entries()
        self._put_end(end.position + size_bytes, next_offset)

    def write_entries(self) -> None:
        """Write the waiting index entries, so that `end` counts them. Raises StorageError."""
        if self._takes_batches:
            try:
                self._write_entries()
            except BaseException as error:
                self._fail(error)
                raise
            self._put_end(self.written.at.position, self.written.at.next_offset)

    def _write_entries(self) -> None:
        if raw := self._builder.take_offset_entries():
            self._offset_index.append_bytes(raw)
        if (raw := self._builder.take_time_entries()) and self._time_index is not None:
            self._closing_entry = b""       # overwritten
            self._time_index.append_bytes(raw)
        if (raw := self._builder.take_minute_entries()) and self._minute_index is not None:
            self._minute_index.append_bytes(raw)

    def _put_end(self, position: int, next_offset: int) -> None:
        offset_entries, time_entries, minute_entries = self._builder.taken_entries
        self.written.at = End(
            position, next_offset, offset_entries, time_entries, 0 if self._minute_index is None else minute_entries
        )
        rule = self.rule
        first = rule.first_timestamp
        if first is None or first < 0 or self.index_entries_left <= 0 or self.is_given_back:
            self.quiet_bytes = -1       # ask the rule
        else:
            self.quiet_bytes = min(rule.segment_bytes, self._reserved_bytes) - position
            self.quiet_until_ms = min(first + rule.segment_ms, _INT64_MAX)

    def _reserve(self, size_bytes: int) -> None:
        """Reserve disk space for a .log of this size, and for coming appends."""
        if size_bytes > self._reserved_bytes:
            ahead = min(size_bytes, RESERVE_BYTES_MAX)
            reserved_bytes = min(size_bytes + ahead, max(size_bytes, self.rule.segment_bytes))
            self._reserved_bytes = reserved_bytes if self._log.reserve(reserved_bytes) else _INT64_MAX

    # --- the disk --------------------------------------------------------------------------------

    def _refuse_sync(self) -> None:
        if not self._is_interrupted:
            self._check(self.written.at.next_offset, sealed=True)

    def sync_indexes(self) -> None:
        """Sync what is written of the index files, for a caller that closes the segment without sealing it."""
        self._check(self.written.at.next_offset)
        try:
            for file in self._files:
                if file is not self._log and file.unsynced:
                    file.sync()
            if self._new_names:
                self._fs.sync_directory(self.path.parent)
                self._new_names = False
        except BaseException as error:
            self._fail(error)
            raise

    def seal(self, *, mtime_ns: int | None = None) -> None:
        """Write the closing time entry and sync all files: before the log rolls, and before it is closed.

        Writes nothing to a segment that was opened and not appended to. Nothing can be appended afterwards. With
        `mtime_ns` the files get that time: a segment without timestamps is as old as its file (Kafka's retention).
        """
        if self._sealed:
            return
        self._check(self.written.at.next_offset)
        try:
            self._seal(mtime_ns)
        except BaseException as error:
            self._fail(error)
            raise

    def _seal(self, mtime_ns: int | None) -> None:
        self._sealed, self._takes_batches = True, False
        self._write_entries()
        self._builder.finish()
        raw = self._builder.take_time_entries()
        if raw != self._closing_entry and self._time_index is not None:
            self._time_index.append_bytes(raw)
        self._log.release()
        self._remove_what_was_made_of_it()
        for file in self._files:
            if mtime_ns is not None:
                self._fs.set_mtime(file.path, mtime_ns)
            if file.unsynced or mtime_ns is not None:
                file.sync()
        if self._new_names:
            self._fs.sync_directory(self.path.parent)
        self._put_end(self.written.at.position, self.written.at.next_offset)

    def _remove_what_was_made_of_it(self) -> None:
        """Remove time ranges and statistics of a segment that was opened and appended to: they describe the former
        log. (If they stay, readers ignore them.)"""
        if self.written.at.position == self._begun_bytes:
            return
        for suffix in names.OF_WHOLE_LOGS:
            path = f"{self._stem}{suffix}{self._state}"
            if os.path.lexists(path):
                self._fs.unlink(path)

    def assume_unsynced(self) -> None:
        """Note that another descriptor wrote to the files, and that it is not known whether it synced them."""
        for file in self._files:
            file.note_write()

    @property
    def unsynced(self) -> bool:
        """Whether part of its files is not yet on the disk."""
        return any(file.unsynced for file in self._files)

    def give_back(self) -> None:
        """Close the descriptors until `take_back`; the .log is synced. The caller must be alone with the files.

        A file that is not safe to close stays open (WritableFile.give_back). After StorageError, nothing continues.
        """
        self.is_given_back = True
        self.quiet_bytes = -1
        self.sync_indexes()
        for file in self._files:
            file.give_back()

    def take_back(self) -> None:
        """Reopen the files, each of which must be the same as before. Raises StorageError, and may be called again."""
        try:
            for file in self._files:
                file.take_back()
        except BaseException:
            for file in self._files:
                file.give_back()
            raise
        self.is_given_back = False
        self._put_end(self.written.at.position, self.written.at.next_offset)

    def close(self) -> None:
        """Close the descriptors; no thread may be inside `sync`. Idempotent. Without `seal` before it, the
        segment has no closing entry, and its durability is not recorded.
        """
        self._sealed, self._takes_batches = True, False
        first: BaseException | None = None
        for file in self._files:        # all of them, even if the first one fails
            try:
                file.close()
            except BaseException as error:
                first = first or error
        if first is not None:
            raise first

    # --- refusals --------------------------------------------------------------------------------

    def check_disk(self) -> None:
        """Raise StorageError if a write or sync of one of the files failed: what is on the disk is unknown."""
        for file in self._files:
            file.check()

    def _check(self, base_offset: int, *, sealed: bool = False) -> None:
        """Raise an error if a batch that begins at `base_offset` cannot be appended."""
        if self.failure is not None:
            raise StorageError(
                f"cannot go on after an error: {self.failure.what}",
                file=self.path,
                hint="the state on disk is unknown: open the log again, which recovers it",
                errno=self.failure.errno,
            ) from self.failure
        if self._sealed and not sealed:
            raise StorageError("cannot append: the segment is sealed", file=self.path)
        if base_offset < self.written.at.next_offset:
            raise CorruptRecordError(
                f"the batch begins at offset {base_offset}, expected {self.written.at.next_offset} or above",
                file=self.path, position=self.written.at.position, offset=base_offset,
            )

    def _fail(self, error: BaseException) -> None:
        """Refuse all further writes: the files and the builder may disagree."""
        if self.failure is not None:
            return
        self._takes_batches = False
        if isinstance(error, StorageError):
            # A copy: the error itself would keep the frames of the call and their objects alive.
            self.failure = StorageError(error.what, file=error.file, hint=error.hint, errno=error.errno)
        else:
            self._is_interrupted = True
            self.failure = StorageError(f"a write was interrupted by {type(error).__name__}", file=self.path)
