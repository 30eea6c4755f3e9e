from typing import final

from seglog._kernels.batch_encode import EncodedBatch

@final
class CheckedEntries:
    @property
    def size_bytes(self) -> int: ...
    def __len__(self) -> int: ...
    def size_between(self, first: int, stop: int) -> int: ...

@final
class EntryBatch:
    taken: EncodedBatch | None
    def __len__(self) -> int: ...
    def add(self, entries: list[bytes], timestamps: list[int]) -> None: ...
    def add_checked(
        self,
        checked: CheckedEntries,
        first: int,
        stop: int,
        broker_timestamp: int,
        index: int,
        puts_timestamp: bool,
        puts_index: bool,
    ) -> int: ...
    def take(self, base_offset: int) -> EncodedBatch: ...

def check_entries(entries: list[bytes], counts: list[int | None] | None, max_bytes: int) -> CheckedEntries: ...
