from typing import Any

from typing_extensions import disjoint_base

from seglog._kernels.growing_end import GrowingEnd
from seglog._kernels.header_walk import HeaderWalk
from seglog._kernels.point_read import PointReader
from seglog._kernels.record_batch import Record
from seglog._kernels.window import Window

@disjoint_base
class QuickFiles:
    end: Any
    reader: PointReader | None
    walked_reader: PointReader | None
    walk: HeaderWalk
    time_entries: Window | None

@disjoint_base
class QuickSegment:
    published: GrowingEnd | None
    _files: Any
    _recently_used: bool
    base_offset: int
    def get(self, offset: int) -> Record | None: ...
    def seek(self, target: int, start_offset: int) -> tuple[int, int, int]: ...

@disjoint_base
class ShownSegments:
    extent: Any
    def record(self, offset: object, /) -> Record | None: ...
    def seek(self, timestamp: int, /) -> tuple[int, int, int] | None: ...
