"""A log: one partition directory, opened to append, read and cut.

    with seglog.open("data/orders-0") as log:
        offset = log.append(b"value", key=b"key")
        for record in log.read(start=offset): ...

    LogLookup ── LogReader ── Followable ── Log ─┬─ LogTail          where it grows: written, rolled, synced, published
                                                 ├─ LogAppender      its appends
                                                 ├─ LogTruncator     how it is truncated
                                                 ├─ LogRetainer      what retention deletes
                                                 └─ LogTransactions  which records are committed

Opening locks the partition and recovers it as Kafka's loader does (log.loader). Searching is in log.lookup, reading in
log.reader, both also for closed partitions. The parts are in log.tail, append, truncation, retaining and transactions.
This file opens the log, has its public methods, and closes it.
"""
import contextlib
import os
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Never, overload

from seglog._kernels.shield import shielded
from seglog._kernels.unclosed import Unclosed
from seglog.clock import Clock, checked_clock
from seglog.config import Fsync, LogConfig
from seglog.errors import LogClosedError, SeglogError
from seglog.format.batch_layout import PRODUCER_ID_POS
from seglog.format.live_ends import LiveEnds
from seglog.fs.files import FileSystem, checked_fs
from seglog.late_import import late
from seglog.log.append import AppendResult, CheckedBatch, LogAppender, PendingAppend
from seglog.log.log_metrics import OPENINGS, OpenLogs
from seglog.log.maintainer import MaintainerOf
from seglog.log.maintenance import LogMaintenance, is_other_maintenance
from seglog.log.retaining import LogRetainer, Retained, keep_all, make_room_to_open, truncator_of
from seglog.log.tail import LogTail
from seglog.log.tail_opening import open_tail
from seglog.log.transactions import LogTransactions
from seglog.metrics import PROCESS
from seglog.reading.arguments import checked_config, checked_path, misplaced_error
from seglog.reading.following import Followable, FollowedLog
from seglog.reading.notices import Listening, checked_callback, checked_token
from seglog.reading.open_logs import OPEN_LOGS, open_logs
from seglog.reading.settings import Given, LogSettings
from seglog.reading.times import Time
from seglog.segment.segment import Segment
from seglog.state.leader_epochs import LeaderEpochs
from seglog.state.leftovers import file_names
from seglog.state.log_dir_state import LogDirState
from seglog.state.partition_hold import PartitionHold
from seglog.state.producer_snapshot import ProducerEntry
from seglog.threads.late_close import close_in_order
from seglog.threads.sync_thread import SYNC_CALLS, Callback

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from seglog._kernels.batch_encode import Headers, Record
    from seglog.log.expiry import Retention
    from seglog.log.producer import Producer
    from seglog.log.stats import DirectorySizes, LogStats
    from seglog.reading.partition import Partition


ToldSettings = Callable[[Path, Given], tuple[Given, Mapping[str, str]]]

# How often at most a log that remembers too many producers looks for those that have expired.
_FORGETS_EVERY_S = 1.0


