import subprocess

import pytest

import seglog
from support.wire_client import WireClient


@pytest.fixture
def served(in_memory):
    """A server with the topic `orders` of three partitions."""
    with seglog.serve(in_memory / "data", topics={"orders": 3}) as server:
        yield server


@pytest.fixture
def client(served):
    with WireClient(served) as client:
        yield client


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A directory with the files `certificate` and `key` of 127.0.0.1."""
    directory = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key", "-out", "certificate"],
        cwd=directory, check=True, capture_output=True)
    return directory
