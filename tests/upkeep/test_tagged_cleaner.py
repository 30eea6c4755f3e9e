"""Compaction of a log of messages with tags: what stays of sets and of their tags, against a model in plain Python."""
import os

import pytest

import seglog
from seglog._kernels.key_map import KeyMap
from seglog.clock import ManualClock
from seglog.format import names
from seglog.format.tagged import scan_tagged, to_tagged
from seglog.log.log import Log
from seglog.upkeep import cleaning_round
from seglog.upkeep.cleaner import clean
from seglog.upkeep.cleaning_round import CleaningLimits
from seglog.upkeep.compact import compact
from support.models import plain_tagged
from support.models.tagged_author import Author

TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
NOW = 1_700_000_000_000
CONFIG = {
    "seglog.message.dialect": "tagged", "cleanup.policy": "compact", "segment.bytes": 3000, "index.interval.bytes": 200,
}


def opened(path, **config):
    """Not by `seglog.open`: such a log cleans itself in a thread."""
    return Log(path, config=CONFIG | config, fsync="never", clock=ManualClock(NOW))


def stored(path):
    return [one for log in names.log_files(path) for one in plain_tagged.parse(log.read_bytes())]


def model_of(messages, end):
    """What stays: (offset, bytes behind the offset) of each message, and the tags of sets that lose some."""
    last = {}
    for outer in messages:
        if outer.offset < end and outer.attributes & 15 < 8:
            for offset, key in keys_of(outer):
                last[key] = offset
    return [
        (offset, raw) for outer in messages for offset, raw, key in plain_tagged.parts_of(outer)
        if key is None or offset >= end or last[key] == offset
    ]


def keys_of(outer):
    return [(offset, key) for offset, _, key in plain_tagged.parts_of(outer)]


@pytest.mark.parametrize("seed", range(40 if TORTURE else 4))
def test_each_round_leaves_what_the_model_leaves(in_memory, seed):
    """Sets with holes, with and without each tag, unknown tags, control messages, cut by the end of a round."""
    path = in_memory / "orders-0"
    author = Author(seed)
    dedupe = CleaningLimits(dedupe_buffer_bytes=[128 << 20, 500][seed % 2])
    log = opened(path)
    try:
        for round_ in range(3):
            for _ in range(150):
                log.append_batch(author.next(), assign_offsets=False)
            if round_ == 1:
                log.close()
                log = opened(path)
            log.roll()
            before = stored(path)
            done = clean(log, limits=dedupe)
            assert done.outcome == "cleaned"
            assert (done.rounds > 1) == bool(seed % 2)
            after = stored(path)
            left = [part[:2] for outer in after for part in plain_tagged.parts_of(outer)]
            assert left == model_of(before, done.end_offset)
            check_sets(before, after)
            assert [(r.offset, r.key, r.value) for r in log.read()] == [
                (offset, key, value) for offset, _, key, value in records_of(after)]
            for offset, timestamp, key, _ in records_of(after)[::7]:
                assert (log[offset].key, log[offset].timestamp) == (key, timestamp)
            assert log.log_end_offset == author.end
    finally:
        log.close()
    assert seglog.verify(path, level="deep").ok
    with opened(path) as again:
        assert [r.offset for r in again.read()] == [offset for offset, *_ in records_of(after)]


def records_of(messages):
    return plain_tagged.records(b"".join(one.raw for one in messages))


def check_sets(before, after):
    """A set that lost messages begins at the first one left, reaches as far as before, and keeps its own tags."""
    ends = {}
    for outer in before:
        if 1 <= outer.attributes & 15 <= 4:
            ends.update(dict.fromkeys((offset for offset, _ in plain_tagged.opened_set(outer)), outer))
    whole = {outer.raw for outer in before}
    rewritten = [outer for outer in after if outer.raw not in whole]
    assert len(rewritten) > 3
    for outer in rewritten:
        messages = plain_tagged.opened_set(outer)
        origin = ends[outer.offset]
        assert (outer.attributes, outer.seconds) == (origin.attributes, origin.seconds)
        assert outer.offset == messages[0][0]
        old_end = origin.offset + origin.tags[33] if 33 in origin.tags else plain_tagged.opened_set(origin)[-1][0]
        assert outer.offset + outer.tags[33] == old_end
        records = plain_tagged.records(outer.raw)
        assert outer.tags[32] == len(messages)
        assert (outer.tags[64], outer.tags[65]) == (1, 0)
        assert outer.tags[1] == max(timestamp for _, timestamp, _, _ in records)
        own = {0, 7, 40, 66, 90, 100, 127}
        assert {t: v for t, v in outer.tags.items() if t in own} == {t: v for t, v in origin.tags.items() if t in own}


