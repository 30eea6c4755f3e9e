"""Records and batches as lines: JSON with the fields of docs/commands/dump.md, or text for people.

The JSON of a record is put together by hand, since a dump writes millions: what the records of a batch share is
formatted once a batch, numbers and base64 need no escaping, and the C encoder of `json` escapes the rest.
tests/tools/test_dump.py compares it with the lines of the real decoder.
"""
import json
import struct
from binascii import b2a_base64
from collections.abc import Iterable, Iterator
from json.encoder import encode_basestring_ascii as json_string

from seglog._kernels.record_batch import Record, RecordBatch
from seglog._kernels.tag_list import tags_of
from seglog.errors import ProtocolError, UnsupportedVersionError
from seglog.format.compression import Codec
from seglog.wire.internal_topics import InternalRecords
from seglog.wire.json_text import json_text

from . import terminal
from .decoding import Decode, TypedRecords, decoded_form, json_of, text_of
from .report import moment

CODECS = tuple(codec.label for codec in Codec)
TIMESTAMP_TYPES = {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}
# ControlRecordType.java, by id.
CONTROL_TYPES = (
    "ABORT", "COMMIT", "LEADER_CHANGE", "SNAPSHOT_HEADER", "SNAPSHOT_FOOTER", "KRAFT_VERSION", "KRAFT_VOTERS",
)
_BOOL = {False: "false", True: "true"}
# Longer binary values are shown in base64: shorter, and no less readable.
_HEX_LIMIT_BYTES = 32


def codec_name(codec: int) -> str:
    return CODECS[codec] if 0 <= codec < len(CODECS) else f"codec {codec}"


def format_name(magic: int) -> str:
    """Return v0, v1 or v2; tg for messages with tags."""
    return "tg" if magic < 0 else f"v{magic}"


def base_offset_of(batch: RecordBatch, records: list[Record]) -> int:
    """Return the first offset, without opening a wrapper again that is already open."""
    if batch.magic in (0, 1):
        return records[0].offset if records else batch.last_offset
    return batch.base_offset


# --- JSON --------------------------------------------------------------------------------


def batch_fields(segment: str, batch: RecordBatch) -> dict[str, object]:
    """Return a line of `dump --batches --json`. count is null below v2, where it needs opening the batch.

    A message with tags has the magic -1, and additionally `tags`: bytes in hex.
    """
    tags = {str(tag): value.hex() if isinstance(value, bytes) else value for tag, value in tags_of(batch).items()}
    return {
        "segment": segment,
        "position": batch.position,
        "size": batch.size_bytes,
        "magic": batch.magic,
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "codec": codec_name(batch.codec),
        "timestamp_type": TIMESTAMP_TYPES[batch.timestamp_type],
        "max_timestamp": batch.max_timestamp,
        "crc": batch.crc,
        "crc_valid": batch.crc_is_valid(),
        "count": None if batch.count < 0 else batch.count,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "last_sequence": batch.last_sequence,
        "transactional": batch.is_transactional,
        "control": batch.is_control,
        "leader_epoch": batch.leader_epoch,
        "delete_horizon_ms": batch.delete_horizon_ms,
        **({"tags": tags} if batch.magic < 0 else {}),
    }


