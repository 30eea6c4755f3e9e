"""What other processes ask of a queue that this one has open: jobs by their ids and attempts, not by objects.

    server, or the owner itself ── answer(holder, header, values) ── Desk ── OwnedQueue

A holder is a process that is attached, by an id of its own. Its leases end when it goes (`drop`).
"""
import dataclasses
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from seglog._kernels.crc import crc32c
from seglog._kernels.quick_lock import QuickLock
from seglog.attach.channel import FRAME_BYTES, FRAME_JOBS, Header
from seglog.attach.errors_sent import error_sent
from seglog.errors import (
    InvalidArgumentError,
    LeaseLostError,
    ProtocolError,
    SeglogError,
)
from seglog.ledger.position import EARLIEST, Position
from seglog.ledger.stored_entry import StoredEntry
from seglog.queue.job import FINISHED_HINT, PUT_BY, DeadJob, Job
from seglog.queue.lane import UNREADABLE, Lane
from seglog.queue.queue import OwnedQueue

Answer = tuple[Header, list[bytes]]

# How long a wait for a job sleeps before it looks whether its holder is still there.
_SLICE_S = 5.0
# How long a process that takes a queue over keeps the jobs of the others for them.
HOLD_S = 1.0
_ID = re.compile(r"(?:(-?[0-9]{1,3})/)?([0-9]{1,18}):([0-9]{1,18})(?::([0-9]{1,9}))?")
_SINCE_1970 = datetime(1970, 1, 1, tzinfo=UTC)


