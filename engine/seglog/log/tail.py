"""The growing end of a log: writing, rolling, syncing and publishing its active segment, and what follows a failure.

    batch with its offsets ── roll if due ── write .log ── index entries ── remember the producers ── sync ── publish

log.append makes and checks the batches; threads.write_gate has the lock, the shared sync and the failure. A refusal
before the write changes nothing. A failure from the write on leaves the log read-only: what is on the disk is unknown
then, and opening again finds out (LogFailedError names the first error). After an interrupt there, the log is loaded
from the disk again at once (`reload`), as by an opening (log.tail_opening).
"""
import itertools
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from seglog._kernels.batch_encode import EncodedBatch
from seglog._kernels.point_read import LastOpened
from seglog._kernels.quiet_tail import QuietTail
from seglog._kernels.shield import shielded
from seglog._kernels.write_gate import CallLock
from seglog.clock import Clock
from seglog.config import Fsync, LogConfig
from seglog.errors import ForkedHandleError, InvalidArgumentError, LogClosedError
from seglog.format import names
from seglog.format.batch import BatchEncoder
from seglog.format.compression import Codec
from seglog.format.encoders import encoder_of
from seglog.format.old_format import MessageEncoder
from seglog.format.validate import Assigned
from seglog.fs.files import FileSystem
from seglog.fs.refusals import is_out_of_space
from seglog.late_import import late
from seglog.loading.loader import Loaded, plan_partition
from seglog.log.batch_epochs import begin_epochs_of
from seglog.log.ranges_writer import RangesWriter
from seglog.log.recovery_point import RecoveryPoint
from seglog.reading.extent import Extent, Shown
from seglog.reading.live_ends import Growth, LiveWriter
from seglog.reading.notices import Listeners
from seglog.reading.times import to_timestamp_ms
from seglog.segment.appender import SegmentAppender
from seglog.segment.growing_files import GROWING_FILES
from seglog.segment.open_settings import SegmentOpenSettings
from seglog.segment.roll import RELATIVE_OFFSET_MAX, new_base_offset, segment_jitter_ms
from seglog.segment.segment import Segment
from seglog.state.leader_epochs import LeaderEpochFileCache, LeaderEpochs
from seglog.state.leftovers import Listed, file_names
from seglog.state.partition_hold import PartitionHold
from seglog.state.producer_snapshots import ProducerSnapshots
from seglog.state.producer_state import Origin, ProducerState, Update
from seglog.threads.write_gate import WriteGate

if TYPE_CHECKING:
    from seglog.log.linger import Linger

# Each log that this process opens numbers its appends from another one on: no log accepts another one's token.
_FIRST_NUMBERS = itertools.count(0, 1 << 36)
# At most this many producers expire in a roll: appends wait for it.
_EXPIRED_AT_ONCE = 2048
_BESIDE = (names.CLEANED_SUFFIX, names.DELETED_SUFFIX, names.TMP_SUFFIX)


