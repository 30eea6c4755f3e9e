"""Compresses and decompresses the payload of a batch; the output never exceeds a given limit.

What a stream claims about itself (content sizes, windows, counts) is never trusted: output is taken in pieces and
counted, so memory stays within the limit and a small constant. The codecs are maintained libraries, imported at the
first payload that needs them; the framing around snappy and Kafka's own LZ4 header checksum are implemented here. See
docs/formats/compression.md.
"""
import struct
import threading
from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import cache, lru_cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from seglog.config import MAX_LONG, LogConfig
from seglog.errors import (
    CorruptRecordError,
    InvalidConfigError,
    MissingCodecError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
)
from seglog.format.zstd_frames import output_bound

if TYPE_CHECKING:
    from typing_extensions import Buffer

    Decompress = Callable[[int, int, memoryview], Buffer]
else:
    Decompress = Callable

# Output is taken in pieces of at most this size: a decompression bomb can exceed the limit by no more.
PIECE_BYTES = 1 << 20
# A stream object copies the input that follows the end of its frame. Feeding it slices keeps
# a payload of a million tiny frames from costing a million copies of itself.
FEED_BYTES = 16 << 10
# Larger payloads may give more than one piece, and would be decompressed twice.
_ONE_CALL_BYTES = 1 << 16


class Codec(IntEnum):
    """The codec bits of a batch's attributes (org.apache.kafka.common.record.CompressionType)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def label(self) -> str:
        """Kafka's name: none, gzip, snappy, lz4, zstd."""
        return self.name.lower()

    @classmethod
    def of(cls, codec: "int | str | Codec") -> "Codec":
        """Return the codec with this number or Kafka name. Raises UnsupportedCompressionTypeError."""
        if isinstance(codec, str):
            if codec.upper() in cls.__members__ and codec == codec.lower():
                return cls[codec.upper()]
        elif isinstance(codec, int) and 0 <= codec <= cls.ZSTD:
            return cls(codec)
        raise UnsupportedCompressionTypeError(
            f"unknown codec {codec!r}; expected one of {', '.join(f'{c.label} ({c.value})' for c in cls)}"
        )


def decompress(codec: int, magic: int, payload: "Buffer", limit_bytes: int) -> "Buffer":
    """Decompress the records of a batch: `payload` in `codec`, framed as in format version `magic`.

    Raises RecordTooLargeError above `limit_bytes`, CorruptRecordError for a stream that is damaged, cut short or
    followed by other bytes, UnsupportedCompressionTypeError, MissingCodecError.
    """
    if not 0 <= codec < len(_OPEN):
        Codec.of(codec)
    return _OPEN[codec](payload, limit_bytes, magic)


def decompressor(limit_bytes: int = LogConfig().max_decompressed_message_bytes) -> Decompress:
    """Return the callable by which kernels decompress: (codec, magic, payload) -> at most `limit_bytes` bytes."""
    return partial(decompress, limit_bytes=limit_bytes)


# The largest expansion of one byte: deflate's longest match takes two bits, LZ4's a byte, snappy's three.
_RATIO_MAX: dict[int, int] = {Codec.GZIP: 1032, Codec.SNAPPY: 22, Codec.LZ4: 255}


def may_exceed(codec: int, payload: memoryview, limit_bytes: int) -> bool:
    """Whether a payload may decompress to more than `limit_bytes`, judged without decompressing it."""
    match Codec.of(codec):
        case Codec.NONE:
            return False
        case Codec.ZSTD:
            return not 0 <= output_bound(payload, 1 << _WIDE_WINDOW_LOG_MAX) <= limit_bytes
        case Codec.GZIP | Codec.SNAPPY | Codec.LZ4 as known:
            return len(payload) * _RATIO_MAX[known] > limit_bytes


def output_bytes_max(codec: int, payload: memoryview) -> int:
    """How many bytes a payload may decompress to, judged without decompressing it; 0 for an unknown codec."""
    if codec == Codec.ZSTD:
        bound = output_bound(payload, 1 << _WIDE_WINDOW_LOG_MAX)
        return MAX_LONG if bound < 0 else bound
    return len(payload) * _RATIO_MAX.get(codec, 1 if codec == Codec.NONE else 0)


def harmless_bytes(codec: Codec, limit_bytes: int) -> int:
    """Return the payload size up to which no output exceeds `limit_bytes`; 0: see `may_exceed`."""
    if codec is Codec.NONE:
        return MAX_LONG     # it does not grow
    ratio = _RATIO_MAX.get(codec, 0)
    return limit_bytes // ratio if ratio else 0


