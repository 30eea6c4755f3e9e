"""Three clients of others against a server: librdkafka, aiokafka and kafka-python, with every format on disk."""
import asyncio
import warnings

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

import seglog

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)     # of its own imports
    import kafka

VALUES = [b"value %d" % n for n in range(500)]


@pytest.fixture
def topic(in_memory, request):
    """A server, and the name of a topic that is stored in the format of the parameter, 2 if there is none."""
    with seglog.serve(in_memory / "data") as server:
        version = getattr(request, "param", 2)
        server.create_topic("orders", config={"message.format.version": version})
        yield server


def with_librdkafka(server, codec="none", **settings):
    producer = confluent_kafka.Producer({
        "bootstrap.servers": server.bootstrap_servers, "acks": "all", "linger.ms": 2, "compression.type": codec,
        "log_level": 0, **settings})
    failed = []
    for value in VALUES:
        producer.produce("orders", value, key=b"k", on_delivery=lambda error, _: error and failed.append(error))
    assert producer.flush(30) == 0
    assert not failed


def read_by_librdkafka(server):
    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": server.bootstrap_servers, "group.id": "none", "enable.auto.commit": False, "log_level": 0,
        "auto.offset.reset": "error"})
    consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])
    found = []
    while len(found) < len(VALUES):
        messages = consumer.consume(len(VALUES), 30)
        assert messages, "nothing came"
        assert not [message.error() for message in messages if message.error()]
        found += [message.value() for message in messages]
    consumer.close()
    return found


def read_by_kafka_python(server, **settings):
    consumer = kafka.KafkaConsumer(bootstrap_servers=server.bootstrap_servers, **settings)
    partition = kafka.TopicPartition("orders", 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    found = []
    while len(found) < len(VALUES):
        records = consumer.poll(timeout_ms=30_000)
        assert records, "nothing came"
        found += [record.value for records in records.values() for record in records]
    consumer.close()
    return found


@pytest.mark.parametrize("topic", [0, 1, 2], indirect=True)
def test_what_librdkafka_produced_every_client_reads(topic):
    if topic.log("orders").config.message_format_version == 2:
        with_librdkafka(topic, "lz4", **{"enable.idempotence": False})
    else:
        with_librdkafka(topic, "gzip")
    assert read_by_librdkafka(topic) == VALUES
    assert read_by_kafka_python(topic) == VALUES
    magics = {batch.magic for batch in topic.log("orders").batches()}
    assert magics == {topic.log("orders").config.message_format_version}


@pytest.mark.parametrize("topic", [0, 2], indirect=True)
@pytest.mark.parametrize("api_version", [(0, 9), (0, 10, 0), (0, 11)], ids=str)
def test_an_old_client_produces_and_reads(topic, api_version):
    producer = kafka.KafkaProducer(
        bootstrap_servers=topic.bootstrap_servers, api_version=api_version, acks="all", compression_type="gzip",
        enable_idempotence=False, linger_ms=5)
    sent = [producer.send("orders", value, partition=0) for value in VALUES]
    producer.flush(30)
    assert [future.get(30).offset for future in sent] == list(range(len(VALUES)))
    producer.close()
    assert read_by_kafka_python(topic, api_version=api_version) == VALUES
    counters = topic.log("orders").format_counters
    knows = {(0, 9): 0, (0, 10, 0): 1, (0, 11): 2}[api_version]
    stored = topic.log("orders").config.message_format_version
    assert bool(counters.fetch_converted_batches[min(knows, 1)].value) == (knows < stored)


def test_aiokafka_in_the_loop_of_the_server(in_memory):
    async def run():
        async with seglog.serve(in_memory / "data", topics={"orders": 1}) as server:
            async with aiokafka.AIOKafkaProducer(bootstrap_servers=server.bootstrap_servers, acks="all") as producer:
                for value in VALUES:
                    await producer.send("orders", value)
            consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=server.bootstrap_servers)
            consumer.assign([aiokafka.TopicPartition("orders", 0)])
            await consumer.start()
            try:
                await consumer.seek_to_beginning()
                return [(await consumer.getone()).value for _ in VALUES]
            finally:
                await consumer.stop()

    assert asyncio.run(run()) == VALUES


def test_the_admin_client_of_librdkafka(topic):
    admin = AdminClient({"bootstrap.servers": topic.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic("made", 2, 1, config={"retention.ms": "5000"})])["made"].result(30)
    admin.create_partitions([NewPartitions("made", 3)])["made"].result(30)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "made", incremental_configs=[
        ConfigEntry("segment.bytes", "1048576", incremental_operation=AlterConfigOpType.SET),
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND)])
    admin.incremental_alter_configs([resource])[resource].result(30)
    shown = admin.describe_configs([resource])[resource].result(30)
    assert {name: shown[name].value for name in ("retention.ms", "segment.bytes", "cleanup.policy")} == {
        "retention.ms": "5000", "segment.bytes": "1048576", "cleanup.policy": "delete,compact"}
    assert topic.log("made", 2).config.segment_bytes == 1 << 20
    assert len(admin.list_topics(timeout=30).topics["made"].partitions) == 3
    admin.delete_topics(["made"])["made"].result(30)
    assert "made" not in admin.list_topics(timeout=30).topics


def test_records_are_deleted_and_offsets_are_listed(topic):
    with_librdkafka(topic)
    admin = AdminClient({"bootstrap.servers": topic.bootstrap_servers, "log_level": 0})
    where = confluent_kafka.TopicPartition("orders", 0, 100)
    assert admin.delete_records([where])[where].result(30).low_watermark == 100
    earliest = admin.list_offsets({where: confluent_kafka.admin.OffsetSpec.earliest()})[where].result(30)
    assert earliest.offset == 100


def test_an_administrator_is_told_what_a_single_node_without_an_authorizer_is(topic):
    admin = AdminClient({"bootstrap.servers": topic.bootstrap_servers, "log_level": 0})
    binding = AclBinding(
        ResourceType.TOPIC, "orders", ResourcePatternType.LITERAL, "User:a", "*", AclOperation.READ,
        AclPermissionType.ALLOW)
    every = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY)
    assert admin.describe_acls(every).result(30) == []      # librdkafka does not look at the error of this answer
    for asked in (*admin.create_acls([binding]).values(), *admin.delete_acls([every]).values()):
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            asked.result(30)
        assert refused.value.args[0].code() == confluent_kafka.KafkaError.SECURITY_DISABLED
    partition = confluent_kafka.TopicPartition("orders", 0)
    elected = admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED, [partition]).result(30)
    assert elected[partition].code() == confluent_kafka.KafkaError.ELECTION_NOT_NEEDED
