"""Let three real brokers lose records to an unclean election: make_cluster.py DIRECTORY. Needs kafka-python.

tests/golden/cluster.tar.gz is what it made. A controller and the brokers 1, 2 and 3 hold three topics:

    orders  all three get 40 records, broker 1 alone 20 more. It is killed, 2 becomes leader though it lacks the 20,
            and takes 15 others, which 3 gets too: the tails of 1 and of the others differ
    lagged  the same without the election, since the topic does not allow it: 2 and 3 lack the tail of 1
    table   as orders, with compressed batches of many records, and two elections

`before/N/data` are their log dirs once all are killed with -9. Then all start again: `after/N/data` are the log dirs
when each replica has what its leader has, and expected.json says what the clients read, and to which offset each
broker cut each log when it followed the leader.
"""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("SEGLOG_ORACLE_CACHE", HERE / "../../../build/oracle/kafka")).resolve()
VERSION = "4.1.1"
BROKERS = (1, 2, 3)
CONTROLLER = 9
NOW_MS = 1_700_000_000_000
PATIENCE_S = 180
TOPICS = {
    "orders": {"unclean.leader.election.enable": "true"},
    "lagged": {"unclean.leader.election.enable": "false"},
    "table": {"unclean.leader.election.enable": "true"},
}
SMALL_FILES = ("meta.properties", "recovery-point-offset-checkpoint", "replication-offset-checkpoint",
               "log-start-offset-checkpoint", "cleaner-offset-checkpoint")


def wait_for(what: str, answer: Callable[[], object]) -> object:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            found = answer()
        except Exception as e:          # a broker that is not up yet says so in many ways
            found, what = None, f"{what} ({e!r})"[:300]
        if found:
            return found
        time.sleep(0.2)
    raise SystemExit(f"not in {PATIENCE_S} s: {what}")


