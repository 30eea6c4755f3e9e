"""Heard what a queue's worker was told (queue_worker.py), and judges what a power cut left, by docs/queue.md.

Durable is, with fsync="batch": what a put, an acknowledgement, a requeue or a purge returned for. With the others: what
was there when flush() or close() was called and returned. Attempts may be too low, never too high.
"""
from collections import Counter

from support.outside.notes import noted


class QueueWitness:
    PROMISES = frozenset({
        "opened", "took", "keyed", "got", "acked", "nacked", "requeued", "purged", "paused", "flushed", "closed",
    })

    def __init__(self, fsync, faults_go_on=False, kind="jobs"):
        self.fsync, self.faults_go_on, self.kind = fsync, faults_go_on, kind
        self.due = {}               # number -> when; of all that were given
        self.keys = {}              # number -> its key
        self.taken, self.durable = set(), set()
        self.acking, self.acked, self.gone = set(), set(), set()    # begun; returned; durable
        self.refused = set()        # may be dead
        self.attempts = Counter()
        self.unknown = 0            # takes of which nobody knows what they delivered
        self.getting = set()        # threads
        self.flushing = {}          # thread -> (taken, acked)
        self.ids = {}               # key -> the id that its put returned
        self.pausing = self.is_paused = False
        self.now_ms = 0
        self.violations = []

    # --- hearing -------------------------------------------------------------------------------

    def hear(self, event):
        thread, word, rest = noted(event)
        match word:
            case "now":
                self.now_ms = max(self.now_ms, rest[0])
            case "put":
                self.due |= dict.fromkeys(rest[0], rest[1])
                self.keys |= dict(zip(rest[0], rest[2], strict=True))
            case "opened":
                self.taken |= set(rest[0])      # dead jobs
            case "took":
                self._took(rest[0])
            case "keyed":
                self._keyed(*rest)
            case "get":
                self.getting.add(thread)
            case "got" | "got later":
                self.getting.discard(thread)
                self._got(rest, self.now_ms if word == "got" else float("inf"))
            case "ack":
                self.acking |= set(rest[0])
            case "purge":
                self.acking |= set(self.due)
            case "acked" | "purged":
                done = set(rest[0]) if rest else set(self.taken) - self.refused
                self.acked |= done
                if self.fsync == "batch":
                    self.gone |= done
            case "nack":
                self.refused.add(rest[0])
            case "pause":
                self.pausing = True
            case "paused":
                self.pausing, self.is_paused = False, rest[0]
            case "flush" | "close":
                self.flushing[thread] = set(self.taken), set(self.acked)
            case "flushed" | "closed":
                taken, acked = self.flushing.pop(thread)
                self.durable |= taken
                self.gone |= acked
            case "failed":
                self.unknown += len(self.getting)
                self.getting.clear()
                self.flushing.clear()
            case "dead" if not self.faults_go_on:
                self.violations.append(f"the queue could not be opened again: {rest[0]}")

    def _took(self, numbers):
        self.taken |= set(numbers)
        if self.fsync == "batch":
            self.durable |= set(numbers)

    def _keyed(self, number, key, id_):
        """A put with a key alone returned: the first one of a key put its job."""
        if self.ids.setdefault(key, id_) != id_ and self.fsync == "batch":
            self.violations.append(f"{key} got the id {self.ids[key]}, and then {id_}")

    def _got(self, given, now_ms):
        for number, attempt in given:
            self.taken.add(number)
            self.attempts[number] = max(self.attempts[number] + 1, attempt)
            if number not in self.due:
                self.violations.append(f"given {number}, which was never put")
            elif self.due[number] > now_ms:
                self.violations.append(f"given {number} at {now_ms}, before {self.due[number]}")
            if number in self.gone and self.fsync == "batch":
                self.violations.append(f"given {number} after its acknowledgement")
            if attempt >= 2:
                self.refused.add(number)        # its lease may end at the last attempt

    def after_power_cut(self):
        """The same witness, to hear the process that comes after a power cut: only what is durable has to be there."""
        self.taken &= self.durable
        self.acked &= self.gone
        self.flushing.clear()
        self.getting.clear()
        self.violations = []
        self.unknown += 1
        return self

    def task(self, path):
        keys = self.ids if self.fsync == "batch" else {}
        return {"path": f"{path}/jobs", "fsync": self.fsync, "now": self.now_ms, "keys": keys}

    # --- judging ---------------------------------------------------------------------------------

    def check(self, facts):
        if "error" in facts:
            return [facts["error"]]
        wrong, numbers = list(facts["wrong"]), [number for number, _ in facts["left"]] + facts["dead"]
        there = set(numbers)
        if len(there) != len(numbers):
            wrong.append(f"there twice: {sorted(n for n, times in Counter(numbers).items() if times > 1)[:5]}")
        if lost := self.durable - self.acking - there:
            wrong.append(f"lost although durable: {sorted(lost)[:5]}")
        if again := self.gone & there:
            wrong.append(f"there after their acknowledgement: {sorted(again)[:5]}")
        if invented := there - set(self.due):
            wrong.append(f"never put: {sorted(invented)[:5]}")
        if dead := set(facts["dead"]) - self.refused:
            wrong.append(f"dead although nobody refused them: {sorted(dead)[:5]}")
        if early := [number for number in facts["now"] if self.due.get(number, 0) > self.now_ms]:
            wrong.append(f"given too early: {early[:5]}")
        unknown = self.unknown + len(self.getting)
        for number, attempt in facts["left"]:
            if attempt > self.attempts[number] + unknown + 1:
                wrong.append(f"attempt {attempt} of {number}, which was given {self.attempts[number]} times")
        keys = Counter(self.keys.get(number) for number in there if self.keys.get(number))
        if self.fsync == "batch" and (twice := [key for key, times in keys.items() if times > 1]):
            wrong.append(f"several jobs of one key: {twice[:5]}")
        if not self.pausing and facts["paused"] != self.is_paused:
            wrong.append(f"paused: {facts['paused']}, and it was {self.is_paused}")
        return wrong
