"""A durable queue of jobs in one directory, without a server.

    with seglog.Queue("data/jobs") as jobs:
        jobs.put(b"remind", key=b"u1", delay=timedelta(minutes=10))
        for job in jobs:
            with job:
                send_mail(job.value)

    OwnedQueue ─┬─ Lane        priority 0: the directory itself
                ├─ Lane        another priority: priority/<number>, made at its first use
                └─ DeadJobs    the dead jobs of all lanes
"""
import os
import random
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, get_args

from seglog._kernels.quick_lock import LockCondition, QuickLock
from seglog._kernels.shield import shielded
from seglog.clock import Clock, checked_clock, listen, now_ns, unlisten
from seglog.config import Fsync
from seglog.errors import InvalidArgumentError, LogClosedError, LogLockedError, NotALogError, SeglogError
from seglog.format.directory_kinds import refuse_other_place
from seglog.fs.files import FileSystem, checked_fs
from seglog.fs.handles import OpenHandle
from seglog.fs.lock import HINT_SELF
from seglog.fs.refusals import as_path, refusals
from seglog.late_import import late
from seglog.ledger.config import ManagedLedgerConfig
from seglog.ledger.managed.cursor_file import cursor_path
from seglog.ledger.managed.journal import FILE_NAME as JOURNAL
from seglog.ledger.managed.manifest import FILE_NAME, Manifest
from seglog.ledger.message_batch import HINT_OF_VALUE
from seglog.metrics import PROCESS
from seglog.named_tuple import NamedTuple
from seglog.queue.backlog import Backlog, Reservation, WhenFull
from seglog.queue.dead import DeadJobs
from seglog.queue.dead_letters import DeadLetters
from seglog.queue.job import NOT_ITS_JOB_HINT, Job
from seglog.queue.lane import SUBSCRIPTION, Lane
from seglog.queue.metrics import OpenQueues, QueueCounts
from seglog.queue.options import checked_options, duration_ns, time_ms
from seglog.queue.taker import JobTaker
from seglog.queue.unique import UNIQUE_NAME, key_bytes
from seglog.reading.arguments import check_mapping
from seglog.threads.late_close import close_in_order

if TYPE_CHECKING:
    from typing_extensions import Buffer

Item = TypeVar("Item")

PRIORITIES = "priority"
LOWEST, HIGHEST = -100, 100
# A ledger is sealed at this size, so that the space of finished jobs is soon free. (Pulsar's default is 2 GiB.)
LEDGER_MB = 16
HINT_OF_LOCKED = (
    "several processes of one machine share a queue if each opens it with attach=True, also the one that has it now"
)
HINT_OF_OWN = (
    "this process has the queue open already: share that Queue among its threads, or open it with attach=True each time"
)
# A property of the managed ledger in the queue's directory while it is paused.
PAUSED = "seglog.queue.paused"
# One of the managed ledger in a topic's directory.
TOPIC = "seglog.topic"
# A timeout up to this is right without looking closer.
_PLAIN_S = 10**6
# What `put_many` puts into one entry at most.
BATCH_JOBS, BATCH_BYTES = 1000, 1 << 20


class PutCall(NamedTuple):
    """The arguments of a `put`."""

    value: "Buffer"
    key: str | bytes | None = None
    delay: timedelta | float | None = None
    at: datetime | str | None = None
    properties: Mapping[str, str] | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class QueueStats:
    """How many jobs wait for what.

    ready: to be taken now. delayed: until the time that was given with them. waiting: failed, until their delay is
    over. in_flight: taken, and neither acknowledged nor refused, until their lease ends. dead: given up. oldest_age_s:
    the age in seconds of the oldest job that is neither in flight nor dead, or None if there is none. is_paused: no
    job is handed out until `resume`.
    """

    ready: int
    delayed: int
    waiting: int
    in_flight: int
    dead: int
    oldest_age_s: float | None
    is_paused: bool = False

    @property
    def backlog(self) -> int:
        """The number of jobs that are neither acknowledged nor dead."""
        return self.ready + self.delayed + self.waiting + self.in_flight


