"""What the tests over real clients share: their order for two workers, and a place for what is fetched and built."""
import os
from pathlib import Path

import pytest

# One worker begins with the first, which mostly waits, the other with the second, which starts JVMs.
_FILES = (
    "librdkafka", "java_clients", "kgo", "python_suites", "sarama", "rust_rdkafka", "spark_kafka", "kafka_tools",
    "kafka_connect",
)


def pytest_collection_modifyitems(items):
    """The order in which `make clients` gives files to its workers (pytest -n 2 --dist loadfile)."""
    items.sort(key=lambda item: _FILES.index(stem) if (stem := item.path.stem.removeprefix("test_")) in _FILES else -1)


@pytest.fixture(scope="session")
def kept():
    """A directory that stays from run to run, for sources and programs: SEGLOG_CLIENTS_CACHE, or build/clients."""
    path = Path(os.environ.get("SEGLOG_CLIENTS_CACHE", Path(__file__).parents[2] / "build/clients")).absolute()
    path.mkdir(parents=True, exist_ok=True)
    return path
