"""Many delayed messages of many ledgers: memory, disk, recovery, pauses, lateness; and Pulsar's tracker beside ours.

The functions that must run in a separate process have a command: `python -m benches.delayed_scale NAME DIRECTORY COUNT`
prints the figures as JSON.
"""
import ctypes
import json
import random
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from benches.runner import Bench
from seglog.clock import ManualClock
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.storage import InMemoryBucketSnapshotStorage
from seglog.delayed.worker import InlineWorker
from seglog.ledger.entry import build_entry, pulsar_pb
from seglog.ledger.snapshot_storage import LedgerSnapshotStorage
from seglog.pulsar import BucketDelayedDeliveryTracker, DelayedDelivery, ManagedLedger

NOW = 1_700_000_000_000
HOUR_MS = 3_600_000
LEDGER = 50_000
POLL = 1000
LIMIT_MIB = 1024
# With fewer ledgers the times are too short to measure.
LEDGERS_OF_PULSAR = 10
TESTS = Path(__file__).parent.parent / "tests"
Figures = dict[str, float]


def ledgers(count: int) -> Iterator[tuple["array[int]", "array[int]", "array[int]"]]:
    """(ledger ids, entry ids, deliver at) of each ledger, with delays of 1 to 25 hours."""
    chance = random.Random(7)
    for first in range(0, count, LEDGER):
        size = min(LEDGER, count - first)
        # 8 random bytes for each message, as a fraction of a day.
        drawn = array("Q", chance.randbytes(8 * size))
        delays = array("q", [NOW + HOUR_MS + (n >> 11) * 24 * HOUR_MS // (1 << 53) for n in drawn])
        yield array("q", [10 + first // LEDGER]) * size, array("q", range(size)), delays


def opened(directory: str, clock: ManualClock, **config: int) -> BucketDelayedDeliveryTracker:
    storage = LedgerSnapshotStorage(directory)
    return BucketDelayedDeliveryTracker(storage, DelayedDeliveryConfig(**config), clock=clock)


def add_all(tracker: BucketDelayedDeliveryTracker, count: int) -> None:
    """Add messages as fast as sealing and merging can follow, because unsealed messages take memory."""
    for slot, columns in enumerate(ledgers(count)):
        tracker.add_messages(*columns)
        if slot % 4 == 0:
            tracker.wait_idle()
    tracker.wait_idle()


def status_mib(name: str) -> float:
    """The value of a line in /proc/self/status, in MiB."""
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(f"{name}:")) / 1024


def held_mib() -> float:
    """Anonymous memory in MiB, without freed memory that the allocator keeps."""
    ctypes.CDLL(None).malloc_trim(0)
    return status_mib("RssAnon")


# --- in a separate process --------------------------------------------------------------------


def fill(directory: str, count: int) -> Figures:
    """Add the messages, and measure memory and disk once sealing has finished."""
    clock = ManualClock(NOW)
    # First pay what adding itself takes: modules, pools, one sealed bucket.
    with closing(opened(f"{directory}-warm", clock, max_buckets=-1)) as tracker:
        add_all(tracker, min(count, 20 * LEDGER))
    before = held_mib()
    tracker = opened(directory, clock, max_buckets=-1)
    add_all(tracker, count)
    held, rows_mib = held_mib(), tracker.memory_usage / (1 << 20)
    sealed = sum(bucket.remaining for bucket in tracker.buckets)
    entries = sum(
        len(entry)
        for bucket in tracker.buckets
        for entry in (
            *tracker._storage.get_metadata(bucket.snapshot_id),
            *tracker._storage.get_segments(bucket.snapshot_id, 0, len(bucket.segments)),
        )
    )
    files = sum(path.stat().st_size for path in Path(directory).glob("ledger-*/*"))
    figures = {
        "sealed_bytes": (held - before - rows_mib) * (1 << 20) / sealed,
        "disk_percent": 100 * files / entries - 100,
        "disk_bytes": files / sealed,
    }
    tracker.close()
    return figures


def mutable(directory: str, count: int) -> Figures:
    """Add without sealing, so that all messages are in the last mutable bucket: one by one, every second entry of each
    ledger."""
    with closing(opened(f"{directory}-warm", ManualClock(NOW), min_index_count=2**31 - 1, ledger_step=0)) as tracker:
        _add_every_second(tracker, min(count, 2 * LEDGER))
    before = held_mib()
    with closing(opened(directory, ManualClock(NOW), min_index_count=2**31 - 1, ledger_step=0)) as tracker:
        _add_every_second(tracker, count)
        assert tracker.mutable_size == count
        held = held_mib() - before
        return {"bytes": held * (1 << 20) / count, "counted_bytes": tracker.memory_usage / count}


def _add_every_second(tracker: BucketDelayedDeliveryTracker, count: int) -> None:
    for ledger_ids, entry_ids, times in ledgers(count):
        for ledger, entry, at in zip(ledger_ids, entry_ids, times, strict=True):
            tracker.add_message(ledger, 2 * entry, at)


def recover(directory: str, count: int) -> Figures:
    """Add and reopen; the best of several openings, because the JVM is warm too. From ledgers; and from memory, because
    the snapshots that Pulsar's tracker is timed with are bytes of one open file at known positions."""
    clock = ManualClock(NOW)
    with closing(opened(directory, clock, ledger_step=0, max_buckets=-1)) as tracker:
        add_all(tracker, count)
    stored = LedgerSnapshotStorage(directory)
    stored.initialize()
    held = InMemoryBucketSnapshotStorage()
    for name, text in stored.properties().items():
        parts = stored.get_metadata(int(text)), stored.get_segments(int(text), 0, sys.maxsize)
        held.update_properties({name: str(held.create_snapshot(*parts))})
    stored.close()
    figures: Figures = {}
    for name, storage in (("in_ledgers", lambda: LedgerSnapshotStorage(directory)), ("in_memory", lambda: held)):
        took = []
        for _ in range(8):
            began = time.process_time()
            tracker = BucketDelayedDeliveryTracker(storage(), DelayedDeliveryConfig(max_buckets=-1), clock=clock)
            took.append(time.process_time() - began)
            assert tracker.number_of_delayed_messages > count - 2 * LEDGER
            tracker.close()
        figures[f"{name}_s"] = min(took)
    return figures


def live(directory: str, count: int) -> Figures:
    """Add, reopen and drain, with the default configuration, so that buckets are merged."""
    clock = ManualClock(NOW)
    began = time.perf_counter()
    with closing(opened(directory, clock)) as tracker:
        add_all(tracker, count)
        added = time.perf_counter()
    with closing(opened(directory, clock)) as tracker:
        recovered = time.perf_counter()
        for columns in ledgers(count):      # the log is read again, and most messages are already known
            if not tracker.contains_message(columns[0][0], 0):
                tracker.add_messages(*columns)
        assert tracker.number_of_delayed_messages == count
        drained = 0
        for minute in range(26 * 60):
            clock.set(NOW + minute * 60_000)
            while positions := tracker.get_scheduled_messages(POLL):
                drained += len(positions)
        assert drained == count, f"{drained} of {count}"
    return {
        "peak_mib": status_mib("VmHWM"),
        "add_s": added - began,
        "recover_s": recovered - added,
        "drain_s": time.perf_counter() - recovered,
    }


def pauses(directory: str, count: int) -> Figures:
    """The duration of each add, one by one, while another thread seals buckets of 50 000."""
    clock = ManualClock(NOW)
    tracker = opened(directory, clock, ledger_step=0)
    columns = list(ledgers(count))
    took = array("q", bytes(8 * count))
    slot, now_ns, add = 0, time.perf_counter_ns, tracker.add_message
    for ledger_ids, entry_ids, times in columns:
        for ledger, entry, at in zip(ledger_ids, entry_ids, times, strict=True):
            began = now_ns()
            add(ledger, entry, at)
            took[slot] = now_ns() - began
            slot += 1
    tracker.wait_idle()
    tracker.close()
    ordered = sorted(took)
    return {
        "p999_ms": ordered[-1 - count // 1000] / 1e6,
        "max_ms": ordered[-1] / 1e6,
        "mean_us": sum(took) / count / 1e3,
    }


def lateness(directory: str, count: int) -> Figures:
    """The delay between a message's time and its arrival at a waiting reader."""
    late: list[float] = []
    with ManagedLedger(directory, fsync="never") as topic, DelayedDelivery(topic) as delayed:
        dispatcher = delayed.dispatcher(topic.open_cursor("one", "earliest"))
        first = time.time_ns() // 10**6 + 500
        topic.add_entries(build_entry(_metadata(n, first + 7 * n), b"value") for n in range(count))
        while len(late) < count:
            for entry in dispatcher.read(timeout=10):
                at = entry.entry.fields().deliver_at_time
                assert at is not None
                late.append(time.time_ns() / 1e6 - at)
    assert min(late) >= 0, "early"
    return {"p99_ms": sorted(late)[-1 - count // 100], "max_ms": max(late)}


def _metadata(number: int, deliver_at: int) -> object:
    return pulsar_pb().MessageMetadata(
        producer_name="p", sequence_id=number, publish_time=deliver_at, deliver_at_time=deliver_at
    )


IN_A_PROCESS: dict[str, Callable[[str, int], Figures]] = {
    function.__name__: function for function in (fill, mutable, recover, live, pauses, lateness)
}


def measured(name: str, directory: Path, count: int) -> Figures:
    command = [sys.executable, "-m", "benches.delayed_scale", name, str(directory), str(count)]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: Figures = json.loads(child.stdout)
    return figures


# --- the cases ---------------------------------------------------------------------------------


def run(bench: Bench, directory: Path, count: int) -> None:
    """`count`: the messages of the cases with about a million; the case of the whole life uses about 100 times more."""
    if bench.wanted("delayed: memory") or bench.wanted("delayed: disk"):
        figures = measured("fill", directory / "fill", max(count, 3 * LEDGER))
        bench.limit("delayed: memory, sealed", "B/msg", "in buckets", max(figures["sealed_bytes"], 0.01), 2)
        bench.limit("delayed: disk beside Pulsar's bytes", "% more", "in ledgers", figures["disk_percent"], 1)
    if bench.wanted("delayed: memory, mutable"):
        figures = measured("mutable", directory / "mutable", count)
        bench.limit("delayed: memory, mutable bucket", "B/msg", "in buckets", figures["bytes"], 32)
        print(f"{'':34} {figures['counted_bytes']:.1f} of them counted by the tracker: its rows")
    if bench.wanted("delayed: longest add"):
        figures = measured("pauses", directory / "pauses", max(count // 2, 2 * LEDGER))
        bench.limit("delayed: longest add, p99.9", "ms", "in buckets", figures["p999_ms"], 2)
        print(f"{'':34} the longest of all: {figures['max_ms']:.1f} ms; the mean: {figures['mean_us']:.2f} µs")
    if bench.wanted("delayed: woken late"):
        figures = measured("lateness", directory / "lateness", min(500, max(count // 20, 50)))
        bench.limit("delayed: woken late, p99", "ms", "dispatcher", figures["p99_ms"], 20)
    name = f"delayed: {count * 100:,} in one life"
    if bench.wanted(name):
        figures = measured("live", directory / "live", count * 100)
        bench.limit(name, "MiB", "in buckets", figures["peak_mib"], LIMIT_MIB)
        print(f"{'':34} added in {figures['add_s']:.0f} s, opened in {figures['recover_s']:.1f} s, "
              f"drained in {figures['drain_s']:.0f} s")
    if bench.wanted("delayed: beside Pulsar") and count >= LEDGERS_OF_PULSAR * LEDGER:
        sys.path.insert(0, str(TESTS))
        from support.kafka_oracle import lacking

        if lacking():
            print(f"{'delayed: beside Pulsar':34} not run: {lacking()}")
            return
        _beside_pulsar(bench, directory, count)
        _recovered_beside_pulsar(bench, directory, count * 10)


def _recovered_beside_pulsar(bench: Bench, directory: Path, count: int) -> None:
    from support.pulsar_oracle import PulsarOracle

    theirs = PulsarOracle().recovery_timing("random", count)
    ours = measured("recover", directory / "recovered", count)
    bench.at_least("delayed: beside Pulsar, recovered", "x", "in buckets", min(theirs) / ours["in_memory_s"], 2)
    print(f"{'':34} {count:,} recovered in {ours['in_memory_s']:.3f} s, of ledgers in {ours['in_ledgers_s']:.3f} s; "
          f"Pulsar in {min(theirs):.3f} s, the first time in {theirs[0]:.3f} s")


def _beside_pulsar(bench: Bench, directory: Path, count: int) -> None:
    """The real tracker, if a JVM and Maven are installed. Pulsar's seals in the thread that adds, ours in another one,
    whose CPU time counts as well; the wall time ends when the last message is added. The better of two runs each."""
    from support.pulsar_oracle import PulsarOracle

    added, scheduled, on_the_clock = PulsarOracle().timing("bucket", "random", count)
    clock = ManualClock(NOW)
    rows = [row for columns in ledgers(count) for row in zip(*columns, strict=True)]
    ours_added = ours_on_the_clock = 0.0
    for run in ("one", "two"):
        with closing(opened(f"{directory}/added-{run}", clock, ledger_step=0, max_buckets=-1)) as tracker:
            began, whole = time.perf_counter(), time.process_time()
            add = tracker.add_message
            for ledger, entry, at in rows:
                add(ledger, entry, at)
            ours_on_the_clock = max(ours_on_the_clock, count / (time.perf_counter() - began))
            tracker.wait_idle()
            ours_added = max(ours_added, count / (time.process_time() - whole))
    storage = LedgerSnapshotStorage(directory / "drained")
    config = DelayedDeliveryConfig(ledger_step=0, max_buckets=-1)
    with closing(BucketDelayedDeliveryTracker(storage, config, clock=clock, worker=InlineWorker())) as tracker:
        for columns in ledgers(count):
            tracker.add_messages(*columns)
        # As in BucketGolden: the clock advances in 2 000 steps, and each poll asks for 1 000 messages.
        began = time.process_time()
        for step in range(2001):
            clock.set(NOW + HOUR_MS - 2000 + step * 24 * HOUR_MS // 1999)
            while tracker.get_scheduled_messages(POLL):
                pass
        ours_scheduled = count / (time.process_time() - began)
    bench.at_least("delayed: beside Pulsar, added", "x", "in buckets", ours_added / added, 1.5)
    clock_name = "delayed: beside Pulsar, added, clock"
    bench.at_least(clock_name, "x", "in buckets", ours_on_the_clock / on_the_clock, 1.5)
    bench.at_least("delayed: beside Pulsar, scheduled", "x", "in buckets", ours_scheduled / scheduled, 10)
    print(f"{'':34} added {ours_added / 1e6:.2f} M/s and {added / 1e6:.2f}, "
          f"on the clock {ours_on_the_clock / 1e6:.2f} and {on_the_clock / 1e6:.2f}, "
          f"scheduled {ours_scheduled / 1e6:.2f} M/s and {scheduled / 1e6:.2f}")


if __name__ == "__main__":
    print(json.dumps(IN_A_PROCESS[sys.argv[1]](sys.argv[2], int(sys.argv[3]))))
