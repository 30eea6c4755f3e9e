"""Settings by the names that a broker has for them. tests/golden/broker_keys.txt has those of Kafka 3.9.1 and 4.4.0."""
from pathlib import Path

import pytest

import seglog
from seglog.endpoint.broker_keys import REFUSED, SYNONYMS, broker_settings, has_no_effect
from seglog.errors import InvalidConfigError
from seglog.wire import messages as m
from support.wire_client import WireClient

LINES = [line for line in (Path(__file__).parents[1] / "golden/broker_keys.txt").read_text().splitlines()
         if not line.startswith("#")]
NAMES = " ".join(LINES[: LINES.index("")]).split()
KAFKAS_SYNONYMS = {name: synonyms for name, *synonyms in map(str.split, LINES[LINES.index("") + 1 :])}


def test_each_key_of_a_broker_is_used_mapped_without_effect_or_refused():
    assert len(NAMES) > 400
    given = {name: "1" for name in NAMES if name not in (*REFUSED, "authorizer.class.name")}
    assert broker_settings(given).unknown == []


def test_synonyms_are_kafkas_with_their_units():
    for name, theirs in KAFKAS_SYNONYMS.items():
        ours = [f"{synonym}*{factor}" for synonym, factor in SYNONYMS.get(name, ((name, 1),))]
        assert ours == theirs, name


def test_nothing_that_is_used_counts_as_without_effect():
    assert not any(map(has_no_effect, SYNONYMS))
    assert not has_no_effect("sasl.server.max.receive.size")
    assert not has_no_effect("min.insync.replicas")


@pytest.mark.parametrize(("given", "taken"), [
    ({"log.retention.hours": "168"}, {"retention.ms": 604_800_000}),
    ({"log.retention.hours": "168", "log.retention.minutes": 5}, {"retention.ms": 300_000}),
    ({"log.retention.ms": "7", "log.retention.minutes": 5}, {"retention.ms": "7"}),
    ({"log.retention.ms": "7", "retention.ms": "8"}, {"retention.ms": "8"}),
    ({"log_retention_hours": -1}, {"retention.ms": -1}),
    ({"broker.id": "-1"}, {}),
    ({"broker.id": "4"}, {"node.id": "4"}),
    ({"zookeeper.connect": "a:2181", "num.io.threads": 8}, {}),
    ({"authorizer.class.name": ""}, {"authorizer.class.name": ""}),
    ({"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"},
     {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}),
])
def test_what_is_given_by_a_brokers_name_is_taken(given, taken):
    assert broker_settings(given).settings == taken


@pytest.mark.parametrize("given", [
    {"authorizer.class.name": "com.example.Rules"},
    {"create.topic.policy.class.name": "a.Policy"}, {"log.retention.hours": "long"},
    {"log.roll.hours": "1", "log_roll_hours": "2"},
])
def test_what_would_not_be_done_or_is_no_value_is_refused(given):
    with pytest.raises(InvalidConfigError):
        broker_settings(given)


def described(client, name):
    of = m.DescribeConfigsRequest
    rows = client.ask(of(resources=[of.DescribeConfigsResource(
        resource_type=2, resource_name=name, configuration_keys=None)]), 4).results[0].configs
    return {row.name: row.value for row in rows}


def test_a_server_has_them(in_memory, caplog):
    config = {"log.retention.hours": 2, "message.max.bytes": "2000000", "log.cleanup.policy": "compact",
              "default.replication.factor": 3, "min.insync.replicas": 1}
    with seglog.serve(in_memory, topics={"orders": 1}, config=config) as server, WireClient(server) as client:
        found = described(client, "orders")
    assert found["retention.ms"] == "7200000"
    assert (found["max.message.bytes"], found["cleanup.policy"]) == ("2000000", "compact")
    assert found["min.insync.replicas"] == "1"
    assert "settings that have no effect here: default.replication.factor" in caplog.text
