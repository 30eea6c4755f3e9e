"""The interface of all trackers of delayed messages."""
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from seglog._kernels.quick_lock import LockCondition, QuickLock
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.named_tuple import NamedTuple


class DelayedMessage(NamedTuple):
    """A delayed message; sorts in the order of delivery."""

    deliver_at: int
    """ms since 1970"""
    ledger_id: int
    entry_id: int


class LogSource(Protocol):
    """The log with a tracker's messages. Its methods are called with the tracker's lock held."""

    def read_up(self) -> None:
        """Tell the tracker every message in the log that it does not know."""

    def passed_over(self) -> Iterable[int]:
        """Return passed ledgers with messages that were relocated and are not acknowledged: decisions about these are
        kept."""

    def _read_again(self) -> None:
        """Read the log again from its start: the tracker had to forget messages whose snapshot is damaged."""


# `list` is a method below.
Scheduled = list[tuple[int, int]]
"""[(ledger_id, entry_id), …]"""
Messages = list[DelayedMessage]
Counts = list[int]


class DelayedDeliveryTracker(ABC):
    """Knows which messages of a subscription are delayed, and which of them are due.

    A message is tracked once, by its position. Every pending message will be delivered: `get_scheduled_messages`
    returns it once, at or after its time, however the clock steps, in the order of (deliver_at, ledger_id, entry_id).
    Messages are due up to now, or one tick later if delivery is not strict (Pulsar's
    AbstractDelayedDeliveryTracker.getCutoffTime).

    The log is the source of truth. After a restart it is read again from the mark-delete position, and messages that a
    tracker no longer knows are added again. A position's deliver_at never changes in the log; `reschedule` changes the
    time.

    `source` reads the log for the tracker. With a source, single messages, lists and counts are answered from the whole
    log, including messages that no reader has met yet; without one, from the added messages.

    Thread-safe. Entry ids are at most 4294967295, the limit of the bitmaps in Pulsar's snapshots.
    """

    source: LogSource | None = None

    @property
    @abstractmethod
    def config(self) -> DelayedDeliveryConfig: ...

    @property
    @abstractmethod
    def lock(self) -> QuickLock:
        """A reentrant lock. While a thread holds it, no other thread changes the tracker: for steps that take several
        calls. Taken before the lock of a cursor, which the tracker's own properties may need."""

    @property
    @abstractmethod
    def changed(self) -> LockCondition:
        """The condition at which a thread with the lock waits for events that may bring the next delivery forward,
        other than time and new messages."""

    @abstractmethod
    def reconfigure(self, config: DelayedDeliveryConfig) -> None:
        """Continue with another configuration. Settings of sealing take effect at the next seal."""

    @abstractmethod
    def add_message(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        """Add a message; return whether the tracker handles it from now on. `deliver_at` is in ms since 1970.

        False: it is due (or deliver_at is negative: not delayed), so the caller dispatches it now, and the tracker will
        not deliver it, even if it knew it before. True: it will be delivered, or was cancelled; do not dispatch it.

        Raises TooManyDelayedError, InvalidArgumentError for an invalid position.
        """

    @abstractmethod
    def add_messages(
        self, ledger_ids: Any, entry_ids: Any, deliver_ats: Any, *, within_limit: bool = True
    ) -> bytes:
        """Do `add_message` for columns: buffers of int64 of equal length. Returns one byte per message, 1 for True.

        `within_limit=False`: they are already in the log, so seglog.delayed.max.messages refuses none of them.
        """

    @property
    @abstractmethod
    def _has_cancelled(self) -> bool:
        """Whether a message that the cursor has not passed was cancelled."""

    @abstractmethod
    def get_scheduled_messages(self, max_messages: int) -> Scheduled:
        """Take at most `max_messages` due messages, in the order of delivery; they are not pending afterwards."""

    @abstractmethod
    def has_message_available(self) -> bool:
        """Whether a message is due."""

    @abstractmethod
    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the message is pending here: readers skip it (existDelayedMessage of PIP-195)."""

    @abstractmethod
    def _pending_in(self, ledger_id: int) -> Any:
        """Return the entry ids of a ledger's pending messages, a pyroaring.BitMap; None if there are none. Borrowed: do
        not change it, and hold the lock."""

    @abstractmethod
    def next_delivery_time(self) -> int | None:
        """Return when the next message is due, in ms since 1970; None if none is pending. May be early, never late: for
        example if a cancelled message was the next one."""

    @property
    @abstractmethod
    def number_of_delayed_messages(self) -> int:
        """Return how many are pending. O(1), without a lock."""

    @abstractmethod
    def forget(self, ledger_id: int, entry_id: int) -> bool:
        """Forget a message that was acknowledged. Return whether it was pending."""

    @abstractmethod
    def cancel(self, ledger_id: int, entry_id: int) -> bool:
        """Cancel a message: it is never delivered. Return whether it was pending. Durable if the tracker is."""

    @abstractmethod
    def reschedule(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        """Move a pending message to `deliver_at`. Return whether it was pending. Durable if the tracker is."""

    @abstractmethod
    def deliver_now(self, ledger_id: int, entry_id: int) -> bool:
        """Make a pending message due now. Return whether it was pending."""

    @abstractmethod
    def deliver_at(self, ledger_id: int, entry_id: int, published: int) -> int:
        """Return when a message is due that was published with the time `published`: it may have been rescheduled."""

    @abstractmethod
    def relocate(self, messages: Iterable[tuple[int, int, int]]) -> None:
        """Keep messages, (deliver_at, ledger_id, entry_id), pending although the cursor passes them. Earlier decisions
        about them stay valid; they are not trimmed, and anything else that the tracker knew of them is void."""

    @abstractmethod
    def list(self, first_at: int, end_at: int) -> Messages:
        """Return the pending messages with first_at <= deliver_at < end_at, in the order of delivery. The largest time
        of a message is 2**63 - 1; `end_at` may be later."""

    @abstractmethod
    def count(self, first_at: int, end_at: int) -> int:
        """Return the number of messages in `list(first_at, end_at)`."""

    @abstractmethod
    def histogram(self, edges: Sequence[int]) -> Counts:
        """Count pending messages between each edge (ms since 1970, rising) and the next: one number less than edges."""

    @abstractmethod
    def trim(self, ledger_id: int, entry_id: int = 0) -> int:
        """Forget everything before this position, which the cursor has passed. Return how many were pending there."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything, here and in storage."""

    @abstractmethod
    def close(self) -> None:
        """Release memory, threads and storage. Idempotent."""
