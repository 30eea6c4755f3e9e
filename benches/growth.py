"""Costs that must not grow with their neighbours: `python -m benches --only growth`.

Each case does the same work beside few neighbours and beside many: it runs at three sizes, prints the processor time
per unit of work for each, and checks a limit at the largest. The best of several rounds counts: a cost that grows with
the neighbours grows in every round.
"""
import random
import shutil
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import seglog
from benches.runner import Bench
from seglog.clock import ManualClock
from seglog.conversion.directory import Options
from seglog.conversion.log_dir import convert_log_dir
from seglog.delayed.bucket_tracker import BucketDelayedDeliveryTracker
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.storage import InMemoryBucketSnapshotStorage
from seglog.delayed.worker import InlineWorker
from seglog.format import names
from seglog.format.batch import end_marker
from seglog.fs.files import OsFileSystem
from seglog.ledger.entry import build_entry, pulsar_pb
from seglog.ledger.ledger_metadata import LedgerEnd
from seglog.ledger.managed.extent import LedgerExtent
from seglog.ledger.managed.manifest import LedgerInfo, Manifest, ManifestFile
from seglog.ledger.position import Position
from seglog.log.log import Log
from seglog.state.checkpoints import format_offset_checkpoint
from seglog.state.producer_snapshot import ProducerEntry, ProducerSnapshot
from seglog.upkeep.retention import expired

ROUNDS = 5
DAY_MS = 86_400_000


def run(bench: Bench, directory: Path, records: int) -> None:
    """`records` scales the sizes; the limits were set for the default, a million."""
    scale = min(records / 1_000_000, 1)
    half_acknowledged_batches(bench, directory / "half-acknowledged", scale)
    aborted_transactions(bench, directory / "aborted", scale)
    rolls(bench, directory / "rolls", scale)
    polls(bench, scale)
    small_ledgers(bench, scale)
    long_delays(bench, scale)
    idle_polls(bench, directory / "idle", scale)
    partitions(bench, directory / "partitions", scale)
    whole_log_dirs(bench, directory / "whole", scale)
    conversions(bench, directory / "conversions", scale)
    producers(bench, directory, scale)
    segments(bench, directory / "segments", scale)
    deletions(bench, directory / "deletions", scale)
    times_in_disorder(bench, directory / "disorder", scale)


def growth(
    bench: Bench, case: str, sizes: tuple[int, ...], of: str, unit_us: Callable[[int], float], at_most_us: float
) -> None:
    """The cost of a unit beside so many neighbours, named by `of`; the limit is for the largest size."""
    case = f"growth: {case}"
    if not bench.wanted(case):
        return
    sizes = tuple(dict.fromkeys(sizes))     # scaled down, they may be equal
    costs = [(size, unit_us(size)) for size in sizes]
    for size, cost in costs[:-1]:
        bench.reported(case, "us", f"beside {size} {of}", cost, f"beside {sizes[0]}", costs[0][1])
    bench.limit(case, "us", f"beside {sizes[-1]} {of}", costs[-1][1], at_most_us)


