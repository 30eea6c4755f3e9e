"""The deliveries of one subscription: which messages are out, which wait to be delivered again, which are dead.

    ready ── deliver ── out ── finish (acknowledged)
      ↑                  ├── give_back, or its lease ran out ── ready
      └── due ── waiting ┤ wait (refused)
      └── revive ── dead ┘ bury

Pure state: it knows no files, locks or clocks. Its owner writes each change to the journal (ledger.managed.journal)
first, and `replay` makes the same state of what was written. Nothing here is about messages that were never delivered.
"""
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush

from seglog._kernels.quiet_lane import LeaseTables
from seglog.ledger.managed.journal import Change, JournalKind, JournalRecord
from seglog.named_tuple import NamedTuple

# A message: ledger id, entry id, and its number in the batch, -1 if its entry is not one.
Message = tuple[int, int, int]


class JobLease(NamedTuple):
    """A delivery that is out. `attempt`: how often the message was delivered by now."""

    attempt: int
    ends_ns: int        # by the monotonic clock


class Death(NamedTuple):
    """Why a message is dead, since when (ms since 1970), and after how many deliveries."""

    attempt: int
    at_ms: int
    reason: str


class FailedAttempt(NamedTuple):
    """Why the last delivery failed whose reason is known. `attempt`: which one that was."""

    attempt: int
    reason: str


