"""Compaction of a log that lives: against a model of its rules, beside cuts and backups, and whatever ends it."""
import errno
import itertools
import os
import random
import shutil
import struct
import threading

import pytest

import seglog
from seglog._kernels.key_map import KeyMap
from seglog.clock import ManualClock
from seglog.errors import CorruptRecordError, InvalidRecordError, LogFailedError, StorageError
from seglog.format import names
from seglog.format.dialect import dialect_of_config
from seglog.fs.files import OsFileSystem
from seglog.log.log import Log
from seglog.segment.batches import SCAN_BYTES
from seglog.upkeep import cleaning_round
from seglog.upkeep.cleaner import clean
from seglog.upkeep.cleaning_round import CleaningLimits
from support.faultfs import FailingFs, RecordingFs
from support.waiting import wait_for

TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
NOW = 1_700_000_000_000
CONFIG = {"cleanup.policy": "compact", "segment.bytes": 4000, "index.interval.bytes": 200}


def opened(path, clock=None, fs=None, **config):
    """Not by `seglog.open`: such a log cleans itself in a thread."""
    return Log(path, config=CONFIG | config, fsync="never", clock=clock or ManualClock(NOW), fs=fs)


def content(log, **how):
    return [(r.offset, r.key, r.value) for r in log.read(**how)]


def strays_in(directory):
    return [path.name for path in directory.iterdir() if path.suffix in (".cleaned", ".swap", ".deleted")]


def last_of(records, end):
    """The model: of each key the last record below `end`, and all from there on."""
    last = {key: offset for offset, key, _ in records if offset < end}
    return [r for r in records if r[0] >= end or last[r[1]] == r[0]]


def filled(log, count=400, keys=20, seed=1):
    rng = random.Random(seed)
    for n in range(count):
        log.append(b"%d." % n + b"v" * rng.randrange(60), key=b"key %d" % rng.randrange(keys))
    return log


# --- the model -----------------------------------------------------------------------------------

MARKER = struct.Struct(">hh"), struct.Struct(">hi")


class Model:
    """What a compacted log holds: records with their batch, and which batches have a delete horizon."""

    def __init__(self, retention_ms):
        self.retention_ms = retention_ms
        self.records = []           # (offset, key, value, first offset of the batch, committed)
        self.horizon_ms = {}        # of a batch

    def clean(self, end, now_ms):
        last = {key: o for o, key, _, _, committed in self.records if o < end and committed}
        kept = []
        for record in self.records:
            offset, key, value, batch, committed = record
            horizon_ms = self.horizon_ms.get(batch)
            if offset >= end:
                kept.append(record)
            elif not committed or offset < last[key] or (
                value is None and horizon_ms is not None and now_ms >= horizon_ms
            ):
                continue
            else:
                kept.append(record)
        self.records = kept
        for offset, _, value, batch, _ in kept:
            if value is None and offset < end:
                self.horizon_ms.setdefault(batch, now_ms + self.retention_ms)

    def visible(self):
        return [(o, key, value) for o, key, value, _, committed in self.records if committed]


class Producer:
    """Writes transactions; several may be open at a time."""

    def __init__(self, log, model, producer_id):
        self.log, self.model, self.producer_id = log, model, producer_id
        self.sequence = 0
        self.offsets = []

    def write(self, records, now_ms, codec):
        raw = seglog.build_batch(
            records, producer_id=self.producer_id, producer_epoch=0, base_sequence=self.sequence, transactional=True,
            timestamp=now_ms, codec=codec,
        )
        first = self.log.append_batch(raw).first_offset
        self.sequence += len(records)
        self.offsets.append((first, records))

    def end(self, commits, now_ms):
        marker = seglog.build_batch(
            [(MARKER[0].pack(0, int(commits)), MARKER[1].pack(0, 0))], producer_id=self.producer_id, producer_epoch=0,
            transactional=True, control=True, timestamp=now_ms,
        )
        self.log.append_batch(marker)
        for first, records in self.offsets:
            for n, (key, value) in enumerate(records):
                self.model.records.append((first + n, key, value, first, commits))
        self.offsets = []


