"""Tells a process that hangs from one that waits for a processor: on a loaded machine both are silent for long.

It hangs if it has used much processor time since its last word, or if for some time none of its threads used any, and
none wanted to at any look.
"""
import os
import queue
import select
import time
from contextlib import suppress
from pathlib import Path

BUSY_S = 60         # of processor time without a word
STILL_S = 30        # of wall time in which no thread ran
LOOK_EVERY_S = 0.1
PROC = Path("/proc/self")
_TICKS_A_S = os.sysconf("SC_CLK_TCK")


def next_line(lines, pid, busy_s=BUSY_S, still_s=STILL_S):
    """The next of `lines`, a queue that a thread fills with the output of the process; queue.Empty if it hangs."""
    begun_s = seen_s = _used_s(pid)
    still_since = time.monotonic()
    while True:
        try:
            return lines.get(timeout=LOOK_EVERY_S)
        except queue.Empty:
            used_s, now = _used_s(pid), time.monotonic()
            if used_s > seen_s or _wants_to_run(pid):
                seen_s, still_since = used_s, now
            if used_s - begun_s > busy_s or now - still_since > still_s:
                raise


def own_s(pidfd, pid, most_s):
    """How long the process takes to end, without the time in which it or a descendant waits for a processor or a disk;
    more than `most_s` if it does not end."""
    begun_s = seen_s = sum(map(_used_s, family(pid)))
    still_s = 0.0
    while not select.select([pidfd], [], [], LOOK_EVERY_S)[0]:
        pids = family(pid)
        used_s = sum(map(_used_s, pids))
        if used_s == seen_s and not any(map(_wants_to_run, pids)):
            still_s += LOOK_EVERY_S
        seen_s = used_s
        if still_s + used_s - begun_s > most_s:
            break
    return still_s + max(seen_s - begun_s, 0.0)


def family(pid):
    """The process and its descendants."""
    pids = [pid]
    for one in pids:
        for path in Path(f"/proc/{one}/task").glob("*/children"):
            with suppress(OSError):
                pids += map(int, path.read_text().split())
    return pids


def _used_s(pid):
    """Processor time of the process; 0 for one that has ended (its output ends, too). The clock's where no /proc is."""
    if not PROC.is_dir():
        return time.monotonic()
    fields = _stat(Path(f"/proc/{pid}/stat"))
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_S if fields else 0


def _wants_to_run(pid):
    """Whether a thread is ready to run, or in the middle of a disk's work."""
    return any(_stat(path)[:1] in (["R"], ["D"]) for path in Path(f"/proc/{pid}/task").glob("*/stat"))


def _stat(path):
    """The fields behind the name of the command, of which the first is the state; none if it has ended."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return []
