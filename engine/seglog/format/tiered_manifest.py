"""`.rsm-manifest`: the metadata that Aiven's tiered storage plug-in writes for each segment that it copied.

JSON beside the segment's `.log`, which is stored in chunks, and its `.indexes`, which holds all small files one after
the other: docs/formats/tiered_segments.md.
"""
import binascii
import json
import re
import struct
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from seglog.errors import CorruptManifestError, EncryptedPayloadError, SeglogError, UnsupportedVersionError
from seglog.format import names
from seglog.format.compression import Codec, decompress
from seglog.named_tuple import NamedTuple

VERSION = "1"
MANIFEST_SUFFIX, INDEXES_SUFFIX = ".rsm-manifest", ".indexes"
# The plug-in's name of each small file, and Kafka's suffix.
INDEX_SUFFIXES = {
    "offset": names.OFFSET_INDEX_SUFFIX, "timestamp": names.TIME_INDEX_SUFFIX,
    "producerSnapshot": names.SNAPSHOT_SUFFIX, "transaction": names.TRANSACTION_INDEX_SUFFIX,
}
_UUID = r"[A-Za-z0-9_-]{22}"
_TOPIC = re.compile(rf"(.+)-{_UUID}", re.ASCII)
_SEGMENT = re.compile(rf"(\d{{20}})-{_UUID}{re.escape(MANIFEST_SUFFIX)}", re.ASCII)
_INT_MAX = 2**31 - 1
# The plug-in writes no longer list of chunks.
_SIZES_BYTES_MAX = 10 << 20
# 1 GiB in chunks of 1 KiB, each of which would be a request. A hostile manifest may claim more.
_CHUNKS_MAX = 1 << 20


class Chunk(NamedTuple):
    """Bytes [position, end) of a .log, and their place in the object: [stored_position, stored_end)."""

    position: int
    end: int
    stored_position: int
    stored_end: int