@pytest.mark.parametrize("dedupe_bytes", [64 << 20, 1_000_000 if TORTURE else 20_000], ids=["one map", "several"])
def test_three_rounds_leave_what_the_model_leaves(dedupe_bytes, in_memory):
    """Zipf's keys, tombstones, transactions committed and aborted, codecs, an advancing clock."""
    count, keys = (1_000_000, 100_000) if TORTURE else (20_000, 2_000)
    clock, rng = ManualClock(NOW), random.Random(9)
    model = Model(retention_ms=5_000)
    with opened(
        in_memory / "zipf-0", clock, **{"segment.bytes": count * 8, "delete.retention.ms": model.retention_ms}
    ) as log:
        producers = [Producer(log, model, 1000 + n) for n in range(4)]

        def key():
            """Of rank r as often as r ** -0.8: Zipf's law drawn by its inverse."""
            return b"%d" % (1 + rng.random() * (keys**0.2 - 1)) ** 5

        for _ in range(3):
            while log.log_end_offset < count:
                some = [(key(), None if rng.random() < 0.1 else rng.randbytes(rng.randrange(30)))
                        for _ in range(rng.randrange(1, 40))]
                codec = rng.choice(["none", "none", "lz4", "gzip"])
                if rng.random() < 0.4:
                    producer = rng.choice(producers)
                    producer.write(some, clock.now_ms(), codec)
                    if rng.random() < 0.5:
                        producer.end(rng.random() < 0.7, clock.now_ms())
                else:
                    first = log.append_batch(
                        seglog.build_batch(some, timestamp=clock.now_ms(), codec=codec)
                    ).first_offset
                    model.records += [(first + n, k, v, first, True) for n, (k, v) in enumerate(some)]
            for producer in producers:
                if producer.offsets:
                    producer.end(True, clock.now_ms())
            model.records.sort()
            log.roll()
            assert len({record[1] for record in model.records}) > 0.9 * keys
            done = clean(log, limits=CleaningLimits(dedupe_buffer_bytes=dedupe_bytes))
            assert done.outcome == "cleaned"
            assert (done.rounds > 1) == (dedupe_bytes < 64 << 20)
            assert done.end_offset == log.segments[-1].base_offset
            model.clean(done.end_offset, clock.now_ms())
            found = content(log, isolation="read_committed")
            assert found == model.visible()
            count += count // 3
            clock.advance(4_000)
    with opened(in_memory / "zipf-0", clock) as log:
        assert content(log, isolation="read_committed") == model.visible()


# --- beside others -------------------------------------------------------------------------------


class Meanwhile:
    """Does something once, after so many bytes were read: a throttle."""

    def __init__(self, deed, after=1):
        self.deed, self.left = deed, after

    def __call__(self, _):
        self.left -= 1
        if self.left == 0:
            self.deed()


@pytest.mark.parametrize(("step", "is_first_exchanged"), [
    (-5, False), (-1, False), (0, False), (1, False), (2, True), (4, True),
])
def test_a_cut_meanwhile_takes_nothing_with_it_that_the_map_knew_from_behind_it(step, is_first_exchanged, in_memory):
    """The map had later offsets of keys; where those are gone, the earlier records are the last ones.

    `step`: the segments that were read when the cut comes, less those that the map was made of. What was exchanged
    before the cut was cleaned of what the log held then, as by a compaction that was over: the rare key's first record.
    """
    with opened(in_memory / "cut-0") as log:
        log.append(b"early", key=b"rare")
        filled(log)
        end = log.append(b"late", key=b"rare") - 5
        filled(log, count=120, seed=2)
        before = content(log)
        assert end < log.segments[-2].base_offset
        step += len(log.segments) - 1
        done = clean(log, throttle=Meanwhile(lambda: log.truncate_to(end), step))
        assert (done.outcome, log.log_end_offset) == ("changed", end)
        assert not list(log.path.glob("*.cleaned"))
        rest = [r for r in before if r[0] < end]
        if is_first_exchanged:
            assert rest.pop(0) == (0, b"rare", b"early")
        assert {k: (o, v) for o, k, v in content(log)} == {k: (o, v) for o, k, v in rest}
        clean(log)
        assert content(log) == last_of(rest, log.cleaner_offset)


