"""`seglog.write_table`: the same rows in files of a lake, on from where they ended, whole after a kill."""
import datetime as dt
import json
import os

import duckdb
import pyarrow.dataset
import pyarrow.parquet
import pytest

import seglog
from seglog.errors import InvalidArgumentError, StorageError
from seglog.frames.lake import RANGE_KEY, ParquetTable
from seglog.fs.files import OsFileSystem

DAY_MS = 86_400_000
T = 1_700_006_400_000       # 2023-11-15T00:00:00Z


@pytest.fixture
def data(tmp_path):
    for partition in range(2):
        append(tmp_path / f"data/orders-{partition}", 0, 900)
    return tmp_path / "data"


def append(path, start, stop):
    """Record n is of day n // 400."""
    with seglog.open(path, fsync="never", config={"segment.bytes": 6_000, "retention.ms": -1}) as log:
        for n in range(start, stop, 10):
            log.append_many([(b"k", b"v%d" % m, (), T + m // 400 * DAY_MS + m) for m in range(n, n + 10)])


def rows(dst):
    """(topic, partition, offset) of all files, read as Hive's directories."""
    table = pyarrow.dataset.dataset(dst, format="parquet", partitioning="hive").to_table()
    return sorted(zip(*(table[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True))


def expected(stop):
    return [("orders", p, n) for p in range(2) for n in range(stop)]


@pytest.mark.parametrize("directories", [("topic", "partition"), ("date", "topic", "partition"), ("partition",), ()])
def test_a_run_writes_all_rows_and_the_next_one_what_came_since(data, tmp_path, directories):
    dst = tmp_path / "lake"
    written = seglog.write_table(data, dst, partition_by=directories, file_bytes=5_000)
    assert rows(dst) == expected(900)
    assert [w.rows for w in written if w.partition == 1 and w.start_offset == 0] != [900]
    assert sum(w.rows for w in written) == 1800
    before = {path: path.stat().st_mtime_ns for path in dst.rglob("*.parquet")}
    assert seglog.write_table(data, dst, partition_by=directories, file_bytes=5_000) == []
    append(data / "orders-1", 900, 1000)
    [more] = seglog.write_table(data, dst, partition_by=directories)
    assert (more.partition, more.start_offset, more.stop_offset, more.rows) == (1, 900, 1000, 100)
    assert rows(dst) == sorted(expected(900) + [("orders", 1, n) for n in range(900, 1000)])
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert not list(dst.rglob("*.tmp"))


def test_days_have_directories_and_files_tell_their_offsets(data, tmp_path):
    dst = tmp_path / "lake"
    seglog.write_table(data / "orders-0", dst, partition_by=["date"])
    days = {path.name: path for path in dst.iterdir() if path.is_dir()}
    assert set(days) == {f"date={dt.date(2023, 11, 15) + dt.timedelta(n)}" for n in range(3)}
    [file] = days["date=2023-11-16"].iterdir()
    assert file.name == f"{0:020d}-{900:020d}-orders-0.parquet"
    assert pyarrow.parquet.read_table(file, partitioning=None)["offset"].to_pylist() == list(range(400, 800))
    assert json.loads(pyarrow.parquet.read_metadata(file).metadata[RANGE_KEY]) == {
        "version": 1, "topic": "orders", "partition": 0, "start_offset": 0, "stop_offset": 900, "files": 3,
    }
    files = f"read_parquet('{dst}/**/*.parquet', hive_partitioning=true)"
    query = f"select date, count(*) from {files} group by 1 order by 1"
    assert [n for _, n in duckdb.sql(query).fetchall()] == [400, 400, 100]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("renames", range(7))
def test_a_killed_run_is_made_whole_by_the_next_one(data, tmp_path, renames):
    class Dying(OsFileSystem):
        left = renames

        def replace(self, source, target):
            if not self.left:
                raise Killed
            self.left -= 1
            super().replace(source, target)

    dst = tmp_path / "lake"
    table = ParquetTable(dst, ["date"], file_bytes=5_000, fs=Dying())
    with pytest.raises(Killed):
        list(table.add(seglog.scan(data)))
    append(data / "orders-0", 900, 950)     # grown meanwhile
    seglog.write_table(data, dst, partition_by=["date"], file_bytes=5_000)
    table = pyarrow.dataset.dataset(dst, format="parquet").to_table()
    found = sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert found == [(0, n) for n in range(950)] + [(1, n) for n in range(900)]


def test_what_is_not_ours_is_refused(data, tmp_path):
    (tmp_path / "other").mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), tmp_path / "other/a.parquet")
    with pytest.raises(InvalidArgumentError, match=r"a\.parquet"):
        seglog.write_table(data, tmp_path / "other")
    for wrong in (["key"], ["topic", "topic"]):
        with pytest.raises(InvalidArgumentError, match="partition_by"):
            seglog.write_table(data, tmp_path / "lake", partition_by=wrong)
    with pytest.raises(InvalidArgumentError, match="mounted"):
        seglog.write_table(data, "s3://lake/x")


def in_lake(dst):
    return pyarrow.dataset.dataset(dst, format="parquet", partitioning="hive").to_table()["offset"].to_pylist()


def test_a_table_has_no_record_that_may_still_be_aborted(golden_kafka, tmp_path):
    """It had the records of aborted and unfinished transactions, for good."""
    name = "txn-v2-k391"
    directory = golden_kafka / "cases" / name / f"{name}-0"
    with seglog.open_partition(directory) as partition:
        committed = [r.offset for r in partition.read(isolation="read_committed")]
        every = [r.offset for r in partition.read()]
    assert committed != every
    for number, source in enumerate([directory, seglog.scan(directory), seglog.scan([directory]).select(["value"])]):
        seglog.write_table(source, tmp_path / f"lake-{number}")
        assert in_lake(tmp_path / f"lake-{number}") == committed
    # Told otherwise.
    seglog.write_table(directory, tmp_path / "all", isolation="read_uncommitted")
    seglog.write_table(seglog.scan(directory, isolation="read_uncommitted"), tmp_path / "scan")
    assert in_lake(tmp_path / "all") == in_lake(tmp_path / "scan") == every
    assert len(seglog.scan(directory).to_arrow()) == len(every)


def test_a_later_run_adds_what_was_decided_meanwhile(tmp_path):
    data, dst = tmp_path / "orders-0", tmp_path / "lake"
    with seglog.open(data) as log:
        def part(producer_id, value):
            log.append_batch(seglog.build_batch(
                [(None, value)], base_sequence=0, transactional=True, producer_id=producer_id, producer_epoch=0
            ))

        log.append(b"plain")
        part(1, b"committed")
        part(2, b"aborted")
        assert [w.stop_offset for w in seglog.write_table(log, dst)] == [1]
        log.end_transaction(1, 0, commit=True)
        log.end_transaction(2, 0, commit=False)
        log.append(b"after")
        seglog.write_table(seglog.scan(log), dst)
        assert seglog.write_table(log, dst) == []
        assert in_lake(dst) == [r.offset for r in log.read(isolation="read_committed")] == [0, 1, 5]


def test_chosen_columns_and_transactions(golden_kafka, tmp_path):
    name = "txn-v2-k391"
    directory = golden_kafka / "cases" / name / f"{name}-0"
    seglog.write_table(directory, tmp_path / "lake", columns=["value"], isolation="read_committed")
    with seglog.open_partition(directory) as partition:
        committed = [r.offset for r in partition.read(isolation="read_committed")]
    table = pyarrow.dataset.dataset(tmp_path / "lake", format="parquet", partitioning="hive").to_table()
    assert table["offset"].to_pylist() == committed
    assert set(table.column_names) == {"value", "offset", "timestamp", "topic", "partition"}
    assert seglog.write_table(directory, tmp_path / "lake", columns=["value"], isolation="read_committed") == []


def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(data, tmp_path):
    seglog.write_table(data, tmp_path / "lake")
    file = next((tmp_path / "lake").rglob("*.parquet"))
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(StorageError, match="not a regular file"):
        seglog.write_table(data, tmp_path / "lake")
