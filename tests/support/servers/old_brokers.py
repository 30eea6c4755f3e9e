"""Real brokers from 0.8.2.2 to 3.3.2, with their own clients: processes on Java 17, each with a ZooKeeper of its own.

Everything listens on free ports of the loopback interface. Starting one takes about 5 s of CPU time and 300 MB, so
there is never more than one. tests/oracle/old_brokers/README.md says what is fetched and made.
"""
import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

SCRIPTS = Path(__file__).parents[2] / "oracle/old_brokers"
VERSIONS = ("0.8.2.2", "0.9.0.1", "0.10.0.1", "0.10.2.2", "0.11.0.3", "1.1.1", "2.4.1", "3.3.2")
PATIENCE_S = 300
SESSION_MS = 15000      # a shorter one expires on a loaded machine, and not every old broker comes back from that

# What old Kafka and its libraries reach into; newer Java would refuse.
OPENED = [
    word for name in ("sun.nio.ch", "java.nio", "java.lang", "java.util")
    for word in ("--add-opens", f"java.base/{name}=ALL-UNNAMED")
] + ["--add-exports", "java.base/jdk.internal.ref=ALL-UNNAMED", "-Djava.security.manager=allow"]


class OldBrokerError(AssertionError):
    """A process ended, or a client said FAILED."""


class Read(NamedTuple):
    """One record as a client was given it: `-` where it knows no such thing, 8 hex digits for contents."""

    offset: int
    timestamp: str
    type: str
    key: str
    value: str
    headers: str

    @classmethod
    def parse(cls, line: str) -> "Read":
        offset, *rest = line.split(" ")
        return cls(int(offset), *rest)


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def codecs(version: str) -> tuple[str, ...]:
    """Those that the version knows."""
    return ("none", "gzip", "snappy", "lz4") + (("zstd",) if numbers(version) >= (2, 1) else ())


def _free_port() -> int:
    while True:
        port = random.randint(21000, 32000)     # the system gives those above to connections
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


