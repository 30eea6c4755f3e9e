"""Topics on real stores as tables: an S3 server and a HDFS on loopback give the rows of the files on a disk.

`make spark`. What crosses is counted at the servers: a window must not fetch whole segments.
"""
import secrets
import shutil
import threading

import polars as pl
import pyarrow as pa
import pytest

import seglog
import seglog.polars
import seglog.spark
from seglog.errors import NotALogError, StorageError
from support.command import seglog as command
from support.counting_relay import CountingRelay
from support.golden import golden_cases
from support.remote_log_dir import put_log_dir

NOW = 1_700_000_000_000
RECORDS = 40_000

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """orders-0 without small files of ours, orders-1 with time ranges and column statistics: 21 MB each, in 5 segments.
    Half of the records are of transactions, of which every third was aborted; the last one is open.
    """
    top = tmp_path_factory.mktemp("built")
    for partition in range(2):
        with seglog.open(
            top / f"orders-{partition}", fsync="never", config={"segment.bytes": 5 << 20, "segment.ms": 2**62}
        ) as log:
            for begin in range(0, RECORDS, 100):
                rows = [(b"user-%06d" % n, bytes(500), (), NOW + n) for n in range(begin, begin + 100)]
                log.append_batch(seglog.build_batch(
                    rows[:50], producer_id=7, producer_epoch=0, base_sequence=begin // 2, transactional=True
                ))
                log.append_batch(seglog.build_batch(rows[50:]))
                if begin < RECORDS - 100:
                    log.end_transaction(7, 0, commit=bool(begin % 300))
    command("index", "rebuild", "--apply", "--time-ranges", top / "orders-1")
    command("index", "stats", top / "orders-1")
    for path in top.glob(".*"):
        path.unlink()
    return top


class Counted:
    """The log dir on a store, and how many bytes of .log files the server has given since `forget`.

    `ahead_bytes`: what it may have sent before it knew that nobody reads on.
    """

    def __init__(self, url, options, forget, log_bytes, ahead_bytes=0):
        self.url, self.options = url, options
        self.forget, self.log_bytes = forget, log_bytes
        self.ahead_bytes = ahead_bytes

    def scan(self, what="", **narrow):
        return seglog.scan(f"{self.url}{what}", store_options=self.options, **narrow)


@pytest.fixture(scope="module")
def on_s3(built, s3):
    url = put_log_dir(built, f"{s3.bucket(f'scan-{secrets.token_hex(8)}')}/logs", s3.options)
    with CountingRelay(int(s3.options["endpoint_override"].rpartition(":")[2])) as relay:
        options = {**s3.options, "endpoint_override": f"127.0.0.1:{relay.port}"}
        stored = Counted(url, options, relay.forget, relay.range_bytes)
        stored.relay = relay
        yield stored


@pytest.fixture(scope="module")
def on_hdfs(built, hdfs):
    url = put_log_dir(built, f"{hdfs.url}/scan-{secrets.token_hex(8)}", hdfs.options)
    before = [0]

    def forget():
        before[0] = hdfs.bytes_read()

    return Counted(url, hdfs.options, forget, lambda: hdfs.bytes_read() - before[0], ahead_bytes=2 << 20)


@pytest.fixture(params=["s3", "hdfs"])
def stored(request):
    stored = request.getfixturevalue(f"on_{request.param}")
    stored.forget()
    return stored


def log_bytes(directory):
    return sum(path.stat().st_size for path in directory.rglob("*.log"))


@pytest.mark.parametrize("what", ["", "/orders-*", "/orders-1"])
def test_a_url_gives_the_rows_of_the_files(built, stored, what):
    assert stored.scan(what).to_arrow() == seglog.scan(built / what.removeprefix("/")).to_arrow()
    whole = log_bytes(built / "orders-1") * (1 if what == "/orders-1" else 2)
    assert whole <= stored.log_bytes() < 1.1 * whole + stored.ahead_bytes


def test_spark_reads_a_url_as_it_reads_the_files(built, stored, spark):
    seglog.spark.register(spark)
    told = {f"store.{name}": value for name, value in stored.options.items()}
    read = spark.read.format("seglog").options(isolation="read_committed", **told).load(stored.url)
    count, last = read.selectExpr("count(*)", "max(offset)").first()
    expected = seglog.scan(built, isolation="read_committed").to_arrow()
    assert (count, last) == (expected.num_rows, max(expected["offset"].to_pylist()))


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_window_of_offsets_fetches_the_batches_around_it(built, stored, isolation):
    narrow = {"from_offset": 20_000, "to_offset": 21_000, "isolation": isolation}
    found = stored.scan("/orders-0", **narrow).to_arrow()
    assert found == seglog.scan(built / "orders-0", **narrow).to_arrow()
    assert 600 < found.num_rows <= 1000
    # The .txnindex of both segments is checked against their .log.
    checked = 2 * (5 << 20) if isolation == "read_committed" else 0
    assert stored.log_bytes() < 0.06 * log_bytes(built / "orders-0") + checked + stored.ahead_bytes


