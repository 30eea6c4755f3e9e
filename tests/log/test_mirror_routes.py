"""seglog.mirror where headers are not enough: holes that are closed, and targets that are the partitions of a topic."""
import random

import pytest
from aiokafka.partitioner import DefaultPartitioner

import seglog
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import CorruptRecordError, InvalidArgumentError, RecordTooLargeError
from seglog.format.batch import end_marker
from support.golden import unpack
from support.made_logs import NOW, open_log
from support.models import plain_tagged

COMPACTED = [
    "compact-v1-gzip-pass2-k391", "compact-v2-mixed-pass2-k411", "compact-v0-none-pass2-k391", "txn-v2-k411",
    "v0-gzip-ct-k391", "v1-lz4-lat-k282", "v2-zstd-ct-k282",
]


@pytest.fixture
def path(in_memory):
    return in_memory / "mirror" / "orders-0"


def source(name):
    return seglog.open_partition(unpack("kafka") / "cases" / name / f"{name}-0")


def rows(log):
    return [
        (r.timestamp, r.timestamp_type, r.key, r.value, r.headers, batch.is_control)
        for batch in log.batches() for r in batch
    ]


def has_holes(batch):
    offsets = [r.offset for r in batch]
    span = batch.last_offset - (batch.base_offset if batch.magic == 2 else offsets[0]) + 1
    return bool(offsets) and len(offsets) != span


# --- holes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMPACTED)
def test_closed_holes_leave_records_one_behind_the_other(path, name):
    with source(name) as src, open_log(path) as dst:
        dst.append_many([(b"k", b"before")] * 7)
        done = seglog.mirror(src, dst, close_gaps=True)
        kept = rows(dst)[7:]
        assert kept == rows(src)
        assert [r.offset for b in dst.batches(7) for r in b] == list(range(7, 7 + len(kept)))
        assert dst.log_end_offset == 7 + len(kept)
        theirs = [b for b in src.batches() if list(b)]
        holed = [b for b in theirs if has_holes(b)]
        from_v0 = [b for b in theirs if b.magic == 0 and b.codec and not has_holes(b)]
        wrappers = [b for b in theirs if b.magic < 2 and b.codec]
        assert done.rebuilt_batches == len(holed) + len(from_v0)
        assert done.opened_batches == len(wrappers) + sum(b.magic == 2 for b in holed)
        assert done.left_out_batches == len(list(src.batches())) - len(theirs)
        assert done.batches == len(list(src.batches()))
        recompressed = [counter.value for counter in dst.format_counters.append_recompressed_batches]
        assert sum(recompressed) == sum(b.codec > 0 for b in [*holed, *from_v0])
        for mine, other in zip(dst.batches(7), theirs, strict=True):
            assert mine.crc_is_valid()
            assert (mine.magic, mine.codec) == (other.magic, other.codec)
            if not has_holes(other) and (other.magic > 0 or not other.codec):
                assert bytes(mine.payload()) == bytes(other.payload())
            if mine.magic == 2:
                assert mine.last_sequence == other.last_sequence
                assert mine.producer_id == other.producer_id


def test_the_golden_cases_have_holes():
    """Or the test above would close none."""
    counts = []
    for name in ("compact-v1-gzip-pass2-k391", "compact-v2-mixed-pass2-k411"):
        with source(name) as src:
            counts.append(sum(map(has_holes, src.batches())))
    assert min(counts) > 0


def test_holes_between_bare_messages_are_closed_without_a_look_inside(path, in_memory):
    with open_log(in_memory / "orders-0") as src, open_log(path) as dst:
        for offset in (3, 9, 10, 40):
            src.append_batch(
                seglog.build_batch([(b"k", b"%d" % offset)], magic=1, base_offset=offset, timestamp=NOW),
                assign_offsets=False)
        done = seglog.mirror(src, dst, close_gaps=True)
        assert [(r.offset, r.value) for r in dst] == [(0, b"3"), (1, b"9"), (2, b"10"), (3, b"40")]
        assert done.opened_batches == 0


def test_what_is_built_again_and_too_large_is_refused_before_the_write(path, in_memory):
    value = bytes(random.Random(1).choices(b"abc", k=900))
    with open_log(in_memory / "orders-0") as src, open_log(path, max_message_bytes=200) as dst:
        src.append(b"small")
        src.append_batch(seglog.build_batch([(b"k", value)] * 2, magic=0, codec="gzip", timestamp=None))
        with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes = 200") as refused:
            seglog.mirror(src, dst, close_gaps=True)
        assert refused.value.hint.endswith("everything before offset 1 of the source is mirrored")
        assert [r.value for r in dst] == [b"small"]


