import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Never, Protocol, SupportsIndex, final, type_check_only

from typing_extensions import Buffer

from seglog._kernels.record_batch import Record as StoredRecord

@type_check_only
class TimeOf(Protocol):
    def __call__(self, when: Any, *, now_ms: int) -> int: ...

Headers = Sequence[tuple[str, Buffer | None]]
Key = Buffer | str | None
# A time that is not in ms is for Log.append_many and Producer.append_many.
Record = (
    StoredRecord
    | tuple[Key, Buffer | None]
    | tuple[Key, Buffer | None, Headers | None]
    | tuple[Key, Buffer | None, Headers | None, SupportsIndex | dt.datetime | str | None]
)

@final
class EncodedBatch:
    min_timestamp: int
    has_null_key: bool
    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    def place(self, base_offset: int, leader_epoch: int) -> None: ...

def encode_one(
    base_offset: int,
    timestamp: int,
    key: Key,
    value: Buffer | None,
    headers: Headers | None = (),
    leader_epoch: int = -1,
    attributes: int = 0,
    /,
) -> bytes: ...
def encode_single(
    timestamp: int, key: Key, value: Buffer | None, headers: Headers | None = (), attributes: int = 0, /
) -> EncodedBatch: ...
def encode_records(
    records: Iterable[Record],
    base_offset: int,
    timestamp: int,
    *,
    codec: int = 0,
    compress: Callable[[int, memoryview], Buffer] | None = None,
    leader_epoch: int = -1,
    log_append_time: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
    delete_horizon_ms: int | None = None,
    time_of: TimeOf | None = None,
) -> EncodedBatch: ...
