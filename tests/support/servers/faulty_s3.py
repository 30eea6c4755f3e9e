"""A proxy on loopback, between a client and an S3 server, that does what a bad network and a tired store do.

    503       an answer SlowDown, the request is not passed on
    500       the request is passed on, and its answer replaced by InternalError
    silence   no answer, until the client gives up
    lost      the request is passed on, and the connection closed without an answer
    cut       the first half of an answer's body, then the connection is closed
    repeated  an answer's body begins again in its middle: as many bytes, with the right headers
    stale     a listing as it was some time ago

`rate`: the share of requests that meet one of them. `counts`: how many did, by kind.
"""
import contextlib
import http.client
import random
import socket
import threading
from collections import Counter, defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

FAULTS = "503", "500", "silence", "lost", "cut", "repeated", "stale"
_SILENCE_S = 1.5
_OLD_LISTINGS = 4


class FaultyS3:
    """Up when the block begins, gone when it ends."""

    def __init__(self, port: int, seed: int, faults=FAULTS):
        self.rate = 0.0
        self.counts: Counter[str] = Counter()
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._listings: defaultdict[str, list[tuple[int, list[tuple[str, str]], bytes]]] = defaultdict(list)
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def _serve(self):
                body = self._body()
                is_listing = self.command == "GET" and "list-type=" in self.path
                fault = proxy._choose(faults)
                if fault == "503":
                    self._answer(503, [], _error("SlowDown"))
                    return
                if fault == "silence":
                    proxy._over.wait(_SILENCE_S)
                    self._end()
                    return
                status, headers, answer = proxy._passed_on(port, self.command, self.path, self.headers, body)
                if is_listing:
                    status, headers, answer = proxy._listed(self.path, (status, headers, answer), fault == "stale")
                if fault == "lost":
                    self._end()
                elif fault == "500":
                    self._answer(500, [], _error("InternalError"))
                else:
                    if fault == "repeated" and self.command == "GET" and not is_listing:
                        answer = answer[: len(answer) // 2] + answer[: len(answer) - len(answer) // 2]
                    self._answer(status, headers, answer, is_cut=fault == "cut")

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

            def _body(self):
                if self.headers.get("Transfer-Encoding") == "chunked":
                    parts = []
                    while size := int(self.rfile.readline().split(b";")[0], 16):
                        parts.append(self.rfile.read(size))
                        self.rfile.readline()
                    while self.rfile.readline().strip():
                        pass
                    return b"".join(parts)
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))

            def _answer(self, status, headers, body, *, is_cut=False):
                self.send_response_only(status)
                length = next((value for name, value in headers if name.lower() == "content-length"), None)
                for name, value in headers:
                    if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(name, value)
                of_head = length if self.command == "HEAD" and length is not None else str(len(body))
                self.send_header("Content-Length", of_head)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body[: len(body) // 2] if is_cut else body)
                if is_cut:
                    self._end()

            def _end(self):
                self.close_connection = True
                self.wfile.flush()
                with contextlib.suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, client_address):
                pass        # the client went away

        self._over = threading.Event()
        self._server = Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    def _choose(self, faults):
        with self._lock:
            if self._rng.random() >= self.rate:
                return ""
            fault = self._rng.choice(faults)
            self.counts[fault] += 1
            return fault

    def _listed(self, target, now, is_stale):
        """The listing, or an older one; all are remembered."""
        with self._lock:
            old = self._listings[target]
            old.append(now)
            del old[:-_OLD_LISTINGS]
            return self._rng.choice(old) if is_stale else now

    def _passed_on(self, port, method, target, headers, body):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            kept = {name: value for name, value in headers.items() if name.lower() not in (
                "transfer-encoding", "content-length", "connection", "expect")}
            if method in ("PUT", "POST"):
                kept["Content-Length"] = str(len(body))
            connection.request(method, target, body or None, kept)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()


def _error(code):
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>x</Message></Error>'.encode()


def port_of(endpoint):
    return urlsplit(f"//{endpoint}").port
