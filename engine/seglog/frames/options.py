"""What of a topic is read as a table: columns, ranges, and what happens where bytes are damaged."""
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from seglog._kernels.topic_rows import COLUMNS, RowLayout
from seglog.errors import InvalidArgumentError
from seglog.log.damage import OnCorrupt

Text = Literal["utf8", "json"]
Decode = Text | Mapping[str, Text | None] | None

# What is read where no column is named: as Spark's Kafka source, which gives headers only when asked.
DEFAULT_COLUMNS = COLUMNS[:-1]
OFFSET_MAX = 2**63 - 1
TIME_MIN_MS, TIME_MAX_MS = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How rows are made.

    Records with `since_ms` <= timestamp < `until_ms` (TIME_MAX_MS: no limit); one without a time counts as -1.
    `key_text`, `value_text`: the bytes are text. `binary_view`: bytes and text as Arrow's views.
    """

    columns: tuple[str, ...] = DEFAULT_COLUMNS
    since_ms: int = TIME_MIN_MS
    until_ms: int = TIME_MAX_MS
    on_corrupt: OnCorrupt = "raise"
    key_text: Text | None = None
    value_text: Text | None = None
    binary_view: bool = False

    def layout(self, topic: str, partition: int) -> RowLayout:
        """What rows of this partition look like. It has __arrow_c_schema__."""
        return RowLayout(
            self.columns, topic, partition, key_text=self.key_text, value_text=self.value_text,
            has_views=self.binary_view,
        )

    @property
    def last_ms(self) -> int:
        """The last time that is asked for."""
        return self.until_ms - 1 if self.until_ms < TIME_MAX_MS else TIME_MAX_MS

    @property
    def has_times(self) -> bool:
        """Are records chosen by time?"""
        return self.since_ms > TIME_MIN_MS or self.until_ms < TIME_MAX_MS


def checked_columns(columns: Sequence[str] | None, include_headers: bool) -> tuple[str, ...]:
    """The columns to read, in the order asked for. Raises InvalidArgumentError."""
    if columns is None:
        return COLUMNS if include_headers else DEFAULT_COLUMNS
    if isinstance(columns, str):
        raise InvalidArgumentError(f"columns is a list of names, not {columns!r}", hint=f'columns=["{columns}"]')
    chosen = tuple(columns)
    if include_headers and "headers" not in chosen:
        chosen += ("headers",)
    unknown = [name for name in chosen if name not in COLUMNS]
    if unknown or not chosen or len(set(chosen)) != len(chosen):
        raise InvalidArgumentError(
            f"no column {unknown[0]!r}" if unknown else f"each column at most once, and one at least: {chosen!r}",
            hint=f"there are {', '.join(COLUMNS)}",
        )
    return chosen


def checked_text(decode: Decode) -> tuple[Text | None, Text | None]:
    """What keys and values are decoded as. Raises InvalidArgumentError."""
    if decode is None or isinstance(decode, str):
        decode = {"key": decode, "value": decode}
    if not isinstance(decode, Mapping) or not set(decode) <= {"key", "value"} or not all(
        text in (None, "utf8", "json") for text in decode.values()
    ):
        raise InvalidArgumentError(
            f'decode is "utf8" or "json", or which of them for "key" and "value", not {decode!r}'
        )
    return decode.get("key"), decode.get("value")
