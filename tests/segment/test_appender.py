"""A segment that grows: its files are a function of its log, whatever was opened, closed and broken in between."""
import contextlib
import errno
import shutil
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog._kernels.batch_builder import BatchBuilder
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.config import LogConfig
from seglog.errors import CorruptIndexError, CorruptRecordError, InvalidArgumentError, StorageError
from seglog.fs.files import OsFileSystem
from seglog.segment.appender import SegmentAppender
from seglog.segment.indexes import index_bytes
from seglog.segment.published_end import End, PublishedEnd
from seglog.segment.roll import RELATIVE_OFFSET_MAX
from seglog.segment.segment import Segment
from seglog.segment.transaction_index import AbortedTransaction, TransactionIndex
from support.faultfs import FailingFs, RecordingFs
from support.golden import unpack

BASE = 5_000_000_000
NOW = 1_700_000_000_000
MINUTE = 60_000
SMALL = {"index.interval.bytes": 200, "seglog.time.index.minute.enabled": True}
SUFFIXES = (".log", ".index", ".timeindex", ".time.index")


def batch(offset, timestamp=NOW, value_size=30, last_offset=None):
    builder = BatchBuilder(offset)
    builder.append(offset, timestamp, None, bytes(value_size))
    return bytes(builder.finish(last_offset=last_offset))


def create(directory, fs=None, **config):
    return SegmentAppender.create(fs or OsFileSystem(), directory, BASE, LogConfig.of(SMALL | config), NOW)


def reopen(appender, fs=None, now=NOW, **config):
    return SegmentAppender.open(
        fs or OsFileSystem(), appender.path.parent, BASE, LogConfig.of(SMALL | config), appender.size_bytes,
        appender.next_offset, now,
    )


def append(appender, timestamp=NOW, value_size=30, hole=0):
    offset = appender.next_offset + hole
    appender.append_batch(batch(offset, timestamp, value_size), offset, offset, timestamp)


def finish(appender):
    appender.seal()
    appender.close()


def files(appender, suffixes=SUFFIXES):
    paths = (appender.path.with_suffix(suffix) for suffix in suffixes)
    return {path.suffixes[-1] if path.name.count(".") == 1 else ".time.index": path.read_bytes() for path in paths}


def rebuilt(appender, **config):
    """What the log says that its indexes are."""
    right = index_bytes(Segment(appender.path), LogConfig.of(SMALL | config))
    return {
        ".log": appender.path.read_bytes(), ".index": right.offset_index, ".timeindex": right.time_index,
        ".time.index": right.minute_index,
    }


# --- one segment ---------------------------------------------------------------------------------


def test_a_new_segment_has_empty_files(tmp_path):
    appender = create(tmp_path)
    assert appender.end == End(0, BASE)
    finish(appender)
    assert files(appender) == dict.fromkeys(SUFFIXES, b"")
    assert len(list(tmp_path.iterdir())) == 4


def test_without_the_key_there_is_no_minute_index(tmp_path):
    appender = create(tmp_path, **{"seglog.time.index.minute.enabled": False})
    for n in range(20):
        append(appender, NOW + n * MINUTE)
    appender.add_aborted(AbortedTransaction(1, BASE, BASE + 1, BASE))
    finish(appender)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".index", ".log", ".timeindex", ".txnindex"]
    assert len(TransactionIndex(appender.path.with_suffix(".txnindex").read_bytes())) == 1
    assert appender.end.minute_entries == 0
    assert appender.end.offset_entries > 3


def test_the_end_counts_what_is_in_the_files(tmp_path):
    appender = create(tmp_path)
    for n in range(50):
        append(appender, NOW + n * 10_000, hole=n % 3)
        sizes = {suffix: len(raw) for suffix, raw in files(appender).items()}
        assert appender.end == End(
            sizes[".log"], appender.next_offset, sizes[".index"] // 8, sizes[".timeindex"] // 12,
            sizes[".time.index"] // 12,
        )
    finish(appender)
    assert appender.end.time_entries == len(files(appender)[".timeindex"]) // 12


