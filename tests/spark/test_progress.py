"""The progress of a conversion: with Connect, whose server reports on every query of the session, and by a tracker of
the JVM, which may go at any time."""
import threading
from types import SimpleNamespace

from seglog.spark.cluster import Cluster
from support.spark_double import SparkDouble


class Connected(SparkDouble):
    """A session whose server reports, after each task, on that job and on another query that runs meanwhile."""

    def __init__(self, tasks):
        super().__init__(self._run)
        self._tasks = tasks
        self._handlers = []

    def registerProgressHandler(self, handler):
        self._handlers.append(handler)

    def removeProgressHandler(self, handler):
        self._handlers.remove(handler)

    def _run(self, job, number, run):
        for tasks, completed in ((self._tasks, number + 1), (100, 40)):
            for handler in self._handlers:
                handler(
                    stages=[SimpleNamespace(num_tasks=tasks, num_completed_tasks=completed)], inflight_tasks=1,
                    operation_id="an operation", done=False,
                )
        for handler in self._handlers:
            handler(stages=None, inflight_tasks=0, operation_id="an operation that begins", done=False)
        return run()


def test_other_queries_of_the_session_are_not_counted():
    told, spark = [], Connected(tasks=3)
    Cluster(spark, told.append, None).run("convert", 3, lambda number, attempt: {}, sizes=(5, 3, 2))
    assert [(step.done, step.done_bytes) for step in told] == [(0, 0), (1, 5), (2, 8), (3, 10), (3, 10)]
    assert spark._handlers == []


class Gone:
    """The context of a session whose JVM goes while a job runs: each question of the watching thread fails."""

    defaultParallelism = 2

    def __init__(self):
        self.asked = threading.Semaphore(0)

    def accumulator(self, value, param):
        return SimpleNamespace(value=value, add=lambda more: None)

    def setJobGroup(self, *_, **__):
        pass

    setLocalProperty = setJobGroup

    def statusTracker(self):
        self.asked.release()
        raise OSError("Answer from Java side is empty")


def test_nothing_is_shown_of_a_jvm_that_goes_while_a_job_is_watched(monkeypatch, capsys):
    """A traceback stood beside "terminated"."""
    gone, told = Gone(), []

    def run(job, number, run):
        for _ in range(2):
            assert gone.asked.acquire(timeout=10)
        return run()

    spark = SparkDouble(run)
    monkeypatch.setattr("seglog.spark.cluster.context_of", lambda _: gone)
    Cluster(spark, told.append, None).run("convert", 1, lambda number, attempt: {})
    assert [step.done for step in told] == [0, 1]
    assert capsys.readouterr() == ("", "")
