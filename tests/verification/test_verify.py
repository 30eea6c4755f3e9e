"""`verify` beside the real recovery: silent where a broker changes nothing, and a finding wherever it repairs."""
import gzip
import json
import os
import shutil
import struct
import uuid
from collections import Counter
from pathlib import Path

import pytest

import seglog
from seglog.errors import InvalidArgumentError, NotALogError
from seglog.state.leader_epochs import EpochStart, LeaderEpochs
from seglog.state.partition_metadata import PartitionMetadata
from seglog.state.producer_snapshot import ProducerSnapshot
from seglog.upkeep.recover import recover
from seglog.verification.findings import KINDS, Finding, Severity
from seglog.verification.verify import LEVELS, verify
from support.command import seglog_json
from support.golden import golden_cases, unpack

CASES = [pytest.param(case, id=case.name) for case in golden_cases()]
DAMAGED = sorted((unpack("kafka") / "corrupt").iterdir())
CONFIG_KEYS = ("segment.bytes", "segment.index.bytes", "index.interval.bytes")

SMALL = {"index.interval.bytes": 256, "segment.index.bytes": 8192}      # of most golden cases

# The same bytes as the undamaged source: there was nothing to take away.
UNDAMAGED = {"v1-none-ct-k391--epoch-missing", "v2-lz4-ct-k391--index-empty-active"}

CODES_OF_KIND = {
    "epoch-missing": {"epochs_missing"},
    "flip-active": {"crc_mismatch"},
    "flip-crc-v2": {"crc_mismatch"},
    "flip-earlier-seg": {"crc_mismatch"},
    "garbage-tail": {"garbage_tail"},
    "index-bad-last": {"index_corrupt"},
    "index-empty": {"index_empty"},
    "index-empty-active": {"index_empty"},
    "index-larger-than-max": {"index_too_large"},
    "index-missing": {"index_missing"},
    "index-odd-size": {"index_corrupt"},
    "index-swapped": {"index_corrupt"},
    "index-zero-tail": {"index_zero_tail"},
    "index-zero-tail-inactive": {"index_zero_tail"},
    "magic-7": {"bad_batch", "garbage_tail"},
    "offset-back": {"offset_below_base"},
    "size-huge": {"bad_batch", "torn_tail"},        # the last batch of a log cannot be told from a torn one
    "size-tiny": {"bad_batch", "garbage_tail"},
    "snapshot-corrupt": {"snapshot_corrupt"},
    "tail-cut-17": {"torn_tail"},
    "tail-cut-header": {"torn_tail"},
    "tail-cut7": {"torn_tail"},
    "timeindex-empty": {"timeindex_empty"},
    "timeindex-missing": {"timeindex_missing"},
    "timeindex-odd-size": {"timeindex_corrupt"},
    "zero-tail": {"zero_tail"},
}


def config(case):
    settings = json.loads((case / "case.json").read_text())["config"]
    return {key: value for key, value in settings.items() if key in CONFIG_KEYS}


def config_of_pair(directory):
    """Of one of `pairs/`: rolls tell their interval, which is not always that of the others."""
    steps = directory.parents[1] / "steps.json"
    interval = json.loads(steps.read_text())["config"].get("index.interval.bytes") if steps.exists() else None
    return SMALL | ({"index.interval.bytes": interval} if interval else {})


def codes(report):
    return {f.code for f in report.findings if f.severity != Severity.NOTE}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("case", CASES)
def test_what_kafka_wrote_is_clean_also_after_a_crash(case, level):
    report = verify(case / f"{case.name}-0", config=config(case), level=level)
    assert report.ok, report.findings
    assert ("index_zero_tail" in {f.code for f in report.findings}) is case.name.startswith("crash-")


def test_what_the_cleaner_retention_and_rolls_left_is_clean(golden_kafka):
    """Before and after, by three versions; deep, since holes and horizons are what it leaves."""
    directories = {log.parent for log in (golden_kafka / "pairs").rglob("*.log")}
    found = [verify(d, config=config_of_pair(d), level="deep") for d in sorted(directories)]
    assert len(found) == 249
    assert [r.path for r in found if not r.ok] == []


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in DAMAGED if case.name not in UNDAMAGED])
def test_what_recovery_repairs_is_found(case, tmp_path):
    """In a log dir that says that it was stopped cleanly: a broker would trust it."""
    directory = shutil.copytree(case / f"{case.name}-0", tmp_path / f"{case.name}-0")
    (tmp_path / ".kafka_cleanshutdown").touch()
    report = verify(directory, config=config(case))
    kind = case.name.split("--")[1]
    assert not report.ok
    assert codes(report) & CODES_OF_KIND[kind], report.findings


