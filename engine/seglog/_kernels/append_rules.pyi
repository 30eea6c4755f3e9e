from collections.abc import Callable, Sequence
from typing import final

from typing_extensions import Buffer

from seglog._kernels.append_result import Assigned, Unfit
from seglog._kernels.segment_scan import BatchTable

@final
class AppendCheck:
    def __new__(
        cls,
        *,
        max_message_bytes: int,
        segment_bytes: int,
        is_compacted: bool,
        is_log_append_time: bool,
        before_max_ms: int,
        after_max_ms: int,
        codec: int | None,
        decompress: Callable[[int, int, memoryview], Buffer],
        magic: int | None = None,
        asks_unit: bool = False,
        harmless_bytes: Sequence[int] = (0, 0, 0, 0, 0),
    ) -> AppendCheck: ...
    def assign(
        self, raw: Buffer, first_offset: int, now_ms: int, leader_epoch: int, is_coordinator: bool = False
    ) -> Assigned | Unfit: ...
    def follow(self, raw: Buffer | BatchTable, next_offset: int) -> Assigned: ...
    def next_suspect(self, table: BatchTable, slot: int) -> int: ...
    def check_encoded(
        self, size_bytes: int, min_timestamp: int, max_timestamp: int, has_null_key: bool, now_ms: int
    ) -> None: ...
    def accept(self, raw: Buffer, first_offset: int, count: int) -> Assigned: ...