class OwnedQueue(JobTaker, OpenHandle):
    """Open the queue in a directory, and create it if it does not exist. Threads share it; one process at a time, or
    several with attach=True.

    `lease` (seconds or a timedelta): a job that is not finished in this time is delivered again. `max_attempts`: a job
    that failed so often is dead; None is no limit. A failed job waits `retry_delay`, twice as long each time up to
    `max_retry_delay`, and a random part of up to `retry_jitter` more. `fsync`: when what was put or acknowledged is on
    the disk: "batch": when the call returns; threads share syncs. "interval": a second later (flush.ms). "never": when
    the system writes it, or it is closed. `max_backlog`: how many jobs it holds that are neither acknowledged nor dead;
    `when_full`: what a put does then: "block": wait until some are finished; "refuse": raise QueueFullError; "drop":
    remove the oldest ones that are not in flight. `dead_letters`: another open queue, which gets the dead jobs;
    otherwise they stay in `dead`. `config`: Pulsar's keys of a managed ledger (docs/config.md). With
    `create=False` it must exist. `recover`: go on with a damaged journal; jobs may be delivered again. `attach`: if
    another process of this user and machine has opened it with `attach`, use it there; otherwise let others use it
    here. `reraise`: what a `with job:` block raises is raised after the job was refused, not logged: for tests and
    scripts. `clock`, `fs`, `chance`: for tests. Its directory is `path`.

    Raises LogLockedError while another process has it, NotALogError, CorruptManifestError, CorruptJournalError,
    CorruptRecordError, UnsupportedVersionError, StorageError.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        lease: timedelta | float = 60,
        max_attempts: int | None = 10,
        retry_delay: timedelta | float = 1,
        max_retry_delay: timedelta | float = 300,
        retry_jitter: float = 0.1,
        max_backlog: int | None = None,
        when_full: WhenFull = "block",
        dead_letters: "OwnedQueue | None" = None,
        fsync: Fsync = "batch",
        config: Mapping[str, object] | None = None,
        create: bool = True,
        recover: bool = False,
        attach: bool = False,
        reraise: bool = False,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        if attach:
            # seglog.Queue makes an object of another class for it (attach.shared_queue).
            raise InvalidArgumentError(
                f"{type(self).__name__} does not take attach=True", hint="call seglog.Queue, not a class below it"
            )
        self.path = Path(os.path.abspath(as_path(path)))
        self._options = checked_options(
            lease, max_attempts, retry_delay, max_retry_delay, retry_jitter, reraise, chance
        )
        if fsync not in get_args(Fsync):
            raise InvalidArgumentError(f'fsync must be "batch", "interval" or "never", not {fsync!r}')
        if when_full not in get_args(WhenFull):
            raise InvalidArgumentError(f'when_full must be "block", "refuse" or "drop", not {when_full!r}')
        if max_backlog is not None and (type(max_backlog) is not int or max_backlog < 1):
            raise InvalidArgumentError(f"max_backlog must be an int of 1 or more, or None, not {max_backlog!r}")
        if not create and not (self.path / FILE_NAME).exists():
            raise NotALogError(
                f"not a queue: it has no {FILE_NAME}", file=self.path, hint="pass a queue's directory, or create=True"
            )
        self._fsync: Fsync = fsync
        check_mapping(config)
        self._config = ManagedLedgerConfig.of({"managedLedgerMaxSizePerLedgerMbytes": LEDGER_MB, **(config or {})})
        self._fs = fs
        self._clock = checked_clock(clock)
        # Guards the lanes and their state; consumers wait on it. Taken before a tracker's lock, and a cursor's.
        self._lock = QuickLock()
        self._changed = LockCondition(self._lock)
        # Puts wait on it whose key another put is about to take.
        self._claimed = LockCondition(self._lock)
        self._lanes: dict[int, Lane] = {}
        self._backlog = _backlog_of(self, max_backlog, when_full)
        self._counts = QueueCounts()
        self._letters = self._letters_to(dead_letters)
        # Replaced as a whole; the most urgent one first.
        self._in_order: tuple[Lane, ...] = ()
        self._is_closed = False
        self._is_paused = False
        # Held while the queue is paused or resumed, which writes a file.
        self._pausing = QuickLock()
        # (The condition alone: it does not keep this alive.)
        self._wake = partial(self._changed.notify)
        self._is_told = False
        try:
            shielded(self._open, recover)
        except BaseException as error:
            self.close()
            if isinstance(error, LogLockedError):
                error.hint = {LogLockedError.hint: HINT_OF_LOCKED, HINT_SELF: HINT_OF_OWN}.get(error.hint, error.hint)
            raise

    def _open(self, recover: bool) -> None:
        self._refuse_others()
        if recover:
            self._mend_journals()
        for priority in [0, *stored_priorities(self.path)]:
            self._open_lane(priority)
        self._is_paused = PAUSED in self._lanes[0].managed_ledger.properties
        self._is_told = listen(self._clock, self._wake)
        OPEN.add(self)

    def __repr__(self) -> str:
        return f"<Queue {self.path.name}{': closed' if self._is_closed else ''}>"

    def _letters_to(self, target: "OwnedQueue | None") -> DeadLetters | None:
        if target is None:
            return None
        if not isinstance(target, OwnedQueue):
            raise InvalidArgumentError(
                f"dead_letters must be an open Queue, not {repr(target)[:80]}",
                hint='with seglog.Queue("data/failed") as failed: pass dead_letters=failed',
            )
        if target.path == self.path:
            raise InvalidArgumentError("dead_letters is this queue", hint="pass one of another directory, or None")
        return DeadLetters(target, self.path)

    def _refuse_others(self) -> None:
        """Raise NotALogError for a directory of something else; also for a topic's managed ledger: what a queue
        acknowledges may be removed."""
        with refusals("list", self.path):
            refuse_other_place(self.path, not_a_queue(self.path))
        is_there = (self.path / FILE_NAME).exists()
        is_queue = cursor_path(self.path, SUBSCRIPTION).exists() or (self.path / JOURNAL).exists()
        if is_there and TOPIC in Manifest.read(self.path).properties:
            raise NotALogError("not a queue, but a topic", file=self.path, hint="open it with seglog.Topic")
        if is_queue or not is_there:
            return
        # (Without a ledger, a crash may have come while the queue was created.)
        if Manifest.read(self.path).next_ledger_id > 0:
            raise NotALogError(
                f"not a queue, but a managed ledger without a subscription `{SUBSCRIPTION}`", file=self.path,
                hint="choose another path; to take its entries as jobs, which removes those that no other subscription "
                     f'needs, first call open_cursor("{SUBSCRIPTION}", "earliest") of its seglog.pulsar.ManagedLedger',
            )

    # --- lanes -------------------------------------------------------------------------------

    def _open_lane(self, priority: int) -> Lane:
        path = self.path / PRIORITIES / str(priority) if priority else self.path
        prefix = f"{priority}/" if priority else ""
        lane = Lane.of_queue(
            path, prefix, self._lock, self._changed, self._options, self._backlog, self._counts, self._letters,
            config=self._config,
            fsync=self._fsync, fs=self._fs, clock=self._clock, create=True,
        )
        self._lanes[priority] = lane
        self._in_order = tuple(lane for _, lane in sorted(self._lanes.items(), reverse=True))
        return lane

    def _lane(self, priority: int) -> Lane:
        lane = self._lanes.get(priority) if type(priority) is int else None
        if lane is not None:
            lane.check()
            return lane
        if type(priority) is not int or not LOWEST <= priority <= HIGHEST:
            raise InvalidArgumentError(f"priority must be an int from {LOWEST} to {HIGHEST}, not {priority!r}")
        with self._lock:
            self._check()
            return self._lanes.get(priority) or shielded(self._open_lane, priority)

    def _mend_journals(self) -> None:
        late("seglog.ledger.managed.journal_repair")
        from seglog.ledger.managed.journal_repair import mend_journal

        fs = checked_fs(self._fs)
        for path in [self.path, *(self.path / PRIORITIES / str(one) for one in stored_priorities(self.path))]:
            if (path / FILE_NAME).exists():
                mend_journal(fs, path)

    def _check(self) -> None:
        if self._is_closed:
            raise LogClosedError("the queue was closed", file=self.path)
        self._in_order[0].check()

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
        """Put a job, and return its id. It is on the disk at return, with fsync="batch".

        It is not delivered before `delay` (seconds or a timedelta) has passed, or before `at` (a datetime with a time
        zone, or text: ISO 8601, UTC without a zone, or "+10m"). `priority`: from -100 to 100; jobs of a higher one are
        delivered first, always. `key` and `properties` are stored with it. `unique_for` (seconds or a timedelta): if a
        job was put with the same `key` and an `unique_for` that is not over, none is put, and the id of that job is
        returned, also when it is finished. Job and key become durable together. `timeout`: how long it waits for room,
        with max_backlog; None is forever.

        Raises InvalidArgumentError, RecordTooLargeError (maxMessageSize, 5 MiB), QueueFullError, LogClosedError,
        LogFailedError.
        """
        if (
            key is None and delay is None and at is None and properties is None and unique_for is None
            and timeout is None and type(priority) is int and self._backlog.limit is None
            and (known := self._lanes.get(priority)) is not None and (id_ := known.put_quietly(value)) is not None
        ):
            return id_
        lane, deliver_at_ms = self._lane(priority), checked_at(at, delay, self._clock)
        if unique_for is not None:
            [id_] = self._put_unique(
                lane, [(key, value)], delay=delay, deliver_at_ms=deliver_at_ms, properties=properties,
                window_ns=duration_ns("unique_for", unique_for), timeout=timeout,
            )
            return id_
        if self._backlog.limit is None and timeout is None:
            return lane.put(value, delay=delay, deliver_at_ms=deliver_at_ms, key=key, properties=properties)
        with self._reserved(1, timeout):
            return lane.put(value, delay=delay, deliver_at_ms=deliver_at_ms, key=key, properties=properties)

    def _put_unique(
        self, lane: Lane, jobs: "Sequence[tuple[str | bytes | None, Buffer]]", *, delay: timedelta | float | None,
        deliver_at_ms: int | None, properties: Mapping[str, str] | None, window_ns: int,
        timeout: timedelta | float | None,
    ) -> list[str]:
        name_of_all = (properties or {}).get(UNIQUE_NAME)
        names = [key_bytes(key if name_of_all is None else name_of_all) for key, _ in jobs]
        with self._claimed:
            while True:
                seen = self._claimed.number
                self._check()
                ids = {name: id_ for name in names if (id_ := self._job_of(name)) is not None}
                new: dict[bytes, tuple[str | bytes | None, Buffer]] = {}
                for name, job in zip(names, jobs, strict=True):
                    if name not in ids:
                        new.setdefault(name, job)       # of several with one key, the first
                if not any(name in other.unique.under_way for other in self._in_order for name in new):
                    break
                self._claimed.wait(seen, None)
            if not new:
                return [ids[name] for name in names]
            lane.unique.under_way.update(new)
        try:
            lane.begin_unique()
            until_ms = -(-(now_ns(self._clock) + window_ns) // 1_000_000)
            with self._reserved(len(new), timeout):
                ids |= lane.put_unique(
                    new, until_ms, delay=delay, deliver_at_ms=deliver_at_ms, properties=properties
                )
            return [ids[name] for name in names]
        except BaseException:
            lane.unique.is_unsure = True
            raise
        finally:
            with self._lock:
                lane.unique.under_way.difference_update(new)
                self._claimed.notify()

    def _has_key(self, key: str | bytes | None) -> bool:
        """Whether a job has the key alone now. For `seglog queue put --dry-run`."""
        with self._lock:
            self._check()
            return self._job_of(key_bytes(key)) is not None

    def _job_of(self, name: bytes) -> str | None:
        """The id of the job that has a key (`key_bytes`) alone now, with the lock."""
        now_ms = self._clock.now_ms()
        for lane in self._in_order:
            if (claim := lane.unique.find(name, now_ms)) is not None:
                return lane.id_of((claim.ledger_id, claim.entry_id, -1))
        return None

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
        """Put jobs, each its value, or (key, value), and return their ids. The other arguments are for all of them.

        They are written and synced together, a thousand or a MiB at a time: after a crash, each such part is there as a
        whole or not at all. Each job is delivered, and fails, by itself. With max_backlog, they are put once there is
        room for all of them. Raises what `put` raises.

        `unique_for`: as for `put`, for the key of each job. Then each is written by itself: after a crash, some jobs of
        a part may be there. Room for one part at a time is enough.
        """
        lane, deliver_at_ms = self._lane(priority), checked_at(at, delay, self._clock)
        parts = parts_of("job", jobs)
        ids: list[str] = []
        if unique_for is not None:
            window_ns = duration_ns("unique_for", unique_for)
            for part in parts:
                for key, _ in part:
                    key_bytes(key)      # before the first one is put
            for part in parts:
                ids += self._put_unique(
                    lane, part, delay=delay, deliver_at_ms=deliver_at_ms, properties=properties, window_ns=window_ns,
                    timeout=timeout,
                )
            return ids
        with self._reserved(sum(map(len, parts)), timeout):
            for part in parts:
                ids += lane.put_many(part, delay=delay, deliver_at_ms=deliver_at_ms, properties=properties)
        return ids

    def _reserved(self, jobs: int, timeout: timedelta | float | None) -> Reservation:
        timeout_s = None if timeout is None else duration_ns("timeout", timeout) / 1e9
        reservation = self._backlog.reserve(jobs, timeout_s)
        assert reservation is not None
        return reservation

    def _put_all(self, calls: "Sequence[PutCall]") -> list[str | BaseException]:
        """Put several jobs, each with its own arguments, by one write and one sync for each priority; return the id of
        each, or the error because of which it was not put."""
        listed = _listed("calls", calls)
        answers: list[str | BaseException] = [LogClosedError("the queue was closed", file=self.path)] * len(listed)
        built: list[tuple[int, Lane, bytes]] = []
        for number, call in enumerate(listed):
            try:
                built.append((number, *self._built(call)))
            except Exception as error:      # also what a caller's own mapping raises: the others are not its callers
                answers[number] = error
        while built:
            # As many as there is room for: the first one waits for it.
            reservations: list[Reservation] = []
            try:
                while len(reservations) < len(built):
                    reservation = self._backlog.reserve(1, None, waits=not reservations)
                    if reservation is None:
                        break
                    reservations.append(reservation)
            except SeglogError as error:
                if not reservations:
                    answers[built.pop(0)[0]] = error
                    continue
            now, built = built[: len(reservations)], built[len(reservations) :]
            self._put_built(now, answers)
            for (number, *_), reservation in zip(now, reservations, strict=True):
                if self._backlog.limit is not None:
                    self._backlog.settle(reservation, is_put=isinstance(answers[number], str))
        return answers

    def _built(self, call: PutCall) -> tuple[Lane, bytes]:
        """Where a call's job goes, and its entry."""
        if not isinstance(call, PutCall):
            raise InvalidArgumentError(f"_put_all takes calls of `put`, each a PutCall, not {repr(call)[:80]}")
        value, key, delay, at, properties, priority = call
        lane, deliver_at_ms = self._lane(priority), checked_at(at, delay, self._clock)
        return lane, lane.delayed.build(
            value, delay=delay, deliver_at_ms=deliver_at_ms, key=key, properties=properties
        )[0]

    @staticmethod
    def _put_built(built: "Sequence[tuple[int, Lane, bytes]]", answers: list[str | BaseException]) -> None:
        by_lane: dict[Lane, list[tuple[int, bytes]]] = {}
        for number, lane, entry in built:
            by_lane.setdefault(lane, []).append((number, entry))
        for lane, entries in by_lane.items():
            ids = lane.put_built([entry for _, entry in entries])
            for (number, _), answer in zip(entries, ids, strict=True):
                answers[number] = answer

    # --- taking ------------------------------------------------------------------------------

    def get(
        self, timeout: timedelta | float | None = None, *, lease: timedelta | float | None = None
    ) -> Job | None:
        """Take the next job that is due, or None if there is none after `timeout`. With `timeout` None, wait forever.

        It is leased to the caller for `lease`, by default that of the queue. Jobs of a higher priority come first, then
        those that were delivered before, then delayed ones in the order in which they became due, then the others in
        the order in which they were put. A paused queue has none. Raises LogClosedError, also if it is
        closed while this waits.
        """
        taken: list[Job] = []
        try:
            self._take(1, timeout, lease, taken)
            return taken[0] if taken else None
        except BaseException:
            self._give_back(taken)
            raise

    def get_many(
        self, max_jobs: int, timeout: timedelta | float | None = None, *, lease: timedelta | float | None = None
    ) -> list[Job]:
        """Take the jobs that are due, at most `max_jobs`; wait up to `timeout` for the first one. Otherwise as get."""
        if type(max_jobs) is not int or max_jobs < 1:
            raise InvalidArgumentError(f"max_jobs must be an int of 1 or more, not {max_jobs!r}")
        taken: list[Job] = []
        try:
            self._take(max_jobs, timeout, lease, taken)
            return taken
        except BaseException:
            self._give_back(taken)
            raise

    def _take(
        self, count: int, timeout: timedelta | float | None, lease: timedelta | float | None, taken: list[Job]
    ) -> None:
        lanes = self._in_order
        if (
            count == 1 and lease is None and len(lanes) == 1 and self._letters is None
            and not self._is_paused and not self._is_closed
            and (timeout is None or ((type(timeout) is int or type(timeout) is float) and 0 <= timeout <= _PLAIN_S))
            and lanes[0].take_quietly(self._options.lease_ns, taken)
        ):
            return
        self._take_for(0, count, timeout, lease, taken)

    def _take_wanted(self, wanted: Callable[[], int]) -> list[Job]:
        """Wait for jobs, and take as many as `wanted` says then; none if it says 0."""
        taken: list[Job] = []
        self._take_for(0, wanted, None, None, taken)
        return taken

    def _wake_takers(self) -> bool:
        """Let those in `_take_wanted` ask again how many are wanted. False: they wait for another process."""
        self._wake()
        return True

    def _is_held_back(self) -> bool:
        return self._is_paused

    def __iter__(self) -> Iterator[Job]:
        """Take jobs one after another, waiting for each, until the queue is closed."""
        # (No generator, which ^C might interrupt between this call and its `yield`.)
        return iter(self._next_job, None)

    def _next_job(self) -> Job | None:
        """Wait for the next job; None: the queue was closed."""
        taken: list[Job] = []
        try:
            self._take(1, None, None, taken)
            return taken[0]
        except BaseException as error:
            self._give_back(taken)
            if isinstance(error, LogClosedError) and self._is_closed:
                return None
            raise

    # --- finishing ---------------------------------------------------------------------------

    def ack(self, jobs: Iterable[Job], *, wait: bool = True) -> None:
        """Acknowledge several jobs, with one sync; otherwise as Job.ack."""
        by_lane: dict[Lane, list[Job]] = {}
        for job in _listed("jobs", jobs):
            by_lane.setdefault(self._lane_of(job), []).append(job)
        for lane, of_lane in by_lane.items():
            lane.acknowledge(of_lane, wait=wait)
            for job in of_lane:
                job.is_settled = True

    def release(self, jobs: Iterable[Job]) -> None:
        """Give jobs back that were taken and not worked on: they are delivered again, at once, as the same attempt.
        Those whose lease has ended, or that are settled, stay as they are."""
        for job in _listed("jobs", jobs):
            lane = self._lane_of(job)
            # (The next delivery is the same attempt: a second call would take the job from whoever has it then.)
            if not job.is_settled:
                lane.release(job)
                job.is_settled = True

    def _lane_of(self, job: Job) -> Lane:
        lane = getattr(job, "_lane", None)
        if not isinstance(job, Job) or lane not in self._in_order:
            raise InvalidArgumentError(f"not a job of this queue: {repr(job)[:80]}", hint=NOT_ITS_JOB_HINT)
        assert isinstance(lane, Lane)
        return lane

    def pause(self) -> None:
        """Hand out no job until `resume`, after the next opening either: `get` waits. Jobs can be put, acknowledged and
        refused as before. Durable at return. Raises LogClosedError, LogFailedError."""
        self._set_paused("true")

    def resume(self) -> None:
        """Hand out jobs again after `pause`. Durable at return. Raises LogClosedError, LogFailedError."""
        self._set_paused(None)

    def _set_paused(self, text: str | None) -> None:
        self._check()
        ledger = self._lanes[0].managed_ledger
        with self._pausing:
            try:
                if ledger.properties.get(PAUSED) != text:
                    ledger.update_properties({PAUSED: text})
            finally:
                self._is_paused = PAUSED in ledger.properties
                self._changed.notify()

    @property
    def is_paused(self) -> bool:
        """Whether `pause` was called, and `resume` was not since, in this opening or an earlier one."""
        return self._is_paused

    def flush(self) -> None:
        """Return when everything that was put and acknowledged is on the disk, with every `fsync`."""
        for lane in self._in_order:
            lane.flush()

    # --- looking -----------------------------------------------------------------------------

    @property
    def dead(self) -> DeadJobs:
        """The jobs that were given up: to look at, to put back, to remove."""
        return DeadJobs(self._lock, self._in_order)

    def peek(self, count: int = 1) -> list[Job]:
        """Look at the first jobs that are neither in flight nor dead, due or not, without taking them."""
        if type(count) is not int or count < 1:
            raise InvalidArgumentError(f"count must be an int of 1 or more, not {count!r}")
        with self._lock:
            self._check()
            found: list[Job] = []
            for lane in self._in_order:
                found += lane.peek(count - len(found))
                if len(found) == count:
                    break
            return found

    def stats(self) -> QueueStats:
        """Count the jobs. Reads all entries that were not read yet."""
        with self._lock:
            self._check()
            counts = [lane.counts() for lane in self._in_order]
            oldest = min((one.oldest_ms for one in counts if one.oldest_ms is not None), default=None)
            age_s = None if oldest is None else max((self._clock.now_ms() - oldest) / 1000, 0.0)
            return QueueStats(
                ready=sum(one.ready for one in counts), delayed=sum(one.delayed for one in counts),
                waiting=sum(one.waiting for one in counts), in_flight=sum(one.in_flight for one in counts),
                dead=sum(one.dead for one in counts), oldest_age_s=age_s, is_paused=self._is_paused,
            )

    def _figures(self) -> tuple[QueueStats, Mapping[str, int]]:
        """For seglog.metrics."""
        return self.stats(), self._counts.values()

    def _is_counted(self) -> bool:
        """Whether seglog.metrics asks it."""
        return not self._is_closed

    def purge(self) -> int:
        """Remove all jobs but the dead, also those in flight, durably; return how many there were. It frees a full
        disk, and jobs can be put again where a put had found it full.

        Raises LogFailedError after another failure of the disk, LogClosedError; and StorageError if the disk is full
        and nothing was reserved on it: the queue is closed then.
        """
        return sum(lane.purge() for lane in self._in_order)

    # --- the limit of the backlog, with the lock -----------------------------------------------

    def _count(self) -> int:
        return sum(lane.living() for lane in self._in_order)

    def _droppable(self, wanted: int) -> int:
        """How many jobs `_drop_oldest` could remove."""
        return sum(lane.living() - len(lane.leases.out) for lane in self._in_order)

    def _drop_oldest(self, jobs: int) -> int:
        """Acknowledge so many of the oldest jobs that are not in flight, of all priorities; return how many."""
        oldest = sorted(
            (job for lane in self._in_order for job in lane.peek(jobs)), key=lambda job: job.enqueued_at
        )[:jobs]
        by_lane: dict[Lane, list[Job]] = {}
        for job in oldest:
            by_lane.setdefault(self._lane_of(job), []).append(job)
        for lane, of_lane in by_lane.items():
            lane.acknowledge(of_lane, wait=False, is_dropped=True)
        return len(oldest)

    # --- the end -----------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def close(self) -> None:
        """Make everything durable, and close. Jobs in flight are delivered again by the next opening. Idempotent.

        A signal's handler may call it: a call that it interrupts, such as `get`, raises LogClosedError or is completed,
        and the queue is closed right after that.
        """
        self._is_closed = True
        OPEN.discard(self)
        unlisten(self._clock, self._wake)
        self._changed.notify()
        self._claimed.notify()
        self._backlog.wake()
        close_in_order(self._close, self.path)

    def _close(self) -> None:
        errors: list[BaseException] = []
        with self._lock:        # a lane that is being opened is there now; no other comes
            lanes = self._in_order
        for lane in lanes:
            try:
                with self._lock:
                    lane.close()
            except BaseException as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def not_a_queue(path: Path) -> NotALogError:
    """The error for a directory that is something else."""
    return NotALogError(
        f"not a queue: it has no {JOURNAL}", file=path,
        hint="pass the directory of a seglog.Queue, or one that is new or empty",
    )


