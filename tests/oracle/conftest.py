import functools

import pytest

from support.kafka_oracle import KafkaOracle, lacking


@pytest.fixture(scope="session")
def kafka_oracle():
    """kafka_oracle("4.1.1"): the real classes of that Kafka. Skips where there is no JVM or Maven to run them."""
    reason = lacking()
    if reason:
        pytest.skip(reason)
    return functools.cache(KafkaOracle)
