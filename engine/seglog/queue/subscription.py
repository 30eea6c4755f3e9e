"""A subscription of a topic: what its consumers may have next, by its kind.

    exclusive, failover   one consumer at a time; in order, also over refusals: what comes after a refused message waits
    shared                several consumers, each message to one of them
    key_shared            the same, in order within a key: at most one message of a key is out, and what comes after it
                          waits until that is acknowledged or dead

Messages that were delayed are delivered when they are due, never early: they stand outside of the order.

    key_shared:    ready ── its key is busy ── held ── the key is free ── free ── delivered
"""
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Literal

from seglog._kernels.quick_lock import LockCondition, QuickLock
from seglog.errors import InvalidArgumentError, LogClosedError, SubscriptionBusyError
from seglog.late_import import late
from seglog.ledger.managed.journal import Change, JournalKind
from seglog.ledger.position import Position
from seglog.logger import Logger
from seglog.queue.backlog import Backlog
from seglog.queue.dead_letters import DeadLetters
from seglog.queue.job import Job
from seglog.queue.journaled_ledger import JournaledLedger
from seglog.queue.lane import UNREADABLE, Lane, LaneCounts
from seglog.queue.message import DeadMessage, Message
from seglog.queue.metrics import QueueCounts
from seglog.queue.options import QueueOptions
from seglog.topic.leases import Message as At

logger = Logger("seglog")

Kind = Literal["exclusive", "failover", "shared", "key_shared"]
# Messages that wait in memory for their keys, before a subscription reads no further.
LOOK_AHEAD = 10_000


