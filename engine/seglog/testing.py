"""A pytest plugin for tests of Kafka clients: a server in this process instead of a container.

    def test_orders_are_sent(seglog_kafka, seglog_topic):
        send_orders(seglog_kafka.bootstrap_servers, seglog_topic)
        assert [record.value for record in seglog_kafka.log(seglog_topic).read()] == [b"first", b"second"]

pytest finds it if seglog is installed; see docs/testing.md.
"""
import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from seglog.endpoint.local_server import LocalServer

_NAME_LENGTH_MAX = 200


def pytest_configure(config: pytest.Config) -> None:
    """Tell pytest of the marker `seglog_topic`."""
    config.addinivalue_line(
        "markers", "seglog_topic(partitions=1, config={}): settings of the topic that the fixture of this name creates")


@pytest.fixture(scope="session")
def seglog_kafka_arguments() -> dict[str, Any]:
    """The arguments of `seglog.serve`: override this fixture in your conftest.py. By default nothing is synced, and the
    first group or transaction creates one partition for all of them instead of fifty."""
    return {
        "fsync": "never", "config": {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1},
    }


@pytest.fixture(scope="session")
def _seglog_server(
    tmp_path_factory: pytest.TempPathFactory, seglog_kafka_arguments: dict[str, Any]
) -> "Iterator[LocalServer]":
    import seglog

    with seglog.serve(tmp_path_factory.mktemp("seglog-kafka"), **seglog_kafka_arguments) as server:
        yield server


@pytest.fixture
def seglog_kafka(_seglog_server: "LocalServer") -> "Iterator[LocalServer]":
    """The server, one for all tests of the session. Faults that a test sets end with that test."""
    yield _seglog_server
    _seglog_server.clear_faults()


_numbers = itertools.count(1)


@pytest.fixture
def seglog_topic(request: pytest.FixtureRequest, seglog_kafka: "LocalServer") -> str:
    """The name of a topic that only this test uses: @pytest.mark.seglog_topic(partitions=3, config={...})."""
    name = re.sub(r"[^a-zA-Z0-9-]+", "-", request.node.name).strip("-")[:_NAME_LENGTH_MAX]
    topic = f"{name}-{next(_numbers)}"
    marker = request.node.get_closest_marker("seglog_topic")
    wanted = {} if marker is None else marker.kwargs
    seglog_kafka.create_topic(topic, wanted.get("partitions", 1), wanted.get("config"))
    return topic
