"""Conversion to v2 in memory: what Kafka 4.1.1 makes of old data at rest, and what --repack makes of it."""
import json
import mmap
import os
from array import array
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels.batch_builder import BatchBuilder, MessageSetBuilder
from seglog._kernels.batch_packer import BatchPacker
from seglog._kernels.crc import crc32, crc32c
from seglog._kernels.segment_scan import find_batch, scan
from seglog._kernels.window import Window
from seglog.errors import (
    CorruptRecordError,
    InvalidArgumentError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
)
from seglog.format.compression import Codec, compress, decompressor
from support.mutations import mend_checksums, mutate

# `make torture` sets SEGLOG_TORTURE: the full count for each set of options; otherwise a twentieth.
MUTATIONS = 2_500 if os.environ.get("SEGLOG_TORTURE") else 125
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
HEADER_SIZE = 61
BASE = 5_000_000_000


def compress_v2(codec, payload):
    return compress(codec, 2, payload)


def table_of(data):
    return scan(Window(bytes(data)), decompress=decompressor())


def pack(data, **options):
    """The v2 bytes that a packer makes of a segment's bytes."""
    table = table_of(data)
    assert table.end == len(data), table
    packer = BatchPacker(compress=compress_v2, **options)
    packer.add(table, 0, len(table))
    packer.finish()
    return bytes(packer.take())


def batches(data):
    table = scan(Window(bytes(data)), decompress=decompressor(), check_crc=True)
    assert table.end == len(data), table
    return list(table)


def records(data):
    return [
        (record.offset, record.timestamp, record.key, record.value, record.headers)
        for batch in batches(data)
        if not batch.is_control
        for record in batch
    ]


def header(batch):
    """All that a v2 header says but its size, codec and checksum."""
    return (
        batch.base_offset, batch.last_offset, batch.attributes & ~7, batch.base_timestamp, batch.max_timestamp,
        batch.leader_epoch, batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.count,
    )


# --- writing input --------------------------------------------------------------------------


def message(offset, timestamp=1000, key=b"k", value=b"value", magic=1, timestamp_type=0):
    builder = MessageSetBuilder(magic, timestamp_type=timestamp_type)
    builder.append(offset, timestamp, key, value)
    return builder.payload()


def wrapper(rows, codec=GZIP, magic=1, timestamp=None):
    builder = MessageSetBuilder(magic, wrapped_from=rows[0][0])
    for row in rows:
        builder.append(*row)
    payload = bytes(compress(codec, magic, builder.payload()))
    return builder.wrap(payload, codec, timestamp=timestamp, timestamp_type=int(timestamp is not None))


def batch(rows, codec=NONE, last_offset=None, base_offset=None, **options):
    builder = BatchBuilder(rows[0][0] if base_offset is None else base_offset, **options)
    for row in rows:
        builder.append(*row)
    payload = compress(codec, 2, builder.payload()) if codec else None
    return builder.finish(payload, codec, last_offset=last_offset)


def rows_of(first, count, timestamp=1000, size=20):
    return [(first + i, timestamp + i, b"key", bytes(size), []) for i in range(count)]


def old_rows(first, count, timestamp=1000, size=20):
    return [row[:4] for row in rows_of(first, count, timestamp, size)]


# --- golden ---------------------------------------------------------------------------------


def test_data_at_rest_becomes_what_kafka_411_makes_of_it(golden_kafka):
    cases = sorted((golden_kafka / "convert/up-at-rest").iterdir())
    identical = 0
    for case in cases:
        meta = json.loads((case / "meta.json").read_text())
        horizon = meta["filter_current_time"] + meta["filter_delete_retention_ms"]
        ours = pack((case / "input.log").read_bytes(), delete_horizon_ms=horizon)
        expected = (case / "output.log").read_bytes()
        assert [header(b) for b in batches(ours)] == [header(b) for b in batches(expected)], case.name
        assert [b.codec for b in batches(ours)] == [b.codec for b in batches(expected)], case.name
        assert records(ours) == records(expected), case.name
        if all(b.codec == NONE for b in batches(expected)):
            assert ours == expected, case.name
            identical += 1
    assert len(cases) == 72
    assert identical >= 20


