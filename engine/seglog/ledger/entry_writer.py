"""How a ledger is written to: entries that wait for the disk together become one batch, one write and one sync.

    put: encode ── whoever leads the next sync (segment.write_gate): write .log, indexes ── fdatasync ── publish

An entry is a record of a v2 batch, its id the record's offset. With fsync "interval" or "never" nobody waits, so
each `put` writes a batch of its own and publishes it at once.

What fails from the write on leaves the ledger read-only: what is on the disk is unknown then, and recovery finds out.
What is interrupted there is taken up from the disk at once (`mend`); entries that wait are written then.
"""
from collections.abc import Callable
from pathlib import Path

from seglog._kernels.entry_batch import CheckedEntries, EntryBatch
from seglog._kernels.shield import shielded
from seglog.clock import Clock
from seglog.config import MAX_LONG, Fsync, LogConfig
from seglog.errors import CorruptRecordError, LogClosedError, RecordTooLargeError, SeglogError
from seglog.format import names
from seglog.fs.aside import shorten
from seglog.fs.files import FileSystem
from seglog.ledger.broker_state import BrokerState
from seglog.ledger.config import INDEX, TIMESTAMP
from seglog.segment.appender import SegmentAppender
from seglog.segment.growing_files import GROWING_FILES
from seglog.segment.published import End, PublishedEnd
from seglog.segment.recovery import check_segment
from seglog.segment.write_gate import WriteGate

# The one segment of a ledger never rolls: who writes it begins another ledger before it is full.
SEGMENT = LogConfig(segment_bytes=2**31 - 1, segment_ms=MAX_LONG, segment_jitter_ms=0)
# The header of a batch, and the most that a record without a key costs beside its value: docs/formats/record_batch.md.
_BATCH_HEADER_BYTES, _RECORD_BYTES_MAX = 61, 32
# `when_synced` is called each time that so many more bytes are on the disk. What lies behind is written again when the
# writer died: that shall take a fraction of a second, however large the ledger is.
SYNCED_BYTES = 64 << 20
# A batch up to here is handed to its file as bytes: the short way costs less than a copy.
_SHORT_BYTES = 8 << 10
# The most of the broker's part.
_BROKER_PART_BYTES = 28


