"""seglog.mirror: batches of one log into another, unopened."""
import random

import pytest

import seglog
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import (
    CorruptRecordError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
)
from seglog.format import compression
from seglog.format.batch import end_marker
from support import plain_format as plain
from support import plain_tagged as tagged
from support.golden import unpack
from support.made_logs import NOW, open_log

CASES = [
    "v0-gzip-ct-k391", "v0-none-ct-k282", "v1-lz4-lat-k282", "v1-none-ct-k391", "v1-gzip-ct-k411", "v2-zstd-ct-k282",
    "v2-none-lat-k391", "compact-v1-gzip-pass2-k391", "compact-v2-mixed-pass2-k411", "txn-v2-k411", "epochs-v2-k391",
]


@pytest.fixture
def path(in_memory):
    return in_memory / "mirror" / "orders-0"


def source(name):
    return seglog.open_partition(unpack("kafka") / "cases" / name / f"{name}-0")


def bytes_of(log):
    return b"".join(bytes(segment.window)[: segment.end_position] for segment in log.segments)


def rows(log, shift=0):
    return [
        (r.offset - shift, r.timestamp, r.timestamp_type, r.key, r.value, r.headers, batch.is_control)
        for batch in log.batches() for r in batch
    ]


@pytest.fixture
def opened(monkeypatch):
    """How many payloads were decompressed, in the order of their codecs."""
    seen = []
    decompress = compression.decompress

    def counted(codec, *args, **more):
        seen.append(codec)
        return decompress(codec, *args, **more)

    monkeypatch.setattr(compression, "decompress", counted)
    return seen


# --- offsets that stay --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_mirror_is_the_bytes_of_its_source(path, name):
    with source(name) as src, open_log(path) as dst:
        done = seglog.mirror(src, dst)
        assert bytes_of(dst) == bytes_of(src)
        assert rows(dst) == rows(src)
        assert (done.next_offset, done.size_bytes, done.opened_batches) == (src.log_end_offset, len(bytes_of(src)), 0)
        assert done.batches == len(list(src.batches()))
        assert dst.aborted_transactions() == src.aborted_transactions()
        again = seglog.mirror(src, dst)
        assert (again.batches, again.next_offset) == (0, done.next_offset)


def test_a_mirror_goes_on_where_it_ended_and_opens_nothing(in_memory, path, opened):
    with open_log(in_memory / "orders-0") as src, open_log(path, segment_bytes=1000) as dst:
        for n in range(20):
            records = [(b"k", b"%d" % n * 50)] * 9
            src.append_batch(seglog.build_batch(records, codec="lz4", magic=1 + n % 2, timestamp=NOW))
            if n % 3 == 2:
                assert seglog.mirror(src, dst).batches == 3
        assert seglog.mirror(src, dst, from_offset=dst.log_end_offset).batches == 2
        assert bytes_of(dst) == bytes_of(src)
        assert len(dst.segments) > 1
        with open_log(in_memory / "other" / "orders-0") as other:
            del opened[:]
            seglog.mirror(src, other, preserve_offsets=False)
            seglog.mirror(src, other, preserve_offsets=False)
            assert other.log_end_offset == 360
            assert len(opened) <= 4     # where a read begins and ends, of 40
        with pytest.raises(InvalidArgumentError):
            seglog.mirror(src, dst, from_offset=5)
        assert bytes_of(dst) == bytes_of(src)


# --- other offsets ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_batches_with_other_offsets_keep_all_but_those(path, name, opened):
    with source(name) as src, open_log(path) as dst:
        for _ in range(7):
            dst.append(b"before")
        from_v0 = sum(b.magic == 0 and b.codec > 0 for b in src.batches())
        done = seglog.mirror(src, dst, preserve_offsets=False)
        assert done.opened_batches == from_v0
        assert done.next_offset == src.log_end_offset
        kept = rows(dst)[7:]
        assert [row[1:] for row in kept] == [row[1:] for row in rows(src)]
        offsets = [row[0] for row in kept]
        assert offsets[0] >= 7
        assert offsets == sorted(set(offsets))
        for mine, theirs in zip(list(dst.batches(7)), src.batches(), strict=True):
            assert mine.crc_is_valid()
            assert mine.magic == theirs.magic
            if not (mine.magic == 0 and mine.codec):
                assert bytes(mine.payload()) == bytes(theirs.payload())
            if mine.magic == 2:
                assert mine.leader_epoch == 0
                assert mine.last_offset_delta == theirs.last_offset_delta
                held = [r.offset - mine.base_offset for r in mine]
                assert held == [r.offset - theirs.base_offset for r in theirs]


