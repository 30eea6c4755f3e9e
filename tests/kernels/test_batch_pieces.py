"""batch_pieces: the records of a batch, opened, as batches for other logs."""
import pytest
from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from hypothesis import strategies as st

import seglog
from seglog._kernels.batch_pieces import BatchPieces, partition_for_key
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.config import LogConfig
from seglog.errors import CorruptRecordError, InvalidArgumentError
from seglog.format.compression import decompressor
from seglog.format.conversion_profile import compressor
from support import plain_format as plain
from support.made_logs import NOW

# Kafka's UtilsTest.testMurmur2.
MURMUR2 = {
    b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829, b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def table(*batches):
    return scan(Window(b"".join(batches)), check_crc=True, decompress=decompressor())


def compress(magic):
    return compressor(LogConfig(), magic)


def only(raw):
    batch, = table(raw)
    return batch


def rows(batch):
    return [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch]


@pytest.mark.parametrize("key", MURMUR2)
def test_a_key_goes_where_kafka_sends_it(key):
    for partitions in (1, 2, 3, 12, 1000):
        assert partition_for_key(key, partitions) == (MURMUR2[key] & 0x7fffffff) % partitions


@given(st.binary(max_size=40), st.integers(1, 50))
def test_a_key_goes_where_aiokafka_sends_it(key, partitions):
    every = list(range(partitions))
    assert partition_for_key(key, partitions) == DefaultPartitioner()(key, every, every)


def holed(codec, *, magic=2, **more):
    """Records at 10, 12 and 13 of [10, 15), or of a wrapper up to 13."""
    records = [(10, NOW, b"a", b"one", ()), (12, NOW + 5, None, None, ()), (13, NOW + 1, b"b", b"three", ())]
    if magic < 2:
        inner = b"".join(
            plain.message(o - (10 if magic == 1 else 0), k, v, magic=magic, timestamp=t) for o, t, k, v, _ in records)
        value = bytes(compress(magic)(codec, inner))
        return plain.message(13, None, value, magic=magic, timestamp=NOW + 5, attributes=codec)
    from seglog._kernels.batch_builder import BatchBuilder
    builder = BatchBuilder(10, leader_epoch=3, **more)
    for offset, time, key, value, _ in records:
        builder.append(offset, time, key, value, [("h", b"x")])
    packed = (compress(2)(codec, builder.payload()), codec) if codec else (None, 0)
    return builder.finish(*packed, last_offset=14)


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_all_records_of_a_batch_without_its_holes(codec):
    pieces = BatchPieces(table(holed(codec, producer_id=7, producer_epoch=1, base_sequence=2**31 - 1)), 0)
    assert (pieces.count, pieces.first_offset, pieces.is_dense, pieces.has_keys) == (3, 10, False, True)
    made = only(pieces.piece(0, 100, compress(2), leader_epoch=9))
    assert made.crc_is_valid()
    assert rows(made) == [
        (100, NOW, b"a", b"one", (("h", b"x"),)), (101, NOW + 5, None, None, (("h", b"x"),)),
        (102, NOW + 1, b"b", b"three", (("h", b"x"),)),
    ]
    assert (made.codec, made.leader_epoch, made.max_timestamp, made.last_offset) == (codec, 9, NOW + 5, 102)
    # Its last sequence is what the producer goes on from: 2^31 - 1 + 4, around the end.
    assert (made.producer_id, made.producer_epoch, made.base_sequence) == (7, 1, 1)
    assert (made.base_sequence + 2) % 2**31 == (2**31 - 1 + 4) % 2**31


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [1, 3])
def test_wrappers(magic, codec):
    pieces = BatchPieces(table(holed(codec, magic=magic)), 0)
    assert (pieces.count, pieces.first_offset, pieces.is_dense) == (3, 10, False)
    made = only(pieces.piece(0, 100, compress(magic)))
    assert [r[0] for r in rows(made)] == [100, 101, 102]
    assert [r[1] for r in rows(made)] == ([NOW, NOW + 5, NOW + 1] if magic else [-1] * 3)
    assert (made.magic, made.codec, made.last_offset) == (magic, codec, 102)
    stamped = only(pieces.piece(0, 100, compress(magic), log_append_time=NOW + 9))
    assert {r[1] for r in rows(stamped)} == ({NOW + 9} if magic else {-1})


