"""The state of a topic's broker metadata: its time, and the index of its last message (PIP-70).

The time never goes back, even if the clock does. The index counts messages from 0, over all ledgers. Each is put in
front of an entry if its interceptor is on; the set of interceptors may change from entry to entry.
"""
from collections.abc import Callable
from dataclasses import dataclass

from seglog._kernels.entry_frame import broker_fields
from seglog.errors import CorruptRecordError


@dataclass(frozen=True, slots=True)
class BrokerState:
    """The last assigned values: the index of an entry's last message, and the time in ms; -1 if none yet."""

    index: int = -1
    timestamp: int = -1


def last_state(read: Callable[[int], bytes], last_entry_id: int, before: BrokerState) -> BrokerState:
    """Read the state after the entries of a ledger, from its end; `before` it if they do not say.

    A damaged entry says nothing.
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
