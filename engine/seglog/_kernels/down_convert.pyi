from collections.abc import Callable
from typing import final

from typing_extensions import Buffer

from seglog._kernels.segment_scan import BatchTable

@final
class MessagePacker:
    def __new__(
        cls,
        magic: int,
        *,
        codec: int = -1,
        decompress: Callable[[int, int, memoryview], Buffer] | None = None,
        compress: Callable[[int, bytes], Buffer] | None = None,
        check_crc: bool = True,
        first_offset: int = 0,
    ) -> MessagePacker: ...
    @property
    def magic(self) -> int: ...
    @property
    def codec(self) -> int: ...
    @property
    def check_crc(self) -> bool: ...
    @property
    def first_offset(self) -> int: ...
    def add(self, table: BatchTable, first: int, last: int) -> None: ...
    def finish(self) -> None: ...
    @property
    def ready_bytes(self) -> int: ...
    def take(self) -> memoryview: ...
