"""What compaction leaves of a batch: BatchFilter against the same rules in plain Python, on golden segments as they are
and with bytes changed on purpose.
"""
import gzip
import os
import random
import struct
import zlib
from array import array
from itertools import pairwise

import pytest

from seglog import build_batch
from seglog._kernels.batch_filter import BatchFilter
from seglog._kernels.key_map import KeyMap
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.errors import InvalidArgumentError, SeglogError
from seglog.format.compression import compress, decompressor
from support import plain_format as plain
from support.mutations import mend_checksums, mutate

# All of them under `make torture` and `make sanitize`; otherwise a twentieth.
IS_FULL = bool(os.environ.get("SEGLOG_TORTURE") or os.environ.get("SEGLOG_SANITIZE"))
MUTATIONS = 20_000 if IS_FULL else 1_000
MAX_SEGMENT_BYTES = 20_000
LIMIT_BYTES = 1 << 20
RETENTION_MS = 1_000
FLAGS = ("keep_empty", "drop_records", "empty_transaction")
KEPT_BITS = plain.LOG_APPEND_TIME | plain.TRANSACTIONAL | plain.CONTROL | plain.DELETE_HORIZON


# --- the twin ------------------------------------------------------------------------------------


class Rules:
    """What a BatchFilter is told, and what it makes of a batch: None, the same bytes, or (header, records)."""

    def __init__(self, rng, keys, latest_offset, now_ms):
        self.latest_offset, self.now_ms = latest_offset, now_ms
        self.upgrade = rng.random() < 0.4
        self.keeps_legacy_tombstones = rng.random() < 0.5
        self.last = {key: offset + rng.choice([-3, 0, 0, 0, 2]) for key, offset in keys.items() if rng.random() < 0.8}
        self.last = {key: offset for key, offset in self.last.items() if offset >= 0}

    def stays(self, record, keeps_tombstones):
        return record.offset > self.latest_offset or (
            record.key is not None and record.offset >= self.last.get(record.key, -1)
            and (record.value is not None or keeps_tombstones)
        )

    def leaves(self, batch, before, decompress, keep_empty=False, drop_records=False, empty_transaction=False):
        if batch[16] == 2:
            return self._of_v2(batch, decompress, keep_empty, drop_records, empty_transaction)
        return self._of_messages(batch, before, decompress, drop_records)

    def _of_v2(self, batch, decompress, keep_empty, drop_records, empty_transaction):
        base, _, epoch, _, _, attributes, delta, first_time, largest, *producer, count = struct.unpack_from(
            ">qiibIhiqqqhii", batch)
        kept = records = []
        if count and not drop_records:
            records = in_log_order(plain.decode_batch(batch, decompress))
            keeps_tombstones = not attributes & plain.DELETE_HORIZON or self.now_ms < first_time
            kept = [r for r in records if attributes & plain.CONTROL or self.stays(r, keeps_tombstones)]
        if not kept:
            bits = attributes & (KEPT_BITS ^ plain.DELETE_HORIZON)
            return ((2, base, delta, epoch, bits, -1, largest, producer), []) if keep_empty else None
        has_null = any(r.value is None for r in kept)
        gets_horizon = not attributes & plain.DELETE_HORIZON and (has_null or empty_transaction)
        if len(kept) == count and not gets_horizon:
            return batch
        attributes &= KEPT_BITS | 7
        if gets_horizon:
            attributes, first_time = attributes | plain.DELETE_HORIZON, self.now_ms + RETENTION_MS
        elif not attributes & plain.DELETE_HORIZON:
            first_time = kept[0].timestamp
        if not attributes & plain.LOG_APPEND_TIME:
            largest = max(-1, *(r.timestamp for r in kept))
        return (2, base, delta, epoch, attributes, first_time, largest, producer), kept

    def _of_messages(self, batch, before, decompress, drop_records):
        if drop_records:
            return None
        outer, magic, attributes, _ = plain.decode_message(batch, 0, len(batch))
        records = in_log_order(plain.decode_batch(batch, decompress, in_order=False))
        if attributes & 7:
            in_its_place(outer, magic, records, before)
        kept = [r for r in records if self.stays(r, self.keeps_legacy_tombstones)]
        if not kept:
            return None
        bits = attributes & (7 | plain.LOG_APPEND_TIME if magic else 7)
        largest = outer.timestamp if bits & plain.LOG_APPEND_TIME else max(-1, *(r.timestamp for r in kept))
        if self.upgrade:
            if kept[-1].offset - kept[0].offset >= 2**31:
                raise plain.Malformed("a delta of more than 32 bits")
            first_time = kept[0].timestamp
            if any(r.value is None for r in kept):
                bits, first_time = bits | plain.DELETE_HORIZON, self.now_ms + RETENTION_MS
            delta = kept[-1].offset - kept[0].offset
            return (2, kept[0].offset, delta, -1, bits, first_time, largest, [-1, -1, -1]), kept
        if len(kept) == len(records) and (not attributes & 7 or not is_mixed(outer, magic, attributes, decompress)):
            return batch
        return (magic, kept[-1].offset, 0, bits, largest if magic else -1), kept