def golden_logs(golden_kafka):
    return sorted((golden_kafka / "cases").glob("*/*-0/*.log"))


def test_v2_batches_of_every_golden_case_are_copied_untouched(golden_kafka):
    for log in golden_logs(golden_kafka):
        data = log.read_bytes()
        table = table_of(data)
        if len(table) and all(b.magic == 2 for b in table):
            assert pack(data[: table.end]) == data[: table.end], log


@pytest.mark.parametrize(
    "options", [{"repack_bytes": 16384}, {"repack_bytes": 300}, {"codec": ZSTD}, {"repack_bytes": 2000, "codec": NONE}]
)
def test_no_record_of_any_golden_case_changes(golden_kafka, options):
    for log in golden_logs(golden_kafka):
        data = log.read_bytes()
        before, after = records(data), pack(data, **options)
        assert records(after) == before, log
        made = batches(after)
        assert {b.magic for b in made} <= {2}
        assert all(a.last_offset < b.base_offset for a, b in pairwise(made)), log
        ends = [(b.last_offset, b.leader_epoch, b.producer_id) for b in batches(data)]
        assert {(b.last_offset, b.leader_epoch, b.producer_id) for b in made} <= set(ends) | {
            (offset, -1, -1) for offset, *_ in before
        }, log
        assert [bytes(b.raw()) for b in made if b.is_control] == [
            bytes(b.raw()) for b in batches(data) if b.is_control
        ], log
        if "codec" in options:
            assert {b.codec for b in made if not b.is_control and b.count} <= {options["codec"]}, log


def test_repacking_golden_messages_makes_fewer_batches(golden_kafka):
    data = (golden_kafka / "cases/v1-none-ct-k391/v1-none-ct-k391-0/00000000000000000000.log").read_bytes()
    assert len(batches(pack(data, repack_bytes=1 << 20))) == 1
    assert len(batches(pack(data))) == len(batches(data))


# --- the default profile --------------------------------------------------------------------


def test_a_message_becomes_a_batch_of_its_own():
    data = message(BASE, 1000) + message(BASE + 5, 900, None, None)
    first, second = batches(pack(data))
    assert header(first) == (BASE, BASE, 0, 1000, 1000, -1, -1, -1, -1, 1)
    assert header(second) == (BASE + 5, BASE + 5, 0, 900, 900, -1, -1, -1, -1, 1)
    assert records(pack(data)) == [(BASE, 1000, b"k", b"value", ()), (BASE + 5, 900, None, None, ())]


def test_v0_becomes_create_time_without_timestamps():
    [made] = batches(pack(message(BASE, magic=0)))
    assert (made.timestamp_type, made.base_timestamp, made.max_timestamp) == (0, -1, -1)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrapper_becomes_one_batch_of_the_same_codec(magic, codec):
    rows = [(BASE + 3, 1000, b"a", b"1"), (BASE + 7, 1500, None, b"2"), (BASE + 8, 1200, b"", None)]
    [made] = batches(pack(wrapper(rows, codec, magic)))
    assert made.codec == codec
    assert (made.base_offset, made.last_offset, made.count) == (BASE + 3, BASE + 8, 3)
    assert made.max_timestamp == (1500 if magic else -1)
    assert [(r.offset, r.timestamp, r.key, r.value) for r in made] == [
        (offset, timestamp if magic else -1, key, value) for offset, timestamp, key, value in rows
    ]


def test_log_append_time_is_kept():
    [made] = batches(pack(wrapper(old_rows(BASE, 3), timestamp=7777)))
    assert (made.timestamp_type, made.max_timestamp, made.base_timestamp) == (1, 7777, 7777)
    [made] = batches(pack(message(BASE, 5555, timestamp_type=1)))
    assert (made.timestamp_type, made.max_timestamp) == (1, 5555)


def test_offsets_more_than_31_bits_apart_in_a_wrapper_go_to_two_batches():
    rows = [(BASE, 1, b"a", b"1"), (BASE + 2**31, 2, b"b", b"2")]
    made = batches(pack(wrapper(rows)))
    assert [(b.base_offset, b.last_offset) for b in made] == [(BASE, BASE), (BASE + 2**31, BASE + 2**31)]


