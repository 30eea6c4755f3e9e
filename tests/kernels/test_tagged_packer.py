"""Batches of every format as tagged messages, and back: offsets, keys, values and times stay."""
import random

import pytest

from seglog._kernels.batch_builder import BatchBuilder, MessageSetBuilder
from seglog._kernels.batch_packer import BatchPacker
from seglog._kernels.message_packer import MessagePacker
from seglog._kernels.segment_scan import scan
from seglog._kernels.tag_list import tags_of
from seglog._kernels.tagged_packer import TaggedPacker
from seglog._kernels.window import Window
from seglog.format.compression import compress, decompressor
from seglog.format.names import log_files
from support import plain_tagged
from support.golden import unpack

TIME = 1_700_000_000_123
GOLDEN = [
    pytest.param(path, id=f"{path.parent.parent.name}-{path.stem.lstrip('0') or 0}")
    for directory in sorted((unpack("kafka") / "cases").glob("*/*/")) for path in log_files(directory)
]


def packed(packer, raw, *, is_tagged=False):
    table = scan(Window(raw, is_tagged=is_tagged), decompress=decompressor())
    packer.add(table, 0, len(table))
    packer.finish()
    return bytes(packer.take())


def to_tagged(raw, **options):
    packer = TaggedPacker(
        decompress=decompressor(), compress=lambda codec, data: compress(codec, 2, data), **options)
    return packed(packer, raw)


def back(raw, magic):
    frame = {"decompress": decompressor(), "compress": lambda codec, data: compress(codec, magic, data)}
    packer = BatchPacker(**frame) if magic == 2 else MessagePacker(magic, codec=-1, **frame)
    return packed(packer, raw, is_tagged=True)


def records(raw, *, is_tagged=False, headers=True):
    table = scan(Window(raw, is_tagged=is_tagged), check_crc=True, decompress=decompressor())
    assert not table.stop_details()
    return [
        (r.offset, r.timestamp, r.key, r.value, r.headers if headers else ())
        for r in table.records(include_control=False)
    ]


@pytest.mark.parametrize("path", GOLDEN)
def test_golden_logs_come_through_and_back_the_same(path):
    raw = path.read_bytes()
    table = scan(Window(raw), decompress=decompressor())
    raw = raw[: table.end]
    tagged = to_tagged(raw)
    expected = records(raw, headers=False)
    assert records(tagged, is_tagged=True) == expected
    assert [record[:4] for record in expected] == plain_tagged.records(tagged)
    assert records(back(tagged, 2)) == expected
    if not any(batch.codec == 4 for batch in table):
        assert records(back(tagged, 1)) == expected
    codecs = [batch.codec for batch in table if batch.codec and batch.count]
    assert [batch.codec for batch in scan(Window(tagged, is_tagged=True)) if batch.codec] == codecs


def v2(records_, *, codec=0, **header):
    builder = BatchBuilder(records_[0][0], **header)
    for offset, timestamp, key, value, headers in records_:
        builder.append(offset, timestamp, key, value, headers)
    payload = builder.payload()
    return builder.finish(bytes(compress(codec, 2, bytes(payload))), codec) if codec else builder.finish()


def test_a_wrapper_says_everything_of_its_messages():
    raw = v2([(10, TIME, b"k", b"v", ()), (12, TIME + 5, None, None, ())], codec=3)
    (batch,) = scan(Window(to_tagged(raw), is_tagged=True))
    assert tags_of(batch) == {0: TIME + 5, 1: TIME + 5, 32: 2, 33: 2, 64: 1, 65: 0, 66: 0}
    (batch,) = scan(Window(to_tagged(v2([(0, TIME, None, b"v", ())], codec=1)), is_tagged=True))
    assert tags_of(batch)[65] == 1


def test_without_ms_a_message_is_eight_bytes_larger_than_v0():
    builder = MessageSetBuilder(0)
    for n in range(5):
        builder.append(n, -1, b"key", b"value")
    raw = builder.payload()
    assert len(to_tagged(raw, with_ms=False)) == len(raw) + 5 * 8
    raw = v2([(0, TIME, None, b"v", ())])
    assert records(to_tagged(raw, with_ms=False), is_tagged=True)[0][1] == TIME // 1000 * 1000


def test_unknown_tags_are_headers_and_tags_again():
    tags = [(0, TIME), (5, -1), (40, 7), (90, 1), (100, b"any"), (127, b"")]
    raw = plain_tagged.message(3, b"k", b"v", seconds=TIME // 1000, tags=tags)
    as_v2 = back(raw, 2)
    ((_, _, _, _, headers),) = records(as_v2)
    assert headers == (
        ("seglog.tag.5", b"\xff" * 8), ("seglog.tag.40", b"\0\0\0\7"), ("seglog.tag.90", b"\1"),
        ("seglog.tag.100", b"any"), ("seglog.tag.127", b""))
    assert to_tagged(as_v2) == raw


@pytest.mark.parametrize("header", [
    ("seglog.tag.5", b"short"), ("seglog.tag.05", bytes(8)), ("seglog.tag.128", b""), ("seglog.tag.0", bytes(8)),
    ("seglog.tag.x", b""), ("seglog.tag.", b""), ("other", b"x"), ("seglog.tag.100", None),
])
def test_other_headers_have_no_place(header):
    (message,) = scan(Window(to_tagged(v2([(0, TIME, b"k", b"v", (header,))])), is_tagged=True))
    assert tags_of(message) == {0: TIME}


def test_markers_stay_markers_of_nobody():
    logs = [path for path in (unpack("kafka") / "cases").glob("txn-*/*/*.log") if path.stat().st_size]
    assert logs
    for path in logs:
        raw = path.read_bytes()
        table = scan(Window(raw), decompress=decompressor())
        markers = [batch.last_offset for batch in table if batch.is_control]
        tagged = to_tagged(raw[: table.end])
        again = scan(Window(back(tagged, 2)))
        found = [batch for batch in again if batch.is_control]
        assert [batch.last_offset for batch in found] == markers
        assert all(batch.is_transactional for batch in found)
        kept = [next(iter(batch)).key for batch in table if batch.is_control]
        assert [next(iter(batch)).key for batch in found] == kept


def test_random_batches_go_round_through_all_formats():
    chance = random.Random(1)
    for _ in range(200):
        raw, offset = b"", chance.randrange(1000)
        for _ in range(chance.randint(1, 4)):
            rows = []
            for _ in range(chance.randint(1, 6)):
                offset += chance.randint(1, 3)
                key, value = (chance.choice([None, b"", chance.randbytes(chance.randrange(40))]) for _ in range(2))
                rows.append((offset, chance.choice([-1, 0, TIME + chance.randrange(10**9)]), key, value, ()))
            raw += v2(rows, codec=chance.choice([0, 1, 2, 3]))
        expected = records(raw)
        tagged = to_tagged(raw)
        assert records(tagged, is_tagged=True) == expected
        assert records(back(tagged, 2)) == expected
        assert records(back(tagged, 1)) == expected
        again = to_tagged(back(tagged, 1))
        assert records(again, is_tagged=True) == expected
        without_time = [(offset, -1, *rest) for offset, _, *rest in expected]
        assert records(back(tagged, 0)) == without_time


def test_what_is_tagged_already_is_copied():
    raw = plain_tagged.message(3, b"k", b"v", tags=[(99, b"kept")])
    assert packed(TaggedPacker(), raw, is_tagged=True) == raw