class LogTail(WriteGate, QuietTail):
    """The end of a `Log`, which opens and closes it. The lock guards each field below (`change`).

    Lock order: `files_lock`, then the lock, then the files (`alone_within`). A sync takes no lock.
    """

    active: SegmentAppender
    encoder: BatchEncoder

    def __init__(
        self, hold: PartitionHold, shown: Shown, last_opened: LastOpened, config: LogConfig, fs: FileSystem,
        clock: Clock, fsync: Fsync, leader_epoch: int,
    ) -> None:
        super().__init__(hold.path, "log")
        self.first_number = next(_FIRST_NUMBERS)
        self.number = self.first_number
        self.cover(self.number)
        self.partition = hold
        self.shown = shown
        self.fs = fs
        self.now_ms = clock.now_ms
        self.leader_epoch = leader_epoch
        # Readers see what is durable, or what is written.
        self.publishes_synced = fsync == "batch"
        self._fsync = fsync
        self._last_opened = last_opened
        self.use_config(config)
        # Held while segments are truncated or removed, and while they are copied.
        self.files_lock = CallLock()
        self.ranges = RangesWriter(fs, self.path, shown, self.files_lock)
        self.producers: ProducerState
        self.forgot_at = 0.0        # when producers that had expired were forgotten
        self.fences: dict[int, int] = {}        # the last epoch that was given to each producer: log.transactions
        self.epoch_cache: LeaderEpochFileCache
        self.snapshots: ProducerSnapshots
        self.recovery_point = RecoveryPoint(hold)
        # What must happen in the same step as a change, with the lock. LogTransactions and LogRetainer set these: they
        # are built on this tail, which has loaded by then, and most logs have nothing that retention could do.
        self.on_transaction: Callable[[list[tuple[int, int]]], None] | None = None  # (producer id, first offset): began
        self.on_roll: Callable[[], None] | None = None
        self.on_full: Callable[[], None] | None = None      # without the lock: read-only, because the disk is full
        self.listeners = Listeners(shown)
        self.live = LiveWriter(hold.path, self.publishes_synced)
        self.flush_marks = 0                    # how many of `number` are not appends
        self._asked_to = 0                      # the sync thread was asked to flush up to here, by flush.messages

    # --- loading ---------------------------------------------------------------------------------

    def load(self, *, clean: bool, unordered: bool, unsynced_from: int | None, listed: Listed = None) -> Loaded:
        """Recover if needed, and append to the last segment from now on. Before any append, or alone with the files.

        The caller marks the directory and calls `announce_truncation`.
        """
        hold = self.partition
        now_ms = self.now_ms()
        plan = plan_partition(hold, self.config, clean, unordered, unsynced_from, listed)
        if clean and plan.changes_logs:
            # Kafka's clean-shutdown file must not exist while the files do not match.
            shielded(hold.before_first_write)
        # The mark comes before the first append, and makes the names durable, too.
        loaded = plan.apply(self.fs, now_ms, syncs_new_names=hold.dirty)
        self.epoch_cache = LeaderEpochFileCache(
            self.fs, self.path / names.LEADER_EPOCH_CHECKPOINT, loaded.leader_epochs
        )
        self.set_epoch(max(self.leader_epoch, self.epoch_cache.latest or 0))
        self.snapshots = loaded.producer_snapshots
        self.producers = loaded.producer_state
        self.producers.fences = self.fences
        self.next_offset = loaded.next_offset
        self.durable_offset = loaded.next_offset
        self.recovery_point.offset = loaded.recovery_point
        *sealed, last = loaded.segments
        self.take_up(
            [self.sealed(segment.base_offset) for segment in sealed], last.base_offset, last.size_bytes,
            loaded.log_start_offset,
        )
        return loaded

    def announce_truncation(self, cursors: tuple[str, ...] | None = None, *, is_whole: bool = False) -> None:
        """After a truncation or a loading, alone with the files: tell other processes where the log ends, and lower the
        cursors that are past that. `cursors`: see lower_cursors; `is_whole`: see LiveWriter.end."""
        publish = partial(self.live.end, self.shown, self.last_stable_offset, self.next_offset, is_whole=is_whole)
        if cursors == ():       # nearly always, and what reads cursors takes 2 ms to import
            publish()
            return
        late("seglog.state.reader_cursor")
        from seglog.state.reader_cursor import lower_cursors

        lower_cursors(self.fs, self.path, self.next_offset, cursors, publish)

    def use_config(self, config: LogConfig) -> None:
        """Make, check and flush later appends by this configuration. With the lock, or before any append."""
        self.config = config
        self._access = SegmentOpenSettings.of(config, self._last_opened)
        self.decompress = self._access.decompress
        self.encoder = encoder_of(config, self.leader_epoch, to_timestamp_ms)
        self.is_old_format = isinstance(self.encoder, MessageEncoder)
        self.is_plain = (
            self.encoder.codec is Codec.NONE and not self.encoder.uses_log_append_time and not config.is_compacted
            and not self.is_old_format
        )
        self.times_from = self.encoder.times_from
        self.before_max_ms = config.message_timestamp_before_max_ms
        self.lingering_keys = config.is_compacted
        self.linger = self._new_linger()
        self.lingering = None if self.linger is None else self.linger.batch
        self.lingering_bytes = config.linger_bytes
        self.batch_bytes_max = config.batch_bytes_max
        self.flush_messages = config.flush_messages if self._fsync == "interval" else 0

    def _new_linger(self) -> "Linger | None":
        """None if each append is written at once, as in formats v0 and v1, whose records are made with their offsets.
        """
        if not self.config.linger_ms or self.is_old_format:
            return None
        late("seglog.log.linger")
        from seglog.log.linger import Linger

        return Linger(self.config, self.encoder)

    def reload(self) -> None:
        """Load the log from the disk again if an exception interrupted a change.

        No whole batch is lost: this process still holds the partition, and everything written is in the files.
        """
        try:
            shielded(self.with_lock, self._reload)
        except BaseException as error:
            if error is self.failure:
                self.settle(error)
            raise

    def _reload(self) -> None:
        if not self.is_torn or self.failure is not None or self.shown.extent is None:
            return
        with self.changing():
            self.alone_within(self._load_again)
            linger = self.linger
            if linger is not None and (made := linger.batch.taken) is not None:
                if made.base_offset >= self.next_offset:
                    self.write_taken(linger, self.now_ms())
                linger.batch.taken = None
            self.is_torn = False

    def _load_again(self) -> None:
        self.live.begin()
        self.active.check_disk()
        self.snapshots.settle()
        self.active.close()
        loaded = self.load(
            clean=False, unordered=self.is_unordered, unsynced_from=None,       # (no sync failed)
            listed=self._of_the_log(),
        )
        self.recovery_point.loaded_again()
        self.recovery_point.before_change()
        self.cover(self.sync())
        self.cover(self.number)
        self.announce_truncation(loaded.cursors, is_whole=not loaded.lost)

    def _of_the_log(self) -> list[str]:
        """The names of the files in the directory, without those that a thread of this process may be writing or
        removing beside the log: what is left of these is for the next opening."""
        listed = file_names(self.path)
        if any(name.endswith(names.SWAP_SUFFIX) for name in listed):
            return listed       # an exchange was left in the middle; a .cleaned file tells which of them count
        return [name for name in listed if not name.endswith(_BESIDE)]

    # --- with the lock: before each change -------------------------------------------------------

    def current(self) -> Extent:
        """The current extent."""
        extent = self.shown.extent
        if extent is None:
            raise self.closed_error()
        return extent

    def write_lingering(self) -> None:
        """Write what linger.ms keeps in memory: before each change."""
        linger = self.linger
        if linger is not None and linger.batch:
            now_ms = self.now_ms()
            with self.changing():
                linger.take(now_ms, self.next_offset)
                self.write_taken(linger, now_ms)

    def stop_lingering(self) -> None:
        """Write what lingers, and each record at once from now on."""
        self.write_lingering()
        self.lingering_bytes = 0

    def write_taken(self, linger: "Linger", now_ms: int) -> None:
        """Write the batch that was taken for it; its offsets were already given out."""
        with self.changing():
            made = linger.batch.taken
            assert made is not None
            self.write_locked(made, now_ms)
            linger.batch.taken = None

    def _begin(self, epoch: int, offset: int) -> None:
        """Before the first append, and before the first one of an epoch: put the marks and the epoch on the disk."""
        latest = self.epoch_cache.latest
        if epoch >= 0 and (latest is None or epoch > latest):
            self.epoch_cache.assign(epoch, offset, self.recovery_point.before_change)
        self.recovery_point.before_change()
        if epoch > self.leader_epoch:       # a replica's append: later appends must not have an earlier epoch
            self.set_epoch(epoch)
        self.is_epoch_due = self.epoch_cache.latest != self.leader_epoch

    def _begin_unordered(self) -> None:
        """From here on, a later batch may reach the disk before an earlier one: recovery (loading.loader) must know."""
        shielded(self.partition.before_unordered_writes)
        self.is_unordered = True

    def set_epoch(self, epoch: int) -> None:
        """Set the leader epoch of later batches."""
        self.is_epoch_due = True
        self.leader_epoch = self.encoder.leader_epoch = epoch

    # --- with the lock: writing ------------------------------------------------------------------

    def write_locked(
        self, batch: EncodedBatch | Assigned, now_ms: int, origin: Origin = Origin.CLIENT, update: Update | None = None
    ) -> None:
        """Write a batch that seglog made, at the next offset, or the batches of one append that were checked; `update`
        their producers. `write` is for those that need none of this: nearly all."""
        if isinstance(batch, EncodedBatch):
            batch.place(self.next_offset, self.leader_epoch)
            first, last, size_bytes, is_one = batch.base_offset, batch.last_offset, len(batch), True
            base_offset = first
        else:
            first, last, table = batch.first_offset, batch.last_offset, batch.table
            size_bytes, is_one = table.end - table[0].position, len(table) == 1
            if last - first > RELATIVE_OFFSET_MAX:
                raise InvalidArgumentError(
                    f"one segment cannot hold batches from offset {first} to {last}", file=self.path,
                    hint="append the batches after the gap in a separate call",
                )
            is_unopened = origin is Origin.REPLICATION and table[0].magic in (0, 1)
            base_offset = new_base_offset(None if is_unopened else first, last, self.next_offset)
        active = GROWING_FILES.appender_of(self)
        if active.should_roll(size_bytes, batch.max_timestamp, last, now_ms):
            active = self.roll_at(base_offset)
        self._begin_epochs(batch, first, origin)
        if not self.is_unordered and (self.durable_offset != self.next_offset or not is_one):
            self._begin_unordered()
        with self.changing() as change:
            try:
                active = self._write_to(active, batch, base_offset)
            except InvalidArgumentError:
                change.refused()        # nothing was written
                raise
            if update is not None:
                for aborted in self.producers.apply(update):
                    active.add_aborted(aborted)
            self.next_offset = last + 1
            self.follows = origin is Origin.REPLICATION
            if self.on_transaction is not None and update is not None and (begun := update.begun):
                self.on_transaction(begun)
            # After the entries of aborted transactions: readers of committed data need them when they see the marker.
            self.live.growth.written.at = active.end
            self.number += 1
            if not self.publishes_synced:
                self.announce()
                self.producers.on_high_watermark_updated(self.next_offset)

    def _begin_epochs(self, batch: EncodedBatch | Assigned, first_offset: int, origin: Origin) -> None:
        """Record the epochs that begin with a batch, or within batches that bring their own."""
        if origin is Origin.REPLICATION and isinstance(batch, Assigned):
            latest = self.epoch_cache.latest
            if not self.recovery_point.is_changed or batch.max_epoch > (-1 if latest is None else latest):
                shielded(begin_epochs_of, batch, self._begin)
            self.is_epoch_due = self.epoch_cache.latest != self.leader_epoch
        elif self.is_epoch_due:
            shielded(self._begin, self.leader_epoch, first_offset)

    def begin_appends(self) -> None:
        """With the lock: put on the disk what has to be there before the first append."""
        if self.is_epoch_due:
            shielded(self._begin, self.leader_epoch, self.next_offset)

    @property
    def is_untouched(self) -> bool:
        """Whether it is as it was created: without a batch, an epoch, or a mark of ours."""
        return (
            self.is_epoch_due and self.leader_epoch >= 0 and not self.next_offset and not self.recovery_point.is_changed
            and not self.partition.dirty and not self.partition.recovery_point and not self.epoch_cache.epochs
        )

    def began(self, epochs: LeaderEpochs, *, is_unordered: bool) -> None:
        """With the lock: what `_begin` does was done (log.first_appends), with the mark of an unordered log or not."""
        self.partition.dirty = self.recovery_point.is_changed = True
        self.epoch_cache.epochs = epochs
        self.is_epoch_due = False
        self.is_unordered = self.is_unordered or is_unordered

    def _write_to(
        self, active: SegmentAppender, batch: EncodedBatch | Assigned, base_offset: int
    ) -> SegmentAppender:
        """Write to the active segment; to a new one if the batches need more index entries than are left.

        Raises InvalidArgumentError if no segment has that many.
        """
        try:
            _append_to(active, batch)
        except InvalidArgumentError:
            if active.size_bytes == 0:
                raise
            active = self.roll_at(base_offset)
            _append_to(active, batch)
        return active

    def write_entries(self) -> None:
        """Write the index entries up to the end."""
        if not self.active.is_given_back:       # otherwise they are written already
            with self.changing():
                self.active.write_entries()
                self.live.growth.written.at = self.active.end

    # --- with the lock: rolling ------------------------------------------------------------------

    def roll(self) -> int:
        """Begin a new segment unless the active one is empty. Returns its base offset."""
        self.write_lingering()
        if self.active.size_bytes:
            self.roll_at(self.next_offset)
        return self.active.base_offset

    def roll_if_idle(self) -> None:
        """Roll for seglog.segment.idle.roll."""
        self.write_lingering()
        if self.active.idle_roll_is_due(self.now_ms()):
            self.roll_at(self.next_offset)

    def roll_at(self, base_offset: int) -> SegmentAppender:
        """Seal the active segment and begin the one at `base_offset`.

        Each step leaves a log that Kafka and seglog can open: all of the old segment is on the disk before the new one
        has a name, and the recovery point moves last. So a crash can leave damage in the last segment only.
        """
        shielded(self._roll, base_offset)
        return self.active

    def _roll(self, base_offset: int) -> None:
        self.recovery_point.before_change()
        with self.changing():
            self.alone_within(self._roll_alone, base_offset)

    def forget_expired(self) -> None:
        """Forget producers that have appended nothing for producer.id.expiration.ms."""
        self.forgot_at = time.monotonic()
        self.producers.remove_expired(self.now_ms(), self.config.producer_id_expiration_ms, _EXPIRED_AT_ONCE)

    def _roll_alone(self, base_offset: int) -> None:
        old = self.active
        self.seal_active()
        self.forget_expired()
        # Its name becomes durable with those of the new segment, or later. Without it a recovery must read more.
        self.snapshots.begin(self.producers, base_offset)
        new = self.created_at(base_offset)
        old.close()
        self.recovery_point.sealed(old.end.position)
        sealed = self.current()
        self.shown.extent = sealed.followed_by(self._grow(new))
        if old.is_given_back:
            GROWING_FILES.opened(self)
        self.recovery_point.after_roll(base_offset)
        if self.config.time_index_ranges_enabled:
            self.ranges.put(sealed.segments[-1])
        if self.on_roll is not None:
            self.on_roll()

    def created_at(self, base_offset: int) -> SegmentAppender:
        """Create a new, empty segment durably."""
        jitter_ms = segment_jitter_ms(self.config)
        return SegmentAppender.create(self.fs, self.path, base_offset, self.config, self.now_ms(), jitter_ms=jitter_ms)

    def seal_active(self) -> None:
        """Sync all of the active segment, close its indexes, and show it to readers. Alone with the files."""
        self.active.seal()
        end = self.active.end
        self.live.growth.sealed(end)
        self.durable_offset = end.next_offset
        self.announce()
        self.producers.on_high_watermark_updated(end.next_offset)
        self.cover(self.number)

    def take_up(self, before: list[Segment], base_offset: int, size_bytes: int, log_start_offset: int) -> None:
        """Append to the segment at `base_offset`, whose .log has `size_bytes`, from the next offset on."""
        jitter_ms = segment_jitter_ms(self.config)
        active = SegmentAppender.open(
            self.fs, self.path, base_offset, self.config, size_bytes, self.next_offset, self.now_ms(),
            jitter_ms=jitter_ms,
        )
        self.use(active, before, log_start_offset)

    def use(self, active: SegmentAppender, before: Iterable[Segment], log_start_offset: int) -> None:
        """Append to `active` from now on; readers find it after the segments `before`."""
        self.shown.extent = Extent((*before, self._grow(active)), log_start_offset)
        self._asked_to = 0
        self.announce()
        GROWING_FILES.opened(self)

    def _grow(self, active: SegmentAppender) -> Segment:
        """Append to `active` from now on. Returns it as readers see it; the caller shows it to them."""
        self.active = active
        self.recovery_point.go_on_at(active.end.position)
        growth = Growth(active.base_offset, active.end, shows_durable=self.publishes_synced)
        active.seen = growth.written
        self.live.grow(growth)
        return Segment(
            active.path, decompress=self.decompress, published=growth.published, owned=True,
            reserve_bytes=self.config.segment_bytes, by_minute=bool(self.config.time_index_minute_enabled),
            last_opened=self._last_opened,
        )

    def sealed(self, base_offset: int) -> Segment:
        """A sealed segment, as readers see it."""
        return Segment.sealed(self.path, base_offset, self._access)

    # --- syncing ---------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """That of `Log`; 0 if it is closed."""
        extent = self.shown.extent
        if extent is None:
            return 0
        return max(self.producers.last_stable_offset(extent.log_end_offset), extent.log_start_offset)

    def tell_growth(self) -> None:
        """For reading.notices."""
        self.live.publish(self.shown, self.last_stable_offset)
        self.listeners.tell()

    def acknowledge(self, number: int, waits: bool = True) -> None:
        """Without the lock: make an append as durable as it must be when the append returns."""
        if self.flush_messages:
            self.flush_if_due(waits)
        elif self.publishes_synced and waits:
            self.wait(number)

    def reach(self, number: int) -> None:
        if self.number < number:        # its records still linger
            self.change(self.write_lingering)
        self.wait(min(number, self.number))

    def flush_if_due(self, waits: bool | None) -> None:
        """Without the lock, with fsync="interval": apply flush.messages. If not `waits`, the sync thread does it."""
        if waits:
            if self.next_offset - self.durable_offset >= self.flush_messages:
                self.flush()
        elif self.next_offset - max(self.durable_offset, self._asked_to) >= self.flush_messages:
            self._asked_to = self.next_offset
            self.when(self.number, lambda error: None)       # the next append or close raises the error

    def flush(self) -> None:
        """Without the lock: return when everything appended before the call is on the disk."""
        number = self.change(self._number_to_flush)
        if number:
            self.wait(number)

    def _number_to_flush(self) -> int:
        self.write_lingering()
        self.write_entries()
        if self.durable_offset == self.next_offset:
            self.live.growth.published.at = self.live.growth.written.at
            return 0
        self.number += 1
        self.flush_marks += 1
        return self.number

    def sync(self) -> int:
        """Called by the gate, without the lock: no roll comes in between, but appends may."""
        number = self.number        # before the end: what is counted is written
        growth = self.live.growth
        end = growth.written.at
        self.active.sync()
        growth.durable = end
        if self.publishes_synced:
            growth.published.at = end
            self.producers.on_high_watermark_updated(end.next_offset)
        self.durable_offset = end.next_offset
        self.announce()
        if end.position >= self.recovery_point.due_position:
            shielded(self.recovery_point.move_to, end)
        return number

    def sync_all(self) -> None:
        """With the lock, alone with the files: sync everything written, and show it to readers."""
        self.write_entries()
        self.cover(self.sync())

    def settle(self, error: BaseException) -> None:
        if self.on_full is not None and is_out_of_space(self.failure):
            self.on_full()
        super().settle(error)

    # --- closing ---------------------------------------------------------------------------------

    def close(self, *, discards: bool = False) -> None:
        """Make everything durable if nothing failed, and release the files. Raises LogFailedError if that fails now, or
        if a sync or write failed in the background without an error to a caller. `discards`: see Log._close."""
        try:
            self.ranges.wait()
            self.files_lock.run(self.with_lock, self._close, discards)
        except BaseException as error:
            if error is self.failure:
                self.settle(error)
            raise
        self.tell()

    def _close(self, discards: bool) -> None:
        if self.shown.extent is None:
            return
        clean = False
        try:
            if self.failure is None:
                self._reload()
                self.write_lingering()
                with self.changing():
                    self.alone_within(self._let_wait_no_more if discards else self._finish)
                clean = not discards
        finally:
            self.let_go(clean=clean)

    def _let_wait_no_more(self) -> None:
        """Answer those that wait for a sync: with one, where an answer promises it."""
        if self.publishes_synced and self.durable_offset != self.next_offset:
            self.sync_all()
        self.cover(self.number)

    def _finish(self) -> None:
        """Put everything on the disk, and record that in the log dir."""
        hold = self.partition
        if hold.clean and not self.recovery_point.is_changed:
            return
        self.seal_active()
        self.snapshots.take(self.producers, self.next_offset)
        extent = self.current()
        hold.put(
            recovery_point=self.next_offset, high_watermark=self.next_offset,
            log_start_offset=extent.log_start_offset, first_base_offset=extent.segments[0].base_offset, closing=True,
        )

    def let_go(self, *, clean: bool | None) -> None:
        """Close what is open. `clean` is None if the locks belong to another process."""
        extent = self.shown.extent
        self.shown.extent = None
        if self.failure is None:
            self.refusal = self.closed_error
        self.listeners.end(self)
        if extent is not None:
            for segment in extent.segments:
                segment.close()
        try:
            self.active.close()
        finally:
            if clean is not None:
                self.live.close()
                try:
                    self.snapshots.wait()
                finally:
                    self.partition.close(clean=clean)

    def closed_error(self) -> LogClosedError:
        """The error for a call on a closed log."""
        return LogClosedError("the log was closed", file=self.path)

    def after_fork(self, pid: int) -> None:
        """In the child of `pid`. Another thread of the parent may have held a lock, and is not here to release it."""
        self.refusal = lambda: ForkedHandleError(
            f"the log belongs to process {pid}, which forked this one", file=self.path
        )
        self.announcements = None
        self.live.let_go()
        self.files_lock.renew()
        self.ranges = RangesWriter(self.fs, self.path, self.shown, self.files_lock)
        self.renew()


def _append_to(active: SegmentAppender, batch: EncodedBatch | Assigned) -> None:
    if isinstance(batch, Assigned):
        active.append(batch.raw, batch.table)
    else:
        active.append_batch(batch, batch.base_offset, batch.last_offset, batch.max_timestamp)