def test_the_delete_horizon_goes_to_batches_with_null_values():
    data = message(BASE) + message(BASE + 1, value=None) + wrapper([*old_rows(BASE + 2, 2), (BASE + 9, 1, b"k", None)])
    data += batch([(BASE + 10, 5, b"k", None)]) + batch([(BASE + 11, 5, b"k", None)], delete_horizon_ms=4)
    data += batch([(BASE + 12, 5, b"k", None)], GZIP) + batch(rows_of(BASE + 13, 1), GZIP)
    made = batches(pack(data, delete_horizon_ms=10**12))
    assert [b.delete_horizon_ms for b in made] == [None, 10**12, 10**12, 10**12, 4, 10**12, None]
    assert records(pack(data, delete_horizon_ms=10**12)) == records(data)


def test_a_v2_batch_keeps_its_bytes_when_it_has_no_null_value_or_a_horizon_already():
    data = batch(rows_of(BASE, 2)) + batch([(BASE + 11, 5, b"k", None)], delete_horizon_ms=4) + batch(
        rows_of(BASE + 13, 1), GZIP
    )
    assert pack(data, delete_horizon_ms=10**12) == data


# --- another codec --------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [*Codec])
def test_a_forced_codec_changes_nothing_but_the_compression(codec):
    data = batch(rows_of(BASE, 5), LZ4, last_offset=BASE + 9, leader_epoch=3, producer_id=8, producer_epoch=0,
                 base_sequence=4, is_transactional=True)
    data += batch(rows_of(BASE + 10, 5, size=900), log_append_time=777)
    made = pack(data, codec=codec)
    assert [header(b) for b in batches(made)] == [header(b) for b in batches(data)]
    assert {b.codec for b in batches(made)} == {codec}
    assert records(made) == records(data)


def test_a_batch_that_has_the_forced_codec_is_copied():
    data = batch(rows_of(BASE, 5), LZ4)
    assert pack(data, codec=LZ4) == data


def test_control_and_empty_batches_are_never_recompressed():
    control = batch([(BASE, 5, b"\0\0\0\1", b"\0\0\0\0\0\0", [])], is_control=True, producer_id=1, producer_epoch=0)
    empty = BatchBuilder(BASE + 1, producer_id=1, producer_epoch=0, base_sequence=3).finish(last_offset=BASE + 4)
    assert pack(control + empty, codec=ZSTD) == control + empty


# --- repacking ------------------------------------------------------------------------------


def spans(data, **options):
    return [(b.base_offset, b.last_offset) for b in batches(pack(data, **options))]


def test_consecutive_messages_and_wrappers_share_a_batch():
    data = message(BASE) + message(BASE + 1) + message(BASE + 7)
    assert spans(data, repack_bytes=1000) == [(BASE, BASE + 7)]
    assert records(pack(data, repack_bytes=1000)) == records(data)
    data = wrapper(old_rows(BASE, 3)) + wrapper(old_rows(BASE + 3, 4))
    [made] = batches(pack(data, repack_bytes=1000))
    assert (made.codec, made.count) == (GZIP, 7)


def test_no_batch_of_several_records_is_larger_than_asked():
    data = b"".join(message(BASE + i, value=bytes(7 * i % 90)) for i in range(200))
    for repack_bytes in (1, 100, 200, 777):
        made = batches(pack(data, repack_bytes=repack_bytes))
        assert all(b.size_bytes <= repack_bytes or b.count == 1 for b in made)
        # Nor smaller than it must be: the next record would not have fitted.
        for b, after in pairwise(made):
            first = next(iter(after))
            assert b.size_bytes + first.size_bytes + 2 > repack_bytes


def test_a_run_of_messages_is_packed_however_large_a_batch_may_become():
    data = b"".join(message(BASE + i, 1000 - i, *fields) for i, fields in enumerate([
        (b"k", b"v" * 70), (None, None), (b"", b""), (b"k" * 100, None), (b"k", b"v" * 300_000), (b"k", b"v"),
    ] * 20))
    for repack_bytes in (300, 70_000, 2**31 - 1):
        assert records(pack(data, repack_bytes=repack_bytes)) == records(data)
    assert spans(data, repack_bytes=2**31 - 1) == [(BASE, BASE + 119)]


