"""A topic beside a model of it: each step is made in both, and the answers are compared.

The model knows nothing of entries, journals or leases: for each subscription a dictionary of the messages that are not
acknowledged, in the order of the topic, and what may be delivered when.
"""
from collections import Counter
from dataclasses import dataclass, field

import seglog
from seglog.clock import ManualClock
from seglog.errors import LeaseLostError, SubscriptionBusyError

LEASE_S, MAX_ATTEMPTS, RETRY_S = 10, 3, 2
CONFIG = {"managedLedgerMaxEntriesPerLedger": 4}
NOW = 1_700_000_000_000
NAMES = ("billing", "search", "mail", "audit")
KINDS = ("exclusive", "failover", "shared", "key_shared")
IN_ORDER = ("exclusive", "failover")


@dataclass
class Published:
    """A message of the topic. `place`: ledger, entry, and number in its batch or -1."""

    value: bytes
    key: str | None
    place: tuple
    due_ms: int
    is_delayed: bool


@dataclass
class Delivery:
    """A message of a subscription that is not acknowledged."""

    message: Published
    due_ms: int
    attempts: int = 0
    lease_ms: int | None = None
    holder: object = None
    is_dead: bool = False
    was_delivered: bool = False

    def is_out(self, now_ms):
        return self.lease_ms is not None and self.lease_ms > now_ms

    def is_over(self, now_ms):
        """Dead, or found dead as soon as a consumer comes to it."""
        return self.is_dead or (self.attempts >= MAX_ATTEMPTS and not self.is_out(now_ms) and self.due_ms <= now_ms)


@dataclass
class Promises:
    """What callers were told of each subscription: a crash may not take it back."""

    published: set = field(default_factory=set)
    begun: set = field(default_factory=set)
    # Subscription -> values that it owes, has got acknowledged, or whose acknowledgement began.
    owed: dict = field(default_factory=dict)
    acked: dict = field(default_factory=dict)
    begun_acks: dict = field(default_factory=dict)
    # Being moved or removed: nothing is known.
    unsure: set = field(default_factory=set)
    deliveries: Counter = field(default_factory=Counter)
    # The last sequence id of the named producer, and of its calls.
    sequence: int = -1
    begun_sequence: int = -1

    def copy(self):
        return Promises(
            set(self.published), set(self.begun), {name: set(one) for name, one in self.owed.items()},
            {name: set(one) for name, one in self.acked.items()},
            {name: set(one) for name, one in self.begun_acks.items()}, set(self.unsure),
            Counter(self.deliveries), self.sequence, self.begun_sequence,
        )