def test_batches_of_a_table_give_what_they_give_one_by_one(tmp_path):
    raws = [batch(BASE + n, NOW + n * 7_000, n * 5) for n in range(60)]
    one, many = tmp_path / "one", tmp_path / "many"
    one.mkdir()
    many.mkdir()
    appender, other = create(one), create(many)
    for n, raw in enumerate(raws):
        appender.append_batch(raw, BASE + n, BASE + n, NOW + n * 7_000)
    window = Window(b"".join(raws))
    table = scan(window)
    other.append(window, table, 0, 0)
    other.append(window, table, 0, 17)
    other.append(window, table, 17)
    appender.write_entries()
    other.write_entries()
    assert appender.end == other.end
    finish(appender)
    finish(other)
    assert files(appender) == files(other) == rebuilt(appender)


def test_wrappers_of_v1_are_counted_by_their_last_record(tmp_path):
    log = unpack("kafka") / "cases/v1-gzip-ct-k391/v1-gzip-ct-k391-0/00000000000000000000.log"
    config = LogConfig.of({"index.interval.bytes": 512})
    appender = SegmentAppender.create(OsFileSystem(), tmp_path, 0, config, NOW)
    window = Window(log.read_bytes())
    table = scan(window)
    for slot in range(len(table)):
        appender.append(window, table, slot, slot + 1)
    assert appender.next_offset == table[len(table) - 1].last_offset + 1 > len(table)
    finish(appender)
    assert appender.path.read_bytes() == log.read_bytes()
    assert appender.path.with_suffix(".index").read_bytes() == index_bytes(Segment(log), config).offset_index


def test_an_offset_that_goes_back_is_refused_and_changes_nothing(tmp_path):
    appender = create(tmp_path)
    append(appender)
    before = appender.end
    with pytest.raises(CorruptRecordError, match="expected 5000000001"):
        appender.append_batch(batch(BASE), BASE, BASE, NOW)
    with pytest.raises(CorruptRecordError, match="31 bits"):
        appender.append_batch(batch(BASE + 2**31), BASE + 2**31, BASE + 2**31, NOW)
    assert appender.end == before
    assert appender.failure is None
    append(appender)
    finish(appender)
    assert files(appender) == rebuilt(appender)


def test_a_full_index_is_refused_and_changes_nothing(tmp_path):
    appender = create(tmp_path, **{"segment.index.bytes": 24})
    while not appender.should_roll(100, NOW, appender.next_offset, NOW):
        append(appender, NOW + appender.size_bytes, 200)
    before = appender.end
    with pytest.raises(InvalidArgumentError, match="full"):
        append(appender, NOW + 10**6, 200)
    assert appender.end == before
    assert appender.failure is None
    finish(appender)
    assert len(files(appender)[".timeindex"]) <= 24


def test_nothing_is_appended_to_a_sealed_segment(tmp_path):
    appender = create(tmp_path)
    append(appender)
    appender.seal()
    appender.seal()
    with pytest.raises(StorageError, match="sealed"):
        append(appender)
    with pytest.raises(StorageError, match="sealed"):
        appender.add_aborted(AbortedTransaction(1, BASE, BASE + 1, BASE))
    appender.sync()
    appender.close()
    appender.close()
    assert appender.failure is None


# --- opening -------------------------------------------------------------------------------------


def test_opening_and_closing_changes_no_byte_and_makes_no_call(tmp_path):
    appender = create(tmp_path)
    for n in range(30):
        append(appender, NOW + n * 9_000)
    finish(appender)
    before = files(appender)
    fs = FailingFs(OsFileSystem())
    again = reopen(appender, fs)
    assert again.end == appender.end._replace(time_entries=again.end.time_entries)
    assert again.max_timestamp == appender.max_timestamp
    assert again.offset_of_max_timestamp == appender.offset_of_max_timestamp
    finish(again)
    assert files(appender) == before
    assert {call.split()[0] for call in fs.calls} == {"open_write"}


