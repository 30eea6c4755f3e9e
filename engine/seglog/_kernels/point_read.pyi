from collections.abc import Callable
from typing import Never, final

from typing_extensions import Buffer

from seglog._kernels.checked_batches import CheckedBatches
from seglog._kernels.header_walk import HeaderWalk
from seglog._kernels.record_batch import Record
from seglog._kernels.time_ranges import TimeRangesSearch
from seglog._kernels.window import Window

@final
class OpenedBatch:
    def __init__(self, *args: Never, **kwargs: Never) -> None: ...

@final
class LastOpened: ...

@final
class PointReader:
    def __new__(
        cls,
        window: Window,
        base_offset: int,
        offsets: Window | None,
        checked: CheckedBatches,
        last_opened: LastOpened,
        decompress: Callable[[int, int, memoryview], Buffer] | None,
        end_offset: int = ...,
    ) -> PointReader: ...
    @property
    def ranges(self) -> TimeRangesSearch | None: ...
    @ranges.setter
    def ranges(self, ranges: TimeRangesSearch | None) -> None: ...
    def get(self, offset: int) -> Record | None: ...
    def find_batch(self, offset: int) -> tuple[int, int, int] | None: ...
    def find_timestamp(
        self, timestamp: int, start_offset: int, walk: HeaderWalk, times: Window | None
    ) -> tuple[int, int, int]: ...
