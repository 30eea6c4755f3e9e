"""Stands in for the Docker client in aiokafka's tests: the container that they start is `seglog serve`."""
import subprocess
import sys
import tempfile
from types import SimpleNamespace


class Container:
    def __init__(self, port, partitions):
        self._process = subprocess.Popen([
            sys.executable, "-m", "seglog.tools", "serve", tempfile.mkdtemp(), "--listen", f"127.0.0.1:{port}",
            # As that image's broker is set up.
            "--config", f"num.partitions={partitions}", "--config", "node.id=0", "--fsync", "interval",
        ])

    def stop(self):
        self._process.terminate()
        self._process.wait()

    def exec_run(self, *_, **__):
        return 0, b""


def _run(*, environment, **_):
    return Container(environment["ADVERTISED_PORT"], environment["NUM_PARTITIONS"])


def from_env():
    return SimpleNamespace(
        containers=SimpleNamespace(run=_run), images=SimpleNamespace(pull=lambda image: None), close=lambda: None)


models = SimpleNamespace(containers=SimpleNamespace(Container=Container))
