"""Decodes and encodes frames of Kafka's protocol. A frame is a request or a response without its leading size.

A decoded `records` field is a view of the frame, so the frame must not change. An encoded response is a list of
segments: large records, and records that are not in memory, appear in it as the object that the field held, so that
the caller can send them by sendfile.
"""
import struct
from typing import Any, TypeVar

from seglog.errors import InvalidArgumentError, ProtocolError, UnsupportedApiVersionError, UnsupportedVersionError
from seglog.wire.coders import MAX_ELEMENTS, Mark, reader, skip_tags, writer
from seglog.wire.messages import REQUESTS, RESPONSES, ApiKey, RequestHeader
from seglog.wire.structs import KafkaMessage

M = TypeVar("M", bound=KafkaMessage)
Frame = bytes | bytearray | memoryview

# The answer to ApiVersions: each API that we serve, with the versions of proto/kafka/messages.txt.
API_VERSIONS = {key: (request.MIN_VERSION, request.MAX_VERSION) for key, request in REQUESTS.items()}

# API, version, correlation id, length of the client id.
_HEADER = struct.Struct(">hhih")
_SIZE = struct.Struct(">i")
_VERSION = struct.Struct(">h")


# --- requests ----------------------------------------------------------------------------


def decode_request(frame: Frame, elements_max: int = MAX_ELEMENTS) -> tuple[RequestHeader, Any]:
    """Decode a frame into header and request. Bytes after the request are ignored, as by a broker.

    Raises TooManyElementsError if its lists have more elements than that; ProtocolError; for an API or a version that
    is not supported, its subclass UnsupportedApiVersionError with the header.
    """
    end = len(frame)
    if end < _HEADER.size:
        raise ProtocolError(f"a request of {end} bytes is shorter than its header", position=0)
    api_key, version, correlation_id, length = _HEADER.unpack_from(frame)
    header = RequestHeader(api_key, version, correlation_id, None)
    first, last = API_VERSIONS.get(api_key, (0, -1))
    if not first <= version <= last:
        refused = UnsupportedApiVersionError(
            f"unsupported version {header.request_api_version} of API {header.request_api_key}"
        )
        refused.header = header
        raise refused
    request_type = REQUESTS[api_key]
    read = reader(request_type, version)
    position = _HEADER.size
    if length > end - position:
        raise ProtocolError(f"client_id claims {length} bytes, but {end - position} are left", position=position)
    if length >= 0:
        header.client_id = str(frame[position : position + length], "utf-8", "replace")
        position += length
    try:
        if version >= request_type.FLEXIBLE_FROM:
            position = skip_tags(frame, position, end)
        request, _ = read(frame, position, end, elements_max)
    except (struct.error, IndexError) as error:
        raise _ends_early(request_type, version, end) from error
    return header, request


def new_header(
    request: KafkaMessage, version: int, correlation_id: int = 0, client_id: str | None = ""
) -> RequestHeader:
    """The header for a request to send."""
    return RequestHeader(request.API_KEY, version, correlation_id, client_id)


def encode_request(header: RequestHeader, request: KafkaMessage) -> bytes:
    """Encode a request, with its size in front. Raises InvalidArgumentError if the version cannot hold it."""
    out = bytearray(_SIZE.size)
    version = header.request_api_version
    client_id = None if header.client_id is None else header.client_id.encode()
    length = -1 if client_id is None else len(client_id)
    out += _HEADER.pack(header.request_api_key, version, header.correlation_id, length)
    out += client_id or b""
    if version >= request.FLEXIBLE_FROM:
        out.append(0)
    marks: list[Mark] = []
    _write(request, version, out, marks)
    return b"".join(_sized(out, marks))


# --- responses ---------------------------------------------------------------------------


def encode_response(header: RequestHeader, response: KafkaMessage) -> list[Any]:
    """Encode a response as segments to send in order, the size first; `header` is that of the request."""
    out = bytearray(_SIZE.size)
    out += _SIZE.pack(header.correlation_id)
    version = header.request_api_version
    if _has_tags(response, version):
        out.append(0)
    marks: list[Mark] = []
    _write(response, version, out, marks)
    return _sized(out, marks)


