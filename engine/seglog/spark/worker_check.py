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
from seglog.spark.start_errors import cause_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Usually enough for all cores of a cluster, and so for all workers; a task takes a few milliseconds.
_TASKS_MAX = 256


class WorkerPython(NamedTuple):
    """What a worker's Python says of itself. `seglog`, `pyarrow`: versions, or None; `problem`: why not."""

    host: str
    executable: str
    python: str
    seglog: str | None
    pyarrow: str | None
    problem: str | None


def check_workers(spark: "SparkSession") -> None:
    """Raises MissingLibraryError if a worker has no seglog or no pyarrow, UnsupportedVersionError if its seglog or its
    Python is another one."""
    try:
        said = _ask(spark)
    except Exception as error:      # pyspark has no class for it
        cause = cause_of(error, "")
        if "PYTHON_VERSION_MISMATCH" in str(error):
            raise UnsupportedVersionError(f"Spark's workers have another Python: {cause}", hint=_hint()) from None
        raise MissingLibraryError(f"Spark's workers cannot run Python functions: {cause}", hint=_hint()) from None
    refusal = refusal_of(WorkerPython(**json.loads(line)) for line in said)
    if refusal is not None:
        raise refusal


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
    context = getattr(spark, "sparkContext", None) if "connect" not in type(spark).__module__ else None
    # Functions of seglog would be pickled by their names, which a worker without seglog cannot look up.
    tell: Any = _by_value(_tell)
    if context is not None:
        count = min(max(context.defaultParallelism, 1), _TASKS_MAX)
        return list(context.parallelize(range(count), count).map(tell).collect())
    rows = spark.range(0, 2, 1, 2).mapInArrow(_by_value(_tell_in_arrow, tell=tell), "said string").collect()
    return [row.said for row in rows]


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

    said = {
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
    return json.dumps(said)


tell: Any = None        # given by _by_value


def _tell_in_arrow(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow

    for _ in batches:
        yield pyarrow.RecordBatch.from_pydict({"said": [tell(None)]})
