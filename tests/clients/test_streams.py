"""Kafka Streams counts words exactly once over our server, while its instances and the server are killed.

    make clients-long TESTS=tests/clients/test_streams.py

Needs Java 17 and Maven. Of each word the counts are read back as 1, 2, 3, …: none is lost, and none comes twice.
"""
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from support import kafka_oracle
from support.server_load import serve_on_one_port
from support.waiting import wait_for

pytestmark = pytest.mark.clients_long

VERSION = "4.3.1"
PROGRAM = Path(__file__).parent / "streams/word_count.sh"
KILLS = 16
WORDS = [f"word-{number}" for number in range(50)]
PATIENCE_S = 240


class Instance:
    """One of the program's instances, with a directory for its state; it is killed and started again."""

    def __init__(self, number, server, work):
        self.work = work / f"instance-{number}"
        self.work.mkdir()
        self.server = server
        self.start()

    def start(self):
        self.told = (self.work / "told").open("a")
        self.process = subprocess.Popen(
            [PROGRAM, VERSION, self.server.bootstrap_servers, self.work / "state", "num.stream.threads=2"],
            stdout=self.told, stderr=self.told, start_new_session=True)

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.told.close()


class Lines(threading.Thread):
    """Sends lines of words until it is stopped. `sent` counts the words."""

    def __init__(self, server):
        super().__init__()
        self.producer = Producer({
            "bootstrap.servers": server.bootstrap_servers, "enable.idempotence": True, "message.timeout.ms": 600_000,
            "reconnect.backoff.max.ms": 500, "log_level": 2})
        self.rng = random.Random(4)
        self.sent = Counter()
        self.refused = []
        self.stopped = threading.Event()

    def run(self):
        while not self.stopped.wait(0.05):
            words = self.rng.choices(WORDS, k=3)
            self.sent.update(words)
            self.producer.produce("lines", " ".join(words), on_delivery=self.delivered)
            self.producer.poll(0)
        assert self.producer.flush(PATIENCE_S) == 0

    def delivered(self, error, _):
        if error is not None:
            self.refused.append(error)


class Counts:
    """Reads what the program committed: of each word its counts, in their order."""

    def __init__(self, server):
        self.consumer = Consumer({
            "bootstrap.servers": server.bootstrap_servers, "group.id": "judge", "auto.offset.reset": "earliest",
            "isolation.level": "read_committed", "enable.auto.commit": False, "reconnect.backoff.max.ms": 500,
            "log_level": 2})
        self.consumer.subscribe(["counts"])
        self.of_words = defaultdict(list)
        self.count = 0

    def read(self):
        """Whether there was something."""
        message = self.consumer.poll(0.2)
        if message is None:
            return False
        if message.error():
            if message.error().retriable():
                return False
            raise KafkaException(message.error())
        self.of_words[message.key().decode()].append(int.from_bytes(message.value(), "big"))
        self.count += 1
        return True

    def read_some(self):
        """Many at once: whoever waits pauses between calls, and would fall behind with one record each."""
        for _ in range(1000):
            if not self.read():
                return

    def more(self, how_many):
        wanted = self.count + how_many

        def arrived():
            self.read_some()
            return self.count >= wanted

        wait_for(arrived, PATIENCE_S)


def test_words_are_counted_exactly_once_under_kills(tmp_path):
    reason = kafka_oracle.lacking()
    if reason:
        pytest.skip(reason)
    subprocess.run([PROGRAM, VERSION], check=True)
    rng = random.Random(38)
    settings = ["--fsync", "interval", "--config", "offsets.topic.num.partitions=4"]
    topics = ["--create-topic", "lines:4", "--create-topic", "counts:4"]
    with serve_on_one_port(tmp_path / "data", *settings, *topics) as server:
        instances = [Instance(number, server, tmp_path) for number in range(2)]
        lines, counts = Lines(server), Counts(server)
        lines.start()
        try:
            counts.more(100)
            for number in range(KILLS):
                victim = rng.choice([*instances, server])
                if victim is server:
                    server.end(signal.SIGKILL)
                    time.sleep(rng.random() * 2)
                    server.start()
                else:
                    victim.kill()
                    time.sleep(rng.random() * 2)
                    victim.start()
                print("kill", number, "of", "the server" if victim is server else "an instance", counts.count)
                counts.more(100)
            lines.stopped.set()
            lines.join()
            assert lines.refused == []

            def all_counted():
                counts.read_some()
                return counts.count >= lines.sent.total()

            wait_for(all_counted, PATIENCE_S)
            while counts.read():
                pass        # one that came twice would be there now
        finally:
            lines.stopped.set()
            for instance in instances:
                instance.kill()
            counts.consumer.close()
    print(lines.sent.total(), "words in", lines.sent.total() // 3, "lines")
    assert counts.of_words == {word: list(range(1, count + 1)) for word, count in lines.sent.items()}
