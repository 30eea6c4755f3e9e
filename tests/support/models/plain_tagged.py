"""The tagged dialect in obvious Python, straight from docs/formats/tagged_message.md: no kernel is used here."""
import struct
import zlib
from dataclasses import dataclass, field

from seglog.format.compression import compress, decompressor

WIDTHS = ((32, 8, ">q"), (64, 4, ">i"), (96, 1, ">b"))
CODECS = range(1, 5)


def tag_bytes(tags):
    out = b""
    for tag, value in tags:
        form = next((form for end, _, form in WIDTHS if tag < end), None)
        out += bytes([tag]) + (struct.pack(form, value) if form else struct.pack(">i", len(value)) + value)
    return out


def sized(data):
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def message(offset, key, value, *, attributes=0, seconds=0, tags=()):
    """One message; `tags`: (id, value)s, None for a size of -1."""
    body = struct.pack(">bBI", 1, attributes, seconds)
    body += sized(tag_bytes(tags) if tags else None) + sized(key) + sized(value)
    crc = struct.pack(">I", zlib.crc32(body))
    return struct.pack(">qi", offset, 4 + len(body)) + crc + body


def wrapper(offset, codec, messages, *, tags=(), seconds=0):
    value = bytes(compress(codec, 2, b"".join(messages)))
    return message(offset, None, value, attributes=codec, seconds=seconds, tags=tags)


@dataclass
class Parsed:
    offset: int
    attributes: int
    seconds: int
    tags: dict
    key: bytes | None
    value: bytes | None
    raw: bytes = field(repr=False)

    @property
    def timestamp(self):
        return self.tags.get(0, self.seconds * 1000)


class Malformed(Exception):
    pass


def need(fits):
    if not fits:
        raise Malformed


def parse_tags(raw):
    found, at = {}, 0
    while at < len(raw):
        tag = raw[at]
        need(tag < 128 and tag not in found)
        width, form = next(((width, form) for end, width, form in WIDTHS if tag < end), (None, None))
        at += 1
        if width is None:
            need(at + 4 <= len(raw))
            (width,) = struct.unpack_from(">i", raw, at)
            at += 4
            need(width >= 0)
        need(at + width <= len(raw))
        found[tag] = struct.unpack_from(form, raw, at)[0] if form else raw[at : at + width]
        at += width
    need(all(found.get(tag, 0) >= 0 for tag in (32, 33)))
    need(all(found.get(tag, 0) in (0, 1) for tag in (64, 65, 66)))
    return found


def parse(raw, *, check_crc=True):
    """All messages of some bytes, bare or wrappers. Raises Malformed."""
    found, at = [], 0
    while at < len(raw):
        need(at + 34 <= len(raw))
        offset, size, crc, magic, attributes, seconds, tags_size = struct.unpack_from(">qiIbBIi", raw, at)
        end = at + 12 + size
        need(size >= 22 and end <= len(raw) and magic == 1)
        need(not check_crc or crc == zlib.crc32(raw[at + 16 : end]))
        need(tags_size >= -1)
        place = at + 26 + max(tags_size, 0)
        need(place + 8 <= end)
        tags = parse_tags(raw[at + 26 : place])
        fields = []
        if 8 <= attributes & 15 <= 11:      # nobody looks into a control message who reads data
            found.append(Parsed(offset, attributes, seconds, tags, None, None, raw=raw[at:end]))
            at = end
            continue
        for _ in range(2):
            need(place + 4 <= end)
            (size,) = struct.unpack_from(">i", raw, place)
            need(size >= -1)
            place += 4
            fields.append(None if size < 0 else raw[place : place + size])
            place += max(size, 0)
            need(place <= end)
        need(place == end)
        found.append(Parsed(offset, attributes, seconds, tags, *fields, raw=raw[at:end]))
        at = end
    return found


def records(raw):
    """(offset, timestamp, key, value) of all data messages, wrappers opened. Raises Malformed."""
    found = []
    for outer in parse(raw):
        kind = outer.attributes & 15
        if kind >= 8:
            need(kind <= 11)
            continue
        if not kind:
            found.append((outer.offset, outer.timestamp, outer.key, outer.value))
            continue
        need(kind in CODECS and outer.value is not None)
        largest = outer.timestamp
        # Readers look at the wrapper's checksum alone, which covers the compressed bytes.
        inner = parse(bytes(decompressor()(kind, 2, memoryview(outer.value))), check_crc=False)
        need(inner)
        for index, one in enumerate(inner):
            need(not one.attributes & 15)
            honoured = outer.tags.get(64, 1)
            found.append((
                outer.offset + (one.offset if honoured else index),
                largest if outer.tags.get(66, 0) else one.timestamp, one.key, one.value,
            ))
    return found


def opened_set(outer):
    """(offset, bytes behind it) of each message of a set."""
    raw = bytes(decompressor()(outer.attributes & 15, 2, memoryview(outer.value)))
    inner = parse(raw)         # each with a right checksum
    honours = outer.tags.get(64, 1)
    return [(outer.offset + (one.offset if honours else n), one.raw[8:]) for n, one in enumerate(inner)]


def parts_of(outer):
    """(offset, bytes behind it, key) of all messages; the key is None if a message is no record."""
    kind = outer.attributes & 15
    if kind >= 8:
        return [(outer.offset, outer.raw[8:], None)]
    if kind == 0:
        return [(outer.offset, outer.raw[8:], outer.key)]
    return [(offset, raw, parse(bytes(8) + raw)[0].key) for offset, raw in opened_set(outer)]
