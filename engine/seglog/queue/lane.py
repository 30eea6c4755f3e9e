"""One managed ledger of a queue, its subscription, and the deliveries of that.

    put ── managed ledger ── dispatcher (delayed messages when they are due) ── ready ── take ── job
                                            leases: out, waiting, dead ──────── again ──┘

What a consumer is told is in the journal before: a delivery is written, an acknowledgement written and synced. The
cursor's file is only a checkpoint of the acknowledgements; then the next journal begins (`_checkpoint`).
"""
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Self

from seglog._kernels.entry_columns import metadata_columns
from seglog._kernels.entry_frame import MessageFields
from seglog._kernels.quick_lock import LockCondition, QuickLock
from seglog._kernels.quiet_lane import QuietLane
from seglog._kernels.shield import shielded
from seglog.clock import Clock, SystemClock, now_ns
from seglog.config import Fsync
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.row_tracker import RowTracker
from seglog.errors import (
    CorruptManifestError,
    CorruptRecordError,
    EncryptedPayloadError,
    LeaseLostError,
    LogClosedError,
    LogFailedError,
    MissingCodecError,
    SeglogError,
    UnsupportedCompressionTypeError,
)
from seglog.fs.files import FileSystem
from seglog.fs.refusals import is_out_of_space
from seglog.late_import import late
from seglog.ledger.config import ManagedLedgerConfig
from seglog.ledger.entry import Entry, pulsar_pb
from seglog.ledger.ledger_metadata import MAX_ID
from seglog.ledger.managed.cursor import ManagedCursor
from seglog.ledger.managed.cursor_file import cursor_path
from seglog.ledger.managed.journal import Change, JournalKind, QueueJournal
from seglog.ledger.managed.relocated_entries import positions_aside
from seglog.ledger.message_batch import BatchedMessage, batch_of
from seglog.ledger.position import EARLIEST, Position
from seglog.ledger.stored_entry import StoredEntry, columns_of
from seglog.logger import Logger
from seglog.queue.backlog import Backlog
from seglog.queue.dead_letters import DeadLetters
from seglog.queue.job import FINISHED_HINT, REASON_CHARACTERS, DeadJob, Job
from seglog.queue.journaled_ledger import JournaledLedger
from seglog.queue.metrics import QueueCounts
from seglog.queue.options import QueueOptions, duration_ns
from seglog.queue.unique import UNIQUE_UNTIL, Claim, UniqueKeys, change_of, key_bytes, listed_to
from seglog.topic.delayed_index import DAMAGED, RELOCATE_AHEAD_MS, RELOCATE_EVERY_NS
from seglog.topic.dispatcher import Dispatcher
from seglog.topic.leases import Leases, Message

if TYPE_CHECKING:
    from typing_extensions import Buffer

logger = Logger("seglog")

SUBSCRIPTION = "queue"
# Entries that are read from the disk at once, ahead of the calls that take their jobs.
READ_AHEAD = 64
# Finished ones are forgotten then.
_UNWARNED_MAX = 1000
# Jobs whose copies are gone and that become dead. Each takes memory, and a file may say that there are billions.
_LOST_MAX = 1_000_000
# What keeps an entry, or the messages of its batch, from being read, until somebody does something about it.
UNREADABLE = (*DAMAGED, EncryptedPayloadError, MissingCodecError, UnsupportedCompressionTypeError)


@dataclass(slots=True)
class LaneCounts:
    """The messages that are not acknowledged, by what they wait for."""

    ready: int
    delayed: int
    waiting: int
    in_flight: int
    dead: int
    oldest_ms: int | None


class _Repairing:
    """Notes that an exception came in the middle of a change, for the next delivery."""

    __slots__ = ("_lane",)

    def __init__(self, lane: "Lane") -> None:
        self._lane = weakref.ref(lane)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None and not issubclass(kind, SeglogError) and (lane := self._lane()) is not None:
            lane._is_torn = True
            lane._backlog.forget()


def weak_keeper(lane: "Lane") -> Callable[[StoredEntry], bool]:
    """`lane.keeps`, without keeping the lane alive."""
    found = weakref.ref(lane)

    def keeps(entry: StoredEntry) -> bool:
        there = found()
        return there is not None and there.keeps(entry)

    return keeps


def weak_burier(lane: "Lane") -> Callable[[Position, SeglogError], None]:
    """Gives an entry of the lane up that cannot be read, without keeping the lane alive."""
    found = weakref.ref(lane)

    def bury(position: Position, error: SeglogError) -> None:
        there = found()
        if there is not None:
            there.give_up((*position, -1), error)

    return bury


def weak_state(lane: "Lane") -> Callable[[], Iterator[Change]]:
    """`lane._state`, without keeping the lane alive."""
    found = weakref.ref(lane)

    def state() -> Iterator[Change]:
        there = found()
        return iter(()) if there is None else there._state()

    return state


