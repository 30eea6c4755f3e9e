"""What a conversion of a gigabyte takes of anonymous memory: run in a process of its own, looked at from inside."""
import struct
import subprocess
import sys
from pathlib import Path

from benches import data
from benches.runner import Bench

LIMIT_MIB = 200
MOST_RECORDS_A_SEGMENT = 1_000_000

# The converting process watches its own RssAnon; mapped files are the page cache's.
CHILD = """
import sys, threading
import seglog
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
seglog.convert(sys.argv[1], sys.argv[2]).run()
done.set()
watcher.join()
print(peak)
"""


def make_directory(path: Path, size_bytes: int) -> None:
    """v1 messages of equal size, segment after segment, each numbered on from the one before."""
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
