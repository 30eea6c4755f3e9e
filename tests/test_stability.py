"""The promise of docs/stability.md: what 0.1.0 wrote is opened, read and gone on with by every later version."""
import base64
import json
import shutil

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.worker import InlineWorker
from seglog.ledger.ledger import Ledger
from seglog.pulsar import ManagedLedger, Position, read_compacted
from seglog.topic.delayed_delivery import DelayedDelivery
from seglog.upkeep.topic_compaction import PulsarTopicCompactionService
from support.backed_log import files
from support.golden import unpack

NOW = 1_790_000_000_000
RELEASES = ["seglog-0.1.0"]
LOGS = ["log-0", "tagged-0", "old-0"]


@pytest.fixture(params=RELEASES)
def release(request, in_memory):
    """A copy of what a release wrote; its clock is an hour on."""
    return shutil.copytree(unpack(request.param), in_memory / "release")


@pytest.fixture
def told(release):
    """What the release itself said of it."""
    return json.loads((release / "told.json").read_text())


def text(part):
    return None if part is None else base64.b64encode(bytes(part)).decode()


def held(log):
    return [
        [record.offset, record.timestamp, text(record.key), text(record.value)]
        for record in log.read(isolation="read_committed")
    ]


@pytest.mark.parametrize("name", LOGS)
def test_a_log_is_read_and_gone_on_with(release, told, name):
    path, expected = release / "data" / name, told[name]
    with seglog.open_partition(path) as partition:
        assert held(partition) == expected["records"]
    assert not [finding for finding in seglog.verify(path).findings if finding.severity == "error"]
    never = {"min.cleanable.dirty.ratio": 1}       # or the log that is compacted would be, meanwhile
    with seglog.open(path, clock=ManualClock(NOW), config=never) as log:
        assert (log.recovery.lost, log.recovery.repairs) == ((), ())
        assert (log.log_start_offset, log.log_end_offset) == (expected["start"], expected["end"])
        assert log.append(b"later", key=b"other", timestamp=NOW) == expected["end"]
    with seglog.open(path, clock=ManualClock(NOW), config=never) as log:
        assert held(log)[:-1] == expected["records"]


def test_what_a_log_keeps_besides_records_is_still_so(release):
    with seglog.open(release / "data/log-0", clock=ManualClock(NOW)) as log:
        assert log.config.cleanup_policy == "compact"
        assert log.cursor("billing").position == 17
        assert [(epoch.epoch, epoch.start_offset) for epoch in log.leader_epochs] == [(0, 5), (4, 40)]
        again = seglog.build_batch([(b"k", b"v")], producer_id=9, producer_epoch=1, base_sequence=0, timestamp=NOW)
        assert log.append_batch(again).is_duplicate
        assert log.producer(7) is not None
    with seglog.open(release / "data/tagged-0") as log:
        assert log._dialect.is_tagged


@pytest.mark.parametrize("name", ["topic", "delayed"])
def test_a_managed_ledger_is_read_and_gone_on_with(release, told, name):
    with ManagedLedger(release / name, clock=ManualClock(NOW + 2)) as topic:
        entries = [[one.position.ledger_id, one.position.entry_id, text(one.data)] for one in topic]
        assert entries == told[name]
        position = topic.add_entry(bytes(topic.read(Position(*entries[0][:2])).data))
        assert position > Position(*entries[-1][:2])
        if name == "topic":
            assert topic.open_cursor("billing").mark_delete_position == Position(0, 3)
            reader, found = read_compacted(topic, PulsarTopicCompactionService(topic)), []
            while (message := reader.read_next()) is not None:
                found.append(bytes(message.value))
            # The last of each of four keys, and what came later.
            assert found == [*(b"entry %d" % n for n in range(21, 25)), b"entry 0"]


