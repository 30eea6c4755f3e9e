"""What befalls tasks of the sink on a real cluster, in the middle of their work: either another attempt gives the same
records, or the job fails, says why, leaves the log dir as it was, and the same job again adds what is missing.
"""
import os

import pytest

import seglog
from seglog.spark import register
from seglog.spark.session import session
from support.spark_cluster import ADDRESSES, lacking

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(lacking() is not None, reason=str(lacking())),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PARTITIONS, ROWS = 6, 100

# The file says what befalls a task when it makes the directory of a partition, and at which address ("" for all).
FAULTS = """
import os, resource, signal, time
from seglog.fs.files import OsFileSystem

mkdir = OsFileSystem.mkdir
def struck(self, path):
    if ".seglog-sink/" in os.fspath(path):
        try:
            with open({fault!r}) as file:
                kind, address = file.read().split(",")
            if kind.startswith("kill") and os.path.basename(path) == "orders-5":
                os.unlink({fault!r})        # once
                strike(kind)
            elif not kind.startswith("kill") and address in ("", os.environ.get("SPARK_LOCAL_IP")):
                strike(kind)
        except FileNotFoundError:
            pass
    mkdir(self, path)
OsFileSystem.mkdir = struck

def strike(kind):
    if kind == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))       # the system refuses, in the middle of a file
    elif kind == "rights":
        os.seteuid(65534)
    else:
        with open(f"/proc/{{os.getppid()}}/stat") as stat:      # of the daemon, whose parent is the executor
            executor = int(stat.read().rpartition(")")[2].split()[1])
        os.kill(executor if kind == "kill executor" else os.getpid(), signal.SIGKILL)
        time.sleep(60)
"""


@pytest.fixture(scope="module")
def fault(tmp_path_factory):
    """The file; `sitecustomize` beside it reads it."""
    place = tmp_path_factory.mktemp("faults")
    (place / "sitecustomize.py").write_text(FAULTS.format(fault=str(place / "fault")))
    return place / "fault"


@pytest.fixture(scope="module")
def spark(cluster, fault):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.environment().items():
            patch.setenv(name, value)
        settings = cluster.settings(**{
            "spark.log.level": "OFF", "spark.executorEnv.PYTHONPATH": str(fault.parent),
            "spark.python.worker.reuse": "false",       # no task in a process that was struck
            # Once no worker is left: by default Spark waits two minutes for another one.
            "spark.scheduler.excludeOnFailure.unschedulableTaskSetTimeout": "1s",
        })
        with session(cluster.url, settings) as spark:
            register(spark)
            yield spark


@pytest.fixture
def log_dir(in_memory, fault):
    """One that has some of the partitions."""
    for n in range(0, PARTITIONS, 2):
        with seglog.open(in_memory / f"data/orders-{n}", fsync="never") as log:
            log.append(b"before")
    yield in_memory / "data"
    fault.unlink(missing_ok=True)


def write(spark, log_dir):
    rows = spark.range(PARTITIONS * ROWS).selectExpr(
        "'orders' as topic", f"cast(id % {PARTITIONS} as int) as partition", "cast(id as string) as value")
    rows = rows.repartition(2, "topic", "partition").sortWithinPartitions("partition", "value")
    rows.write.format("seglog").mode("append").save(str(log_dir))


def values(log_dir):
    found = {}
    for path in sorted(log_dir.iterdir()):
        if path.is_dir():
            with seglog.open_partition(path) as log:
                found[path.name] = [record.value for record in log.read()]
    return found


def check_added(log_dir):
    expected = {
        f"orders-{n}": [b"before"] * (n % 2 == 0) + sorted(b"%d" % m for m in range(n, PARTITIONS * ROWS, PARTITIONS))
        for n in range(PARTITIONS)
    }
    assert values(log_dir) == expected
    assert {path.name for path in log_dir.with_name("data.seglog-sink").iterdir()} == {"lock", "journal.json"}


@pytest.mark.parametrize("what", ["kill worker,", "kill executor,", f"full,{ADDRESSES[1]}", f"rights,{ADDRESSES[1]}"])
def test_another_attempt_gives_the_same_records(spark, fault, log_dir, what):
    skip_without_rights(what)
    fault.write_text(what)
    write(spark, log_dir)
    if what.startswith("kill"):
        assert not fault.exists()
    check_added(log_dir)


@pytest.mark.parametrize(("what", "words"), [
    ("full,", "cannot write: the file would be larger"), ("rights,", "permission denied"),
])
def test_what_befalls_all_workers_is_said_and_changes_nothing(spark, fault, log_dir, what, words):
    skip_without_rights(what)
    before = values(log_dir)
    fault.write_text(what)
    with pytest.raises(Exception, match=r"seglog\.errors\.") as caught:
        write(spark, log_dir)
    said = str(caught.value)
    cause = next(line for line in said.splitlines() if line.startswith("seglog.errors."))
    assert words in cause.lower(), cause
    assert ".seglog-sink" in cause
    assert values(log_dir) == before
    assert {path.name for path in log_dir.with_name("data.seglog-sink").iterdir()} <= {"lock", "journal.json"}
    fault.unlink()
    write(spark, log_dir)
    check_added(log_dir)


def skip_without_rights(what):
    if what.startswith("rights") and os.geteuid():
        pytest.skip("only root can give up rights")
