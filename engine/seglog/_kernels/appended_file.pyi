from typing_extensions import Buffer, disjoint_base

@disjoint_base
class AppendedFile:
    def __new__(cls, *args: object, **kwargs: object) -> AppendedFile: ...
    _fd: int
    _position: int
    _unsynced: bool
    _closed: bool
    _failure: object
    def append_bytes(self, data: Buffer) -> int: ...
    def sync_descriptor(self, data_only: bool) -> None: ...

def reserve(fd: int, position: int, size_bytes: int) -> bool: ...
