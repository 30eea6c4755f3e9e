"""Kafka's own tools, of its newest version, over our server: they are judged by what they print."""
import json
import subprocess

import pytest

import seglog
from support import kafka_oracle

pytestmark = pytest.mark.clients

COUNT = 5000
_TOOLS = "org.apache.kafka.tools."


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    reason = kafka_oracle.lacking()
    if reason:
        pytest.skip(reason)
    kafka_oracle.fetch_tools("4.1.1")
    with seglog.serve(tmp_path_factory.mktemp("tools"), fsync="interval", topics={"orders": 3, "copied": 3}) as server:
        yield server


@pytest.fixture
def tool(server):
    """`tool(name, *arguments)` runs one to its end, and gives what it printed."""
    def run(name, *arguments, timeout_s=120, status=0):
        command = [kafka_oracle.SCRIPTS / "tool.sh", "4.1.1", _TOOLS + name, *map(str, arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    return run


def lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_what_the_verifiable_producer_sends_the_verifiable_consumer_gets_and_commits(server, tool):
    where = "--bootstrap-server", server.bootstrap_servers, "--topic", "orders"
    sent = lines(tool("VerifiableProducer", *where, "--max-messages", COUNT, "--acks", -1))
    assert sent[-1]["sent"] == sent[-1]["acked"] == COUNT
    values = sorted(int(line["value"]) for line in sent if line["name"] == "producer_send_success")
    assert values == list(range(COUNT))

    got = lines(tool(
        "VerifiableConsumer", *where, "--group-id", "verifying", "--max-messages", COUNT, "--reset-policy", "earliest",
        "--verbose"))
    records = [line for line in got if line["name"] == "record_data"]
    assert sorted(int(line["value"]) for line in records) == values
    assert [line["success"] for line in got if line["name"] == "offsets_committed"][-1]

    described = tool(
        "consumer.group.ConsumerGroupCommand", "--bootstrap-server", server.bootstrap_servers, "--describe", "--group",
        "verifying")
    rows = [line.split() for line in described.splitlines() if line.startswith("verifying")]
    # A partition that nobody sent to has no offset.
    used = {("orders", line["partition"], True, "0") for line in records}
    assert {(row[1], int(row[2]), row[3] == row[4], row[5]) for row in rows} == used
    assert sum(int(row[4]) for row in rows) == COUNT

    reset = tool(
        "consumer.group.ConsumerGroupCommand", "--bootstrap-server", server.bootstrap_servers, "--reset-offsets",
        "--group", "verifying", "--to-earliest", "--all-topics", "--execute")
    assert len([line for line in reset.splitlines() if line.startswith("verifying")]) == len(used)
    tool("consumer.group.ConsumerGroupCommand", "--bootstrap-server", server.bootstrap_servers, "--delete", "--group",
         "verifying")


def test_the_transactional_copier_copies_each_record_once(server, tool):
    server.create_topic("source", 1)
    tool("VerifiableProducer", "--bootstrap-server", server.bootstrap_servers, "--topic", "source", "--max-messages",
         COUNT)
    told = lines(tool(
        "TransactionalMessageCopier", "--broker-list", server.bootstrap_servers, "--input-topic", "source",
        "--input-partition", 0, "--output-topic", "copied", "--max-messages", COUNT, "--transaction-size", 300,
        "--transactional-id", "copier", "--consumer-group", "copiers", "--enable-random-aborts"))
    assert told[-1]["remaining"] == 0
    copied = [
        int(bytes(record.value)) for number in range(3)
        for record in server.log("copied", number).read(isolation="read_committed")
    ]
    assert sorted(copied) == list(range(COUNT))
    everything = sum(1 for number in range(3) for _ in server.log("copied", number).read())
    assert everything > COUNT       # what was aborted is there, too, and nobody sees it


def test_the_performance_tools_count_what_they_were_told_to(server, tool):
    server.create_topic("measured", 2)
    printed = tool("ProducerPerformance", "--topic", "measured", "--num-records", 20_000, "--record-size", 100,
                   "--throughput", -1, "--producer-props", f"bootstrap.servers={server.bootstrap_servers}")
    assert printed.splitlines()[-1].startswith("20000 records sent")
    assert sum(server.log("measured", number).log_end_offset for number in range(2)) == 20_000
    printed = tool("ConsumerPerformance", "--bootstrap-server", server.bootstrap_servers, "--topic", "measured",
                   "--messages", 20_000, "--timeout", 60_000)       # between two records: 10 s by itself
    assert int(printed.splitlines()[-1].split(",")[4]) == 20_000
    offsets = tool("GetOffsetShell", "--bootstrap-server", server.bootstrap_servers, "--topic", "measured")
    assert sum(int(line.split(":")[2]) for line in offsets.splitlines()) == 20_000


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_java_clients_log_in_by_scram_and_are_told_of_a_wrong_password(server, tool, tmp_path, mechanism):
    def settings(password):
        file = tmp_path / f"{password}.properties"
        file.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="alice" password="{password}";\n')
        return file

    listen = "SASL_PLAINTEXT://127.0.0.1:0"
    with seglog.serve(tmp_path / "data", listen=listen, users={"alice": "secret"}, topics={"orders": 1}) as guarded:
        where = "--bootstrap-server", guarded.bootstrap_servers
        sent = lines(tool("VerifiableProducer", *where, "--topic", "orders", "--max-messages", 100,
                          "--producer.config", settings("secret")))
        assert sent[-1]["acked"] == 100
        tool("TopicCommand", *where, "--list", "--command-config", settings("wrong"), status=1)