def compress(codec: int, magic: int, data: "Buffer", level: int | None = None) -> "Buffer":
    """Compress `data` into one payload, framed as Kafka frames it for format version `magic`.

    `level` is Kafka's compression.<codec>.level (KIP-390), None its default. Raises InvalidConfigError for a level that
    the codec does not have, UnsupportedCompressionTypeError, MissingCodecError.
    """
    codec = Codec.of(codec)
    level = _level(codec, level)
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return import_module("zlib").compress(data, level, wbits=_GZIP_WBITS)  # type: ignore[no-any-return]
        case Codec.SNAPPY:
            return _snappy(data)
        case Codec.LZ4:
            return _lz4(data, level, magic)
        case Codec.ZSTD:
            _check_zstd_allowed(magic)
            return _zstd_library().compress(data, level)  # type: ignore[no-any-return]


# Kafka's levels: lowest, highest, default (CompressionType, KIP-390). LZ4's default "9" means the fast compressor,
# every other number the slow one of that level (Lz4BlockOutputStream).
_LEVELS = {
    Codec.GZIP: (1, 9, -1),
    Codec.LZ4: (1, 17, 9),
    Codec.ZSTD: (-131072, 22, 3),
}


def _level(codec: Codec, level: int | None) -> int:
    if codec not in _LEVELS:
        if level is not None:
            raise InvalidConfigError(f"{codec.label} has no levels; level {level} was given")
        return 0
    low, high, default = _LEVELS[codec]
    if level is None or level == default:
        return default
    if not low <= level <= high:
        raise InvalidConfigError(f"compression.{codec.label}.level is {low} to {high} (default {default}), not {level}")
    return level


def _check_zstd_allowed(magic: int) -> None:
    if magic < 2:
        raise UnsupportedCompressionTypeError(
            f"zstd is not allowed in format v{magic}: only v2 may use it (KIP-110)",
            hint="convert to v2, or choose gzip, snappy or lz4 with --codec",
        )


# --- libraries -----------------------------------------------------------------------------

# Each is imported at its first use; later uses cost no more than a name lookup.


@cache
def _gzip_library() -> Any:
    # isal is two to three times as fast, and optional ([fast]).
    return _import("gzip", "zlib", "isal.isal_zlib", "zlib")


@cache
def _snappy_library() -> Any:
    return _import("snappy", "cramjam", "cramjam")


@cache
def _lz4_library() -> Any:
    return _import("lz4", "lz4", "lz4.frame")


@cache
def _zstd_library() -> Any:
    return _import("zstd", "backports.zstd", "compression.zstd", "backports.zstd")


class _QuickZstd(threading.local):
    """`zstandard` ([fast]) keeps its context between calls, which saves a third of the time for a 16 KB batch.

    It cannot bound its output, so it gets only frames with a known bound. One per thread: it is not thread-safe.
    """

    def __init__(self) -> None:
        try:
            zstandard = import_module("zstandard")
        except ImportError:
            self.error: type[Exception] = Exception
            self.decompressor: Any = None
        else:
            self.error = zstandard.ZstdError
            self.decompressor = zstandard.ZstdDecompressor(max_window_size=1 << _WINDOW_LOG_MAX)


@cache
def _quick_zstd() -> _QuickZstd:
    return _QuickZstd()


def _import(codec: str, package: str, *modules: str) -> Any:
    """Import the first module that is installed; `package` is what to install if none is."""
    why: ImportError | None = None
    for module in modules:
        try:
            return import_module(module)
        except ImportError as e:
            why = e.with_traceback(None)    # it would keep the callers' objects alive until the next collection
    raise MissingCodecError(
        f"{codec} needs the package {package}, which cannot be imported: {why}", hint=f"pip install {package}"
    ) from why


def _corrupt(codec: Codec, why: object) -> CorruptRecordError:
    return CorruptRecordError(f"the {codec.label} payload does not decompress: {why}")


def _too_large(limit_bytes: int) -> RecordTooLargeError:
    return RecordTooLargeError(
        f"the payload decompresses to more than max.decompressed.message.bytes = {limit_bytes}"
    )


# --- gzip and zstd: streams of members -------------------------------------------------------

_GZIP_WBITS = 31    # the largest window, with gzip's header and trailer

