"""Kafka's own transactional producers over `seglog serve`, which is killed: each record is copied once."""
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

import seglog
from support.kafka_oracle import VERSIONS
from support.server_load import serve_on_one_port

pytestmark = pytest.mark.oracle

JAVA = Path(__file__).parent / "kafka/java.sh"
COUNT = 30_000 if os.environ.get("SEGLOG_TORTURE") else 900
COMMITS_A_LIFE = 6      # at least, so that the program gets on


def kill_after_commits(server, program, rng):
    """Kill the server and start it again until the program has ended. Returns the number of kills and what it told."""
    kills = 0
    for commits, line in enumerate(program.stdout, 1):
        if line.startswith("done "):
            return kills, json.loads(line[5:])["done"]
        if commits % COMMITS_A_LIFE == 0:
            time.sleep(rng.random() / 20)
            server.end(signal.SIGKILL)
            server.start()
            kills += 1
    return kills, None


@pytest.mark.parametrize("version", VERSIONS)
def test_each_record_is_copied_once_by_transactions_while_the_server_is_killed(tmp_path, request, version):
    server = serve_on_one_port(
        tmp_path / "data", "--config", "offsets.topic.num.partitions=3",
        "--config", "transaction.state.log.num.partitions=3")
    request.addfinalizer(server.__exit__)
    with subprocess.Popen(
        [JAVA, version, "ExactlyOnce", server.bootstrap_servers, str(COUNT), "7"], stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as program:
        request.addfinalizer(lambda: program.poll() is None and os.killpg(program.pid, signal.SIGKILL))
        kills, done = kill_after_commits(server, program, random.Random(7))
    assert program.returncode == 0
    assert min(done[what] for what in ("commit", "abort", "empty", "fenced")) > 0, done
    assert kills >= 5, kills
    assert server.end(signal.SIGTERM) == 0
    for partition in range(3):
        with seglog.open_partition(tmp_path / f"data/out-{partition}") as log:
            copied = [int.from_bytes(record.value) for record in log.read(isolation="read_committed")]
        assert copied == list(range(partition, COUNT, 3))
    for directory in (tmp_path / "data").glob("*-[0-9]*"):
        assert [one for one in seglog.verify(directory, level="deep").findings if one.severity == "error"] == []
