"""Every golden directory as v0 and v1: what the formats share is there, what is lost is counted and needs leave."""
import base64
import gzip
import json

import pytest

from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.conversion.directory import convert, plan_conversion
from seglog.conversion.losses import LOSS_KINDS
from seglog.conversion.proof import PROOF_FILE, Proof
from seglog.errors import (
    InvalidArgumentError,
    UnsupportedCompressionTypeError,
    UnsupportedForMessageFormatError,
)
from seglog.format.compression import decompressor
from seglog.reading.partition import Partition
from seglog.segment.indexes import index_bytes
from seglog.verification.verify import verify
from support.conversion import but_of_compaction, config_of, source_of, tree
from support.golden import golden_cases, unpack

CASES = [pytest.param(case, id=case.name) for case in golden_cases()]


def golden(name):
    return source_of(next(case for case in golden_cases() if case.name == name))


def rows(directory, to=2):
    with Partition(directory) as partition:
        return [(r.offset, r.timestamp if to else -1, r.key, r.value) for r in partition._records_in_files(0)]


@pytest.mark.parametrize("to", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_a_golden_case_keeps_what_the_format_can_hold(case, to, tmp_path):
    source, before = source_of(case), tree(source_of(case))
    target = tmp_path / "logs" / source.name
    target.parent.mkdir()
    result = convert(
        source, target, to, allow_lossy=LOSS_KINDS, aborted="keep", codec="lz4", config=config_of(case)
    )
    assert tree(source) == before
    assert rows(target) == rows(source, to)
    assert result.proof.holds
    assert Proof.read(target / PROOF_FILE) == result.proof
    assert not but_of_compaction(verify(target, config=config_of(case)).findings)
    with Partition(target, config=config_of(case)) as after:
        assert {batch.magic for batch in after.batches()} <= {to}
        for segment in after.segments:
            assert segment.path.with_suffix(".index").read_bytes() == index_bytes(segment, after.config)[0]
            assert segment.path.with_suffix(".timeindex").read_bytes() == index_bytes(segment, after.config)[1]
    assert not list(target.glob("*.snapshot")) + list(target.glob("*.txnindex")) + list(target.glob("leader-epoch-*"))


@pytest.mark.parametrize("case", [c for c in CASES if c.id.startswith("v0-")])
def test_v0_as_v1_loses_nothing_and_goes_back(case, tmp_path):
    source = source_of(case)
    (tmp_path / "up").mkdir(), (tmp_path / "down").mkdir()
    up = convert(source, tmp_path / "up" / source.name, 1)
    assert not up.plan.losses.kinds
    assert not up.proof.left_out
    down = convert(up.target, tmp_path / "down" / source.name, 0)
    assert rows(down.target) == rows(source)
    for old, new in zip(sorted(source.glob("*.log")), sorted(down.target.glob("*.log")), strict=True):
        if "none" in case.name:
            assert new.read_bytes() == old.read_bytes()


V0_AS_V1 = [
    pytest.param(d, id=d.name) for d in sorted((unpack("kafka") / "convert/up").iterdir())
    if d.name.startswith("v0-") and "-to-v1-" in d.name and d.name.endswith("-ct")
]


def inner(raw):
    """The messages of a set, those in wrappers too, behind offset and size; inner offsets for those in wrappers."""
    for batch in scan(Window(raw), decompress=decompressor()):
        if batch.codec == 0:
            yield bytes(batch.raw())[12:]
            continue
        # Wrapper: offset, size, CRC, magic, attributes, time, null key, value.
        payload = bytes(batch.raw())[34:]
        yield bytes(decompressor()(batch.codec, 1, payload))


@pytest.mark.parametrize("pair", V0_AS_V1)
def test_v0_becomes_the_v1_that_kafka_s_validator_made(pair, tmp_path):
    """Message by message and wrapper by wrapper; but for offsets, which the validator assigns and we keep."""
    meta = json.loads((pair / "meta.json").read_text())
    source = tmp_path / "source/orders-0"
    source.mkdir(parents=True)
    (source / f"{0:020}.log").write_bytes((pair / "input.log").read_bytes())
    (tmp_path / "target").mkdir()
    target = convert(source, tmp_path / "target/orders-0", 1, codec=meta["target_codec"]).target
    with gzip.open(pair / "output.jsonl.gz", "rt") as lines:
        kafkas = [json.loads(line) for line in lines]
    mine = rows(target)
    assert [row[1:] for row in mine] == [
        (row["timestamp"], *(None if row[f] is None else base64.b64decode(row[f]) for f in ("key", "value")))
        for row in kafkas
    ]
    assert mine == rows(source)
    made = (target / f"{0:020}.log").read_bytes()
    if meta["source_codec"] != "none" or meta["target_codec"] == "none":
        assert list(inner(made)) == list(inner((pair / "output.log").read_bytes()))


def test_losses_are_listed_by_kind_with_their_count_and_need_leave(tmp_path):
    source = golden("txn-v2-k391")
    with Partition(source) as partition:
        batches = list(partition.batches())
        headers = sum(len(r.headers) for r in partition._records_in_files(0))
    losses = plan_conversion(source, to=1, codec="none").losses
    assert losses.headers == headers
    assert losses.control_batches == sum(b.is_control for b in batches)
    assert losses.producer_batches == sum(b.producer_id >= 0 and not b.is_control for b in batches)
    assert losses.timestamps == 0
    with pytest.raises(UnsupportedForMessageFormatError, match=f"{losses.control_batches} control batches"):
        plan_conversion(source, tmp_path / "orders-0", 1, codec="none", aborted="keep")
    assert not list(tmp_path.iterdir())


def test_timestamps_are_lost_to_v0_only():
    source = golden("v1-none-ct-k391")
    assert plan_conversion(source, to=0).losses.timestamps == len([r for r in rows(source) if r[1] >= 0])
    assert plan_conversion(source, to=1).losses.timestamps == 0


def test_nobody_decides_silently_what_becomes_of_aborted_records(tmp_path):
    source = golden("txn-v2-k391")
    with Partition(source) as partition:
        committed = [r.offset for r in partition.read(0, isolation="read_committed")]
        everything = [r.offset for r in partition._records_in_files(0)]
    assert len(committed) < len(everything)
    plan = plan_conversion(source, to=1, codec="none")
    with pytest.raises(InvalidArgumentError, match=f"{plan.losses.aborted_records} records of aborted"):
        plan_conversion(source, tmp_path / "orders-0", 1, codec="none", allow_lossy=LOSS_KINDS)
    for aborted, offsets in [("keep", everything), ("drop", committed)]:
        (tmp_path / aborted).mkdir()
        result = convert(
            source, tmp_path / aborted / "orders-0", 1, codec="none", allow_lossy=LOSS_KINDS, aborted=aborted
        )
        assert [row[0] for row in rows(result.target)] == offsets
        assert result.proof.holds
        assert any("aborted" in words for words in result.proof.left_out) == (aborted == "drop")


def test_zstd_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(UnsupportedCompressionTypeError, match="zstd"):
        plan_conversion(golden("v2-zstd-ct-k391"), tmp_path / "orders-0", 1, allow_lossy=LOSS_KINDS)
    assert not list(tmp_path.iterdir())


def test_only_the_losses_that_are_named_are_allowed(tmp_path):
    source = golden("txn-v2-k391")
    needed = plan_conversion(source, to=1, codec="none", aborted="keep").losses.kinds
    assert needed == ("headers", "control", "producers")
    for kind in needed:
        allowed = [one for one in needed if one != kind]
        with pytest.raises(UnsupportedForMessageFormatError) as refused:
            plan_conversion(source, tmp_path / "orders-0", 1, codec="none", aborted="keep", allow_lossy=allowed)
        assert f"--allow-lossy {','.join(needed)}" in refused.value.hint
        assert refused.value.what.count(";") == 0      # it names only what is not allowed
    plan_conversion(source, tmp_path / "orders-0", 1, codec="none", aborted="keep", allow_lossy=reversed(needed))


@pytest.mark.parametrize("words", [True, "headers", ["header"], ["headers", "all"]])
def test_what_may_be_lost_is_a_list_of_known_kinds(tmp_path, words):
    with pytest.raises(InvalidArgumentError, match="headers, timestamps, control, producers"):
        plan_conversion(golden("v2-none-ct-k391"), tmp_path / "orders-0", 1, allow_lossy=words)
