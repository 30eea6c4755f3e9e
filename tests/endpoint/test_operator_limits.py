"""Settings that protect the server: clients may lower them."""
import pytest

import seglog
from seglog.config import LogConfig
from seglog.wire import messages as m
from seglog.wire.error_codes import Errors
from support.waiting import wait_for
from support.wire_client import WireClient

RAISED = {
    "max.decompressed.message.bytes": str(2**31 - 1),
    "segment.index.bytes": str(2**31 - 1),
    "compression.gzip.level": "9",
    "compression.lz4.level": "17",
    "compression.zstd.level": "22",
}
LOWERED = {
    "max.decompressed.message.bytes": "1000000",
    "segment.index.bytes": "1000",
    "compression.gzip.level": "1",
    "compression.lz4.level": "9",
    "compression.zstd.level": "-5",
}


def create(client, name, config, **more):
    of = m.CreateTopicsRequest
    return client.ask(of(topics=[of.CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=[
        of.CreatableTopicConfig(name=key, value=value) for key, value in config.items()])], **more), 7).topics[0]


def alter(client, name, config):
    of = m.AlterConfigsRequest
    return client.ask(of(resources=[of.AlterConfigsResource(resource_type=2, resource_name=name, configs=[
        of.AlterableConfig(name=key, value=value) for key, value in config.items()])]), 2).responses[0]


def alter_one(client, name, key, value, operation=0):
    of = m.IncrementalAlterConfigsRequest
    return client.ask(of(resources=[of.AlterConfigsResource(resource_type=2, resource_name=name, configs=[
        of.AlterableConfig(name=key, value=value, config_operation=operation)])]), 1).responses[0]


@pytest.mark.parametrize("key", RAISED)
def test_a_client_cannot_raise_what_protects_the_server(served, client, key):
    for row in (
        create(client, "new", {key: RAISED[key]}), create(client, "new", {key: RAISED[key]}, validate_only=True),
        alter(client, "orders", {key: RAISED[key]}), alter_one(client, "orders", key, RAISED[key]),
    ):
        assert (row.error_code, row.error_message.partition(":")[0]) == (
            Errors.INVALID_CONFIG, f"{key} protects the server")
    assert served.log("new") is None
    assert served.log("orders").settings[key].source == "default"


@pytest.mark.parametrize(("key", "value"), [("retention.ms", "7d"), ("segment.bytes", "64MiB")])
def test_a_client_gives_plain_numbers_as_to_a_broker(served, client, key, value):
    for row in (
        create(client, "new", {key: value}), alter(client, "orders", {key: value}),
        alter_one(client, "orders", key, value),
    ):
        assert row.error_code == Errors.INVALID_CONFIG
        assert key in row.error_message
    assert served.log("new") is None
    assert served.log("orders").settings[key].source == "default"


REPLICAS = "leader.replication.throttled.replicas"      # a text, which has no effect here, and is stored


def test_no_setting_of_a_client_is_longer_than_kafka_stores(served, client):
    longest = ("0:1," * 10_000)[:32_767]
    for row in (
        create(client, "new", {REPLICAS: longest + ","}), alter(client, "orders", {REPLICAS: longest + ","}),
        alter_one(client, "orders", REPLICAS, longest + ","),
    ):
        assert row.error_code == Errors.INVALID_CONFIG
        assert "maximum value size of 32767" in row.error_message
    assert alter_one(client, "orders", REPLICAS, longest).error_code == 0
    many = ",".join(["compact", "delete"] * 2000)
    assert alter_one(client, "orders", "cleanup.policy", many + "," + many, operation=2).error_code
    for row in (create(client, "new", {"x" * 1_000_000: "1"}), alter_one(client, "orders", "x" * 1_000_000, "1")):
        assert row.error_code == Errors.INVALID_CONFIG
        assert len(row.error_message) < 300


@pytest.mark.parametrize("key", LOWERED)
def test_a_client_can_lower_it_and_take_that_back(served, client, key):
    assert create(client, "new", {key: LOWERED[key]}).error_code == 0
    assert alter(client, "orders", {key: LOWERED[key]}).error_code == 0
    assert str(served.log("orders").settings[key].value) == LOWERED[key]
    assert alter_one(client, "orders", key, None, operation=1).error_code == 0
    assert served.log("orders").settings[key].source == "default"


def test_the_limit_is_the_servers_own_value_whatever_the_topic_has(in_memory):
    with seglog.open(in_memory / "kept-0") as log:
        log.configure({"compression.zstd.level": 15})
    with seglog.serve(in_memory, config={"compression.zstd.level": 9}) as server, WireClient(server) as client:
        assert create(client, "new", {"compression.zstd.level": "9"}).error_code == 0
        assert create(client, "high", {"compression.zstd.level": "10"}).error_code == Errors.INVALID_CONFIG
        # A tool that reads all settings and writes them back changes nothing.
        value = server.log("kept").settings["compression.zstd.level"].value
        assert alter(client, "kept", {"compression.zstd.level": str(value)}).error_code == 0
        assert alter(client, "kept", {"compression.zstd.level": "15"}).error_code == Errors.INVALID_CONFIG


def test_no_client_asks_for_a_tier_that_the_server_does_not_have(in_memory):
    """But a log that a broker kept there in part is served, with what is left of it here."""
    with seglog.open(in_memory / "tiered-0") as log:
        log.configure({"remote.storage.enable": "true"})
        log.append(b"here")
    with seglog.serve(in_memory, topics={"orders": 1}) as server, WireClient(server) as client:
        for row in (
            create(client, "new", {"remote.storage.enable": "true"}),
            create(client, "new", {"remote.storage.enable": " TRUE "}, validate_only=True),
            alter(client, "orders", {"remote.storage.enable": "true"}),
            alter_one(client, "orders", "remote.storage.enable", "true"),
        ):
            assert (row.error_code, "no tiered storage" in row.error_message) == (Errors.INVALID_CONFIG, True)
        assert server.log("new") is None
        assert create(client, "new", {"remote.storage.enable": "false"}).error_code == 0
        assert alter_one(client, "tiered", "retention.ms", "1000000").error_code == 0
        assert server.log("tiered").settings["remote.storage.enable"].value == "true"
        assert server.log("tiered").log_end_offset == 1


def test_settings_of_later_brokers_are_kept_for_them(served, client):
    given = {"errors.deadletterqueue.group.enable": "true", "remote.copy.lag.ms": "-1", "remote.copy.lag.bytes": "-1"}
    assert create(client, "new", given).error_code == 0
    kept = served.log("new").settings
    assert {name: (kept[name].value, kept[name].is_used) for name in given} == {
        name: (value, False) for name, value in given.items()}


@pytest.mark.parametrize("key", RAISED)
def test_the_operators_value_counts_where_a_directory_has_more(in_memory, key, caplog):
    with seglog.open_dir(in_memory) as logs:
        logs.log("orders", 0).configure(RAISED)
        logs.log("small", 0).configure(LOWERED)
    own = str(getattr(LogConfig(), key.replace(".", "_")))
    with seglog.serve(in_memory) as server:
        wait_for(lambda: not server._running().topics.is_opening)
        assert str(server.log("orders").settings[key].value) == own
        assert str(server.log("small").settings[key].value) == LOWERED[key]
    assert f"orders: {key} = {RAISED[key]} protects the server" in caplog.text
    with seglog.open_dir(in_memory) as logs:        # what the directory has stays
        assert str(logs.log("orders", 0).settings[key].value) == RAISED[key]
