"""Seeks in 129 directories of real Kafka: our answers beside Kafka's own (lookups.json, read by 3.9.1)."""
import gzip
import json
from functools import lru_cache

import pytest

from seglog.reading.lookup import MAX_TIMESTAMP
from seglog.reading.partition import open_partition
from support.golden import golden_cases

ZERO_TAIL = "a clean start takes the zeros of a crashed broker's preallocated indexes for entries"
HIDDEN = "a segment without a timestamp counts as old as its file, and hides the ones behind it"
HOLLOW = "the segment's largest timestamp is that of a record the cleaner removed; Kafka looks no further"
# Kafka finds nothing for so many of its own targets, and ours is the definition's answer.
KAFKA_FINDS_NOTHING = {
    "compact-v1-gzip-pass1-k391": (10, HIDDEN),
    "compact-v1-none-pass1-k391": (18, HIDDEN),
    "compact-v2-none-pass1-k411": (4, HOLLOW),
    "crash-v1-k282": (10, ZERO_TAIL),
    "crash-v1-k391": (10, ZERO_TAIL),
    "crash-v2-k282": (10, ZERO_TAIL),
    "crash-v2-k391": (10, ZERO_TAIL),
    "crash-v2-k411": (10, ZERO_TAIL),
}


@lru_cache(maxsize=4)
def records(case):
    with gzip.open(case / "expected.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def lookups(case):
    with gzip.open(case / "lookups.json.gz", "rt") as f:
        return json.load(f)


def by_definition(case, target, start):
    """On Kafka's own decoded records: the first in log order with timestamp >= target; -3, with the largest one."""
    if target == MAX_TIMESTAMP:
        target = max(r["timestamp"] for r in records(case))
    for r in records(case):
        if r["timestamp"] >= target and r["offset"] >= start:
            return r["timestamp"], r["offset"]
    return None


@pytest.fixture(params=golden_cases(), ids=lambda case: case.name)
def case(request):
    return request.param


@pytest.fixture
def partition(case):
    with open_partition(case / f"{case.name}-0") as p:
        yield p


def test_the_extent_is_kafkas(case, partition):
    kafka = lookups(case)
    assert (partition.log_start_offset, partition.log_end_offset) == (
        kafka["log_start_offset"], kafka["log_end_offset"])


def test_an_offset_leads_to_the_batch_that_kafka_finds(case, partition):
    segments = {s.base_offset: s for s in partition.segments}
    for row in lookups(case)["by_offset_in_segment"]:
        found = segments[row["segment_base"]].find_offset(row["target"])
        ours = found and {"offset": found.last_offset, "position": found.position, "size": found.size_bytes}
        assert ours == row["translate"], row


def test_a_read_begins_where_kafkas_does(case, partition):
    for row in lookups(case)["whole_log_read"]:
        found = partition.find_offset(row["target"])
        if row["bytes"] == 0:
            assert found is None, row
        else:
            segment, batch = found
            assert (segment.base_offset, batch.position) == (row["segment_base"], row["position"]), row


def test_a_time_leads_to_the_record_that_kafka_finds_in_the_segment(case, partition):
    segments = {s.base_offset: s for s in partition.segments}
    for row in lookups(case)["by_timestamp_in_segment"]:
        found = segments[row["segment_base"]].find_timestamp(row["target"])
        assert (found and found._asdict()) == row["find"], row


def test_a_time_leads_to_the_record_that_kafka_finds_in_the_log(case, partition):
    differing = 0
    for row in lookups(case)["whole_log_by_timestamp"]:
        target, kafka = row["target"], row["result"]
        found = partition.offset_for_time(target)
        if (found and found._asdict()) != kafka:
            differing += 1
            assert kafka is None
            assert (found.timestamp, found.offset) == by_definition(case, target, partition.log_start_offset)
        elif target >= 0:
            assert (found and (found.timestamp, found.offset)) == by_definition(
                case, target, partition.log_start_offset)
    assert differing == KAFKA_FINDS_NOTHING.get(case.name, (0, ""))[0]
