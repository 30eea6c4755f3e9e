"""`seglog dump --format '%o %k %s\\n'`: print each record by a template with kcat's directives.

`%o` offset, `%t` topic, `%p` partition, `%T` timestamp in ms, `%k` key, `%s` value, `%K` and `%S` their lengths (-1 of
null), `%R` the value's length as a big-endian int32, `%h` headers, `%%`; and \\n \\t \\r \\0 \\xHH.
"""
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import click

from seglog._kernels.record_batch import Record
from seglog.format.names import parse_partition_dir
from seglog.wire.internal_topics import InternalRecords

from . import terminal
from .decoding import Decode, TypedRecords, bytes_of, escaped
from .selection import Item
from .targets import Place

RAW = "raw"
_Part = Callable[[Record], bytes]
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{1,2}|.|$)", re.DOTALL)
_DIRECTIVES = (b"o", b"k", b"K", b"s", b"S", b"R", b"h", b"T", b"t", b"p", b"%")
_SIGNS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0"}


class Template:
    """A template whose directives have been checked. `to` gives the writer for a partition's records."""

    def __init__(self, template: str, output: Path | None) -> None:
        self._pieces = _pieces("%s" if template == RAW else template)
        self._for_terminal = output is None and terminal.is_terminal()

    def to(self, out: IO[bytes] | None, place: Place, decode: Decode | None) -> "TemplateRows":
        assert out is not None
        return TemplateRows(out, self._pieces, place, decode, for_terminal=self._for_terminal)


class TemplateRows:
    """Writes each record by the template, as bytes. Leaves out control records, since clients do not see them.

    For a terminal, control characters in the data are escaped.
    """

    def __init__(
        self, out: IO[bytes], pieces: Sequence[bytes], place: Place, decode: Decode | None, *, for_terminal: bool
    ) -> None:
        self._out = out
        self._decode = decode
        self._header_decode = None if isinstance(decode, InternalRecords | TypedRecords) else decode
        parsed = parse_partition_dir(place.directory.resolve().name)
        topic, partition = (b"", b"0") if parsed is None else (parsed.topic.encode(), b"%d" % parsed.partition)
        parts = self._directives() | {"t": _constant(topic), "p": _constant(partition)}
        if for_terminal:
            parts |= {letter: _escaping(parts[letter]) for letter in "ksht"}
        self._parts = [parts[chr(piece[1])] if n % 2 else _constant(piece) for n, piece in enumerate(pieces) if piece]

    def show(self, item: Item) -> None:
        if item.records is None or item.batch.is_control:
            return
        rows, parts = [], self._parts
        try:
            for _, record in item.records:
                rows.append(b"".join([part(record) for part in parts]))
        finally:        # also write what comes before a record that is not text
            self._out.write(b"".join(rows))

    def _directives(self) -> dict[str, _Part]:
        return {
            "o": lambda record: b"%d" % record.offset,
            "T": lambda record: b"%d" % record.timestamp,
            "k": self._key_of,
            "K": lambda record: b"%d" % _length(record.key),
            "s": self._value_of,
            "S": lambda record: b"%d" % _length(record.value),
            "R": lambda record: struct.pack(">i", _length(record.value)),
            "h": self._headers_of,
            "%": _constant(b"%"),
        }

    def _key_of(self, record: Record) -> bytes:
        return bytes_of(record, record.key, self._decode, is_value=False)

    def _value_of(self, record: Record) -> bytes:
        return bytes_of(record, record.value, self._decode, is_value=True)

    def _headers_of(self, record: Record) -> bytes:
        return b",".join(
            name.encode(errors="surrogateescape") + b"="
            + (b"NULL" if value is None else bytes_of(record, value, self._header_decode, is_value=False))
            for name, value in record.headers
        )


def _pieces(template: str) -> Sequence[bytes]:
    """Split into text and directives, alternating. Raises click.UsageError."""
    pieces = re.split(rb"(%.?)", template.encode(errors="surrogateescape"), flags=re.DOTALL)
    for directive in pieces[1::2]:
        if directive[1:] not in _DIRECTIVES:
            raise click.UsageError(
                f"unknown directive {directive.decode(errors='replace')!r} in --format; expected one of "
                f"%{' %'.join(d.decode() for d in _DIRECTIVES)}"
            )
    return [piece if n % 2 else _ESCAPE.sub(_sign, piece) for n, piece in enumerate(pieces)]


def is_template(text: str) -> bool:
    return text == RAW or "%" in text or "\\" in text


def _constant(data: bytes) -> _Part:
    return lambda _: data


def _escaping(part: _Part) -> _Part:
    return lambda record: escaped(part(record))


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _sign(match: "re.Match[Any]") -> bytes:
    found: bytes = match[1]
    if found[:1] == b"x" and len(found) > 1:
        return bytes([int(found[1:], 16)])
    return _SIGNS.get(found, found)
