"""A log: one partition directory, opened to be appended to, read, cut and closed.

    with seglog.open("data/orders-0") as log:
        offset = log.append(b"value", key=b"key")
        for record in log.read(start=offset): ...

    LogLookup ── LogReader ── Followable ── Log ─┬─ LogTail          where it grows: written, rolled, synced, published
                                                 ├─ LogAppender      its appends
                                                 ├─ LogCutter        how it is cut
                                                 ├─ LogRetainer      what retention deletes
                                                 └─ LogTransactions  whose records count

Opening locks the partition and recovers it as Kafka's loader does (log.loader). How it is searched: log.lookup; read:
log.reader, as a closed one is. The parts: log.tail, append, cutting, retaining. This file opens the log, has its public
methods, and closes it.
"""
import contextlib
import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Never, overload

from seglog._kernels.shield import shielded
from seglog._kernels.unclosed import Unclosed
from seglog.clock import Clock, SystemClock
from seglog.config import Fsync, LogConfig
from seglog.errors import SeglogError
from seglog.fs.files import FileSystem, OsFileSystem
from seglog.log.aging import Retention, keep_all
from seglog.log.append import AppendResult, LogAppender, Written
from seglog.log.arguments import checked_config, checked_path, misplaced_error
from seglog.log.care import LogCare, is_other_care
from seglog.log.configuring import LogSettings, use_config
from seglog.log.cutting import LogCutter
from seglog.log.following import Followable, FollowedLog, OwnSource
from seglog.log.hot_backup import back_up
from seglog.log.keeper import KeeperOf
from seglog.log.log_metrics import OPENINGS, OpenLogs
from seglog.log.notices import Listening, checked_callback, checked_token
from seglog.log.partition import Partition, reopened
from seglog.log.producer import Producer
from seglog.log.retaining import LogRetainer, Retained, make_room_to_open
from seglog.log.stats import DirectorySizes, LogStats, stats_of
from seglog.log.tail import LogTail
from seglog.log.times import Time
from seglog.log.transactions import LogTransactions
from seglog.metrics import PROCESS
from seglog.segment.segment import Segment
from seglog.segment.sync_thread import SYNC_CALLS, Callback
from seglog.state.leader_epochs import LeaderEpochs
from seglog.state.log_dir_state import LogDirState
from seglog.state.partition_hold import PartitionHold
from seglog.state.producer_snapshot import ProducerEntry

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from seglog._kernels.batch_encode import Headers, Record


