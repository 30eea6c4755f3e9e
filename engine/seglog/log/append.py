"""How a log is appended to: records, columns or ready batches, and what is asked of them before they are written.

    encode, or check, the batch ── ask the producers ── write (log.tail) ── share a sync (fsync="batch")

What is refused here changes nothing.
"""
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from seglog._kernels.batch_encode import EncodedBatch, encode_one
from seglog._kernels.batch_survey import first_with_producer
from seglog.clock import Clock
from seglog.config import Fsync, LogConfig
from seglog.errors import CorruptRecordError, InvalidArgumentError, RecordTooLargeError
from seglog.format.batch import BatchEncoder
from seglog.format.compression import Codec
from seglog.format.validate import Assigned, assign, check_follower
from seglog.fs.files import FileSystem
from seglog.log.arguments import check_leader_epoch
from seglog.log.batch_split import refusal, split
from seglog.log.linger import Linger
from seglog.log.tail import LogTail
from seglog.log.times import to_timestamp_ms
from seglog.segment.housekeeping import Housekeeping
from seglog.state.producer_state import Duplicate, Origin

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from seglog._kernels.batch_encode import Headers, Record
    from seglog.log.times import Time

# Where the attributes of a v2 batch stand, and the bit of a control batch: docs/formats/record_batch.md.
_MAGIC_POSITION, _ATTRIBUTES_POSITION = 16, 22
_CONTROL_BIT = 0x20


class AppendResult(NamedTuple):
    """Where a ready batch came to stand; for a duplicate, where it stood already."""

    first_offset: int
    last_offset: int
    is_duplicate: bool = False


