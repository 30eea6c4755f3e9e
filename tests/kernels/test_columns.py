"""Records as columns: what each format's record becomes, and where a chunk ends."""
import mmap
import struct
import tempfile
import zlib

import pytest

from seglog._kernels.arena import ArenaPool
from seglog._kernels.canonical import canonical_bytes
from seglog._kernels.columns import BinaryColumn, ColumnChunks, Columns, chunks, decode
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import CorruptRecordError, InvalidArgumentError, RecordTooLargeError, UnsupportedCompressionTypeError
from support.columns import columns_of, rows_of
from support.plain_format import (
    CONTROL,
    GZIP,
    LOG_APPEND_TIME,
    ZSTD,
    batch_v2,
    message,
    record_v2,
    varint,
)


def gunzip(codec, magic, payload):
    assert codec == GZIP
    return zlib.decompress(payload)


def compressed_v2(body, **header):
    return batch_v2(zlib.compress(body), attributes=GZIP, **header)


def wrapper(*messages, magic=1, offset=0, attributes=0, timestamp=0):
    return message(
        offset, value=zlib.compress(b"".join(messages)), magic=magic, attributes=GZIP | attributes, timestamp=timestamp
    )


def table_of(data):
    return scan(Window(data), decompress=gunzip)


# --- a record of each format ---------------------------------------------------------------


def test_v2_adds_deltas_to_the_batch():
    records = record_v2(0, 0, b"k", b"v") + record_v2(3, -7, b"key", b"value")
    data = batch_v2(records, count=2, base_offset=100, last_offset_delta=3, base_timestamp=5000)
    assert rows_of(columns_of(data)) == [(100, 5000, b"k", b"v", ()), (103, 4993, b"key", b"value", ())]


def test_v2_under_log_append_time_gives_all_records_the_largest_timestamp():
    records = record_v2(0, 1) + record_v2(1, 2)
    data = batch_v2(records, count=2, attributes=LOG_APPEND_TIME, base_timestamp=10, max_timestamp=99)
    assert list(columns_of(data).timestamp) == [99, 99]


def test_a_null_is_not_an_empty_string():
    fields = [(None, b""), (b"", None), (None, None), (b"", b""), (b"k", b"v")]
    data = batch_v2(b"".join(record_v2(i, 0, k, v) for i, (k, v) in enumerate(fields)), count=5)
    columns = columns_of(data)
    assert [row[2:4] for row in rows_of(columns)] == fields
    assert (columns.key.null_count, columns.value.null_count) == (2, 2)
    assert list(columns.key.offsets) == [0, 0, 0, 0, 0, 1]
    assert columns.key.validity[0] & 0b11111 == 0b11010


def test_headers_keep_order_and_repetition_and_nulls():
    headers = [(b"b", b"1"), (b"a", None), (b"b", b""), (b"", b"2")]
    data = batch_v2(record_v2(0, headers=headers) + record_v2(1) + record_v2(2, headers=headers[:1]), count=3)
    columns = columns_of(data)
    assert [row[4] for row in rows_of(columns)] == [
        (("b", b"1"), ("a", None), ("b", b""), ("", b"2")), (), (("b", b"1"),),
    ]
    assert list(columns.header_start) == [0, 4, 4, 5]
    assert columns.nbytes == 3 * 28 + 12 + 2 + (6 * 8 + 2 + 4 + 3)


def test_a_header_key_that_is_not_utf8_keeps_its_bytes():
    columns = columns_of(batch_v2(record_v2(headers=[(b"\xff\xfe", b"v")])))
    assert columns.header_key[0] == b"\xff\xfe"
    assert columns[0][4] == (("\udcff\udcfe", b"v"),)
    assert columns.to_arrow()["headers"][0].as_py() == [{"key": b"\xff\xfe", "value": b"v"}]


def test_v0_has_no_time():
    assert rows_of(columns_of(message(7, b"k", b"v", magic=0))) == [(7, -1, b"k", b"v", ())]


def test_v1_has_its_own_time():
    data = message(7, None, b"v", timestamp=1234) + message(9, b"", None, timestamp=1200)
    assert rows_of(columns_of(data)) == [(7, 1234, None, b"v", ()), (9, 1200, b"", None, ())]


