"""A queue of another process, whose attached threads are interrupted; now and then its owner is killed, and they take
over."""
import itertools
import subprocess
import sys
import time
from pathlib import Path

import seglog
from seglog.errors import LeaseLostError
from support.outside.doors import Doors
from support.waiting import line_of

OWNER = """
import sys
sys.path.insert(0, sys.argv[2])
import seglog
jobs = seglog.Queue(sys.argv[1], attach=True, max_attempts=None, fsync="never")
print("open", flush=True)
sys.stdin.read()      # until the other process ends
"""
KILL_EVERY = 3      # openings


class AttachedDoor(Doors):
    """Every thread puts, takes and finishes jobs; the main one opens the queue again."""

    lull_s = 0.1        # a call goes to another process and back

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.values = itertools.count()
        self.begun, self.put, self.acking, self.acked = set(), set(), set(), {}
        self.owner, self.openings = None, 0

    def opened(self):
        if self.openings % KILL_EVERY == 0:
            self.end_owner()
            self.owner = subprocess.Popen(
                [sys.executable, "-c", OWNER, self.path, Path(seglog.__file__).parents[1]], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, text=True,
            )
            line_of(self.owner)
        self.openings += 1
        self.is_quiet_owner = True
        return seglog.Queue(
            self.path, attach=True, lease=3600, retry_delay=0, max_attempts=None, fsync="never"
        )

    def end_owner(self):
        if self.owner is not None:
            self.owner.kill()
            self.owner.communicate()
            self.owner = None

    def deed_of_main(self, number):
        if self.openings % KILL_EVERY == 0 and self.turns % 20 == 0:
            # From now on a job may be delivered again.
            self.is_quiet_owner = False
            self.end_owner()
        self.deed(number)

    def deed(self, number):
        jobs, turn = self.subject, next(self.values)
        match turn % 4:
            case 0:
                self.begun.add(turn)
                jobs.put(b"%d" % turn)
                self.put.add(turn)
            case 1:
                for job in self.taken(jobs, 2):
                    self.ack(job)
            case 2:
                for job in self.taken(jobs, 1):
                    try:
                        job.nack(0)
                    except LeaseLostError as error:
                        self.check_hides_none(error)
                        if self.is_quiet_owner and self.subject is jobs:
                            self.violated(f"lost: {error}")
            case 3:
                values = [turn + n / 10 for n in range(1, 3)]
                self.begun.update(values)
                jobs.put_many([b"%r" % value for value in values])
                self.put.update(values)
                if turn % 16 == 3:
                    jobs.stats()

    def taken(self, jobs, count):
        began = time.monotonic()
        taken = jobs.get_many(count, timeout=0.01)
        for job in taken:
            value = number_of(job)
            if self.acked.get(value, began) < began:
                self.violated(f"{value} came after its acknowledgement")
        return taken

    def ack(self, job):
        value = number_of(job)
        self.acking.add(value)
        job.ack()
        self.acked[value] = time.monotonic()

    def finish(self):
        self.subject.close()
        self.end_owner()
        found = []
        with seglog.Queue(self.path, max_attempts=None) as jobs:
            while taken := jobs.get_many(1000, timeout=0):
                found += map(number_of, taken)
        there = set(found)
        if len(there) != len(found):
            self.violated("a job is there twice")
        if lost := self.put - self.acking - there:
            self.violated(f"{len(lost)} are lost: {sorted(lost)[:5]}")
        if again := there & self.acked.keys():
            self.violated(f"there after their acknowledgement: {sorted(again)[:5]}")
        if invented := there - self.begun:
            self.violated(f"never put: {sorted(invented)[:5]}")


def number_of(job):
    return float(job.value)