class Desk:
    """Thread-safe. `answer` is the one way in; what it gets is not trusted."""

    def __init__(self, queue: OwnedQueue, owner: str, options: Mapping[str, object]) -> None:
        """`owner`: the id of this process, as a holder. `options`: the queue's, to be compared (options_sent)."""
        self.queue = queue
        self.owner = owner
        self.options = options
        self._lock = QuickLock()
        # The jobs that holders have, by id, and whose they are.
        self._out: dict[str, tuple[str, Job]] = {}
        self._present: set[str] = set()
        self._sweep_at = 1000
        self._calls: dict[str, Callable[[str, Header, list[bytes]], Answer]] = {
            "put": self._put, "get": self._get, "ack": self._ack, "nack": self._nack, "extend": self._extend,
            "release": self._release, "requeue": self._requeue, "stats": self._stats, "peek": self._peek,
            "dead": self._dead, "purge": self._purge, "pause": self._pause, "flush": self._flush,
            "has_key": self._has_key,
        }

    def answer(self, holder: str, header: Header, values: list[bytes]) -> Answer:
        """Do what a frame asks for. Raises ProtocolError for one that no seglog sends, and what the queue raises."""
        name = header.get("call")
        call = self._calls.get(name) if isinstance(name, str) else None
        if call is None:
            raise ProtocolError(f"an unknown call: {repr(name)[:80]}")
        return call(holder, header, values)

    # --- holders -----------------------------------------------------------------------------

    def greeting(self) -> Header:
        """As AnyDesk; `positions`: the last entry of each priority."""
        positions = {
            str(priority): list(lane.managed_ledger.last_position or EARLIEST)
            for priority, lane in self.queue._lanes.copy().items()
        }
        return {"positions": positions, "owner": self.owner, "options": self.options}

    def hold(self, gone: str | None) -> None:
        """After the owner died: keep jobs that others may have for them, who come back soon (`adopt`). `gone`: the
        owner, if that is known: its jobs are delivered again at once."""
        queue = self.queue
        not_held = (0, None if gone is None else number_of(gone))
        with queue._lock:
            ends_ns = queue._clock.monotonic_ns() + int(HOLD_S * 1e9)
            for lane in queue._in_order:
                leases = lane.leases
                for message, attempt in leases.attempts.copy().items():
                    if leases.holders.get(message, 0) not in not_held and not leases.is_held(message):
                        leases.deliver(message, attempt, ends_ns)

    def adopt(self, holder: str, held: object) -> None:
        """A holder is here. If it was before, it has these jobs: [id, attempt, seconds that its lease lasts]."""
        if not isinstance(held, list) or not all(isinstance(one, list) and len(one) == 3 for one in held):
            raise ProtocolError("what a process holds must be a list of ids, attempts and seconds")
        with self._lock:
            self._present.add(holder)
        for id_, attempt, left_s in held:
            with suppress(InvalidArgumentError, LeaseLostError):
                job = self._job(id_, attempt)
                if job is not None:
                    job.extend(left_s)
                    self._note(holder, [job])

    def drop(self, holder: str) -> None:
        """A holder is gone: its jobs are delivered again at once, and its waits for others end."""
        with self._lock:
            self._present.discard(holder)
            jobs = [job for whose, job in self._out.values() if whose == holder]
            self._out = {id_: one for id_, one in self._out.items() if one[0] != holder}
        self.end_leases(jobs)
        self.queue._wake()

    @staticmethod
    def end_leases(jobs: Sequence[Job]) -> None:
        """Let jobs be delivered again that their holder may not even have got."""
        for job in jobs:
            with suppress(SeglogError):
                job.extend(0)

    def _note(self, holder: str, jobs: Sequence[Job]) -> bool:
        """False: the holder is gone."""
        with self._lock:
            if holder not in self._present:
                return False
            for job in jobs:
                self._out[job.id] = holder, job
            if len(self._out) > self._sweep_at:
                self._out = {
                    id_: one for id_, one in self._out.items() if self.queue._lane_of(one[1])._has_lease(one[1])
                }
                self._sweep_at = 2 * len(self._out) + 1000
            return True

    def _forget_jobs(self, ids: Sequence[str]) -> None:
        with self._lock:
            for id_ in ids:
                self._out.pop(id_, None)

    # --- jobs --------------------------------------------------------------------------------

    def _job(self, id_: object, attempt: object) -> Job | None:
        """The job, as of an attempt; None if it is acknowledged. Raises InvalidArgumentError."""
        lane, at = self._place(id_)
        if type(attempt) is not int or not 0 <= attempt < 2**31:
            raise InvalidArgumentError(f"an attempt must be an int, not {repr(attempt)[:80]}")
        found = self._out.get(str(id_))
        if found is not None and found[1].attempt == attempt:
            return found[1]
        with self.queue._lock:
            lane.check()
            if lane._is_acknowledged(at):
                return None
            try:
                entry = lane._dispatcher._entry_at(Position(*at[:2]))
            except UNREADABLE:
                entry = None
            for job in lane._jobs_of(entry, with_held=True) if entry is not None else ():
                if job._at == at:
                    job.attempt = attempt
                    return job
            # It cannot be read: it may still be acknowledged, or be dead.
            return Job(lane, at, attempt, None, None) if at in lane.leases.attempts or at in lane.leases.dead else None

    def _place(self, id_: object) -> tuple[Lane, tuple[int, int, int]]:
        match = _ID.fullmatch(id_) if isinstance(id_, str) else None
        lane = None if match is None else self.queue._lanes.get(int(match[1] or 0))
        if match is None or lane is None:
            raise InvalidArgumentError(f"not a job of this queue: {repr(id_)[:80]}")
        return lane, (int(match[2]), int(match[3]), -1 if match[4] is None else int(match[4]))

    def _leased(self, header: Header) -> Job:
        job = self._job(header.get("id"), header.get("attempt"))
        if job is None:
            raise LeaseLostError(
                f"job {header['id']} is not leased to attempt {header['attempt']}: it is acknowledged",
                hint=FINISHED_HINT,
            )
        return job

    def _listed(self, header: Header) -> list[Job]:
        jobs = header.get("jobs")
        if not isinstance(jobs, list) or not all(isinstance(one, list) and len(one) == 2 for one in jobs):
            raise ProtocolError("jobs must be a list of ids and attempts")
        return [job for id_, attempt in jobs if (job := self._job(id_, attempt)) is not None]

    # --- calls -------------------------------------------------------------------------------

    def _put(self, holder: str, header: Header, values: list[bytes]) -> Answer:
        keys, properties, priority = header.get("keys"), header.get("properties"), header.get("priority")
        token, unique_s = header.get("token"), header.get("unique_for")
        if not isinstance(keys, list) or len(keys) != len(values) or not values:
            raise ProtocolError("a put must have a key, or null, for each value")
        if not (properties is None or isinstance(properties, dict)) or not isinstance(token, str):
            raise ProtocolError("a put must have properties and a token")
        if len(token) > 100 or not token.isascii() or type(priority) is not int:
            raise ProtocolError("a put must have a short token in ASCII, and a priority")
        found = self._put_before(token, priority, header.get("since")) if header.get("is_again") else []
        at_ms = header.get("at_ms")
        options: dict[str, Any] = {
            "delay": header.get("delay"), "priority": priority, "timeout": header.get("timeout"),
            "properties": properties if unique_s is not None else {**(properties or {}), PUT_BY: token},
            "at": None if at_ms is None else _time(at_ms), "unique_for": unique_s,
        }
        jobs = list(zip(map(_key, keys), values, strict=True))[len(found) :]
        if header.get("is_many"):
            ids = [*found, *(self.queue.put_many(jobs, **options) if jobs else [])]
        elif jobs:
            ids = [self.queue.put(jobs[0][1], key=jobs[0][0], **options)]
        else:
            ids = found
        return {"ids": ids}, []

    def _put_before(self, token: str, priority: int, since: object) -> list[str]:
        """The ids of the jobs that a put has put whose answer never came: after an entry that it knew of."""
        lane = self.queue._lanes.get(priority)
        if lane is None:
            return []
        after = EARLIEST
        if isinstance(since, list) and len(since) == 2 and all(type(n) is int and -1 <= n < 2**62 for n in since):
            after = Position(*since)
        found: list[str] = []
        for entry in _entries_after(lane, after):
            with suppress(*UNREADABLE):
                if token.encode() not in bytes(entry.data):
                    continue
                jobs = lane._parsed_all(entry)
                if jobs and jobs[0]._all_properties().get(PUT_BY) == token:
                    found += [job.id for job in jobs]
        return found

    def _get(self, holder: str, header: Header, values: list[bytes]) -> Answer:
        count, timeout_s, lease = header.get("count"), header.get("timeout"), header.get("lease")
        if type(count) is not int or count < 1:
            raise ProtocolError("a number of jobs must be 1 or more")
        if timeout_s is not None and not isinstance(timeout_s, int | float):
            raise ProtocolError("a timeout must be a number of seconds")
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = _SLICE_S if deadline is None else min(deadline - time.monotonic(), _SLICE_S)
            jobs: list[Job] = []
            self.queue._take_for(number_of(holder), min(count, FRAME_JOBS), max(left_s, 0), lease, jobs)
            if holder not in self._present:
                self.queue.release(jobs)
                return {"jobs": []}, []
            if jobs or (deadline is not None and time.monotonic() >= deadline):
                break
        header, values, left = jobs_sent(jobs)
        self.queue.release(left)
        sent = jobs[: len(values)]
        if not self._note(holder, sent):
            self.queue.release(sent)
            return {"jobs": []}, []
        return header, values

    def release_unsent(self, holder: str, header: Header) -> None:
        """The answer to a `get` could not be sent: nobody has the jobs."""
        ids = [sent["id"] for sent in header.get("jobs", ())]
        with self._lock:
            jobs = [self._out.pop(id_)[1] for id_ in ids if self._out.get(id_, ("",))[0] == holder]
        with suppress(SeglogError):
            self.queue.release(jobs)

    def end_unheard(self, holder: str, ids: Sequence[str]) -> None:
        """A connection ended after these jobs were sent by it: the holder may not have got them."""
        with self._lock:
            jobs = [self._out.pop(id_)[1] for id_ in ids if self._out.get(id_, ("",))[0] == holder]
        self.end_leases(jobs)

    def _ack(self, holder: str, header: Header, values: list[bytes]) -> Answer:
        self.queue.ack(self._listed(header), wait=header.get("wait") is not False)
        self._forget_jobs([id_ for id_, _ in header["jobs"]])
        return {}, []

    def _nack(self, holder: str, header: Header, values: list[bytes]) -> Answer:
        reason = header.get("reason")
        # (A call that is made again may have been done.)
        is_late_allowed = header.get("is_late_allowed") is True or header.get("is_again") is True
        if not isinstance(reason, str):
            raise ProtocolError("a reason must be text")
        try:
            job = self._leased(header)
        except LeaseLostError:
            if is_late_allowed:
                return {}, []
            raise
        outcome = job._lane.refuse(job, header.get("delay"), reason, is_late_allowed=is_late_allowed)
        self._forget_jobs([job.id])
        return {"outcome": outcome}, []

    def _extend(self, holder: str, header: Header, values: list[bytes]) -> Answer:
        self._leased(header).extend(header.get("lease"))
        return {}, []

    def _release(self, holder: str, header: Header, values: list[bytes]) -> Answer:
        # Only what this holder has: the next delivery is the same attempt. A call that is made again because the owner
        # died may have been done, and another process may have the job by now.
        number = number_of(holder)
        jobs = [
            job for job in self._listed(header)
            if self.queue._lane_of(job).leases.holders.get(job._at) == number
        ]
        self.queue.release(jobs)
        self._forget_jobs([job.id for job in jobs])
        return {}, []

    def _requeue(self, holder: str, header: Header, values: list[bytes]) -> Answer:
        ids = header.get("ids")
        if ids is None:
            return {"count": self.queue.dead.requeue()}, []
        if not isinstance(ids, list):
            raise ProtocolError("ids must be a list")
        by_lane: dict[Lane, list[tuple[int, int, int]]] = {}
        for lane, at in map(self._place, ids):
            by_lane.setdefault(lane, []).append(at)
        return {"count": sum(lane.requeue(of_lane) for lane, of_lane in by_lane.items())}, []

    def _stats(self, holder: str, header: Header, values: list[bytes]) -> Answer:
        stats, counters = self.queue._figures()
        return {"stats": dataclasses.asdict(stats), "counters": counters}, []

    def _peek(self, holder: str, header: Header, values: list[bytes]) -> Answer:
        skip, count = _counts(header)
        return jobs_sent(self.queue.peek(skip + count)[skip:])[:2]

    def _dead(self, holder: str, header: Header, values: list[bytes]) -> Answer:
        if header.get("count") is None:
            return {"count": len(self.queue.dead)}, []
        skip, count = _counts(header)
        return jobs_sent(self.queue.dead.peek(skip + count)[skip:])[:2]

    def _purge(self, holder: str, header: Header, values: list[bytes]) -> Answer:
        purge = self.queue.dead.purge if header.get("is_of_dead") is True else self.queue.purge
        return {"count": purge()}, []

    def _pause(self, holder: str, header: Header, values: list[bytes]) -> Answer:
        match header.get("is_paused"):
            case True:
                self.queue.pause()
            case False:
                self.queue.resume()
        return {"is_paused": self.queue.is_paused}, []

    def _has_key(self, holder: str, header: Header, values: list[bytes]) -> Answer:
        return {"has_key": self.queue._has_key(_key(header.get("key")))}, []

    def _flush(self, holder: str, header: Header, values: list[bytes]) -> Answer:
        self.queue.flush()
        return {}, []