def test_deleted_records_meanwhile_stay_deleted(in_memory):
    with filled(opened(in_memory / "deleted-0")) as log:
        before = content(log)
        start = log.segments[2].base_offset + 3
        done = clean(log, throttle=Meanwhile(lambda: log.delete_records(start), len(log.segments) + 2))
        found = content(log)
        assert log.log_start_offset == start
        assert {k: (o, v) for o, k, v in found} == {k: (o, v) for o, k, v in before if o >= start}
        assert clean(log).outcome in ("cleaned", "nothing"), done
        assert content(log) == last_of([r for r in before if r[0] >= start], log.cleaner_offset)


def test_a_hot_backup_meanwhile_is_whole(in_memory):
    with filled(opened(in_memory / "live-0")) as log:
        before = content(log)
        clean(log, throttle=Meanwhile(lambda: log.snapshot(in_memory / "backup-0"), len(log.segments) + 3))
        after = content(log)
    with opened(in_memory / "backup-0") as backup:
        assert {k: (o, v) for o, k, v in content(backup)} == {k: (o, v) for o, k, v in before}
    assert len(after) < len(before)


def test_appends_reads_and_backups_go_on_beside_it(in_memory):
    """No reader misses the last value of a key, however often the log is compacted under it."""
    failures, stop = [], threading.Event()
    seconds = 60 if TORTURE else 2
    with opened(in_memory / "busy-0", **{"segment.bytes": 20_000, "min.cleanable.dirty.ratio": 0.0}) as log:
        filled(log, 200)
        known = {}

        def write():
            for n in itertools.count():
                if stop.is_set():
                    return
                key = b"key %d" % (n * 7919 % 50)
                known[key] = (log.append(b"%d" % n, key=key), b"%d" % n)

        def read():
            while not stop.is_set():
                wanted = dict(known)
                found = {k: (o, v) for o, k, v in content(log)}
                for key, (offset, value) in wanted.items():
                    if found.get(key, (-1,))[0] < offset or (found[key][0] == offset and found[key][1] != value):
                        failures.append((key, offset, found.get(key)))

        def compact():
            while not stop.is_set():
                clean(log)

        def guarded(what):
            try:
                what()
            except BaseException as error:
                failures.append(repr(error))
                raise

        threads = [threading.Thread(target=guarded, args=(what,)) for what in (write, read, read, compact)]
        for thread in threads:
            thread.start()
        for n in range(seconds):
            stop.wait(1)
            log.snapshot(in_memory / f"backup{n}-0")
        wait_for(lambda: log.cleaner_offset > 0 or failures)
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures, failures[:3]
        assert log.cleaner_offset > 0


def test_two_calls_at_a_time_take_turns(in_memory):
    with filled(opened(in_memory / "twice-0")) as log:
        before = content(log)
        begun, others = threading.Event(), []

        def second():
            begun.set()
            others.append(clean(log))

        thread = threading.Thread(target=second)
        done = clean(log, throttle=Meanwhile(lambda: (thread.start(), begun.wait()), 3))
        thread.join()
        assert (done.outcome, [other.outcome for other in others]) == ("cleaned", ["nothing"])
        assert content(log) == last_of(before, done.end_offset)


@pytest.mark.parametrize("merge_bytes", [0, 2000])
def test_the_throttle_hears_of_all_that_is_read_and_written(merge_bytes, in_memory):
    """Read twice, for the map and for what stays; written once."""
    with filled(opened(in_memory / "paced-0", **{"seglog.compaction.merge.bytes": merge_bytes}), keys=300) as log:
        paid = []
        done = clean(log, throttle=paid.append)
        assert done.bytes_after > done.bytes_before / 5
        assert sum(paid) == 2 * done.bytes_before + done.bytes_after


