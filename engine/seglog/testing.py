"""A pytest plugin for tests of Kafka clients: a server in this process instead of a container.

    def test_orders_are_sent(seglog_kafka, seglog_topic):
        send_orders(seglog_kafka.bootstrap_servers, seglog_topic)
        assert [record.value for record in seglog_kafka.log(seglog_topic).read()] == [b"first", b"second"]

pytest finds it if seglog is installed; see docs/testing.md.
"""
import contextlib
import importlib.machinery
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from seglog.endpoint.local_server import LocalServer

_NAME_LENGTH_MAX = 200
_MARKER = "@pytest.mark.seglog_topic(partitions=3, config={...})"

# Unless a conftest.py says otherwise: the first group or transaction creates one partition for all of them instead of
# fifty, and members of the consumer protocol learn of a new member at once instead of after five seconds.
_CONFIG = {
    "offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1,
    "group.consumer.heartbeat.interval.ms": 200,
}


class _AsTheyAre:
    """Finds the modules of seglog before pytest does, which would rewrite the asserts of them all: it does that with
    each package that brings a plugin. That would take two seconds of a first run, and seglog is not under test."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        if path is None or not name.startswith("seglog."):
            return None
        return importlib.machinery.PathFinder.find_spec(name, path, target)


_FINDER = _AsTheyAre()


def pytest_addoption() -> None:
    """Spare the modules of seglog: this hook is called as soon as pytest has loaded the plugin."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def pytest_unconfigure() -> None:
    """Leave the search for modules as it was."""
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)


def pytest_configure(config: pytest.Config) -> None:
    """Tell pytest of the marker `seglog_topic`."""
    config.addinivalue_line(
        "markers", "seglog_topic(partitions=1, config={}): settings of the topic that the fixture of this name creates")


@pytest.fixture(scope="session")
def seglog_kafka_arguments() -> dict[str, Any]:
    """The arguments of `seglog.serve`: override this fixture in a conftest.py. What it leaves out stays as it is for
    tests: nothing is synced, and members of the consumer protocol learn of a new one at once."""
    return {}


@pytest.fixture(scope="session")
def _seglog_servers(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Callable[[dict[str, Any]], LocalServer]]":
    """Gives a running server with these arguments: one for all tests that have the same."""
    import seglog
    from seglog.errors import InvalidArgumentError

    running: list[tuple[dict[str, Any], LocalServer]] = []
    with contextlib.ExitStack() as stack:

        def server_with(wanted: dict[str, Any]) -> "LocalServer":
            if not isinstance(wanted, Mapping):
                raise InvalidArgumentError(
                    f"the fixture seglog_kafka_arguments must return a dict, not {type(wanted).__name__}",
                    hint='for example {"config": {"num.partitions": 3}}')
            for arguments, server in running:
                if arguments == wanted:
                    return server
            arguments = {"fsync": "never", **wanted}
            config = arguments.get("config") or {}
            if isinstance(config, Mapping):     # otherwise the server says what is wrong
                given = {str(name).strip().replace("_", ".") for name in config}
                missing = {name: value for name, value in _CONFIG.items() if name not in given}
                arguments["config"] = {**missing, **config}
            server = stack.enter_context(seglog.serve(tmp_path_factory.mktemp("seglog-kafka"), **arguments))
            running.append((wanted, server))
            return server

        yield server_with


@pytest.fixture
def seglog_kafka(
    _seglog_servers: "Callable[[dict[str, Any]], LocalServer]", seglog_kafka_arguments: dict[str, Any]
) -> "Iterator[LocalServer]":
    """The server, one for all tests of the session whose `seglog_kafka_arguments` are the same. Faults that a test sets
    end with that test."""
    server = _seglog_servers(seglog_kafka_arguments)
    yield server
    server.clear_faults()


_numbers = itertools.count(1)


@pytest.fixture
def seglog_topic(request: pytest.FixtureRequest, seglog_kafka: "LocalServer") -> str:
    """The name of a topic that only this test uses: @pytest.mark.seglog_topic(partitions=3, config={...})."""
    name = re.sub(r"[^a-zA-Z0-9-]+", "-", request.node.name).strip("-")[:_NAME_LENGTH_MAX]
    topic = f"{name}-{next(_numbers)}"
    marker = request.node.get_closest_marker("seglog_topic")
    partitions, config = (1, None) if marker is None else _of_marker(marker)
    seglog_kafka.create_topic(topic, partitions, config)
    return topic


def _of_marker(marker: pytest.Mark) -> tuple[Any, Any]:
    """The partitions and the settings that a marker asks for. Raises InvalidArgumentError."""
    from seglog.errors import InvalidArgumentError

    if marker.args:
        raise InvalidArgumentError(
            f"the marker seglog_topic takes no positional arguments: write {_MARKER}",
            hint="the fixture gives the topic its name")
    unknown = sorted(marker.kwargs.keys() - {"partitions", "config"})
    if unknown:
        raise InvalidArgumentError(
            f"arguments of the marker seglog_topic that are unknown: {', '.join(unknown)}; write {_MARKER}",
            hint="a topic with a name of your own: seglog_kafka.create_topic(name, partitions, config)")
    return marker.kwargs.get("partitions", 1), marker.kwargs.get("config")
