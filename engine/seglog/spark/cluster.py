"""Spark, as far as a conversion needs it: run numbered tasks, return what each says, show how far it is.

By `spark.range` and `mapInArrow`: what Spark 3.5, 4.x classic and Connect have in common. Nothing is shuffled, and a
task returns one line of JSON.
"""
import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from seglog.errors import StorageError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class JobStep:
    """How far a job of a conversion is: `done` of `tasks` have ended.

    `done_bytes` of the source's `size_bytes` are behind it: those of as many of the largest tasks, which Spark starts
    first. 0 where a job reads no segments. `failed`: partitions that cannot be converted, as they are found (not by
    Connect, which tells nothing before the end).
    """

    what: str
    done: int
    tasks: int
    done_bytes: int = 0
    size_bytes: int = 0
    failed: tuple[str, ...] = ()


Progress = Callable[[JobStep], None]
"""Told of each step: when a job begins, now and then, and when it has ended."""

Work = Callable[[int, int], dict[str, Any]]
"""One task: (its number, Spark's number of the attempt) -> a few lines for the driver. Runs on an executor."""

_POLL_S = 0.2
_NAMED = re.compile(r"(?!java|org\.|scala)[\w.]*(Error|Exception|Interrupt): ")
_LANES_OF_CONNECT = 8       # a client of Connect does not learn how many cores there are


class Cluster:
    """A Spark session, classic or of Connect. `max_concurrent` tasks of a conversion run at a time."""

    def __init__(self, spark: "SparkSession", progress: Progress | None, max_concurrent: int | None) -> None:
        self._spark = spark
        self._progress = progress
        self._max_concurrent = max_concurrent
        self._context = context_of(spark)

    @property
    def parallelism(self) -> int:
        """How many tasks may run at a time."""
        cores = _LANES_OF_CONNECT if self._context is None else self._context.defaultParallelism
        return cores if self._max_concurrent is None else min(cores, self._max_concurrent)

    def lanes(self, *, throttled: bool) -> int | None:
        """At most so many tasks are to be made; None: as many as there are.

        Who shares a rate, or a number of tasks that run at a time, must know with how many.
        """
        return self.parallelism if throttled or self._max_concurrent is not None else None

    def run(self, description: str, tasks: int, work: Work, sizes: Sequence[int] = ()) -> list[dict[str, Any]]:
        """What `work` returns for each number below `tasks`. Raises StorageError where Spark gives up.

        `sizes`: bytes of the source that each task reads.
        """
        if not tasks:
            return []
        failures = None if self._context is None else self._context.accumulator((), _Failures())   # type: ignore[arg-type]
        frame = self._spark.range(0, tasks, 1, tasks).mapInArrow(_in_arrow(work, failures), "report string")
        read_bytes = [0, *accumulate(sizes)] if sizes else [0] * (tasks + 1)

        def step(done: int) -> JobStep:
            failed = () if failures is None else tuple(failures.value)
            return JobStep(description, done, tasks, read_bytes[min(done, tasks)], read_bytes[tasks], failed)

        with self._shown(description, step, tasks):
            try:
                return [json.loads(row.report) for row in frame.collect()]
            except Exception as error:
                raise StorageError(
                    f"Spark gave up ({description}): {_last_words(error)}",
                    hint="fix the cause that it names, then run again: finished work is not repeated",
                ) from error

    @contextmanager
    def _shown(self, description: str, step: Callable[[int], JobStep], tasks: int) -> Iterator[None]:
        """Name the job on Spark's page, and tell the progress while it runs."""
        tell = self._progress or _nobody
        tell(step(0))
        with self._named(description, step) if self._context is not None else self._told(step):
            yield
        tell(step(tasks))

    @contextmanager
    def _told(self, step: Callable[[int], JobStep]) -> Iterator[None]:
        """By Connect: its client is told the progress by the server, since Spark 4.0."""
        session: Any = self._spark
        if self._progress is None or not hasattr(session, "registerProgressHandler"):
            yield
            return
        progress = self._progress

        def handler(stages: Any, **_: object) -> None:
            progress(step(sum(stage.num_completed_tasks for stage in stages or ())))

        session.registerProgressHandler(handler)
        try:
            yield
        finally:
            session.removeProgressHandler(handler)

    @contextmanager
    def _named(self, description: str, step: Callable[[int], JobStep]) -> Iterator[None]:
        context = self._context
        assert context is not None
        group = f"seglog-{id(self)}-{description}"
        context.setJobGroup(group, f"seglog: {description}", interruptOnCancel=True)
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(context, group, step, ended), daemon=True)
        watcher.start()
        try:
            yield
        except BaseException:
            context.cancelJobGroup(group)       # ^C: let no task go on for nobody
            raise
        finally:
            ended.set()
            watcher.join()
            context.setLocalProperty("spark.jobGroup.id", None)     # type: ignore[arg-type]
            context.setLocalProperty("spark.job.description", None)     # type: ignore[arg-type]

    def _watch(
        self, context: "SparkContext", group: str, step: Callable[[int], JobStep], ended: threading.Event
    ) -> None:
        if self._progress is None:
            return
        tracker = context.statusTracker()
        before = 0
        while not ended.wait(_POLL_S):
            stages = [
                stage
                for job in map(tracker.getJobInfo, tracker.getJobIdsForGroup(group)) if job is not None
                for stage in map(tracker.getStageInfo, job.stageIds) if stage is not None
            ]
            completed = sum(stage.numCompletedTasks for stage in stages)
            if completed != before:
                self._progress(step(completed))
                before = completed


def _nobody(step: JobStep) -> None:
    """Nobody wants to know."""


class _Failures:
    """How names of partitions that failed come together at the driver while the job runs: each once."""

    def zero(self, value: tuple[str, ...]) -> tuple[str, ...]:
        return ()

    def addInPlace(self, value: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*value, *more)))


def _in_arrow(work: Work, failures: Any = None) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function of mapInArrow: takes the numbers of tasks, gives their reports; both as pyarrow.RecordBatch.

    `failures`: an accumulator for the partitions that failed.
    """

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow  # type: ignore[import-untyped]
        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = 0 if context is None else context.attemptNumber()
        for batch in batches:
            reports = [work(number, attempt) for number in batch.column(0).to_pylist()]
            if failures is not None:
                failures.add(tuple(
                    failure["partition"] for report in reports
                    for failure in (*report.get("failures", ()), *report.get("failed", ()))
                ))
            lines = [json.dumps(report) for report in reports]
            yield pyarrow.RecordBatch.from_arrays([pyarrow.array(lines, pyarrow.string())], ["report"])

    return run


def context_of(spark: "SparkSession") -> "SparkContext | None":
    """None for a client of Connect, which has none."""
    try:
        return spark.sparkContext
    except Exception:       # PySparkAttributeError in 3.5, JVM_ATTRIBUTE_NOT_SUPPORTED in 4
        return None


def _last_words(error: Exception) -> str:
    """Of a remote traceback the line that says what happened: the last error of Python in it, else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if _NAMED.match(line)]
    ours = [line for line in named if line.startswith("seglog.errors.")]
    return [*(lines[:1] or [type(error).__name__]), *named, *ours][-1]
