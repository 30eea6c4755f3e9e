"""What a log takes it can read: the limits of a batch, compressed or not, and records that are too many for one."""
import re
import struct

import crc32c
import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import CorruptRecordError, InvalidArgumentError, InvalidTimestampError, RecordTooLargeError
from seglog.tools.report import PARTIAL
from support.command import seglog as command

NOW = 1_700_000_000_000
CODECS = ["gzip", "snappy", "lz4", "zstd"]
LIMITS = {"max.decompressed.message.bytes": 50_000}
RECORDS = [(b"k", b"v" * 90)] * 1000       # 100 bytes each and some


def opened(path, **config):
    return seglog.open(path, config=config, clock=ManualClock(NOW))


def fitting(refusal):
    return int(re.search(r"the first (\d+) of \d+ records fit", str(refusal.value)).group(1))


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_nobody_could_read_is_refused_with_the_limit_and_how_many_records_fit(tmp_path, codec):
    with opened(tmp_path / "orders-0", **LIMITS, **{"compression.type": codec}) as log:
        with pytest.raises(RecordTooLargeError, match=r"max\.decompressed\.message\.bytes = 50000") as refusal:
            log.append_many(RECORDS)
        assert log.log_end_offset == 0
        count = fitting(refusal)
        assert 400 < count < 500
        log.append_many(RECORDS[:count])
        assert len(list(log.read())) == count
        with pytest.raises(RecordTooLargeError):
            log.append_many(RECORDS[: count + 1])


def test_what_is_not_compressed_may_be_larger(tmp_path):
    with opened(tmp_path / "orders-0", **LIMITS) as log:
        log.append_many(RECORDS)
        assert len(list(log.read())) == len(RECORDS)


@pytest.mark.parametrize("codec", CODECS)
def test_lingering_records_columns_and_single_ones_stay_readable(tmp_path, codec):
    config = {**LIMITS, "compression.type": codec}
    config |= {"linger.ms": 60_000, "seglog.linger.bytes": 1 << 20}
    with seglog.open(tmp_path / "orders-0", config=config, fsync="never") as log:
        for key, value in RECORDS:
            log.append(value, key=key)
        log.flush()
        log.append_columns(next(seglog.open_partition(source(tmp_path)).columns(chunk_bytes=1 << 20)))
        assert len(list(log.read())) == 2 * len(RECORDS)
        with pytest.raises(RecordTooLargeError):
            log.append(b"v" * 50_000)


def source(tmp_path):
    with opened(tmp_path / "source-0") as log:
        log.append_many(RECORDS)
    return tmp_path / "source-0"


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("assign_offsets", [True, False])
def test_an_encoded_batch_that_nobody_could_read_is_refused(tmp_path, codec, assign_offsets):
    raw = seglog.build_batch(RECORDS, codec=codec, timestamp=NOW)
    with opened(tmp_path / "orders-0", **LIMITS) as log:
        with pytest.raises(RecordTooLargeError, match=r"max\.decompressed\.message\.bytes = 50000"):
            log.append_batch(raw, assign_offsets=assign_offsets)
        assert log.log_end_offset == 0
        raw = seglog.build_batch(RECORDS[:400], codec=codec, timestamp=NOW)
        log.append_batch(raw, assign_offsets=assign_offsets)
        assert len(list(log.read())) == 400


@pytest.fixture
def too_large(tmp_path):
    """A log with a batch in its middle that the limit does not let anybody read."""
    with opened(tmp_path / "orders-0", **{"compression.type": "zstd"}) as log:
        log.append(b"before")
        log.append_many(RECORDS)
        log.append(b"behind")
    return tmp_path / "orders-0"


@pytest.mark.parametrize("read", [
    ("read", lambda found: [r.offset for r in found]),
    ("batches", lambda found: [b.base_offset for b in found if b.count == 1]),
    ("columns", lambda found: [o for c in found for o in c.offset]),
], ids=["read", "batches", "columns"])
def test_a_reader_goes_on_behind_it(too_large, read):
    door, offsets = read
    with seglog.open_partition(too_large, config=LIMITS) as log:
        with pytest.raises(RecordTooLargeError):
            list(log.read())
        found = getattr(log, door)(on_corrupt="skip")
        assert found.lost == ()
        assert offsets(found) == [0, 1001]
        assert [(r.first_offset, r.last_offset) for r in found.lost] in ([(1, 1000)], [])     # batches() opens none


