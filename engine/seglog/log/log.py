"""A log: one partition directory, opened to be appended to, read, cut and closed.

    with seglog.open("data/orders-0") as log:
        offset = log.append(b"value", key=b"key")
        for record in log.read(start=offset): ...

    LogLookup ── LogReader ── LogTail ── LogAppender ── LogCutter ── Log

Opening locks the partition and recovers it as Kafka's loader does (log.loader). How it is
searched: log.lookup; read: log.reader; where it grows: log.tail; appended to: log.append; cut: log.cutting. This file
opens it, keeps its house, backs it up and closes it.
"""
import contextlib
import os
import threading
import warnings
import weakref
from collections.abc import Mapping
from pathlib import Path

from seglog.clock import Clock, SystemClock
from seglog.config import Fsync, LogConfig
from seglog.errors import ForkedHandleError, LogClosedError, StorageError
from seglog.format import names
from seglog.fs.files import FileSystem, OsFileSystem
from seglog.log.arguments import checked_config, checked_path, decided
from seglog.log.cutting import LogCutter
from seglog.log.hot_backup import Moment, back_up
from seglog.log.loader import plan_load
from seglog.log.stats import LogStats, sizes_in
from seglog.segment.housekeeping import Housekeeping
from seglog.state.leader_epochs import LeaderEpochFileCache
from seglog.state.partition_hold import PartitionHold

# How often an idle log looks whether its segment is due to roll.
_IDLE_LOOK_MS = 10_000


