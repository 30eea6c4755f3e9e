"""A Spark session of one process, for what a conversion asks of Spark: `range`, `mapInArrow`, `collect`.

Functions and results cross by pickle, as they do to an executor. `sabotage(job, number, run)` may run a task otherwise:
twice, not at all, or to its death; `jobs` counts what was run.
"""
import pickle
from types import SimpleNamespace

import pyarrow
from pyspark import cloudpickle


def plainly(job, number, run):
    return run()


class SparkDouble:
    """Like a client of Connect: it has no SparkContext."""

    def __init__(self, sabotage=plainly):
        self.sabotage = sabotage
        self.jobs = []
        self._numbers = []

    @property
    def sparkContext(self):
        raise AttributeError("no context")

    def range(self, start, end, step, numPartitions):
        assert (start, step, numPartitions) == (0, 1, end)
        frame = SparkDouble(self.sabotage)
        frame.jobs, frame._numbers = self.jobs, list(range(end))
        return frame

    def mapInArrow(self, function, schema):
        frame = SparkDouble(self.sabotage)
        frame.jobs, frame._numbers, frame._function = self.jobs, self._numbers, cloudpickle.dumps(function)
        return frame

    def collect(self):
        job = len(self.jobs)
        self.jobs.append(len(self._numbers))
        rows = []
        for number in self._numbers:
            def run(number=number):
                batch = pyarrow.RecordBatch.from_arrays([pyarrow.array([number])], ["id"])
                out = list(pickle.loads(self._function)(iter([batch])))
                return [report for made in out for report in made.column(0).to_pylist()]

            rows += [SimpleNamespace(report=report) for report in self.sabotage(job, number, run)]
        return rows