def best_us(work: Callable[[], object], units: int) -> float:
    """The processor time of this process per unit of work, best of several rounds: rolls and closes use threads."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return best / units * 1e6


def half_acknowledged_batches(bench: Bench, directory: Path, scale: float) -> None:
    """An acknowledgement that moves mark-delete, beside partly acknowledged batches."""
    moves = max(int(1000 * scale), 10)

    def unit_us(size: int) -> float:
        config = {"managedLedgerMaxEntriesPerLedger": 10**7, "defaultRetentionTimeInMinutes": -1}
        with seglog.pulsar.ManagedLedger(directory / str(size), config=config, fsync="never") as topic:
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


def polls(bench: Bench, scale: float) -> None:
    """A poll for 1 000 of many delayed messages due in the same millisecond: the first poll, which loads them."""

    def unit_us(size: int) -> float:
        best = float("inf")
        for _ in range(3):
            clock = ManualClock(1_000)
            config = DelayedDeliveryConfig(ledger_step=0, max_buckets=-1)
            tracker = BucketDelayedDeliveryTracker(
                InMemoryBucketSnapshotStorage(), config, clock=clock, worker=InlineWorker()
            )
            for ledger_id in range(-(-size // 50_000)):
                count = min(50_000, size - ledger_id * 50_000)
                columns = array("q", [ledger_id]) * count, array("q", range(count)), array("q", [10**6]) * count
                tracker.add_messages(*columns)
            clock.set(10**6)
            began = time.process_time()
            tracker.get_scheduled_messages(1_000)
            best = min(best, time.process_time() - began)
            tracker.close()
        return best * 1e6

    sizes = tuple(max(int(n * scale), 1) for n in (100_000, 1_000_000, 10_000_000))
    growth(bench, "poll", sizes, "due messages", unit_us, 10_000)


def _filled(count: int, ledgers: int, spread_ms: int) -> tuple[BucketDelayedDeliveryTracker, ManualClock]:
    """A tracker of this many messages from ledgers of equal size, with evenly spread times."""
    clock = ManualClock(1_000)
    storage = InMemoryBucketSnapshotStorage()
    tracker = BucketDelayedDeliveryTracker(storage, clock=clock, worker=InlineWorker())
    chance = random.Random(3)
    for ledger_id in range(ledgers):
        size = count // ledgers
        times = array("q", [10**6 + int(chance.random() * spread_ms) for _ in range(size)])
        tracker.add_messages(array("q", [ledger_id]) * size, array("q", range(size)), times)
    return tracker, clock


def small_ledgers(bench: Bench, scale: float) -> None:
    """Adding a delayed message, including sealing and merging: 200 000 of them in a varying number of ledgers."""
    count = max(int(200_000 * scale), 1_000)

    def unit_us(ledgers: int) -> float:
        best = float("inf")
        for _ in range(3):
            began = time.process_time()
            tracker, _ = _filled(count, ledgers, DAY_MS)
            best = min(best, time.process_time() - began)
            tracker.close()
        return best / count * 1e6

    sizes = tuple(max(int(n * scale), 1) for n in (4, 1_000, 10_000))
    growth(bench, "a delayed message added", sizes, "ledgers", unit_us, 3)


def long_delays(bench: Bench, scale: float) -> None:
    """Delivering a delayed message, of 500 000 over a varying number of days: a snapshot segment spans five minutes."""
    count = max(int(500_000 * scale), 1_000)
    ledgers = max(count // 50_000, 1)

    def unit_us(days: int) -> float:
        tracker, clock = _filled(count, ledgers, days * DAY_MS)
        began, delivered = time.process_time(), 0
        for step in range(1, 3_001):
            clock.set(10**6 + step * days * DAY_MS // 3_000)
            while positions := tracker.get_scheduled_messages(1_000):
                delivered += len(positions)
        cost = (time.process_time() - began) / count * 1e6
        assert delivered == count // ledgers * ledgers
        tracker.close()
        return cost

    growth(bench, "a delayed message delivered", (1, 365, 1_825), "days of delays", unit_us, 5)


def idle_polls(bench: Bench, directory: Path, scale: float) -> None:
    """A poll of a shared index of delayed messages that finds nothing, beside many subscriptions."""
    rounds = max(int(500 * scale), 5)

    def unit_us(size: int) -> float:
        config = {"enableShareDelayedMessageIndex": True}
        with seglog.pulsar.ManagedLedger(directory / str(size), fsync="never") as topic:
            metadata = pulsar_pb().MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
            metadata.deliver_at_time = 2**60
            topic.add_entry(build_entry(metadata, b"x"))
            cursors = [topic.open_cursor(f"s{n}", "earliest") for n in range(size)]
            with seglog.pulsar.DelayedDelivery(topic, config) as delayed:
                dispatcher = delayed.dispatcher(cursors[0])
                dispatcher.read()

                def work() -> None:
                    for _ in range(rounds):
                        dispatcher.read()

                return best_us(work, rounds)

    growth(bench, "idle poll", tuple(max(int(n * scale), 1) for n in (10, 100, 1_000)), "subscriptions", unit_us, 60)


def rolls(bench: Bench, directory: Path, scale: float) -> None:
    """A roll of a managed ledger beside its existing ledgers: the cost of its manifest."""
    rounds = max(int(20 * scale), 2)

    def unit_us(size: int) -> float:
        path = directory / str(size)
        manifest = Manifest(
            tuple(LedgerInfo(n, 1_700_000_000_000, LedgerEnd(1, 80, -1, 1_700_000_000_000)) for n in range(size)), size
        )
        path.mkdir(parents=True)
        file = ManifestFile(OsFileSystem(), path)
        file.write(manifest)

        def work() -> None:
            nonlocal manifest
            for _ in range(rounds):
                ledger_id = manifest.next_ledger_id
                for end in (None, LedgerEnd(1, 80, -1, 1_700_000_000_001)):
                    infos = (*manifest.ledgers[: ledger_id], LedgerInfo(ledger_id, 1_700_000_000_000, end))
                    changed = manifest.with_(ledgers=infos, next_ledger_id=ledger_id + 1)
                    file.put(manifest, changed)
                    manifest = changed
                LedgerExtent(manifest.ledgers, None)

        return best_us(work, rounds)

    growth(bench, "roll", tuple(max(int(n * scale), 1) for n in (30, 300, 3_000)), "ledgers", unit_us, 600)


def aborted_transactions(bench: Bench, directory: Path, scale: float) -> None:
    """A read of committed records at the end of a log, after aborted transactions, as by a polling consumer."""
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


LOGS = 100
TIMES_MOST = 1.5
STEPS = ("open", "first append", "roll", "close", "open, append, close", "delete")


def partitions(bench: Bench, directory: Path, scale: float) -> None:
    """Operations on one log of a log dir, beside the other partitions there."""
    logs = max(int(LOGS * scale), 3)
    sizes = tuple(max(int(n * scale), 1) for n in (100, 2_000, 20_000))
    if not bench.wanted("growth: a log of a log dir"):
        return
    costs = {size: partition_costs_us(_log_dir_of(directory / str(n), size), logs) for n, size in enumerate(sizes)}
    for step in STEPS:
        least = costs[sizes[0]][step]
        growth(
            bench, f"a log of a log dir: {step}", sizes, "partitions", lambda size, step=step: costs[size][step],
            TIMES_MOST * least,
        )


def whole_log_dirs(bench: Bench, directory: Path, scale: float) -> None:
    """Open every partition of a log dir, append durably, close: one after another; first new ones, then existing."""

    def unit_us(size: int) -> float:
        began = time.process_time()
        with seglog.open_dir(directory / str(size)) as log_dir:
            for n in range(size):
                with log_dir.log("orders", n) as log:
                    log.append(b"x")
        return (time.process_time() - began) / size * 1e6

    sizes = tuple(max(int(n * scale), 1) for n in (200, 2_000, 20_000))
    for case in ("a new partition of a whole log dir", "a partition of a whole log dir, again"):
        growth(bench, case, sizes, "partitions", unit_us, 3_000)


def _log_dir_of(path: Path, size: int) -> Path:
    """A log dir of this many partitions, closed cleanly."""
    for n in range(size):
        (path / f"orders-{n}").mkdir(parents=True)
    for checkpoint in names.OFFSET_CHECKPOINTS:
        (path / checkpoint).write_bytes(format_offset_checkpoint({("orders", n): n for n in range(size)}))
    (path / names.CLEAN_SHUTDOWN).touch()
    return path


def partition_costs_us(path: Path, logs: int) -> dict[str, float]:
    """This process's microseconds for each step of one log, best of several rounds; the log dir stays open."""
    best = dict.fromkeys(STEPS, float("inf"))
    with seglog.open_dir(path, fsync="never") as log_dir:
        for number in range(ROUNDS):
            for step, work in _steps(log_dir, f"more{number}", logs):
                began = time.process_time()
                work()
                best[step] = min(best[step], (time.process_time() - began) / logs * 1e6)
    return best


