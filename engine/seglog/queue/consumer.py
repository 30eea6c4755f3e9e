"""A consumer of a topic's subscription."""
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, cast

from seglog._kernels.quick_lock import QuickLock
from seglog.clock import Clock
from seglog.errors import InvalidArgumentError, LogClosedError
from seglog.ledger.position import Position
from seglog.queue.dead import DeadJobs
from seglog.queue.job import Job
from seglog.queue.message import Message
from seglog.queue.options import QueueOptions, duration_ns
from seglog.queue.subscription import Kind, SubscriptionLane
from seglog.queue.taker import JobTaker


class SubscribedTopic(Protocol):
    """What this module needs of a Topic."""

    path: Path
    _lock: QuickLock
    _clock: Clock
    _is_told: bool

    @property
    def closed(self) -> bool: ...

    def _seek(self, consumer: "Consumer", to: object) -> None: ...

    def _unsubscribe(self, name: str, number: int | None) -> None: ...


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """How many messages of a subscription wait for what.

    ready: to be taken now. held_back: of the kind key_shared, read ahead, until earlier ones of their keys are
    finished. delayed: until the time that was given with them. waiting: refused, until their delay is over. in_flight:
    taken, and neither acknowledged nor refused, until their lease ends. dead: given up. oldest_age_s: the age in
    seconds of the oldest message that is neither in flight nor dead, or None if there is none. is_at_limit: so many are
    held back that no further ones are read. consumers: how many are open.
    """

    ready: int
    held_back: int
    delayed: int
    waiting: int
    in_flight: int
    dead: int
    oldest_age_s: float | None
    is_at_limit: bool
    consumers: int

    @property
    def backlog(self) -> int:
        """The number of messages that are neither acknowledged nor dead."""
        return self.ready + self.held_back + self.delayed + self.waiting + self.in_flight


def stats_of(lane: SubscriptionLane, clock: Clock) -> SubscriptionStats:
    """Count the messages of a subscription, with the lock of its topic."""
    counts = lane.counts()
    age_s = None if counts.oldest_ms is None else max((clock.now_ms() - counts.oldest_ms) / 1000, 0.0)
    return SubscriptionStats(
        ready=counts.ready, held_back=lane.held_count, delayed=counts.delayed, waiting=counts.waiting,
        in_flight=counts.in_flight, dead=counts.dead, oldest_age_s=age_s, is_at_limit=lane.is_at_limit,
        consumers=len(lane.consumers),
    )


