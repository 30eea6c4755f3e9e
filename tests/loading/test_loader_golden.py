"""Real Kafka 3.9.1 opened 79 damaged directories after an unclean shutdown, and 16 killed logs of six segments; `load`
is compared with what it left."""
import json
import shutil

import pytest

from seglog.config import LogConfig
from seglog.errors import CorruptRecordError
from seglog.fs.files import OsFileSystem
from seglog.loading.loader import load
from seglog.reading.partition import Partition
from seglog.segment.recovery import GOES_BACK
from seglog.state.producer_snapshot import ProducerSnapshot
from seglog.state.quarantine import read_quarantine
from support.golden import unpack
from support.killed_logs import Kill, meanings

# Those that are Kafka's own, of the topic; what else case.json tells belongs to the driver.
KEYS = ("segment.bytes", "segment.index.bytes", "index.interval.bytes", "max.message.bytes")

# Kafka cannot open these; v2 batches with a magic above 2 it reads as v2, without mending them.
KAFKA_FAILS = "offset-back"
MENDED = "v2-lz4-ct-k391--magic-7"

CASES = sorted(path.name for path in (unpack("kafka") / "corrupt").iterdir())
OPENED_BY_KAFKA = [name for name in CASES if not name.endswith(KAFKA_FAILS)]


@pytest.fixture
def damaged(golden_kafka, tmp_path):
    """Gives a copy of a case's directory, and the case's own place with Kafka's answers."""

    def copy(name):
        case = golden_kafka / "corrupt" / name
        return shutil.copytree(case / f"{name}-0", tmp_path / f"{name}-0"), case

    return copy


def config_of(case, mode):
    config = json.loads((case / "case.json").read_text())["config"]
    return LogConfig.of({key: config[key] for key in KEYS if key in config} | {"seglog.recovery.mode": mode})


def recover(directory, case, mode, **more):
    return load(OsFileSystem(), directory, config_of(case, mode), now_ms=0, **({"clean": False} | more))