@pytest.mark.parametrize("magic", [0, 1])
def test_a_run_ends_at_a_message_that_is_wrong(magic):
    before = b"".join(message(BASE + i, magic=magic) for i in range(5))
    last = bytearray(message(BASE + 5, magic=magic))
    for size in (-5, 2, 100, 2**31 - 1):  # of its key
        at = 26 if magic else 18
        last[at : at + 4] = size.to_bytes(4, "big", signed=True)
        last[12:16] = crc32(bytes(last[16:])).to_bytes(4, "big")
        assert refused(before + bytes(last), kept=before, repack_bytes=10_000).position == len(before)


def test_a_v2_batch_joins_whole_or_not_at_all():
    one, other = batch(rows_of(BASE, 5)), batch(rows_of(BASE + 5, 5))
    both = len(one) + len(other) - HEADER_SIZE
    assert spans(one + other, repack_bytes=both + 20) == [(BASE, BASE + 9)]
    assert pack(one + other, repack_bytes=both - 20) == one + other
    assert pack(one + other, repack_bytes=len(one) - 1) == one + other


def test_a_compressed_batch_that_is_large_inside_is_copied():
    data = batch(rows_of(BASE, 5, size=5000), GZIP)
    assert len(data) < 1000
    assert pack(data, repack_bytes=1000) == data
    alone = message(BASE - 1)
    assert pack(alone + data, repack_bytes=1000) == pack(alone) + data
    [made] = batches(pack(data, repack_bytes=1000, codec=NONE))
    assert made.codec == NONE


@pytest.mark.parametrize("codec", [NONE, GZIP, ZSTD])
def test_a_v2_batch_that_stays_alone_keeps_its_bytes(codec):
    data = batch(rows_of(BASE, 5), codec, log_append_time=1000) + batch(rows_of(BASE + 5, 5), codec, leader_epoch=4)
    assert pack(data, repack_bytes=10_000) == data
    assert pack(data, repack_bytes=10_000, codec=codec) == data


def test_a_batch_that_ends_a_compressed_run_is_written_once():
    old = message(BASE, magic=0) + wrapper([(BASE + 1, 0, None, None)], magic=0)
    data = old + batch([(BASE + 2, 0, None, None, [("h", None)])]) + message(BASE + 3, magic=0)
    assert records(pack(data, repack_bytes=10_000)) == records(data)


def test_a_batch_keeps_the_range_of_offsets_that_compaction_left_it():
    data = batch(rows_of(BASE + 2, 1), base_offset=BASE, last_offset=BASE + 9)
    data += batch(rows_of(BASE + 12, 1), base_offset=BASE + 10, last_offset=BASE + 19)
    assert spans(data, repack_bytes=1000) == [(BASE, BASE + 19)]


PRODUCER = {"producer_id": 8, "producer_epoch": 2}
APART = {
    "leader epoch": ({"leader_epoch": 1}, {"leader_epoch": 2}),
    "timestamp type": ({}, {"log_append_time": 1000}),
    "log append time": ({"log_append_time": 1000}, {"log_append_time": 1001}),
    "producer": ({**PRODUCER, "base_sequence": 0}, {**PRODUCER, "producer_id": 9, "base_sequence": 5}),
    "producer epoch": ({**PRODUCER, "base_sequence": 0}, {**PRODUCER, "producer_epoch": 3, "base_sequence": 5}),
    "sequence gap": ({**PRODUCER, "base_sequence": 0}, {**PRODUCER, "base_sequence": 6}),
    "no sequence": (PRODUCER, PRODUCER),
    "transactional": ({}, {"is_transactional": True}),
    "delete horizon": ({}, {"delete_horizon_ms": 5}),
    "another delete horizon": ({"delete_horizon_ms": 4}, {"delete_horizon_ms": 5}),
    "codec": ({}, {"codec": ZSTD}),
}


@pytest.mark.parametrize("difference", APART)
def test_batches_that_differ_in_what_a_header_says_once_stay_apart(difference):
    one, other = APART[difference]
    data = batch(rows_of(BASE, 5), **one) + batch(rows_of(BASE + 5, 5), **other)
    assert spans(data, repack_bytes=10_000) == [(BASE, BASE + 4), (BASE + 5, BASE + 9)]
    assert [header(b) for b in batches(pack(data, repack_bytes=10_000))] == [header(b) for b in batches(data)]


