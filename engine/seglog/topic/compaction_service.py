"""What a topic asks of whoever compacts it: a TopicCompactionService (Pulsar's PIP-278 and PIP-429).

No method hands out the last entry, or finds one by its place in the compacted ledger: a service may keep its payloads
in a form of its own, and tells of them only where messages stand.
"""
import abc
from collections.abc import Sequence

from seglog.ledger.message_position import MessagePosition
from seglog.ledger.position import Position
from seglog.ledger.stored_entry import StoredEntry


class TopicCompactionService(abc.ABC):
    """Of one topic. Threads may share it. What its methods raise beside what they say is the service's own."""

    @abc.abstractmethod
    def compact(self) -> object:
        """Compact the topic up to its end; what is told of it is the service's own."""

    @abc.abstractmethod
    def new_compacted_ledger(self, horizon: Position, ledger_id: int) -> None:
        """From now on the topic up to `horizon` is read in this compacted ledger, and in none before it."""

    @abc.abstractmethod
    def get_last_compacted_position(self) -> Position:
        """The horizon: what stands behind it is read in the topic. EARLIEST where nothing was compacted."""

    @abc.abstractmethod
    def read_compacted_entries(self, start: Position, count: int) -> Sequence[StoredEntry]:
        """At most `count` entries, one or more, from the first one at or behind `start`; an empty list at the end."""

    @abc.abstractmethod
    def find_entry_by_publish_time(self, timestamp_ms: int) -> Position | None:
        """The first compacted entry whose publish time is `timestamp_ms` or later; None if all are earlier."""

    @abc.abstractmethod
    def get_last_message_position(self) -> MessagePosition:
        """The last message that compaction left; MessagePosition.EARLIEST if it left none.

        A batch index of -1: the message is no batch. Found without opening a payload.
        """
