"""A cursor of a log: its position is stored in the partition, and survives restarts."""
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from seglog._kernels.record_batch import Record
from seglog._kernels.shield import shielded
from seglog._kernels.write_gate import CallLock
from seglog.clock import Clock
from seglog.errors import LogClosedError, LogLockedError, OffsetOutOfRangeError
from seglog.format.live_ends import LiveEnds
from seglog.fs.files import FileSystem
from seglog.fs.handles import OpenHandle
from seglog.fs.lock import EXCLUSIVE, SHARED, lock_file, turns
from seglog.reading.arguments import Isolation, OnOutOfRange, checked_offset
from seglog.reading.open_readers import CURSORS
from seglog.state.reader_cursor import ReaderCursor, checked_name, lock_path


class Readable(Protocol):
    """What a cursor needs of a log: any LogReader."""

    path: Path

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    def _told_ends(self) -> LiveEnds | None: ...

    def _read_epoch(self) -> int | None: ...

    def read(
        self, start: int | None = None, *, isolation: Isolation = ..., on_out_of_range: OnOutOfRange | None = ...
    ) -> Iterator[Record]: ...


class LogCursor(OpenHandle):
    """A cursor, from `log.cursor(name)` of a `Log` or any reader of it. Use it as a context manager, or close it.

        with log.cursor("mailer") as cursor:
            for record in cursor.read():
                send(record.value)
                cursor.commit(record)

    name, is_shared     as it was opened
    position            the offset of the first record that is not committed; at first the log start offset
    lag                 the number of offsets from there to the end of the log

    Threads may share it. A forked child must not use it: it can open the name again when this process has closed it.
    """

    def __init__(
        self, log: Readable, name: str, *, is_shared: bool, is_durable: bool, fs: FileSystem, clock: Clock
    ) -> None:
        self.name = checked_name(name)
        self.is_shared = is_shared
        self._is_durable = is_durable
        self._log = log
        self._fs = fs
        self._clock = clock
        self._directory = log.path.resolve()
        self._alone = CallLock()
        self._is_closed = False
        try:
            self._lock = lock_file(fs, lock_path(self._directory, name), SHARED if is_shared else EXCLUSIVE)
        except LogLockedError as error:
            raise LogLockedError(
                f"the reader name {name!r} is in use: {error.what}", file=error.file,
                hint="use another name, or pass shared=True in all readers that use this one",
            ) from None
        try:
            self._epoch = log._read_epoch()     # of the log, as of the latest read: what is committed was seen since
            ReaderCursor.read(self._directory, name)
        except BaseException:
            self._lock.release()
            raise
        CURSORS.opened(self)

    def __repr__(self) -> str:
        if not self._lock.held:
            return f"<LogCursor {self.name}: closed>"
        return f"<LogCursor {self.name} of {self._directory.name}: at offset {self.position}>"

    @property
    def path(self) -> Path:
        """The path of the partition that it reads, as it was passed to its log."""
        return self._log.path

    @property
    def position(self) -> int:
        """The offset of the next record to read, as last committed; the log start if nothing was committed."""
        self._check()
        # Read the file each time: truncation lowers the position, and other processes may share the cursor.
        committed = ReaderCursor.read(self._directory, self.name)
        return self._log.log_start_offset if committed is None else committed.offset

    @property
    def lag(self) -> int:
        """The number of offsets from the position to the end of the log."""
        return max(self._log.log_end_offset - max(self.position, self._log.log_start_offset), 0)

    def read(
        self, *, isolation: Isolation = "read_uncommitted", on_out_of_range: OnOutOfRange | None = None
    ) -> Iterator[Record]:
        """Iterate over the records from the position to the end of the log as of this call. Commits nothing.

        Raises OffsetOutOfRangeError if retention removed the position, unless `on_out_of_range` says to begin at the
        "earliest" or "latest" offset instead; and what `LogReader.read` raises.
        """
        return self._log.read(self._begin_read(), isolation=isolation, on_out_of_range=on_out_of_range)

    def _begin_read(self) -> int:
        """Where a read begins: what is committed from now on was seen by it."""
        self._epoch = self._log._read_epoch()       # before the position, which is lowered before the epoch changes
        return self.position

    def commit(self, done: int | Record) -> None:
        """Move the position to the record after `done`. `done` is a record, or, as for Kafka's consumers, the offset of
        the next record.

        Durable when it returns, but for a cursor of a Log with fsync="never". With `shared=True` the position only
        moves forward; otherwise it may also move back.

        Raises OffsetOutOfRangeError outside the log, and also if the log was truncated below `done` since the last
        `read` (or since the cursor was opened): other records may have these offsets now, so call `read` again. Raises
        StorageError, and ForkedHandleError in a forked child.
        """
        offset = done.offset + 1 if isinstance(done, Record) else checked_offset(done)
        start, end = self._log.log_start_offset, self._log.log_end_offset
        if not start <= offset <= end:
            raise OffsetOutOfRangeError(
                f"offset {offset} is not within [{start}, {end}]", file=self._directory, offset=offset,
                hint="commit a record, or the offset after the last record that is done",
            )
        shielded(self._alone.run, self._commit, offset)

    def _check(self) -> None:
        if self._is_closed:
            raise LogClosedError(
                f"the cursor {self.name!r} was closed", file=self._directory, hint="open it again with `log.cursor`"
            )
        self._lock.check()

    def _commit(self, offset: int) -> None:
        self._check()
        # The writer lowers cursors and announces a truncation under the same lock: it sees this commit, or this sees
        # the truncation.
        with turns(self._fs, self._directory.parent) as turn:
            turn.run(self._put, offset)

    def _put(self, offset: int) -> None:
        self._check_truncations(offset)
        if self.is_shared:
            committed = ReaderCursor.read(self._directory, self.name)
            if committed is not None and offset <= committed.offset:
                return
        cursor = ReaderCursor(self.name, offset, self._clock.now_ms())
        cursor.commit(self._fs, self._directory, durably=self._is_durable)

    def _check_truncations(self, offset: int) -> None:
        ends, seen = self._log._told_ends(), self._epoch
        if ends is None or seen == ends.epoch:
            return
        # Without an epoch, or with a higher one, the count began, or began again, after the records were read.
        truncation = ends.truncation_since(-1 if seen is None or seen > ends.epoch else seen)
        if truncation is not None and truncation < offset:
            self._epoch = ends.epoch
            raise OffsetOutOfRangeError(
                f"the log was truncated to offset {truncation} since its records were read; {offset} is above that",
                file=self._directory, offset=offset,
                hint="read on from `cursor.position`: other records may stand there now",
            )

    def close(self) -> None:
        """Release the name for other readers. Idempotent; the log stays open."""
        self._is_closed = True
        self._lock.release()
        CURSORS.closed(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
