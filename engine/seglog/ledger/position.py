"""Where an entry stands in a managed ledger."""
from typing import NamedTuple


class Position(NamedTuple):
    """An entry of a ledger. Ordered; ids of ledgers rise, and have gaps.

    `entry_id` -1 stands before the first entry of the ledger. Whether there is such an entry, the managed ledger knows:
    ManagedLedger.next_valid, previous_valid.
    """

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


# Before the first entry, and behind the last one, of every managed ledger.
EARLIEST = Position(-1, -1)
LATEST = Position(2**63 - 1, 2**63 - 1)
