"""What a partition's writer tells readers in other processes: `.seglog.live`, docs/formats/live_ends.md."""
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from seglog._kernels.crc import crc32c
from seglog.errors import UnsupportedVersionError
from seglog.named_tuple import NamedTuple

if TYPE_CHECKING:
    from typing_extensions import Buffer

FILE_NAME = ".seglog.live"
FILE_BYTES, SLOT_BYTES = 4096, 2048
_MAGIC, _VERSION = b"SEGLIVE\n", 1
_FRONT = struct.Struct(">8sI")              # magic, version
_HEAD = struct.Struct(">8sII")              # the same, and the CRC-32C of everything else in the slot
_BODY = struct.Struct(">Q16sII4q5q5q")
_TRUNCATION = struct.Struct(">qq")
_IS_OPEN, _SHOWS_DURABLE = 1, 2
TRUNCATIONS_MAX = (SLOT_BYTES - _HEAD.size - _BODY.size) // _TRUNCATION.size

Numbers = tuple[int, int, int, int, int]    # segment.published.End
Truncation = tuple[int, int]                       # the epoch that it began, the log end offset after it


class LiveEnds(NamedTuple):
    """One slot of the file: how far readers may read, and whether what they know of the directory is still valid.

    A tuple, since a writer makes one every few milliseconds, with cold caches: a frozen dataclass takes three times as
    long. `epoch` is odd while segments are truncated, exchanged or removed, and a new even number afterwards.
    """

    boot_id: bytes                  # 16 bytes that identify the system's boot; zeros if unknown
    is_open: bool                   # a writer has the log open, or was killed
    shows_durable: bool             # fsync="batch": readers see `durable`, otherwise `written`
    epoch: int
    log_start_offset: int
    last_stable_offset: int
    base_offset: int                # of the active segment, which contains both ends
    written: Numbers
    durable: Numbers
    truncations: tuple[Truncation, ...] = ()
    sequence: int = 0

    def to_slot(self, sequence: int) -> bytes:
        body = _BODY.pack(
            sequence, self.boot_id, _IS_OPEN * self.is_open | _SHOWS_DURABLE * self.shows_durable,
            len(self.truncations), self.epoch, self.log_start_offset, self.last_stable_offset, self.base_offset,
            *self.written, *self.durable,
        ) + b"".join(_TRUNCATION.pack(*truncation) for truncation in self.truncations)
        body = body.ljust(SLOT_BYTES - _HEAD.size, b"\0")
        return _HEAD.pack(_MAGIC, _VERSION, crc32c(body, crc32c(_FRONT.pack(_MAGIC, _VERSION)))) + body

    def with_truncation(self, epoch: int, offset: int) -> "LiveEnds":
        """Return the same after a truncation. It replaces earlier truncations above it; if there are too many, two are
        merged."""
        truncations = [*((at, left) for at, left in self.truncations if left < offset), (epoch, offset)]
        if len(truncations) > TRUNCATIONS_MAX:
            truncations[:2] = [(truncations[1][0], truncations[0][1])]
        return self._replace(truncations=tuple(truncations))

    def truncation_since(self, epoch: int) -> int | None:
        """Return the lowest log end offset after a truncation since that epoch; None if there was no truncation."""
        return min((left for at, left in self.truncations if at > epoch), default=None)


def slot_position(sequence: int) -> int:
    """Return the position in the file of the slot with this sequence number."""
    return sequence % 2 * SLOT_BYTES


def latest_of(raw: "Buffer", path: str) -> LiveEnds | None:
    """Return the valid slot with the higher sequence number; None if neither is valid.

    Raises UnsupportedVersionError if a newer seglog wrote it.
    """
    return max(_slots_of(memoryview(raw), path), key=lambda found: found.sequence, default=None)


def _slots_of(raw: memoryview, path: str) -> Iterator[LiveEnds]:
    for position in (0, SLOT_BYTES):
        slot = raw[position : position + SLOT_BYTES]
        if len(slot) < SLOT_BYTES or slot[: len(_MAGIC)] != _MAGIC:
            continue
        _, version, checksum = _HEAD.unpack_from(slot)
        body = slot[_HEAD.size :]
        if crc32c(body, crc32c(slot[: _FRONT.size])) != checksum:
            continue
        if version != _VERSION:
            raise UnsupportedVersionError(f"version {version}; this seglog reads {_VERSION}", file=path)
        sequence, boot_id, flags, count, *numbers = _BODY.unpack_from(body)
        if count > TRUNCATIONS_MAX:
            continue
        truncations = tuple(_TRUNCATION.unpack_from(body, _BODY.size + n * _TRUNCATION.size) for n in range(count))
        epoch, start, stable, base = numbers[:4]
        w, d = numbers[4:9], numbers[9:14]
        yield LiveEnds(
            boot_id, bool(flags & _IS_OPEN), bool(flags & _SHOWS_DURABLE), epoch, start, stable, base,
            (w[0], w[1], w[2], w[3], w[4]), (d[0], d[1], d[2], d[3], d[4]), truncations, sequence,
        )
