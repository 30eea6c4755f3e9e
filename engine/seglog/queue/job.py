"""A job: a message of a queue, as its consumers get it."""
import base64
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from seglog._kernels.entry_frame import KEY_IS_BASE64, MessageFields
from seglog._kernels.quiet_lane import JobFields
from seglog.errors import CorruptRecordError, InvalidArgumentError, SeglogError
from seglog.late_import import late
from seglog.ledger.entry import Entry
from seglog.ledger.message_batch import BatchedMessage
from seglog.logger import Logger
from seglog.queue.unique import UNIQUE_NAME, UNIQUE_UNTIL

if TYPE_CHECKING:
    from seglog.topic.leases import Death, Message

logger = Logger("seglog")

# A property of the entries that an attached process put: the process and its number of the call.
PUT_BY = "seglog.queue.put"
# Properties of an entry that are not its user's.
_OWN = (UNIQUE_UNTIL, UNIQUE_NAME, PUT_BY)
# The longest reason that is kept of a failure.
REASON_CHARACTERS = 1000
# Hints for a job that a call does not expect.
FINISHED_HINT = "a job is finished once: job.is_settled says whether it was here"
NOT_ITS_JOB_HINT = "pass jobs that get() or get_many() of this queue returned, not their ids"
# How many bytes of a value a job shows of itself.
_SHOWN_BYTES_MAX = 40


class JobHome(Protocol):
    """Where a job is, and what it asks for: a Lane. `reraises`: see Queue. `noun`: what it is called in the log."""

    reraises: bool
    noun: str

    def id_of(self, at: "Message") -> str: ...

    def finish_quietly(self, job: "Job", waits: bool, /) -> bool:
        """Acknowledge a job if that is simple: QuietLane.finish_quietly. Otherwise call `acknowledge`."""

    def acknowledge(self, jobs: "Sequence[Job]", *, wait: bool) -> None: ...

    def refuse(
        self, job: "Job", delay: timedelta | float | None, reason: str, *, is_late_allowed: bool = False
    ) -> str: ...

    def extend(self, job: "Job", lease: timedelta | float | None) -> None: ...

    def requeue(self, messages: "Iterable[Message]") -> int: ...

    def release(self, job: "Job") -> None: ...


