from collections.abc import Callable, Sequence
from typing import final

from typing_extensions import Buffer

from seglog._kernels.key_map import KeyMap
from seglog._kernels.packer import Packer
from seglog._kernels.segment_scan import BatchTable
from seglog._kernels.window import Window

@final
class BatchFilter(Packer):
    def __new__(
        cls,
        map: KeyMap,
        *,
        latest_offset: int,
        now_ms: int,
        delete_retention_ms: int,
        upgrade: bool = False,
        erases: bool = False,
        decompress: Callable[[int, int, memoryview], Buffer] | None = None,
        compress: Callable[[int, int, bytes], Buffer] | None = None,
        places: Sequence[tuple[int, Window]] = (),
        exact: int = ...,
        find_key: Callable[[int], bytes | None] | None = None,
    ) -> BatchFilter: ...
    def add_one(
        self,
        table: BatchTable,
        slot: int,
        *,
        keep_empty: bool = False,
        drop_records: bool = False,
        empty_transaction: bool = False,
    ) -> None: ...
    keeps_legacy_tombstones: bool
    @property
    def latest_offset(self) -> int: ...
    @property
    def now_ms(self) -> int: ...
    @property
    def delete_retention_ms(self) -> int: ...
    @property
    def upgrade(self) -> bool: ...
    @property
    def erases(self) -> bool: ...
    @property
    def records_read(self) -> int: ...
    @property
    def records_kept(self) -> int: ...
    @property
    def superseded(self) -> int: ...
    @property
    def tombstones(self) -> int: ...
    @property
    def keyless(self) -> int: ...
    @property
    def dropped(self) -> int: ...
    @property
    def collisions(self) -> int: ...
