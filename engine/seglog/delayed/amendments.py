"""Decisions about single messages after they were added: cancelled, or moved to another time.

The log, which is read again after a restart, does not contain them, and snapshots never change. So these decisions are
stored beside both, until the cursor has passed the message. Each ledger has its own property, so that a decision only
rewrites that of its ledger:

    #seglog.delayed.cancelled_<ledger id>  = base64 of a roaring bitmap of entry ids
    #seglog.delayed.moved_<ledger id>      = base64 of (entry id uint32, deliver_at uint64)*, big-endian, by entry id
"""
import struct
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping
from typing import Any

from seglog.errors import CorruptDelayedIndexError
from seglog.late_import import late

CANCELLED = "#seglog.delayed.cancelled_"
MOVED = "#seglog.delayed.moved_"
_MOVED_ENTRY = struct.Struct(">IQ")
_INT64_MAX, _DIGITS_MAX = 2**63 - 1, 19


class Amendments:
    """Cancelled positions and moved ones. Guarded by the tracker's lock."""

    def __init__(self) -> None:
        # Kernels refer to both: never replace these dicts.
        self.cancelled_in: dict[int, Any] = {}
        """ledger id -> BitMap of its cancelled entries"""
        self.moved: dict[tuple[int, int], int] = {}
        """position -> deliver_at"""

    def __bool__(self) -> bool:
        return bool(self.moved or self.cancelled_in)

    def cancel(self, ledger_id: int, entry_id: int) -> None:
        late("pyroaring")
        from pyroaring import BitMap

        self.cancelled_in.setdefault(ledger_id, BitMap()).add(entry_id)
        self.moved.pop((ledger_id, entry_id), None)

    def take_back_cancel(self, ledger_id: int, entry_id: int) -> None:
        """Undo a cancellation that could not be stored."""
        self.cancelled_in[ledger_id].discard(entry_id)
        if not self.cancelled_in[ledger_id]:
            del self.cancelled_in[ledger_id]

    def is_cancelled(self, ledger_id: int, entry_id: int) -> bool:
        return ledger_id in self.cancelled_in and entry_id in self.cancelled_in[ledger_id]

    def cancelled_among(self, ledger_id: int, entries: Any) -> Any:
        """Return the cancelled ones among a ledger's `entries`, a bitmap. A property may name any number of others."""
        cancelled = self.cancelled_in.get(ledger_id)
        return () if cancelled is None else cancelled & entries

    def trim(self, ledger_id: int, kept: Collection[int] = ()) -> dict[str, None]:
        """Forget all ledgers below `ledger_id` except those in `kept`; return the properties to remove."""
        passed = {ledger for ledger in self.cancelled_in if ledger < ledger_id and ledger not in kept}
        gone = {f"{CANCELLED}{ledger}" for ledger in passed}
        for ledger in passed:
            del self.cancelled_in[ledger]
        for position in [at for at in self.moved if at[0] < ledger_id and at[0] not in kept]:
            gone.add(f"{MOVED}{position[0]}")
            del self.moved[position]
        return dict.fromkeys(gone)

    def clear(self) -> None:
        self.cancelled_in.clear()
        self.moved.clear()

    def properties_of(self, ledger_id: int) -> dict[str, str | None]:
        """Return the properties that a ledger should have; those that are None must be removed."""
        cancelled = self.cancelled_in.get(ledger_id)
        moved = sorted((entry, at) for (ledger, entry), at in self.moved.items() if ledger == ledger_id)
        return {
            f"{CANCELLED}{ledger_id}": _text(cancelled.serialize() if cancelled else b""),
            f"{MOVED}{ledger_id}": _text(b"".join(_MOVED_ENTRY.pack(*m) for m in moved)),
        }

    def properties(self) -> dict[str, str | None]:
        """Return the properties of all ledgers with decisions."""
        found: dict[str, str | None] = {}
        for ledger_id in {*self.cancelled_in, *(ledger for ledger, _ in self.moved)}:
            found |= self.properties_of(ledger_id)
        return found

    def read(self, properties: Mapping[str, str]) -> None:
        """Load properties in the form of `properties_of`. Raises CorruptDelayedIndexError."""
        late("pyroaring")
        from pyroaring import BitMap

        for name, value in properties.items():
            try:
                if name.startswith(CANCELLED):
                    bitmap = BitMap.deserialize(b64decode(value, validate=True))
                    self.cancelled_in[ledger_id_of(name.removeprefix(CANCELLED))] = bitmap
                elif name.startswith(MOVED):
                    ledger_id = ledger_id_of(name.removeprefix(MOVED))
                    for entry_id, deliver_at in _MOVED_ENTRY.iter_unpack(b64decode(value, validate=True)):
                        if deliver_at > _INT64_MAX:
                            raise ValueError(f"invalid time {deliver_at} ms")
                        self.moved[ledger_id, entry_id] = deliver_at
            except (ValueError, IndexError, struct.error) as e:
                raise CorruptDelayedIndexError(f"invalid property {name}: {e}") from None


def ledger_id_of(text: str) -> int:
    """Parse a ledger's id in a property's name: an int64 in decimal digits. Raises ValueError."""
    if not (text.isascii() and text.isdecimal()) or len(text) > _DIGITS_MAX or int(text) > _INT64_MAX:
        raise ValueError(f"invalid ledger id {text[:80]!r}")
    return int(text)


def _text(value: bytes) -> str | None:
    return b64encode(value).decode() if value else None
