"""`seglog.scan`: rows of partitions as Arrow, against what real Kafka read; what is asked for by time and offset."""
import gc
import pickle
import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import polars
import pyarrow
import pyarrow.parquet
import pytest

import seglog
import seglog.polars
from seglog._kernels.arena import ArenaPool
from seglog.errors import (
    CorruptRecordError,
    InvalidArgumentError,
    NotALogError,
    OffsetOutOfRangeError,
    StorageError,
)
from seglog.frames.part import ScanPart
from seglog.fs import mapping
from seglog.upkeep.index_rebuild import rebuild_indexes
from support.table_rows import COLUMNS, by_partition, directories, expected_rows, rows_of_table

T = 1_700_000_000_000
SCHEMA = pyarrow.schema([
    pyarrow.field("key", pyarrow.binary()),
    pyarrow.field("value", pyarrow.binary()),
    pyarrow.field("topic", pyarrow.dictionary(pyarrow.int8(), pyarrow.string()), nullable=False),
    pyarrow.field("partition", pyarrow.int32(), nullable=False),
    pyarrow.field("offset", pyarrow.int64(), nullable=False),
    pyarrow.field("timestamp", pyarrow.timestamp("us", "UTC")),
    pyarrow.field("timestampType", pyarrow.int32(), nullable=False),
    pyarrow.field("headers", pyarrow.list_(pyarrow.field("item", pyarrow.struct([
        pyarrow.field("key", pyarrow.string(), nullable=False), pyarrow.field("value", pyarrow.binary()),
    ]), nullable=False)), nullable=False),
])


@pytest.fixture
def orders(tmp_path):
    """Two partitions of some segments each. Record n of a partition: key b"k<n % 7>", time T + n."""
    for partition in range(2):
        with seglog.open(tmp_path / f"data/orders-{partition}", fsync="never", config={
            "segment.bytes": 3000, "index.interval.bytes": 100, "retention.ms": -1,
            "seglog.time.index.ranges.enabled": partition == 1,
        }) as log:
            for n in range(0, 600, 5):
                log.append_many([
                    (b"k%d" % (m % 7), b"value %d" % m, (("h", b"%d" % m),), T + m) for m in range(n, n + 5)
                ])
            assert len(log.segments) > 5
    return tmp_path / "data"


@pytest.fixture(scope="module")
def whole():
    return seglog.scan(directories(), include_headers=True).to_arrow()


def offsets(scan):
    table = scan.to_arrow()
    table.validate(full=True)
    return list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


def test_every_golden_topic_reads_as_kafka_read_it():
    scan = seglog.scan(directories(), include_headers=True)
    assert scan.columns == COLUMNS
    table = scan.to_arrow()
    table.validate(full=True)
    assert table.schema.equals(SCHEMA, check_metadata=True)
    assert by_partition(rows_of_table(table)) == {k: rows for k, rows in expected_rows().items() if rows}
    assert table.num_rows > 9000


@pytest.mark.parametrize("threads", [1, 3])
def test_the_stream_can_be_asked_for_again_and_in_views(threads):
    scan = seglog.scan(directories()[::5], include_headers=True, threads=threads)
    whole = scan.to_arrow()
    for _ in range(2):
        assert pyarrow.table(scan) == whole
    views = seglog.scan(directories()[::5], include_headers=True, binary_view=True, threads=threads)
    table = pyarrow.table(views)
    table.validate(full=True)
    assert table.schema.field("value").type == pyarrow.binary_view()
    assert table["value"].to_pylist() == whole["value"].to_pylist()
    assert table["key"].to_pylist() == whole["key"].to_pylist()


@pytest.mark.parametrize("columns", [
    ["offset"], ["key"], ["value", "offset"], ["headers"], ["timestampType", "topic"], ["headers", "key"],
    ["value", "headers"], ["partition", "key", "value"],
])
def test_columns_that_are_not_asked_for_change_nothing(columns, whole):
    # All formats, codecs and wrappers: the loop of each choice, and the careful parser behind it.
    scan = seglog.scan(directories(), columns=columns)
    table = scan.to_arrow()
    table.validate(full=True)
    assert table == whole.select(columns)