TOGETHER = {
    "plain": ({}, {}),
    "leader epoch": ({"leader_epoch": 2}, {"leader_epoch": 2}),
    "log append time": ({"log_append_time": 1000}, {"log_append_time": 1000}),
    "sequence": ({**PRODUCER, "base_sequence": 7}, {**PRODUCER, "base_sequence": 12}),
    "sequence that wraps": ({**PRODUCER, "base_sequence": 2**31 - 2}, {**PRODUCER, "base_sequence": 3}),
    "delete horizon": ({"delete_horizon_ms": 5}, {"delete_horizon_ms": 5}),
    "codec": ({"codec": LZ4}, {"codec": LZ4}),
}


@pytest.mark.parametrize("likeness", TOGETHER)
def test_batches_that_agree_are_packed_together(likeness):
    one, other = TOGETHER[likeness]
    data = batch(rows_of(BASE, 5), **one) + batch(rows_of(BASE + 5, 5), **other)
    [made] = batches(pack(data, repack_bytes=10_000))
    first, second = batches(data)
    assert header(made)[:3] == (BASE, BASE + 9, first.attributes & ~7)
    assert (made.leader_epoch, made.base_sequence, made.last_sequence) == (
        first.leader_epoch, first.base_sequence, second.last_sequence,
    )
    assert made.delete_horizon_ms == first.delete_horizon_ms
    assert records(pack(data, repack_bytes=10_000)) == records(data)


def test_a_forced_codec_lets_batches_of_different_codecs_share():
    data = batch(rows_of(BASE, 5), GZIP) + batch(rows_of(BASE + 5, 5)) + wrapper(old_rows(BASE + 10, 2), LZ4)
    [made] = batches(pack(data, repack_bytes=10_000, codec=SNAPPY))
    assert (made.codec, made.count) == (SNAPPY, 12)


def test_producers_with_a_gap_of_offsets_stay_apart():
    # A sequence number belongs to each offset: across a gap none would fit.
    data = batch(rows_of(BASE, 5), **PRODUCER, base_sequence=0) + batch(
        rows_of(BASE + 6, 5), **PRODUCER, base_sequence=5
    )
    assert len(batches(pack(data, repack_bytes=10_000))) == 2


def test_records_with_and_without_timestamps_stay_apart():
    data = message(BASE, magic=0) + message(BASE + 1) + message(BASE + 2) + message(BASE + 3, -1) + message(
        BASE + 4, magic=0
    )
    assert spans(data, repack_bytes=10_000) == [(BASE, BASE), (BASE + 1, BASE + 2), (BASE + 3, BASE + 4)]


def test_offsets_more_than_31_bits_apart_stay_apart():
    data = message(BASE) + message(BASE + 2**31 - 1) + message(BASE + 2**31)
    assert spans(data, repack_bytes=10_000) == [(BASE, BASE + 2**31 - 1), (BASE + 2**31, BASE + 2**31)]
    data = batch(rows_of(BASE, 1)) + batch(rows_of(BASE + 5, 1), last_offset=BASE + 2**31)
    assert len(spans(data, repack_bytes=10_000)) == 2


def test_offsets_that_fall_back_between_batches_are_kept():
    data = message(BASE + 5) + message(BASE + 1)
    assert spans(data, repack_bytes=10_000) == [(BASE + 5, BASE + 5), (BASE + 1, BASE + 1)]


def test_a_control_batch_ends_a_run():
    control = batch([(BASE + 2, 5, b"\0\0\0\1", b"\0\0\0\0\0\0", [])], is_control=True)
    data = batch(rows_of(BASE, 2)) + control + batch(rows_of(BASE + 3, 2))
    assert pack(data, repack_bytes=10_000) == data


def test_old_and_new_batches_share_where_the_leader_epoch_is_unknown():
    data = message(BASE, 1000) + batch(rows_of(BASE + 1, 2)) + message(BASE + 3)
    assert spans(data, repack_bytes=10_000) == [(BASE, BASE + 3)]


# --- taking ---------------------------------------------------------------------------------


