"""A real S3 server on loopback: s3s-fs, which `make spark` builds by cargo. Its buckets are directories."""
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from support.free_ports import free_port

TOP = Path(__file__).parents[3]
PROGRAM = Path(os.environ.get("SEGLOG_S3_SERVER", TOP / "build/s3s/bin/s3s-fs"))


def lacking() -> str | None:
    """Why there is no server here; None where there is."""
    if PROGRAM.exists():
        return None
    if shutil.which("cargo") is None:
        return "no S3 server: there is no cargo to build one (make .make/s3)"
    return "no S3 server: make .make/s3 builds one"


class S3Server:
    """Up when the block begins, gone when it ends. `options` are the store's."""

    def __init__(self, work: Path):
        self.work = work
        self._port = free_port()
        self.options = {
            "access_key": "AKIDEXAMPLE", "secret_key": "of-this-run-alone", "region": "us-east-1", "scheme": "http",
            "endpoint_override": f"127.0.0.1:{self._port}",
        }

    def __enter__(self):
        buckets = self.work / "buckets"
        buckets.mkdir(parents=True)
        with open(self.work / "s3s-fs.log", "wb") as log:
            self._process = subprocess.Popen(
                [PROGRAM, "--host", "127.0.0.1", "--port", str(self._port), "--access-key", self.options["access_key"],
                 "--secret-key", self.options["secret_key"], buckets], stdout=log, stderr=subprocess.STDOUT,
            )
        for _ in range(200):
            assert self._process.poll() is None, f"s3s-fs did not start: see {self.work}"
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return self
            time.sleep(0.05)
        raise AssertionError(f"s3s-fs did not come up: see {self.work}")

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait()

    def bucket(self, name: str) -> str:
        """The URL of a new bucket."""
        (self.work / "buckets" / name).mkdir()
        return f"s3://{name}"

    def objects(self, url: str) -> dict[str, bytes]:
        """{key: bytes} of all objects whose keys begin with that of the URL, past our own client."""
        top = self.work / "buckets" / url.removeprefix("s3://")
        return {str(path.relative_to(top)): path.read_bytes() for path in sorted(top.rglob("*")) if path.is_file()}
