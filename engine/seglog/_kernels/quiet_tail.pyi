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
    lingering: GrowingBatch | None
    lingering_bytes: int
    def announce(self) -> None: ...
    def append_one(
        self, timestamp: int, key: Buffer | None, value: Buffer | None, headers: Headers | None, bytes_max: int,
        waits: bool | None = True,
    ) -> int: ...
    def append_lingering(
        self, timestamp: int, key: Buffer | None, value: Buffer | None, headers: Headers | None
    ) -> int: ...
    def append_made(self, made: EncodedBatch, waits: bool | None = True) -> int: ...
    def append_ready(self, assigned: Assigned, encoder: object, waits: bool | None = True) -> int: ...
    def append_followed(self, assigned: Assigned, encoder: object, waits: bool | None = True) -> int: ...
