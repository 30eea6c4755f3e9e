"""Exceptions from outside, at chosen moments of the engine's own code.

In the main thread: `interrupted_at_each_opcode` runs an action again and again, and raises KeyboardInterrupt before the
n-th instruction of Python code in the package, n = 0, 1, 2 ..., until the action runs through. That is more than the
interpreter does, which looks for signals at calls and backward jumps only. Left out are the instructions that leave a
`with` block: they come between its last one and the call of `__exit__`, and no interpreter looks for signals there.
"""
import dis
import functools
import sys
from pathlib import Path

import seglog

PACKAGE = str(Path(seglog.__file__).parent)


class Interrupted(KeyboardInterrupt):
    """So that a test cannot take another one for it."""


@functools.cache
def _leaves_with(code):
    """The offsets of the instructions that leave `with` blocks the plain way: three None, and the call."""
    found = set()
    instructions = list(dis.get_instructions(code))
    for n in range(len(instructions) - 3):
        if all(i.opname == "LOAD_CONST" and i.argval is None for i in instructions[n : n + 3]):
            for after in instructions[n : n + 8]:
                found.add(after.offset)
                if after.opname.startswith("CALL"):
                    break
    return found


class Interrupter:
    """A trace function that raises before the n-th instruction, once."""

    def __init__(self, at):
        self.left = at
        self.where = None

    def __call__(self, frame, event, arg):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._opcode

    def _opcode(self, frame, event, arg):
        if event == "opcode" and self.where is None and frame.f_lasti not in _leaves_with(frame.f_code):
            if self.left == 0:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
                raise Interrupted
            self.left -= 1
        return self._opcode

    def run(self, action):
        """Whether it was interrupted."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            action()
        except Interrupted:
            return True
        finally:
            sys.settrace(before)
        return self.where is not None


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