def record_lines(
    segment: str,
    batch: RecordBatch,
    records: Iterable[tuple[int, Record]],
    base_offset: int,
    max_value_bytes: int | None = None,
    decode: Decode | None = None,
    more: str = "",
) -> Iterator[str]:
    """Return a JSON line for each (index in batch, record), `\\n` included. `more`: members at the end of each.

    Values of more than `max_value_bytes` are given by size and SHA-256. Without `decode`, bytes are in base64.
    """
    limit = 1 << 62 if max_value_bytes is None else max_value_bytes
    timestamp_type = TIMESTAMP_TYPES[batch.timestamp_type]
    horizon = "" if batch.delete_horizon_ms is None else f',"delete_horizon_ms":{batch.delete_horizon_ms}'
    shared = (
        f'"magic":{batch.magic},"codec":"{codec_name(batch.codec)}","batch_base_offset":{base_offset},'
        f'"batch_last_offset":{batch.last_offset},"batch_crc":{batch.crc},"segment":{json_string(segment)},'
        f'"batch_position":{batch.position},"batch_size":{batch.size_bytes},"producer_id":{batch.producer_id},'
        f'"producer_epoch":{batch.producer_epoch},"base_sequence":{batch.base_sequence},'
        f'"transactional":{_BOOL[batch.is_transactional]},"control":{_BOOL[batch.is_control]},'
    )
    end = f'"leader_epoch":{batch.leader_epoch}{horizon}{more}}}\n'
    is_control = batch.is_control
    for index, record in records:
        key, value, headers = record.key, record.value, record.headers
        if value is None:
            value_part = '"value":null'
        elif len(value) > limit:
            value_part = f'"value_size":{len(value)},"value_sha256":"{_sha256(value)}"'
        elif decode is None or is_control:
            value_part = f'"value":"{b2a_base64(value, newline=False).decode()}"'
        else:
            value_part = f'"value":{json_of(record, value, decode, is_value=True)}'
        if decode is None or is_control:
            key_part, headers_part = base64_or_null(key), _headers(headers) if headers else "[]"
        else:
            key_part = _text_or_null(record, key, decode)
            has_text = not isinstance(decode, InternalRecords | TypedRecords)
            headers_part = _text_headers(record, decode) if has_text else _headers(headers)
        yield (
            f'{{"offset":{record.offset},"timestamp":{record.timestamp},"timestamp_type":"{timestamp_type}",'
            f'"key":{key_part},{value_part},"headers":{headers_part},'
            f'"sequence":{record.sequence},'
            f'"record_size":{record.size_bytes},"index_in_batch":{index},{shared}'
            f'{_control_type(key) if is_control else ""}{end}'
        )


def base64_or_null(data: bytes | None) -> str:
    return "null" if data is None else f'"{b2a_base64(data, newline=False).decode()}"'


def _headers(headers: Iterable[tuple[str, bytes | None]]) -> str:
    return "[" + ",".join(f"[{json_string(name)},{base64_or_null(value)}]" for name, value in headers) + "]"


def _text_or_null(record: Record, data: bytes | None, decode: Decode) -> str:
    return "null" if data is None else json_of(record, data, decode, is_value=False)


def _text_headers(record: Record, decode: Decode) -> str:
    pairs = (f"[{json_string(name)},{_text_or_null(record, value, decode)}]" for name, value in record.headers)
    return f"[{','.join(pairs)}]"


def _control_type(key: bytes | None) -> str:
    return f'"control_type":{json_string(control_type(key))},'


# --- control records ---------------------------------------------------------------------


def control_type(key: bytes | None) -> str:
    """Return ABORT, COMMIT, LEADER_CHANGE, ...; UNKNOWN for types that this release does not know."""
    if key is None or len(key) < 4:
        return "UNKNOWN"
    type_id = struct.unpack_from(">h", key, 2)[0]
    return CONTROL_TYPES[type_id] if 0 <= type_id < len(CONTROL_TYPES) else "UNKNOWN"


def control_fields(record: Record, batch: RecordBatch) -> dict[str, object]:
    """Decode a control record: its type, for a transaction marker the coordinator's epoch, for others `data`.

    Key: int16 version, int16 type. Value of ABORT and COMMIT: int16 version, int32 coordinator epoch
    (EndTransactionMarker.java).
    """
    key, value = record.key, record.value
    name = control_type(key)
    fields: dict[str, object] = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "control_type": name,
        "version": None if key is None or len(key) < 2 else struct.unpack_from(">h", key)[0],
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "leader_epoch": batch.leader_epoch,
    }
    if name in ("ABORT", "COMMIT"):
        whole = value is not None and len(value) >= 6
        fields["coordinator_epoch"] = struct.unpack_from(">i", value, 2)[0] if value and whole else None
    elif key is not None and value is not None and name != "UNKNOWN":
        from seglog.wire.internal_records import control_form  # as long as a fifth of the start of a dump

        try:
            fields["data"] = control_form(key, value)
        except (ProtocolError, UnsupportedVersionError):
            fields["data"] = None
    return fields


