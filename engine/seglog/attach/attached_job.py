"""Jobs and dead jobs of a queue that another process has open."""
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from seglog.attach.channel import Header
from seglog.attach.errors_sent import error_received
from seglog.errors import ProtocolError
from seglog.queue.job import DeadJob, Job, JobHome, time_of
from seglog.topic.leases import Death, Message


class _Sent(Job):
    """What the owner sent of a job, in `_sent`: see desk.jobs_sent."""

    __slots__ = ()

    if TYPE_CHECKING:
        _sent: dict[str, Any]

    @property
    def id(self) -> str:
        return cast(str, self._sent["id"])

    @property
    def value(self) -> bytes:
        self._check()
        return cast(bytes, self._sent["value"])

    @property
    def key(self) -> str | bytes | None:
        self._check()
        key = self._sent["key"]
        return bytes.fromhex(key[0]) if isinstance(key, list) else key

    @property
    def properties(self) -> dict[str, str]:
        self._check()
        return dict(self._sent["properties"])

    @property
    def enqueued_at(self) -> datetime:
        self._check()
        return time_of(self._sent["enqueued_ms"])

    @property
    def due_at(self) -> datetime:
        self._check()
        return time_of(self._sent["due_ms"])

    def _check(self) -> None:
        if "error" in self._sent:
            raise error_received(self._sent["error"])


class AttachedJob(_Sent):
    """A job that was taken, or looked at, in a process that is attached."""

    __slots__ = ("_ends_s", "_sent")

    def __init__(self, home: JobHome, sent: dict[str, Any], ends_s: float = 0.0) -> None:
        """`ends_s`: when its lease ends, monotonic seconds."""
        super().__init__(home, _NOWHERE, sent["attempt"], None, None)
        self._sent = sent
        self._ends_s = ends_s


class AttachedDeadJob(_Sent, DeadJob):
    """A dead job, in a process that is attached."""

    __slots__ = ("_sent",)

    def __init__(self, home: JobHome, sent: dict[str, Any]) -> None:
        super().__init__(home, _NOWHERE, Death(sent["attempt"], sent["died_ms"], sent["reason"]), None, None)
        self._sent = sent

    def requeue(self) -> bool:
        """As DeadJob.requeue."""
        return bool(cast("Any", self._lane).requeue_ids([self.id]))


_NOWHERE: Message = (0, 0, -1)
_TYPES = {"id": str, "attempt": int}
_READABLE = {"enqueued_ms": int, "due_ms": int, "properties": dict}
_DEAD = {"died_ms": int, "reason": str}


def jobs_received(header: Header, values: list[bytes], *, are_dead: bool = False) -> list[dict[str, Any]]:
    """The fields of the jobs in an answer, with their values. Raises ProtocolError."""
    jobs = header.get("jobs")
    if not isinstance(jobs, list) or len(jobs) != len(values):
        raise ProtocolError("an answer must have a value for each job")
    for sent, value in zip(jobs, values, strict=True):
        types = {**_TYPES, **(_DEAD if are_dead else {})}
        if not isinstance(sent, dict):
            raise ProtocolError("a job in an answer has no fields")
        if "error" in sent:
            error_received(sent["error"])
        else:
            types |= _READABLE
            key = sent.get("key")
            if not (key is None or isinstance(key, str)):
                try:
                    [digits] = key
                    bytes.fromhex(digits)
                except (TypeError, ValueError):
                    raise ProtocolError("the key of a job in an answer is none") from None
        if not all(type(sent.get(name)) is kind for name, kind in types.items()):
            raise ProtocolError("a job in an answer lacks a field")
        sent["value"] = value
    return jobs
