from typing import Any

from typing_extensions import disjoint_base

from seglog._kernels.quick_lock import QuickLock

@disjoint_base
class AcknowledgedEnds:
    mark_delete: Any
    entries: Any
    batches: Any

@disjoint_base
class QuietCursor:
    _lock: QuickLock
    _acknowledged: AcknowledgedEnds
    _shown: Any
    _read: Any
    _is_closed: bool
    _is_dirty: bool
    _is_due: bool
    _is_journaled: bool
