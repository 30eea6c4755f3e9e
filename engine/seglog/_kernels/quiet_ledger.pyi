from collections.abc import Callable
from typing import Any

from typing_extensions import disjoint_base

from seglog._kernels.entry_batch import EntryBatch
from seglog._kernels.growing_end import GrowingEnd
from seglog._kernels.write_gate import ChangeGate

@disjoint_base
class QuietWriter(ChangeGate):
    active: Any
    published: GrowingEnd
    _waiting: EntryBatch
    _waits: bool
    next_id: int
    size_bytes: int
    _synced_bytes: int
    _told_bytes: int
    when_synced: Callable[[int], None] | None
    def sync(self) -> int: ...

@disjoint_base
class QuietAdds:
    _tail: ChangeGate
    interceptors: Any
    _listeners: tuple[Any, ...]
    _max_message_bytes: int
    _most_entries: int
    _most_bytes: int
    _most_age_ms: int
    def add_quietly(self, entry: bytes, timestamp: int) -> tuple[int, int] | None: ...
