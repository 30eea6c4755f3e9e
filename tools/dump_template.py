"""`seglog dump --format '%o %k %s\\n'`: print each record by a template with kcat's directives.

`%o` offset, `%t` topic, `%p` partition, `%T` timestamp in ms, `%k` key, `%s` value, `%K` and `%S` their lengths (-1 of
null), `%R` the value's length as a big-endian int32, `%h` headers, `%%`; and \\n \\t \\r \\0 \\xHH.
"""
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import click

from seglog._kernels.record_batch import Record
from seglog._kernels.record_text import TemplateText
from seglog.format.names import parse_partition_dir
from seglog.wire.internal_topics import InternalRecords

from . import terminal
from .decoding import Decode, TypedRecords, bytes_of, escaped
from .selection import Item
from .targets import Place

RAW = "raw"
_Part = bytes | str | Callable[[Record], bytes]     # as TemplateText takes them
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
        directives: dict[str, _Part] = {"%": b"%", "t": topic, "p": partition}
        directives |= {letter: letter for letter in "oTkKsSRh"}
        if decode is not None:
            directives |= {"k": self._key_of, "s": self._value_of}
        if self._header_decode is not None:
            directives["h"] = self._headers_of
        if for_terminal:
            escaped_parts = {"k": self._key_of, "s": self._value_of, "h": self._headers_of}
            directives |= {letter: _escaping(part) for letter, part in escaped_parts.items()} | {"t": escaped(topic)}
        self._text = TemplateText(
            [directives[chr(piece[1])] if n % 2 else piece for n, piece in enumerate(pieces) if piece]
        )

    def show(self, item: Item) -> None:
        if item.records is not None and not item.batch.is_control:
            self._text.write(self._out.write, item.records)

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


def _escaping(part: Callable[[Record], bytes]) -> Callable[[Record], bytes]:
    return lambda record: escaped(part(record))


def _sign(match: "re.Match[Any]") -> bytes:
    found: bytes = match[1]
    if found[:1] == b"x" and len(found) > 1:
        return bytes([int(found[1:], 16)])
    return _SIGNS.get(found, found)
