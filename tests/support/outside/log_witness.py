"""Heard what a log's worker was told (log_worker.py), and judges what a power cut left, by docs/durability.md.

Durable is: what append returned for with fsync="batch"; what was there when flush(), roll() or close() was called and
returned; everything below durable_offset; the end after truncate_to; the start after delete_records.
"""
from support.outside.log_worker import KEPT_BYTES, RETENTION, value_of
from support.outside.notes import noted

BATCH_RECORDS_MAX = 4       # of log_worker.LogWorker.add
BATCH_BYTES_MAX = 100       # of a batch with one record, beside its value
UNTOLD_BYTES_MAX = 6000     # of an append that had not returned


class LogWitness:
    PROMISES = frozenset({"has", "took", "ends", "starts", "begins", "flushed", "durable", "snapped", "closed"})

    def __init__(self, fsync, faults_go_on=False, kind=""):
        self.fsync = fsync
        self.faults_go_on = faults_go_on    # then the log need not open again before the power cut
        self.kind = kind            # "size", "time": the log deletes by itself, and may begin later than was told
        self.given = set()          # numbers that may be in the log
        self.taken = {}             # offset -> number, as it was told
        self.durable = set()        # offsets
        self.start = 0
        self.gone = set()           # numbers that were cut off, durably
        self.cut = None             # of a call that is under way
        self.start_after = None
        self.flushing = {}          # thread -> offsets that its flush() covers
        self.backup = None          # the one that is being made
        self.backups = {}           # name -> [start, [[offset, number]]] as of then; None if it may not be there
        self.violations = []        # what was wrong without a power cut

    def hear(self, event):
        thread, word, rest = noted(event)
        match word:
            case "has":
                self._has(*rest)
            case "durable":
                self.durable |= {offset for offset in self.taken if offset < rest[0]}
                if rest[0] > max(self.taken, default=self.start - 1) + 1 and not self._untold():
                    self.violations.append(f"durable_offset is {rest[0]}, behind all that was appended")
            case "give":
                self.given |= set(rest[0])
            case "took":
                numbers, first = rest
                self.taken |= dict(enumerate(numbers, first))
                if self.fsync == "batch":
                    self.durable |= set(range(first, first + len(numbers)))
            case "wrote":
                numbers, first = rest
                self.taken |= dict(enumerate(numbers, first))
            case "synced":
                self.durable |= set(rest[0])
            case "cut":
                self.cut = rest[0]
            case "ends":
                self.gone |= {number for offset, number in self.taken.items() if offset >= rest[0]}
                self.taken = {offset: number for offset, number in self.taken.items() if offset < rest[0]}
                self.durable = set(self.taken)
                self.cut = None
            case "delete":
                self.start_after = rest[0]
            case "starts":
                self.start, self.start_after = rest[0], None
                self.taken = {offset: number for offset, number in self.taken.items() if offset >= self.start}
                self.durable = {offset for offset in self.durable if offset >= self.start}
            case "begins":
                self.start = rest[0]
            case "flush" | "close":
                self.flushing[thread] = set(self.taken)
            case "flushed" | "closed":
                self.durable |= self.flushing.pop(thread) & set(self.taken)
            case "snapshot":
                self.backup = rest[0]
                self.backups[self.backup] = None
                self.flushing[thread] = set(self.taken)
            case "snapped":
                self.durable |= self.flushing.pop(thread)
                records = [[offset, number] for offset, number in sorted(self.taken.items()) if offset < rest[0]]
                self.backups[self.backup] = [self.start, records]
            case "failed":
                self.flushing.pop(thread, None)
            case "dead" if not self.faults_go_on:
                self.violations.append(f"the log could not be opened again: {rest[0]}")

    def _untold(self):
        """Whether something was given of which nobody said that it is in the log."""
        return bool(self.given - set(self.taken.values()) - self.gone)

    def after_power_cut(self):
        """The same witness, to hear the process that comes after a power cut: only what is durable has to be there."""
        self.taken = {offset: number for offset, number in self.taken.items() if offset in self.durable}
        if self.cut is not None:
            # It may have happened or not: the next one says which.
            self.durable = {offset for offset in self.durable if offset < self.cut - BATCH_RECORDS_MAX + 1}
            self.taken = {offset: number for offset, number in self.taken.items() if offset in self.durable}
        self.flushing.clear()
        self.violations = []
        self.backups = {name: made for name, made in self.backups.items() if made is not None}
        return self

    def _has(self, start, end, numbers):
        """The log was opened, by a process that saw the page cache."""
        found = dict(enumerate(numbers, start))
        self.violations += self.check({
            "start": start, "end": end, "durable_offset": end, "records": sorted(found.items()),
        })
        self.gone |= set(self.taken.values()) - set(numbers)
        self.taken = found
        self.durable &= set(found)
        self.start, self.start_after, self.cut = start, None, None

    def check(self, facts):
        """Violations, in words, of what was found in a log (log_judge.py)."""
        if "error" in facts:
            return [facts["error"]]
        wrong = []
        found = dict(facts["records"])
        if self.kind in RETENTION:
            wrong += self._check_start(facts["start"])
        elif facts["start"] not in (self.start, self.start_after):
            wrong.append(f"begins at {facts['start']}, and not at {self.start} (or {self.start_after})")
        if list(found) != list(range(facts["start"], facts["end"])):
            wrong.append(f"offsets {list(found)} are not all from {facts['start']} to {facts['end']}")
        if facts["durable_offset"] != facts["end"]:
            wrong.append(f"durable_offset is {facts['durable_offset']}, the end is {facts['end']}")
        limit = float("inf") if self.cut is None else self.cut - BATCH_RECORDS_MAX + 1
        lost = [
            offset for offset in sorted(self.durable)
            if facts["start"] <= offset < limit and found.get(offset) != self.taken[offset]
        ]
        if lost:
            wrong.append(f"lost although durable: offsets {lost}; the log ends at {facts['end']}")
        gone = set() if self.cut is not None else self.gone
        invented = [
            (offset, number) for offset, number in found.items()
            if number is None or number not in self.given or number in gone
            or (offset in self.taken and self.taken[offset] != number and self.cut is None)
        ]
        if invented:
            wrong.append(f"not what was appended there: {invented[:5]}")
        if len(set(found.values())) != len(found):
            wrong.append("a record is there twice")
        wrong += facts.get("wrong", ())
        wrong += self._check_backups(facts.get("backups"))
        return wrong

    def _check_start(self, start):
        """Never earlier than was told; and later only if enough is kept behind it, by what was told at least."""
        if start < self.start:
            yield f"begins at {start}, and began at {self.start} before"
        kept = sum(len(value_of(number)) + BATCH_BYTES_MAX for offset, number in self.taken.items() if offset >= start)
        if start > self.start and self.kind == "size" and kept + UNTOLD_BYTES_MAX < KEPT_BYTES:
            yield f"begins at {start}, with {kept} bytes behind it, of which {KEPT_BYTES} are to be kept"

    def _check_backups(self, found):
        """Whole, or not there; those of calls that returned are there."""
        for name, expected in self.backups.items() if found is not None else ():
            if expected is not None and name not in found:
                yield f"the backup {name} is not there"
            elif expected is not None and found[name] != expected:
                yield f"the backup {name} is {found[name]}, and was {expected}"

    def task(self, path):
        """What log_judge.py is to look at, in a state that stands in the directory `path`."""
        return {
            "path": f"{path}/data/orders-0", "fsync": self.fsync,
            "backups": [f"{path}/backups/{name}" for name in self.backups],
        }