@pytest.mark.parametrize("name", sorted(UNDAMAGED))
def test_two_damaged_cases_hold_the_bytes_of_their_source(golden_kafka, name):
    source = name.split("--")[0]
    before = {p.name: p.read_bytes() for p in (golden_kafka / "cases" / source / f"{source}-0").iterdir()}
    after = {p.name: p.read_bytes() for p in (golden_kafka / "corrupt" / name / f"{name}-0").iterdir()}
    assert before == after


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in DAMAGED if "--flip-" in case.name])
def test_a_flipped_bit_is_found_at_its_batch(case):
    how = json.loads((case / "case.json").read_text())["how"]
    (finding,) = [f for f in verify(case / f"{case.name}-0", config=config(case)).findings if f.code == "crc_mismatch"]
    assert Path(finding.file).name == f"{how['segment']}.log"
    assert [finding.position, finding.size_bytes] == how["batch"]


# --- what no checksum covers -----------------------------------------------------------------


@pytest.fixture
def copy(golden_kafka, tmp_path):
    def make(case="v2-lz4-ct-k391"):
        return shutil.copytree(golden_kafka / "cases" / case / f"{case}-0", tmp_path / f"{case}-0")
    return make


def patch(path, position, raw):
    data = bytearray(path.read_bytes())
    data[position:position + len(raw)] = raw
    path.write_bytes(data)


def first_log(directory):
    return min(directory.glob("*.log"))


def second_batch(log):
    return 12 + struct.unpack_from(">i", log.read_bytes(), 8)[0]


def test_a_base_offset_that_goes_back_is_found_though_the_checksum_fits(copy):
    directory = copy()
    log = first_log(directory)
    patch(log, second_batch(log), struct.pack(">q", 0))
    (finding,) = [f for f in verify(directory, config=SMALL).findings if f.severity == Severity.ERROR]
    assert (finding.code, finding.position) == ("offset_back", second_batch(log))


def test_a_leader_epoch_that_differs_from_the_checkpoint_is_found(copy):
    directory = copy()
    log = first_log(directory)
    patch(log, second_batch(log) + 12, struct.pack(">i", 7))
    assert {f.code for f in verify(directory, config=SMALL).findings} == {"epochs_differ", "epoch_back"}


@pytest.mark.parametrize("mode", ["truncate", "quarantine"])
@pytest.mark.parametrize("epoch", [0, 7])
@pytest.mark.parametrize("case", ["epochs-v2-k391", "v2-lz4-ct-k391"])
def test_no_finding_on_epochs_outlasts_a_recovery(copy, case, epoch, mode):
    """One epoch field, under no checksum, is wrong: brokers keep the batch, and so does a recovery of either kind."""
    directory = copy(case)
    log = max(directory.glob("*.log"), key=lambda log: log.stat().st_size)
    patch(log, second_batch(log) + 12, struct.pack(">i", epoch))
    records = verify(directory, config=SMALL).records
    recover(directory, mode=mode, apply=True, config=SMALL)
    report = verify(directory, config=SMALL)
    assert report.ok, report.findings
    assert report.records == records


def test_a_checkpoint_that_no_batch_bears_out_is_a_finding_until_it_is_removed(copy):
    """A recovery believes a leader-epoch-checkpoint that parses; the advice is to remove one that is wrong."""
    directory = copy("epochs-v2-k391")
    checkpoint = directory / "leader-epoch-checkpoint"
    checkpoint.write_bytes(LeaderEpochs([EpochStart(2, 0), EpochStart(50, 25)]).to_bytes())
    assert codes(verify(directory, config=SMALL)) == {"epochs_differ"}
    recover(directory, mode="truncate", apply=True, config=SMALL)
    assert codes(verify(directory, config=SMALL)) == {"epochs_differ"}
    assert "remove leader-epoch-checkpoint" in KINDS["epochs_differ"].fix
    checkpoint.unlink()
    recover(directory, mode="truncate", apply=True, config=SMALL)
    assert verify(directory, config=SMALL).findings == []


