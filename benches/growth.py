"""Costs that do not grow with the neighbours: `python -m benches --only growth`.

Each case does the same work beside few neighbours and beside many: it runs at three sizes, prints the processor time of
a unit of work at each, and is held to a bound at the largest. The best of several rounds counts: what grows with the
neighbours grows in every round.
"""
import time
from collections.abc import Callable
from pathlib import Path

import seglog
from benches.runner import Bench
from seglog.format.batch import end_marker
from seglog.ledger.entry import build_entry, pulsar_pb
from seglog.ledger.position import Position

ROUNDS = 5


def run(bench: Bench, directory: Path, records: int) -> None:
    """`records` scales the sizes: at the default of a million they are those that the bounds were set for."""
    scale = min(records / 1_000_000, 1)
    half_acknowledged_batches(bench, directory / "half-acknowledged", scale)
    aborted_transactions(bench, directory / "aborted", scale)


def growth(
    bench: Bench, case: str, sizes: tuple[int, ...], of: str, unit_us: Callable[[int], float], at_most_us: float
) -> None:
    """The cost of a unit beside so many `of` something; the bound is for the largest size."""
    case = f"growth: {case}"
    if not bench.wanted(case):
        return
    costs = [(size, unit_us(size)) for size in sizes]
    for size, cost in costs[:-1]:
        bench.reported(case, "us", f"beside {size} {of}", cost, f"beside {sizes[0]}", costs[0][1])
    bench.limit(case, "us", f"beside {sizes[-1]} {of}", costs[-1][1], at_most_us)


def best_us(work: Callable[[], object], units: int) -> float:
    """Processor time of this thread for a unit of work, the best of some rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time()
        work()
        best = min(best, time.thread_time() - began)
    return best / units * 1e6


def half_acknowledged_batches(bench: Bench, directory: Path, scale: float) -> None:
    """An acknowledgement that moves mark-delete, beside batches of which a part is acknowledged."""
    moves = max(int(1000 * scale), 10)

    def unit_us(size: int) -> float:
        config = {"managedLedgerMaxEntriesPerLedger": 10**7, "defaultRetentionTimeInMinutes": -1}
        with seglog.ManagedLedger(directory / str(size), config=config, fsync="never") as topic:
            metadata = pulsar_pb().MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
            topic.add_entries([build_entry(metadata, b"x")] * (moves * ROUNDS + size))
            cursor = topic.open_cursor("one", "earliest")
            for n in range(moves * ROUNDS, moves * ROUNDS + size):
                cursor.acknowledge(Position(0, n), [0], 2)
            entries = iter(range(moves * ROUNDS))

            def work() -> None:
                for _ in range(moves):
                    cursor.acknowledge(Position(0, next(entries)))

            return best_us(work, moves)

    sizes = tuple(max(int(n * scale), 1) for n in (1_000, 10_000, 30_000))
    growth(bench, "mark-delete", sizes, "half-acknowledged batches", unit_us, 60)


def aborted_transactions(bench: Bench, directory: Path, scale: float) -> None:
    """A read of committed records at the end of a log, behind aborted transactions: what a consumer that polls does."""
    polls = max(int(1000 * scale), 10)

    def unit_us(size: int) -> float:
        with seglog.open(directory / f"aborted{size}-0", fsync="never") as log:
            for n in range(size):
                producer = {"producer_id": n, "producer_epoch": 0, "transactional": True}
                log.append_batch(seglog.build_batch([(None, b"gone")], base_sequence=0, timestamp=1, **producer))
                log.append_batch(seglog.build_batch([end_marker(False, 0)], control=True, timestamp=1, **producer))
            last = log.append(b"kept")

            def work() -> None:
                for _ in range(polls):
                    for _ in log.read(start=last, isolation="read_committed"):
                        pass

            return best_us(work, polls)

    sizes = tuple(max(int(n * scale), 1) for n in (1_000, 10_000, 100_000))
    growth(bench, "a poll of committed records", sizes, "aborted transactions", unit_us, 50)
