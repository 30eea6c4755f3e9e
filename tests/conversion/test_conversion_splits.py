"""A segment that would pass segment.bytes, 31 bits of offset or a full index becomes several; nothing else moves."""
import pytest

from seglog._kernels.batch_builder import BatchBuilder, MessageSetBuilder
from seglog.fs.lock import PARTITION_LOCK
from seglog.reading.partition import Partition
from seglog.state.clean_marks import CLEAN_MARK, PARTITION_MARK
from seglog.state.producer_snapshot import ProducerSnapshot
from seglog.state.producer_state import ProducerState
from support.conversion import config_of, converted, copied, kept, rows, source_of
from support.golden import golden_cases

CASES = [pytest.param(case, id=case.name) for case in golden_cases()]
TRANSACTIONAL = [pytest.param(c, id=c.name) for c in golden_cases() if c.name.startswith(("txn-", "idempotent-"))]
BASE = 5_000_000_000


def v1(offset, value=b"v", timestamp=1000):
    builder = MessageSetBuilder(1)
    builder.append(offset, timestamp, None, value)
    return builder.payload()


def v2(offset, value=b"v", timestamp=1000, epoch=-1, last_offset=None):
    builder = BatchBuilder(offset, leader_epoch=epoch)
    builder.append(offset, timestamp, None, value)
    return builder.finish(last_offset=last_offset)


def partition_of(directory, **segments):
    """A partition directory of .log files alone: {"s<base>": bytes}."""
    directory.mkdir(parents=True)
    for name, data in segments.items():
        (directory / f"{int(name[1:]):020d}.log").write_bytes(data)
    return directory


def bases(directory):
    return sorted(int(path.stem) for path in directory.glob("*.log"))


@pytest.mark.parametrize("case", CASES)
def test_no_segment_passes_segment_bytes(case, tmp_path):
    source = source_of(case)
    result = converted(source, tmp_path / source.name, config={**config_of(case), "segment.bytes": 2500})
    with Partition(source) as before, Partition(result.target) as after:
        assert [kept(row) for row in rows(result.target)] == [
            {**row, "timestamp_type": row["timestamp_type"].replace("NoTimestampType", "CreateTime")}
            for row in rows(source)
        ]
        assert {s.base_offset for s in before.segments} <= {s.base_offset for s in after.segments}
        assert after.log_end_offset == before.log_end_offset
        for segment in after.segments:
            assert segment.size_bytes <= 2500 or len(list(segment.batches())) == 1
            first = next(segment.batches(), None)
            # A part begins where its first batch does, a segment of the source where it did.
            assert segment.base_offset in bases(source) or first.base_offset == segment.base_offset
        old = [t for s in before.segments for t in s.transaction_index or ()]
        new = [(s, t) for s in after.segments for t in s.transaction_index or ()]
        assert [t for _, t in new] == old
        for segment, transaction in new:
            assert segment.base_offset <= transaction.last_offset < segment.next_offset


@pytest.mark.parametrize("case", TRANSACTIONAL)
def test_each_part_begins_with_the_producers_as_they_are_there(case, tmp_path):
    source = source_of(case)
    result = converted(source, tmp_path / source.name, config={**config_of(case), "segment.bytes": 1000})
    assert len(result.segments) > 3
    state = ProducerState()
    with Partition(result.target) as partition:
        for segment in partition.segments:
            snapshot = result.target / f"{segment.base_offset:020d}.snapshot"
            assert snapshot.exists() == (segment.base_offset > 0)
            if snapshot.exists():
                producers = ProducerSnapshot.read(snapshot).producers
                assert sorted(producers, key=lambda p: p.producer_id) == list(state.entries())
            for batch in segment.batches():
                state.add(batch)
        assert (result.target / f"{partition.log_end_offset:020d}.snapshot").exists()