class JavaClients:
    """The producers and consumers of one version of Kafka, which talk to whatever listens at `address`."""

    def __init__(self, version: str, work: Path, address: str = "") -> None:
        subprocess.run([SCRIPTS / "prepare.sh", version], check=True)
        cache = os.environ.get("SEGLOG_OLD_BROKERS_CACHE", SCRIPTS.parents[2] / "build/oracle/old_brokers")
        self.version = version
        self.work = work.absolute()
        self.address = address
        self._classpath = f"{cache}/{version}.classes:{cache}/{version}.jars/*"
        self.work.mkdir(parents=True, exist_ok=True)
        (self.work / "log4j.properties").write_text(
            "log4j.rootLogger=WARN, stdout\nlog4j.appender.stdout=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.stdout.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.stdout.layout.ConversionPattern=[%d] %p %m (%c)%n\n")

    def produce(self, seed: int, jobs: Iterable[str], *, by: str = "Produce") -> None:
        """Run Produce.java or ScalaProduce.java, which say what a job is."""
        self._run(by, self.address, seed, *jobs)

    @contextlib.contextmanager
    def producing(self, seed: int, job: str):
        """A producer at work meanwhile, killed at the end."""
        process = self._launch("producer", 96, "Produce", self.address, seed, job)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def consume(self, partitions: Iterable[str], isolation: str = "read_uncommitted") -> dict[str, str]:
        """{partition: the lines of its records}: see Read."""
        target = self.work / f"consumed-{isolation}"
        target.mkdir(exist_ok=True)
        partitions = list(partitions)
        by = "SimpleConsume" if numbers(self.version) < (0, 9) else "Consume"
        self._run(by, self.address, isolation, target, *partitions)
        return {name: (target / name).read_text() for name in partitions}

    def _command(self, heap_mb: int, *words: object) -> list[str]:
        return [
            "java", *OPENED, f"-Xmx{heap_mb}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", f"-Dlog4j.configuration=file:{self.work}/log4j.properties",
            f"-Djava.io.tmpdir={self.work}", "-cp", self._classpath, *map(str, words),
        ]

    def _launch(self, name: str, heap_mb: int, *words: object) -> subprocess.Popen[bytes]:
        with (self.work / f"{name}.out").open("ab") as out:
            return subprocess.Popen(self._command(heap_mb, *words), stdout=out, stderr=out, cwd=self.work)

    def _run(self, *words: object) -> str:
        done = subprocess.run(
            self._command(192, *words), capture_output=True, text=True, cwd=self.work, timeout=10 * PATIENCE_S,
            check=False)
        if done.returncode or "FAILED" in done.stdout:
            raise OldBrokerError(f"Kafka {self.version}, {words[0]}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done.stdout


class OldBroker(JavaClients):
    """One broker and its ZooKeeper. `with OldBroker(version, work) as broker:` starts both, and ends both."""

    def __init__(self, version: str, work: Path, config: Mapping[str, object] | None = None) -> None:
        super().__init__(version, work)
        self.log_dir = self.work / "logs"
        self._config = dict(config or {})
        self._zookeeper: subprocess.Popen[bytes] | None = None
        self._broker: subprocess.Popen[bytes] | None = None
        self.log_dir.mkdir(parents=True)

    def __enter__(self) -> "OldBroker":
        try:
            self._start_zookeeper()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self._broker, self._zookeeper):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    # --- the broker

    def start(self) -> None:
        port = _free_port()
        self.address = f"127.0.0.1:{port}"
        (self.work / "server.properties").write_text(
            "".join(f"{key}={value}\n" for key, value in (self._server_config(port) | self._config).items()))
        self._broker = self._launch("broker", 256, "kafka.Kafka", self.work / "server.properties")
        self._await(port, self._broker)
        # It listens before it is registered, and commands need that. (Clients wait for leaders by themselves.)
        self._await_registration(True)

    def stop(self) -> None:
        """A clean one, as by an operator."""
        self._broker.send_signal(signal.SIGTERM)
        self._broker.wait(PATIENCE_S)

    def kill(self) -> None:
        self._broker.kill()
        self._broker.wait()
        # As long as ZooKeeper holds the dead one's registration, until its session expires, no other can start.
        self._await_registration(False)

    def _server_config(self, port: int) -> dict[str, object]:
        version = numbers(self.version)
        config: dict[str, object] = {
            "broker.id": 0, "log.dirs": self.log_dir, "zookeeper.connect": f"127.0.0.1:{self._zookeeper_port}",
            "zookeeper.session.timeout.ms": SESSION_MS, "zookeeper.connection.timeout.ms": 20000,
            # Small ones, so that a few hundred records are several segments with indexes to look into.
            "log.segment.bytes": 16384, "log.index.interval.bytes": 512, "log.index.size.max.bytes": 65536,
            "log.retention.hours": 876000, "log.retention.check.interval.ms": 3000, "log.segment.delete.delay.ms": 1000,
            "log.cleaner.enable": "true", "log.cleaner.backoff.ms": 500, "log.cleaner.dedupe.buffer.size": 2200000,
            "log.cleaner.min.cleanable.ratio": 0.01, "log.cleaner.threads": 1,
            "auto.create.topics.enable": "false", "num.network.threads": 2, "num.io.threads": 2,
            "offsets.topic.num.partitions": 1, "offsets.topic.replication.factor": 1,
            "offsets.topic.segment.bytes": 1048576,
            "message.max.bytes": 900000, "num.partitions": 1, "controlled.shutdown.enable": "false",
        }
        if version < (0, 9):
            config |= {"host.name": "127.0.0.1", "port": port}
        else:
            config["listeners"] = f"PLAINTEXT://127.0.0.1:{port}"
        if version >= (0, 11):
            config |= {
                "transaction.state.log.num.partitions": 1, "transaction.state.log.replication.factor": 1,
                "transaction.state.log.min.isr": 1, "group.initial.rebalance.delay.ms": 0,
            }
        if version >= (3,):     # or message.format.version counts no more
            config["inter.broker.protocol.version"] = "2.8"
        return config

    # --- its tools and clients

    def create(self, topics: Mapping[str, Mapping[str, object]]) -> None:
        """Topics of one partition, with their configs."""
        self._commands([
            ["kafka.admin.TopicCommand", *self._where(), "--create", "--topic", name, "--partitions", "1",
             "--replication-factor", "1", *(w for key, value in config.items() for w in ("--config", f"{key}={value}"))]
            for name, config in topics.items()
        ])

    def alter(self, topics: Iterable[str], config: str) -> None:
        """`config`: key=value. 0.8.2 has the older command."""
        old = ["kafka.admin.TopicCommand", *self._where(), "--alter"]
        new = ["kafka.admin.ConfigCommand", *self._where(), "--alter", "--entity-type", "topics"]
        self._commands([
            [*old, "--topic", topic, "--config", config] if numbers(self.version) < (0, 9)
            else [*new, "--entity-name", topic, "--add-config", config]
            for topic in topics
        ])

    def _where(self) -> list[str]:
        if numbers(self.version) >= (3,):
            return ["--bootstrap-server", self.address]
        return ["--zookeeper", f"127.0.0.1:{self._zookeeper_port}"]

    def _commands(self, commands: Iterable[list[str]]) -> None:
        words = [word for command in commands for word in ("--", *command)]
        self._run("Commands", *words[1:])

    # --- processes

    def _start_zookeeper(self) -> None:
        self._zookeeper_port = _free_port()
        file = self.work / "zookeeper.cfg"
        file.write_text(
            f"tickTime=500\ndataDir={self.work}/zookeeper\nclientPort={self._zookeeper_port}\nmaxClientCnxns=0\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
            f"maxSessionTimeout={SESSION_MS}\n4lw.commands.whitelist=dump\n")
        self._zookeeper = self._launch("zookeeper", 96, "org.apache.zookeeper.server.quorum.QuorumPeerMain", file)
        self._await(self._zookeeper_port, self._zookeeper)

    def _await(self, port: int, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                break
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            time.sleep(0.2)
        raise OldBrokerError(f"Kafka {self.version} does not listen at {port}: see the .out files in {self.work}")

    def _await_registration(self, wanted: bool) -> None:
        """Until ZooKeeper holds the broker's ephemeral node, or holds it no more."""
        deadline = time.monotonic() + PATIENCE_S
        while ("/brokers/ids/0" in self._dump_of_zookeeper()) != wanted:
            if time.monotonic() > deadline or (wanted and self._broker.poll() is not None):
                problem = "is not registered" if wanted else "is still registered"
                raise OldBrokerError(f"Kafka {self.version} {problem}: see the .out files in {self.work}")
            time.sleep(0.1)

    def _dump_of_zookeeper(self) -> str:
        """Its sessions, and which ephemeral nodes each of them has."""
        with socket.create_connection(("127.0.0.1", self._zookeeper_port), PATIENCE_S) as s, s.makefile("rb") as answer:
            s.sendall(b"dump")
            return answer.read().decode()
