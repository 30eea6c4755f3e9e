from collections.abc import Callable

from typing_extensions import Buffer

from seglog._kernels.batch_encode import EncodedBatch

def encode_columns(
    columns: object,
    timestamp: int,
    *,
    max_batch_bytes: int,
    base_offset: int = 0,
    codec: int = 0,
    compress: Callable[[int, memoryview], Buffer] | None = None,
    leader_epoch: int = -1,
    log_append_time: int | None = None,
) -> list[EncodedBatch]: ...
