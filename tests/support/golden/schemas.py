"""Topics whose keys and values have schemas, and where those are: a folder, the topic `_schemas`, a registry."""
import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from urllib.parse import parse_qs, unquote, urlsplit

import fastavro

import seglog

NOW = 1_700_000_000_000
# Three versions of a schema, each of which can be read by the next ones.
V1 = {"type": "record", "name": "Order", "fields": [
    {"name": "amount", "type": "int"}, {"name": "note", "type": "string"}]}
V2 = {"type": "record", "name": "Order", "fields": [
    {"name": "amount", "type": "long"}, {"name": "currency", "type": "string", "default": "EUR"}]}
V3 = {"type": "record", "name": "Order", "fields": [
    {"name": "total", "type": "double", "aliases": ["amount"]},
    {"name": "currency", "type": "string", "default": "EUR"},
    {"name": "tags", "type": ["null", "string"], "default": None}]}


def avro(schema, value):
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return stream.getvalue()


def framed(schema_id, raw):
    """As Confluent's serializers write it."""
    return b"\0" + schema_id.to_bytes(4, "big") + raw


def write_topic(path, values, keys=None):
    with seglog.open(path, fsync="never") as log:
        for n, value in enumerate(values):
            log.append(value, key=None if keys is None else keys[n], timestamp=NOW + n)
    return path


def schema_key(subject, version):
    return json.dumps({"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}).encode()


def schema_value(subject, version, schema_id, schema, *, deleted=False, kind=None, references=()):
    text = schema if kind == "PROTOBUF" else json.dumps(schema)
    body = {"subject": subject, "version": version, "id": schema_id, "schema": text, "deleted": deleted}
    if kind is not None:
        body["schemaType"] = kind
    if references:
        body["references"] = list(references)
    return json.dumps(body).encode()


def write_schemas(log_dir, *records):
    """The topic `_schemas`, as a registry fills it; each record is (subject, version, id, schema, options)."""
    with seglog.open(log_dir / "_schemas-0", fsync="never") as log:
        log.append(b"", key=b'{"keytype":"NOOP","magic":0}')
        for subject, version, schema_id, schema, *options in records:
            log.append(
                schema_value(subject, version, schema_id, schema, **(options[0] if options else {})),
                key=schema_key(subject, version),
            )
    return log_dir / "_schemas-0"


def write_orders(log_dir):
    """The topic orders and its schemas: keys are text, values were written with three versions, one is a tombstone."""
    write_schemas(log_dir, ("orders-value", 1, 11, V1), ("orders-value", 2, 12, V2), ("orders-value", 3, 13, V3))
    return write_topic(log_dir / "orders-0", [
        framed(11, avro(V1, {"amount": 1, "note": "old"})), framed(12, avro(V2, {"amount": 2, "currency": "USD"})),
        None, framed(13, avro(V3, {"total": 3.5, "currency": "JPY", "tags": "x"})),
    ], [b"a", b"b", b"c", b"d"])


class Registry:
    """The answers of a registry's HTTP interface, from {subject: [(id, schema text, type, references)]}."""

    def __init__(self, subjects, *, login=None):
        self.subjects = subjects
        self.login = login
        self.asked = []
        self.connections = 0
        self.closes = False

    def answer(self, path, headers):
        self.asked.append(path)
        if self.login is not None and headers.get("Authorization") != self.login:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        parts = urlsplit(path)
        words = [unquote(word) for word in parts.path.strip("/").split("/")]
        match words:
            case ["schemas", "ids", number]:
                context = parse_qs(parts.query).get("subject", [""])[0]
                for subject, versions in self.subjects.items():
                    for found in versions:
                        if found[0] == int(number) and subject.startswith(":") == bool(context):
                            return 200, self._body(found)
            case ["subjects", subject, "versions"] if subject in self.subjects:
                return 200, list(range(1, len(self.subjects[subject]) + 1))
            case ["subjects", subject, "versions", version] if subject in self.subjects:
                versions = self.subjects[subject]
                number = len(versions) if version == "latest" else int(version)
                if 1 <= number <= len(versions):
                    found = versions[number - 1]
                    return 200, {"subject": subject, "version": number, "id": found[0], **self._body(found)}
        return 404, {"error_code": 40401, "message": "not found"}

    @staticmethod
    def _body(found):
        _, text, kind, references = found
        return {"schema": text} | ({} if kind == "AVRO" else {"schemaType": kind}) | (
            {"references": references} if references else {})


@contextlib.contextmanager
def serving(registry, tls=None):
    """The registry on a port of this machine; its URL."""
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self):
            super().setup()
            registry.connections += 1

        def do_GET(self):
            status, body = registry.answer(self.path, self.headers)
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)
            if registry.closes:
                self.close_connection = True

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
