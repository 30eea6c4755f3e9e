"""Options for reading a topic as a table: columns, times, and what happens at damage."""
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from seglog._kernels.topic_rows import COLUMNS, RowLayout
from seglog.errors import InvalidArgumentError
from seglog.frames.libraries import library
from seglog.frames.typed.decoding import Kind, Typed
from seglog.frames.typed.kinds import KINDS
from seglog.frames.typed.typed_rows import Decoders, schema_of
from seglog.reading.damage import OnCorrupt

Text = Literal["utf8", "json"]
Decoded = Text | Kind | Typed | None
Decode = Decoded | Literal["kafka"] | Mapping[str, Decoded]

# The default columns: those of Spark's Kafka source, which returns headers only on request.
DEFAULT_COLUMNS = COLUMNS[:-1]
OFFSET_MAX = 2**63 - 1
TIME_MIN_MS, TIME_MAX_MS = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How rows are built.

    Records with `since_ms` <= timestamp < `until_ms` (TIME_MAX_MS: no limit); a missing timestamp is -1. `key_text`,
    `value_text`: decode the bytes as text; `nulls_text`: what is not UTF-8 is null then. `is_internal`: of an internal
    topic of Kafka, what keys and values say, as JSON. `binary_view`: bytes and text as Arrow's views. `decoders`: of
    the keys and values that have a schema, by column.
    """

    columns: tuple[str, ...] = DEFAULT_COLUMNS
    since_ms: int = TIME_MIN_MS
    until_ms: int = TIME_MAX_MS
    on_corrupt: OnCorrupt = "raise"
    key_text: Text | None = None
    value_text: Text | None = None
    nulls_text: bool = False
    is_internal: bool = False
    binary_view: bool = False
    decoders: Decoders = field(default_factory=dict)

    @property
    def is_typed(self) -> bool:
        """Whether one of the columns has a schema."""
        return any(name in self.columns for name in self.decoders)

    @property
    def read_columns(self) -> tuple[str, ...]:
        """The columns that are read: errors of typed ones name offsets."""
        return (*self.columns, "offset") if self.is_typed and "offset" not in self.columns else self.columns

    def arrow_c_schema(self) -> object:
        """The schema of the rows, as a capsule of Arrow's C interface. Raises MissingLibraryError if it is typed."""
        layout = self.layout("", 0)
        if not self.is_typed:
            return layout.__arrow_c_schema__()
        schema: Any = schema_of(library("pyarrow").schema(layout), self.decoders, self.columns)
        return schema.__arrow_c_schema__()

    def layout(self, topic: str, partition: int) -> RowLayout:
        """The layout of this partition's rows as the kernel decodes them. It has __arrow_c_schema__."""
        return RowLayout(
            self.read_columns, topic, partition, key_text=self.key_text, value_text=self.value_text,
            nulls_text=self.nulls_text, has_views=self.binary_view,
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


def checked_decode(decode: Decode) -> tuple[dict[str, Text], dict[str, Typed]]:
    """How keys and values are decoded: to text, or by a schema. Raises InvalidArgumentError."""
    if decode == "kafka":
        return {"key": "json", "value": "json"}, {}
    given = decode if isinstance(decode, Mapping) else {"key": decode, "value": decode}
    texts: dict[str, Text] = {}
    typed: dict[str, Typed] = {}
    for name, how in given.items():
        if name in ("key", "value") and how in ("utf8", "json"):
            texts[name] = how
        elif name in ("key", "value") and (isinstance(how, Typed) or how in KINDS):
            typed[name] = how if isinstance(how, Typed) else Typed(how)     # type: ignore[arg-type]
        elif name not in ("key", "value") or how is not None:
            expected = ", ".join(f'"{word}"' for word in ("utf8", "json", *KINDS))
            raise InvalidArgumentError(
                f'decode must be one of {expected} or a seglog.Typed, or a dict of these for "key" and "value", or '
                f'"kafka", not {decode!r}'
            )
    return texts, typed
