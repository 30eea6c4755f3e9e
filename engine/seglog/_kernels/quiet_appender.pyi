from typing import Any

from typing_extensions import Buffer, disjoint_base

from seglog._kernels.appended_file import AppendedFile
from seglog._kernels.growing_end import GrowingEnd
from seglog._kernels.index_build import IndexBuilder

@disjoint_base
class QuietAppender:
    written: GrowingEnd
    seen: GrowingEnd | None
    quiet_bytes: int
    quiet_until_ms: int
    quiet_until_offset: int
    _takes_batches: bool
    failure: Any
    _log: AppendedFile
    _builder: IndexBuilder
    def append_quietly(self, raw: Buffer, base_offset: int, last_offset: int, max_timestamp: int) -> bool: ...
    def sync(self) -> None: ...
    @property
    def has_enough_entries(self) -> bool: ...