def test_dump_and_verify_go_on_behind_it(too_large):
    config = ("--config", "max.decompressed.message.bytes=50000")
    done = command("dump", "--on-corrupt", "skip", *config, too_large, status=PARTIAL)
    assert "before" in done.stdout
    assert "behind" in done.stdout
    assert "max.decompressed.message.bytes" in done.output
    done = command("verify", "--level", "deep", *config, too_large, status=1)
    assert "bad_records" in done.stdout


# --- more records than one batch holds ---------------------------------------------------------------


def test_by_default_it_is_all_or_nothing_and_the_error_says_how_many_fit(tmp_path):
    with opened(tmp_path / "orders-0") as log:
        records = [(None, b"v" * 100)] * 10_000
        with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes = 1048588") as refusal:
            log.append_many(iter(records))
        assert "atomic=False" in refusal.value.hint
        assert log.log_end_offset == 0
        count = fitting(refusal)
        with pytest.raises(RecordTooLargeError):
            log.append_many(records[: count + 1])
        assert log.append_many(records[:count]) == count - 1


@pytest.mark.parametrize("codec", ["producer", *CODECS])
def test_without_atomic_they_become_as_many_batches_as_it_takes(tmp_path, codec):
    config = {"max.message.bytes": 9_000, **LIMITS, "compression.type": codec}
    records = [(b"%d" % n, b"v" * (n * 7 % 300), [("h", b"x")], NOW - n) for n in range(1000)]
    with opened(tmp_path / "orders-0", **config) as log:
        log.append(b"before")
        assert log.append_many(iter(records), atomic=False) == 1000
        assert len(list(log.batches())) > 10
        found = [(r.key, r.value, list(r.headers), r.timestamp) for r in log.read(1)]
        assert found == records
        assert max(batch.size_bytes for batch in log.batches()) <= 9_000


def test_without_atomic_few_records_are_one_batch_and_none_are_refused(tmp_path):
    with opened(tmp_path / "orders-0") as log:
        assert log.append_many([(None, b"a"), (None, b"b")], atomic=False) == 1
        assert len(list(log.batches())) == 1
        with pytest.raises(InvalidArgumentError):
            log.append_many([], atomic=False)


@pytest.mark.parametrize(("last", "error"), [
    ((None, b"v" * 20_000), RecordTooLargeError),
    ((None, b"v", (), NOW + 10**12), InvalidTimestampError),
    ((None, 5), InvalidArgumentError),
    ("a record", InvalidArgumentError),
])
def test_all_are_checked_before_the_first_batch_is_written(tmp_path, last, error):
    with opened(tmp_path / "orders-0", **{"max.message.bytes": 9_000, "message.timestamp.after.max.ms": 1000}) as log:
        with pytest.raises(error):
            log.append_many([(None, b"v" * 100)] * 500 + [last], atomic=False)
        assert log.log_end_offset == 0


HEADERS = {
    "a payload that does not decompress": (90, bytes(30)),
    "a count above that of the records": (57, struct.pack(">i", 20)),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_follower_believes_a_header_that_a_leader_refuses_and_deep_verification_finds_it(tmp_path, name):
    position, wrong = HEADERS[name]
    records = [(b"k%d" % n, b"v" * 50, (), NOW + n) for n in range(10)]
    raw = bytearray(seglog.build_batch(records, codec="lz4", leader_epoch=0))
    raw[position : position + len(wrong)] = wrong
    raw[23:27] = struct.pack(">i", struct.unpack_from(">i", raw, 57)[0] - 1)
    raw[17:21] = struct.pack(">I", crc32c.crc32c(bytes(raw[21:])))
    with opened(tmp_path / "orders-0") as log:
        with pytest.raises(CorruptRecordError):
            log.append_batch(raw)
        log.append_batch(raw, assign_offsets=False)
        end = log.append(b"behind")
        with pytest.raises(CorruptRecordError):
            list(log.read())
        assert [r.offset for r in log.read(on_corrupt="skip")] == [end]
    assert seglog.verify(tmp_path / "orders-0").ok
    assert [f.code for f in seglog.verify(tmp_path / "orders-0", level="deep").findings] == ["bad_records"]
