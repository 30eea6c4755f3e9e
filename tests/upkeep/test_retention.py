"""Retention deletes what Kafka deletes: 33 cases of the real UnifiedLog.deleteOldSegments, with its clock."""
import json
from dataclasses import dataclass

import pytest

from seglog.config import LogConfig
from seglog.log.expiry import Expired, LogAge, Verdict
from seglog.upkeep.retention import expired, over_total
from support.golden import unpack

CASES = sorted((unpack("kafka") / "pairs/retention").glob("*.json"))
KAFKA = "3.9.1"


@dataclass
class Aged:
    """A segment by its numbers; `batches`: (first offset, timestamp)."""

    base_offset: int
    size_bytes: int
    largest_timestamp: int
    file_time_ms: int
    batches: tuple[tuple[int, int], ...] = ()

    def first_batch_since(self, timestamp):
        return next((offset for offset, at in self.batches if at >= timestamp), None)


def log_of(segments, *, start=0, end, high_watermark=None):
    return LogAge(segments, start, end if high_watermark is None else high_watermark, end)


def test_there_are_33_cases():
    assert len(CASES) == 33


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_same_segments_go_as_in_kafka(path):
    case = json.loads(path.read_text())
    real, options = case["results"][KAFKA], case["options"]
    before = [
        Aged(s["base_offset"], s["size"], -1 if s["largest_timestamp"] is None else s["largest_timestamp"],
             s["mtime"] or case["now"])
        for s in real["segments_before"]
    ]
    end = real["log_end_offset"]
    log = log_of(
        before, start=int(options.get("log.start.offset", 0)), end=end, high_watermark=int(options.get("hw", end))
    )
    verdict = expired(log, LogConfig.of(case["config"]), case["now"])
    kept = [s.base_offset for s in before[len(verdict.expired):]] + ([end] if verdict.rolls else [])
    assert kept == [s["base_offset"] for s in real["segments_after"]]
    assert len(verdict.expired) == real["deleted"]
    assert max(verdict.log_start_offset, kept[0]) == real["log_start_offset_after"]


FOUR = [
    Aged(0, 100, 1_000, 9_000, ((0, 500), (5, 1_000))),
    Aged(10, 100, 2_000, 9_000, ((10, 1_500), (15, 2_000))),
    Aged(20, 100, 3_000, 9_000, ((20, 2_100), (22, 2_500), (25, 3_000))),
    Aged(30, 0, -1, 9_000),
]


def test_each_segment_that_goes_has_its_reason():
    log = log_of(FOUR, start=10, end=30)
    config = LogConfig.of({"retention.ms": 1_000, "retention.bytes": 100})
    assert expired(log, config, 4_001).expired == (
        Expired(0, 10, 100, "start"), Expired(10, 20, 100, "size"), Expired(20, 30, 100, "time"),
    )


def test_nothing_goes_by_default():
    assert expired(log_of(FOUR, end=30), LogConfig(), 10**15) == Verdict((), 0)


@pytest.mark.parametrize(("now_ms", "start"), [(1_500, 0), (1_501, 5), (2_000, 5), (2_001, 10), (3_400, 22)])
def test_by_batches_the_log_begins_at_the_first_one_that_is_young_enough(now_ms, start):
    config = LogConfig.of({"retention.ms": 1_000, "seglog.retention.granularity": "batch"})
    verdict = expired(log_of(FOUR, end=30), config, now_ms)
    assert verdict.log_start_offset == start
    assert [e.base_offset for e in verdict.expired] == [base for base in (0, 10) if base + 10 <= start]


def test_by_batches_nothing_above_the_high_watermark_goes():
    config = LogConfig.of({"retention.ms": 1_000, "seglog.retention.granularity": "batch"})
    assert expired(log_of(FOUR, end=30, high_watermark=23), config, 3_900).log_start_offset == 23


def test_by_batches_a_segment_without_timestamps_is_as_old_as_its_file():
    config = LogConfig.of({"retention.ms": 1_000, "seglog.retention.granularity": "batch"})
    log = log_of([Aged(0, 100, -1, 5_000), Aged(10, 0, -1, 5_000)], end=10)
    assert expired(log, config, 6_000) == Verdict((), 0)
    assert expired(log, config, 6_001).log_start_offset == 10


def test_a_future_timestamp_holds_up_what_is_behind_it_unless_it_is_to_be_ignored():
    segments = [Aged(0, 100, 99_000, 1_000), Aged(10, 100, 1_100, 1_200), Aged(20, 0, -1, 9_000)]
    asked = {"retention.ms": 1_000}
    assert expired(log_of(segments, end=20), LogConfig.of(asked), 5_000).expired == ()
    ignoring = LogConfig.of({**asked, "seglog.retention.ignore.future.timestamps": True})
    assert len(expired(log_of(segments, end=20), ignoring, 5_000).expired) == 2
    assert len(expired(log_of(segments, end=20), ignoring, 2_000).expired) == 0, "the file is young"


def test_of_all_logs_the_oldest_segments_go_until_the_total_is_kept():
    keep = LogConfig()
    older = [Aged(0, 100, 1, 0), Aged(1, 100, 30, 0), Aged(2, 50, 31, 0)]
    newer = [Aged(0, 100, 2, 0), Aged(5, 10, 3, 0)]
    logs = {"older": (older, keep), "newer": (newer, keep)}
    assert over_total(logs, 360, 99) == {}
    assert over_total(logs, 359, 99) == {"older": 1}
    assert over_total(logs, 259, 99) == {"older": 1, "newer": 1}
    assert over_total(logs, 0, 99) == {"older": 2, "newer": 1}, "active segments stay"
    compacted = LogConfig.of({"cleanup.policy": "compact"})
    assert over_total({"older": (older, compacted), "newer": (newer, keep)}, 0, 99) == {"newer": 1}
