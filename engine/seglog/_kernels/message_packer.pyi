from collections.abc import Callable
from typing import final

from typing_extensions import Buffer

from seglog._kernels.packer import Packer

@final
class MessagePacker(Packer):
    def __new__(
        cls,
        magic: int,
        *,
        codec: int = -1,
        decompress: Callable[[int, int, memoryview], Buffer] | None = None,
        compress: Callable[[int, bytes], Buffer] | None = None,
        check_crc: bool = True,
        first_offset: int = 0,
        repack_bytes: int = 0,
    ) -> MessagePacker: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def repack_bytes(self) -> int: ...