def test_what_is_taken_in_pieces_is_the_same(golden_kafka):
    for name in ("mixed-formats-k391", "v1-none-ct-k391", "v1-gzip-lat-k391", "txn-v2-k391"):
        for log in sorted((golden_kafka / "cases" / name).glob("*-0/*.log")):
            data = log.read_bytes()
            table = table_of(data)
            for options in ({}, {"repack_bytes": 400}, {"repack_bytes": 3000, "codec": NONE}):
                packer = BatchPacker(compress=compress_v2, **options)
                pieces = []
                for i in range(len(table)):
                    packer.add(table, i, i + 1)
                    assert packer.ready_bytes >= 0
                    with packer.take() as piece:
                        batches(piece)
                        pieces.append(bytes(piece))
                packer.finish()
                pieces.append(bytes(packer.take()))
                assert b"".join(pieces) == pack(data, **options), (log, options)


def test_a_taken_view_stays_valid_while_it_lives():
    packer = BatchPacker()
    table = table_of(b"".join(message(BASE + i) for i in range(50)))
    held = []
    for i in range(50):
        packer.add(table, i, i + 1)
        held.append(packer.take())
    del packer
    assert records(b"".join(held)) == records(b"".join(message(BASE + i) for i in range(50)))
    with pytest.raises(TypeError):
        held[0][0] = 1


def test_a_new_packer_has_nothing_to_give():
    packer = BatchPacker(repack_bytes=7, codec=2, delete_horizon_ms=-1, check_crc=False)
    assert (packer.repack_bytes, packer.codec, packer.delete_horizon_ms, packer.check_crc) == (7, 2, -1, False)
    packer.finish()
    packer.add(table_of(b""), 0, 0)
    assert packer.ready_bytes == 0
    assert bytes(packer.take()) == b""


legacy_rows = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.integers(-1, 5000),
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=120),
    ),
    min_size=1,
    max_size=4,
)


@given(
    st.lists(st.tuples(st.sampled_from(["v0", "v1", "wrapped v0", "wrapped v1", "v2"]), legacy_rows), max_size=8),
    st.sampled_from([0, 90, 200, 5000]),
    st.sampled_from([-1, NONE, GZIP]),
)
def test_records_come_through_every_mixture(parts, repack_bytes, codec):
    data, offset = b"", BASE
    for kind, steps in parts:
        rows = []
        for step, timestamp, key, value in steps:
            offset += step
            rows.append((offset, timestamp, key, value))
        if kind == "v2":
            data += batch([(*row, [("h", row[2])]) for row in rows])
        elif kind.startswith("wrapped"):
            data += wrapper(rows, GZIP, int(kind[-1]))
        else:
            data += b"".join(message(*row, magic=int(kind[-1])) for row in rows)
    made = pack(data, repack_bytes=repack_bytes, codec=codec)
    assert records(made) == records(data)
    for b in batches(made):
        assert b.count == 1 or not repack_bytes or b.codec or b.size_bytes <= repack_bytes or b.raw() in data


# --- Tests of all the error paths in batch_packer.pyx follow ------------------------------------


def refused(data, error=CorruptRecordError, kept=None, **options):
    """The error of packing `data`, after which all before the damage is there and nothing of it."""
    table = table_of(data)
    packer = BatchPacker(compress=compress_v2, **options)
    with pytest.raises(error) as caught:
        packer.add(table, 0, len(table))
    packer.finish()
    assert records(packer.take()) == records(kept or b"")
    return caught.value


def corrupted(data, position, xor=1):
    broken = bytearray(data)
    broken[position] ^= xor
    return bytes(broken)


@pytest.mark.parametrize("options", [{}, {"repack_bytes": 1000}, {"codec": GZIP}])
def test_a_wrong_checksum_is_refused_and_all_before_it_kept(options):
    whole = message(BASE) + message(BASE + 1)
    for last in (message(BASE + 2), batch(rows_of(BASE + 2, 2)), wrapper(old_rows(BASE + 2, 2))):
        error = refused(whole + corrupted(last, len(last) - 3), kept=whole, **options)
        assert "checksum" in error.what
        assert error.position == len(whole)


