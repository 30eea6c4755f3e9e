from typing import final

from seglog._kernels.due_rows import DueRows

@final
class SegmentEncoder:
    def __new__(cls, time_step_ms: int, most: int) -> SegmentEncoder: ...
    def encode(self, rows: DueRows, first: int, whole: bool) -> tuple[list[tuple[bytes, bytes, int, int]], int]: ...