def _steps(log_dir: seglog.LogDir, topic: str, logs: int) -> Iterator[tuple[str, Callable[[], object]]]:
    opened: list[seglog.Log] = []
    yield "open", lambda: opened.extend(log_dir.log(topic, n) for n in range(logs))
    yield "first append", lambda: [log.append(b"x") for log in opened]
    yield "roll", lambda: [log.roll() for log in opened]
    yield "close", lambda: [log.close() for log in opened]

    def all_of_it() -> None:
        for n in range(logs):
            with log_dir.log(topic, n) as log:
                log.append(b"x")

    yield "open, append, close", all_of_it
    yield "delete", lambda: [log_dir.delete(topic, n) for n in range(logs)]


def conversions(bench: Bench, directory: Path, scale: float) -> None:
    """Converting one tiny partition of a log dir."""
    sizes = tuple(max(int(n * scale), 2) for n in (100, 1_000, 4_000))

    def unit_us(size: int) -> float:
        source = directory / f"{size}"
        with seglog.open_dir(source, fsync="never") as log_dir:
            for n in range(size):
                with log_dir.log("orders", n) as log:
                    log.append(b"value")
        began = time.process_time()
        for row in convert_log_dir(source, directory / f"{size}-converted", Options(to=1)):
            assert row.status == "converted", row
        return (time.process_time() - began) / size * 1e6

    growth(bench, "a tiny partition is converted", sizes, "others", unit_us, 3_750)


