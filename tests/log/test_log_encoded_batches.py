"""Finished batches that are appended: of producers, of leaders, of old formats; and which records are committed."""
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

import seglog
from seglog._kernels.append_result import Assigned
from seglog.clock import ManualClock
from seglog.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
)
from seglog.format import names
from seglog.format.batch import end_marker
from seglog.log.tail import LogTail
from support.lookups import offset_at

NOW = 1_700_000_000_000


@pytest.fixture
def path(in_memory):
    return in_memory / "data" / "orders-0"


def open_log(path, **more):
    return seglog.open(path, clock=ManualClock(NOW), **more)


def values(log, **more):
    return [record.value for record in log.read(**more)]


class Producer:
    """What a client and its coordinator send."""

    def __init__(self, producer_id=7, epoch=0, transactional=False):
        self.who = {"producer_id": producer_id, "producer_epoch": epoch}
        self.sequence = 0
        self.transactional = transactional

    def batch(self, *values, sequence=None):
        if sequence is None:
            sequence, self.sequence = self.sequence, self.sequence + len(values)
        return seglog.build_batch(
            [(b"key", value) for value in values], base_sequence=sequence, transactional=self.transactional,
            timestamp=NOW, **self.who,
        )

    def end(self, *, commit):
        return seglog.build_batch(
            [end_marker(commit, 0)], control=True, transactional=True, timestamp=NOW, **self.who)


# --- idempotent producers --------------------------------------------------------------------------------


def test_a_batch_that_comes_again_keeps_its_offset_and_is_not_written_again(path):
    producer = Producer()
    with open_log(path) as log:
        log.append(b"before")
        sent = [producer.batch(b"a", b"b"), producer.batch(b"c")]
        assert [log.append_batch(batch) for batch in sent] == [(1, 2, False), (3, 3, False)]
        assert [log.append_batch(batch) for batch in sent] == [(1, 2, True), (3, 3, True)]
        assert values(log) == [b"before", b"a", b"b", b"c"]
    with open_log(path) as log:
        assert log.append_batch(sent[1]) == (3, 3, True)
        assert log.append_batch(producer.batch(b"d")) == (4, 4, False)


@pytest.mark.parametrize("reopened", [False, True])
def test_what_does_not_follow_is_refused_and_changes_nothing(path, reopened):
    producer = Producer(epoch=1)
    log = open_log(path)
    log.append_batch(producer.batch(b"a"))
    if reopened:
        log.close()
        log = open_log(path)
    with log:
        with pytest.raises(OutOfOrderSequenceError, match="expected 1"):
            log.append_batch(producer.batch(b"too early", sequence=2))
        with pytest.raises(InvalidProducerEpochError):
            log.append_batch(Producer(epoch=0).batch(b"an old one"))
        with pytest.raises(OutOfOrderSequenceError):
            log.append_batch(Producer(epoch=2).batch(b"a new one begins with 0", sequence=5))
        assert values(log) == [b"a"]
        assert log.append_batch(producer.batch(b"b")).first_offset == 1
        assert log.append_batch(Producer(epoch=2).batch(b"c")).first_offset == 2


# --- transactions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", [False, True])
def test_readers_of_committed_data_see_what_was_committed(path, killed):
    good, bad, undecided = (Producer(n, transactional=True) for n in (1, 2, 3))
    log = open_log(path)
    for producer in (good, bad, good, bad):
        log.append_batch(producer.batch(b"of %d" % producer.who["producer_id"]))
    log.append_batch(good.end(commit=True))
    assert log.last_stable_offset == 1
    assert values(log, isolation="read_committed") == [b"of 1"]
    log.append_batch(bad.end(commit=False))
    log.roll()
    log.append(b"of nobody")
    first_undecided = log.append_batch(undecided.batch(b"of 3")).first_offset
    log.append(b"behind it")
    if killed:      # as kill -9 leaves it: what the files hold now
        shutil.copytree(path.parent, path.parent / "killed", ignore=lambda *_: ["killed"])
    log.close()
    if killed:
        path = path.parent / "killed" / path.name
    with open_log(path) as log:
        committed = [b"of 1", b"of 1", b"of nobody"]
        assert values(log, isolation="read_committed") == committed
        assert values(log) == [b"of 1", b"of 2", b"of 1", b"of 2", b"of nobody", b"of 3", b"behind it"]
        assert [bytes(v) for c in log.columns(isolation="read_committed") for v in c.value] == committed
        assert log.last_stable_offset == first_undecided
        assert sum(r.value is not None for r in log.read(control=True)) == 9
        assert list(path.glob("*" + names.TRANSACTION_INDEX_SUFFIX)) == [
            path / names.file_name(0, names.TRANSACTION_INDEX_SUFFIX)]
        log.append_batch(undecided.end(commit=True))
        assert values(log, isolation="read_committed") == [*committed, b"of 3", b"behind it"]


