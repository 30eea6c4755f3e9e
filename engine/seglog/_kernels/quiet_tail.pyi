from queue import SimpleQueue
from typing import Any

from typing_extensions import Buffer, disjoint_base

from seglog._kernels.append_result import Assigned
from seglog._kernels.batch_encode import EncodedBatch, Headers
from seglog._kernels.growing_batch import GrowingBatch
from seglog._kernels.quiet_appender import QuietAppender
from seglog._kernels.write_gate import ChangeGate

@disjoint_base
class QuietTail(ChangeGate):
    active: QuietAppender
    next_offset: int
    durable_offset: int
    leader_epoch: int
    is_epoch_due: bool
    is_unordered: bool
    publishes_synced: bool
    is_old_format: bool
    follows: bool
    encoder: object
    announcements: SimpleQueue[Any] | None
    is_announced: bool
    batch_bytes_max: int
    is_plain: bool
    times_from: int
    before_max_ms: int
    lingering: GrowingBatch | None
    lingering_bytes: int
    lingering_keys: bool
    def announce(self) -> None: ...
    def append_plain(
        self, now_ms: int, key: Buffer | str | None, value: Buffer | None, headers: Headers | None, timestamp: object,
        lingers: bool, waits: bool | None, /,
    ) -> int: ...
    def write(
        self, batch: EncodedBatch | Assigned, encoder: object, waits: bool | None = True, follows: bool = False
    ) -> int: ...
