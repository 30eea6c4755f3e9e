"""How a log is appended to: from records, or from a ready batch, to bytes in its active segment.

    lock ── encode, or check, the batch ── ask the producers ── roll if due ── write .log ── index entries ──
    remember the producers ── unlock ── share a sync (fsync="batch") ── publish

What is refused before the write changes nothing. What fails from the write on leaves the log read-only: what is on
disk is unknown then, and opening again finds out (LogFailedError names the first error).
"""
import logging
import random
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from seglog._kernels.batch_encode import EncodedBatch, encode_one
from seglog._kernels.batch_survey import first_with_producer
from seglog.clock import Clock
from seglog.config import Fsync, LogConfig
from seglog.errors import CorruptRecordError, InvalidArgumentError, LogFailedError, RecordTooLargeError, SeglogError
from seglog.format.batch import BatchEncoder
from seglog.format.compression import Codec, decompressor
from seglog.format.validate import AppendRules, Assigned, assign, check_follower
from seglog.fs.files import FileSystem
from seglog.log.arguments import check_leader_epoch
from seglog.log.leader_epochs import LeaderEpochFileCache
from seglog.log.linger import Linger
from seglog.log.partition_hold import PartitionHold
from seglog.log.producer_snapshots import ProducerSnapshots
from seglog.log.producer_state import Duplicate, Origin, ProducerState, Update
from seglog.log.reader import Extent, LogReader
from seglog.log.times import to_timestamp_ms
from seglog.segment.appender import SegmentAppender
from seglog.segment.group_commit import GroupCommit
from seglog.segment.housekeeping import Housekeeping
from seglog.segment.published import End, PublishedEnd
from seglog.segment.roll import new_base_offset, segment_jitter_ms
from seglog.segment.segment import Segment

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from seglog._kernels.batch_encode import Headers, Record
    from seglog.log.reader import Time

logger = logging.getLogger("seglog")

# Where the attributes of a v2 batch stand, and the bit of a control batch: docs/formats/record_batch.md.
_MAGIC_POSITION, _ATTRIBUTES_POSITION = 16, 22
_CONTROL_BIT = 0x20


class AppendResult(NamedTuple):
    """Where a ready batch came to stand; for a duplicate, where it stood already."""

    first_offset: int
    last_offset: int
    is_duplicate: bool = False


