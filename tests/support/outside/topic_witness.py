"""Heard what a topic's worker was told (topic_worker.py), and judges what a power cut left, by docs/durability.md,
managed_ledger.md and delayed.md.

Durable is: what add_entry returned for with fsync="batch"; what was there when flush(), roll() or close() was called
and returned; a cursor, a seek, and each acknowledgement if managedLedgerDefaultMarkDeleteRateLimit is 0; a decision
about a delayed message. Entries that every cursor has passed may be trimmed.
"""
from support.outside.notes import noted
from support.outside.topic_worker import DELAYED_KINDS

FIRST = (-1, -1)


class CursorWitness:
    def __init__(self):
        self.is_open = False        # the call that made it has returned
        self.sure = set()           # acknowledged, durably
        self.begun = set()          # perhaps acknowledged: some call was made
        self.told = set()           # acknowledged, and that was answered
        self.pending = set()        # of a call that is under way
        self.ever = set()           # acknowledged at some time: a trim may have seen it
        # The same for all up to a position: also those of which nobody has told yet.
        self.begun_to = self.ever_to = self.pending_to = FIRST
        self.seeking = False

    def begin(self, positions, up_to=FIRST):
        self.pending = set(positions)
        self.begun |= self.pending
        self.ever |= self.pending
        self.begun_to, self.ever_to = max(self.begun_to, up_to), max(self.ever_to, up_to)

    def begin_seek(self, positions, up_to):
        self.seeking = True
        self.pending, self.pending_to = set(positions), up_to
        self.ever |= self.pending
        self.ever_to = max(self.ever_to, up_to)

    def end_seek(self):
        self.seeking = False
        self.sure, self.told, self.begun = (set(self.pending) for _ in range(3))
        self.begun_to, self.pending = self.pending_to, set()

    def may_have(self, position):
        return position in self.begun or position in self.pending or position <= self.begun_to or (
            self.seeking and position <= self.pending_to
        )

    def end(self, durable):
        self.told |= self.pending
        if durable:
            self.sure |= self.told
        self.pending = set()