def number_of(holder: str) -> int:
    """What the journal calls a process that is attached: never 0."""
    return crc32c(holder.encode("utf-8", "surrogatepass")) + 1


def jobs_sent(jobs: Sequence[Job]) -> tuple[Header, list[bytes], list[Job]]:
    """What is sent of jobs, and those that do not fit into the frame."""
    sent: list[dict[str, Any]] = []
    values: list[bytes] = []
    size_bytes = 0
    for number, job in enumerate(jobs[:FRAME_JOBS]):
        fields, value = _job_sent(job)
        size_bytes += len(value) + len(repr(fields))
        if sent and size_bytes > FRAME_BYTES:
            return {"jobs": sent}, values, list(jobs[number:])
        sent.append(fields)
        values.append(value)
    return {"jobs": sent}, values, list(jobs[FRAME_JOBS:])


def _job_sent(job: Job) -> tuple[dict[str, Any], bytes]:
    fields: dict[str, Any] = {"id": job.id, "attempt": job.attempt}
    if isinstance(job, DeadJob):
        fields |= {"reason": job.reason, "died_ms": job._died_ms}
    try:
        key = job.key
        fields["enqueued_ms"] = (job.enqueued_at - _SINCE_1970) // timedelta(milliseconds=1)
        fields["due_ms"] = (job.due_at - _SINCE_1970) // timedelta(milliseconds=1)
        fields["key"] = key if key is None or isinstance(key, str) else [key.hex()]
        fields["properties"] = job.properties
        return fields, job.value
    except SeglogError as error:
        return {**fields, "error": error_sent(error)}, b""