def test_the_offsets_inside_a_v0_wrapper_are_absolute():
    data = wrapper(message(40, magic=0), message(45, b"k", b"v", magic=0), magic=0, offset=45)
    assert rows_of(columns_of(data, decompress=gunzip)) == [(40, -1, None, None, ()), (45, -1, b"k", b"v", ())]


def test_a_v1_wrapper_carries_the_offset_of_its_last_message():
    data = wrapper(message(0, timestamp=5), message(3, timestamp=4), message(4, timestamp=3), offset=104)
    assert [row[:2] for row in rows_of(columns_of(data, decompress=gunzip))] == [(100, 5), (103, 4), (104, 3)]


def test_a_v1_wrapper_under_log_append_time_gives_its_own_timestamp():
    data = wrapper(message(0, timestamp=5), message(1), offset=1, attributes=LOG_APPEND_TIME, timestamp=77)
    assert list(columns_of(data, decompress=gunzip).timestamp) == [77, 77]


def test_formats_mix_in_one_table():
    data = message(0, b"0", magic=0) + wrapper(message(0, b"1"), offset=1)
    data += batch_v2(record_v2(key=b"2"), base_offset=2) + compressed_v2(record_v2(key=b"3"), base_offset=3)
    assert [row[2] for row in rows_of(columns_of(data, decompress=gunzip))] == [b"0", b"1", b"2", b"3"]


def test_an_emptied_batch_has_no_rows():
    data = batch_v2(count=0, base_offset=5, last_offset_delta=3) + batch_v2(record_v2(), base_offset=9)
    assert [row[0] for row in rows_of(columns_of(data))] == [9]


def test_no_batches_are_no_rows():
    columns = columns_of(b"")
    assert (len(columns), list(columns.offset), list(columns.timestamp)) == (0, [], [])
    assert (list(columns.key.offsets), bytes(columns.value.data), list(columns.header_start)) == ([0], b"", [0])


def test_control_batches_are_taken_or_left_out():
    data = batch_v2(record_v2(key=b"data"))
    data += batch_v2(record_v2(key=b"\0\0\0\1"), attributes=CONTROL, base_offset=1)
    data += batch_v2(record_v2(key=b"more"), base_offset=2)
    assert [row[0] for row in rows_of(columns_of(data))] == [0, 1, 2]
    assert [row[0] for row in rows_of(columns_of(data, include_control=False))] == [0, 2]


def test_a_timestamp_delta_may_wrap():
    low, high = -(2**63), 2**63 - 1
    data = batch_v2(record_v2(0, high) + record_v2(1, low), count=2, base_timestamp=high)
    assert list(columns_of(data).timestamp) == [-2, -1]


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 63, 64, 65, 511, 512, 513, 4096, 100_000])
def test_every_step_of_copying_ends_where_it_should(size):
    field = bytes(i * 7 % 251 for i in range(size))
    records = record_v2(0, key=field, value=b"<>") + record_v2(1, key=b"[]", value=field, headers=[(field, field)])
    data = batch_v2(records, count=2)
    expected = [field, b"<>", b"[]", field]
    for rest in b"", bytes(200):      # with and without room behind it for the fast path
        table = table_of(data + rest)
        columns = decode(table, 0, len(table), ArenaPool())
        assert [x for row in rows_of(columns) for x in row[2:4]] == expected
        assert columns.header_value[0] == columns.header_key[0] == field


# --- growing -------------------------------------------------------------------------------


def test_a_compressed_batch_may_hold_far_more_than_was_reserved():
    values = [bytes(300_000), b"x" * 5_000_000, b"", b"end"]
    batches = b"".join(compressed_v2(record_v2(value=v), base_offset=i) for i, v in enumerate(values))
    columns = columns_of(batches, ArenaPool(chunk_bytes=1 << 16), decompress=gunzip)
    assert [row[3] for row in rows_of(columns)] == values


def test_rows_may_be_far_more_than_was_reserved():
    body = b"".join(message(i, b"%d" % i) for i in range(50_000))
    data = batch_v2(record_v2(key=b"first")) + wrapper(body, offset=50_000)
    columns = columns_of(data, ArenaPool(chunk_bytes=1 << 12), decompress=gunzip)
    assert len(columns) == 50_001
    assert [columns.key[i] for i in (0, 1, 25_000, 50_000)] == [b"first", b"0", b"24999", b"49999"]


