"""`seglog.Queue(path, attach=True)`: the first process that opens a queue so owns it, the others attach to it.

    owner       OwnedQueue ── Desk ── DeskServer ── socket
    attached    Client ── socket

How the owner changes is in attach.shared_handle. The others attach to a new owner, and present the jobs that they have.
"""
import functools
import inspect
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seglog.attach.attached_job import AttachedDeadJob, AttachedJob, jobs_received
from seglog.attach.channel import FRAME_JOBS, SOCKET, VALUES_BYTES_MAX, GoneError, Header
from seglog.attach.client import Client
from seglog.attach.desk import Desk
from seglog.attach.server import DeskServer
from seglog.attach.shared_handle import LOOK_AGAIN_S, Owner, SharedHandle
from seglog.clock import Clock, checked_clock
from seglog.errors import (
    InvalidArgumentError,
    LogClosedError,
    LogLockedError,
    ProtocolError,
    RecordTooLargeError,
    StorageError,
)
from seglog.fs import local_socket
from seglog.fs.refusals import as_path
from seglog.ledger.ledger_metadata import checked_properties
from seglog.ledger.message_batch import HINT_OF_NUMBER, HINT_OF_VALUE
from seglog.logger import Logger
from seglog.queue import queue as plain
from seglog.queue.dead import DeadJobs
from seglog.queue.job import NOT_ITS_JOB_HINT, DeadJob, Job
from seglog.queue.metrics import QueueCounts
from seglog.queue.options import checked_options, duration_ns, time_ms
from seglog.queue.queue import OwnedQueue, PutCall, QueueStats
from seglog.queue.unique import key_bytes

if TYPE_CHECKING:
    from typing_extensions import Buffer

logger = Logger("seglog")

# How long a command waits for somebody to take a queue over whose owner was killed.
_SOON_S = 0.5
# How much longer than the timeout of a call its process waits for the owner, which may be stopped.
_GRACE_S = 2.0


class Queue(OwnedQueue):
    __doc__ = OwnedQueue.__doc__

    if not TYPE_CHECKING:
        # (For types it is `__init__` that has the arguments; `help` follows `wraps` to them.)
        @functools.wraps(OwnedQueue.__init__, assigned=())
        def __new__(cls, *args, attach=False, **options):
            if cls is Queue:
                _check_names(options)
            return super().__new__(SharedQueue if attach and cls is Queue else cls)


