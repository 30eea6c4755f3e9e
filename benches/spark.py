"""What Spark costs: the processor time of a conversion with and without it, and the gain of a second core.

    python -m benches.spark --bytes 4g      # a quarter of an hour, and the same space again in --work

Processor time is that of the driver, its JVM and all Python workers, after the session's start and a warm-up. Wall time
is printed as well; it measures the second core, which needs an idle machine, so each line shows how much of it others
used meanwhile. The gain of two processes without Spark is the upper limit. `--work /dev/shm` excludes the disk.
"""
import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from benches import data
from benches.runner import Bench
from seglog.config import parse_bytes
from seglog.conversion.directory import Options
from seglog.conversion.log_dir import convert_log_dir
from seglog.spark import convert_topics
from seglog.spark.session import session

BATCH_BYTES = 16384
SEGMENT_RECORDS = {"none": 1_000_000, "lz4": 1_000_000, "gzip": 400_000}
CASES = {"v1 none to v2": ("none", None), "v1 lz4 to v2": ("lz4", None), "v1 gzip to v2 zstd": ("gzip", "zstd")}
JOB_AT_MOST, SECOND_CORE_AT_LEAST, RESUME_AT_MOST_S = 1.3, 1.7, 2.0
# Equal tasks, the same for both cores: 2.5 s each for 4 GB without compression, longer with it.
TASKS = 8
DISK_BYTES = 1 << 30


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m benches.spark", description=__doc__.splitlines()[0])
    arguments.add_argument("--bytes", type=parse_bytes, default=4 << 30, help="of source for each case")
    arguments.add_argument("--only", default="", help="cases with this in their name")
    arguments.add_argument("--work", type=Path, help="a directory on the disk to measure")
    given = arguments.parse_args()
    bench = Bench(1, given.only)
    with tempfile.TemporaryDirectory(dir=given.work) as work:
        for case, (codec, to_codec) in CASES.items():
            if bench.wanted(case):
                run(bench, case, Path(work), codec, to_codec, given.bytes)