def test_headers_may_be_more_than_their_arena_holds():
    headers = [(b"%d" % i, None if i % 3 else bytes(i % 100)) for i in range(20_000)]
    records = record_v2(0, headers=headers) + record_v2(1, headers=headers[:5])
    expected = tuple((k.decode(), v) for k, v in headers)
    for data in batch_v2(records, count=2), compressed_v2(records, count=2):
        columns = columns_of(data, decompress=gunzip)
        assert columns[0][4] == expected
        assert columns[1][4] == expected[:5]
        assert columns.header_value.null_count == sum(v is None for _, v in headers) + 3


# --- chunks --------------------------------------------------------------------------------

TEN = [batch_v2(record_v2(value=bytes(100)), base_offset=i) for i in range(10)]


def test_a_chunk_ends_with_the_batch_that_fills_it():
    size = len(TEN[0])
    sizes = [len(c) for c in chunks(table_of(b"".join(TEN)), ArenaPool(), 3 * size)]
    assert sizes == [3, 3, 3, 1]
    sizes = [len(c) for c in chunks(table_of(b"".join(TEN)), ArenaPool(), 3 * size + 1)]
    assert sizes == [4, 4, 2]


def test_a_chunk_is_the_pools_size_unless_told():
    pool = ArenaPool(chunk_bytes=1)
    assert [len(c) for c in chunks(table_of(b"".join(TEN)), pool)] == [1] * 10


def test_chunks_count_what_compressed_batches_hold():
    data = b"".join(compressed_v2(record_v2(value=bytes(10_000)), base_offset=i) for i in range(6))
    assert [len(c) for c in chunks(table_of(data), ArenaPool(), 20_000)] == [2, 2, 2]


def test_a_batch_larger_than_a_chunk_is_one_chunk():
    data = TEN[0] + batch_v2(record_v2(value=bytes(1 << 20)), base_offset=1) + TEN[2]
    assert [len(c) for c in chunks(table_of(data), ArenaPool(), 1)] == [1, 1, 1]


def test_chunks_take_a_part_of_the_table():
    it = chunks(table_of(b"".join(TEN)), ArenaPool(), 1 << 20, start=3, stop=7)
    assert [row[0] for row in rows_of(next(it))] == [3, 4, 5, 6]
    assert it.next_batch == 7
    assert list(it) == []


def test_batches_without_records_make_no_chunk():
    data = batch_v2(count=0, base_offset=0) * 3 + TEN[5] + batch_v2(record_v2(), attributes=CONTROL, base_offset=6)
    assert [rows_of(c)[0][0] for c in chunks(table_of(data), ArenaPool(), 1, include_control=False)] == [5]


def test_an_error_comes_after_the_chunk_of_what_is_whole_before_it():
    bad = bytearray(TEN[4])
    bad[-1] ^= 1
    data = b"".join([*TEN[:4], bad, *TEN[5:]])
    it = chunks(table_of(data), ArenaPool())
    assert [row[0] for row in rows_of(next(it))] == [0, 1, 2, 3]
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match="checksum") as caught:
            next(it)
        assert (caught.value.position, caught.value.offset) == (4 * len(TEN[0]), 4)
        assert it.next_batch == 4
    it.next_batch += 1
    assert [row[0] for row in rows_of(next(it))] == [5, 6, 7, 8, 9]


# --- buffers -------------------------------------------------------------------------------


def test_columns_are_plain_buffers():
    data = batch_v2(record_v2(0, 1, b"k0", b"v") + record_v2(1, 2, b"k", None), count=2, base_offset=8)
    columns = columns_of(data)
    assert (columns.offset.format, columns.offset.tolist()) == ("q", [8, 9])
    assert (columns.timestamp.format, columns.timestamp.tolist()) == ("q", [1, 2])
    assert (columns.key.offsets.format, columns.key.offsets.tolist()) == ("i", [0, 2, 3])
    assert bytes(columns.key.data) == b"k0k"
    assert (len(columns.value), columns.value[0], columns.value[-1]) == (2, b"v", None)
    assert columns.nbytes == 2 * 28 + 12 + 2 + 3 + 1
    assert repr(columns) == f"<Columns of 2 records, {columns.nbytes} bytes>"


def test_rows_are_counted_from_the_end_too():
    columns = columns_of(TEN[0] + TEN[1])
    assert columns[-1] == columns[1]
    for outside in 2, -3:
        with pytest.raises(IndexError):
            columns[outside]
        with pytest.raises(IndexError):
            columns.key[outside]


