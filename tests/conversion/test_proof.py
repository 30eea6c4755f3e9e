"""The proof: what its digest covers, and its file."""
import hashlib
import json
import struct

import pytest

from seglog._kernels.batch_builder import BatchBuilder
from seglog._kernels.columns import ArenaPool
from seglog.conversion.proof import Proof, RecordsDigest, SegmentProof, digest
from seglog.errors import CorruptCheckpointError, ProofMismatchError, UnsupportedVersionError
from seglog.format.checked_json import format_json
from seglog.segment.segment import Segment

RECORDS = [
    (5, 1000, b"k", b"v", ()),
    (6, -1, None, b"", (("h", b"1"), ("h", None), ("é", b""))),
    (9, 2000, b"", None, ()),
]
SIDE = RecordsDigest(("00000000000000000005.log",), 3, "ab" * 32)


def segment_of(path, *batches):
    data = b""
    for records in batches:
        builder = BatchBuilder(records[0][0])
        for record in records:
            builder.append(*record)
        data += builder.finish()
    path.mkdir()
    log = path / "00000000000000000005.log"
    log.write_bytes(data)
    return Segment(log)


def canonical(offset, timestamp, key, value, headers):
    """The definition, from docs/formats/conversion_proof.md."""
    def sized(data):
        return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data

    out = struct.pack(">qq", offset, timestamp) + sized(key) + sized(value) + struct.pack(">i", len(headers))
    return out + b"".join(sized(name.encode()) + sized(data) for name, data in headers)


def test_the_digest_is_sha256_over_the_canonical_bytes(tmp_path):
    found = digest([segment_of(tmp_path / "a", RECORDS)], ArenaPool())
    assert found.records == 3
    assert found.sha256 == hashlib.sha256(b"".join(canonical(*record) for record in RECORDS)).hexdigest()


def test_batch_boundaries_and_segments_are_not_in_it(tmp_path):
    one = digest([segment_of(tmp_path / "a", RECORDS)], ArenaPool())
    two = digest([segment_of(tmp_path / "b", RECORDS[:1], RECORDS[1:])], ArenaPool())
    three = digest([segment_of(tmp_path / "c", RECORDS[:2]), segment_of(tmp_path / "d", RECORDS[2:])], ArenaPool())
    assert one.sha256 == two.sha256 == three.sha256
    assert (two.files, three.files) == (one.files, one.files * 2)


@pytest.mark.parametrize("other", [
    pytest.param([RECORDS[0], RECORDS[2]], id="a record less"),
    pytest.param([*RECORDS[:2], (RECORDS[2][0] + 1, *RECORDS[2][1:])], id="offset"),
    pytest.param([(5, 1001, *RECORDS[0][2:]), *RECORDS[1:]], id="timestamp"),
    pytest.param([(5, 1000, None, b"v", ()), *RECORDS[1:]], id="no key"),
    pytest.param([(5, 1000, b"kv", b"", ()), *RECORDS[1:]], id="key and value shifted"),
    pytest.param([*RECORDS[:2], (9, 2000, b"", b"", ())], id="null and empty"),
    pytest.param([RECORDS[0], (6, -1, None, b"", RECORDS[1][4][:2]), RECORDS[2]], id="a header less"),
    pytest.param([RECORDS[0], (6, -1, None, b"", RECORDS[1][4][::-1]), RECORDS[2]], id="headers in another order"),
])
def test_all_else_is(tmp_path, other):
    one, two = segment_of(tmp_path / "a", RECORDS), segment_of(tmp_path / "b", other)
    assert digest([one], ArenaPool()).sha256 != digest([two], ArenaPool()).sha256


def test_the_order_is(tmp_path):
    one = [segment_of(tmp_path / "a", RECORDS[:1]), segment_of(tmp_path / "b", RECORDS[1:])]
    assert digest(one, ArenaPool()).sha256 != digest(one[::-1], ArenaPool()).sha256


def test_bytes_read_are_told(tmp_path):
    told = []
    segment = segment_of(tmp_path / "a", RECORDS[:1], RECORDS[1:])
    digest([segment], ArenaPool(), told.append)
    assert sum(told) == segment.size_bytes


# --- the file ----------------------------------------------------------------------------------


def proof(*segments):
    return Proof("/data/a/orders-0", "/data/b/orders-0", "0.1.0", 2, 16384, "zstd", segments)


def test_a_proof_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "proof.json"
    whole = proof(SegmentProof(SIDE, SIDE), SegmentProof(SIDE, RecordsDigest(("a.log", "b.log"), 3, "ab" * 32)))
    path.write_bytes(whole.to_json())
    assert Proof.read(path) == whole
    assert whole.holds
    assert whole.records == 6


@pytest.mark.parametrize("damage", [
    lambda text: text[:-3], lambda text: text.replace('"records": 3', '"records": 4'), lambda text: "[]",
    lambda text: "{}", lambda text: text.replace("seglog-conversion-proof", "other"), lambda text: "",
    lambda text: json.dumps({**json.loads(text), "more": 1}),
])
def test_a_damaged_file_is_refused(tmp_path, damage):
    path = tmp_path / "proof.json"
    path.write_text(damage(proof(SegmentProof(SIDE, SIDE)).to_json().decode()))
    with pytest.raises(CorruptCheckpointError) as e:
        Proof.read(path)
    assert e.value.file == str(path)


def test_a_newer_version_is_refused(tmp_path):
    path = tmp_path / "proof.json"
    path.write_bytes(format_json("seglog-conversion-proof", 5))
    with pytest.raises(UnsupportedVersionError, match="version 5 of seglog-conversion-proof, expected 4"):
        Proof.read(path)


@pytest.mark.parametrize("target", [
    RecordsDigest(SIDE.files, 2, SIDE.sha256), RecordsDigest(SIDE.files, 3, "cd" * 32),
])
def test_a_proof_that_does_not_hold_names_the_segment_and_both_digests(target):
    bad = proof(SegmentProof(SIDE, SIDE), SegmentProof(SIDE, target))
    assert not bad.holds
    with pytest.raises(ProofMismatchError, match="3 records with digest abababababababab became") as e:
        bad.check()
    assert e.value.file == "/data/a/orders-0/00000000000000000005.log"