def test_an_index_entry_that_points_between_batches_is_found(copy):
    directory = copy()
    index = min(directory.glob("*.index"))
    offset, position = struct.unpack_from(">ii", index.read_bytes(), 16)
    patch(index, 16, struct.pack(">ii", offset, position + 1))
    (finding,) = verify(directory, config=SMALL).findings
    assert (finding.code, finding.position) == ("index_misleads", 16)


def test_an_index_entry_that_leads_behind_its_offset_is_found(copy):
    directory = copy()
    index = min(directory.glob("*.index"))
    (first, _), (_, second) = struct.iter_unpack(">ii", index.read_bytes()[:16])
    patch(index, 0, struct.pack(">ii", first, second))
    (finding,) = verify(directory, config=SMALL).findings
    assert finding.code in ("index_misleads", "index_corrupt")


def test_a_time_entry_that_hides_a_later_timestamp_is_found(copy):
    directory = copy("v1-none-ct-k391")
    index = min(directory.glob("*.timeindex"))
    timestamp, offset = struct.unpack_from(">qi", index.read_bytes())
    patch(index, 0, struct.pack(">qi", timestamp - 1, offset))
    (finding,) = verify(directory, config=SMALL).findings
    assert (finding.code, finding.position) == ("timeindex_misleads", 0)


def test_an_aborted_transaction_that_is_not_listed_is_found(copy):
    directory = copy("txn-v2-k391")
    first = min(directory.glob("*.txnindex"))
    first.write_bytes(first.read_bytes()[34:])
    (finding,) = verify(directory, config=SMALL).findings
    assert (finding.code, finding.severity, finding.offset) == ("txnindex_incomplete", "error", 5)


def test_a_listed_transaction_without_its_marker_is_found(copy):
    directory = copy("txn-v2-k391")
    first = min(directory.glob("*.txnindex"))
    first.write_bytes(first.read_bytes() + struct.pack(">hqqqq", 0, 2001, 60, 61, 60))
    assert "txnindex_misleads" in codes(verify(directory, config=SMALL))


@pytest.mark.parametrize(("name", "raw", "code"), [
    ("leader-epoch-checkpoint", b"0\n1\n", "epochs_corrupt"),
    ("partition.metadata", b"version: 0\n", "metadata_corrupt"),
    ("00000000000000000000.log.cleaned", b"", "leftover"),
    ("00000000000000009999.index", b"", "orphan_index"),
    ("00000000000000000000.txnindex", b"odd", "txnindex_corrupt"),
])
def test_a_file_that_a_broker_would_repair_or_remove_is_found(copy, name, raw, code):
    directory = copy()
    (directory / name).write_bytes(raw)
    assert code in codes(verify(directory, config=SMALL))


def test_a_missing_segment_in_the_middle_of_damage_does_not_end_the_walk(copy):
    """Two flips in two segments: both are found, with what lies between them read."""
    directory = copy()
    for log in sorted(directory.glob("*.log")):
        patch(log, 70, bytes([log.read_bytes()[70] ^ 1]))
    report = verify(directory, config=SMALL)
    assert [f.code for f in report.findings if f.severity == Severity.ERROR] == ["crc_mismatch", "crc_mismatch"]


def test_records_that_contradict_their_header_are_found_at_the_deep_level_only(copy):
    from seglog._kernels.crc import crc32c

    directory = copy("v2-none-ct-k391")
    log = first_log(directory)
    raw = bytearray(log.read_bytes())
    size = second_batch(log)
    raw[57:61] = struct.pack(">i", struct.unpack_from(">i", raw, 57)[0] - 1)       # one record fewer
    raw[17:21] = struct.pack(">I", crc32c(bytes(raw[21:size])))
    log.write_bytes(raw)
    assert verify(directory, config=SMALL).ok
    report = verify(directory, config=SMALL, level="deep")
    assert [(f.code, f.position) for f in report.findings] == [("bad_records", 0)]
    # What it advises is what a recovery does: it keeps the batch, as a broker does, which opens none.
    assert recover(directory, mode="truncate", config=SMALL).lost == ()
    assert "truncates the log here" not in report.findings[0].fix


