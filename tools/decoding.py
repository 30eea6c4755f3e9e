"""`--decode`: keys, values and headers as text instead of bytes; records of Kafka's internal topics, and keys and
values that have a schema, as JSON."""
import json
from binascii import b2a_base64
from collections import Counter
from collections.abc import Mapping
from datetime import date, time
from json.encoder import encode_basestring_ascii as json_string
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from seglog._kernels.record_batch import Record
from seglog.errors import InvalidArgumentError, ProtocolError, UnsupportedVersionError
from seglog.format.names import parse_partition_dir
from seglog.wire.internal_topics import InternalRecords
from seglog.wire.json_text import json_text

from .targets import name_of

if TYPE_CHECKING:
    from seglog.frames.typed.column_decoder import Decoder

Text = Literal["utf8", "json", "base64"]
Asked = Literal["auto", "raw", "kafka"] | Text


class TypedRecords:
    """Keys and values of a partition, each by a kind of its own; bytes, if it has none. `texts`: utf8 or json, by
    column; `nulls_text`: what is no such text is null. `decoders`: of those that have a schema. `undecodable` counts
    what could not be decoded, by column."""

    def __init__(
        self, texts: Mapping[str, Literal["utf8", "json"]], decoders: Mapping[str, "Decoder"], file: str,
        undecodable: Counter[str], *, nulls_text: bool = False,
    ) -> None:
        self._texts = texts
        self._decoders = decoders
        self._file = file
        self._undecodable = undecodable
        self._nulls_text = nulls_text

    def form(self, record: Record, data: bytes, *, is_value: bool) -> object:
        """Return a key or value as JSON: bytes without a kind in base64, as elsewhere in JSON.

        Raises InvalidArgumentError for other bytes than the text asked for, UndecodableRecordError,
        SchemaNotFoundError, StorageError.
        """
        name = "value" if is_value else "key"
        if (text := self._texts.get(name)) is not None:
            try:
                found = text_of(record, data, text, is_value=True)
            except InvalidArgumentError as error:
                if not self._nulls_text:
                    error.hint = f"--on-undecodable null makes it null; leave out --decode for the bytes of the {name}"
                    raise
                self._undecodable[name] += 1
                return None
            return json.loads(found) if text == "json" else found
        if (decoder := self._decoders.get(name)) is None:
            return b2a_base64(data, newline=False).decode()
        from seglog.frames.libraries import library

        pyarrow = library("pyarrow")
        array, undecodable, failed = decoder.array(pyarrow.array([data], pyarrow.binary()))
        if failed is not None:
            from seglog.frames.typed.typed_rows import error_of

            raise error_of(name, failed, self._file, record.offset)
        self._undecodable[name] += undecodable
        return plain(array[0].as_py())

    def is_shown_as_bytes(self, *, is_value: bool) -> bool:
        """Whether people see the bytes, in quotes if they are text."""
        name = "value" if is_value else "key"
        return name not in self._decoders and self._texts.get(name) != "json"


# Or the records of an internal topic: keys and values that they are, as JSON, all other bytes as without --decode.
Decode = Text | InternalRecords | TypedRecords


def decode_in(asked: Asked, directory: Path) -> Decode | None:
    """Return how to decode the records of a partition directory; None for bytes. Raises InvalidArgumentError."""
    if asked == "raw":
        return None
    if asked in ("utf8", "json", "base64"):
        return asked
    parsed = parse_partition_dir(name_of(directory))
    decode = None if parsed is None else InternalRecords.of(parsed.topic)
    if decode is None and asked == "kafka":
        raise InvalidArgumentError(
            "the directory has not the name of an internal topic of Kafka", file=directory,
            hint="give its copy that name, such as __consumer_offsets-0, or leave out --decode kafka",
        )
    return decode


def decoded_form(record: Record, decode: InternalRecords, *, is_value: bool) -> dict[str, Any] | None:
    """Return the decoded form of a key or value of an internal topic, or None if it is null, or of a type or version
    that this release does not know."""
    key, value = record.key, record.value
    try:
        if is_value:
            return None if value is None else decode.value(key, value)
        return None if key is None else decode.key(key)
    except (ProtocolError, UnsupportedVersionError):
        return None


def text_of(record: Record, data: bytes, decode: Text, *, is_value: bool) -> str:
    """Return the bytes as text; with "json", a value becomes JSON in one line, and keys and headers are plain text.

    Raises InvalidArgumentError if the bytes are not such text.
    """
    if decode == "base64":
        return b2a_base64(data, newline=False).decode()
    if decode == "json" and is_value:
        try:
            return json.dumps(json.loads(data, parse_constant=_refused), separators=(",", ":"), ensure_ascii=False)
        except ValueError as error:     # includes UnicodeDecodeError
            raise _wrong(record, "value", f"is not JSON: {error}") from None
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        what = "value" if is_value else "key or a header"
        raise _wrong(record, what, f"is not UTF-8: {error.reason} at byte {error.start}") from None


def json_of(record: Record, data: bytes, decode: Decode, *, is_value: bool) -> str:
    """Return the same as a JSON value: text in quotes, or the JSON itself. Of an internal topic, bytes that do not
    decode are in base64."""
    if isinstance(decode, TypedRecords):
        return json.dumps(decode.form(record, data, is_value=is_value), separators=(",", ":"))
    if isinstance(decode, InternalRecords):
        form = decoded_form(record, decode, is_value=is_value)
        if form is not None:
            return json.dumps(form, separators=(",", ":"))
        decode = "base64"
    text = text_of(record, data, decode, is_value=is_value)
    return text if decode == "json" and is_value else json_string(text)


def bytes_of(record: Record, data: bytes | None, decode: Decode | None, *, is_value: bool) -> bytes:
    """Return the same as bytes, for a template: without `decode` the bytes themselves, and nothing for null."""
    if data is None:
        return b""
    if isinstance(decode, TypedRecords):
        typed = decode.form(record, data, is_value=is_value)    # also of text: it may be none
        if typed is None:
            return b""
        if decode.is_shown_as_bytes(is_value=is_value):
            return data
        return json_text(typed).encode()
    if isinstance(decode, InternalRecords):
        form = decoded_form(record, decode, is_value=is_value)
        return data if form is None else json_text(form).encode()
    return data if decode is None else text_of(record, data, decode, is_value=is_value).encode()


def plain(value: Any) -> object:
    """Return a key or value of a typed column as JSON: bytes in base64, times in ISO 8601, decimals and UUIDs as text,
    maps as objects, numbers that JSON has not as text."""
    match value:
        case bytes():
            return b2a_base64(value, newline=False).decode()
        case float() if not isfinite(value):
            return str(value)
        case None | str() | bool() | int() | float():
            return value
        case dict():
            return {name: plain(part) for name, part in value.items()}
        case list():
            if value and all(isinstance(pair, tuple) for pair in value):
                return {name: plain(part) for name, part in value}
            return [plain(part) for part in value]
        case date() | time():
            return value.isoformat()
    return str(value)


def escaped(data: bytes) -> bytes:
    """Return the bytes in a form safe for terminals: all control characters but newline and tab are escaped."""
    text = data.decode(errors="backslashreplace")
    return "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text).encode()


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape", errors="backslashreplace").decode()


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _wrong(record: Record, what: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the {what} at offset {record.offset} {why}", offset=record.offset,
        hint="leave out --decode; or use --decode utf8 for text that is no JSON, base64 for any bytes",
    )
