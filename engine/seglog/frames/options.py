"""Options for reading a topic as a table: columns, times, and what happens at damage."""
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from seglog._kernels.topic_rows import COLUMNS, RowLayout
from seglog.errors import InvalidArgumentError
from seglog.reading.damage import OnCorrupt

Text = Literal["utf8", "json"]
Decode = Text | Literal["kafka"] | Mapping[str, Text | None] | None

# The default columns: those of Spark's Kafka source, which returns headers only on request.
DEFAULT_COLUMNS = COLUMNS[:-1]
OFFSET_MAX = 2**63 - 1
TIME_MIN_MS, TIME_MAX_MS = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How rows are built.

    Records with `since_ms` <= timestamp < `until_ms` (TIME_MAX_MS: no limit); a missing timestamp is -1. `key_text`,
    `value_text`: decode the bytes as text. `is_internal`: of an internal topic of Kafka, what keys and values say, as
    JSON. `binary_view`: bytes and text as Arrow's views.
    """

    columns: tuple[str, ...] = DEFAULT_COLUMNS
    since_ms: int = TIME_MIN_MS
    until_ms: int = TIME_MAX_MS
    on_corrupt: OnCorrupt = "raise"
    key_text: Text | None = None
    value_text: Text | None = None
    is_internal: bool = False
    binary_view: bool = False

    def layout(self, topic: str, partition: int) -> RowLayout:
        """The layout of this partition's rows. It has __arrow_c_schema__."""
        return RowLayout(
            self.columns, topic, partition, key_text=self.key_text, value_text=self.value_text,
            has_views=self.binary_view,
        )

    @property
    def last_ms(self) -> int:
        """The last requested time, inclusive."""
        return self.until_ms - 1 if self.until_ms < TIME_MAX_MS else TIME_MAX_MS

    @property
    def has_times(self) -> bool:
        """Whether records are selected by time."""
        return self.since_ms > TIME_MIN_MS or self.until_ms < TIME_MAX_MS


def checked_columns(columns: Sequence[str] | None, include_headers: bool) -> tuple[str, ...]:
    """The columns to read, in the order asked for. Raises InvalidArgumentError."""
    if columns is None:
        return COLUMNS if include_headers else DEFAULT_COLUMNS
    if isinstance(columns, str):
        raise InvalidArgumentError(f"columns must be a list of names, not {columns!r}", hint=f'columns=["{columns}"]')
    chosen = tuple(columns)
    if include_headers and "headers" not in chosen:
        chosen += ("headers",)
    unknown = [name for name in chosen if name not in COLUMNS]
    if unknown or not chosen or len(set(chosen)) != len(chosen):
        raise InvalidArgumentError(
            f"unknown column {unknown[0]!r}" if unknown else f"columns must be distinct, and at least one: {chosen!r}",
            hint=f"expected some of {', '.join(COLUMNS)}",
        )
    return chosen


def checked_text(decode: Decode) -> tuple[Text | None, Text | None]:
    """The text types that keys and values are decoded to. Raises InvalidArgumentError."""
    if decode == "kafka":
        return "json", "json"
    if decode is None or isinstance(decode, str):
        decode = {"key": decode, "value": decode}
    if not isinstance(decode, Mapping) or not set(decode) <= {"key", "value"} or not all(
        text in (None, "utf8", "json") for text in decode.values()
    ):
        raise InvalidArgumentError(
            'decode must be "utf8", "json" or "kafka", or a dict of the first two for "key" and "value", '
            f"not {decode!r}"
        )
    return decode.get("key"), decode.get("value")