class TopicBeside:
    """The topic and the model. `told` is called with the promises around each step."""

    def __init__(self, path, *, fs=None, told=lambda promises: None, config=CONFIG):
        self.path, self.fs, self.told, self.config = path, fs, told, config
        self.clock = ManualClock(NOW)
        self.messages: list[Published] = []
        self.subscriptions: dict[str, dict[bytes, Delivery]] = {}
        self.kinds: dict[str, str] = {}
        self.consumers: list[seglog.Consumer] = []
        self.out: list[tuple[str, seglog.Message]] = []
        self.promises = Promises()
        self.sequence = -1
        self.number = 0
        self.topic = self.opened()

    def opened(self):
        return seglog.Topic(self.path, clock=self.clock, fs=self.fs, config=self.config)

    def tell(self):
        self.told(self.promises)

    # --- publishing --------------------------------------------------------------------------

    def new_values(self, count):
        values = [b"message %d" % (self.number + n) for n in range(count)]
        self.number += count
        self.promises.begun.update(values)
        self.tell()
        return values

    def note(self, value, key, id_, delay_s):
        parts = [int(part) for part in id_.split(":")]
        place = (*parts, -1) if len(parts) == 2 else tuple(parts)
        message = Published(value, key, place, self.clock.now_ms() + delay_s * 1000, delay_s > 0)
        self.messages.append(message)
        for name, waiting in self.subscriptions.items():
            waiting[value] = Delivery(message, message.due_ms)
            self.promises.owed[name].add(value)
        self.promises.published.add(value)

    def publish(self, number, delay_s=0):
        [value] = self.new_values(1)
        key = [None, "a", "b", "c"][number % 4]
        self.note(value, key, self.topic.publish(value, key=key, delay=delay_s or None), delay_s)
        self.tell()

    def publish_many(self, number):
        values = self.new_values(1 + number % 5)
        pairs = [(["a", "b", None][(number + n) % 3], value) for n, value in enumerate(values)]
        delay_s = (number % 2) * 3
        ids = self.topic.publish_many(pairs, delay=delay_s or None)
        for (key, value), id_ in zip(pairs, ids, strict=True):
            self.note(value, key, id_, delay_s)
        self.tell()

    def publish_numbered(self, number):
        sequence = self.sequence + (number % 5) - 2
        if sequence < 0:
            return
        self.promises.begun_sequence = max(sequence, self.sequence)
        [value] = self.new_values(1)
        with self.topic.producer("numbered") as producer:
            assert producer.last_sequence_id == self.sequence
            id_ = producer.publish(value, sequence_id=sequence, key="a")
        assert (id_ is None) == (sequence <= self.sequence)
        if id_ is not None:
            self.sequence = self.promises.sequence = sequence
            self.note(value, "a", id_, 0)
        self.tell()

    def start_numbers(self):
        if self.sequence < 0:
            self.promises.begun_sequence = 0
            [value] = self.new_values(1)
            with self.topic.producer("numbered") as producer:
                id_ = producer.publish(value, key="b")
            self.sequence = self.promises.sequence = 0
            self.note(value, "b", id_, 0)
            self.tell()

    # --- subscriptions -----------------------------------------------------------------------

    def subscribe(self, number):
        name, kind = NAMES[number % 4], KINDS[number // 4 % 4]
        known = name in self.subscriptions
        others = [one for one in self.consumers if one.name == name]
        if len(self.consumers) > 6:
            return
        start = "earliest" if number % 3 else "latest"
        self.promises.unsure.add(name)
        self.tell()
        try:
            consumer = self.topic.subscribe(
                name, kind=kind, start=start, lease=LEASE_S, max_attempts=MAX_ATTEMPTS, retry_delay=RETRY_S,
                max_retry_delay=8, retry_jitter=0, chance=chance,
            )
        except SubscriptionBusyError:
            assert others
            assert self.kinds[name] != kind or kind == "exclusive"
            self.promises.unsure.discard(name)
            return
        assert not others or (self.kinds[name] == kind and kind != "exclusive")
        self.kinds[name] = kind
        self.consumers.append(consumer)
        if not known:
            self.begin(name, self.kept() if start == "earliest" else [])
        self.promises.unsure.discard(name)
        self.tell()

    def kept(self):
        """The messages that are there: what all subscriptions have acknowledged may be gone."""
        first = self.topic._home.managed_ledger.first_position
        return [] if first is None else [one for one in self.messages if one.place[:2] >= tuple(first)]

    def begin(self, name, messages):
        self.subscriptions[name] = {one.value: Delivery(one, one.due_ms) for one in messages}
        self.promises.owed[name] = {one.value for one in messages}
        self.promises.acked[name] = set()
        self.promises.begun_acks[name] = set()

    def chosen(self, number):
        return self.consumers[number % len(self.consumers)] if self.consumers else None

    def leave(self, number):
        consumer = self.chosen(number)
        if consumer is not None:
            self.consumers.remove(consumer)
            consumer.close()
            self.let_go(consumer)

    def let_go(self, consumer):
        for one in self.subscriptions.get(consumer.name, {}).values():
            if one.holder is consumer:
                one.lease_ms = one.holder = None

    def unsubscribe(self, number):
        consumer = self.chosen(number)
        if consumer is None:
            return
        if [one for one in self.consumers if one.name == consumer.name] != [consumer]:
            return
        name = consumer.name
        self.promises.unsure.add(name)
        self.tell()
        consumer.unsubscribe()
        self.consumers.remove(consumer)
        del self.subscriptions[name]
        self.out = [one for one in self.out if one[0] != name]
        for told in (self.promises.owed, self.promises.acked, self.promises.begun_acks):
            told.pop(name)
        self.promises.unsure.discard(name)
        self.tell()

    def seek(self, number):
        consumer = self.chosen(number)
        kept = self.kept()
        if consumer is None or not kept:
            return
        name, target = consumer.name, kept[number * 7 % len(kept)]
        self.promises.unsure.add(name)
        self.tell()
        match number % 3:
            case 0:
                consumer.seek("earliest")
                place = (-1, -1)
            case 1:
                consumer.seek(seglog.pulsar.Position(*target.place[:2]))
                place = target.place[:2]
            case _:
                index = self.messages.index(target)
                consumer.seek(index)
                place = target.place[:2]
        self.begin(name, [one for one in kept if one.place[:2] >= place])
        self.out = [one for one in self.out if one[0] != name]
        self.promises.unsure.discard(name)
        self.tell()

    # --- taking ------------------------------------------------------------------------------

    def end_leases(self, name):
        """What a consumer that looks finds: in order, what comes after an ended lease comes back, too."""
        waiting, now = self.subscriptions[name], self.clock.now_ms()
        ended = [one for one in waiting.values() if one.lease_ms is not None and one.lease_ms <= now]
        for one in ended:
            one.lease_ms = one.holder = None
        if ended and self.kinds[name] in IN_ORDER:
            self.give_back_after(name, min(one.message.place for one in ended))

    def give_back_after(self, name, place):
        for one in self.subscriptions[name].values():
            if one.lease_ms is not None and one.message.place > place:
                one.lease_ms = one.holder = None
                one.attempts -= 1

    def get(self, number, count=1):
        consumer = self.chosen(number)
        if consumer is None:
            return []
        name, now = consumer.name, self.clock.now_ms()
        active = self.kinds[name] != "failover" or next(
            one for one in self.consumers if one.name == name) is consumer
        if active:
            self.end_leases(name)
        waiting = self.subscriptions[name]
        before = {value: one.is_out(now) for value, one in waiting.items()}
        got = consumer.get_many(count, timeout=0)
        assert active or not got
        for message in got:
            one = waiting[message.value]        # KeyError: after its acknowledgement
            assert not before[message.value], (message, one)
            assert not one.is_over(now), (message, one)
            assert one.due_ms <= now, (message, one)
            self.check_order(name, one, now)
            one.attempts += 1
            one.was_delivered = True
            assert message.attempt == one.attempts, (message, one)
            assert message.key == one.message.key
            one.lease_ms, one.holder = now + LEASE_S * 1000, consumer
            self.promises.deliveries[name, message.value] += 1
            self.out.append((name, message))
        if active and len(got) < count:
            left = [one for one in waiting.values() if self.must_come(name, one, now)]
            assert not left, (name, self.kinds[name], left, got)
        self.tell()
        return got

    def check_order(self, name, one, now):
        kind = self.kinds[name]
        others = [other for other in self.subscriptions[name].values() if other is not one and not other.is_over(now)]
        if kind == "key_shared" and one.message.key is not None:
            others = [other for other in others if other.message.key == one.message.key]
            assert not any(other.is_out(now) for other in others), (one, others)
        elif kind not in IN_ORDER:
            return
        earlier = [other for other in others if other.message.place < one.message.place]
        if not one.message.is_delayed:
            wrong = [other for other in earlier if not other.message.is_delayed and not other.is_out(now)]
            assert not wrong, (one, wrong)

    def must_come(self, name, one, now):
        """Whether it is deliverable, whatever comes first."""
        if one.is_out(now) or one.is_over(now) or one.due_ms > now:
            return False
        kind = self.kinds[name]
        others = [other for other in self.subscriptions[name].values() if other is not one and not other.is_over(now)]
        if kind == "key_shared" and one.message.key is not None:
            others = [other for other in others if other.message.key == one.message.key]
            if any(other.is_out(now) for other in others):
                return False
        elif kind not in IN_ORDER:
            return True
        return not any(
            other.message.place < one.message.place and not other.is_out(now)
            and (other.attempts or other.was_delivered or other.due_ms <= now)
            for other in others
        )

    # --- finishing ---------------------------------------------------------------------------

    def picked(self, number, *, is_kept=False):
        if not self.out:
            return None, None
        return self.out[number % len(self.out)] if is_kept else self.out.pop(number % len(self.out))

    def ack(self, number):
        name, message = self.picked(number)
        if message is None:
            return
        self.promises.begun_acks[name].add(message.value)
        self.tell()
        message.ack()
        self.acked(name, message.value)
        self.tell()

    def acked(self, name, value):
        self.subscriptions[name].pop(value, None)
        self.promises.owed[name].discard(value)
        self.promises.acked[name].add(value)

    def ack_cumulative(self, number):
        name, message = self.picked(number)
        if message is None:
            return
        if self.kinds[name] not in IN_ORDER or not [one for one in self.consumers if one.name == name]:
            self.out.append((name, message))
            return
        dead = {one.value for one in self.consumer_of(name).dead}
        ends = [
            value for value, one in self.subscriptions[name].items()
            if one.message.place <= message._at and value not in dead and one.attempts
        ]
        if message.value in self.subscriptions[name]:
            ends.append(message.value)
        self.promises.begun_acks[name].update(ends)
        self.tell()
        message.ack_cumulative()
        for value in ends:
            self.acked(name, value)
        self.tell()

    def consumer_of(self, name):
        return next(one for one in self.consumers if one.name == name)

    def nack(self, number, delay_s=None):
        name, message = self.picked(number)
        if message is None:
            return
        one = self.subscriptions[name].get(message.value)
        has_lease = one is not None and one.lease_ms is not None and one.attempts == message.attempt
        try:
            message.nack(delay_s)
        except LeaseLostError:
            assert not has_lease or not one.is_out(self.clock.now_ms())
            return
        assert has_lease
        one.lease_ms = one.holder = None
        if one.attempts >= MAX_ATTEMPTS:
            one.is_dead = True
        else:
            wait_s = min(RETRY_S * 2 ** (one.attempts - 1), 8) if delay_s is None else delay_s
            one.due_ms = self.clock.now_ms() + wait_s * 1000
            if self.kinds[name] in IN_ORDER:
                self.give_back_after(name, one.message.place)
        self.tell()

    def requeue(self, number):
        consumer = self.chosen(number)
        if consumer is None:
            return
        waiting = self.subscriptions[consumer.name]
        for dead in consumer.dead.peek(1000):
            one = waiting[dead.value]
            assert one.is_dead or one.attempts >= MAX_ATTEMPTS
            one.is_dead, one.attempts, one.due_ms, one.lease_ms = False, 0, self.clock.now_ms(), None
        consumer.dead.requeue()
        self.tell()

    def release(self, number):
        name, message = self.picked(number)
        if message is None or name not in {one.name for one in self.consumers}:
            return
        one = self.subscriptions[name].get(message.value)
        now = self.clock.now_ms()
        if one is not None and one.lease_ms is not None and one.attempts == message.attempt and one.lease_ms <= now:
            return      # it depends on whether a consumer looked
        self.consumer_of(name).release([message])
        if one is not None and one.lease_ms is not None and one.attempts == message.attempt:
            one.lease_ms = one.holder = None
            one.attempts -= 1

    # --- the whole ---------------------------------------------------------------------------

    def reopen(self):
        self.topic.close()
        self.out.clear()
        self.consumers.clear()
        for waiting in self.subscriptions.values():
            for one in waiting.values():
                one.lease_ms = one.holder = None
        self.topic = self.opened()
        assert self.topic.subscriptions == sorted(self.subscriptions)
        self.tell()

    def check(self):
        now = self.clock.now_ms()
        for consumer in self.consumers:
            waiting, stats = self.subscriptions[consumer.name], consumer.stats()
            dead = {one.value for one in consumer.dead}
            assert {value for value, one in waiting.items() if one.is_dead} <= dead
            assert dead <= {value for value, one in waiting.items() if one.is_dead or one.attempts >= MAX_ATTEMPTS}
            assert stats.backlog + stats.dead == len(waiting), (stats, waiting)
            assert stats.dead == len(dead)
            assert stats.in_flight <= sum(one.lease_ms is not None for one in waiting.values())
            assert {one.value for one in consumer.peek(1000)} <= waiting.keys() - dead
            assert stats.in_flight >= sum(one.is_out(now) for one in waiting.values() if not one.is_dead) or \
                self.kinds[consumer.name] in IN_ORDER

    STEPS = (
        "publish", "publish", "publish", "publish_delayed", "publish_many", "publish_numbered", "subscribe",
        "subscribe", "leave", "get", "get", "get", "get", "get_three", "ack", "ack", "ack", "ack", "ack_cumulative",
        "nack", "nack", "nack_soon", "advance", "advance_long", "requeue", "check", "finish", "finish", "finish",
        "finish", "reopen", "release",
    )
    RARE = ("seek", "unsubscribe", "start_numbers")

    def step(self, name, number):
        match name:
            case "publish_delayed":
                self.publish(number, 1 + number % 15)
            case "get_three":
                self.get(number, 3)
            case "finish":
                for _ in self.get(number, 1 + number % 6):
                    self.ack(-1)
            case "nack_soon":
                self.nack(number, number % 2)
            case "advance":
                self.clock.advance((1 + number % 3) * 1000)
            case "advance_long":
                self.clock.advance(12_000)
            case "reopen" | "start_numbers" | "check":
                getattr(self, name)()
            case _:
                getattr(self, name)(number)


def left_in(topic, name, clock):
    """(values that a subscription still delivers, with the attempt of each; those that are dead), taken out of it."""
    attempts, dead = {}, {}
    with topic.subscribe(name, kind="shared", max_attempts=None, lease=10**6) as consumer:
        for message in consumer.dead.peek(10_000):
            dead[message.value] = message.attempt
        clock.advance(3_600_000)
        while messages := consumer.get_many(100, timeout=0):
            for message in messages:
                assert message.value not in attempts
                attempts[message.value] = message.attempt
                message.ack(wait=False)
    return attempts, dead


def chance():
    """One function for all: consumers of a subscription have the same options."""
    return 0.0
