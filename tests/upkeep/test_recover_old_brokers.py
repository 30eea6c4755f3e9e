"""After kill -9: `recover` leaves what the broker, one of 0.8.2.2 to 3.3.2, left when it started again."""
import dataclasses
import struct

import pytest

import seglog
from seglog.format import names
from seglog.state.producer_snapshot import ProducerSnapshot
from support.old_brokers import numbers
from support.old_directories import CONFIG, as_known, parse, partitions, root, seen

KILLED = partitions("killed")
OFFSET_ENTRY = struct.Struct(">ii")
ABORTED = struct.Struct(">hqqqq")       # version, producer id, first offset, last offset, last stable offset


@pytest.fixture(params=[p.values for p in KILLED], ids=[p.id for p in KILLED])
def case(request, tmp_path):
    """(version, what kill -9 left, what we made of it, {name: bytes} of what the broker made of it)"""
    version, killed = request.param
    target = tmp_path / "logs" / killed.name
    target.parent.mkdir()
    seglog.recover(killed, target, mode="truncate", config=CONFIG)
    changed = root() / version / "recovered" / killed.name
    theirs = {
        name: (changed / name if (changed / name).exists() else killed / name).read_bytes()
        for name in (changed / "FILES").read_text().split()
    }
    return version, killed, target, theirs


def positions(raw):
    """What the entries of an offset index lead to. Up to 1.1 they name the first offset of a batch, later the last."""
    return [position for _, position in OFFSET_ENTRY.iter_unpack(raw)]


def meaning(raw, version):
    """The producers of a snapshot, in no order: Kafka's replay forgets coordinator epochs, and its files are hash maps.

    0.11 names a marker as the last batch, and 1.1 gives a producer the time of its last data, not of its marker.
    """
    producers = sorted(ProducerSnapshot.parse(raw).producers, key=lambda producer: producer.producer_id)
    if numbers(version) < (2,):
        return [(p.producer_id, p.producer_epoch, p.last_sequence, p.current_txn_first_offset) for p in producers]
    return [dataclasses.replace(producer, coordinator_epoch=-1) for producer in producers]


def aborted(raw):
    """The lines of a transaction index, without those of empty transactions, which 0.11 to 1.1 wrote."""
    return [line for line in ABORTED.iter_unpack(raw) if line[2] != line[3]]


def test_the_log_is_the_same_byte_for_byte(case):
    _, killed, target, theirs = case
    ours = {path.name: path.read_bytes() for path in target.glob("*.log")}
    assert ours == {name: raw for name, raw in theirs.items() if name.endswith(names.LOG_SUFFIX)}
    with seglog.open_partition(target) as partition:
        records = seen(partition.read())
    consumed = parse(killed.parents[1] / "recovered-consumed" / f"{killed.name}.txt")
    assert list(as_known(records, consumed)) == consumed
    assert len(consumed) > 100


def test_indexes_lead_to_the_same_batches(case):
    version, _, target, theirs = case
    compared = 0
    for name, raw in theirs.items():
        if name.endswith(names.OFFSET_INDEX_SUFFIX):
            ours = (target / name).read_bytes()
            assert ours == raw if numbers(version) >= (2,) else positions(ours) == positions(raw), name
            compared += 1
        elif name.endswith(names.TIME_INDEX_SUFFIX):
            assert (target / name).read_bytes() == raw, name
            compared += 1
    assert compared
    has_time_index = any(name.endswith(names.TIME_INDEX_SUFFIX) for name in theirs)
    assert has_time_index == (numbers(version) >= (0, 10, 1))       # KIP-33


def test_producers_transactions_and_epochs_are_the_same(case):
    version, _, target, theirs = case
    for name, raw in theirs.items():
        if name.endswith(names.SNAPSHOT_SUFFIX):
            assert meaning((target / name).read_bytes(), version) == meaning(raw, version), name
        elif name.endswith(names.TRANSACTION_INDEX_SUFFIX):
            ours = (target / name).read_bytes() if (target / name).exists() else b""
            assert list(ABORTED.iter_unpack(ours)) == aborted(raw), name
        elif name == names.LEADER_EPOCH_CHECKPOINT and numbers(version) >= (0, 11):
            ours = (target / name).read_bytes() if (target / name).exists() else b"0\n0\n"
            assert ours == raw, name


def test_nothing_was_torn_and_nothing_is_lost(case):
    """kill -9 leaves preallocated zeros behind the entries of indexes; a .log's bytes are in the page cache."""
    _, killed, target, _ = case
    logs = sorted(killed.glob("*.log"))
    assert [path.read_bytes() for path in logs] == [(target / path.name).read_bytes() for path in logs]
    last = logs[-1].with_suffix(names.OFFSET_INDEX_SUFFIX).read_bytes()
    assert last.endswith(bytes(OFFSET_ENTRY.size))
