"""`verify` beside the real recovery: silent where a broker changes nothing, and a finding wherever it repairs."""
import gzip
import json
import shutil
import struct
from pathlib import Path

import pytest

from seglog.errors import InvalidArgumentError, NotALogError
from seglog.verification.findings import KINDS, Finding, Severity
from seglog.verification.verify import LEVELS, verify
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


def codes(report):
    return {f.code for f in report.findings if f.severity != Severity.NOTE}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("case", CASES)
def test_what_kafka_wrote_is_clean_but_for_a_crash(case, level):
    report = verify(case / f"{case.name}-0", config=config(case), level=level)
    if case.name.startswith("crash-"):
        assert codes(report) == {"index_zero_tail"}
    else:
        assert report.ok, report.findings


def test_what_the_cleaner_retention_and_rolls_left_is_clean(golden_kafka):
    """Before and after, by three versions; deep, since holes and horizons are what it leaves."""
    directories = {log.parent for log in (golden_kafka / "pairs").rglob("*.log")}
    found = [verify(d, config=SMALL, level="deep") for d in sorted(directories)]
    assert len(found) == 249
    assert [r.path for r in found if not r.ok] == []


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in DAMAGED if case.name not in UNDAMAGED])
def test_what_recovery_repairs_is_found(case):
    report = verify(case / f"{case.name}-0", config=config(case))
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
    assert {"epochs_differ", "epoch_back"} <= codes(verify(directory, config=SMALL))


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


def test_every_code_is_on_the_findings_page():
    page = (Path(__file__).parents[2] / "docs" / "findings.md").read_text()
    for code, kind in KINDS.items():
        assert f"| `{code}` | {kind.severity} | {kind.meaning} | {kind.fix} |" in page


def test_an_unknown_level_is_refused(golden_kafka):
    with pytest.raises(InvalidArgumentError, match="no level"):
        verify(golden_kafka / "cases/v2-lz4-ct-k391/v2-lz4-ct-k391-0", level="quick")


def test_a_directory_that_is_no_log_is_refused(tmp_path):
    with pytest.raises(NotALogError):
        verify(tmp_path)
