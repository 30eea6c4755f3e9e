"""Runs hostile cases in a process of its own, so that a crash, a hang or grown memory is seen from outside and named.

    python -m support.hostile_child KIND FIRST STOP PLACE
    python -m support.hostile_child describe KIND NUMBER

KIND is `files`, `flips`, `bombs`, or a family of `make fuzz`. Before each case its number goes into PLACE/now; what was
done is one JSON object on stdout. A case that breaks the rule is told there with its traceback; one that takes longer
than WATCHDOG_S ends the process by SIGALRM, with faulthandler's.
"""
import faulthandler
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from functools import cache
from pathlib import Path

from seglog._kernels.index_build import IndexBuilder
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.verification import moving_files
from support.hostile_entries import changed_ledger, look, look_at_ledger, mutated
from support.hostile_files import make_case
from support.hostile_readers import LIMIT_BYTES, Readers, Workshop, read_case
from support.hostile_segment import BASE_OFFSET, bit_of, bomb, flipped, segment_bytes
from support.hostile_server import changed_request, server

WATCHDOG_S = 60
SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")

# How much the largest resident set may grow once everything was used: the limit, what the pools of arenas keep, and
# what an allocator does not give back. AddressSanitizer keeps what was freed in quarantine (256 MiB).
GROWTH_BYTES = LIMIT_BYTES + (384 << 20 if SANITIZED else 64 << 20)
# Memory that is asked for and never touched is not resident; without the sanitizer, which maps terabytes, asking fails.
ADDRESS_BYTES = LIMIT_BYTES + (512 << 20)
ENOUGH_FAILURES = 10
WARM_UP = 130       # the second round of what only one in 60 cases goes through

_LOG = f"{BASE_OFFSET:020d}.log"
# A family of files around a log, and what changes in it.
FILES = {
    "segments": ("log",), "indexes": ("index", "timeindex", "txnindex"),
    "snapshots": ("snapshot", "leader-epoch-checkpoint", "partition.metadata", "log-start-offset-checkpoint"),
}
LEDGER_EVERY = 40   # of so many cases of entries one is a ledger with a changed file
# "aborts" is for the test of what is told of such a case.
_MADE = {
    "flips": flipped, "bombs": lambda number: bomb(number, LIMIT_BYTES), "aborts": lambda number: os.abort(),
}


def run_one(kind: str, number: int, readers: Readers, workshop: Workshop) -> None:
    if kind == "files" or kind in FILES:
        read_case(make_case(number, *FILES.get(kind, ())), readers, workshop)
        return
    if kind == "ledgers":
        look(mutated(number)) if number % LEDGER_EVERY else look_at_ledger(number, workshop.log_dir.parent / "ledger")
        return
    if kind == "wire":
        server(workshop.log_dir.parent).ask(changed_request(number))
        return
    if kind not in _MADE:
        raise ValueError(f"no such kind of case: {kind}")
    data = _MADE[kind](number)
    readers.log_bytes(data)
    directory = workshop.lay_out("flips-0", right_indexes(), {_LOG: data})
    readers.partition(directory, directory / _LOG)


def describe(kind: str, number: int) -> str:
    if kind == "bombs":
        return f"bomb {number}"
    if kind == "files" or kind in FILES:
        return str(make_case(number, *FILES.get(kind, ())))
    if kind == "ledgers":
        return f"ledger {number}: {mutated(number).hex() if number % LEDGER_EVERY else changed_ledger(number)}"
    if kind == "wire":
        return f"request {number}: {changed_request(number).hex()}"
    if kind == "aborts":
        return str(_MADE[kind](number))
    return f"flip {number}: bit {bit_of(number)} of the segment"


@cache
def right_indexes() -> dict[str, bytes]:
    """The index files of the segment as it was before the flip."""
    table = scan(Window(segment_bytes()))
    builder = IndexBuilder(BASE_OFFSET, 1024)
    builder.add(table, 0, len(table), 0)
    builder.finish()
    return {
        f"{BASE_OFFSET:020d}.index": builder.take_offset_entries(),
        f"{BASE_OFFSET:020d}.timeindex": builder.take_time_entries(),
    }


@cache
def _status_fd() -> int:
    return os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)


def largest_resident_bytes() -> int:
    try:
        # Not ru_maxrss, where there is a choice: on Linux that begins with what the parent had.
        status = os.pread(_status_fd(), 4096, 0)
        return int(status.partition(b"VmHWM:")[2].split(None, 1)[0]) * 1024
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def limit_address_space() -> None:
    if SANITIZED or not os.path.exists("/proc/self/statm"):
        return
    mapped_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (mapped_bytes + ADDRESS_BYTES, hard))


def main(kind: str, first: int, stop: int, place: str) -> None:
    moving_files.GLANCE_S = 0       # nobody else writes here: `verify` need not watch each directory for a moment
    workshop = Workshop(Path(place))
    now = os.open(os.path.join(place, "now"), os.O_CREAT | os.O_WRONLY, 0o600)
    # Not dump_traceback_later: that starts a thread for each case.
    faulthandler.register(signal.SIGALRM, chain=True)
    refused: Counter[str] = Counter()
    failures: list[tuple[int, str]] = []
    slowest, at_first = (0.0, -1), 0
    for number in range(first, stop):
        if number == first + (1 if kind == "bombs" else WARM_UP):
            at_first = largest_resident_bytes()
            limit_address_space()
        os.pwrite(now, b"%-20d" % number, 0)
        signal.setitimer(signal.ITIMER_REAL, WATCHDOG_S)
        readers = Readers(number)
        began = time.perf_counter()
        try:
            run_one(kind, number, readers, workshop)
            grown = largest_resident_bytes() - at_first
            assert not at_first or grown <= GROWTH_BYTES, f"memory grew by {grown} bytes"
        except Exception:
            failures.append((number, traceback.format_exc()))
            if len(failures) == ENOUGH_FAILURES:
                stop = number + 1
                break
        refused += readers.refused
        if number > first:      # the first one imports what is imported late
            slowest = max(slowest, (time.perf_counter() - began, number))
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(json.dumps({
        "cases": stop - first, "cpu_seconds": time.process_time(), "slowest": slowest,
        "grown_bytes": largest_resident_bytes() - at_first if at_first else 0, "refused": refused,
        "failures": failures,
    }))


if __name__ == "__main__":
    if sys.argv[1] == "describe":
        print(describe(sys.argv[2], int(sys.argv[3])))
    else:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
