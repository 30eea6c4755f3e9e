"""What a tracker of delayed messages answers, whichever way it keeps them."""
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from seglog._kernels.quick_lock import LockCondition, QuickLock
from seglog.delayed.config import DelayedDeliveryConfig


class DelayedMessage(NamedTuple):
    """A message that is delayed; sorts in the order of delivery."""

    deliver_at: int
    """ms since 1970"""
    ledger_id: int
    entry_id: int


class LogSource(Protocol):
    """The log that a tracker's messages are in. Its methods are called with the tracker's lock held."""

    def read_up(self) -> None:
        """Tell the tracker of every message in the log that it does not know."""

    def passed_over(self) -> Iterable[int]:
        """Ledgers that are passed, of which messages were relocated and are not acknowledged: decisions about them are
        kept."""

    def read_again(self) -> None:
        """The tracker had to forget messages whose snapshot is damaged: read the log again, from its start."""


# `list` is a method below.
Scheduled = list[tuple[int, int]]
"""[(ledger_id, entry_id), …]"""
Messages = list[DelayedMessage]
Counts = list[int]


class DelayedDeliveryTracker(ABC):
    """Which messages of a subscription are delayed, and which of them are due.

    A message is tracked once, by its position. What is pending will be delivered: `get_scheduled_messages` gives every
    pending message once, at or after its time, however the clock steps, in the order of (deliver_at, ledger_id,
    entry_id). The cutoff of "due" is now, and one tick later where delivery is not strict (Pulsar's
    AbstractDelayedDeliveryTracker.getCutoffTime).

    The log is the source of truth. After a restart it is read again from the mark-delete position, and what a tracker
    does not know any more is added again. A position's deliver_at does not change in the log; `reschedule` does that.

    `source`: who reads the log for the tracker. Where there is one, single messages, lists and counts are answered from
    the whole log, also from what no reader has met yet; without one, from what was added.

    Thread-safe. Entry ids are at most 4294967295, the limit of the bitmaps in Pulsar's snapshots.
    """

    source: LogSource | None = None

    @property
    @abstractmethod
    def config(self) -> DelayedDeliveryConfig: ...

    @property
    @abstractmethod
    def lock(self) -> QuickLock:
        """A lock that its thread may take again. Who holds it sees no other thread change the tracker: for what takes
        several calls. Taken before the lock of a cursor, which the tracker's own properties may need."""

    @property
    @abstractmethod
    def changed(self) -> LockCondition:
        """Where a thread with the lock waits for what may bring the next delivery forward, beside time and new
        messages."""

    @abstractmethod
    def reconfigure(self, config: DelayedDeliveryConfig) -> None:
        """Go on under another configuration. What concerns sealing counts from the next seal on."""

    @abstractmethod
    def add_message(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        """Whether the tracker answers for the message from now on; `deliver_at` is ms since 1970.

        False: it is due (or deliver_at is negative, not delayed), so the caller dispatches it now, and the tracker will
        not deliver it, even if it knew it before. True: it will be delivered, or was cancelled; not to be dispatched.

        Raises TooManyDelayedError, InvalidArgumentError for a position that cannot be.
        """

    @abstractmethod
    def add_messages(
        self, ledger_ids: Any, entry_ids: Any, deliver_ats: Any, *, within_limit: bool = True
    ) -> bytes:
        """`add_message` for columns: buffers of int64 of one length. One byte a message, 1 for True.

        `within_limit=False`: they are in the log already, so delayedDeliveryMaxDelayedMessages refuses none of them.
        """

    @property
    @abstractmethod
    def has_cancelled(self) -> bool:
        """Whether any message was cancelled that the cursor has not passed."""

    @abstractmethod
    def get_scheduled_messages(self, max_messages: int) -> Scheduled:
        """At most so many messages that are due, in the order of delivery; they are not pending afterwards."""

    @abstractmethod
    def has_message_available(self) -> bool:
        """Whether a message is due."""

    @abstractmethod
    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the message is pending here: readers skip it (existDelayedMessage of PIP-195)."""

    @abstractmethod
    def pending_in(self, ledger_id: int) -> Any:
        """The entry ids of the pending messages of a ledger, a pyroaring.BitMap; None where there are none. Borrowed:
        for looking, with the lock held."""

    @abstractmethod
    def next_delivery_time(self) -> int | None:
        """When the next message is due, ms since 1970; None where none is pending. May be early, never late: where a
        cancelled message was the next."""

    @property
    @abstractmethod
    def number_of_delayed_messages(self) -> int:
        """How many are pending. O(1), without a lock."""

    @abstractmethod
    def forget(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the message was pending and is not any more: whoever it is for has acknowledged it."""

    @abstractmethod
    def cancel(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the message was pending and will now never be delivered. Durable where the tracker is."""

    @abstractmethod
    def reschedule(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        """Whether the message was pending and is now due at `deliver_at` instead. Durable where the tracker is."""

    @abstractmethod
    def deliver_now(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the message was pending and is now due."""

    @abstractmethod
    def deliver_at(self, ledger_id: int, entry_id: int, published: int) -> int:
        """When a message is due that was published to be due at `published`: it may have been rescheduled."""

    @abstractmethod
    def relocate(self, messages: Iterable[tuple[int, int, int]]) -> None:
        """The cursor passes these, (deliver_at, ledger_id, entry_id), and they are pending all the same. What was
        decided about them before holds; they are not trimmed, and what the tracker knew of them before is void."""

    @abstractmethod
    def list(self, first_at: int, end_at: int) -> Messages:
        """The pending messages with first_at <= deliver_at < end_at, in the order of delivery. The last millisecond
        that a message may name is 2**63 - 1; `end_at` may be later."""

    @abstractmethod
    def count(self, first_at: int, end_at: int) -> int:
        """How many `list(first_at, end_at)` gives."""

    @abstractmethod
    def histogram(self, edges: Sequence[int]) -> Counts:
        """How many are pending between each edge (ms since 1970, rising) and the next; one number less than edges."""

    @abstractmethod
    def trim(self, ledger_id: int, entry_id: int = 0) -> int:
        """Forget what is before this position, which the cursor has passed. How many were pending there."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything, here and in storage."""

    @abstractmethod
    def close(self) -> None:
        """Let go of memory, threads and storage. A second call does nothing."""
