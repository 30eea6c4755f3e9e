"""How the segments of a log are opened, said once for all of them."""
from dataclasses import dataclass

from seglog._kernels.point_read import LastOpened
from seglog.format.compression import Decompress


@dataclass(slots=True)
class SegmentAccess:
    """`owned`, `reserve_bytes`: see SegmentFiles; `by_minute`: HeaderWalk."""

    decompress: Decompress
    last_opened: LastOpened
    owned: bool = False
    by_minute: bool = False
    reserve_bytes: int = 0