def test_a_gap_of_31_bits_begins_a_segment(tmp_path):
    last = BASE + 2**31 - 1
    source = partition_of(tmp_path / "a" / "orders-0", **{
        f"s{BASE}": v1(BASE) + v1(last) + v1(last + 1) + v1(last + 2**31) + v1(last + 2**31 + 1),
    })
    result = converted(source, tmp_path / "b" / "orders-0")
    assert bases(result.target) == [BASE, last + 1, last + 1 + 2**31]
    assert [row["offset"] for row in rows(result.target)] == [row["offset"] for row in rows(source)]
    assert result.plan.segments[0].parts >= 2
    proof, = result.proof.segments
    assert proof.target.files == tuple(f"{base:020d}.log" for base in bases(result.target))
    assert proof.holds


def test_a_full_index_begins_a_segment(tmp_path):
    source = partition_of(tmp_path / "a" / "orders-0", s0=b"".join(v1(i, timestamp=1000 + i) for i in range(50)))
    config = {"index.interval.bytes": 1, "segment.index.bytes": 120}
    result = converted(source, tmp_path / "b" / "orders-0", config=config)
    # Ten time entries, of which one is kept for closing; the first batch of a segment has none.
    assert bases(result.target) == [0, 10, 20, 30, 40]
    for path in [*result.target.glob("*.index"), *result.target.glob("*.timeindex")]:
        assert path.stat().st_size <= 120


def test_a_batch_larger_than_segment_bytes_has_a_segment_of_its_own(tmp_path):
    source = partition_of(tmp_path / "a" / "orders-0", s0=v1(0) + v1(1, bytes(5000)) + v1(2) + v1(3))
    result = converted(source, tmp_path / "b" / "orders-0", config={"segment.bytes": 1000})
    assert bases(result.target) == [0, 1, 2]


def test_empty_segments_stay_and_keep_the_end_of_the_log(tmp_path):
    source = partition_of(tmp_path / "a" / "orders-0", s0=b"", s5=v1(7), s20=b"", s30=b"")
    result = converted(source, tmp_path / "b" / "orders-0")
    assert bases(result.target) == [0, 5, 20, 30]
    assert result.plan.log_end_offset == 30
    with Partition(result.target) as partition:
        assert partition.log_end_offset == 30
    sizes = {path.name: path.stat().st_size for path in result.target.iterdir()}
    assert sizes["00000000000000000000.index"] == sizes["00000000000000000030.timeindex"] == 0
    assert sizes["00000000000000000030.snapshot"] == 10


def test_a_repacked_segment_is_split_between_batches(tmp_path):
    source = partition_of(tmp_path / "a" / "orders-0", s0=b"".join(v1(i, bytes(100)) for i in range(100)))
    result = converted(source, tmp_path / "b" / "orders-0", repack_bytes=1000, config={"segment.bytes": 3000})
    assert len(result.segments) == 5
    assert all(segment.size_bytes <= 3000 for segment in result.segments)
    assert [row["offset"] for row in rows(result.target)] == list(range(100))


# --- what stands beside the records ----------------------------------------------------------------


@pytest.mark.parametrize("case", [c for c in TRANSACTIONAL if "txn-" in c.id])
def test_lost_state_is_computed_as_the_broker_had_it(case, tmp_path):
    source = copied(source_of(case), tmp_path / "a" / source_of(case).name)
    for pattern in ("*.snapshot", "*.txnindex", "leader-epoch-checkpoint"):
        for path in source.glob(pattern):
            path.unlink()
    result = converted(source, tmp_path / "b" / source.name, config=config_of(case))
    for name in ("*.txnindex", "leader-epoch-checkpoint"):
        for path in source_of(case).glob(name):
            assert (result.target / path.name).read_bytes() == path.read_bytes()
    for path in source_of(case).glob("*.snapshot"):
        ours, theirs = ProducerSnapshot.read(result.target / path.name), ProducerSnapshot.read(path)
        assert set(ours.producers) == set(theirs.producers)
    assert any("leader-epoch-checkpoint" in note for note in result.notes)


