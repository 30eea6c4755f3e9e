"""A server in this process, and requests changed on purpose for it: each is answered, or its connection is closed."""
import logging
import random
import socket
import struct
from functools import cache
from pathlib import Path

import seglog
from seglog.errors import ProtocolError
from seglog.wire import codec
from seglog.wire.messages import REQUESTS, ApiKey
from support.mutated_requests import mutate_frame, request_frames

# A fetch and the members of a group wait; and what makes topics fills the place.
WAITING = {ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS}
TIMEOUT_S = 20


@cache
def frames() -> list[bytes]:
    return list(request_frames(random.Random(7), each=3))


def changed_request(number: int) -> bytes:
    chooser = random.Random(f"wire {number}")
    return mutate_frame(chooser, chooser.choice(frames()))


class Errors(logging.Handler):
    """What the server tells as an error of its own: an exception that a request brought it to."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(logging.Formatter().format(record))


class Server:
    def __init__(self, place: Path) -> None:
        self.errors = Errors()
        logging.getLogger("seglog").addHandler(self.errors)
        self._server = seglog.serve(place / "served", topics={"orders": 1}, fsync="never").__enter__()

    def ask(self, frame: bytes) -> None:
        try:
            header, request = codec.decode_request(frame)
        except ProtocolError:
            pass
        else:
            assert type(request) in REQUESTS.values()
            codec.encode_request(header, request)
        if len(frame) < 2 or int.from_bytes(frame[:2]) in WAITING:
            return
        with socket.create_connection((self._server.host, self._server.port), timeout=TIMEOUT_S) as one:
            try:
                one.sendall(struct.pack(">i", len(frame)) + frame)
                one.shutdown(socket.SHUT_WR)
                while one.recv(1 << 16):
                    pass
            except ConnectionError:
                pass
        told, self.errors.told = self.errors.told, []
        assert not told, "\n".join(told)


@cache
def server(place: Path) -> Server:
    return Server(place)
