"""Where a log grows: its active segment, how that is written, rolled, synced and published, and what a failure leaves.

    batch with its offsets ── roll if due ── write .log ── index entries ── remember the producers ── sync ── publish

Who makes the batches, and what is asked of them: log.append. What is refused before the write changes nothing. What
fails from the write on leaves the log read-only: what is on disk is unknown then, and opening again finds out
(LogFailedError names the first error).
"""
import logging
import random
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from seglog._kernels.batch_encode import EncodedBatch
from seglog.clock import Clock
from seglog.config import Fsync, LogConfig
from seglog.errors import InvalidArgumentError, LogFailedError, SeglogError, StorageError
from seglog.format.compression import decompressor
from seglog.format.validate import Assigned
from seglog.fs.files import FileSystem
from seglog.log.extent import Extent
from seglog.log.reader import LogReader
from seglog.segment.appender import SegmentAppender
from seglog.segment.group_commit import GroupCommit
from seglog.segment.published import End, PublishedEnd
from seglog.segment.roll import RELATIVE_OFFSET_MAX, new_base_offset, segment_jitter_ms
from seglog.segment.segment import Segment
from seglog.state.leader_epochs import LeaderEpochFileCache, LeaderEpochs
from seglog.state.partition_hold import PartitionHold
from seglog.state.producer_snapshots import ProducerSnapshots
from seglog.state.producer_state import Origin, ProducerState, Update

_LOG = logging.getLogger(__name__)

# The recovery point moves each time that so many more bytes are on the disk. What lies behind it is checked when a
# writer died, and written to the disk again: that shall take a fraction of a second, however large segments are.
_RECOVERY_POINT_BYTES = 64 << 20


