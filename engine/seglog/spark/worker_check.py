"""Asks Spark's workers whether they can run seglog, before a query fails in one of them with a page of traceback."""
import json
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

from seglog._version import __version__
from seglog.errors import MissingLibraryError, SeglogError, UnsupportedVersionError
from seglog.named_tuple import NamedTuple
from seglog.spark.cluster import context_of
from seglog.spark.start_errors import cause_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Usually enough for all cores of a cluster, and so for all workers; a task takes a few milliseconds.
_TASKS_MAX = 256
# In errors that every task has on such a worker; others (an executor that died) pass.
_CANNOT_RUN = ("PYTHON_VERSION_MISMATCH", "Cannot run program", "Error from python worker")


class WorkerPython(NamedTuple):
    """What a worker's Python says of itself. `seglog`, `pyarrow`: versions, or None; `problem`: why not. `attempt`: how
    often the task that says so had failed before, in Spark's `stage`.
    """

    host: str
    executable: str
    python: str
    seglog: str | None
    pyarrow: str | None
    problem: str | None
    stage: int = 0
    attempt: int = 0


def check_workers(spark: "SparkSession") -> None:
    """Raises MissingLibraryError if a worker has no seglog or no pyarrow, UnsupportedVersionError if its seglog or its
    Python is another one."""
    try:
        workers = [WorkerPython(**json.loads(line)) for line in _ask(spark)]
    except Exception as error:      # pyspark has no class for it
        raise _refusal(str(error)) from None
    refusal = refusal_of(workers)
    if refusal is not None:
        raise refusal
    # Spark gave what such a worker failed at to another one.
    for stage in {worker.stage for worker in workers if worker.attempt}:
        for failure in _failures(spark, stage):
            if any(words in failure for words in _CANNOT_RUN):
                raise _refusal(failure)


def _refusal(said: str) -> SeglogError:
    """Of a worker that ran no function, from what Spark says of it."""
    cause = cause_of(Exception(said), "")
    if "PYTHON_VERSION_MISMATCH" in said:
        return UnsupportedVersionError(f"Spark's workers have another Python: {cause}", hint=_hint())
    return MissingLibraryError(f"Spark's workers cannot run Python functions: {cause}", hint=_hint())


def refusal_of(workers: Iterable[WorkerPython]) -> SeglogError | None:
    """What is wrong with the first worker that cannot run this seglog; None if all can."""
    for worker in workers:
        where = f"{worker.executable} (Python {worker.python}) on {worker.host}"
        if worker.seglog is None:
            return MissingLibraryError(
                f"Spark's workers cannot import seglog: {worker.problem}, in {where}", hint=_hint()
            )
        if worker.pyarrow is None:
            return MissingLibraryError(f"Spark's workers cannot import pyarrow, in {where}", hint=_hint())
        if worker.seglog != __version__:
            return UnsupportedVersionError(
                f"Spark's workers have seglog {worker.seglog}, this process has {__version__}: {where}", hint=_hint()
            )
    return None


def _hint() -> str:
    return (
        f"before the session starts, set PYSPARK_PYTHON={sys.executable} (or spark.pyspark.python); on other machines,"
        f" install seglog=={__version__} and pyarrow for Python {platform.python_version()}"
    )


def _ask(spark: "SparkSession") -> Sequence[str]:
    """A line of JSON from each task."""
    context = context_of(spark)
    # Functions of seglog would be pickled by their names, which a worker without seglog cannot look up.
    tell: Any = _by_value(_tell)
    if context is not None:
        count = min(max(context.defaultParallelism, 1), _TASKS_MAX)
        return list(context.parallelize(range(count), count).map(tell).collect())
    rows = spark.range(0, 2, 1, 2).mapInArrow(_by_value(_tell_in_arrow, tell=tell), "said string").collect()
    return [row.said for row in rows]


def _failures(spark: "SparkSession", stage: int) -> list[str]:
    """What Spark noted of the stage's tasks that failed; nothing with Connect, whose clients cannot ask."""
    context = context_of(spark)
    if context is None:
        return []
    jvm: Any = context._jsc.sc()        # PySpark has no call for it
    jvm.listenerBus().waitUntilEmpty()      # it is noted by events
    tasks = jvm.statusStore().taskList(stage, 0, 2 * _TASKS_MAX)
    errors = [tasks.apply(n).errorMessage() for n in range(tasks.size())]
    return [error.get() for error in errors if error.isDefined()]


def _by_value(function: Any, **names: Any) -> Any:
    """A function that pickle takes along as a whole: one of no module."""
    scope = {"__name__": "__main__", "__builtins__": __builtins__, **names}
    copy = FunctionType(function.__code__, scope, function.__name__)
    copy.__module__ = "__main__"
    return copy


def _tell(_: object) -> str:
    """(Runs where there may be no seglog: it knows nothing of this module.)"""
    import json
    import platform
    import socket
    import sys

    from pyspark import TaskContext

    said: dict[str, Any] = {
        "host": socket.gethostname(), "executable": sys.executable, "python": platform.python_version(),
        "seglog": None, "pyarrow": None, "problem": None,
    }
    try:
        import pyarrow  # type: ignore[import-untyped]

        said["pyarrow"] = pyarrow.__version__
    except ImportError:
        pass
    try:
        import seglog._kernels.crc
        import seglog._version

        said["seglog"] = seglog._version.__version__
    except Exception as error:
        said["problem"] = f"{type(error).__name__}: {error}"
    task = TaskContext.get()
    if task is not None:
        said |= {"stage": task.stageId(), "attempt": task.attemptNumber()}
    return json.dumps(said)


tell: Any = None        # given by _by_value


def _tell_in_arrow(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow

    for _ in batches:
        yield pyarrow.RecordBatch.from_pydict({"said": [tell(None)]})