@dataclass(frozen=True, slots=True)
class TieredManifest:
    """A copied segment. `log_bytes`: the size of the broker's .log, which is stored in chunks of `chunk_bytes`.

    `chunk_ends`: the end of each chunk in the object. `indexes`: position and size in `.indexes`, by suffix.
    """

    base_offset: int
    last_offset: int
    log_bytes: int
    chunk_bytes: int
    chunk_ends: tuple[int, ...]
    is_compressed: bool
    indexes: Mapping[str, tuple[int, int]]

    @classmethod
    def parse(cls, raw: bytes, *, file: str) -> "TieredManifest":
        """Parse the bytes of the object. Raises CorruptManifestError, UnsupportedVersionError, or
        EncryptedPayloadError if the plug-in encrypted the segment."""
        try:
            body = json.loads(raw)
            if body["version"] != VERSION:
                raise UnsupportedVersionError(f"unknown version {body['version']!r} of a manifest", file=file)
            if body.get("encryption") is not None:
                raise EncryptedPayloadError(
                    "the plug-in encrypted this segment, and only the brokers have the key", file=file,
                    hint="read the topic through a broker, or copy the partition directory of a broker that has it",
                )
            return cls._of(body)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
            raise CorruptManifestError(f"not a manifest of a copied segment: {error!r:.200}", file=file) from error

    @classmethod
    def _of(cls, body: dict[str, Any]) -> "TieredManifest":
        chunks, metadata = body["chunkIndex"], body["remoteLogSegmentMetadata"]
        log_bytes = _whole(chunks["originalFileSize"], _INT_MAX)
        chunk_bytes = _whole(chunks["originalChunkSize"], _INT_MAX, at_least=1)
        count = -(-log_bytes // chunk_bytes)
        if count > _CHUNKS_MAX:
            raise ValueError(f"{count} chunks; at most {_CHUNKS_MAX} are supported")
        if chunks["type"] == "fixed":
            last = _whole(chunks["finalTransformedChunkSize"], _INT_MAX)
            sizes = [_whole(chunks["transformedChunkSize"], _INT_MAX)] * (count - 1) + [last] * (count > 0)
        elif chunks["type"] == "variable":
            sizes = chunk_sizes(chunks["transformedChunks"])
        else:
            raise ValueError(f"unknown chunk type {chunks['type']!r}")
        if len(sizes) != count:
            raise ValueError(f"{len(sizes)} chunks, but {log_bytes} bytes in chunks of {chunk_bytes} make {count}")
        if type(body["compression"]) is not bool:
            raise ValueError(f"unknown compression {body['compression']!r}")
        if not body["compression"] and sum(sizes) != log_bytes:
            raise ValueError(f"uncompressed chunks of {sum(sizes)} bytes, but a .log of {log_bytes}")
        indexes = {}
        for name, suffix in INDEX_SUFFIXES.items():
            place = body["segmentIndexes"][name]
            if place is not None:
                indexes[suffix] = _whole(place["position"], _INT_MAX), _whole(place["size"], _INT_MAX)
        base = _whole(metadata["startOffset"], names.MAX_OFFSET)
        return cls(
            base, _whole(metadata["endOffset"], names.MAX_OFFSET, at_least=base), log_bytes, chunk_bytes,
            tuple(accumulate(sizes)), body["compression"], indexes,
        )

    def chunks(self, position: int, end: int) -> list[Chunk]:
        """Return the chunks that contain [position, end) of the .log, which must be within it."""
        found = []
        for slot in range(position // self.chunk_bytes, -(-end // self.chunk_bytes)):
            begin = slot * self.chunk_bytes
            stored = self.chunk_ends[slot - 1] if slot else 0
            found.append(Chunk(begin, min(begin + self.chunk_bytes, self.log_bytes), stored, self.chunk_ends[slot]))
        return found

    def opened(self, chunk: Chunk, raw: bytes, *, file: str) -> bytes:
        """Decompress a chunk to its bytes of the .log. Raises CorruptManifestError if their number is wrong."""
        size_bytes = chunk.end - chunk.position
        if self.is_compressed:
            try:
                raw = bytes(decompress(Codec.ZSTD, 2, raw, size_bytes))
            except SeglogError as error:
                raise CorruptManifestError(
                    f"the chunk does not decompress to {size_bytes} bytes: {error}", file=file,
                    position=chunk.stored_position,
                ) from error
        if len(raw) != size_bytes:
            raise CorruptManifestError(
                f"the chunk has {len(raw)} bytes, not {size_bytes}", file=file, position=chunk.stored_position
            )
        return raw


def topic_of(name: str) -> str | None:
    """Return the topic of a directory `<topic>-<topic id>`; None for any other name."""
    found = _TOPIC.fullmatch(name)
    return found[1] if found is not None and names.topic_fault(found[1]) is None else None


def base_offset_of(name: str) -> int | None:
    """Return the base offset of a `<20 digits>-<segment id>.rsm-manifest`; None for any other name."""
    found = _SEGMENT.fullmatch(name)
    return int(found[1]) if found is not None and int(found[1]) <= names.MAX_OFFSET else None


def chunk_sizes(text: str) -> list[int]:
    """Parse the chunk sizes of a manifest: base64 of zstd of a count, the smallest size, and each one's excess over it.

    Raises ValueError, struct.error.
    """
    try:
        raw = bytes(decompress(Codec.ZSTD, 2, b64decode(text, validate=True), _SIZES_BYTES_MAX))
    except (SeglogError, binascii.Error) as error:
        raise ValueError(f"the chunk sizes do not decompress: {error}") from error
    (count,) = struct.unpack_from(">i", raw)
    if count == 0:
        return []
    if count > _CHUNKS_MAX:
        raise ValueError(f"{count} chunk sizes; at most {_CHUNKS_MAX} are supported")
    sizes = []
    if count > 1:
        least, width = struct.unpack_from(">iB", raw, 4)
        if not 1 <= width <= 4 or least < 0 or len(raw) != 13 + (count - 1) * width:
            raise ValueError(f"{count} chunk sizes of {width} bytes do not fit in {len(raw)} bytes")
        sizes = [least + int.from_bytes(raw[at : at + width]) for at in range(9, len(raw) - 4, width)]
    elif count != 1 or len(raw) != 8:
        raise ValueError(f"{count} chunk sizes do not fit in {len(raw)} bytes")
    (last,) = struct.unpack_from(">i", raw, len(raw) - 4)
    if last < 0 or any(size > _INT_MAX for size in sizes):
        raise ValueError("invalid chunk size")
    return [*sizes, last]


def _whole(number: object, at_most: int, *, at_least: int = 0) -> int:
    if type(number) is int and at_least <= number <= at_most:
        return number
    raise ValueError(f"expected a number from {at_least} to {at_most}, not {number!r:.40}")