class LogTail(LogReader):
    """The end of a `Log`. What each field is for stands beside it; `Log` opens and closes them."""

    # What each append touches. In a dictionary of more than thirty fields CPython finds each of them the slow way.
    __slots__ = (
        "_active", "_durable_offset", "_end", "_is_epoch_due", "_is_unordered", "_lock", "_next_offset", "_now_ms",
        "_number", "_published", "_publishes_synced", "_recovery_position", "_refusal", "fsync", "leader_epoch",
    )  # fmt: skip

    def __init__(
        self, path: Path, config: LogConfig, fs: FileSystem, clock: Clock, fsync: Fsync, leader_epoch: int
    ) -> None:
        super().__init__()
        self.path = path
        self.fs = fs
        self.config = config
        self.clock = clock
        self.fsync = fsync
        self.leader_epoch = leader_epoch
        self.decompress = decompressor(config.max_decompressed_message_bytes)
        self._now_ms = clock.now_ms
        # Held by who cuts or removes segments, and by who copies them meanwhile; taken before `_lock`.
        self._files_lock = threading.Lock()
        # Guards every field below. Whoever holds it may wait for the commit's files (`exclusive`), never the
        # other way round: a sync takes no lock.
        self._lock = threading.Lock()
        self._active: SegmentAppender
        self._end: PublishedEnd                 # of the active segment: written, aborted transactions too
        self._published: PublishedEnd           # the same one, or, with fsync="batch", what of it is durable
        self._next_offset = 0
        self._producers: ProducerState
        self._epoch_cache: LeaderEpochFileCache
        self._snapshots: ProducerSnapshots
        self._hold: PartitionHold
        self._recovery_point = 0
        self._recovery_position = 0             # in the active segment: where it was last moved, or tried to
        self._is_changed = False                # since opening
        self._is_unordered = False              # several batches were unsynced at a time, since opening
        self._is_epoch_due = True               # `leader_epoch` has not begun yet, or nothing was written since opening
        # Why no change is possible, as a function that makes the error; None: it is. Read without the lock first.
        self._refusal: Callable[[], SeglogError] | None = None
        self._failure: BaseException | None = None
        # Appends that somebody waits for, counted (GroupCommit), and what is surely on the disk.
        self._number = 0
        self._commit = GroupCommit(LogFailedError.since)
        self._durable_offset = 0
        # Readers see what is durable, or what is written.
        self._publishes_synced = fsync == "batch"
        self._flush_messages = config.flush_messages if fsync == "interval" else 0

    # --- its ends --------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """Up to where readers see the log. There are no replicas to wait for: it is the log end offset."""
        return self.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest transaction that is still open; the log end offset where none is."""
        extent = self._current()
        return max(self._producers.last_stable_offset(extent.log_end_offset), extent.log_start_offset)

    @property
    def durable_offset(self) -> int:
        """One past the last offset that is surely on the disk."""
        return self._durable_offset

    @property
    def recovery_point(self) -> int:
        """All before it is on the disk for certain: what lies behind, the next opening mends, should this process die.

        It moves at each roll, cut and opening, and with every 64 MiB that are synced.
        """
        return self._recovery_point

    @property
    def leader_epochs(self) -> LeaderEpochs:
        """At which offset each leader epoch began."""
        return self._epoch_cache.epochs

    # --- doors -----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Return when all that was appended before the call is on the disk. Raises LogClosedError, LogFailedError."""
        with self._lock:
            self._check_writable()
            self._write_entries()
            if self._durable_offset == self._next_offset:
                self._published.at = self._end.at
                return
            self._number += 1
            number = self._number
        self._commit.wait(number, self._sync_written)

    def roll(self) -> int:
        """Seal the active segment and begin a new one; nothing where the active one is empty. Returns its base offset.

        Raises LogClosedError, LogFailedError.
        """
        with self._lock:
            self._check_writable()
            if self._active.size_bytes:
                self._roll(self._next_offset)
            return self._active.base_offset

    # --- writing, under the lock -----------------------------------------------------------------

    def _check_writable(self) -> None:
        """For before each change: that it is possible."""
        if self._refusal is not None:
            raise self._refusal()

    def _write(self, made: bytes | EncodedBatch, first: int, last: int, max_timestamp: int, now_ms: int) -> None:
        """One batch of ours, at `first`, the next offset, into the active segment."""
        try:
            is_written = (
                not self._is_epoch_due
                and (self._is_unordered or self._durable_offset == first)
                and self._active.append_quietly(made, first, last, max_timestamp)
            )
        except BaseException as error:
            self._fail(error)
            raise
        if not is_written:
            self._write_with_care(made, first, last, max_timestamp, now_ms)
        self._next_offset = last + 1
        if self._publishes_synced:
            self._number += 1

    def _write_with_care(
        self, made: bytes | EncodedBatch, first: int, last: int, max_timestamp: int, now_ms: int
    ) -> None:
        """The same where more is to be done than to write."""
        active = self._active
        if active.should_roll(len(made), max_timestamp, last, now_ms):
            active = self._roll(first)
        if self._is_epoch_due:
            self._begin(self.leader_epoch, first)
        if not self._is_unordered and self._durable_offset != self._next_offset:
            self._begin_unordered()
        try:
            active.append_batch(made, first, last, max_timestamp)
        except BaseException as error:
            self._fail(error)
            raise
        self._end.at = active.end

    def _write_entries(self) -> None:
        """The index files lead up to the end from now on."""
        try:
            self._active.write_entries()
        except BaseException as error:
            self._fail(error)
            raise
        self._end.at = self._active.end

    def _write_assigned(self, assigned: Assigned, origin: Origin, now_ms: int, update: Update | None) -> None:
        """Batches that were checked, and what their producers will remember of them."""
        first, last, table = assigned.first_offset, assigned.last_offset, assigned.table
        if last - first > RELATIVE_OFFSET_MAX:
            raise InvalidArgumentError(
                f"no segment holds batches from offset {first} to {last}", file=self.path,
                hint="append those behind the hole in a call of their own",
            )
        size = len(assigned.raw)
        active = self._active
        follows = origin is Origin.REPLICATION and table[0].magic < 2
        base_offset = new_base_offset(None if follows else first, last, self._next_offset)
        if active.should_roll(size, assigned.max_timestamp, last, now_ms):
            active = self._roll(base_offset)
        if origin is Origin.REPLICATION:
            for batch in table:
                self._begin(batch.leader_epoch, batch.base_offset)
        elif self._is_epoch_due:
            self._begin(self.leader_epoch, first)
        if not self._is_unordered and (self._durable_offset != self._next_offset or len(table) > 1):
            self._begin_unordered()
        try:
            active = self._append_table(active, assigned, base_offset)
            for aborted in self._producers.apply(update) if update is not None else ():
                active.add_aborted(aborted)
        except InvalidArgumentError:
            raise           # nothing was written
        except BaseException as error:
            self._fail(error)
            raise
        self._next_offset = last + 1
        # With the lines of aborted transactions: readers of committed data look for them when they see the marker.
        self._end.at = active.end
        if self._publishes_synced:
            self._number += 1
        else:
            self._producers.on_high_watermark_updated(self._next_offset)

    def _append_table(self, active: SegmentAppender, assigned: Assigned, base_offset: int) -> SegmentAppender:
        """Write batches of one append; where they ask for more index entries than are left, into a new segment.

        Raises InvalidArgumentError where no segment has so many.
        """
        try:
            active.append(assigned.raw, assigned.table)
        except InvalidArgumentError:
            if active.size_bytes == 0:
                raise
            active = self._roll(base_offset)
            active.append(assigned.raw, assigned.table)
        return active

    def _before_change(self) -> None:
        """Whoever opens the directory next must not take it for clean. Cheap from the second call on."""
        if not self._is_changed:
            if self._recovery_point != (self._hold.recovery_point or 0):
                # First, while the mark still says what it said of what was recovered.
                self._hold.put(recovery_point=self._recovery_point)
            self._hold.before_first_write()
            self._is_changed = True

    def _begin_unordered(self) -> None:
        """From here on the disk may get a later batch before an earlier one: recovery has to know that (log.loader)."""
        self._hold.before_unordered_writes()
        self._is_unordered = True

    def _begin(self, epoch: int, offset: int) -> None:
        """Before the first append, and before the first one of an epoch: the marks and the epoch are on the disk."""
        self._before_change()
        latest = self._epoch_cache.latest
        if epoch >= 0 and (latest is None or epoch > latest):
            self._epoch_cache.assign(epoch, offset)
        if epoch > self.leader_epoch:       # a follower's: what is appended here later is no earlier one
            self._set_epoch(epoch)
        self._is_epoch_due = self._epoch_cache.latest != self.leader_epoch

    def _set_epoch(self, epoch: int) -> None:
        self.leader_epoch = epoch
        self._is_epoch_due = True

    # --- rolling ---------------------------------------------------------------------------------

    def _roll(self, base_offset: int) -> SegmentAppender:
        """Seal the active segment and begin the one at `base_offset`.

        Each step leaves a log that Kafka and we open: all of the old segment is on the disk before the new one has a
        name, and the recovery point moves last. So damage that a crash leaves is in the last segment only.
        """
        self._before_change()
        try:
            with self._commit.exclusive():
                old = self._active
                self._seal_active()
                self._producers.remove_expired(self._now_ms(), self.config.producer_id_expiration_ms)
                self._snapshots.take(self._producers, base_offset)
                new = SegmentAppender.create(
                    self.fs, self.path, base_offset, self.config, self._now_ms(), jitter_ms=self._jitter_ms()
                )
                old.close()
                self._extent = self._current().followed_by(self._grow(new))
                self._put_recovery_point(base_offset)
        except BaseException as error:
            self._fail(error)
            raise
        return self._active

    def _seal_active(self) -> None:
        """All of the active segment is on the disk, its indexes closed, and readers see it. Alone with the files."""
        self._active.seal()
        self._published.at = self._end.at = end = self._active.end
        self._durable_offset = end.next_offset
        self._producers.on_high_watermark_updated(end.next_offset)
        self._commit.cover(self._number)

    def _use(self, active: SegmentAppender, before: Iterable[Segment], log_start_offset: int) -> None:
        """Append to `active` from now on; readers find it behind the segments `before`."""
        self._extent = Extent((*before, self._grow(active)), log_start_offset)

    def _grow(self, active: SegmentAppender) -> Segment:
        """Append to `active` from now on. Returns it as readers see it; the caller shows it to them."""
        self._active = active
        self._recovery_position = active.end.position
        self._end = active.seen = PublishedEnd(active.end)
        self._published = PublishedEnd(active.end) if self._publishes_synced else self._end
        return Segment(
            active.path, decompress=self.decompress, published=self._published, owned=True,
            reserve_bytes=self.config.segment_bytes, by_minute=bool(self.config.time_index_minute_enabled),
            last_opened=self.last_opened,
        )

    def _put_recovery_point(self, offset: int) -> None:
        self._hold.put(recovery_point=offset)
        self._recovery_point = offset

    def _jitter_ms(self) -> int:
        return segment_jitter_ms(self.config, random.randrange)

    # --- syncing and failing ---------------------------------------------------------------------

    def _acknowledge(self, number: int) -> None:
        """Without the lock: what was appended is as durable as it shall be when the append returns."""
        if self._publishes_synced:
            self._commit.wait(number, self._sync_written)
        elif self._flush_messages and self._next_offset - self._durable_offset >= self._flush_messages:
            self.flush()

    def _sync_written(self) -> int:
        """What GroupCommit calls, without the lock: no roll comes in between, but appends do."""
        number = self._number       # before the end: what is counted is written
        end = self._end.at
        try:
            self._active.sync()
        except BaseException as error:
            self._fail(error)
            raise
        if self._publishes_synced:
            self._published.at = end
            self._producers.on_high_watermark_updated(end.next_offset)
        self._durable_offset = end.next_offset
        if end.position - self._recovery_position >= _RECOVERY_POINT_BYTES:
            self._advance_recovery_point(end)
        return number

    def _advance_recovery_point(self, end: End) -> None:
        """Alone with the files. Where it cannot be moved, the next opening has more to do, and nothing is wrong."""
        self._recovery_position = end.position
        try:
            self._put_recovery_point(end.next_offset)
        except StorageError as error:
            _LOG.warning("%s: the recovery point stays at offset %d: %s", self.path, self._recovery_point, error)

    def _sync_all(self) -> None:
        """Alone with the files: all that was written is on the disk, and readers see it."""
        self._commit.cover(self._sync_written())

    def _fail(self, error: BaseException) -> None:
        """The log is read-only from now on. Raises LogFailedError, but for ^C and the like, which the caller raises."""
        if self._failure is None:
            self._failure = error
            self._refusal = self._read_only
            self._commit.fail(error)
            _LOG.error("%s is read-only until it is opened again: %s", self.path, error)
        if isinstance(error, Exception) and not isinstance(error, LogFailedError):
            raise LogFailedError.since(error) from error

    def _read_only(self) -> LogFailedError:
        assert self._failure is not None
        return LogFailedError.since(self._failure)
