"""A relay before a server that speaks plain HTTP, which counts what is asked for and how many bytes come back."""
import contextlib
import re
import socket
import threading
from collections import Counter


class CountingRelay:
    """Relays from `port` on loopback to another one there while the block runs.

    `ranges`: [(path, first byte, last byte)] of each GET that asks for a range; `requests`: how many there were of each
    method; `bytes_back`: what the server sent, heads included. Requests with a body must not come through here.
    """

    def __init__(self, to_port: int):
        self._to = ("127.0.0.1", to_port)
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self.forget()

    def forget(self):
        """Count from nothing."""
        with self._lock:
            self.ranges, self.requests, self.bytes_back = [], Counter(), 0

    def range_bytes(self, ending=".log"):
        """How many bytes the ranges of files with such names have together."""
        return sum(last - first + 1 for path, first, last in self.ranges if path.endswith(ending))

    def __enter__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._listener.close()
        with self._lock:
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._to)
            with self._lock:
                self._open += [client, server]
            threading.Thread(target=self._ask, args=(client, server), daemon=True).start()
            threading.Thread(target=self._answer, args=(server, client), daemon=True).start()

    def _ask(self, client, server):
        heads = b""
        with contextlib.suppress(OSError), client, server:
            while piece := client.recv(1 << 16):
                heads += piece
                while b"\r\n\r\n" in heads:
                    head, _, heads = heads.partition(b"\r\n\r\n")
                    self._count(head.decode("latin-1"))
                server.sendall(piece)

    def _answer(self, server, client):
        with contextlib.suppress(OSError):
            while piece := server.recv(1 << 16):
                with self._lock:
                    self.bytes_back += len(piece)
                client.sendall(piece)
            client.shutdown(socket.SHUT_WR)

    def _count(self, head):
        method, path, _ = head.split(" ", 2)
        asked = re.search(r"^range: *bytes=(\d+)-(\d+)", head, re.MULTILINE | re.IGNORECASE)
        with self._lock:
            self.requests[method] += 1
            if asked and method == "GET":
                self.ranges.append((path.partition("?")[0], int(asked[1]), int(asked[2])))
