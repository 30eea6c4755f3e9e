"""A log whose threads are interrupted at random moments: KeyboardInterrupt by a signal on the main thread, an
asynchronous exception on the others.

    python -m support.outside.interrupted_worker '{"path": "data/orders-0", "fsync": "batch", "threads": 8, ...}'

Prints a line "at INTERRUPTS" now and then, and at the end one of JSON: {"interrupts", "ignored", "appended", "wrong"}.
Whoever starts this watches that it goes on (see pester).
"""
import json
import os
import sys
import time
from pathlib import Path

import seglog
from seglog.errors import LogClosedError, LogFailedError, SeglogError
from support.outside.pester import Storm

CONFIG = {"segment.bytes": 30_000, "index.interval.bytes": 500, "flush.ms": 5}
REOPEN_EVERY = 40       # deeds of the main thread between two closings
KEPT_RECORDS = 200     # what an interrupt tore is taken up by looking at all segments: so there are few
VIOLATIONS_MAX = 10


def value_of(number):
    return b"%d." % number + b"v" * (number * 131 % 300)


class Worker(Storm):
    def __init__(self, path, fsync, threads, interrupts, seed, linger_ms=0):
        super().__init__([self.main_deed] + [self.append] * (threads - 1), interrupts, seed)
        self.path, self.fsync = path, fsync
        self.config = CONFIG | ({"linger.ms": linger_ms} if linger_ms else {})
        self.numbers = iter(range(10**9))
        self.taken = {}         # offset -> number, as append answered
        self.offset_of = {}     # number -> offset, as it was found in the log
        self.log = None
        self.turns = 0
        self.is_opening = True  # or closing: others wait

    # --- what is interrupted -----------------------------------------------------------------------

    def append(self):
        log = self.log
        if log is None or self.is_opening:
            time.sleep(0.0005)
            return
        number = next(self.numbers)
        try:
            offset = log.append(value_of(number))
            self.taken[offset] = number
        except LogClosedError:
            pass
        except LogFailedError as error:
            self.is_opening = True      # the main thread closes it and opens it again
            self.violated(f"read-only by an interrupt: {error}", error)

    def main_deed(self):
        if self.log is None or self.log.closed:
            self.open()
        self.turns += 1
        try:
            if self.is_opening or self.turns % REOPEN_EVERY == 0:
                self.is_opening = True
                self.log.close()
                self.open()
            elif self.turns % 7 == 0:
                self.log.flush()
            elif self.turns % 11 == 0:
                self.log.roll()
            elif self.turns % 5 == 0:
                numbers = [next(self.numbers) for _ in range(3)]
                last = self.log.append_many([(None, value_of(n)) for n in numbers])
                self.taken |= {last - 2 + n: number for n, number in enumerate(numbers)}
            else:
                self.append()
        except LogClosedError:
            pass
        except SeglogError as error:
            self.violated(f"{type(error).__name__}: {error}", error)
            self.is_opening = True

    def trim(self):
        """Delete what is old, when it was found in the log."""
        log = self.log
        stop = log.log_end_offset - KEPT_RECORDS
        if stop - log.log_start_offset > KEPT_RECORDS:
            self.check(log, log.log_start_offset, stop)
            log.delete_records(stop)
            for offset in [offset for offset in self.taken if offset < stop]:
                del self.taken[offset]

    def check(self, log, start, stop):
        """All that was taken of this part is there, and nothing is there twice."""
        found = {}
        for record in log.read(start, stop):
            number = found[record.offset] = int(record.value.split(b".")[0])
            if record.value != value_of(number):
                self.wrong.append(f"offset {record.offset} holds what nobody appended")
            if self.offset_of.setdefault(number, record.offset) != record.offset:
                self.wrong.append(f"{number} is there twice, at offset {record.offset}")
        if lost := [o for o, number in self.taken.items() if o < stop and found.get(o) != number]:
            self.wrong.append(f"{len(lost)} acknowledged records are lost, from offset {min(lost)} on")

    def open(self):
        """Sheltered: whoever is interrupted before a call has returned has nothing to close."""
        self.shelter()
        try:
            self.log = seglog.open(self.path, config=self.config, fsync=self.fsync)
            self.trim()
            self.is_opening = False
        except SeglogError as error:
            self.violated(f"does not open: {type(error).__name__}: {error}", error)
            time.sleep(0.01)
        finally:
            self.targets[0].is_sheltered = False

    def violated(self, what, error):
        cause = repr(error.__cause__ or error.__context__)
        if len(self.wrong) < VIOLATIONS_MAX:
            self.wrong.append(f"{what}; from {cause}")

    def run(self):
        self.blow()
        self.finish()

    def finish(self):
        self.log.close()
        with seglog.open(self.path, config=CONFIG) as log:
            self.check(log, log.log_start_offset, log.log_end_offset)
            if max(self.taken, default=-1) >= log.log_end_offset:
                self.wrong.append(f"acknowledged records behind the end, {log.log_end_offset}, are lost")
        report = seglog.verify(Path(self.path), config=CONFIG)
        self.wrong += [f"verify: {finding}" for finding in report.findings[:3]]
        facts = {
            "interrupts": self.delivered, "ignored": self.ignored, "appended": len(self.offset_of), "wrong": self.wrong,
        }
        print(json.dumps(facts), flush=True)


def main():
    Worker(**json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    main()
    os._exit(0)
