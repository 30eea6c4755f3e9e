"""A process that changes a managed ledger, its cursors and its delayed messages, and notes each call.

    recording.run("support.outside.topic_worker", '{"path": "disk/topic", "kind": "cursors", "seed": 1, ...}')

A position is [ledger id, entry id]. Notes (notes.py; the witness is topic_witness.py):

    has ENTRIES CURSORS     opened (again): [ledger, entry, number] each, and {cursor: acknowledged positions}
    give NUMBERS DUE        entries are about to be added, due then (0: not delayed); then
    took NUMBERS POSITIONS  they were
    flush, flushed          flush() or roll() of the topic; close, closed
    cursor NAME, opened NAME
    ack NAME POSITIONS, acked NAME      acknowledge(_many); `mark NAME POSITION`, acked NAME: mark_delete
    seek NAME POSITION, sought NAME
    save NAME, saved NAME   Cursor.flush
    now MS                  the clock is set to this
    got POSITIONS           the dispatcher gave these
    cancel POSITION, cancelled POSITION ANSWER
    move POSITION MS, moved POSITION MS ANSWER      reschedule
    failed WHAT, dead WHAT  as in log_worker.py
"""
from operator import itemgetter

from seglog.clock import ManualClock
from seglog.delayed.amendments import Amendments
from seglog.ledger.entry import build_entry
from seglog.ledger.managed.relocated_entries import RelocatedHome, positions_aside
from seglog.pulsar import DelayedDelivery, ManagedLedger, Position
from seglog.pulsar_pb.entry_pb2 import MessageMetadata
from seglog.topic.delayed_index import BUILDING_CURSOR
from support.outside.worker import Worker

CONFIG = {
    "managedLedgerMaxEntriesPerLedger": 12, "brokerEntryMetadataInterceptors": "timestamp,index", "flush.ms": 20,
    "managedLedgerDefaultMarkDeleteRateLimit": 0,
}
# Small buckets, so that snapshots are made, merged and deleted all the time.
DELAYED = {
    "delayedDeliveryMinIndexCountPerBucket": 6, "delayedDeliveryLedgerStepPerBucket": 2,
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": 4, "delayedDeliveryTimeStepPerBucketSnapshotSeconds": 20,
    "delayedDeliveryMaxNumBuckets": 3,
}
# Kinds whose messages are delayed. In the second one a message that alone is left in its ledger is relocated; the seed
# picks the kind of tracker.
DELAYED_KINDS = ("delayed", "relocated")
TRACKERS = ({}, {"enableShareDelayedMessageIndex": True}, {"enableBucketDelayedDeliveryTracker": False})
CURSORS = ("one", "two")
WEIGHTS = {
    "entries": {"add": 90, "flush": 4, "roll": 3, "reopen": 3},
    "cursors": {"add": 55, "ack": 22, "mark": 5, "seek": 3, "save": 4, "roll": 4, "flush": 3, "reopen": 4},
    "delayed": {"add": 50, "read": 14, "pass time": 9, "cancel": 9, "move": 7, "roll": 4, "flush": 3, "reopen": 4},
}
WEIGHTS["relocated"] = {
    "add": 36, "read": 24, "pass time": 20, "cancel": 6, "move": 5, "roll": 4, "flush": 2, "reopen": 4
}
BEGIN_MS = 1_700_000_000_000


def entry_of(number, due_ms):
    metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=BEGIN_MS)
    if due_ms:
        metadata.deliver_at_time = due_ms
    size = number * 131 % 600 if number % 5 else number * 37 % 2500
    return build_entry(metadata, b"%d." % number + b"e" * size)


def number_of(stored):
    """The number of an entry; None if it is none of ours."""
    fields = stored.entry.fields()
    number, due_ms = fields.sequence_id, fields.deliver_at_time or 0
    return number if bytes(stored.headers_and_payload) == entry_of(number, due_ms) else None


def config_of(kind, seed):
    """Of the delayed messages of a kind."""
    return DELAYED if kind == "delayed" else DELAYED | TRACKERS[seed % 3] | {"seglog.delayed.relocate": True}


def positions_in(topic):
    """Of the entries that are in ledgers, and of those that a cursor has set aside."""
    return sorted({entry.position for entry in topic} | set(_aside(topic)))


def _aside(topic):
    """Entries that were relocated, by their positions."""
    home = topic._shared(RelocatedHome)
    relocated = home.join(topic)
    found = {
        position: relocated.read(position) for cursor in topic.cursors.values() for position in positions_aside(cursor)
    }
    home.leave()
    return found


def cancelled_copies(topic, cursor):
    """Entries in no ledger that `cursor` has set aside, and whose cancel is stored and not yet acknowledged: the
    process stopped in between. The next delayed delivery acknowledges them when it opens, and then nobody has them."""
    keepers = [cursor, topic.cursors.get(BUILDING_CURSOR, cursor)]
    decisions = [Amendments() for _ in keepers]
    for amendments, keeper in zip(decisions, keepers, strict=True):
        amendments.read(keeper.properties)
    return {
        position for position in positions_aside(cursor)
        if not topic.is_valid(position) and any(amendments.is_cancelled(*position) for amendments in decisions)
    }


