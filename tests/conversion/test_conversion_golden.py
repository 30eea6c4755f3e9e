"""Every golden directory converted: the records of Kafka's own answers, Kafka's own batches, right indexes, state."""
import gzip
import json

import pytest

from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.config import LogConfig
from seglog.conversion.proof import PROOF_FILE, Proof
from seglog.reading.lookup import MAX_TIMESTAMP
from seglog.reading.partition import Partition
from seglog.segment.indexes import index_bytes
from seglog.state.leader_epochs import LeaderEpochs
from seglog.verification.verify import verify
from support.conversion import but_of_compaction, config_of, converted, kept, log_files, rows, source_of, tree
from support.golden import golden_cases, unpack

CASES = [pytest.param(case, id=case.name) for case in golden_cases()]
AT_REST = [pytest.param(d, id=d.name) for d in sorted((unpack("kafka") / "convert/up-at-rest").iterdir())]
# One case of each kind, for what is asked with other options.
SUBSET = [pytest.param(case, id=case.name) for case in golden_cases() if case.name in {
    "v0-none-ct-k391", "v0-lz4-ct-k282", "v1-none-lat-k391", "v1-gzip-ct-k391", "v1-snappy-ct-k282", "ts-odd-v1-k391",
    "mixed-formats-k282", "v2-none-ct-k411", "v2-zstd-ct-k391", "txn-v2-k411", "idempotent-v2-k391", "epochs-v2-k391",
    "compact-v1-gzip-pass2-k391", "compact-v2-mixed-pass1-k411", "bigoffset-v0-k391", "rollms-v1-k282",
}]


def expected(case):
    with gzip.open(case / "expected.jsonl.gz", "rt") as lines:
        return [kept(json.loads(line)) for line in lines]


def batches(directory):
    with Partition(directory) as partition:
        return list(partition.batches())


def originals(case):
    return {bytes(batch.raw()) for batch in batches(source_of(case))}


def check_target(case, result):
    """What holds for every conversion of a golden case, whatever its options."""
    source, target = source_of(case), result.target
    assert rows(target) == expected(case)
    assert result.proof.holds
    assert result.proof.records == len(expected(case))
    assert Proof.read(target / PROOF_FILE) == result.proof
    with Partition(source) as before, Partition(target, config=config_of(case)) as after:
        assert after.log_end_offset == before.log_end_offset
        assert [s.base_offset for s in after.segments] == [s.base_offset for s in before.segments]
        for old, new in zip(before.segments, after.segments, strict=True):
            assert all(batch.magic == 2 for batch in new.batches())
            assert (new.path.with_suffix(".index").read_bytes(), new.path.with_suffix(".timeindex").read_bytes()) == (
                index_bytes(new, after.config)[:2]
            )
            assert list(new.transaction_index or ()) == list(old.transaction_index or ())
            assert new.path.stat().st_mtime_ns == old.path.stat().st_mtime_ns
    report = verify(target, config=config_of(case))
    assert not but_of_compaction(report.findings), report.findings
    # What stands at a segment's start or at the end of the log is carried over as it is.
    carried = {p.name for p in source.glob("*.snapshot")} - set(result.plan.left_behind)
    for name in carried:
        assert (target / name).read_bytes() == (source / name).read_bytes()
    checkpoint = source / "leader-epoch-checkpoint"
    if checkpoint.exists():
        assert (target / checkpoint.name).read_bytes() == checkpoint.read_bytes()
    else:
        assert len(LeaderEpochs.read(target / checkpoint.name)) == 0


@pytest.mark.parametrize("case", CASES)
def test_a_golden_case_in_the_default_profile(case, tmp_path):
    source, before = source_of(case), tree(source_of(case))
    result = converted(source, tmp_path / "logs" / source.name, config=config_of(case))
    check_target(case, result)
    assert tree(source) == before
    # One v2 batch for each batch: those that were v2 the same bytes.
    for old, new in zip(batches(source), batches(result.target), strict=True):
        assert (new.base_offset, new.last_offset, new.codec) == (old.base_offset, old.last_offset, old.codec)
        assert new.max_timestamp == old.max_timestamp or old.magic < 2
        if old.magic == 2:
            assert bytes(new.raw()) == bytes(old.raw())
        else:
            assert (new.leader_epoch, new.producer_id, new.base_sequence) == (-1, -1, -1)
    # Only the strays of a format upgrade stay behind, which a broker removes as well.
    assert all(name.endswith(".snapshot") and case.name.startswith("mixed-") for name in result.plan.left_behind)
    assert not result.notes


@pytest.mark.parametrize("case", CASES)
def test_a_golden_case_converted_twice_is_the_same(case, tmp_path):
    source = source_of(case)
    once = converted(source, tmp_path / "once" / source.name, config=config_of(case))
    twice = converted(once.target, tmp_path / "twice" / source.name, config=config_of(case))
    assert log_files(twice.target) == log_files(once.target)
    assert [s.target for s in twice.proof.segments] == [s.target for s in once.proof.segments]
    assert twice.plan.left_behind == (PROOF_FILE,)