class TopicWitness:
    PROMISES = frozenset({
        "has", "took", "flushed", "opened", "acked", "sought", "saved", "closed", "cancelled", "moved", "got",
    })

    def __init__(self, fsync, rate=0, faults_go_on=False, kind="entries"):
        self.fsync, self.rate, self.faults_go_on, self.kind = fsync, rate, faults_go_on, kind
        self.given = {}             # number -> when it is due
        self.taken = {}             # position -> number
        self.durable = set()        # positions
        self.cursors = {}
        self.flushing = {}          # thread -> positions
        self.now_ms = 0
        self.due = {}               # position -> the times that it may be due at, where it was rescheduled
        self.moving = {}
        self.cancelled = set()
        self.cancelling = set()
        self.perhaps_cancelled = set()      # by a call that failed: a later one may find it done, and answer False
        self.violations = []

    # --- hearing -------------------------------------------------------------------------------

    def hear(self, event):
        thread, word, rest = noted(event)
        match word:
            case "has":
                self._has(*rest)
            case "give":
                self.given |= dict(zip(*rest, strict=True))
            case "took":
                self.taken |= {tuple(p): n for n, p in zip(*rest, strict=True)}
                if self.fsync == "batch":
                    self.durable |= {tuple(p) for p in rest[1]}
            case "flush" | "close":
                self.flushing[thread] = set(self.taken)
            case "flushed" | "closed":
                self.durable |= self.flushing.pop(thread, set()) & set(self.taken)
                for cursor in self.cursors.values() if word == "closed" else ():
                    cursor.end(True)
            case "cursor":
                self.cursors.setdefault(rest[0], CursorWitness())
            case "opened":
                self.cursors[rest[0]].is_open = True
            case "ack":
                self.cursors[rest[0]].begin(tuple(p) for p in rest[1])
            case "mark":
                up_to = tuple(rest[1])
                self.cursors[rest[0]].begin((p for p in self.taken if p <= up_to), up_to)
            case "acked":
                self.cursors[rest[0]].end(self.rate == 0)
            case "saved":
                self.cursors[rest[0]].end(True)
            case "seek":
                ledger, entry = rest[1]
                before = ledger, entry - 1
                self.cursors[rest[0]].begin_seek((p for p in self.taken if p <= before), before)
            case "sought":
                self.cursors[rest[0]].end_seek()
            case "now":
                self.now_ms = max(self.now_ms, rest[0])
            case "cancel":
                self.cancelling.add(tuple(rest[0]))
                self.cursors["one"].begun.add(tuple(rest[0]))
                self.cursors["one"].ever.add(tuple(rest[0]))
            case "cancelled":
                self.cancelling.discard(tuple(rest[0]))
                if rest[1]:
                    self.cancelled.add(tuple(rest[0]))
            case "move":
                self.moving[tuple(rest[0])] = rest[1]
            case "moved":
                position, at_ms, answer = tuple(rest[0]), rest[1], rest[2]
                del self.moving[position]
                if answer:
                    self.due[position] = at_ms
            case "got":
                self._got([tuple(p) for p in rest[0]])
            case "failed":
                self.flushing.pop(thread, None)
                self.perhaps_cancelled |= self.cancelling
                self.cancelling.clear()
                for cursor in self.cursors.values():
                    cursor.pending = set()
            case "dead" if not self.faults_go_on:
                self.violations.append(f"the topic could not be opened again: {rest[0]}")

    def _has(self, entries, cursors):
        """Opened by a process that saw the page cache."""
        found = {(ledger, entry): number for ledger, entry, number in entries}
        self.violations += self._check_entries(found) + self._check_cursors(found, cursors)
        self.taken, self.durable = found, self.durable & set(found)
        for name, acknowledged in cursors.items():
            cursor = self.cursors.setdefault(name, CursorWitness())
            cursor.is_open, cursor.seeking, cursor.pending = True, False, set()
            cursor.told = {tuple(p) for p in acknowledged}
            cursor.begun, cursor.begun_to, cursor.sure = set(cursor.told), FIRST, cursor.sure & cursor.told
            cursor.ever |= cursor.told
        self.flushing.clear()

    def _got(self, positions):
        early = [p for p in positions if p in self.taken and self._earliest(p) > self.now_ms]
        if early:
            self.violations.append(f"given at {self.now_ms}, too early: {early}")
        if again := [p for p in positions if p in self.cancelled]:
            self.violations.append(f"given although cancelled: {again}")

    def _earliest(self, position):
        """The earliest time at which it may be due."""
        return min(self._times(position))

    def _latest(self, position):
        return max(self._times(position))

    def _times(self, position):
        yield self.due.get(position, self.given.get(self.taken.get(position), 0))
        if position in self.moving:
            yield self.moving[position]

    def after_power_cut(self):
        self.taken = {p: n for p, n in self.taken.items() if p in self.durable}
        self.flushing.clear()
        self.violations = []
        return self

    def task(self, path):
        delayed = self.kind in DELAYED_KINDS and self.kind
        return {"path": f"{path}/topic", "fsync": self.fsync, "now": self.now_ms, "delayed": delayed}

    # --- judging ---------------------------------------------------------------------------------

    def check(self, facts):
        if "error" in facts:
            return [facts["error"]]
        found = {(ledger, entry): number for ledger, entry, number in facts["entries"]}
        wrong = self._check_entries(found) + self._check_cursors(found, facts["cursors"])
        if self.kind in DELAYED_KINDS and facts["delivered"] is not None:
            wrong += self._check_delivered(found, facts)
        return wrong + facts["wrong"]

    def _may_be_trimmed(self, position):
        cursors = [cursor for cursor in self.cursors.values() if cursor.is_open]
        return bool(cursors) and all(
            position in cursor.ever or position <= cursor.ever_to for cursor in cursors
        )

    def _check_entries(self, found):
        wrong = []
        lost = sorted(p for p in self.taken if p not in found and not self._may_be_trimmed(p))
        if durable := [p for p in lost if p in self.durable]:
            wrong.append(f"lost although durable: entries {durable}")
        if lost and (behind := [p for p in self.taken if p in found and p > lost[0]]):
            wrong.append(f"a hole: entry {lost[0]} is lost, and {behind} are there")
        invented = [
            (p, n) for p, n in found.items() if n is None or n not in self.given or self.taken.get(p, n) != n
        ]
        if invented:
            wrong.append(f"not what was added there: {invented[:5]}")
        if len(set(found.values())) != len(found):
            wrong.append("an entry is there twice")
        return wrong

    def _check_cursors(self, found, cursors):
        wrong = []
        for name, cursor in self.cursors.items():
            if name not in cursors:
                if cursor.is_open:
                    wrong.append(f"the cursor {name} is not there")
                continue
            acknowledged = {tuple(p) for p in cursors[name]}
            # What was cancelled is acknowledged, by the next process if not by this one.
            decided = self.cancelled | self.cancelling | self.perhaps_cancelled
            too_many = [p for p in acknowledged if p in self.taken and not cursor.may_have(p) and p not in decided]
            if too_many:
                wrong.append(f"{name} has acknowledged what nobody did: {too_many[:5]}")
            lost = [] if cursor.seeking else [p for p in cursor.sure if p in found and p not in acknowledged]
            if lost:
                wrong.append(f"{name} lost acknowledgements: {sorted(lost)[:5]}")
        return wrong

    def _check_delivered(self, found, facts):
        """At the time of the power cut what was due then, and at the end of time all the rest; each once."""
        wrong = []
        acknowledged = {tuple(p) for p in facts["cursors"].get("one", ())}
        now, later = ([tuple(p) for p in given] for given in facts["delivered"])
        if len(set(now + later)) != len(now + later):
            wrong.append("delivered twice")
        expected = set(found) - acknowledged - self.cancelled
        if missing := expected - set(now + later) - self.cancelling - self.perhaps_cancelled:
            wrong.append(f"never delivered: {sorted(missing)[:5]}")
        if too_many := set(now + later) - expected:
            wrong.append(f"delivered although acknowledged or cancelled: {sorted(too_many)[:5]}")
        if early := [p for p in now if p in self.taken and self._earliest(p) > self.now_ms]:
            wrong.append(f"delivered too early: {early[:5]}")
        if late := [p for p in later if p in self.taken and self._latest(p) <= self.now_ms]:
            wrong.append(f"delivered late: {late[:5]}")
        return wrong