def test_leader_epochs_are_computed_from_batches_where_the_checkpoint_is_lost(tmp_path):
    case = next(c for c in golden_cases() if c.name == "epochs-v2-k391")
    source = copied(source_of(case), tmp_path / "a" / source_of(case).name)
    checkpoint = source / "leader-epoch-checkpoint"
    whole = checkpoint.read_bytes()
    for damage in (None, b"0\n7\n0 0\n", b"\xff\xfe"):
        checkpoint.unlink()
        if damage is not None:
            checkpoint.write_bytes(damage)
        result = converted(source, tmp_path / str(damage) / source.name)
        assert (result.target / checkpoint.name).read_bytes() == whole
        assert any(checkpoint.name in note for note in result.notes)
        if damage is None:
            checkpoint.write_bytes(b"")


def test_a_checkpoint_loses_epochs_behind_the_end_of_the_log(tmp_path):
    source = partition_of(tmp_path / "a" / "orders-0", s0=v2(0, epoch=3) + v2(1, epoch=3))
    (source / "leader-epoch-checkpoint").write_bytes(b"0\n3\n3 0\n4 2\n5 9\n")
    result = converted(source, tmp_path / "b" / "orders-0")
    # Epoch 4 began at the very end: its leader had not yet written.
    assert (result.target / "leader-epoch-checkpoint").read_bytes() == b"0\n2\n3 0\n4 2\n"


@pytest.mark.parametrize("damage", [b"", b"\0\1garbage"])
def test_a_damaged_snapshot_is_computed_anew(damage, tmp_path):
    case = next(c for c in golden_cases() if c.name == "idempotent-v2-k391")
    source = copied(source_of(case), tmp_path / "a" / source_of(case).name)
    snapshot, = source.glob("*.snapshot")
    whole = ProducerSnapshot.read(snapshot)
    snapshot.write_bytes(damage)
    result = converted(source, tmp_path / "b" / source.name)
    assert set(ProducerSnapshot.read(result.target / snapshot.name).producers) == set(whole.producers)
    assert any(snapshot.name in note for note in result.notes)


def test_a_snapshot_that_contradicts_its_log_is_computed_anew(tmp_path):
    case = next(c for c in golden_cases() if c.name == "idempotent-v2-k391")
    source = copied(source_of(case), tmp_path / "a" / source_of(case).name)
    snapshot, = source.glob("*.snapshot")
    whole = ProducerSnapshot.read(snapshot)
    first, *rest = whole.producers
    stale = type(first)(first.producer_id, first.producer_epoch, 0, 0, 0, first.timestamp, -1, -1)
    snapshot.write_bytes(ProducerSnapshot.of([stale, *rest]).to_bytes())
    result = converted(source, tmp_path / "b" / source.name)
    assert set(ProducerSnapshot.read(result.target / snapshot.name).producers) == set(whole.producers)
    assert any("ends at offset 0, the log's batch at" in note for note in result.notes)


def test_a_damaged_transaction_index_is_computed_anew(tmp_path):
    case = next(c for c in golden_cases() if c.name == "txn-v2-k411")
    source = copied(source_of(case), tmp_path / "a" / source_of(case).name)
    index = source / "00000000000000000000.txnindex"
    whole = index.read_bytes()
    for damage in (whole[:-1], whole + whole, whole[:-34] + whole[-34:-16] + (2**40).to_bytes(8) + whole[-8:]):
        index.write_bytes(damage)
        result = converted(source, tmp_path / str(len(damage)) / "b" / source.name)
        assert (result.target / index.name).read_bytes() == whole
        assert any(index.name in note for note in result.notes)


def test_unknown_files_stay_behind_and_are_named(tmp_path):
    source = partition_of(tmp_path / "a" / "orders-0", s0=v1(0))
    strangers = ["00000000000000000007.index", "00000000000000000007.log.deleted", "00000000000000000003.snapshot",
                 "notes.txt", "00000000000000000000.index.bak"]
    ours = [PARTITION_LOCK, PARTITION_MARK, CLEAN_MARK]
    for name in strangers + ours:
        (source / name).write_bytes(b"")
    result = converted(source, tmp_path / "b" / "orders-0")
    assert result.plan.left_behind == tuple(sorted(strangers))
    assert not {path.name for path in result.target.iterdir()} & {*strangers, *ours}
