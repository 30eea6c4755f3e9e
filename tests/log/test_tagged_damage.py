"""Segments of messages with tags, mutated, with checksums that fit again: read as plain Python reads them, or refused.

Nothing else but an error of seglog's may come, from whatever door: reading, lookups, `verify`, conversion, recovery.
"""
import os
import random
import shutil
import struct
import zlib
from contextlib import suppress
from itertools import pairwise

import pytest

import seglog
from seglog._kernels.batch_filter import BatchFilter
from seglog._kernels.batch_pieces import BatchPieces
from seglog._kernels.key_map import KeyMap
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.clock import ManualClock
from seglog.errors import SeglogError
from seglog.format import names
from seglog.format.compression import compress, decompressor
from seglog.format.tagged import from_tagged, to_tagged
from seglog.segment.batches import checked_records
from seglog.segment.segment import Segment
from support.lookups import offset_at
from support.models import plain_tagged

NOW = 1_700_000_000_000
# `make torture` sets SEGLOG_TORTURE: 100 000 in eight parts; otherwise a twentieth.
FULL = bool(os.environ.get("SEGLOG_TORTURE"))
MUTATIONS = 12_500 if FULL else 5_000
SEEDS = range(17, 25) if FULL else [17]


def messages():
    """Bare ones, wrappers of each codec, control messages, tags that nobody knows."""
    raw, offset = b"", 0
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        records = [(b"k%d" % n, b"v" * n, [("seglog.tag.100", b"any")], NOW + n) for n in range(4)]
        raw += to_tagged(seglog.build_batch(records, codec=codec, base_offset=offset))
        offset += 4
    for kind in (8, 10):
        raw += plain_tagged.message(offset, b"\0\0\0\1", b"\0\0\0\0\0\0", attributes=kind, seconds=NOW // 1000)
        offset += 1
    inner = [plain_tagged.message(n, b"k", b"i%d" % n, seconds=NOW // 1000) for n in (0, 2)]
    return raw + plain_tagged.wrapper(offset, 1, inner, seconds=NOW // 1000)


def positions(raw):
    found, at = [], 0
    while at < len(raw):
        end = at + 12 + struct.unpack_from(">i", raw, at + 8)[0]
        found.append((at, end))
        at = end
    return found


def mutated(raw, places, chance):
    """A copy with a few bytes changed in one or two messages; their checksums fit again."""
    changed = bytearray(raw)
    for at, end in chance.sample(places, chance.choice((1, 1, 2))):
        for _ in range(chance.choice((1, 1, 2, 4))):
            first = at if chance.random() < 0.1 else at + 16
            place = chance.randrange(first, min(end, at + chance.choice((40, 90, 400))))
            flipped = changed[place] ^ 1 << chance.randrange(8)
            changed[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256), flipped))
        struct.pack_into(">I", changed, at + 12, zlib.crc32(changed[at + 16 : end]))
    return bytes(changed)


def by_plain(raw):
    try:
        return [(offset, key, value, timestamp) for offset, timestamp, key, value in plain_tagged.records(raw)]
    except (plain_tagged.Malformed, struct.error, SeglogError):
        return None


def rising(records):
    return all(one[0] < two[0] for one, two in pairwise(records))


@pytest.fixture
def path(in_memory):
    path = in_memory / "data" / "orders-0"
    config = {"seglog.message.dialect": "tagged", "index.interval.bytes": 200}
    with seglog.open(path, clock=ManualClock(NOW), config=config) as log:
        log.append_batch(messages(), assign_offsets=False)
    return path


def compacted(raw):
    """What compaction leaves if it takes them for a segment; None: it refuses them."""
    table = scan(Window(raw, is_tagged=True), check_crc=True, decompress=decompressor())
    keys = KeyMap(1 << 16)
    filtered = BatchFilter(
        keys, latest_offset=2**63 - 1, now_ms=NOW, delete_retention_ms=0, decompress=decompressor(), compress=compress)
    try:
        keys.add_batches(table, with_positions=True)
        filtered.add(table, 0, len(table))
    except SeglogError:
        return None
    return bytes(filtered.take())


def split(raw):
    """(key, value) of all records of the sets, each cut in pieces for three partitions; None: one is refused."""
    table = scan(Window(raw, is_tagged=True), check_crc=True, decompress=decompressor())
    found = []
    for slot, one in enumerate(table):
        if one.codec:
            try:
                pieces = BatchPieces(table, slot)
                made = [
                    pieces.piece(to, 7, lambda codec, payload: compress(codec, 2, payload))
                    for to, count in enumerate(pieces.route(3, 0)) if count
                ]
            except SeglogError:
                return None
            for piece in made:
                records = plain_tagged.records(piece)
                assert [offset for offset, *_ in records] == list(range(7, 7 + len(records)))
                found += [(key, value) for _, _, key, value in records]
    return found


def in_sets(raw):
    return [
        (key, value) for one in plain_tagged.parse(raw) if 1 <= one.attributes & 15 <= 4
        for _, _, key, value in plain_tagged.records(one.raw)
    ]


def last_of(records):
    last = {key: offset for offset, key, _, _ in records}
    return [record for record in records if record[1] is not None and last[record[1]] == record[0]]


def try_other_doors(path, changed, chance):
    if chance.random() < 0.2:
        seglog.verify(path, level="deep")
    for door in (
        lambda p: offset_at(p, NOW + 2), lambda p: p[chance.randrange(30)], lambda p: p.log_end_offset,
        lambda p: list(p.read(isolation="read_committed")), lambda p: list(p.columns()),
    ):
        with seglog.open_partition(path) as partition, suppress(SeglogError):
            door(partition)
    for to in (0, 2):
        with suppress(SeglogError):
            from_tagged(changed, to=to)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_is_changed_is_read_as_by_plain_python_or_refused(path, seed):
    log = names.log_files(path)[0]
    raw = log.read_bytes()
    places, chance = positions(raw), random.Random(seed)
    read = refused = whole = cut = 0
    for number in range(MUTATIONS):
        changed = mutated(raw, places, chance)
        log.write_bytes(changed)
        expected = by_plain(changed)
        segment = Segment(log)
        try:
            found = [
                (r.offset, r.key, r.value, r.timestamp)
                for batch in segment.batches() if not batch.is_control for r in checked_records(batch)
            ]
        except SeglogError:
            refused += 1
        else:
            read += 1
            assert rising(found)
            if expected is not None and rising(expected):
                assert found == expected, number
                left = compacted(changed)
                assert left is None or by_plain(left) == last_of(expected), number
                whole += left is not None
                if number % 10 == 0 and (pieces := split(changed)) is not None:
                    assert sorted(pieces, key=repr) == sorted(in_sets(changed), key=repr), number
                    cut += 1
        finally:
            segment.close()
        if number % 50 == 0:
            try_other_doors(path, changed, chance)
    assert read > MUTATIONS // 20
    assert refused > MUTATIONS // 20
    assert whole > MUTATIONS // 20
    assert cut > MUTATIONS // 200


def test_a_log_that_was_changed_is_recovered_and_goes_on(path, in_memory):
    raw = names.log_files(path)[0].read_bytes()
    places, chance = positions(raw), random.Random(18)
    for number in range(200 if FULL else 10):
        changed = bytearray(mutated(raw, places, chance))
        if number % 2:
            del changed[chance.randrange(len(changed)) :]
        copy = in_memory / f"copy{number}" / "orders-0"
        shutil.copytree(path, copy)
        names.log_files(copy)[0].write_bytes(changed)
        with seglog.open(copy, clock=ManualClock(NOW), config={"seglog.recovery.mode": "quarantine"}) as log:
            end = log.log_end_offset
            assert log.append(b"more") == end
            assert log[end].value == b"more"
        shutil.rmtree(copy.parent)
