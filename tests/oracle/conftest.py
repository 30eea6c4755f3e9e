import functools

import pytest

from support.kafka_oracle import KafkaOracle, lacking
from support.pulsar_oracle import PulsarOracle


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
