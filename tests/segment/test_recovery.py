"""What a check says of a segment: whole batches and damage, in order, and the indexes of what lies before it."""
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog._kernels.crc import crc32c
from seglog.config import LogConfig
from seglog.format.batch import build_batch
from seglog.segment.recovery import GOES_BACK, JUMPS_AHEAD, TOO_FAR, check_segment, check_segments
from support.plain_format import split_batches

MAX_OFFSET = 2**63 - 1
CONFIG = LogConfig.of({"index.interval.bytes": 100})
HEADER_SIZE, BASE_OFFSET, SIZE_FIELD, MAGIC, CRC_FIELD = 61, slice(0, 8), slice(8, 12), 16, 17


def batch(offset, count=2, value=b"value", **more):
    records = [(b"k", value) for _ in range(count)]
    return bytearray(build_batch(records, base_offset=offset, timestamp=1000 + offset, **more))


def batches(*offsets, **more):
    return [batch(offset, **more) for offset in offsets]


@pytest.fixture
def check(tmp_path):
    def write_and_check(parts, *, base_offset=0, end_offset=MAX_OFFSET, config=CONFIG):
        path = tmp_path / f"{base_offset:020d}.log"
        path.write_bytes(b"".join(parts))
        return check_segment(path, base_offset, end_offset, config)

    return write_and_check


def covers_all(found):
    """Runs and damage lie side by side, from the first byte to the last."""
    position = 0
    for part in sorted([*found.runs, *found.damages], key=lambda part: part.start):
        assert part.start == position
        assert part.stop > position
        position = part.stop
    return position == found.size_bytes


# --- a whole segment ---------------------------------------------------------------------------


def test_an_empty_segment_is_whole(check):
    found = check([])
    assert (found.runs, found.damages, found.next_offset, found.sound_bytes) == ((), (), 0, 0)
    assert (found.offset_index, found.time_index) == (b"", b"")


def test_a_whole_segment_is_one_run(check):
    parts = batches(0, 2, 4, 10)
    found = check(parts)
    assert [(run.start, run.stop, run.next_offset) for run in found.runs] == [(0, sum(map(len, parts)), 12)]
    assert not found.damages
    assert not found.has_run_behind_damage
    assert not found.has_producers


def test_leader_epochs_are_told_with_the_offset_at_which_they_begin(check):
    parts = [batch(offset, leader_epoch=epoch) for offset, epoch in ((0, 1), (2, 1), (4, 3), (6, 2), (8, 7))]
    assert check(parts).epochs == ((1, 0), (3, 4), (7, 8))


def test_producers_are_told(check):
    assert check([batch(0), batch(2, producer_id=5, producer_epoch=0, base_sequence=0)]).has_producers


def test_the_golden_indexes_are_those_that_the_check_makes(golden_kafka, tmp_path):
    config = LogConfig.of({"index.interval.bytes": 256})
    for case in ("v2-none-ct-k411", "v1-none-ct-k391", "v0-none-ct-k391"):
        for log in sorted((golden_kafka / f"cases/{case}/{case}-0").glob("*.log")):
            found = check_segment(log, int(log.stem), MAX_OFFSET, config)
            assert found.offset_index == log.with_suffix(".index").read_bytes()
            assert found.time_index == log.with_suffix(".timeindex").read_bytes()


def test_several_segments_are_checked_together_and_told_in_order(golden_kafka):
    for threads in (1, 2, 8):
        config = LogConfig.of({"num.recovery.threads.per.data.dir": threads})
        logs = sorted((golden_kafka / "cases/txn-v2-k391/txn-v2-k391-0").glob("*.log"))
        found = check_segments([(log, int(log.stem), MAX_OFFSET) for log in logs], config)
        assert [one.path for one in found] == logs
        assert found == [check_segment(log, int(log.stem), MAX_OFFSET, config) for log in logs]


# --- damage ------------------------------------------------------------------------------------


def test_a_bad_checksum_costs_its_batch_alone(check):
    parts = batches(0, 2, 4)
    parts[1][-1] ^= 1
    found = check(parts)
    assert [(d.start, d.stop) for d in found.damages] == [(len(parts[0]), len(parts[0]) + len(parts[1]))]
    assert (found.damages[0].first_offset, found.damages[0].last_offset) == (2, 3)
    assert found.damages[0].is_misplaced is False
    assert found.has_run_behind_damage
    assert found.next_offset == 6
    assert covers_all(found)