OPEN: "weakref.WeakSet[OwnedQueue]" = weakref.WeakSet()
PROCESS.add(OpenQueues(lambda: [queue for queue in OPEN if queue._is_counted()]))


def _backlog_of(queue: OwnedQueue, limit: int | None, when_full: WhenFull) -> Backlog:
    """The limit of a queue's backlog. It does not keep the queue alive, nor is it in a cycle with it."""
    found = weakref.ref(queue)

    def opened() -> OwnedQueue:
        there = found()
        if there is None:
            raise LogClosedError("the queue was closed")
        return there

    return Backlog(
        queue._lock, limit, when_full, check=lambda: opened()._check(), count=lambda: opened()._count(),
        droppable=lambda wanted: opened()._droppable(wanted), drop=lambda jobs: opened()._drop_oldest(jobs),
    )


def checked_at(
    at: datetime | str | None, delay: timedelta | float | None, clock: Clock, noun: str = "job"
) -> int | None:
    """The time `at`, ms since 1970, or None. Raises InvalidArgumentError, also for a wrong delay, or for both."""
    if delay is not None:
        if at is not None:
            raise InvalidArgumentError(f"give a {noun} `delay` or `at`, not both")
        duration_ns("delay", delay)
    return None if at is None else time_ms("at", at, clock.now_ms())


