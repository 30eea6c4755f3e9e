"""The tasks of docs/embedding.md on a real celery, its prefork pool under load, with a process of it that is killed."""
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import seglog
from seglog.fs.lock import writer_of
from support.waiting import wait_for

pytest.importorskip("celery", reason="the extra `test` brings it")

PAGE = Path(__file__).parents[2] / "docs/embedding.md"
TASKS = 600 if os.environ.get("SEGLOG_TORTURE") else 40
KILLS = 10 if os.environ.get("SEGLOG_TORTURE") else 1
# Hands tasks out, and says how each ended; one that was lost with its process is given to another.
CLIENT = """
import sys
from tasks import store
results = [(n, store.delay(f"value {n}")) for n in range(int(sys.argv[1]))]
print("sent", flush=True)
for n, result in results:
    print(n, *result.get(timeout=300), flush=True)
"""


def code():
    page = PAGE.read_text()
    return page[page.index('```python title="tasks.py"\n') :].split("\n", 1)[1].split("```\n", 1)[0]


def pool_of(directory):
    """The processes that hold a partition."""
    holders = set()
    for path in directory.glob("data/orders-*"):
        if writer_of(path) is not None:
            holders.add(int((path / ".seglog.lock").read_text().split()[0]))
    return holders


@pytest.mark.skipif(sys.platform != "linux", reason="celery's pool forks, and locks say who holds them")
def test_a_process_of_the_pool_is_killed_and_every_task_that_was_done_is_stored(tmp_path):
    (tmp_path / "tasks.py").write_text(code() + "\napp.conf.worker_proc_alive_timeout = 100\n")
    for name in ("queue", "results"):
        (tmp_path / name).mkdir()
    python_path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    surroundings = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": python_path}}
    with (tmp_path / "worker.out").open("w") as out:
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--concurrency", "3", "--without-gossip",
             "--without-mingle"],
            stdout=out, stderr=out, **surroundings,
        )
    client = None
    try:
        wait_for(lambda: len(pool_of(tmp_path)) == 3, 120)
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(TASKS)], stdout=subprocess.PIPE, text=True, **surroundings
        )
        assert client.stdout.readline() == "sent\n"
        done = {}
        killed = set()
        for line in client.stdout:
            number, partition, offset = map(int, line.split())
            done[partition, offset] = b"value %d" % number
            if len(killed) < KILLS and len(done) % (TASKS // (2 * KILLS)) == 0:
                alive = pool_of(tmp_path) - killed
                if alive:
                    killed.add(min(alive))
                    os.kill(min(alive), signal.SIGKILL)
        assert client.wait(60) == 0
        assert len(killed) == KILLS
        wait_for(lambda: len(pool_of(tmp_path) - killed) == 3, 120)     # another one took its place
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(120) == 0
    finally:
        for process in (client, worker):
            if process is not None and process.poll() is None:
                process.terminate()
                time.sleep(1)
                process.kill()
                process.wait()
        if client is not None:
            client.stdout.close()
    assert len(done) == TASKS
    found = {}
    for path in (tmp_path / "data").glob("orders-*"):
        with seglog.open(path) as log:
            assert not log.recovery.lost
            found |= {(log.partition, record.offset): record.value for record in log}
    assert {partition for partition, _ in found} == {0, 1, 2}
    assert {place: value for place, value in done.items() if found.get(place) != value} == {}