@pytest.mark.parametrize("size", [0, 1, 48, 49, 50, -1, -12, 2**31 - 1, -(2**31)])
def test_a_wrong_size_costs_its_batch_alone(check, size):
    parts = batches(0, 2, 4)
    parts[1][SIZE_FIELD] = size.to_bytes(4, "big", signed=True)
    found = check(parts)
    assert [(d.first_offset, d.last_offset) for d in found.damages] == [(2, 3)]
    assert covers_all(found)


@pytest.mark.parametrize("jumped", [7, 6, 1000])
def test_the_last_batch_of_a_segment_may_not_reach_into_the_next(check, jumped):
    """Red: a recovery kept it, and every reader stopped there."""
    parts = batches(0, 2, 4)
    parts[2][BASE_OFFSET] = jumped.to_bytes(8, "big")
    found = check(parts, end_offset=6)
    damage, = found.damages
    assert (damage.first_offset, damage.last_offset, damage.reason) == (4, 5, JUMPS_AHEAD)
    assert (found.next_offset, damage.is_misplaced) == (4, True)
    assert covers_all(found)
    assert not check(batches(0, 2, 4), end_offset=6).damages


def test_a_tail_has_no_run_behind_it(check):
    parts = batches(0, 2, 4)
    # The header of a batch that is cut short says its last offset, if it is there.
    for tail, last_offset in (
        (parts[2][:-1], 5), (parts[2][:27], 5), (parts[2][:26], -1), (parts[2][:11], -1), (bytes(5000), -1),
        (b"garbage" * 10, -1),
    ):
        found = check([*parts[:2], tail])
        assert not found.has_run_behind_damage
        assert (found.next_offset, found.sound_bytes) == (4, len(parts[0]) + len(parts[1]))
        assert found.damages[0].last_offset == last_offset


def test_the_indexes_are_those_of_what_lies_before_the_damage(check):
    parts = batches(*range(0, 40, 2), count=2, value=b"x" * 50)
    whole = check(parts[:10])
    parts[10][-1] ^= 1
    found = check(parts)
    assert len(whole.offset_index) > 8
    assert (found.offset_index, found.time_index) == (whole.offset_index, whole.time_index)


def test_whole_batches_inside_a_record_of_a_damaged_batch_are_no_batches_of_this_log(check):
    mirrored = bytes(batch(1000)) + bytes(batch(2, value=b"not ours"))
    parts = [batch(0), batch(2, value=mirrored), batch(4)]
    parts[1][HEADER_SIZE + 1] ^= 0x40
    found = check(parts)
    assert [(d.start, d.stop) for d in found.damages] == [(len(parts[0]), len(parts[0]) + len(parts[1]))]


def test_behind_damage_no_batch_of_the_next_segment_s_offsets_is_believed(check):
    parts = [batch(0), bytearray(b"\xff" * 40), batch(5000)]
    assert check(parts).next_offset == 5002
    assert check(parts, end_offset=4000).next_offset == 2


def test_batches_that_hold_one_another_cost_a_bounded_search(check):
    # Each is whole, and none may follow: the search tries one inside the other.
    inner = bytes(batch(2**31 + 5))
    for _ in range(300):
        inner = bytes(batch(2**31 + 5, count=1, value=inner))
    found = check([batch(0), b"\xff" * 20, inner])
    assert found.next_offset == 2
    assert covers_all(found)


# --- batches in the wrong place ----------------------------------------------------------------


def moved(raw, offset):
    raw[BASE_OFFSET] = offset.to_bytes(8, "big")        # no checksum covers it
    return raw


def test_a_batch_that_goes_back_is_misplaced(check):
    parts = batches(10, 12, 14, 16)
    moved(parts[2], 3)
    found = check(parts)
    (damage,) = found.damages
    assert (damage.reason, damage.is_misplaced) == (GOES_BACK, True)
    assert (damage.first_offset, damage.last_offset) == (14, 15)
    assert found.next_offset == 18
    assert covers_all(found)


@pytest.mark.parametrize("behind", [1, 2, 20])
def test_where_one_batch_jumped_ahead_it_is_that_one_and_not_all_behind_it(check, behind):
    parts = batches(*range(0, 2 * behind + 8, 2))
    moved(parts[3], 1_000_000)
    found = check(parts)
    (damage,) = found.damages
    assert (damage.reason, damage.is_misplaced) == (JUMPS_AHEAD, True)
    assert (damage.first_offset, damage.last_offset) == (6, 7)
    assert found.next_offset == 2 * behind + 8
    assert covers_all(found)
    # Told too late for its index, which has the entry already.
    assert (found.offset_index, found.time_index) == (None, None)


