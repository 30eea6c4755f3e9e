"""A server beside a warm Kafka 4.1.1, with librdkafka at both ends: processor time of all threads of the server.

    python -m benches --only serve --java

Only Linux gives the processor time of another process precisely enough. Each server does all of its work on loopback.
"""
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from benches.java import JAVA
from benches.runner import Bench, Goal

KAFKA = "4.1.1"
VALUE = b"x" * 100
BATCH_BYTES = 16384
CONNECTIONS = 16        # of the producers whose acknowledgements share a sync
WARMING = 2_000_000     # messages through Kafka first: its compiler needs them
_TOPIC = "bench"


class ServerProcess:
    """A running server. `bootstrap_servers`: its address."""

    def __init__(self, bootstrap_servers: str, pid: int) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._pid = pid

    def cpu_s(self) -> float:
        """Processor time of its live threads; those that ended did little."""
        spent_ns = 0
        for task in Path(f"/proc/{self._pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):        # it ended since it was listed
                spent_ns += int((task / "schedstat").read_text().split()[0])
        return spent_ns / 1e9

    def pin(self, core: int) -> None:
        """Restrict all of its threads, and those that they start, to this core."""
        for task in Path(f"/proc/{self._pid}/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), {core})

    def anonymous_mib(self) -> float:
        rollup = Path(f"/proc/{self._pid}/smaps_rollup").read_text()
        return int(rollup.split("Anonymous:")[1].split()[0]) / 1024


@contextmanager
def ours(directory: Path, fsync: str) -> Iterator[ServerProcess]:
    command = [sys.executable, "-m", "seglog.tools", "serve", str(directory), "--listen", "127.0.0.1:0", "--json",
               "--fsync", fsync, "--create-topic", _TOPIC]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield ServerProcess(json.loads(process.stdout.readline())["bootstrap_servers"], process.pid)
        finally:
            process.terminate()


@contextmanager
def kafka(directory: Path) -> Iterator[ServerProcess]:
    """A combined broker and controller with Kafka's defaults, under which it leaves flushing to the system."""
    directory.mkdir()
    port, controller = _free_ports(2)
    properties = directory / "server.properties"
    properties.write_text("".join(f"{line}\n" for line in (
        "process.roles=broker,controller", "node.id=1", f"controller.quorum.voters=1@127.0.0.1:{controller}",
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "controller.listener.names=CONTROLLER", f"log.dirs={directory}/data", "offsets.topic.replication.factor=1",
    )))
    options = ["-XX:TieredStopAtLevel=4", "-XX:+UseG1GC", "-XX:-UseSerialGC"]
    messages = (directory / "messages").open("w")
    with messages:
        form = ["kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", properties]
        subprocess.run([JAVA, KAFKA, *options, *form], check=True, stdout=messages, stderr=messages)
        with subprocess.Popen(
            [JAVA, KAFKA, *options, "kafka.Kafka", properties], stdout=messages, stderr=messages
        ) as shell:
            pid = 0
            try:
                _wait(lambda: _answers(port), "Kafka did not start")
                pid = _java_of(shell.pid)
                yield ServerProcess(f"127.0.0.1:{port}", pid)
            finally:
                os.kill(pid or shell.pid, 15)


def produce(server: ServerProcess, messages: int, acks: str = "all") -> None:
    """Produce with one producer, in batches of 16 KB."""
    from confluent_kafka import Producer

    producer = Producer({
        "bootstrap.servers": server.bootstrap_servers, "acks": acks, "linger.ms": 5, "batch.size": BATCH_BYTES,
        "queue.buffering.max.messages": 2_000_000, "log_level": 0})
    for n in range(messages):
        while True:
            try:
                producer.produce(_TOPIC, VALUE)
                break
            except BufferError:
                producer.poll(0.01)
        if n % 1024 == 0:
            producer.poll(0)
    assert producer.flush(600) == 0


def consume(server: ServerProcess, messages: int) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({
        "bootstrap.servers": server.bootstrap_servers, "group.id": "bench", "enable.auto.commit": False,
        "check.crcs": False, "queued.min.messages": 200_000, "log_level": 0})
    consumer.assign([TopicPartition(_TOPIC, 0, 0)])
    count = 0
    while count < messages:
        came = consumer.consume(10_000, 60)
        assert came
        count += len(came)
    consumer.close()


def produce_together(server: ServerProcess, messages: int) -> None:
    """Produce with many producers, each with its own connection, so that several of them wait for one sync."""
    from confluent_kafka import Producer

    producers: list[Any] = [
        Producer({"bootstrap.servers": server.bootstrap_servers, "acks": "all", "linger.ms": 5,
                  "batch.size": BATCH_BYTES, "max.in.flight": 1, "log_level": 0})
        for _ in range(CONNECTIONS)
    ]
    for n in range(messages):
        producers[n // 150 % CONNECTIONS].produce(_TOPIC, VALUE)
        if n % 1500 == 0:
            for producer in producers:
                producer.poll(0)
    for producer in producers:
        assert producer.flush(600) == 0


def run(bench: Bench, directory: Path, count: int, *, with_java: bool) -> None:
    if sys.platform != "linux" or not bench.wanted("serve"):
        return
    messages = max(count // 4, 2000)
    with ours(directory / "batch", "batch") as batch, ours(directory / "interval", "interval") as interval:
        bench.compare(
            "serve produce, 16 connections", messages / 1e6, "M rec/s",
            {"durable": partial(produce_together, batch, messages),
             "interval": partial(produce_together, interval, messages)},
            {("durable", "interval"): Goal(1 / 1.5)},
            clock={"durable": batch.cpu_s, "interval": interval.cpu_s},
        )
        _memory(bench, batch)
    _start(bench, directory / "interval")
    if with_java:
        _beside_kafka(bench, directory, messages)


def _beside_kafka(bench: Bench, directory: Path, messages: int) -> None:
    with ours(directory / "beside", "interval") as server, kafka(directory / "kafka") as broker:
        # Each server's own processor time, because an idle Kafka takes processor time too.
        clock = {"seglog": server.cpu_s, f"Kafka {KAFKA}": broker.cpu_s}
        produce(broker, WARMING)
        for work, goal in ((produce, 1 / 0.3), (consume, 1 / 0.4)):
            bench.compare(
                f"serve {work.__name__}, 16 KB batches", messages / 1e6, "M rec/s",
                {"seglog": partial(work, server, messages), f"Kafka {KAFKA}": partial(work, broker, messages)},
                {("seglog", f"Kafka {KAFKA}"): Goal(goal)}, clock=clock,
            )
        _throughput(bench, server, broker, messages)


def _throughput(bench: Bench, server: ServerProcess, broker: ServerProcess, messages: int) -> None:
    """Wall time, with each server on one core and the clients on another. Neither syncs before it acknowledges."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return
    for each in (server, broker):
        each.pin(cores[0])
    os.sched_setaffinity(0, {cores[1]})
    try:
        for work in (produce, consume):
            bench.compare(
                f"serve {work.__name__}, throughput", messages / 1e6, "M rec/s",
                {"seglog": partial(work, server, messages), f"Kafka {KAFKA}": partial(work, broker, messages)},
                {("seglog", f"Kafka {KAFKA}"): Goal()}, clock=time.perf_counter,
            )
    finally:
        os.sched_setaffinity(0, cores)


def _memory(bench: Bench, server: ServerProcess) -> None:
    host, _, port = server.bootstrap_servers.rpartition(":")
    connections = [socket.create_connection((host, int(port))) for _ in range(100)]
    time.sleep(0.5)
    bench.limit("serve, 100 connections", "MiB", "anonymous memory", server.anonymous_mib(), 40)
    for connection in connections:
        connection.close()


def _start(bench: Bench, directory: Path) -> None:
    """By wall time: a new process on the log dir that the rounds above filled."""
    took = []
    for _ in range(bench.repetitions):
        began = time.perf_counter()
        with ours(directory, "interval"):
            took.append(time.perf_counter() - began)
    bench.limit("serve, start", "s", "until the port is open", min(took), 0.5)


def _free_ports(count: int) -> list[int]:
    """Different ones: each is held until all are known."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(probe.getsockname()[1]) for probe in probes]


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _wait(what: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + 120
    while not what():
        assert time.monotonic() < end, otherwise
        time.sleep(0.1)


def _java_of(shell: int) -> int:
    """The process id of the JVM that a script runs."""
    children = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
    return next(int(child) for child in children if "java" in Path(f"/proc/{child}/comm").read_text())
