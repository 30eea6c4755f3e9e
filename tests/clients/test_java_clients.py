"""Every producer and consumer of Java from 0.8.2 to 4.1 over our server, in every format on disk: records and counters.

Run by `make clients`: one JVM for each version that produces, one for each that consumes.
"""
import hashlib
from itertools import product

import pytest

import seglog
from support.kafka_oracle import lacking
from support.old_brokers import JavaClients, codecs, numbers

pytestmark = pytest.mark.clients

VERSIONS = ("0.8.2.2", "0.9.0.1", "0.10.2.2", "1.1.1", "2.8.2", "3.9.1", "4.1.1")
FORMATS = ("0.9.0", "0.10.2", "2.8")      # message.format.version of record formats 0, 1 and 2
COUNT = 40
CANARY = "canary"


def known_format(version):
    """The newest record format that a client of this version knows: it sends this one, and is sent none above it."""
    return 0 if numbers(version) < (0, 10) else 1 if numbers(version) < (0, 11) else 2


def codecs_of(version):
    # zstd needs format 2, and whoever reads it must know it: the conversation with Kafka has its refusals.
    return codecs(version)[: 3 if numbers(version) < (0, 9) else 4]


def topic_of(producer, stored):
    return f"by-{producer}-in-{stored}"


class Phases:
    """What the clients were told, and what the server counted meanwhile."""

    def __init__(self, server, work):
        self.server = server
        self.work = work
        # {(consumer, topic): (lines, zero-copy bytes, converted batches)}
        self.consumed = {}

    def run(self):
        for producer, stored in product(VERSIONS, range(3)):
            config = {"message.format.version": FORMATS[stored]}
            self.server.create_topic(topic_of(producer, stored), 1, config)
        self.server.create_topic(CANARY, 1, {"message.format.version": FORMATS[0]})
        for seed, producer in enumerate(VERSIONS):
            self.produce(seed, producer)
        for step, stored in enumerate((1, 2, 1, 0)):
            self.canary(step, stored)
        for consumer in VERSIONS:
            self.consume(consumer)

    def clients(self, version):
        return JavaClients(version, self.work / version, self.server.bootstrap_servers)

    def produce(self, seed, producer):
        jobs = [
            f"{topic_of(producer, stored)},{codec},{COUNT},k"
            for stored, codec in product(range(3), codecs_of(producer))
        ]
        self.clients(producer).produce(seed, [*jobs, f"{CANARY},gzip,{COUNT},k"])

    def canary(self, step, stored):
        """One topic goes to newer formats and back, under producers that stay what they are."""
        log = self.server.log(CANARY)
        log.configure({"message.format.version": FORMATS[stored]})
        for producer in ("0.8.2.2", "0.10.2.2", "4.1.1"):
            self.clients(producer).produce(100 + step, [f"{CANARY},gzip,{COUNT},k"])

    def topics(self):
        return [CANARY, *(topic_of(producer, stored) for producer, stored in product(VERSIONS, range(3)))]

    def consume(self, consumer):
        known = known_format(consumer)

        def counted(topic):
            counters = self.server.log(topic).format_counters
            return counters.fetch_zero_copy_bytes[known].value, counters.fetch_converted_batches[known].value

        before = {topic: counted(topic) for topic in self.topics()}
        lines = self.clients(consumer).consume(f"{topic}-0" for topic in self.topics())
        for topic in self.topics():
            zero_copy, converted = (after - was for after, was in zip(counted(topic), before[topic], strict=True))
            self.consumed[consumer, topic] = lines[f"{topic}-0"].splitlines(), zero_copy, converted


@pytest.fixture(scope="module")
def phases(tmp_path_factory):
    reason = lacking()
    if reason:
        pytest.skip(reason)
    work = tmp_path_factory.mktemp("phases")
    config = {"auto.create.topics.enable": False}
    with seglog.serve(work / "data", config=config, fsync="interval") as server:
        made = Phases(server, work / "clients")
        made.run()
        yield made


def digest(data):
    return "-" if data is None else hashlib.sha256(data).hexdigest()[:8]


def expected(log, consumer):
    """What a consumer is told of the records that the log holds: offset, time, and of key and value a digest."""
    has_time = known_format(consumer) > 0
    for record in log.read():
        time = -1 if record.timestamp is None else record.timestamp
        yield str(record.offset), str(time) if has_time else "-", digest(record.key), digest(record.value)


@pytest.mark.parametrize("consumer", VERSIONS)
def test_a_consumer_of_any_age_is_given_the_records(phases, consumer):
    for topic in phases.topics():
        lines, _, _ = phases.consumed[consumer, topic]
        wanted = list(expected(phases.server.log(topic), consumer))
        assert len(wanted) >= 3 * COUNT
        told = [tuple(line.split(" ")[n] for n in (0, 1, 3, 4)) for line in lines]
        assert told == wanted, topic


@pytest.mark.parametrize("consumer", VERSIONS)
def test_records_go_out_as_they_lie_on_disk_unless_the_consumer_is_older_than_they(phases, consumer):
    known = known_format(consumer)
    for producer, stored in product(VERSIONS, range(3)):
        topic = topic_of(producer, stored)
        _, zero_copy, converted = phases.consumed[consumer, topic]
        size = sum(batch.size_bytes for batch in phases.server.log(topic).batches())
        if stored <= known:
            assert converted == 0, (topic, consumer)
            assert zero_copy >= size, (topic, consumer)
        else:
            assert converted > 0, (topic, consumer)


@pytest.mark.parametrize("producer", VERSIONS)
def test_batches_are_converted_only_if_the_producer_sends_another_format(phases, producer):
    sent = known_format(producer)
    for stored in range(3):
        counters = phases.server.log(topic_of(producer, stored)).format_counters
        in_place = counters.append_in_place_batches[stored].value
        converted = counters.append_converted_batches[stored].value
        recompressed = counters.append_recompressed_batches[stored].value
        if sent != stored:
            assert converted > 0
            assert recompressed > 0
            assert in_place == 0
        else:
            assert converted == 0
            assert in_place > 0
            # Wrappers of format 0 have absolute offsets in what is compressed.
            assert (recompressed > 0) == (stored == 0)
