"""Exceptions from outside, at chosen moments of the engine's own code.

In the main thread: `interrupted_at_each_opcode` runs an action again and again, and raises KeyboardInterrupt before the
n-th instruction of Python code in the package, n = 0, 1, 2 ..., until the action runs through. That is more than the
interpreter does, which looks for signals at calls and backward jumps only. Left out are the instructions that leave a
`with` block: they come between its last one and the call of `__exit__`, and no interpreter looks for signals there; and
the one that returns a value that is there already.

By sys.settrace on Python 3.11, by sys.monitoring on newer ones: those tell a trace function nothing of the instructions
of code that ran untraced since, so every test would pass.
"""
import _thread
import dis
import functools
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import seglog

PACKAGE = str(Path(seglog.__file__).parent)
BY_MONITORING = sys.version_info >= (3, 12)
TOOL = 4        # of sys.monitoring: those with a name of their own are 0 to 2 and 5


class Interrupted(KeyboardInterrupt):
    """So that a test cannot take another one for it."""


@functools.cache
def _left_out(code):
    """The offsets of the instructions that leave `with` blocks the plain way: three None, and the call. Before them
    there is a swap, if the block returns a value: it is behind the block, too. And those that return, but what a call
    has just returned."""
    found = set()
    instructions = list(dis.get_instructions(code))
    for n in range(len(instructions) - 3):
        if all(i.opname == "LOAD_CONST" and i.argval is None for i in instructions[n : n + 3]):
            if n and instructions[n - 1].opname == "SWAP":
                found.add(instructions[n - 1].offset)
            for after in instructions[n : n + 8]:
                found.add(after.offset)
                if after.opname.startswith("CALL"):
                    break
    for before, after in pairwise(instructions):
        if after.opname == "RETURN_VALUE" and not before.opname.startswith("CALL"):
            found.add(after.offset)
    return found


class Interrupter:
    """Raises before the n-th instruction of this thread, once."""

    paused = False

    def __init__(self, at):
        self.left = at
        self.where = None

    def run(self, action):
        """Do it. An interrupt that whoever called does not get is a failure: ^C would have no effect."""
        try:
            with self._monitoring() if BY_MONITORING else self._tracing():
                action()
        except Interrupted:
            return
        assert self.where is None, f"an interrupt at {self.where} was lost"

    def _before_instruction(self, code, offset, frame):
        if self.where is None and not Interrupter.paused and offset not in _left_out(code):
            if self.left == 0:
                self.where = f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}"
                raise Interrupted
            self.left -= 1

    @contextmanager
    def _monitoring(self):
        monitoring, thread = sys.monitoring, threading.get_ident()

        def before_instruction(code, offset):
            if not code.co_filename.startswith(PACKAGE):
                return monitoring.DISABLE
            if threading.get_ident() == thread:
                self._before_instruction(code, offset, sys._getframe(1))
            return None

        monitoring.use_tool_id(TOOL, __name__)
        monitoring.register_callback(TOOL, monitoring.events.INSTRUCTION, before_instruction)
        monitoring.set_events(TOOL, monitoring.events.INSTRUCTION)
        try:
            yield
        finally:
            monitoring.set_events(TOOL, monitoring.events.NO_EVENTS)
            monitoring.register_callback(TOOL, monitoring.events.INSTRUCTION, None)
            monitoring.free_tool_id(TOOL)

    @contextmanager
    def _tracing(self):
        def called(frame, event, arg):
            if not frame.f_code.co_filename.startswith(PACKAGE):
                return None
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
            return traced

        def traced(frame, event, arg):
            if event == "opcode":
                self._before_instruction(frame.f_code, frame.f_lasti, frame)
            return traced

        before = sys.gettrace()
        sys.settrace(called)
        try:
            yield
        finally:
            sys.settrace(before)


def with_loses_exits():
    """Whether an interrupt can leave a `with` block without a call of `__exit__`, so that a lock stays taken: between
    `__enter__` and the block (Python 3.14, python/cpython#148874), or where a loop in it goes round (3.13 and 3.14,
    python/cpython#130279)."""
    exits = []

    class Interrupting:
        __enter__ = staticmethod(_thread.interrupt_main)

        def __exit__(self, *_):
            exits.append(True)

    class Plain(Interrupting):
        def __enter__(self):
            pass

    class Signal(int):
        sent = property(_thread.interrupt_main)     # C, so that the next jump is where it is raised

    def enter():
        with Interrupting():
            for _ in range(2):
                pass

    def loop():
        with Plain():
            for _ in range(3):
                if Signal(signal.SIGINT).sent:
                    return

    for work in (enter, loop):
        with suppress(KeyboardInterrupt):
            work()
    return len(exits) < 2


@contextmanager
def uninterrupted():
    """No interrupt comes here: for what a test needs on the way."""
    Interrupter.paused = True
    try:
        yield
    finally:
        Interrupter.paused = False


def interrupted_at_each_opcode(prepare, action, check, *, step=1, first=0):
    """prepare() gives what action(it) and check(it, where) get; how many points there were."""
    at = first
    while True:
        subject = prepare()
        interrupter = Interrupter(at)
        interrupter.run(functools.partial(action, subject))
        check(subject, interrupter.where or "nowhere")
        if interrupter.where is None:
            return at
        at += step
