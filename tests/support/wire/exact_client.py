"""A client that connects when it is needed, and says whether the server closed the connection instead of an answer."""
import contextlib

from support.wire_client import WireClient


class Closed(Exception):
    """The server closed the connection instead of an answer, or did not answer at all."""


class ExactClient:
    """One connection at a time, opened when it is needed, and again after the server closed it."""

    def __init__(self, host, port):
        self.host, self.port = host, port
        self._client = None

    def close(self):
        if self._client is not None:
            self._client.socket.close()
            self._client = None

    def ask(self, request, version):
        """The response; Closed if there is none."""
        with self._connected() as client:
            return client.ask(request, version)

    def answer_to(self, frame):
        """The frame that comes back, without its size; Closed if none does."""
        with self._connected() as client:
            client.socket.sendall(frame)
            return client.receive_frame()

    @contextlib.contextmanager
    def _connected(self):
        self._client = self._client or WireClient(self)
        try:
            yield self._client
        except (ConnectionError, TimeoutError) as error:
            self.close()
            raise Closed from error
