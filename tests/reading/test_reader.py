"""Reading a log that grows, rolls and loses segments; isolation; ranges."""
import base64
import gzip
import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seglog
from seglog.errors import (
    CorruptRecordError,
    InvalidArgumentError,
    LogClosedError,
    NoRecordError,
    OffsetOutOfRangeError,
)
from seglog.reading.partition import open_partition
from seglog.segment.positions import TimestampOffset
from support.golden import golden_cases
from support.growing_log import GrowingLog
from support.lookups import offset_at


def rows_of(case):
    with gzip.open(case / "expected.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def offsets(records):
    return [r.offset for r in records]


@pytest.fixture
def log(tmp_path):
    with GrowingLog(tmp_path / "growing-0") as log:
        yield log


# --- growing ---------------------------------------------------------------------------------


def test_a_read_ends_at_the_end_as_of_the_call(log):
    log.append([b"a", b"b"])
    records, batches, columns, tables = log.read(), log.batches(), log.columns(), log.tables()
    tail = log.tail(1)
    log.append([b"c"])
    assert [r.value for r in records] == [b"a", b"b"]
    assert [r.value for r in tail] == [b"b"]
    assert len(list(batches)) == len(list(tables)) == 1
    assert [list(chunk.offset) for chunk in columns] == [[0, 1]]
    assert [r.value for r in log] == [b"a", b"b", b"c"]


@pytest.mark.parametrize(("start", "stop"), [(5, 5), (5, 4), (5, 3), (4, 4), (6, 6), (None, 0)])
def test_an_empty_range_has_nothing_even_inside_of_a_batch(log, start, stop):
    for _ in range(3):
        log.append([b"a", b"b", b"c"])
    with open_partition(log.path) as closed:
        for reader in (log, closed):
            for read in (reader.read, reader.batches, reader.columns, reader.tables):
                assert [*read(start, stop)] == []
    assert [(batch.base_offset, batch.last_offset) for batch in log.batches(5, 6)] == [(3, 5)]


def test_nothing_behind_the_published_end_is_seen(log):
    log.append([b"a"], timestamp=1000)
    size = log.segments[0].size_bytes
    with open(log.segments[0].path, "ab") as file:
        file.write(b"\xff" * 100)       # half of what is being appended
    assert [r.value for r in log.read()] == [b"a"]
    assert (log.log_end_offset, len(log.segments[0].window)) == (1, size)
    assert offset_at(log, 2000) is None
    with pytest.raises(OffsetOutOfRangeError, match=r"\[0, 1\)"):
        log[1]


def test_every_offset_and_time_is_found_while_the_log_grows_and_rolls(log):
    for n in range(60):
        log.append([b"%d" % n, None], timestamp=1000 + n)
        if n % 25 == 24:
            log.roll()
        assert (log[2 * n].value, log[2 * n + 1].value) == (b"%d" % n, None)
        assert log[n].offset == n
        assert offset_at(log, 1000 + n // 2) == n // 2 * 2
        assert offset_at(log, 1001 + n) is None
        segment, found = log.find_offset(2 * n)
        assert (segment.base_offset, found.last_offset) == (n // 25 * 50, 2 * n + 1)


def test_a_growing_segment_is_mapped_once(log):
    log.append([b"x" * 100])
    assert log[0].value == b"x" * 100
    mapped = log.segments[0].files().log
    for n in range(300):
        log.append([b"x" * 100])
        assert log[n].offset == n
    assert log.segments[0].files().log is mapped
    for _ in range(20):                         # past what was reserved
        log.append([b"x" * 100_000])
    assert [len(r.value) for r in log.read(start=299)] == [100, 100, *[100_000] * 20]


def test_readers_see_what_is_published_and_nothing_else_while_others_append(log):
    failures = []
    done = threading.Event()

    def read():
        try:
            while not done.is_set():
                end = log.log_end_offset
                got = offsets(log.read())
                assert got == list(range(len(got)))
                assert len(got) >= end
                if end:
                    assert log[end - 1].value == b"%d" % (end - 1)
                    assert offset_at(log, 1000 + end // 2) == end // 2
        except BaseException as e:
            failures.append(e)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for n in range(2000):
        log.append([b"%d" % n], timestamp=1000 + n)
        if n % 300 == 299:
            log.roll()
    done.set()
    for reader in readers:
        reader.join()
    assert failures == []


TIMES = st.integers(0, 40)
STEPS = st.one_of(
    st.tuples(st.just("append"), st.lists(TIMES, min_size=1, max_size=4)),
    st.tuples(st.just("roll"), st.none()),
    st.tuples(st.just("delete"), st.integers(0, 3)),
    st.tuples(st.just("read"), st.tuples(st.integers(0, 60), st.integers(0, 60), TIMES, TIMES)),
)


@given(st.lists(STEPS, max_size=40))
def test_reads_are_those_of_a_list(tmp_path_factory, steps):
    model = []      # (offset, timestamp)
    with GrowingLog(tmp_path_factory.mktemp("model") / "growing-0") as log:
        for step, argument in steps:
            if step == "append":
                model += [(log.next_offset + n, t) for n, t in enumerate(argument)]
                log.append([b""] * len(argument), argument)
            elif step == "roll" and log.segments[-1].size_bytes:
                log.roll()
            elif step == "delete":
                log.delete_before(min(argument, len(log.segments) - 1))
                model = [row for row in model if row[0] >= log.log_start_offset]
            elif step == "read":
                start, stop, since, until = argument
                rows = [row for row in model if start <= row[0] < stop]
                assert [(r.offset, r.timestamp) for r in log._records_in_files(start, stop)] == rows
                got = offsets(log.read(start, stop, since=since, until=until, on_out_of_range="earliest"))
                if log.log_start_offset <= start <= log.log_end_offset:
                    assert got == [o for o, t in rows if since <= t < until]
                assert offset_at(log, since) == next((o for o, t in model if t >= since), None)
                assert offsets(log.tail(start)) == [o for o, _ in model][max(len(model) - start, 0):]
                assert log.offset_for_time(-3) == max(
                    (TimestampOffset(t, o) for o, t in model), key=lambda t: (t.timestamp, -t.offset), default=None
                )
                held = dict(model)
                for offset in range(log.log_start_offset, log.log_end_offset):
                    assert log[offset].timestamp == held[offset]


# --- segments that go ------------------------------------------------------------------------


def test_a_read_in_a_segment_that_is_removed_goes_on_and_ends_at_the_next_one(log):
    for n in range(4):
        log.append([b"%d" % n])
        log.roll()
    records = log.read()
    assert next(records).value == b"0"
    log.delete_before(3)
    with pytest.raises(OffsetOutOfRangeError, match=r"\[3, 4\)"):
        list(records)
    assert offsets(log.read()) == [3]


def test_what_was_read_before_stays_and_nothing_is_read_after_close(log):
    log.append([b"a"])
    log.roll()
    log.append([b"b"])
    records = log.read()
    first = next(records)
    segment = log.segments[0]
    log.close()
    log.close()
    assert first.value == b"a"
    for ask in (
        log.read, log.columns, log.batches, lambda: log[0], lambda: offset_at(log, 0), lambda: next(records),
        lambda: log.tail(1), lambda: log.log_end_offset, lambda: segment.find_offset(0), lambda: log.find_offset(0),
    ):
        with pytest.raises(LogClosedError):
            ask()


def test_a_closed_partition_is_read_no_more(golden_kafka):
    p = open_partition(golden_kafka / "cases/v2-none-ct-k391/v2-none-ct-k391-0")
    p.close()
    for ask in (p.read, lambda: p[0], lambda: p.segments):
        with pytest.raises(LogClosedError):
            ask()


# --- range -----------------------------------------------------------------------------------


def test_an_offset_out_of_range_is_refused_by_name_of_the_range_or_moved_into_it(log):
    for n in range(3):
        log.append([b"%d" % n])
        log.roll()
    log.delete_before(1)
    for outside in (0, 4, -1, 2**70):
        with pytest.raises(OffsetOutOfRangeError, match=r"\[1, 3\)"):
            log.read(outside)
        with pytest.raises(OffsetOutOfRangeError, match=r"\[1, 3\)"):
            log[outside]
        assert offsets(log.read(outside, on_out_of_range="earliest")) == [1, 2]
        assert offsets(log.read(outside, on_out_of_range="latest")) == []
    assert offsets(log.read(3)) == []
    assert offsets(log.read(2, on_out_of_range="latest")) == [2]


@pytest.mark.parametrize("wrong", [
    {"isolation": "serializable"}, {"on_out_of_range": "nearest"}, {"on_corrupt": "ignore"}, {"start": "0"},
])
def test_what_cannot_be_meant_is_refused_at_the_call(log, wrong):
    with pytest.raises(InvalidArgumentError):
        log.read(**wrong)


@pytest.mark.parametrize("offset", ["0", slice(0, 1), 1.5])
def test_what_is_no_offset_gives_no_record(log, offset):
    log.append([b"a"])
    with pytest.raises(InvalidArgumentError):
        log[offset]


# --- real logs -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", golden_cases(), ids=lambda case: case.name)
def test_each_offset_gives_its_record_or_says_that_there_is_none(case):
    rows = {r["offset"]: r for r in rows_of(case)}
    with open_partition(case / f"{case.name}-0") as p:
        for offset in sorted({o + n for o in rows for n in (-1, 0, 1)}):
            row = rows.get(offset)
            if not p.log_start_offset <= offset < p.log_end_offset:
                with pytest.raises(OffsetOutOfRangeError):
                    p[offset]
            elif row is None or row["control"]:
                with pytest.raises(NoRecordError):
                    p[offset]
            else:
                assert (p[offset].offset, p[offset].timestamp) == (offset, row["timestamp"])


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("case", golden_cases(), ids=lambda case: case.name)
def test_the_last_records_are_those_that_a_read_ends_with(case, isolation):
    with open_partition(case / f"{case.name}-0") as p:
        everything = offsets(p.read(isolation=isolation))
        count = len(everything)
        for n in {0, 1, 2, 3, 7, count // 2, max(count - 1, 0), count, count + 1, 2**70}:
            assert offsets(p.tail(n, isolation=isolation)) == everything[max(count - n, 0):]


@pytest.mark.parametrize("is_last", [True, False])
def test_a_damaged_batch_is_an_error_if_it_is_among_the_last_and_none_if_it_is_not(log, is_last):
    """The numbers of records come from headers, whose checksums nothing has checked yet."""
    for _ in range(4):
        log.append([b"a", b"b", b"c"])
        log.roll()
    log.close()
    path = sorted(log.path.glob("*.log"))[2 if is_last else 0]
    raw = bytearray(path.read_bytes())
    raw[60] ^= 2        # the number of records: 3 becomes 1
    path.write_bytes(raw)
    with open_partition(log.path) as p:
        if is_last:
            for n in (4, 5, 6):
                with pytest.raises(CorruptRecordError):
                    list(p.tail(n))
        assert offsets(p.tail(3)) == [9, 10, 11]
        assert is_last or offsets(p.tail(8)) == [4, 5, 6, 7, 8, 9, 10, 11]


TRANSACTIONAL = [case for case in golden_cases() if "txn" in case.name]


def committed(rows, stable):
    """Below the last stable offset, without what a marker anywhere behind aborts."""
    aborted, open_since = set(), {}
    for row in rows:
        if row["transactional"] and not row["control"]:
            open_since.setdefault(row["producer_id"], []).append(row["offset"])
        elif row["control"]:
            ended = open_since.pop(row["producer_id"], [])
            if base64.b64decode(row["key"]) == b"\0\0\0\0":        # version 0, type 0: abort
                aborted.update(ended)
    return [
        r["offset"] for r in rows if r["offset"] < stable and r["offset"] not in aborted and not r["control"]
    ]


@pytest.mark.parametrize("case", TRANSACTIONAL, ids=lambda case: case.name)
def test_a_reader_of_committed_records_sees_them_and_no_others(case):
    rows = rows_of(case)
    with gzip.open(case / "lookups.json.gz", "rt") as f:
        stable = json.load(f)["last_stable_offset"]
    expected = committed(rows, stable)
    assert set(expected) < {r["offset"] for r in rows if not r["control"]}
    with open_partition(case / f"{case.name}-0") as p:
        assert p.last_stable_offset == stable
        assert offsets(p.read(isolation="read_committed")) == expected
        for start in range(p.log_start_offset, p.log_end_offset):
            wanted = [o for o in expected if o >= start]
            assert offsets(p.read(start, isolation="read_committed")) == wanted
            columns = [o for chunk in p.columns(start, isolation="read_committed") for o in chunk.offset]
            assert [o for o in columns if o >= start] == wanted
        held = {r.offset for b in p.batches(isolation="read_committed") if not b.is_control for r in b}
        assert held == set(expected)
        assert offsets(p.read(2**40, on_out_of_range="latest", isolation="read_committed")) == []


# --- damage below what is asked for --------------------------------------------------------------


@pytest.fixture(params=["checksum", "size"])
def damaged_below(tmp_path, request):
    """Batches of one record each at 0…9; the fourth is damaged, without an index entry behind it."""
    with seglog.open(tmp_path / "orders-0") as log:
        for n in range(10):
            log.append(b"%d" % n)
        position = log.find_offset(3)[1].position
    path = tmp_path / f"orders-0/{0:020}.log"
    raw = bytearray(path.read_bytes())
    raw[position + (66 if request.param == "checksum" else 8)] ^= 0x40
    path.write_bytes(raw)
    return tmp_path / "orders-0"


@pytest.mark.parametrize("start", [4, 9, 10])
def test_a_read_begins_behind_damage_below_its_start(damaged_below, start):
    """Red: CorruptRecordError at offset 3. Kafka's translateOffset looks at headers only."""
    with seglog.open_partition(damaged_below) as log:
        assert [record.offset for record in log.read(start)] == list(range(start, 10))
        skipping = log.read(start, on_corrupt="skip")
        assert [record.offset for record in skipping] == list(range(start, 10))
        assert list(skipping.lost) == []
        assert log.log_end_offset == 10
        assert start == 10 or log[start].offset == start
        assert [record.offset for record in log.tail(10 - start)] == list(range(start, 10))


@pytest.mark.parametrize("start", [0, 3])
def test_a_read_still_stops_at_damage_from_its_start_on(damaged_below, start):
    with seglog.open_partition(damaged_below) as log:
        with pytest.raises(CorruptRecordError) as caught:
            list(log.read(start))
        assert caught.value.offset == 3
        with pytest.raises(CorruptRecordError):
            log[3]
        skipping = log.read(start, on_corrupt="skip")
        assert [record.offset for record in skipping] == [n for n in range(start, 10) if n != 3]
        assert [(lost.first_offset, lost.last_offset) for lost in skipping.lost] == [(3, 3)]