# --- several targets --------------------------------------------------------------------------------------------


def target_of(key, n):
    return DefaultPartitioner()(key, list(range(n)), list(range(n)))


def filled(path, seed):
    """A log of every format and codec, with and without keys, holes, transactions and their markers."""
    rng = random.Random(seed)
    log = open_log(path, segment_bytes=6000)
    sequence = 0
    for n in range(120):
        magic = rng.randrange(3)
        codec = rng.choice(["none", "gzip", "snappy", "lz4", *(["zstd"] if magic == 2 else [])])
        keyed = rng.choice(["none", "some", "all", "one"])
        records = []
        for i in range(rng.randrange(1, 9)):
            is_bare = keyed == "none" or (keyed == "some" and i % 2)
            key = None if is_bare else b"same" if keyed == "one" else b"k%d" % rng.randrange(30)
            headers = [("h", b"%d" % i)] if magic == 2 and n % 3 == 0 else ()
            time = [NOW - n] if magic else []
            records.append((key, rng.choice([None, b"", b"%d-%d" % (n, i) * 9]), headers, *time))
        if magic == 2 and n % 4 == 0:
            who = {"producer_id": 5, "producer_epoch": 0, "base_sequence": sequence, "transactional": True}
            sequence += len(records)
            log.append_batch(seglog.build_batch(records, codec=codec, **who))
            log.append_batch(seglog.build_batch(
                [end_marker(n % 8 == 0, 0)], control=True, timestamp=NOW, producer_id=5, producer_epoch=0,
                transactional=True))
        else:
            log.append_batch(seglog.build_batch(records, magic=magic, codec=codec))
    return log


def model_of(src, n):
    """What each of n targets gets, in plain Python: (key, value, headers, timestamp), and how often what was done."""
    wanted, counts, turn = [[] for _ in range(n)], {"keyless": 0, "keyed": 0, "split": 0, "markers": 0}, 0
    for batch in src.batches():
        if batch.is_control:
            counts["markers"] += 1
            for records in wanted:
                records.append((batch.producer_id, "marker"))
            continue
        records = [(r.key, r.value, r.headers, r.timestamp) for r in batch]
        to = [turn if r[0] is None else target_of(r[0], n) for r in records]
        for i, record in zip(to, records, strict=True):
            wanted[i].append(record)
        if all(r[0] is None for r in records):
            counts["keyless"] += 1
            turn = (turn + 1) % n
        else:
            counts["keyed"] += 1
            counts["split"] += len(set(to)) > 1
    return wanted, counts


def routed(log):
    return [
        (batch.producer_id, "marker") if batch.is_control else (r.key, r.value, r.headers, r.timestamp)
        for batch in log.batches() for r in batch
    ]


@pytest.mark.parametrize(("seed", "n"), [(1, 1), (2, 2), (3, 3), (4, 7)])
def test_batches_are_routed_as_plain_python_routes_them(in_memory, seed, n):
    with filled(in_memory / "orders-0", seed) as src:
        targets = [open_log(in_memory / "to" / f"orders-{i}") for i in range(n)]
        done = seglog.mirror(src, targets)
        wanted, counts = model_of(src, n)
        assert [routed(log) for log in targets] == wanted
        for log in targets:
            assert all(batch.crc_is_valid() for batch in log.batches())
            assert [r.offset for r in log] == sorted({r.offset for r in log})
        assert (done.keyless_batches, done.keyed_batches) == (counts["keyless"], counts["keyed"])
        from_v0 = sum(b.magic == 0 and b.codec > 0 for b in src.batches())
        assert done.rebuilt_batches >= counts["split"]
        assert done.rebuilt_batches <= counts["split"] + from_v0
        assert done.opened_batches == done.batches - counts["markers"] == counts["keyless"] + counts["keyed"]
        assert done.next_offset == src.log_end_offset
        committed = {r.value for r in src.read(isolation="read_committed")}
        assert {r.value for log in targets for r in log.read(isolation="read_committed")} == committed
        assert committed < {r.value for r in src}
        [log.close() for log in targets]
        for i in range(n):
            assert not seglog.verify(in_memory / "to" / f"orders-{i}", level="deep").findings


