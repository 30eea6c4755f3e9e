"""What a fetch returns: bytes of one segment as they are on disk, or converted for a client that knows older formats.

Both keep their file open, so they return the bytes as of the fetch, even if the log is truncated, rolled or closed, or
its segments are deleted. Opening the file again by name would not do: a shortened segment is another file with the old
name.
"""
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from seglog._kernels.batch_packer import BatchPacker
from seglog._kernels.batch_survey import find_position, tally
from seglog._kernels.chained import Chained
from seglog._kernels.message_packer import MessagePacker
from seglog._kernels.packer import Packer
from seglog._kernels.segment_scan import BatchTable
from seglog._kernels.window import Window
from seglog.errors import SeglogError, StorageError, UnsupportedCompressionTypeError
from seglog.format.compression import Decompress
from seglog.format.conversion_profile import slices
from seglog.fs.mapping import ReadDescriptor
from seglog.reading.format_counters import FormatCounters

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer


# How many bytes on disk are converted at a time. The result fits in a processor's cache: 41 ns per record of 140 bytes.
# With 4 MiB it is 57 ns, a tenth of it page faults.
_PIECE_BYTES = 512 << 10
# A packer that keeps more than this for the next piece is replaced: it has seen a batch that was much larger before its
# compression, and a client that takes the bytes slowly keeps it for long.
_PACKER_BYTES_MAX = 2 << 20


@dataclass(frozen=True, slots=True)
class LogEnds:
    """What a fetch response says about the log besides the bytes, as of the fetch. `last_stable_offset`: -1 unless the
    fetch was for committed records."""

    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    aborted_transactions: tuple[tuple[int, int], ...]
    """(producer id, first offset) of those that concern the bytes, with isolation="read_committed"; otherwise empty."""


class FetchSlice:
    """Bytes of a segment, not copied and not decoded. Any number of threads may send it; there is nothing to close.

    offset                  the requested offset; the first batch may begin below it
    position, size_bytes    where the bytes are in their file
    ends                    what a fetch response says besides the bytes
    """

    __slots__ = ("_descriptor", "_window", "ends", "offset", "position", "size_bytes")
    is_converted = False

    def __init__(
        self, descriptor: ReadDescriptor | None, window: Window, offset: int, position: int, size_bytes: int,
        ends: LogEnds,
    ) -> None:
        self._descriptor = descriptor
        self._window = window
        self.offset = offset
        self.position = position
        self.size_bytes = size_bytes
        self.ends = ends

    def __len__(self) -> int:
        return self.size_bytes

    def __repr__(self) -> str:
        return f"<FetchSlice from offset {self.offset}: {self.size_bytes} bytes>"

    def fileno(self) -> int:
        """A descriptor of the segment's file, valid as long as the slice lives; -1 if there are no bytes."""
        return -1 if self._descriptor is None else self._descriptor.fileno()

    def view(self) -> memoryview:
        """The bytes, in the memory map of the file. The view may outlive the slice."""
        return memoryview(self._window)[self.position : self.position + self.size_bytes]

    def __iter__(self) -> Iterator[memoryview]:
        """The bytes in one piece, so that it is used like a ConvertedFetch."""
        if self.size_bytes:
            yield self.view()

    def sendfile(self, out: int, start: int = 0, count: int | None = None) -> int:
        """Call os.sendfile once, to the descriptor `out`: at most `count` bytes from byte `start` of the slice on.

        Returns how many bytes were sent; fewer than requested is normal. Raises OSError; BlockingIOError if `out`
        cannot take any bytes now.
        """
        left = self.size_bytes - start if count is None else min(count, self.size_bytes - start)
        if left <= 0 or self._descriptor is None:
            return 0
        return self._descriptor.send_to(out, self.position + start, left)

    def send(self, sock: socket.socket) -> int:
        """Send all of it to a socket that blocks or has a timeout. Returns the number of bytes. Raises OSError, and
        StorageError if a broker truncated the file.

        Uses os.sendfile from file to socket; a socket of another class (TLS encrypts), or with a timeout, gets the
        bytes by `sendall`.
        """
        if self._descriptor is None:
            return 0
        if type(sock) is not socket.socket or sock.gettimeout() is not None:
            sock.sendall(self.view())
            return self.size_bytes
        out, position, end = sock.fileno(), self.position, self.position + self.size_bytes
        while position < end:
            sent = self._descriptor.send_to(out, position, end - position)
            if sent == 0:       # a broker did this: seglog never truncates a file in place
                raise StorageError(
                    f"the file was truncated while it was being sent: {end - position} bytes are missing",
                    file=self._window.name
                )
            position += sent
        return self.size_bytes