def test_a_plain_batch_in_a_transaction_is_refused(path):
    with open_log(path) as log:
        log.append_batch(Producer(transactional=True).batch(b"begun"))
        with pytest.raises(InvalidTxnStateError):
            log.append_batch(Producer(transactional=False).batch(b"plain", sequence=1))
        assert log.log_end_offset == 1


# --- followers -----------------------------------------------------------------------------------------------


def mirror(source, target, batches_at_once):
    """Append the batches of a log to another as a follower fetches them."""
    batches = [bytes(batch.raw()) for batch in source.batches()]
    for at in range(0, len(batches), batches_at_once):
        target.append_batch(b"".join(batches[at : at + batches_at_once]), assign_offsets=False)


@pytest.mark.parametrize("batches_at_once", [1, 3])
def test_a_mirror_has_the_bytes_of_its_leader(path, in_memory, batches_at_once):
    producer = Producer(transactional=True)
    with open_log(path, leader_epoch=2, config={"index.interval.bytes": 100}) as leader:
        for n in range(5):
            leader.append(b"plain %d" % n)
            leader.append_batch(producer.batch(b"transactional %d" % n))
        leader.append_batch(producer.end(commit=False), leader_epoch=4)
        with open_log(in_memory / "mirror-0", config={"index.interval.bytes": 100}) as follower:
            mirror(leader, follower, batches_at_once)
            assert values(follower) == values(leader)
            assert values(follower, isolation="read_committed") == [b"plain %d" % n for n in range(5)]
            assert follower.leader_epochs == leader.leader_epochs
    for name in (names.LOG_SUFFIX, names.TIME_INDEX_SUFFIX, names.TRANSACTION_INDEX_SUFFIX):
        file = names.file_name(0, name)
        assert (in_memory / "mirror-0" / file).read_bytes() == (path / file).read_bytes()


def test_a_mirror_of_a_compacted_topic_keeps_the_holes(path):
    held = [seglog.build_batch([(b"k", b"%d" % n)], base_offset=n, leader_epoch=1) for n in (0, 7, 8, 100)]
    with open_log(path, config={"cleanup.policy": "compact", "message.timestamp.after.max.ms": 10**13}) as log:
        log.append_batch(b"".join(held[:2]), assign_offsets=False)
        log.append_batch(b"".join(held[2:]), assign_offsets=False)
        assert [(r.offset, r.value) for r in log.read()] == [(n, b"%d" % n) for n in (0, 7, 8, 100)]
        assert log.append(b"next", key=b"k") == 101
        assert [r.offset for r in log.read(50)] == [100, 101]
        with pytest.raises(seglog.errors.NoRecordError):
            log[50]
    with open_log(path, config={"cleanup.policy": "compact"}) as log:
        assert log.log_end_offset == 102


