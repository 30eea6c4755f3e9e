"""The record formats in the most obvious Python: the twin that kernels are compared with, and the
vocabulary for making bytes that no broker would write.

Decoders return plain tuples, check everything by slicing, and raise Malformed. Encoders check nothing.
Nothing here uses the kernels.
"""
import struct
import zlib
from itertools import pairwise
from typing import NamedTuple

import crc32c

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40


class Malformed(Exception):
    pass


class PlainRecord(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple = ()


# --- varints -------------------------------------------------------------------------------------


def varint(n):
    """Zigzag, as many bytes as it needs."""
    raw = (n << 1) ^ (n >> 63)
    raw &= 2**64 - 1
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def read_varint(data, at, end, most_bytes=5):
    """(value, position after it). Bits beyond 32 (of five bytes) or 64 (of ten) are dropped, as Java does."""
    raw = 0
    for i in range(most_bytes):
        if at >= end:
            raise Malformed("short")
        raw |= (data[at] & 0x7F) << (7 * i)
        at += 1
        if data[at - 1] < 0x80:
            raw &= 2 ** (32 if most_bytes == 5 else 64) - 1
            return (raw >> 1) ^ -(raw & 1), at
    raise Malformed("varint")


def signed64(n):
    return (n + 2**63) % 2**64 - 2**63


# --- v2 ------------------------------------------------------------------------------------------


def sized(field):
    return varint(-1) if field is None else varint(len(field)) + field


def record_v2(offset_delta=0, timestamp_delta=0, key=None, value=None, headers=(), *, attributes=0):
    body = bytes([attributes]) + varint(timestamp_delta) + varint(offset_delta) + sized(key) + sized(value)
    body += varint(len(headers))
    for name, field in headers:
        body += sized(name) + sized(field)
    return varint(len(body)) + body


def batch_v2(
    payload=b"", *, count=1, base_offset=0, last_offset_delta=None, attributes=0, base_timestamp=0, max_timestamp=0,
    producer_id=-1, producer_epoch=-1, base_sequence=-1, leader_epoch=0, magic=2,
):
    """A batch with a right size and CRC around `payload`, its records as stored."""
    if last_offset_delta is None:
        last_offset_delta = max(count - 1, 0)
    rest = struct.pack(
        ">hiqqqhii", attributes, last_offset_delta, base_timestamp, max_timestamp,
        producer_id, producer_epoch, base_sequence, count,
    ) + payload
    return struct.pack(">qiibI", base_offset, 9 + len(rest), leader_epoch, magic, crc32c.crc32c(rest)) + rest


def decode_record_v2(data, at, end, batch_offset, batch_timestamp):
    """(PlainRecord, position after it)."""
    length, at = read_varint(data, at, end)
    if length < 6 or length > end - at:
        raise Malformed("length")
    end = at + length
    timestamp_delta, at = read_varint(data, at + 1, end, 10)
    offset_delta, at = read_varint(data, at, end)

    def field():
        nonlocal at
        size, at = read_varint(data, at, end)
        if size > end - at:
            raise Malformed("size")
        if size < 0:
            return None
        at += size
        return bytes(data[at - size:at])

    key, value = field(), field()
    count, at = read_varint(data, at, end)
    if count < 0:
        raise Malformed("header count")
    headers = []
    for _ in range(count):
        name, content = field(), field()
        if name is None:
            raise Malformed("header key")
        headers.append((name.decode("utf-8", "surrogateescape"), content))
    if at != end:
        raise Malformed("record size")
    return PlainRecord(
        signed64(batch_offset + offset_delta), signed64(batch_timestamp + timestamp_delta), key, value, tuple(headers)
    ), end


def decode_batch_v2(batch, decompress):
    attributes, = struct.unpack_from(">h", batch, 21)
    base_offset, = struct.unpack_from(">q", batch, 0)
    base_timestamp, max_timestamp = struct.unpack_from(">qq", batch, 27)
    count, = struct.unpack_from(">i", batch, 57)
    payload = batch[61:]
    if attributes & 7 and (payload or count):
        payload = decompress(attributes & 7, 2, payload)
    if not 0 <= count <= len(payload) // 7:
        raise Malformed("count")
    at, records = 0, []
    for _ in range(count):
        record, at = decode_record_v2(payload, at, len(payload), base_offset, base_timestamp)
        records.append(record._replace(timestamp=max_timestamp) if attributes & LOG_APPEND_TIME else record)
    if at != len(payload):
        raise Malformed("trailing bytes")
    return records


# --- v0, v1 --------------------------------------------------------------------------------------


def message(offset=0, key=None, value=None, *, magic=1, timestamp=0, attributes=0):
    """One message of v0 or v1 with a right size and CRC; `timestamp` is left out in v0."""
    body = bytes([magic, attributes])
    if magic > 0:
        body += struct.pack(">q", timestamp)
    for field in (key, value):
        body += struct.pack(">i", -1 if field is None else len(field)) + (field or b"")
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


def decode_message(data, at, end):
    """(PlainRecord, magic, attributes, position after it); offset and timestamp as they stand."""
    if end - at < 17:
        raise Malformed("short")
    offset, size = struct.unpack_from(">qi", data, at)
    magic = data[at + 16]
    if size < 14 or size > end - at - 12 or magic > 1 or (magic == 1 and size < 22):
        raise Malformed("size or magic")
    end = at + 12 + size
    attributes, timestamp = data[at + 17], -1
    at += 18
    if magic == 1:
        timestamp, = struct.unpack_from(">q", data, at)
        at += 8
    fields = []
    for _ in "key", "value":
        if end - at < 4:
            raise Malformed("field size")
        field_size, = struct.unpack_from(">i", data, at)
        at += 4
        if field_size > end - at:
            raise Malformed("field")
        fields.append(None if field_size < 0 else bytes(data[at:at + field_size]))
        at += max(field_size, 0)
    if at != end:
        raise Malformed("message size")
    return PlainRecord(offset, timestamp, *fields), magic, attributes, end


def decode_message_batch(batch, decompress):
    outer, magic, attributes, _ = decode_message(batch, 0, len(batch))
    codec = attributes & 7
    if codec == 0:
        return [outer]
    if codec > LZ4:
        raise Malformed("codec")
    data = decompress(codec, magic, outer.value or b"")
    at, inner = 0, []
    while at < len(data):
        record, inner_magic, inner_attributes, at = decode_message(data, at, len(data))
        if inner_attributes & 7:
            raise Malformed("nesting")
        if inner_magic == 1 and magic == 1 and attributes & LOG_APPEND_TIME:
            record = record._replace(timestamp=outer.timestamp)
        inner.append(record)
    if not inner:
        raise Malformed("an empty wrapper")
    if magic == 0:
        return inner
    base = 0
    if outer.offset != 0:
        base = outer.offset - inner[-1].offset
        if base < 0:
            raise Malformed("wrapper offset")
    return [record._replace(offset=signed64(base + record.offset)) for record in inner]


# --- sets of batches -------------------------------------------------------------------------------


def split_batches(data):
    """The whole batches at the start of `data`, as bytes; stops where one does not parse."""
    at = 0
    while len(data) - at >= 17:
        size, = struct.unpack_from(">i", data, at + 8)
        magic = data[at + 16]
        if magic > 2 or size < (14, 22, 49)[magic] or size > len(data) - at - 12:
            return
        batch = data[at:at + 12 + size]
        if magic == 2:
            attributes, = struct.unpack_from(">h", batch, 21)
            count, = struct.unpack_from(">i", batch, 57)
            if count < 0 or (attributes & 7 == 0 and count > (len(batch) - 61) // 7):
                return
            last_offset_delta, = struct.unpack_from(">i", batch, 23)
        else:
            last_offset_delta = 0
        if signed64(struct.unpack_from(">q", batch)[0] + last_offset_delta) == 2**63 - 1:
            return
        yield batch
        at += 12 + size


def computed_crc(batch):
    return crc32c.crc32c(batch[21:]) if batch[16] == 2 else zlib.crc32(batch[16:])


def crc_position(batch):
    return 17 if batch[16] == 2 else 12


def crc_fits(batch):
    return struct.unpack_from(">I", batch, crc_position(batch))[0] == computed_crc(batch)


def decode_batch(batch, decompress=None, *, in_order=True):
    """The records of one whole batch of any version. `in_order`: their offsets must be those of a log."""
    records = decode_batch_v2(batch, decompress) if batch[16] == 2 else decode_message_batch(batch, decompress)
    if in_order:
        check_offsets(batch, [r.offset for r in records])
    return records


def last_offset(batch):
    """As its header has it."""
    delta, = struct.unpack_from(">i", batch, 23) if batch[16] == 2 else (0,)
    return signed64(struct.unpack_from(">q", batch)[0] + delta)


def check_offsets(batch, offsets):
    """They increase, within the batch; a wrapper has its last message's."""
    outer, = struct.unpack_from(">q", batch)
    if any(a >= b for a, b in pairwise(offsets)):
        raise Malformed("offsets do not increase")
    if batch[16] == 2:
        if offsets and not outer <= offsets[0] <= offsets[-1] <= last_offset(batch):
            raise Malformed("an offset outside of its batch")
    elif batch[17] & 7 and (offsets[0] < 0 or (offsets[-1] != outer and not (batch[16] == 1 and outer == 0))):
        # (Of v1, 0 says nothing.)
        raise Malformed("a wrapper with another offset than its last message's")