def test_a_message_inside_a_wrapper_that_fails_its_own_checksum_is_found_at_the_deep_level(tmp_path):
    from support import plain_format as plain

    inner = bytearray(b"".join(plain.message(i, b"k", b"value", magic=1, timestamp=5) for i in range(3)))
    inner[-1] ^= 1                                      # of the last message's value
    wrapper = plain.message(2, None, gzip.compress(bytes(inner)), magic=1, timestamp=5, attributes=plain.GZIP)
    directory = tmp_path / "orders-0"
    directory.mkdir()
    (directory / "00000000000000000000.log").write_bytes(wrapper)
    (finding,) = [f for f in verify(directory, level="deep").findings if f.severity == Severity.ERROR]
    assert (finding.code, finding.position) == ("bad_records", 0)
    assert finding.found == "message 2 inside the wrapper fails its own checksum"
    assert "bad_records" not in codes(verify(directory))


# --- an index without an entry ---------------------------------------------------------------


EMPTY = ("index_empty", "index_undecided")


def emptied(directory):
    """The .index files that Kafka gave entries and that have none now."""
    filled = [index for index in sorted(directory.glob("*.index")) if index.stat().st_size]
    for index in filled:
        index.write_bytes(b"")
    return {str(index) for index in filled}


@pytest.mark.parametrize("case", CASES)
def test_an_emptied_index_is_found_or_said_to_be_undecidable(case, tmp_path):
    """Of each segment whose .index Kafka gave an entry. By its interval exactly where the time index can tell."""
    if case.name.startswith("crash-"):
        pytest.skip("indexes that were not trimmed: zeros behind entries, which is another finding")
    directory = shutil.copytree(case / f"{case.name}-0", tmp_path / f"{case.name}-0")
    files = emptied(directory)
    told = {f.file: f.code for f in verify(directory, config=config(case)).findings if f.code in EMPTY}
    assert {file for file, code in told.items() if code == "index_empty"} <= files <= set(told)
    if case.name.startswith(("v2-", "txn", "idempotent")):      # by a leader, and neither compacted nor with holes
        assert set(told.values()) <= {"index_empty"}


def test_how_many_emptied_indexes_the_interval_decides(golden_kafka, tmp_path):
    """Of the golden cases and pairs, a fifth of them by default: of all 746 segments with entries 583 are decided."""
    told = Counter()
    directories = [(case / f"{case.name}-0", config(case)) for case in golden_cases()]
    directories += [(directory, config_of_pair(directory))
                    for directory in sorted({log.parent for log in (golden_kafka / "pairs").rglob("*.log")})]
    whole = bool(os.environ.get("SEGLOG_TORTURE"))
    for n, (source, settings) in enumerate(directories if whole else directories[::5]):
        directory = shutil.copytree(source, tmp_path / str(n) / source.name)
        files = emptied(directory)
        found = {f.file: f.code for f in verify(directory, config=settings).findings if f.code in EMPTY}
        told.update(found.get(file, "nothing") for file in files)
    assert told["index_empty"] > told["index_undecided"] > 0
    if whole:
        assert told["nothing"] == 5     # of v2-merge-index-limit, which has a smaller interval than the others


def test_without_the_interval_verify_says_that_it_cannot_tell(copy):
    directory = copy("big-v1-lz4-k391")
    files = emptied(directory)
    interval = {"index.interval.bytes": 256}
    assert {f.code for f in verify(directory, config=SMALL).findings if f.file in files} == {"index_empty"}
    without = verify(directory, config={"segment.index.bytes": 8192})
    assert {f.code for f in without.findings if f.file in files} <= {"index_undecided", "index_empty"}
    assert interval.items() <= SMALL.items()


# --- Kafka 0.10.0 ----------------------------------------------------------------------------


def as_0_10_0_left_it(directory):
    """v1 messages and offset indexes, nothing that a later version adds."""
    for path in directory.iterdir():
        if path.suffix not in (".log", ".index"):
            path.unlink()
    return directory


@pytest.mark.parametrize("case", ["v1-none-ct-k391", "v1-gzip-ct-k391", "rollms-v1-k391"])
def test_a_directory_of_0_10_0_has_no_time_indexes_and_is_clean(copy, case):
    directory = as_0_10_0_left_it(copy(case))
    report = verify(directory, config=SMALL, level="deep")
    assert report.ok
    assert [f.code for f in report.findings] == ["timeindex_none"]


