"""Topics on an object store as tables: the rows of the files on a disk, by the bytes that indexes lead to."""
import datetime as dt
import pickle
import shutil
import threading

import polars as pl
import pytest

import seglog
import seglog.polars
from seglog.errors import CorruptIndexError, CorruptRecordError, InvalidArgumentError, NotALogError, StorageError
from seglog.frames import ahead, stored
from seglog.frames.bounds import Bounds
from seglog.state.producer_snapshot import ProducerSnapshot
from seglog.stores.object_store import ObjectStore
from support.command import seglog as command
from support.golden import golden_cases
from support.objects_on_disk import ObjectsOnDisk, count_parts
from support.old_directories import directory_of, root

NOW = 1_700_000_000_000
RECORDS = 12_000


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Two partitions of some segments; the second one has time ranges and column statistics."""
    top = tmp_path_factory.mktemp("stored")
    for partition in range(2):
        with seglog.open(top / f"orders-{partition}", fsync="never", config={"segment.bytes": 2 << 20}) as log:
            for begin in range(0, RECORDS, 30):
                rows = range(begin, begin + 30)
                log.append_columns(
                    keys=[b"user-%06d" % n for n in rows], values=[bytes(500)] * 30, timestamps=[NOW + n for n in rows]
                )
    command("index", "rebuild", "--apply", "--time-ranges", top / "orders-1")
    command("index", "stats", top / "orders-1")
    for path in top.glob(".*"):
        path.unlink()
    return top


@pytest.fixture
def came(built, tmp_path, monkeypatch):
    """{path: bytes that came by ranges}; the topic is s3://bucket/logs."""
    store = ObjectsOnDisk(tmp_path, monkeypatch)
    store.bucket("bucket")
    shutil.copytree(built, tmp_path / "bucket/logs")
    return count_parts(monkeypatch)


def log_bytes(directory):
    return sum(path.stat().st_size for path in directory.rglob("*.log"))


@pytest.mark.parametrize("what", ["logs", "logs/orders-*", "logs/orders-1"])
def test_a_url_gives_the_rows_of_the_files(built, came, what):
    here = built / what.removeprefix("logs").removeprefix("/")
    topic = seglog.scan(f"s3://bucket/{what}")
    assert topic.to_arrow() == seglog.scan(here).to_arrow()
    assert pickle.loads(pickle.dumps(topic)).to_arrow()["offset"].to_pylist()[-1] == RECORDS - 1


@pytest.mark.parametrize("partition", [0, 1])
def test_a_filter_by_time_fetches_few_bytes(built, came, partition):
    """Five per cent; without time ranges what ends at a time is looked through to the segment's end."""
    narrow = {"since": NOW + 3000, "until": NOW + 3600}
    found = seglog.scan(f"s3://bucket/logs/orders-{partition}", **narrow).to_arrow()
    assert found["offset"].to_pylist() == [*range(3000, 3600)]
    share = sum(came.values()) / log_bytes(built / f"orders-{partition}")
    assert share < (0.17 if partition else 0.8), share


def test_time_ranges_without_statistics_lead_to_few_bytes_too(built, came, tmp_path):
    for path in tmp_path.glob("bucket/logs/orders-1/*.stats.index"):
        path.unlink()
    found = seglog.scan("s3://bucket/logs/orders-1", since=NOW + 3000, until=NOW + 3600).to_arrow()
    assert found["offset"].to_pylist() == [*range(3000, 3600)]
    assert sum(came.values()) < 0.17 * log_bytes(built / "orders-1")


@pytest.mark.parametrize(("start", "stop"), [(0, 10), (5000, 5001), (4321, 4955), (11_990, 20_000), (300, 300)])
def test_offsets_fetch_the_batches_around_them(built, came, start, stop):
    found = seglog.scan("s3://bucket/logs/orders-0", from_offset=start, to_offset=stop).to_arrow()
    assert found["offset"].to_pylist() == [*range(start, min(stop, RECORDS))]
    assert sum(came.values()) < (stop - start) * 600 + 60_000