def test_a_round_that_fills_its_map_has_it_whole_from_the_beginning(in_memory, monkeypatch):
    """A map that grew shortly before it is full would take twice its bound, the old one and the new one."""
    made = []

    def new(size_bytes, **how):
        keys = KeyMap(size_bytes, **how)
        made.append((keys, keys.nbytes, size_bytes))
        return keys

    monkeypatch.setattr(cleaning_round, "KeyMap", new)
    with opened(in_memory / "many-0", **{"segment.bytes": 100_000}) as log:
        for n in range(5000):
            log.append(b"v", key=b"%d" % n)
        log.roll()
        assert clean(log, limits=CleaningLimits(dedupe_buffer_bytes=40_000)).rounds > 2
    assert all(keys.nbytes == at_first <= bound for keys, at_first, bound in made)
    assert sum(keys.is_full for keys, _, _ in made) > 1


def test_it_stops_when_asked_and_leaves_nothing(in_memory):
    with filled(opened(in_memory / "stopped-0")) as log:
        before = content(log)
        asked = itertools.count()
        done = clean(log, should_stop=lambda: next(asked) > len(log.segments) + 2)
        assert done.outcome == "stopped"
        assert not list(log.path.glob("*.cleaned"))
        assert {k: o for o, k, _ in content(log)} == {k: o for o, k, _ in before}
        assert clean(log).outcome == "cleaned"
        assert content(log) == last_of(before, log.cleaner_offset)


# --- a crash -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["kafka", "tagged"])
def test_a_crash_at_any_point_loses_nothing_and_leaves_no_stray_file(in_memory, dialect):
    config = {"seglog.message.dialect": dialect}
    record = RecordingFs(in_memory)
    with filled(opened(in_memory / "crash-0", fs=record, **config), count=150 if TORTURE else 70, keys=9) as log:
        log.flush()
        before = content(log)
        record.mark("begun")
        done = clean(log)
        after = content(log)
        record.mark("done")
    assert after == last_of(before, done.end_offset) != before
    last = {key: (offset, value) for offset, key, value in before}
    seen = set()
    for state in record.crash_states(limit=6000 if TORTURE else 250, seed=3):
        if "begun" not in state.marks:
            continue
        with state.materialise() as disk:
            with opened(disk / "crash-0", **config) as again:
                found = content(again)
                assert {key: (offset, value) for offset, key, value in found} == last, state.story()
                assert set(after) <= set(found) <= set(before), state.story()
                assert found == after or "done" not in state.marks, state.story()
                clean(again)
                assert content(again) == last_of(before, again.cleaner_offset), state.story()
            assert not strays_in(disk / "crash-0"), state.story()
            assert {log.suffix for log in names.log_files(disk / "crash-0")} == {dialect_of_config(again.config).log}
        seen.add(len(found))
    assert {len(before), len(after)} <= seen


@pytest.mark.parametrize(
    "config", [{}, {"seglog.compaction.merge.bytes": 2000}, {"seglog.message.dialect": "tagged"}], ids=str)
def test_a_disk_that_refuses_any_step_is_what_is_raised_and_a_well_one_is_cleaned(config, in_memory):
    """Once, or from then on until it is well again: nothing must be opened again for it, and nothing is left over."""
    with filled(opened(in_memory / "begun" / "full-0", **config), count=60, keys=9) as log:
        last = {key: (offset, value) for offset, key, value in content(log)}
    fail_at, step = 0, 1 if TORTURE else 4
    while True:
        directory = in_memory / str(fail_at)
        shutil.copytree(in_memory / "begun", directory)
        fs = FailingFs(OsFileSystem())
        log = opened(directory / "full-0", fs=fs, **config)
        fs.fail(len(fs.calls) + fail_at, random.Random(fail_at).choice([errno.ENOSPC, errno.EIO]), once=fail_at % 8 > 3)
        refused = None
        try:
            clean(log)
        except StorageError as error:
            refused = error
        is_over = not fs.failed
        fs.heal()
        if is_over:
            log.close()
            break
        assert {key: (offset, value) for offset, key, value in content(log)} == last
        if log.stats().failure is None:
            clean(log)
            assert content(log) == last_of(content(log), log.cleaner_offset)
            log.close()
            assert not strays_in(log.path)
        else:
            assert refused is not None
            with pytest.raises(LogFailedError):
                clean(log)
            log.close()
        with opened(directory / "full-0", **config) as again:
            assert {key: (offset, value) for offset, key, value in content(again)} == last
            assert not strays_in(again.path)
        fail_at += step
    assert fail_at > 8 * step


