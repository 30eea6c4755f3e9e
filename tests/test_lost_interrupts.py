"""^C that the interpreter delivers while an object is collected is printed and lost: no Python code of ours runs then.

Such code is a `__del__`, or what a weak reference calls. A class that is made at each call leads to the same:
collecting a class runs a `WeakSet`'s callback.
"""
import gc
import sys
from pathlib import Path

import pytest

import seglog
from seglog.fs.files import OsFileSystem
from seglog.topic.delayed_delivery import DelayedDelivery

WEAK = ("weakref.py", "_weakrefset.py")


class Watcher:
    """Python code that was called for an object that goes, and classes that were made."""

    def __init__(self):
        self.found = []

    def __call__(self, frame, event, arg):
        code = frame.f_code
        if event == "call" and (code.co_name == "__del__" or Path(code.co_filename).name in WEAK):
            self.found.append(f"{code.co_filename}:{code.co_name}")
        elif event == "c_call" and arg is __build_class__:
            self.found.append(f"a class in {code.co_filename}:{code.co_name}")

    def watch(self, action):
        gc.collect()
        before = sys.getprofile()
        sys.setprofile(self)
        try:
            action()
            gc.collect()
        finally:
            sys.setprofile(before)
        return self.found


def renames(directory):
    fs = OsFileSystem()
    for name in ("a", "b"):
        fs.create(directory / name).close()
    fs.exchange(directory / "a", directory / "b")
    fs.rename(directory / "a", directory / "c")
    for name in ("b", "c"):
        fs.unlink(directory / name)


def a_log(directory):
    with seglog.open(directory / "t-0", config={"segment.bytes": 2000}, fsync="interval") as log:
        for n in range(100):
            log.append(b"%d" % n * 20)


def a_topic(directory):
    with seglog.pulsar.ManagedLedger(directory / "orders") as topic, DelayedDelivery(topic) as delayed:
        cursor = topic.open_cursor("billing", "earliest")
        with delayed.dispatcher(cursor) as dispatcher:
            for n in range(20):
                delayed.publish(b"m", delay=0 if n % 2 else 60)
            topic.roll()
            for entry in dispatcher.read():
                cursor.acknowledge(entry.position)
        cursor.clear_backlog()
        topic.delete_cursor("billing")


@pytest.mark.parametrize("action", [renames, a_log, a_topic])
def test_no_python_code_runs_when_something_is_collected(in_memory, action):
    action(in_memory)       # what is made once is made
    assert Watcher().watch(lambda: action(in_memory)) == []