class LogAppender(LogReader):
    """The appends of a `Log`. What each field is for stands beside it; `Log` opens and closes them."""

    def __init__(self, path: Path, config: LogConfig, fs: FileSystem, clock: Clock, fsync: Fsync, epoch: int) -> None:
        super().__init__()
        self.path = path
        self.fs = fs
        self.config = config
        self.clock = clock
        self.fsync = fsync
        self.leader_epoch = epoch
        self.decompress = decompressor(config.max_decompressed_message_bytes)
        self._now_ms = clock.now_ms
        self._encoder = BatchEncoder(config, epoch)
        self._rules = AppendRules.of(config)
        self._max_message_bytes = config.max_message_bytes
        # Whether a record without a timestamp can be encoded with nothing to look up.
        self._is_plain = (
            self._encoder.codec is Codec.NONE and not self._encoder.uses_log_append_time and not config.is_compacted
        )
        # Guards every field below. Whoever holds it may wait for the commit's files (`exclusive`), never the
        # other way round: a sync takes no lock.
        self._lock = threading.Lock()
        self._active: SegmentAppender
        self._published: PublishedEnd           # of the active segment
        self._end: End                          # written, producers and aborted transactions too
        self._next_offset = 0
        self._producers: ProducerState
        self._epoch_cache: LeaderEpochFileCache
        self._snapshots: ProducerSnapshots
        self._hold: PartitionHold
        self._recovery_point = 0
        self._is_changed = False                # since opening
        self._is_epoch_due = True               # `leader_epoch` has not begun yet, or nothing was written since opening
        # Why no change is possible, as a function that makes the error; None: it is. Read without the lock first.
        self._refusal: Callable[[], SeglogError] | None = None
        self._failure: BaseException | None = None
        self._linger = Linger(config, self._encoder) if config.linger_ms else None
        self._housekeeping: Housekeeping | None = None
        # Appends that somebody waits for, counted (GroupCommit), and what is surely on the disk.
        self._number = 0
        self._commit = GroupCommit(LogFailedError.since)
        self._durable_offset = 0
        # Readers see what is durable, or what is written.
        self._publishes_synced = fsync == "batch"
        self._flush_messages = config.flush_messages if fsync == "interval" else 0

    # --- doors -----------------------------------------------------------------------------------

    def append(
        self,
        value: "Buffer | None",
        *,
        key: "Buffer | None" = None,
        headers: "Headers | None" = (),
        timestamp: "Time | None" = None,
    ) -> int:
        """Append one record, a batch of its own, and return its offset. `value=None` is a tombstone.

        `timestamp`: now, where it is not given; milliseconds, a datetime, ISO 8601, or "-2h".
        With fsync="batch" it is on the disk at return.

        Raises InvalidArgumentError for what is no bytes, RecordTooLargeError, InvalidTimestampError,
        InvalidRecordError (no key, in a compacted log), LogClosedError, LogFailedError.
        """
        if self._linger is not None:
            return self._append_lingering(key, value, headers, timestamp)
        now_ms = self._now_ms()
        try:
            with self._lock:
                if self._refusal is not None:
                    raise self._refusal()
                offset = self._next_offset
                if timestamp is None and self._is_plain:
                    # Fast path: nothing to look up, nothing to compress.
                    max_timestamp = now_ms
                    made: bytes | EncodedBatch = encode_one(offset, now_ms, key, value, headers, self.leader_epoch)
                    if len(made) > self._max_message_bytes:
                        self._encoder.one(offset, now_ms, key, value, headers)      # raises
                else:
                    made, max_timestamp = self._encode_timed(offset, now_ms, key, value, headers, timestamp)
                self._write(made, offset, offset, max_timestamp, now_ms)
                number = self._number
        except TypeError as error:
            raise InvalidArgumentError(str(error), hint="keys and values are bytes-like or None") from error
        if self.fsync != "never":
            self._acknowledge(number)
        return offset

    def append_many(self, records: "Iterable[Record]") -> int:
        """Append records, each (key, value[, headers[, timestamp]]), as one batch; returns the last one's offset.

        All of them or none: one batch is one write and one checksum. Refused as a whole where it is larger than
        max.message.bytes. Raises what `append` raises.
        """
        now_ms = self._now_ms()
        try:
            made = self._encoder.many(records, now_ms)      # outside of the lock: it may compress
        except TypeError as error:
            raise InvalidArgumentError(str(error), hint="a record is (key, value[, headers[, timestamp]])") from error
        return self._append_made((made,), now_ms)

    def append_columns(
        self,
        columns: object = None,
        *,
        timestamps: object = None,
        keys: object = None,
        values: object = None,
    ) -> int:
        """Append columns: seglog's own, an Arrow RecordBatch or table of key, value and timestamp, or buffers by name.

        As many batches as max.message.bytes asks for. Returns the last record's offset. Raises what `append` raises.
        """
        named = {"timestamp": timestamps, "key": keys, "value": values}
        given = {name: column for name, column in named.items() if column is not None}
        if (columns is None) == (not given):
            raise InvalidArgumentError("give either columns, or timestamps=, keys=, values=")
        now_ms = self._now_ms()
        try:
            made = self._encoder.columns(given if columns is None else columns, now_ms)
        except TypeError as error:
            raise InvalidArgumentError(str(error), hint="see docs/embedded_log.md for what a column may be") from error
        return self._append_made(made, now_ms)

    def append_batch(
        self, raw: "Buffer", *, assign_offsets: bool = True, leader_epoch: int | None = None
    ) -> AppendResult:
        """Append a batch as bytes (`seglog.build_batch` makes one), validated as a broker does.

        Offsets are assigned in place, nothing is compressed again; only where inner offsets do not fit, or
        compression.type names another codec, is the batch rebuilt. `assign_offsets=False` keeps offsets, epochs and
        timestamps: a follower's append, or the mirror of a compacted topic, and of any number of batches.
        `leader_epoch`: another than the log's own, from here on.

        Raises CorruptRecordError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError,
        UnsupportedCompressionTypeError; OutOfOrderSequenceError, InvalidProducerEpochError, InvalidTxnStateError for
        batches of a producer; LogClosedError, LogFailedError. A batch that its producer sent before is not written
        again: the result names the first one.
        """
        now_ms = self._now_ms()
        if leader_epoch is not None:
            check_leader_epoch(leader_epoch)
        try:
            view = memoryview(raw).cast("B")
        except TypeError as error:
            raise InvalidArgumentError(
                f"a batch is one run of bytes, not {type(raw).__name__}", hint="seglog.build_batch makes one of records"
            ) from error
        with self._lock:
            self._check_writable()
            epoch = self.leader_epoch if leader_epoch is None else leader_epoch
            if epoch < self.leader_epoch:
                raise InvalidArgumentError(
                    f"leader epoch {epoch} after {self.leader_epoch}", file=self.path, hint="leader epochs only rise"
                )
            try:
                if assign_offsets:
                    from_coordinator = _is_control(view)
                    assigned = assign(
                        view, self._next_offset, self._rules,
                        now_ms=now_ms, leader_epoch=epoch, allow_control=from_coordinator,
                    )
                    origin = Origin.COORDINATOR if from_coordinator else Origin.CLIENT
                else:
                    assigned = check_follower(view, self._next_offset, self._rules)
                    origin = Origin.REPLICATION
            except CorruptRecordError as error:
                error.hint = "nothing was written: these bytes are no whole batch; seglog.build_batch makes good ones"
                raise
            result = self._append_assigned(assigned, origin, now_ms, epoch)
            number = self._number
        self._acknowledge(number)
        return result

    def flush(self) -> None:
        """Return when all that was appended before the call is on the disk. Raises LogClosedError, LogFailedError."""
        with self._lock:
            self._check_writable()
            if self._durable_offset == self._next_offset:
                return
            self._number += 1
            number = self._number
        self._commit.wait(number, self._sync_written)

    # --- under the lock --------------------------------------------------------------------------

    def _check_writable(self) -> None:
        """For before each change: that it is possible, and comes behind what lingers."""
        if self._refusal is not None:
            raise self._refusal()
        if self._linger is not None and self._linger.records:
            self._write_lingering(self._linger)

    def _append_lingering(
        self, key: "Buffer | None", value: "Buffer | None", headers: "Headers | None", timestamp: "Time | None"
    ) -> int:
        """`append` where linger.ms is set: the record has its offset, and waits for others to be written with."""
        now_ms = self._now_ms()
        if timestamp is not None and not isinstance(timestamp, int):
            timestamp = to_timestamp_ms(timestamp, now_ms=now_ms)
        linger = self._linger
        assert linger is not None
        try:
            with self._lock:
                if self._refusal is not None:
                    raise self._refusal()
                if not linger.add(key, value, headers, timestamp, now_ms):
                    self._write_lingering(linger)
                    linger.add(key, value, headers, timestamp, now_ms)
                waiting = len(linger.records)
                offset = self._next_offset + waiting - 1
                if linger.is_full:
                    self._write_lingering(linger)
                elif waiting == 1 and self._housekeeping is not None:
                    self._housekeeping.linger()
        except TypeError as error:
            raise InvalidArgumentError(str(error), hint="keys and values are bytes-like or None") from error
        return offset

    def _write_lingering(self, linger: Linger) -> None:
        """What fails here is lost, and its offsets were given out: the log does not go on."""
        now_ms = self._now_ms()
        first = self._next_offset
        try:
            made = linger.take(now_ms, first)
            made.place(first, self.leader_epoch)
            self._write(made, first, made.last_offset, made.max_timestamp, now_ms)
        except BaseException as error:
            self._fail(error)
            raise

    def _append_made(self, batches: Iterable[EncodedBatch], now_ms: int) -> int:
        with self._lock:
            self._check_writable()
            for made in batches:
                first = self._next_offset
                made.place(first, self.leader_epoch)
                self._write(made, first, first + made.count - 1, made.max_timestamp, now_ms)
            last = self._next_offset - 1
            number = self._number
        self._acknowledge(number)
        return last

    def _encode_timed(
        self,
        offset: int,
        now_ms: int,
        key: "Buffer | None",
        value: "Buffer | None",
        headers: "Headers | None",
        timestamp: "Time | None",
    ) -> tuple[bytes | EncodedBatch, int]:
        """One record as `append` gets it, and its largest timestamp."""
        if timestamp is not None and not isinstance(timestamp, int):
            timestamp = to_timestamp_ms(timestamp, now_ms=now_ms)
        made = self._encoder.one(offset, now_ms, key, value, headers, timestamp)
        if isinstance(made, EncodedBatch):
            made.place(offset, self.leader_epoch)
            return made, made.max_timestamp
        return made, now_ms if timestamp is None or self._encoder.uses_log_append_time else timestamp

    def _append_assigned(self, assigned: Assigned, origin: Origin, now_ms: int, epoch: int) -> AppendResult:
        update = None
        if first_with_producer(assigned.table) >= 0:
            found = self._producers.prepare(assigned.table, origin)
            if isinstance(found, Duplicate):
                return AppendResult(found.first_offset, found.last_offset, is_duplicate=True)
            update = found
        if epoch > self.leader_epoch:
            self._set_epoch(epoch)
        self._write_assigned(assigned, origin, now_ms, update)
        return AppendResult(assigned.first_offset, assigned.last_offset)

    def _write(self, made: bytes | EncodedBatch, first: int, last: int, max_timestamp: int, now_ms: int) -> None:
        """One batch of ours, at `first`, the next offset, into the active segment."""
        active = self._active
        if active.should_roll(len(made), max_timestamp, last, now_ms):
            active = self._roll_for(len(made), first)
        if self._is_epoch_due:
            self._begin(self.leader_epoch, first)
        try:
            active.append_batch(made, first, last, max_timestamp)
        except BaseException as error:
            self._fail(error)
            raise
        self._next_offset = last + 1
        self._end = end = active.end
        if self._publishes_synced:
            self._number += 1
        else:
            self._published.at = end

    def _write_assigned(self, assigned: Assigned, origin: Origin, now_ms: int, update: Update | None) -> None:
        """Batches that were checked, and what their producers will remember of them."""
        first, last, table = assigned.first_offset, assigned.last_offset, assigned.table
        size = len(assigned.raw)
        active = self._active
        if active.should_roll(size, assigned.max_timestamp, last, now_ms):
            follows = origin is Origin.REPLICATION and table[0].magic < 2
            active = self._roll_for(size, new_base_offset(None if follows else first, last, self._next_offset))
        if origin is Origin.REPLICATION:
            for batch in table:
                self._begin(batch.leader_epoch, batch.base_offset)
        elif self._is_epoch_due:
            self._begin(self.leader_epoch, first)
        try:
            active.append(assigned.raw, table)
            for aborted in self._producers.apply(update) if update is not None else ():
                active.add_aborted(aborted)
        except BaseException as error:
            self._fail(error)
            raise
        self._next_offset = last + 1
        # With the lines of aborted transactions: readers of committed data look for them when they see the marker.
        self._end = end = active.end
        if self._publishes_synced:
            self._number += 1
        else:
            self._published.at = end
            self._producers.on_high_watermark_updated(end.next_offset)

    def _before_change(self) -> None:
        """Whoever opens the directory next must not take it for clean. Cheap from the second call on."""
        self._hold.before_first_write()
        self._is_changed = True

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
        self.leader_epoch = self._encoder.leader_epoch = epoch
        self._is_epoch_due = True

    # --- rolling ---------------------------------------------------------------------------------

    def _roll_for(self, size_bytes: int, base_offset: int) -> SegmentAppender:
        if size_bytes > self.config.segment_bytes:
            raise RecordTooLargeError(
                f"a batch of {size_bytes} bytes is larger than a segment: segment.bytes = {self.config.segment_bytes}",
                file=self.path,
            )
        return self._roll(base_offset)

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
                extent = self._current()
                self._use(new, extent.segments, extent.log_start_offset)
                self._put_recovery_point(base_offset)
        except BaseException as error:
            self._fail(error)
            raise
        return self._active

    def _seal_active(self) -> None:
        """All of the active segment is on the disk, its indexes closed, and readers see it. Alone with the files."""
        self._active.seal()
        self._published.at = self._end = end = self._active.end
        self._durable_offset = end.next_offset
        self._producers.on_high_watermark_updated(end.next_offset)
        self._commit.cover(self._number)

    def _use(self, active: SegmentAppender, before: Iterable[Segment], log_start_offset: int) -> None:
        """Append to `active` from now on; readers find it behind the segments `before`."""
        self._active = active
        self._end = active.end
        self._published = PublishedEnd(active.end)
        growing = Segment(
            active.path, decompress=self.decompress, published=self._published, owned=True,
            reserve_bytes=self.config.segment_bytes,
        )
        self._extent = Extent((*before, growing), log_start_offset)

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
        end = self._end
        try:
            self._active.sync()
        except BaseException as error:
            self._fail(error)
            raise
        if self._publishes_synced:
            self._published.at = end
            self._producers.on_high_watermark_updated(end.next_offset)
        self._durable_offset = end.next_offset
        return number

    def _fail(self, error: BaseException) -> None:
        """The log is read-only from now on. Raises LogFailedError, but for ^C and the like, which the caller raises."""
        if self._failure is None:
            self._failure = error
            self._refusal = self._read_only
            self._commit.fail(error)
            logger.error("%s is read-only until it is opened again: %s", self.path, error)
        if isinstance(error, Exception) and not isinstance(error, LogFailedError):
            raise LogFailedError.since(error) from error

    def _read_only(self) -> LogFailedError:
        assert self._failure is not None
        return LogFailedError.since(self._failure)


def _is_control(batch: memoryview) -> bool:
    """Whether these are the bytes of a transaction marker; whether they are whole, the check tells."""
    return (
        len(batch) > _ATTRIBUTES_POSITION
        and batch[_MAGIC_POSITION] == 2
        and bool(batch[_ATTRIBUTES_POSITION] & _CONTROL_BIT)
    )
