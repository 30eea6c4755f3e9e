from typing import Any

from typing_extensions import disjoint_base

from seglog._kernels.pending_set import PendingSet
from seglog._kernels.quick_lock import QuickLock
from seglog._kernels.quiet_cursor import QuietCursor

@disjoint_base
class QuietDispatcher:
    _lock: QuickLock
    _cursor: QuietCursor
    _read: list[Any]
    _taken: PendingSet
    _is_closed: bool
    def _hand_over(self, position: tuple[int, int]) -> bool: ...
