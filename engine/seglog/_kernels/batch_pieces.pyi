from collections.abc import Callable
from typing import final

from typing_extensions import Buffer

from seglog._kernels.segment_scan import BatchTable

def partition_for_key(key: Buffer, partitions: int) -> int: ...
@final
class BatchPieces:
    def __new__(
        cls,
        table: BatchTable,
        slot: int,
        *,
        decompress: Callable[[int, int, memoryview], Buffer] | None = None,
    ) -> BatchPieces: ...
    @property
    def count(self) -> int: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def is_dense(self) -> bool: ...
    @property
    def has_keys(self) -> bool: ...
    def route(self, targets: int, keyless: int) -> list[int]: ...
    def piece(
        self,
        target: int,
        base_offset: int,
        compress: Callable[[int, bytes], Buffer],
        *,
        leader_epoch: int = -1,
        log_append_time: int | None = None,
    ) -> bytes: ...
