"""Hostile bytes through every reader: a result or a SeglogError, within 60 s and within the memory limit.

Golden files changed on purpose, and a segment with each of its bits flipped. The sanitized build (`make sanitize`)
and `make torture` go through all of them, `make test` through one in two hundred. A case is its number:
SEGLOG_HOSTILE=files:4711 or flips:4711 runs that one alone, in this process, under a debugger if you like.
"""
import os
import signal

import pytest

from support.hostile_child import run_one
from support.hostile_files import make_case
from support.hostile_readers import IS_FULL, Readers, Workshop
from support.hostile_run import run
from support.hostile_segment import BITS, BOMBS, flipped, segment_bytes

FILES = 100_000 if IS_FULL else 500
FLIPS = BITS if IS_FULL else BITS // 200
# A part is a test: progress is seen, and a failure does not hide those behind it.
PART = 5_000 if IS_FULL else 8_000

ONE = os.environ.get("SEGLOG_HOSTILE", "")


def parts(kind: str, stop: int):
    return [(kind, first, min(first + PART, stop)) for first in range(0, stop, PART)]


@pytest.mark.long
@pytest.mark.skipif(bool(ONE), reason="SEGLOG_HOSTILE asks for one case")
@pytest.mark.parametrize(("kind", "first", "stop"), [*parts("files", FILES), *parts("flips", FLIPS)])
def test_every_reader_gives_a_result_or_a_seglog_error(kind, first, stop):
    outcome = run(kind, first, stop)
    print(outcome)
    assert not outcome.failures, "\n\n".join(outcome.failures)
    assert outcome.cases == stop - first


def test_a_batch_that_opens_to_far_more_than_it_is_takes_no_more_than_the_limit():
    outcome = run("bombs", 0, BOMBS, processes=1)
    print(outcome)
    assert not outcome.failures, "\n\n".join(outcome.failures)


@pytest.mark.skipif(not ONE, reason="for replaying one case")
def test_the_case_that_was_asked_for(tmp_path):
    kind, _, number = ONE.partition(":")
    run_one(kind, int(number), Readers(0), Workshop(tmp_path))


def test_a_case_is_the_same_bytes_every_time():
    assert [make_case(n) for n in range(50)] == [make_case(n) for n in range(50)]


def test_each_number_flips_another_bit_of_a_segment_of_16_kib():
    segment = segment_bytes()
    assert 8 * len(segment) == BITS == 131_072
    seen = set()
    for number in range(0, BITS, 1009):
        changed = int.from_bytes(segment) ^ int.from_bytes(flipped(number))
        assert changed.bit_count() == 1
        seen.add(changed)
    assert len(seen) == len(range(0, BITS, 1009))


def test_a_case_that_ends_its_process_is_named_with_its_story():
    outcome = run("no such kind", 7, 8)
    [text] = outcome.failures
    assert "flip 7: bit 119" in text
    assert "SEGLOG_HOSTILE=no such kind:7" in text
    assert "Traceback" in text


def test_a_case_is_named_even_if_making_its_bytes_ends_a_process():
    outcome = run("aborts", 7, 9, processes=1)
    [text] = outcome.failures
    assert "SEGLOG_HOSTILE=aborts:7" in text
    assert f"its process ended with status {-signal.SIGABRT}" in text