def test_a_gap_in_a_compacted_log_is_no_jump(check):
    found = check(batches(0, 500, 502, 90_000))
    assert not found.damages


def test_an_offset_that_no_index_can_name_is_misplaced(check):
    parts = batches(0, 2, 4, 6)
    moved(parts[2], 2**31)
    found = check(parts)
    (damage,) = found.damages
    assert (damage.reason, damage.is_misplaced) == (TOO_FAR, True)
    assert found.next_offset == 8


def test_a_batch_below_the_segment_s_base_is_misplaced(check):
    found = check(batches(3, 10, 12), base_offset=10)
    assert [(d.reason, d.first_offset) for d in found.damages] == [(GOES_BACK, 10)]
    assert found.next_offset == 14


def test_a_v2_batch_with_a_higher_magic_is_whole_but_for_that(check):
    for magic in (3, 7, 127):
        parts = batches(0, 2, 4)
        parts[1][MAGIC] = magic
        found = check(parts)
        assert found.foreign_magics == (len(parts[0]),)
        assert not found.damages
        assert found.next_offset == 6


@pytest.mark.parametrize("magic", [128, 255, 0, 1])
def test_another_wrong_magic_is_damage(check, magic):
    parts = batches(0, 2, 4)
    parts[1][MAGIC] = magic
    found = check(parts)
    assert (len(found.damages), found.foreign_magics) == (1, ())
    assert found.next_offset == 6


# --- anything ----------------------------------------------------------------------------------


def plainly_whole(raw, position):
    """The batch at `position` by struct and the CRC alone: its end, or None."""
    size = int.from_bytes(raw[position + 8 : position + 12], "big", signed=True) + 12
    part = bytes(raw[position : position + size])
    if size < HEADER_SIZE or len(part) != size or part[MAGIC] != 2:
        return None
    return position + size if int.from_bytes(part[CRC_FIELD : CRC_FIELD + 4], "big") == crc32c(part[21:]) else None


@settings(max_examples=150)
@given(st.data())
def test_every_batch_that_was_not_touched_is_found_and_every_byte_is_told(tmp_path_factory, data):
    count = data.draw(st.integers(2, 12))
    parts = batches(*range(0, 2 * count, 2))
    touched = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=count - 1))
    for slot in touched:
        at = data.draw(st.integers(8, len(parts[slot]) - 1))
        parts[slot][at] ^= data.draw(st.integers(1, 255))
    raw = b"".join(parts)
    path = tmp_path_factory.getbasetemp() / "00000000000000000000.log"
    path.write_bytes(raw)
    found = check_segment(path, 0, MAX_OFFSET, CONFIG)
    assert covers_all(found)
    inside = bytearray(len(raw))
    for run in found.runs:
        inside[run.start : run.stop] = b"\1" * (run.stop - run.start)
    starts = [sum(map(len, parts[:slot])) for slot in range(count)]
    for slot, start in enumerate(starts):
        if slot not in touched:
            assert all(inside[start : start + len(parts[slot])])
    # And a run holds nothing but whole batches.
    for run in found.runs:
        position = run.start
        while position < run.stop:
            if position in found.foreign_magics:
                position += int.from_bytes(raw[position + 8 : position + 12], "big") + 12
            else:
                position = plainly_whole(raw, position)
        assert position == run.stop


def test_random_bytes_in_a_golden_log_never_hide_what_was_not_touched(golden_kafka, tmp_path):
    log = golden_kafka / "cases/v1-none-ct-k391/v1-none-ct-k391-0/00000000000000000070.log"
    raw = log.read_bytes()
    starts, position = [], 0
    for part in split_batches(raw):
        starts.append((position, position + len(part)))
        position += len(part)
    chooser = random.Random(5)
    for _ in range(100):
        begin = chooser.randrange(len(raw))
        end = min(begin + chooser.choice((1, 8, 40, 200)), len(raw))
        copy = bytearray(raw)
        copy[begin:end] = bytes(b ^ chooser.randrange(1, 256) for b in copy[begin:end])
        path = tmp_path / log.name
        path.write_bytes(copy)
        found = check_segment(path, 70, MAX_OFFSET, CONFIG)
        assert covers_all(found)
        lost = sum(d.stop - d.start for d in found.damages)
        assert lost <= sum(stop - start for start, stop in starts if start < end and stop > begin)
