"""The anonymous memory that a conversion of a gigabyte takes, and a compaction of many keys. Each runs in a separate
process, which measures itself.
"""
import array
import json
import struct
import subprocess
import sys
from pathlib import Path

from benches import data
from benches.runner import Bench
from seglog.log.log import Log

LIMIT_MIB = 200
MOST_RECORDS_A_SEGMENT = 1_000_000

# The process watches its own RssAnon; mapped files belong to the page cache.
WATCH = """
import json, sys, threading, time
peak, done = 0, threading.Event()
def anonymous_kib():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("RssAnon:"))
def watch():
    global peak
    while not done.wait(0.02):
        peak = max(peak, anonymous_kib())
watcher = threading.Thread(target=watch)
watcher.start()
"""
CHILD = WATCH + """
import seglog
seglog.convert(sys.argv[1], sys.argv[2])
done.set()
watcher.join()
print(peak)
"""

# 10^8 different keys in 512 MiB: most of that is the map, which holds an eighth of them. With fewer, a smaller map.
KEYS_LIMIT_MIB = 512
MAP_BYTES_OF_ALL = 448 << 20
ALL_KEYS = 100_000_000
KEYS_AT_A_TIME = 100_000
KEYS_CHILD = WATCH + """
from seglog.log.log import Log
from seglog.upkeep.cleaner import clean
from seglog.upkeep.cleaning_round import CleaningLimits
with Log(sys.argv[1], fsync="never", create=False) as log:
    before = time.process_time()
    cleaned = clean(log, limits=CleaningLimits(dedupe_buffer_bytes=int(sys.argv[2])))
    seconds = time.process_time() - before
done.set()
watcher.join()
print(json.dumps([peak, cleaned.rounds, seconds, cleaned.end_offset, sum(g.superseded for g in cleaned.groups)]))
"""


def make_directory(path: Path, size_bytes: int) -> None:
    """Segments of v1 messages of equal size, with consecutive offsets."""
    path.mkdir(parents=True)
    records = min(MOST_RECORDS_A_SEGMENT, size_bytes // 142 + 1)
    template = data.segment(1, "none", 16384, records)
    message_bytes = 12 + struct.unpack_from(">i", template, 8)[0]
    for number in range(-(-size_bytes // len(template))):
        base = number * records
        raw = bytearray(template)
        for i in range(records):
            struct.pack_into(">q", raw, i * message_bytes, base + i)
        (path / f"{base:020d}.log").write_bytes(raw)


def run(bench: Bench, directory: Path, size_bytes: int) -> None:
    name = f"convert {size_bytes / 1e9:.1f} GB, anonymous memory"
    if not bench.wanted(name):
        return
    source, target = directory / "source" / "big-0", directory / "target" / "big-0"
    make_directory(source, size_bytes)
    target.parent.mkdir()
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(source), str(target)], capture_output=True, text=True, check=True)
    bench.limit(name, "MiB", "seglog", int(child.stdout) / 1024, LIMIT_MIB)


def run_keys(bench: Bench, directory: Path, count: int) -> None:
    """The limit was set for `--keys 100000000 --only "distinct keys"`, which takes 7 GB of disk."""
    name = f"compaction of {count} distinct keys, anonymous memory"
    if not bench.wanted(name):
        return
    path = directory / "keys" / "keys-0"
    with Log(path, config={"cleanup.policy": "compact", "segment.bytes": "256MiB"}, fsync="never") as log:
        for first in range(0, count, KEYS_AT_A_TIME):
            stop = min(first + KEYS_AT_A_TIME, count)
            ends = array.array("i", range(0, 8 * (stop - first) + 1, 8))
            keys = array.array("q", range(first, stop)).tobytes()
            log.append_columns(keys=(ends, keys), values=(ends, keys), timestamps=1_700_000_000_000)
        log.roll()
        end = log.log_end_offset
    map_bytes = max(MAP_BYTES_OF_ALL * count // ALL_KEYS, 16 << 10)
    child = subprocess.run(
        [sys.executable, "-c", KEYS_CHILD, str(path), str(map_bytes)], capture_output=True, text=True, check=True
    )
    peak, rounds, seconds, cleaned_to, superseded = json.loads(child.stdout)
    assert (cleaned_to, superseded, end) == (count, 0, count)
    bench.limit(name, "MiB", f"seglog, {rounds} rounds, {seconds:.0f} s of CPU", peak / 1024, KEYS_LIMIT_MIB)
