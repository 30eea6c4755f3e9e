from collections.abc import Callable
from typing import final

from typing_extensions import Buffer

from seglog._kernels.packer import Packer

@final
class BatchPacker(Packer):
    def __new__(
        cls,
        *,
        repack_bytes: int = 0,
        codec: int = -1,
        decompress: Callable[[int, int, memoryview], Buffer] | None = None,
        compress: Callable[[int, bytes], Buffer] | None = None,
        delete_horizon_ms: int = -1,
        check_crc: bool = True,
    ) -> BatchPacker: ...
    @property
    def repack_bytes(self) -> int: ...
    @property
    def delete_horizon_ms(self) -> int: ...
