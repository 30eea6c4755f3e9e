"""The record formats in plain Python: a second reader, which shares no code with the kernels.

The proof of a conversion and `verify` read with the same kernels whose work they check: a kernel's error would be on
both sides. This reader is the independent witness: struct and slices, the `crc32c` package, zlib, and the codecs'
libraries (format.plain_codecs). It imports nothing else of seglog but its errors, and it is slow: some MB/s. Both
readers follow docs/formats/record_batch.md and message.md.
"""
import hashlib
import io
import struct
import zlib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from typing import Any, BinaryIO, NamedTuple

from seglog.errors import MissingCodecError
from seglog.format.plain_codecs import Malformed, open_payload

OVERHEAD = 12                   # of each batch: base offset and size
MAGIC_AT = 16
SMALLEST = (14, 22, 49)         # the smallest size field of a batch, by magic
CODEC, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
LEGACY_CODECS = 3               # gzip, snappy, lz4: zstd came with v2

ABORT, COMMIT = 0, 1            # the second int16 of a marker's key


class PlainRecord(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


class PlainBatch(NamedTuple):
    """The bytes of a v2 batch, or of one v0 or v1 message, which may be a wrapper, at `position` in its file."""

    position: int
    raw: bytes

    @property
    def magic(self) -> int:
        return self.raw[MAGIC_AT]

    @property
    def attributes(self) -> int:
        return int.from_bytes(self.raw[21:23], "big") if self.magic == 2 else self.raw[17]

    @property
    def producer_id(self) -> int:
        return int.from_bytes(self.raw[43:51], "big", signed=True) if self.magic == 2 else -1

    @property
    def is_control(self) -> bool:
        return self.magic == 2 and bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return self.magic == 2 and bool(self.attributes & TRANSACTIONAL)

    @property
    def crc_fits(self) -> bool:
        """Whether the CRC is correct; for a wrapper the outer one: its messages are checked when they are read."""
        if self.magic == 2:
            return int.from_bytes(self.raw[17:21], "big") == int(_crc32c()(self.raw[21:]))
        return int.from_bytes(self.raw[12:16], "big") == zlib.crc32(self.raw[16:])

    @property
    def marker(self) -> int:
        """Return the type of a control batch: ABORT, COMMIT or another."""
        key = self.records()[0].key or b""
        return int.from_bytes(key[2:4], "big") if len(key) >= 4 else -1

    def records(self) -> list[PlainRecord]:
        """Read the records. Raises Malformed for any deviation from the format, including a wrong CRC."""
        try:
            if not self.crc_fits:
                raise Malformed("wrong checksum")
            return self.parse()
        except (struct.error, IndexError) as e:
            raise Malformed(f"{type(e).__name__}: {e}") from e

    def parse(self) -> list[PlainRecord]:
        """Read the records without checking the CRC. Also raises struct.error and IndexError."""
        return _records_v2(self.raw) if self.magic == 2 else _messages(self.raw)


@cache
def _crc32c() -> Any:
    try:
        return import_module("crc32c").crc32c
    except ImportError as e:
        raise MissingCodecError(
            "reading in plain Python needs the crc32c package", hint="pip install 'seglog[witness]'"
        ) from e


# --- batches ---------------------------------------------------------------------------------


def read_batches(file: BinaryIO, position: int = 0, stop: int | None = None) -> Iterator[PlainBatch]:
    """Yield the complete batches of a file from `position` to `stop`; ends if one is cut short or none begins."""
    file.seek(position)
    while stop is None or position < stop:
        head = file.read(OVERHEAD)
        if len(head) < OVERHEAD:
            return
        size = int.from_bytes(head[8:], "big", signed=True)
        if size < SMALLEST[0]:
            return
        body = file.read(size)
        if len(body) < size or body[4] > 2 or size < SMALLEST[body[4]]:
            return
        yield PlainBatch(position, head + body)
        position += OVERHEAD + size


def split(raw: bytes, position: int) -> list[PlainBatch]:
    """Return the same for bytes that are at `position` in a file."""
    return [PlainBatch(position + batch.position, batch.raw) for batch in read_batches(io.BytesIO(raw))]


# --- v2 --------------------------------------------------------------------------------------


def _records_v2(raw: bytes) -> list[PlainRecord]:
    base_offset, = struct.unpack_from(">q", raw, 0)
    attributes, _, base_timestamp, max_timestamp = struct.unpack_from(">hiqq", raw, 21)
    count, = struct.unpack_from(">i", raw, 57)
    payload = raw[61:]
    if attributes & CODEC and (payload or count):
        payload = open_payload(attributes & CODEC, payload)
    fields, records = _Fields(payload), []
    if count < 0:
        raise Malformed(f"{count} records")
    for _ in range(count):
        record = _Fields(fields.take(fields.varint()))
        record.take(1)          # attributes, which are unused
        timestamp, offset = _signed64(base_timestamp + record.varlong()), _signed64(base_offset + record.varint())
        key, value = record.sized(), record.sized()
        headers = tuple(_header(record) for _ in range(record.count()))
        record.end()
        records.append(PlainRecord(
            offset, max_timestamp if attributes & LOG_APPEND_TIME else timestamp, key, value, headers
        ))
    fields.end()
    return records


def _header(record: "_Fields") -> tuple[bytes, bytes | None]:
    name, value = record.sized(), record.sized()
    if name is None:
        raise Malformed("a header has no key")
    return name, value


class _Fields:
    """Reads the fields of a record, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            raise Malformed(f"a field of {size} bytes, but only {len(self._data) - self._at} are left")
        self._at += size
        return self._data[self._at - size : self._at]

    def varint(self) -> int:
        return self._zigzag(5, 32)

    def varlong(self) -> int:
        return self._zigzag(10, 64)

    def _zigzag(self, most_bytes: int, bits: int) -> int:
        raw = 0
        for n in range(most_bytes):
            byte = self.take(1)[0]
            raw |= (byte & 0x7F) << (7 * n)
            if byte < 0x80:
                raw &= (1 << bits) - 1      # Java drops the bits beyond, too
                return (raw >> 1) ^ -(raw & 1)
        raise Malformed("a varint does not end")

    def count(self) -> int:
        count = self.varint()
        if count < 0:
            raise Malformed(f"{count} headers")
        return count

    def sized(self) -> bytes | None:
        size = self.varint()
        return None if size < 0 else self.take(size)

    def end(self) -> None:
        if self._at != len(self._data):
            raise Malformed(f"{len(self._data) - self._at} bytes after the last field")


def _signed64(n: int) -> int:
    return (n + 2**63) % 2**64 - 2**63


# --- v0, v1 ----------------------------------------------------------------------------------


def _messages(raw: bytes) -> list[PlainRecord]:
    outer, attributes = _message(raw)
    codec, magic = attributes & CODEC, raw[MAGIC_AT]
    if codec == 0:
        return [outer]
    if codec > LEGACY_CODECS or outer.value is None:
        raise Malformed("a wrapper has an unknown codec or no value")
    data = open_payload(codec, outer.value)
    inner, has_relative_offsets = [], magic == 1
    at = 0
    while at < len(data):
        end = at + OVERHEAD + int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
        if not at + OVERHEAD + SMALLEST[0] <= end <= len(data):
            raise Malformed("a message in a wrapper is cut short")
        one = PlainBatch(0, data[at:end])
        record, its_attributes = _message(one.raw)
        if its_attributes & CODEC or not one.crc_fits:
            raise Malformed("a wrapper contains a wrapper, or a message with a wrong checksum")
        if magic == 1 and one.magic == 1 and attributes & LOG_APPEND_TIME:
            record = record._replace(timestamp=outer.timestamp)
        inner.append(record)
        at = end
    if not inner:
        raise Malformed("an empty wrapper")
    # A v1 wrapper has the offset of its last message, and its messages count from 0; a v0 wrapper's are absolute,
    # and so are those of a v1 wrapper with offset 0 (0.10.0's producers, before a broker assigned any).
    base = outer.offset - inner[-1].offset if has_relative_offsets and outer.offset else 0
    if base < 0:
        raise Malformed("the offset of a wrapper is below that of its last message")
    return [record._replace(offset=_signed64(base + record.offset)) for record in inner]


def _message(raw: bytes) -> tuple[PlainRecord, int]:
    """Return (record, attributes); offset and timestamp as stored."""
    magic, attributes = raw[MAGIC_AT], raw[17]
    if magic > 1 or len(raw) < OVERHEAD + SMALLEST[magic]:
        raise Malformed(f"invalid message: magic {magic}, {len(raw)} bytes")
    offset, = struct.unpack_from(">q", raw, 0)
    timestamp, at = (struct.unpack_from(">q", raw, 18)[0], 26) if magic == 1 else (-1, 18)
    fields = _Fields(raw[at:])
    key, value = (
        None if (size := int.from_bytes(fields.take(4), "big", signed=True)) < 0 else fields.take(size)
        for _ in ("key", "value")
    )
    fields.end()
    return PlainRecord(offset, timestamp, key, value), attributes


# --- the digest ------------------------------------------------------------------------------


class PlainDigest:
    """Counts records and hashes their canonical bytes: docs/formats/conversion_proof.md."""

    def __init__(self, *, with_time: bool = True, with_headers: bool = True) -> None:
        self._with_time = with_time
        self._with_headers = with_headers
        self._sha256 = hashlib.sha256()
        self.records = 0

    def add(self, records: Iterable[PlainRecord]) -> None:
        for record in records:
            self.records += 1
            headers = record.headers if self._with_headers else ()
            self._sha256.update(b"".join((
                struct.pack(">qq", record.offset, record.timestamp if self._with_time else -1),
                _sized(record.key), _sized(record.value), struct.pack(">i", len(headers)),
                *(_sized(field) for header in headers for field in header),
            )))

    @property
    def sha256(self) -> str:
        """The hex digest of all records so far."""
        return self._sha256.hexdigest()


def _sized(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data
