"""The payload of a Pulsar entry: one compressed block, whose uncompressed size is in the metadata.

The framing is not Kafka's (compression.py): LZ4 and snappy are bare blocks here, zlib is zlib's own format. The size in
the metadata is a bound and must be exact; no more memory is allocated than the caller's limit. See
docs/formats/pulsar_entry.md.
"""
import zlib
from enum import IntEnum
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from seglog.config import LogConfig
from seglog.errors import (
    CorruptRecordError,
    MissingCodecError,
    RecordTooLargeError,
    SeglogError,
    UnsupportedCompressionTypeError,
)
from seglog.format import compression

if TYPE_CHECKING:
    from typing_extensions import Buffer


class PayloadCodec(IntEnum):
    """CompressionType of PulsarApi.proto: NONE, LZ4, ZLIB, ZSTD or SNAPPY."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4

    @classmethod
    def of(cls, number: int) -> "PayloadCodec":
        """Return the codec with this number. Raises UnsupportedCompressionTypeError for an unknown one."""
        if 0 <= number < len(_CODECS):
            return _CODECS[number]
        raise UnsupportedCompressionTypeError(
            f"unknown compression {number} of a Pulsar payload; expected one of "
            + ", ".join(f"{codec.name} ({codec.value})" for codec in cls)
        )


# Looked up by number: calling the class takes a microsecond, for every payload.
_CODECS = tuple(PayloadCodec)


def open_payload(
    codec: int,
    payload: "Buffer",
    uncompressed_size: int,
    limit_bytes: int = LogConfig().max_decompressed_message_bytes,
) -> "Buffer":
    """Decompress `payload` by `codec`; with NONE it is returned as it is, whatever `uncompressed_size` says.

    Raises RecordTooLargeError if `uncompressed_size` is above `limit_bytes`, CorruptRecordError if the payload is
    damaged or has another size when decompressed, UnsupportedCompressionTypeError, MissingCodecError.
    """
    codec = PayloadCodec.of(codec)
    if codec is PayloadCodec.NONE:
        return payload
    if uncompressed_size > limit_bytes:
        raise RecordTooLargeError(
            f"the payload claims {uncompressed_size} bytes when decompressed, "
            f"more than max.decompressed.message.bytes = {limit_bytes}"
        )
    match codec:
        case PayloadCodec.LZ4:
            out = _open_lz4(payload, uncompressed_size)
        case PayloadCodec.ZLIB:
            out = _open_zlib(payload, uncompressed_size)
        case PayloadCodec.ZSTD:
            out = _open_framed(compression.Codec.ZSTD, payload, uncompressed_size)
        case PayloadCodec.SNAPPY:
            # Without xerial's magic, with which no block can begin, a payload is one bare block for Kafka too.
            out = _open_framed(compression.Codec.SNAPPY, payload, uncompressed_size)
    size = memoryview(out).nbytes
    if size != uncompressed_size:
        raise _corrupt(codec, f"it has {size} bytes when decompressed, but the metadata says {uncompressed_size}")
    return out


def compress_payload(codec: int, data: "Buffer") -> "Buffer":
    """Compress `data` as Pulsar's CompressionCodecProvider does: default levels, zstd 3.

    Raises UnsupportedCompressionTypeError, MissingCodecError.
    """
    match PayloadCodec.of(codec):
        case PayloadCodec.NONE:
            return data
        case PayloadCodec.LZ4:
            return _lz4_block().compress(data, store_size=False)  # type: ignore[no-any-return]
        case PayloadCodec.ZLIB:
            stream = zlib.compressobj()
            return stream.compress(data) + stream.flush(zlib.Z_SYNC_FLUSH)      # like Pulsar, without ending the stream
        case PayloadCodec.ZSTD:
            return compression.compress(compression.Codec.ZSTD, 2, data)
        case PayloadCodec.SNAPPY:
            return bytes(_library("snappy", "cramjam", "cramjam").snappy.compress_raw(data))


@cache
def _lz4_block() -> Any:
    return _library("lz4", "lz4", "lz4.block")


def _library(codec: str, package: str, module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as e:
        raise MissingCodecError(
            f"{codec} needs the package {package}, which cannot be imported: {e}", hint=f"pip install {package}"
        ) from e


def _corrupt(codec: PayloadCodec, why: object) -> SeglogError:
    return CorruptRecordError(f"the {codec.name} payload does not decompress: {why}")


def _open_lz4(payload: "Buffer", uncompressed_size: int) -> "Buffer":
    lz4 = _lz4_block()
    try:
        return lz4.decompress(payload, uncompressed_size=uncompressed_size)  # type: ignore[no-any-return]
    except (lz4.LZ4BlockError, ValueError, OverflowError) as e:
        raise _corrupt(PayloadCodec.LZ4, e) from e


def _open_zlib(payload: "Buffer", uncompressed_size: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        # One more byte than expected reveals a stream that is too long; 0 would mean no bound.
        out = stream.decompress(payload, uncompressed_size + 1)
    except zlib.error as e:
        raise _corrupt(PayloadCodec.ZLIB, e) from e
    # Do not check stream.eof: Pulsar flushes its streams and never ends them (CompressionCodecZLib.encode).
    if stream.unused_data:
        raise _corrupt(PayloadCodec.ZLIB, f"{len(stream.unused_data)} bytes follow the stream")
    return out


def _open_framed(codec: compression.Codec, payload: "Buffer", uncompressed_size: int) -> "Buffer":
    try:
        return compression.decompress(codec, 2, payload, uncompressed_size)
    except RecordTooLargeError as e:
        raise CorruptRecordError(
            f"the {codec.name} payload does not decompress: it has more than the {uncompressed_size} bytes that the "
            "metadata says"
        ) from e
