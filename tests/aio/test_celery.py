"""The tasks of docs/embedding.md on a real celery with its prefork pool, of which processes die."""
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import seglog
from seglog.fs.lock import writer_of
from support.waiting import wait_for

pytest.importorskip("celery", reason="the extra `test` brings it")

PAGE = Path(__file__).parents[2] / "docs/embedding.md"
TASKS, DEATHS = 600, 10
# A process dies within a task, behind its append. (Killed between two, it may hold the lock of celery's own queue, for
# which all others of the pool then wait for ever.)
DIES = """
app.conf.worker_proc_alive_timeout = 100

@app.task(acks_late=True, reject_on_worker_lost=True)
def store_and_die(value):
    import os
    done = store(value)
    try:
        os.close(os.open(value, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return done         # given to another process
    os.kill(os.getpid(), 9)
"""
# Hands tasks out, and says how each ended.
CLIENT = """
import sys
from tasks import store, store_and_die
count, deaths = map(int, sys.argv[1:])
results = [(n, (store if n % (count // deaths) else store_and_die).delay(f"value {n}")) for n in range(count)]
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


@pytest.mark.skipif("SEGLOG_TORTURE" not in os.environ, reason="celery's pool takes 20 s and more: make torture")
@pytest.mark.skipif(sys.platform != "linux", reason="celery's pool forks, and locks say who holds them")
def test_processes_of_the_pool_die_and_every_task_that_was_done_is_stored(tmp_path):
    (tmp_path / "tasks.py").write_text(code() + DIES)
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
    try:
        wait_for(lambda: len(pool_of(tmp_path)) == 3, 120)
        before = pool_of(tmp_path)
        client = subprocess.run(
            [sys.executable, "-c", CLIENT, str(TASKS), str(DEATHS)], capture_output=True, text=True, check=False,
            **surroundings,
        )
        assert client.returncode == 0, client.stderr
        wait_for(lambda: len(pool_of(tmp_path)) == 3, 120)      # another one took its place
        assert pool_of(tmp_path) != before
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(120) == 0
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.wait()
    done = {}
    for line in client.stdout.splitlines():
        number, partition, offset = map(int, line.split())
        done[partition, offset] = b"value %d" % number
    assert len(done) == TASKS
    found = {}
    for path in (tmp_path / "data").glob("orders-*"):
        with seglog.open(path) as log:
            assert not log.recovery.lost
            assert not log.recovery.repairs         # SIGTERM closed it
            found |= {(log.partition, record.offset): record.value for record in log}
    assert {place: value for place, value in done.items() if found.get(place) != value} == {}
    values = list(found.values())
    assert len(values) == TASKS + DEATHS            # what died behind its append was done twice
    assert len(set(values)) == TASKS