def in_log_order(records):
    if any(after.offset <= before.offset for before, after in pairwise(records)):
        raise plain.Malformed("offsets do not increase")
    if records and records[0].offset < 0:
        raise plain.Malformed("an offset below 0")
    return records


def in_its_place(outer, magic, records, before):
    """A wrapper's offset, which no checksum covers, is that of its last message; all lie behind the batch before."""
    if records[0].offset <= before:
        raise plain.Malformed("a wrapper that begins in the batch before it")
    if records[-1].offset != outer.offset and not (magic == 1 and outer.offset == 0):
        raise plain.Malformed("a wrapper whose last message has another offset")


def is_mixed(outer, magic, attributes, decompress):
    """Whether a message of a wrapper is of another version than that (KAFKA-4298)."""
    data, at, found = decompress(attributes & 7, magic, outer.value or b""), 0, False
    while at < len(data):
        _, inner, _, at = plain.decode_message(data, at, len(data))
        found |= inner != magic
    return found


def described(batch):
    """(header, records) of a batch that was written, in the twin's terms."""
    assert plain.crc_fits(batch)
    opened = decompressor(LIMIT_BYTES)
    records = plain.decode_batch(batch, lambda *of: bytes(opened(*of)))
    if batch[16] == 2:
        base, _, epoch, _, _, attributes, delta, first_time, largest, *producer, count = struct.unpack_from(
            ">qiibIhiqqqhii", batch)
        assert count == len(records)
        return (2, base, delta, epoch, attributes, first_time, largest, producer), records
    outer, magic, attributes, _ = plain.decode_message(batch, 0, len(batch))
    return (magic, outer.offset, 0, attributes, outer.timestamp), records


# --- golden segments, as they are and changed ----------------------------------------------------


@pytest.fixture(scope="module")
def segments(golden_kafka):
    """(bytes, the last offset of each key, the last offset, times that matter) of golden segments of all kinds."""
    found = []
    paths = [*(golden_kafka / "cases").glob("*/*-0/*.log"), *(golden_kafka / "pairs/compact").glob("*/before/*/*.log")]
    contents = [path.read_bytes() for path in sorted(paths) if 0 < path.stat().st_size <= MAX_SEGMENT_BYTES]
    for data in [*contents, mixed_segment()]:
        table = scan(Window(data), decompress=decompressor(LIMIT_BYTES))
        records = [r for batch in table for r in batch]
        keys = {r.key: r.offset for r in records if r.key is not None}
        times = [time for batch in table for time in around(batch.delete_horizon_ms)]
        if records:
            found.append((data, keys, records[-1].offset, times or around(max(r.timestamp for r in records))))
    assert len(found) > 100
    return found


def around(time):
    return [] if time is None else [time - 1, time]


def mixed_segment():
    """Wrappers of v1 around messages of v0 and of both (KAFKA-4298)."""
    data = b""
    for offset, magics in ((3, (0, 0, 0, 0)), (7, (0, 1, 0, 1)), (11, (1, 1, 1, 0))):
        inner = b"".join(plain.message(n, b"%d" % (offset * n % 5), b"v", magic=m) for n, m in enumerate(magics))
        data += plain.message(offset, None, gzip.compress(inner), attributes=plain.GZIP)
    return data


def spoiler(seed):
    """A decompressor that changes about half of what it opened, each payload always in the same way."""
    opened = decompressor(LIMIT_BYTES)

    def decompress(codec, magic, payload):
        data = bytearray(opened(codec, magic, payload))
        rng = random.Random(zlib.crc32(payload) + seed)
        if data and rng.random() < 0.5:
            for _ in range(rng.randint(1, 3)):
                data[rng.randrange(min(len(data), 300))] = rng.choice([0, 1, 2, 3, 0x7F, 0x80, 0xFF])
        return array("B", data)     # not a byte more than its own: a sanitizer sees the first one read behind it

    return decompress


