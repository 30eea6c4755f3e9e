"""The processes of this machine, as /proc shows them."""
import os
import signal
from contextlib import suppress
from pathlib import Path

from support.waiting import wait_for


def children(pid):
    """The processes below a process, workers of Spark's daemon among them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            child = int(path.parent.name)
            found += [child, *children(child)]
    return found


def kill_all(pid):
    """Kill a process and all below it, and return once none runs. They are stopped first, so that none starts another.
    """
    found = set()
    while new := {pid, *children(pid)} - found:
        for one in new:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGSTOP)
        found |= new
    for one in found:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    wait_for(lambda: not any(map(_is_running, found)), 30)


def _is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
