"""A topic that is restored into a cluster that goes on: into partitions that a broker has created, and nowhere else."""
import errno
import os
import shutil
import uuid

import pytest

import seglog
from seglog.archive import restoring
from seglog.archive.living_clusters import has_records
from seglog.clock import ManualClock
from seglog.errors import InvalidArgumentError, LogLockedError, StorageError
from seglog.fs.files import OsFileSystem
from seglog.state.checkpoints import read_offset_checkpoint
from seglog.state.leader_epochs import EpochStart, LeaderEpochs
from seglog.state.partition_metadata import PartitionMetadata
from support.backed_log import CONFIG, NOW, fill
from support.faultfs import FailingFs

OLD_ID, NEW_ID = uuid.UUID(int=7), uuid.UUID(int=8)
KRAFT = "version=1\ncluster.id=abc\nnode.id=1\n"


def create(path, topic_id):
    """As a broker creates a partition."""
    path.mkdir(parents=True)
    (path / f"{0:020}.log").touch()
    (path / "partition.metadata").write_bytes(PartitionMetadata(topic_id).to_bytes())


@pytest.fixture
def old(data, store):
    """A topic whose log begins at 3, in three leader epochs, with a transaction and a named reader."""
    create(data / "orders-0", OLD_ID)
    with seglog.open(data / "orders-0", config=CONFIG, clock=ManualClock(NOW)) as log:
        fill(log, 8)
        for epoch in (4, 9):
            batch = seglog.build_batch([(b"k", b"%d" % n) for n in range(5)], timestamp=NOW)
            log.append_batch(batch, leader_epoch=epoch)
        with log.producer(7) as producer:
            producer.begin()
            producer.append(b"in a transaction")
            producer.commit()
        log.delete_records(3)
    seglog.backup(data, store)
    return data / "orders-0"


@pytest.fixture
def new(in_memory, old):
    """The log dir of a stopped KRaft broker that has created the topic."""
    create(in_memory / "new/orders-0", NEW_ID)
    (in_memory / "new/meta.properties").write_text(KRAFT)
    return in_memory / "new"


def read(path):
    with seglog.open_partition(path) as partition:
        return [(record.offset, record.key, record.value) for record in partition.read(isolation="read_committed")]


def epochs(path):
    with seglog.open_partition(path) as partition:
        return {batch.leader_epoch for batch in partition.batches()}


def test_the_records_come_with_the_id_of_the_cluster_and_its_first_leader_epoch(old, new, store):
    assert len(epochs(old)) > 2
    run = seglog.restore(store, new, topics=["orders"], adopt=True)
    assert [part.damaged for part in run.partitions] == [()]
    back = new / "orders-0"
    assert read(back) == read(old) != []
    assert epochs(back) == {0}
    assert PartitionMetadata.read(back / "partition.metadata").topic_id == NEW_ID
    assert list(LeaderEpochs.read(back / "leader-epoch-checkpoint")) == [EpochStart(0, 3)]
    assert read_offset_checkpoint(new / "log-start-offset-checkpoint") == {("orders", 0): 3}
    for path in old.glob("*.log"):
        before, after = path.read_bytes(), (back / path.name).read_bytes()
        assert len(before) == len(after)
        assert path.stat().st_mtime_ns == (back / path.name).stat().st_mtime_ns
    with seglog.open(back, config=CONFIG) as log:
        assert log.append(b"goes on") == read(old)[-1][0] + 2       # behind the marker


@pytest.mark.parametrize("is_open", [False, True])
def test_producers_of_another_cluster_come_only_with_a_transaction_that_is_open(old, new, store, data, is_open):
    """Their ids may be given out again there."""
    with seglog.open(old, config=CONFIG) as log:
        producer = log.producer(7)
        producer.begin()
        producer.append(b"of a transaction")
        if not is_open:
            producer.commit()
        seglog.backup(data, store)
    seglog.restore(store, new, topics=["orders"], adopt=True)
    assert bool(list((new / "orders-0").glob("*.snapshot"))) == is_open
    assert list(old.glob("*.snapshot"))
    with seglog.open_partition(new / "orders-0") as partition:
        assert (partition.last_stable_offset < partition.log_end_offset) == is_open


def test_it_may_end_at_an_offset_and_have_another_name(old, new, store):
    (new / "orders-0").rename(new / "before-0")
    seglog.restore(store, new, topics=["orders"], rename={"orders": "before"}, until_offset=8, adopt=True)
    assert read(new / "before-0") == [record for record in read(old) if record[0] < 8]
    assert PartitionMetadata.read(new / "before-0/partition.metadata").topic_id == NEW_ID


