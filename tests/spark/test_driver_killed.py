"""kill -9 of a real driver in each phase: the target is old or new, partition by partition, a broker starts on it, and
the next run ends the work. Every step in between is in test_convert_topics.py, by a double.
"""
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seglog.spark import convert_topics, finalize_topics
from seglog.upkeep.directory_conversion import Options
from seglog.upkeep.log_dir_conversion import convert_log_dir
from support import kafka_oracle
from support.mixed_topic import write_mixed_topic
from support.spark_cluster import lacking
from support.spark_double import SparkDouble

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(lacking() is not None, reason=str(lacking())),
]

DRIVER = """
import glob, os, signal, sys, threading, time
from seglog.fs.files import OsFileSystem
from seglog.spark import convert_topics
from seglog.spark.session import session

old, new, phase = sys.argv[1:4]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

class Mortal(OsFileSystem):
    left = int(phase.partition(" ")[2] or 0)

    def replace(self, source, target):
        if phase == "plan" and "/plan/" in str(target):
            die()
        super().replace(source, target)

    def rename(self, source, target):
        if phase.startswith("rename"):
            if Mortal.left == 0:
                die()
            Mortal.left -= 1
        super().rename(source, target)

    def __reduce__(self):
        return OsFileSystem, ()

def progress(what, done, tasks):
    if what.startswith(phase):
        die()

def watch():
    while len(glob.glob(f"{new}.seglog-spark/done/*/*.log")) < 5:
        time.sleep(0.01)
    die()

if phase == "markers":
    threading.Thread(target=watch, daemon=True).start()
with session("local[2]") as spark:
    convert_topics(spark, old, new, task_bytes=4000, fs=Mortal(), progress=progress)
"""
PHASES = ["plan", "convert", "markers", "verify", "assemble", "rename 0", "rename 1", "rename 2", "rename 3"]


@pytest.fixture(scope="module")
def topic(tmp_path_factory):
    work = tmp_path_factory.mktemp("topic")
    write_mixed_topic(work / "old", "orders", batches=3)
    assert all(row.status == "converted" for row in convert_log_dir(work / "old", work / "cli", Options()))
    return work / "old", work / "cli"


def files(log_dir):
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for path in sorted(log_dir.glob("*/*")) if path.suffix != ".json" and not path.name.startswith(".seglog")
    }


@pytest.mark.parametrize("phase", PHASES)
def test_a_killed_driver_is_followed_by_another(topic, tmp_path, phase):
    old, cli = topic
    new, whole = tmp_path / "new", files(cli)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, old, new, phase], capture_output=True, text=True, check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == -9, done.stderr[-2000:]
    names = {path.name for path in new.iterdir() if path.is_dir()}
    assert files(new) == {name: data for name, data in whole.items() if name.partition("/")[0] in names}
    assert len(names) == (int(phase[-1]) if phase.startswith("rename") else 0)
    if phase in ("rename 1", "rename 3"):
        serve(new, names, tmp_path / "broker")
    # What the dead one had finished is not done again.
    report = convert_topics(SparkDouble(), old, new, task_bytes=4000)
    assert report.is_whole
    if phase in ("verify", "assemble"):
        assert report.total.skipped == 48
    assert files(new) == whole
    finalize_topics(new)
    assert {path.name for path in tmp_path.iterdir()} <= {"new", "broker"}


def serve(new: Path, names, work):
    """A broker starts on the log dir as the dead driver left it."""
    if kafka_oracle.lacking():
        return
    boot = kafka_oracle.KafkaOracle("4.1.1").boot([new / name for name in sorted(names)], work)
    assert boot.summary["consume_errors"] == 0
    assert all(boot.partitions[name]["log_bytes_unchanged"] for name in names)
