from collections.abc import Callable
from typing import final

from typing_extensions import Buffer

from seglog._kernels.packer import Packer

@final
class TaggedPacker(Packer):
    def __new__(
        cls,
        *,
        codec: int = -1,
        with_ms: bool = True,
        decompress: Callable[[int, int, memoryview], Buffer] | None = None,
        compress: Callable[[int, bytes], Buffer] | None = None,
        check_crc: bool = True,
    ) -> TaggedPacker: ...
    @property
    def with_ms(self) -> bool: ...
    @property
    def headers_left_out(self) -> int: ...
