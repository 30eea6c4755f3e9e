"""A process that puts, takes and finishes jobs of a queue, and notes each call.

    recording.run("support.outside.queue_worker", '{"path": "disk/jobs", "kind": "jobs", "seed": 1, ...}')

A job is told by its number. Notes (notes.py; the witness is queue_witness.py):

    now MS                  the clock is set to this
    opened NUMBERS          opened (again); the dead ones
    put NUMBERS DUE KEYS    are about to be put, due then, with these keys alone ("": none); then
    took NUMBERS            they were; `same NUMBER` instead: its key was another job's
    get, got [NUMBER, ATTEMPT]...; `got later`: by a judge that set its own clock
    ack NUMBERS, acked NUMBERS      also of dead ones that are purged
    nack NUMBER, nacked NUMBER
    requeue, requeued       the dead ones
    purge, purged           all but the dead
    pause IS, paused IS     or resumed
    flush, flushed; close, closed
    failed WHAT, dead WHAT  as in log_worker.py
"""
import seglog
from seglog.clock import ManualClock
from seglog.errors import LeaseLostError
from seglog.queue import journaled_ledger
from support.outside.worker import Worker
from support.owner_process import OwnerProcess

BEGIN_MS = 1_700_000_000_000
MAX_ATTEMPTS = 3
# Small, so that ledgers roll and are trimmed, and journals are replaced, all the time.
CONFIG = {"managedLedgerMaxEntriesPerLedger": 6, "flush.ms": 20}
CHECKPOINT_BYTES = 1500
OPTIONS = {"lease": 100, "retry_delay": 2, "max_retry_delay": 200, "retry_jitter": 0}
WEIGHTS = {
    "jobs": {"add": 36, "take": 30, "ack": 24, "nack": 10, "pass time": 8, "requeue": 3, "purge dead": 2, "purge": 1,
             "flush": 3, "pause": 2, "reopen": 4},
    "keys": {"add": 50, "take": 26, "ack": 26, "nack": 4, "pass time": 4, "flush": 2, "reopen": 4},
    # Beside another process that owns the queue, until it is killed or this one takes over from it.
    "shared": {"add": 36, "take": 30, "ack": 24, "nack": 10, "pass time": 8, "requeue": 3, "purge dead": 2, "purge": 1,
               "flush": 3, "pause": 2, "reopen": 4, "kill": 4, "kill in between": 4},
}


def value_of(number):
    return b"%d." % number + b"v" * (number * 131 % 600 if number % 5 else number * 37 % 2500)


def number_of(job):
    """The number of a job; None if it is none of ours."""
    number = int(job.value.partition(b".")[0] or -1)
    return number if job.value == value_of(number) else None


