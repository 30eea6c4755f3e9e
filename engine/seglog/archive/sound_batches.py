"""The checksums of a log's batches, checked in the pieces in which a backup reads it: nothing is read twice.

A batch may lie in two pieces or more: its first part waits for the next one. This only says that a log is sound. If it
is not, or is of a kind that needs more than one look (tagged messages, wrappers of v0 and v1 with gaps), the caller
asks the segment, which tells what is damaged.
"""
import struct
from pathlib import Path

from seglog._kernels.segment_scan import scan
from seglog._kernels.status import Status
from seglog.format import names
from seglog.format.compression import decompressor
from seglog.format.dialect import dialect_of
from seglog.segment.batches import SCAN_BATCHES, SCAN_BYTES
from seglog.segment.damage import NO_END

# The first fields of a batch of any version: its base offset, and the number of bytes that follow.
_HEAD = struct.Struct(">qi")


class SoundBatches:
    """Give it the bytes of a .log from `start` to `size_bytes`, in order; then `is_sound` says whether every batch from
    the byte `check_from` on, the start of one, is whole and has its checksum. `end_offset`: they end below it."""

    def __init__(
        self, path: Path, start: int, check_from: int, size_bytes: int, end_offset: int = NO_END
    ) -> None:
        self._dialect = dialect_of(path)
        self._decompress = decompressor()
        self._position = start
        self._check_from = check_from
        self._size_bytes = size_bytes
        self._next_offset = names.parse_base_offset(path.name)
        self._end_offset = end_offset
        self._first_part = b""      # of a batch whose rest is in the next piece
        self._has_doubt = self._dialect.is_tagged

    @property
    def is_sound(self) -> bool:
        return not self._has_doubt and self._position == self._size_bytes and not self._first_part

    def add(self, part: memoryview) -> None:
        """The next bytes, which are not kept."""
        start, self._position = self._position, self._position + len(part)
        if self._has_doubt or self._position <= self._check_from:
            return
        rest = part[max(self._check_from - start, 0) :]
        if self._first_part:
            rest = self._complete(rest)
        self._check(rest)

    def _complete(self, part: memoryview) -> memoryview:
        """Check the batch that the last piece had the first part of. Returns what follows it."""
        head = max(_HEAD.size - len(self._first_part), 0)
        first, part = self._first_part + bytes(part[:head]), part[head:]
        if len(first) < _HEAD.size:
            self._first_part = first
            return part
        missing = _HEAD.unpack_from(first)[1] + _HEAD.size - len(first)
        # A size that no batch of this file has: its first bytes are damaged.
        if not 0 <= missing <= len(part) + self._size_bytes - self._position:
            self._has_doubt = True
        elif missing > len(part):
            self._first_part = first + bytes(part)
        else:
            self._first_part = b""
            self._check(memoryview(first + bytes(part[:missing])))
            self._has_doubt = self._has_doubt or bool(self._first_part)
            return part[missing:]
        return part[len(part) :]

    def _check(self, part: memoryview) -> None:
        window, position = self._dialect.window(part), 0
        while position < len(part) and not self._has_doubt:
            table = scan(
                window, position, check_crc=True, max_batches=SCAN_BATCHES, max_bytes=SCAN_BYTES,
                min_offset=self._next_offset, end_offset=self._end_offset, decompress=self._decompress,
            )
            if len(table):
                self._next_offset = table[-1].last_offset + 1
            position = table.end
            if table.stop == Status.SHORT:
                self._first_part = bytes(part[position:])
                return
            self._has_doubt = table.stop not in (Status.OK, Status.LIMIT)
