"""When a log is cleaned and from where to where: LogCleanerManager of Kafka 3.9, rule by rule.

There is no golden for it. Held against the source of branch 3.9 at c821449, in which the lines are those of 3.9.0:

    grabFilthiestCompactedLog       core, kafka/log/LogCleanerManager.scala 180-224
    maxCompactionDelay              596-609
    cleanableOffsets                619-676
    calculateCleanableBytes         682-688
    LogToClean (bytes, ratio)       core, kafka/log/LogCleaner.scala 1218-1228
    values, nonActiveLogSegmentsFrom        storage, LogSegments.java 182-203: from the floor segment on
    getFirstBatchTimestamp, largestTimestamp        storage, LogSegment.java 726-732 and 861-866

Its tests name the line that they are about. That a checkpoint outside of the log is written again (197-198) is tested
in test_cleaner_thread.py.
"""
from dataclasses import dataclass

import pytest

from seglog.config import LogConfig
from seglog.upkeep.cleaning_plan import CleanableLog, filthiest, plan

NOW = 1_000_000


@dataclass
class Dirt:
    base_offset: int
    size_bytes: int = 100
    largest_timestamp: int = 0
    first_timestamp: int = 0


def log(*segments, start=0, end=500, stable=None, checkpoint=None):
    """Segments at 0, 100, ...; the last one is active."""
    segments = segments or [Dirt(base) for base in range(0, 500, 100)]
    return CleanableLog(segments, start, end, end if stable is None else stable, checkpoint)


def planned(log, **settings):
    return plan(log, LogConfig.of({key.replace("_", "."): value for key, value in settings.items()}), NOW)


def bounds(found):
    return found.first_dirty_offset, found.first_uncleanable_offset


def test_it_goes_from_the_log_start_to_the_active_segment():
    found = planned(log())
    assert bounds(found) == (0, 400)
    assert (found.clean_bytes, found.cleanable_bytes, found.ratio) == (0, 400, 1.0)
    assert found.has_work
    assert found.is_due


@pytest.mark.parametrize(("checkpoint", "first_dirty", "is_void"), [
    (200, 200, False), (250, 250, False), (0, 0, False), (500, 500, False), (501, 0, True), (None, 0, False),
])
def test_it_goes_on_at_the_checkpoint_if_that_is_in_the_log(checkpoint, first_dirty, is_void):
    """cleanableOffsets (626-640): below the log start, or beyond the end, it is reset to the start."""
    found = planned(log(checkpoint=checkpoint))
    assert (found.first_dirty_offset, found.checkpoint_is_void) == (first_dirty, is_void)
    assert planned(log(start=150, checkpoint=120)).first_dirty_offset == 150
    assert planned(log(start=150, checkpoint=120)).checkpoint_is_void


def test_bytes_are_of_whole_segments():
    """LogToClean (1223) logSegments(-1, firstDirtyOffset); calculateCleanableBytes (685): from the floor segment on."""
    found = planned(log(checkpoint=250))
    assert (found.clean_bytes, found.cleanable_bytes) == (300, 200)
    found = planned(log(checkpoint=200))
    assert (found.clean_bytes, found.cleanable_bytes) == (200, 200)


def test_a_transaction_that_is_open_holds_it_at_a_segment():
    """cleanableOffsets (652), calculateCleanableBytes (683-684): down to the base of the segment that has it."""
    assert bounds(planned(log(stable=250))) == (0, 200)
    assert bounds(planned(log(stable=450))) == (0, 400)
    found = planned(log(stable=50))
    assert bounds(found) == (0, 0)
    assert not found.has_work
    assert found.why_not == "nothing after offset 0 can be cleaned: a transaction is open from offset 50 on"


def test_nothing_is_to_be_done_behind_the_end_of_the_last_round():
    found = planned(log(checkpoint=400))
    assert bounds(found) == (400, 400)
    assert (found.clean_bytes, found.cleanable_bytes, found.has_work, found.is_due) == (400, 0, False, False)
    assert found.why_not == "nothing after offset 400 can be cleaned: the active segment begins at 400"