def files(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def meaning(name, raw):
    """What a file says: Kafka writes producers in the order of a hash map.

    And its replay forgets a producer's coordinator epoch at the first batch behind a snapshot; ours does not.
    """
    if name.endswith(".snapshot"):
        producers = sorted(ProducerSnapshot.parse(raw).producers, key=lambda p: p.producer_id)
        return [p._replace(coordinator_epoch=-1) for p in producers]
    return raw


def offsets(directory):
    with Partition(directory) as partition:
        return [record.offset for record in partition.read(control=True)]


@pytest.mark.parametrize("name", OPENED_BY_KAFKA)
def test_truncating_leaves_what_kafka_leaves(damaged, name):
    directory, case = damaged(name)
    loaded = recover(directory, case, "truncate")
    answer = json.loads((case / "check-3.9.1.json").read_text())["unclean"]
    assert loaded.next_offset == answer["log_end_offset"]
    assert loaded.log_start_offset == answer["log_start_offset"]
    assert [(s.base_offset, s.size_bytes) for s in loaded.segments] == [
        (s["base_offset"], s["size"]) for s in answer["segments"]
    ]
    assert len(offsets(directory)) == answer["records"]
    kafka, ours = files(case / "recovered-3.9.1"), files(directory)
    if name == MENDED:
        log = "00000000000000000113.log"
        assert kafka[log][16] == 7
        kafka[log] = kafka[log][:16] + b"\x02" + kafka[log][17:]
        assert any("another magic" in repair.what for repair in loaded.repairs)
    for file, raw in kafka.items():
        if raw or not file.endswith((".txnindex", "leader-epoch-checkpoint")):
            assert meaning(file, ours[file]) == meaning(file, raw), file
    assert {n for n, raw in ours.items() if raw} == {n for n, raw in kafka.items() if raw}


@pytest.mark.parametrize("case", sorted(unpack("killed_logs").iterdir()), ids=lambda case: case.name)
def test_a_killed_log_of_six_segments_is_left_as_kafka_leaves_it(case, tmp_path):
    """Every recovered segment has a producer snapshot at both ends, not only the last two."""
    told = json.loads((case / "case.json").read_text())
    answer = told.pop("recovered")
    directory = shutil.copytree(case / "before" / f"{case.name}-0", tmp_path / f"{case.name}-0")
    loaded = Kill(**told).recover(directory)
    assert {"start": loaded.log_start_offset, "end": loaded.next_offset} == answer
    ours, kafkas = meanings(directory), meanings(case / "after" / directory.name)
    assert {n for n in ours if n.endswith(".snapshot")} == {n for n in kafkas if n.endswith(".snapshot")}
    assert ours.keys() == kafkas.keys()
    assert not [name for name in ours if ours[name] != kafkas[name]]


@pytest.mark.parametrize("mode", ["truncate", "quarantine"])
@pytest.mark.parametrize("name", CASES)
def test_recovering_twice_gives_the_same_bytes(damaged, name, mode):
    directory, case = damaged(name)
    first = recover(directory, case, mode)
    before = files(directory)
    second = recover(directory, case, mode)
    assert files(directory) == before
    assert not second.lost
    assert not second.repairs
    assert second.next_offset == first.next_offset


@pytest.mark.parametrize("name", [name for name in CASES if name.endswith(KAFKA_FAILS)])
def test_an_offset_that_goes_back_is_where_truncating_cuts_and_says_so(damaged, name):
    directory, case = damaged(name)
    loaded = recover(directory, case, "truncate")
    assert [lost.reason for lost in loaded.lost] == [GOES_BACK]
    assert offsets(directory)[-1] == loaded.next_offset - 1 == loaded.lost[0].first_offset - 1


# Of these the damage is the last thing in the log; a broker that was killed may leave such a log.
TAIL_KINDS = ("garbage-tail", "tail-cut-17", "tail-cut7", "tail-cut-header", "zero-tail")
# The last batch of the log is the damaged one.
LAST_BATCH = {f"v2-lz4-ct-k391--{kind}" for kind in ("flip-active", "flip-crc-v2", "size-huge", "size-tiny")}
MIDDLE_KINDS = (
    "flip-active", "flip-earlier-seg", "flip-crc-v2", "magic-7", "offset-back", "size-huge", "size-tiny"
)


@pytest.mark.parametrize("name", CASES)
def test_by_default_a_bad_middle_is_an_error_and_nothing_is_changed(damaged, name):
    directory, case = damaged(name)
    before = files(directory)
    if name.partition("--")[2] in MIDDLE_KINDS and name not in LAST_BATCH:
        with pytest.raises(CorruptRecordError) as caught:
            recover(directory, case, "fail")
        assert files(directory) == before
        assert caught.value.file.endswith(".log")
        assert caught.value.position is not None
    else:
        answer = json.loads((case / "check-3.9.1.json").read_text())["unclean"]
        loaded = recover(directory, case, "fail")
        assert loaded.next_offset == answer["log_end_offset"]
        assert bool(loaded.lost) == (name.partition("--")[2] in TAIL_KINDS or name in LAST_BATCH)


@pytest.mark.parametrize("name", CASES)
def test_quarantine_loses_the_bad_batches_and_nothing_else(damaged, golden_kafka, name):
    directory, case = damaged(name)
    damaged_files = files(directory)
    source = name.partition("--")[0]
    wanted = offsets(golden_kafka / "cases" / source / f"{source}-0")
    loaded = recover(directory, case, "quarantine")
    kept = offsets(directory)
    missing = sorted(set(wanted) - set(kept))
    batches = batches_of(golden_kafka / "cases" / source / f"{source}-0")
    assert kept == sorted(set(wanted) & set(kept))
    touched = [b for b in batches if set(missing) & set(range(b[0], b[1] + 1))]
    assert len(touched) <= 1
    assert missing == [o for o in wanted if touched and touched[0][0] <= o <= touched[0][1]]
    assert bool(touched) == (
        name.partition("--")[2] in (*MIDDLE_KINDS, *TAIL_KINDS) and name != MENDED
        and name.partition("--")[2] not in ("garbage-tail", "zero-tail")
    )
    # What was taken out is what stood there.
    for one in read_quarantine(directory):
        raw = (directory / "quarantine" / one.file).read_bytes()
        assert raw == damaged_files[one.segment][one.position : one.position + one.size_bytes]
    assert sum(one.size_bytes for one in loaded.lost) == sum(
        len(raw) for n, raw in damaged_files.items() if n.endswith(".log")
    ) - sum(len(raw) for n, raw in files(directory).items() if n.endswith(".log"))


def batches_of(directory):
    with Partition(directory) as partition:
        return [(batch.base_offset, batch.last_offset) for batch in partition.batches()]
