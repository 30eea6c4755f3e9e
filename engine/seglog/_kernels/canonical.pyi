from typing import Protocol

from seglog._kernels.columns import Columns

class _Hasher(Protocol):
    def update(self, data: memoryview, /) -> object: ...

def canonical_bytes(
    columns: Columns, start: int = 0, stop: int = -1, *, with_time: bool = True, with_headers: bool = True
) -> memoryview: ...
def update_digest(
    columns: Columns, hasher: _Hasher, start: int = 0, stop: int = -1, *, with_time: bool = True,
    with_headers: bool = True,
) -> None: ...
