"""What a piece of work costs by count, on any machine: Python functions called, and what the system was asked for."""
import _thread
import gc
import sys
from collections import Counter
from dataclasses import dataclass, field
from unittest.mock import patch

from seglog._kernels.shield import shielded

# How many steps a join of paths takes is a matter of Python's version: 3.14 makes nine more in a roll.
PATHS = {"pathlib", "posixpath", "genericpath"}


@dataclass
class Counts:
    """`calls` of Python functions but those of paths, `system`: calls of functions of the os module by name."""

    calls: int = 0
    system: Counter = field(default_factory=Counter)


def counts_of(action):
    """What `action()` costs, in the threads that it starts as well, without the call itself."""
    start, found = _thread.start_new_thread, Counts()

    def hook(frame, event, arg):
        if event == "call":
            found.calls += frame.f_globals.get("__name__", "").partition(".")[0] not in PATHS
        elif event == "c_call" and arg.__module__ == "posix" and not arg.__name__.startswith(("fspath", "_path_")):
            found.system[arg.__name__] += 1

    def start_counted(function, args, *more):
        def run(*given):
            sys.setprofile(hook)
            function(*given)
            sys.setprofile(None)

        return start(run, args, *more)

    with patch.object(_thread, "start_new_thread", start_counted):
        gc.disable()        # Hypothesis is called at each collection
        shielded(sys.setprofile, hook)      # a thread that stays for the next shielded calls
        sys.setprofile(hook)
        try:
            action()
        finally:
            sys.setprofile(None)
            shielded(sys.setprofile, None)
            gc.enable()
    found.calls -= 1
    return found
