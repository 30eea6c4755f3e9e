"""How a ledger is written to: entries that wait for the disk together become one batch, one write and one sync.

    put: encode ── who leads the next sync (segment.group_commit): write .log, indexes ── fdatasync ── publish

An entry is a record of a v2 batch, its id the record's offset. With fsync "interval" or "never" nobody waits, so
each `put` writes a batch of its own and publishes it at once.

What fails from the write on leaves the ledger read-only: what is on the disk is unknown then, and recovery finds out.
"""
import threading
from collections.abc import Callable
from pathlib import Path

from seglog._kernels.entry_batch import CheckedEntries, EntryBatch
from seglog.config import MAX_LONG, Fsync, LogConfig
from seglog.errors import LogClosedError, LogFailedError, RecordTooLargeError, SeglogError
from seglog.fs.files import FileSystem
from seglog.ledger.broker_state import BrokerState
from seglog.ledger.config import INDEX, TIMESTAMP
from seglog.segment.appender import SegmentAppender
from seglog.segment.group_commit import GroupCommit
from seglog.segment.published import End, PublishedEnd

# The one segment of a ledger never rolls: who writes it begins another ledger before it is full.
SEGMENT = LogConfig(segment_bytes=2**31 - 1, segment_ms=MAX_LONG, segment_jitter_ms=0)
# The header of a batch, and the most that a record without a key costs beside its value: docs/formats/record_batch.md.
_BATCH_HEADER_BYTES, _RECORD_BYTES_MAX = 61, 32
# A batch up to here is handed to its file as bytes: the short way costs less than a copy.
_SHORT_BYTES = 8 << 10
# The most of the broker's part.
_BROKER_PART_BYTES = 28


