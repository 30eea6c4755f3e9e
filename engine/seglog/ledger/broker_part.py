"""What a broker puts in front of an entry: its time, and the index of the entry's last message (PIP-70).

The time never goes back, also where the clock does. The index counts messages from 0, over all ledgers. Each is put
where its interceptor is on; which are may change from entry to entry.
"""
from dataclasses import dataclass

from seglog._kernels.entry_frame import EntryFrame, broker_fields, put_broker_metadata
from seglog.errors import CorruptRecordError, InvalidArgumentError
from seglog.ledger.config import INDEX, TIMESTAMP
from seglog.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class BrokerState:
    """Of the last entry that got one: the index of its last message, its time in ms; -1 for none yet."""

    index: int = -1
    timestamp: int = -1


@dataclass(frozen=True, slots=True)
class CheckedEntry:
    """An entry that may be added. `publish_time` -1: it is beyond int64."""

    data: bytes
    message_count: int
    publish_time: int


def check_entry(data: bytes, message_count: int | None) -> CheckedEntry:
    """Whether these are headers and payload as a producer sends them. `message_count` None: as the metadata says.

    Raises InvalidArgumentError for an entry with a broker's part: it is put in front once, and here (Pulsar's #12018);
    CorruptRecordError.
    """
    frame = EntryFrame(data)
    if frame.has_broker_part:
        raise InvalidArgumentError("the entry begins with a broker's part (0x0e02) already: it gets one here")
    fields = frame.fields()
    if message_count is None:
        message_count = max(fields.num_messages, 1)
    elif not isinstance(message_count, int) or isinstance(message_count, bool) or message_count < 1:
        raise InvalidArgumentError(f"an entry holds one message or more, not {message_count!r}")
    return CheckedEntry(data, message_count, max(fields.publish_time, -1))


def stamp(
    entries: list[CheckedEntry], state: BrokerState, now_ms: int, interceptors: frozenset[str]
) -> tuple[list[bytes], list[int], BrokerState]:
    """The entries as they are stored, the time of each, and the state behind them."""
    index, timestamp = state.index, state.timestamp
    if not interceptors:
        return [entry.data for entry in entries], [entry.publish_time for entry in entries], state
    has_time, has_index = TIMESTAMP in interceptors, INDEX in interceptors
    if has_time:
        timestamp = max(timestamp, now_ms, 0)
    stored, times = [], []
    for entry in entries:
        if has_index:
            index += entry.message_count
        stored.append(put_broker_metadata(entry.data, timestamp if has_time else None, index if has_index else None))
        times.append(timestamp if has_time else entry.publish_time)
    return stored, times, BrokerState(index, timestamp)


def last_state(ledger: Ledger, before: BrokerState) -> BrokerState:
    """The state behind the entries of a ledger, read from its end on; `before` it where they do not say.

    An entry that is damaged says nothing.
    """
    index: int | None = None
    timestamp: int | None = None
    for entry_id in range(ledger.last_entry_id, -1, -1):
        try:
            found_timestamp, found_index = broker_fields(ledger.read(entry_id))
        except CorruptRecordError:
            continue
        timestamp = found_timestamp if timestamp is None else timestamp
        index = found_index if index is None else index
        if timestamp is not None and index is not None:
            break
    return BrokerState(
        before.index if index is None else index, before.timestamp if timestamp is None else timestamp
    )