def contents(topic, stored):
    """What `has` tells; `stored`: the entries in ledgers."""
    found = _aside(topic) | {entry.position: entry for entry in stored}
    entries = [[*position, entry and number_of(entry)] for position, entry in sorted(found.items(), key=itemgetter(0))]
    cursors = {
        name: [place[:2] for place in entries if cursor.is_acknowledged(Position(*place[:2]))]
        for name, cursor in topic.cursors.items() if not name.startswith("__")
    }
    return entries, cursors


class TopicWorker(Worker):
    def __init__(self, path, kind, seed, fsync, threads, steps, rate=0):
        super().__init__(path, kind, seed, fsync, threads, steps)
        self.weights = WEIGHTS[kind]
        self.beside = tuple(deed for deed in self.weights if deed not in ("add", "reopen"))
        self.config = CONFIG | {"managedLedgerDefaultMarkDeleteRateLimit": rate}
        if kind == "relocated":
            self.config |= {"managedLedgerMaxEntriesPerLedger": 5}
        self.delivery_config = config_of(kind, seed)
        self.clock = ManualClock(BEGIN_MS)
        self.topic = self.delayed = self.dispatcher = None

    # --- there and back ------------------------------------------------------------------------

    def open(self):
        self.note("now", self.clock.now_ms())
        self.topic = ManagedLedger(self.path, config=self.config, fsync=self.fsync, clock=self.clock)
        self.note("has", *contents(self.topic, list(self.topic)))
        names = CURSORS if self.kind == "cursors" else CURSORS[:1] if self.kind in DELAYED_KINDS else ()
        for name in names:
            if name not in self.topic.cursors:
                self.note("cursor", name)
                self.topic.open_cursor(name, "earliest")
                self.note("opened", name)
        if self.kind in DELAYED_KINDS:
            self.delayed = DelayedDelivery(self.topic, self.delivery_config, clock=self.clock)
            self.dispatcher = self.delayed.dispatcher(self.topic.cursors["one"])

    def close(self):
        self.note("close")
        self.let_go()
        self.note("closed")

    def let_go(self):
        if self.delayed is not None:
            delayed, self.delayed = self.delayed, None
            delayed.close()
        if self.topic is not None:
            self.topic.close()

    # --- deeds -----------------------------------------------------------------------------------

    def add(self, chance):
        numbers = self.numbers(chance.choice([1, 1, 1, 2, 4]))
        now_ms = self.clock.now_ms()
        is_late = self.kind in DELAYED_KINDS and chance.random() < 0.8
        due = [now_ms + chance.choice([1, 20_000, 45_000, 300_000, 3_000_000]) if is_late else 0 for _ in numbers]
        self.note("give", numbers, due)
        entries = [entry_of(*pair) for pair in zip(numbers, due, strict=True)]
        positions = [self.topic.add_entry(entries[0])] if len(entries) == 1 else list(self.topic.add_entries(entries))
        self.note("took", numbers, positions)

    def some(self, chance, count):
        positions = positions_in(self.topic)
        return sorted(chance.sample(positions, min(count, len(positions))))

    def do(self, deed, chance):
        topic = self.topic
        cursor = topic.cursors[chance.choice(CURSORS)] if self.kind == "cursors" else None
        match deed:
            case "add":
                self.add(chance)
            case "flush" | "roll":
                self.note("flush")
                getattr(topic, deed)()
                self.note("flushed")
            case "reopen":
                self.reopen()
            case "ack" if positions := self.some(chance, chance.choice([1, 3, 8])):
                self.note("ack", cursor.name, positions)
                cursor.acknowledge_many(positions)
                self.note("acked", cursor.name)
            case "mark" if positions := self.some(chance, 1):
                self.note("mark", cursor.name, positions[0])
                cursor.mark_delete(positions[0])
                self.note("acked", cursor.name)
            case "seek" if positions := self.some(chance, 1):
                self.note("seek", cursor.name, positions[0])
                cursor.seek(positions[0])
                self.note("sought", cursor.name)
            case "save":
                self.note("save", cursor.name)
                cursor.flush()
                self.note("saved", cursor.name)
            case "pass time":
                self.clock.advance(chance.choice([5_000, 30_000, 400_000]))
                self.note("now", self.clock.now_ms())
            case "read":
                self.read(chance)
            case "cancel" if positions := self.some(chance, 1):
                self.note("cancel", positions[0])
                self.note("cancelled", positions[0], self.dispatcher.cancel(positions[0]))
            case "move" if positions := self.some(chance, 1):
                at_ms = self.clock.now_ms() + chance.choice([10_000, 100_000])
                self.note("move", positions[0], at_ms)
                tracker = self.delayed.tracker(topic.cursors["one"])
                self.note("moved", positions[0], at_ms, tracker.reschedule(*positions[0], at_ms))

    def read(self, chance):
        positions = [entry.position for entry in self.dispatcher.read(chance.choice([1, 10, 100]))]
        self.note("got", positions)
        acknowledged = [position for position in positions if chance.random() < 0.8]
        if acknowledged:
            self.note("ack", "one", acknowledged)
            self.topic.cursors["one"].acknowledge_many(acknowledged)
            self.note("acked", "one")


main = TopicWorker.main
