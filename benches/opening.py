"""Opening a log after a clean close, and after a crash."""
import mmap
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import seglog
from benches import data
from benches.appending import counted_syncs
from benches.runner import Bench, Fresh, Goal
from seglog._kernels.crc import crc32c

SEGMENTS = 10
# Records per segment of the two logs that are reopened, as shares of all records.
SMALL, LARGE = 0.001, 0.05
REOPENINGS = 30
REOPEN_BOUND_MS = 1.0

RECOVERED_SEGMENTS = 4
RECOVERED_TIMES = 2     # all records in each: a quarter of a segment at Kafka's default size


def closed_log(path: Path, records: int) -> Path:
    """A cleanly closed log of ten segments of this many records each; the last one is the active one."""
    batches = data.segment(2, "none", 16384, records)
    path.mkdir(parents=True)
    with seglog.open(path / "bench-0", fsync="never") as log:
        for number in range(SEGMENTS):
            if number:
                log.roll()
            log.append_batch(renumbered(batches, log.log_end_offset), assign_offsets=False)
    return path / "bench-0"


def renumbered(batches: bytes, base_offset: int) -> bytearray:
    """The same batches at another offset, which no checksum covers."""
    raw = bytearray(batches)
    position = 0
    while position < len(raw):
        offset, size = struct.unpack_from(">qi", raw, position)
        struct.pack_into(">q", raw, position, base_offset + offset)
        position += 12 + size
    return raw


def run(bench: Bench, directory: Path, count: int) -> None:
    _reopen(bench, directory, count)
    _recover(bench, directory, count)


def _reopen(bench: Bench, directory: Path, count: int) -> None:
    name = f"clean reopen, {SEGMENTS} segments"
    if not bench.wanted(name):
        return
    paths = [closed_log(directory / "reopen" / kind, int(count * share))
             for kind, share in (("small", SMALL), ("large", LARGE))]
    best = [float("inf")] * len(paths)
    for _ in range(REOPENINGS):
        for i, path in enumerate(paths):
            began = time.thread_time()
            log = seglog.open(path)
            best[i] = min(best[i], time.thread_time() - began)
            log.close()
    bench.limit(name, "ms", "seglog", best[1] * 1e3, REOPEN_BOUND_MS)
    sizes = [sum(file.stat().st_size for file in path.glob("*.log")) for path in paths]
    # Twice the time for fifty times the bytes would be a dependence; noise is a tenth.
    bench.limit(f"{name}: {sizes[1] / sizes[0]:.0f} x the bytes", "x time", "seglog", best[1] / best[0], 1.25)


# --- after a crash ---------------------------------------------------------------------------


def crc_of_files(paths: list[Path]) -> None:
    """Compute the checksum of all bytes, mapping each file again: the lower limit of checking them."""
    for path in paths:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            crc32c(mapped)


def recover(threads: int, path: Path) -> None:
    seglog.open(path, config={"num.recovery.threads.per.data.dir": threads}).close()


def _recover(bench: Bench, directory: Path, count: int) -> None:
    name = f"recovery, {RECOVERED_SEGMENTS} segments"
    if not bench.wanted(name):
        return
    records = count * RECOVERED_TIMES
    once = data.segment(2, "none", 16384, count)
    batches = b"".join(renumbered(once, n * count) for n in range(RECOVERED_TIMES))
    path = directory / "recovery" / "bench-0"
    path.mkdir(parents=True)
    for number in range(RECOVERED_SEGMENTS):
        (path / f"{number * records:020d}.log").write_bytes(renumbered(batches, number * records))
    files = sorted(path.iterdir())

    def unclean() -> Path:
        """The segments as a broker leaves them if killed before it writes an index: each is read to its end."""
        for other in (*path.parent.iterdir(), *path.iterdir()):
            if other.is_file() and other not in files:
                other.unlink()
        return path

    def recovering(threads: int) -> Fresh:
        return Fresh(unclean, partial(recover, threads), lambda _: None)

    amount = len(batches) * RECOVERED_SEGMENTS / 1e9
    raw: Callable[[], object] = partial(crc_of_files, files)
    bench.compare(
        f"{name}, 1 thread", amount, "GB/s", {"seglog": recovering(1), "own raw crc32c": raw},
        {("seglog", "own raw crc32c"): Goal(0.6)}, clock=time.process_time,
    )
    with counted_syncs(skip=True):      # syncs take the disk's time, regardless of the number of threads
        bench.by_wall(
            f"{name}, 2 threads", amount, "GB/s", {"seglog": recovering(2), "seglog, 1 thread": recovering(1)},
            {("seglog", "seglog, 1 thread"): Goal(1.0001)}, turns=4 * bench.repetitions + 1,
        )
