"""Other processes of a test, which do what they are told."""
import ast
import signal
import subprocess
import sys
from pathlib import Path

from support.waiting import line_of, wait_for

PROGRAM = """
import os, signal, sys, threading, time
import seglog
path = sys.argv[1]
print("ready", flush=True)
for line in sys.stdin:
    try:
        source = eval(line)
        try:
            print("is", repr(eval(source)), flush=True)
        except SyntaxError:
            exec(source)
            print("is", None, flush=True)
    except Exception as error:
        print("raised", type(error).__name__, repr(str(error)), flush=True)
"""


class Other:
    """A process with `path`, and `jobs` once that is open."""

    def __init__(self, path, opening="jobs = seglog.Queue(path, attach=True, lease=600)"):
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert line_of(self.process) == "ready\n"
        if opening:
            self.does(opening)

    def tell(self, source):
        """Let it do that; its answer comes with `answer`."""
        self.process.stdin.write(repr(source) + "\n")
        self.process.stdin.flush()

    def answer(self):
        word, _, rest = line_of(self.process).partition(" ")
        assert word == "is", rest
        try:
            return ast.literal_eval(rest)
        except (ValueError, SyntaxError):
            return rest.strip()

    def does(self, source):
        self.tell(source)
        return self.answer()

    def fails(self, source):
        """The name of the error that it raises."""
        self.tell(source)
        word, name, *_ = line_of(self.process).split(" ")
        assert word == "raised", name
        return name

    def send(self, number):
        self.process.send_signal(number)

    def stop(self):
        """Stop it, until SIGCONT."""
        self.send(signal.SIGSTOP)
        status = Path(f"/proc/{self.process.pid}/status")
        wait_for(lambda: "\nState:\tT" in status.read_text())

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.send_signal(signal.SIGCONT)
        self.kill()
