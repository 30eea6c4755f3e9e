"""Delayed messages: our trackers beside heapq, sortedcontainers and SQLite, in one run."""
import heapq
import random
import sqlite3
from array import array
from collections.abc import Callable
from contextlib import closing

from sortedcontainers import SortedList

from benches.runner import Bench, Goal
from seglog.clock import ManualClock
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.storage import InMemoryBucketSnapshotStorage
from seglog.delayed.worker import InlineWorker
from seglog.pulsar import BucketDelayedDeliveryTracker, InMemoryDelayedDeliveryTracker

NOW = 1_700_000_000_000
LEDGER = 50_000
POLL = 1000
Message = tuple[int, int, int]
Columns = list["array[int]"]
Make = Callable[[], InMemoryDelayedDeliveryTracker]


def messages(count: int) -> list[Message]:
    """(deliver_at, ledger_id, entry_id), with delays of 1 to 25 hours."""
    chance = random.Random(7)
    return [(NOW + 3_600_000 + chance.randrange(86_400_000), 10 + n // LEDGER, n % LEDGER) for n in range(count)]


def in_buckets() -> BucketDelayedDeliveryTracker:
    """As in production: a separate thread seals buckets; its time counts only in the wall time."""
    config = DelayedDeliveryConfig(ledger_step=0)
    return BucketDelayedDeliveryTracker(InMemoryBucketSnapshotStorage(), config, clock=ManualClock(NOW))


def sealing_inline() -> BucketDelayedDeliveryTracker:
    config = DelayedDeliveryConfig(ledger_step=0)
    storage = InMemoryBucketSnapshotStorage()
    return BucketDelayedDeliveryTracker(storage, config, clock=ManualClock(NOW), worker=InlineWorker())


def in_memory() -> InMemoryDelayedDeliveryTracker:
    return InMemoryDelayedDeliveryTracker(clock=ManualClock(NOW))


def add_one_by_one(make: Make, held: list[Message]) -> None:
    with closing(make()) as tracker:
        add = tracker.add_message
        for at, ledger, entry in held:
            add(ledger, entry, at)


def add_columns(make: Make, columns: Columns) -> None:
    with closing(make()) as tracker:
        tracker.add_messages(*columns)


def heap_push(held: list[Message]) -> list[Message]:
    heap: list[Message] = []
    for message in held:
        heapq.heappush(heap, message)
    return heap


def sorted_add(held: list[Message]) -> None:
    found = SortedList()
    for message in held:
        found.add(message)


def sqlite_add(held: list[Message]) -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("create table delayed (at, ledger, entry, primary key (at, ledger, entry)) without rowid")
        db.executemany("insert into delayed values (?, ?, ?)", held)


def full(make: Make, columns: Columns) -> InMemoryDelayedDeliveryTracker:
    """A tracker that contains all messages, all of them due."""
    tracker = make()
    tracker.add_messages(*columns)
    tracker.reconfigure(DelayedDeliveryConfig(ledger_step=0, strict=False, tick_time_ms=100_000_000))
    return tracker


def run(bench: Bench, count: int) -> None:
    held = messages(count)
    columns = [array("q", column) for column in ([m[1] for m in held], [m[2] for m in held], [m[0] for m in held])]
    millions = count / 1e6
    bench.compare(
        "delayed: add", millions, "M msg/s",
        {
            "in memory": lambda: add_one_by_one(in_memory, held),
            "in buckets": lambda: add_one_by_one(in_buckets, held),
            "in memory, columns": lambda: add_columns(in_memory, columns),
            "in buckets, columns": lambda: add_columns(in_buckets, columns),
            "sealed inline, columns": lambda: add_columns(sealing_inline, columns),
            "heapq": lambda: heap_push(held),
            "sortedcontainers": lambda: sorted_add(held),
            "sqlite3": lambda: sqlite_add(held),
        },
        {
            ("in memory, columns", "heapq"): Goal(4),
            ("in buckets", "sortedcontainers"): Goal(1),
            ("in buckets", "sqlite3"): Goal(1),
            ("in buckets, columns", "heapq"): Goal(4),
            ("sealed inline, columns", "heapq"): Goal(),
            ("in memory", "heapq"): Goal(),
        },
    )
    _scheduled(bench, held, columns)


def _scheduled(bench: Bench, held: list[Message], columns: Columns) -> None:
    if not bench.wanted("delayed: scheduled"):
        return
    rounds = bench.repetitions + 1
    contenders: dict[str, Callable[[], object]] = {}
    for name, make in (("in memory", in_memory), ("in buckets", sealing_inline)):
        waiting = [full(make, columns) for _ in range(rounds)]
        contenders[name] = lambda waiting=waiting: _drain(waiting.pop())  # type: ignore[misc]
    heaps = [heap_push(held) for _ in range(rounds)]
    contenders["heapq"] = lambda: _pop_all(heaps.pop())
    bench.compare(
        "delayed: scheduled", len(held) / 1e6, "M msg/s", contenders,
        {("in buckets", "heapq"): Goal(10), ("in memory", "heapq"): Goal(10)},
    )


def _drain(tracker: InMemoryDelayedDeliveryTracker) -> None:
    while tracker.get_scheduled_messages(POLL):
        pass


def _pop_all(heap: list[Message]) -> None:
    while heap:
        heapq.heappop(heap)
