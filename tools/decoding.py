"""`--decode`: keys, values and headers as text instead of bytes."""
import json
from binascii import b2a_base64
from json.encoder import encode_basestring_ascii as json_string
from typing import Literal, NoReturn

from seglog._kernels.record_batch import Record
from seglog.errors import InvalidArgumentError

Decode = Literal["utf8", "json", "base64"]


def text_of(record: Record, data: bytes, decode: Decode, *, is_value: bool) -> str:
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
    """Return the same as a JSON value: text in quotes, or the JSON itself."""
    text = text_of(record, data, decode, is_value=is_value)
    return text if decode == "json" and is_value else json_string(text)


def bytes_of(record: Record, data: bytes | None, decode: Decode | None, *, is_value: bool) -> bytes:
    """Return the same as bytes, for a template: without `decode` the bytes themselves, and nothing for null."""
    if data is None:
        return b""
    return data if decode is None else text_of(record, data, decode, is_value=is_value).encode()


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
        f"the {what} at offset {record.offset} {why}", hint="leave out --decode, or use --decode base64"
    )