class SubscriptionLane(Lane):
    """Its lock is that of the topic, and guards all fields."""

    noun = "message"
    home_noun = "topic"
    _kind = Message
    _dead_kind = DeadMessage

    def __init__(
        self, home: JournaledLedger, name: str, lock: QuickLock, options: QueueOptions, backlog: Backlog,
        letters: DeadLetters | None,
    ) -> None:
        super().__init__(
            home, name, "", lock, LockCondition(lock), options, backlog, QueueCounts(), letters
        )
        self.kind: Kind | None = None
        # Messages that wait, and may be due again before others that come before them have been read.
        self._unordered: set[At] = set()
        # Consumers that are not the active one wait on it.
        self.turn = LockCondition(lock)
        # The consumers that are open, by their numbers, in the order in which they came. One that nobody has any more
        # without having closed it is gone, too.
        self.consumers: dict[int, weakref.ref[object]] = {}
        self.is_removed = False
        self._clear()
        self._clear_keys()
        self._take_leases()
        self._forget_what_is_gone()
        # A consumer's number is one of this opening.
        self.leases.holders.clear()
        self._join()

    # --- consumers ---------------------------------------------------------------------------

    def join(self, number: int, consumer: object, kind: Kind, options: QueueOptions) -> None:
        """A consumer comes, with the lock. Raises SubscriptionBusyError."""
        self._find_lost()
        if self.consumers:
            if kind != self.kind:
                raise SubscriptionBusyError(
                    f"subscription {self.name!r} has consumers of the kind {self.kind}, not {kind}",
                    file=self.managed_ledger.path,
                )
            if kind == "exclusive":
                raise SubscriptionBusyError(
                    f"subscription {self.name!r} is exclusive, and has a consumer", file=self.managed_ledger.path,
                )
            if options != self._options:
                raise InvalidArgumentError(
                    f"subscription {self.name!r} has consumers with other options: {self._options}",
                    hint="pass the same ones to all consumers of a subscription",
                )
        self._options, self.reraises = options, options.reraise
        self._most_attempts = options.max_attempts
        if kind != self.kind:
            self.kind = kind
            self._is_torn = True        # read again, by the rules of this kind
            self._unordered = {*self.leases.waiting}
        self.consumers[number] = weakref.ref(consumer)

    def _find_lost(self) -> None:
        for number in [number for number, consumer in self.consumers.items() if consumer() is None]:
            self.leave(number)

    def leave(self, number: int) -> None:
        """A consumer goes, with the lock: what it has is delivered again at once."""
        leases = self.leases
        gone = sorted(at for at, holder in leases.holders.items() if holder == number and at in leases.out)
        for at in gone:
            del leases.out[at]
            leases.assign(at, 0)
        self._come_again(gone)
        self.consumers.pop(number, None)    # last: a call that is repeated after an interrupt does the rest
        self._changed.notify()
        self.turn.notify()

    def is_active(self, number: int) -> bool:
        """Whether a consumer gets messages, with the lock: with failover, the one that came first."""
        self._find_lost()
        return self.kind != "failover" or next(iter(self.consumers), None) == number

    @property
    def _is_in_order(self) -> bool:
        return self.kind in ("exclusive", "failover")

    # --- what is next ------------------------------------------------------------------------

    def _next(self, wanted: int) -> Job | None:
        if self._is_in_order:
            return self._next_in_order(wanted)
        if self.kind == "key_shared":
            return self._next_of_free_key(wanted)
        return super()._next(wanted)

    def _next_in_order(self, wanted: int) -> Job | None:
        waiting = self.leases.waiting
        if waiting:
            # What was refused goes first, when it is due.
            first = min(waiting)
            while not self._ready and self._fill(wanted):
                pass
            heads = [jobs[0]._at for jobs in (self._due, self._ready) if jobs]
            if self._again:
                heads.append(next(iter(self._again)))
            if not heads or min(heads) > first:
                return None
            for jobs in (self._due, self._ready):
                if jobs and jobs[0]._at == min(heads):
                    return jobs.popleft()
        return super()._next(wanted)

    def _next_of_free_key(self, wanted: int) -> Job | None:
        while True:
            job = self._free.popleft() if self._free else super()._next(wanted)
            if job is None:
                return None
            assert isinstance(job, Message)
            try:
                key = job._order_key()
            except UNREADABLE as error:
                self.give_up(job._at, error)
                continue
            if key is None:
                return job
            held = self._held_back.get(key)
            if held and held[0][0] < job._at:
                heappush(held, (job._at, next(self._serial), job))
                job = heappop(held)[2]
            if self._may_go(key, job._at):
                self._busy.setdefault(key, set()).add(job._at)
                self._keys[job._at] = key
                return job
            heappush(self._held_back.setdefault(key, []), (job._at, next(self._serial), job))
            self.held_count += 1

    def _may_go(self, key: bytes, at: At) -> bool:
        """Whether no message of the key is out, and none that was delivered comes before this one."""
        busy = self._busy.get(key)
        if not busy:
            return True
        out, taking = self.leases.out, self._taking
        return not any(one != at and (one < at or one in out or one in taking) for one in busy)

    def _reads_on(self) -> bool:
        if self.kind != "key_shared" or self.held_count < LOOK_AHEAD:
            self.is_at_limit = False
            return True
        if not self.is_at_limit:
            self.is_at_limit = True
            late("logging")
            logger.warning(
                "%s: subscription %s waits: %d messages are held back until earlier ones of their keys are finished",
                self.managed_ledger.path, self.name, self.held_count,
            )
        return False

    def _clear_keys(self) -> None:
        # Of each key the messages that were delivered, and are neither acknowledged nor dead.
        self._busy: dict[bytes, set[At]] = {}
        self._keys: dict[At, bytes] = {}
        # Those that wait for their key, the first one first; and those whose key is free now.
        self._held_back: dict[bytes, list[tuple[At, int, Message]]] = {}
        self._serial = count()
        self.held_count = 0
        self._free: deque[Message] = deque()
        # Whether it reads no further, since so many are held back.
        self.is_at_limit = False

    def _release_key(self, at: At) -> None:
        """A message is finished or dead."""
        key = self._keys.pop(at, None)
        if key is not None:
            busy = self._busy.get(key)
            if busy is not None:
                busy.discard(at)
                if not busy:
                    del self._busy[key]
            self._look_at(key)

    def _look_at(self, key: bytes) -> None:
        """Let the first message go that waits for this key, if nothing is before it."""
        held = self._held_back.get(key)
        if held and self._may_go(key, held[0][0]):
            self._free.append(heappop(held)[2])
            self.held_count -= 1
            if not held:
                del self._held_back[key]
            self._changed.notify_one()

    def _look_at_the_clock(self) -> None:
        ended = self.leases.end_leases(self._clock.monotonic_ns()) if self.leases.out else []
        due = self.leases.take_due(self._clock.now_ms()) if self.leases.waiting else []
        if ended and self._is_in_order:
            self._give_back_after(min(ended))
        if due and not self._unordered.isdisjoint(due):
            self._unordered.difference_update(due)
            if self.kind != "shared":
                self._resync()      # reads them again, too
                return
        if ended or due:
            self._come_again([*ended, *due])
            self._warn_of(ended)

    def _come_again(self, messages: Sequence[At]) -> None:
        """They are delivered again, before what was not delivered yet."""
        self._again |= dict.fromkeys(messages)
        if self._is_in_order:
            self._again = dict.fromkeys(sorted(self._again))
        for at in messages:
            if at in self._keys:
                self._look_at(self._keys[at])

    def _give_back_after(self, at: At) -> None:
        """In order: what is out and comes after this message is delivered again, after it."""
        later = sorted(one for one in self.leases.out if one > at)
        before = [(one, self.leases.out[one].attempt - 1) for one in later]
        now_ms = self._clock.now_ms()
        for kind, items in (
            (JournalKind.WAITING, [(*one, attempts) for one, attempts in before if attempts]),
            (JournalKind.READY, [(*one, attempts) for one, attempts in before if not attempts]),
        ):
            if items:
                self._note(kind, items, now_ms)
        for one, attempts in before:
            self.leases.give_back(one, attempts)
        self._again = dict.fromkeys(sorted({*self._again, *later}))

    def _clear_ready(self) -> None:
        super()._clear_ready()
        self._clear_keys()

    def _resync(self) -> None:
        super()._resync()
        if self.kind == "key_shared":
            for at in [*self.leases.out, *self.leases.waiting]:
                key = self._key_at(at)
                if key is not None:
                    self._busy.setdefault(key, set()).add(at)
                    self._keys[at] = key

    def _key_at(self, at: At) -> bytes | None:
        try:
            entry = self._dispatcher._entry_at(Position(*at[:2]))
            for job in () if entry is None else self._parsed(entry, with_held=True):
                if job._at == at:
                    assert isinstance(job, Message)
                    return job._order_key()
        except UNREADABLE:
            pass        # its next delivery gives it up
        return None

    # --- what happens to a message -----------------------------------------------------------

    def _finish(self, sizes: dict[At, int]) -> None:
        super()._finish(sizes)
        if self._keys:
            for at in sizes:
                self._release_key(at)
            if self.is_at_limit and self.held_count < LOOK_AHEAD:
                self._changed.notify_one()

    def _drop_ready(self, at: At) -> None:
        super()._drop_ready(at)
        if any(job._at == at for job in self._free):
            self._free = deque(job for job in self._free if job._at != at)
        for key, held in list(self._held_back.items()):
            kept = [one for one in held if one[0] != at]
            if len(kept) < len(held):
                self.held_count -= len(held) - len(kept)
                kept.sort()
                self._held_back[key] = kept
                if not kept:
                    del self._held_back[key]

    def _bury(self, at: At, attempt: int, reason: str, *, is_logged: bool = True) -> None:
        super()._bury(at, attempt, reason, is_logged=is_logged)
        self._release_key(at)
        self._changed.notify_one()

    def _refused(self, at: At) -> None:
        if self._is_in_order:
            self._give_back_after(at)
        elif at in self._keys:
            self._look_at(self._keys[at])

    def acknowledge_up_to(self, job: Job, *, wait: bool) -> None:
        """See Message.ack_cumulative."""
        with self._lock, self._repairing:
            self.check()
            if not self._is_in_order:
                raise InvalidArgumentError(
                    f"cumulative acknowledgements need the kind exclusive or failover; this one is {self.kind}",
                    hint="acknowledge each message by itself",
                )
            known = {*self.leases.attempts, *self.leases.out}
            before = sorted(at for at in known if at < job._at and at not in self.leases.dead)
            sizes = {at: size for at, size in map(self._sized, before) if not self._is_acknowledged(at)}
            if not self._is_acknowledged(job._at):
                sizes[job._at] = job._batch_size
            if sizes:
                self._note(JournalKind.ACKED, [(*at, size) for at, size in sizes.items()])
                for at in sizes:
                    self._again.pop(at, None)
                self._finish(sizes)
                self._counts.acknowledged.add(len(sizes))
            journal, number = self._journal, self._journal.number
        if wait:
            journal.await_number(number)

    def requeue(self, messages: Iterable[At]) -> int:
        wanted = list(messages)
        with self._lock:
            self._unordered.update(wanted)
        return super().requeue(wanted)

    # --- moving ------------------------------------------------------------------------------

    def moved(self) -> None:
        """The cursor was moved: what was delivered before is forgotten, durably at return. With the lock."""
        leases = self.leases
        leases.forget([*leases.attempts, *leases.out, *leases.waiting, *leases.dead])
        self._sizes = None
        self._resync()
        self.home.checkpoint()
        self._changed.notify()

    def _state(self) -> Iterator[Change]:
        return self.leases.changes()

    # --- looking -----------------------------------------------------------------------------

    def counts(self) -> LaneCounts:
        counts = super().counts()
        counts.ready = max(counts.ready - self.held_count, 0)
        return counts

    def check(self) -> None:
        if self.is_removed:
            raise LogClosedError(f"the subscription {self.name} was removed", file=self.managed_ledger.path)
        super().check()

    def close(self) -> None:
        """Deliver nothing more; the topic closes the rest. Idempotent."""
        self.consumers.clear()
        self._leave()

    def remove(self) -> None:
        """The same, of a subscription that is removed: another may get its number in the journal."""
        self.is_removed = True
        self.close()
        self._changed.notify()
        self.turn.notify()

    def next_ms(self) -> int | None:
        if self._is_in_order and self.leases.waiting:
            return self.leases.next_due_ms()
        return super().next_ms()