def _counts(header: Header) -> tuple[int, int]:
    skip, count = header.get("skip"), header.get("count")
    if type(skip) is not int or type(count) is not int or not 0 <= skip < 2**62 or not 1 <= count < 2**62:
        raise ProtocolError("a count must be an int of 1 or more")
    return skip, min(count, FRAME_JOBS, sys.maxsize - skip)


def _key(sent: object) -> str | bytes | None:
    """Text, or bytes as a list of their hexadecimal digits."""
    if sent is None or isinstance(sent, str):
        return sent
    try:
        if isinstance(sent, list) and len(sent) == 1:
            return bytes.fromhex(sent[0])
        raise ValueError
    except (TypeError, ValueError):
        raise ProtocolError("a key must be text, or bytes in hexadecimal digits") from None


def _time(at_ms: object) -> datetime:
    try:
        if not isinstance(at_ms, int | float):
            raise ValueError
        return _SINCE_1970 + timedelta(milliseconds=at_ms)
    except (ValueError, OverflowError):
        raise ProtocolError("a time must be ms since 1970") from None


def _entries_after(lane: Lane, after: Position) -> Iterator[StoredEntry]:
    """The entries that can be read, acknowledged ones too."""
    ledger = lane.managed_ledger
    while (position := ledger.next_valid(after)) is not None:
        try:
            entries = ledger.read_entries(position, 64)
        except UNREADABLE:
            try:
                entries = [ledger.read(position)]
            except UNREADABLE:
                after = position
                continue
        yield from entries
        after = entries[-1].position
