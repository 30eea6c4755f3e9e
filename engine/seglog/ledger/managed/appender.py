"""Adds entries to a managed ledger.

    check (_kernels.entry_batch) ── into the last ledger (ledger.entry_writer) ── wait, without the lock ── listeners

A refused entry changes nothing, and uses up no index.
"""
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast

from seglog._kernels.entry_batch import CheckedEntries, check_entries
from seglog._kernels.quiet_ledger import QuietAdds
from seglog.errors import InvalidArgumentError, LogClosedError, LogFailedError, RecordTooLargeError
from seglog.ledger.broker_state import BrokerState
from seglog.ledger.config import TIMESTAMP
from seglog.ledger.entry_writer import SEGMENT, EntryWriter
from seglog.ledger.ledger import Ledger
from seglog.ledger.managed.tail import OVERHEAD_BYTES, ManagedTail
from seglog.ledger.position import Position, Positions

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ManagedAppender(QuietAdds):
    """The adds of a `ManagedLedger`, whose methods of the same names document them."""

    _tail: ManagedTail
    interceptors: frozenset[str]
    _listeners: tuple[Callable[[], None], ...]

    def __init__(self, tail: ManagedTail) -> None:
        self._tail = tail
        config = tail.config
        self._max_message_bytes = config.max_message_bytes
        self._most_entries, self._most_bytes = config.max_entries_per_ledger, config.max_size_per_ledger_bytes
        self._most_age_ms = config.max_rollover_ms
        # The broker metadata put in front of each entry from now on.
        self.interceptors = tail.config.interceptors
        # Replaced as a whole, with the lock.
        self._listeners = ()

    def add_entry(self, headers_and_payload: "Buffer", n_messages: int | None) -> Position:
        data = headers_and_payload if type(headers_and_payload) is bytes else _as_bytes(headers_and_payload)
        [(ledger_id, entry_ids)] = self._add(check_entries([data], [n_messages], self._max_message_bytes))
        return Position(ledger_id, entry_ids.start)

    def add_built(self, entry: bytes, publish_time_ms: int) -> Position:
        """Add an entry of one message that was made here, now."""
        found = self.add_quietly(entry, publish_time_ms)
        return self.add_entry(entry, None) if found is None else tuple.__new__(Position, found)

    def add_entries(self, entries: "Iterable[Buffer | tuple[Buffer, int]]") -> Positions:
        listed = list(entries)
        limit = self._max_message_bytes
        try:
            checked = check_entries(cast("list[bytes]", listed), None, limit)
        except TypeError:
            # Slow path: not all of them are plain bytes.
            counts = [entry[1] if isinstance(entry, tuple) else None for entry in listed]
            plain = [_as_bytes(entry[0] if isinstance(entry, tuple) else entry) for entry in listed]
            checked = check_entries(plain, counts, limit)
        return Positions(self._add(checked) if len(checked) else ())

    def _add(self, checked: CheckedEntries) -> list[tuple[int, range]]:
        """Add them; return (ledger id, entry ids), in order."""
        runs, waits = self._tail.change(self._put_all, checked)
        for writer, number in waits:
            try:
                writer.await_put(number)
            except LogFailedError as error:
                self._tail.fail_outside(error)
                raise
        for listener in self._listeners:
            listener()
        return runs

    def _put_all(self, checked: CheckedEntries) -> tuple[list[tuple[int, range]], list[tuple[EntryWriter, int]]]:
        tail, interceptors = self._tail, self.interceptors
        tail.held.check()
        extent = tail.shown.extent
        # (Written out here, without calls: an add makes 30 of them.)
        if extent is not None and extent.active is not None and (writer := extent.active.writer).active.is_given_back:
            writer.open_files()
        count, done = len(checked), 0
        runs: list[tuple[int, range]] = []
        waits: list[tuple[EntryWriter, int]] = []
        with tail.changing() as change:
            try:
                while done < count:
                    ledger, writer = tail.ledger_for(checked.size_between(done, done + 1))
                    state = tail.state
                    stop = done + (self._room(writer, checked, done) if count > 1 else 1)
                    if TIMESTAMP in interceptors:
                        state = BrokerState(state.index, max(state.timestamp, tail.clock.now_ms(), 0))
                    first, number, index = writer.put_checked(checked, done, stop, state, interceptors)
                    if interceptors:    # only now: a refused entry uses up no index
                        tail.state = BrokerState(index, state.timestamp)
                    ledger_id = ledger.ledger_id
                    runs.append((ledger_id, range(first, first + stop - done)))
                    waits.append((writer, number))
                    done = stop
            except (RecordTooLargeError, InvalidArgumentError):
                change.refused()
                raise
        return runs, waits

    def _room(self, writer: EntryWriter, checked: CheckedEntries, begin: int) -> int:
        """Return how many of the entries from `begin` on go into one write to this ledger: at least one."""
        count, config = len(checked) - begin, self._tail.config
        bytes_left = min(config.max_size_per_ledger_bytes, SEGMENT.segment_bytes) - writer.size_bytes
        entries_left = max(config.max_entries_per_ledger - writer.next_id, 1)
        if count <= entries_left and checked.size_bytes + count * OVERHEAD_BYTES <= bytes_left:
            return count
        room = 0
        while room < min(count, entries_left):
            bytes_left -= checked.size_between(begin + room, begin + room + 1) + OVERHEAD_BYTES
            if room and bytes_left < 0:
                break
            room += 1
        return room

    def flush(self) -> None:
        active = self._tail.change(self._active)
        if active is not None:
            try:
                active.writer.flush()
            except LogClosedError:      # sealed meanwhile: it is on the disk
                return
            except LogFailedError as error:
                self._tail.fail_outside(error)
                raise

    def _active(self) -> Ledger | None:
        self._tail.held.check()
        return self._tail.current().active

    # --- listeners ---------------------------------------------------------------------------

    def listen(self, listener: Callable[[], None]) -> None:
        self._tail.with_lock(self._set_listeners, lambda: (*self._listeners, listener))

    def unlisten(self, listener: Callable[[], None]) -> None:
        if not self._tail.held.held:
            return      # in a forked child: a thread of the parent may hold the lock forever
        self._tail.with_lock(
            self._set_listeners, lambda: tuple(kept for kept in self._listeners if kept != listener)
        )

    def _set_listeners(self, changed: Callable[[], tuple[Callable[[], None], ...]]) -> None:
        self._listeners = changed()


def _as_bytes(entry: "Buffer") -> bytes:
    try:
        return bytes(memoryview(entry))
    except TypeError:
        raise InvalidArgumentError(f"an entry must be bytes-like, not {type(entry).__name__}") from None
