"""One record by its offset or its time, where all is at hand: as a walk over the records finds it."""
import random

import pytest

import seglog
from seglog._kernels.quick_read import ShownSegments
from seglog.clock import ManualClock
from seglog.errors import LogClosedError, NoRecordError, OffsetOutOfRangeError
from seglog.reading.extent import OFFSET_LIMIT
from seglog.segment.positions import TimestampOffset

FIRST_MS = 1_700_000_000_000


@pytest.fixture
def log(tmp_path):
    """Seven segments, the last one growing; a record each second."""
    with seglog.open(tmp_path / "orders-0", fsync="never", clock=ManualClock(FIRST_MS + 10**9)) as log:
        for n in range(70):
            if n and n % 10 == 0:
                log.roll()
            log.append(b"%d" % n, timestamp=FIRST_MS + 1000 * n)
        yield log


def found(log, offset):
    try:
        return log[offset].value
    except (OffsetOutOfRangeError, NoRecordError) as error:
        return type(error)


def test_each_offset_gives_its_record_and_no_other_offset_gives_one(log):
    offsets = [-(2**63) - 1, -1, *range(70), 70, 10**6, OFFSET_LIMIT - 1, OFFSET_LIMIT, 2**70]
    random.Random(3).shuffle(offsets)
    for offset in offsets:
        assert found(log, offset) == (b"%d" % offset if 0 <= offset < 70 else OffsetOutOfRangeError), offset


def test_what_is_no_plain_int_takes_the_slow_path(log):
    import numpy as np

    assert log[np.int64(33)].value == b"33"
    assert log._shown.record(True) is log._shown.record("3") is log._shown.record(3.0) is None
    assert log._shown.record(33).value == b"33"


def test_a_record_is_found_as_soon_as_it_is_published_and_gone_with_its_segment(log):
    assert found(log, 70) is OffsetOutOfRangeError
    log.append(b"70", timestamp=FIRST_MS + 70_000)
    assert found(log, 70) == b"70"
    log.roll()
    log.append(b"71", timestamp=FIRST_MS + 71_000)
    assert found(log, 71) == b"71"
    log.delete_records(25)
    assert [found(log, n) for n in (24, 25)] == [OffsetOutOfRangeError, b"25"]
    assert [log._shown.record(n) for n in (0, 24)] == [None, None]
    log.truncate_to(40)
    assert [found(log, n) for n in (39, 40, 71)] == [b"39", OffsetOutOfRangeError, OffsetOutOfRangeError]
    log.append(b"again", timestamp=FIRST_MS + 40_000)
    assert found(log, 40) == b"again"


def test_a_closed_log_gives_nothing(log):
    assert log._shown.record(3) is not None
    log.close()
    assert log._shown.record(3) is None
    assert log._shown.seek(FIRST_MS) is None
    with pytest.raises(LogClosedError):
        log[3]
    with pytest.raises(LogClosedError):
        log.offset_for_time(FIRST_MS)


def test_each_time_gives_the_first_record_that_is_not_earlier(log, tmp_path):
    def expected(when):
        n = max(-(-(when - FIRST_MS) // 1000), 0)
        return TimestampOffset(FIRST_MS + 1000 * n, n, 0) if n < 70 else None

    times = [FIRST_MS + ms for ms in (-5, 0, 1, 9_999, 10_000, 10_001, 68_999, 69_000, 69_001, 10**9)]
    assert [log.offset_for_time(when) for when in times] == [expected(when) for when in times]
    log.delete_records(69)      # to one segment, in which the kernel searches
    assert len(log.segments) == 1
    assert log.offset_for_time(FIRST_MS) == expected(FIRST_MS + 69_000)
    assert log.offset_for_time(FIRST_MS + 69_001) is None
    log.append(b"70", timestamp=FIRST_MS + 70_000)
    assert log.offset_for_time(FIRST_MS + 69_001) == TimestampOffset(FIRST_MS + 70_000, 70, 0)


def test_segments_that_came_since_are_not_of_an_earlier_extent(log):
    """Extents share their lists, which grow."""
    earlier, bases = ShownSegments(), log._shown.extent.segments.bases
    earlier.extent = log._shown.extent
    log.roll()
    log.append(b"70")
    assert log._shown.extent.segments.bases is bases
    assert earlier.record(69).value == b"69"
    assert earlier.record(70) is None
