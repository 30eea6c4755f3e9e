from collections.abc import Callable
from typing import Any, ClassVar, final

from seglog._kernels.due_runs import DueRuns
from seglog._kernels.pending_set import PendingSet
from seglog._kernels.quick_lock import QuickLock

@final
class Intake:
    ANY_LEDGER: ClassVar[int]
    ledger_id: int
    early_ms: int
    most: int
    delayed: int
    def __init__(
        self,
        lock: QuickLock,
        runs: DueRuns,
        pending: PendingSet,
        cancelled: dict[int, Any],
        moved: dict[tuple[int, int], int],
        now_ms: Callable[[], int] | None = None,
        other: PendingSet | None = None,
    ) -> None: ...
    def add(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool: ...
