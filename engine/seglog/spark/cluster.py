"""What a conversion needs of Spark: run numbered tasks, return their reports, show the progress.

It uses only `spark.range` and `mapInArrow`, which Spark 3.5, 4.x classic and Connect have in common. Nothing is
shuffled, and a task returns one line of JSON.
"""
import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from seglog._kernels.write_gate import Bell
from seglog.errors import StorageError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class JobStep:
    """The progress of a conversion's job: `done` of `tasks` have ended.

    `done_bytes` of the source's `size_bytes` are processed, an estimate: the bytes of the `done` largest tasks, which
    Spark starts first. 0 if a job reads no segments. `failed`: partitions that cannot be converted, as they are found
    (not with Connect, which reports nothing before the end). In a conversion of several waves, `published` of
    `partitions` are in the target; otherwise both are 0.
    """

    what: str
    done: int
    tasks: int
    done_bytes: int = 0
    size_bytes: int = 0
    failed: tuple[str, ...] = ()
    published: int = 0
    partitions: int = 0


Progress = Callable[[JobStep], None]
"""Called when a job begins, from time to time while it runs, and when it has ended."""

Work = Callable[[int, int], dict[str, Any]]
"""One task: (its number, Spark's number of the attempt) -> a small report for the driver. Runs on an executor."""

_POLL_S = 0.2
_NAMED = re.compile(r"(?!java|org\.|scala)[\w.]*(Error|Exception|Interrupt): ")
_LANES_OF_CONNECT = 8       # a Connect client cannot find out the number of cores


class Cluster:
    """A Spark session, classic or Connect. At most `max_concurrent` tasks of a conversion run at a time."""

    def __init__(self, spark: "SparkSession", progress: Progress | None, max_concurrent: int | None) -> None:
        self._spark = spark
        self._progress = progress
        self._max_concurrent = max_concurrent
        self._context = context_of(spark)
        self._published = (0, 0)

    @property
    def parallelism(self) -> int:
        """How many tasks may run at a time."""
        cores = _LANES_OF_CONNECT if self._context is None else self._context.defaultParallelism
        return cores if self._max_concurrent is None else min(cores, self._max_concurrent)

    def lanes(self, *, throttled: bool) -> int | None:
        """The largest number of tasks to create, or None for no limit.

        If tasks share a rate, or only a few may run at a time, each must know with how many it shares.
        """
        return self.parallelism if throttled or self._max_concurrent is not None else None

    def run(self, description: str, tasks: int, work: Work, sizes: Sequence[int] = ()) -> list[dict[str, Any]]:
        """Run `work` for each number below `tasks`, and return the reports. Raises StorageError if Spark gives up.

        `sizes`: the bytes of the source that each task reads.
        """
        if not tasks:
            return []
        failures = None if self._context is None else self._context.accumulator((), _Failures())   # type: ignore[arg-type]
        frame = self._spark.range(0, tasks, 1, tasks).mapInArrow(_in_arrow(work, failures), "report string")
        read_bytes = [0, *accumulate(sizes)] if sizes else [0] * (tasks + 1)

        def step(done: int) -> JobStep:
            failed = () if failures is None else tuple(failures.value)
            return JobStep(
                description, done, tasks, read_bytes[min(done, tasks)], read_bytes[tasks], failed, *self._published
            )

        with self._shown(description, step, tasks):
            try:
                return [json.loads(row.report) for row in frame.collect()]
            except Exception as error:
                raise StorageError(
                    f"Spark gave up ({description}): {_last_words(error)}",
                    hint="fix the cause that it names, then run again: finished work is not repeated",
                ) from error

    def published(self, words: str, partitions: int, planned: int) -> None:
        """Report that so many of the `planned` partitions are in the target, now and with every later step."""
        self._published = partitions, planned
        (self._progress or _nobody)(JobStep(words, 1, 1, published=partitions, partitions=planned))

    @contextmanager
    def _shown(self, description: str, step: Callable[[int], JobStep], tasks: int) -> Iterator[None]:
        """Name the job on Spark's web page, and report the progress while it runs."""
        tell = self._progress or _nobody
        tell(step(0))
        with self._named(description, step) if self._context is not None else self._told(step, tasks):
            yield
        tell(step(tasks))

    @contextmanager
    def _told(self, step: Callable[[int], JobStep], tasks: int) -> Iterator[None]:
        """Report the progress with Connect: since Spark 4.0 the server sends it to the client.

        It sends that of every query of the session, without a name: those with another number of tasks are not ours.
        """
        session: Any = self._spark
        if self._progress is None or not hasattr(session, "registerProgressHandler"):
            yield
            return
        progress = self._progress

        def handler(stages: Any, **_: object) -> None:
            if sum(stage.num_tasks for stage in stages or ()) == tasks:
                progress(step(sum(stage.num_completed_tasks for stage in stages)))

        session.registerProgressHandler(handler)
        try:
            yield
        finally:
            session.removeProgressHandler(handler)

    @contextmanager
    def _named(self, description: str, step: Callable[[int], JobStep]) -> Iterator[None]:
        context = self._context
        assert context is not None
        # A name that no other job has: Spark keeps earlier jobs of a group, and an id() may be given again.
        group = f"seglog-{uuid4().hex}"
        context.setJobGroup(group, f"seglog: {description}", interruptOnCancel=True)
        ended = Bell()
        watcher = threading.Thread(target=self._watch, args=(context, group, step, ended), daemon=True)
        watcher.start()
        try:
            yield
        except BaseException:
            context.cancelJobGroup(group)       # ^C: stop the tasks, whose results are no longer needed
            raise
        finally:
            ended.ring()
            watcher.join()
            context.setLocalProperty("spark.jobGroup.id", None)     # type: ignore[arg-type]
            context.setLocalProperty("spark.job.description", None)     # type: ignore[arg-type]

    def _watch(
        self, context: "SparkContext", group: str, step: Callable[[int], JobStep], ended: Bell
    ) -> None:
        if self._progress is None:
            return
        before = 0
        while not ended.wait(_POLL_S):
            try:
                completed = _completed(context, group)
            except Exception:       # of py4j or a socket, while the JVM goes: the job itself says so, if it goes on
                continue
            if completed != before:
                self._progress(step(completed))
                before = completed


def _completed(context: "SparkContext", group: str) -> int:
    """How many tasks of the group's jobs have ended."""
    tracker = context.statusTracker()
    return sum(
        stage.numCompletedTasks
        for job in map(tracker.getJobInfo, tracker.getJobIdsForGroup(group)) if job is not None
        for stage in map(tracker.getStageInfo, job.stageIds) if stage is not None
    )


def _nobody(step: JobStep) -> None:
    """The Progress that ignores every step."""


class _Failures:
    """Collects the names of failed partitions at the driver while the job runs, each once."""

    def zero(self, value: tuple[str, ...]) -> tuple[str, ...]:
        return ()

    def addInPlace(self, value: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*value, *more)))


def _in_arrow(work: Work, failures: Any = None) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for mapInArrow: takes the numbers of tasks, yields their reports; both as pyarrow.RecordBatch.

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
    """The session's SparkContext; None for a Connect client, which has none."""
    try:
        return spark.sparkContext
    except Exception:       # PySparkAttributeError in 3.5, JVM_ATTRIBUTE_NOT_SUPPORTED in 4
        return None


def _last_words(error: Exception) -> str:
    """The line of a remote traceback that says what happened: the last Python error in it, else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if _NAMED.match(line)]
    ours = [line for line in named if line.startswith("seglog.errors.")]
    return [*(lines[:1] or [type(error).__name__]), *named, *ours][-1]