# Tests of all the error paths in columns.pyx and column_decoder.pyx follow:


@pytest.mark.parametrize("made_up", [Columns, BinaryColumn, ColumnChunks])
def test_nobody_makes_columns_by_hand(made_up):
    with pytest.raises(TypeError, match="come"):
        made_up()


def test_columns_that_nobody_filled_are_empty():
    columns = Columns.__new__(Columns)
    columns.to_arrow().validate(full=True)
    assert (len(columns), columns.offset.tolist(), columns.header_key.offsets.tolist()) == (0, [], [0])
    assert canonical_bytes(columns) == b""
    column = BinaryColumn.__new__(BinaryColumn)
    assert (len(column), column.offsets.tolist(), bytes(column.data), column.null_count) == (0, [0], b"", 0)
    assert list(ColumnChunks.__new__(ColumnChunks)) == []


def test_a_batch_before_the_first_is_refused():
    it = chunks(table_of(TEN[0]), ArenaPool())
    it.next_batch = -1
    with pytest.raises(InvalidArgumentError, match="next_batch"):
        next(it)
    it.next_batch = 100
    assert list(it) == []


@pytest.mark.parametrize(("first", "last"), [(-1, 1), (2, 1), (0, 11)])
def test_batches_that_the_table_does_not_have_are_refused(first, last):
    table = table_of(b"".join(TEN))
    with pytest.raises(InvalidArgumentError, match="table of 10"):
        decode(table, first, last, ArenaPool())


def test_the_last_batch_may_be_left_to_the_table_in_chunks_only():
    with pytest.raises(InvalidArgumentError):
        decode(table_of(TEN[0]), 0, -1, ArenaPool())


@pytest.mark.parametrize("chunk_bytes", [-1, 2**31])
def test_a_chunk_size_that_cannot_be_is_refused(chunk_bytes):
    with pytest.raises(InvalidArgumentError, match="chunk_bytes"):
        chunks(table_of(TEN[0]), ArenaPool(), chunk_bytes)


def test_a_wrong_checksum_names_position_and_base_offset():
    bad = bytearray(TEN[1])
    bad[-2] ^= 1
    with pytest.raises(CorruptRecordError, match="checksum") as caught:
        columns_of(TEN[0] + bad)
    assert (caught.value.position, caught.value.offset) == (len(TEN[0]), 1)
    assert len(columns_of(TEN[0] + bad, check_crc=False)) == 2


def test_a_wrong_checksum_of_a_compressed_batch_is_found_before_it_is_opened():
    bad = bytearray(compressed_v2(record_v2()))
    bad[-1] ^= 1
    with pytest.raises(CorruptRecordError, match="checksum"):
        columns_of(bad, decompress=lambda *_: pytest.fail("opened"))


def test_a_file_name_travels_with_the_error():
    table = scan(Window(TEN[0][:-1] + b"x", "00.log"))
    with pytest.raises(CorruptRecordError) as caught:
        decode(table, 0, 1, ArenaPool())
    assert caught.value.file == "00.log"


WRONG_V2 = {
    "trailing bytes": (record_v2() + b"\0", 1, "left over"),
    "a record too many in the count": (record_v2(), 2, "."),
    "a length below the minimum": (varint(5) + bytes(6), 1, "size"),
    "a length beyond the batch": (varint(50) + bytes(20), 1, "end"),
    "a length that does not end": (b"\xff" * 20, 1, "variable"),
    "a key beyond the record": (varint(10) + b"\0\0\0" + varint(60) + bytes(6), 1, "key"),
    "a value beyond the record": (varint(10) + b"\0\0\0\1" + varint(60) + bytes(5), 1, "value"),
    "a header count that is negative": (varint(6) + b"\0\0\0\1\1" + varint(-1), 1, "header"),
    "a header count beyond the record": (varint(7) + b"\0\0\0\1\1" + varint(9) + b"\0", 1, "header"),
    "a header key that is null": (record_v2(headers=[(None, b"v")]), 1, "header"),
    "a header value beyond the record": (varint(9) + b"\0\0\0\1\1" + b"\2\0" + varint(9) + b"\0", 1, "header"),
    "bytes after the last header": (varint(9) + b"\0\0\0\1\1" + varint(1) + b"\0\0\0", 1, "header"),
    "bytes after a record without headers": (varint(8) + b"\0\0\0\1\1\0\0\0", 1, "size"),
}


