from collections.abc import Iterable, Iterator
from typing import Literal, Never, final

from seglog._kernels.arena import ArenaPool
from seglog._kernels.segment_scan import BatchTable

COLUMNS: tuple[str, ...]

@final
class RowLayout:
    def __new__(
        cls,
        columns: Iterable[str],
        topic: str,
        partition: int,
        *,
        key_text: Literal["utf8", "json"] | None = None,
        value_text: Literal["utf8", "json"] | None = None,
        nulls_text: bool = False,
        has_views: bool = False,
    ) -> RowLayout: ...
    @property
    def columns(self) -> tuple[str, ...]: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def is_narrow(self) -> bool: ...
    def __arrow_c_schema__(self) -> object: ...

@final
class TopicRows:
    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    def __len__(self) -> int: ...
    @property
    def layout(self) -> RowLayout: ...
    @property
    def undecodable(self) -> dict[str, int]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...

@final
class TopicRowChunks:
    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    @property
    def next_batch(self) -> int: ...
    def skip_batch(self) -> None: ...
    def __iter__(self) -> Iterator[TopicRows]: ...
    def __next__(self) -> TopicRows: ...

def topic_rows(
    table: BatchTable,
    pool: ArenaPool,
    layout: RowLayout,
    *,
    start: int = 0,
    stop: int = -1,
    start_offset: int = ...,
    stop_offset: int = ...,
    low_ms: int = ...,
    high_ms: int = ...,
    check_crc: bool = True,
    chunk_bytes: int = 0,
    is_mapped: bool = False,
) -> TopicRowChunks: ...
