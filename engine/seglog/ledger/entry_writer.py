"""Writes to a ledger: entries that wait for the disk together become one batch, one write and one sync.

    put: encode ── the leader of the next sync (segment.write_gate): write .log, indexes ── fdatasync ── publish

An entry is a record of a v2 batch, its id the record's offset. With fsync "interval" or "never" no call waits, so each
`put` writes its own batch and publishes it at once.

A failure from the write on leaves the ledger read-only: the state on disk is unknown then, and recovery finds it out.
An interrupt there makes the ledger read itself from the disk again at once: `reload`; it also writes waiting entries.
"""
from collections.abc import Callable
from pathlib import Path

from seglog._kernels.entry_batch import CheckedEntries, EntryBatch
from seglog._kernels.quiet_ledger import QuietWriter
from seglog._kernels.shield import shielded
from seglog.clock import Clock
from seglog.config import MAX_LONG, Fsync, LogConfig
from seglog.errors import CorruptRecordError, LogClosedError, LogFailedError, RecordTooLargeError, SeglogError
from seglog.format import names
from seglog.format.batch_layout import V2_HEADER_SIZE
from seglog.fs.aside import shorten
from seglog.fs.files import FileSystem
from seglog.ledger.broker_state import BrokerState
from seglog.ledger.config import INDEX, TIMESTAMP
from seglog.segment.appender import SegmentAppender
from seglog.segment.growing_files import GROWING_FILES
from seglog.segment.published_end import End, PublishedEnd
from seglog.segment.recovery import check_segment
from seglog.threads.write_gate import WriteGate

# The one segment of a ledger never rolls: its writer starts another ledger before it is full.
SEGMENT = LogConfig(segment_bytes=2**31 - 1, segment_ms=MAX_LONG, segment_jitter_ms=0)
# The most that a record without a key adds to its value: docs/formats/record_batch.md.
_RECORD_BYTES_MAX = 32
# `when_synced` is called each time that this many more bytes are on the disk. Bytes after that are written again if the
# writer died: this must take a fraction of a second, however large the ledger is.
SYNCED_BYTES = 64 << 20
# Batches up to this size are passed to the file as bytes: the fast path saves more than the copy costs.
_SHORT_BYTES = 8 << 10
# The largest size of broker metadata.
_BROKER_PART_BYTES = 28


