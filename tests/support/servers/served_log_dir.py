"""A topic of many formats in the log dir of a real Kafka 4.1.1 broker, to see whether the broker serves a copy of it.

Without a real Kafka the log dir is there all the same, and nothing is served.
"""
import shutil
from contextlib import ExitStack, contextmanager
from pathlib import Path

from support import kafka_oracle
from support.mixed_topic import write_mixed_topic

FIELDS = ("offset", "timestamp", "key", "value", "headers")
# A combined log dir: KRaft's own files belong to the broker, and a conversion leaves them alone.
KRAFT = ("__cluster_metadata-0", "bootstrap.checkpoint")


class ServedLogDir:
    """`log_dir` holds `partitions`, {directory name: MixedPartition}, at rest. `check` shows it, or what became of it,
    to the broker; the same JVM each time, for seconds are spent on its start.
    """

    def __init__(self, log_dir: Path, partitions, broker):
        self.log_dir = log_dir
        self.partitions = partitions
        self._broker = broker

    def check(self, log_dir: Path, names):
        """The broker starts on a copy of `log_dir` and serves the partitions of these names, every record."""
        if self._broker is None:
            return
        data = self._broker.log_dir
        shutil.rmtree(data)
        shutil.copytree(log_dir, data)
        for name in KRAFT:
            path = self.log_dir / name
            if path.is_dir():
                shutil.copytree(path, data / name, dirs_exist_ok=True)
            elif path.exists():
                shutil.copy2(path, data / name)
        self._broker.start()
        try:
            for name in sorted(names):
                made = self.partitions[name]
                for level, records in (("read_uncommitted", made.records), ("read_committed", made.committed)):
                    found = self._broker.consume(name, level).records
                    assert [{field: row.get(field) for field in FIELDS} for row in found] == records, (name, level)
        finally:
            self._broker.stop()
        for name in names:
            for log in (log_dir / name).glob("*.log"):
                assert (data / name / log.name).read_bytes() == log.read_bytes()
        # Nothing that the broker does not know, or does not want.
        assert {path.name for path in data.iterdir() if path.is_dir()} == {*self.partitions, KRAFT[0]}


@contextmanager
def served_log_dir(work: Path, topic: str, **shape):
    """A topic as write_mixed_topic makes it, in a log dir that a broker has left."""
    partitions = write_mixed_topic(work / "made", topic, **shape)
    with ExitStack() as closer:
        if kafka_oracle.lacking():
            yield ServedLogDir(work / "made", partitions, None)
            return
        broker = closer.enter_context(kafka_oracle.KafkaOracle("4.1.1").serving(work / "broker"))
        broker.start()
        broker.create(topic, {"retention.ms": -1}, partitions=len(partitions))
        broker.stop()
        log_dir = Path(shutil.copytree(broker.log_dir, work / "log-dir"))
        for name in partitions:
            for path in (log_dir / name).iterdir():
                if path.name != "partition.metadata":
                    path.unlink()
            shutil.copytree(work / "made" / name, log_dir / name, dirs_exist_ok=True)
        # What it says of its empty partitions is not so any more.
        for path in (log_dir / ".kafka_cleanshutdown", *log_dir.glob("*-checkpoint")):
            path.unlink(missing_ok=True)
        yield ServedLogDir(log_dir, partitions, broker)
