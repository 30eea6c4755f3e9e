"""`verify --witness` and `convert --proof independent`: what a wrong kernel would hide, plain Python tells."""
import json
import shutil
import subprocess
import sys

import pytest

import seglog as engine
from seglog._kernels.canonical import update_digest
from seglog._kernels.columns import ArenaPool
from seglog.conversion import segment as conversion
from seglog.conversion.losses import LOSS_KINDS
from seglog.conversion.proof import RecordsDigest, SegmentProof, digest
from seglog.errors import ProofMismatchError
from seglog.segment.segment import Segment
from seglog.verification import witness_check
from seglog.verification.verify import verify
from support.command import partition_of, seglog, seglog_json
from support.golden import golden_cases, unpack

ALL_LOSSES = ",".join(LOSS_KINDS)

CASES = [pytest.param(case, id=case.name) for case in golden_cases()[::6]]


def golden(case):
    return unpack("kafka") / "cases" / case / f"{case}-0"


@pytest.mark.parametrize("case", CASES)
def test_what_kafka_wrote_is_read_alike_by_both(case):
    report = verify(partition_of(case), witness_every=1)
    assert [f for f in report.findings if f.code == "witness_differs"] == []
    assert report.witnessed == report.segments


def test_a_kernel_that_reads_another_value_is_found_with_the_batch(monkeypatch):
    """A reader that is wrong on both sides of a proof: the witness shares nothing with it."""
    def wrong(columns, hasher, **options):
        update_digest(columns, hasher, **options)
        if columns.offset[0] <= 40 <= columns.offset[len(columns) - 1]:
            hasher.update(b"a value that is not there")

    directory = golden("v2-lz4-ct-k391")
    assert verify(directory, level="deep").count("error") == 0
    monkeypatch.setattr(witness_check, "update_digest", wrong)
    (finding,) = [f for f in verify(directory, witness_every=1).findings if f.severity == "error"]
    assert finding.code == "witness_differs"
    (batch,) = [b for b in engine.open_partition(directory).batches() if b.base_offset <= 40 <= b.last_offset]
    assert finding.position == batch.position


def test_a_checksum_that_the_kernels_take_for_right_is_found(monkeypatch, tmp_path):
    directory = shutil.copytree(golden("v2-none-ct-k391"), tmp_path / "orders-0")
    log = min(directory.glob("*.log"))
    raw = bytearray(log.read_bytes())
    raw[100] ^= 1
    log.write_bytes(raw)
    monkeypatch.setattr(witness_check.WitnessCheck, "_ours", lambda self, table: (1, "of a kernel that is satisfied"))
    assert "witness_differs" in {f.code for f in verify(directory, level="headers", witness_every=1).findings}


def test_of_damage_both_say_the_same(tmp_path):
    directory = shutil.copytree(golden("v2-none-ct-k391"), tmp_path / "orders-0")
    log = min(directory.glob("*.log"))
    raw = bytearray(log.read_bytes())
    raw[100] ^= 1
    log.write_bytes(raw)
    for level in ("headers", "crc", "deep"):
        found = {f.code for f in verify(directory, level=level, witness_every=1).findings if f.severity == "error"}
        assert found == (set() if level == "headers" else {"crc_mismatch"})


def test_the_command_says_how_much_was_read_twice():
    directory = golden("v1-none-ct-k391")
    segments = len(list(directory.glob("*.log")))
    assert seglog_json("verify", directory, "--witness")[-1]["witnessed"] == segments
    assert seglog_json("verify", directory, "--witness-every", 1000)[-1]["witnessed"] == min(segments, 2)
    assert seglog_json("verify", directory)[-1]["witnessed"] == 0
    assert "plain Python" in seglog("verify", directory, "--witness").stdout


def test_without_the_package_the_command_says_what_to_install():
    code = ("import sys; sys.modules['crc32c'] = None\n"
            "from seglog.tools.start import main; sys.argv[0] = 'seglog'; main()")
    child = subprocess.run([sys.executable, "-c", code, "verify", golden("v2-none-ct-k391"), "--witness"],
                           capture_output=True, text=True)
    assert child.returncode == 6
    assert "seglog[witness]" in child.stderr


# --- conversions -----------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "options"), [
    ("mixed-formats-k391", ["--to", "2"]),
    ("v1-gzip-ct-k391", ["--to", "2", "--repack", "16k", "--codec", "zstd"]),
    ("v2-lz4-ct-k391", ["--to", "1", "--allow-lossy", ALL_LOSSES]),
    ("v2-none-ct-k391", ["--to", "0", "--allow-lossy", ALL_LOSSES]),
    ("txn-v2-k391", ["--to", "1", "--allow-lossy", ALL_LOSSES, "--aborted", "drop", "--codec", "lz4"]),
    ("txn-v2-k391", ["--to", "1", "--allow-lossy", ALL_LOSSES, "--aborted", "keep", "--codec", "lz4"]),
    ("txn-v2-k411", ["--to", "2", "--repack", "4k"]),
])
def test_a_conversion_is_proven_again(tmp_path, case, options):
    *_, last = seglog_json("convert", golden(case), tmp_path / "orders-0", *options, "--proof", "independent")
    assert last["proven_again"] == len(list(golden(case).glob("*.log")))
    again = seglog_json("convert", golden(case), tmp_path / "orders-1", *options)[-1]
    assert again["proven_again"] == 0


def test_records_that_the_first_proof_does_not_miss_are_missed_before_the_target_gets_its_name(tmp_path, monkeypatch):
    """The conversion loses the first batch of a segment, and the proof of the same code is blind to that."""
    def lossy(table):
        return ((first + (first == 0), stop) for first, stop in slices(table))

    def blind(self, is_last, files):
        after = digest([Segment(file, is_last=False, decompress=self.decompress) for file in files], ArenaPool())
        return SegmentProof(RecordsDigest((self._source.name,), after.records, after.sha256), after)

    slices = conversion.slices
    monkeypatch.setattr(conversion, "slices", lossy)
    source = golden("v1-gzip-ct-k391")
    with pytest.raises(ProofMismatchError):
        engine.convert(source, tmp_path / "orders-0")
    monkeypatch.setattr(conversion._SegmentConversion, "_prove", blind)
    assert engine.convert(source, tmp_path / "orders-1").proof.holds      # which nobody would notice
    with pytest.raises(ProofMismatchError, match="plain Python reads"):
        engine.convert(source, tmp_path / "orders-2", proof="independent")
    assert not (tmp_path / "orders-2").exists()


def test_the_proof_file_is_still_written_where_it_is_told(tmp_path):
    seglog("convert", golden("v1-none-ct-k391"), tmp_path / "orders-0", "--proof", tmp_path / "proof.json",
           "--proof", "independent")
    assert json.loads((tmp_path / "proof.json").read_text())["format"] == "seglog-conversion-proof"


def test_a_log_dir_is_proven_again_partition_by_partition(tmp_path):
    (tmp_path / "old").mkdir()
    for n, case in enumerate(("v1-none-ct-k391", "v0-none-ct-k282")):
        shutil.copytree(golden(case), tmp_path / "old" / f"orders-{n}")
    *rows, _ = seglog_json("convert", tmp_path / "old", tmp_path / "new", "--proof", "independent")
    assert [row["status"] for row in rows] == ["converted", "converted"]
