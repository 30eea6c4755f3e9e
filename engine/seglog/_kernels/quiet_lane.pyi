from collections import deque
from typing import Any

from typing_extensions import disjoint_base

from seglog._kernels.journal_end import JournalEnd
from seglog._kernels.quick_lock import QuickLock
from seglog._kernels.quiet_ledger import QuietAdds

@disjoint_base
class LeaseTables:
    def __new__(cls, *args: object, **named: object) -> LeaseTables: ...
    attempts: dict[Any, Any]
    out: dict[Any, Any]
    waiting: dict[Any, Any]
    dead: dict[Any, Any]
    holders: dict[Any, Any]
    failures: dict[Any, Any]
    _ends: list[Any]
    _dues: list[Any]
    _new_lease: Any

@disjoint_base
class QuietLane:
    _lock: QuickLock
    _journal: JournalEnd
    _number: int
    leases: LeaseTables
    _ready: deque[Any]
    _due: deque[Any]
    _again: dict[Any, Any]
    _is_torn: bool
    _read_ns: int
    _look_again_ns: int
    _checkpoint_at: int
    _covered: list[Any]
    _cursor: Any
    _dispatcher: Any
    _clock: Any
    _has_system_clock: bool
    _tracker: Any
    _shown: Any
    _held: Any
    _most_attempts: int | None
    _unique: Any
    _backlog: Any
    _counts: Any
    _adds: QuietAdds
    _producer_name: bytes
    _sequence_ids: Any
    _new_position: Any
    _new_job: Any
    _prefix: str
    _most_ready: int
    def put_quietly(self, value: object) -> str | None: ...
    def take_quietly(self, lease_ns: int) -> Any: ...
    def finish_quietly(self, job: object, waits: bool) -> bool: ...