@pytest.mark.parametrize(("sign", "raw"), [
    ("leader-epoch-checkpoint", b"0\n0\n"), ("00000000000000000000.timeindex", b""),
    ("00000000000000000000.snapshot", ProducerSnapshot().to_bytes()),
    ("partition.metadata", PartitionMetadata(uuid.UUID(int=7)).to_bytes()),
])
def test_beside_files_of_a_later_version_a_missing_time_index_is_a_finding(copy, sign, raw):
    directory = as_0_10_0_left_it(copy("v1-none-ct-k391"))
    (directory / sign).write_bytes(raw)
    assert codes(verify(directory, config=SMALL)) & {"timeindex_missing", "timeindex_empty"}


# --- the report ------------------------------------------------------------------------------


def test_the_report_counts_what_it_read(golden_kafka):
    report = verify(golden_kafka / "cases/mixed-formats-k391/mixed-formats-k391-0", config=SMALL, level="deep")
    assert (report.segments, report.size_bytes, report.records, report.batches) == (1, 4784, 89, 33)
    assert report.to_dict()["type"] == "summary"


def test_progress_reaches_the_end(golden_kafka):
    steps = []
    verify(golden_kafka / "cases/v2-lz4-ct-k391/v2-lz4-ct-k391-0", config=SMALL,
           progress=lambda done, total: steps.append((done, total)))
    assert steps == sorted(steps)
    assert steps[-1][0] == steps[-1][1]


def test_a_finding_says_what_to_do():
    line = Finding("crc_mismatch", "a.log", 5, 7).to_dict()
    assert line == {"type": "finding", "schema": 1, "severity": "error", "code": "crc_mismatch", "file": "a.log",
                    "position": 5, "offset": 7, "fix": KINDS["crc_mismatch"].fix}


def test_an_unknown_level_is_refused(golden_kafka):
    with pytest.raises(InvalidArgumentError, match="unknown level"):
        verify(golden_kafka / "cases/v2-lz4-ct-k391/v2-lz4-ct-k391-0", level="quick")


def test_a_directory_that_is_no_log_is_refused(tmp_path):
    with pytest.raises(NotALogError):
        verify(tmp_path)


# --- empty indexes of small segments ---------------------------------------------------------


def small_log(directory, batches, *, interval=1):
    """A closed log within Kafka's default interval, with an index entry for each batch but the first."""
    with seglog.open(directory, config={"index.interval.bytes": interval}) as log:
        for n in range(batches):
            log.append(b"value", timestamp=1_700_000_000_000 + n)
    return directory


def test_an_emptied_index_of_a_small_segment_cannot_be_told_without_the_interval(tmp_path):
    directory = small_log(tmp_path / "orders-0", 5)
    index = first_log(directory).with_suffix(".index")
    assert len(index.read_bytes()) == 4 * 8
    index.write_bytes(b"")
    finding, = verify(directory).findings
    assert (finding.code, finding.severity, finding.file) == ("index_undecided", "note", str(index))
    assert "if index.interval.bytes, which is not known" in finding.expected
    assert codes(verify(directory, config={"index.interval.bytes": 1})) == {"index_empty"}
    assert verify(directory, config={"index.interval.bytes": 4096}).findings == []


def test_settings_that_are_kept_with_the_log_are_used_unless_others_are_given(tmp_path):
    directory = small_log(tmp_path / "orders-0", 5)
    index = first_log(directory).with_suffix(".index")
    entries = index.read_bytes()
    with seglog.open(directory) as log:
        log.configure({"index.interval.bytes": 1})
    index.write_bytes(b"")
    assert codes(verify(directory)) == {"index_empty"}
    assert seglog_json("verify", directory, status=1)[0]["code"] == "index_empty"
    assert verify(directory, config={"index.interval.bytes": 4096}).findings == []
    index.write_bytes(entries)
    with seglog.open(directory) as log:
        log.configure({"segment.index.bytes": 24})
    assert codes(verify(directory)) == {"index_too_large"}
    assert codes(verify(directory, config={"segment.index.bytes": 1024})) == set()


@pytest.mark.parametrize(("batches", "interval"), [(1, 1), (5, 4096)])
def test_an_index_of_a_small_segment_that_never_had_an_entry_is_clean(tmp_path, batches, interval):
    directory = small_log(tmp_path / "orders-0", batches, interval=interval)
    assert first_log(directory).with_suffix(".index").read_bytes() == b""
    assert verify(directory).findings == []