class SharedQueue(SharedHandle[OwnedQueue], Queue):
    """A Queue for several processes: made by Queue(path, attach=True), with its arguments and methods."""

    noun = "queue"
    socket_name = SOCKET

    def __init__(
        self, path: str | os.PathLike[str], *, attach: bool = True, is_command: bool = False, **options: Any
    ) -> None:
        """`is_command`: it does not own the queue for long, so its options are not compared with the owner's."""
        SharedHandle.__init__(self)
        self.path = Path(os.path.abspath(as_path(path)))
        if options.get("recover"):
            raise InvalidArgumentError(
                "recover and attach are not for the same opening",
                hint="open it with recover=True and close it, then attach",
            )
        self._opening = options
        self._is_command = is_command
        lease, chance = options.get("lease", 60), options.get("chance", _half)
        checked = checked_options(
            lease, options.get("max_attempts", 10), options.get("retry_delay", 1), options.get("max_retry_delay", 300),
            options.get("retry_jitter", 0.1), options.get("reraise", False), chance,
        )
        self._lease_ns = checked.lease_ns
        self._clock: Clock = checked_clock(options.get("clock"))
        self._home = _Home(self, checked.reraise)
        # Of this process: the jobs that it has and has not finished.
        self._held: weakref.WeakSet[AttachedJob] = weakref.WeakSet()
        # The number of the next put, and the last entry of each priority that is known.
        self._put_number = 0
        self._known: dict[int, list[int]] = {}
        try:
            self._share()
            plain.OPEN.add(self)
        except BaseException:
            self._give_up()
            raise

    def __repr__(self) -> str:
        role = self._role
        what = "closed" if self._is_closed else "attached" if isinstance(role, Client) else "owner"
        return f"<Queue {self.path.name}: {what}>"

    # --- as the owner, and attached ---------------------------------------------------------------

    def _open_owned(self, gone: str | None) -> Owner[OwnedQueue]:
        queue = OwnedQueue(self.path, **self._opening)
        try:
            desk = Desk(queue, self._holder, options_sent(self._opening))
            # (A socket that is left over: its owner was killed.)
            if gone is not None or os.path.lexists(self.path / SOCKET):
                desk.hold(gone)
            desk.adopt(self._holder, self._presented())
            return Owner(queue, desk, DeskServer(self.path, SOCKET, desk))
        except BaseException:
            queue.close()
            raise

    def _compare(self, client: Client) -> None:
        """Note where the queue ends. Warn of options that differ from the owner's: they have no effect, until this
        process is the owner."""
        self._known_at_first = _positions(client.greeting.get("positions"))
        own, of_owner = options_sent(self._opening), client.options
        differing = [
            f"{name} is {own[name]!r} here and {repr(of_owner[name])[:80]} there"
            for name in own if name in of_owner and own[name] != of_owner[name]
        ]
        if differing and not self._is_command:
            logger.warning(
                "%s: another process owns the queue, and its options count: %s. Pass the same ones in all processes: "
                "any of them may own it next", self.path, ", ".join(differing),
            )

    def _presented(self) -> list[list[object]]:
        now_s = self._now_s()
        with self._guard:
            held = list(self._held)
        return [
            [job.id, job.attempt, job._ends_s - now_s]
            for job in held if not job.is_settled and job._ends_s > now_s
        ]

    def _now_s(self) -> float:
        """By the clock that leases are measured with, which stands still in tests."""
        return self._clock.monotonic_ns() / 1e9

    # --- putting -----------------------------------------------------------------------------

    def put(
        self,
        value: "Buffer",
        *,
        key: str | bytes | None = None,
        delay: timedelta | float | None = None,
        at: datetime | str | None = None,
        properties: Mapping[str, str] | None = None,
        priority: int = 0,
        unique_for: timedelta | float | None = None,
        timeout: timedelta | float | None = None,
    ) -> str:
        if (queue := self._owned()) is not None:
            return queue.put(
                value, key=key, delay=delay, at=at, properties=properties, priority=priority, unique_for=unique_for,
                timeout=timeout,
            )
        [id_] = self._put_values(
            [(key, value)], delay, at, properties, priority, unique_for, timeout, is_many=False
        )
        return id_

    def put_many(
        self,
        jobs: "Iterable[Buffer | tuple[str | bytes | None, Buffer]]",
        *,
        delay: timedelta | float | None = None,
        at: datetime | str | None = None,
        properties: Mapping[str, str] | None = None,
        priority: int = 0,
        unique_for: timedelta | float | None = None,
        timeout: timedelta | float | None = None,
    ) -> list[str]:
        if (queue := self._owned()) is not None:
            return queue.put_many(
                jobs, delay=delay, at=at, properties=properties, priority=priority, unique_for=unique_for,
                timeout=timeout,
            )
        parts: list[list[tuple[str | bytes | None, Buffer]]] = []
        size_bytes = 0
        for job in plain._listed("jobs", jobs):
            key, value = job if isinstance(job, tuple) and len(job) == 2 else (None, job)
            size_of_value = plain._size_of(value)
            # As the owner would part them: an entry each.
            if not parts or size_bytes + size_of_value > plain.BATCH_BYTES or len(parts[-1]) == plain.BATCH_JOBS:
                parts.append([])
                size_bytes = 0
            size_bytes += size_of_value
            parts[-1].append((key, value))
            if unique_for is not None:
                key_bytes(key)
        return [
            id_ for part in parts
            for id_ in self._put_values(part, delay, at, properties, priority, unique_for, timeout, is_many=True)
        ]

    def _put_values(
        self, jobs: "Sequence[tuple[str | bytes | None, Buffer]]", delay: timedelta | float | None,
        at: datetime | str | None, properties: Mapping[str, str] | None, priority: int,
        unique_for: timedelta | float | None, timeout: timedelta | float | None, *, is_many: bool,
    ) -> list[str]:
        if at is not None and delay is not None:
            raise InvalidArgumentError("give a job `delay` or `at`, not both")
        if type(priority) is not int or not plain.LOWEST <= priority <= plain.HIGHEST:
            raise InvalidArgumentError(
                f"priority must be an int from {plain.LOWEST} to {plain.HIGHEST}, not {priority!r}"
            )
        values = [_bytes_of(value) for _, value in jobs]
        timeout_s = None if timeout is None else duration_ns("timeout", timeout) / 1e9
        with self._guard:
            self._put_number += 1
            number = self._put_number
        header: Header = {
            "call": "put", "keys": [_key_sent(key) for key, _ in jobs], "priority": priority, "is_many": is_many,
            "properties": None if properties is None else checked_properties(properties),
            "delay": None if delay is None else duration_ns("delay", delay) / 1e9,
            "at_ms": None if at is None else time_ms("at", at, self._clock.now_ms()),
            "unique_for": None if unique_for is None else duration_ns("unique_for", unique_for) / 1e9,
            "timeout": timeout_s, "token": f"{self._holder}:{number}",
            "since": self._known.get(priority) or self._known_by_client(priority),
        }
        deadline = None if timeout_s is None else time.monotonic() + timeout_s + _GRACE_S
        try:
            answer, _ = self._ask(header, values, deadline)
        except TimeoutError:
            raise StorageError(
                "the process that has the queue does not answer: whether the job is in the queue is not known",
                file=self.path, hint="see whether that process is stopped or busy; `seglog queue serve` is neither",
            ) from None
        ids = answer.get("ids")
        if not isinstance(ids, list) or len(ids) != len(values) or not all(isinstance(id_, str) for id_ in ids):
            raise ProtocolError("the answer to a put must have an id for each value")
        self._know(priority, ids[-1])
        return ids

    def _known_by_client(self, priority: int) -> list[int] | None:
        return self._known_at_first.get(priority)

    def _know(self, priority: int, id_: str) -> None:
        ledger_id, entry_id, *_ = map(int, id_.rpartition("/")[2].split(":"))
        self._known[priority] = max(self._known.get(priority, [-1, -1]), [ledger_id, entry_id])

    def _has_key(self, key: str | bytes | None) -> bool:
        key_bytes(key)
        return self._ask({"call": "has_key", "key": _key_sent(key)})[0].get("has_key") is True

    def _put_all(self, calls: "Sequence[PutCall]") -> "list[str | BaseException]":
        if (queue := self._owned()) is not None:
            return queue._put_all(calls)
        answers: list[str | BaseException] = []
        for call in calls:
            try:
                answers.append(self.put(
                    call.value, key=call.key, delay=call.delay, at=call.at, properties=call.properties,
                    priority=call.priority,
                ))
            except Exception as error:      # as OwnedQueue._put_all
                answers.append(error)
        return answers

    # --- taking ------------------------------------------------------------------------------

    def _take(
        self, count: int, timeout: timedelta | float | None, lease: timedelta | float | None, taken: list[Job]
    ) -> None:
        ends = None if timeout is None else time.monotonic() + duration_ns("timeout", timeout) / 1e9
        lease_s = (self._lease_ns if lease is None else duration_ns("lease", lease)) / 1e9

        def header() -> Header:
            left_s = None if ends is None else max(ends - time.monotonic(), 0)
            return {"call": "get", "count": count, "timeout": left_s, "lease": lease_s}

        def heard(answer: Header, values: list[bytes]) -> None:
            ends_s = self._now_s() + lease_s
            jobs = [AttachedJob(self._home, sent, ends_s) for sent in jobs_received(answer, values)]
            taken.extend(jobs)
            with self._guard:
                self._held.update(jobs)

        while True:
            role = self._role
            if isinstance(role, Owner) and not self._is_closed:
                queue: OwnedQueue = role.opened
                queue._take(count, None if ends is None else max(ends - time.monotonic(), 0), lease, taken)
                return
            try:
                has_asked = self._ask_for_jobs(header, None if ends is None else ends + _GRACE_S, heard)
            except TimeoutError:
                return
            if taken or (has_asked and ends is not None):
                return

    def _take_wanted(self, wanted: Callable[[], int]) -> list[Job]:
        role = self._role
        if isinstance(role, Owner) and not self._is_closed:
            queue: OwnedQueue = role.opened
            return queue._take_wanted(wanted)
        taken: list[Job] = []
        self._take(max(wanted(), 1), None, None, taken)
        return taken

    def _wake_takers(self) -> bool:
        role = self._role
        return isinstance(role, Owner) and role.opened._wake_takers()

    def _ask_for_jobs(
        self, header: Callable[[], Header], deadline: float | None, heard: Callable[[Header, list[bytes]], None]
    ) -> bool:
        """Ask the owner; False if that was in vain: it went, or this process is the owner now."""
        role = self._role_now(deadline)
        if isinstance(role, Owner):
            return False
        try:
            role.ask(header(), [], deadline, heard)
            return True
        except GoneError:
            self._role_after(role, deadline)
            return False

    # --- finishing ---------------------------------------------------------------------------

    def ack(self, jobs: Iterable[Job], *, wait: bool = True) -> None:
        listed = plain._listed("jobs", jobs)
        attached = [job for job in listed if self._is_attached(job)]
        own = [job for job in listed if not self._is_attached(job)]
        if own:
            self._plain_for(own[0]).ack(own, wait=wait)
        if attached:
            self._home.acknowledge(attached, wait=wait)
            for job in attached:
                job.is_settled = True

    def release(self, jobs: Iterable[Job]) -> None:
        listed = plain._listed("jobs", jobs)
        attached = [job for job in listed if self._is_attached(job)]
        own = [job for job in listed if not self._is_attached(job)]
        if own:
            self._plain_for(own[0]).release(own)
        if left := [job for job in attached if not job.is_settled]:     # as OwnedQueue.release
            self._home.release_all(left)
            for job in left:
                job.is_settled = True

    def _is_attached(self, job: object) -> bool:
        return isinstance(job, Job) and job._lane is self._home

    def _plain_for(self, job: object) -> OwnedQueue:
        queue = self._owned()
        if queue is None:
            raise InvalidArgumentError(f"not a job of this queue: {repr(job)[:80]}", hint=NOT_ITS_JOB_HINT)
        return queue

    def pause(self) -> None:
        self._ask({"call": "pause", "is_paused": True})

    def resume(self) -> None:
        self._ask({"call": "pause", "is_paused": False})

    @property
    def is_paused(self) -> bool:
        return self._ask({"call": "pause"})[0].get("is_paused") is True

    def flush(self) -> None:
        self._ask({"call": "flush"})

    # --- looking -----------------------------------------------------------------------------

    @property
    def dead(self) -> DeadJobs:
        return _SharedDead(self)

    def peek(self, count: int = 1) -> list[Job]:
        if (queue := self._owned()) is not None:
            return queue.peek(count)
        if type(count) is not int or count < 1:
            raise InvalidArgumentError(f"count must be an int of 1 or more, not {count!r}")
        return [AttachedJob(self._home, sent) for sent in self._looked_at("peek", count)]

    def _looked_at(self, call: str, count: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while len(found) < count:
            answer, values = self._ask({"call": call, "skip": len(found), "count": min(count - len(found), FRAME_JOBS)})
            more = jobs_received(answer, values, are_dead=call == "dead")
            if not more:
                break
            found += more
        return found

    def stats(self) -> QueueStats:
        if (queue := self._owned()) is not None:
            return queue.stats()
        return _stats_of(self._ask({"call": "stats"})[0])

    def _figures(self) -> tuple[QueueStats, Mapping[str, int]]:
        """Those of the owner, which may be stopped: raises TimeoutError then."""
        answer = self._ask({"call": "stats"}, None, time.monotonic() + _GRACE_S)[0]
        counters = answer.get("counters", {})
        if not isinstance(counters, dict):
            raise ProtocolError("the answer with the numbers of jobs lacks some")
        known = vars(QueueCounts())
        return _stats_of(answer), {name: counters[name] for name in known if type(counters.get(name)) is int}

    def _is_counted(self) -> bool:
        # (What this process owns is counted as a queue of its own.)
        return isinstance(self._role, Client) and not self._is_closed

    def purge(self) -> int:
        return _count(self._ask({"call": "purge"})[0])

    # --- the end -----------------------------------------------------------------------------


def open_beside(path: Path, **options: Any) -> OwnedQueue:
    """For a command: attach to the program that shares the queue, with the arguments of Queue; open it for this process
    alone if no program has it. Raises what Queue raises."""
    socket_path = path / SOCKET
    ends = time.monotonic() + _SOON_S
    while os.path.lexists(socket_path):
        try:
            local_socket.connect(path, SOCKET, _GRACE_S).close()
        except OSError:
            # Its owner was killed: others that are attached take over within this time.
            if time.monotonic() >= ends:
                break
            time.sleep(LOOK_AGAIN_S)
        else:
            return SharedQueue(path, is_command=True, **options)
    try:
        alone = OwnedQueue(path, **options)
    except LogLockedError:
        if not os.path.lexists(socket_path):
            raise
        return SharedQueue(path, is_command=True, **options)     # it was opened meanwhile
    local_socket.remove(path, SOCKET)
    return alone


class _Home:
    """What jobs that another process sent ask for: they name themselves, whoever the owner is by now."""

    noun = "job"

    def __init__(self, queue: SharedQueue, reraises: bool) -> None:
        self._queue = weakref.ref(queue)
        self.reraises = reraises

    def _ask(self, header: Header) -> Header:
        queue = self._queue()
        if queue is None:
            raise LogClosedError("the queue was closed")
        return queue._ask(header)[0]

    def id_of(self, at: object) -> str:
        raise AssertionError(at)

    def finish_quietly(self, job: Job, waits: bool, /) -> bool:
        return False

    def acknowledge(self, jobs: Sequence[Job], *, wait: bool) -> None:
        self._ask({"call": "ack", "jobs": [[job.id, job.attempt] for job in jobs], "wait": bool(wait)})

    def refuse(
        self, job: Job, delay: timedelta | float | None, reason: str, *, is_late_allowed: bool = False
    ) -> str:
        answer = self._ask({
            "call": "nack", "id": job.id, "attempt": job.attempt, "reason": reason, "is_late_allowed": is_late_allowed,
            "delay": None if delay is None else duration_ns("delay", delay) / 1e9,
        })
        outcome = answer.get("outcome", "")
        if not isinstance(outcome, str):
            raise ProtocolError("the answer to a nack must have a text")
        return outcome

    def extend(self, job: Job, lease: timedelta | float | None) -> None:
        queue = self._queue()
        lease_ns = duration_ns("lease", lease) if lease is not None else queue._lease_ns if queue is not None else 0
        self._ask({"call": "extend", "id": job.id, "attempt": job.attempt, "lease": lease_ns / 1e9})
        if isinstance(job, AttachedJob) and queue is not None:
            job._ends_s = queue._now_s() + lease_ns / 1e9

    def requeue(self, messages: object) -> int:
        raise AssertionError(messages)

    def requeue_ids(self, ids: list[str]) -> int:
        return _count(self._ask({"call": "requeue", "ids": ids}))

    def release(self, job: Job) -> None:
        self.release_all([job])

    def release_all(self, jobs: Sequence[Job]) -> None:
        self._ask({"call": "release", "jobs": [[job.id, job.attempt] for job in jobs]})


class _SharedDead(DeadJobs):
    """`queue.dead` of a queue that several processes have open."""

    def __init__(self, queue: SharedQueue) -> None:
        self._queue = queue

    def __len__(self) -> int:
        return _count(self._queue._ask({"call": "dead"})[0])

    def __iter__(self) -> Iterator[DeadJob]:
        return iter(self.peek(max(len(self), 1)))

    def peek(self, count: int = 1) -> list[DeadJob]:
        if type(count) is not int or count < 1:
            raise InvalidArgumentError(f"count must be an int of 1 or more, not {count!r}")
        return [AttachedDeadJob(self._queue._home, sent) for sent in self._queue._looked_at("dead", count)]

    def requeue(self, jobs: Iterable[DeadJob] | None = None) -> int:
        if jobs is None:
            return _count(self._queue._ask({"call": "requeue"})[0])
        wanted = list(jobs) if isinstance(jobs, Iterable) else [jobs]
        if not all(isinstance(job, DeadJob) for job in wanted):
            raise InvalidArgumentError("requeue takes the dead jobs of this queue: queue.dead.peek() returns them")
        return self._queue._home.requeue_ids([job.id for job in wanted])

    def purge(self) -> int:
        return _count(self._queue._ask({"call": "purge", "is_of_dead": True})[0])


def _check_names(options: Mapping[str, object]) -> None:
    """Raise the TypeError of Python for an option that there is not, also where this process will not own the queue."""
    for name in options:
        if name not in _DEFAULTS:
            others = ", ".join(other for other in _DEFAULTS if other not in _UNNAMED)
            raise TypeError(f"Queue() got an unexpected keyword argument {name!r}; it takes {others}")


def options_sent(options: Mapping[str, Any]) -> dict[str, object]:
    """The options that the owner's process applies for all, as they are sent and compared: with their defaults,
    durations in seconds, a queue as its path."""
    found: dict[str, object] = {}
    for name in OF_THE_OWNER:
        value = options.get(name, _DEFAULTS[name].default)
        if isinstance(value, OwnedQueue):
            value = str(value.path)
        elif name in ("retry_delay", "max_retry_delay"):
            value = duration_ns(name, value) / 1e9
        found[name] = value
    return found


_DEFAULTS = inspect.signature(OwnedQueue).parameters
# Of these, what an error does not offer: the path, and what only tests pass.
_UNNAMED = ("path", "fs", "clock", "chance")
OF_THE_OWNER = (
    "max_attempts", "retry_delay", "max_retry_delay", "retry_jitter", "max_backlog", "when_full", "dead_letters",
    "fsync",
)


def _stats_of(answer: Header) -> QueueStats:
    try:
        return QueueStats(**answer["stats"])
    except (KeyError, TypeError):
        raise ProtocolError("the answer with the numbers of jobs lacks some") from None


def _positions(sent: object) -> dict[int, list[int]]:
    if not isinstance(sent, dict):
        raise ProtocolError("not the answer of a seglog process")
    try:
        found = {int(priority): [int(number) for number in at] for priority, at in sent.items()}
    except (TypeError, ValueError):
        raise ProtocolError("not the answer of a seglog process") from None
    return found


def _count(answer: Header) -> int:
    count = answer.get("count")
    if type(count) is not int:
        raise ProtocolError("an answer must have a count")
    return count


def _bytes_of(value: "Buffer") -> bytes:
    try:
        found = bytes(memoryview(value))
        if len(found) > VALUES_BYTES_MAX:
            raise RecordTooLargeError(f"a job of {len(found)} bytes is too large to be sent to the process that has it")
    except TypeError:
        raise InvalidArgumentError(
            f"a job must be bytes, not {repr(value)[:80]}", hint=HINT_OF_VALUE
        ) from None
    return found


def _key_sent(key: str | bytes | None) -> object:
    if key is None:
        return None
    if isinstance(key, str):
        key_bytes(key)
        return key
    if isinstance(key, bytes):
        return [key.hex()]
    hint = HINT_OF_NUMBER if isinstance(key, int) else None
    raise InvalidArgumentError(f"a key must be text or bytes, not {repr(key)[:80]}", hint=hint)


def _half() -> float:
    return 0.5


def _name_methods(*classes: type) -> None:
    """Let Python's errors name the class that users know: "Queue.put() got an unexpected keyword argument"."""
    for each in classes:
        for name, function in vars(each).items():
            if inspect.isfunction(function):
                function.__qualname__ = f"Queue.{name}"


_name_methods(OwnedQueue, SharedQueue)
