"""Merging holds no more than a segment of each source."""
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from seglog._kernels.due_rows import DueRows
from seglog._kernels.pending_set import PendingSet
from seglog.delayed.bucket import Bucket, SegmentTimes
from seglog.delayed.merge import merged_rows, pulsars_choice, select_for_merge
from seglog.delayed.snapshot import SnapshotEncoder, encode_snapshot

times = st.lists(st.integers(0, 30), max_size=40)


def bucket_of(number, rows, most):
    """A stored bucket of sorted rows in segments of `most`."""
    bucket = Bucket(number, number, number, snapshot_id=number)
    segments = [rows[first : first + most] for first in range(0, len(rows), most)]
    bucket.segments = [(segment[0][0], segment[-1][0]) for segment in segments]
    return bucket, segments


def due_rows(rows):
    found = DueRows()
    for row in rows:
        found.append(*row)
    return found


@given(st.lists(times, min_size=2, max_size=4), st.integers(1, 7))
def test_the_rows_of_all_sources_come_in_order(sources, most):
    made = [bucket_of(n, sorted((at, n, e) for e, at in enumerate(ats)), most) for n, ats in enumerate(sources)]
    held = {bucket.number: segments for bucket, segments in made}
    got = [
        row
        for chunk in merged_rows([b for b, _ in made], lambda b, slot: (due_rows(held[b.number][slot]), slot + 1))
        for row in chunk
    ]
    assert got == sorted((at, n, e) for n, ats in enumerate(sources) for e, at in enumerate(ats))


@given(times, st.integers(1, 9), st.integers(1, 9), st.sampled_from([-1, 1, 5]), st.randoms(use_true_random=False))
def test_a_snapshot_of_chunks_is_that_of_all_rows_at_once(ats, entries, step, most, chance):
    rows = sorted((at, chance.randrange(5), chance.randrange(entries)) for at in ats)
    whole = encode_snapshot(due_rows(rows), time_step_ms=step, max_indexes=most)
    encoder = SnapshotEncoder(time_step_ms=step, max_indexes=most)
    cuts = sorted(chance.randrange(len(rows) + 1) for _ in range(3))
    parts = [due_rows(rows[a:b]) for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    assert list(encoder.segments(parts)) == whole.segments
    assert encoder.metadata.entries() == whole.metadata
    assert [*encoder.times] == [*whole.times]


def bucket(number, remaining, next_at, size_bytes=0, is_merged=False, segments=3):
    """A stored bucket as selecting looks at it. Its first segment was delivered in part; the others begin at `next_at`,
    and each ten later."""
    times = [0, 0] + [at for slot in range(segments - 1) for at in (next_at + 10 * slot, next_at + 10 * slot + 9)]
    found = Bucket(
        number, number, number, snapshot_id=number, size_bytes=size_bytes, is_merged=is_merged,
        segments=SegmentTimes(times), loaded=1,
    )
    found.pending = PendingSet(BitMap)
    found.pending.adopt(number, BitMap(range(remaining)))
    return found


def selected(buckets, fan_in):
    return [found.number for found in select_for_merge(buckets, fan_in, delivered_to=-1)]


def test_of_groups_of_about_one_size_a_later_one_is_taken_when_it_is_due_before():
    buckets = [bucket(n, remaining, at) for n, (remaining, at) in enumerate([(9, 50), (8, 60), (7, 40), (9, 70)])]
    assert selected(buckets, 2) == [1, 2]
    assert selected(buckets, 3) == [0, 1, 2]


def test_the_time_that_counts_is_that_of_the_segment_behind_the_next_one():
    """Pulsar's firstScheduleTimestamps.get(current + 1)."""
    buckets = [bucket(n, 5, 40) for n in range(4)]
    buckets[3].segments = SegmentTimes([0, 0, 41, 42, 43, 45])
    assert selected(buckets, 2) == [2, 3]       # 43 there, 50 in all others
    buckets[3].segments = SegmentTimes([0, 0, 20, 25, 55, 60])
    assert selected(buckets, 2) == [0, 1]


def test_where_the_code_of_pulsar_fails_the_smallest_group_is_taken():
    few = [bucket(n, remaining, 10 * n) for n, remaining in enumerate([5, 4, 3])]
    with pytest.raises(LookupError):
        pulsars_choice(few, 4, -1)
    assert selected(few, 4) == [0, 1, 2]
    short = [bucket(n, remaining, 10 * n, segments=2) for n, remaining in enumerate([5, 4, 3, 3, 9])]
    with pytest.raises(LookupError):
        pulsars_choice(short, 4, -1)
    assert selected(short, 4) == [0, 1, 2, 3]


def test_large_buckets_that_were_merged_are_not_merged_again_before_small_ones_although_they_are_due_first():
    large = [(900, 1), (900, 2)]
    buckets = [bucket(n, remaining, at) for n, (remaining, at) in enumerate([*large, (10, 3), (10, 4)])]
    assert selected(buckets, 2) == [0, 1]       # as Pulsar
    for found in buckets[:2]:
        found.is_merged = True
    assert selected(buckets, 2) == [2, 3]


def test_what_would_not_fit_a_ledger_is_not_merged():
    buckets = [bucket(n, 10, n, size_bytes=1 << 30) for n in range(4)]
    assert selected(buckets, 4) == []
    buckets[3].size_bytes = 1 << 20
    assert selected(buckets, 4) == [2, 3]


def test_a_merge_reads_a_segment_when_it_is_needed():
    chance = random.Random(3)
    made = [
        bucket_of(n, sorted((chance.randrange(10**6), n, e) for e in range(1000)), 50) for n in range(4)
    ]
    held = {bucket.number: segments for bucket, segments in made}
    read, given_out, most = 0, 0, 0

    def read_rows(bucket, slot):
        nonlocal read
        read += 50
        return due_rows(held[bucket.number][slot]), slot + 1

    for chunk in merged_rows([b for b, _ in made], read_rows):
        most = max(most, read - given_out)
        given_out += len(chunk)
    assert given_out == 4000
    assert most <= 4 * 50
