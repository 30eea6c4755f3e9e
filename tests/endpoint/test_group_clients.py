"""Groups and transactions by two clients of others, librdkafka and aiokafka: members come, go and are killed."""
import asyncio
import signal
import subprocess
import sys
import time

import aiokafka
import confluent_kafka
import pytest

import seglog

PARTITIONS = 6
MEMBER = """
import sys, confluent_kafka
consumer = confluent_kafka.Consumer({"bootstrap.servers": sys.argv[1], "group.id": "g", "session.timeout.ms": 1500,
    "heartbeat.interval.ms": 200, "auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 0})
consumer.subscribe(["orders"])
told = False
while True:
    consumer.poll(0.1)
    if not told and len(consumer.assignment()) == int(sys.argv[2]):
        print("assigned", flush=True)
        told = True
"""


@pytest.fixture
def served(in_memory):
    config = {"group.min.session.timeout.ms": 1000, "offsets.topic.num.partitions": 2,
              "transaction.state.log.num.partitions": 2}
    with seglog.serve(in_memory / "data", topics={"orders": PARTITIONS}, config=config) as server:
        yield server


def consumer_of(server, **settings):
    """One whose session outlives a moment in which the machine stops this process. (That of MEMBER shall end soon.)"""
    return confluent_kafka.Consumer({
        "bootstrap.servers": server.bootstrap_servers, "group.id": "g", "session.timeout.ms": 30_000,
        "heartbeat.interval.ms": 200, "auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 0,
        **settings})


def poll_until(consumers, condition, seconds=120):
    """The values that came; each consumer commits what it got."""
    values, end = [], time.monotonic() + seconds
    while not condition(values):
        assert time.monotonic() < end, (len(values), [len(c.assignment()) for c in consumers])
        for consumer in consumers:
            message = consumer.poll(0.02)
            if message is not None and not message.error():
                values.append(message.value())
                consumer.commit(message, asynchronous=True)
    return values


def produce(server, count):
    producer = confluent_kafka.Producer({
        "bootstrap.servers": server.bootstrap_servers, "enable.idempotence": True, "log_level": 0})
    values = [b"%d" % number for number in range(count)]
    for number, value in enumerate(values):
        producer.produce("orders", value, partition=number % PARTITIONS)
    assert producer.flush(120) == 0
    return values


def test_two_members_take_over_what_a_killed_third_one_had(served):
    values = produce(served, 300)
    members = [consumer_of(served) for _ in range(2)]
    for member in members:
        member.subscribe(["orders"])
    got = poll_until(members, lambda _: [len(m.assignment()) for m in members] == [3, 3])
    with subprocess.Popen(
        [sys.executable, "-c", MEMBER, served.bootstrap_servers, "2"], stdout=subprocess.PIPE
    ) as third:
        got += poll_until(members, lambda _: [len(m.assignment()) for m in members] == [2, 2])
        assert third.stdout.readline() == b"assigned\n"
        third.send_signal(signal.SIGKILL)
        got += poll_until(members, lambda _: [len(m.assignment()) for m in members] == [3, 3])
    # The third committed nothing: whatever it had comes again, also what came before but could not be committed.
    where = [confluent_kafka.TopicPartition("orders", n) for n in range(PARTITIONS)]
    got += poll_until(members, lambda more: set(got) | set(more) == set(values) and [
        row.offset for row in members[0].committed(where, 120)] == [50] * PARTITIONS)
    for member in members:
        member.close()
    after = consumer_of(served)
    assert [row.offset for row in after.committed(where, 120)] == [50] * PARTITIONS
    after.close()


def test_a_transactional_producer_of_librdkafka_commits_and_aborts(served):
    producer = confluent_kafka.Producer({
        "bootstrap.servers": served.bootstrap_servers, "transactional.id": "t", "log_level": 0})
    producer.init_transactions(120)
    group = consumer_of(served)
    where = confluent_kafka.TopicPartition("orders", 0)
    committed = []
    for number in range(10):
        producer.begin_transaction()
        producer.produce("orders", b"%d" % number, partition=0)
        offset = confluent_kafka.TopicPartition("orders", 0, number + 1)
        producer.send_offsets_to_transaction([offset], group.consumer_group_metadata(), 120)
        if number % 3 == 2:
            producer.abort_transaction(120)
        else:
            producer.commit_transaction(120)
            committed.append(b"%d" % number)
        assert group.committed([where], 120)[0].offset == int(committed[-1]) + 1
    reader = consumer_of(served, **{"group.id": "other", "isolation.level": "read_committed"})
    reader.assign([confluent_kafka.TopicPartition("orders", 0, 0)])
    assert poll_until([reader], lambda values: len(values) == len(committed)) == committed
    reader.close()
    group.close()


def test_members_of_aiokafka_share_a_topic_and_read_what_its_transactions_committed(served):
    async def run():
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=served.bootstrap_servers, transactional_id="t")
        await producer.start()
        consumers = [aiokafka.AIOKafkaConsumer(
            "orders", bootstrap_servers=served.bootstrap_servers, group_id="g", auto_offset_reset="earliest",
            isolation_level="read_committed", session_timeout_ms=30_000, heartbeat_interval_ms=200,
            group_instance_id=f"static-{number}" if number else None) for number in range(3)]
        await asyncio.gather(*(consumer.start() for consumer in consumers))
        async with producer.transaction():
            for number in range(60):
                await producer.send("orders", b"committed %d" % number, partition=number % PARTITIONS)
        await producer.begin_transaction()
        await producer.send_and_wait("orders", b"aborted", partition=0)
        await producer.abort_transaction()
        got = set()
        async with asyncio.timeout(120):
            while len(got) < 60 or sorted(len(c.assignment()) for c in consumers) != [2, 2, 2]:
                for consumer in consumers:
                    for records in (await consumer.getmany(timeout_ms=50)).values():
                        got.update(record.value for record in records)
        assert got == {b"committed %d" % number for number in range(60)}
        for consumer in consumers:
            await consumer.commit()
            await consumer.stop()
        await producer.stop()

    asyncio.run(run())