def test_the_closing_entry_is_not_counted_and_written_over(tmp_path):
    appender = create(tmp_path)
    append(appender, NOW)
    finish(appender)
    assert appender.end.time_entries == 1
    again = reopen(appender)
    assert again.end.time_entries == 0
    append(again, NOW + 5, 300)
    assert len(files(again)[".timeindex"]) == 12
    assert again.end.time_entries == 0
    append(again, NOW + 10)
    again.write_entries()
    assert struct.unpack(">qi", files(again)[".timeindex"]) == (NOW + 10, 2)
    assert again.end.time_entries == 1
    finish(again)
    assert files(again) == rebuilt(again)


times = st.one_of(
    st.integers(NOW, NOW + 40 * MINUTE), st.integers(-1, 5), st.sampled_from([NOW, NOW + MINUTE, NOW + MINUTE - 1])
)
programs = st.lists(
    st.one_of(
        st.tuples(st.just("append"), times, st.integers(0, 400), st.integers(0, 5)),
        st.just(("reopen",)),
        st.just(("crash",)),
        st.just(("close without seal",)),
    ),
    max_size=60,
)


rolling = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([-1, NOW - 50, NOW, NOW + 60, NOW + 300]), st.integers(0, 200), st.booleans()),
        st.just(("reopen",)),
    ),
    max_size=30,
)


@settings(max_examples=150)
@given(rolling)
def test_within_its_quiet_limits_a_segment_is_never_due_to_roll(tmp_path_factory, program):
    config = {"segment.bytes": 1500, "segment.ms": 250, "segment.index.bytes": 36, "index.interval.bytes": 250}
    directory = tmp_path_factory.mktemp("segment")
    appender = create(directory, **config)
    for step in program:
        if step[0] == "reopen":
            finish(appender)
            appender = reopen(appender, now=NOW + 200, **config)
            continue
        timestamp, value_size, is_far = step
        offset = BASE + RELATIVE_OFFSET_MAX + 1 if is_far else appender.next_offset
        size_bytes = len(batch(offset, timestamp, value_size))
        quiet = (
            size_bytes <= appender.quiet_bytes
            and timestamp <= appender.quiet_until_ms
            and offset <= appender.quiet_until_offset
        )
        for now in (NOW, NOW + 251, NOW + 1000):
            assert not (quiet and appender.should_roll(size_bytes, timestamp, offset, now))
        if not appender.should_roll(size_bytes, timestamp, offset, NOW):
            append(appender, timestamp, value_size)
    finish(appender)
    shutil.rmtree(directory)


@settings(max_examples=150)
@given(programs, st.sampled_from([0, 1, 100, 200, 1000]), st.booleans())
def test_indexes_are_a_function_of_the_log(tmp_path_factory, program, interval, minutes):
    directory = tmp_path_factory.mktemp("segment")
    config = {"index.interval.bytes": interval, "seglog.time.index.minute.enabled": minutes}
    suffixes = SUFFIXES if minutes else SUFFIXES[:3]
    appender = create(directory, **config)
    for step in program:
        if step[0] == "append":
            append(appender, *step[1:])
            continue
        if step[0] == "reopen":
            appender.seal()
        appender.close()
        if step[0] == "crash":     # recovered: an index that is missing is made anew
            appender.path.with_suffix(".timeindex").unlink()
        appender = reopen(appender, **config)
    right = rebuilt(appender, **config)
    appender.write_entries()
    end, live = appender.end, files(appender, suffixes)
    closing = len(right[".timeindex"]) // 12 - end.time_entries
    assert closing in (0, 1)
    assert live[".index"] == right[".index"]
    assert live[".timeindex"][: end.time_entries * 12] == right[".timeindex"][: end.time_entries * 12]
    assert len(live[".timeindex"]) // 12 - end.time_entries in (0, 1)
    finish(appender)
    assert files(appender, suffixes) == {suffix: right[suffix] for suffix in suffixes}
    shutil.rmtree(directory)


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "zeros", "past the end", "two closing", "other"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".time.index"])
def test_indexes_that_are_not_right_at_their_end_are_made_anew(tmp_path, suffix, damage):
    appender = create(tmp_path)
    for n in range(60):
        append(appender, NOW + n * 8_000)
    finish(appender)
    path = appender.path.with_suffix(suffix)
    right = path.read_bytes()
    size = 8 if suffix == ".index" else 12
    shape = ">ii" if size == 8 else ">qi"
    first, second = struct.unpack(shape, right[-size:])
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({
            "empty": b"",
            "cut": right[:-5],
            "zeros": right + bytes(3 * size),
            "past the end": right[:-size] + struct.pack(shape, first + 10**6, second + 10**6),
            "two closing": right + struct.pack(shape, first + 1, second + 1),
            "other": right[:-size] + struct.pack(shape, first - 1, second),
        }[damage])
    held = path.open("rb") if path.exists() else None
    changed = None if held is None else held.read()
    again = reopen(appender)
    finish(again)
    assert files(again) == rebuilt(again)
    assert path.read_bytes() == right
    if held is not None:
        with held:      # whoever has the old file keeps it whole
            held.seek(0)
            assert held.read() == changed


