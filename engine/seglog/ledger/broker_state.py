"""What the broker's parts of a topic have come to: its time, and the index of its last message (PIP-70).

The time never goes back, also where the clock does. The index counts messages from 0, over all ledgers. Each is put in
front of an entry where its interceptor is on; which are may change from entry to entry.
"""
from collections.abc import Callable
from dataclasses import dataclass

from seglog._kernels.entry_frame import broker_fields
from seglog.errors import CorruptRecordError


@dataclass(frozen=True, slots=True)
class BrokerState:
    """Of the last entry that got one: the index of its last message, its time in ms; -1 for none yet."""

    index: int = -1
    timestamp: int = -1


def last_state(read: Callable[[int], bytes], last_entry_id: int, before: BrokerState) -> BrokerState:
    """The state behind the entries of a ledger, read from its end on; `before` it where they do not say.

    An entry that is damaged says nothing.
    """
    index: int | None = None
    timestamp: int | None = None
    for entry_id in range(last_entry_id, -1, -1):
        try:
            found_timestamp, found_index = broker_fields(read(entry_id))
        except CorruptRecordError:
            continue
        timestamp = found_timestamp if timestamp is None else timestamp
        index = found_index if index is None else index
        if timestamp is not None and index is not None:
            break
    return BrokerState(
        before.index if index is None else index, before.timestamp if timestamp is None else timestamp
    )
