"""What processes have in common that change a log or a topic, with threads, and note each call (notes.py).

A subclass has `open`, `close`, `let_go`, `do(deed, chance)`, `add(chance)`, and sets `weights` and `beside`.
"""
import json
import random
import sys
import threading

from seglog.errors import SeglogError
from support.outside.notes import Notes

FAILURES_MAX = 6


class Worker:
    """weights: how often each deed comes. beside: what one thread does while the others add, each `beside_every_s`."""

    beside_every_s = 0.004

    def __init__(self, path, kind, seed, fsync, threads, steps):
        self.path, self.kind, self.seed, self.fsync, self.threads, self.steps = path, kind, seed, fsync, threads, steps
        self.note = Notes()
        self.next_number = seed * 1_000_000
        self.lock = threading.Lock()
        self.failures = 0
        self.is_dead = False

    def numbers(self, count):
        """For as many records, from none that was given out before."""
        with self.lock:
            self.next_number += count
            return list(range(self.next_number - count, self.next_number))

    def reopen(self):
        self.close()
        self.open()

    def failed(self, error):
        """After a failed call: close, open again, go on. Nothing else is asked of a user."""
        self.note("failed", f"{type(error).__name__}: {error}"[:200])
        self.failures += 1
        while self.failures < FAILURES_MAX:
            try:
                self.let_go()
                self.open()
                return True
            except SeglogError as again:
                self.note("failed", f"{type(again).__name__}: {again}"[:200])
                self.failures += 1
        self.note("dead", str(error)[:200])
        self.is_dead = True
        return False

    def alone(self, chance, steps):
        for _ in range(steps):
            try:
                self.do(chance.choices(list(self.weights), list(self.weights.values()))[0], chance)
            except SeglogError as error:
                if not self.failed(error):
                    return

    def together(self, chance):
        """Threads that add at once; this one does the rest. After a failure all end, and it goes on alone."""
        def adder(chance):
            try:
                for _ in range(self.steps // self.threads):
                    self.add(chance)
            except SeglogError as error:
                failures.append(error)

        failures = []
        adders = [
            threading.Thread(target=adder, args=(random.Random(f"{self.seed} {n}"),)) for n in range(self.threads)
        ]
        for thread in adders:
            thread.start()
        while any(thread.is_alive() for thread in adders):
            adders[0].join(self.beside_every_s)
            try:
                self.do(chance.choice(self.beside), chance)
            except SeglogError as error:
                failures.append(error)
                break
        for thread in adders:
            thread.join()
        if failures and not self.failed(failures[0]):
            return
        self.alone(chance, self.steps // 4)

    def run(self):
        chance = random.Random(self.seed)
        try:
            self.open()
        except SeglogError as error:
            if not self.failed(error):
                return
        self.alone(chance, self.steps) if self.threads == 1 else self.together(chance)
        try:
            if not self.is_dead:
                self.close()
        except SeglogError as error:
            self.note("failed", str(error)[:200])

    @classmethod
    def main(cls):
        cls(**json.loads(sys.argv[1])).run()
