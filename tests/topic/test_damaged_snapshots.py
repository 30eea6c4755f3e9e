"""A snapshot that is damaged while its topic is open: found, counted, told, and indexed again from the log."""
import shutil
from pathlib import Path

import pytest

from seglog.clock import ManualClock
from seglog.delayed.worker import BackgroundWorker, InlineWorker
from seglog.pulsar import ManagedLedger
from seglog.topic.delayed_delivery import DelayedDelivery
from support.topics import delayed, numbers

NOW = 1_700_000_000_000
HOUR_MS = 3_600_000
MESSAGES = 48
SMALL = {
    "delayedDeliveryLedgerStepPerBucket": 0, "delayedDeliveryMinIndexCountPerBucket": 16,
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": 4, "delayedDeliveryMaxNumBuckets": -1,
}
SHARED = {"enableShareDelayedMessageIndex": True}


def resident_bytes():
    """Of this process's own memory; 0 where the system does not tell."""
    try:
        status = Path("/proc/self/status").read_text()
    except FileNotFoundError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon"))


@pytest.fixture(scope="module", autouse=True)
def little_memory():
    """A thousand ledgers are made here. Each took up to 25 MiB for notes about 2 GiB, 256 at once: 6 GiB."""
    before = resident_bytes()
    yield
    assert resident_bytes() - before < 500 << 20


class Topic:
    """48 messages, one an hour, in buckets of 16 with segments of 4, and one subscription that knows them all."""

    def __init__(self, path, worker=InlineWorker, **others):
        self.clock = ManualClock(NOW)
        self.log = ManagedLedger(path, config={"managedLedgerMaxEntriesPerLedger": 4}, clock=self.clock)
        self.cursor = self.log.open_cursor("one", "earliest")
        self.delivery = DelayedDelivery(self.log, SMALL | others, clock=self.clock, new_worker=worker)
        self.tracker = self.delivery.tracker(self.cursor)
        self.positions = self.log.add_entries(delayed(n, NOW + HOUR_MS * (1 + n)) for n in range(MESSAGES))
        self.dispatcher = self.delivery.dispatcher(self.cursor)
        assert self.dispatcher.read() == []
        self.tracker.wait_idle()
        assert len(self.tracker.buckets) == 2

    @property
    def files(self):
        (directory,) = (self.log.path / "delayed").iterdir()
        return sorted(path for path in directory.rglob("*") if path.is_file())

    def live(self):
        """Read and acknowledge what is due, hour by hour, and once more all that is left."""
        got = []
        for _ in range(MESSAGES + 1):
            self.clock.advance(HOUR_MS)
            got += self.consume()
        self.dispatcher.rewind()
        return got + self.consume()

    def consume(self):
        entries = self.dispatcher.read(1000)
        self.cursor.acknowledge_many(entry.position for entry in entries)
        self.tracker.wait_idle()
        return numbers(entries)

    def close(self):
        self.delivery.close()
        self.log.close()


def flip(path, at):
    raw = bytearray(path.read_bytes())
    raw[at % len(raw)] ^= 0x10
    path.chmod(0o644)
    path.write_bytes(raw)


@pytest.mark.parametrize("others", [{}, SHARED], ids=["own", "shared"])
def test_a_bit_that_flipped_in_a_segment_costs_no_message(in_memory, others, caplog):
    found = 0
    template = Topic(in_memory / "template", **others)
    names = [path.name for path in template.files]
    template.close()
    for slot, name in enumerate(names):
        if not name.endswith(".log"):
            continue
        for at in range(70, 1200, 150):
            topic = Topic(in_memory / f"{slot}-{at}", **others)
            flip(topic.files[slot], at)
            caplog.clear()
            assert sorted(topic.live()) == list(range(MESSAGES)), (name, at)
            lost = topic.tracker.stats.lost.value
            assert lost == sum("indexed again from the log" in record.getMessage() for record in caplog.records)
            assert topic.tracker.number_of_delayed_messages == 0
            found += lost
            topic.close()
            shutil.rmtree(topic.log.path)
    assert found >= 4


@pytest.mark.parametrize("harm", ["removed", "emptied", "cut"])
@pytest.mark.parametrize("worker", [InlineWorker, BackgroundWorker])
def test_a_snapshot_that_is_gone_in_part_costs_no_message(in_memory, harm, worker):
    for suffix in (".log", ".json", ""):
        topic = Topic(in_memory / f"t{suffix}", worker)
        for path in topic.files:
            if path.name.endswith(suffix):
                if harm == "removed":
                    path.unlink()
                else:
                    path.chmod(0o644)
                    path.write_bytes(b"" if harm == "emptied" else path.read_bytes()[: path.stat().st_size * 2 // 3])
        # In order, too: what was lost is known again before it is due.
        assert topic.live() == list(range(MESSAGES)), suffix
        topic.close()


def test_counts_and_lists_are_exact_although_a_snapshot_is_damaged(in_memory):
    topic = Topic(in_memory / "t")
    for path in topic.files:
        if path.suffix == ".log":
            flip(path, path.stat().st_size - 50)
    everything = [(NOW + HOUR_MS * (1 + n), *topic.positions[n]) for n in range(MESSAGES)]
    assert topic.tracker.list(0, 2**63) == everything
    assert topic.tracker.count(0, 2**63) == topic.tracker.number_of_delayed_messages == MESSAGES
    assert topic.live() == list(range(MESSAGES))
    topic.close()