class QueueWorker(Worker):
    def __init__(self, path, kind, seed, fsync, threads, steps):
        super().__init__(path, kind, seed, fsync, threads, steps)
        journaled_ledger.CHECKPOINT_BYTES = CHECKPOINT_BYTES
        self.weights = WEIGHTS[kind]
        self.beside = tuple(deed for deed in self.weights if deed not in ("add", "reopen", "purge", "pause"))
        self.clock = ManualClock(BEGIN_MS)
        self.jobs, self.out, self.owner = None, [], None

    # --- there and back ------------------------------------------------------------------------

    def open(self):
        self.note("now", self.clock.now_ms())
        self.out = []
        if self.kind == "shared":
            self.owner = OwnerProcess(self.opened, self.clock)
        self.jobs = self.opened()
        self.note("opened", [number_of(job) for job in self.jobs.dead])

    def opened(self):
        return seglog.Queue(
            self.path, fsync=self.fsync, clock=self.clock, config=CONFIG, max_attempts=MAX_ATTEMPTS,
            attach=self.kind == "shared", **OPTIONS,
        )

    def close(self):
        self.note("close")
        self.let_go()
        self.note("closed")

    def let_go(self):
        if self.jobs is not None:
            self.jobs.close()
        if self.owner is not None:
            self.owner.end()
            self.owner = None

    def kill_owner(self):
        """This process takes over, and hands the queue to another one."""
        self.owner.kill()
        self.jobs.stats()
        self.owner = OwnerProcess(self.opened, self.clock)
        self.jobs.close()       # what this process has comes back
        self.out = []
        self.jobs = self.opened()
        while self.jobs.is_owner:
            self.jobs.close()
            self.jobs = self.opened()

    def kill_owner_in_between(self, chance):
        """The same, when it has done what a call asks for, and nobody was told."""
        self.owner.let_die()
        self.do(chance.choice(["add", "add", "take", "ack", "nack"]), chance)
        # A delivery may have been counted that never arrived, and was made again.
        self.note("get")
        self.note("failed", "the owner was killed")
        self.kill_owner()

    # --- deeds -----------------------------------------------------------------------------------

    def add(self, chance):
        if self.kind == "keys" and chance.random() < 0.8:
            self.add_unique(chance)
            return
        numbers = self.numbers(chance.choice([1, 1, 1, 2, 4]))
        delay_s = chance.choice([0, 0, 0, 1, 50, 5000])
        self.note("put", numbers, self.clock.now_ms() + 1000 * delay_s, [""] * len(numbers))
        if len(numbers) == 1:
            self.jobs.put(value_of(numbers[0]), delay=delay_s or None, priority=chance.choice([0, 0, 0, 1]))
        else:
            self.jobs.put_many([value_of(number) for number in numbers], delay=delay_s or None)
        self.note("took", numbers)

    def add_unique(self, chance):
        [number], key = self.numbers(1), f"key {chance.randrange(15)}"
        self.note("put", [number], 0, [key])
        id_ = self.jobs.put(value_of(number), key=key, unique_for=10**9, priority=chance.choice([0, 0, 1]))
        self.note("keyed", number, key, id_)

    def do(self, deed, chance):
        match deed:
            case "add":
                self.add(chance)
            case "take":
                self.note("get")
                taken = self.jobs.get_many(chance.choice([1, 1, 3]), timeout=0)
                self.note("got", *([number_of(job), job.attempt] for job in taken))
                self.out += taken
            case "ack" if self.out:
                some = [self.out.pop(chance.randrange(len(self.out))) for _ in range(min(len(self.out), 2))]
                numbers = [number_of(job) for job in some]
                self.note("ack", numbers)
                self.jobs.ack(some)
                self.note("acked", numbers)
            case "nack" if self.out:
                job = self.out.pop(chance.randrange(len(self.out)))
                self.note("nack", number_of(job))
                try:
                    job.nack(delay=chance.choice([None, 0, 500]))
                except LeaseLostError:
                    return
                self.note("nacked", number_of(job))
            case "pass time":
                self.clock.advance(chance.choice([1_000, 3_000, 120_000]))
                if self.owner is not None:
                    self.owner.set_clock(self.clock.now_ms())
                self.note("now", self.clock.now_ms())
            case "requeue":
                self.note("requeue")
                self.jobs.dead.requeue()
                self.note("requeued")
            case "purge dead":
                numbers = [number_of(job) for job in self.jobs.dead]
                self.note("ack", numbers)
                self.jobs.dead.purge()
                self.note("acked", numbers)
            case "purge":
                self.note("purge")
                self.jobs.purge()
                self.note("purged")
            case "flush":
                self.note("flush")
                self.jobs.flush()
                self.note("flushed")
            case "pause":
                self.note("pause", True)
                self.jobs.pause()
                self.note("paused", True)
                self.note("pause", False)
                self.jobs.resume()
                self.note("paused", False)
            case "reopen":
                self.reopen()
            case "kill":
                self.kill_owner()
            case "kill in between":
                self.kill_owner_in_between(chance)


def main():
    QueueWorker.main()