def run(bench: Bench, case: str, work: Path, codec: str, to_codec: str | None, size_bytes: int) -> None:
    old = work / "old"
    total = write_log_dir(old, codec, size_bytes)
    print(f"\n{case}: {total / 1e9:.2f} GB in {len(list(old.iterdir()))} segments")
    alone = measured("without Spark", lambda: alone_of(old, work / "alone", to_codec))
    two_alone = measured("two of them, half each", lambda: halves_of(old, work, to_codec))
    by_cores, bytes_out = {}, 0
    for cores in (1, 2):
        with session(f"local[{cores}]") as spark:
            new, warm = work / f"new{cores}", work / "warm"
            # Starts the workers, imports their modules, warms the JVM.
            convert_topics(spark, old, warm, topics=["t-0", "t-1"], codec=to_codec)
            job = partial(convert_topics, spark, old, new, codec=to_codec, task_bytes=total // TASKS)
            by_cores[cores] = measured(f"local[{cores}]", job)
            again = measured("once more, all done", job)
            bytes_out = sum(path.stat().st_size for path in new.glob("*/*.log"))
            assert len(list(new.glob("*/seglog-conversion.json"))) == len(list(old.iterdir()))
            for path in (new, warm):
                shutil.rmtree(path)
                shutil.rmtree(f"{path}.seglog-spark")
    bench.limit(case, "x CPU", "job on one core", by_cores[1].cpu_s / alone.cpu_s, JOB_AT_MOST)
    bench.limit(case, "s", "resume of a finished job", again.wall_s, RESUME_AT_MOST_S)
    bench.reported(case, "x wall", "two processes by one", alone.wall_s / two_alone.wall_s, "no Spark", 1.0)
    gain = by_cores[1].wall_s / by_cores[2].wall_s
    if codec == "none":
        disk = disk_mb_per_s(work)
        bench.reported(case, "x wall", "two cores by one", gain, "one core", 1.0)
        for cores, job_on in by_cores.items():
            rate = bytes_out / job_on.wall_s / 1e6
            bench.reported(case, "MB/s", f"written, local[{cores}]", rate, "the disk, one file, synced", disk)
    else:
        bench.at_least(case, "x wall", "two cores by one", gain, SECOND_CORE_AT_LEAST)
    shutil.rmtree(old)


def write_log_dir(log_dir: Path, codec: str, size_bytes: int) -> int:
    """As many one-segment partitions as `size_bytes` needs and TASKS can share; on disk they are all one file."""
    segment = data.segment(1, codec, BATCH_BYTES, SEGMENT_RECORDS[codec])
    count = TASKS * -(-size_bytes // (TASKS * len(segment)))
    first = None
    for n in range(count):
        directory = log_dir / f"t-{n}-0"
        directory.mkdir(parents=True)
        path = directory / "00000000000000000000.log"
        if first is None:
            path.write_bytes(segment)
            first = path
        else:
            os.link(first, path)
    return len(segment) * count


def alone_of(old: Path, new: Path, codec: str | None, topics: tuple[str, ...] = ()) -> None:
    for row in convert_log_dir(old, new, Options(codec=codec), topics=topics):
        assert row.status == "converted", row
    shutil.rmtree(new)


def halves_of(old: Path, work: Path, codec: str | None) -> None:
    """The same conversion by two concurrent processes."""
    topics = sorted(path.name.rpartition("-")[0] for path in old.iterdir())
    begin = get_context("spawn").Process
    halves = [
        begin(target=alone_of, args=(old, work / f"alone{n}", codec, tuple(topics[n::2]))) for n in range(2)
    ]
    for half in halves:
        half.start()
    for half in halves:
        half.join()
        assert half.exitcode == 0


def disk_mb_per_s(work: Path) -> float:
    """The write rate of the file system for one writer, including the sync."""
    piece = os.urandom(1 << 24)
    begin = time.perf_counter()
    with open(work / "probe", "wb", buffering=0) as file:
        for _ in range(DISK_BYTES // len(piece)):
            file.write(piece)
        os.fsync(file.fileno())
    seconds = time.perf_counter() - begin
    (work / "probe").unlink()
    return DISK_BYTES / seconds / 1e6


@dataclass(frozen=True)
class Cost:
    cpu_s: float
    wall_s: float


def measured(name: str, work: Callable[[], object]) -> Cost:
    cpu_s, wall_s, machine = cpu_of_tree_s(), time.perf_counter(), Machine.now()
    work()
    cost = Cost(cpu_of_tree_s() - cpu_s, time.perf_counter() - wall_s)
    spent = Machine.now() - machine
    others = f"others {max(0.0, spent.busy_s - cost.cpu_s):.1f} CPU s, stolen {spent.stolen_s:.1f} s"
    print(f"  {name:22} {cost.cpu_s:8.1f} CPU s {cost.wall_s:8.1f} s   meanwhile {others}, idle for the disk"
          f" {spent.waiting_s:.1f} s", flush=True)
    return cost


@dataclass(frozen=True)
class Machine:
    """Seconds of all cores since boot: busy for any process; stolen by the hypervisor; idle waiting for a disk."""

    busy_s: float
    stolen_s: float
    waiting_s: float

    @classmethod
    def now(cls) -> "Machine":
        with open("/proc/stat") as stat:
            user, nice, system, _, waiting, irq, softirq, stolen = map(int, stat.readline().split()[1:9])
        second = os.sysconf("SC_CLK_TCK")
        return cls((user + nice + system + irq + softirq) / second, stolen / second, waiting / second)

    def __sub__(self, before: "Machine") -> "Machine":
        return Machine(
            self.busy_s - before.busy_s, self.stolen_s - before.stolen_s, self.waiting_s - before.waiting_s
        )


def cpu_of_tree_s(without: Collection[int] = ()) -> float:
    """CPU time of this process and its descendants, including ended ones; `without` these and their descendants."""
    fields = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields[int(stat.parent.name)] = (int(after[1]), sum(map(int, after[11:15])))
    ours, ticks = {os.getpid()}, fields[os.getpid()][1]
    grown = True
    while grown:
        more = {pid for pid, (parent, _) in fields.items() if parent in ours} - ours - {*without}
        ticks += sum(fields[pid][1] for pid in more)
        ours |= more
        grown = bool(more)
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