@pytest.mark.parametrize("case", CASES)
def test_a_golden_case_repacked(case, tmp_path):
    result = converted(
        source_of(case), tmp_path / "logs" / source_of(case).name, config=config_of(case), repack_bytes=16384
    )
    check_target(case, result)
    assert any("replace all of them together" in warning for warning in result.warnings)
    made = batches(result.target)
    if case.name.startswith("v1-none-ct"):
        assert len(made) <= 2 * len(result.segments) < len(batches(source_of(case)))
    for batch in made:
        records = list(batch)
        assert batch.size_bytes <= 16384 + 61 or len(records) == 1 or bytes(batch.raw()) in originals(case)
        # A v2 batch goes into a larger one whole, whatever a producer put into it.
        assert len({record.timestamp < 0 for record in records}) <= 1 or case.name.startswith("ts-odd-v2")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("case", SUBSET)
def test_a_golden_case_in_another_codec(case, codec, tmp_path):
    result = converted(source_of(case), tmp_path / "logs" / source_of(case).name, config=config_of(case), codec=codec)
    check_target(case, result)
    names = ["none", "gzip", "snappy", "lz4", "zstd"]
    assert {names[b.codec] for b in batches(result.target) if not b.is_control and b.count} <= {codec}


@pytest.mark.parametrize("options", [{}, {"repack_bytes": 16384}], ids=["default", "repacked"])
@pytest.mark.parametrize("case", CASES)
def test_offsets_and_times_are_found_as_before(case, options, tmp_path):
    config = config_of(case, "segment.bytes")
    result = converted(source_of(case), tmp_path / "logs" / source_of(case).name, config=config, **options)
    with gzip.open(case / "lookups.json.gz", "rt") as f:
        targets = [lookup["target"] for lookup in json.load(f)["whole_log_by_timestamp"]]
    with Partition(source_of(case)) as before, Partition(result.target) as after:
        has_time = any(record.timestamp >= 0 for record in before.read())
        for target in targets:
            if target == MAX_TIMESTAMP and not has_time:
                continue    # v0 has no time; v2 has one that is not known, and Kafka answers with it
            old, new = before.offset_for_time(target), after.offset_for_time(target)
            assert (old and (old.timestamp, old.offset)) == (new and (new.timestamp, new.offset)), target
        offsets = [row["offset"] for row in expected(case)]
        for offset in {*offsets[::7], offsets[-1], offsets[0] - 1, offsets[-1] + 1, *(o + 1 for o in offsets[::11])}:
            old, new = (next(p._records_in_files(offset, control=True), None) for p in (before, after))
            assert (old and old.offset) == (new and new.offset), offset


@pytest.mark.parametrize("case", AT_REST)
def test_old_data_at_rest_becomes_what_kafka_4_makes_of_it(case, tmp_path):
    meta = json.loads((case / "meta.json").read_text())
    log_name = meta["source"].rpartition("/")[2]
    source = tmp_path / "source" / "orders-0"
    source.mkdir(parents=True)
    (source / log_name).write_bytes((case / "input.log").read_bytes())
    horizon = meta["filter_current_time"] + meta["filter_delete_retention_ms"]
    result = converted(source, tmp_path / "target" / "orders-0", delete_horizon_ms=horizon)
    ours, kafkas = (result.target / log_name).read_bytes(), (case / "output.log").read_bytes()
    for mine, theirs in zip(scan(Window(ours)), scan(Window(kafkas)), strict=True):
        for field in (
            "base_offset", "last_offset", "count", "codec", "attributes", "base_timestamp", "max_timestamp",
            "leader_epoch", "producer_id", "producer_epoch", "base_sequence", "delete_horizon_ms",
        ):
            assert getattr(mine, field) == getattr(theirs, field), field
        if mine.codec == 0:
            assert bytes(mine.raw()) == bytes(theirs.raw())
    witness = tmp_path / "witness" / "orders-0"
    witness.mkdir(parents=True)
    (witness / log_name).write_bytes(kafkas)
    assert rows(result.target) == rows(witness)
    assert len(rows(witness)) == meta["messages_retained"]


def test_a_topic_id_is_carried_over_to_the_same_topic_only(tmp_path):
    case = next(c for c in golden_cases() if c.name == "v1-gzip-ct-k391")
    source = tmp_path / "source" / "orders-3"
    source.mkdir(parents=True)
    for path in source_of(case).iterdir():
        (source / path.name).write_bytes(path.read_bytes())
    metadata = b"version: 0\ntopic_id: 6hPTWuHTSbOnWqqJmfpSPg\n"
    (source / "partition.metadata").write_bytes(metadata)
    same = converted(source, tmp_path / "a" / "orders-3")
    other_partition = converted(source, tmp_path / "a" / "orders-4")
    other_topic = converted(source, tmp_path / "a" / "payments-3")
    assert (same.target / "partition.metadata").read_bytes() == metadata
    assert (other_partition.target / "partition.metadata").read_bytes() == metadata
    assert not (other_topic.target / "partition.metadata").exists()
    assert any("partition.metadata" in warning for warning in other_topic.warnings)


def test_a_golden_configuration_is_the_one_that_indexes_go_by(tmp_path):
    case = next(c for c in golden_cases() if c.name == "v1-none-ct-k391")
    sizes = {}
    for interval in (0, 256, 4096):
        result = converted(
            source_of(case), tmp_path / str(interval) / "orders-0", config=LogConfig(index_interval_bytes=interval)
        )
        sizes[interval] = sum(p.stat().st_size for p in result.target.glob("*.index"))
    assert sizes[0] > sizes[256] > sizes[4096]