class EntryWriter(WriteGate):
    """The end of one ledger that grows. Threads may share it.

    Lock order: the files (`alone`), then the lock. Never wait for a sync with the lock: whoever leads takes it.
    """

    def __init__(self, fs: FileSystem, directory: Path, clock: Clock, created_ms: int, fsync: Fsync) -> None:
        """Makes the segment, durably. Raises StorageError."""
        self.active = SegmentAppender.create(fs, directory, 0, SEGMENT, created_ms)
        super().__init__(self.active.path, "ledger")
        self._fs = fs
        self._clock = clock
        # What is called when the .log became another file, in which readers find what they had.
        self.when_replaced: Callable[[], None] | None = None
        # What is called, alone with the files, when so many bytes of the .log are on the disk.
        self.when_synced: Callable[[int], None] | None = None
        self._synced_bytes = 0
        # Changed with the lock.
        self.published: PublishedEnd = PublishedEnd(self.active.end)
        self._waits = fsync == "batch"
        self._waiting = EntryBatch()
        # The id of the next entry; all before it were put, not all are published.
        self.next_id = 0
        # What the .log has at most when all that was put is written.
        self.size_bytes = 0
        GROWING_FILES.opened(self)

    @property
    def max_timestamp(self) -> int:
        """The largest time of all entries that were written, -1 if there is none."""
        return self.active.max_timestamp

    def open_files(self) -> None:
        """Open them again, which were given back: nothing has changed if that fails. Raises StorageError, as `put`."""
        self.change(GROWING_FILES.appender_of, self)

    def put(self, entries: list[bytes], timestamps: list[int]) -> tuple[int, int]:
        """Take entries, in order: (the id of the first, what to `wait` for).

        Refused as a whole, nothing changed: RecordTooLargeError where the segment has no room for them,
        LogClosedError, LogFailedError.
        """
        return self.change(self._put, entries, timestamps)

    def _put(self, entries: list[bytes], timestamps: list[int]) -> tuple[int, int]:
        most = self._check_room(len(entries), sum(map(len, entries)))
        self.is_changing = True
        try:
            self._waiting.add(entries, timestamps)
        except SeglogError:
            self.is_changing = False    # a refused call has changed nothing
            raise
        return self._took(len(entries), most)

    def put_checked(
        self, checked: CheckedEntries, first: int, stop: int, state: BrokerState, interceptors: frozenset[str]
    ) -> tuple[int, int, int]:
        """The same of the entries [first, stop) with what the broker puts in front of each; and the index behind.

        `state`: the time to put, and the index of the last message before.
        """
        return self.change(self._put_checked, checked, first, stop, state, interceptors)

    def _put_checked(
        self, checked: CheckedEntries, first: int, stop: int, state: BrokerState, interceptors: frozenset[str]
    ) -> tuple[int, int, int]:
        size_bytes = checked.size_between(first, stop) + (stop - first) * _BROKER_PART_BYTES
        most = self._check_room(stop - first, size_bytes)
        self.is_changing = True
        try:
            index = self._waiting.add_checked(
                checked, first, stop, state.timestamp, state.index, TIMESTAMP in interceptors, INDEX in interceptors
            )
        except SeglogError:
            self.is_changing = False
            raise
        return *self._took(stop - first, most), index

    def _check_room(self, count: int, size_bytes: int) -> int:
        """With the lock, before entries are taken: the bytes that so many may come to. The files are open then.

        Raises RecordTooLargeError, and StorageError if the files were given back and cannot be opened again.
        """
        # Each entry might become a batch.
        most = size_bytes + count * (_RECORD_BYTES_MAX + _BATCH_HEADER_BYTES)
        if most > SEGMENT.segment_bytes - self.size_bytes:
            raise RecordTooLargeError(
                f"{count} entries of {size_bytes} bytes do not fit behind the {self.size_bytes} bytes of the ledger: "
                "2 GiB - 1 are the most",
                file=self.path,
            )
        if self.active.is_given_back:
            GROWING_FILES.appender_of(self)
        return most

    def _took(self, count: int, most: int) -> tuple[int, int]:
        """With the lock: entries wait."""
        first = self.next_id
        self.size_bytes += most
        self.next_id = first + count
        self.number += 1
        if not self._waits:
            self._write()
            self.published.at = self.active.end
        return first, self.number

    def await_put(self, number: int) -> None:
        """Return when what was put is as durable as `fsync` says. Raises LogFailedError."""
        if self._waits:
            self.wait(number)

    def flush(self) -> None:
        """Return when all that was put is on the disk. Raises LogFailedError, LogClosedError."""
        self.wait(self.change(self._count))

    def _count(self) -> int:
        self.number += 1
        return self.number

    def seal(self) -> End:
        """Write what waits, close the indexes, sync all files: nothing can be put any more. Raises LogFailedError."""
        shielded(self.alone, self.with_lock, self._seal)
        return self.published.at

    def _seal(self) -> None:
        self._mend()
        self.refusal = self.refusal or self._sealed
        self._write()
        self.is_changing = True
        self.active.seal()
        self.published.at = self.active.end
        self.cover(self.number)

    def close(self) -> None:
        """Give the descriptors back. Twice is fine."""
        self.refusal = self.refusal or self._sealed
        self.active.close()

    # --- writing -----------------------------------------------------------------------------

    def sync(self) -> int:
        """What the gate calls: alone with the files, but for `put`."""
        number, end = self.with_lock(self._write_all)
        self.active.sync()
        if self._waits:
            self.published.at = end     # nobody publishes but who is alone with the files
        else:
            self.with_lock(self._publish, end)
        if end.position - self._synced_bytes >= SYNCED_BYTES and self.when_synced is not None:
            self._synced_bytes = end.position
            shielded(self.when_synced, end.position)
        return number

    def _publish(self, end: End) -> None:
        """With the lock. Entries were perhaps added and published during the sync: readers never go back."""
        if end.next_offset > self.published.at.next_offset:
            self.published.at = end

    def write_entries(self) -> None:
        """With the lock, alone with the files: what waits is written, and the index files lead up to it."""
        self._write()
        self.active.write_entries()

    def sync_all(self) -> None:
        """The same, and all is on the disk, and published."""
        self.write_entries()
        self.active.sync()
        self.published.at = self.active.end
        self.cover(self.number)

    def _write_all(self) -> tuple[int, End]:
        self._write()
        return self.number, self.active.end

    def _write(self) -> None:
        """With the lock: what waits, as one batch. So a crash tears one batch at most, and it is the last one."""
        waiting = self._waiting
        made = waiting.taken
        if made is None:
            if not len(waiting):
                return
            self.is_changing = True
            made = waiting.take(self.active.end.next_offset)
        self.is_changing = True
        first, last = made.base_offset, made.last_offset
        raw = bytes(made) if len(made) <= _SHORT_BYTES else made
        if not self.active.append_quietly(raw, first, last, made.max_timestamp):
            self.active.append_batch(raw, first, last, made.max_timestamp)
        waiting.taken = None
        self.size_bytes = self.active.end.position

    # --- after an interrupt ------------------------------------------------------------------

    def mend(self) -> None:
        """Take the ledger up from the disk, if an exception left a change in the middle. Every entry put is written."""
        try:
            shielded(self.alone_within, self.with_lock, self._mend)
        except BaseException as error:
            if error is self.failure:
                self.settle(error)
            raise

    def _mend(self) -> None:
        if not self.is_torn or self.failure is not None or self.refusal is not None:
            return
        self.is_changing = True
        self.active.check_disk()
        self.active.close()
        self.active = self._taken_up()
        GROWING_FILES.opened(self)
        waiting, end = self._waiting, self.active.end
        if waiting.taken is not None and waiting.taken.base_offset < end.next_offset:
            waiting.taken = None        # it is there, as a whole
        self._write()                   # what was taken
        self._write()                   # and what waits behind it
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
            shorten(self._fs, self.path, check.sound_bytes)
            if self.when_replaced is not None:
                self.when_replaced()
        return SegmentAppender.open(
            self._fs, self.path.parent, 0, SEGMENT, check.sound_bytes, check.next_offset, self._clock.now_ms()
        )

    def _sealed(self) -> LogClosedError:
        return LogClosedError("the ledger was sealed: nothing can be added", file=self.path, hint="make a new one")