def test_a_checksum_is_not_looked_at_where_the_caller_has():
    data = corrupted(message(BASE), 12)
    assert records(pack(data, check_crc=False)) == records(message(BASE))
    # And a copied batch keeps the wrong one: it is not made right in passing.
    data = corrupted(batch(rows_of(BASE, 1)), 17)
    assert pack(data, check_crc=False) == data


def broken_inside(payload, magic=1, codec=GZIP, offset=BASE + 1):
    """A wrapper around anything."""
    builder = MessageSetBuilder(magic, wrapped_from=offset)
    builder.append(offset, 1000, None, None)
    return builder.wrap(bytes(compress(codec, magic, payload)), codec)


BROKEN_WRAPPERS = {
    "nothing inside": b"",
    "cut short": message(0)[:-1],
    "a wrapper in a wrapper": wrapper([(0, 1, None, b"v")]),
    "offsets that fall back": message(1) + message(0),
    "the same offset twice": message(0) + message(0),
    "bytes behind the last": message(0) + b"\0" * 12,
}


@pytest.mark.parametrize("options", [{}, {"repack_bytes": 1000}])
@pytest.mark.parametrize("what", BROKEN_WRAPPERS)
def test_a_broken_wrapper_is_refused_whole(what, options):
    before = message(BASE)
    error = refused(before + broken_inside(BROKEN_WRAPPERS[what]), kept=before, **options)
    assert error.position == len(before)
    assert error.offset == BASE + 1


def raw_batch(payload, count, codec=NONE, last_offset=BASE + 9):
    """A v2 batch around anything, its checksum right."""
    builder = BatchBuilder(BASE)
    data = bytearray(builder.finish(payload, GZIP, last_offset=last_offset))
    data[21:23] = codec.to_bytes(2, "big")
    data[57:61] = count.to_bytes(4, "big")
    return with_crc(data)


def with_crc(data):
    return bytes(data[:17]) + crc32c(data[21:]).to_bytes(4, "big") + bytes(data[21:])


def payload_of(rows, base_offset=BASE):
    builder = BatchBuilder(base_offset)
    for row in rows:
        builder.append(*row)
    return builder.payload()


GOOD = payload_of(rows_of(BASE, 2))
BROKEN_BATCHES = {
    "bytes left over": (GOOD, 1),
    "an offset past the last": (payload_of([(BASE + 10, 1, None, None)]), 1),
    "an offset twice": (payload_of(rows_of(BASE + 1, 1)) * 2, 2),
    "headers that do not fit": (payload_of([(BASE, 1, b"", b"", [("key", b"v")])])[:-6] + b"\x7fey\x02v\0", 1),
    "a size past the end": (corrupted(GOOD, 0, 0x40), 2),
}


@pytest.mark.parametrize("codec", [NONE, GZIP])
@pytest.mark.parametrize("what", BROKEN_BATCHES)
def test_a_broken_v2_batch_is_refused_whole_when_it_is_opened(what, codec):
    payload, count = BROKEN_BATCHES[what]
    data = raw_batch(compress(codec, 2, payload) if codec else payload, count, codec)
    before = message(BASE - 1)
    error = refused(before + data, kept=before, repack_bytes=1000)
    assert (error.position, error.offset) == (len(before), BASE)


def test_an_impossible_count_is_refused():
    data = raw_batch(compress(GZIP, 2, GOOD), 1000, GZIP)
    assert "count" in refused(data, repack_bytes=1000).what


def test_a_message_whose_sizes_do_not_add_up_is_refused():
    data = bytearray(message(BASE))
    data[26:30] = (1).to_bytes(4, "big") if data[29] != 1 else (7).to_bytes(4, "big")
    data[30] = 0x70
    data[12:16] = crc32(bytes(data[16:])).to_bytes(4, "big")
    assert refused(bytes(data)).position == 0


def test_a_payload_that_no_codec_opens_is_refused():
    data = raw_batch(b"no gzip", 1, GZIP)
    refused(data, repack_bytes=1000)
    refused(data, codec=NONE)
    assert pack(data) == data  # copied, never looked into


def test_codecs_that_do_not_exist_are_refused():
    refused(raw_batch(GOOD, 2, codec=6), UnsupportedCompressionTypeError, repack_bytes=1000)
    data = bytearray(wrapper(old_rows(BASE, 1)))
    data[17] = ZSTD
    data[12:16] = crc32(bytes(data[16:])).to_bytes(4, "big")
    refused(bytes(data), UnsupportedCompressionTypeError)


