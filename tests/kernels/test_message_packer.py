"""Batches of any format as messages of v0 and v1: what Kafka's FileRecords.downConvert gives."""
import contextlib
import json
import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog import build_batch
from seglog._kernels.batch_builder import BatchBuilder, MessageSetBuilder
from seglog._kernels.message_packer import MessagePacker
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import CorruptRecordError, InvalidArgumentError, SeglogError, UnsupportedCompressionTypeError
from seglog.format.compression import compress, decompressor
from support.golden import unpack
from support.mutations import mend_checksums, mutate

DOWN = [pytest.param(d, id=d.name) for d in sorted((unpack("kafka") / "convert/down").iterdir())]


def down(raw, magic, **options):
    packer = MessagePacker(
        magic, decompress=decompressor(), compress=lambda codec, data: compress(codec, magic, data), **options
    )
    table = scan(Window(raw), check_crc=True, decompress=decompressor())
    packer.add(table, 0, len(table))
    return bytes(packer.take())


def records(raw):
    return [
        (r.offset, r.timestamp, r.timestamp_type, r.key, r.value)
        for r in scan(Window(raw), check_crc=True, decompress=decompressor()).records()
    ]


@pytest.mark.parametrize("case", DOWN)
def test_kafkas_own_down_conversion_is_met(case):
    meta = json.loads((case / "meta.json").read_text())
    raw = (case / "input.log").read_bytes()
    if "error" in meta:
        with pytest.raises(UnsupportedCompressionTypeError, match="zstd"):
            down(raw, meta["to_magic"], first_offset=meta["first_offset"])
        return
    if meta["records_converted"] == 0:
        # Nothing but control batches and what has the format: Kafka takes that for a batch cut short by the fetch, and
        # gives all bytes back as they are (FileRecords.downConvert). We give what is left: what has the format.
        assert (case / "output.log").read_bytes() == raw
        assert all(b.is_control or b.magic <= meta["to_magic"] for b in scan(Window(raw)))
        kept = b"".join(b.raw() for b in scan(Window(raw)) if b.magic <= meta["to_magic"])
        assert down(raw, meta["to_magic"], first_offset=meta["first_offset"]) == kept
        return
    made, kafkas = down(raw, meta["to_magic"], first_offset=meta["first_offset"]), (case / "output.log").read_bytes()
    assert records(made) == records(kafkas)
    for mine, theirs in zip(scan(Window(made)), scan(Window(kafkas)), strict=True):
        for field in ("magic", "last_offset", "attributes", "max_timestamp"):
            assert getattr(mine, field) == getattr(theirs, field), field
        if mine.codec == 0:
            assert bytes(mine.raw()) == bytes(theirs.raw())


def bare(batches):
    """Bytes of a v2 log without codec, of batches of (offset, timestamp, key, value)."""
    raw = b""
    for rows, options in batches:
        builder = BatchBuilder(rows[0][0], **options)
        for offset, timestamp, key, value in rows:
            builder.append(offset, timestamp, key, value, [("h", b"lost")])
        raw += builder.finish()
    return raw


ROWS = st.lists(
    st.tuples(st.integers(-1, 2**40), st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=600)),
    min_size=1, max_size=30,
)


@given(st.lists(ROWS, max_size=5), st.sampled_from([0, 1]), st.sampled_from([-1, 0, 1, 2, 3]), st.booleans())
def test_the_messages_are_those_of_the_plain_builder(groups, magic, codec, is_append_time):
    offset, batches = 7, []
    for group in groups:
        rows = [(offset + 2 * i, *row) for i, row in enumerate(group)]
        batches.append((rows, {"log_append_time": 1234} if is_append_time else {}))
        offset += 2 * len(group)
    wanted = b""
    for rows, _ in batches:
        is_wrapped = codec > 0
        kind = int(is_append_time and magic == 1)
        builder = MessageSetBuilder(magic, timestamp_type=kind, wrapped_from=rows[0][0] if is_wrapped else None)
        for offset, timestamp, key, value in rows:
            builder.append(offset, 1234 if is_append_time else timestamp, key, value)
        if is_wrapped:
            wanted += builder.wrap(
                compress(codec, magic, builder.payload()), codec,
                timestamp=1234 if is_append_time else None, timestamp_type=kind,
            )
        else:
            wanted += builder.payload()
    made = down(bare(batches), magic, codec=codec)
    assert made == wanted
    # What has the format and the codec already goes out as it stands; v1 loses nothing but its times on the way to v0.
    assert down(made, magic) == made
    if magic == 1:
        assert [(o, k, v) for o, _, _, k, v in records(down(made, 0))] == [(o, k, v) for o, _, _, k, v in records(made)]


@pytest.mark.parametrize("codec", [-1, 0, 1])
def test_v0_becomes_v1_without_a_time_offsets_kept(codec):
    case = unpack("kafka") / "cases/v0-gzip-ct-k391/v0-gzip-ct-k391-0"
    raw = min(case.glob("*.log")).read_bytes()
    made = down(raw, 1, codec=codec)
    assert [(o, -1, 0, k, v) for o, _, _, k, v in records(raw)] == records(made)
    assert {batch.magic for batch in scan(Window(made))} == {1}
    if codec == -1:
        assert [b.last_offset for b in scan(Window(raw))] == [b.last_offset for b in scan(Window(made))]