class Leases(LeaseTables):
    """`attempts`: of each message that was delivered and is not acknowledged, the number of deliveries. `out`,
    `waiting` (when it is due, ms since 1970) and `dead`: each message is in one of them at most. `holders`: the number
    of the process that has it, unless that is the one with the queue. `failures`: of those in `attempts` that were
    refused."""

    def __init__(self) -> None:
        # (The fields are those of a kernel, which makes the steps that most messages take.)
        self.attempts: dict[Message, int] = {}
        self.out: dict[Message, JobLease] = {}
        self.waiting: dict[Message, int] = {}
        self.dead: dict[Message, Death] = {}
        self.holders: dict[Message, int] = {}
        self.failures: dict[Message, FailedAttempt] = {}
        # The order of the times in `out` and `waiting`; also of some that are not valid any more.
        self._ends: list[tuple[int, Message]] = []
        self._dues: list[tuple[int, Message]] = []
        self._lease_kind = JobLease

    def is_held(self, message: Message) -> bool:
        """Whether it must not be delivered now."""
        return message in self.out or message in self.waiting or message in self.dead

    # --- deliveries --------------------------------------------------------------------------

    def deliver(self, message: Message, attempt: int, ends_ns: int) -> None:
        """It is handed out, until the lease ends."""
        self.attempts[message] = attempt
        # One step in C: the class's own __new__ is Python code.
        self.out[message] = tuple.__new__(JobLease, (attempt, ends_ns))
        heappush(self._ends, (ends_ns, message))

    def assign(self, message: Message, holder: int) -> None:
        """It is handed out to this process; 0: the one with the queue."""
        if holder:
            self.holders[message] = holder
        elif self.holders:
            self.holders.pop(message, None)

    def extend(self, message: Message, ends_ns: int) -> None:
        """Its lease ends at another time."""
        self.out[message] = JobLease(self.out[message].attempt, ends_ns)
        heappush(self._ends, (ends_ns, message))

    def give_back(self, message: Message, attempt: int) -> None:
        """It was not handed out after all: it had so many deliveries before."""
        self.out.pop(message, None)
        self.assign(message, 0)
        if attempt:
            self.attempts[message] = attempt
        else:
            self.attempts.pop(message, None)

    def next_end_ns(self) -> int | None:
        """When the next lease ends."""
        ends = self._ends
        while ends:
            lease = self.out.get(ends[0][1])
            if lease is not None and lease.ends_ns == ends[0][0]:
                return ends[0][0]
            heappop(ends)
        return None

    def end_leases(self, now_ns: int) -> list[Message]:
        """End the leases that are over, and return their messages, which are ready again."""
        over = []
        while (next_ns := self.next_end_ns()) is not None and next_ns <= now_ns:
            message = heappop(self._ends)[1]
            del self.out[message]
            self.assign(message, 0)
            over.append(message)
        return over

    # --- waiting -----------------------------------------------------------------------------

    def wait(self, message: Message, due_ms: int) -> None:
        """It was refused and is due again at `due_ms`, or it was dead and is requeued."""
        self.waiting[message] = due_ms      # first: see repair
        heappush(self._dues, (due_ms, message))
        self.assign(message, 0)
        self.out.pop(message, None)
        self.dead.pop(message, None)

    def fail(self, message: Message, attempt: int, reason: str, due_ms: int) -> None:
        """It was refused for this reason, and is due again at `due_ms`."""
        self.failures[message] = FailedAttempt(attempt, reason)
        self.wait(message, due_ms)

    def revive(self, message: Message, due_ms: int) -> None:
        """Requeue a dead message: its attempts restart at 1."""
        self.attempts.pop(message, None)
        self.failures.pop(message, None)
        self.wait(message, due_ms)

    def next_due_ms(self) -> int | None:
        """When the next message has waited long enough."""
        dues = self._dues
        while dues:
            if self.waiting.get(dues[0][1]) == dues[0][0]:
                return dues[0][0]
            heappop(dues)
        return None

    def take_due(self, now_ms: int) -> list[Message]:
        """Return the messages that have waited long enough: they are ready."""
        due = []
        while (next_ms := self.next_due_ms()) is not None and next_ms <= now_ms:
            message = heappop(self._dues)[1]
            del self.waiting[message]
            due.append(message)
        return due

    # --- the end -----------------------------------------------------------------------------

    def bury(self, message: Message, attempt: int, at_ms: int, reason: str) -> None:
        """It is dead: not delivered until it is taken back."""
        self.dead[message] = Death(attempt, at_ms, reason)      # first: see repair
        self.assign(message, 0)
        self.out.pop(message, None)
        self.waiting.pop(message, None)
        self.attempts.pop(message, None)
        self.failures.pop(message, None)

    def finish(self, message: Message) -> None:
        """It was acknowledged."""
        if self.holders:
            self.assign(message, 0)
        if self.failures:
            self.failures.pop(message, None)
        self.attempts.pop(message, None)
        if self.out.pop(message, None) is None:
            self.waiting.pop(message, None)
            self.dead.pop(message, None)

    def tidy(self) -> None:
        """Drop times that are not valid any more, if they are most of them."""
        if len(self._ends) > 2 * len(self.out) + 1000 or len(self._dues) > 2 * len(self.waiting) + 1000:
            self.repair()

    def repair(self) -> None:
        """Restore the order of the times, also if an exception from outside came in the middle of a change."""
        for message in [message for message in self.waiting if message in self.dead]:
            del self.waiting[message]
        for message in [message for message in self.out if message in self.waiting or message in self.dead]:
            del self.out[message]
        ends = [(lease.ends_ns, message) for message, lease in self.out.items()]
        dues = [(due_ms, message) for message, due_ms in self.waiting.items()]
        heapify(ends)
        heapify(dues)
        self._ends, self._dues = ends, dues

    # --- the journal -------------------------------------------------------------------------

    def replay(self, record: JournalRecord) -> None:
        """Apply a record, as after a crash: what was out is ready again."""
        for *ids, number in record.items:
            message: Message = tuple.__new__(tuple, ids)
            match record.kind:
                case JournalKind.DELIVERED:
                    self.waiting.pop(message, None)
                    if message not in self.dead:
                        self.attempts[message] = number
                        self.assign(message, record.holder)
                case JournalKind.ACKED:
                    self.finish(message)
                case JournalKind.WAITING:
                    self.attempts[message] = number
                    if record.text:
                        self.fail(message, number, record.text, record.at_ms)
                    else:
                        self.wait(message, record.at_ms)
                case JournalKind.DEAD:
                    self.bury(message, number, record.at_ms, record.text)
                case JournalKind.READY:
                    self.revive(message, record.at_ms)
                case JournalKind.SUBSCRIPTION | JournalKind.UNIQUE | JournalKind.UNIQUE_TO:
                    pass

    def changes(self) -> Iterator[Change]:
        """Yield what makes this state, for the beginning of a journal."""
        delivered: dict[int, list[tuple[int, int, int, int]]] = {}
        texts: dict[Message, str] = {}
        for message, failure in self.failures.items():
            attempt = self.attempts.get(message)
            if attempt == failure.attempt and message in self.waiting:
                texts[message] = failure.reason
            elif attempt is not None:       # first why it failed; what happened then stands below
                yield Change(JournalKind.WAITING, [(*message, failure.attempt)], text=failure.reason)
        for message, attempt in self.attempts.items():
            if message not in self.waiting:
                delivered.setdefault(self.holders.get(message, 0), []).append((*message, attempt))
        for holder, items in delivered.items():
            yield from (
                Change(JournalKind.DELIVERED, items[at : at + _ITEMS], holder=holder)
                for at in range(0, len(items), _ITEMS)
            )
        for message, due_ms in self.waiting.items():
            attempt = self.attempts.get(message, 0)
            kind = JournalKind.WAITING if attempt else JournalKind.READY
            yield Change(kind, [(*message, attempt)], due_ms, text=texts.get(message, ""))
        for message, death in self.dead.items():
            yield Change(JournalKind.DEAD, [(*message, death.attempt)], death.at_ms, text=death.reason)

    def forget(self, messages: Iterable[Message]) -> None:
        """Forget messages that do not exist any more."""
        for message in list(messages):
            self.finish(message)


# Items of one record: of a kind whose number nothing bounds.
_ITEMS = 10_000