def producers(bench: Bench, directory: Path, scale: float) -> None:
    """Opening and rolling a log that remembers many producers, of which few write."""
    sizes = tuple(max(int(n * scale), 1) for n in (10_000, 100_000, 1_000_000))

    def logged(name: str, size: int) -> Path:
        path = directory / f"{name}{size}-0"
        with seglog.open(path, fsync="never") as log:
            last = log.append(b"x")
        snapshot = path / names.file_name(last + 1, names.SNAPSHOT_SUFFIX)
        now_ms = int(time.time() * 1000)
        entries = (ProducerEntry(n, 0, 0, 0, 0, now_ms, -1, -1) for n in range(size))
        snapshot.write_bytes(ProducerSnapshot.of(entries).to_bytes())
        return path

    def opening_us(size: int) -> float:
        path = logged("producers-opened", size)
        return best_us(lambda: seglog.open(path, fsync="never").close(), size)

    def roll_s(size: int) -> tuple[float, float]:
        """The time of an append and a roll, and the processor time until the snapshot is written as well.

        Wall time, because another thread writes the snapshot: hence more rounds, of which the best counts.
        """
        path = logged("producers-rolled", size)
        waited = worked = float("inf")
        with seglog.open(path, fsync="never") as log:
            for number in range(4 * ROUNDS):
                batch = {"producer_id": number, "producer_epoch": 1, "base_sequence": 0}
                began, began_s = time.process_time(), time.perf_counter()
                log.append_batch(seglog.build_batch([(None, b"x")], **batch))
                snapshot = path / names.file_name(log.roll(), names.SNAPSHOT_SUFFIX)
                waited = min(waited, time.perf_counter() - began_s)
                while not snapshot.exists():
                    time.sleep(0.01)
                worked = min(worked, time.process_time() - began)
        return waited, worked

    growth(bench, "opening, a producer", sizes, "producers", opening_us, 0.5)
    growth(bench, "an append and a roll (wall)", sizes, "producers", lambda size: roll_s(size)[0] * 1e6, 5_000)
    growth(bench, "a snapshot, a producer", sizes, "producers", lambda size: roll_s(size)[1] / size * 1e6, 0.5)


def segments(bench: Bench, directory: Path, scale: float) -> None:
    """A log of many segments: opened after a clean close, first operations on all segments, and a roll."""
    sizes = tuple(max(int(n * scale), 2) for n in (1_000, 10_000, 100_000))
    cases = ("opening, a segment", "first lookup by time, a segment", "append and roll", "delete_records, a segment")
    if not any(bench.wanted(f"growth: {case}") for case in cases):
        return
    costs = {size: _segment_costs_us(directory / str(size), size) for size in sizes}
    bounds = (10, 25, TIMES_MOST * costs[sizes[0]]["append and roll"], 120)
    for case, bound_us in zip(cases, bounds, strict=True):
        growth(bench, case, sizes, "segments", lambda size, case=case: costs[size][case], bound_us)


def _segment_costs_us(directory: Path, size: int) -> dict[str, float]:
    rolls = 50
    path = _log_of_segments(directory, size)
    costs = {"opening, a segment": best_us(lambda: seglog.open(path, fsync="never").close(), size)}

    lookup_s = float("inf")
    for _ in range(ROUNDS):
        with seglog.open(path, fsync="never") as log:
            began = time.process_time()
            log.offset_for_time(2**62)
            lookup_s = min(lookup_s, time.process_time() - began)
    costs["first lookup by time, a segment"] = lookup_s / size * 1e6
    with seglog.open(path, fsync="never") as log:

        def roll() -> None:
            for _ in range(rolls):
                log.append(b"x")
                log.roll()

        costs["append and roll"] = best_us(roll, rolls)
        began = time.process_time()
        log.delete_records(log.log_end_offset - 1)
        costs["delete_records, a segment"] = (time.process_time() - began) / size * 1e6
    shutil.rmtree(directory)
    return costs


