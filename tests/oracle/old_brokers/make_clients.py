"""make_clients.py DIR CLIENTS: third-party clients write through old brokers; CLIENTS is what clients/prepare.sh made.

    DIR/clients/CLIENT-CODEC/CLIENT-CODEC-0/    the partition after a clean stop
    DIR/clients/CLIENT-CODEC/consumed.txt       what the broker's own consumer read; where it fails, why.txt
    DIR/clients/CLIENT-CODEC/consumed-4.1.1.txt what a broker and consumer of Kafka 4.1.1 read, which know times
    DIR/clients/CLIENT-CODEC/times-4.1.1.json   what offsetsForTimes answered then
"""
import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from support.kafka_oracle import KafkaOracle
from support.old_brokers import OldBroker, OldBrokerError

COUNT = 200
MODERN = "4.1.1"
# client: (version of the broker, codecs)
WRITTEN = {
    "kafka-python-0.9": ("0.8.2.2", ("none", "gzip")),
    "kafka-node": ("0.9.0.1", ("none", "gzip", "snappy")),
    "confluent-kafka": ("0.9.0.1", ("gzip", "snappy")),
    "franz-go": ("0.10.0.1", ("none", "gzip", "snappy", "lz4")),
    "sarama": ("0.10.0.1", ("gzip", "snappy", "lz4")),
    "kafka-python": ("0.10.0.1", ("gzip",)),
    "kafka-go": ("0.10.2.2", ("gzip", "snappy", "lz4")),
    "kafkajs": ("0.10.2.2", ("gzip", "snappy")),
}


def command(client: str, clients: Path) -> tuple[list[str], dict[str, str]]:
    """What runs the client, and its environment."""
    if client in ("kafka-node", "kafkajs"):
        return ["node", str(clients / "node/produce.js")], {}
    if client in ("franz-go", "sarama", "kafka-go"):
        return [str(clients / "go/produce")], {}
    python = os.environ["PYTHON27" if client == "kafka-python-0.9" else "PYTHON36"]
    script = Path(__file__).parent / "clients/python/produce.py"
    return [python, str(script)], {"PYTHONPATH": str(clients / "python" / client)}


def digest(encoded: str | None) -> str:
    return "-" if encoded is None else hashlib.sha256(base64.b64decode(encoded)).hexdigest()[:8]


def lines(records: list[dict]) -> str:
    """As the clients in src/ print them."""
    return "".join(
        f"{r['offset']} {r['timestamp']} {r['timestamp_type']} {digest(r['key'])} {digest(r['value'])} -\n"
        for r in records)


def write(version: str, root: Path, clients: Path) -> None:
    written = [(client, codec) for client, (own, codecs) in WRITTEN.items() if own == version for codec in codecs]
    with OldBroker(version, root / "work") as broker:
        broker.create({f"{client}-{codec}": {} for client, codec in written})
        for client, codec in written:
            topic = f"{client}-{codec}"
            words, environment = command(client, clients)
            more = [version] if "python" in words[0] else []
            subprocess.run([*words, client, broker.address, topic, codec, str(COUNT), *more], check=True, timeout=120,
                           env=os.environ | environment)
            target = root / "clients" / topic
            target.mkdir(parents=True)
            try:
                (target / "consumed.txt").write_text(broker.consume([f"{topic}-0"])[f"{topic}-0"])
            except OldBrokerError as e:
                (target / "why.txt").write_text(f"{e}\n")
            print(version, topic, flush=True)
        broker.stop()
        for client, codec in written:
            name = f"{client}-{codec}"
            shutil.copytree(broker.log_dir / f"{name}-0", root / "clients" / name / f"{name}-0")
    shutil.rmtree(root / "work")


if __name__ == "__main__":
    root, clients = Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()
    for version in sorted({version for version, _ in WRITTEN.values()}):
        write(version, root, clients)
    cases = sorted((root / "clients").iterdir())
    modern = KafkaOracle(MODERN).boot([case / f"{case.name}-0" for case in cases], root / "work")
    for case in cases:
        (case / f"consumed-{MODERN}.txt").write_text(lines(modern.records[f"{case.name}-0"]))
        (case / f"times-{MODERN}.json").write_text(json.dumps(modern.times[f"{case.name}-0"]))
        print(case.name, modern.partitions[f"{case.name}-0"])
    shutil.rmtree(root / "work")
