"""A queue beside a model of it: each step is made in both, and the answers are compared.

The model knows nothing of entries, journals or leases: a dictionary of jobs, and what may be delivered when.
"""
from collections import Counter
from dataclasses import dataclass, field

import seglog
from seglog.clock import ManualClock
from seglog.errors import LeaseLostError
from seglog.ledger.managed import relocated_entries
from seglog.queue import lane
from seglog.topic import delayed_index

LEASE_S, MAX_ATTEMPTS, RETRY_S = 10, 3, 2
CONFIG = {"managedLedgerMaxEntriesPerLedger": 4}
# Where the clocks of queues under test begin.
NOW = 1_700_000_000_000


@dataclass
class ModelJob:
    """A job as the model sees it. `due_ms`: not before that; `lease_ms`: until when it is out, or None."""

    due_ms: int
    priority: int
    attempts: int = 0
    lease_ms: int | None = None
    is_dead: bool = False

    def is_out(self, now_ms):
        """A job whose lease is over may still be refused or extended, until a consumer comes to it."""
        return self.lease_ms is not None and self.lease_ms > now_ms


@dataclass
class Promises:
    """What callers were told: a crash may not take it back. `begun`: of calls that had not returned."""

    put: set = field(default_factory=set)
    acked: set = field(default_factory=set)
    begun_puts: set = field(default_factory=set)
    begun_acks: set = field(default_factory=set)
    deliveries: Counter = field(default_factory=Counter)

    def copy(self):
        return Promises(
            set(self.put), set(self.acked), set(self.begun_puts), set(self.begun_acks),
            Counter(self.deliveries),
        )