def test_a_time_index_of_zeros_alone_is_made_anew(tmp_path):
    """Its length came to the disk, its bytes did not: no entry of it says more than that nothing is later than 1970."""
    appender = create(tmp_path, **{"seglog.time.index.minute.enabled": False})
    for n in range(60):
        append(appender, NOW + n * 8_000)
    finish(appender)
    path = appender.path.with_suffix(".timeindex")
    right = path.read_bytes()
    path.write_bytes(bytes(appender.end.offset_entries * 12))
    again = reopen(appender, **{"seglog.time.index.minute.enabled": False})
    finish(again)
    assert path.read_bytes() == right


def test_a_time_index_may_say_0_of_a_first_batch_that_does(tmp_path):
    appender = create(tmp_path, **{"seglog.time.index.minute.enabled": False})
    for _ in range(60):
        append(appender, 0)
    finish(appender)
    assert appender.path.with_suffix(".timeindex").read_bytes() == bytes(12)
    fs = FailingFs(OsFileSystem())
    finish(reopen(appender, fs, **{"seglog.time.index.minute.enabled": False}))
    assert {call.split()[0] for call in fs.calls} == {"open_write"}


def test_a_minute_index_is_made_for_a_log_that_had_none(tmp_path):
    off = {"seglog.time.index.minute.enabled": False}
    appender = create(tmp_path, **off)
    for n in range(60):
        append(appender, NOW + n * 8_000)
    finish(appender)
    again = reopen(appender)
    for n in range(60, 90):
        append(again, NOW + n * 8_000)
    finish(again)
    assert files(again) == rebuilt(again)
    assert again.end.minute_entries > 5
    without = reopen(again, **off)
    for n in range(90, 120):
        append(without, NOW + n * 8_000)
    finish(without)
    with_again = reopen(without)
    finish(with_again)
    assert files(with_again) == rebuilt(with_again)


def test_a_log_of_another_size_or_end_is_refused(tmp_path):
    appender = create(tmp_path)
    append(appender)
    append(appender)
    finish(appender)
    config = LogConfig.of(SMALL)
    size = appender.size_bytes
    with pytest.raises(InvalidArgumentError, match=f"{size} bytes, expected {size - 1}"):
        SegmentAppender.open(OsFileSystem(), tmp_path, BASE, config, size - 1, BASE + 2, NOW)
    with pytest.raises(CorruptRecordError, match="expected 5000000003"):
        SegmentAppender.open(OsFileSystem(), tmp_path, BASE, config, size, BASE + 3, NOW)
    appender.path.write_bytes(appender.path.read_bytes()[:-1])
    with pytest.raises(CorruptRecordError, match="byte 98"):
        SegmentAppender.open(OsFileSystem(), tmp_path, BASE, config, size - 1, BASE + 2, NOW)