def test_whole_batches_keep_their_bytes_and_go_round(in_memory):
    with open_log(in_memory / "orders-0") as src:
        for n in range(9):
            src.append_batch(seglog.build_batch([(None, b"%d" % n * 30)] * 3, codec="lz4", timestamp=NOW))
        targets = [open_log(in_memory / "to" / f"orders-{i}") for i in range(2)]
        assert seglog.mirror(src, targets).batches == 9
        payloads = [bytes(b.payload()) for b in src.batches()]
        assert [bytes(b.payload()) for b in targets[0].batches()] == payloads[::2]
        assert [bytes(b.payload()) for b in targets[1].batches()] == payloads[1::2]
        assert [log.log_end_offset for log in targets] == [15, 12]
        src.append_batch(seglog.build_batch([(None, b"new")], timestamp=NOW))
        seglog.mirror(src, targets, from_offset=27)     # to the one that ends first
        assert [log.log_end_offset for log in targets] == [15, 13]
        [log.close() for log in targets]


def test_targets_with_log_append_time_stamp_what_they_get(in_memory):
    with open_log(in_memory / "orders-0") as src:
        src.append_batch(seglog.build_batch([(b"%d" % n, b"v", (), NOW - 5) for n in range(20)], codec="gzip"))
        src.append_batch(seglog.build_batch([(None, b"v", (), NOW - 5)] * 3, codec="gzip"))
        targets = [
            open_log(in_memory / "to" / f"orders-{i}", message_timestamp_type="LogAppendTime") for i in range(2)]
        seglog.mirror(src, targets)
        assert {(r.timestamp, r.timestamp_type) for log in targets for r in log} == {(NOW, 1)}
        assert sum(len(list(log)) for log in targets) == 23
        [log.close() for log in targets]


def test_damage_ends_routing_with_all_before_it_mirrored(in_memory):
    with open_log(in_memory / "orders-0") as src:
        for n in range(9):
            src.append(b"%d" % n * 50)
        file = src.segments[0].path
    raw = bytearray(file.read_bytes())
    raw[scan(Window(bytes(raw)))[5].position + 70] ^= 1
    file.write_bytes(raw)
    with seglog.open_partition(file.parent) as src:
        targets = [open_log(in_memory / "to" / f"orders-{i}") for i in range(2)]
        with pytest.raises(CorruptRecordError) as damaged:
            seglog.mirror(src, targets)
        assert damaged.value.hint.endswith("everything before offset 5 of the source is mirrored")
        assert sorted(r.value[:1] for log in targets for r in log) == [b"%d" % n for n in range(5)]
        [log.close() for log in targets]


def test_a_piece_that_is_too_large_leaves_nothing_of_its_batch(in_memory):
    rng = random.Random(3)
    with open_log(in_memory / "orders-0") as src:
        src.append(b"first")
        records = [(b"%d" % n, rng.randbytes(60)) for n in range(40)]
        src.append_batch(seglog.build_batch(records, codec="gzip", timestamp=NOW))
        targets = [open_log(in_memory / "to" / f"orders-{i}", max_message_bytes=1000) for i in range(2)]
        with pytest.raises(RecordTooLargeError, match="a piece of a batch that was split by keys"):
            seglog.mirror(src, targets)
        assert [r.value for log in targets for r in log] == [b"first"]
        [log.close() for log in targets]


def test_arguments_that_cannot_be_meant_are_refused(path, in_memory):
    with open_log(in_memory / "orders-0") as src, open_log(path) as dst, open_log(path.parent / "orders-1") as other:
        src.append(b"v")
        with pytest.raises(InvalidArgumentError, match="no target"):
            seglog.mirror(src, [])
        with pytest.raises(InvalidArgumentError, match="dst must be an open log, not PosixPath"):
            seglog.mirror(src, [dst, path])
        with pytest.raises(InvalidArgumentError, match="two targets are the same directory"):
            seglog.mirror(src, [dst, other, dst])
        with pytest.raises(InvalidArgumentError, match="source and target are the same directory"):
            seglog.mirror(src, [dst, src])
        with pytest.raises(InvalidArgumentError, match="cannot be preserved in several targets"):
            seglog.mirror(src, [dst, other], preserve_offsets=True)
        with pytest.raises(InvalidArgumentError, match="cannot be preserved if gaps are closed"):
            seglog.mirror(src, dst, preserve_offsets=True, close_gaps=True)
        assert (dst.log_end_offset, other.log_end_offset) == (0, 0)