class Cluster:
    def __init__(self, work: Path) -> None:
        subprocess.run([HERE / "prepare.sh", VERSION], check=True)
        self.work = work
        self.classpath = f"{CACHE}/classes-{VERSION}.jar:{(CACHE / f'{VERSION}.classpath').read_text().strip()}"
        held = {node: socket.create_server(("127.0.0.1", 0)) for node in (CONTROLLER, *BROKERS)}
        self.ports = {node: server.getsockname()[1] for node, server in held.items()}
        for server in held.values():
            server.close()
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        for node in self.ports:
            self.format(node)

    def java(self, *arguments: object) -> list[str]:
        return ["java", "-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=info", "-cp", self.classpath, *map(str, arguments)]

    def home(self, node: int) -> Path:
        return self.work / str(node)

    def format(self, node: int) -> None:
        home, is_broker = self.home(node), node in BROKERS
        home.mkdir(parents=True)
        listener = "PLAINTEXT" if is_broker else "CONTROLLER"
        settings = {
            "process.roles": "broker" if is_broker else "controller",
            "node.id": node,
            "listeners": f"{listener}://127.0.0.1:{self.ports[node]}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": f"{CONTROLLER}@127.0.0.1:{self.ports[CONTROLLER]}",
            "log.dirs": home / "data",
            "offsets.topic.replication.factor": 3,
            "offsets.topic.num.partitions": 1,
            "auto.create.topics.enable": "false",
            "auto.leader.rebalance.enable": "false",
            "log.retention.ms": -1,
            "log.cleaner.enable": "false",
            "log.index.size.max.bytes": 4096,
            "broker.session.timeout.ms": 6000,
            "broker.heartbeat.interval.ms": 500,
            "replica.lag.time.max.ms": 4000,
            "unclean.leader.election.interval.ms": 1000,
            "num.io.threads": 2,
            "num.network.threads": 1,
        }
        (home / "server.properties").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        subprocess.run(
            self.java("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c",
                      home / "server.properties"),
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )

    def start(self, *nodes: int) -> None:
        for node in nodes:
            with (self.home(node) / "messages").open("ab") as messages:
                self.running[node] = subprocess.Popen(
                    self.java("kafka.Kafka", self.home(node) / "server.properties"), stdout=messages, stderr=messages,
                )
        for node in nodes:
            wait_for(f"broker {node} listens", lambda node=node: self.listens(node))

    def listens(self, node: int) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.ports[node])) == 0

    def kill(self, *nodes: int) -> None:
        for node in nodes:
            self.running[node].send_signal(signal.SIGKILL)
            self.running.pop(node).wait()

    def stop(self, *nodes: int) -> None:
        for node in nodes:
            self.running[node].terminate()
        for node in nodes:
            self.running.pop(node).wait(PATIENCE_S)

    def address(self, node: int) -> str:
        return f"127.0.0.1:{self.ports[node]}"

    def told(self, node: int, topic: str) -> dict[str, object]:
        """What this broker knows of partition 0 of the topic."""
        admin = KafkaAdminClient(bootstrap_servers=self.address(node), request_timeout_ms=10_000)
        try:
            [told] = admin.describe_topics([topic])
            [partition] = told["partitions"]
            return {"leader": partition["leader_id"], "replicas": partition["replica_nodes"],
                    "isr": sorted(partition["isr_nodes"])}
        finally:
            admin.close()

    def described(self, node: int) -> dict[str, dict[str, str]]:
        """What kafka-topics says of partition 0 of each topic."""
        said = subprocess.run(
            [HERE / "tool.sh", VERSION, "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", self.address(node),
             "--describe"], check=True, capture_output=True, text=True,
        ).stdout
        lines = (line.strip() for line in said.splitlines() if line.startswith("\t"))
        fields = (dict(field.split(": ", 1) if ": " in field else (field.rstrip(":"), "")
                       for field in line.split("\t") if field) for line in lines)
        return {found["Topic"]: found for found in fields if found["Topic"] in TOPICS}

    def wait_in_sync(self, node: int, topic: str, isr: list[int], leader: int | None = None) -> None:
        def is_so() -> bool:
            told = self.told(node, topic)
            return told["isr"] == isr and leader in (None, told["leader"])
        wait_for(f"{topic}: leader {leader}, in sync {isr}", is_so)

    def create(self) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.address(1), request_timeout_ms=30_000)
        admin.create_topics([
            NewTopic(topic, replica_assignments={0: list(BROKERS)}, topic_configs=config)
            for topic, config in TOPICS.items()
        ])
        admin.close()

    def produce(self, node: int, topic: str, said: str, count: int, acks: object, codec: str | None = None) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self.address(node), acks=acks, linger_ms=200 if codec else 0, compression_type=codec,
            enable_idempotence=False, request_timeout_ms=60_000,
        )
        for n in range(count):
            sent = producer.send(
                topic, b"%s %d" % (said.encode(), n), key=b"k%d" % (n % 7), partition=0, timestamp_ms=NOW_MS + 1000 * n,
            )
            if not codec:
                sent.get(60)
        producer.flush()
        producer.close()

    def consume(self, node: int, topic: str) -> list[tuple[int, str, str]]:
        """Every record up to the high watermark, as (offset, key, value)."""
        consumer = KafkaConsumer(bootstrap_servers=self.address(node), auto_offset_reset="earliest",
                                 enable_auto_commit=False, request_timeout_ms=60_000)
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end = consumer.end_offsets([place])[place]
        found = []
        deadline = time.monotonic() + PATIENCE_S
        while consumer.position(place) < end and time.monotonic() < deadline:
            for records in consumer.poll(1000).values():
                found += [(record.offset, record.key.decode(), record.value.decode()) for record in records]
        consumer.close()
        return found

    def copy(self, into: Path) -> None:
        for node in BROKERS:
            data = into / str(node) / "data"
            for name in (*(f"{topic}-0" for topic in TOPICS), "__cluster_metadata-0"):
                shutil.copytree(self.home(node) / "data" / name, data / name)
            for name in SMALL_FILES:
                if (file := self.home(node) / "data" / name).exists():
                    shutil.copy2(file, data / name)
            for index in (data / "__cluster_metadata-0").glob("*index"):
                os.truncate(index, 0)       # 10 MB of zeros each: no setting makes them smaller

    def cuts(self, node: int) -> dict[str, list[int]]:
        """To which offsets this broker cut its logs, by its own messages."""
        messages = (self.home(node) / "messages").read_text()
        found: dict[str, list[int]] = {}
        for topic, offset in re.findall(r"Truncating partition (\w+)-0 with TruncationState\(offset=(\d+)", messages):
            found.setdefault(topic, []).append(int(offset))
        return found