@pytest.mark.parametrize("options", [{}, {"repack_bytes": 1000}])
def test_a_message_too_large_for_a_v2_batch_is_refused_before_a_byte_is_copied(options):
    size = 2**31 - 1
    untouched = mmap.mmap(-1, 12 + size)
    head = message(0, value=None)[:-4]
    untouched[: len(head) + 4] = head + (12 + size - len(head) - 4).to_bytes(4, "big")
    untouched[8:12] = size.to_bytes(4, "big")
    packer = BatchPacker(check_crc=False, **options)
    with pytest.raises(RecordTooLargeError, match="32-bit"):
        packer.add(scan(Window(untouched)), 0, 1)
    packer.add(table_of(message(1)), 0, 1)
    packer.finish()
    assert [record[0] for record in records(packer.take())] == [1]


@pytest.mark.parametrize(
    "options",
    [
        {"codec": 5},
        {"codec": -2},
        {"repack_bytes": -1},
        {"repack_bytes": 2**31},
        {"repack_bytes": 1, "delete_horizon_ms": 1},
    ],
)
def test_options_that_cannot_be_meant_are_refused(options):
    with pytest.raises(InvalidArgumentError):
        BatchPacker(**options)


@pytest.mark.parametrize(("first", "last"), [(-1, 1), (0, 2), (1, 0)])
def test_rows_outside_the_table_are_refused(first, last):
    with pytest.raises(InvalidArgumentError):
        BatchPacker().add(table_of(message(BASE)), first, last)


def test_a_codec_without_its_callable_is_refused():
    table = scan(Window(wrapper(old_rows(BASE, 2))))
    with pytest.raises(InvalidArgumentError, match="no decompressor"):
        BatchPacker(compress=compress_v2).add(table, 0, 1)
    with pytest.raises(InvalidArgumentError, match="no compressor"):
        BatchPacker(decompress=decompressor()).add(table, 0, 1)


def test_an_error_while_compressing_makes_the_packer_unusable():
    def fail(codec, payload):
        raise ZeroDivisionError

    packer = BatchPacker(compress=fail)
    table = table_of(wrapper(old_rows(BASE, 2)))
    with pytest.raises(ZeroDivisionError):
        packer.add(table, 0, 1)
    for call in (packer.take, packer.finish, lambda: packer.add(table, 0, 1)):
        with pytest.raises(InvalidArgumentError, match="half a batch"):
            call()


def test_a_packer_serves_one_caller_at_a_time():
    def again(codec, payload):
        with pytest.raises(InvalidArgumentError, match="one thread at a time"):
            packer.take()
        return compress_v2(codec, payload)

    packer = BatchPacker(compress=again)
    packer.add(table_of(wrapper(old_rows(BASE, 2))), 0, 1)
    assert len(records(packer.take())) == 2


# --- hostile bytes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"repack_bytes": 500}, {"repack_bytes": 500, "codec": NONE}, {"delete_horizon_ms": 10**12, "codec": GZIP}],
)
def test_mutated_segments_are_refused_or_converted_within_their_bytes(golden_kafka, options):
    random = Random(len(options))
    originals = [log.read_bytes() for log in golden_logs(golden_kafka) if 0 < log.stat().st_size < 20_000]
    for _ in range(MUTATIONS):
        data = mutate(random, random.choice(originals))
        # With its checksums mended, more of it is looked at. An array has not a byte more than its own.
        window = Window(array("B", mend_checksums(data) if random.random() < 0.5 else data))
        packer = BatchPacker(compress=compress_v2, decompress=decompressor(1 << 20), check_crc=False, **options)
        position = 0
        while 0 <= position < len(window):
            table = scan(window, position)
            for i in range(len(table)):
                try:
                    packer.add(table, i, i + 1)
                except (CorruptRecordError, RecordTooLargeError, UnsupportedCompressionTypeError):
                    continue
            position = find_batch(window, table.end + 1)
        packer.finish()
        made = scan(Window(packer.take()))
        assert made.stop == 0
        assert {b.magic for b in made} <= {2}