class Lane(QuietLane):
    """The jobs of one managed ledger. Thread-safe. `lock` guards its fields, and those of the queue's other lanes.

    Most jobs are delivered and acknowledged by `take_quietly` and `finish_quietly`, in a kernel; those that need more,
    by `take` and `acknowledge`."""

    leases: Leases
    _journal: QueueJournal
    _ready: deque[Job]
    _due: deque[Job]
    _again: dict[Message, None]
    _checkpoint_at: int
    _clock: Clock
    _cursor: ManagedCursor
    _dispatcher: Dispatcher
    _backlog: Backlog
    _counts: QueueCounts

    # How it, and its users, call what it delivers.
    noun = "job"
    home_noun = "queue"
    _kind: type[Job] = Job
    _dead_kind: type[DeadJob] = DeadJob

    def __init__(
        self, home: JournaledLedger, name: str, prefix: str, lock: QuickLock, changed: LockCondition,
        options: QueueOptions, backlog: Backlog, counts: QueueCounts, letters: DeadLetters | None,
    ) -> None:
        """`home`: a new one, which is opened here, or one that is open."""
        self.home = home
        self.name = name
        self._prefix = prefix
        self._lock = lock
        self._changed = changed
        self._options = options
        self._backlog = backlog
        self._counts = counts
        self._letters = letters
        self._clock = clock = home.clock
        self._has_system_clock = type(clock) is SystemClock
        self._most_attempts = options.max_attempts
        self._look_again_ns, self._most_ready = RELOCATE_EVERY_NS, READ_AHEAD
        self._job_kind = self._kind
        self.reraises = options.reraise
        self._repairing = _Repairing(self)
        # How often it was purged.
        self._purges = 0
        # Now, where no exception comes from outside: one that comes during an import leaves its lock taken forever.
        pulsar_pb()

    @classmethod
    def of_queue(
        cls, path: Path, prefix: str, lock: QuickLock, changed: LockCondition, options: QueueOptions,
        backlog: Backlog, counts: QueueCounts, letters: DeadLetters | None, *,
        config: ManagedLedgerConfig, fsync: Fsync, fs: FileSystem | None, clock: Clock, create: bool,
    ) -> Self:
        """The one lane of a managed ledger that is opened for it."""
        home = JournaledLedger(
            path, config=config, delayed=DelayedDeliveryConfig(relocate=True), fsync=fsync, fs=fs, clock=clock
        )
        lane = cls(home, SUBSCRIPTION, prefix, lock, changed, options, backlog, counts, letters)
        lane._open(create=create)
        return lane

    def _open(self, *, create: bool) -> None:
        """Open the managed ledger, and what is known of its jobs. After an error it is closed."""
        home = self.home
        home.open(create=create)
        try:
            self._clear()
            home.managed_ledger.open_cursor(self.name, "earliest")
            self._take_leases()
            for record in home.records:
                if record.subscription == self.name:
                    self.unique.replay(record)
            self._read_unique()
            self._forget_what_is_gone()
        except BaseException:
            home._close_ledger()
            raise
        home.begin(self.name)
        try:
            self._join()
        except BaseException:
            home.close()
            raise

    def _clear(self) -> None:
        """Nothing is known of jobs yet."""
        # The jobs that may be delivered at once: new ones, before them those that were delayed, and before these those
        # that were delivered before.
        self._ready = deque()
        self._due = deque()
        self._again = {}        # in order
        # Those that a call of `take` has, and has not delivered yet.
        self._taking: set[Message] = set()
        # Whose leases may end without a word, again or because somebody ended them.
        self._unwarned: set[Message] = set()
        # When the dispatcher was asked for delayed jobs last.
        self._read_ns = self._clock.monotonic_ns()
        # An exception from outside came in the middle of a change: `_ready` may lack jobs.
        self._is_torn = False
        # The numbers of messages of batches, as of the last count and what was put since; None before the first count.
        self._sizes: dict[Position, int] | None = None
        self.managed_ledger = self.home.managed_ledger
        self.delayed = self.home.delayed

    def _take_leases(self) -> None:
        """What the journal says of the deliveries is kept here from now on."""
        self._cursor = self.managed_ledger.cursors[self.name]
        self.unique = self._unique = UniqueKeys()
        self.home.states[self.name] = weak_state(self)
        idle = self.home.idle
        self.leases = idle.pop(self.name) if self.name in idle else Leases()

    def _join(self) -> None:
        """Deliver from now on. The home has a journal."""
        home, ledger = self.home, self.managed_ledger
        self._journal, self._covered = home.journal, home.covered
        self._checkpoint_at = home.checkpoint_at
        self._number = home.keep_in_journal(self.name)
        self._dispatcher = self.delayed.dispatcher(
            self._cursor, keeper=weak_keeper(self), unreadable=weak_burier(self)
        )
        self._give_up_lost_copies()
        if self._letters is not None and self.leases.dead:
            self._letters.note(self)
        tracker = self.delayed.tracker(self._cursor)
        assert isinstance(tracker, RowTracker)
        self._intake = tracker._intake
        self._shown, self._held = ledger._shown, ledger._tail.held
        self._adds = ledger._appender
        self._producer_name = self.delayed._producer_name
        self._sequence_ids = self.delayed._sequence_ids
        # (The condition alone: it does not keep this alive.) One thread is woken for a job, not all that wait.
        ledger.listen(self._changed.notify_one)

    def _forget_what_is_gone(self) -> None:
        leases = self.leases
        known = {*leases.attempts, *leases.waiting, *leases.dead}
        leases.forget([message for message in known if self._is_acknowledged(message)])

    def _give_up_lost_copies(self) -> None:
        """Reading finds entries that were copied out of their ledgers by their copies only. Raises CorruptManifestError
        if more of them are gone than any queue has copied: then the file of the cursor lies, and may say billions."""
        count = self._cursor.aside_count
        if count > _LOST_MAX + self.managed_ledger.entry_count + self._dispatcher._copies_count:
            raise CorruptManifestError(
                f"the cursor has set aside {count} entries, more than the queue has ever had",
                file=cursor_path(self.managed_ledger.path, self._cursor.name))
        for position in list(positions_aside(self._cursor)):
            try:
                if self._dispatcher._entry_at(position) is None:
                    raise CorruptRecordError("its copy is gone, or damaged", file=self.managed_ledger.path)
            except DAMAGED as error:
                self.give_up((*position, -1), error)

    def _note(
        self, kind: JournalKind, items: Sequence[tuple[int, int, int, int]], at_ms: int = 0, holder: int = 0,
        text: str = "",
    ) -> None:
        """Write a record to the journal, with the lock."""
        self._journal.append(Change(kind, items, at_ms, holder, text, self._number))

    def id_of(self, at: Message) -> str:
        """The id of a job, for its users."""
        ledger_id, entry_id, number = at
        of_entry = f"{self._prefix}{ledger_id}:{entry_id}"
        return of_entry if number < 0 else f"{of_entry}:{number}"

    # --- putting -----------------------------------------------------------------------------

    def put(self, value: "Buffer", *, delay: timedelta | float | None, deliver_at_ms: int | None,
            key: str | bytes | None, properties: Mapping[str, str] | None,
            unique: tuple[bytes, int] | None = None) -> str:
        """Add a job; return its id. `unique`: its key, and until when no other job gets it."""
        if unique is not None:
            properties = {**(properties or {}), UNIQUE_UNTIL: str(unique[1])}
        entry, publish_time_ms, due_ms = self.delayed.build(
            value, delay=delay, deliver_at_ms=deliver_at_ms, key=key, properties=properties
        )
        purges = self._purges
        if due_ms is None:
            position = self.managed_ledger._appender.add_built(entry, publish_time_ms)
        else:
            position = self.delayed._add_within_limits(entry, publish_time_ms, due_ms)
        if unique is not None:
            with self._lock:
                if self._is_left(position, purges):
                    self.claim(*unique, position)
        with self._lock:
            self._counts.puts.add()
        if due_ms is None:
            self._hand_over(position, entry)
        return self.id_of((*position, -1))

    def _hand_over(self, position: Position, entry: bytes) -> None:
        """Let a new job be taken without reading it back, if it is the next one that would be read. Only a few at a
        time: they are in memory."""
        with self._lock, self._repairing:
            if len(self._ready) >= READ_AHEAD or self._is_torn or self._shown.extent is None:
                return
            if self._dispatcher._hand_over(position):
                self._ready.append(Job(self, (*position, -1), 0, Entry(entry), None))

    # --- keys of which there is one job ------------------------------------------------------

    def begin_unique(self) -> None:
        """Let the next opening look for keys, durably: called before the first job that has one alone."""
        with self._lock:
            self.check()
            if self.unique.listed_to is None:
                self._journal.append(listed_to(self.managed_ledger.last_position or EARLIEST))
                self.unique.listed_to = self.managed_ledger.last_position or EARLIEST
            journal, number = self._journal, self._journal.number
        journal.await_number(number)

    def put_unique(self, jobs: "Mapping[bytes, tuple[str | bytes | None, Buffer]]", until_ms: int, *,
                   delay: timedelta | float | None, deliver_at_ms: int | None,
                   properties: Mapping[str, str] | None) -> dict[bytes, str]:
        """Add jobs that have their keys alone, by `key_bytes`, with one sync; return their ids."""
        if len(jobs) == 1:
            [(name, (key, value))] = jobs.items()
            return {name: self.put(
                value, delay=delay, deliver_at_ms=deliver_at_ms, key=key, properties=properties, unique=(name, until_ms)
            )}
        properties = {**(properties or {}), UNIQUE_UNTIL: str(until_ms)}
        purges = self._purges
        positions = self.managed_ledger.add_entries([
            self.delayed.build(value, delay=delay, deliver_at_ms=deliver_at_ms, key=key, properties=properties)[0]
            for key, value in jobs.values()
        ])
        claims = [(name, Claim(until_ms, *position)) for name, position in zip(jobs, positions, strict=True)]
        with self._lock:
            self._counts.puts.add(len(claims))
            claims = [one for one, position in zip(claims, positions, strict=True) if self._is_left(position, purges)]
            if claims:
                self._journal.append(change_of(claims))
            for name, claim in claims:
                self.unique.add(name, claim, self._clock.now_ms())
        return {name: self.id_of((*position, -1)) for name, position in zip(jobs, positions, strict=True)}

    def _is_left(self, position: Position, purges: int) -> bool:
        """Whether a new job has its key, with the lock: not if a purge has removed it since there were so many. (If a
        consumer was quick, `_claim_early` has noted it.)"""
        return purges == self._purges or not self._is_acknowledged((*position, -1))

    def claim(self, name: bytes, until_ms: int, position: Position) -> None:
        """Note that a job has a key alone, with the lock."""
        claim = Claim(until_ms, *position)
        self._journal.append(change_of([(name, claim)]))
        self.unique.add(name, claim, self._clock.now_ms())

    def _claim_early(self, jobs: Iterable[Job]) -> None:
        """Note the keys of jobs that are acknowledged while their puts are about to do so: then they may be trimmed."""
        for job in jobs:
            until_ms = job._unique_until_ms
            if until_ms is not None and (name := key_bytes(job._unique_name)) in self.unique.under_way:
                self.claim(name, until_ms, Position(*job._at[:2]))

    def _read_unique(self) -> None:
        """Look for keys in entries that the journal may not list."""
        unique, ledger = self.unique, self.managed_ledger
        if unique.listed_to is None:
            return
        after = unique.listed_to
        while True:
            position = ledger.next_valid(after)
            if position is None:
                break
            try:
                entries = ledger.read_entries(position, READ_AHEAD)
            except DAMAGED:
                try:
                    entries = [ledger.read(position)]
                except DAMAGED:
                    after = position
                    continue
            unique.read(entries)
            after = entries[-1].position
        unique.sweep(self._clock.now_ms())
        self._note_listed()

    def _note_listed(self) -> None:
        """All keys are in the state that a new journal begins with."""
        if self.unique.listed_to is not None:
            self.unique.listed_to = self.managed_ledger.last_position or self.unique.listed_to

    def put_built(self, entries: list[bytes]) -> list[str | BaseException]:
        """Add entries of one message each, by one write; return their ids, or the error of each that was refused."""
        found = self.home.add_all(entries)
        with self._lock:
            self._counts.puts.add(sum(not isinstance(one, BaseException) for one in found))
        return [one if isinstance(one, BaseException) else self.id_of((*one, -1)) for one in found]

    def put_many(self, messages: "Sequence[tuple[str | bytes | None, Buffer]]", *, delay: timedelta | float | None,
                 deliver_at_ms: int | None, properties: Mapping[str, str] | None) -> list[str]:
        """Add jobs as one entry; return their ids."""
        position = self.delayed.publish_batch(
            messages, delay=delay, deliver_at_ms=deliver_at_ms, properties=properties
        )
        with self._lock:
            self._counts.puts.add(len(messages))
            if self._sizes is not None:
                self._sizes[position] = len(messages)
        return [self.id_of((*position, index)) for index in range(len(messages))]

    # --- taking ------------------------------------------------------------------------------
    # All of these are called with the lock.

    def take(self, count: int, lease_ns: int, holder: int, handed: list[Job]) -> None:
        """Deliver at most `count` jobs that are due: append them to `handed`. `holder`: a number of the process that
        gets them, 0 for this."""
        taken: list[Job] = []
        before: list[int] = []
        try:
            if self._is_torn:
                self._resync()
            self._look_at_the_clock()
            self._read_due(count)
            while len(taken) < count and (job := self._next(count - len(taken))) is not None:
                attempts = self.leases.attempts.get(job._at, 0)
                if self._options.max_attempts is not None and attempts >= self._options.max_attempts:
                    self._bury(job._at, attempts, self._reason_after(job._at, attempts))
                    continue
                before.append(attempts)
                self._taking.add(job._at)
                job.attempt = attempts + 1
                taken.append(job)
            if taken:
                self._deliver(taken, lease_ns, holder)
                handed += taken
        except BaseException:
            # Interrupted, or the journal failed: nobody gets these jobs.
            self._is_torn = True
            for job, attempts in zip(taken, before, strict=False):
                self.leases.give_back(job._at, attempts)
            raise
        finally:
            self._taking.clear()

    def _reason_after(self, at: Message, attempts: int) -> str:
        """Why a message is dead that has had all its attempts, and was not refused at the limit that there is now."""
        failure = self.leases.failures.get(at)
        if failure is not None and failure.attempt == attempts:
            return failure.reason       # the limit was higher then
        lost = f"its lease ran out, or its process died, at attempt {attempts}"
        return lost if failure is None else f"{lost}; attempt {failure.attempt} failed: {failure.reason}"

    def _deliver(self, jobs: Sequence[Job], lease_ns: int, holder: int) -> None:
        ends_ns = self._clock.monotonic_ns() + lease_ns
        ends_ms = self._clock.now_ms() + lease_ns // 1_000_000
        self._note(JournalKind.DELIVERED, [(*job._at, job.attempt) for job in jobs], ends_ms, holder)
        self.leases.tidy()
        deliver, again = self.leases.deliver, 0
        for job in jobs:
            deliver(job._at, job.attempt, ends_ns)
            again += job.attempt > 1
        if holder or self.leases.holders:
            for job in jobs:
                self.leases.assign(job._at, holder)
        self._counts.deliveries.add(len(jobs))
        self._counts.redeliveries.add(again)
        if self._journal.position > self.home.checkpoint_at:
            self._checkpoint()

    def _next(self, wanted: int) -> Job | None:
        """The next job that is due."""
        while True:
            if self._again:
                message = next(iter(self._again))
                jobs = self._jobs_at(message)
                del self._again[message]
                self._due.extendleft(reversed(jobs[1:]))
                if jobs:
                    return jobs[0]
            elif self._due:
                return self._due.popleft()
            elif self._ready:
                return self._ready.popleft()
            elif not self._reads_on() or not self._fill(wanted):
                return None

    def _fill(self, wanted: int) -> bool:
        """Read what was not delivered yet; whether there was something."""
        entries = self._dispatcher.read(max(wanted, READ_AHEAD))
        for entry in entries:
            self._ready.extend(self._jobs_of(entry))
        return bool(entries)

    def _reads_on(self) -> bool:
        """Whether more may be read now."""
        return True

    def _read_due(self, wanted: int) -> None:
        """Read delayed jobs that are due now: they do not wait for those that were read ahead. Reading also lets the
        index work, which copies jobs that stay for long: so read now and then in any case."""
        due_ms, now_ns = self._dispatcher.next_due_ms(), self._clock.monotonic_ns()
        is_due = due_ms is not None and due_ms <= self._clock.now_ms()
        if is_due or now_ns - self._read_ns >= RELOCATE_EVERY_NS:
            self._read_ns = now_ns
            for entry in self._dispatcher._take_due(max(wanted, READ_AHEAD)):
                self._due.extend(self._jobs_of(entry))

    def _look_at_the_clock(self) -> None:
        leases = self.leases
        if leases.out:
            ended = leases.end_leases(self._clock.monotonic_ns())
            self._again |= dict.fromkeys(ended)
            self._warn_of(ended)
        if leases.waiting:
            self._again |= dict.fromkeys(leases.take_due(self._clock.now_ms()))

    def _warn_of(self, ended: Sequence[Message]) -> None:
        """Their leases ran out, and they are delivered again: say so, once for each."""
        most, attempts = self._options.max_attempts, self.leases.attempts
        for at in ended:
            # (One that has had all its attempts is dead: an error says so.)
            if at not in self._unwarned and (most is None or attempts.get(at, 0) < most):
                self._unwarned.add(at)
                late("logging")
                logger.warning(
                    "%s: the lease of %s %s ran out at attempt %d, and it is delivered again: call %s.extend() while "
                    "work on it goes on, or open with a longer lease=; it is %g s", self.managed_ledger.path,
                    self.noun, self.id_of(at), attempts.get(at, 0), self.noun, self._options.lease_ns / 1e9,
                )
        if len(self._unwarned) > _UNWARNED_MAX:
            self._unwarned.intersection_update(attempts)

    def _clear_ready(self) -> None:
        self._ready.clear()
        self._due.clear()
        self._again.clear()

    def _resync(self) -> None:
        """Read again what is neither acknowledged, nor out, nor waiting."""
        self._clear_ready()
        self.leases.repair()
        self._dispatcher.rewind()
        self._is_torn = False

    def _jobs_of(self, entry: StoredEntry, *, with_held: bool = False) -> Collection[Job]:
        """The jobs of an entry that are not acknowledged; without those that are out, waiting, due again or dead. An
        entry that cannot be read has none: it is dead as a whole."""
        try:
            return list(self._parsed(entry, with_held=with_held))
        except UNREADABLE as error:
            if not with_held:
                self.give_up((*entry.position, -1), error)
            return ()

    def _parsed(self, entry: StoredEntry, *, with_held: bool) -> Iterator[Job]:
        position, leases = entry.position, self.leases
        frame = entry.entry
        fields = frame.fields()
        messages = batch_of(frame).messages if fields.is_batch else ()
        if not fields.is_batch:
            message = (*position, -1)
            if with_held or not self._is_held(message):
                yield self._kind(self, message, leases.attempts.get(message, 0), frame, fields)
            return
        acknowledged = self._cursor.acknowledged_batch_indexes(position)
        for index, batched in enumerate(messages):
            message = (*position, index)
            if index not in acknowledged and (with_held or not self._is_held(message)):
                yield self._kind(self, message, leases.attempts.get(message, 0), frame, fields, batched)

    def _parsed_all(self, entry: StoredEntry) -> list[Job]:
        """All jobs of an entry, acknowledged ones too."""
        position, frame = entry.position, entry.entry
        fields = frame.fields()
        if not fields.is_batch:
            return [self._kind(self, (*position, -1), 0, frame, fields)]
        return [
            self._kind(self, (*position, index), 0, frame, fields, one)
            for index, one in enumerate(batch_of(frame).messages)
        ]

    def _is_held(self, message: Message) -> bool:
        return self.leases.is_held(message) or message in self._again or message in self._taking

    def _jobs_at(self, message: Message) -> list[Job]:
        """The job that is due again; none if it was acknowledged, or cannot be read. All of the entry if it could not
        be read before."""
        try:
            entry = self._dispatcher._entry_at(Position(*message[:2]))
            jobs = [] if entry is None else list(self._parsed(entry, with_held=True))
        except UNREADABLE as error:
            self.give_up(message, error)
            return []
        found = [job for job in jobs if job._at == message]
        if not found:
            self.leases.finish(message)
            self._backlog.forget()
            if message[2] < 0:
                return [job for job in jobs if not self._is_held(job._at)]
        return found

    def give_up(self, message: Message, error: SeglogError) -> None:
        """It cannot be read, so it is dead: reading it again, and again, would hold all others up. With the lock."""
        if message in self.leases.dead:
            return
        self._bury(message, self.leases.attempts.get(message, 0), f"it cannot be read: {error}")
        self._backlog.forget()      # it may be a batch

    def keeps(self, entry: StoredEntry) -> bool:
        """Whether none of the entry's messages will be acknowledged soon: each is dead, or waits, or is out for long.
        Called by the dispatcher, with the lock."""
        soon_ms = self._clock.now_ms() + RELOCATE_AHEAD_MS
        soon_ns = self._clock.monotonic_ns() + RELOCATE_AHEAD_MS * 1_000_000
        if self._is_for_long((*entry.position, -1), soon_ms, soon_ns):
            return True     # without parsing it
        return all(self._is_for_long(job._at, soon_ms, soon_ns) for job in self._jobs_of(entry, with_held=True))

    def _is_for_long(self, at: Message, soon_ms: int, soon_ns: int) -> bool:
        leases = self.leases
        lease = leases.out.get(at)
        return (
            at in leases.dead or leases.waiting.get(at, 0) > soon_ms or (lease is not None and lease.ends_ns > soon_ns)
        )

    def next_ms(self) -> int | None:
        """When the next delayed or waiting job is due, ms since 1970."""
        dues = [at for at in (self._dispatcher.next_due_ms(), self.leases.next_due_ms()) if at is not None]
        return min(dues, default=None)

    # --- what happens to a job ---------------------------------------------------------------

    def acknowledge(self, jobs: Sequence[Job], *, wait: bool, is_dropped: bool = False) -> None:
        """See Job.ack, for several jobs of this lane. `is_dropped`: they make room for others."""
        if len(jobs) == 1 and not is_dropped and self.finish_quietly(jobs[0], wait):
            return
        with self._lock, self._repairing:
            self.check()
            fresh = {job._at: job._batch_size for job in jobs if not self._is_acknowledged(job._at)}
            if fresh:
                if self.unique.under_way:
                    self._claim_early(jobs)
                self._note(JournalKind.ACKED, [(*at, size) for at, size in fresh.items()])
                self._finish(fresh)
                (self._counts.dropped if is_dropped else self._counts.acknowledged).add(len(fresh))
            journal, number = self._journal, self._journal.number
        if wait:
            journal.await_number(number)

    def _finish(self, sizes: dict[Message, int]) -> None:
        """Acknowledge messages that the journal says are acknowledged."""
        leases, journal = self.leases, self._journal
        singles = []
        self._backlog.add(-sum(at not in leases.dead for at in sizes) if leases.dead else -len(sizes))
        for at, size in sizes.items():
            if at not in leases.out:
                self._drop_ready(at)
            if at[2] < 0:
                # One step in C: the class's own __new__ is Python code.
                singles.append(tuple.__new__(Position, at[:2]))
            else:
                self._cursor.acknowledge(Position(*at[:2]), (at[2],), size)
        if len(singles) == 1:
            self._cursor.acknowledge(singles[0])
        elif singles:
            self._cursor.acknowledge_many(singles)
        # Last: an exception from outside before this leaves a job with its lease and its attempts.
        for at in sizes:
            leases.finish(at)
        position = journal.position
        self._covered[0] = journal.journal_id, position
        if position > self.home.checkpoint_at:
            self._checkpoint()

    def _drop_ready(self, at: Message) -> None:
        """It is acknowledged though nobody has it: it was delivered before, or only looked at."""
        for ready in (self._due, self._ready):
            if any(job._at == at for job in ready):
                kept = [job for job in ready if job._at != at]
                ready.clear()
                ready.extend(kept)

    def _is_acknowledged(self, at: Message) -> bool:
        if at in self.leases.out:
            return False
        position, cursor = Position(*at[:2]), self._cursor
        if cursor.is_acknowledged(position) or (at[2] >= 0 and at[2] in cursor.acknowledged_batch_indexes(position)):
            return True
        return not self.managed_ledger.is_valid(position) and not cursor.is_aside(position)

    def refuse(
        self, job: Job, delay: timedelta | float | None, reason: str, *, is_late_allowed: bool = False
    ) -> str:
        """See Job.nack. `is_late_allowed`: without an error if the lease was lost. Return what becomes of it, as the
        end of a line of the log."""
        delay_ns = None if delay is None else duration_ns("delay", delay)
        letters = self._letters
        with self._lock, self._repairing:
            self.check()
            if not self._has_lease(job):
                if is_late_allowed:
                    return ", after its lease had ended"
                raise self._lease_lost(job)
            self._counts.refused.add()
            limit = self._options.max_attempts
            reason = _kept(reason or "refused, without a reason")
            if limit is not None and job.attempt >= limit:
                # (A block, which allows a late one, logs the exception itself.)
                self._bury(job._at, job.attempt, reason, is_logged=not is_late_allowed)
                outcome = ", and is dead"
            else:
                after_ns = self._options.retry_after_ns(job.attempt) if delay_ns is None else delay_ns
                # Rounded up, so that it is never early; at once is now.
                due_ms = -(-(now_ns(self._clock) + after_ns) // 1_000_000) if after_ns else self._clock.now_ms()
                self._note(JournalKind.WAITING, [(*job._at, job.attempt)], due_ms, text=reason)
                self.leases.fail(job._at, job.attempt, reason, due_ms)
                self._refused(job._at)
                self._changed.notify_one()
                outcome = f", again in {round(after_ns / 1e9, 1):g} s"
        if letters is not None and letters.is_due:
            letters.send()
        return outcome if limit is None else f" of {limit}{outcome}"

    def _refused(self, at: Message) -> None:
        """It waits for its next delivery now."""

    def _bury(self, at: Message, attempt: int, reason: str, *, is_logged: bool = True) -> None:
        now_ms = self._clock.now_ms()
        reason = _kept(reason)
        self._note(JournalKind.DEAD, [(*at, attempt)], now_ms, text=reason)
        self.leases.bury(at, attempt, now_ms, reason)
        self._backlog.add(-1)
        self._counts.deaths.add()
        if is_logged:
            late("logging")
            logger.error("%s: %s %s is dead after attempt %d: %s",
                         self.managed_ledger.path, self.noun, self.id_of(at), attempt, reason)
        if self._letters is not None:
            self._letters.note(self)

    def extend(self, job: Job, lease: timedelta | float | None) -> None:
        """See Job.extend."""
        lease_ns = self._options.lease_ns if lease is None else duration_ns("lease", lease)
        with self._lock, self._repairing:
            self.check()
            if not self._has_lease(job):
                raise self._lease_lost(job)
            if not lease_ns:
                self._unwarned.add(job._at)
            self.leases.extend(job._at, self._clock.monotonic_ns() + lease_ns)
            self._changed.notify_one()      # a shorter one: sleepers look again

    def release(self, job: Job) -> None:
        """See Queue.release."""
        with self._lock, self._repairing:
            self.check()
            if self._has_lease(job):
                before = job.attempt - 1
                # In the journal, too: otherwise the next opening would count this delivery.
                kind = JournalKind.WAITING if before else JournalKind.READY
                self._note(kind, [(*job._at, before)], self._clock.now_ms())
                self.leases.give_back(job._at, before)
                self._come_again([job._at])
                self._changed.notify_one()

    def _come_again(self, messages: Sequence[Message]) -> None:
        """They are delivered again, before what was not delivered yet."""
        self._again |= dict.fromkeys(messages)

    def _has_lease(self, job: Job) -> bool:
        lease = self.leases.out.get(job._at)
        return lease is not None and lease.attempt == job.attempt

    def _lease_lost(self, job: Job) -> LeaseLostError:
        at, leases = job._at, self.leases
        if at in leases.out:
            state = f"it was delivered again, attempt {leases.out[at].attempt}"
        elif at in leases.dead:
            state = "it is dead"
        elif at in leases.waiting:
            state = "it waits to be delivered again"
        else:
            state = "it is acknowledged" if self._is_acknowledged(at) else "its lease has ended"
        return LeaseLostError(
            f"{self.noun} {job.id} is not leased to attempt {job.attempt}: {state}",
            hint=FINISHED_HINT if state == "it is acknowledged" else None,
        )

    # --- dead jobs ---------------------------------------------------------------------------

    def dead_jobs(self, *, but: Collection[Message] = ()) -> Iterator[DeadJob]:
        """The dead jobs, with the lock, in the order in which they died."""
        for at, death in self.leases.dead.copy().items():
            if at not in but and not self._cursor.is_acknowledged(Position(*at[:2])):
                yield self._dead_kind(self, at, death, *self._parts_at(at))

    def _parts_at(self, at: Message) -> tuple[Entry | None, MessageFields | None, BatchedMessage | None]:
        """The contents of a dead message, or nothing if it cannot be read."""
        try:
            entry = self._dispatcher._entry_at(Position(*at[:2]))
            if entry is None:
                return None, None, None
            frame = entry.entry
            fields = frame.fields()
            if fields.is_batch != (at[2] >= 0):     # a batch that cannot be read is dead as a whole
                return None, None, None
            if not fields.is_batch:
                return frame, fields, None
            messages = batch_of(frame).messages
            # (As in purge_dead: the journal may name one that is not there.)
            return (frame, fields, messages[at[2]]) if at[2] < len(messages) else (None, None, None)
        except UNREADABLE:
            return None, None, None

    def requeue(self, messages: Iterable[Message]) -> int:
        """Put dead messages back, durably; return how many were dead."""
        with self._lock, self._repairing:
            self.check()
            wanted = [at for at in dict.fromkeys(messages) if at in self.leases.dead]
            if wanted:
                now_ms = self._clock.now_ms()
                self._note(JournalKind.READY, [(*at, 0) for at in wanted], now_ms)
                for at in wanted:
                    self.leases.revive(at, now_ms)
                self._backlog.add(len(wanted))
                self._changed.notify_one()
            journal, number = self._journal, self._journal.number
        journal.await_number(number)
        return len(wanted)

    def finish_dead(self, messages: Iterable[Message], *, wait: bool = True) -> int:
        """Acknowledge dead messages; return how many were dead. `wait`: durably at return."""
        with self._lock, self._repairing:
            self.check()
            dead = [at for at in messages if at in self.leases.dead]
            sizes = dict(map(self._sized, dead))
            # A journal may name messages that their batch does not have: only the journal knows them.
            if strange := [at for at, size in sizes.items() if at[2] >= size]:
                self._note(JournalKind.READY, [(*at, 0) for at in strange], self._clock.now_ms())
                sizes = {at: size for at, size in sizes.items() if at[2] < size}
            if sizes:
                self._note(JournalKind.ACKED, [(*at, size) for at, size in sizes.items()])
                self._finish(sizes)
            self.leases.forget(dead)
            journal, number = self._journal, self._journal.number
        if wait:
            journal.await_number(number)
        return len(dead)

    def _sized(self, at: Message) -> tuple[Message, int]:
        """A dead message and the size of its batch. If that cannot be read any more: its entry."""
        if at[2] < 0:
            return at, 1
        try:
            entry = self._dispatcher._entry_at(Position(*at[:2]))
            return at, 1 if entry is None else entry.message_count
        except UNREADABLE:
            return (*at[:2], -1), 1

    # --- looking -----------------------------------------------------------------------------

    def peek(self, count: int) -> list[Job]:
        """The first jobs that are neither out nor dead, with the lock; they are not leased."""
        found: list[Job] = []
        for entry in self._unacknowledged() if count > 0 else ():
            jobs = self._jobs_of(entry, with_held=True)
            found += [job for job in jobs if job._at not in self.leases.out and job._at not in self.leases.dead]
            if len(found) >= count:
                break
        for job in found[:count]:
            job._retry_ms = self.leases.waiting.get(job._at)
        return found[:count]

    def _unacknowledged(self) -> Iterator[StoredEntry]:
        """All entries that are not fully acknowledged, and can be read; those that were set aside first."""
        for position in sorted(positions_aside(self._cursor)):
            entry = self._dispatcher._entry_at(position) if (*position, -1) not in self.leases.dead else None
            if entry is not None:
                yield entry
        after = EARLIEST
        while True:
            try:
                entries, after = self._cursor.read_after(after, READ_AHEAD)
            except DAMAGED as error:
                damaged = self._cursor._next_after(after, None)
                if damaged is None:
                    raise
                self.give_up((*damaged, -1), error)
                after = damaged
                continue
            if not entries:
                return
            yield from entries

    def counts(self) -> LaneCounts:
        """Count, with the lock. A job that can be taken now is ready, whatever it waited for."""
        leases = self.leases
        with self._repairing:
            self._look_at_the_clock()
        index = self.delayed.index(self._cursor)
        index.read_up()
        tracker = index.tracker
        # What became due stays in the tracker until a consumer comes. After an opening, it also has those that were
        # copied out of their ledgers, delivered or not.
        due = {(ledger_id, entry_id) for _, ledger_id, entry_id in tracker.list(0, self._clock.now_ms() + 1)}
        messages, delayed = self._messages(), tracker.number_of_delayed_messages - len(due)
        if self.delayed.config.shared_index:    # it has those of all subscriptions
            tracked = (Position(ledger_id, entry_id) for _, ledger_id, entry_id in tracker.list(0, MAX_ID + 1))
            delayed = sum(at not in due and not self._cursor.is_acknowledged(at) for at in tracked)
        batches = self._batches()
        for position in {*batches, *positions_aside(self._cursor)}:
            if position not in due and tracker.contains_message(*position):
                if position not in batches:     # one message, or a batch of one
                    delayed -= self._is_held((*position, -1)) or self._is_held((*position, 0))
                    continue
                left = {*range(batches[position])} - self._cursor.acknowledged_batch_indexes(position)
                delayed += sum(not self._is_held((*position, number)) for number in left) - 1
        out, waiting, dead = len(leases.out), len(leases.waiting), len(leases.dead)
        ready = max(messages - delayed - out - waiting - dead, 0)
        oldest = self.peek(1)
        oldest_ms = int(oldest[0].enqueued_at.timestamp() * 1000) if oldest else None
        return LaneCounts(ready, delayed, waiting, out, dead, oldest_ms)

    def _messages(self) -> int:
        """Count the messages that are not acknowledged."""
        of_batches = sum(
            size - len(self._cursor.acknowledged_batch_indexes(position)) - 1
            for position, size in self._batches().items()
        )
        return self._cursor.backlog + of_batches

    def living(self) -> int:
        """Count the messages that are neither acknowledged nor dead, with the lock."""
        return max(self._messages() - len(self.leases.dead), 0)

    def _batches(self) -> dict[Position, int]:
        """The entries with several messages that are not fully acknowledged, and how many they have."""
        sizes = self._sizes
        if sizes is None:
            entries, sizes = self._unacknowledged(), {}
            while chunk := list(islice(entries, 1000)):
                counts = _message_counts(chunk)
                sizes |= {entry.position: count for entry, count in zip(chunk, counts, strict=True) if count > 1}
        else:
            sizes = {at: size for at, size in sizes.items() if not self._cursor.is_acknowledged(at)}
        self._sizes = sizes
        return sizes

    def purge(self) -> int:
        """Acknowledge everything but the dead, durably; return how many messages."""
        with self._lock, self._repairing:
            self.check()
            if is_out_of_space(self.managed_ledger._tail.failure) or is_out_of_space(self._journal.failure):
                shielded(self._reopen)
            self.managed_ledger._check_writable()       # before anything is forgotten
            before, last = self._messages(), self.managed_ledger.last_position
            self._clear_ready()
            if self.leases.dead:
                self._acknowledge_living()
            else:
                self._cursor.clear_backlog()
            self._purges += 1
            self.unique.clear()
            # No opening looks for keys in what is removed, even if the next journal comes while a put is under way.
            if self.unique.listed_to is not None and last is not None:
                self.unique.listed_to = max(self.unique.listed_to, last)
            for message in [*self.leases.attempts, *self.leases.out, *self.leases.waiting]:
                self.leases.finish(message)
            self._checkpoint()
            self._backlog.forget()
            return before - self._messages()

    def _reopen(self) -> None:
        """Close and open it, which recovers what a put or an acknowledgement left on a full disk, and gives back what
        is reserved. What was out is ready again. With the lock. After an error it is closed."""
        before = self.unique
        with suppress(LogFailedError):      # callers got this failure, and opening handles it
            self.close()
        self._open(create=False)
        # (The same set: their puts remove them.)
        self.unique.under_way, self.unique.is_unsure = before.under_way, before.is_unsure

    def _acknowledge_living(self) -> None:
        """Acknowledge everything but the dead messages."""
        cursor, dead = self._cursor, self.leases.dead
        kept = {Position(*at[:2]) for at in dead}
        # (Nothing is read: an entry may be damaged.)
        for info in self.managed_ledger.ledgers:
            left = [Position(info.ledger_id, entry_id) for entry_id in cursor.unacknowledged_in(info.ledger_id)]
            cursor.acknowledge_many([position for position in left if position not in kept])
        cursor.acknowledge_many([position for position in positions_aside(cursor) if position not in kept])
        for position in kept:
            try:
                entry = self._dispatcher._entry_at(position)
            except DAMAGED:
                continue
            for job in self._jobs_of(entry, with_held=True) if entry is not None else ():
                if job._at not in dead:
                    cursor.acknowledge(position, (job._at[2],), job._batch_size)

    # --- the disk ----------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        """Write the cursor's file, then begin the next journal. With the lock."""
        self.home.checkpoint()
        self._checkpoint_at = self.home.checkpoint_at

    def _state(self) -> Iterator[Change]:
        """What makes the state of its deliveries. All keys are in it, if no put that takes one is under way."""
        yield from self.leases.changes()
        self.unique.sweep(self._clock.now_ms())
        if not self.unique.under_way and not self.unique.is_unsure:
            self._note_listed()
        yield from self.unique.changes()

    def flush(self) -> None:
        """Return when everything before is on the disk."""
        self.check()
        self.home.flush()

    def check(self) -> None:
        """Raise LogClosedError, or ForkedHandleError in a forked child."""
        ledger = self.managed_ledger
        if ledger._shown.extent is None:    # in the words of who opened a queue
            raise LogClosedError(f"the {self.home_noun} was closed", file=ledger.path)
        ledger._tail.held.check()

    def close(self) -> None:
        """Close it; what is out is delivered again by the next opening. Idempotent."""
        ledger = self.managed_ledger
        if ledger.closed:
            return
        try:
            self._leave()
        finally:
            self.home.close()

    def _leave(self) -> None:
        # They have views of files, and are in a cycle with this: collecting such a cycle makes Python print errors.
        self._clear_ready()
        self.managed_ledger.unlisten(self._changed.notify_one)
        self._dispatcher.close()


def _kept(reason: str) -> str:
    """What is kept of a reason: what UTF-8 can hold, up to a limit."""
    return reason[:REASON_CHARACTERS].encode("utf-8", "replace").decode()


def _message_counts(entries: Sequence[StoredEntry]) -> Sequence[int]:
    """The number of messages of each entry; 1 if it cannot be parsed."""
    try:
        return metadata_columns(columns_of(entries)[0]).num_messages
    except CorruptRecordError:
        if len(entries) == 1:
            return [1]
        return [count for entry in entries for count in _message_counts([entry])]