def test_spans(path, in_memory):
    """v2: its own, holes inside too. Messages: what lies between a message and the batch before it."""
    def wrapper(offsets):
        inner = b"".join(plain.message(n - offsets[0], b"k", b"%d" % n, timestamp=NOW) for n in offsets)
        value = bytes(compression.compress(1, 1, inner))
        return plain.message(offsets[-1], None, value, magic=1, timestamp=NOW, attributes=1)

    v2 = seglog.build_batch([(b"k", b"v")] * 3, base_offset=20, timestamp=NOW)
    parts = [
        wrapper([2, 3, 5]), wrapper([7, 9]), v2, plain.message(30, b"k", b"v", timestamp=NOW), wrapper([33, 34]),
    ]
    with open_log(in_memory / "orders-0") as src, open_log(path) as dst:
        src.append_batch(b"".join(parts), assign_offsets=False)
        dst.append(b"before")
        seglog.mirror(src, dst, preserve_offsets=False)
        assert [r.offset for r in dst] == [0, 1, 2, 4, 6, 8, 9, 10, 11, 19, 22, 23]
        assert dst.log_end_offset == 24
        with open_log(in_memory / "later" / "orders-0") as later:     # from the middle of a wrapper: all of it
            done = seglog.mirror(src, later, from_offset=9, preserve_offsets=False)
            assert (done.batches, [r.offset for r in later][:2]) == (4, [0, 2])


def test_log_append_time_replaces_times_in_headers_alone(path, in_memory, opened):
    with open_log(in_memory / "orders-0") as src, open_log(path, message_timestamp_type="LogAppendTime") as dst:
        for magic in (0, 1, 2):
            for codec in ("none", "gzip"):
                time = {} if magic == 0 else {"timestamp": NOW - 5000}
                src.append_batch(seglog.build_batch([(b"k", b"v" * 90)] * 3, codec=codec, magic=magic, **time))
        del opened[:]
        seglog.mirror(src, dst)
        assert len(opened) <= 2     # where the read begins and ends
        for mine, theirs in zip(dst.batches(), src.batches(), strict=True):
            assert mine.crc_is_valid()
            assert bytes(mine.payload()) == bytes(theirs.payload())
            if mine.magic:
                assert (mine.timestamp_type, mine.max_timestamp) == (1, NOW)
        assert {r.timestamp for r in dst} == {-1, NOW}
        assert [r.offset for r in dst] == [r.offset for r in src]


def test_a_transaction_is_mirrored_with_its_markers(path, in_memory):
    who = {"producer_id": 7, "producer_epoch": 0, "transactional": True, "timestamp": NOW}
    with open_log(in_memory / "orders-0") as src, open_log(path) as dst:
        dst.append(b"before")
        for n in range(2):
            src.append_batch(seglog.build_batch([(b"k", b"%d" % n)], base_sequence=n, **who))
            src.append_batch(seglog.build_batch([end_marker(n == 1, 0)], control=True, **who))
        seglog.mirror(src, dst, preserve_offsets=False)
        assert dst.aborted_transactions() == [(7, 1)]
        assert [r.value for r in dst.read(isolation="read_committed")] == [b"before", b"1"]


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preserve_offsets", [False, True])
def test_damage_ends_a_mirror_with_all_before_it_mirrored(path, in_memory, preserve_offsets):
    with open_log(in_memory / "orders-0") as src:
        for n in range(9):
            src.append(b"%d" % n * 50)
        file = src.segments[0].path
    raw = bytearray(file.read_bytes())
    raw[scan(Window(bytes(raw)))[5].position + 70] ^= 1
    file.write_bytes(raw)
    with seglog.open_partition(file.parent) as src, open_log(path) as dst:
        with pytest.raises(CorruptRecordError, match="checksum"):
            seglog.mirror(src, dst, preserve_offsets=preserve_offsets)
        assert [r.offset for r in dst] == [0, 1, 2, 3, 4]


def test_what_becomes_too_large_is_refused_before_the_write(path, in_memory):
    rng = random.Random(5)
    with open_log(in_memory / "orders-0") as src:
        raw = seglog.build_batch([(None, bytes(rng.choices(b"ab", k=400)))] * 5, codec="gzip", level=9, magic=0)
        src.append_batch(raw, assign_offsets=False)
        raw = seglog.build_batch([(None, b"%d" % n) for n in range(5)], magic=0, base_offset=5, codec="gzip")
        src.append_batch(raw, assign_offsets=False)
        with open_log(path, max_message_bytes=60) as dst:
            with pytest.raises(RecordTooLargeError, match=r"v0 wrapper.*max\.message\.bytes"):
                seglog.mirror(src, dst, preserve_offsets=False)
            assert dst.log_end_offset == 0
            assert seglog.mirror(src, dst).batches == 2     # unopened: the leader took them