class Log(Followable, Unclosed):
    """An open log, from `seglog.open(path)`. Use it as a context manager, or close it. Threads may share it; a forked
    child process must not use it.

    path, topic, partition      its directory, and the names that the directory's name consists of
    config, fsync, leader_epoch what it was opened with; the leader epoch as it is now
    settings                    the settings that were given, and those that are kept with the log
    recovery                    what opening lost and repaired (log.loader.Loaded)
    format_counters             how many batches it converted for clients of another format, and how many it did not

    Raises InvalidArgumentError for an invalid argument and for a name that is not <topic>-<partition>,
    InvalidConfigError, LogLockedError, NotALogError, StorageError; CorruptRecordError if recovery finds a bad batch in
    the middle of the log, and seglog.recovery.mode is "fail".
    """

    # Each read needs it, and the other attributes are in a dict: a compiled base makes no room for them.
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
        retention: "Retention" = keep_all,
        maintainer_of: MaintainerOf = lambda config: None,
        told: ToldSettings | None = None,
    ) -> None:
        """See `seglog.open`. `log_dir`: the state of the `LogDir` that opens it. `retention`: the rule for what the log
        deletes by itself; `maintainer_of`: gives the maintainer that runs it (log.maintainer). `told`: given the
        directory and `config`, returns what counts of it, and what the topic's cluster says (cluster_settings)."""
        super().__init__()
        settings = checked_config(config, fsync, leader_epoch)
        self._fs = checked_fs(fs)
        self._clock = checked_clock(clock)
        self.fsync = fsync
        self._syncs_cursors = fsync != "never"
        self._now_ms = self._clock.now_ms
        self._pid = os.getpid()
        self._maintenance = LogMaintenance(maintainer_of)
        taken: list[PartitionHold] = []     # released wherever an interrupt comes
        where = checked_path(path)
        try:
            shielded(lambda: taken.append(PartitionHold(self._fs, where, create=create, log_dir=log_dir)))
            hold = taken[0]
            self.path, self.topic, self.partition = hold.path, hold.topic, hold.partition
            listed = file_names(hold.path)
            of_cluster: Mapping[str, str] = {}
            if told is not None:
                counts, of_cluster = told(hold.path, config)
                if counts is not config:
                    config, settings = counts, checked_config(counts, fsync, leader_epoch)
            self.settings = LogSettings(hold.path, config, settings, listed, of_cluster)
            self.config = self.settings.config
            self._dialect, self._foreign_files = self.settings.settle_dialect(self._fs, listed)
            tail = self._tail = LogTail(
                hold, self._shown, self._last_opened, self.config, self._fs, self._clock, fsync, leader_epoch
            )
            self._decompress = tail.decompress
            was_clean = hold.clean
            self.recovery = open_tail(
                tail, lambda plan: make_room_to_open(plan, self._fs, retention, self._now_ms()), listed
            )
            OPENINGS.opened(self.path, self.recovery, was_clean=was_clean)
            self.settings.keep_given(self._fs)
            self._appender = LogAppender(tail, self.format_counters)
            self._transactions = LogTransactions(tail, self._appender)
            self._retainer = LogRetainer(tail, retention)
            self._sizes: DirectorySizes | None = None
            OPEN_LOGS[id(self)] = weakref.ref(self)
            self._maintenance.begin(self, self._retainer, self._appender)
            self._is_unclosed = True
        except BaseException:
            shielded(_give_up, self, taken)
            raise

    def __repr__(self) -> str:
        if self.closed:
            return f"<Log {self.path.name}: closed>"
        return f"<Log {self.path.name}: offsets {self.log_start_offset} to {self.log_end_offset}>"

    def _reopening(self) -> "tuple[Callable[..., Partition], tuple[object, ...]]":
        late("seglog.reading.partition")
        from seglog.reading.partition import reopened

        # The writer stays in this process: unpickling gives a reader (`open_partition`).
        return reopened, (str(self.path.absolute()), self.config)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._shown.extent is None

    # --- its ends --------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """The offset up to which readers see the log. There are no replicas, so it is the log end offset."""
        return self.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest transaction that is still open; the log end offset if none is."""
        self._current()
        return self._tail.last_stable_offset

    @property
    def durable_offset(self) -> int:
        """One past the last offset that is known to be on the disk."""
        return self._tail.durable_offset

    @property
    def recovery_point(self) -> int:
        """The offset below which everything is on the disk. If this process dies, the next opening checks the rest.

        It moves at each roll, truncation and opening, and with every 64 MiB that are synced.
        """
        return self._tail.recovery_point.offset

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of new batches."""
        return self._tail.leader_epoch

    @property
    def leader_epochs(self) -> LeaderEpochs:
        """The offset at which each leader epoch began."""
        return self._tail.epoch_cache.epochs

    @property
    def cleaner_offset(self) -> int | None:
        """The offset up to which the log was compacted: its line in cleaner-offset-checkpoint; None if it has none."""
        return self._tail.partition.cleaner_offset

    def _put_cleaner_offset(self, offset: int) -> None:
        """Record durably that the log is compacted up to this offset."""
        self._tail.partition.put(cleaner_offset=offset)

    @property
    def producers(self) -> tuple[ProducerEntry, ...]:
        """The producers that the log remembers, each with its last batch."""
        return self._tail.change(lambda: self._tail.producers.entries())

    @property
    def _producer_count(self) -> int:
        """How many producers the log remembers."""
        return len(self._tail.producers)

    def _is_of_new_producer(self, batch: memoryview) -> bool:
        """Whether a v2 batch is of a producer that the log does not remember."""
        producer_id = int.from_bytes(batch[PRODUCER_ID_POS : PRODUCER_ID_POS + 8], "big", signed=True)
        return producer_id >= 0 and producer_id not in self._tail.producers

    def _has_room_for(self, batch: memoryview, producers_max: int) -> bool:
        """Whether the log remembers the producer of a v2 batch, or fewer than so many once those that have expired are
        gone."""
        return len(self._tail.producers) < producers_max or not self._is_of_new_producer(batch) or (
            self._has_place_for_producer(producers_max))

    def _knows_producer(self, producer_id: int) -> bool:
        """Whether the log remembers it."""
        return producer_id in self._tail.producers

    def _mark(
        self, producer_id: int, epoch: int, *, commit: bool, coordinator_epoch: int, must_be_newer: bool
    ) -> PendingAppend[int]:
        """As `LogTransactions.mark`."""
        return self._transactions.mark(producer_id, epoch, commit, coordinator_epoch, must_be_newer)

    def _has_place_for_producer(self, producers_max: int) -> bool:
        """Whether the log remembers fewer than so many producers, once those that have expired are gone."""
        tail = self._tail
        if len(tail.producers) >= producers_max and time.monotonic() - tail.forgot_at > _FORGETS_EVERY_S:
            tail.change(tail.forget_expired)
        return len(tail.producers) < producers_max

    @property
    def _begins_appends(self) -> bool:
        """Whether the next append is the first one since the log was opened or cut: it waits for the disk."""
        return self._tail.is_epoch_due

    def _begin_appends(self) -> None:
        """Do now what the first append would do first, and wait for the disk."""
        self._tail.change(self._tail.begin_appends)

    # --- appending -------------------------------------------------------------------------------
    # The checks of records and batches, and how they are written, are in log.append. With wait=False each of these
    # returns when it has written, and returns a PendingAppend, whose `result` is what it returns otherwise.

    @overload
    def append(
        self, value: "Buffer | None", *, key: "Buffer | str | None" = ..., headers: "Headers | None" = ...,
        timestamp: "Time | None" = ..., wait: Literal[True] = ...,
    ) -> int: ...
    @overload
    def append(
        self, value: "Buffer | None", *, key: "Buffer | str | None" = ..., headers: "Headers | None" = ...,
        timestamp: "Time | None" = ..., wait: Literal[False],
    ) -> PendingAppend[int]: ...
    def append(
        self,
        value: "Buffer | None",
        *misplaced: Never,
        key: "Buffer | str | None" = None,
        headers: "Headers | None" = (),
        timestamp: "Time | None" = None,
        wait: bool = True,
    ) -> int | PendingAppend[int]:
        """Append one record as a batch of its own, and return its offset. `value=None` is a tombstone.

        A `key` that is a str is stored in UTF-8.

        `timestamp`: milliseconds, a datetime, ISO 8601 text, or "-2h"; now if it is not given. With fsync="batch" the
        record is on the disk when the call returns, unless `wait` is False: then `when_durable` tells when it is.

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
    ) -> PendingAppend[int]: ...
    def append_many(
        self, records: "Iterable[Record]", *, atomic: bool = True, wait: bool = True
    ) -> int | PendingAppend[int]:
        """Append records, each (key, value[, headers[, timestamp]]), as one batch; returns the last one's offset.
        A key may be a str, as for `append`.

        All of them or none are appended: one batch is one write and one checksum. A batch larger than max.message.bytes
        is refused as a whole, and so is a compressed one whose records are larger than max.decompressed.message.bytes.
        `atomic=False`: as many batches as these limits require, all checked before the first one is written; a crash
        may leave only the first ones. Raises what `append` raises.
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
    ) -> PendingAppend[int]: ...
    def append_columns(
        self,
        columns: object = None,
        *,
        timestamps: object = None,
        keys: object = None,
        values: object = None,
        headers: object = None,
        wait: bool = True,
    ) -> int | PendingAppend[int]:
        """Append records as columns: `columns` with key, value, timestamp and headers, or each of them by name.

        columns: an Arrow record batch, table or stream, seglog.Columns, or a mapping of names to columns. A column: an
        Arrow array or a list; for keys or values also a 2-D array of uint8 with one row per record, or (offsets, data[,
        validity]) as buffers; for timestamps also an array of int64 or datetime64, or one time for all.

        Writes as many batches as max.message.bytes requires, all checked before the first one is written. Returns the
        last record's offset. Raises what `append` raises.
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
    ) -> PendingAppend[AppendResult]: ...
    def append_batch(
        self, raw: "Buffer", *, assign_offsets: bool = True, leader_epoch: int | None = None,
        from_coordinator: bool = False, wait: bool = True,
    ) -> AppendResult | PendingAppend[AppendResult]:
        """Append a batch as bytes (`seglog.build_batch` makes one), and check it and its records as a broker does.

        Offsets are assigned in place, and nothing is compressed again; the batch is rebuilt only if its inner offsets
        do not fit, or compression.type names another codec. `assign_offsets=False` keeps offsets, epochs and
        timestamps, opens no batch and accepts any number: a replica's append, or the mirror of a compacted topic.
        `leader_epoch`: a new leader epoch of the log from here on. `from_coordinator`: a coordinator's batch, such as
        the offsets that a transaction commits: its producer's epoch is checked, its sequence numbers are not.

        Raises CorruptRecordError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError,
        UnsupportedCompressionTypeError; OutOfOrderSequenceError, InvalidProducerEpochError, InvalidTxnStateError for
        batches of a producer; LogClosedError, LogFailedError. A batch that its producer has sent before is not written
        again: the result has the offsets of the first one.
        """
        return self._appender.append_batch(raw, assign_offsets, leader_epoch, wait, from_coordinator)

    def check_batch(self, raw: "Buffer") -> CheckedBatch:
        """Check a batch as `append_batch` does, without appending it: for `append_checked`. Another thread may do it:
        it decompresses the batch, which takes the most time of an append. Raises what `append_batch` raises."""
        return self._appender.check_batch(raw)

    @overload
    def append_checked(self, checked: CheckedBatch, *, wait: Literal[True] = ...) -> AppendResult: ...
    @overload
    def append_checked(self, checked: CheckedBatch, *, wait: Literal[False]) -> PendingAppend[AppendResult]: ...
    def append_checked(
        self, checked: CheckedBatch, *, wait: bool = True
    ) -> AppendResult | PendingAppend[AppendResult]:
        """Append a batch that `check_batch` of this log has checked. It is checked again if the configuration changed
        meanwhile. Raises what `append_batch` raises."""
        return self._appender.append_checked(checked, wait)

    def flush(self) -> None:
        """Return when everything appended before the call is on the disk. Raises LogClosedError, LogFailedError."""
        self._tail.flush()

    def when_durable(self, token: PendingAppend[Any], callback: Callback) -> None:
        """Call `callback(None)` when what an append with wait=False wrote is on the disk, in every `fsync` mode;
        `callback(error)` if it never will be. Exactly once, also after `close()` or a failure.

        The callback must be quick: it runs in the one seglog thread that syncs for all such appends of the process, in
        the order of the calls. What it raises is logged. Raises InvalidArgumentError, ForkedHandleError.
        """
        tail = self._tail
        # (Few calls here: it takes as long as an append.)
        if tail.refusal is not None and self._is_forked:
            tail.check()
        number = checked_token(token, tail.first_number, tail.number, self.path)
        SYNC_CALLS.started().put((tail, number, checked_callback(callback)))

    def on_published(self, callback: Callable[[int | None], None]) -> Listening:
        """Call `callback(log_end_offset)` when readers see more of the log, or when it is truncated; the last time with
        None, when it is closed. Returns an object whose `cancel()` ends the calls.

        The callback must be quick: it runs in one seglog thread for all logs of the process. What it raises is logged.
        Several appends within a few milliseconds cause one call. Raises InvalidArgumentError, LogClosedError.
        """
        self._current()
        tail = self._tail
        if self._is_forked:
            tail.check()
        return tail.listeners.add(checked_callback(callback), tail)

    # --- transactions ----------------------------------------------------------------------------

    def producer(self, producer_id: int) -> "Producer":
        """A transactional producer, with the next epoch of its id: its records are committed or aborted together.

        A transaction that an earlier producer with this id left open is aborted, and the earlier one gets
        ProducerFencedError from now on.

        Raises InvalidArgumentError, InvalidProducerEpochError after 32 768 producers of an id,
        UnsupportedForMessageFormatError below format v2, LogClosedError, LogFailedError.
        """
        late("seglog.log.producer")
        from seglog.log.producer import Producer

        return Producer(self._transactions, producer_id)

    @overload
    def end_transaction(
        self, producer_id: int, epoch: int, *, commit: bool, must_be_open: bool = ..., wait: Literal[True] = ...
    ) -> int: ...
    @overload
    def end_transaction(
        self, producer_id: int, epoch: int, *, commit: bool, must_be_open: bool = ..., wait: Literal[False]
    ) -> PendingAppend[int]: ...
    def end_transaction(
        self, producer_id: int, epoch: int, *, commit: bool, must_be_open: bool = True, wait: bool = True
    ) -> int | PendingAppend[int]:
        """Write the marker that ends a transaction of encoded batches, as Kafka's coordinator does. Returns its offset.

        `must_be_open=False`: also if the producer has written nothing here yet. Then the marker keeps out a late batch
        of an earlier epoch, whose transaction would never end.

        Raises InvalidTxnStateError if none is open, ProducerFencedError if a later epoch has come, LogClosedError,
        LogFailedError.
        """
        return self._transactions.end(producer_id, epoch, commit, must_be_open, wait)

    # --- rolling and truncating ---------------------------------------------------------------------

    def roll(self) -> int:
        """Seal the active segment and begin a new one, unless the active one is empty. Returns its base offset.

        Raises LogClosedError, LogFailedError.
        """
        return self._tail.change(self._tail.roll)

    def truncate_to(self, offset: int) -> int:
        """Remove every record from `offset` on. Returns the new log end offset.

        Batches are removed as a whole: if `offset` is inside one, the batch's first offset is the new end, but never
        less than the log start offset; an empty log begins again there. Readers in the removed part continue to its
        end, new ones get OffsetOutOfRangeError. (UnifiedLog.truncateTo)

        Raises OffsetOutOfRangeError below the log start offset, LogClosedError, LogFailedError.
        """
        return truncator_of(self._tail).truncate_to(offset)

    def delete_records(self, before: int) -> int:
        """Let the log begin at `before`: readers no longer see records below it, segments wholly below it are deleted.

        Returns the log start offset; nothing changes if that is past `before` already. Negative offsets have no special
        meaning, not even Kafka's -1. (UnifiedLog.maybeIncrementLogStartOffset, KIP-107)

        Raises OffsetOutOfRangeError above the log end offset and below 0, StorageError, LogClosedError, LogFailedError.
        """
        return truncator_of(self._tail).delete_records(before)

    def replace_segments(self, old: Sequence[int], new: Sequence[Path]) -> None:
        """Replace the adjacent sealed segments with the base offsets `old` by the segments `new`: `.log.cleaned` files
        in the log's directory, in order, whole and synced with their indexes.

        Readers see the old segments or the new ones. After a crash, the next opening, or a broker, undoes or finishes
        the change. For compaction and the like. (LocalLog.replaceSegments)

        Raises InvalidArgumentError, StorageError, LogClosedError, LogFailedError.
        """
        truncator_of(self._tail).replace_segments(old, new)

    def _exchange(
        self, seen: Sequence[Segment], old: Sequence[Segment], new: Sequence[Path]
    ) -> tuple[Segment, ...] | None:
        """Call `replace_segments`, unless what was read for it has changed. Returns the new segments; None if not done.

        `seen`: the first segments of the log, as many as the new ones depend on. Some may have been deleted from the
        start on since they were read, but none may have been truncated, replaced or written to.
        """
        return truncator_of(self._tail).exchange(seen, old, new)

    # --- settings --------------------------------------------------------------------------------

    def configure(self, changes: Mapping[str, object]) -> None:
        """Change settings while the log is open, and keep them with the log; None removes a kept setting.

        `changes`: Kafka's keys (docs/config.md). Topic settings that seglog does not use are kept, too, and `settings`
        marks them as unused. All are changed or none, durably; appends after the call use them. At the next opening,
        kept settings apply, except for those that are given there.

        Raises InvalidConfigError, InvalidArgumentError, StorageError, LogClosedError, LogFailedError.
        """
        late("seglog.log.configuring")
        from seglog.log.configuring import use_config

        tail = self._tail
        tail.check()
        before = self.config

        def change() -> None:
            use_config(tail, self.settings.change(self._fs, changes, self.fsync))
            self._appender.use_config()
            self.config, self._decompress = tail.config, tail.decompress

        shielded(tail.files_lock.run, tail.change, change)
        if is_other_maintenance(self.config, before):
            self._maintenance.stop()
            self._maintenance.release(self)
            self._maintenance.begin(self, self._retainer, self._appender)
            self._write_lingering()      # records that began to wait while no thread would write them

    # --- by itself -------------------------------------------------------------------------------

    def _maintain(self) -> None:
        """Do what is due by the clock: the sync of fsync="interval", the roll of an idle segment, the abort of overdue
        transactions. A thread calls it."""
        if self.fsync == "interval":
            self.flush()
        if self.config.segment_idle_roll:
            self._tail.change(self._tail.roll_if_idle)
        self._transactions.abort_overdue()

    def delete_old_segments(self, throttle: Callable[[int], None] | None = None) -> Retained:
        """Delete now what `cleanup.policy` and `retention.*` no longer keep, as an open log does by itself.

        Works also if the log is read-only because the disk was full: then the files are removed at once. `throttle` is
        called with the number of bytes that a rewrite reads and writes, piece by piece. (UnifiedLog.deleteOldSegments)

        Raises StorageError, LogClosedError, LogFailedError; CorruptRecordError if the first segment must be rewritten
        and is damaged.
        """
        return self._retainer.run(throttle)

    def _write_lingering(self) -> None:
        """Write the records that linger.ms keeps in memory, as durably as any other append. A thread calls it."""
        self._tail.change(self._tail.write_lingering)

    def _stop_lingering(self) -> None:
        """Write them, and each record at once from now on: the process ends."""
        with contextlib.suppress(LogClosedError):
            self._tail.change(self._tail.stop_lingering)

    def _told_ends(self) -> LiveEnds:
        return self._tail.live.ends

    @property
    def _source(self) -> FollowedLog:
        late("seglog.log.own_source")
        from seglog.log.own_source import OwnSource

        return OwnSource(self, self._tail)

    # --- looking and keeping -----------------------------------------------------------------------

    def stats(self) -> "LogStats":
        """The state of the log, and what it has done since it was opened: a few system calls, however large it is.
        Raises LogClosedError."""
        late("seglog.log.stats")
        from seglog.log.stats import DirectorySizes, stats_of

        if self._sizes is None:
            self._sizes = DirectorySizes(self.path)
        return stats_of(self, self._tail, self._sizes, self._maintenance.reason(self))

    def snapshot(self, dst: str | os.PathLike[str]) -> int:
        """Make a hot backup: the log as of now, as a new partition directory `dst`, which opens like this one.

        Appends and reads continue meanwhile; truncating, deleting and closing wait. Sealed segments are hard links if
        `dst` is on the same file system; the active one is a copy, whose checksums are checked. `dst` is complete when
        the call returns; after an error or a crash it does not exist. Returns its log end offset.

        Raises InvalidArgumentError (`dst` exists, is not <topic>-<partition>, or is inside this log),
        CorruptRecordError (the active segment is damaged), LogLockedError (a broker holds the directory above),
        NotALogError (a file is in the way), StorageError, LogClosedError, LogFailedError.
        """
        target = Path(os.path.abspath(checked_path(dst)))
        self._tail.check()
        late("seglog.log.hot_backup")
        from seglog.log.hot_backup import back_up

        return self._tail.files_lock.run(back_up, self._tail, target)

    # --- closing ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything durable, mark the log as cleanly closed, and release its files. Idempotent.

        After a failed write or sync it only releases the files: the next opening recovers. The same in a forked child,
        where the parent keeps the log. Records and batches that were read before stay readable. Raises LogFailedError
        if a sync fails now, or failed in the background without an error to a caller: the files are released then, too.

        A signal's handler may call it: if it interrupts a call of the same thread, the log is closed right after that.
        """
        close_in_order(self._close, self.path)

    def _close(self, *, discards: bool = False) -> None:
        """`discards`: it is about to be deleted. Nothing is synced that no answer promised, and the log is left as by a
        crash: if it is not deleted then, the next opening recovers it."""
        if self.closed:
            return
        if self._is_forked:
            self._tail.let_go(clean=None)
            self._is_over()
            return
        self._maintenance.release(self)
        if not discards:
            with contextlib.suppress(SeglogError):      # the next opening does it
                self._retainer.remove_deleted(all_of_them=True)
        try:
            shielded(self._tail.close, discards=discards)
        finally:
            self._is_over()
            self._maintenance.stop()

    def _is_over(self) -> None:
        if self.closed:
            self._is_unclosed = False
            OPEN_LOGS.pop(id(self), None)

    @property
    def _is_forked(self) -> bool:
        return self._pid != os.getpid()

    def _collected(self) -> None:
        """The log was garbage-collected without being closed, or its close was interrupted after the last step."""
        if os is None:      # the interpreter has ended, and its modules are empty
            return
        if not self.closed and not self._is_forked:
            said = repr(self)
            try:
                self._maintenance.stop()
                if self._tail.linger is not None:
                    with contextlib.suppress(SeglogError):
                        self._tail.change(self._tail.write_lingering)
                self._tail.let_go(clean=False)
            finally:
                self._is_over()
                warnings.warn(
                    f"{said} was not closed: the next opening will recover it", ResourceWarning, stacklevel=2,
                    source=self,
                )
        self._is_over()


def _give_up(log: Log, taken: list[PartitionHold]) -> None:
    """Release everything that a failed opening took."""
    log._is_unclosed = False
    OPEN_LOGS.pop(id(log), None)
    log._maintenance.stop()
    log._maintenance.release(log)
    if not log.closed:
        log._tail.let_go(clean=False)
    for hold in taken:
        hold.close(clean=False)


def _own_logs() -> Iterator[Log]:
    return (log for log in open_logs() if isinstance(log, Log) and not log.closed)


PROCESS.add(OpenLogs(_own_logs))


def _forked() -> None:
    for log in open_logs():
        if isinstance(log, Log):
            log._tail.after_fork(log._pid)
    OPEN_LOGS.clear()


os.register_at_fork(after_in_child=_forked)
