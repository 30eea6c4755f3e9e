"""The tracker that keeps every delayed message in memory."""
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from seglog._kernels.due_rows import DueRows
from seglog._kernels.shield import unheard
from seglog.clock import Clock
from seglog.delayed.amendments import CANCELLED, MOVED
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.row_tracker import RowTracker, check_int64
from seglog.delayed.storage import FAILURES, Properties
from seglog.delayed.tracker import Scheduled


class StoredDecisions:
    """Stores decisions about single messages in the properties of a cursor; without one, nowhere."""

    def __init__(self, properties: Properties | None) -> None:
        self._properties = properties
        self.unstored: dict[str, str | None] = {}

    def store(self, changes: Mapping[str, str | None]) -> None:
        if self._properties is not None:
            self._properties.update_properties(changes)

    def forget_properties(self, gone: Mapping[str, None]) -> None:
        if gone and self._properties is not None:
            self.unstored.update(gone)
            with unheard(), suppress(*FAILURES):    # then they are written with the next ones
                self._properties.update_properties(self.unstored)
                self.unstored.clear()

    def rows_between(self, first_at: int, end_at: int) -> Iterable[DueRows]:
        """Return nothing: all rows are in memory."""
        return ()


class InMemoryDelayedDeliveryTracker(RowTracker):
    """Keeps all delayed messages in memory: 24 bytes each, and a bit in a bitmap of their ledger.

    Messages are not stored: after a restart the log is read again. Cancellations and new times are stored by
    `decisions`, usually a cursor; without one they are lost. Raises CorruptDelayedIndexError if its contents are
    invalid.
    """

    def __init__(
        self,
        config: DelayedDeliveryConfig | None = None,
        *,
        clock: Clock | None = None,
        decisions: Properties | None = None,
    ) -> None:
        super().__init__(config, clock, is_sealed=False)
        self._decisions = decisions
        self._stored = StoredDecisions(decisions)
        if decisions is not None:
            self._amendments.read(decisions.properties)

    def _track(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        return self._runs.push_new(deliver_at, ledger_id, entry_id, self._pushed)

    def _takes_in_bulk(self, ledger_id: int) -> bool:
        return True

    def _pop(self, cutoff: int, limit: int) -> Scheduled:
        return self._runs.pop(cutoff, limit, self._promises, self._amendments.moved)

    def _is_pending(self, ledger_id: int, entry_id: int) -> bool:
        return self._pushed.contains(ledger_id, entry_id) or self._relocated.contains(ledger_id, entry_id)

    def _take(self, ledger_id: int, entry_id: int) -> bool:
        return self._pushed.remove(ledger_id, entry_id) or self._relocated.remove(ledger_id, entry_id)

    def _pending_in(self, ledger_id: int) -> Any:
        check_int64("a ledger's id", ledger_id)
        pushed, relocated = self._pushed.bitmap(ledger_id), self._relocated.bitmap(ledger_id)
        return pushed | relocated if pushed and relocated else pushed or relocated

    # --- decisions ---------------------------------------------------------------------------

    def _clear_stored(self) -> None:
        if self._decisions is not None:
            decided = [name for name in self._decisions.properties if name.startswith((CANCELLED, MOVED))]
            self._decisions.update_properties(dict.fromkeys(decided))
