# ruff: noqa: UP031
"""produce.py CLIENT SERVER TOPIC CODEC COUNT VERSION: records numbered from 0, by old releases of Python clients.

They run on the Python of their time, 2.7 and 3.6: so nothing here is newer. VERSION is the broker's.
"""
import sys

PER_REQUEST = 25
FIRST_MS = 1600000000000


def records(client, codec, count):
    """(key, value, ms). Times rise and fall, so that none can be told from its neighbours."""
    for n in range(count):
        value = "%s %s number %d %s" % (client, codec, n, "abcdefgh" * (n % 9))
        yield ("key-%d" % (n % 50)).encode(), value.encode(), FIRST_MS + n * 1000 + (n * 7919) % 5000 - 2500


def simple_producer(server, topic, codec, version, rows):
    """kafka-python 0.9, which knows no other."""
    from kafka import KafkaClient
    from kafka.common import ProduceRequest
    from kafka.protocol import CODEC_GZIP, create_message, create_message_set

    client = KafkaClient(server)
    for begin in range(0, len(rows), PER_REQUEST):
        pairs = [(value, key) for key, value, _ in rows[begin:begin + PER_REQUEST]]
        if codec == "gzip":
            messages = create_message_set(pairs, CODEC_GZIP, None)
        else:
            messages = [create_message(*pair) for pair in pairs]
        client.send_produce_request([ProduceRequest(topic, 0, messages)])


def kafka_python(server, topic, codec, version, rows):
    from kafka import KafkaProducer

    compression = None if codec == "none" else codec
    producer = KafkaProducer(
        bootstrap_servers=server, compression_type=compression, linger_ms=20, api_version=version)
    for n, (key, value, ms) in enumerate(rows):
        time = {"timestamp_ms": ms} if version >= (0, 10) else {}
        producer.send(topic, value, key, partition=0, **time)
        if n % PER_REQUEST == PER_REQUEST - 1:
            producer.flush()
    producer.close()


def confluent_kafka(server, topic, codec, version, rows):
    from confluent_kafka import Producer

    producer = Producer({
        "bootstrap.servers": server, "compression.type": codec, "linger.ms": 20, "message.timeout.ms": 20000,
        "broker.version.fallback": ".".join(map(str, version)), "api.version.request": version >= (0, 10),
    })
    failed = []

    def told(error, _):
        if error:
            failed.append(error)

    for n, (key, value, ms) in enumerate(rows):
        time = {"timestamp": ms} if version >= (0, 10) else {}
        producer.produce(topic, value, key, partition=0, callback=told, **time)
        if n % PER_REQUEST == PER_REQUEST - 1:
            producer.flush()
    producer.flush()
    assert not failed, failed[:3]


if __name__ == "__main__":
    client, server, topic, codec, count, version = sys.argv[1:]
    version = tuple(map(int, version.split(".")))[:3]
    clients = {"kafka-python-0.9": simple_producer, "kafka-python": kafka_python, "confluent-kafka": confluent_kafka}
    clients[client](server, topic, codec, version, list(records(client, codec, int(count))))
