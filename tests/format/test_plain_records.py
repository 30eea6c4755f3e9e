"""The plain reader beside the kernels and Kafka's own decoder, and that it shares nothing with them."""
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import seglog
from seglog._kernels.columns import ArenaPool
from seglog.conversion.proof import digest
from seglog.format.compression import compress
from seglog.format.plain_codecs import Malformed, open_payload
from seglog.format.plain_records import PlainBatch, PlainDigest, read_batches, split
from seglog.segment.segment import Segment
from support import plain_format as plain
from support.command import golden_lines
from support.golden import golden_cases, unpack

FULL = bool(os.environ.get("SEGLOG_TORTURE"))
CASES = [pytest.param(case, id=case.name) for case in golden_cases()]
ALONE = """
import sys

class NoKernels:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("seglog._kernels"):
            raise AssertionError(f"the witness imports {name}")

sys.meta_path.insert(0, NoKernels())
from seglog.format.plain_records import PlainDigest, read_batches
digest = PlainDigest()
with open(sys.argv[1], "rb") as file:
    for batch in read_batches(file):
        digest.add(batch.records())
print(digest.records, digest.sha256)
print(*sorted(name for name in sys.modules if name.startswith("seglog")))
"""


def read(log):
    with open(log, "rb") as file:
        return [record for batch in read_batches(file) for record in batch.records()]


def read_as_by_the_kernels(log):
    """The records of a .log file, which the kernels read alike."""
    records, again = read(log), PlainDigest()
    again.add(records)
    ours = digest([Segment(log)], ArenaPool())
    assert (again.records, again.sha256) == (ours.records, ours.sha256), log
    return records


@pytest.mark.parametrize("case", CASES)
def test_every_golden_log_reads_as_by_the_kernels_and_as_kafka_decoded_it(case):
    logs = sorted((case / f"{case.name}-0").glob("*.log"))
    records = [record for log in logs for record in read_as_by_the_kernels(log)]
    said = golden_lines(case, "expected")
    assert [(r.offset, r.timestamp) for r in records] == [(line["offset"], line["timestamp"]) for line in said]


def test_what_old_brokers_wrote_reads_as_by_the_kernels():
    logs = sorted(unpack("old_brokers").rglob("0*.log"))
    assert len(logs) > 100
    for log in logs if FULL else logs[::5]:
        read_as_by_the_kernels(log)


def test_it_imports_no_kernel():
    log = unpack("kafka") / "cases/mixed-formats-k391/mixed-formats-k391-0/00000000000000000000.log"
    child = subprocess.run([sys.executable, "-c", ALONE, log], capture_output=True, text=True, check=True)
    digest_of, modules = child.stdout.splitlines()
    ours = digest([Segment(log)], ArenaPool())
    assert digest_of == f"{ours.records} {ours.sha256}"
    assert modules.split() == [
        "seglog", "seglog._public", "seglog._version", "seglog.errors", "seglog.format", "seglog.format.plain_codecs",
        "seglog.format.plain_records",
    ]
    assert Path(seglog.__file__).parent.joinpath("_kernels").is_dir()


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize("data", [b"", b"x", bytes(200_000), bytes(range(256)) * 1500])
def test_payloads_open_as_they_were(codec, data):
    for magic in (0, 1, 2) if codec < 4 else (2,):
        assert open_payload(codec, bytes(compress(codec, magic, data))) == data
        with pytest.raises(Malformed):
            open_payload(codec, bytes(compress(codec, magic, b"y" * 1000))[:-9])


@pytest.mark.parametrize("codec", [0, 5, 7])
def test_a_codec_that_is_none_is_malformed(codec):
    with pytest.raises(Malformed):
        open_payload(codec, b"")


def damaged(raw):
    """Every way to cut a batch, and each byte changed."""
    for n in range(len(raw)):
        yield raw[:n] + bytes([raw[n] ^ 0x55]) + raw[n + 1 :]


@pytest.mark.parametrize("raw", [
    pytest.param(plain.batch_v2(plain.record_v2(key=b"k", value=b"v", headers=((b"h", b"1"),))), id="v2"),
    pytest.param(plain.message(3, b"k", b"v", timestamp=9), id="v1"),
    pytest.param(plain.message(3, b"k", b"v", magic=0), id="v0"),
])
def test_a_changed_byte_under_the_checksum_is_malformed(raw):
    before = PlainBatch(0, raw).records()
    for n, changed in enumerate(damaged(raw)):
        batches = split(changed, 0)
        if batches and batches[0].raw == changed:
            try:
                assert batches[0].records() != before or n < 17      # the epoch, or what no record has
            except Malformed:
                pass
            else:
                assert n < 17


def with_crc(body):
    """A message of v1 around its magic, attributes and the rest."""
    return struct.pack(">qiI", 0, 4 + len(body), zlib.crc32(body)) + body


@pytest.mark.parametrize("raw", [
    pytest.param(plain.batch_v2(plain.record_v2(), count=2), id="a record less than said"),
    pytest.param(plain.batch_v2(plain.record_v2() + b"\\0", count=1), id="a byte more"),
    pytest.param(plain.batch_v2(b"", count=-1), id="fewer than none"),
    pytest.param(plain.batch_v2(plain.varint(6) + bytes(3) + b"\x80" * 6, count=1), id="a number without an end"),
    pytest.param(with_crc(b"\x01\x01" + bytes(8) + struct.pack(">ii", -1, -1)), id="a wrapper of nothing"),
    pytest.param(plain.message(0, None, b"x", attributes=4), id="zstd below v2"),
    pytest.param(with_crc(b"\x01\x00" + bytes(8) + struct.pack(">ii", -1, 5)), id="a value that is cut short"),
])
def test_what_contradicts_itself_is_malformed(raw):
    (batch,) = split(raw, 0)
    assert batch.crc_fits
    with pytest.raises(Malformed):
        batch.records()
