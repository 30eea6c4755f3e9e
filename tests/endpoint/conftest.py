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
