from collections.abc import Callable
from typing import final

from typing_extensions import Buffer

from seglog._kernels.batch_encode import EncodedBatch, Headers

@final
class GrowingBatch:
    taken: EncodedBatch | None
    def __new__(
        cls,
        max_bytes: int,
        codec: int,
        compress: Callable[[int, memoryview], Buffer] | None,
        is_log_append_time: bool,
        /,
    ) -> GrowingBatch: ...
    def __len__(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def add(
        self, key: Buffer | str | None, value: Buffer | None, headers: Headers | None, timestamp: int, /
    ) -> bool: ...
    def take(self, base_offset: int, now_ms: int, /) -> EncodedBatch: ...
