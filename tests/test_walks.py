"""How many Python calls the common ways take: a frame costs as much as a small write."""
import pytest

import seglog
from seglog.clock import ManualClock
from seglog.delayed.bucket_tracker import BucketDelayedDeliveryTracker
from seglog.delayed.in_memory import InMemoryDelayedDeliveryTracker
from seglog.delayed.storage import InMemoryBucketSnapshotStorage
from seglog.delayed.worker import InlineWorker
from seglog.fs.files import OsFileSystem
from seglog.topic.delayed_index import DelayedIndex
from seglog.topic.dispatcher import Dispatcher
from support.counting import counts_of
from support.faultfs import FailingFs
from support.topics import delayed, message


@pytest.fixture
def calls():
    """calls(action): Python functions called in it, in the threads that it starts as well, without `action` itself."""
    return lambda action: counts_of(action).calls


@pytest.fixture(params=["never", "interval", "batch"])
def log(in_memory, request):
    with seglog.open(in_memory / "orders-0", fsync=request.param) as log:
        for _ in range(3):
            log.append(b"value")
            log.append_many([(b"key", b"value")] * 3)
        yield log


def test_a_quiet_append(log, calls):
    syncs = {"never": 0, "interval": 1, "batch": 5}[log.fsync]      # the look at flush.messages; the sync
    assert calls(lambda: log.append(b"value", key=b"key")) <= 3 + syncs
    assert calls(lambda: log.append_many([(b"key", b"value")] * 3)) <= 6 + syncs


def test_a_record_that_lingers(in_memory, calls):
    with seglog.open(in_memory / "orders-0", fsync="never", config={"linger.ms": 3_600_000}) as log:
        log.append(b"the first one wakes a thread")
        assert calls(lambda: log.append(b"value", key=b"key")) <= 4


def test_a_read_of_one_record_from_an_offset_on(log, calls):
    next(log.read(3))
    assert calls(lambda: next(log.read(3))) <= 40


def test_an_entry_of_a_managed_ledger(in_memory, calls):
    with seglog.pulsar.ManagedLedger(in_memory / "orders") as topic:
        for n in range(3):
            topic.add_entry(message(n))
        entry = message(3)
        assert calls(lambda: topic.add_entry(entry)) <= 30


@pytest.mark.parametrize("kind", ["memory", "bucket"])
def test_a_read_that_meets_five_delayed_entries(in_memory, calls, kind):
    clock = ManualClock(1_700_000_000_000)
    if kind == "memory":
        tracker = InMemoryDelayedDeliveryTracker(clock=clock)
    else:
        tracker = BucketDelayedDeliveryTracker(InMemoryBucketSnapshotStorage(), clock=clock, worker=InlineWorker())
    with seglog.pulsar.ManagedLedger(in_memory / "orders", clock=clock) as topic:
        index = DelayedIndex(tracker, topic, topic.open_cursor("one", "earliest"))
        dispatcher = Dispatcher(topic, topic.open_cursor("one"), index)
        counts = []
        for _ in range(2):
            for n in range(5):
                topic.add_entry(delayed(n, clock.now_ms() + 60_000))
            counts.append(calls(lambda: dispatcher.read()))
        first, later = {"memory": (85, 75), "bucket": (110, 92)}[kind]
        assert counts[0] <= first       # it opens the file of the ledger
        assert counts[1] <= later
        entries = list(topic)
        few, many = (calls(lambda n=n: index.place_all(entries[:n])) for n in (5, 10))
        assert few <= 15
        assert many == few              # all of them are placed at once
        few, many = (calls(lambda n=n: topic.open_cursor("reads").read_after((-1, -1), n)) for n in (5, 10))
        assert many - few <= 5          # an object for each
        dispatcher.close()


def test_a_roll_syncs_what_must_be_on_the_disk_and_no_name_twice(in_memory):
    fs = FailingFs(OsFileSystem())
    with seglog.open(in_memory / "orders-0", fsync="never", fs=fs) as log:
        log.append(b"value")
        log.roll()
        log.append(b"value")
        done = len(fs.calls)
        log.roll()
        assert sum(call.startswith("sync") for call in fs.calls[done:]) <= 5


def test_a_roll(log, calls):
    log.roll()
    log.append(b"value")
    assert calls(log.roll) <= 128     # 151 with those of paths, on 3.11