def test_a_part_of_a_line_in_the_transaction_index_is_refused(tmp_path):
    appender = create(tmp_path)
    append(appender)
    appender.path.with_suffix(".txnindex").write_bytes(bytes(33))
    with pytest.raises(CorruptIndexError, match="34-byte"):
        appender.add_aborted(AbortedTransaction(1, BASE, BASE + 1, BASE))
    assert appender.failure is None
    finish(appender)


# --- errors and crashes --------------------------------------------------------------------------


def run(directory, fs, mark=lambda end: None):
    """Create, append, sync, seal, open, append, seal; each end that is durable goes to `mark`."""
    appender = create(directory, fs)
    try:
        for n in range(12):
            append(appender, NOW + n * 9_000, 60)
            if n % 4 == 3:
                end = appender.end
                appender.sync()
                mark(end)
        appender.add_aborted(AbortedTransaction(1, BASE, BASE + 1, BASE))
        appender.seal()
        mark(appender.end)
        appender.close()
        appender = reopen(appender, fs)
        for n in range(12, 20):
            append(appender, NOW + n * 9_000, 60)
        appender.add_aborted(AbortedTransaction(1, BASE + 1, BASE + 2, BASE))
        appender.seal()
        mark(appender.end)
    finally:
        appender.close()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("short", [False, True])
def test_after_an_error_at_any_call_nothing_is_written_and_the_log_is_whole_to_its_end(tmp_path, error, short):
    count = FailingFs(OsFileSystem())
    (tmp_path / "all").mkdir()
    run(tmp_path / "all", count)
    for k in range(len(count.calls)):
        directory = tmp_path / str(k)
        directory.mkdir()
        fs = FailingFs(OsFileSystem(), fail_at=k, error=error, once=True, short=short)
        with pytest.raises(StorageError) as raised:
            run(directory, fs)
        assert raised.value.errno == error


@pytest.mark.parametrize("fail_at", range(5, 40))
def test_what_failed_says_so_and_its_end_stays(tmp_path, fail_at):
    appender = create(tmp_path, FailingFs(OsFileSystem(), fail_at=fail_at, error=errno.EIO, once=True))
    while appender.failure is None:
        end = appender.end
        with contextlib.suppress(StorageError):
            append(appender, NOW + appender.size_bytes * 100)
    assert appender.end == end
    assert appender.failure.errno == errno.EIO
    for call in (lambda: append(appender), appender.sync, appender.seal):
        with pytest.raises(StorageError, match="cannot go on after an error"):
            call()
    appender.close()
    assert scan(Window(appender.path.read_bytes()[: end.position])).end == end.position
    right = rebuilt_prefix(appender, end)
    for suffix, size_bytes in ((".index", end.offset_entries * 8), (".timeindex", end.time_entries * 12)):
        assert appender.path.with_suffix(suffix).read_bytes()[:size_bytes] == right[suffix][:size_bytes]


def rebuilt_prefix(appender, end):
    copy = appender.path.parent / "copy"
    copy.mkdir(exist_ok=True)
    path = copy / appender.path.name
    path.write_bytes(appender.path.read_bytes()[: end.position])
    right = index_bytes(Segment(path), LogConfig.of(SMALL))
    return {".index": right.offset_index, ".timeindex": right.time_index}


def test_a_segment_that_could_not_be_made_leaves_nothing(tmp_path):
    for k in range(5):
        with pytest.raises(StorageError):
            create(tmp_path, FailingFs(OsFileSystem(), fail_at=k, error=errno.ENOSPC, once=True))
        assert not list(tmp_path.iterdir())
    with pytest.raises(StorageError) as raised:
        create(tmp_path, FailingFs(OsFileSystem(), fail_at=2, error=errno.ENOSPC))
    assert sum("could not be removed" in note for note in raised.value.__notes__) == len(list(tmp_path.iterdir())) == 2