def deletions(bench: Bench, directory: Path, scale: float) -> None:
    """Retention at the start of a log, beside the bytes that stay: it removes a segment of 64 KiB, or half a segment by
    batches, which rewrites the other half.
    """
    heads, a_round = 80, 8

    def unit_us(size: int, granularity: str) -> float:
        clock = ManualClock(FIRST_MS)
        config = {
            "retention.ms": 1000, "seglog.retention.granularity": granularity, "file.delete.delay.ms": 0,
            "segment.bytes": "1GiB", "message.timestamp.after.max.ms": 10**12, "max.message.bytes": "2MiB",
        }
        path = directory / granularity / str(size) / "orders-0"
        with Log(path, config=config, clock=clock, fsync="never", retention=expired) as log:
            for head in range(heads):
                for n in range(8):
                    log.append(bytes(8 << 10), timestamp=FIRST_MS + 1000 * head + 100 * n)
                log.roll()
            for n in range(size):
                log.append(bytes(1 << 20), timestamp=FIRST_MS + 10**9)
                if n == size // 2:
                    log.roll()
            clock.advance(1000)

            def work() -> None:
                for _ in range(a_round):
                    start = log.log_start_offset
                    clock.advance(1000 if granularity == "segment" else 500)
                    log.delete_old_segments()
                    assert log.log_start_offset > start

            return best_us(work, a_round)

    sizes = tuple(max(int(n * scale), 2) for n in (4, 64, 512))
    growth(bench, "delete a segment", sizes, "MiB that stay", lambda size: unit_us(size, "segment"), 10_000)
    growth(bench, "delete half a segment", sizes, "MiB that stay", lambda size: unit_us(size, "batch"), 20_000)


def _log_of_segments(directory: Path, size: int) -> Path:
    """A log of this many segments with one record each, closed cleanly: copies of one segment at other offsets."""
    path = directory / "orders-0"
    with seglog.open(path, fsync="never") as log:
        log.append(b"x")
    files = {name.name[20:]: name.read_bytes() for name in path.glob("0" * 20 + ".*")}
    snapshot = next(path.glob("*.snapshot"))
    for offset in range(1, size):
        for suffix, raw in files.items():
            moved = offset.to_bytes(8, "big") + raw[8:] if suffix == names.LOG_SUFFIX else raw
            (path / names.file_name(offset, suffix)).write_bytes(moved)
    snapshot.rename(path / names.file_name(size, names.SNAPSHOT_SUFFIX))
    return path


MONTH_MS = 30 * 86_400_000
FIRST_MS = 1_700_000_000_000


def times_in_disorder(bench: Bench, directory: Path, scale: float) -> None:
    """A lookup by time in a sealed segment with time ranges, whose times are random over a month: half of the lookups
    are for any time, half for the last 26 seconds, which few batches contain."""
    lookups = max(int(2_000 * scale), 20)

    def unit_us(size: int) -> float:
        path = directory / str(size) / "orders-0"
        times = random.Random(size)
        config = {"seglog.time.index.ranges.enabled": True, "segment.bytes": 2**31 - 1, "segment.ms": 2**60}
        with seglog.open(path, config=config, fsync="never") as log:
            for first in range(0, size, 100):
                count = min(100, size - first)
                log.append_many((None, b"value", (), FIRST_MS + times.randrange(MONTH_MS)) for _ in range(count))
            log.roll()
        targets = [FIRST_MS + times.randrange(MONTH_MS) for _ in range(lookups // 2)]
        targets += [FIRST_MS + MONTH_MS - times.randrange(MONTH_MS // 100_000) for _ in range(lookups // 2)]
        with seglog.open_partition(path) as partition:
            return best_us(lambda: [partition.offset_for_time(target) for target in targets], len(targets))

    sizes = tuple(max(int(n * scale), 100) for n in (100_000, 1_000_000, 10_000_000))
    growth(bench, "a lookup by time in disorder", sizes, "records", unit_us, 60)