def test_nothing_is_opened_before_rows_are_asked_for(tmp_path):
    scan = seglog.scan(tmp_path / "later-0")
    stream = scan.__arrow_c_stream__()
    assert pyarrow.schema(scan).names == list(COLUMNS[:-1])
    del stream
    with pytest.raises(StorageError, match="cannot open: no such file or directory"):
        scan.to_arrow()
    with seglog.open(tmp_path / "later-0") as log:
        log.append(b"v")
    assert scan.to_arrow().num_rows == 1


def test_paths_are_partitions_patterns_and_log_dirs(orders):
    everything = offsets(seglog.scan(orders))
    assert everything == [(p, n) for p in range(2) for n in range(600)]
    assert offsets(seglog.scan(orders / "orders-*")) == everything
    assert offsets(seglog.scan([orders / "orders-1", str(orders / "orders-0"), orders])) == everything
    assert offsets(seglog.scan(orders / "orders-1")) == [(1, n) for n in range(600)]
    with pytest.raises(StorageError, match="orders-9"):
        seglog.scan(orders / "orders-9").to_arrow()
    with pytest.raises(NotALogError, match=r"other-\*"):
        seglog.scan(orders / "other-*").to_arrow()
    with pytest.raises(InvalidArgumentError, match="no store for"):
        seglog.scan("ftp://bucket/data").parts()
    for wrong in (7, [], [None]):
        with pytest.raises(InvalidArgumentError):
            seglog.scan(wrong)


def test_ranges_of_offsets_and_times_hold_just_those(orders):
    for start, stop in ((0, 600), (3, 4), (100, 477), (599, 9999), (250, 250), (-5, 2)):
        expected = [(p, n) for p in range(2) for n in range(600) if start <= n < stop]
        assert offsets(seglog.scan(orders, from_offset=start, to_offset=stop)) == expected
        assert offsets(seglog.scan(orders, since=T + start, until=T + stop)) == expected
        assert offsets(seglog.scan(orders, since=T + start, until=T + stop, on_corrupt="skip")) == expected
    both = seglog.scan(orders, since=T + 100, to_offset=105)
    assert offsets(both) == [(p, n) for p in range(2) for n in range(100, 105)]


@pytest.mark.parametrize("name", ["ts-odd-v2-k391", "ts-odd-v1-k282", "v1-gzip-ct-k391", "v1-lz4-lat-k391",
                                  "v2-gzip-lat-k282", "mixed-formats-k391", "v0-gzip-ct-k282"])