def parts_of(
    noun: str, jobs: "Iterable[Buffer | tuple[str | bytes | None, Buffer]]"
) -> "list[list[tuple[str | bytes | None, Buffer]]]":
    """What goes into one entry each: values with their keys. Raises InvalidArgumentError."""
    parts: list[list[tuple[str | bytes | None, Buffer]]] = []
    size_bytes = 0
    for job in _listed(f"{noun}s", jobs):
        key, value = job if isinstance(job, tuple) and len(job) == 2 else (None, job)
        size_of_value = _size_of(value, noun)
        if not parts or size_bytes + size_of_value > BATCH_BYTES or len(parts[-1]) == BATCH_JOBS:
            parts.append([])
            size_bytes = 0
        size_bytes += size_of_value
        parts[-1].append((key, value))
    return parts


def _listed(what: str, given: Iterable[Item]) -> list[Item]:
    """The items. Raises InvalidArgumentError if there are none to iterate over, or it is one value, not several."""
    if isinstance(given, str | bytes | bytearray | memoryview) or not isinstance(given, Iterable):
        raise InvalidArgumentError(
            f"{what} must be a list, or another iterable, not {repr(given)[:80]}", hint="pass a list, even for one"
        )
    return list(given)


def _size_of(value: object, noun: str = "job") -> int:
    try:
        return memoryview(value).nbytes     # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgumentError(
            f"a {noun} must be bytes, or (key, bytes), not {repr(value)[:80]}", hint=HINT_OF_VALUE) from None


def stored_priorities(path: Path) -> list[int]:
    """The priorities besides 0 that the queue in a directory has."""
    try:
        names = os.listdir(path / PRIORITIES)
    except FileNotFoundError:
        return []
    return [int(name) for name in names if _is_priority(name)]


def _is_priority(name: str) -> bool:
    digits = name.removeprefix("-")
    if not digits.isascii() or not digits.isdigit():
        return False
    return LOWEST <= int(name) <= HIGHEST and str(int(name)) == name and int(name) != 0