def test_keys_fetch_the_runs_that_may_hold_them(built, came):
    frame = seglog.polars.scan_topic("s3://bucket/logs/orders-1").filter(pl.col("key") == b"user-007000")
    assert frame.select("offset").collect().rows() == [(7000,)]
    assert sum(came.values()) < 0.1 * log_bytes(built / "orders-1")


@pytest.mark.parametrize("damage", ["index", "time"])
def test_an_index_that_misleads_costs_the_segment_and_never_a_row(came, tmp_path, damage):
    for path in tmp_path.glob(f"bucket/logs/orders-1/*.{damage}*" if damage == "index" else "bucket/logs/*1/*s.index"):
        raw = bytearray(path.read_bytes())
        for at in range(6, len(raw), 8):
            raw[at] ^= 0x55
        path.write_bytes(raw)
    for narrow in ({"from_offset": 4000, "to_offset": 4010}, {"since": NOW + 4000, "until": NOW + 4010}):
        found = seglog.scan("s3://bucket/logs/orders-1", **narrow).to_arrow()
        assert found["offset"].to_pylist() == [*range(4000, 4010)]


@pytest.mark.parametrize("name", ["franz-go-gzip", "franz-go-lz4"])
def test_wrappers_of_old_clients_are_found_by_the_times_of_their_messages(tmp_path, monkeypatch, name):
    """Time indexes of brokers and ours say of a v1 wrapper what its header says, which may be its first message's."""
    ObjectsOnDisk(tmp_path, monkeypatch).bucket("bucket")
    here = shutil.copytree(directory_of(root() / "clients" / name), tmp_path / "bucket/orders-0")
    with seglog.open(here, fsync="never") as log:
        log.roll()
        log.append(b"later", timestamp=NOW)
    times = sorted({time for time in seglog.scan(here).to_arrow()["timestamp"].to_pylist() if time is not None})
    for time in times[-30:]:
        found = seglog.scan("s3://bucket/orders-0", since=time).to_arrow()
        assert found == seglog.scan(here, since=time).to_arrow()


def test_damage_names_the_object(came, tmp_path):
    log = min(tmp_path.glob("bucket/logs/orders-0/*.log"))
    raw = bytearray(log.read_bytes())
    raw[1000] ^= 1
    log.write_bytes(raw)
    with pytest.raises(CorruptRecordError) as caught:
        seglog.scan("s3://bucket/logs/orders-0").to_arrow()
    assert caught.value.file == f"s3://bucket/logs/orders-0/{log.name}"
    assert caught.value.position == 0
    skipping = seglog.scan("s3://bucket/logs/orders-0", on_corrupt="skip")
    assert skipping.to_arrow().num_rows == RECORDS - 30
    assert [(lost.file, lost.position, lost.last_offset) for lost in skipping.lost] == [
        (f"s3://bucket/logs/orders-0/{log.name}", 0, 29)]