# --- what cannot be meant -----------------------------------------------------------------------------------


def test_arguments_that_cannot_be_meant_are_refused(path, in_memory):
    with open_log(in_memory / "orders-0") as src, open_log(path) as dst:
        src.append_many([(b"k", b"v")] * 3)
        with pytest.raises(InvalidArgumentError, match="src must be an open log, not PosixPath"):
            seglog.mirror(path, dst)
        with seglog.open_partition(path) as closed, pytest.raises(InvalidArgumentError, match="dst must be an open"):
            seglog.mirror(src, closed)
        with pytest.raises(InvalidArgumentError, match="the same directory"):
            seglog.mirror(src, src, preserve_offsets=False)
        for offset in (-1, 4, 1 << 70):
            for preserve_offsets in (True, False):
                with pytest.raises(OffsetOutOfRangeError, match=rf"at offset {offset}: the source has offsets"):
                    seglog.mirror(src, dst, from_offset=offset, preserve_offsets=preserve_offsets)
        assert (src.log_end_offset, dst.log_end_offset) == (3, 0)
        seglog.mirror(src, dst)
        with pytest.raises(InvalidArgumentError, match="offsets stay the same, and the target already ends at 3"):
            seglog.mirror(src, dst, from_offset=1)


@pytest.mark.parametrize("as_log", [False, True])
def test_messages_with_tags_are_mirrored_as_they_are_and_into_such_a_log_alone(path, in_memory, as_log):
    config = {"seglog.message.dialect": "tagged", "segment.bytes": 3000}
    with seglog.open(in_memory / "orders-0", config=config) as log:
        for n in range(40):
            log.append_batch(seglog.build_batch([(b"k", b"%d" % n * 40)] * 3, codec=["none", "lz4"][n % 2]))
        with (
            log if as_log else seglog.open_partition(log.path) as src,
            seglog.open(path, config={**config, "message.timestamp.type": "LogAppendTime"}) as dst,
        ):
            assert seglog.mirror(src, dst).next_offset == 120
            assert bytes_of(dst) == bytes_of(src)
            assert rows(dst) == rows(src)
            with open_log(path.parent / "orders-1") as kafka:
                with pytest.raises(InvalidArgumentError, match="in the tagged dialect and the target in the kafka"):
                    seglog.mirror(src, kafka)
                assert kafka.log_end_offset == 0


@pytest.mark.parametrize("as_log", [False, True])
def test_other_offsets_of_messages_with_tags_follow_each_other(path, in_memory, opened, as_log):
    """Tag 64 is cleared and tag 32 says how many there are: the proposal's way to move a set unopened."""
    def wrapper(offset, relative, tags, codec=1):
        inner = [tagged.message(n, b"k", b"%d" % (offset + n), seconds=5) for n in relative]
        return tagged.wrapper(offset, codec, inner, tags=tags)

    parts = [
        tagged.message(3, b"k", b"3", seconds=5, tags=[(0, 5000)]),
        wrapper(5, [0, 2, 3], [(0, 5000), (32, 3), (33, 3), (64, 1), (100, b"unknown")]),
        wrapper(10, [0, 1], [(32, 2), (64, 0)]),
        wrapper(20, [0, 4], [(32, 2)]),             # no tag to clear: it is opened, and the hole stays
        wrapper(30, [1, 2], []),
        tagged.message(40, b"k", b"40", seconds=5),
    ]
    config = {"seglog.message.dialect": "tagged"}
    with seglog.open(in_memory / "orders-0", config=config) as log, seglog.open(path, config=config) as dst:
        log.append_batch(b"".join(parts), assign_offsets=False)
        dst.append_many([(b"k", b"before")] * 2)
        with log if as_log else seglog.open_partition(log.path) as src:
            done = seglog.mirror(src, dst, preserve_offsets=False)
        assert (done.batches, done.opened_batches, done.rebuilt_batches) == (6, 2, 0)
        got = [(r.offset, r.value) for r in dst.read(start=2)]
        assert got == [
            (2, b"3"), (3, b"5"), (4, b"7"), (5, b"8"), (6, b"10"), (7, b"11"), (8, b"20"), (12, b"24"), (14, b"31"),
            (15, b"32"), (16, b"40"),
        ]
        moved = list(tagged.parse(bytes_of(dst)))[-6:]
        assert moved[1].tags == {0: 5000, 32: 3, 33: 2, 64: 0, 100: b"unknown"}
        assert [part.value for part in moved] == [part.value for part in tagged.parse(b"".join(parts))]
        assert {finding.code for finding in seglog.verify(path, level="deep").findings} == {"tags_missing"}


