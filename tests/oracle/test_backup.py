"""Backups of a real broker that runs, and is killed: a real broker boots from what is restored, and serves it."""
import os
import shutil
import threading
import time

import pytest

import seglog
from seglog.errors import InvalidArgumentError
from support.conversion import kept
from support.kafka_oracle import VERSIONS

pytestmark = pytest.mark.oracle

NOW = 1_790_000_000_000
# `make torture` sets SEGLOG_TORTURE: ten minutes; otherwise some seconds.
STORM_S = 600 if os.environ.get("SEGLOG_TORTURE") else 12
SMALL = {"index.interval.bytes": 200, "retention.ms": -1, "file.delete.delay.ms": 100}
AT_ONCE = 50        # records of a produce
KEYS = 10           # that they have by turns
LOG_FILES = (".log", ".snapshot", ".txnindex")


def small(version="4.1.1"):
    """A broker of 4.x would not let segments be as small under their own key."""
    return SMALL | {"segment.bytes" if version == "3.9.1" else "internal.segment.bytes": 4000}


def contents(directory):
    return {
        path.name: path.read_bytes() for path in directory.iterdir()
        if path.name.endswith(LOG_FILES) or path.name in ("leader-epoch-checkpoint", "partition.metadata")
    }


def values(records):
    return [kept(record) for record in records]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_node_boots_as_it_was_when_it_was_backed_up(kafka_oracle, tmp_path, version):
    """Backed up while it runs: topics, records, transactions and committed offsets are those of that time."""
    oracle, store = kafka_oracle(version), tmp_path / "store"
    with oracle.serving(tmp_path / "one") as broker:
        broker.start()
        broker.create("orders", small(version))
        broker.create("bills", small(version), partitions=2)
        broker.produce("orders-0", 0, 300, NOW)
        for number, end in enumerate(("commit", "abort", "commit")):
            broker.produce("bills-1", 100 * number, 40, NOW, transaction=("writer", end))
        broker.of_groups("commit readers orders-0 17")
        before = {name: broker.consume(name) for name in ("orders-0", "bills-0", "bills-1")}
        committed = broker.consume("bills-1", "read_committed")
        topics, groups = broker.topics(), broker.groups()
        run = seglog.backup(broker.log_dir, store)
        assert run.snapshot.left_out == {}
        broker.produce("orders-0", 300, 300, NOW)       # later
        second = seglog.backup(broker.log_dir, store)
        assert second.read_bytes < run.read_bytes
        broker.stop()
        third = seglog.backup(broker.log_dir, store)
        stopped = {path.name: contents(path) for path in broker.log_dir.iterdir() if path.is_dir()}
    seglog.restore(store, tmp_path / "stopped", snapshot=third.snapshot.id)
    for name, files in stopped.items():
        assert contents(tmp_path / "stopped" / name) == files, name
    seglog.restore(store, tmp_path / "two/data", snapshot=run.snapshot.id)
    shutil.copy(tmp_path / "one/server.properties", tmp_path / "two/server.properties")
    with oracle.serving(tmp_path / "two") as broker:
        broker.start()
        for name, consumed in before.items():
            found = broker.consume(name)
            assert (values(found.records), found.begin, found.end) == (
                values(consumed.records), consumed.begin, consumed.end), name
        assert values(broker.consume("bills-1", "read_committed").records) == values(committed.records)
        assert broker.topics() == topics
        assert {name: group["offsets"] for name, group in broker.groups().items() if "offsets" in group} == {
            name: group["offsets"] for name, group in groups.items() if "offsets" in group}
        assert broker.produce("orders-0", 300, 1, NOW) == 300
        broker.stop()
    assert not [path for path in (tmp_path / "two/data").iterdir() if "-stray" in path.name]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_is_restored_into_a_cluster_that_goes_on(kafka_oracle, tmp_path, version):
    """Created first, then filled; what its broker would call a stray is refused, and is one."""
    oracle, store = kafka_oracle(version), tmp_path / "store"
    with oracle.serving(tmp_path / "old") as broker:
        broker.start()
        broker.create("orders", small(version), partitions=2)
        for life in range(3):       # each begins another leader epoch
            broker.produce("orders-0", 100 * life, 100, NOW)
            broker.produce("orders-1", 100 * life, 40, NOW, transaction=("writer", ("commit", "abort", "commit")[life]))
            if life < 2:
                broker.stop()
                broker.start()
        names = [(name, isolation) for name in ("orders-0", "orders-1")
                 for isolation in ("read_uncommitted", "read_committed")]
        before = {name: broker.consume(*name) for name in names}
        broker.stop()
        old = broker.log_dir
    assert (old / "orders-0/leader-epoch-checkpoint").read_text().splitlines()[1] == "3"
    seglog.backup(old, store)
    with oracle.serving(tmp_path / "new") as broker:
        broker.start()
        broker.create("others", {})
        broker.produce("others-0", 0, 10, NOW)
        broker.stop()
        new = broker.log_dir
        with pytest.raises(InvalidArgumentError, match="has no such topic: its broker would rename orders-0 to -stray"):
            seglog.restore(store, new, topics=["orders"])
        seglog.restore(store, tmp_path / "aside", topics=["orders"])
        shutil.move(tmp_path / "aside/orders-0", new / "orders-0")
        broker.start()
        broker.stop()
        stray, = new.glob("orders-0*")
        assert stray.name.endswith("-stray")
        shutil.rmtree(stray)
        broker.start()
        broker.create("orders", small(version), partitions=2)
        topics = broker.topics()
        broker.stop()
        with pytest.raises(InvalidArgumentError, match="knows the topic by another id"):
            seglog.restore(store, new, topics=["orders"])
        run = seglog.restore(store, new, topics=["orders"], adopt=True, config={"index.interval.bytes": 200})
        assert [part.damaged for part in run.partitions] == [(), ()]
        for life in range(2):
            broker.start()
            assert broker.topics() == topics
            for name, consumed in before.items():
                found = broker.consume(*name)
                assert values(found.records)[: len(consumed.records)] == values(consumed.records), name
                assert found.begin == consumed.begin
            end = before["orders-0", "read_uncommitted"].end
            assert broker.produce("orders-0", 300 + life, 1, NOW) == end + life
            assert len(broker.consume("others-0").records) == 10
            broker.stop()
        with pytest.raises(InvalidArgumentError, match="has records"):
            seglog.restore(store, new, topics=["orders"], adopt=True)
    assert not list(new.glob("*-stray"))


