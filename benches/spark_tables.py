"""Spark's format "seglog" beside a source that only passes data on, Parquet and Spark's Kafka source; and the sink.

    python -m benches.spark_tables --bytes 1g           # ten minutes on an idle machine
    python -m benches.spark_tables --bytes 500m --only wall     # three minutes on an idle machine: wall time

Measured is the processor time of the driver, its JVM and all Python workers together, on one core, after a warm-up;
rounds are interleaved, and the median of each contender counts. The case "wall" measures wall time instead, and prints
how much of the machine other programs used meanwhile: on a busy machine its figures say nothing. `--kafka` adds Spark's
Kafka source on a real broker (4.1.1, from tests/oracle), which Spark fetches with Ivy:
PYTHONPATH=$(.ci/pyspark 4.2.0), the newest that has one.
"""
import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import seglog
import seglog.spark
from benches.runner import Bench, Goal
from benches.spark import Machine, cpu_of_tree_s
from benches.tables import cache_as_read, make_topic
from seglog.config import parse_bytes
from seglog.spark import convert_topics
from seglog.spark.row_schema import columns_of, conformed, schema_of
from seglog.spark.session import session
from seglog.spark.sink import write_rows
from seglog.spark.sink_options import SinkOptions
from seglog.spark.source_options import asked_columns

NOOP_AT_LEAST, COUNT_AT_LEAST, SINK_AT_LEAST, SMALL_AT_MOST_S = 0.95, 0.85, 0.7, 60.0
WALL_AT_LEAST = 0.9
RECORD_BYTES = 260          # roughly that of the topic of benches.tables
SMALL_PARTITIONS, SMALL_BYTES = 4000, 5000
WARM_ROUNDS = 3
BROKERS: set[int] = set()       # processes whose time is excluded
LOCAL = {"spark.driver.memory": "2g", "spark.ui.enabled": "true", "spark.sql.session.timeZone": "UTC"}


class NullSource(DataSource):
    """Passes on one prepared Arrow batch repeatedly: from `file`, `times` times, in each task."""

    @classmethod
    def name(cls) -> str:
        return "prepared"

    def schema(self) -> StructType:
        return schema_of(asked_columns({}))

    def reader(self, schema: StructType) -> DataSourceReader:
        return NullReader(self.options["file"], [int(n) for n in self.options["times"].split(",")])