# --- messages with tags ---------------------------------------------------------------------------------------------


def tagged_source(path, seed):
    """Messages, and sets with keys in all, some or none; that they have none is said by tag 65, or not."""
    rng = random.Random(seed)
    log = seglog.open(path, config={"seglog.message.dialect": "tagged"}, fsync="never")
    for n in range(100):
        kind, first = rng.choice(["bare", "control", "set", "set", "set"]), log.log_end_offset
        if kind == "control":
            raw = plain_tagged.message(first, b"m", b"", attributes=10, seconds=5)
        else:
            share = rng.choice([0, 0, 0.5, 1])
            count = 1 if kind == "bare" else rng.randrange(1, 9)
            deltas = sorted(rng.sample(range(12), count)) if kind == "set" else [first]
            messages = [
                plain_tagged.message(
                    delta, b"k%d" % rng.randrange(20) if rng.random() < share else None, b"%d" % n, seconds=5,
                    tags=rng.choice([(), [(100, b"unknown")], [(0, NOW + n)]]))
                for delta in deltas
            ]
            raw = messages[0]
            if kind == "set":
                tags = [(7, 1)] if rng.random() < 0.5 else []
                tags += [(32, count), (33, deltas[-1]), (64, 1)] if rng.random() < 0.7 else []
                tags += [(65, int(share == 0))] if rng.random() < 0.6 else []
                raw = plain_tagged.wrapper(first, rng.randrange(1, 5), messages, tags=tags, seconds=6)
        log.append_batch(raw, assign_offsets=False)
    return log


@pytest.mark.parametrize(("seed", "n", "close_gaps"), [(1, 1, False), (2, 2, False), (3, 5, False), (4, 3, True)])
def test_messages_with_tags_are_routed_and_sets_that_say_they_have_no_keys_stay_unopened(
    in_memory, seed, n, close_gaps
):
    with tagged_source(in_memory / "orders-0", seed) as src:
        sets = plain_tagged.parse(b"".join(segment.path.read_bytes() for segment in src.segments))
        wanted, turn, unopened, keyless, keyed, split = [[] for _ in range(n)], 0, 0, 0, 0, 0
        for one in sets:
            parts = plain_tagged.parts_of(one)
            kind = one.attributes & 15
            if kind == 10:
                for records in wanted:
                    records.append(parts[0][1])
                continue
            to = [turn if key is None else target_of(key, n) for _, _, key in parts]
            for i, (_, raw, _) in zip(to, parts, strict=True):
                wanted[i].append(raw)
            if all(key is None for _, _, key in parts):
                keyless += 1
                unopened += bool(kind and one.tags.get(65) and {32, 64} <= one.tags.keys())
                turn = (turn + 1) % n
            else:
                keyed += 1
                split += len(set(to)) > 1
        config = {"seglog.message.dialect": "tagged"}
        targets = [
            seglog.open(in_memory / "to" / f"orders-{i}", config=config, fsync="never") for i in range(n)]
        done = seglog.mirror(src, targets, close_gaps=close_gaps)
        assert (done.keyless_batches, done.keyed_batches) == (keyless, keyed)
        assert done.opened_batches == keyless + keyed - unopened
        assert done.rebuilt_batches > split if close_gaps else done.rebuilt_batches == split
        assert unopened > 5
        for log, messages in zip(targets, wanted, strict=True):
            stored = plain_tagged.parse(b"".join(segment.path.read_bytes() for segment in log.segments))
            found = [part for one in stored for part in plain_tagged.parts_of(one)]
            assert [raw for _, raw, _ in found] == messages
            assert [offset for offset, _, _ in found] == sorted({offset for offset, _, _ in found})
            if close_gaps:
                assert [offset for offset, _, _ in found] == list(range(len(messages)))
            assert all(1 <= one.tags[32] == len(plain_tagged.parts_of(one)) for one in stored if 32 in one.tags)
            assert [r.offset for r in log.read()] == [
                offset for offset, *_ in plain_tagged.records(b"".join(one.raw for one in stored))]
            log.close()
            assert seglog.verify(log.path, level="deep").ok