class Log(LogCutter):
    """`seglog.open(path)`. Use it as a context manager, or close it. Threads may share it; a forked child may not.

    path, topic, partition      what it is
    config, fsync, leader_epoch what it was opened with; the leader epoch as it is now
    recovery                    what opening lost and mended (log.loader.Loaded)

    Raises InvalidArgumentError for a name that is no <topic>-<partition> and for what is no argument,
    InvalidConfigError, LogLockedError, NotALogError, StorageError; CorruptRecordError where recovery finds a bad
    batch in the middle of the log, and recovery.mode does not say what to do with it.
    """

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
    ) -> None:
        """See `seglog.open`."""
        settings = checked_config(config, fsync, leader_epoch)
        fs = fs or OsFileSystem()
        clock = clock or SystemClock()
        self._hold = PartitionHold(fs, checked_path(path), create=create)
        self._pid = os.getpid()
        try:
            super().__init__(self._hold.path, decided(settings, self._hold.path), fs, clock, fsync, leader_epoch)
            self.topic, self.partition = self._hold.topic, self._hold.partition
            self._open()
        except BaseException:
            self._hold.close(clean=False)
            raise
        _LOGS.add(self)
        self._start_housekeeping()

    def _open(self) -> None:
        """Recover where need be, then take up the last segment."""
        now_ms = self._now_ms()
        hold = self._hold
        plan = plan_load(
            self.path, self.config, clean=hold.clean, recovery_point=hold.recovery_point or 0,
            log_start_offset=hold.log_start_offset or 0, unordered=hold.unordered, unsynced_from=hold.unsynced_from,
        )
        if hold.clean and plan.changes_logs:
            hold.before_first_write()       # Kafka's mark is not there while files do not fit each other
        try:
            loaded = plan.apply(self.fs, now_ms)
        except StorageError:
            # A sync may have failed: our mark makes the next opening write again what this one read.
            if not hold.clean:
                with contextlib.suppress(StorageError):
                    hold.before_first_write()
            raise
        self.recovery = loaded
        self._epoch_cache = LeaderEpochFileCache(
            self.fs, self.path / names.LEADER_EPOCH_CHECKPOINT, loaded.leader_epochs
        )
        self._set_epoch(max(self.leader_epoch, self._epoch_cache.latest or 0))
        self._snapshots = loaded.producer_snapshots
        self._producers = loaded.producer_state
        *sealed, last = loaded.segments
        self._next_offset = self._durable_offset = loaded.next_offset
        self._recovery_point = loaded.recovery_point
        self._take_up(
            [self._sealed(segment.path) for segment in sealed], last.base_offset, last.size_bytes,
            loaded.log_start_offset,
        )
        if hold.dirty:
            self._before_change()

    def __repr__(self) -> str:
        if self._extent is None:
            return f"<Log {self.path.name}: closed>"
        return f"<Log {self.path.name}: offsets {self.log_start_offset} to {self.log_end_offset}>"

    @property
    def closed(self) -> bool:
        return self._extent is None

    # --- by itself -------------------------------------------------------------------------------

    def _start_housekeeping(self) -> None:
        config = self.config
        periods_ms = []
        if self.fsync == "interval":
            periods_ms.append(max(config.flush_ms, 1))
        if config.segment_idle_roll:
            periods_ms.append(min(config.segment_ms, _IDLE_LOOK_MS))
        if periods_ms or config.linger_ms:
            self._housekeeping = Housekeeping(
                self, self.path.name,
                period_s=min(periods_ms) / 1000 if periods_ms else None, linger_s=config.linger_ms / 1000,
            )

    def keep_house(self) -> None:
        """What is due by the clock: the sync of fsync="interval", the roll of an idle segment. A thread calls it."""
        if self.fsync == "interval":
            self.flush()
        if self.config.segment_idle_roll:
            with self._lock:
                self._check_writable()
                if self._active.idle_roll_is_due(self._now_ms()):
                    self._roll(self._next_offset)

    def write_lingering(self) -> None:
        """Write what linger.ms keeps in memory; durable it is as any other append. Its own thread calls it."""
        with self._lock:
            self._check_writable()

    # --- looking and keeping -----------------------------------------------------------------------

    def stats(self) -> LogStats:
        """What the log is and has done since it was opened. Looks at the directory once. Raises LogClosedError."""
        return LogStats(
            topic=self.topic,
            partition=self.partition,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            last_stable_offset=self.last_stable_offset,
            durable_offset=self._durable_offset,
            recovery_point=self._recovery_point,
            leader_epoch=self.leader_epoch,
            segments=len(self.segments),
            producers=len(self._producers),
            lingering_records=len(self._linger.batch) if self._linger is not None else 0,
            syncs=self._commit.syncs,
            sync_seconds=self._commit.sync_seconds,
            failure=None if self._failure is None else str(self._failure),
            **sizes_in(self.path),
        )

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
        with self._files_lock:
            with self._lock:
                self._check_writable()
                with self._commit.exclusive():
                    self._sync_all()
                extent = self._current()
                snapshots = tuple(o for o in self._snapshots.offsets if o <= self._active.base_offset)
                moment = Moment(
                    self.path, self.config, tuple(segment.path for segment in extent.segments), self._end.at.position,
                    extent.log_start_offset, self._next_offset, self.leader_epochs, snapshots,
                )
            back_up(self.fs, moment, target, self._now_ms())
        return moment.next_offset

    # --- closing ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything durable, note that the log is clean, and let go of it. Twice is fine.

        After a failed write or sync it only lets go: the next opening recovers. So it does in a forked child, whose
        parent goes on. Records and batches taken before stay readable. Raises LogFailedError where making it durable
        fails now.
        """
        if self._extent is None:
            return
        if self._is_forked():
            self._let_go(clean=None)
            return
        if self._housekeeping is not None:
            self._housekeeping.stop()
        with self._files_lock, self._lock:
            if self._extent is None:
                return
            clean = False
            try:
                if self._failure is None:
                    self._check_writable()
                    self._finish()
                    clean = True
            finally:
                self._let_go(clean=clean)

    def _finish(self) -> None:
        """Everything is on the disk, and the log dir knows it."""
        try:
            with self._commit.exclusive():
                if self._hold.clean and not self._is_changed:
                    return
                self._seal_active()
                self._snapshots.take(self._producers, self._next_offset)
                extent = self._current()
                self._hold.put(
                    recovery_point=self._next_offset, high_watermark=self._next_offset,
                    log_start_offset=extent.log_start_offset, first_base_offset=extent.segments[0].base_offset,
                )
        except BaseException as error:
            self._fail(error)
            raise

    def _let_go(self, *, clean: bool | None) -> None:
        """Close what is open. `clean` None: the locks are another process's."""
        extent, self._extent = self._extent, None
        if self._failure is None:
            self._refusal = self._closed_error
        for segment in extent.segments if extent is not None else ():
            segment.close()
        try:
            self._active.close()
        finally:
            if clean is not None:
                self._hold.close(clean=clean)

    def _closed_error(self) -> LogClosedError:
        return LogClosedError("the log was closed", file=self.path)

    def _forked_error(self) -> ForkedHandleError:
        return ForkedHandleError(f"the log belongs to process {self._pid}, which forked this one", file=self.path)

    def _is_forked(self) -> bool:
        return self._pid != os.getpid()

    def _after_fork(self) -> None:
        """In the child. Another thread of the parent may have held a lock, and is not here to give it back."""
        self._refusal = self._forked_error
        self._files_lock, self._lock = threading.Lock(), threading.Lock()

    def __del__(self) -> None:
        if getattr(self, "_extent", None) is not None and not self._is_forked():
            warnings.warn(
                f"{self!r} was not closed: its next opening recovers", ResourceWarning, stacklevel=2, source=self
            )
            if self._housekeeping is not None:
                self._housekeeping.stop()
            self._let_go(clean=False)


def open(
    path: str | os.PathLike[str],
    *,
    config: Mapping[str, object] | LogConfig | None = None,
    fsync: Fsync = "batch",
    leader_epoch: int = 0,
    clock: Clock | None = None,
    fs: FileSystem | None = None,
    create: bool = True,
) -> Log:
    """Open a partition directory such as `data/orders-0` to append to it; make it where it is not there.

    `config`: Kafka's keys (docs/config.md). `fsync`: when an append is on the disk: "batch" when it returns, concurrent
    ones sharing one sync; "interval" after flush.ms or flush.messages; "never" when the system writes it, a segment
    is full, or flush() or close() is called. `leader_epoch`: what appended batches carry; a log that has a later one
    goes on in that. `clock`, `fs`: for tests. `create=False` refuses where there is no such directory.

    Raises what `Log` raises.
    """
    return Log(
        path, config=config, fsync=fsync, leader_epoch=leader_epoch, clock=clock, fs=fs, create=create
    )


# Those that a fork takes along.
_LOGS: "weakref.WeakSet[Log]" = weakref.WeakSet()


def _forked() -> None:
    for log in list(_LOGS):
        log._after_fork()


os.register_at_fork(after_in_child=_forked)
