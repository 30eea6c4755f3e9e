"""`--decode`: keys, values and headers as text instead of bytes; records of Kafka's internal topics as JSON."""
import json
from binascii import b2a_base64
from json.encoder import encode_basestring_ascii as json_string
from pathlib import Path
from typing import Any, Literal, NoReturn

from seglog._kernels.record_batch import Record
from seglog.errors import InvalidArgumentError, ProtocolError, UnsupportedVersionError
from seglog.format.names import parse_partition_dir
from seglog.wire.internal_topics import InternalRecords
from seglog.wire.json_form import json_text

from .targets import name_of

Text = Literal["utf8", "json", "base64"]
# Or the records of an internal topic: keys and values that they are, as JSON, all other bytes as without --decode.
Decode = Text | InternalRecords
Asked = Literal["auto", "raw", "kafka"] | Text


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
    if isinstance(decode, InternalRecords):
        form = decoded_form(record, decode, is_value=is_value)
        return data if form is None else json_text(form).encode()
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
