from collections import deque
from typing import Any, Self

from typing_extensions import disjoint_base

from seglog._kernels.intake import Intake
from seglog._kernels.journal_end import JournalEnd
from seglog._kernels.quick_lock import QuickLock
from seglog._kernels.quiet_cursor import QuietCursor
from seglog._kernels.quiet_dispatcher import QuietDispatcher
from seglog._kernels.quiet_ledger import QuietAdds

@disjoint_base
class JobFields:
    _lane: Any
    _at: Any
    _entry: Any
    _fields: Any
    _batched: Any
    _value: Any
    _retry_ms: Any
    attempt: int
    is_settled: bool
    def __enter__(self) -> Self: ...

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
    _lease_kind: type[Any]

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
    _cursor: QuietCursor
    _dispatcher: QuietDispatcher
    _clock: Any
    _has_system_clock: bool
    _intake: Intake
    _shown: Any
    _held: Any
    _most_attempts: int | None
    _unique: Any
    _backlog: Any
    _counts: Any
    _adds: QuietAdds
    _producer_name: bytes
    _sequence_ids: Any
    _job_kind: type[Any]
    _prefix: str
    _most_ready: int
    def put_quietly(self, value: object) -> str | None: ...
    def take_quietly(self, lease_ns: int, taken: list[Any]) -> bool: ...
    def finish_quietly(self, job: object, waits: bool) -> bool: ...
