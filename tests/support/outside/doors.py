"""Public doors whose threads are interrupted at random moments: the base of them all."""
import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path

from seglog.errors import LogClosedError, SeglogError
from support.outside.pester import INTERRUPTS, Storm
from support.waiting import HangsError, in_time

VIOLATIONS_MAX = 10
HANG_S = 60
# The end opens, cleans and verifies all that a storm has left, on a machine that others load. (A real hang is noticed
# sooner by whoever watches the processor time: silence.py.)
END_S = 900
REOPEN_EVERY = 60       # deeds of the main thread between two closings


class Doors(Storm):
    """`threads` use one thing, which the main thread closes and opens again now and then, sheltered."""

    lull_s = 0.002

    def __init__(self, path, threads, interrupts, seed, seconds=None, **_):
        deeds = itertools.chain([self.main_deed], itertools.repeat(self.deed))
        works = [
            lambda number=number, deed=deed: self.turn(number, deed)
            for number, deed in zip(range(threads), deeds, strict=False)
        ]
        super().__init__(works, interrupts, seed)
        self.path = Path(path)
        self.ends_at = None if seconds is None else time.monotonic() + seconds
        self.looked = self.turns = 0
        self.is_quiet = False       # nobody begins anything
        self.is_opening = True
        self.subject = None
        self.done = 0               # deeds that came to their end

    def is_over(self):
        return self.ends_at is not None and time.monotonic() > self.ends_at

    def violated(self, what):
        if len(self.wrong) < VIOLATIONS_MAX:
            self.wrong.append(what)

    def turn(self, number, deed):
        if self.is_quiet or (self.is_opening and number):
            time.sleep(0.0005)
            return
        try:
            deed(number)
            self.done += 1
        except LogClosedError as error:
            self.check_hides_none(error)
        except SeglogError as error:
            self.check_hides_none(error)
            self.violated(f"{type(error).__name__}: {error}; from {error.__cause__ or error.__context__!r}")
            self.is_opening = True

    def check_hides_none(self, error):
        """An interrupt that this error replaced never reaches whoever called: ^C would end nothing."""
        seen = error
        while seen is not None and not isinstance(seen, INTERRUPTS):
            seen = seen.__cause__ or seen.__context__
        if seen is not None and self.is_awaiting():
            self.violated(f"{type(error).__name__} came instead of an interrupt: {error}")

    def main_deed(self, number):
        self.turns += 1
        if self.is_opening or self.turns % REOPEN_EVERY == 0:
            self.is_opening = True
            self.shelter()
            try:
                if self.subject is not None:
                    self.subject.close()
                self.subject = self.opened()
                self.is_opening = False
            finally:
                self.targets[0].is_sheltered = False
        else:
            self.deed_of_main(number)

    def deed_of_main(self, number):
        self.deed(number)

    def in_time(self, call, what, seconds=HANG_S):
        """What `call` returns, in a thread that nobody interrupts; if it hangs, the stacks of all and the end."""
        try:
            return in_time(call, seconds)
        except HangsError:
            print(f"{what} hangs", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(1)
            os._exit(9)

    def run(self):
        self.blow()
        self.in_time(self.finish, "the end", END_S)
        facts = {"interrupts": self.delivered, "ignored": self.ignored, "done": self.done, "wrong": self.wrong}
        print(json.dumps(facts), flush=True)

    def finish(self):
        self.subject.close()