@pytest.mark.long
def test_backups_beside_a_broker_that_rolls_deletes_compacts_and_is_killed(kafka_oracle, tmp_path):
    """Each restored snapshot holds what the broker was given, in order and without a hole that is not compaction's."""
    oracle, store = kafka_oracle("4.1.1"), tmp_path / "store"
    cleaner = {"log.cleaner.enable": "true", "log.cleaner.backoff.ms": "200", "log.retention.check.interval.ms": "500"}
    written = {"deleted-0": [], "compacted-0": []}      # what the broker was given at each offset
    ends = dict.fromkeys(written, 0)
    snapshots, stop, failures = [], threading.Event(), []

    def back_up():
        try:
            while not stop.is_set():
                before = dict(ends)
                run = seglog.backup(tmp_path / "node/data", store)
                snapshots.append((run.snapshot, before, dict(ends)))
                time.sleep(0.2)
        except Exception as error:
            failures.append(error)

    until, number, worker = time.monotonic() + STORM_S, 0, None
    lives = 0
    while not failures and (lives < 2 or len(snapshots) <= 5 or time.monotonic() < until):
        with oracle.serving(tmp_path / "node", cleaner) as broker:
            broker.start()
            if not lives:
                broker.create("deleted", small() | {"retention.bytes": 20_000})
                broker.create("compacted", small() | {
                    "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01, "max.compaction.lag.ms": 500})
                worker = threading.Thread(target=back_up)
                worker.start()
            lives += 1
            end_of_life = time.monotonic() + max(STORM_S / 8, 4)
            while time.monotonic() < end_of_life:
                for name, records in written.items():
                    ends[name] = broker.produce(name, number, AT_ONCE, NOW) + 1
                    records += [_record(number + n) for n in range(AT_ONCE)]
                    assert len(records) == ends[name]       # nothing was lost, and nothing sent twice
                number += AT_ONCE
            broker._jvm.kill()
    stop.set()
    worker.join()
    assert not failures, failures
    holes = _judge(store, tmp_path, snapshots, written)
    print(f"{len(snapshots)} snapshots, {lives} lives of the broker, {number} records in each partition, of which "
          f"snapshots lack {holes}")
    assert all(holes.values()), holes       # records were deleted, and compacted away
    last = snapshots[-1][0]
    seglog.restore(store, tmp_path / "again/data", snapshot=last.id)
    with oracle.serving(tmp_path / "again", cleaner) as broker:
        broker.start()
        for name in written:
            assert broker.consume(name).end == next(
                part.next_offset for part in last.partitions if part.name == name)
        broker.stop()


def _judge(store, tmp_path, snapshots, written):
    """Compare each snapshot with what the broker acknowledged. Returns how many of these records the last one lacks."""
    holes = {}
    for snapshot, before, after in snapshots:
        assert snapshot.left_out == {}, snapshot.left_out
        where = tmp_path / "judged"
        run = seglog.restore(store, where, snapshot=snapshot.id, topics=["deleted", "compacted"])
        assert all(part.damaged == () for part in run.partitions)
        for name in before:
            with seglog.open_partition(where / name) as partition:
                found = {record.offset: (record.key, record.value) for record in partition.read()}
                start, end = partition.log_start_offset, partition.log_end_offset
            assert before[name] <= end <= after[name] + AT_ONCE, (name, snapshot.id)
            assert found == {offset: written[name][offset] for offset in found}, snapshot.id
            if name == "deleted-0":
                assert list(found) == list(range(start, end)), snapshot.id
            else:
                last = {written[name][offset][0]: offset for offset in range(max(end - KEYS, 0), end)}
                assert (start, found.keys() >= set(last.values())) == (0, True), snapshot.id
            holes[name] = end - len(found)
        shutil.rmtree(where)
    assert seglog.BackupStore(store).check(read_data=True).ok
    return holes


def _record(number):
    """Key and value of the record that Serve.java gives the broker."""
    return b"k%d" % (number % KEYS), None if number % 9 == 8 else b"from Kafka %d" % number