class LogAppender(LogTail):
    """The appends of a `Log`."""

    __slots__ = ("_batch_bytes_max", "_before_max_ms", "_encoder", "_is_plain", "_linger")      # as in LogTail

    def __init__(
        self, path: Path, config: LogConfig, fs: FileSystem, clock: Clock, fsync: Fsync, leader_epoch: int
    ) -> None:
        super().__init__(path, config, fs, clock, fsync, leader_epoch)
        self._encoder = BatchEncoder(config, leader_epoch)
        self._rules = self._encoder.rules
        self._batch_bytes_max = config.batch_bytes_max
        self._before_max_ms = config.message_timestamp_before_max_ms
        # Whether a record without a timestamp can be encoded with nothing to look up.
        self._is_plain = (
            self._encoder.codec is Codec.NONE and not self._encoder.uses_log_append_time and not config.is_compacted
        )
        self._linger = Linger(config, self._encoder) if config.linger_ms else None
        self._housekeeping: Housekeeping | None = None

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
        if type(headers) is not tuple:
            headers = _listed(headers)
        if self._linger is not None:
            return self._append_lingering(key, value, headers, timestamp)
        now_ms = self._now_ms()
        try:
            with self._lock:
                if self._refusal is not None:
                    raise self._refusal()
                offset = self._next_offset
                # Fast path: nothing to look up, nothing to compress, and a time that nobody refuses.
                if self._is_plain and (
                    timestamp is None
                    or (type(timestamp) is int and 0 <= now_ms - timestamp <= self._before_max_ms)
                ):
                    max_timestamp = now_ms if timestamp is None else timestamp
                    made: bytes | EncodedBatch = encode_one(
                        offset, max_timestamp, key, value, headers, self.leader_epoch
                    )
                    if len(made) > self._batch_bytes_max:
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

    def append_many(self, records: "Iterable[Record]", *, atomic: bool = True) -> int:
        """Append records, each (key, value[, headers[, timestamp]]), as one batch; returns the last one's offset.

        All of them or none: one batch is one write and one checksum. Refused as a whole is a batch larger than
        max.message.bytes, and a compressed one whose records are larger than max.decompressed.message.bytes.
        `atomic=False`: as many batches as these limits ask for, all checked before the first one is written; a crash
        may leave the first ones alone. Raises what `append` raises.
        """
        now_ms = self._now_ms()
        made: Sequence[EncodedBatch]
        try:
            listed = records if isinstance(records, list | tuple) else list(records)
            # Outside of the lock: it may compress.
            if atomic:
                try:
                    made = (self._encoder.many(listed, now_ms),)
                except RecordTooLargeError as error:
                    raise refusal(error, listed, self._encoder, self.config, now_ms) from None
            else:
                made = split(listed, self._encoder, self.config, now_ms)
        except TypeError as error:
            raise InvalidArgumentError(str(error), hint="a record is (key, value[, headers[, timestamp]])") from error
        return self._append_made(made, now_ms)

    def append_columns(
        self,
        columns: object = None,
        *,
        timestamps: object = None,
        keys: object = None,
        values: object = None,
        headers: object = None,
    ) -> int:
        """Append records as columns: `columns` with key, value, timestamp and headers, or each of them by name.

        columns: an Arrow record batch, table or stream, or seglog.Columns. A column: an Arrow array; of keys or values
        also (offsets, data[, validity]) as buffers; of timestamps also a buffer of int64, or one int.

        As many batches as max.message.bytes asks for, all of which were checked before the first one is written.
        Returns the last record's offset. Raises what `append` raises.
        """
        named = {"timestamp": timestamps, "key": keys, "value": values, "headers": headers}
        given = {name: column for name, column in named.items() if column is not None}
        if (columns is None) == (not given):
            raise InvalidArgumentError("give either columns, or timestamps=, keys=, values=, headers=")
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
        if self._refusal is not None:
            raise self._refusal()
        # Checked without the lock, for it may take long; placed anew where somebody else came in between.
        place = self._next_offset, self.leader_epoch if leader_epoch is None else leader_epoch
        assigned, origin = self._checked(view, assign_offsets, *place, now_ms)
        with self._lock:
            self._check_writable()
            epoch = self.leader_epoch if leader_epoch is None else leader_epoch
            if epoch < self.leader_epoch:
                raise InvalidArgumentError(
                    f"leader epoch {epoch} after {self.leader_epoch}", file=self.path, hint="leader epochs only rise"
                )
            if place != (self._next_offset, epoch):
                try:
                    assigned.place(self._next_offset, epoch)
                except InvalidArgumentError:    # its offsets are its own, or lie in compressed bytes
                    assigned, origin = self._checked(view, assign_offsets, self._next_offset, epoch, now_ms)
            result = self._append_assigned(assigned, origin, now_ms, epoch)
            number = self._number
        self._acknowledge(number)
        return result

    def _checked(
        self, view: memoryview, assign_offsets: bool, next_offset: int, epoch: int, now_ms: int
    ) -> tuple[Assigned, Origin]:
        """A ready batch with its offsets, and whose it is."""
        try:
            if not assign_offsets:
                return check_follower(view, next_offset, self._rules), Origin.REPLICATION
            from_coordinator = _is_control(view)
            assigned = assign(
                view, next_offset, self._rules, now_ms=now_ms, leader_epoch=epoch, allow_control=from_coordinator
            )
            return assigned, Origin.COORDINATOR if from_coordinator else Origin.CLIENT
        except CorruptRecordError as error:
            error.hint = "nothing was written: these bytes are no whole batch; seglog.build_batch makes good ones"
            raise

    # --- under the lock --------------------------------------------------------------------------

    def _check_writable(self) -> None:
        """For before each change: that it is possible, and comes behind what lingers."""
        super()._check_writable()
        if self._linger is not None and self._linger.batch:
            self._write_lingering(self._linger)

    def _set_epoch(self, epoch: int) -> None:
        super()._set_epoch(epoch)
        self._encoder.leader_epoch = epoch

    def _append_lingering(
        self, key: "Buffer | None", value: "Buffer | None", headers: "Headers | None", timestamp: "Time | None"
    ) -> int:
        """`append` where linger.ms is set: the record has its offset, and waits for others to be written with."""
        now_ms = self._now_ms()
        if timestamp is not None and type(timestamp) is not int:
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
                batch = linger.batch
                waiting = len(batch)
                offset = self._next_offset + waiting - 1
                if batch.size_bytes >= linger.full_bytes:
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
        if self.fsync != "never":
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
        if timestamp is not None and type(timestamp) is not int:
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


def _listed(headers: "Headers | None") -> "Headers | None":
    """Headers that can be read twice. Before the lock is taken: what gives them may be anybody's code."""
    return tuple(headers) if isinstance(headers, Iterable) and not isinstance(headers, list | str) else headers


def _is_control(batch: memoryview) -> bool:
    """Whether these are the bytes of a transaction marker; whether they are whole, the check tells."""
    return (
        len(batch) > _ATTRIBUTES_POSITION
        and batch[_MAGIC_POSITION] == 2
        and bool(batch[_ATTRIBUTES_POSITION] & _CONTROL_BIT)
    )
