"""A client of Kafka's protocol that says what it is told to, in the version it is told, and waits for the answer."""

import contextlib
import socket

from seglog.endpoint import codec


class Closed(Exception):
    """The server closed the connection instead of an answer, or did not answer at all."""


class ExactClient:
    """One connection, opened when it is needed, and again after the server closed it."""

    def __init__(self, host, port, client_id="wire", timeout_s=10):
        self.address = host, port
        self.client_id = client_id
        self.timeout_s = timeout_s
        self._socket = None
        self._sent = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def ask(self, request, version):
        """The response; Closed if there is none."""
        self._sent += 1
        header = codec.new_header(request, version, self._sent, self.client_id)
        self.send(codec.encode_request(header, request))
        if request.API_KEY == 0 and request.acks == 0:
            return None
        return codec.decode_response(header, self.receive())

    def send(self, data):
        if self._socket is None:
            self._socket = socket.create_connection(self.address, self.timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(data)

    def receive(self):
        """The next frame, without its size."""
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def _exactly(self, size):
        data = b""
        with contextlib.suppress(ConnectionResetError, TimeoutError):
            while len(data) < size:
                more = self._socket.recv(size - len(data))
                if not more:
                    break
                data += more
            else:
                return data
        self.close()
        raise Closed