# --- damage --------------------------------------------------------------------------------------


def test_damage_stops_it_before_anything_goes(in_memory):
    with filled(opened(in_memory / "damaged-0")) as log:
        paths = [segment.path for segment in log.segments]
    raw = bytearray(paths[3].read_bytes())
    raw[-1] ^= 1
    paths[3].write_bytes(raw)
    before = {path: path.read_bytes() for path in paths}
    with opened(in_memory / "damaged-0") as log:
        with pytest.raises(CorruptRecordError, match="checksum"):
            clean(log)
        assert {path: path.read_bytes() for path in paths} == before
        assert log.cleaner_offset is None
        assert not list(log.path.glob("*.cleaned"))


@pytest.mark.parametrize(("magic", "moved"), [(0, 12), (0, 25), (1, 15)])
@pytest.mark.parametrize("begins_a_table", [False, True])
def test_a_wrapper_at_a_wrong_offset_stops_it_before_anything_goes(magic, moved, begins_a_table, in_memory):
    """No checksum covers the offset. Of the v1 wrapper moved to 6..15 the later values of keys would go."""
    value = os.urandom(SCAN_BYTES) if begins_a_table else b"v"
    wrappers = [
        seglog.build_batch(
            [(b"%d" % ((n + 9) % 10), value if n == 0 else b"v") for n in range(10)], magic=magic, codec="gzip",
            base_offset=first, timestamp=NOW if magic else None,
        )
        for first in (0, 10, 30)
    ]
    with opened(in_memory / "moved-0", **{"segment.bytes": 4 << 20}) as log:
        for raw in wrappers:
            log.append_batch(raw, assign_offsets=False)
        log.roll()
        path = log.segments[0].path
    raw = bytearray(path.read_bytes())
    struct.pack_into(">q", raw, len(wrappers[0]), moved)
    path.write_bytes(raw)
    with opened(path.parent) as log:
        with pytest.raises(CorruptRecordError, match="offset") as refused:
            clean(log)
        assert refused.value.position == len(wrappers[0])
        assert path.read_bytes() == raw
        assert log.cleaner_offset is None


def test_records_without_a_key_go_only_if_that_is_wanted(in_memory):
    with opened(in_memory / "keyless-0", **{"cleanup.policy": "delete"}) as log:
        for n in range(200):
            log.append(b"v" * 50, key=b"k" if n % 50 else None)
        with pytest.raises(InvalidRecordError, match="without a key"):
            clean(log, limits=CleaningLimits(keyless_go=False))
        done = clean(log)
        assert sum(group.keyless for group in done.groups) > 0


# --- two keys with one hash ----------------------------------------------------------------------


@pytest.mark.parametrize(("exact", "codec", "loses"), [
    ("uncompressed", "none", False), ("true", "none", False), ("true", "lz4", False), ("true", "gzip", False),
    ("false", "none", True), ("uncompressed", "lz4", True),
])
@pytest.mark.parametrize("magic", [2, 1])
def test_colliding_keys_lose_nothing_where_keys_are_compared(exact, codec, loses, magic, in_memory, monkeypatch):
    monkeypatch.setattr(cleaning_round, "KeyMap", lambda size, **how: KeyMap(size, **how, identity_bits=3))
    directory = in_memory / "collide-0"
    with opened(directory, **{"seglog.cleaner.dedupe.exact": exact}) as log:
        for first in range(0, 300, 5):
            some = [(b"key %d" % (n % 40), b"%d" % n + b"v" * 30) for n in range(first, first + 5)]
            raw = seglog.build_batch(some, magic=magic, codec=codec, base_offset=first, timestamp=NOW)
            log.append_batch(raw, assign_offsets=False)
        log.roll()
        before = content(log)
        done = clean(log)
        found = {key: value for _, key, value in content(log)}
        assert (found != {key: value for _, key, value in before}) == loses
        assert (sum(group.collisions for group in done.groups) > 0) == (not loses)