# --- formats and codecs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_batch_keeps_its_codec_and_its_bytes_but_for_offset_and_epoch(path, codec):
    raw = seglog.build_batch([(b"k", b"v" * 300)] * 5, codec=codec, timestamp=NOW)
    with open_log(path, leader_epoch=3) as log:
        log.append(b"before")
        assert log.append_batch(raw) == (1, 5, False)
        *_, batch = log.batches()
        # base_offset is the first field; leader_epoch stands behind size, and before magic and CRC.
        assert bytes(batch.raw())[8:12] + bytes(batch.raw())[16:] == raw[8:12] + raw[16:]
        assert (batch.base_offset, batch.leader_epoch) == (1, 3)


def test_another_codec_is_asked_of_every_batch(path):
    with open_log(path, config={"compression.type": "lz4"}) as log:
        log.append_batch(seglog.build_batch([(b"k", b"v" * 300)] * 5, codec="gzip", timestamp=NOW))
        log.append_batch(seglog.build_batch([(b"k", b"v" * 300)] * 5, timestamp=NOW))
        log.append_many([(b"k", b"v" * 300)] * 5)
        log.append(b"v" * 300)
        assert {batch.codec for batch in log.batches()} == {3}
        assert len(values(log)) == 16


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_messages_of_old_formats_are_taken_and_numbered(path, magic, codec):
    raw = seglog.build_batch([(b"k", b"%d" % n) for n in range(4)], magic=magic, codec=codec)
    with open_log(path, config={"message.timestamp.after.max.ms": 10**13}) as log:
        log.append(b"before")
        assert log.append_batch(raw) == (1, 4, False)
        assert [(r.offset, r.value) for r in log.read(1)] == [(n + 1, b"%d" % n) for n in range(4)]
        assert {batch.magic for batch in log.batches(1)} == {magic}
    assert seglog.verify(path).ok


def test_under_log_append_time_every_record_has_the_clocks(path):
    with open_log(path, config={"message.timestamp.type": "LogAppendTime"}) as log:
        log.append(b"a", timestamp=5)
        log.append_many([(None, b"b", (), 7)])
        log.append_batch(seglog.build_batch([(b"k", b"c")], timestamp=9))
        assert [(r.timestamp, r.timestamp_type) for r in log.read()] == [(NOW, 1)] * 3
        assert offset_at(log, NOW) == 0


# --- together --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("magic", "codec"), [(0, "none"), (0, "gzip"), (1, "gzip"), (2, "none"), (2, "zstd")])
def test_threads_append_batches_of_every_format_at_once(path, magic, codec):
    """Each is checked without the lock, for an offset that others may have taken when it is its turn."""
    def append(log, number):
        for n in range(20):
            records = [(b"%d" % number, b"%d" % (2 * n + i)) for i in range(2)]
            first, last, _ = log.append_batch(seglog.build_batch(records, magic=magic, codec=codec))
            assert last == first + 1
            if n == 10:
                log.append(b"another", key=b"a")

    config = {"message.timestamp.after.max.ms": 10**13, "segment.bytes": 2000}
    with open_log(path, fsync="never", config=config) as log, ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(append, log, number) for number in range(4)]:
            done.result()
        assert [r.offset for r in log.read()] == list(range(4 * 41))
        for number in range(4):
            assert [int(r.value) for r in log.read() if r.key == b"%d" % number] == list(range(40))
    assert seglog.verify(path).ok


def test_a_mirror_is_told_what_is_due_when_it_is_its_turn(path):
    with open_log(path) as log:
        held = [seglog.build_batch([(b"k", b"v")], base_offset=n, timestamp=NOW) for n in range(40)]
        with ThreadPoolExecutor(4) as pool:
            taken = [pool.submit(log.append_batch, batch, assign_offsets=False) for batch in held]
        refused = [n for n, done in enumerate(taken) if done.exception() is not None]
        assert all(isinstance(taken[n].exception(), InvalidRecordError) for n in refused)
        assert [r.offset for r in log.read()] == [n for n in range(40) if n not in refused]


def counted(monkeypatch):
    """Whether each encoded batch, from now on, was written by one step of a kernel."""
    quiet = []
    write = LogTail.write

    def seen(self, batch, *args):
        last = write(self, batch, *args)
        if isinstance(batch, Assigned):
            quiet.append(last >= 0)
        return last

    monkeypatch.setattr(LogTail, "write", seen, raising=False)
    return quiet


