"""Segments converted by themselves, in any order, and folded: what one process makes of the whole directory."""
import itertools
import json
import random
import struct

import pytest

from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.config import LogConfig
from seglog.conversion.converted_segment import ConvertedSegment, ProducerTrail
from seglog.conversion.directory import plan_conversion
from seglog.conversion.losses import LOSS_KINDS
from seglog.conversion.segment import convert_segment
from seglog.conversion.state_fold import StateFold, reader
from seglog.errors import CorruptCheckpointError, UnsupportedVersionError
from seglog.format import names
from seglog.format.batch import build_batch
from seglog.format.checked_json import format_json
from seglog.format.conversion_profile import Profile
from seglog.state.producer_state import ProducerState
from support.conversion import UnsyncedFs, config_of, converted, log_files, source_of
from support.golden import golden_cases

CASES = {case.name: case for case in golden_cases()}
SUBSET = [
    "v0-none-ct-k391", "v1-gzip-ct-k391", "mixed-formats-k282", "v2-zstd-ct-k391", "txn-v2-k411", "idempotent-v2-k391",
    "epochs-v2-k391", "compact-v2-mixed-pass1-k411", "rollms-v1-k391",
]
OPTIONS = [
    pytest.param({}, {}, id="default"),
    pytest.param({"repack_bytes": 16384}, {"segment.bytes": 2000}, id="repacked-and-split"),
]


def one_by_one(source, target, profile, config, dropped=()):
    """Each segment by itself, the last one first; their results as they would travel, in offset order."""
    logs = names.log_files(source)
    ends = [*(names.parse_base_offset(log.name) for log in logs[1:]), names.MAX_OFFSET]
    found = []
    for log, end in reversed(list(zip(logs, ends, strict=True))):
        segment = convert_segment(
            UnsyncedFs(), log, target, profile, config, end_offset=end, is_last=log is logs[-1], dropped=dropped
        )
        found.append(ConvertedSegment.of_json(segment.to_json()))
        assert found[-1] == segment
    return found[::-1]


def fold(source, target, segments, to):
    state = StateFold(reader(source), lambda name, raw: (target / name).write_bytes(raw), to=to)
    for segment in segments:
        state.add(segment)
    state.finish(segments[-1].next_offset)
    return state.notes


@pytest.mark.parametrize(("options", "settings"), OPTIONS)
@pytest.mark.parametrize("keeps_state", [True, False], ids=["state of the source", "state computed"])
@pytest.mark.parametrize("name", SUBSET)
def test_segments_by_themselves_are_the_directory(name, keeps_state, options, settings, tmp_path):
    case = CASES[name]
    source = tmp_path / "source" / "orders-0"
    source.mkdir(parents=True)
    for path in source_of(case).iterdir():
        if keeps_state or path.suffix == ".log":
            (source / path.name).write_bytes(path.read_bytes())
    config = LogConfig.of({**config_of(case), **settings})
    whole = converted(source, tmp_path / "whole" / "orders-0", config=config, **options)
    target = tmp_path / "apart"
    target.mkdir()
    segments = one_by_one(source, target, Profile(**options), config)
    assert tuple(segment.proof for segment in segments) == whole.proof.segments
    assert fold(source, target, segments, 2) == list(whole.notes)
    assert log_files(target) == log_files(whole.target)


def test_dropped_transactions_are_told_to_each_segment(tmp_path):
    source = source_of(CASES["txn-v2-k391"])
    plan = plan_conversion(
        source, tmp_path / "orders-0", 1, codec="none", allow_lossy=LOSS_KINDS, aborted="drop", fs=UnsyncedFs()
    )
    whole = plan.run()
    assert plan.dropped
    target = tmp_path / "apart"
    target.mkdir()
    segments = one_by_one(source, target, plan.profile, plan.config, plan.dropped)
    fold(source, target, segments, 1)
    assert log_files(target) == log_files(whole.target)


# --- producers -------------------------------------------------------------------------------------


def random_log(noise):
    """A v2 log of producers that write, begin, abort and commit, one beside the other."""
    raw, offset = b"", 0
    sequences = {}
    in_transaction = set()
    for _ in range(noise.randrange(1, 120)):
        producer = noise.randrange(4)
        epoch = noise.choice([0, 0, 0, 1])
        if producer in in_transaction and noise.random() < 0.3:
            in_transaction.discard(producer)
            marker = (struct.pack(">hh", 0, noise.randrange(2)), struct.pack(">hi", 0, noise.randrange(3)))
            raw += build_batch(
                [marker], base_offset=offset, timestamp=offset, producer_id=producer, producer_epoch=epoch,
                transactional=True, control=True,
            )
            offset += 1
            continue
        transactional = producer in in_transaction or noise.random() < 0.4
        if transactional:
            in_transaction.add(producer)
        count, first = noise.randrange(1, 4), sequences.get(producer, 0)
        sequences[producer] = first + count
        raw += build_batch(
            [(b"k", b"v")] * count, base_offset=offset, timestamp=offset, producer_id=producer, producer_epoch=epoch,
            base_sequence=first, transactional=transactional,
        )
        offset += count
    return scan(Window(raw))


@pytest.mark.parametrize("seed", range(60))
def test_what_is_kept_of_producers_says_the_same_as_all_batches(seed):
    noise = random.Random(seed)
    table = random_log(noise)
    everything, kept = ProducerState(), ProducerState()
    cuts = sorted({0, len(table), *(noise.randrange(len(table) + 1) for _ in range(3))})
    count = 0
    for first, stop in itertools.pairwise(cuts):
        trail = ProducerTrail()
        trail.add(table, first, stop)
        batches = list(trail.batches())
        count += len(batches)
        aborted = [kept.replay(batch) for batch in batches]
        of_all = [everything.add(table[slot]) for slot in range(first, stop)]
        assert list(filter(None, aborted)) == list(filter(None, of_all))
        assert kept.entries() == everything.entries()
        assert kept.first_undecided_offset == everything.first_undecided_offset
    assert count <= len(table)


def test_of_a_plain_idempotent_producer_one_batch_is_kept():
    raw = b"".join(
        build_batch(
            [(b"k", b"v")], base_offset=n, timestamp=n, producer_id=7, producer_epoch=0, base_sequence=n
        )
        for n in range(1000)
    )
    trail = ProducerTrail()
    table = scan(Window(raw))
    trail.add(table, 0, len(table))
    assert [batch.last_sequence for batch in trail.batches()] == [999]


# --- how it travels --------------------------------------------------------------------------------


@pytest.fixture
def text(tmp_path):
    source = source_of(CASES["v1-gzip-ct-k391"])
    return one_by_one(source, tmp_path, Profile(), LogConfig())[0].to_json()


def test_a_changed_byte_is_noticed(text):
    body = json.loads(text)
    body["next_offset"] += 1
    with pytest.raises(CorruptCheckpointError, match="checksum"):
        ConvertedSegment.of_json(json.dumps(body))
    with pytest.raises(CorruptCheckpointError):
        ConvertedSegment.of_json(text[: len(text) // 2])


def test_a_newer_one_is_refused(text):
    with pytest.raises(UnsupportedVersionError):
        ConvertedSegment.of_json(format_json("seglog-converted-segment", 2))
