from seglog._kernels.batch_encode import Headers
from seglog._kernels.record_batch import Record

def record_of_fields(
    offset: int,
    timestamp: int,
    timestamp_type: int,
    sequence: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    size_bytes: int,
    /,
) -> Record: ...