class NullReader(DataSourceReader):
    def __init__(self, file: str, times: list[int]) -> None:
        self._file = file
        self._times = times

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(n) for n in self._times]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa

        with pa.memory_map(self._file) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
        for _ in range(partition.value):
            yield batch


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m benches.spark_tables", description=__doc__.splitlines()[0])
    arguments.add_argument("--bytes", type=parse_bytes, default=1 << 30, help="of the topic")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--only", default="", help="cases with this in their name")
    arguments.add_argument("--work", type=Path, help="a directory on the disk to measure")
    arguments.add_argument("--kafka", action="store_true", help="Spark's Kafka source, too")
    given = arguments.parse_args()
    bench = Bench(given.rounds, given.only)
    package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
    settings = {**LOCAL, **({"spark.jars.packages": package} if given.kafka else {})}
    with tempfile.TemporaryDirectory(dir=given.work) as work, session("local[1]", settings) as spark:
        spark.sparkContext.setLogLevel("OFF")
        seglog.spark.register(spark)
        spark.dataSource.register(NullSource)
        topic = Path(work, "topic")
        if any(map(bench.wanted, ("noop", "count", "wall", "5 % by time", "sink"))):
            make_topic(topic, given.bytes // RECORD_BYTES)
            cache_as_read(topic)
            run_reader(bench, spark, Path(work), topic, given.kafka)
            run_wall(bench, spark, Path(work), topic)
            run_window(bench, spark, topic)
            run_sink(bench, spark, Path(work), topic)
        if bench.wanted("4 000 small"):
            run_small(bench, spark, Path(work))


def read(spark: SparkSession, topic: Path, **options: str) -> DataFrame:
    return spark.read.format("seglog").options(**options).load(str(topic))


def null_source(spark: SparkSession, work: Path, topic: Path, tasks: int = 0) -> tuple[DataFrame, int]:
    """Prepared rows with the topic's schema and sizes, and how many there are. Uses as many tasks by default.

    The batch is the second one of our reader (the first may be short), in the form in which its worker passes it on.
    """
    batches = seglog.scan(topic, columns=columns_of(schema_of(asked_columns({})))).batches()
    next(batches)
    batch = conformed(pa.record_batch(next(batches)))
    batches.close()
    rows = seglog.scan(topic, columns=["partition"]).to_arrow().num_rows
    with pa.OSFile(str(work / "batch.arrow"), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    tasks = tasks or read(spark, topic).rdd.getNumPartitions()
    times = max(round(rows / batch.num_rows / tasks), 1)
    frame = spark.read.format("prepared").options(
        file=str(work / "batch.arrow"), times=",".join([str(times)] * tasks)
    ).load()
    return frame, times * tasks * batch.num_rows


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def run_reader(bench: Bench, spark: SparkSession, work: Path, topic: Path, with_kafka: bool) -> None:
    cases = [case for case in ("noop", "count") if bench.wanted(case)]
    if not cases:
        return
    ours = read(spark, topic)
    null, null_rows = null_source(spark, work, topic)
    rows = ours.count()
    seglog.write_table(topic, work / "parquet", compression="none")
    contenders = {"seglog": (ours, rows), "null": (null, null_rows),
                  "Parquet": (spark.read.parquet(str(work / "parquet")), rows)}
    assert contenders["Parquet"][0].count() == rows
    with broker_of(work, topic) if with_kafka else nullcontext("") as address:
        if address:
            kafka = spark.read.format("kafka").options(**{
                "kafka.bootstrap.servers": address, "subscribePattern": "orders",
            }).load()
            assert kafka.count() == rows
            contenders["Spark's Kafka source"] = kafka, rows
        for case, work_on in (("noop", noop), ("count", DataFrame.count)):
            if case in cases:
                costs = interleaved(bench, {
                    name: (partial(work_on, frame), count) for name, (frame, count) in contenders.items()
                })
                goal = NOOP_AT_LEAST if case == "noop" else COUNT_AT_LEAST
                bench.at_least(case, "x the null source", "seglog", costs["null"] / costs["seglog"], goal)
                for name in contenders:
                    report_rate(bench, case, name, "seglog", costs)


def report_rate(bench: Bench, case: str, name: str, peer: str, costs: dict[str, float]) -> None:
    bench.reported(case, "M rows a CPU s", name, 1 / costs[name] / 1e6, peer, 1 / costs[peer] / 1e6)


def run_wall(bench: Bench, spark: SparkSession, work: Path, topic: Path) -> None:
    """The reader beside the null source by wall time, for an idle machine."""
    if not bench.wanted("wall"):
        return
    ours = read(spark, topic)
    null, null_rows = null_source(spark, work, topic)
    rows = ours.count()
    for case, work_on in (("noop", noop), ("count", DataFrame.count)):
        machine, cpu_s, begin = Machine.now(), cpu_of_tree_s(), time.perf_counter()
        costs = interleaved(bench, {
            "seglog": (partial(work_on, ours), rows), "null": (partial(work_on, null), null_rows),
        }, time.perf_counter)
        wall_s, spent = time.perf_counter() - begin, Machine.now() - machine
        others_s = max(0.0, spent.busy_s - (cpu_of_tree_s() - cpu_s))
        print(f"  wall: in the {wall_s:.0f} s of {case}, other programs used {others_s:.1f} CPU s of"
              f" {wall_s * (os.cpu_count() or 1):.0f}, the hypervisor took {spent.stolen_s:.1f} s")
        bench.at_least("wall", "x the null source", f"seglog, {case}", costs["null"] / costs["seglog"], WALL_AT_LEAST)
        bench.reported(
            "wall", "M rows a s", f"seglog, {case}", 1 / costs["seglog"] / 1e6, "null source", 1 / costs["null"] / 1e6
        )


def cpu_without_brokers_s() -> float:
    return cpu_of_tree_s(BROKERS)


def interleaved(
    bench: Bench, contenders: dict[str, tuple[Callable[[], object], int]],
    clock: Callable[[], float] = cpu_without_brokers_s,
) -> dict[str, float]:
    """Seconds per row of each by `clock`: the median of the rounds, after those in which the JVM compiles."""
    costs: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(1 - WARM_ROUNDS, bench.repetitions + 1):
        for name, (work, rows) in contenders.items():
            before = clock()
            work()
            if number > 0:
                costs[name].append((clock() - before) / rows)
    return {name: statistics.median(found) for name, found in costs.items()}


def run_window(bench: Bench, spark: SparkSession, topic: Path) -> None:
    """The rows and bytes that workers pass to the JVM for a filter on 5 % of the time."""
    if not bench.wanted("5 % by time"):
        return
    times = seglog.scan(topic, columns=["timestamp"]).to_arrow()["timestamp"].cast(pa.int64()).to_numpy() // 1000
    first, last = int(times.min()), int(times.max())
    begin, end = first + (last - first) * 45 // 100, first + (last - first) * 50 // 100
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    where = f"timestamp >= timestamp_millis({begin}) and timestamp < timestamp_millis({end})"
    frames = {
        "all rows": read(spark, topic), "filtered, not pushed": read(spark, topic).where(where),
        "filtered, pushFilters": read(spark, topic, pushFilters="true").where(where),
        "startingTimestamp, endingTimestamp": read(
            spark, topic, startingTimestamp=str(begin), endingTimestamp=str(end)
        ),
    }
    found = {name: crossed(spark, frame) for name, frame in frames.items()}
    for name, (rows, size_bytes, cpu_s) in found.items():
        print(f"  5 % by time, {name:36} {rows:12,} rows {size_bytes / 1e6:10.1f} MB cross, {cpu_s:6.2f} CPU s")
    whole, pushed = found["filtered, not pushed"], found["filtered, pushFilters"]
    bench.reported("5 % by time", "rows crossed", "pushed", pushed[0], "not pushed", whole[0])
    bench.reported("5 % by time", "MB crossed", "pushed", pushed[1] / 1e6, "not pushed", whole[1] / 1e6)
    bench.reported("5 % by time", "CPU s", "pushed", pushed[2], "not pushed", whole[2])


def crossed(spark: SparkSession, frame: DataFrame) -> tuple[int, int, float]:
    """Rows and bytes that Python workers passed to the JVM, by Spark's own metrics; CPU seconds.

    The metric of bytes counts since a worker's start: there is only one worker, and the increase belongs to this run.
    """
    _, before_bytes = told_by_spark(spark, frame)
    before_s = cpu_of_tree_s()
    rows, size_bytes = told_by_spark(spark, frame)
    return rows, size_bytes - before_bytes, cpu_of_tree_s() - before_s


def told_by_spark(spark: SparkSession, frame: DataFrame) -> tuple[int, int]:
    """Run the query; returns the source's rows, and the bytes that Python workers have returned so far."""
    noop(frame)
    store = spark._jsparkSession.sharedState().statusStore()
    time.sleep(1)       # the listener lags behind
    execution = store.executionsList().last()
    values, rows, size_bytes = store.executionMetrics(execution.executionId()), 0, 0
    metrics = execution.metrics()
    for metric in (metrics.apply(slot) for slot in range(metrics.size())):
        value = values.get(metric.accumulatorId())
        if value.isDefined() and metric.name().startswith("number of output rows"):
            rows = max(rows, int(value.get().replace(",", "")))     # the source's; the filter above it gives fewer
        elif value.isDefined() and "returned from Python" in metric.name():
            size_bytes = bytes_in(value.get())
    return rows, size_bytes


def bytes_in(text: str) -> int:
    """The number of bytes in `12.5 MiB`, or in the total of Spark's `total (min, med, max ...)\\n12.5 MiB (...)`."""
    number, unit = text.splitlines()[-1].split(" ")[:2]
    return int(float(number) * 1024 ** ("B", "KiB", "MiB", "GiB").index(unit.strip("(),")))


def run_sink(bench: Bench, spark: SparkSession, work: Path, topic: Path) -> None:
    """The sink, minus the cost of its rows from the null source, beside appends of the same rows without Spark."""
    if not bench.wanted("sink"):
        return
    null, rows = null_source(spark, work, topic, tasks=1)      # one task writes a partition
    by_key = null.drop("partition")
    with pa.memory_map(str(work / "batch.arrow")) as source:
        batch = pa.ipc.open_file(source).get_batch(0).select(["key", "value", "timestamp"])
    target = work / "sunk"

    def sink(frame: DataFrame) -> None:
        frame.write.format("seglog").mode("append").option("numPartitions", "1").save(str(target))
        shutil.rmtree(target)

    def encode() -> None:
        with seglog.open(work / "encoded" / "orders-0", fsync="never") as log:
            for _ in range(rows // batch.num_rows):
                log.append_columns(batch)
        shutil.rmtree(work / "encoded")

    # The work of a sink's task alone, with the batches of 10 000 rows that Spark gives it.
    with pa.memory_map(str(work / "batch.arrow")) as source:
        whole = pa.ipc.open_file(source).get_batch(0)
    repeated = pa.Table.from_batches([whole] * max(rows // whole.num_rows, 1)).combine_chunks()
    given = repeated.select(["key", "value", "topic", "partition", "timestamp"]).to_batches(max_chunksize=10_000)
    options = SinkOptions.of({"path": str(target), "numPartitions": "1"})

    def task() -> None:
        write_rows(options, "bench", iter(given))
        shutil.rmtree(f"{target}.seglog-sink")

    def encode_given() -> None:
        with seglog.open(work / "encoded" / "orders-0", fsync="never") as log:
            for batch in given:
                log.append_columns(batch.select(["key", "value", "timestamp"]))
        shutil.rmtree(work / "encoded")

    bench.compare(
        "sink, a task of it", sum(batch.num_rows for batch in given), "rows/s",
        {"seglog": task, "encoder": encode_given}, {("seglog", "encoder"): Goal(must=SINK_AT_LEAST)},
    )
    costs = interleaved(bench, {
        "sink": (partial(sink, null), rows), "sink, by keys": (partial(sink, by_key), rows),
        "rows alone": (partial(noop, null), rows), "encoder": (encode, rows),
    })
    ratio = costs["encoder"] / (costs["sink"] - costs["rows alone"])
    bench.reported("sink", "x the encoder", "less its rows", ratio, "of the whole, with the JVM", 1.0)
    for name in costs:
        report_rate(bench, "sink", name, "encoder", costs)


def run_small(bench: Bench, spark: SparkSession, work: Path) -> None:
    """4 000 partitions of one segment of 5 KB, converted from v1 to v2."""
    old = work / "small"
    records = [(b"key-%d" % n, b"value %d " % n * 8, (), 1_700_000_000_000 + n) for n in range(50)]
    segment = seglog.build_batch(records, magic=1)[:]
    for n in range(SMALL_PARTITIONS):
        (old / f"t-{n}").mkdir(parents=True)
        (old / f"t-{n}/00000000000000000000.log").write_bytes(segment)
    cpu_s, wall_s = cpu_of_tree_s(), time.perf_counter()
    report = convert_topics(spark, old, work / "small-new")
    wall_s, cpu_s = time.perf_counter() - wall_s, cpu_of_tree_s() - cpu_s
    assert len(list((work / "small-new").glob("t-*/seglog-conversion.json"))) == SMALL_PARTITIONS, report
    print(f"  4 000 small: segments of {len(segment)} bytes, {cpu_s:.1f} CPU s, {wall_s:.1f} s")
    bench.limit("4 000 small", "s", "converted on one core", wall_s, SMALL_AT_MOST_S)


class broker_of:
    """A real broker that serves the topic; gives its address. Excludes its own processor time."""

    def __init__(self, work: Path, topic: Path) -> None:
        sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
        from support.kafka_oracle import KafkaOracle

        self._topic = topic
        self._serving = KafkaOracle("4.1.1").serving(work / "broker")

    def __enter__(self) -> str:
        broker = self._broker = self._serving.__enter__()
        BROKERS.add(broker._jvm.pid)
        broker.start()
        partitions = sorted(self._topic.glob("orders-*"))
        broker.create("orders", {}, partitions=len(partitions))
        broker.stop()
        for path in partitions:
            place = broker.log_dir / path.name
            kept = (place / "partition.metadata").read_bytes()
            shutil.rmtree(place)
            shutil.copytree(path, place)
            (place / "partition.metadata").write_bytes(kept)
        broker.start()
        host, port = broker.address
        return f"{host}:{port}"

    def __exit__(self, *stopped: Any) -> None:
        self._broker.stop()
        self._serving.__exit__(*stopped)


if __name__ == "__main__":
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    main()
