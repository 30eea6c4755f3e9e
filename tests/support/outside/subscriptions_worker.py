"""A process that publishes to a topic, and takes, finishes and moves for its subscriptions, and notes each call.

    recording.run("support.outside.subscriptions_worker", '{"path": "disk/topic", "kind": "subscriptions", ...}')

A message is told by its number, a place is [ledger, entry]. Notes (notes.py; the witness is subscriptions_witness.py):

    now MS                      the clock is set to this
    opened NAMES                opened (again), with these subscriptions
    put NUMBERS DUE KEYS        are about to be published, due then; then
    took NUMBERS PLACES         they were
    produce NUMBER SEQUENCE KEY     the same with a sequence id; then `took` and `reached SEQUENCE`, or `same`
    last SEQUENCE               the last one of the producer, at an opening
    subscribe NAME START, subscribed NAME; unsubscribe NAME, unsubscribed NAME
    seek NAME PLACE, sought NAME; PLACE may be "latest"
    get NAME, got NAME [NUMBER, ATTEMPT]...; `got later`: by a judge that set its own clock
    ack NAME NUMBERS, acked NAME NUMBERS    also of dead ones that are purged
    ack up to NAME PLACE        then `acked` with those that were certainly delivered before
    nack NAME NUMBER, nacked NAME NUMBER; requeue NAME, requeued NAME
    compact, compacted; flush, flushed; close, closed
    failed WHAT, dead WHAT      as in log_worker.py
"""
from collections import defaultdict

import seglog
from seglog.clock import ManualClock
from seglog.errors import LeaseLostError
from seglog.pulsar import Position
from seglog.queue import journaled_ledger, sequences
from support.outside.queue_worker import BEGIN_MS, CHECKPOINT_BYTES, MAX_ATTEMPTS, number_of, value_of
from support.outside.worker import Worker

# Small, so that ledgers roll and are trimmed, and journals and stored sequence ids are replaced, all the time.
CONFIG = {"managedLedgerMaxEntriesPerLedger": 6, "flush.ms": 20}
SNAPSHOT_ENTRIES = 5
BUCKETS = {"enableBucketDelayedDeliveryTracker": True, "delayedDeliveryMinIndexCountPerBucket": 2}
# How delayed messages are tracked: it may be another way after each opening.
TRACKERS = (
    {"enableBucketDelayedDeliveryTracker": False}, BUCKETS, BUCKETS | {"enableShareDelayedMessageIndex": True},
)
OPTIONS = {"lease": 100, "max_attempts": MAX_ATTEMPTS, "retry_delay": 2, "max_retry_delay": 200, "retry_jitter": 0}
# The subscriptions that there may be. Of the kinds in order, `ack up to` is for.
KIND_OF = {
    "one": "exclusive", "two": "shared", "three": "key_shared", "four": "failover", "five": "exclusive",
    "six": "shared",
}
PRODUCER = "importer"
WEIGHTS = {
    "subscriptions": {
        "add": 34, "take": 34, "ack": 22, "ack up to": 8, "nack": 9, "pass time": 7, "subscribe": 8, "leave": 3,
        "unsubscribe": 2, "seek": 4, "requeue": 3, "purge dead": 2, "flush": 3, "reopen": 4,
    },
    "producers": {
        "add": 14, "produce": 26, "take": 26, "ack": 26, "ack up to": 6, "subscribe": 6, "compact": 5, "seek": 2,
        "leave": 1, "flush": 3, "reopen": 5,
    },
}