@pytest.mark.parametrize("transactional", [False, True])
def test_a_piece_with_some_of_the_records_has_no_sequence(transactional):
    raw = holed(1, producer_id=7, producer_epoch=1, base_sequence=5, is_transactional=transactional)
    pieces = BatchPieces(table(raw), 0)
    counts = pieces.route(50, 20)
    assert sum(counts) == 3
    assert counts[20] >= 1
    for target, key in ((partition_for_key(b"a", 50), b"a"), (20, None), (partition_for_key(b"b", 50), b"b")):
        made = only(pieces.piece(target, 0, compress(2)))
        assert [r[2] for r in rows(made)] == [key]
        who = (7, 1, -1) if transactional else (-1, -1, -1)
        assert (made.producer_id, made.producer_epoch, made.base_sequence) == who
        assert made.is_transactional is transactional
    with pytest.raises(InvalidArgumentError, match="no record goes to target"):
        pieces.piece(next(i for i, n in enumerate(counts) if not n), 0, compress(2))


def test_times_follow_the_batch_or_the_log():
    lat = seglog.build_batch([(b"k", b"v", (), NOW)] * 2, timestamp_type="LogAppendTime", timestamp=NOW + 7)
    made = only(BatchPieces(table(lat), 0).piece(0, 5, compress(2)))
    assert (made.timestamp_type, {r[1] for r in rows(made)}) == (1, {NOW + 7})
    horizon = holed(1, delete_horizon_ms=NOW + 50)
    made = only(BatchPieces(table(horizon), 0).piece(0, 5, compress(2)))
    assert made.delete_horizon_ms == NOW + 50
    assert [r[1] for r in rows(made)] == [NOW, NOW + 5, NOW + 1]
    made = only(BatchPieces(table(horizon), 0).piece(0, 5, compress(2), log_append_time=NOW + 99))
    assert (made.timestamp_type, made.max_timestamp, {r[1] for r in rows(made)}) == (1, NOW + 99, {NOW + 99})


def test_what_is_dense():
    full = seglog.build_batch([(None, b"v")] * 3, base_offset=4, timestamp=NOW)
    pieces = BatchPieces(table(full), 0)
    assert (pieces.is_dense, pieces.has_keys) == (True, False)
    inner = b"".join(plain.message(n, b"k", b"v", timestamp=NOW) for n in range(3))
    wrapper = plain.message(9, None, bytes(compress(1)(1, inner)), magic=1, timestamp=NOW, attributes=1)
    pieces = BatchPieces(table(wrapper), 0)
    assert (pieces.is_dense, pieces.first_offset) == (True, 7)
    bare = BatchPieces(table(plain.message(9, b"k", b"v", timestamp=NOW)), 0)
    assert (bare.is_dense, bare.count) == (True, 1)
    with pytest.raises(InvalidArgumentError, match="by its header"):
        bare.piece(0, 0, compress(1))


def test_bad_arguments_and_bad_batches_are_refused():
    good = table(seglog.build_batch([(b"k", b"v")] * 3, timestamp=NOW))
    with pytest.raises(InvalidArgumentError):
        BatchPieces(good, 1)
    pieces = BatchPieces(good, 0)
    for targets, keyless in ((0, 0), (-1, 0), (2, 2), (2, -1), (1 << 21, 0)):
        with pytest.raises(InvalidArgumentError):
            pieces.route(targets, keyless)
    with pytest.raises(InvalidArgumentError):
        pieces.piece(0, -1, compress(2))
    with pytest.raises(InvalidArgumentError):
        partition_for_key(b"k", 0)
    raw = bytearray(seglog.build_batch([(b"k", b"v")] * 3, timestamp=NOW))
    raw[64] = 9         # a record's offset delta
    with pytest.raises(CorruptRecordError):
        BatchPieces(scan(Window(bytes(raw))), 0)
