"""Golden segments with bytes changed on purpose: columns and the iteration of records agree on what is left.

The iteration is held against plain Python elsewhere. The damage reaches what was compressed, too:
a decompressor that spoils what it opened makes records that no codec would have let through.
"""
import os
import random
import zlib
from array import array

import pytest

from seglog._kernels.arena import ArenaPool
from seglog._kernels.canonical import canonical_bytes
from seglog._kernels.columns import chunks, decode
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import CorruptRecordError, SeglogError
from seglog.format.compression import decompressor
from support.columns import rows_of
from support.mutations import mend_checksums, mutate

# `make torture` sets SEGLOG_TORTURE: the full count; otherwise a twentieth.
MUTATIONS = 20_000 if os.environ.get("SEGLOG_TORTURE") else 1_000
MAX_SEGMENT_BYTES = 20_000
LIMIT_BYTES = 1 << 20


def spoiler(payloads_in):
    """A decompressor that changes about half of what it opened, each payload always in the same way."""
    opened = decompressor(LIMIT_BYTES)

    def decompress(codec, magic, payload):
        data = bytearray(opened(codec, magic, payload))
        rng = random.Random(zlib.crc32(payload) + payloads_in)
        if data and rng.random() < 0.5:
            for _ in range(rng.randint(1, 3)):
                at = rng.randrange(min(len(data), 300))
                data[at] = rng.choice([0, 1, 2, 3, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        return array("B", data)     # not a byte more than its own, as the segment

    return decompress


def iterated(batch):
    try:
        return [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch]
    except SeglogError as e:
        return type(e)


def in_columns(table, i, pool, **options):
    try:
        columns = decode(table, i, i + 1, pool, **options)
    except SeglogError as e:
        return type(e)
    assert len(canonical_bytes(columns)) >= 28 * len(columns)
    if len(columns) < 300:
        columns.to_arrow().validate(full=True)
    return rows_of(columns)


def hold_against_iteration(data, decompress, pool):
    # An array has not a byte more than its own: a sanitizer sees the first one read behind it.
    table = scan(Window(array("B", data)), decompress=decompress)
    expected = [iterated(batch) for batch in table]
    for i, batch in enumerate(table):
        assert in_columns(table, i, pool, check_crc=False) == expected[i]
        assert in_columns(table, i, pool) == (expected[i] if batch.crc_is_valid() else CorruptRecordError)
    # Many batches a chunk, going on behind each bad one.
    rows, it = [], chunks(table, pool, 3000, check_crc=False)
    while it.next_batch < len(table):
        try:
            rows += rows_of(next(it, []))
        except SeglogError:
            if not isinstance(expected[it.next_batch], type):
                # Whole by itself, and a wrapper that begins before the batch ahead of it ends.
                batch = table[it.next_batch]
                assert batch.magic < 2, batch
                assert batch.codec, batch
                assert expected[it.next_batch][0][0] <= table[it.next_batch - 1].last_offset
                expected[it.next_batch] = CorruptRecordError
            it.next_batch += 1
    assert rows == [row for batch in expected if not isinstance(batch, type) for row in batch]


def test_whatever_the_bytes_say_columns_and_iteration_agree(golden_kafka):
    logs = [
        log.read_bytes()
        for log in sorted((golden_kafka / "cases").glob("*/*-0/*.log"))
        if 0 < log.stat().st_size <= MAX_SEGMENT_BYTES
    ]
    rng = random.Random(20_261_122)
    pool = ArenaPool(chunk_bytes=1 << 16)
    for n in range(MUTATIONS):
        data = mutate(rng, rng.choice(logs))
        if rng.random() < 0.7:
            data = mend_checksums(data)
        decompress = spoiler(n) if rng.random() < 0.5 else decompressor(LIMIT_BYTES)
        try:
            hold_against_iteration(data, decompress, pool)
        except BaseException:
            print(f"mutation {n}: {data.hex()}")
            raise
    assert pool.used_bytes == 0


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_every_cut_of_a_batch_is_decoded_or_refused(golden_kafka, magic):
    pool = ArenaPool()
    [log] = (golden_kafka / f"cases/v{magic}-none-ct-k282/v{magic}-none-ct-k282-0").glob("*0.log")
    data = log.read_bytes()[:400]
    whole = scan(Window(array("B", data)))
    rows = rows_of(decode(whole, 0, len(whole), pool))
    for end in range(len(data)):
        table = scan(Window(array("B", data[:end])))
        found = rows_of(decode(table, 0, len(table), pool))
        assert found == rows[: len(found)]