@pytest.mark.parametrize("has_ranges", [False, True])
def test_times_in_any_order_miss_no_row(golden_kafka, tmp_path, name, has_ranges):
    source = golden_kafka / "cases" / name / f"{name}-0"
    if has_ranges:
        source = shutil.copytree(source, tmp_path / source.name)
        rebuild_indexes(source, time_ranges=True)
    rows = expected_rows()[name, 0]
    times = sorted({row[5] // 1000 for row in rows if row[5] is not None} | {0})
    for since in times[:: max(len(times) // 6, 1)]:
        for until in (*times[:: max(len(times) // 5, 1)], times[-1] + 1):
            scan = seglog.scan(source, since=since, until=until, columns=["offset"])
            expected = [r[4] for r in rows if since * 1000 <= (-1000 if r[5] is None else r[5]) < until * 1000]
            assert scan.to_arrow()["offset"].to_pylist() == expected, (since, until)


def test_a_part_reads_by_itself_wherever_it_is(orders):
    scan = seglog.scan(orders / "orders-0", include_headers=True)
    whole = scan.to_arrow()
    for min_bytes in (300, 1500, 1 << 20):
        parts = pickle.loads(pickle.dumps(scan.parts(min_bytes)))
        batches = [pyarrow.record_batch(rows) for part in parts for rows in part.batches()]
        assert pyarrow.Table.from_batches(batches).combine_chunks() == whole.combine_chunks()
        for before, after in pairwise(parts):
            if before.partition == after.partition:
                assert before.stop_offset == after.start_offset
        held = [[r for b in part.batches() for r in pyarrow.record_batch(b)["offset"].to_pylist()] for part in parts]
        assert all(set(rows) == set(range(p.start_offset, min(p.stop_offset, 600))) for rows, p in
                   zip(held, parts, strict=True))
    assert len(scan.parts(300)) > 2 * len(scan.parts(1 << 20)) > 10


def test_a_part_of_a_file_that_was_exchanged_is_refused(orders):
    part = seglog.scan(orders / "orders-0").parts()[2]
    other = orders / "other"
    shutil.copy(part.path, other)
    other.rename(part.path)
    with pytest.raises(OffsetOutOfRangeError):
        list(part.batches())


@pytest.mark.parametrize("name", ["txn-v2-k282", "txn-v2-k391", "txn-v2-k411"])
def test_committed_records_are_those_that_a_committed_read_gives(golden_kafka, name):
    directory = golden_kafka / "cases" / name / f"{name}-0"
    with seglog.open_partition(directory) as partition:
        expected = [r.offset for r in partition.read(isolation="read_committed")]
    scan = seglog.scan(directory, isolation="read_committed", columns=["offset"])
    assert scan.to_arrow()["offset"].to_pylist() == expected
    assert 0 < len(expected) < seglog.scan(directory).to_arrow().num_rows
    parts = [pickle.loads(pickle.dumps(part)) for part in scan.parts(1)]
    assert [n for part in parts for rows in part.batches() for n in range(rows.first_offset, rows.last_offset + 1)
            if n in expected] == expected


@pytest.mark.parametrize("threads", [1, 2])
def test_damage_is_named_or_skipped_with_a_report(orders, threads):
    path = sorted((orders / "orders-1").glob("*.log"))[2]
    raw = bytearray(path.read_bytes())
    raw[700] ^= 1
    path.write_bytes(raw)
    scan = seglog.scan(orders, threads=threads)
    with pytest.raises(CorruptRecordError) as caught:
        scan.to_arrow()
    lost_at = int(path.name[:20])
    assert caught.value.file == str(path) or caught.value.file == path
    assert lost_at < caught.value.offset < lost_at + 60
    with pytest.raises(Exception, match=path.name):
        pyarrow.table(scan)
    skipping = seglog.scan(orders, on_corrupt="skip", threads=threads)
    rows = offsets(skipping)
    [lost] = skipping.lost
    gone = set(range(lost.first_offset, lost.last_offset + 1))
    assert 0 < len(gone) <= 5
    assert rows == [(p, n) for p in range(2) for n in range(600) if p == 0 or n not in gone]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_reader_that_stops_early_leaves_nothing_behind(orders, threads):
    for count in (1, 3):
        rows = seglog.scan(orders, threads=threads).batches()
        for _ in range(count):
            next(rows)
        rows.close()
    reader = seglog.scan(orders, threads=threads).to_reader()
    reader.read_next_batch()
    del reader
    gc.collect()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("seglog-scan")]
    assert not [line for line in Path("/proc/self/maps").read_text().splitlines() if str(orders) in line]


def test_an_interrupt_of_the_wait_for_the_threads_is_told_as_such(orders, monkeypatch):
    """A second Ctrl-C."""
    begun, walking, release, closed = [], threading.Event(), threading.Event(), threading.Event()
    work = ScanPart.work

    def slow(self, *arguments, **options):
        try:
            for piece in work(self, *arguments, **options):
                begun.append(piece)
                if len(begun) > 1 and threading.current_thread() is not threading.main_thread():
                    walking.set()
                    release.wait(60)
                yield piece
        finally:
            if release.is_set():
                closed.set()

    def interrupted(self, wait):
        raise KeyboardInterrupt

    monkeypatch.setattr(ScanPart, "work", slow)
    rows = seglog.scan(orders, threads=2).batches()
    next(rows)
    while not walking.wait(0.5):        # we have run all permitted pieces: taking a result permits one more
        next(rows)
    with monkeypatch.context() as patched:
        patched.setattr(ThreadPoolExecutor, "shutdown", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rows.close()
    del rows
    release.set()
    gc.collect()
    assert closed.wait(60)
    for thread in threading.enumerate():
        if thread.name.startswith("seglog-scan"):
            thread.join(60)
            assert not thread.is_alive()


def test_an_open_log_is_read_to_its_published_end(tmp_path):
    with seglog.open(tmp_path / "live-0", fsync="never", config={"segment.bytes": 2000}) as log:
        by_path = seglog.scan(tmp_path / "live-0", columns=["offset"])
        by_log = seglog.scan(log, columns=["offset"])
        for n in range(60):
            log.append(b"v" * 40)
            if n % 10 == 0:
                assert by_log.to_arrow().num_rows == by_path.to_arrow().num_rows == n + 1
        assert len(log.segments) > 1
        assert by_path.to_arrow()["offset"].to_pylist() == list(range(60))
        parts = by_path.parts()
        log.append_many([(None, b"more")] * 20)
        # What was planned before is read as it was planned.
        assert sum(len(rows) for part in parts for rows in part.batches()) == 60
        assert by_log.to_arrow().num_rows == 80


def test_a_torn_tail_is_no_damage(orders):
    path = sorted((orders / "orders-0").glob("*.log"))[-1]
    whole = offsets(seglog.scan(orders))
    path.write_bytes(path.read_bytes() + b"\0\0\0\0\0\0\2\x58\0\0\1")
    assert offsets(seglog.scan(orders)) == whole


def test_text_is_checked(tmp_path):
    with seglog.open(tmp_path / "t-0") as log:
        log.append_many([(None, "grüße 🙂".encode()), (b"k", None), (b"", b"{}")])
        text = seglog.scan(log, decode="utf8").to_arrow()
        assert text["value"].to_pylist() == ["grüße 🙂", None, "{}"]
        assert text["key"].to_pylist() == [None, "k", ""]
        only = seglog.scan(log, decode={"value": "utf8"}, columns=["key", "value"]).to_arrow()
        assert [field.type for field in only.schema] == [pyarrow.binary(), pyarrow.string()]
        json = seglog.scan(log, decode={"value": "json"}, from_offset=1).to_arrow()
        assert json.schema.field("value").type == pyarrow.json_()
        # A character that two records share is none of either.
        malformed = (b"\xc3", b"\xbc"), (b"ok", b"\xff"), (b"a", b"\xed\xa0\x80"), (b"", b"\xf4\x90\x80\x80")
        for first, second in malformed:
            log.append_many([(None, first), (None, second)])
            bad = log.log_end_offset - (1 if first in (b"ok", b"a", b"") else 2)
            with pytest.raises(InvalidArgumentError, match=f"value at offset {bad} of t-0 is not UTF-8"):
                seglog.scan(log, decode="utf8", from_offset=log.log_end_offset - 2).to_arrow()
    for wrong in ("latin1", {"value": "x"}, {"other": "utf8"}, 3):
        with pytest.raises(InvalidArgumentError, match="decode"):
            seglog.scan(tmp_path, decode=wrong)


@pytest.mark.parametrize("kind", ["utf8", "json"])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_text_that_is_not_utf8_is_null_on_request_and_counted(tmp_path, kind, codec):
    """on_undecodable was ignored: the first other bytes ended the scan."""
    dice = random.Random(5)
    several = (None, b"", b"ok", b"\xff", b"\xc3", b"\xbc", "grüße 🙂".encode() * 9, b"\xed\xa0\x80" * 9)
    values = dice.choices(several, k=500)
    with seglog.open(tmp_path / "t-0", config={"compression.type": codec}) as log:
        for first in range(0, 500, 50):
            log.append_many([(value, b"\xff", (("h", b"\xff"),)) for value in values[first:first + 50]])

    def text(value):
        try:
            return None if value is None else value.decode()
        except UnicodeDecodeError:
            return None

    expected = [text(value) for value in values]
    bad = sum(one is None for one in expected) - values.count(None)
    scan = seglog.scan(tmp_path / "t-0", decode={"key": kind}, on_undecodable="null", include_headers=True)
    table = scan.to_arrow()
    table.validate(full=True)
    assert table["key"].to_pylist() == expected
    assert table["value"].to_pylist() == [b"\xff"] * 500       # without a kind they are bytes
    assert scan.undecodable == {"key": bad}
    lazy = seglog.polars.scan_topic(seglog.scan(tmp_path / "t-0", decode=kind, on_undecodable="null"))
    assert lazy.select("key", "value").collect().rows() == [(one, None) for one in expected]
    assert lazy.filter(polars.col("key") == "ok").collect().height == values.count(b"ok")
    some = seglog.scan(tmp_path / "t-0", decode=kind, on_undecodable="null", from_offset=123, to_offset=456)
    assert some.to_arrow()["key"].to_pylist() == expected[123:456]
    seglog.write_table(
        seglog.scan(tmp_path / "t-0", decode=kind, on_undecodable="null", columns=["key"]), tmp_path / "table")
    assert pyarrow.parquet.read_table(tmp_path / "table")["key"].to_pylist() == expected
    for other in ("fail", "raw"):
        with pytest.raises(InvalidArgumentError, match="is not UTF-8") as caught:
            seglog.scan(tmp_path / "t-0", decode=kind, on_undecodable=other).to_arrow()
        assert "on_undecodable='null' makes it null" in caught.value.hint


def test_header_keys_that_are_no_text_read_as_clients_read_them(tmp_path):
    with seglog.open(tmp_path / "t-0") as log:
        log.append_batch(seglog.build_batch([(b"k", b"v", (("h\udcff", b"1"), ("ü", None)))]))
        [headers] = seglog.scan(log, columns=["headers"]).to_arrow()["headers"].to_pylist()
    assert headers == [{"key": "h\ufffd", "value": b"1"}, {"key": "ü", "value": None}]


def test_times_beyond_microseconds_keep_their_order(tmp_path):
    times = [-(2**63) // 1000 - 1, -5, 0, 2**63 // 1000 + 1, 2**63 - 1]
    with seglog.open(tmp_path / "t-0", config={"message.timestamp.after.max.ms": 2**63 - 1,
                                               "message.timestamp.before.max.ms": 2**63 - 1}) as log:
        log.append_batch(seglog.build_batch([(None, b"v", (), t) for t in times if t >= 0]))
        found = seglog.scan(log).to_arrow()["timestamp"].cast("int64").to_pylist()
        assert found == [0, 2**63 - 1, 2**63 - 1]
        assert seglog.scan(log, since=2**63 // 1000 + 2).to_arrow().num_rows == 1


def test_wrong_columns_are_refused(tmp_path):
    for wrong in (["nothing"], [], ["key", "key"], "key"):
        with pytest.raises(InvalidArgumentError):
            seglog.scan(tmp_path, columns=wrong)
    for wrong in ({"threads": 0}, {"isolation": "x"}, {"on_corrupt": "x"}, {"from_offset": 1.5}, {"since": "soon"}):
        with pytest.raises(InvalidArgumentError):
            seglog.scan(tmp_path, **wrong)


def test_pieces_make_ready_what_threads_get_to_next(tmp_path, monkeypatch):
    """Outside of the lock under which pieces are handed out: with two threads, the chunk after the next one."""
    with seglog.open(tmp_path / "orders-0", fsync="never", config={"segment.bytes": 1 << 20}) as log:
        for _ in range(40):
            log.append(bytes(10_000))
    [part] = seglog.scan(tmp_path / "orders-0").parts()
    calls = []
    monkeypatch.setattr(mapping.Mapping, "load", lambda log, position, size: calls.append(("load", position, size)))
    chunk = ArenaPool(100_000, 0)
    work = part.work(pool=chunk, threads=2)
    piece = next(work)
    calls.clear()
    rows, error = piece()
    stop = sum(map(len, rows)) * part.size_bytes // 40
    assert error is None
    assert calls == [("load", stop + 100_000, 100_000)]
    *_, last = work
    calls.clear()
    last()
    assert calls == []          # there is nothing left
    [*pieces] = part.work(pool=chunk)
    calls.clear()
    pieces[0]()
    assert calls == [("load", stop, 100_000)]
