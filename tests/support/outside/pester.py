"""Threads that are interrupted at random moments: KeyboardInterrupt by a signal on the main thread, an asynchronous
exception on the others.

One exception at a time is on its way to a thread, and is sent only while that thread is where it can be caught: so each
one hits the engine or the line around its call, and none is lost.
"""
import ctypes
import faulthandler
import importlib
import os
import pkgutil
import random
import signal
import sys
import threading
import time
import traceback

import seglog

BURSTS = (1, 1, 2, 4, 8)     # threads that are interrupted at once, at most


class Interrupted(BaseException):
    """What the threads get that are not the main one."""


NOT_IMPORTED = (
    "seglog.spark", "seglog.tools", "seglog.polars", "seglog.kombu", "seglog.testing", "seglog.stores", "seglog.frames",
)
INTERRUPTS = (KeyboardInterrupt, Interrupted)
AGAIN_S = 2
LOST_S = 25     # after so long, one that was sent and did not come is lost


_MINE = threading.local()      # target: of this thread


def import_all():
    """All modules of the engine: an interrupt in an import leaves importlib's lock of the module taken, on which every
    other thread that imports it waits for ever. That is Python's; it can be only once, at the first use."""
    for module in pkgutil.walk_packages(seglog.__path__, "seglog."):
        if not module.name.startswith(NOT_IMPORTED):
            importlib.import_module(module.name)


class Target:
    """A thread that is interrupted. `ready` is set by itself where an exception is caught, taken by who sends one."""

    def __init__(self, work):
        self.work = work
        self.ready = self.done = self.is_sheltered = False
        self.interrupts = 0
        self.sent_at = 0        # none was sent yet
        self.ident = None

    def run(self):
        self.ident = threading.get_ident()
        _MINE.target = self
        while not self.done:
            try:
                self._work_on()
            except INTERRUPTS:
                self.interrupts += 1

    def _work_on(self):
        """Until the last exception has come: it must not come behind this.

        A call of its own: from Python 3.12 on, what comes at the jump back of a loop passes the `except` around it by.
        """
        self.ready = True
        while not (self.done and self.ready):
            self.work()


class Storm:
    """`works`: what each thread does again and again, the main thread the first one. Whoever starts this watches that
    it goes on: it writes a line "at INTERRUPTS" now and then."""

    lull_s = 0.0005         # at most, now and then between two bursts

    def __init__(self, works, interrupts, seed):
        self.targets = [Target(work) for work in works]
        self.interrupts = interrupts
        self.chance = random.Random(seed)
        self.ignored = 0
        self.wrong = []

    def shelter(self):
        """The main thread gets no exception from here on, until its `is_sheltered` is False."""
        main = self.targets[0]
        main.is_sheltered = True
        while not main.ready:
            time.sleep(0.0001)      # the one that is on its way comes here

    def pester(self):
        """Now one thread, now several at once: so there is an interrupt for each few calls, not for each hundred."""
        sent = told = 0
        while sent < self.interrupts and not self.is_over():
            ready = [target for target in self.targets if target.ready]
            if ready:
                most = self.chance.choice(BURSTS)
                for target in self.chance.sample(ready, min(most, len(ready), self.interrupts - sent)):
                    sent += self.send(target)
                if sent - told >= 20:
                    told = sent
                    os.write(1, b"at %d\n" % sent)
                    self.look(sent)
            self.send_again()
            for _ in range(self.chance.randrange(400)):
                pass
            if self.chance.random() < 0.2:
                time.sleep(self.chance.random() * self.lull_s)
        self.await_all()

    def pester_to_the_end(self):
        """Without this thread nothing ends the others: if it fails, the process ends with its traceback."""
        try:
            self.pester()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(9)

    def await_all(self):
        """All that were sent have come, or one is lost: that is the end, with the stacks of all threads. Each thread
        goes on until its own has come: one that waits for a lock gets it at last."""
        until = time.monotonic() + LOST_S
        while late := [number for number, target in enumerate(self.targets) if not target.done]:
            for target in self.targets:
                target.done = target.ready
            self.send_again()
            if time.monotonic() > until:
                os.write(2, b"an interrupt of the threads %r is lost\n" % late)
                os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(1)
                os._exit(9)
            time.sleep(0.001)

    def send_again(self):
        """To threads that have got none for long. Until Python 3.11, a thread that is just starting another one has the
        other's state under its own number: what is sent to it goes to the other one, in which nobody may see it."""
        for target in self.targets[1:]:
            if target.sent_at and not target.ready and time.monotonic() - target.sent_at > AGAIN_S:
                self.send(target)

    def is_over(self):
        """Whether to end before all interrupts were sent."""
        return False

    def look(self, sent):
        """Called now and then by the thread that interrupts."""

    def send(self, target):
        """Whether an exception is on its way to it now."""
        target.ready, target.sent_at = False, time.monotonic()
        if target.is_sheltered:
            target.ready = True
            return False
        if target is self.targets[0]:
            signal.pthread_kill(target.ident, signal.SIGINT)
        else:
            send = ctypes.pythonapi.PyThreadState_SetAsyncExc
            send(ctypes.c_ulong(target.ident), ctypes.py_object(Interrupted))
        return True

    def swallowed(self, unraisable):
        """An exception came where Python has nobody to give it to: a weak reference's callback, a __del__."""
        if unraisable.exc_type in INTERRUPTS:
            self.ignored += 1
            if (target := getattr(_MINE, "target", None)) is not None:
                target.ready = True         # last: the next one may come at once, and must not come in here
        else:
            self.wrong.append(f"ignored in {unraisable.object}: {unraisable.exc_value!r}")

    def is_awaiting(self):
        """Whether this thread was sent an interrupt that it has not caught."""
        return not _MINE.target.ready

    def blow(self):
        """Until all interrupts were delivered."""
        import_all()
        sys.setswitchinterval(2e-5)
        sys.unraisablehook = self.swallowed
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        threads = [threading.Thread(target=target.run, daemon=True) for target in self.targets[1:]]
        for thread in threads:
            thread.start()
        pester = threading.Thread(target=self.pester_to_the_end, daemon=True)
        main = self.targets[0]
        main.ident = threading.get_ident()
        pester.start()
        main.run()
        for thread in threads:
            thread.join()
        pester.join()

    @property
    def delivered(self):
        return sum(target.interrupts for target in self.targets)