@pytest.mark.parametrize("what", WRONG_V2)
@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("room", [0, 200])
def test_a_record_that_cannot_be_is_corrupt(what, is_compressed, room):
    body, count, words = WRONG_V2[what]
    whole = record_v2(0, key=None, value=b"whole", headers=[(b"h", None)])
    # Room: a valid record behind the bad one, so that the fast path meets it.
    behind = record_v2(value=bytes(room)) if room else b""
    made = compressed_v2 if is_compressed else batch_v2
    bad = made(whole + body + behind, count=count + 1 + bool(room), base_offset=1)
    table = table_of(TEN[0] + bad)
    assert len(table) == 2
    with pytest.raises(CorruptRecordError, match=words if not room else ".") as caught:
        decode(table, 0, 2, ArenaPool())
    assert (caught.value.position, caught.value.offset) == (len(TEN[0]), 1)
    # Of the bad batch nothing stays, null bits and headers included.
    first = next(chunks(table, ArenaPool()))
    assert rows_of(first) == [(0, 0, None, bytes(100), ())]
    assert (first.key.null_count, first.value.null_count, len(first.header_key)) == (1, 0, 0)


def test_a_count_that_the_opened_batch_cannot_hold_is_corrupt():
    with pytest.raises(CorruptRecordError, match="count"):
        columns_of(compressed_v2(record_v2(), count=2**31 - 1), decompress=gunzip)


def test_a_wrapper_must_not_be_empty():
    with pytest.raises(CorruptRecordError, match="count"):
        columns_of(wrapper(), decompress=gunzip)


def test_a_wrapper_must_not_hold_a_wrapper():
    with pytest.raises(CorruptRecordError, match="wrapper contains"):
        columns_of(wrapper(wrapper(message())), decompress=gunzip)


def test_a_message_whose_sizes_do_not_add_up_is_corrupt():
    inner = message(0, b"k", b"v")
    for at in -2, 29:       # the value's size, the key's size
        bad = bytearray(inner)
        bad[at] ^= 0x40
        with pytest.raises(CorruptRecordError):
            columns_of(wrapper(bytes(bad)), decompress=gunzip)
        with pytest.raises(CorruptRecordError):
            columns_of(bytes(bad), check_crc=False)


def test_a_codec_that_names_none_is_refused():
    with pytest.raises(UnsupportedCompressionTypeError):
        columns_of(batch_v2(b"", attributes=5), decompress=gunzip)
    with pytest.raises(UnsupportedCompressionTypeError):
        columns_of(message(value=b"x", attributes=ZSTD), decompress=gunzip)


def test_a_compressed_batch_needs_a_decompressor():
    with pytest.raises(InvalidArgumentError, match="decompressor"):
        columns_of(compressed_v2(record_v2()))


def test_what_the_decompressor_raises_comes_through():
    def refuse(codec, magic, payload):
        raise RecordTooLargeError("too large")

    with pytest.raises(RecordTooLargeError):
        columns_of(compressed_v2(record_v2()), decompress=refuse)


def test_records_beyond_int32_offsets_are_refused():
    # 2 GiB that take no memory: one mapping of a sparse file, behind a batch that claims it.
    with tempfile.TemporaryFile() as file:
        file.truncate(2**31)
        opened = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        data = TEN[0] + compressed_v2(record_v2(), base_offset=1)
        table = scan(Window(data), decompress=lambda *_: opened)
        with pytest.raises(RecordTooLargeError, match="int32") as caught:
            decode(table, 0, 2, ArenaPool())
        assert caught.value.offset == 1
        it = chunks(table, ArenaPool(), 1 << 20)
        assert len(next(it)) == 1
        with pytest.raises(RecordTooLargeError):
            next(it)
        del it, table, caught


def test_a_plain_batch_beyond_int32_offsets_is_refused():
    size = 2**31 - 1 + 12
    with tempfile.TemporaryFile() as file:
        file.write(struct.pack(">qiIbbqii", 7, size - 12, 0, 1, 0, 0, -1, size - 34))
        file.truncate(size)
        opened = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        table = scan(Window(opened))
        assert len(table) == 1
        with pytest.raises(RecordTooLargeError, match="int32") as caught:
            decode(table, 0, 1, ArenaPool(), check_crc=False)
        assert (caught.value.position, caught.value.offset) == (0, 7)
        del table, caught
