"""A child that owns a queue which this process has open, too: forked, so that it costs little, and killed at will."""
import json
import os
import signal

from seglog.attach.channel import Channel


class OwnerProcess:
    """It calls `opened()`, which opens a queue with `attach` and this clock, a ManualClock: so it owns the queue, or
    takes over when its owner closes it."""

    def __init__(self, opened, clock):
        asked, ask = os.pipe()
        answers, answer = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                os.close(ask)
                os.close(answers)
                _own(opened, clock, os.fdopen(asked), os.fdopen(answer, "w"))
            finally:
                os._exit(0)
        os.close(asked)
        os.close(answer)
        self._ask, self._answers = os.fdopen(ask, "w"), os.fdopen(answers)
        self._answer()

    def _answer(self):
        if not (line := self._answers.readline()):
            raise AssertionError("the process that owns the queue has ended")
        return json.loads(line)

    def does(self, what, number=0):
        print(json.dumps([what, number]), file=self._ask, flush=True)
        return self._answer()

    def set_clock(self, now_ms):
        self.does("clock", now_ms)

    def take(self, count):
        """[value as text, attempt] of each job that it takes and keeps."""
        return self.does("take", count)

    def let_die(self):
        """Let it kill itself in place of the next answer to another process."""
        self.does("die")

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        self.end()

    def end(self):
        """Let it close the queue, if it is alive."""
        self._ask.close()
        self._answers.close()
        os.waitpid(self.pid, 0)


def _own(opened, clock, asked, answer):
    jobs, kept = opened(), []
    print("true", file=answer, flush=True)
    for line in asked:
        what, number = json.loads(line)
        taken = []
        match what:
            case "clock":
                clock.set(number)
            case "take":
                taken = jobs.get_many(number, timeout=0)
                kept += taken
            case "die":
                Channel.send = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        print(json.dumps([[job.value.decode(), job.attempt] for job in taken]), file=answer, flush=True)
    jobs.close()
