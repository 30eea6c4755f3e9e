"""The position of an entry in a managed ledger."""
from collections.abc import Iterator, Sequence
from typing import overload

from seglog.errors import InvalidArgumentError
from seglog.named_tuple import NamedTuple


class Position(NamedTuple):
    """An entry of a ledger: `ledger_id` and `entry_id`. Ordered; ledger ids rise, with gaps.

    `entry_id` -1 is before the first entry of the ledger. Whether an entry exists, the managed ledger knows:
    ManagedLedger.next_valid, previous_valid.
    """

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


# Before the first entry, and after the last one, of every managed ledger.
EARLIEST = Position(-1, -1)
LATEST = Position(2**63 - 1, 2**63 - 1)


def checked_position(value: object) -> Position:
    """Return `value`, which may be a plain tuple. Raises InvalidArgumentError if it is not a position: code below would
    take 1.5 for 1."""
    if type(value) is Position and type(value[0]) is int and type(value[1]) is int:
        return value
    if isinstance(value, tuple) and len(value) == 2 and _is_int(value[0]) and _is_int(value[1]):
        return Position(*value)
    raise InvalidArgumentError(f"a position must be a Position(ledger_id, entry_id) of two ints, not {_short(value)}")


def checked_int(what: str, value: object) -> int:
    """Return `value` if it is an int. Raises InvalidArgumentError. `what`: its meaning, as "a number of entries"."""
    if type(value) is int or _is_int(value):
        return value    # type: ignore[return-value]
    raise InvalidArgumentError(f"{what} must be an int, not {_short(value)}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _short(value: object) -> str:
    return repr(value)[:80]


class Positions(Sequence[Position]):
    """The positions of entries that were added together: in order, made on demand."""

    __slots__ = ("_runs",)

    def __init__(self, runs: Sequence[tuple[int, range]]) -> None:
        """Make it from (ledger id, entry ids) in order."""
        self._runs = runs

    def __len__(self) -> int:
        return sum(len(ids) for _, ids in self._runs)

    def __iter__(self) -> Iterator[Position]:
        return (Position(ledger_id, n) for ledger_id, ids in self._runs for n in ids)

    @overload
    def __getitem__(self, at: int) -> Position: ...

    @overload
    def __getitem__(self, at: slice) -> list[Position]: ...

    def __getitem__(self, at: int | slice) -> Position | list[Position]:
        if isinstance(at, slice):
            return list(self)[at]
        number = at if at >= 0 else len(self) + at
        for ledger_id, ids in self._runs:
            if 0 <= number < len(ids):
                return Position(ledger_id, ids[number])
            number -= len(ids)
        raise IndexError(f"position {at} is out of range: there are {len(self)}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"<Positions {', '.join(f'{ledger_id}:{ids[0]} to {ids[-1]}' for ledger_id, ids in self._runs)}>"