def filter_of(rules, keys, decompress, **how):
    made = BatchFilter(
        keys, latest_offset=rules.latest_offset, now_ms=rules.now_ms, delete_retention_ms=RETENTION_MS,
        upgrade=rules.upgrade, decompress=decompress, compress=compress, **how,
    )
    made.keeps_legacy_tombstones = rules.keeps_legacy_tombstones
    return made


def hold_against_twin(rng, data, rules, decompress):
    """How many batches were left out, kept as they are, written again, refused."""
    keys = KeyMap(1 << 16)
    for key, offset in rules.last.items():
        keys.put(key, offset)
    table = scan(Window(array("B", data)), decompress=decompress)
    batches = list(plain.split_batches(data))[: len(table)]
    filtered = filter_of(rules, keys, decompress)
    outcomes, plainly = [0, 0, 0, 0], b""
    is_whole = True
    for slot, batch in enumerate(batches):
        flags = {name: rng.random() < 0.2 for name in FLAGS if rng.random() < 0.5}
        before = table[slot - 1].last_offset if slot else -1
        for given in (flags, {}):
            try:
                expected = rules.leaves(batch, before, lambda *of: bytes(decompress(*of)), **given)
            except (plain.Malformed, SeglogError):
                expected = Exception
            try:
                filtered.add_one(table, slot, **given)
                refused = None
            except SeglogError as error:
                refused = error
            with filtered.take() as taken:
                found = bytes(taken)
            story = slot, given, expected, refused, found
            assert (refused is not None) == (expected is Exception), story
            if expected is None or expected is Exception:
                assert found == b"", story
            elif isinstance(expected, bytes):
                assert found == expected, story
            else:
                assert described(found) == expected, story
        is_whole &= expected is not Exception
        plainly += found if is_whole else b""
        outcomes[
            3 if expected is Exception else 0 if expected is None else 1 if isinstance(expected, bytes) else 2
        ] += 1
    # All in one call: what was done before a batch that is refused stays done.
    try:
        filtered.add(table, 0, len(batches))
        assert is_whole
    except SeglogError:
        assert not is_whole
    with filtered.take() as taken:
        assert codecs_aside(bytes(taken)) == codecs_aside(plainly)
    return outcomes


def codecs_aside(data):
    """Codecs that stamp a time, or not the same bytes each time, are no matter here."""
    return [batch if batch[16] < 2 and not batch[17] & 7 else described_or_raw(batch)
            for batch in plain.split_batches(data)]


def described_or_raw(batch):
    try:
        return described(batch)
    except (AssertionError, plain.Malformed, SeglogError):
        return batch        # taken over as it was, damaged in what nobody looked at


