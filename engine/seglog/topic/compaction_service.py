"""The interface between a topic and its compaction: a TopicCompactionService (Pulsar's PIP-278 and PIP-429).

No method returns the last entry, or finds one by its place in the compacted ledger: a service may store payloads in its
own form, and reveals only the positions of messages.
"""
import abc
from collections.abc import Sequence

from seglog.ledger.message_position import MessagePosition
from seglog.ledger.position import Position
from seglog.ledger.stored_entry import StoredEntry


class TopicCompactionService(abc.ABC):
    """The compaction of one topic. Threads may share it. Its methods may also raise errors of the implementation."""

    @abc.abstractmethod
    def compact(self) -> object:
        """Compact the topic up to its end. What it returns is up to the service."""

    @abc.abstractmethod
    def new_compacted_ledger(self, horizon: Position, ledger_id: int) -> None:
        """From now on, the topic up to `horizon` is read from this compacted ledger, and not from earlier ones."""

    @abc.abstractmethod
    def get_last_compacted_position(self) -> Position:
        """The horizon: entries after it are read from the topic. EARLIEST if nothing was compacted."""

    @abc.abstractmethod
    def read_compacted_entries(self, start: Position, count: int) -> Sequence[StoredEntry]:
        """At least one and at most `count` entries, from the first at or after `start`; an empty list at the end."""

    @abc.abstractmethod
    def find_entry_by_publish_time(self, timestamp_ms: int) -> Position | None:
        """The first compacted entry whose publish time is `timestamp_ms` or later; None if all are earlier."""

    @abc.abstractmethod
    def get_last_message_position(self) -> MessagePosition:
        """The last message that compaction left; MessagePosition.EARLIEST if it left none.

        A batch index of -1: the message is not in a batch. Opens no payload.
        """