class QueueBeside:
    """The queue and the model. `told` is called with the promises after each step."""

    def __init__(self, path, *, fs=None, told=lambda promises: None, start_ms=NOW, config=CONFIG):
        self.path, self.fs, self.told, self.config = path, fs, told, config
        self.clock = ManualClock(start_ms)
        self.jobs: dict[bytes, ModelJob] = {}
        self.promises = Promises()
        self.out: list[seglog.Job] = []
        self.number = 0
        self.queue = self.opened()

    def opened(self):
        return seglog.Queue(
            self.path, lease=LEASE_S, max_attempts=MAX_ATTEMPTS, retry_delay=RETRY_S, max_retry_delay=8,
            retry_jitter=0, clock=self.clock, fs=self.fs, config=self.config,
        )

    # --- steps -------------------------------------------------------------------------------

    def put(self, delay_s=0, priority=0):
        value = b"job %d" % self.number
        self.number += 1
        self.promises.begun_puts.add(value)
        self.told(self.promises)
        self.queue.put(value, delay=delay_s, priority=priority)
        self.jobs[value] = ModelJob(self.clock.now_ms() + delay_s * 1000, priority)
        self.promises.put.add(value)
        self.told(self.promises)

    def put_many(self, count, delay_s=0):
        values = [b"job %d" % (self.number + n) for n in range(count)]
        self.number += count
        self.promises.begun_puts.update(values)
        self.told(self.promises)
        self.queue.put_many(values, delay=delay_s)
        for value in values:
            self.jobs[value] = ModelJob(self.clock.now_ms() + delay_s * 1000, 0)
        self.promises.put.update(values)
        self.told(self.promises)

    def deliverable(self):
        """The values that may be delivered now; of the highest priority."""
        now = self.clock.now_ms()
        found = {value: job for value, job in self.jobs.items()
                 if job.due_ms <= now and not job.is_out(now) and not job.is_dead}
        for value, job in list(found.items()):
            if job.attempts >= MAX_ATTEMPTS:
                del found[value]        # found dead when it is about to be delivered
        highest = max((job.priority for job in found.values()), default=0)
        return {value for value, job in found.items() if job.priority == highest}, set(found)

    def get(self, count=1):
        first, all_of_them = self.deliverable()
        self.note_exhausted()
        jobs = self.queue.get_many(count, timeout=0)
        assert len(jobs) == min(count, len(all_of_them)), (jobs, all_of_them)
        if jobs:
            assert jobs[0].value in first, (jobs[0].value, first)
        for job in jobs:
            assert job.value in all_of_them, (job.value, all_of_them)
            model = self.jobs[job.value]
            model.attempts += 1
            assert job.attempt == model.attempts, (job, model)
            model.lease_ms = self.clock.now_ms() + LEASE_S * 1000
            self.promises.deliveries[job.value] += 1
            self.out.append(job)
        self.told(self.promises)
        return jobs

    def note_exhausted(self):
        """What had its last lease run out is dead as soon as a consumer comes to it; it may not come to all."""
        now = self.clock.now_ms()
        self.exhausted = {
            value for value, job in self.jobs.items()
            if job.attempts >= MAX_ATTEMPTS and not job.is_out(now) and not job.is_dead and job.due_ms <= now
        }

    def ack(self, at):
        if not self.out:
            return
        job = self.out.pop(at % len(self.out))
        self.promises.begun_acks.add(job.value)
        self.told(self.promises)
        job.ack()
        self.jobs.pop(job.value, None)
        self.promises.acked.add(job.value)
        self.told(self.promises)

    def has_lease(self, job):
        model = self.jobs.get(job.value)
        return model is not None and model.attempts == job.attempt and model.lease_ms is not None

    def nack(self, at, delay_s=None):
        if not self.out:
            return
        job = self.out.pop(at % len(self.out))
        has_lease = self.has_lease(job)
        try:
            job.nack(delay_s)
        except LeaseLostError:
            assert not has_lease or not self.jobs[job.value].is_out(self.clock.now_ms())
            return
        assert has_lease
        model = self.jobs[job.value]
        model.lease_ms = None
        if model.attempts >= MAX_ATTEMPTS:
            model.is_dead = True
        else:
            wait_s = min(RETRY_S * 2 ** (model.attempts - 1), 8) if delay_s is None else delay_s
            model.due_ms = self.clock.now_ms() + wait_s * 1000
        self.told(self.promises)

    def extend(self, at, lease_s):
        if not self.out:
            return
        job = self.out[at % len(self.out)]
        has_lease = self.has_lease(job)
        try:
            job.extend(lease_s)
        except LeaseLostError:
            assert not has_lease or not self.jobs[job.value].is_out(self.clock.now_ms())
            return
        assert has_lease
        self.jobs[job.value].lease_ms = self.clock.now_ms() + lease_s * 1000

    def advance(self, seconds):
        self.clock.advance(seconds * 1000)

    def requeue(self):
        for job in self.queue.dead.peek(1000):
            model = self.jobs[job.value]
            assert model.is_dead or job.value in self.exhausted_ever()
            model.is_dead, model.attempts, model.due_ms, model.lease_ms = False, 0, self.clock.now_ms(), None
        self.queue.dead.requeue()
        self.told(self.promises)

    def exhausted_ever(self):
        return {value for value, job in self.jobs.items() if job.attempts >= MAX_ATTEMPTS}

    def purge(self):
        # Until it returns, each job may be gone.
        dead = {job.value for job in self.queue.dead}
        gone = set(self.jobs) - dead
        self.promises.begun_acks |= gone
        self.told(self.promises)
        self.queue.purge()
        for value in gone:
            del self.jobs[value]
        for value in dead:
            self.jobs[value].is_dead = True
        self.promises.acked |= gone
        self.told(self.promises)

    def reopen(self):
        self.queue.close()
        self.out.clear()
        for job in self.jobs.values():
            job.lease_ms = None
        self.queue = self.opened()
        self.told(self.promises)

    def check(self):
        """The counts and the looks agree."""
        stats = self.queue.stats()
        dead = {job.value for job in self.queue.dead}
        exhausted = self.exhausted_ever()
        assert {value for value, job in self.jobs.items() if job.is_dead} <= dead <= exhausted
        assert stats.backlog + stats.dead == len(self.jobs)
        assert stats.dead == len(dead)
        now = self.clock.now_ms()
        living = {value: job for value, job in self.jobs.items() if value not in dead}
        out = {value for value, job in living.items() if job.is_out(now)}
        later = [job for value, job in living.items() if value not in out and job.due_ms > now]
        waiting = sum(job.attempts > 0 for job in later)
        assert (stats.in_flight, stats.waiting, stats.delayed) == (len(out), waiting, len(later) - waiting)
        seen = {job.value for job in self.queue.peek(1000)}
        assert seen <= set(self.jobs) - dead
        assert {value for value, job in self.jobs.items()
                if not job.is_out(now) and not job.is_dead and job.attempts == 0} <= seen | exhausted

    STEPS = ("put", "put", "put_delayed", "get", "get", "get_two", "ack", "ack", "nack", "nack_soon", "extend",
             "advance", "advance_long", "requeue", "reopen", "check", "put_many", "urgent",
             # What stays for long, while others are finished, is copied out of its ledger.
             "put_late", "nack_late", "finish", "finish", "finish", "finish")

    def step(self, name, number):
        """One step by its name; `number` chooses among the jobs that are out."""
        match name:
            case "put":
                self.put()
            case "urgent":
                self.put(priority=(number % 3) - 1)
            case "put_delayed":
                self.put(delay_s=1 + number % 15)
            case "put_late":
                self.put(delay_s=30 + number)
            case "nack_late":
                self.nack(number, delay_s=30 + number)
            case "finish":
                for _ in self.get(1 + number % 6):
                    self.ack(-1)
            case "put_many":
                self.put_many(1 + number % 5, delay_s=(number % 2) * 3)
            case "get":
                self.get()
            case "get_two":
                self.get(2)
            case "ack":
                self.ack(number)
            case "nack":
                self.nack(number)
            case "nack_soon":
                self.nack(number, delay_s=number % 2)
            case "extend":
                self.extend(number, lease_s=5 + number % 20)
            case "advance":
                self.advance(1 + number % 3)
            case "advance_long":
                self.advance(12)
            case "requeue":
                self.requeue()
            case "purge":
                self.purge()
            case "reopen":
                self.reopen()
            case "check":
                self.check()


def copy_soon(monkeypatch):
    """Let queues copy what stays for a second only out of its ledger, a few entries at a time, and copies again."""
    for module in (delayed_index, lane):
        monkeypatch.setattr(module, "RELOCATE_AHEAD_MS", 900)
    monkeypatch.setattr(delayed_index, "WORTH_BYTES", 100)
    monkeypatch.setattr(relocated_entries, "WORTH_BYTES", 500)


def left_in(path, clock, config=CONFIG, **options):
    """(values that a queue still delivers, with the attempt of each; those that are dead), taken out of it."""
    found, dead = Counter(), {}
    with seglog.Queue(path, clock=clock, max_attempts=None, lease=10**6, config=config, **options) as queue:
        for job in queue.dead.peek(10_000):
            dead[job.value] = job.attempt
        attempts = {}
        clock.advance(3_600_000)
        while jobs := queue.get_many(100, timeout=0):
            for job in jobs:
                found[job.value] += 1
                attempts[job.value] = job.attempt
        assert not [value for value, times in found.items() if times > 1], found
    return attempts, dead