def test_golden_segments_are_left_as_plain_python_leaves_them(segments):
    rng, total = random.Random(7), [0, 0, 0, 0]
    for data, keys, last, times in segments:
        for latest in (last, last * 2 // 3, -1):
            rules = Rules(rng, keys, latest, rng.choice(times))
            outcomes = hold_against_twin(rng, data, rules, decompressor(LIMIT_BYTES))
            total = [one + more for one, more in zip(total, outcomes, strict=True)]
    assert min(total[:3]) > 300
    assert total[3] == 0


def test_whatever_the_bytes_say_it_agrees_with_plain_python(segments):
    rng, total = random.Random(20_261_122), [0, 0, 0, 0]
    for n in range(MUTATIONS):
        data, keys, last, times = rng.choice(segments)
        data = mutate(rng, data)
        if rng.random() < 0.7:
            data = mend_checksums(data)
        rules = Rules(rng, keys, rng.choice([last, last // 2, -1, 2**63 - 1]), rng.choice(times))
        decompress = spoiler(n) if rng.random() < 0.5 else decompressor(LIMIT_BYTES)
        try:
            outcomes = hold_against_twin(rng, data, rules, decompress)
        except BaseException:
            print(f"mutation {n}: {data.hex()}")
            raise
        total = [one + more for one, more in zip(total, outcomes, strict=True)]
    assert min(total) > MUTATIONS // 10, total


# --- what a slot of the map points at ------------------------------------------------------------


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_positions_in_bytes_that_were_changed_are_looked_at_within_them(magic):
    """The map is of what was there before: no record goes that would stay where hashes alone are compared."""
    rng = random.Random(magic)
    raw = b"".join(
        build_batch([(b"%d" % (n % 7), b"v%d" % n)], magic=magic, base_offset=n) for n in range(60)
    )
    keys = KeyMap(1 << 16)
    assert keys.add_batches(scan(Window(raw)), with_positions=True) == 60
    compared = 0
    for _ in range(MUTATIONS // 5):
        changed = mutate(rng, raw)
        place = Window(array("B", changed[: rng.choice([len(changed), rng.randrange(len(raw))])]))
        table = scan(Window(raw))
        left = {}
        for exact in (0, 1):
            filtered = BatchFilter(
                keys, latest_offset=59, now_ms=0, delete_retention_ms=0, places=[(0, place)], exact=exact)
            filtered.add(table, 0, len(table))
            with filtered.take() as taken:
                left[exact] = {r.offset for batch in scan(Window(bytes(taken))) for r in batch}
            assert filtered.records_read == 60
            assert filtered.records_kept == len(left[exact]) == 60 - filtered.superseded
        assert left[0] == set(range(53, 60))
        assert left[0] <= left[1]
        assert filtered.collisions == len(left[1] - left[0])
        compared += filtered.collisions > 0
    assert compared > MUTATIONS // 100


def test_what_is_counted_is_why_records_went(segments):
    for data, keys, last, times in segments[::20]:
        rules = Rules(random.Random(last), keys, last, times[0])
        table = scan(Window(data), decompress=decompressor(LIMIT_BYTES))
        filled = KeyMap(1 << 16)
        for key, offset in rules.last.items():
            filled.put(key, offset)
        filtered = filter_of(rules, filled, decompressor(LIMIT_BYTES))
        filtered.add(table, 0, len(table))
        records = [r for batch in table for r in batch if not batch.is_control]
        assert filtered.records_read == sum(len(list(batch)) for batch in table)
        assert filtered.keyless == sum(r.key is None for r in records)
        assert filtered.superseded == sum(r.key is not None and r.offset < rules.last.get(r.key, -1) for r in records)
        went = filtered.keyless + filtered.superseded + filtered.tombstones
        assert filtered.records_kept == filtered.records_read - went


@pytest.mark.parametrize("how", [
    {"exact": 3}, {"exact": -1}, {"exact": 2}, {"places": [(5, Window(b"")), (5, Window(b""))]},
])
def test_settings_that_cannot_be_are_refused(how):
    with pytest.raises(InvalidArgumentError):
        BatchFilter(KeyMap(1024), latest_offset=0, now_ms=0, delete_retention_ms=0, **how)


def test_batches_that_are_not_of_the_table_are_refused():
    table = scan(Window(build_batch([(b"k", b"v")], base_offset=0)))
    filtered = BatchFilter(KeyMap(1024), latest_offset=0, now_ms=0, delete_retention_ms=0)
    for slot in (-1, 1):
        with pytest.raises(InvalidArgumentError):
            filtered.add_one(table, slot)
    for slots in ((0, 2), (-1, 1), (1, 0)):
        with pytest.raises(InvalidArgumentError):
            filtered.add(table, *slots)


# --- erasing -------------------------------------------------------------------------------------------------------


def test_erasing_takes_the_records_of_the_keys_and_no_others_of_golden_and_mutated_batches(segments):
    """Held against the lazy records. What either refuses is no record of the result; a v2 batch stays, if empty."""
    rng = random.Random(11)
    erased = refused = emptied = 0
    for data, found, _, _ in segments[::3]:
        chosen = {key for key in found if rng.random() < 0.4}
        keys = KeyMap(1 << 16)
        for key in chosen:
            keys.put(key, 0)
        for changed in (data, mutate(rng, data)):
            decompress = spoiler(rng.randrange(1000)) if changed is not data else decompressor(LIMIT_BYTES)
            table = scan(Window(array("B", changed)), decompress=decompress)
            filtered = BatchFilter(
                keys, latest_offset=2**63 - 1, now_ms=0, delete_retention_ms=0, erases=True, decompress=decompress,
                compress=compress,
            )
            for slot, batch in enumerate(table):
                before = filtered.superseded
                try:
                    filtered.add_one(table, slot)
                    records = list(batch)
                except SeglogError:
                    refused += 1
                    filtered.take()
                    continue
                with filtered.take() as taken:
                    raw = bytes(taken)
                # (What goes out as it is is opened as it was.)
                opens = decompress if raw == bytes(batch.raw()) else decompressor(LIMIT_BYTES)
                left = list(scan(Window(raw), decompress=opens))
                kept = [r for r in records if batch.is_control or r.key not in chosen]
                assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for made in left for r in made] == [
                    (r.offset, r.timestamp, r.key, r.value, r.headers) for r in kept]
                assert filtered.superseded - before == len(records) - len(kept)
                erased += len(records) - len(kept)
                if batch.magic == 2:
                    made, = left
                    assert (made.base_offset, made.last_offset) == (batch.base_offset, batch.last_offset)
                    emptied += not kept and bool(records)
    assert min(erased, refused, emptied) > 0
