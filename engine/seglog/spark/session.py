"""A Spark session for the command line: the one of spark-submit, or a new one."""
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from seglog.errors import InvalidArgumentError, StorageError
from seglog.logger import Logger
from seglog.spark.cluster import context_of
from seglog.spark.java import INSTALL, JAVA_MIN, find_java
from seglog.spark.start_errors import cause_of, check_master, stderr_held

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = Logger(__name__)

LOCAL = "local[*, 4]"       # all cores; a task that dies is retried, as on a cluster

# Only errors on stderr. A user's own session keeps its logging.
_LOGGING = Path(__file__).with_name("log4j2.properties")
_QUIET = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
# A task that found a full disk is retried elsewhere.
_ALWAYS = {
    "spark.app.name": "seglog",
    "spark.excludeOnFailure.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}
# A session that lasts seconds needs no web page, and its heap holds only reports of tasks.
_LOCAL_ONLY = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": f"{_QUIET} -XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.excludeOnFailure.enabled": "false",     # there is no other machine
    "spark.ui.enabled": "false",
}


@contextmanager
def session(master: str | None = None, settings: dict[str, str] | None = None) -> "Iterator[SparkSession]":
    """A Spark session for `master` ("local[2]", "spark://host:7077", "yarn", "sc://host"), stopped at the end. If this
    process already has a session (a notebook), it is used as it is and not stopped; a warning names what is ignored.

    Without `master`: the session of spark-submit, else a local one on all cores. `settings` are Spark's own. Raises
    InvalidArgumentError without pyspark or Java, StorageError if Spark does not start.
    """
    if find_spec("pyspark") is None:
        raise InvalidArgumentError("pyspark is not installed", hint="pip install 'seglog[spark]'; see seglog doctor")
    from pyspark.sql import SparkSession

    asked = [*([f"master {master}"] if master else []), *(settings or {})]
    builder = SparkSession.builder
    if "PYSPARK_GATEWAY_PORT" not in os.environ:        # otherwise spark-submit started the JVM, and knows the master
        master = with_retries(master or LOCAL)
        check_master(master)
        if master.startswith("sc://"):
            builder = builder.remote(master)
        else:
            _check_java()
            builder = builder.master(master).config("spark.driver.extraJavaOptions", _QUIET)
        if master.startswith("local"):
            # Otherwise workers use the first python3 of the PATH.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            settings = {**_LOCAL_ONLY, **(settings or {})}
    for key, value in {**_ALWAYS, **(settings or {})}.items():
        builder = builder.config(key, value)
    existing = _existing()
    if existing is not None:
        if asked:
            _LOG.warning("using the existing Spark session of this process; ignored: %s", ", ".join(asked))
        yield existing
        return
    with stderr_held() as held:
        try:
            spark = builder.getOrCreate()
        except Exception as error:
            raise StorageError(
                f"Spark does not start: {cause_of(error, held.text())}",
                hint="correct --master or --conf; `seglog doctor` checks Java and PySpark",
            ) from None
    try:
        yield spark
    finally:
        spark.stop()


def _existing() -> "SparkSession | None":
    """This process's session, classic or Connect, from any thread; None if there is none or it was stopped."""
    from pyspark.sql import SparkSession

    try:
        found = SparkSession.active()       # or the default one, which all threads share
    except Exception:       # PySparkRuntimeError: there is no session
        return None
    context = context_of(found)
    return None if context is not None and context._jsc is None else found


def with_retries(master: str) -> str:
    """A local master with four attempts for each task, as on a cluster: Spark's own local[2] has one."""
    found = re.fullmatch(r"local(?:\[\s*(\d+|\*)\s*\])?", master)
    return f"local[{found[1] or 1}, 4]" if found else master


def _check_java() -> None:
    java = find_java()
    if java is None:
        raise InvalidArgumentError(f"Spark needs Java {JAVA_MIN} or newer, which was not found", hint=INSTALL)
    java.into(os.environ)