@pytest.mark.parametrize("fsync", ["never", "batch"])
def test_quiet_appends_write_what_the_slow_path_writes(in_memory, monkeypatch, fsync):
    """A batch that asks for a write alone is one step of a kernel: the same files, counters and answers."""
    def filled(path):
        config = {"segment.bytes": 20_000, "index.interval.bytes": 300}
        with seglog.open(path, config=config, fsync=fsync, clock=ManualClock(NOW)) as log:
            results = []
            for n in range(150):
                magic, codec = (n + 2) % 3, ["none", "gzip", "lz4"][n // 3 % 3]
                time = [NOW - n] if magic else []
                records = [(b"k", b"%d" % n * 20, (), *time) for _ in range(n % 4 + 1)]
                if n % 10 == 9:
                    log.configure({"message.format.version": [None, 0, 1, 2][n // 10 % 4]})
                results.append(log.append_batch(seglog.build_batch(records, magic=magic, codec=codec)))
                if n % 7 == 0:
                    log.append(b"between")
            counts = [sample.value for sample in log.format_counters.samples()]
        files = {file.name: file.read_bytes() for file in path.iterdir() if "0" in file.name}
        return results, counts, files

    quick = filled(in_memory / "quick" / "orders-0")
    quiet = counted(monkeypatch)
    filled(in_memory / "counted" / "orders-0")
    assert sum(quiet) > 40
    monkeypatch.setattr(LogTail, "write", lambda *args: -1)
    slow = filled(in_memory / "slow" / "orders-0")
    assert slow[:2] == quick[:2]
    assert [name for name in slow[2] if slow[2][name] != quick[2].get(name)] == []
    assert slow[2].keys() == quick[2].keys()


@pytest.mark.parametrize("fsync", ["never", "batch"])
def test_quiet_appends_of_a_follower_write_what_the_slow_path_writes(in_memory, monkeypatch, fsync):
    """Nobody looks into a follower's batch: one that fits the log as it is, is one step of a kernel, too."""
    def filled(path):
        config = {"segment.bytes": 5000, "index.interval.bytes": 300, "message.timestamp.after.max.ms": 10**13}
        results = []
        log = seglog.open(path, config=config, fsync=fsync, clock=ManualClock(NOW))
        for n in range(200):
            if n % 50 == 30:
                log.close()
                log = seglog.open(path, config=config, fsync=fsync, clock=ManualClock(NOW))
            if n % 50 == 40:
                log.truncate_to(log.log_end_offset - 3)
            if n % 50 == 20:
                log.append(b"of a leader")
            magic = 1 if n % 25 == 24 else 2
            results.append(log.append_batch(seglog.build_batch(
                [(b"k", b"%d" % n * 20)] * (n % 4 + 1), magic=magic, codec=["none", "gzip", "lz4"][n % 3],
                base_offset=log.log_end_offset + (5 if n % 11 == 0 else 0), timestamp=NOW + n,
                **({"leader_epoch": n // 60} if magic == 2 else {})), assign_offsets=False))
        counts = [sample.value for sample in log.format_counters.samples()]
        records = [(r.offset, r.timestamp, r.value) for r in log.read()]
        epochs = [(entry.epoch, entry.start_offset) for entry in log.leader_epochs]
        log.close()
        assert seglog.verify(path).ok
        files = {file.name: file.read_bytes() for file in path.iterdir() if "0" in file.name or "epoch" in file.name}
        return results, counts, records, epochs, files

    quiet = counted(monkeypatch)
    quick = filled(in_memory / "quick" / "orders-0")
    assert 100 < sum(quiet) < 200
    monkeypatch.setattr(LogTail, "write", lambda *args: -1)
    slow = filled(in_memory / "slow" / "orders-0")
    assert slow[:4] == quick[:4]
    assert [name for name in slow[4] if slow[4][name] != quick[4].get(name)] == []
    assert slow[4].keys() == quick[4].keys()