def decode_response(header: RequestHeader, frame: Frame) -> Any:
    """Decode the response to the request with this header. Raises ProtocolError."""
    end, version = len(frame), header.request_api_version
    response = RESPONSES[header.request_api_key]
    try:
        correlation_id, = _SIZE.unpack_from(frame)
        if correlation_id != header.correlation_id:
            raise ProtocolError(f"a response to request {correlation_id}; expected {header.correlation_id}", position=0)
        position = _SIZE.size
        if _has_tags(response, version):
            position = skip_tags(frame, position, end)
        message, position = reader(response, version)(frame, position, end)
    except (struct.error, IndexError) as error:
        raise _ends_early(response, version, end) from error
    return _whole(message, position, end)


def _has_tags(response: type[KafkaMessage] | KafkaMessage, version: int) -> bool:
    # A client reads the answer to ApiVersions before it knows which versions the server supports.
    return version >= response.FLEXIBLE_FROM and response.API_KEY != ApiKey.API_VERSIONS


# --- messages by themselves --------------------------------------------------------------


def encode_message(message: KafkaMessage, version: int) -> bytes:
    out = bytearray()
    marks: list[Mark] = []
    _write(message, version, out, marks)
    return b"".join(_segments(out, marks))


def decode_message(message: type[M], version: int, data: Frame, *, trailing: bool = False) -> M:
    """Decode a message without a header. `trailing`: ignore bytes after it. Raises ProtocolError."""
    made, position = _read(message, version, data, 0)
    return made if trailing else _whole(made, position, len(data))


def decode_at(message: type[M], version: int, data: Frame, position: int, *, trailing: bool = False) -> M:
    """Decode a message that begins at `position`. Raises UnsupportedVersionError if it has no such version,
    ProtocolError."""
    if not message.MIN_VERSION <= version <= message.MAX_VERSION:
        raise UnsupportedVersionError(
            f"unknown version {version} of {message.__name__}; expected {message.MIN_VERSION} to {message.MAX_VERSION}"
        )
    made, position = _read(message, version, data, position)
    return made if trailing else _whole(made, position, len(data))


def encode_versioned(message: KafkaMessage, version: int) -> bytes:
    """Encode a message after two bytes with its version, as in keys and values of __consumer_offsets."""
    return _VERSION.pack(version) + encode_message(message, version)


def decode_versioned(message: type[M], data: Frame) -> tuple[int, M]:
    """Decode version and message. Raises UnsupportedVersionError for an unknown version, ProtocolError."""
    if len(data) < _VERSION.size:
        raise ProtocolError(f"a {message.__name__} of {len(data)} bytes is shorter than its version", position=0)
    version, = _VERSION.unpack_from(data)
    return version, decode_at(message, version, data, _VERSION.size)


# --- between -----------------------------------------------------------------------------


def _read(message: type[M], version: int, data: Frame, position: int) -> tuple[M, int]:
    try:
        return reader(message, version)(data, position, len(data))
    except (struct.error, IndexError) as error:
        raise _ends_early(message, version, len(data)) from error


def _write(message: KafkaMessage, version: int, out: bytearray, marks: list[Mark]) -> None:
    if not message.MIN_VERSION <= version <= message.MAX_VERSION:
        raise InvalidArgumentError(f"{type(message).__name__} has no version {version}")
    try:
        writer(type(message), version)(message, out, marks)
    except (struct.error, AttributeError, TypeError, OverflowError, UnicodeEncodeError) as error:
        # A null or a number that the version cannot hold.
        name = type(message).__name__
        raise InvalidArgumentError(f"version {version} of {name} cannot hold this: {error}") from error


def _sized(out: bytearray, marks: list[Mark]) -> list[Any]:
    """The segments of a frame; `out` begins with room for the size, which is set here."""
    _SIZE.pack_into(out, 0, len(out) - _SIZE.size + sum(len(value) for _, value in marks))
    return _segments(out, marks)


def _segments(out: bytearray, marks: list[Mark]) -> list[Any]:
    if not marks:
        return [out]
    segments: list[Any] = []
    view, start = memoryview(out), 0
    for position, value in marks:
        if position > start:
            segments.append(view[start:position])
        segments.append(value)
        start = position
    if start < len(out):
        segments.append(view[start:])
    return segments


def _whole(message: M, position: int, end: int) -> M:
    if position != end:
        raise ProtocolError(f"{end - position} bytes after the end of a {type(message).__name__}", position=position)
    return message


def _ends_early(message: type[KafkaMessage], version: int, end: int) -> ProtocolError:
    return ProtocolError(f"a {message.__name__} of version {version} ends early, after {end} bytes", position=end)
