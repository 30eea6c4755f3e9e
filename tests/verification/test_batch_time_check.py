"""No record of a v2 batch may be later than its header says: searches by time trust it."""
import struct

import pytest

import seglog
from seglog._kernels.crc import crc32c
from seglog.verification import log_check
from support import plain_format as plain

T0 = 1_700_000_000_000
RECORDS = 10
LATEST = T0 + RECORDS - 1
LOG_APPEND_TIME = 0x08


def batch(base_offset, largest=LATEST, *, attributes=0, **fields):
    """A batch whose header has this largest timestamp; its records have T0 and each ms up to LATEST."""
    records = [(b"k%d" % n, b"v" * 50, (), T0 + n) for n in range(RECORDS)]
    raw = bytearray(seglog.build_batch(records, base_offset=base_offset, leader_epoch=0, **fields))
    raw[22] |= attributes
    raw[35:43] = struct.pack(">q", largest)
    raw[17:21] = struct.pack(">I", crc32c(bytes(raw[21:])))
    return bytes(raw)


@pytest.fixture
def found(tmp_path):
    """What is found at this level in a log of these batches."""
    def verify(*batches, level="deep"):
        partition = tmp_path / "orders-0"
        partition.mkdir()
        (partition / f"{0:020}.log").write_bytes(b"".join(batches))
        return [f for f in seglog.verify(partition, level=level).findings if f.file.endswith(".log")]
    return verify


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_record_later_than_its_batch_is_found(found, codec):
    first = batch(0)
    (finding,) = found(first, batch(RECORDS, LATEST - 5, codec=codec), batch(2 * RECORDS))
    assert (finding.code, finding.severity) == ("batch_time", "warning")
    assert (finding.position, finding.offset) == (len(first), 2 * RECORDS - 1)
    assert (finding.found, finding.expected) == (f"timestamp {LATEST - 5}", f"at least {LATEST}")


def test_a_header_without_a_time_hides_records_that_have_one(found):
    (finding,) = found(batch(0, -1))
    assert (finding.code, finding.found) == ("batch_time", "timestamp -1")


def test_a_header_later_than_all_records_is_clean_as_after_compaction(found):
    assert found(batch(0, LATEST + 1)) == []


def test_under_log_append_time_the_header_is_right_whatever_the_records_say(found):
    assert found(batch(0, T0 - 5, attributes=LOG_APPEND_TIME)) == []


def test_a_batch_without_records_is_clean(found):
    empty = plain.batch_v2(count=0, last_offset_delta=4, base_timestamp=-1, max_timestamp=T0)
    assert found(empty, batch(5)) == []


def test_only_the_deep_level_finds_it(found):
    assert found(batch(0, T0), level="crc") == []


def test_a_segment_has_one_finding_that_counts_the_batches(found):
    (finding,) = found(batch(0), *[batch(n * RECORDS, LATEST - n) for n in range(1, 5)])
    assert finding.offset == 2 * RECORDS - 1
    assert finding.found == f"timestamp {LATEST - 1}, and 3 more batches"


def test_it_is_found_and_counted_across_chunks_of_columns(found, monkeypatch):
    chunks = log_check.chunks
    monkeypatch.setattr(log_check, "chunks", lambda table, pool, **how: chunks(table, pool, 1, **how))
    (finding,) = found(*[batch(n * RECORDS, LATEST - n % 2) for n in range(6)])
    assert (finding.offset, finding.found) == (2 * RECORDS - 1, f"timestamp {LATEST - 1}, and 2 more batches")


def test_wrappers_and_messages_of_older_formats_are_passed_over(found):
    v1 = seglog.build_batch([(b"k", b"v", (), T0 + n) for n in range(3)], magic=1, codec="gzip")
    v0 = seglog.build_batch([(b"k", b"v")] * 3, magic=0, base_offset=3)
    (finding,) = found(v1, v0, batch(6, LATEST - 1))
    assert (finding.code, finding.position) == ("batch_time", len(v1) + len(v0))


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
def test_damaged_records_before_and_behind_do_not_hide_it(found, monkeypatch, chunk_bytes):
    chunks = log_check.chunks
    monkeypatch.setattr(log_check, "chunks", lambda table, pool, **how: chunks(table, pool, chunk_bytes, **how))
    bad = plain.batch_v2(plain.record_v2(value=bytes(50)), count=2, base_offset=10, base_timestamp=T0, max_timestamp=T0)
    findings = found(batch(0, LATEST - 1), bad, batch(20, LATEST - 2))
    assert [f.code for f in findings] == ["bad_records", "batch_time"]
    assert findings[1].found == f"timestamp {LATEST - 1}, and 1 more batches"