def test_nothing_stays_behind_on_this_machine(came, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    batches = seglog.scan("s3://bucket/logs/orders-0").batches()
    next(batches)
    assert list(scratch.iterdir())
    batches.close()
    assert not list(scratch.iterdir())


# --- committed records ------------------------------------------------------------------------

WITH_TRANSACTIONS = [case for case in golden_cases() if list(case.glob("*-0/*.txnindex")) or "txn" in case.name]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in WITH_TRANSACTIONS])
@pytest.mark.parametrize("snapshots", ["with snapshots", "without"])
def test_committed_records_are_those_of_the_files(case, snapshots, tmp_path, monkeypatch):
    ObjectsOnDisk(tmp_path, monkeypatch).bucket("bucket")
    here = shutil.copytree(case / f"{case.name}-0", tmp_path / "bucket" / f"{case.name}-0")
    for snapshot in here.glob("*.snapshot") if snapshots == "without" else ():
        snapshot.unlink()
    there = f"s3://bucket/{case.name}-0"
    whole = seglog.scan(here, isolation="read_committed").to_arrow()
    assert seglog.scan(there, isolation="read_committed").to_arrow() == whole
    offsets = seglog.scan(here, columns=["offset"]).to_arrow()["offset"].to_pylist()
    for start, stop in {(0, offsets[-1]), (offsets[len(offsets) // 3], offsets[2 * len(offsets) // 3] + 1)}:
        narrow = {"from_offset": start, "to_offset": stop, "isolation": "read_committed"}
        assert seglog.scan(there, **narrow).to_arrow() == seglog.scan(here, **narrow).to_arrow()
    times = [time for time in whole["timestamp"].to_pylist() if time is not None]
    for time in times[:: max(len(times) // 3, 1)]:
        narrow = {"since": time, "until": time + dt.timedelta(milliseconds=5), "isolation": "read_committed"}
        assert seglog.scan(there, **narrow).to_arrow() == seglog.scan(here, **narrow).to_arrow()


def test_the_golden_topics_with_transactions_are_there():
    """One of them aborts transactions, one ends in an open one."""
    assert len(WITH_TRANSACTIONS) > 4
    shorter = 0
    for case in WITH_TRANSACTIONS:
        with seglog.open_partition(case / f"{case.name}-0") as partition:
            shorter += partition.last_stable_offset < partition.log_end_offset
    assert shorter


@pytest.fixture(scope="module")
def transacted(tmp_path_factory):
    """orders-0: segments of 200 KB of transactions of 50 records, every third one aborted; the last one is open."""
    top = tmp_path_factory.mktemp("transacted")
    with seglog.open(top / "orders-0", fsync="never", config={"segment.bytes": 200_000, "segment.ms": 2**62}) as log:
        for transaction in range(90):
            for first in range(50 * transaction, 50 * transaction + 50, 10):
                records = [(b"%d" % n, bytes(500), (), NOW + n) for n in range(first, first + 10)]
                log.append_batch(seglog.build_batch(
                    records, producer_id=7, producer_epoch=0, base_sequence=first, transactional=True
                ))
            if transaction < 89:
                log.end_transaction(7, 0, commit=transaction % 3 != 0)
    for path in top.glob(".*"):
        path.unlink()
    return top


@pytest.fixture
def transactions(transacted, tmp_path, monkeypatch):
    """The directory; on a store it is s3://bucket/orders-0."""
    ObjectsOnDisk(tmp_path, monkeypatch).bucket("bucket")
    return shutil.copytree(transacted / "orders-0", tmp_path / "bucket/orders-0")


def committed(source, **narrow):
    return seglog.scan(source, columns=["offset"], isolation="read_committed", **narrow).to_arrow()


def test_committed_records_end_where_the_oldest_open_transaction_begins(transactions):
    found = committed("s3://bucket/orders-0")
    assert found == committed(transactions)
    assert found.num_rows == 59 * 50
    assert found["offset"].to_pylist()[-1] == 88 * 51 + 49


def test_a_snapshot_of_a_longer_log_is_passed_over(transactions):
    """What a cut left behind: it knows of no open transaction."""
    (transactions / "00000000000000900000.snapshot").write_bytes(ProducerSnapshot().to_bytes())
    (transactions / "00000000000000800000.snapshot").write_bytes(b"damaged")
    assert committed("s3://bucket/orders-0") == committed(transactions)
    assert committed("s3://bucket/orders-0", to_offset=2000) == committed(transactions, to_offset=2000)
    assert committed("s3://bucket/orders-0", from_offset=4500).num_rows == 38


def test_a_window_of_committed_records_leaves_the_other_segments_there(transactions, monkeypatch):
    """By the snapshot of producers at the last segment's start: all before is decided."""
    came = count_parts(monkeypatch)
    narrow = {"from_offset": 2000, "to_offset": 2100}
    assert committed("s3://bucket/orders-0", **narrow) == committed(transactions, **narrow)
    assert sum(came.values()) < 300_000, came
    for snapshot in transactions.glob("*.snapshot"):
        snapshot.unlink()
    assert committed("s3://bucket/orders-0", **narrow) == committed(transactions, **narrow)
    assert sum(came.values()) > 2_000_000, came


def test_transactions_that_nobody_can_tell_of_are_an_error(transactions, monkeypatch):
    right = committed("s3://bucket/orders-0")
    index = min(transactions.glob("*.txnindex"))
    raw, log = index.read_bytes(), index.with_suffix(".log")
    index.write_bytes(raw[:-1])
    assert committed("s3://bucket/orders-0") == right       # by the log itself
    whole = log.read_bytes()
    log.write_bytes(bytes(100) + whole[100:])
    with pytest.raises(CorruptIndexError) as caught:
        committed("s3://bucket/orders-0")
    assert caught.value.file == f"s3://bucket/orders-0/{index.name}"
    log.write_bytes(whole)
    index.write_bytes(raw)
    read = ObjectStore.read
    monkeypatch.setattr(
        ObjectStore, "read", lambda store, path: None if path.endswith("txnindex") else read(store, path)
    )
    with pytest.raises(StorageError, match="no longer exists"):
        committed("s3://bucket/orders-0")


def test_what_cannot_be_read_by_ranges_says_so(came):
    with pytest.raises(NotALogError, match="no partition directory"):
        seglog.scan("s3://bucket/nothing").to_arrow()
    with pytest.raises(InvalidArgumentError, match="no store for ftp"):
        seglog.scan("ftp://bucket/nothing").to_arrow()
    with pytest.raises(InvalidArgumentError, match="unknown store option colour"):
        seglog.scan("s3://bucket/logs", store_options={"colour": "red"}).to_arrow()


def test_a_file_url_is_a_path(built):
    assert seglog.scan(f"file://{built}/orders-0").to_arrow().num_rows == RECORDS


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in golden_cases()[::5]])
def test_golden_logs_read_the_same(case, tmp_path, monkeypatch):
    ObjectsOnDisk(tmp_path, monkeypatch).bucket("bucket")
    here = shutil.copytree(case / f"{case.name}-0", tmp_path / "bucket" / f"{case.name}-0")
    there = f"s3://bucket/{case.name}-0"
    whole = seglog.scan(here).to_arrow()
    assert seglog.scan(there).to_arrow() == whole
    offsets = whole["offset"].to_pylist()
    if not offsets:
        return
    start, stop = offsets[len(offsets) // 3], offsets[2 * len(offsets) // 3] + 1
    bounds = Bounds(from_offset=start, to_offset=stop)
    assert seglog.scan(there)._narrowed(bounds).to_arrow() == seglog.scan(here)._narrowed(bounds).to_arrow()
    times = sorted({time for time in whole["timestamp"].to_pylist() if time is not None})
    for time in times[:: max(len(times) // 3, 1)]:
        narrow = {"since": time, "until": time + dt.timedelta(milliseconds=1)}
        assert seglog.scan(there, **narrow).to_arrow() == seglog.scan(here, **narrow).to_arrow()


def test_whoever_takes_no_more_waits_for_one_request_and_not_for_the_segment(built, came, monkeypatch):
    """The threads fetch ahead, and Ctrl-C waits for them."""
    monkeypatch.setattr(stored, "_PIECE_BYTES", 64 << 10)
    first, second = sorted((built / "orders-0").glob("*.log"))[:2]
    pieces, reached, release = [], threading.Event(), threading.Event()
    part = ObjectStore.part

    def slow(self, path, position, size_bytes):
        if not path.endswith(first.name) and size_bytes > 1:
            pieces.append(position)
            reached.set()
            release.wait(60)
        return part(self, path, position, size_bytes)

    monkeypatch.setattr(ObjectStore, "part", slow)
    # Otherwise the consumer may fetch all that is fetched ahead, and nothing is left for the thread to wait for.
    monkeypatch.setattr(ahead._Pieces, "help", lambda self: False)
    rows = seglog.scan("s3://bucket/logs/orders-0", threads=2).batches()
    next(rows)
    assert reached.wait(60)
    threading.Timer(0.2, release.set).start()
    rows.close()
    assert len(pieces) < 8 < second.stat().st_size >> 16