def test_an_interrupted_append_is_the_last(tmp_path):
    appender = create(tmp_path)
    append(appender)
    end = appender.end

    def interrupt(*_):
        raise KeyboardInterrupt

    appender._log.append_bytes = interrupt
    with pytest.raises(KeyboardInterrupt):
        append(appender)
    assert appender.end == end
    with pytest.raises(StorageError, match="interrupted by KeyboardInterrupt"):
        append(appender)
    appender.close()


@settings(max_examples=50)
@given(rolling)
def test_quiet_appends_write_what_the_others_write(tmp_path_factory, program):
    config = {"segment.index.bytes": 36, "index.interval.bytes": 250}
    directory = tmp_path_factory.mktemp("segment")
    (directory / "quiet").mkdir()
    (directory / "plain").mkdir()
    quiet, plain = create(directory / "quiet", **config), create(directory / "plain", **config)
    quiet.seen = PublishedEnd(quiet.end)
    for step in program:
        if step[0] == "reopen" or plain.index_entries_left <= 0:
            continue
        timestamp, value_size, _ = step
        offset = plain.next_offset
        raw = batch(offset, timestamp, value_size)
        plain.append_batch(raw, offset, offset, timestamp)
        if quiet.append_quietly(raw, offset, offset, timestamp):
            assert quiet.seen.at == quiet.end
        else:
            quiet.append_batch(raw, offset, offset, timestamp)
        assert quiet.end == plain.end
        assert quiet.end is quiet.end       # by which readers tell that nothing came
        assert quiet.index_entries_left == plain.index_entries_left
    finish(quiet)
    finish(plain)
    assert files(quiet) == files(plain)


def test_an_append_is_quiet_only_behind_the_end_and_on_a_segment_that_takes_batches(tmp_path):
    appender = create(tmp_path)
    append(appender, NOW)
    raw = batch(BASE + 1, NOW)
    assert not appender.append_quietly(raw, BASE, BASE, NOW)
    assert appender.append_quietly(raw, BASE + 1, BASE + 1, NOW)
    assert not appender.append_quietly(batch(BASE + 2, NOW), BASE + 2, BASE + 2, NOW + 10**12)
    end = appender.end
    finish(appender)
    assert not appender.append_quietly(batch(BASE + 2, NOW), BASE + 2, BASE + 2, NOW)
    assert appender.end[:2] == end[:2]


def test_entries_wait_for_each_other_and_are_not_counted_before_they_are_written(tmp_path):
    appender = create(tmp_path, **{"index.interval.bytes": 0})
    seen = []
    for n in range(100):
        append(appender, NOW + n)
        seen.append((appender.end.offset_entries, len(files(appender)[".index"]) // 8))
    assert all(counted == written for counted, written in seen)
    assert 1 < len(set(seen)) < 10
    appender.write_entries()
    assert appender.end.offset_entries == 99
    finish(appender)
    assert files(appender) == rebuilt(appender, **{"index.interval.bytes": 0})


def test_a_crash_at_any_point_leaves_what_was_synced_and_a_state_that_goes_on(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    record = RecordingFs(disk)
    run(disk, record, record.mark)
    seen = 0
    for state in record.crash_states(limit=600, seed=4):
        with state.materialise() as directory:
            log = directory / f"{BASE:020d}.log"
            promised = max((end.position for end in state.marks), default=0)
            raw = log.read_bytes() if log.exists() else b""
            assert len(raw) >= promised, state.story()
            table = scan(Window(raw), check_crc=True)
            assert table.end >= promised, state.story()
            if not log.exists():
                continue
            # What recovery does to the log; the indexes are left as the crash left them.
            log.write_bytes(raw[: table.end])
            next_offset = table[len(table) - 1].last_offset + 1 if len(table) else BASE
            again = SegmentAppender.open(
                OsFileSystem(), directory, BASE, LogConfig.of(SMALL), table.end, next_offset, NOW
            )
            append(again, NOW + 10**6)
            finish(again)
            assert log.read_bytes()[: table.end] == raw[: table.end]
            seen += 1
    assert seen > 200