class EntryWriter:
    """The end of one ledger that grows. Threads may share it."""

    def __init__(self, fs: FileSystem, directory: Path, created_ms: int, fsync: Fsync) -> None:
        """Makes the segment, durably. Raises StorageError."""
        self.published: PublishedEnd
        # Guards all below but the commit. It may be taken by who has the commit's files to himself, so whoever
        # holds it waits for nobody.
        self._lock = threading.Lock()
        self._appender = SegmentAppender.create(fs, directory, 0, SEGMENT, created_ms)
        self.published = PublishedEnd(self._appender.end)
        self._waits = fsync == "batch"
        self._waiting = EntryBatch()
        self._next_id = 0
        self._size_bytes = 0            # what the .log has at most when all that waits is written
        self._number = 0                # of puts: what GroupCommit counts
        self._refusal: Callable[[], SeglogError] | None = None
        self._failure: BaseException | None = None
        self._commit = GroupCommit(_failed)

    @property
    def path(self) -> Path:
        """Of the .log."""
        return self._appender.path

    @property
    def next_id(self) -> int:
        """The id of the next entry; all before it were put, not all are published."""
        return self._next_id

    @property
    def size_bytes(self) -> int:
        """What the .log has at most when all that was put is written."""
        return self._size_bytes

    @property
    def max_timestamp(self) -> int:
        """The largest time of all entries that were written, -1 where there is none."""
        return self._appender.max_timestamp

    @property
    def failure(self) -> BaseException | None:
        """The first error of a write or sync."""
        return self._failure

    def put(self, entries: list[bytes], timestamps: list[int]) -> tuple[int, int]:
        """Take entries, in order: (the id of the first, what to `wait` for).

        Refused as a whole, nothing changed: RecordTooLargeError where the segment has no room for them,
        LogClosedError, LogFailedError.
        """
        size_bytes = sum(map(len, entries))
        with self._lock:
            most = self._check_room(len(entries), size_bytes)
            self._waiting.add(entries, timestamps)
            return self._took(len(entries), most)

    def put_checked(
        self, checked: CheckedEntries, first: int, stop: int, state: BrokerState, interceptors: frozenset[str]
    ) -> tuple[int, int, int]:
        """The same of the entries [first, stop) with what the broker puts in front of each; and the index behind.

        `state`: the time to put, and the index of the last message before.
        """
        size_bytes = checked.size_between(first, stop) + (stop - first) * _BROKER_PART_BYTES
        with self._lock:
            most = self._check_room(stop - first, size_bytes)
            index = self._waiting.add_checked(
                checked, first, stop, state.timestamp, state.index, TIMESTAMP in interceptors, INDEX in interceptors
            )
            return *self._took(stop - first, most), index

    def _check_room(self, count: int, size_bytes: int) -> int:
        """Under the lock: the bytes that so many entries may come to. Raises what `put` raises."""
        if self._refusal is not None:
            raise self._refusal()
        # Each entry might become a batch.
        most = size_bytes + count * (_RECORD_BYTES_MAX + _BATCH_HEADER_BYTES)
        if most > SEGMENT.segment_bytes - self._size_bytes:
            raise RecordTooLargeError(
                f"{count} entries of {size_bytes} bytes do not fit behind the {self._size_bytes} bytes of the ledger: "
                "2 GiB - 1 are the most",
                file=self.path,
            )
        return most

    def _took(self, count: int, most: int) -> tuple[int, int]:
        """Under the lock: entries wait."""
        first = self._next_id
        self._size_bytes += most
        self._next_id = first + count
        self._number += 1
        if not self._waits:
            self._write()
            self.published.at = self._appender.end
        return first, self._number

    def wait(self, number: int) -> None:
        """Return when what was put is as durable as `fsync` says. Raises LogFailedError."""
        if self._waits:
            self._commit.wait(number, self._write_and_sync)

    def flush(self) -> None:
        """Return when all that was put is on the disk. Raises LogFailedError, LogClosedError."""
        with self._lock:
            if self._refusal is not None:
                raise self._refusal()
            self._number += 1
            number = self._number
        self._commit.wait(number, self._write_and_sync)

    def seal(self) -> End:
        """Write what waits, close the indexes, sync all files: nothing can be put any more. Raises LogFailedError."""
        with self._commit.exclusive():
            with self._lock:
                self._refusal = self._refusal or self._sealed
                self._write()
                number = self._number
            try:
                self._appender.seal()
            except BaseException as error:
                self._fail(error)
                raise
            self.published.at = self._appender.end
            self._commit.cover(number)
        return self.published.at

    def close(self) -> None:
        """Give the descriptors back. Twice is fine."""
        with self._lock:
            self._refusal = self._refusal or self._sealed
        self._appender.close()

    # --- writing -----------------------------------------------------------------------------

    def _write_and_sync(self) -> int:
        """What GroupCommit calls: alone with the files, but for `put`."""
        with self._lock:
            number = self._number
            self._write()
            end = self._appender.end
        try:
            self._appender.sync()
        except BaseException as error:
            self._fail(error)
            raise
        self.published.at = end
        return number

    def _write(self) -> None:
        """Under the lock: what waits, as one batch. So a crash tears one batch at most, and it is the last one."""
        if not len(self._waiting):
            return
        first = self._appender.end.next_offset
        try:
            made = self._waiting.take(first)
            raw = bytes(made) if len(made) <= _SHORT_BYTES else made
            self._appender.append_batch(raw, first, made.last_offset, made.max_timestamp)
        except BaseException as error:
            self._fail(error)
            raise
        self._size_bytes = self._appender.end.position

    def _fail(self, error: BaseException) -> None:
        """The ledger is read-only from now on. Raises LogFailedError, but for ^C and the like."""
        if self._failure is None:
            self._failure = error
            self._refusal = self._failed
            self._commit.fail(error)
        if isinstance(error, Exception) and not isinstance(error, LogFailedError):
            raise _failed(error) from error

    def _failed(self) -> LogFailedError:
        assert self._failure is not None
        return _failed(self._failure)

    def _sealed(self) -> LogClosedError:
        return LogClosedError("the ledger was sealed: nothing can be added", file=self.path, hint="make a new one")


def _failed(first: BaseException) -> LogFailedError:
    return LogFailedError.since(first, "ledger")
