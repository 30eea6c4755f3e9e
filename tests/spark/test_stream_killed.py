"""kill -9 of workers and drivers of a stream, again and again: each record is in the result once."""
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet
import pytest

import seglog
from support.processes import children
from support.spark_cluster import lacking
from support.waiting import wait_for

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(lacking() is not None, reason=str(lacking())),
]

# Epochs of 300 records each. A run that is killed takes part in up to five.
EPOCHS, KILLS = (20, 4) if os.environ.get("SEGLOG_TORTURE") else (6, 1)
RECORDS = EPOCHS * 300

QUERY = """
import sys
import seglog.spark
from seglog.spark.session import session

source, target, checkpoint, sink = sys.argv[1:]
with session("local[2]", {"spark.sql.shuffle.partitions": "2"}) as spark:
    seglog.spark.register(spark)
    rows = spark.readStream.format("seglog").option("startingOffsets", "earliest").option(
        "maxOffsetsPerTrigger", "300").load(source)
    rows = rows.repartition("topic", "partition").writeStream
    if sink == "foreachBatch":
        rows = rows.foreachBatch(lambda batch, number: batch.write.format("seglog").mode("append").option(
            "batchId", f"copy-{number}").save(target))
    else:
        rows = rows.format(sink)
    rows.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(
        None if sink == "foreachBatch" else target).awaitTermination()
"""


def is_worker(pid):
    try:
        return b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def start(arguments):
    return subprocess.Popen(
        [sys.executable, "-c", QUERY, *map(str, arguments)], stderr=subprocess.DEVNULL,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable}, start_new_session=True,
    )


def run_and_kill(arguments, begun, dice):
    """The query: a worker is killed in the first epoch that it begins, the driver in its third. `begun` counts them."""
    before = begun()
    with start(arguments) as process:
        def workers():
            return [pid for pid in children(process.pid) if is_worker(pid)]

        wait_for(lambda: begun() > before and workers(), 60)
        time.sleep(dice.uniform(0, 0.5))
        os.kill(workers()[-1], signal.SIGKILL)
        wait_for(lambda: begun() > before + 2, 60)
        time.sleep(dice.uniform(0, 0.5))
        for pid in [process.pid, *children(process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


def in_logs(target):
    for n in range(2):
        with seglog.open_partition(target / f"orders-{n}") as log:
            yield from (record.value for record in log.read())


def in_files(target):
    """Those that the file sink's journal names, as Spark reads them; a killed task leaves others."""
    named = {}
    batches = sorted((target / "_spark_metadata").glob("[0-9]*"), key=lambda path: int(path.name.partition(".")[0]))
    for path in batches:
        for line in path.read_text().splitlines()[1:]:      # "v1" first
            named[json.loads(line)["path"]] = None
    for url in named:
        yield from pyarrow.parquet.read_table(url.removeprefix("file://"))["value"].to_pylist()


@pytest.mark.parametrize(("sink", "found_in"), [("seglog", in_logs), ("foreachBatch", in_logs), ("parquet", in_files)])
def test_each_record_is_there_once(in_memory, sink, found_in):
    source, target, checkpoint = in_memory / "data", in_memory / "result", in_memory / "checkpoint"
    for n in range(2):
        with seglog.open(source / f"orders-{n}", fsync="never") as log:
            log.append_many([(b"%d" % n, b"%d-%d" % (n, m)) for m in range(RECORDS // 2)])
    arguments = source, target, checkpoint, sink
    dice = random.Random(20)
    for _ in range(KILLS):
        run_and_kill(arguments, lambda: len(list(checkpoint.glob("offsets/[0-9]*"))), dice)
    assert len(list(checkpoint.glob("commits/[0-9]*"))) < EPOCHS
    with start(arguments) as process:
        pass
    assert process.returncode == 0
    found = Counter(found_in(target))
    assert len(found) == RECORDS
    assert set(found.values()) == {1}
