"""Importing a module where it is first needed, in a process whose threads may be interrupted there.

The import system takes a lock for each module, in Python code: if an exception from outside (^C,
PyThreadState_SetAsyncExc) comes between that and the release, every other thread that imports the module waits forever.
"""
import sys
from importlib import import_module

from seglog._kernels.shield import shielded


def late(name: str) -> None:
    """Have the module imported, in a thread that receives no exceptions, unless it is. A statement that imports from it
    then takes no lock."""
    module = sys.modules.get(name)
    if module is None or getattr(module.__spec__, "_initializing", False):
        # It takes the thread that imports it first for the main thread: not the one of the shield.
        import threading  # noqa: F401
        shielded(import_module, name)