def test_tombstones_go_with_the_segments_that_are_old_enough(in_memory):
    """The format has no place for a delete horizon: as in v0 and v1, it is the time of the file."""
    path = in_memory / "orders-0"
    with opened(path, **{"delete.retention.ms": 1000}) as log:
        for n in range(150):
            log.append(None if n % 3 == 0 else b"%d" % n, key=b"key %d" % n)
        log.roll()
        clean(log)
        assert sum(r.value is None for r in log.read()) == 50
        *others, last = log.segments[:-1]
        assert others
        for age, segment in enumerate(reversed(log.segments[:-1])):
            os.utime(segment.path, (NOW // 1000 - 10 * age, NOW // 1000 - 10 * age))
        log.append(b"later", key=b"another")
        log.roll()
        clean(log)
        left = [r.offset for r in log.read() if r.value is None]
        assert left
        assert all(offset >= last.base_offset for offset in left)


@pytest.mark.parametrize(("exact", "codec", "loses"), [
    ("uncompressed", "none", False), ("true", "none", False), ("true", "lz4", False), ("false", "none", True),
    ("uncompressed", "lz4", True),
])
def test_colliding_keys_lose_nothing_where_keys_are_compared(exact, codec, loses, in_memory, monkeypatch):
    monkeypatch.setattr(cleaning_round, "KeyMap", lambda size, **how: KeyMap(size, **how, identity_bits=3))
    with opened(in_memory / "collide-0", **{"seglog.cleaner.dedupe.exact": exact}) as log:
        for first in range(0, 300, 5):
            some = [(b"key %d" % (n % 40), b"%d" % n + b"v" * 30) for n in range(first, first + 5)]
            log.append_batch(seglog.build_batch(some, codec=codec, timestamp=NOW))
        log.roll()
        before = {r.key: r.value for r in log.read()}
        done = clean(log)
        assert ({r.key: r.value for r in log.read()} != before) == loses
        assert (sum(group.collisions for group in done.groups) > 0) == (not loses)


def test_a_set_that_compaction_cut_short_before_it_was_converted_can_be_compacted(in_memory):
    """A batch of v2 keeps the offsets of what went at its end, and so does the set that it becomes (tag 33)."""
    config = {"cleanup.policy": "compact", "segment.bytes": 300}
    clock = ManualClock(NOW)
    with Log(in_memory / "v2-0", config=config, fsync="never", clock=clock) as log:
        for last in (b"b", b"a"):
            some = [(b"a", b"1"), (last, b"2"), (b"c", b"3")]
            log.append_batch(seglog.build_batch(some, codec="gzip", timestamp=NOW))
        log.roll()
        clean(log)
        raw = b"".join(segment.path.read_bytes() for segment in log.segments)
    messages = bytes(to_tagged(raw))
    first, *_ = scan_tagged(messages)
    assert (first.base_offset, first.last_offset, [r.offset for r in first]) == (1, 2, [1])
    with opened(in_memory / "tagged-0") as log:
        log.append_batch(messages, assign_offsets=False)
        log.append(b"4", key=b"b")
        log.roll()
        clean(log)
        assert [(r.key, r.value) for r in log.read()] == [(b"a", b"2"), (b"c", b"3"), (b"b", b"4")]


def test_the_command_compacts_it_and_proves_it(in_memory):
    path = in_memory / "orders-0"
    with opened(path) as log:
        for n in range(200):
            log.append(b"%d" % n, key=b"key %d" % (n % 9))
        log.roll()
    before = {log.name: log.read_bytes() for log in names.log_files(path)}
    dry = compact(path, config={}, dry_run=True).cleaned
    assert {log.name: log.read_bytes() for log in names.log_files(path)} == before
    done = compact(path, config={}, prove=True)
    assert done.proven_keys == 9
    assert (dry.bytes_before, dry.bytes_after) == (done.cleaned.bytes_before, done.cleaned.bytes_after)
    assert [r.offset for r in seglog.open_partition(path).read()] == list(range(191, 200))
    assert not [file for file in path.iterdir() if file.suffix not in (".tlog", ".tindex")
                and not file.name.startswith((".seglog", "leader-epoch", "partition"))]
    with opened(path) as log, pytest.raises(seglog.errors.InvalidRecordError, match="no key"):
        log.append(b"without a key")
