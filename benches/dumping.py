"""`seglog dump` and `seglog verify` beside kafka-dump-log, each as a process of its own, with the start of its
interpreter or JVM: the processor time of all its threads.

The JVM has the options of kafka-run-class.sh, not those of the oracle's tests. What is printed goes to /dev/null.
"""
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import seglog
from benches import data
from benches.java import JAVA
from benches.runner import Bench, Goal

BATCH_BYTES = 16384
# Kafka 4.1.1's own. java.sh names another collector before.
OPTIONS = (
    "-XX:-UseSerialGC", "-XX:+UseG1GC", "-XX:TieredStopAtLevel=4", "-Xmx256m", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
)
# As many as make 1 GB of 10^6 records.
SEGMENTS = 9


def run(bench: Bench, directory: Path, records: int, *, with_java: bool) -> None:
    if not bench.wanted("commands") or not with_java:
        return
    partition = directory / "commands-0"
    files = make_partition(partition, records)
    first, million = partial(seglog_command, "dump", partition, "--to-offset", records), records / 1e6
    bench.compare(
        "commands: dump as text", million, "M rec/s",
        {"seglog": first, "kafka-dump-log": kafka_dump_log(files[:1], "--print-data-log")},
        {("seglog", "kafka-dump-log"): Goal(5)}, clock=_children_s,
    )
    bench.compare(
        "commands: dump by template", million, "M rec/s",
        {
            "seglog": partial(first, "--format", "%o %T %k %s\\n"),
            "kafka-dump-log": kafka_dump_log(files[:1], "--print-data-log"),
        },
        {("seglog", "kafka-dump-log"): Goal(10)}, clock=_children_s,
    )
    bench.compare(
        "commands: verify", sum(file.stat().st_size for file in files) / 1e9, "GB/s",
        {"seglog": partial(seglog_command, "verify", partition), "kafka-dump-log": kafka_dump_log(files)},
        {("seglog", "kafka-dump-log"): Goal(5)}, clock=_children_s,
    )


def make_partition(partition: Path, records: int) -> list[Path]:
    """Write the same batches again and again, at the offsets that follow; return the segments, with their indexes."""
    partition.mkdir()
    segment = bytearray(data.segment(2, "none", BATCH_BYTES, records))
    files = []
    for n in range(SEGMENTS):
        file = partition / f"{n * records:020}.log"
        file.write_bytes(segment)
        files.append(file)
        at = 0
        while at < len(segment):        # the CRC does not cover the base offset
            offset = int.from_bytes(segment[at:at + 8], "big")
            segment[at:at + 8] = (offset + records).to_bytes(8, "big")
            at += 12 + int.from_bytes(segment[at + 8:at + 12], "big")
    seglog.open(partition, config={"segment.bytes": "1GiB"}).close()        # indexes them
    return files


def seglog_command(*words: object) -> None:
    _run([sys.executable, "-m", "seglog.tools", *map(str, words)])


def kafka_dump_log(files: list[Path], *options: str) -> Callable[[], None]:
    names = ",".join(map(str, files))
    return partial(_run, [str(JAVA), "4.1.1", *OPTIONS, "kafka.tools.DumpLogSegments", "--files", names, *options])


def _run(words: list[str]) -> None:
    subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
