"""What the client of WebHDFS makes of answers that a healthy server does not give. For that one: test_hdfs.py."""
import errno
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from seglog.errors import StorageError
from seglog.stores.webhdfs import WebHdfs


@pytest.fixture
def served():
    """`answer(status, body, length)`: what each request is answered from then on; then a client to ask with."""
    said = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if "noredirect=true" in self.path:
                where = {"Location": f"http://127.0.0.1:{self.server.server_port}/data"}
                status, body, length = 200, json.dumps(where).encode(), None
            else:
                status, body, length = said["status"], said["body"], said["length"]
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_DELETE = do_GET

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()

    def answer(status, body, length=None):
        said.update(status=status, body=body if isinstance(body, bytes) else json.dumps(body).encode(), length=length)
        return WebHdfs("127.0.0.1", server.server_port, user="tester")

    yield answer
    server.shutdown()
    server.server_close()
    thread.join()


def remote_exception(name, message="so it is\nat a line"):
    return {"RemoteException": {"exception": name, "javaClassName": f"java.io.{name}", "message": message}}


def test_bytes_that_end_too_early_are_an_error(served):
    with pytest.raises(StorageError, match="4 bytes early"):
        b"".join(served(200, b"half", 8).pieces("/f", 4))
    assert b"".join(served(200, b"all of it").pieces("/f", 4)) == b"all of it"


@pytest.mark.parametrize(("name", "number", "fix"), [
    ("FileNotFoundException", errno.ENOENT, "path"),
    ("AccessControlException", errno.EACCES, "user=NAME"),
    ("DSQuotaExceededException", errno.EDQUOT, "quota"),
    ("SafeModeException", None, "safe mode"),
    ("StandbyException", None, "active namenode"),
    ("SecurityException", None, "delegation"),
    ("IllegalStateException", None, "logs of the namenode"),
])
def test_what_the_server_refuses_is_told_with_what_to_do(served, name, number, fix):
    with pytest.raises(StorageError) as caught:
        served(403, remote_exception(name)).list("/data/x")
    assert caught.value.errno == number
    assert fix in caught.value.hint
    assert caught.value.file.endswith("/data/x")
    assert "\n" not in caught.value.what


@pytest.mark.parametrize("body", [b"<html>no JSON</html>", b"[]", b'{"RemoteException": 3}'])
def test_an_answer_that_is_no_refusal_of_hadoops_is_told_by_its_status(served, body):
    with pytest.raises(StorageError, match="HTTP status 502"):
        served(502, body).make_directory("/data")


def test_what_is_not_there_has_no_status(served):
    assert served(404, remote_exception("FileNotFoundException")).status("/none") is None


def test_a_token_is_given_instead_of_a_name_and_never_shown(served):
    client = WebHdfs("127.0.0.1", 1, user="tester", delegation="a-secret")
    with pytest.raises(StorageError) as caught:
        client.list("/")
    assert "a-secret" not in f"{caught.value} {caught.value.hint} {caught.value.file}"