def play(cluster: Cluster, out: Path) -> dict:
    expected: dict = {}
    cluster.start(CONTROLLER)
    cluster.start(*BROKERS)
    wait_for("topics", lambda: cluster.create() is None)
    for topic in TOPICS:
        cluster.wait_in_sync(1, topic, [1, 2, 3], leader=1)
        cluster.produce(1, topic, f"{topic} all", 40, "all", "gzip" if topic == "table" else None)
    cluster.kill(2, 3)
    for topic in TOPICS:
        cluster.wait_in_sync(1, topic, [1], leader=1)
        cluster.produce(1, topic, f"{topic} of 1", 20, 1, "gzip" if topic == "table" else None)
    expected["read from 1"] = {topic: cluster.consume(1, topic) for topic in TOPICS}
    cluster.kill(1)
    cluster.start(2)
    for topic in ("orders", "table"):
        cluster.wait_in_sync(2, topic, [2], leader=2)
    cluster.produce(2, "table", "table of 2", 9, 1, "gzip")
    cluster.start(3)
    cluster.wait_in_sync(2, "orders", [2, 3], leader=2)
    cluster.wait_in_sync(2, "table", [2, 3], leader=2)
    cluster.produce(2, "orders", "orders of 2", 15, "all")
    cluster.kill(3)
    cluster.wait_in_sync(2, "table", [2], leader=2)
    cluster.produce(2, "table", "table of 2 again", 5, 1, "gzip")
    expected["read from 2"] = {topic: cluster.consume(2, topic) for topic in ("orders", "table")}
    cluster.kill(2)
    cluster.start(3)
    cluster.wait_in_sync(3, "table", [3], leader=3)
    cluster.produce(3, "table", "table of 3", 7, 1, "gzip")
    expected["read from 3"] = {topic: cluster.consume(3, topic) for topic in ("table",)}
    expected["kafka-topics by 3"] = cluster.described(3)
    cluster.kill(3)
    cluster.kill(CONTROLLER)
    cluster.copy(out / "before")
    cluster.start(CONTROLLER)
    # All are back, the last leader first, and follow.
    cluster.start(3)
    cluster.wait_in_sync(3, "table", [3], leader=3)
    cluster.start(1, 2)
    for topic in TOPICS:
        cluster.wait_in_sync(3, topic, [1, 2, 3])
    expected["read at last"] = {topic: cluster.consume(3, topic) for topic in TOPICS}
    expected["kafka-topics at last"] = cluster.described(3)
    expected["cuts"] = {node: cluster.cuts(node) for node in BROKERS}
    cluster.stop(*BROKERS)
    cluster.copy(out / "after")
    return expected


def main() -> None:
    out = Path(sys.argv[1]).absolute()
    cluster = Cluster(out / "work")
    try:
        expected = play(cluster, out / "cluster")
    finally:
        cluster.kill(*list(cluster.running))
    (out / "cluster/expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    with tarfile.open(out / "cluster.tar.gz", "w:gz") as archive:
        archive.add(out / "cluster", "cluster")


if __name__ == "__main__":
    main()
