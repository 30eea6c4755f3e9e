"""Derives from a query's filter where its rows can be. This only prunes: the query applies the filter afterwards.

A filter is a conjunction of terms. Only terms that compare offset, timestamp, partition, topic or key with a constant
are used; all others are ignored.
"""
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from seglog.frames.options import OFFSET_MAX, TIME_MAX_MS, TIME_MIN_MS
from seglog.late_import import late

Value = TypeVar("Value")

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "=="}
_MICROS_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits outside of which no row satisfies the filter. `partitions`, `topics`: None for all."""

    from_offset: int = 0
    to_offset: int = OFFSET_MAX
    since_ms: int = TIME_MIN_MS
    until_ms: int = TIME_MAX_MS
    partitions: frozenset[int] | None = None
    topics: frozenset[str] | None = None
    smallest_key: bytes | None = None
    largest_key: bytes | None = None

    def compared(self, column: str, operator: str, constant: object) -> "Bounds":
        """These bounds and the term `column operator constant`; times in microseconds. Unknown terms change nothing."""
        if column == "topic" and operator == "==" and isinstance(constant, str):
            return self.one_of(column, [constant])
        if column == "key":
            return self._with_key(operator, constant.encode() if isinstance(constant, str) else constant)
        if not isinstance(constant, int) or isinstance(constant, bool):
            return self
        if column == "partition" and operator == "==":
            return self.one_of(column, [constant])
        if column == "offset":
            low, high = _interval(operator, constant)
            return replace(
                self, from_offset=max(self.from_offset, 0 if low is None else min(low, OFFSET_MAX)),
                to_offset=min(self.to_offset, OFFSET_MAX if high is None else max(high + 1, 0)),
            )
        # Times that do not fit into microseconds all appear as the largest one, or the smallest.
        if column == "timestamp" and abs(constant) < _MICROS_MAX:
            low, high = _interval(operator, constant)
            return replace(
                self, since_ms=self.since_ms if low is None else max(self.since_ms, low // 1000),
                until_ms=self.until_ms if high is None else min(self.until_ms, high // 1000 + 1),
            )
        return self

    def one_of(self, column: str, constants: Iterable[object]) -> "Bounds":
        """These bounds and the term that `column` (partition, topic or key) has one of these values."""
        values = frozenset(constants)
        if column == "partition":
            numbers = frozenset(value for value in values if isinstance(value, int))
            if len(numbers) == len(values):
                return replace(self, partitions=both(self.partitions, numbers))
        elif column == "topic":
            topics = frozenset(value for value in values if isinstance(value, str))
            if len(topics) == len(values):
                return replace(self, topics=both(self.topics, topics))
        elif column == "key" and values:
            keys = [value.encode() if isinstance(value, str) else value for value in values]
            found = [key for key in keys if isinstance(key, bytes)]
            if len(found) == len(keys):
                return self._with_key(">=", min(found))._with_key("<=", max(found))
        return self

    def _with_key(self, operator: str, key: object) -> "Bounds":
        """These bounds and a term on the key. Bytes compare as in the libraries, text by its UTF-8, which has the order
        of its characters. Exclusive bounds are treated as inclusive."""
        if not isinstance(key, bytes):
            return self
        bounds = self
        if operator in (">", ">=", "=="):
            bounds = replace(bounds, smallest_key=larger(bounds.smallest_key, key))
        if operator in ("<", "<=", "=="):
            bounds = replace(bounds, largest_key=smaller(bounds.largest_key, key))
        return bounds


def larger(one: bytes | None, other: bytes | None) -> bytes | None:
    """The larger of two lower bounds; None is no bound."""
    return max((bound for bound in (one, other) if bound is not None), default=None)


def smaller(one: bytes | None, other: bytes | None) -> bytes | None:
    """The smaller of two upper bounds; None is no bound."""
    return min((bound for bound in (one, other) if bound is not None), default=None)


def both(one: frozenset[Value] | None, other: frozenset[Value] | None) -> frozenset[Value] | None:
    """The values that satisfy both; None stands for all values."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def flipped(operator: str) -> str:
    """The operator of `column operator constant` that is equivalent to `constant <this> column`."""
    return _FLIPPED.get(operator, operator)


def _interval(operator: str, constant: int) -> tuple[int | None, int | None]:
    """The smallest and largest integers that satisfy the comparison; None is no limit."""
    match operator:
        case ">=":
            return constant, None
        case ">":
            return constant + 1, None
        case "<=":
            return None, constant
        case "<":
            return None, constant - 1
        case "==":
            return constant, constant
    return None, None


# --- a filter of pyarrow, by its text ------------------------------------------------------------------------------
# pyarrow gives no other access to the parts of an expression. A term is used only if all of its text is understood.

_COMPARED = re.compile(r'(offset|timestamp|partition|topic|key) (<=|>=|==|<|>) (-?\d+|"[\w.-]*"|[\d-]+ [\d:.]+Z)')
_IN = re.compile(r"is_in\(partition, \{value_set=int\d+:\[([\s\d,-]*)\], null_matching_behavior=\w+\}\)")
_IN_OF_DUCKDB = re.compile(r"if_else\(is_valid\(partition\), (is_in\(.*\)), null\[bool\]\)", re.DOTALL)
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6})Z")


def bounds_of_text(text: str, constants: Mapping[str, object] | None = None) -> Bounds:
    """The bounds of str(expression), for a pyarrow expression over the columns of a topic.

    `constants`: {quoted text: the constant}, text or bytes; other constants prune nothing. If it is None, all are
    text, except the key's, which are bytes in hex.
    """
    bounds = Bounds()
    # No quoted word can contain a bracket or a space, so brackets and words can be matched directly.
    if '"' in re.sub(r'"[\w.-]*"', "", text):
        return bounds
    for term in _terms(text):
        inside = _IN_OF_DUCKDB.fullmatch(term)
        if found := _IN.fullmatch(inside[1] if inside else term):
            bounds = bounds.one_of("partition", [int(value) for value in found[1].split(",") if value.strip()])
        elif found := _COMPARED.fullmatch(term):
            constant = _constant(found[3])
            if constants is not None and isinstance(constant, str):
                constant = constants.get(constant)
            elif found[1] == "key":
                constant = _bytes(constant)
            bounds = bounds.compared(found[1], found[2], constant)
    return bounds


def _terms(text: str) -> Iterable[str]:
    """The terms of a conjunction, with any nesting of brackets."""
    text = _unbracketed(text.strip())
    depth, begin, parts = 0, 0, []
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0 and text.startswith(" and ", at):
            parts.append(text[begin:at])
            begin = at + len(" and ")
    if not parts:
        return [text]
    return [term for part in (*parts, text[begin:]) for term in _terms(part)]


def _unbracketed(text: str) -> str:
    while text.startswith("(") and text.endswith(")"):
        depth = 0
        for at, letter in enumerate(text):
            depth += (letter == "(") - (letter == ")")
            if depth == 0 and at < len(text) - 1:
                return text
        text = text[1:-1].strip()
    return text


def _bytes(constant: object) -> bytes | None:
    try:
        return bytes.fromhex(constant) if isinstance(constant, str) else None
    except ValueError:
        return None


def _constant(text: str) -> object:
    if text.startswith('"'):
        return text[1:-1]
    time = _TIME.fullmatch(text)
    if time is None:
        return int(text) if re.fullmatch(r"-?\d+", text) else None
    late("datetime")
    import datetime as dt
    moment = dt.datetime(*map(int, time.groups()), tzinfo=dt.UTC)     # type: ignore[misc, arg-type]
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
