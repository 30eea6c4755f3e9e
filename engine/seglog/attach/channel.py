"""What two processes send each other over a socket: frames of a JSON header and some values (docs/processes.md).

    frame: uint32 bytes of the header, uint32 bytes of the values, header, values

Both sides take the other's frames for hostile: sizes are bounded, and whatever is not as it should be is a
ProtocolError, after which the connection is closed.
"""
import json
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from seglog.errors import ProtocolError
from seglog.fs.local_socket import peer_of

VERSION = 1
# In the directory of a queue; attach.shared_log has that of a log.
SOCKET = "queue.sock"
HEADER_BYTES_MAX = 16 << 20
VALUES_BYTES_MAX = 64 << 20
# What a sender puts into one frame, if there are several values.
FRAME_BYTES, FRAME_JOBS = 16 << 20, 1000
_HEAD = struct.Struct(">II")
_CHUNK = 1 << 20

Header = dict[str, Any]


class GoneError(Exception):
    """The other side has closed the connection, or its process ended."""


class Channel:
    """One side of a connection: one thread at a time sends and receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def check_peer(self) -> int:
        """The process id of the other side. Raises ProtocolError if it is another user's."""
        pid, uid = peer_of(self._socket)
        if uid not in (os.geteuid(), 0):
            raise ProtocolError(
                f"the other side of the socket is a process of user {uid}",
                hint="run all processes that share it as the same user",
            )
        return pid

    def send(self, header: Mapping[str, Any], values: Sequence[bytes] = (), deadline: float | None = None) -> None:
        """Send a frame. Raises GoneError, TimeoutError."""
        text = json.dumps({**header, "sizes": [len(value) for value in values]}).encode()
        size = sum(map(len, values))
        if len(text) > HEADER_BYTES_MAX or size > VALUES_BYTES_MAX:
            raise ProtocolError(f"a frame of {len(text)} and {size} bytes is too large to be sent")
        self._limit(deadline)
        try:
            self._socket.sendall(b"".join((_HEAD.pack(len(text), size), text, *values)))
        except TimeoutError:
            raise
        except OSError:
            raise GoneError from None

    def receive(self, deadline: float | None = None) -> tuple[Header, list[bytes]]:
        """The next frame. Raises GoneError, TimeoutError, ProtocolError."""
        header_size, values_size = _HEAD.unpack(self._exactly(_HEAD.size, deadline))
        if header_size > HEADER_BYTES_MAX or values_size > VALUES_BYTES_MAX:
            raise ProtocolError(f"a frame says that it has {header_size} and {values_size} bytes")
        text = self._exactly(header_size, deadline)
        values = self._exactly(values_size, deadline)
        try:
            header = json.loads(text)
        except (ValueError, RecursionError):
            raise ProtocolError("the header of a frame is not JSON") from None
        sizes = header.pop("sizes", None) if isinstance(header, dict) else None
        if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
            raise ProtocolError("a frame has no list of sizes")
        if sum(sizes) != values_size:
            raise ProtocolError(f"a frame has {values_size} bytes of values, and its sizes are {sum(sizes)}")
        found, at = [], 0
        for size in sizes:
            found.append(values[at : at + size])
            at += size
        return header, found

    def _exactly(self, size: int, deadline: float | None) -> bytes:
        parts, left = [], size
        while left:
            self._limit(deadline)
            try:
                part = self._socket.recv(min(left, _CHUNK))
            except TimeoutError:
                raise
            except OSError:
                raise GoneError from None
            if not part:
                raise GoneError
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def _limit(self, deadline: float | None) -> None:
        try:
            self._socket.settimeout(None if deadline is None else max(deadline - time.monotonic(), 0.001))
        except OSError:
            raise GoneError from None

    def end(self) -> None:
        """Let both sides see the end: a thread that waits here as well."""
        with suppress(OSError):     # it is at its end already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it. No other thread may be in it: see `end`."""
        self._socket.close()