# zstd keeps a frame's window beside the output. 8 MiB is what levels up to 19 need.
_WINDOW_LOG_MAX = 23
# What libzstd, and so Kafka's reader, accepts by default: levels 20 to 22.
_WIDE_WINDOW_LOG_MAX = 27


def _un_gzip(payload: "Buffer", limit_bytes: int, magic: int) -> "Buffer":
    zlib = _gzip_library()
    try:
        if len(payload) <= _ONE_CALL_BYTES:     # type: ignore[arg-type]
            # Fast path: one member, decompressed in one call. Everything else takes the slow path below.
            stream = zlib.decompressobj(_GZIP_WBITS)
            out = stream.decompress(payload, PIECE_BYTES)
            if stream.eof and not stream.unused_data and len(out) <= limit_bytes:
                return out  # type: ignore[no-any-return]
        return _members(Codec.GZIP, partial(zlib.decompressobj, _GZIP_WBITS), payload, limit_bytes)
    except zlib.error as e:
        raise _corrupt(Codec.GZIP, e) from e


def _un_zstd(payload: "Buffer", limit_bytes: int, magic: int) -> "Buffer":
    _check_zstd_allowed(magic)
    quick = _quick_zstd()
    if quick.decompressor is not None:
        bound = output_bound(memoryview(payload), 1 << _WINDOW_LOG_MAX)
        if 0 <= bound <= limit_bytes:
            stream = quick.decompressor.decompressobj()
            try:
                out = stream.decompress(payload)
            except quick.error as e:
                raise _corrupt(Codec.ZSTD, e) from e
            if not stream.eof:
                raise _corrupt(Codec.ZSTD, f"it ends in the middle of a stream, after {len(out)} bytes of output")
            return out  # type: ignore[no-any-return]
    zstd = _zstd_library()
    try:
        return _members(Codec.ZSTD, _zstd_stream(_WINDOW_LOG_MAX), payload, limit_bytes)
    except zstd.ZstdError as e:
        if not _has_wide_window(payload):
            raise _corrupt(Codec.ZSTD, e) from e
    # A wider window may hold a second copy of the whole output, so it counts as one.
    try:
        return _members(Codec.ZSTD, _zstd_stream(_WIDE_WINDOW_LOG_MAX), payload, limit_bytes // 2)
    except zstd.ZstdError as e:
        raise _corrupt(Codec.ZSTD, e) from e


@cache
def _zstd_stream(window_log_max: int) -> Callable[[], Any]:
    zstd = _zstd_library()
    return partial(zstd.ZstdDecompressor, options={zstd.DecompressionParameter.window_log_max: window_log_max})


def _has_wide_window(payload: "Buffer") -> bool:
    """Whether the first frame asks for a window above 2 ** _WINDOW_LOG_MAX (RFC 8878, 3.1.1.1)."""
    header = bytes(memoryview(payload)[:6])
    if len(header) < 6 or header[:4] != b"\x28\xb5\x2f\xfd":
        return False
    single_segment = header[4] & 0x20       # the content is the window; do not parse its size
    return bool(single_segment) or (header[5] >> 3) + 10 >= _WINDOW_LOG_MAX


def _members(codec: Codec, new_stream: Callable[[], Any], payload: "Buffer", limit_bytes: int) -> "Buffer":
    """Decompress one or more consecutive members (gzip) or frames (zstd), piece by piece."""
    view = memoryview(payload)
    out = bytearray()
    stream = new_stream()
    fed: Buffer = view if len(view) <= PIECE_BYTES else view[:PIECE_BYTES]      # almost always everything
    pos = min(len(view), PIECE_BYTES)
    while True:
        piece = stream.decompress(fed, PIECE_BYTES)
        if len(out) + len(piece) > limit_bytes:
            raise _too_large(limit_bytes)
        at_end = stream.eof
        if at_end:
            pos -= len(stream.unused_data)
            if pos == len(view) and not out:
                return piece  # type: ignore[no-any-return]
        out += piece
        if at_end:
            if pos == len(view):
                return out
            stream = new_stream()
        else:
            fed = getattr(stream, "unconsumed_tail", b"")   # zlib returns it, zstd keeps it
            if fed or len(piece) == PIECE_BYTES:
                continue                                    # it contains more
            if pos == len(view):
                raise _corrupt(codec, f"it ends in the middle of a stream, after {len(out)} bytes of output")
        fed = view[pos : pos + FEED_BYTES]
        pos = min(pos + FEED_BYTES, len(view))


# --- snappy: xerial's framing around raw blocks ----------------------------------------------

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = struct.Struct(">8sii")     # magic, version, the oldest version that can read it
_XERIAL_VERSION = 1
_XERIAL_BLOCK_BYTES = 32 << 10              # SnappyOutputStream's default, which Kafka keeps
_I32 = struct.Struct(">i")
# Kafka begins every stream with this.
_XERIAL_START = _XERIAL_HEADER.pack(_XERIAL_MAGIC, _XERIAL_VERSION, _XERIAL_VERSION)
_FIRST_BLOCK_POS = _XERIAL_HEADER.size + _I32.size
# A block size equal to the first half of the magic: another stream begins here (SnappyInputStream.hasNextChunk).
_XERIAL_MAGIC_AS_SIZE = _I32.unpack_from(_XERIAL_MAGIC)[0]


def _snappy(data: "Buffer") -> "Buffer":
    compress_raw = _snappy_library().snappy.compress_raw
    view = memoryview(data)
    parts: list[Buffer] = [_XERIAL_START]
    for pos in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = compress_raw(view[pos : pos + _XERIAL_BLOCK_BYTES])
        parts += (_I32.pack(len(block)), block)
    return b"".join(parts)


def _un_snappy(payload: "Buffer", limit_bytes: int, magic: int) -> "Buffer":
    cramjam = _snappy_library()
    snappy = cramjam.snappy
    view = memoryview(payload)
    try:
        # Fast path: Kafka's header and one block.
        block = view[_FIRST_BLOCK_POS:]
        if view[:_FIRST_BLOCK_POS] == _XERIAL_START + _I32.pack(len(block)):
            if snappy.decompress_raw_len(block) > limit_bytes:
                raise _too_large(limit_bytes)
            return snappy.decompress_raw(block)  # type: ignore[no-any-return]
        # A block begins with the size of its content: add up all of them before allocating.
        total = sum(snappy.decompress_raw_len(block) for block in _xerial_blocks(view))
        if total > limit_bytes:
            raise _too_large(limit_bytes)
        out = memoryview(bytearray(total))
        pos = 0
        for block in _xerial_blocks(view):
            pos += snappy.decompress_raw_into(block, out[pos : pos + snappy.decompress_raw_len(block)])
        if pos != total:
            raise _corrupt(Codec.SNAPPY, f"{pos} bytes of output, but the blocks announce {total}")
        return out
    except cramjam.DecompressionError as e:
        raise _corrupt(Codec.SNAPPY, e) from e


def _xerial_blocks(view: memoryview) -> Iterator[memoryview]:
    """Yield the raw blocks of a xerial stream; any other payload is one bare block."""
    if view[:8] != _XERIAL_MAGIC:
        yield view
        return
    pos = 0
    while pos < len(view):
        if len(view) - pos < 4:
            raise _corrupt(Codec.SNAPPY, "it ends in the middle of a block size")
        (size,) = _I32.unpack_from(view, pos)
        if size == _XERIAL_MAGIC_AS_SIZE:
            if len(view) - pos < _XERIAL_HEADER.size:
                raise _corrupt(Codec.SNAPPY, "it ends in the middle of a header")
            magic, version, _ = _XERIAL_HEADER.unpack_from(view, pos)
            if magic != _XERIAL_MAGIC or version < _XERIAL_VERSION:
                raise _corrupt(Codec.SNAPPY, f"a header of version {version}, which is not xerial's")
            pos += _XERIAL_HEADER.size
            continue
        pos += 4
        if not 0 <= size <= len(view) - pos:
            raise _corrupt(Codec.SNAPPY, f"a block of {size} bytes, but only {len(view) - pos} are left")
        yield view[pos : pos + size]
        pos += size


# --- lz4: frames, and Kafka's own checksum of their header in format v0 ------------------------

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_CONTENT_SIZE_BIT = 0x08
_LZ4_DICTIONARY_BIT = 0x01
_LZ4_MOST_EXPANSION = 255   # one byte of a match's length stands for up to this many bytes
_LZ4_HC_SLOWEST = 12        # liblz4's highest level; lz4-java takes up to 17 and does the same
_LZ4_HC_FASTEST = 3         # below this, liblz4's frames use the fast compressor


def _lz4(data: "Buffer", level: int, magic: int) -> "Buffer":
    """One frame of version 1: independent blocks of 64 KiB, no checksums, no content size (Lz4BlockOutputStream)."""
    lz4 = _lz4_library()
    fast = level == _LEVELS[Codec.LZ4][2]
    frame: bytes = lz4.compress(
        data,
        compression_level=0 if fast else min(max(level, _LZ4_HC_FASTEST), _LZ4_HC_SLOWEST),
        block_size=lz4.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    if magic > 0:
        return frame
    return frame[:6] + _lz4_header_checksum(frame[:6]) + frame[7:]


def _un_lz4(payload: "Buffer", limit_bytes: int, magic: int) -> "Buffer":
    lz4 = _lz4_library()
    view = memoryview(payload)
    # The library allocates a piece's memory in advance: ask for no more than these bytes can give.
    piece_bytes = min(PIECE_BYTES, _LZ4_MOST_EXPANSION * len(view))
    if magic > 0 and len(view) <= _ONE_CALL_BYTES and piece_bytes <= limit_bytes:
        # Fast path: one frame, decompressed in one call. Everything else, including damage, takes the slow path below.
        try:
            piece, read, at_end = lz4.decompress_chunk(
                lz4.create_decompression_context(), view, max_length=piece_bytes)
        except RuntimeError:
            at_end = False
        if at_end and read == len(view):
            return piece  # type: ignore[no-any-return]
    out = bytearray()
    pos = 0
    try:
        while True:
            if view[pos : pos + 4] != _LZ4_MAGIC:
                raise _corrupt(Codec.LZ4, f"no frame begins at byte {pos} of {len(view)}")
            context = lz4.create_decompression_context()
            if magic == 0:
                header = _mended_lz4_header(view[pos:])
                lz4.decompress_chunk(context, header)
                pos += len(header)
            at_end = False
            while not at_end:
                piece, read, at_end = lz4.decompress_chunk(context, view[pos:], max_length=piece_bytes)
                pos += read
                if not at_end and pos == len(view) and len(piece) < piece_bytes:
                    raise _corrupt(Codec.LZ4, "it ends in the middle of a frame")
                if len(out) + len(piece) > limit_bytes:
                    raise _too_large(limit_bytes)
                if at_end and pos == len(view) and not out:
                    return piece  # type: ignore[no-any-return]
                out += piece
            if pos == len(view):
                return out
    except RuntimeError as e:
        raise _corrupt(Codec.LZ4, e) from e


def _mended_lz4_header(frame: memoryview) -> bytes:
    """Return the frame's header with a correct checksum: in format v0, Kafka does not check it."""
    flags = frame[4] if len(frame) > 4 else 0
    size = 6 + (8 if flags & _LZ4_CONTENT_SIZE_BIT else 0) + (4 if flags & _LZ4_DICTIONARY_BIT else 0)
    if len(frame) <= size:
        raise _corrupt(Codec.LZ4, "it ends in the middle of a frame header")
    header = bytes(frame[:size])
    return header + _lz4_header_checksum(header[len(_LZ4_MAGIC) :])


@lru_cache(maxsize=16)
def _lz4_header_checksum(header: bytes) -> bytes:
    """Return the second byte of the XXH32 of a frame's descriptor; with KAFKA-3160 it also covers the magic."""
    return bytes([_xxh32_short(header) >> 8 & 0xFF])


def _xxh32_short(data: bytes) -> int:
    """Return the XXH32 with seed 0 of fewer than 16 bytes. Plain Python: it runs once for each kind of header."""
    prime1, prime2, prime3, prime4, prime5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1
    mask = 0xFFFFFFFF

    def rotated(value: int, by: int) -> int:
        return (value << by | (value & mask) >> 32 - by) & mask

    h = prime5 + len(data)
    words = len(data) // 4
    for word in struct.unpack_from(f"<{words}I", data):
        h = rotated(h + word * prime3, 17) * prime4
    for byte in data[4 * words :]:
        h = rotated(h + byte * prime5, 11) * prime1
    h &= mask
    h = (h ^ h >> 15) * prime2 & mask
    h = (h ^ h >> 13) * prime3 & mask
    return h ^ h >> 16


def _un_none(payload: "Buffer", limit_bytes: int, magic: int) -> "Buffer":
    return payload


_OPEN = (_un_none, _un_gzip, _un_snappy, _un_lz4, _un_zstd)     # by codec number