@dataclass(frozen=True, slots=True)
class Conversion:
    """How to convert batches for a client that knows formats up to `magic`. `is_tagged`: they are tagged messages, none
    of which it knows."""

    magic: int
    is_tagged: bool
    decompress: Decompress
    compress: "Callable[[int, bytes], Buffer]"
    counters: FormatCounters

    def packer(self, first_offset: int) -> Packer:
        if self.magic == 2:
            return BatchPacker(decompress=self.decompress, compress=self.compress)
        return MessagePacker(
            self.magic, decompress=self.decompress, compress=self.compress, first_offset=first_offset
        )


class ConvertedFetch:
    """Whole batches for a client that knows record formats up to some version, but no tagged messages. They are
    converted piece by piece while it is iterated: only one compressed batch, or 512 KiB of others, is in memory.

    It ends before the first batch that cannot be converted; if that is the first one, the constructor raises.
    `size_bytes` is the size on disk: the converted bytes may be more, and it has no len. `next_offset`: one past the
    last offset taken so far. The rest is as in FetchSlice. Only one thread at a time may iterate; each further
    iteration converts again.
    """

    __slots__ = (
        "_conversion", "_pieces", "_table", "ends", "is_empty", "next_offset", "offset", "position", "size_bytes",
    )
    is_converted = True

    def __init__(self, table: BatchTable, conversion: Conversion, offset: int, ends: LogEnds) -> None:
        """`table`: the batches, without those that the client must not see. Raises the error of the first batch if that
        cannot be converted."""
        self._table = table
        self._conversion = conversion
        self.offset = self.next_offset = offset
        self.ends = ends
        self.position = table[0].position if len(table) else 0
        self.size_bytes = table.end - self.position
        pieces = self._convert()
        first = next(pieces, None)
        # It holds nothing for the client: only transaction markers, aborted transactions or compacted batches.
        self.is_empty = first is None
        self._pieces: Iterator[memoryview] | None = None if first is None else Chained(((first,), pieces))

    def __repr__(self) -> str:
        return f"<ConvertedFetch from offset {self.offset}: of {self.size_bytes} bytes on disk>"

    def __len__(self) -> int:
        # list() and join() ask for the length as a hint, and expect TypeError here.
        raise TypeError(
            "the size of a ConvertedFetch is not known before it is converted: use len(fetch.view()), or size_bytes "
            "for the size on disk"
        )

    def __bool__(self) -> bool:
        """Whether there is anything to send, as for a FetchSlice."""
        return not self.is_empty

    def __iter__(self) -> Iterator[memoryview]:
        """The bytes in pieces of whole batches."""
        pieces, self._pieces = self._pieces, None
        return self._convert() if pieces is None else pieces

    def view(self) -> memoryview:
        """All the bytes, in memory."""
        return memoryview(b"".join(self))

    def send(self, sock: socket.socket) -> int:
        """Send all of it while it is converted. Returns the number of bytes. Raises OSError."""
        sent = 0
        for piece in self:
            sock.sendall(piece)
            sent += len(piece)
        return sent

    def _convert(self) -> Iterator[memoryview]:
        table, magic = self._table, self._conversion.magic
        packer = self._conversion.packer(self.offset)
        gave = False
        for first, stop in slices(table, _PIECE_BYTES):
            refusal = None
            try:
                packer.add(table, first, stop)
                packer.finish()
            except SeglogError as error:
                refusal = error
                stop = first if error.position is None else max(find_position(table, error.position), first)
            batches = tally(table, first, stop) if stop > first else {}
            self._conversion.counters.fetch_converted_batches[magic].add(
                sum(count for (of, _), (count, _, _) in batches.items() if of > magic or self._conversion.is_tagged)
            )
            if stop > first:
                self.next_offset = max(table[stop - 1].last_offset + 1, self.offset)
            piece = packer.take()
            if packer.held_bytes > _PACKER_BYTES_MAX:
                packer = self._conversion.packer(self.offset)
            if len(piece):
                gave = True
                yield piece
            del piece       # so that the packer may reuse its memory for the piece after the next
            if refusal is not None:
                if gave:
                    return
                if isinstance(refusal, UnsupportedCompressionTypeError):
                    refusal.hint = "fetch with a client that knows record format v2 and zstd (Fetch v10, Kafka 2.1)"
                raise refusal


Fetched = FetchSlice | ConvertedFetch
