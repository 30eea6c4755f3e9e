"""Decompresses payloads with the codecs' libraries directly: the witness for format.compression.

One call for each payload, without a limit on the output: the other reader has already read the payload within limits.
The framing of snappy and LZ4 is parsed here, block by block: docs/formats/compression.md.
"""
import gzip
import struct
import sys
from enum import IntEnum
from functools import cache
from importlib import import_module
from typing import Any

from seglog.errors import MissingCodecError


class PlainCodec(IntEnum):
    """The codec bits of a batch's attributes."""

    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_XERIAL = b"\x82SNAPPY\x00"
_LZ4_MAGIC, _LZ4_SKIPPABLE = 0x184D2204, 0x184D2A50
_LZ4_DICTIONARY_BYTES = 64 << 10


class Malformed(Exception):
    """The bytes do not follow the format."""


def open_payload(codec: int, payload: bytes) -> bytes:
    """Decompress the records of a batch. Raises Malformed, MissingCodecError.

    Ignores the checksum in an LZ4 frame's header, which Kafka computes differently in v0 (KAFKA-3160).
    """
    try:
        match codec:
            case PlainCodec.GZIP:
                return gzip.decompress(payload)
            case PlainCodec.SNAPPY:
                return _un_snappy(payload)
            case PlainCodec.LZ4:
                return _un_lz4(payload)
            case PlainCodec.ZSTD:
                return bytes(_zstd().decompress(payload))
    except (MissingCodecError, Malformed):
        raise
    except Exception as e:      # each library has its own exceptions
        raise Malformed(f"codec {codec}: {type(e).__name__}: {e}") from e
    raise Malformed(f"unknown codec {codec}")


@cache
def _library(name: str, package: str) -> Any:
    try:
        return import_module(name)
    except ImportError as e:
        raise MissingCodecError(f"{name} is not installed", hint=f"pip install {package}") from e


def _zstd() -> Any:
    return _library("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd", "backports.zstd")


def _un_snappy(payload: bytes) -> bytes:
    """Decompress blocks in xerial's framing, or one block without it."""
    snappy = _library("cramjam", "cramjam").snappy
    if not payload.startswith(_XERIAL):
        return bytes(snappy.decompress_raw(payload))
    at, out = 16, []
    while at < len(payload):
        size, = struct.unpack_from(">i", payload, at)
        block = payload[at + 4 : at + 4 + size]
        if size < 0 or len(block) < size:
            raise Malformed("a snappy block is cut short")
        out.append(bytes(snappy.decompress_raw(block)))
        at += 4 + size
    return b"".join(out)


def _un_lz4(payload: bytes) -> bytes:
    """Decompress consecutive frames. Their checksums are left to the other reader."""
    block = _library("lz4.block", "lz4")
    at, out = 0, bytearray()
    while at < len(payload):
        magic, = struct.unpack_from("<I", payload, at)
        if magic & 0xFFFFFFF0 == _LZ4_SKIPPABLE:
            at += 8 + struct.unpack_from("<I", payload, at + 4)[0]
            continue
        flags, descriptor = struct.unpack_from("BB", payload, at + 4)
        if magic != _LZ4_MAGIC or flags >> 6 != 1:
            raise Malformed(f"not an LZ4 frame of version 1: {magic:08x}")
        is_independent, has_block_checksum, has_size, has_checksum, has_dictionary = (
            flags & bit for bit in (0x20, 0x10, 0x08, 0x04, 0x01)
        )
        largest = 1 << (8 + 2 * (descriptor >> 4 & 7))
        at += 7 + (8 if has_size else 0) + (4 if has_dictionary else 0)
        begin = len(out)
        while size := struct.unpack_from("<I", payload, at)[0]:
            at += 4
            data = payload[at : at + (size & 0x7FFFFFFF)]
            if len(data) < size & 0x7FFFFFFF:
                raise Malformed("an LZ4 block is cut short")
            if size >> 31:
                out += data
            elif is_independent:
                out += block.decompress(data, uncompressed_size=largest)
            else:
                before = bytes(out[max(begin, len(out) - _LZ4_DICTIONARY_BYTES) :])
                out += block.decompress(data, uncompressed_size=largest, dict=before)
            at += len(data) + (4 if has_block_checksum else 0)
        at += 4 + (4 if has_checksum else 0)
    return bytes(out)