class Consumer(JobTaker):
    """Made by Topic.subscribe. Threads may share it. `name`: that of its subscription; `kind`: "exclusive", "failover",
    "shared" or "key_shared"."""

    def __init__(
        self, topic: SubscribedTopic, lane: SubscriptionLane, number: int, kind: Kind, options: QueueOptions
    ) -> None:
        self._topic = topic
        self._lane = lane
        self._number = number
        self.name = lane.name
        self.kind: Kind = kind
        self._options = options
        self._in_order = (lane,)
        self._changed = lane._changed
        self._letters = None
        self._clock = topic._clock
        self._is_told = topic._is_told
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Consumer {self.name}: {'closed' if self._is_closed else self.kind}>"

    # --- taking ------------------------------------------------------------------------------

    def get(
        self, timeout: timedelta | float | None = None, *, lease: timedelta | float | None = None
    ) -> Message | None:
        """Take the next message, or None if there is none after `timeout`. With `timeout` None, wait forever.

        It is leased to the caller for `lease`, by default that of the subscription. A consumer of the kind failover
        that is not the active one gets none. Raises LogClosedError, also if it is closed while this waits.
        """
        taken: list[Job] = []
        try:
            self._take(1, timeout, lease, taken)
            return cast("Message", taken[0]) if taken else None
        except BaseException:
            self._give_back(taken)
            raise

    def get_many(
        self, max_messages: int, timeout: timedelta | float | None = None, *, lease: timedelta | float | None = None
    ) -> list[Message]:
        """Take the next messages, at most `max_messages`; wait up to `timeout` for the first one. Otherwise as get."""
        if type(max_messages) is not int or max_messages < 1:
            raise InvalidArgumentError(f"max_messages must be an int of 1 or more, not {max_messages!r}")
        taken: list[Job] = []
        try:
            self._take(max_messages, timeout, lease, taken)
            return cast("list[Message]", taken)
        except BaseException:
            self._give_back(taken)
            raise

    def _take(
        self, count: int, timeout: timedelta | float | None, lease: timedelta | float | None, taken: list[Job]
    ) -> None:
        left: timedelta | float | None = timeout
        if self.kind == "failover":
            deadline = None if timeout is None else time.monotonic() + duration_ns("timeout", timeout) / 1e9
            if not self._await_turn(deadline):
                return
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
        self._take_for(self._number, count, left, lease, taken)

    def _take_wanted(self, wanted: Callable[[], int]) -> list[Job]:
        """Wait for messages, and take as many as `wanted` says then; none if it says 0."""
        if self.kind == "failover" and not self._await_turn(None, wanted):
            return []
        taken: list[Job] = []
        self._take_for(self._number, wanted, None, None, taken)
        return taken

    def _wake_takers(self) -> bool:
        """Let those in `_take_wanted` ask again how many are wanted."""
        self._changed.notify()
        self._lane.turn.notify()
        return True

    def _await_turn(self, deadline: float | None, wanted: Callable[[], int] | None = None) -> bool:
        """Wait until it is the active one: then it stays so. False: it is late, or nothing is wanted any more."""
        turn = self._lane.turn
        with turn:
            while True:
                seen = turn.number
                self._check()
                if self._lane.is_active(self._number):
                    return True
                left_s = None if deadline is None else deadline - time.monotonic()
                if (left_s is not None and left_s <= 0) or (wanted is not None and not wanted()):
                    return False
                turn.wait(seen, left_s)

    def _check(self) -> None:
        if self._is_closed:
            raise LogClosedError(f"the consumer of {self.name} was closed", file=self._topic.path)
        self._lane.check()

    def _is_held_back(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Message]:
        """Take messages one after another, waiting for each, until the consumer or the topic is closed, or the
        subscription removed."""
        # (No generator: as Queue.__iter__.)
        return iter(self._next_message, None)

    def _next_message(self) -> Message | None:
        """Wait for the next message; None: there will be none."""
        taken: list[Job] = []
        try:
            self._take(1, None, None, taken)
            return cast("Message", taken[0])
        except BaseException as error:
            self._give_back(taken)
            if isinstance(error, LogClosedError) and self._is_over():
                return None
            raise

    def _is_over(self) -> bool:
        """Whether loops over its messages end."""
        return self._is_closed or self._topic.closed or self._lane.is_removed

    @property
    def is_active(self) -> bool:
        """Whether it gets messages: of the kind failover, the consumer that came first does, until it is closed."""
        with self._topic._lock:
            return not self._is_closed and self._lane.is_active(self._number)

    # --- finishing ---------------------------------------------------------------------------

    def ack(self, messages: Iterable[Message], *, wait: bool = True) -> None:
        """Acknowledge several messages, with one sync; otherwise as Message.ack."""
        listed = self._own(messages)
        self._lane.acknowledge(listed, wait=wait)
        for message in listed:
            message.is_settled = True

    def release(self, messages: Iterable[Message]) -> None:
        """Give messages back that were taken and not worked on: they are delivered again, at once, as the same attempt.
        Those whose lease has ended, or that are settled, stay as they are."""
        for message in self._own(messages):
            if not message.is_settled:
                self._lane.release(message)
                message.is_settled = True

    def _own(self, messages: Iterable[Message]) -> list[Message]:
        if isinstance(messages, str | bytes | bytearray | memoryview) or not isinstance(messages, Iterable):
            raise InvalidArgumentError(
                f"messages must be a list, or another iterable, not {repr(messages)[:80]}",
                hint="pass a list, even for one",
            )
        listed = list(messages)
        for message in listed:
            if not isinstance(message, Message) or message._lane is not self._lane:
                raise InvalidArgumentError(f"not a message of this subscription: {repr(message)[:80]}")
        return listed

    # --- moving ------------------------------------------------------------------------------

    def seek(self, to: "str | int | datetime | Position | Message") -> None:
        """Let the subscription go on from another place, durably: everything before it is acknowledged, and nothing
        from there on, as if it had never been delivered. What its consumers have is delivered again, unless they
        acknowledge it after all.

        `to`: as `start` of Topic.subscribe. Messages that all subscriptions had acknowledged may be gone.
        """
        self._topic._seek(self, to)

    def unsubscribe(self) -> None:
        """Close it, and remove the subscription, durably: its messages are not kept for it any more.

        Raises SubscriptionBusyError if it has other consumers.
        """
        self._topic._unsubscribe(self.name, self._number)
        self._is_closed = True

    # --- looking -----------------------------------------------------------------------------

    def peek(self, count: int = 1) -> list[Message]:
        """Look at the first messages that are neither in flight nor dead, due or not, without taking them."""
        if type(count) is not int or count < 1:
            raise InvalidArgumentError(f"count must be an int of 1 or more, not {count!r}")
        with self._topic._lock:
            self._check()
            return cast("list[Message]", self._lane.peek(count))

    def stats(self) -> SubscriptionStats:
        """Count the messages of the subscription. Reads all entries that were not read yet."""
        with self._topic._lock:
            self._check()
            return stats_of(self._lane, self._clock)

    @property
    def dead(self) -> DeadJobs:
        """The messages that the subscription gave up: to look at, to put back, to remove."""
        return DeadJobs(self._topic._lock, self._in_order)

    # --- the end -----------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    def close(self) -> None:
        """Take no more messages. What it has is delivered again at once, to the other consumers. Idempotent."""
        lane = self._lane
        with self._topic._lock, lane._repairing:
            self._is_closed = True
            if self._number in lane.consumers:
                lane.leave(self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