def test_what_a_broker_would_take_for_a_stray_is_refused(new, store, in_memory):
    for act in ({}, {"dry_run": True}, {"partitions": ["orders-0"]}):
        with pytest.raises(InvalidArgumentError, match="its broker would rename orders-0 to -stray"):
            seglog.restore(store, new, **act)
    shutil.rmtree(new / "orders-0")
    with pytest.raises(InvalidArgumentError, match="-stray"):
        seglog.restore(store, new)
    with pytest.raises(InvalidArgumentError, match="-stray"):
        seglog.restore(store, new, rename={"orders": "other"})
    assert [path.name for path in new.iterdir()] == ["meta.properties"]
    (new / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=abc\n")       # with ZooKeeper
    seglog.restore(store, new)
    assert read(new / "orders-0")


def test_only_partitions_that_are_there_and_empty_are_filled(old, new, store, in_memory):
    with pytest.raises(InvalidArgumentError, match="no such partition that could be filled"):
        seglog.restore(store, new, rename={"orders": "other"}, adopt=True)
    for dry_run in (True, False):
        seglog.restore(store, new, topics=["orders"], adopt=True, dry_run=dry_run)
    with pytest.raises(InvalidArgumentError, match="has records, or had some"):
        seglog.restore(store, new, topics=["orders"], adopt=True)
    shutil.move(new / "orders-0", in_memory / "elsewhere")
    (new / "orders-0").symlink_to(in_memory / "elsewhere")
    with pytest.raises(InvalidArgumentError, match="no such partition"):
        seglog.restore(store, new, topics=["orders"], adopt=True)
    with seglog.Queue(in_memory / "jobs"):
        pass
    seglog.backup(in_memory / "jobs", in_memory / "queues")
    with pytest.raises(InvalidArgumentError, match="no broker has created the queue jobs"):
        seglog.restore(in_memory / "queues", new, adopt=True)


def test_a_partition_that_a_writer_has_open_is_not_replaced_under_it(old, new, store):
    with seglog.open(new / "orders-0", config=CONFIG) as log:
        with pytest.raises(LogLockedError):
            seglog.restore(store, new, topics=["orders"], adopt=True)
        log.append(b"a record")
    assert [value for *_, value in read(new / "orders-0")] == [b"a record"]
    with pytest.raises(InvalidArgumentError, match="has records"):
        seglog.restore(store, new, topics=["orders"], adopt=True)


def test_a_partition_of_another_user_is_not_filled_as_its_broker_could_not_write_to_it(new, store, monkeypatch):
    other = os.geteuid() + 1
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: other)
        for dry_run in (True, False):
            with pytest.raises(InvalidArgumentError, match="could not write to it"):
                seglog.restore(store, new, topics=["orders"], adopt=True, dry_run=dry_run)
    assert not has_records(new / "orders-0")


def test_records_that_come_after_the_first_look_are_not_replaced(old, new, store, monkeypatch):
    begin = restoring._check_free

    def begins_before_a_writer(*given, **more):
        done = begin(*given, **more)
        with seglog.open(new / "orders-0", config=CONFIG) as log:
            log.append(b"a record")
        return done

    monkeypatch.setattr(restoring, "_check_free", begins_before_a_writer)
    with pytest.raises(InvalidArgumentError, match="has records"):
        seglog.restore(store, new, topics=["orders"], adopt=True)
    assert [value for *_, value in read(new / "orders-0")] == [b"a record"]


def test_a_disk_that_fails_at_any_step_leaves_the_partition_empty_or_filled(old, new, store, in_memory):
    probe = FailingFs(OsFileSystem())
    shutil.copytree(new, in_memory / "probe")
    seglog.restore(store, in_memory / "probe", topics=["orders"], adopt=True, fs=probe)
    for step in range(0, len(probe.calls), 3):
        place = shutil.copytree(new, in_memory / f"new-{step}")
        failing = FailingFs(OsFileSystem(), fail_at=step, error=errno.ENOSPC, short=True)
        with pytest.raises(StorageError):
            seglog.restore(store, place, topics=["orders"], adopt=True, fs=failing)
        if has_records(place / "orders-0"):
            assert read(place / "orders-0") == read(old)
        run = seglog.restore(store, place, topics=["orders"], adopt=True)
        assert run.found_whole == ["orders-0"] or [part.name for part in run.partitions] == ["orders-0"]
        assert read(place / "orders-0") == read(old)
        assert epochs(place / "orders-0") == {0}
        assert [path.name for path in in_memory.rglob("*") if "staging" in path.name] == []
        shutil.rmtree(place)
