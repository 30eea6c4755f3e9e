"""Memory for pieces while they are hashed and stored, used again and again.

The system clears each page of memory that it gives to a program. For pieces of 16 MiB, each in new memory, that costs
half as much as hashing them.
"""
import mmap


class Buffers:
    """`take(n)` gives n bytes to write to, `give_back` lets the next one have them. Threads may share it."""

    def __init__(self, size_bytes: int) -> None:
        """`size_bytes`: the most that is ever taken at a time. Pages that nobody touches cost nothing."""
        self._size_bytes = size_bytes
        self._free: list[mmap.mmap] = []

    def take(self, size_bytes: int) -> memoryview:
        try:
            whole = self._free.pop()
        except IndexError:
            whole = mmap.mmap(-1, self._size_bytes)
        return memoryview(whole)[:size_bytes]

    def give_back(self, view: object) -> None:
        """The bytes may change from now on. Does nothing with bytes that `take` has not given."""
        if isinstance(view, memoryview) and isinstance(view.obj, mmap.mmap):
            self._free.append(view.obj)
