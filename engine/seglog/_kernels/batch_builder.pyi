from collections.abc import Collection
from typing import final

from typing_extensions import Buffer

@final
class BatchBuilder:
    def __new__(
        cls,
        base_offset: int,
        *,
        log_append_time: int | None = None,
        base_timestamp: int | None = None,
        delete_horizon_ms: int | None = None,
        leader_epoch: int = -1,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        is_transactional: bool = False,
        is_control: bool = False,
    ) -> BatchBuilder: ...
    def append(
        self,
        offset: int,
        timestamp: int,
        key: Buffer | str | None,
        value: Buffer | None,
        headers: Collection[tuple[str, Buffer | None]] = (),
    ) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def payload_size(self) -> int: ...
    def payload(self) -> bytes: ...
    def finish(
        self,
        compressed: Buffer | None = None,
        codec: int = 0,
        *,
        last_offset: int | None = None,
        max_timestamp: int | None = None,
    ) -> bytes: ...

@final
class MessageSetBuilder:
    def __new__(
        cls, magic: int, *, timestamp_type: int = 0, wrapped_from: int | None = None
    ) -> MessageSetBuilder: ...
    @property
    def magic(self) -> int: ...
    def append(self, offset: int, timestamp: int, key: Buffer | str | None, value: Buffer | None) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def payload_size(self) -> int: ...
    def payload(self) -> bytes: ...
    def wrap(
        self, compressed: Buffer, codec: int, *, timestamp: int | None = None, timestamp_type: int = 0
    ) -> bytes: ...
