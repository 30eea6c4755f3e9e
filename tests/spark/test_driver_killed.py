"""kill -9 of a real driver on a real cluster, in each phase: the target is old or new, partition by partition, a real
broker starts on it, and the next run ends the work. Every step in between is in test_convert_topics.py, by a double.
"""
import json
import shutil
import subprocess
import sys

import pytest

from seglog.conversion.directory import Options
from seglog.conversion.log_dir import convert_log_dir
from seglog.spark import convert_topics, finalize_topics
from support.conversion import UnsyncedFs, tree
from support.served_log_dir import served_log_dir
from support.spark_cluster import lacking
from support.spark_double import SparkDouble

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(lacking() is not None, reason=str(lacking())),
]

DRIVER = """
import glob, json, os, signal, sys, threading, time
from seglog.fs.files import OsFileSystem
from seglog.spark import convert_topics
from seglog.spark.session import session

old, new, phase, master, settings = sys.argv[1:]
renames = int(phase.split()[1]) if phase.startswith("rename") else -1

def die():
    os.kill(os.getpid(), signal.SIGKILL)

class Mortal(OsFileSystem):
    renamed = 0

    def replace(self, source, target):
        name = str(target).partition(".seglog-spark/")[2]
        if phase == "plan" and name.startswith("plan/"):
            die()
        # All have their names, the journal does not say so yet.
        if name == "journal.json" and renames == 4 == Mortal.renamed:
            die()
        super().replace(source, target)

    def rename(self, source, target):
        if "/staged/" in str(source):
            if Mortal.renamed == renames:
                die()
            Mortal.renamed += 1
        super().rename(source, target)

    def __reduce__(self):
        return OsFileSystem, ()

def progress(step):
    if step.what.startswith(phase):
        die()

def watch():
    while len(glob.glob(f"{new}.seglog-spark/done/*/*.log")) < 5:
        time.sleep(0.001)
    die()

if phase == "markers":
    threading.Thread(target=watch, daemon=True).start()
with session(master, json.loads(settings)) as spark:
    convert_topics(spark, old, new, topics=["orders"], task_bytes=4000, fs=Mortal(), progress=progress)
"""
PHASES = ["plan", "convert", "markers", "verify", "assemble", *(f"rename {n}" for n in range(5))]


# After these by a driver on the cluster, too; after the others in this process, which is sooner.
RESUMED_THERE = ("markers", "rename 2")


def run_driver(cluster, old, new, phase):
    """Its exit status."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, old, new, phase, cluster.url, json.dumps(cluster.settings())],
        capture_output=True, text=True, check=False, env=cluster.environment(),
    )
    assert done.returncode in (0, -9), done.stderr[-2000:]
    return done.returncode


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A topic in the log dir of a real broker that is down."""
    with served_log_dir(tmp_path_factory.mktemp("broker"), "orders", batches=3) as served:
        yield served


@pytest.fixture(scope="module")
def cli(served, tmp_path_factory):
    """What one machine makes of it."""
    target = tmp_path_factory.mktemp("cli") / "new"
    done = convert_log_dir(served.log_dir, target, Options(), topics=["orders"], fs=UnsyncedFs())
    assert {row.status for row in done} == {"converted"}
    return target


def files(log_dir):
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for path in sorted(log_dir.glob("*/*")) if path.suffix != ".json" and not path.name.startswith(".seglog")
    }


def test_a_broker_serves_the_source(served):
    served.check(served.log_dir, served.partitions)


@pytest.mark.parametrize("phase", PHASES)
def test_a_killed_driver_is_followed_by_another(served, cli, cluster, in_memory, phase):
    old, new, whole = served.log_dir, in_memory / "new", files(cli)
    before = tree(old)
    assert run_driver(cluster, old, new, phase) == -9
    left = shutil.copytree(new, in_memory / "left")
    # At once: tasks of the dead driver may still be at work. What they had finished is not done again.
    if phase in RESUMED_THERE:
        assert run_driver(cluster, old, new, "no phase") == 0
    report = convert_topics(SparkDouble(), old, new, topics=["orders"], task_bytes=4000, fs=UnsyncedFs())
    assert report.is_whole
    if PHASES.index(phase) >= PHASES.index("verify"):
        assert report.total.skipped == 48
    assert files(new) == whole
    finalize_topics(new, fs=UnsyncedFs())
    assert {path.name for path in in_memory.iterdir()} == {"new", "left"}
    assert {path.name for path in new.iterdir()} == {path.name for path in cli.iterdir()}
    # What the dead one left, and what it came to.
    published = {path.name for path in left.iterdir() if path.is_dir()}
    assert len(published) == (int(phase[-1]) if phase.startswith("rename") else 0)
    assert files(left) == {name: data for name, data in whole.items() if name.partition("/")[0] in published}
    served.check(left, published)
    served.check(new, served.partitions)
    assert tree(old) == before
