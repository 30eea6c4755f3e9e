"""Messages with tags in plain Python: the second reader for the tagged dialect.

Like plain_records, it shares no code with the kernels; both follow docs/formats/tagged_message.md.
"""
import struct
from collections.abc import Iterator
from typing import BinaryIO

from seglog.format.plain_codecs import Malformed, open_payload
from seglog.format.plain_records import OVERHEAD, PlainBatch, PlainRecord, read_batches, split

_TYPE, _FIRST_CONTROL, _LAST_CONTROL, _LAST_CODEC = 0x0F, 8, 11, 4
_BROKER_MS, _HONOUR_OFFSETS, _TIMESTAMP_TYPE = 0, 64, 66
# A tag with an id below this has a value of this width and packing; from the last id on, it states its length.
_WIDTHS = ((32, 8, ">q"), (64, 4, ">i"), (96, 1, ">b"))


class PlainTagged(PlainBatch):
    """One message, which may be a wrapper, at `position` in its file."""

    __slots__ = ()

    @property
    def is_control(self) -> bool:
        return _FIRST_CONTROL <= self.attributes & _TYPE <= _LAST_CONTROL

    def parse(self) -> list[PlainRecord]:
        return _records(self.raw)


def read_tagged(file: BinaryIO, position: int = 0, stop: int | None = None) -> Iterator[PlainTagged]:
    """Yield the complete messages of a file from `position` to `stop`; ends if one is cut short or none begins."""
    return (PlainTagged(*message) for message in read_batches(file, position, stop))


def split_tagged(raw: bytes, position: int) -> list[PlainTagged]:
    """Return the same for bytes that are at `position` in a file."""
    return [PlainTagged(*message) for message in split(raw, position)]


def _records(raw: bytes) -> list[PlainRecord]:
    outer, kind, tags = _message(raw)
    if kind == 0 or _FIRST_CONTROL <= kind <= _LAST_CONTROL:
        return [outer]
    if kind > _LAST_CODEC or outer.value is None:
        raise Malformed(f"a wrapper has codec {kind}, or no value")
    found: list[PlainRecord] = []
    data, at = open_payload(kind, outer.value), 0
    while at < len(data):
        end = at + OVERHEAD + struct.unpack_from(">i", data, at + 8)[0]
        if not at + OVERHEAD < end <= len(data):
            raise Malformed("a message in a wrapper is cut short")
        record, its_kind, _ = _message(data[at:end])
        if its_kind:
            raise Malformed("a wrapper contains a wrapper or a control message")
        offset = record.offset if tags.get(_HONOUR_OFFSETS, 1) else len(found)
        timestamp = outer.timestamp if tags.get(_TIMESTAMP_TYPE) else record.timestamp
        found.append(record._replace(offset=outer.offset + offset, timestamp=timestamp))
        at = end
    if not found:
        raise Malformed("an empty wrapper")
    return found


def _message(raw: bytes) -> tuple[PlainRecord, int, dict[int, int]]:
    """Return (record with its offset as stored, type, numeric tags)."""
    offset, _, _, magic, attributes, seconds, tags_size = struct.unpack_from(">qiIbBIi", raw)
    at = 26 + max(tags_size, 0)
    if magic != 1 or tags_size < -1 or at > len(raw):
        raise Malformed(f"invalid message: magic {magic}, {tags_size} bytes of tags")
    tags = _tags(raw[26:at])
    fields: list[bytes | None] = []
    for _ in ("key", "value"):
        size, = struct.unpack_from(">i", raw, at)
        at += 4
        if size < -1 or at + size > len(raw):
            raise Malformed(f"invalid field of {size} bytes")
        fields.append(None if size < 0 else raw[at : at + size])
        at += max(size, 0)
    if at != len(raw):
        raise Malformed(f"{len(raw) - at} bytes after the value")
    timestamp = tags.get(_BROKER_MS, seconds * 1000)
    return PlainRecord(offset, timestamp, fields[0], fields[1]), attributes & _TYPE, tags


def _tags(raw: bytes) -> dict[int, int]:
    found, seen, at = {}, set(), 0
    while at < len(raw):
        tag = raw[at]
        if tag > 127 or tag in seen:
            raise Malformed(f"invalid tag {tag}")
        seen.add(tag)
        at += 1
        for end, width, form in _WIDTHS:
            if tag < end:
                found[tag], = struct.unpack_from(form, raw, at)
                at += width
                break
        else:
            size, = struct.unpack_from(">i", raw, at)
            at += 4 + size
            if size < 0 or at > len(raw):
                raise Malformed(f"invalid tag {tag} of {size} bytes")
    return found
