"""One changed byte in a .txnindex, which has no checksum: readers of committed records see what they saw before."""
import shutil
from contextlib import suppress

import pytest

import seglog
from seglog.errors import IdleTimeoutError
from seglog.format import names
from seglog.reading.follower import Follower
from seglog.segment.segment import Segment
from seglog.verification.verify import verify
from support.flipped import changed_transaction_indexes
from support.golden import golden_cases
from support.waiting import wait_for

CASES = [pytest.param(case, id=case.name) for case in golden_cases() if case.name.startswith("txn-v2-")]
SMALL = {"index.interval.bytes": 256, "segment.index.bytes": 8192}      # of the golden cases


@pytest.fixture(params=CASES)
def partition(request, tmp_path):
    """A copy in a log dir that was closed cleanly, so that opening it recovers nothing."""
    name = f"{request.param.name}-0"
    (tmp_path / names.CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":-1}')
    return shutil.copytree(request.param / name, tmp_path / name)


def read(directory):
    with seglog.open_partition(directory) as log:
        return [record.offset for record in log.read(isolation="read_committed")]


def read_late(directory):
    """From the second segment on, without what the first one tells."""
    with seglog.open_partition(directory) as log:
        return [record.offset for record in log.read(log.segments[1].base_offset, isolation="read_committed")]


def read_from_each_offset(directory):
    with seglog.open_partition(directory) as log:
        stable = log.last_stable_offset
        return [
            next((record.offset for record in log.read(start, isolation="read_committed")), None)
            for start in range(log.log_start_offset, stable, 5)
        ]


def batches(directory):
    with seglog.open_partition(directory) as log:
        return [batch.base_offset for batch in log.batches(isolation="read_committed")]


def columns(directory):
    with seglog.open_partition(directory) as log:
        return [tuple(chunk.offset) for chunk in log.columns(isolation="read_committed")]


def follower(directory):
    with Follower(directory) as log:
        return [record.offset for record in log.read(isolation="read_committed")]


def followed(directory):
    offsets = []
    with seglog.follow(directory) as log, suppress(IdleTimeoutError):
        for record in log.follow(log.log_start_offset, isolation="read_committed", timeout=0.001):
            offsets.append(record.offset)
    return offsets


def scan(directory):
    return seglog.scan(directory, isolation="read_committed").to_arrow()["offset"].to_pylist()


def opened(directory):
    with seglog.open(directory, fsync="never") as log:
        return [record.offset for record in log.read(isolation="read_committed")]


def fetched(directory):
    """What a server tells its clients to leave out, from each offset."""
    with seglog.open_partition(directory) as log:
        return [
            sorted(log.aborted_transactions(start, log.last_stable_offset))
            for start in range(log.log_start_offset, log.last_stable_offset, 7)
        ]


DOORS = [read, read_late, read_from_each_offset, batches, columns, follower, followed, scan, opened, fetched]


@pytest.mark.parametrize("door", DOORS)
def test_a_changed_byte_changes_nothing_that_is_read(partition, door):
    right = door(partition)
    assert right or door is read_late       # in some cases, everything late is undecided
    wrong = [where for where in changed_transaction_indexes(partition) if not is_same(door(partition), right, door)]
    assert not wrong, wrong


def is_same(found, right, door):
    # A client leaves out the same, wherever before its first batch a transaction is said to begin.
    if door is fetched:
        return [[pid for pid, _ in row] for row in found] == [[pid for pid, _ in row] for row in right]
    return found == right


def test_verify_finds_every_changed_byte(partition):
    assert not verify(partition, config=SMALL).findings
    silent = [
        where for where in changed_transaction_indexes(partition)
        if not any(finding.code.startswith("txnindex") for finding in verify(partition, config=SMALL).findings)
    ]
    assert not silent, silent


def test_an_index_that_says_nothing_else_than_the_log_is_left_as_it_is(partition):
    with seglog.open_partition(partition) as log:
        listed = [entry.to_bytes() for segment in log.segments for entry in segment.transaction_index or ()]
        told = log.aborted_transactions(0, log.last_stable_offset)
    assert listed
    assert len(told) == len(listed)


def test_the_log_is_walked_once(partition, monkeypatch):
    walks = []
    tables = Segment.tables

    def counted(segment, *arguments, check_crc=True, **named):
        if not check_crc:
            walks.append(segment.base_offset)
        return tables(segment, *arguments, check_crc=check_crc, **named)

    monkeypatch.setattr(Segment, "tables", counted)
    with seglog.open_partition(partition) as log:
        list(log.read(isolation="read_committed"))
        assert set(walks) == {segment.base_offset for segment in log.segments if segment.transaction_index}
        first = len(walks)      # and the last stable offset is looked for
        for _ in range(3):
            list(log.read(isolation="read_committed"))
        assert len(walks) == first


def test_a_damaged_log_leaves_the_index_as_all_there_is(partition):
    right = read(partition)
    with seglog.open_partition(partition) as log:
        path = log.segments[0].path
        batch = [batch for batch in log.batches(0, log.segments[0].next_offset) if not batch.is_control][3]
    with open(path, "r+b") as file:
        file.seek(batch.position + 8)
        file.write(b"\x7f")         # its length: headers lead no further
    with seglog.open_partition(partition) as log:
        records = log.read(isolation="read_committed", on_corrupt="skip")
        found = [record.offset for record in records]
        assert records.lost
    assert found == [offset for offset in right if not batch.base_offset <= offset <= batch.last_offset]


def test_without_a_snapshot_the_segments_before_are_walked(partition):
    right = [read(partition), read_late(partition)]
    for path in partition.glob(f"*{names.SNAPSHOT_SUFFIX}"):
        path.unlink()
    assert [read(partition), read_late(partition)] == right
    wrong = [
        where for where in changed_transaction_indexes(partition) if [read(partition), read_late(partition)] != right
    ]
    assert not wrong, wrong


def test_what_is_appended_later_is_walked_alone(tmp_path, monkeypatch):
    positions = []
    tables = Segment.tables

    def counted(segment, position=0, *, check_crc=True, **named):
        if not check_crc:
            positions.append(position)
        return tables(segment, position, check_crc=check_crc, **named)

    monkeypatch.setattr(Segment, "tables", counted)
    with seglog.open(tmp_path / "grows-0", fsync="never") as log:
        for n in range(3):
            with log.producer(7) as producer:
                producer.begin()
                producer.append(b"gone %d" % n)
                producer.abort()
            log.append(b"%d" % n)
            kept = [record.value for record in log.read(isolation="read_committed")]
            assert kept == [b"%d" % k for k in range(n + 1)]
        assert positions[0] == 0
        assert positions == sorted(set(positions))      # each walk begins with the last batch of the one before
        assert len(positions) == 3


def test_a_log_that_was_cut_and_grew_again_is_walked_anew(tmp_path):
    with seglog.open(tmp_path / "cut-0", fsync="never") as log, Follower(log.path) as other:
        for outcome in ("abort", "commit", "abort"):
            with log.producer(7) as producer:
                producer.begin()
                producer.append(outcome.encode())
                getattr(producer, outcome)()
            right = [b"commit"] if outcome == "commit" else []
            for reader in (log, other):
                wait_for(lambda reader=reader: reader.last_stable_offset == log.last_stable_offset)
                assert [record.value for record in reader.read(isolation="read_committed")] == right
            log.truncate_to(0)