class EntryWriter(QuietWriter, WriteGate):
    """The end of one growing ledger. Thread-safe.

    Lock order: the files (`alone`), then the lock. Never wait for a sync with the lock: its leader takes it.
    """

    active: SegmentAppender
    published: PublishedEnd
    _waiting: EntryBatch
    when_synced: Callable[[int], None] | None

    def __init__(self, fs: FileSystem, directory: Path, clock: Clock, created_ms: int, fsync: Fsync) -> None:
        """Create the segment, durably. Raises StorageError."""
        self.active = SegmentAppender.create(fs, directory, 0, SEGMENT, created_ms)
        super().__init__(self.active.path, "ledger")
        self._fs = fs
        self._clock = clock
        # Called when the .log became another file, in which readers find what they had.
        self.when_replaced: Callable[[], None] | None = None
        # Called, alone with the files, when this many bytes of the .log are on the disk.
        self.when_synced = None
        self._synced_bytes, self._told_bytes = 0, SYNCED_BYTES
        # Changed with the lock.
        self.published = PublishedEnd(self.active.end)
        self._waits = fsync == "batch"
        self._waiting = EntryBatch()
        # The id of the next entry; all before it were put, but not all may be published.
        self.next_id = 0
        # The largest size of the .log when everything put is written.
        self.size_bytes = 0
        GROWING_FILES.opened(self)

    @property
    def max_timestamp(self) -> int:
        """The largest time of all written entries, -1 if there is none."""
        return self.active.max_timestamp

    def open_files(self) -> None:
        """Reopen files that were given back; if that fails, nothing has changed. Raises StorageError, like `put`."""
        self.change(GROWING_FILES.appender_of, self)

    def put(self, entries: list[bytes], timestamps: list[int]) -> tuple[int, int]:
        """Take entries, in order; return (the id of the first, the number to `wait` for).

        All or none are taken: raises RecordTooLargeError if the segment has no room for them, LogClosedError,
        LogFailedError.
        """
        return self.change(self._put, entries, timestamps)

    def _put(self, entries: list[bytes], timestamps: list[int]) -> tuple[int, int]:
        most = self._check_room(len(entries), sum(map(len, entries)))
        with self.changing() as change:
            try:
                self._waiting.add(entries, timestamps)
            except SeglogError:
                change.refused()
                raise
            return self._took(len(entries), most)

    def put_checked(
        self, checked: CheckedEntries, first: int, stop: int, state: BrokerState, interceptors: frozenset[str]
    ) -> tuple[int, int, int]:
        """Do the same for the entries [first, stop), with the broker metadata of each; return also the last index.

        `state`: the time to use, and the index of the message before.
        """
        return self.change(self._put_checked, checked, first, stop, state, interceptors)

    def _put_checked(
        self, checked: CheckedEntries, first: int, stop: int, state: BrokerState, interceptors: frozenset[str]
    ) -> tuple[int, int, int]:
        size_bytes = checked.size_between(first, stop) + (stop - first) * _BROKER_PART_BYTES
        most = self._check_room(stop - first, size_bytes)
        with self.changing() as change:
            try:
                index = self._waiting.add_checked(
                    checked, first, stop, state.timestamp, state.index, TIMESTAMP in interceptors, INDEX in interceptors
                )
            except SeglogError:
                change.refused()
                raise
            return *self._took(stop - first, most), index

    def _check_room(self, count: int, size_bytes: int) -> int:
        """Return the most bytes that these entries may take. With the lock, before they are taken; opens the files.

        Raises RecordTooLargeError, and StorageError if the files were given back and cannot be reopened.
        """
        # Each entry might become a batch.
        most = size_bytes + count * (_RECORD_BYTES_MAX + V2_HEADER_SIZE)
        if most > SEGMENT.segment_bytes - self.size_bytes:
            raise RecordTooLargeError(
                f"{count} entries of {size_bytes} bytes do not fit after the {self.size_bytes} bytes of the ledger: "
                "it can have 2 GiB - 1",
                file=self.path,
            )
        if self.active.is_given_back:
            GROWING_FILES.appender_of(self)
        return most

    def _took(self, count: int, most: int) -> tuple[int, int]:
        """Note that entries wait; with the lock."""
        first = self.next_id
        self.size_bytes += most
        self.next_id = first + count
        self.number += 1
        if not self._waits:
            self._write()
            self.published.at = self.active.end
        return first, self.number

    def await_put(self, number: int) -> None:
        """Return when the put entries are as durable as `fsync` says. Raises LogFailedError."""
        if self._waits:
            self.wait(number)

    def flush(self) -> None:
        """Return when everything that was put is on the disk. Raises LogFailedError, LogClosedError."""
        self.wait(self.change(self._count))

    def _count(self) -> int:
        self.number += 1
        return self.number

    def seal(self) -> End:
        """Write what waits, close the indexes, sync all files; then nothing can be put. Raises LogFailedError."""
        shielded(self.alone, self.with_lock, self._seal)
        return self.published.at

    def _seal(self) -> None:
        self._reload()
        self.refusal = self.refusal or self._sealed
        self._write()
        with self.changing():
            self.active.seal()
            self.published.at = self.active.end
            self.cover(self.number)

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        self.refusal = self.refusal or self._sealed
        self.active.close()

    def close_after_writes(self) -> None:
        """Close the descriptors when no other thread writes or syncs: for whoever gives the directory's lock back. What
        is written later would be in the ledger that its next opener has sealed. Not in a forked child. Idempotent."""
        self.refusal = self.refusal or self._sealed
        try:
            self.alone_within(self.with_lock, self.close)
        except LogFailedError:      # after a failure: nothing begins any more
            self.with_lock(self.close)

    # --- writing -----------------------------------------------------------------------------

    def sync_slowly(self) -> int:
        """Do `sync` where it is not quiet (_kernels.quiet_ledger)."""
        number, end = self.with_lock(self._write_all)
        self.active.sync()
        if self._waits:
            self.published.at = end     # only the thread that is alone with the files publishes
        else:
            self.with_lock(self._publish, end)
        if end.position - self._synced_bytes >= self._told_bytes and self.when_synced is not None:
            self._synced_bytes = end.position
            shielded(self.when_synced, end.position)
        return number

    def _publish(self, end: End) -> None:
        """Publish the end; with the lock. If a sync let more entries be published meanwhile, keep that end."""
        if end.next_offset > self.published.at.next_offset:
            self.published.at = end

    def write_entries(self) -> None:
        """Write what waits, and the index files up to it; with the lock, and alone with the files."""
        with self.changing():
            self._write()
            self.active.write_entries()

    def sync_all(self) -> None:
        """Do the same, then sync and publish everything."""
        self.write_entries()
        self.active.sync()
        self.published.at = self.active.end
        self.cover(self.number)

    def _write_all(self) -> tuple[int, End]:
        if self.is_torn:        # by an add that was interrupted after the gate looked, while this waited for the lock
            shielded(self._reload)
        self._write()
        return self.number, self.active.end

    def _write(self) -> None:
        """Write what waits as one batch; with the lock. So a crash can tear only one batch, the last one."""
        waiting = self._waiting
        if waiting.taken is None and not len(waiting):
            return
        with self.changing():
            made = waiting.taken
            if made is None:
                made = waiting.take(self.active.end.next_offset)
            first, last = made.base_offset, made.last_offset
            raw = bytes(made) if len(made) <= _SHORT_BYTES else made
            if not self.active.append_quietly(raw, first, last, made.max_timestamp):
                self.active.append_batch(raw, first, last, made.max_timestamp)
            waiting.taken = None
            self.size_bytes = self.active.end.position

    # --- after an interrupt ------------------------------------------------------------------

    def reload(self) -> None:
        """Read the ledger again from the disk if an exception interrupted a change. Writes every entry that was put."""
        try:
            shielded(self.alone_within, self.with_lock, self._reload)
        except BaseException as error:
            if error is self.failure:
                self.settle(error)
            raise

    def _reload(self) -> None:
        if not self.is_torn or self.failure is not None or self.refusal is not None:
            return
        with self.changing():
            self.active.check_disk()
            self.active.close()
            self.active = self._taken_up()
            self.active.assume_unsynced()
            GROWING_FILES.opened(self)
            waiting, end = self._waiting, self.active.end
            if waiting.taken is not None and waiting.taken.base_offset < end.next_offset:
                waiting.taken = None        # it is on the disk, complete
            self._write()                   # what was taken
            self._write()                   # and what waits after it
            end = self.active.end
            self.next_id, self.size_bytes = end.next_offset, end.position
            self.is_torn = False

    def _taken_up(self) -> SegmentAppender:
        check = check_segment(self.path, 0, names.MAX_OFFSET, SEGMENT)
        if check.has_run_behind_damage or check.foreign_magics:
            raise CorruptRecordError(
                "damage in the middle of the ledger", file=self.path, position=check.sound_bytes
            )
        if check.damages:
            shorten(self._fs, self.path, check.sound_bytes, is_torn_tail=check.ends_torn)
            if self.when_replaced is not None:
                self.when_replaced()
        return SegmentAppender.open(
            self._fs, self.path.parent, 0, SEGMENT, check.sound_bytes, check.next_offset, self._clock.now_ms()
        )

    def _sealed(self) -> LogClosedError:
        return LogClosedError("the ledger is sealed: nothing can be added", file=self.path, hint="create a new one")
