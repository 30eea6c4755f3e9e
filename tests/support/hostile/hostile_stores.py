"""Servers that lie: a WebHDFS and an object store on loopback that answer whatever a test tells them to.

    with HostileWebHdfs() as server:
        server.put("/data/orders-0", "../../PWN", b"...")       # the listing of /data/orders-0 names it so
        server.answers["LISTSTATUS", "/data"] = b"[]"           # the bytes of one answer

What a client asks for under a path that nobody put is given too: a server may answer anything. Not for healthy
answers: those come from the real servers of `make spark`.
"""
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PWNED = b"these bytes must not lie anywhere"


class _Server:
    """A thread that serves `self.answer(method, path, query)` -> (status, headers, body) until the block ends."""

    def __init__(self, ssl_context=None):
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
                status, headers, body = server.answer(self.command, unquote(parts.path), query, self.headers)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    for at in range(0, len(body), 1 << 16):
                        self.wfile.write(body[at : at + (1 << 16)])

            do_PUT = do_DELETE = do_HEAD = do_POST = do_GET

            def log_message(self, *_):
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                """A client that hangs up on us is what we hope for."""

        self._server = Quiet(("127.0.0.1", 0), Handler)
        if ssl_context is not None:
            self._server.socket = ssl_context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        self.requests = []

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class HostileWebHdfs(_Server):
    """`listings`: {directory: statuses}; `files`: {path: bytes}; `answers`: {(operation, path): body, (status, body)}.

    An answer of `*` as the path is given for every path.
    """

    def __init__(self, ssl_context=None):
        super().__init__(ssl_context)
        self.tls = ssl_context is not None
        self.listings = {}
        self.files = {}
        self.answers = {}
        self.url = f"{'swebhdfs' if self.tls else 'webhdfs'}://127.0.0.1:{self.port}"

    def put(self, directory, name, data=None, **lies):
        """A file of these bytes in the listing of a directory; without them a directory. `lies` are told of it."""
        kind = "DIRECTORY" if data is None else "FILE"
        status = {"pathSuffix": name, "type": kind, "length": len(data or b""), "modificationTime": 1, "fileId": 7}
        self.listings.setdefault(directory, []).append({**status, **lies})
        if data is None:
            self.listings.setdefault(f"{directory}/{name}", [])
        else:
            self.files[f"{directory}/{name}"] = data

    def answer(self, method, path, query, headers):
        operation, path = query.get("op", ""), path.removeprefix("/webhdfs/v1")
        self.requests.append((operation, path))
        if path.startswith("/data-of"):
            return 200, {}, self.files.get(path.removeprefix("/data-of"), PWNED)
        told = self.answers.get((operation, path), self.answers.get((operation, "*")))
        if told is not None:
            return (200, {}, told) if isinstance(told, bytes) else (told[0], {}, told[1])
        if operation == "LISTSTATUS" and path in self.listings:
            return 200, {}, json.dumps({"FileStatuses": {"FileStatus": self.listings[path]}}).encode()
        if operation == "GETFILESTATUS" and (path in self.listings or path in self.files or path == "/"):
            status = {
                "pathSuffix": "", "type": "FILE" if path in self.files else "DIRECTORY", "modificationTime": 1,
                "length": len(self.files.get(path, b"")), "fileId": 7,
            }
            return 200, {}, json.dumps({"FileStatus": status}).encode()
        if operation == "OPEN":
            scheme = "https" if self.tls else "http"
            where = f"{scheme}://127.0.0.1:{self.port}/data-of{path}"
            return 200, {}, json.dumps({"Location": where}).encode()
        if operation in ("MKDIRS", "DELETE", "RENAME"):
            return 200, {}, b'{"boolean": true}'
        missing = {"exception": "FileNotFoundException", "message": "no such file"}
        return 404, {}, json.dumps({"RemoteException": missing}).encode()


class HostileObjects(_Server):
    """An object store of the bucket `lake`. `objects`: {key: bytes}; `sizes`: {key: what it is said to have}.

    `answers`: {"LIST" or key: (status, body)}.
    """

    def __init__(self):
        super().__init__()
        self.objects = {}
        self.sizes = {}
        self.answers = {}
        self.url = "s3://lake"
        self.options = {
            "access_key": "someone", "secret_key": "something", "region": "us-east-1", "scheme": "http",
            "endpoint_override": f"127.0.0.1:{self.port}", "request_timeout": "60", "connect_timeout": "60",
        }

    def answer(self, method, path, query, headers):
        bucket, _, key = path.removeprefix("/").partition("/")
        self.requests.append((method, key, query))
        if bucket != "lake":
            return 404, {}, b""
        if not key:
            return (200, {}, b"") if method == "HEAD" else self._list(query)
        if key in self.answers:
            return (*self.answers[key][:1], {}, self.answers[key][1])
        data = self.objects.get(key)
        if data is None:
            return 404, {}, b""
        said = {"Last-Modified": "Sun, 22 Nov 2026 06:00:00 GMT", "ETag": '"1"'}
        if method == "HEAD":
            return 200, {**said, "Content-Length": str(self.sizes.get(key, len(data)))}, data
        wanted = headers.get("Range")
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            part = data[int(first) : int(last) + 1 if last else None]
            said["Content-Range"] = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
            return 206, said, part
        return 200, said, data

    def _list(self, query):
        if "LIST" in self.answers:
            return (*self.answers["LIST"][:1], {"Content-Type": "application/xml"}, self.answers["LIST"][1])
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        contents, prefixes = [], []
        for key in sorted(key for key in self.objects if key.startswith(prefix)):
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                prefixes.append(prefix + rest.partition(delimiter)[0] + delimiter)
            else:
                contents.append(
                    f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-22T06:00:00.000Z</LastModified>"
                    f"<ETag>&quot;1&quot;</ETag><Size>{self.sizes.get(key, len(self.objects[key]))}</Size></Contents>"
                )
        common = "".join(
            f"<CommonPrefixes><Prefix>{escape(p)}</Prefix></CommonPrefixes>" for p in dict.fromkeys(prefixes)
        )
        body = (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><Name>lake</Name><IsTruncated>false</IsTruncated>'
            f"<Prefix>{escape(prefix)}</Prefix>{''.join(contents)}{common}</ListBucketResult>"
        )
        return 200, {"Content-Type": "application/xml"}, body.encode()


class BusyObjects(HostileObjects):
    """The same, which answers some of the requests with 503. `refusals`: the next ones of each key; `dice`: or a random
    share of all requests.
    """

    SLOW_DOWN = (
        b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.'
        b"</Message><RequestId>4442587FB7D0A2F9</RequestId><HostId>someone</HostId></Error>"
    )

    def __init__(self, refusals=0, dice=None, share=0.2):
        super().__init__()
        self.refused = 0
        self._refusals = refusals
        self._left = {}
        self._dice, self._share = dice, share

    def answer(self, method, path, query, headers):
        key = path.removeprefix("/lake/")
        left = self._left.setdefault(key, self._refusals)
        is_refused = self._dice.random() < self._share if self._dice else method == "GET" and left > 0
        if not is_refused:
            return super().answer(method, path, query, headers)
        self.refused += 1
        self._left[key] = left - 1
        return 503, {"Content-Type": "application/xml"}, self.SLOW_DOWN
