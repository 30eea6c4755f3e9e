"""kill -9 of a driver, its JVM and its workers, while tasks write or the driver commits a batch; then the job again."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

import seglog
from seglog.spark import complete_commit, drop_commit, unfinished_commit
from support.processes import kill_all
from support.spark_session import HAS_JAVA
from support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.skipif(not HAS_JAVA, reason="no Java")]

PARTITIONS, ROWS = 12, 200

# Directories of tasks and renames of the commit are slow, so that there is time to kill it.
SLOW = """
import time
from seglog.fs.files import OsFileSystem

mkdir, rename = OsFileSystem.mkdir, OsFileSystem.rename
def slowly(self, path):
    mkdir(self, path)
    if ".seglog-sink/" in str(path):
        time.sleep(0.2)
OsFileSystem.mkdir = slowly

def slow(self, source, target):
    rename(self, source, target)
    if ".seglog-sink" in str(source):
        time.sleep(0.2)
OsFileSystem.rename = slow
"""

JOB = """
import sys
import seglog.spark
from seglog.spark.session import session

target, mode, partitions, rows, *options = sys.argv[1:]
with session("local[2]", {"spark.ui.enabled": "false"}) as spark:
    seglog.spark.register(spark)
    found = spark.range(int(partitions) * int(rows)).selectExpr(
        "'orders' as topic", f"cast(id % {partitions} as int) as partition", "cast(id as string) as value")
    found = found.repartition(2, "topic", "partition").write.format("seglog").mode(mode)
    found.options(**dict(option.split("=") for option in options)).save(target)
"""


@pytest.fixture
def place(in_memory):
    (in_memory / "slow").mkdir()
    (in_memory / "slow/sitecustomize.py").write_text(SLOW)
    return in_memory


def start(place, mode, *options, is_slow=False):
    path = [str(place / "slow")] * is_slow + [entry for entry in sys.path if entry]
    return subprocess.Popen(
        [sys.executable, "-c", JOB, place / "data", mode, str(PARTITIONS), str(ROWS), *options],
        stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(path)},
    )


def killed_when(place, mode, options, is_time):
    """Run the job, and kill all its processes as soon as it is time."""
    with start(place, mode, *options, is_slow=True) as process:
        wait_for(lambda: is_time() or process.poll() is not None, 90)
        assert process.poll() is None, process.stderr.read()[-2000:]
        kill_all(process.pid)


def killed_in_commit(place, mode, *options):
    """Kill it as soon as a few partitions have their names."""
    log_dir, home = place / "data", Path(f"{place / 'data'}.seglog-sink")

    def moved():
        if mode == "overwrite":
            return len(list(home.glob("batch-*/*.replaced"))) > 2
        return len(list(log_dir.glob("orders-*"))) > 2

    killed_when(place, mode, options, moved)
    assert unfinished_commit(log_dir) is not None


def run(place, mode, *options):
    """Returns what the driver said if it failed."""
    process = start(place, mode, *options)
    _, told = process.communicate(timeout=120)
    return told if process.returncode else ""


def counts(place):
    found = {}
    for directory in (place / "data").glob("orders-*"):
        with seglog.open_partition(directory) as log:
            found[int(directory.name[7:])] = sum(1 for _ in log.read())
    return [found.get(n, 0) for n in range(PARTITIONS)]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_tasks_that_are_killed_change_nothing_and_the_same_job_again_gives_each_record_once(place, mode):
    assert run(place, "append") == ""
    staged = Path(f"{place / 'data'}.seglog-sink")
    killed_when(place, mode, (), lambda: len(list(staged.glob("batch-*/*/orders-*"))) > 2)
    assert unfinished_commit(place / "data") is None
    assert counts(place) == [ROWS] * PARTITIONS
    assert run(place, mode) == ""
    assert counts(place) == [(2 if mode == "append" else 1) * ROWS] * PARTITIONS


def test_the_same_job_again_is_refused_until_its_first_run_is_completed_or_dropped(place):
    """Without ids: every record was there twice."""
    killed_in_commit(place, "append")
    told = run(place, "append")
    assert "the commit of 12 partitions into this log dir is unfinished" in told
    assert f"seglog spark sink {place / 'data'} --complete" in told
    assert len(complete_commit(place / "data")) == PARTITIONS
    assert counts(place) == [ROWS] * PARTITIONS
    killed_in_commit(place, "overwrite")
    assert len(drop_commit(place / "data")) == PARTITIONS
    assert counts(place) == [ROWS] * PARTITIONS
    assert run(place, "append") == ""
    assert counts(place) == [2 * ROWS] * PARTITIONS


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_the_same_job_again_gives_each_record_once_if_its_batch_has_an_id(place, mode):
    if mode == "overwrite":
        assert run(place, "append") == ""
    killed_in_commit(place, mode, "batchId=b-1")
    for _ in range(2):
        assert run(place, mode, "batchId=b-1") == ""
        assert counts(place) == [ROWS] * PARTITIONS
