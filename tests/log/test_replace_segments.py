"""Sealed segments are exchanged for others as a whole: whatever a crash leaves, one or the other is there."""
import pytest

import seglog
from seglog.config import LogConfig
from seglog.errors import InvalidArgumentError, OffsetOutOfRangeError
from seglog.format import names
from seglog.format.dialect import segment_files
from seglog.fs.files import OsFileSystem
from seglog.log.expiry import Expired, Verdict
from seglog.segment.appender import SegmentAppender
from seglog.segment.open_files import OPEN_SEGMENTS, SegmentFiles
from support.faultfs import RecordingFs


def written(path, fs=None):
    """Three sealed segments of two records each, and an active one."""
    log = seglog.open(path, fs=fs)
    for n in range(7):
        log.append(b"%d" % n, key=b"key %d" % (n % 2))
        if n % 2:
            log.roll()
    return log


def cleaned(log, base_offset, offsets, fs=None):
    """A segment with some of the log's batches, as the cleaner leaves it: its .log.cleaned."""
    fs = fs or OsFileSystem()
    aside = log.path.parent / "aside"
    fs.mkdir(aside)
    config = LogConfig()
    appender = SegmentAppender.create(fs, aside, base_offset, config, 0)
    for batch in list(log.batches()):
        if batch.base_offset in offsets:
            appender.append_batch(bytes(batch.raw()), batch.base_offset, batch.last_offset, batch.max_timestamp)
    appender.seal()
    appender.close()
    for path in segment_files(appender.path):
        fs.rename(path, log.path / (path.name + names.CLEANED_SUFFIX))
    fs.rmdir(aside)
    fs.sync_directory(log.path)
    return log.path / (appender.path.name + names.CLEANED_SUFFIX)


def values(log):
    return [(record.offset, bytes(record.value)) for record in log.read()]


ALL = [(n, b"%d" % n) for n in range(7)]


def test_new_segments_take_the_place_of_old_ones_and_stay_there(tmp_path):
    with written(tmp_path / "orders-0") as log:
        half_read = log.read()
        next(half_read)
        log.replace_segments([0, 2], [cleaned(log, 0, {1, 2})])
        assert values(log) == [ALL[1], ALL[2], *ALL[4:]]
        assert [segment.base_offset for segment in log.segments] == [0, 4, 6]
        assert log[2].value == b"2"
        assert log.append(b"7") == 7
    with seglog.open(tmp_path / "orders-0") as log:
        assert values(log) == [ALL[1], ALL[2], *ALL[4:], (7, b"7")]
        assert (log.recovery.lost, log.recovery.repairs) == ((), ())


def test_segments_that_are_exchanged_between_judging_and_deleting_go_in_the_same_call(tmp_path, monkeypatch):
    """Retention took the new ones for another log, deleted nothing, and told so."""
    with written(tmp_path / "orders-0") as log:
        new = [cleaned(log, 0, {1}), cleaned(log, 2, {3})]

        def two_go(age, config, now_ms):
            bases = [segment.base_offset for segment in age.segments if segment.base_offset < 4]
            if new:
                log.replace_segments([0, 2], [new.pop(0), new.pop(0)])
            return Verdict(tuple(Expired(base, base + 2, 1, "size") for base in bases), 4 if bases else 0, rolls=False)

        monkeypatch.setattr(log._retainer, "_retention", two_go)
        done = log.delete_old_segments()
        assert [segment.base_offset for segment in log.segments] == [4, 6]
        assert [expired.base_offset for expired in done.expired] == [0, 2]
        assert values(log) == ALL[4:]


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_who_reads_meanwhile_reads_on_in_the_old_segments(tmp_path, monkeypatch, isolation):
    monkeypatch.setattr(OPEN_SEGMENTS, "limit", 1)
    with written(tmp_path / "orders-0") as log:
        half_read, looked_up = log.read(isolation=isolation), log.batches()
        next(half_read), next(looked_up)
        log.replace_segments([0, 2, 4], [cleaned(log, 0, {1, 5})])
        assert values(log) == [ALL[1], ALL[5], ALL[6]]
        assert [record.offset for record in half_read] == [1, 2, 3, 4, 5, 6]
        assert [batch.base_offset for batch in looked_up] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_who_opens_a_segment_in_the_moment_of_the_exchange_reads_the_old_one(tmp_path, monkeypatch, isolation):
    with written(tmp_path / "orders-0") as log:
        new = [cleaned(log, 0, {1})]
        for segment in log.segments[:-1]:
            segment._let_go()

        def exchanged_before(*arguments, **options):
            if new:
                log.replace_segments([0, 2], [new.pop()])
            return SegmentFiles(*arguments, **options)

        monkeypatch.setattr("seglog.segment.segment.SegmentFiles", exchanged_before)
        assert [record.offset for record in log.read(isolation=isolation)] == [n for n, _ in ALL]
        assert [record.offset for record in log.read(isolation=isolation)] == [1, 4, 5, 6]


def test_who_cannot_be_told_of_aborted_transactions_any_more_gets_an_error(tmp_path):
    """Without them, aborted records would pass for committed ones."""
    with written(tmp_path / "orders-0") as log:
        segment = log.segments[0]
        segment.files()
        index = segment.path.with_suffix(names.TRANSACTION_INDEX_SUFFIX)
        index.write_bytes(b"no whole entry")
        segment._supersede()
        index.unlink()
        with pytest.raises(OffsetOutOfRangeError):
            segment.transaction_index  # noqa: B018


def test_all_of_a_segment_may_go(tmp_path):
    with written(tmp_path / "orders-0") as log:
        log.replace_segments([2], [])
        assert values(log) == [*ALL[:2], *ALL[4:]]


def test_a_crash_at_any_point_leaves_the_old_segments_or_the_new_ones(tmp_path):
    record = RecordingFs(tmp_path)
    log = written(tmp_path / "orders-0", record)
    new = cleaned(log, 0, {1, 2}, record)
    record.mark("begun")
    log.replace_segments([0, 2], [new])
    record.mark("done")
    log.close()
    after = [ALL[1], ALL[2], *ALL[4:]]
    seen = set()
    for state in record.crash_states(limit=400, seed=1):
        if not state.marks:
            continue
        with state.materialise() as disk, seglog.open(disk / "orders-0") as again:
            found = values(again)
            assert found in (ALL, after), state.story()
            assert found == after or "done" not in state.marks, state.story()
            seen.add(len(found))
    assert seen == {len(ALL), len(after)}


@pytest.mark.parametrize("old", [[], [1], [0, 4], [6], [4, 6]])
def test_what_are_no_sealed_segments_in_a_row_is_refused(tmp_path, old):
    with written(tmp_path / "orders-0") as log, pytest.raises(InvalidArgumentError, match="base offsets"):
        log.replace_segments(old, [])


def test_what_lies_in_another_place_is_refused_and_changes_nothing(tmp_path):
    with written(tmp_path / "orders-0") as log:
        new = cleaned(log, 4, {4})
        with pytest.raises(InvalidArgumentError, match="in the place"):
            log.replace_segments([0], [new])
        with pytest.raises(InvalidArgumentError, match=r"log.cleaned"):
            log.replace_segments([0], [log.segments[0].path])
        assert values(log) == ALL
