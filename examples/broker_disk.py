"""Look over the disk of a broker that died, repair a copy of it, say what that cost, and let a real broker serve it.

    python broker_disk.py LOG_DIR COPY [--replica LOG_DIR]... [--kafka KAFKA_HOME]

LOG_DIR is not changed. COPY gets the repaired partitions; what is damaged comes from the replicas, as far as they have
it. With --kafka, a single KRaft node starts on COPY, on free ports of this machine and with nobody else in its cluster,
and Kafka's console consumer reads every partition. It deletes nothing that retention would delete.
"""
import argparse
import json
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import seglog

PATIENCE_S = 180


def told(*arguments):
    """The JSON lines of a command. Status 1 is an answer: there are findings, or something to do. So is 7: a part could
    not be read, and standard error says why."""
    done = subprocess.run(
        [sys.executable, "-m", "seglog.tools", *map(str, arguments), "--json"], stdout=subprocess.PIPE, text=True,
        check=False,
    )
    if done.returncode not in (0, 1, 7):
        sys.exit(done.returncode)
    return [json.loads(line) for line in done.stdout.splitlines()]


def look_over(log_dir):
    # What is wrong, and what each way out would lose.
    *partitions, summary = told("verify", log_dir, "--summary")
    print(f"{summary['partitions']} partitions, {summary['errors']} errors, {summary['warnings']} warnings")
    for one in partitions:
        if "broker_loses" in one:
            broker, ours = one["broker_loses"]["records"], one["quarantine_loses"]["records"]
            print(f"{one['partition']}: a broker would lose {broker} records, a quarantine {ours}")
            if one["readers_fail_at"] is not None:
                print(f"  and readers still fail at offset {one['readers_fail_at']}")

    # What the cluster says about the topics, and where its consumers are.
    for topic in told("topics", log_dir):
        if topic["type"] == "topic" and topic["settings"]:
            policy = topic["settings"].get("cleanup.policy", {"value": "unknown"})["value"]
            print(f"topic {topic['topic']}: {topic['partitions']} partitions, {policy}")
    is_coordinator = any(log_dir.glob("__consumer_offsets-*"))
    for line in told("groups", log_dir) if is_coordinator else ():
        if line["type"] == "committed_offset":
            print(f"group {line['group']}: {line['topic']}-{line['partition']} at {line['offset']}, lag {line['lag']}")


def repair(log_dir, copy, replicas):
    shutil.copytree(log_dir, copy)
    sources = [argument for replica in replicas for argument in ("--from", replica)]
    done = told("recover", copy, "--mode", "quarantine", *sources, "--apply")[-1]
    print(f"recovered {done['partitions']} partitions: {done['lost_bytes']} bytes in quarantine")
    left = told("verify", copy, "--summary")[-1]
    print(f"left: {left['errors']} errors")
    # After an unclean election a replica has other records at the same offsets.
    for replica in replicas:
        for one in told("diff", copy, replica):
            if one["type"] == "partition" and one["epoch_offset"] is not None:
                print(
                    f"{one['partition']}: following {replica}, it would be cut at {one['epoch_offset']} "
                    f"and lose {one['cut_records'][0]} records"
                )


@contextmanager
def broker(kafka, log_dir):
    """A single node on a log dir: its address. It is stopped at the end."""
    lines = (log_dir / "meta.properties").read_text().splitlines()
    node = dict(line.split("=", 1) for line in lines if "=" in line)["node.id"]
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        port, controller_port = one.getsockname()[1], other.getsockname()[1]
    settings = {
        "process.roles": "broker,controller", "node.id": node, "log.dirs": log_dir.absolute(),
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"{node}@127.0.0.1:{controller_port}",
        "log.cleaner.enable": "false", "log.initial.task.delay.ms": 86_400_000,     # nothing is deleted for a day
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 86_400_000,      # and no transaction aborted
    }
    (log_dir / ".kafka_cleanshutdown").unlink(missing_ok=True)      # so that the broker checks the logs, too
    with tempfile.TemporaryDirectory() as work, (Path(work) / "messages").open("wb") as messages:
        properties = Path(work) / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        process = subprocess.Popen(
            [kafka / "bin/kafka-server-start.sh", properties], stdout=messages, stderr=messages
        )
        try:
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def consumed(kafka, address, topic, partition, records):
    """The offsets that the console consumer prints; it waits for the broker."""
    done = subprocess.run(
        [kafka / "bin/kafka-console-consumer.sh", "--bootstrap-server", address, "--topic", topic, "--partition",
         str(partition), "--offset", "earliest", "--max-messages", str(records), "--timeout-ms", str(PATIENCE_S * 1000),
         "--property", "print.offset=true", "--property", "print.value=false"],
        capture_output=True, text=True, check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    return [int(line.removeprefix("Offset:")) for line in done.stdout.splitlines() if line.startswith("Offset:")]


def serve(kafka, copy):
    with broker(kafka, copy) as address:
        for topic in told("topics", copy):
            if topic["type"] != "topic_partition" or topic["topic"].startswith("__") or topic["path"] is None:
                continue
            with seglog.open_partition(topic["path"]) as log:
                ours = [record.offset for record in log.read()]
            theirs = consumed(kafka, address, topic["topic"], topic["partition"], len(ours)) if ours else []
            same = "as seglog does" if theirs == ours else f"but seglog {len(ours)}"
            print(f"{topic['topic']}-{topic['partition']}: the consumer reads {len(theirs)} records, {same}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("log_dir", type=Path)
    parser.add_argument("copy", type=Path)
    parser.add_argument("--replica", type=Path, action="append", default=[])
    parser.add_argument("--kafka", type=Path)
    arguments = parser.parse_args()
    look_over(arguments.log_dir)
    repair(arguments.log_dir, arguments.copy, arguments.replica)
    if arguments.kafka is not None:
        serve(arguments.kafka, arguments.copy)


if __name__ == "__main__":
    main()
