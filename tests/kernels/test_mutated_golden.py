"""Golden segments with bytes changed on purpose, through every reader of the kernels.

Whatever the bytes say: no crash and no read outside (which an AddressSanitizer build sees), the kernels
and plain Python agree on what can be read, and an error is one that we raise on purpose.
"""
import os
import random
from array import array

import pytest

from seglog._kernels.segment_scan import find_batch, scan
from seglog._kernels.window import Window
from seglog.errors import SeglogError
from seglog.format.compression import decompressor
from support import plain_format as plain
from support.mutations import mend_checksums, mutate

# `make torture` sets SEGLOG_TORTURE: the full count; otherwise a twentieth.
MUTATIONS = 20_000 if os.environ.get("SEGLOG_TORTURE") else 1_000
MAX_SEGMENT_BYTES = 20_000
LIMIT_BYTES = 1 << 20


def fields(record):
    return plain.PlainRecord(record.offset, record.timestamp, record.key, record.value, record.headers)


def twin_of(batch):
    decompress = decompressor(LIMIT_BYTES)
    try:
        return plain.decode_batch(batch, lambda *a: bytes(decompress(*a)))
    except (plain.Malformed, SeglogError):
        return None


def read_batch(batch):
    try:
        return [fields(r) for r in batch]
    except SeglogError:
        return None


def read_with_everything(data):
    # An array has not a byte more than its own: a sanitizer sees the first one read behind it.
    window = Window(array("B", data))
    table = scan(window, decompress=decompressor(LIMIT_BYTES))
    batches = [bytes(b.raw()) for b in table]
    assert batches == list(plain.split_batches(data))
    for batch, raw in zip(table, batches, strict=True):
        assert batch.crc_is_valid() == plain.crc_fits(raw)
        assert read_batch(batch) == twin_of(raw)
        try:
            batch.payload()
            batch.find_bad_message()
            assert isinstance(batch.base_offset, int)
        except SeglogError:
            pass
        repr(batch)
    table.stop_details()
    checked = scan(window, check_crc=True)
    assert checked.end <= table.end
    checked.stop_details()
    found = find_batch(window, 0)
    if found >= 0:
        [batch] = scan(window, found, max_batches=1)
        assert batch.crc_is_valid()
    try:
        for record in scan(window, decompress=decompressor(LIMIT_BYTES)).records(5, 60):
            assert 5 <= record.offset < 60
            bytes(record.value_view or b"")
    except SeglogError:
        pass


@pytest.fixture(scope="module")
def segments(golden_kafka):
    logs = [
        log.read_bytes()
        for log in sorted((golden_kafka / "cases").glob("*/*-0/*.log"))
        if 0 < log.stat().st_size <= MAX_SEGMENT_BYTES
    ]
    assert len(logs) > 129
    return logs


def test_whatever_the_bytes_say_the_kernel_and_plain_python_agree(segments):
    rng = random.Random(20_261_121)
    for n in range(MUTATIONS):
        data = mutate(rng, rng.choice(segments))
        if rng.random() < 0.7:
            data = mend_checksums(data)
        try:
            read_with_everything(data)
        except BaseException:
            print(f"mutation {n}: {data.hex()}")
            raise


def test_every_bit_flip_of_a_small_segment_reads_to_an_answer():
    v2 = plain.batch_v2(
        plain.record_v2(0, 0, b"k", b"v", [(b"h", b"x")]) + plain.record_v2(1), count=2, base_offset=9
    )
    wrapper = plain.message(8, None, plain.message(0) + plain.message(1), attributes=plain.GZIP)
    data = plain.message(6, b"k", b"v", magic=0) + wrapper + v2
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            read_with_everything(bytes(flipped))