class SubscriptionsWorker(Worker):
    def __init__(self, path, kind, seed, fsync, threads, steps):
        super().__init__(path, kind, seed, fsync, threads, steps)
        journaled_ledger.CHECKPOINT_BYTES = CHECKPOINT_BYTES
        sequences.SNAPSHOT_ENTRIES = SNAPSHOT_ENTRIES
        self.weights = WEIGHTS[kind]
        self.beside = tuple(deed for deed in self.weights if deed not in ("add", "reopen"))
        self.clock = ManualClock(BEGIN_MS)
        self.openings = seed
        self.topic = None
        self.places = []        # of entries that were published

    # --- there and back ------------------------------------------------------------------------

    def open(self):
        self.note("now", self.clock.now_ms())
        self.consumers, self.out = {}, []
        # Of each subscription, what was delivered since something may have been given back.
        self.sure = defaultdict(set)
        self.openings += 1
        self.topic = seglog.Topic(
            self.path, fsync=self.fsync, clock=self.clock, config=CONFIG | TRACKERS[self.openings % len(TRACKERS)]
        )
        self.note("opened", self.topic.subscriptions)
        if self.kind == "producers":
            with self.topic.producer(PRODUCER) as producer:
                self.note("last", producer.last_sequence_id)

    def close(self):
        self.note("close")
        self.let_go()
        self.note("closed")

    def let_go(self):
        if self.topic is not None:
            self.topic.close()

    # --- deeds -----------------------------------------------------------------------------------

    def add(self, chance):
        numbers = self.numbers(chance.choice([1, 1, 1, 2, 4]))
        keys = [chance.choice([None, "a", "b", "c"]) for _ in numbers]
        delay_s = chance.choice([0, 0, 0, 1, 50, 5000])
        self.note("put", numbers, self.clock.now_ms() + 1000 * delay_s, keys)
        if len(numbers) == 1:
            ids = [self.topic.publish(value_of(numbers[0]), key=keys[0], delay=delay_s or None)]
        else:
            pairs = [(key, value_of(number)) for key, number in zip(keys, numbers, strict=True)]
            ids = self.topic.publish_many(pairs, delay=delay_s or None)
        self.took(numbers, ids)

    def took(self, numbers, ids):
        places = [[*map(int, id_.split(":")[:2])] for id_ in ids]
        self.note("took", numbers, places)
        self.places += places

    def produce(self, chance):
        [number], key = self.numbers(1), chance.choice([None, "a", "b"])
        with self.topic.producer(PRODUCER) as producer:
            sequence = max(producer.last_sequence_id + chance.choice([-1, 0, 1, 1, 1, 3]), 0)
            self.note("produce", number, sequence, key)
            id_ = producer.publish(value_of(number), sequence_id=sequence, key=key)
            if id_ is None:
                self.note("same", sequence)
            else:
                self.took([number], [id_])
                self.note("reached", sequence)

    def forget(self, name):
        """What the consumer has taken comes back, or is over."""
        self.out = [one for one in self.out if one[0] != name]
        self.sure.pop(name, None)

    def do(self, deed, chance):
        name = chance.choice(list(self.consumers or KIND_OF))
        consumer = self.consumers.get(name)
        match deed:
            case "add":
                self.add(chance)
            case "produce":
                self.produce(chance)
            case "subscribe":
                name = chance.choice(list(KIND_OF))
                if name not in self.consumers:
                    start = chance.choice(["earliest", "latest"])
                    self.note("subscribe", name, start)
                    self.consumers[name] = self.topic.subscribe(name, kind=KIND_OF[name], start=start, **OPTIONS)
                    self.note("subscribed", name)
            case "pass time":
                self.clock.advance(chance.choice([1_000, 3_000, 120_000]))
                self.sure.clear()
                self.note("now", self.clock.now_ms())
            case "compact":
                self.note("compact")
                self.topic.compact()
                self.note("compacted")
            case "flush":
                self.note("flush")
                self.topic.flush()
                self.note("flushed")
            case "reopen":
                self.reopen()
            case _ if consumer is not None:
                self.consume(deed, name, consumer, chance)

    def consume(self, deed, name, consumer, chance):
        mine = [one for one in self.out if one[0] == name]
        match deed:
            case "take":
                self.note("get", name)
                taken = consumer.get_many(chance.choice([1, 1, 3]), timeout=0)
                self.note("got", name, *([number_of(message), message.attempt] for message in taken))
                self.out += [(name, message) for message in taken]
                self.sure[name] |= {(message.position, number_of(message)) for message in taken}
            case "ack" if mine:
                some = [mine.pop(chance.randrange(len(mine))) for _ in range(min(len(mine), 2))]
                self.out = [one for one in self.out if one not in some]
                numbers = [number_of(message) for _, message in some]
                self.note("ack", name, numbers)
                consumer.ack([message for _, message in some])
                self.note("acked", name, numbers)
            case "ack up to" if mine and consumer.kind in ("exclusive", "failover"):
                one = chance.choice(mine)
                self.out.remove(one)
                message = one[1]
                before = {number for position, number in self.sure[name] if position < message.position}
                self.note("ack up to", name, message.position)
                message.ack_cumulative()
                self.note("acked", name, [*before, number_of(message)])
            case "nack" if mine:
                one = chance.choice(mine)
                self.out.remove(one)
                self.sure.pop(name, None)
                number = number_of(one[1])
                self.note("nack", name, number)
                try:
                    one[1].nack(delay=chance.choice([None, 0, 500]))
                except LeaseLostError:
                    return
                self.note("nacked", name, number)
            case "leave":
                del self.consumers[name]
                self.forget(name)
                consumer.close()
            case "unsubscribe":
                self.note("unsubscribe", name)
                consumer.unsubscribe()
                del self.consumers[name]
                self.forget(name)
                self.note("unsubscribed", name)
            case "seek":
                where = chance.choice(["earliest", "latest", "place"])
                if where == "place" and self.places:
                    place = chance.choice(self.places[-12:])
                    self.note("seek", name, place)
                    consumer.seek(Position(*place))
                else:
                    self.note("seek", name, "latest" if where == "latest" else [-1, -1])
                    consumer.seek("latest" if where == "latest" else "earliest")
                self.forget(name)
                self.note("sought", name)
            case "requeue":
                self.sure.pop(name, None)
                self.note("requeue", name)
                consumer.dead.requeue()
                self.note("requeued", name)
            case "purge dead":
                numbers = [number_of(message) for message in consumer.dead]
                self.note("ack", name, numbers)
                consumer.dead.purge()
                self.note("acked", name, numbers)


def main():
    SubscriptionsWorker.main()
