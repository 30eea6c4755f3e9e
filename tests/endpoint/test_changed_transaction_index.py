"""One changed byte in a .txnindex: clients that read committed records through the server see what they saw before."""
import time

import confluent_kafka
import pytest

import seglog
from seglog.segment.transaction_index import ENTRY_SIZE


@pytest.fixture
def transacted(tmp_path):
    """Every second one of ten transactions of two records is aborted."""
    with seglog.open(tmp_path / "data" / "orders-0", fsync="never") as log, log.producer(7) as producer:
        for number in range(10):
            producer.begin()
            producer.append_many([(None, b"%d" % number), (None, b"%d" % number)])
            if number % 2:
                producer.abort()
            else:
                producer.commit()
    (index,) = (tmp_path / "data").glob("*/*.txnindex")
    return index


@pytest.mark.parametrize("entry", [0, 2, 4])
def test_a_consumer_gets_the_committed_records_alone(transacted, entry):
    raw = bytearray(transacted.read_bytes())
    raw[entry * ENTRY_SIZE + 9] ^= 1        # the producer's id
    transacted.write_bytes(raw)
    got = []
    with seglog.serve(transacted.parent.parent) as server:
        consumer = confluent_kafka.Consumer({
            "bootstrap.servers": server.bootstrap_servers, "group.id": "g", "isolation.level": "read_committed",
            "enable.partition.eof": True, "log_level": 0})
        consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])
        end_s = time.monotonic() + 60
        while time.monotonic() < end_s:
            message = consumer.poll(0.1)
            if message is not None and message.error():
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                break
            if message is not None:
                got.append(message.value())
        consumer.close()
    assert got == [b"%d" % number for number in range(0, 10, 2) for _ in range(2)]