class Log(Followable, Unclosed):
    """`seglog.open(path)`. Use it as a context manager, or close it. Threads may share it; a forked child may not.

    path, topic, partition      what it is
    config, fsync, leader_epoch what it was opened with; the leader epoch as it is now
    recovery                    what opening lost and mended (log.loader.Loaded)
    dialect, foreign_files      what its files are, and empty logs of the other dialect beside them

    Raises InvalidArgumentError for a name that is no <topic>-<partition> and for what is no argument,
    InvalidConfigError, LogLockedError, NotALogError, StorageError; CorruptRecordError where recovery finds a bad
    batch in the middle of the log, and recovery.mode does not say what to do with it.
    """

    # Each read looks at it, and the other attributes lie in a dict: a compiled base makes no room for them.
    __slots__ = ("_shown",)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        config: Mapping[str, object] | LogConfig | None = None,
        fsync: Fsync = "batch",
        leader_epoch: int = 0,
        clock: Clock | None = None,
        fs: FileSystem | None = None,
        create: bool = True,
        log_dir: LogDirState | None = None,
        retention: Retention = keep_all,
        keeper_of: KeeperOf = lambda config: None,
    ) -> None:
        """See `seglog.open`. `log_dir`: of the `LogDir` that opens it. `retention`: what the log deletes by itself;
        `keeper_of`: by whom (log.keeper)."""
        super().__init__()
        settings = checked_config(config, fsync, leader_epoch)
        self.fs = fs or OsFileSystem()
        self.clock = clock or SystemClock()
        self.fsync = fsync
        self._now_ms = self.clock.now_ms
        self._pid = os.getpid()
        self._care = LogCare(keeper_of)
        taken: list[PartitionHold] = []     # let go of wherever an interrupt comes
        where = checked_path(path)
        try:
            shielded(lambda: taken.append(PartitionHold(self.fs, where, create=create, log_dir=log_dir)))
            hold = taken[0]
            self.path, self.topic, self.partition = hold.path, hold.topic, hold.partition
            self.settings = LogSettings(hold.path, config, settings)
            self.config = self.settings.config
            self.dialect, self.foreign_files = self.settings.settle_dialect(self.fs)
            tail = self._tail = LogTail(
                hold, self._shown, self.last_opened, self.config, self.fs, self.clock, fsync, leader_epoch
            )
            self.decompress = tail.decompress
            was_clean = hold.clean
            self.recovery = tail.open(lambda plan: make_room_to_open(plan, self.fs, retention, self._now_ms()))
            OPENINGS.opened(self.path, self.recovery, was_clean=was_clean)
            self.settings.keep_given(self.fs)
            self._appender = LogAppender(tail, self.format_counters)
            self._transactions = LogTransactions(tail, self._appender)
            self._cutter = LogCutter(tail)
            self._retainer = LogRetainer(tail, self._cutter, retention)
            self._sizes = DirectorySizes(self.path)
            _LOGS[id(self)] = weakref.ref(self)
            shielded(self._care.begin, self, self._retainer, self._appender)
            self._is_unclosed = True
        except BaseException:
            shielded(_give_up, self, taken)
            raise

    def __repr__(self) -> str:
        if self.closed:
            return f"<Log {self.path.name}: closed>"
        return f"<Log {self.path.name}: offsets {self.log_start_offset} to {self.log_end_offset}>"

    def _reopening(self) -> tuple[Callable[..., Partition], tuple[object, ...]]:
        # There is one writer, and it stays here: whoever gets the pickle reads (`open_partition`).
        return reopened, (str(self.path.absolute()), self.config)

    @property
    def closed(self) -> bool:
        return self._shown.extent is None

    # --- its ends --------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """Up to where readers see the log. There are no replicas to wait for: it is the log end offset."""
        return self.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest transaction that is still open; the log end offset where none is."""
        self._current()
        return self._tail.last_stable_offset

    @property
    def durable_offset(self) -> int:
        """One past the last offset that is surely on the disk."""
        return self._tail.durable_offset

    @property
    def recovery_point(self) -> int:
        """All before it is on the disk for certain: what lies behind, the next opening mends, should this process die.

        It moves at each roll, cut and opening, and with every 64 MiB that are synced.
        """
        return self._tail.recovery_point.offset

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of what is appended now."""
        return self._tail.leader_epoch

    @property
    def leader_epochs(self) -> LeaderEpochs:
        """At which offset each leader epoch began."""
        return self._tail.epoch_cache.epochs

    @property
    def cleaner_offset(self) -> int | None:
        """Up to where the log was compacted: its line in the cleaner-offset-checkpoint; None if there is none."""
        return self._tail.partition.cleaner_offset

    def put_cleaner_offset(self, offset: int) -> None:
        """Note durably that the log is compacted up to there."""
        self._tail.partition.put(cleaner_offset=offset)

    @property
    def producers(self) -> tuple[ProducerEntry, ...]:
        """The producers that the log remembers, each with its last batch."""
        return self._tail.change(lambda: self._tail.producers.entries())

    # --- appending -------------------------------------------------------------------------------
    # What is asked of records and batches, and how they are written: log.append. With wait=False each of these returns
    # when it has written, and gives a Written, whose `result` is what it gives else.

    @overload
    def append(
        self, value: "Buffer | None", *, key: "Buffer | None" = ..., headers: "Headers | None" = ...,
        timestamp: "Time | None" = ..., wait: Literal[True] = ...,
    ) -> int: ...
    @overload
    def append(
        self, value: "Buffer | None", *, key: "Buffer | None" = ..., headers: "Headers | None" = ...,
        timestamp: "Time | None" = ..., wait: Literal[False],
    ) -> Written[int]: ...
    def append(
        self,
        value: "Buffer | None",
        *misplaced: Never,
        key: "Buffer | None" = None,
        headers: "Headers | None" = (),
        timestamp: "Time | None" = None,
        wait: bool = True,
    ) -> int | Written[int]:
        """Append one record, a batch of its own, and return its offset. `value=None` is a tombstone.

        `timestamp`: now, where it is not given; milliseconds, a datetime, ISO 8601, or "-2h".
        With fsync="batch" it is on the disk at return, unless `wait` is False: then `when_durable` tells.

        Raises InvalidArgumentError if key or value is not bytes-like, RecordTooLargeError, InvalidTimestampError,
        InvalidRecordError (no key, in a compacted log), LogClosedError, LogFailedError.
        """
        if misplaced:
            raise misplaced_error(1 + len(misplaced))
        return self._appender.append(value, key, headers, timestamp, wait)

    @overload
    def append_many(
        self, records: "Iterable[Record]", *, atomic: bool = ..., wait: Literal[True] = ...
    ) -> int: ...
    @overload
    def append_many(
        self, records: "Iterable[Record]", *, atomic: bool = ..., wait: Literal[False]
    ) -> Written[int]: ...
    def append_many(
        self, records: "Iterable[Record]", *, atomic: bool = True, wait: bool = True
    ) -> int | Written[int]:
        """Append records, each (key, value[, headers[, timestamp]]), as one batch; returns the last one's offset.

        All of them or none: one batch is one write and one checksum. Refused as a whole is a batch larger than
        max.message.bytes, and a compressed one whose records are larger than max.decompressed.message.bytes.
        `atomic=False`: as many batches as these limits ask for, all checked before the first one is written; a crash
        may leave the first ones alone. Raises what `append` raises.
        """
        return self._appender.append_many(records, atomic, wait)

    @overload
    def append_columns(
        self, columns: object = ..., *, timestamps: object = ..., keys: object = ..., values: object = ...,
        headers: object = ..., wait: Literal[True] = ...,
    ) -> int: ...
    @overload
    def append_columns(
        self, columns: object = ..., *, timestamps: object = ..., keys: object = ..., values: object = ...,
        headers: object = ..., wait: Literal[False],
    ) -> Written[int]: ...
    def append_columns(
        self,
        columns: object = None,
        *,
        timestamps: object = None,
        keys: object = None,
        values: object = None,
        headers: object = None,
        wait: bool = True,
    ) -> int | Written[int]:
        """Append records as columns: `columns` with key, value, timestamp and headers, or each of them by name.

        columns: an Arrow record batch, table or stream, seglog.Columns, or a mapping of names to columns. A column: an
        Arrow array or a list; of keys or values also a 2-D array of uint8, a row a record, or (offsets, data[,
        validity]) as buffers; of timestamps also an array of int64 or datetime64, or one time for all.

        As many batches as max.message.bytes asks for, all of which were checked before the first one is written.
        Returns the last record's offset. Raises what `append` raises.
        """
        return self._appender.append_columns(
            columns, {"timestamp": timestamps, "key": keys, "value": values, "headers": headers}, wait
        )

    @overload
    def append_batch(
        self, raw: "Buffer", *, assign_offsets: bool = ..., leader_epoch: int | None = ...,
        from_coordinator: bool = ..., wait: Literal[True] = ...,
    ) -> AppendResult: ...
    @overload
    def append_batch(
        self, raw: "Buffer", *, assign_offsets: bool = ..., leader_epoch: int | None = ...,
        from_coordinator: bool = ..., wait: Literal[False],
    ) -> Written[AppendResult]: ...
    def append_batch(
        self, raw: "Buffer", *, assign_offsets: bool = True, leader_epoch: int | None = None,
        from_coordinator: bool = False, wait: bool = True,
    ) -> AppendResult | Written[AppendResult]:
        """Append a batch as bytes (`seglog.build_batch` makes one), checked as a broker does, with each record inside.

        Offsets are assigned in place, nothing is compressed again; only where inner offsets do not fit, or
        compression.type names another codec, is the batch rebuilt. `assign_offsets=False` keeps offsets, epochs and
        timestamps, unopened: a follower's append, or the mirror of a compacted topic, and of any number of batches.
        `leader_epoch`: another than the log's own, from here on. `from_coordinator`: a coordinator's batch, such as the
        offsets that a transaction commits: its producer's epoch counts, its sequence numbers do not.

        Raises CorruptRecordError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError,
        UnsupportedCompressionTypeError; OutOfOrderSequenceError, InvalidProducerEpochError, InvalidTxnStateError for
        batches of a producer; LogClosedError, LogFailedError. A batch that its producer sent before is not written
        again: the result names the first one.
        """
        return self._appender.append_batch(raw, assign_offsets, leader_epoch, wait, from_coordinator)

    def flush(self) -> None:
        """Return when all that was appended before the call is on the disk. Raises LogClosedError, LogFailedError."""
        self._tail.flush()

    def when_durable(self, token: Written[Any], callback: Callback) -> None:
        """Call `callback(None)` when what an append with wait=False wrote is on the disk, in every mode of `fsync`;
        `callback(error)` if it never will be. Exactly once, also after `close()` or a failure.

        In a thread of seglog's, the only one of the process that syncs for those who do not wait, in the order of the
        calls: so it must be quick. What it raises is logged. Raises InvalidArgumentError, ForkedHandleError.
        """
        tail = self._tail
        # (This is as much work as an append: few calls.)
        if tail.refusal is not None and self._is_forked:
            tail.check()
        number = checked_token(token, tail.first_number, tail.number, self.path)
        SYNC_CALLS.started().put((tail, number, checked_callback(callback)))

    def on_published(self, callback: Callable[[int | None], None]) -> Listening:
        """Call `callback(log_end_offset)` when readers see more of the log, or it was cut; the last time with None,
        when it was closed. Returns what can be cancelled (`.cancel()`).

        In a thread of seglog's, one for all logs of the process: so it must be quick. What it raises is logged.
        Several appends within some milliseconds are one call. Raises InvalidArgumentError, LogClosedError.
        """
        self._current()
        tail = self._tail
        if self._is_forked:
            tail.check()
        return tail.listeners.add(checked_callback(callback), tail)

    # --- transactions ----------------------------------------------------------------------------

    def producer(self, producer_id: int) -> Producer:
        """A transactional producer, with the next epoch of that id: records by it are committed together, or aborted.

        What an earlier one of the id left open is aborted, and the earlier one gets ProducerFencedError from now on.

        Raises InvalidArgumentError, InvalidProducerEpochError after 32 768 producers of an id,
        UnsupportedForMessageFormatError below format v2, LogClosedError, LogFailedError.
        """
        return Producer(self._transactions, producer_id)

    @overload
    def end_transaction(
        self, producer_id: int, epoch: int, *, commit: bool, must_be_open: bool = ..., wait: Literal[True] = ...
    ) -> int: ...
    @overload
    def end_transaction(
        self, producer_id: int, epoch: int, *, commit: bool, must_be_open: bool = ..., wait: Literal[False]
    ) -> Written[int]: ...
    def end_transaction(
        self, producer_id: int, epoch: int, *, commit: bool, must_be_open: bool = True, wait: bool = True
    ) -> int | Written[int]:
        """Write the marker that ends the transaction of ready batches, as Kafka's coordinator does. Its offset.

        `must_be_open=False`: also if the producer has written nothing here yet. Then the marker keeps out a late batch
        of an earlier epoch, whose transaction would never end.

        Raises InvalidTxnStateError if none is open, ProducerFencedError if a later epoch has come, LogClosedError,
        LogFailedError.
        """
        return self._transactions.end(producer_id, epoch, commit, must_be_open, wait)

    # --- rolling and cutting ---------------------------------------------------------------------

    def roll(self) -> int:
        """Seal the active segment and begin a new one; nothing where the active one is empty. Returns its base offset.

        Raises LogClosedError, LogFailedError.
        """
        return self._tail.change(self._tail.roll)

    def truncate_to(self, offset: int) -> int:
        """Take back every record from `offset` on. Returns the new log end offset.

        A batch goes as a whole: where `offset` lies inside of one, its first offset is the new end; never less than the
        log start offset, where an empty log begins anew. Readers that are in the removed part go on to its end, new
        ones get OffsetOutOfRangeError. (UnifiedLog.truncateTo)

        Raises OffsetOutOfRangeError below the log start offset, LogClosedError, LogFailedError.
        """
        return self._cutter.truncate_to(offset)

    def delete_records(self, before: int) -> int:
        """Let the log begin at `before`: records below it are gone for readers, segments wholly below it from the disk.

        Returns the log start offset; nothing changes where that is past `before` already. A negative offset means
        nothing here, also not Kafka's -1. (UnifiedLog.maybeIncrementLogStartOffset, KIP-107)

        Raises OffsetOutOfRangeError above the log end offset and below 0, StorageError, LogClosedError, LogFailedError.
        """
        return self._cutter.delete_records(before)

    def replace_segments(self, old: Sequence[int], new: Sequence[Path]) -> None:
        """Let the segments `new` (`.log.cleaned` files in the log's directory, in order, whole and synced with their
        indexes) take the place of the sealed ones with the base offsets `old`, which follow each other.

        Readers see the old segments or the new ones. Whatever a crash leaves, the next opening, or a broker, goes back
        or finishes it. For compaction and the like. (LocalLog.replaceSegments)

        Raises InvalidArgumentError, StorageError, LogClosedError, LogFailedError.
        """
        self._cutter.replace_segments(old, new)

    def exchange(
        self, seen: Sequence[Segment], old: Sequence[Segment], new: Sequence[Path]
    ) -> tuple[Segment, ...] | None:
        """`replace_segments` of `old`, unless what was read for it has changed. The new segments; None: nothing done.

        `seen`: the first segments of the log, as far as the new ones hang on them. Since they were read they may have
        been deleted from the start on, but none was cut, replaced or written to.
        """
        return self._cutter.exchange(seen, old, new)

    # --- settings --------------------------------------------------------------------------------

    def configure(self, changes: Mapping[str, object]) -> None:
        """Change settings while the log is open, and keep them with it; None takes back what was kept.

        Kafka's names (docs/config.md). Its topic settings that seglog does not know are kept, too, and `settings` says
        that they are not used here. All are changed or none, durably; what is appended when the call has returned goes
        by them. Of the next opening, only what is given there comes before what is kept.

        Raises InvalidConfigError, InvalidArgumentError, StorageError, LogClosedError, LogFailedError.
        """
        tail = self._tail
        tail.check()
        before = self.config

        def change() -> None:
            use_config(tail, self.settings.change(self.fs, changes, self.fsync))
            self._appender.use_config()
            self.config, self.decompress = tail.config, tail.decompress

        shielded(tail.files_lock.run, tail.change, change)
        if is_other_care(self.config, before):
            self._care.stop()
            self._care.release(self)
            self._care.begin(self, self._retainer, self._appender)
            self.write_lingering()      # what began to wait before there was somebody who writes it

    # --- by itself -------------------------------------------------------------------------------

    def keep_house(self) -> None:
        """What is due by the clock: the sync of fsync="interval", the roll of an idle segment. A thread calls it."""
        if self.fsync == "interval":
            self.flush()
        if self.config.segment_idle_roll:
            self._tail.change(self._tail.roll_if_idle)
        self._transactions.abort_overdue()

    def delete_old_segments(self, throttle: Callable[[int], None] | None = None) -> Retained:
        """Delete now what `cleanup.policy` and `retention.*` let go, as the log does by itself while it is open.

        Also of a log that is read-only because no space was left: then the files go at once. `throttle` is called with
        the bytes that a rewrite reads and writes, piece by piece. (UnifiedLog.deleteOldSegments)

        Raises StorageError, LogClosedError, LogFailedError; CorruptRecordError if the first segment, which is to be
        rewritten, is damaged.
        """
        return self._retainer.run(throttle)

    def write_lingering(self) -> None:
        """Write what linger.ms keeps in memory; durable it is as any other append. Its own thread calls it."""
        self._tail.change(self._tail.write_lingering)

    @property
    def _source(self) -> FollowedLog:
        return OwnSource(self, self._tail)

    # --- looking and keeping -----------------------------------------------------------------------

    def stats(self) -> LogStats:
        """What the log is and has done since it was opened: a few system calls, however large it is. Raises
        LogClosedError."""
        return stats_of(self, self._tail, self._sizes, self._care.reason(self))

    def snapshot(self, dst: str | os.PathLike[str]) -> int:
        """Make a hot backup: the log as of now, as a new partition directory `dst`, which opens like this one.

        Appends and reads go on meanwhile; truncating, deleting and closing wait. Sealed segments are hard links where
        `dst` is on the same file system, the active one is a copy, whose checksums are checked. It is there as a whole
        when the call returns, or, after an error or a crash, not at all. Returns its log end offset.

        Raises InvalidArgumentError (`dst` exists, is no <topic>-<partition>, or lies in this log), CorruptRecordError
        (the active segment is damaged), LogLockedError (a broker holds the directory above), NotALogError (a file
        stands in the way), StorageError, LogClosedError, LogFailedError.
        """
        target = Path(os.path.abspath(checked_path(dst)))
        self._tail.check()
        return self._tail.files_lock.run(back_up, self._tail, target)

    # --- closing ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything durable, note that the log is clean, and let go of it. Twice is fine.

        After a failed write or sync it only lets go: the next opening recovers. So it does in a forked child, whose
        parent goes on. Records and batches taken before stay readable. Raises LogFailedError where making it durable
        fails now, or failed in the background and no caller has met that: everything is let go of then, too.
        """
        if self.closed:
            return
        if self._is_forked:
            self._tail.let_go(clean=None)
            self._is_over()
            return
        self._care.release(self)
        with contextlib.suppress(SeglogError):      # the next opening does it
            self._retainer.remove_deleted(all_of_them=True)
        try:
            shielded(self._tail.close)
        finally:
            self._is_over()
            self._care.stop()

    def _is_over(self) -> None:
        if self.closed:
            self._is_unclosed = False
            _LOGS.pop(id(self), None)

    @property
    def _is_forked(self) -> bool:
        return self._pid != os.getpid()

    def _collected(self) -> None:
        """Nobody has the log any more, and it was not closed; or its close was interrupted behind the last step."""
        if not self.closed and not self._is_forked:
            warnings.warn(
                f"{self!r} was not closed: its next opening recovers", ResourceWarning, stacklevel=2, source=self
            )
            self._care.stop()
            self._tail.let_go(clean=False)
        self._is_over()


# Those that a fork takes along, by id. No WeakSet: it runs Python code when one is collected, in which ^C is lost.
_LOGS: "dict[int, weakref.ref[Log]]" = {}


def _give_up(log: Log, taken: list[PartitionHold]) -> None:
    """Hold nothing of what an opening took that came to no log."""
    log._is_unclosed = False
    _LOGS.pop(id(log), None)
    log._care.stop()
    log._care.release(log)
    if not log.closed:
        log._tail.let_go(clean=False)
    for hold in taken:
        hold.close(clean=False)


def open_logs() -> "Iterator[Log]":
    """Those that this process has open."""
    for found in list(_LOGS.values()):
        log = found()
        if log is not None and not log.closed:
            yield log


PROCESS.add(OpenLogs(open_logs))


def _forked() -> None:
    for found in list(_LOGS.values()):
        log = found()
        if log is not None:
            log._tail.after_fork(log._pid)


os.register_at_fork(after_in_child=_forked)
