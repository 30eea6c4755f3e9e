"""Heard what a topic's worker was told (subscriptions_worker.py), and judges what a power cut left, by docs/topics.md.

Durable is, in every mode: that a subscription was made, removed, moved. With fsync="batch" also what a publication and
an acknowledgement returned for; with the others what was there when flush() or close() was called and returned.
Attempts may be too low, never too high. Of messages that every subscription had finished nobody knows whether they are
still there.
"""
from collections import Counter
from dataclasses import dataclass, field

from support.outside.notes import noted


@dataclass
class Subscription:
    """What one is known to owe. `is_known`: not since a call failed that makes, moves or removes it."""

    is_known: bool = True
    # Must be delivered, or be dead, once it is durable; must not be there any more.
    owed: set = field(default_factory=set)
    gone: set = field(default_factory=set)
    acking: set = field(default_factory=set)        # begun
    acked: set = field(default_factory=set)         # returned
    refused: set = field(default_factory=set)       # may be dead
    attempts: Counter = field(default_factory=Counter)


class SubscriptionsWitness:
    PROMISES = frozenset({
        "opened", "took", "reached", "subscribed", "unsubscribed", "sought", "got", "acked", "nacked", "requeued",
        "compacted", "flushed", "closed",
    })

    def __init__(self, fsync, faults_go_on=False, kind="subscriptions"):
        self.fsync, self.faults_go_on, self.kind = fsync, faults_go_on, kind
        self.due = {}               # number -> when; of all that were given
        self.places = {}            # number -> its place; of all that were taken
        self.keys = {}              # number -> its key
        self.durable = set()
        self.subscriptions = {}
        self.removed = set()
        # Name -> where to, of one that is being made, moved or removed now.
        self.changing = {}
        # Number of a message that is being published -> the subscriptions that will get it.
        self.hearing = {}
        self.sequences = {}         # number -> sequence id
        self.is_new = False         # whether the one that is being published is higher than all before
        self.begun_sequence = self.sequence = self.durable_sequence = -1
        self.last_of_key = {}       # key -> number; of those that a compaction has kept, or that came after it
        self.compacting = None
        self.has_compacted = False
        self.unknown = 0            # takes of which nobody knows what they delivered
        self.getting = set()        # threads
        self.flushing = {}          # thread -> what it makes durable
        self.now_ms = 0
        self.violations = []

    # --- hearing -------------------------------------------------------------------------------

    def hear(self, event):
        thread, word, rest = noted(event)
        match word:
            case "now":
                self.now_ms = max(self.now_ms, rest[0])
            case "opened":
                self._opened(set(rest[0]))
            case "put":
                self._put(*rest)
            case "produce":
                number, sequence, key = rest
                self._put([number], 0, [key])
                self.sequences[number] = sequence
                self.begun_sequence = max(self.begun_sequence, sequence)
                self.is_new = sequence > self.sequence
            case "took":
                self._took(*rest)
            case "reached":
                if not self.is_new:
                    self.violations.append(f"stored sequence id {rest[0]} again")
                self.sequence = max(self.sequence, rest[0])
                if self.fsync == "batch":
                    self.durable_sequence = self.sequence
            case "same" if self.is_new:
                self.violations.append(f"did not store sequence id {rest[0]}, after {self.sequence}")
            case "last":
                if not self.durable_sequence <= rest[0] <= self.begun_sequence:
                    self.violations.append(f"last sequence id {rest[0]}, after {self.durable_sequence}")
                self.sequence = rest[0]
            case "subscribe" | "unsubscribe" | "seek":
                self.changing[rest[0]] = [*rest, None][1], set(self.places)
            case "subscribed":
                self._subscribed(rest[0])
            case "unsubscribed":
                del self.changing[rest[0]], self.subscriptions[rest[0]]
                self.removed.add(rest[0])
            case "sought":
                self._placed(rest[0], Subscription())
            case "get":
                self.getting.add(thread)
            case "got" | "got later":
                self.getting.discard(thread)
                self._got(rest[0], rest[1:], self.now_ms if word == "got" else float("inf"))
            case "ack":
                self.subscriptions[rest[0]].acking |= set(rest[1])
            case "ack up to":
                self.subscriptions[rest[0]].acking |= {
                    number for number, place in self.places.items() if place <= tuple(rest[1])
                }
            case "acked":
                one = self.subscriptions[rest[0]]
                one.acked |= set(rest[1])
                if self.fsync == "batch":
                    one.gone |= set(rest[1])
            case "nack":
                self.subscriptions[rest[0]].refused.add(rest[1])
            case "compact":
                self.compacting = self._last_that_are_kept()
            case "compacted":
                self.last_of_key = self.compacting
                self.compacting, self.has_compacted = None, True
            case "flush" | "close":
                acked = [(one, set(one.acked)) for one in self.subscriptions.values()]
                self.flushing[thread] = set(self.places), acked, self.sequence
            case "flushed" | "closed":
                taken, acked, sequence = self.flushing.pop(thread)
                self.durable |= taken
                self.durable_sequence = max(self.durable_sequence, sequence)
                for one, numbers in acked:
                    one.gone |= numbers
            case "failed":
                self._failed()
            case "dead" if not self.faults_go_on:
                self.violations.append(f"the topic could not be opened again: {rest[0]}")

    def _opened(self, names):
        """A subscription whose making or removal failed is there or not, as is one whose call a kill ended; the others
        are as they were.
        """
        self._failed()
        known = {name for name, one in self.subscriptions.items() if one.is_known}
        if lost := known - names:
            self.violations.append(f"subscriptions are gone: {sorted(lost)}")
        if back := names & self.removed:
            self.violations.append(f"subscriptions are there after they were removed: {sorted(back)}")
        for name in names - self.subscriptions.keys():
            self.subscriptions[name] = Subscription(is_known=False)
        for name in self.subscriptions.keys() - names:
            del self.subscriptions[name]

    def _put(self, numbers, due_ms, keys):
        self.due |= dict.fromkeys(numbers, due_ms)
        self.keys |= dict(zip(numbers, keys, strict=True))
        there = [one for name, one in self.subscriptions.items() if name not in self.changing]
        self.hearing |= dict.fromkeys(numbers, there)

    def _took(self, numbers, places):
        for number, place in zip(numbers, places, strict=True):
            self.places[number] = tuple(place)
            key = self.keys[number]
            if self.has_compacted and key is not None and not self._is_before(number, self.last_of_key.get(key)):
                self.last_of_key[key] = number
            for one in self.hearing.pop(number):
                one.owed.add(number)
        if self.fsync == "batch":
            self.durable |= set(numbers)

    def _is_before(self, number, other):
        """Also in one entry."""
        return other is not None and (self.places[number], number) < (self.places[other], other)

    def _last_that_are_kept(self):
        """The last message of each key, if it is certainly there."""
        last = {}
        for number in self.places:
            key = self.keys[number]
            if key is not None and not self._is_before(number, last.get(key)):
                last[key] = number
        owed = set().union(*(one.owed - one.acking for one in self.subscriptions.values()))
        return {key: number for key, number in last.items() if number in owed or self.last_of_key.get(key) == number}

    def _subscribed(self, name):
        if name in self.subscriptions:
            del self.changing[name]
        else:
            self.removed.discard(name)
            start, taken = self.changing[name]
            self.changing[name] = "latest" if start == "latest" else [-1, -1], taken
            self._placed(name, Subscription())

    def _placed(self, name, one):
        """A subscription begins at a place: what comes after is owed, if it is certainly there."""
        place, taken = self.changing.pop(name)
        kept = set().union(*(other.owed - other.acking for other in self.subscriptions.values()))
        if place == "latest":
            one.gone = taken
        else:
            one.owed = {number for number in kept & taken if self.places[number] >= tuple(place)}
            one.gone = {number for number in taken if self.places[number] < tuple(place)}
        self.subscriptions[name] = one

    def _got(self, name, given, now_ms):
        one = self.subscriptions[name]
        for number, attempt in given:
            one.attempts[number] = max(one.attempts[number] + 1, attempt)
            if number not in self.due:
                self.violations.append(f"{name} was given {number}, which was never published")
            elif self.due[number] > now_ms:
                self.violations.append(f"{name} was given {number} at {now_ms}, before {self.due[number]}")
            if number in one.gone:
                self.violations.append(f"{name} was given {number} after its acknowledgement")
            if attempt >= 2:
                one.refused.add(number)     # its lease may end at the last attempt

    def _failed(self):
        self.unknown += len(self.getting)
        self.getting.clear()
        self.flushing.clear()
        self.hearing.clear()
        self.compacting = None
        for name in self.changing:
            self.removed.discard(name)
            self.subscriptions[name] = Subscription(is_known=False)
        self.changing.clear()

    def after_power_cut(self):
        """The same witness, to hear the process that comes after a power cut: only what is durable has to be there."""
        self.places = {number: place for number, place in self.places.items() if number in self.durable}
        for one in self.subscriptions.values():
            one.acked &= one.gone
        self.last_of_key = {key: number for key, number in self.last_of_key.items() if number in self.durable}
        self.sequence = self.durable_sequence
        self._failed()
        self.unknown += 1
        self.violations = []
        return self

    def task(self, path):
        return {
            "path": f"{path}/topic", "fsync": self.fsync, "now": self.now_ms, "sequence": self.durable_sequence,
            "has_producer": self.begun_sequence >= 0,
        }

    # --- judging ---------------------------------------------------------------------------------

    def check(self, facts):
        if "error" in facts:
            return [facts["error"]]
        wrong, found = list(facts["wrong"]), facts["subscriptions"]
        certain = {name for name, one in self.subscriptions.items() if one.is_known} - self.changing.keys()
        if lost := certain - found.keys():
            wrong.append(f"subscriptions are gone: {sorted(lost)}")
        if back := (self.removed - self.changing.keys()) & found.keys():
            wrong.append(f"subscriptions are there after they were removed: {sorted(back)}")
        for name, there in found.items():
            is_certain = name in certain
            wrong += [f"{name}: {what}" for what in self._check(self.subscriptions.get(name), there, is_certain)]
        wrong += self._check_sequence(facts) + self._check_compacted(facts["compacted"])
        return wrong

    def _check(self, one, found, is_certain):
        numbers = [number for number, _ in found["left"]] + found["dead"]
        there = set(numbers)
        if len(there) != len(numbers):
            yield f"there twice: {sorted(n for n, times in Counter(numbers).items() if times > 1)[:5]}"
        if invented := there - set(self.due):
            yield f"never published: {sorted(invented)[:5]}"
        if early := [number for number in found["now"] if self.due.get(number, 0) > self.now_ms]:
            yield f"given too early: {early[:5]}"
        if not is_certain:
            return
        if lost := (one.owed & self.durable) - one.acking - there:
            yield f"lost although durable: {sorted(lost)[:5]}"
        if again := one.gone & there:
            yield f"there after their acknowledgement: {sorted(again)[:5]}"
        if dead := set(found["dead"]) - one.refused:
            yield f"dead although nobody refused them: {sorted(dead)[:5]}"
        unknown = self.unknown + len(self.getting)
        for number, attempt in found["left"]:
            if attempt > one.attempts[number] + unknown + 1:
                yield f"attempt {attempt} of {number}, which was given {one.attempts[number]} times"

    def _check_sequence(self, facts):
        last = facts["last_sequence"]
        if last is None:
            return []
        wrong = []
        if not self.durable_sequence <= last <= self.begun_sequence:
            wrong.append(f"last sequence id {last}, after {self.durable_sequence}")
        stored = set(facts["stored"])
        owed = set().union(*(one.owed - one.acking for one in self.subscriptions.values()))
        # Those that a power cut took: whoever publishes them again must not be told that they are there.
        if lost := [number for number, its in self.sequences.items() if its <= last and number in owed - stored]:
            wrong.append(f"messages are lost, and not wanted again: {lost[:5]}")
        return wrong

    def _check_compacted(self, found):
        wrong, there = [], dict(found)
        for key, number in self.last_of_key.items():
            if number not in self.durable:
                continue
            if key not in there:
                wrong.append(f"a compaction lost {key}, which was {number}")
            elif there[key] in self.places and self._is_before(there[key], number):
                wrong.append(f"a compaction shows {there[key]} for {key}, before {number}")
        return wrong