class Job(JobFields):
    """A job that was taken, or looked at. It is made by a Queue.

    attempt: how often it was delivered, this time included. is_settled: whether it was acknowledged, refused or given
    back (Queue.release).

    In `with job:`, a job whose block ends is acknowledged, and one whose block raises an Exception is refused: it is
    delivered again later, and the exception is logged, not raised (with `reraise` of Queue: raised, not logged). Any
    other exception (KeyboardInterrupt, SystemExit, CancelledError) ends the worker, not the job: it gives the job back
    as Queue.release does, and is raised.
    """

    __slots__ = ()

    # The fields are those of a kernel, which makes most jobs, without `__init__`.
    _lane: JobHome
    _at: "Message"
    _entry: Entry | bytes | None
    _fields: MessageFields | None
    _batched: BatchedMessage | None
    _value: bytes | None
    _retry_ms: int | None

    def __init__(
        self, lane: JobHome, at: "Message", attempt: int, entry: Entry | None, fields: MessageFields | None,
        batched: BatchedMessage | None = None,
    ) -> None:
        self._lane = lane
        self._at = at
        self.attempt = attempt
        self._entry = entry
        self._fields = fields
        self._batched = batched

    def __repr__(self) -> str:
        try:
            what = f"key {self.key!r}, value {_shown(self.value)}"
        except SeglogError as error:        # debuggers call this, too
            what = str(error)
        name = type(self).__name__.removeprefix("Attached")     # users know no other classes
        return f"<{name} {self.id}: attempt {self.attempt}, {what}>"

    # --- what was put ------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The job's id: what `put` returned."""
        return self._lane.id_of(self._at)

    @property
    def value(self) -> bytes:
        """The bytes that were put. Raises CorruptRecordError if they are damaged on the disk."""
        value = self._value
        if value is None:
            if self._batched is not None:
                value = bytes(self._batched.value)
            else:
                entry, fields = self._parts()
                value = bytes(entry.opened_payload(fields=fields))
            self._value = value
        return value

    @property
    def key(self) -> str | bytes | None:
        """The key that was put with it."""
        if self._batched is not None:
            metadata = self._batched.metadata
            if not metadata.HasField("partition_key"):
                return None
            key, is_base64 = metadata.partition_key.encode(), metadata.partition_key_b64_encoded
        else:
            fields = self._parts()[1]
            if fields.key is None:
                return None
            key, is_base64 = fields.key, bool(fields.flags & KEY_IS_BASE64)
        try:
            return base64.b64decode(key, validate=True) if is_base64 else key.decode()
        except ValueError:
            noun = self._lane.noun
            raise CorruptRecordError(f"the key of {noun} {self.id} is not text in UTF-8, or in base64") from None

    @property
    def properties(self) -> dict[str, str]:
        """The properties that were put with it."""
        return {name: text for name, text in self._all_properties().items() if name not in _OWN}

    def _all_properties(self) -> dict[str, str]:
        metadata = self._parts()[0].metadata if self._batched is None else self._batched.metadata
        return {pair.key: pair.value for pair in metadata.properties}

    @property
    def _unique_until_ms(self) -> int | None:
        """Until when no other job gets its key, ms since 1970; None: it was put without `unique_for`."""
        text = self._all_properties().get(UNIQUE_UNTIL)
        return int(text) if text is not None and text.isascii() and text.isdigit() else None

    @property
    def _unique_name(self) -> str | bytes | None:
        """What it has alone: its key, or another name."""
        return self._all_properties().get(UNIQUE_NAME, self.key)

    @property
    def enqueued_at(self) -> datetime:
        """When it was put, UTC."""
        return time_of(self._parts()[1].publish_time)

    @property
    def due_at(self) -> datetime:
        """Before when it is not delivered, UTC: when it was put, or the time that was given with it; of a job that
        failed and that `peek` looked at, when it comes again."""
        if self._retry_ms is not None:
            return time_of(self._retry_ms)
        fields = self._parts()[1]
        return time_of(fields.deliver_at_time or fields.publish_time)

    @property
    def _batch_size(self) -> int:
        """The number of jobs that were put in one entry with it."""
        return self._parts()[1].num_messages if self._batched is not None else 1

    def _parts(self) -> tuple[Entry, MessageFields]:
        entry = self._entry
        if entry is None:
            raise CorruptRecordError(
                f"{self._lane.noun} {self.id} cannot be read", hint="its entry is damaged on the disk"
            )
        if isinstance(entry, bytes):
            entry = self._entry = Entry(entry)
        if self._fields is None:
            self._fields = entry.fields()
        return entry, self._fields

    # --- what happens to it ------------------------------------------------------------------

    def ack(self, *, wait: bool = True) -> None:
        """Acknowledge it: it is finished, and is not delivered again. Durable at return, unless `wait` is False (then
        a crash soon after may undo it). A second call has no effect. It counts as well if the lease has ended, whether
        the job was delivered again or not, and if the job was only looked at.

        Raises LogFailedError, LogClosedError.
        """
        self.is_settled = True
        if not self._lane.finish_quietly(self, wait):
            self._lane.acknowledge([self], wait=wait)

    def nack(self, delay: timedelta | float | None = None, *, reason: str = "") -> None:
        """Refuse it: it is delivered again after `delay` (seconds or a timedelta), by default after the queue's
        back-off; after the queue's `max_attempts` it is dead, with `reason`.

        Raises LeaseLostError if its lease has ended and it was delivered again, or it is finished.
        """
        if not isinstance(reason, str):
            raise InvalidArgumentError(
                f"a reason must be text, not {type(reason).__name__}", hint="of an exception: reason=repr(error)"
            )
        self._lane.refuse(self, delay, reason)
        self.is_settled = True

    def extend(self, lease: timedelta | float | None = None) -> None:
        """Let its lease end so long from now (seconds or a timedelta; by default the queue's `lease`). Raises
        LeaseLostError as `nack` does."""
        self._lane.extend(self, lease)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self.is_settled:
            return isinstance(error, Exception) and self._is_logged(error, ", after it was settled")
        if error is None:
            self.ack()
            return False
        if not isinstance(error, Exception):
            with suppress(SeglogError):     # then the next opening delivers it; what is raised is the interrupt
                self._lane.release(self)
            self.is_settled = True
            return False
        outcome = self._lane.refuse(self, None, _reason_of(error), is_late_allowed=True)
        self.is_settled = True
        return self._is_logged(error, outcome)

    def _is_logged(self, error: Exception, outcome: str) -> bool:
        """Log why it failed; False if that is raised instead."""
        if self._lane.reraises:
            return False
        late("logging")
        logger.error("%s %s failed at attempt %d%s", self._lane.noun, self.id, self.attempt, outcome, exc_info=error)
        return True


class DeadJob(Job):
    """A job that was given up. reason: the last failure. `requeue` puts it back, `ack` removes it."""

    __slots__ = ("_died_ms", "reason")

    def __init__(
        self, lane: JobHome, at: "Message", death: "Death", entry: Entry | None, fields: MessageFields | None,
        batched: BatchedMessage | None = None,
    ) -> None:
        super().__init__(lane, at, death.attempt, entry, fields, batched)
        self._died_ms = death.at_ms
        self.reason = death.reason

    @property
    def died_at(self) -> datetime:
        """When it was given up, UTC."""
        return time_of(self._died_ms)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.reason!r}>"

    def requeue(self) -> bool:
        """Put it back: it is delivered again, as if it never had been. False: it is not dead any more."""
        return self._lane.requeue([self._at]) == 1


def _shown(value: bytes) -> str:
    return repr(value) if len(value) <= _SHOWN_BYTES_MAX else f"{value[:_SHOWN_BYTES_MAX]!r}... ({len(value)} bytes)"


def time_of(timestamp_ms: int) -> datetime:
    """The time, UTC."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return datetime.max.replace(tzinfo=UTC)


def _reason_of(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:REASON_CHARACTERS]
    except Exception:       # its __str__ raised
        return type(error).__name__