# What a set may be: relative offsets, tags. Whether it has to be opened, and whether it has holes.
SETS = {
    "says all, without holes": ([0, 1, 2], [(32, 3), (33, 2), (64, 1)], False, False),
    "says all, with holes": ([0, 2, 3], [(32, 3), (33, 5), (64, 1)], False, True),
    "not honoured": ([0, 0, 0], [(32, 3), (64, 0)], False, False),
    "does not say its count": ([0, 1, 2], [(64, 1)], True, False),
    "the same with holes": ([0, 3], [(64, 1)], True, True),
    "reaches further than its messages": ([0, 1], [(33, 4)], True, True),
    "reaches just so far": ([0, 1], [(33, 1)], True, False),
    "begins with a hole": ([2, 3], [], True, True),
    "says nothing": ([0, 1], [], True, False),
    "has no tag to clear": ([0, 1], [(32, 2), (33, 3)], True, True),
}


@pytest.mark.parametrize("close_gaps", [False, True])
@pytest.mark.parametrize("name", SETS)
def test_whatever_a_set_with_tags_says_of_its_offsets_the_next_one_goes_behind_it(path, in_memory, name, close_gaps):
    relative, tags, is_opened, has_holes = SETS[name]
    inner = [tagged.message(n, b"k", b"%d" % i, seconds=5, tags=[(100, b"any")]) for i, n in enumerate(relative)]
    reach = dict(tags).get(33, max(*relative, len(relative) - 1))
    parts = [
        tagged.wrapper(50, 1, inner, tags=[*tags, (65, 0), (101, b"own")], seconds=6),
        tagged.message(50 + reach + 3, b"k", b"behind", seconds=5),
    ]
    config = {"seglog.message.dialect": "tagged"}
    with seglog.open(in_memory / "orders-0", config=config) as src, seglog.open(path, config=config) as dst:
        src.append_batch(b"".join(parts), assign_offsets=False)
        dst.append(b"before")
        done = seglog.mirror(src, dst, preserve_offsets=False, close_gaps=close_gaps)
        assert (done.batches, done.opened_batches) == (2, is_opened)
        assert done.rebuilt_batches == (close_gaps and is_opened and has_holes)
        keeps_holes = is_opened and not close_gaps
        offsets = [1 + n for n in relative] if keeps_holes else [1 + n for n in range(len(relative))]
        behind = 1 + reach + 1 if keeps_holes else 1 + len(relative)
        assert [r.offset for r in dst.read(start=1)] == [*offsets, behind]
        moved = list(tagged.parse(bytes_of(dst)))[1]
        assert moved.tags[101] == b"own"
        assert [raw for _, raw, _ in tagged.parts_of(moved)] == [one[8:] for one in inner]
    assert {f.code for f in seglog.verify(path, level="deep", witness_every=1).findings} <= {"tags_missing"}
    with seglog.open(path) as again:
        assert again.append(b"more") == behind + 1


def test_a_set_without_its_holes_may_be_too_large_for_the_target(path, in_memory):
    inner = [tagged.message(n, b"k", random.Random(n).randbytes(300), seconds=5) for n in (0, 1, 5)]
    parts = [tagged.message(0, b"k", b"0", seconds=5), tagged.wrapper(1, 1, inner)]
    config = {"seglog.message.dialect": "tagged"}
    with (
        seglog.open(in_memory / "orders-0", config=config) as src,
        seglog.open(path, config={**config, "max.message.bytes": 500}) as dst,
    ):
        src.append_batch(b"".join(parts), assign_offsets=False)
        with pytest.raises(RecordTooLargeError, match="rebuilt without its gaps") as caught:
            seglog.mirror(src, dst, close_gaps=True)
        assert "before offset 1 of the source is mirrored" in caught.value.hint
        assert dst.log_end_offset == 1


def test_a_target_with_more_than_its_source_is_not_taken_for_its_mirror(path, in_memory):
    """It used to say that nothing was to be done, and went on in the middle of other records later."""
    with open_log(in_memory / "orders-0") as src, open_log(path) as dst:
        dst.append_many([(b"k", b"other")] * 5)
        src.append_many([(b"k", b"v")] * 3)
        with pytest.raises(OffsetOutOfRangeError, match="ends at offset 5, and the source already at 3"):
            seglog.mirror(src, dst)
