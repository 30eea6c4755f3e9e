"""The memory that a time index takes, by granularity: the table of the proposal for time-based indexes (KIP-33).

The proposal calculated 3 500 partitions that keep a day: an entry of 12 bytes per second, or one per minute. This
measures logs of ours whose offset index has an entry per batch (index.interval.bytes=1): 35 partitions with a small
batch per minute, and one with a small batch per second; then it multiplies.
"""
import mmap
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import seglog
from benches.runner import Bench
from seglog.clock import ManualClock

PARTITIONS = 3500
BY_MINUTE, BY_SECOND = 35, 1            # the partitions measured
DAY_MS = 86_400_000
BEGIN_MS = 1_700_006_400_000            # midnight UTC
LOOKUPS = 20_000
CONFIG = {"index.interval.bytes": 1, "seglog.time.index.minute.enabled": True}
MIB = 1 << 20


class Measured(NamedTuple):
    """The indexes of the measured partitions, and of 3 500 such partitions."""

    what: str
    partitions: int
    file_bytes: int
    resident_bytes: int
    lookup_us: float

    def total(self, measured: int) -> float:
        """MiB for all partitions."""
        return measured * PARTITIONS / self.partitions / MIB


def make_logs(directory: Path, partitions: int, period_ms: int, length_ms: int) -> list[Path]:
    """Closed logs with one small batch per `period_ms`."""
    paths = [directory / f"by-{period_ms}-ms-{number}" for number in range(partitions)]
    for path in paths:
        with seglog.open(path, fsync="never", config=CONFIG, clock=ManualClock(BEGIN_MS + length_ms)) as log:
            for at in range(BEGIN_MS, BEGIN_MS + length_ms, period_ms):
                log.append(b"tick", timestamp=at)
    return paths


def resident_bytes(files: Sequence[Path]) -> int:
    """Map all files, read every page, and return how many bytes of the maps are in memory."""
    maps = []
    for file in files:
        with open(file, "rb") as opened:
            maps.append(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    for mapped in maps:
        for position in range(0, len(mapped), mmap.PAGESIZE):
            mapped[position]
    names = {str(file) for file in files}
    total, ours = 0, False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            head = line.split(maxsplit=5)
            if "-" in head[0] and not head[0].endswith(":"):
                ours = len(head) == 6 and head[5].strip() in names
            elif ours and head[0] == "Rss:":
                total += int(head[1]) * 1024
    for mapped in maps:
        mapped.close()
    return total


def lookup_us(path: Path, length_ms: int, *, by_minute: bool) -> float:
    """Microseconds of CPU per exact answer, as `log.offset_for_time` gives it: index, headers, record."""
    chance = random.Random(3)
    times = [BEGIN_MS + chance.randrange(length_ms) for _ in range(LOOKUPS)]
    with seglog.open(path, fsync="never", config={**CONFIG, "seglog.time.index.minute.enabled": by_minute}) as log:
        period_ms = length_ms // log.log_end_offset
        for at in times[:200]:
            expected = -(-(at - BEGIN_MS) // period_ms)
            found = log.offset_for_time(at)
            assert (None if found is None else found.offset) == (expected if expected < log.log_end_offset else None)
        best = float("inf")
        for _ in range(3):
            began = time.thread_time()
            for at in times:
                log.offset_for_time(at)
            best = min(best, time.thread_time() - began)
    return best / len(times) * 1e6


def run(bench: Bench, directory: Path, count: int) -> None:
    name = f"time indexes of {PARTITIONS} partitions"
    if not bench.wanted(name):
        return
    is_full = count >= 100_000
    length_ms = DAY_MS if is_full else DAY_MS // 24
    minute = make_logs(directory / "index-memory", BY_MINUTE if is_full else 2, 60_000, length_ms)
    second = make_logs(directory / "index-memory", BY_SECOND, 1000, length_ms)
    rows = [
        _measure("a batch a minute", minute, ".time.index", length_ms, by_minute=True),
        _measure("a batch a second", second, ".timeindex", length_ms, by_minute=False),
        _measure("a batch a second", second, ".time.index", length_ms, by_minute=True),
    ]
    _print(rows)
    coarse, fine, same_log = rows
    share = length_ms / DAY_MS
    bench.limit(f"{name}, by minute", "MiB", "seglog", coarse.total(coarse.file_bytes) / share, 58)
    bench.limit(f"{name}, second's logs by minute", "MiB", "seglog", same_log.total(same_log.file_bytes) / share, 58)
    bench.at_least(
        f"{name}, second / minute", "x", "seglog", fine.total(fine.file_bytes) / coarse.total(coarse.file_bytes), 59
    )


def _measure(what: str, paths: list[Path], suffix: str, length_ms: int, *, by_minute: bool) -> Measured:
    files = [path / f"{0:020d}{suffix}" for path in paths]
    return Measured(
        f"{what}, {suffix}", len(paths), sum(file.stat().st_size for file in files), resident_bytes(files),
        lookup_us(paths[0], length_ms, by_minute=by_minute),
    )


def _print(rows: list[Measured]) -> None:
    """Print the table of benches/README.md."""
    heads = ["index", "measured", "bytes", f"{PARTITIONS}, MiB", "resident", f"{PARTITIONS}, MiB", "lookup, µs"]
    print("|", " | ".join(heads), "|")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        cells = [
            row.what, f"{row.partitions}",
            f"{row.file_bytes / row.partitions:.0f}", f"{row.total(row.file_bytes):.1f}",
            f"{row.resident_bytes / row.partitions:.0f}", f"{row.total(row.resident_bytes):.1f}",
            f"{row.lookup_us:.2f}",
        ]
        print("|", " | ".join(cells), "|")