def test_control_batches_and_empty_batches_leave_nothing():
    case = unpack("kafka") / "cases/txn-v2-k391/txn-v2-k391-0"
    raw = min(case.glob("*.log")).read_bytes()
    data = [r.offset for b in scan(Window(raw), decompress=decompressor()) if not b.is_control for r in b]
    assert any(b.is_control for b in scan(Window(raw)))
    assert [r[0] for r in records(down(raw, 1, codec=1))] == data
    assert down(BatchBuilder(5).finish(last_offset=9), 0) == b""


def test_a_damaged_batch_is_refused_and_those_before_it_are_kept():
    good = bare([([(0, 1, b"k", b"v")], {}), ([(1, 1, b"k", b"v")], {})])
    bad = bytearray(good)
    bad[-1] ^= 1
    packer = MessagePacker(1)
    table = scan(Window(bytes(bad)))
    with pytest.raises(CorruptRecordError):
        packer.add(table, 0, 2)
    assert [r[0] for r in records(bytes(packer.take()))] == [0]


@pytest.mark.parametrize("flips", [1, 5])
def test_mutated_batches_give_an_error_or_messages_that_scan(flips):
    raw = bare([([(i, i, b"key", b"value" * i) for i in range(n, n + 9)], {}) for n in range(0, 90, 10)])
    noise = random.Random(flips)
    for _ in range(20_000 if os.environ.get("SEGLOG_TORTURE") else 1000):
        bad = bytearray(raw)
        for _ in range(flips):
            bad[noise.randrange(len(bad))] ^= 1 << noise.randrange(8)
        window = Window(bytes(bad))
        table = scan(window)
        packer = MessagePacker(noise.randrange(2), check_crc=False)
        with contextlib.suppress(SeglogError):
            packer.add(table, 0, len(table))
        made = packer.take()
        scanned = scan(Window(made), check_crc=True)
        while scanned.end < len(made):
            # What looks like a message of the format that was asked for is carried over as it was.
            message = scan(Window(made), scanned.end, max_batches=1)[0]
            assert bytes(made[message.position : message.position + message.size_bytes]) in bytes(bad)
            scanned = scan(Window(made), message.position + message.size_bytes, check_crc=True)


@pytest.mark.parametrize("magic", [0, 1])
def test_mutated_wrappers_that_are_gathered_give_an_error_or_wrappers_that_scan(magic):
    rng, raw = random.Random(magic), b""
    for first in range(0, 90, 3):
        some = [(b"key", b"value" * n, (), 1_700_000_000_000 + n if magic else None) for n in range(3)]
        raw += build_batch(some, magic=magic, codec=rng.choice(["gzip", "lz4"]), base_offset=first)
    gathered = 0
    for _ in range(20_000 if os.environ.get("SEGLOG_TORTURE") else 1000):
        bad = mend_checksums(mutate(rng, raw))
        packer = MessagePacker(
            magic, check_crc=False, repack_bytes=500, decompress=decompressor(1 << 20),
            compress=lambda codec, data: compress(codec, magic, data),
        )
        table = scan(Window(bad))
        with contextlib.suppress(SeglogError):
            packer.add(table, 0, len(table))
        packer.finish()
        made = packer.take()
        assert scan(Window(made), check_crc=True).end == len(made) or bytes(made) in bytes(bad)
        for batch in scan(Window(made), decompress=decompressor(1 << 20)):
            # What is large enough by itself is carried over as it was, damage within its messages too.
            is_copy = bytes(made[batch.position : batch.position + batch.size_bytes]) in bytes(bad)
            gathered += not is_copy and batch.codec != 0 and len(list(batch)) > 3
    assert gathered > 100


@pytest.mark.parametrize("arguments", [
    (2, {}), (-1, {}), (1, {"codec": -2}), (1, {"repack_bytes": -1}), (0, {"repack_bytes": 2**31}),
])
def test_what_cannot_be_meant_is_refused(arguments):
    with pytest.raises(InvalidArgumentError):
        MessagePacker(arguments[0], **arguments[1])


def test_zstd_cannot_be_asked_for():
    with pytest.raises(UnsupportedCompressionTypeError):
        MessagePacker(1, codec=4)


def test_a_packer_tells_what_it_keeps_of_a_batch_that_was_large_before_its_compression():
    raw = build_batch([(None, bytes(4 << 20))], codec="gzip")
    table = scan(Window(raw), check_crc=True, decompress=decompressor())
    packer = MessagePacker(1, decompress=decompressor(), compress=lambda codec, data: compress(codec, 1, data))
    assert packer.held_bytes == 0
    packer.add(table, 0, len(table))
    packer.finish()
    assert len(packer.take()) < 1 << 20
    assert packer.held_bytes > 4 << 20


def test_a_compressor_cannot_keep_what_it_is_given():
    raw = build_batch([(b"k", b"v" * 1000)], codec="gzip")
    table = scan(Window(raw), check_crc=True, decompress=decompressor())
    packer = MessagePacker(1, decompress=decompressor(), compress=lambda codec, data: data)
    with pytest.raises(BufferError):
        packer.add(table, 0, 1)