def test_delayed_messages_are_delivered_when_they_are_due(release):
    clock = ManualClock(NOW)
    buckets = DelayedDeliveryConfig(ledger_step=0, min_index_count=4)
    with (
        ManagedLedger(release / "delayed", clock=clock) as topic,
        DelayedDelivery(topic, buckets, clock=clock, new_worker=InlineWorker) as delivery,
    ):
        dispatcher = delivery.dispatcher(topic.open_cursor("shipping"))
        assert dispatcher.read() == []
        clock.advance(2 * 3_600_000)
        assert len(dispatcher.read()) > 0


def test_a_queue_delivers_its_jobs(release):
    clock = ManualClock(NOW + 7200_000)
    with seglog.Queue(release / "jobs", clock=clock, create=False) as queue:
        found = [queue.get(timeout=5) for _ in range(6)]
        # "first" had the higher priority, and was done; job 0 was tried once.
        assert sorted(job.value for job in found) == [*(b"job %d" % n for n in range(5)), b"later"]
        assert {job.value: job.attempt for job in found}[b"job 0"] == 2
        queue.ack(found)
        queue.put(b"new")
        assert queue.get(timeout=5).value == b"new"


def test_a_backup_is_checked_restored_and_gone_on_with(release, told, in_memory):
    backups = seglog.BackupStore(release / "backups")
    assert backups.check(read_data=True).ok
    backups.restore(in_memory / "back")
    for name in LOGS:
        with seglog.open_partition(in_memory / "back" / name) as partition:
            assert held(partition) == told[name]["records"]
    run = backups.create(release / "data")
    assert run.snapshot.left_out == {}
    assert len(backups.snapshots()) == 2
    assert backups.check(read_data=True).ok


def test_a_queue_keeps_priorities_keys_properties_and_what_it_gave_up(release):
    check_shop(release / "shop", [])


def check_shop(path, more):
    clock = ManualClock(NOW + 3_600_000)
    with seglog.Queue(path, clock=clock, create=False, max_attempts=2) as queue:
        assert [dead.value for dead in queue.dead] == [b"broken"]
        found = [queue.get(timeout=0) for _ in range(3 + len(more))]
        # "urgent" was in flight: the lease is gone, the attempt counts.
        assert [(job.value, job.attempt) for job in found[:3]] == [(b"urgent", 2), (b"order", 1), (b"charge", 1)]
        assert [job.value for job in found[3:]] == more
        assert (bytes(found[1].key), dict(found[1].properties)) == (b"k", {"kind": "mail"})
        assert queue.get(timeout=0) is None
        queue.put(b"charge", key="order-17", unique_for=86_400)      # it is there already
        assert queue.get(timeout=0) is None
        queue.ack(found)
        queue.put(b"new")
        assert queue.get(timeout=0).value == b"new"


def test_a_ledger_is_read(release):
    with Ledger.open(release / "ledger-7") as ledger:
        assert [ledger.read(n) for n in range(ledger.entry_count)] == [b"one", b"two"]


def test_a_backup_of_queues_and_ledgers_is_checked_restored_and_gone_on_with(release, told, in_memory):
    backups, back = seglog.BackupStore(release / "ledger-backups"), in_memory / "back"
    assert backups.check(read_data=True).ok
    restored = {one.name: one.kind for one in backups.restore(back).ledgers}
    assert restored == {
        "delayed": "managed ledger", "jobs": "queue", "ledger-7": "ledger", "shop": "queue", "topic": "managed ledger"}
    for name in ("delayed", "topic", "ledger-7"):
        assert files(back / name) == files(release / name) != {}
    with ManagedLedger(back / "topic", clock=ManualClock(NOW + 2)) as topic:
        assert [[one.position.ledger_id, one.position.entry_id, text(one.data)] for one in topic] == told["topic"]
    check_shop(back / "shop", [b"last"])
    run = backups.create(back)
    assert run.snapshot.left_out == {}
    assert len(backups.snapshots()) == 2
    assert backups.check(read_data=True).ok
    backups.restore(in_memory / "again", snapshot=run.snapshot.id)
    assert {name: files(in_memory / "again" / name) for name in restored} == {
        name: files(back / name) for name in restored}