def test_a_window_of_time_fetches_five_per_cent_and_a_run_more(built, stored):
    narrow = {"since": NOW + 15_000, "until": NOW + 17_000, "columns": ["offset", "timestamp"]}
    found = stored.scan("/orders-1", **narrow).to_arrow()
    assert found == seglog.scan(built / "orders-1", **narrow).to_arrow()
    assert found.num_rows == 2000
    assert stored.log_bytes() < 0.09 * log_bytes(built / "orders-1") + stored.ahead_bytes


def test_a_key_is_found_by_column_statistics(built, stored):
    frame = seglog.polars.scan_topic(f"{stored.url}/orders-1", store_options=stored.options)
    found = frame.filter(pl.col("key") == b"user-017000").select("timestamp").collect()
    assert found["timestamp"].dt.epoch("ms").to_list() == [NOW + 17_000]
    assert stored.log_bytes() < 0.06 * log_bytes(built / "orders-1") + stored.ahead_bytes


def test_committed_records_are_those_of_the_files(built, stored):
    found = stored.scan("/orders-0", isolation="read_committed").to_arrow()
    assert found == seglog.scan(built / "orders-0", isolation="read_committed").to_arrow()
    assert found.num_rows < RECORDS
    # Each segment comes once more, for the check of its .txnindex; and the last one's end, for the last stable offset.
    assert stored.log_bytes() < 2.2 * log_bytes(built / "orders-0")


def test_requests_of_a_window_are_few(built, on_s3):
    """A listing of the directory, and for each segment that is looked at its small files and one range."""
    on_s3.forget()
    on_s3.scan("/orders-0", from_offset=20_000, to_offset=21_000, columns=["offset"]).to_arrow()
    assert on_s3.relay.requests["GET"] <= 12, on_s3.relay.requests
    assert len([asked for asked in on_s3.relay.ranges if asked[0].endswith(".log")]) <= 2, on_s3.relay.ranges
    assert on_s3.relay.bytes_back < 0.06 * log_bytes(built / "orders-0")


def test_threads_and_processes_scan_at_one_time(built, on_s3):
    expected = seglog.scan(built / "orders-0", columns=["offset", "key"]).to_arrow()
    found = {}

    def scan(n):
        found[n] = on_s3.scan("/orders-0", columns=["offset", "key"]).to_arrow()

    threads = [threading.Thread(target=scan, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[n] == expected for n in range(4)] == [True] * 4


def test_a_scan_of_batches_can_be_left(on_s3):
    batches = on_s3.scan("/orders-*").batches()
    assert pa.record_batch(next(batches)).num_rows
    batches.close()


def test_what_is_missing_and_what_is_refused_say_so(stored, s3):
    with pytest.raises(NotALogError, match="no partition directory"):
        stored.scan("/orders-7*").to_arrow()
    with pytest.raises((NotALogError, StorageError)):
        stored.scan("/nothing-0").to_arrow()
    if "secret_key" in stored.options:
        wrong = {**stored.options, "secret_key": "another"}
        with pytest.raises(StorageError, match="cannot list") as caught:
            seglog.scan(f"{stored.url}/orders-0", store_options=wrong).to_arrow()
        assert "another" not in f"{caught.value}{caught.value.__cause__}"


@pytest.mark.parametrize("kind", ["s3", "hdfs"])
def test_golden_topics_read_the_same(kind, request, tmp_path):
    """All of them on S3, where each file is a request less; of HDFS each sixth."""
    server, name = request.getfixturevalue(kind), f"golden-{secrets.token_hex(8)}"
    cases = golden_cases() if kind == "s3" else golden_cases()[::6]
    top = tmp_path / "golden"
    for case in cases:
        shutil.copytree(case / f"{case.name}-0", top / f"{case.name}-0")
    if kind == "s3":
        url = server.bucket(name)
        shutil.copytree(top, server.work / "buckets" / name / "logs")
        url = f"{url}/logs"
    else:
        url = put_log_dir(top, f"{server.url}/{name}", server.options)
    for isolation in ("read_uncommitted", "read_committed"):
        here = seglog.scan(top, isolation=isolation, include_headers=True).to_arrow()
        there = seglog.scan(url, store_options=server.options, isolation=isolation, include_headers=True).to_arrow()
        assert there == here
        assert here.num_rows > 1000