def test_a_young_segment_and_all_behind_it_wait_for_the_min_lag():
    """cleanableOffsets (658-668): the first with largestTimestamp > now - min.compaction.lag.ms; equal is old."""
    segments = [Dirt(0, largest_timestamp=NOW - 50), Dirt(100, largest_timestamp=NOW - 49), Dirt(200), Dirt(300)]
    assert bounds(planned(log(*segments), min_compaction_lag_ms=50)) == (0, 100)
    assert bounds(planned(log(*segments), min_compaction_lag_ms=49)) == (0, 300)
    assert bounds(planned(log(*segments))) == (0, 300)
    assert "at 100 has a record younger" in planned(log(*segments, checkpoint=100), min_compaction_lag_ms=50).why_not


def test_an_old_record_is_due_by_the_max_lag_whatever_the_ratio():
    """maxCompactionDelay (597-608): the earliest first-batch time of the dirty segments, 0 and below do not count."""
    segments = [
        Dirt(0, first_timestamp=1), Dirt(100, first_timestamp=0), Dirt(200, first_timestamp=NOW - 100), Dirt(300)
    ]
    found = planned(log(*segments, checkpoint=100), min_cleanable_dirty_ratio=1, max_compaction_lag_ms=99)
    assert (found.overdue_ms, found.is_due) == (1, True)
    found = planned(log(*segments, checkpoint=100), min_cleanable_dirty_ratio=1, max_compaction_lag_ms=100)
    assert (found.overdue_ms, found.is_due) == (0, False)


def test_the_ratio_must_be_passed():
    """grabFilthiestCompactedLog (212): cleanableRatio > min.cleanable.dirty.ratio."""
    assert not planned(log(checkpoint=200), min_cleanable_dirty_ratio=0.5).is_due
    assert planned(log(checkpoint=200), min_cleanable_dirty_ratio=0.49).is_due
    why = planned(log(checkpoint=200), min_cleanable_dirty_ratio=0.5).why_not
    assert why == "the dirty ratio is 0.500, but min.cleanable.dirty.ratio is 0.5: 200 of 400 bytes"


def test_an_overdue_log_of_which_nothing_can_be_cleaned_waits():
    """grabFilthiestCompactedLog (212): needCompactionNow && cleanableBytes > 0. What is overdue may be held back."""
    segments = [Dirt(0, first_timestamp=1), Dirt(100, first_timestamp=1), Dirt(200)]
    found = planned(log(*segments, stable=50), max_compaction_lag_ms=1)
    assert (found.overdue_ms > 0, found.cleanable_bytes, found.is_due) == (True, 0, False)
    # Whole segments are overdue behind the last stable offset, too (597): nothing but the first is cleaned for it.
    segments[0].first_timestamp = 0
    found = planned(log(*segments, stable=150), max_compaction_lag_ms=1, min_cleanable_dirty_ratio=1)
    assert (found.overdue_ms > 0, found.first_uncleanable_offset, found.is_due) == (True, 100, True)


def test_a_checkpoint_in_the_segment_that_holds_the_last_stable_offset_leaves_nothing():
    """calculateCleanableBytes (685): from min(first dirty, first uncleanable segment), which are then the same."""
    found = planned(log(checkpoint=250, stable=270))
    assert (found.clean_bytes, found.cleanable_bytes, found.has_work, found.is_due) == (300, 0, False, False)


def test_a_log_without_bytes_is_no_candidate():
    """grabFilthiestCompactedLog (207): totalBytes > 0; the ratio of nothing is not a number there."""
    found = planned(log(Dirt(0, 0), Dirt(100, 0), Dirt(200)), min_cleanable_dirty_ratio=0, max_compaction_lag_ms=1)
    assert (found.ratio, found.is_due) == (0.0, False)


def test_the_dirtiest_log_that_is_due_is_next():
    """grabFilthiestCompactedLog (211-219): the largest ratio; of equal ones the first, as `max` takes it."""
    plans = {
        "half": planned(log(checkpoint=200), min_cleanable_dirty_ratio=0.1),
        "most": planned(log(checkpoint=100), min_cleanable_dirty_ratio=0.1),
        "all, not due": planned(log(stable=0)),
        "wants more": planned(log(checkpoint=100), min_cleanable_dirty_ratio=0.9),
    }
    assert filthiest(plans) == "most"
    assert filthiest({name: plans[name] for name in ("all, not due", "wants more")}) is None
    assert filthiest({"one": plans["half"], "other": plans["half"]}) == "one"
    assert filthiest({}) is None