def control_text(record: Record, batch: RecordBatch) -> str:
    fields = control_fields(record, batch)
    if "coordinator_epoch" in fields:
        return (
            f"{fields['control_type']} marker of producer {batch.producer_id} epoch {batch.producer_epoch}, "
            f"coordinator epoch {fields['coordinator_epoch']}"
        )
    if fields.get("data") is not None:
        return f"{fields['control_type']} {printable(json_text(fields['data']))}"
    return f"{fields['control_type']} control record, {len(record.value or b'')} bytes"


# --- text --------------------------------------------------------------------------------


def shown(data: bytes | None) -> str:
    """Show bytes to people: text in quotes, otherwise hex, or base64 if long; `null` for None.

    Different values never look the same, whatever stdout can show.
    """
    text = "null" if data is None else _shown(data)
    return text if terminal.shows(text) else text.encode("ascii", "backslashreplace").decode()


def printable(text: str) -> str:
    """JSON in ASCII if the terminal cannot show it, or should not."""
    if text.isprintable() and terminal.shows(text):
        return text
    return json.dumps(json.loads(text), separators=(",", ":"))


def _shown(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and (text or not data):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if text and all(c.isprintable() or c in "\n\r\t" for c in text):
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t") + '"'
    if len(data) <= _HEX_LIMIT_BYTES:
        return "0x" + data.hex()
    return "base64:" + b2a_base64(data, newline=False).decode()


def _sha256(value: bytes) -> str:
    from hashlib import sha256  # it loads OpenSSL, and few values are too long to be shown

    return sha256(value).hexdigest()


def value_shown(value: bytes | None, max_value_bytes: int | None) -> str:
    if value is not None and max_value_bytes is not None and len(value) > max_value_bytes:
        return f"{len(value)} bytes, sha256 {_sha256(value)}"
    return shown(value)


def decoded_shown(record: Record, data: bytes | None, decode: Decode | None, *, is_value: bool) -> str:
    """Show it as `--decode` asks; text is in quotes. Raises InvalidArgumentError."""
    if data is None or decode is None:
        return shown(data)
    if isinstance(decode, TypedRecords):
        typed = decode.form(record, data, is_value=is_value)    # also of text: it may be none
        if decode.is_shown_as_bytes(is_value=is_value):
            return shown(None if typed is None else data)
        return printable(json_text(typed))
    if isinstance(decode, InternalRecords):
        form = decoded_form(record, decode, is_value=is_value)
        return shown(data) if form is None else printable(json_text(form))
    text = text_of(record, data, decode, is_value=is_value)
    return shown(data) if decode == "utf8" or (decode == "json" and not is_value) else text


def headers_shown(headers: Iterable[tuple[str, bytes | None]]) -> str:
    return "{" + ", ".join(f"{_header_name(name)}={shown(value)}" for name, value in headers) + "}"


def _header_name(name: str) -> str:
    plain = name.isprintable() and name and not set(name) & set(' "=,{}')
    return name if plain else shown(name.encode(errors="surrogateescape"))


def flags_of(batch: RecordBatch) -> str:
    """Describe what is special about a batch; empty for most."""
    words = []
    if batch.producer_id >= 0:
        words.append(f"producer {batch.producer_id}/{batch.producer_epoch}")
        if batch.base_sequence >= 0:
            words.append(f"seq {batch.base_sequence}…{batch.last_sequence}")
    if batch.is_transactional:
        words.append("txn")
    if batch.is_control:
        words.append("control")
    if batch.delete_horizon_ms is not None:
        words.append(f"horizon {moment(batch.delete_horizon_ms)}")
    if batch.magic < 0 and (tags := tags_of(batch)):
        shown_tags = (f"{tag}={shown(value) if isinstance(value, bytes) else value}" for tag, value in tags.items())
        words.append("tags " + " ".join(shown_tags))
    return " ".join(words)
