import functools
from pathlib import Path

import pytest

from support.kafka_oracle import KafkaOracle, lacking
from support.pulsar_oracle import PulsarOracle

_HERE = Path(__file__).parent
# What takes minutes: two workers begin with these, so that neither ends long before the other.
_FIRST = (
    "broker", "conversion", "backup", "old_brokers", "log_compaction", "recovery", "groups", "killed_server",
    "exactly_once", "conversion_in_place", "conversion_down", "written_logs",
)


def pytest_collection_modifyitems(items):
    """The order in which `make oracle` gives files to its workers (pytest -n 2 --dist loadfile)."""
    places = {f"test_{name}": place for place, name in enumerate(_FIRST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)) if item.path.parent == _HERE else len(places))


@pytest.fixture(scope="session")
def kafka_oracle():
    """kafka_oracle("4.1.1"): the real classes of that Kafka. Skips where there is no JVM or Maven to run them."""
    reason = lacking()
    if reason:
        pytest.skip(reason)
    return functools.cache(KafkaOracle)


@pytest.fixture(scope="session")
def pulsar_oracle():
    """The real classes of Pulsar 4.2.4. Skips where there is no JVM or Maven to run them."""
    reason = lacking()
    if reason:
        pytest.skip(reason)
    return PulsarOracle()
