"""`seglog.write_table` where a table and its topic do not match: killed runs, lost records, other directories."""
import errno
import shutil
import threading

import pyarrow.dataset
import pytest

import seglog
from seglog.errors import InvalidArgumentError, LogLockedError, StorageError
from seglog.frames.lake import ParquetTable
from seglog.fs.files import OsFileSystem

DAY_MS = 86_400_000
T = 1_700_006_400_000       # 2023-11-15T00:00:00Z
ANY_TIME = {"message.timestamp.before.max.ms": 2**63 - 1, "message.timestamp.after.max.ms": 2**63 - 1}


def append(path, start, stop, step_ms=DAY_MS // 400, **config):
    """Record n has the time T + n * step_ms: by default 400 records a day."""
    with seglog.open(path, fsync="never", config={"segment.bytes": 6_000, "retention.ms": -1, **config}) as log:
        for n in range(start, stop, 10):
            log.append_many([(b"k", b"v%d" % m, (), T + m * step_ms) for m in range(n, n + 10)])


def offsets(dst):
    return sorted(pyarrow.dataset.dataset(dst, format="parquet").to_table(columns=["offset"])["offset"].to_pylist())


class Killed(BaseException):
    pass


class Dying(OsFileSystem):
    """Dies at the rename after so many."""

    def __init__(self, renames):
        self.left = renames
        self.is_dead = False

    def replace(self, source, target):
        if not self.left:
            self.is_dead = True
            raise Killed
        self.left -= 1
        super().replace(source, target)

    def unlink(self, path, within=None):
        if not self.is_dead:
            super().unlink(path, within)


def kill(data, dst, renames, directories=("date",)):
    table = ParquetTable(dst, directories, file_bytes=1 << 20, fs=Dying(renames))
    with pytest.raises(Killed):
        list(table.add(seglog.scan(data)))


def test_a_completed_range_keeps_the_rows_that_retention_removed_since(tmp_path):
    data, dst = tmp_path / "data/orders-0", tmp_path / "lake"
    append(data, 0, 900)
    kill(data, dst, 1)
    assert offsets(dst) == [*range(400)]
    with seglog.open(data) as log:
        log.delete_records(200)
    seglog.write_table(data, dst, partition_by=["date"])
    assert offsets(dst) == [*range(900)]
    assert seglog.write_table(data, dst, partition_by=["date"]) == []


def test_a_range_is_completed_in_other_directories_without_repeating_rows(tmp_path):
    data, dst = tmp_path / "data/orders-0", tmp_path / "lake"
    append(data, 0, 900)
    kill(data, dst, 2)
    [written] = seglog.write_table(data, dst, partition_by=["topic", "date"])
    assert (written.start_offset, written.stop_offset, written.rows) == (0, 900, 100)
    assert offsets(dst) == [*range(900)]
    assert seglog.write_table(data, dst, partition_by=["date"]) == []


def test_a_completion_that_is_killed_is_completed_too(tmp_path):
    data, dst = tmp_path / "data/orders-0", tmp_path / "lake"
    append(data, 0, 2000)
    for renames in (1, 1, 2):
        kill(data, dst, renames)
    assert offsets(dst) == [*range(1600)]
    seglog.write_table(data, dst, partition_by=["date"])
    assert offsets(dst) == [*range(2000)]


def test_a_killed_run_leaves_no_file_after_the_next_one(tmp_path):
    data, dst = tmp_path / "data/orders-0", tmp_path / "lake"
    append(data, 0, 900)
    kill(data, dst, 0)
    assert len(list(dst.rglob("*.tmp"))) == 3
    append(data, 900, 950)      # so the next run writes a range with other names
    seglog.write_table(data, dst, partition_by=["topic"])
    assert list(dst.rglob("*.tmp")) == []
    assert offsets(dst) == [*range(950)]


def test_what_a_killed_run_left_is_not_looked_for_behind_links(tmp_path):
    data, dst = tmp_path / "data/orders-0", tmp_path / "lake"
    append(data, 0, 9)
    name = f".{0:020d}-{9:020d}-orders-0.parquet.tmp"
    for place in (tmp_path / "precious", dst):
        place.mkdir()
        (place / name).touch()
    (dst / "link").symlink_to(tmp_path / "precious")
    seglog.write_table(data, dst)
    assert list(dst.glob(".*.tmp")) == []
    assert (tmp_path / "precious" / name).exists()


def test_a_full_disk_leaves_the_table_as_it_was(tmp_path):
    class Full(OsFileSystem):
        """Has room for one file."""

        def create(self, path, within=None, mode=0o666):
            if list(dst.rglob("*.tmp")):
                raise StorageError("cannot create: no space is left on the device", file=path, errno=errno.ENOSPC)
            return super().create(path, within, mode)

    data, dst = tmp_path / "data/orders-0", tmp_path / "lake"
    append(data, 0, 900)
    with pytest.raises(StorageError, match="no space"):
        list(ParquetTable(dst, ["date"], file_bytes=1 << 20, fs=Full()).add(seglog.scan(data)))
    assert [path for path in dst.rglob("*") if path.suffix in (".tmp", ".parquet")] == []
    seglog.write_table(data, dst, partition_by=["date"])
    assert offsets(dst) == [*range(900)]


@pytest.mark.parametrize("ends", [20, 0])
def test_a_topic_that_was_created_again_is_refused(tmp_path, ends):
    data, dst = tmp_path / "data/orders-0", tmp_path / "lake"
    append(data, 0, 50)
    seglog.write_table(data, dst)
    shutil.rmtree(tmp_path / "data")
    append(data, 0, ends)
    with pytest.raises(InvalidArgumentError, match=f"offsets up to 49, but .* ends at offset {ends}") as refused:
        seglog.write_table(data, dst)
    assert refused.value.file == str(data)
    assert offsets(dst) == [*range(50)]


def test_a_table_that_ends_where_the_log_ends_or_began_later_is_up_to_date(tmp_path):
    data, dst = tmp_path / "data/orders-0", tmp_path / "lake"
    append(data, 0, 50)
    seglog.write_table(data, dst)
    with seglog.open(data) as log:
        log.delete_records(50)
        assert seglog.write_table(log, dst) == []
        log.append(b"v")
        assert [w.start_offset for w in seglog.write_table(log, dst, to_offset=30)] == []
        assert [w.start_offset for w in seglog.write_table(log, dst)] == [50]


def test_two_directories_of_one_partition_are_refused(tmp_path):
    append(tmp_path / "a/orders-0", 0, 10)
    append(tmp_path / "b/orders-0", 0, 20)
    with pytest.raises(InvalidArgumentError, match="orders-0 is in two places"):
        seglog.write_table([tmp_path / "a", tmp_path / "b"], tmp_path / "lake")
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize(("before", "after", "told"), [
    ("utf8", None, "key of orders as text, but this run writes it as bytes"),
    (None, "utf8", "key of orders as bytes, but this run writes it as text"),
    ({"key": "utf8"}, {"value": "utf8"}, "key of orders as text, but this run writes it as bytes"),
    ("json", "utf8", "key of orders as JSON, but this run writes it as text"),
    ("json", None, "key of orders as JSON, but this run writes it as bytes"),
])
@pytest.mark.parametrize("more", [0, 10])
def test_another_decoding_than_that_of_the_table_is_refused(tmp_path, before, after, told, more):
    data, dst = tmp_path / "data/orders-0", tmp_path / "lake"
    append(data, 0, 50)
    seglog.write_table(data, dst, decode=before)
    append(data, 50, 50 + more)
    append(tmp_path / "data/orders-1", 0, 10)       # of the same topic, not in the table
    for source in (data, tmp_path / "data/orders-1"):
        with pytest.raises(InvalidArgumentError) as refused:
            seglog.write_table(source, dst, decode=after)
        assert told in str(refused.value)
        assert "decode=" in refused.value.hint
        assert refused.value.file.endswith(".parquet")
    assert offsets(dst) == [*range(50)]


@pytest.mark.parametrize("decode", [None, "utf8", "json"])
def test_the_decoding_of_the_table_is_taken_also_as_views_and_with_fewer_columns(tmp_path, decode):
    data, dst = tmp_path / "data/orders-0", tmp_path / "lake"
    for n, options in enumerate(({}, {"binary_view": True}, {"columns": ["value"]}, {"columns": ["offset"]}, {})):
        append(data, n * 10, n * 10 + 10)
        assert [one.rows for one in seglog.write_table(data, dst, decode=decode, **options)] == [10]
    assert offsets(dst) == [*range(50)]


def test_another_topic_may_be_decoded_in_another_way(tmp_path):
    dst = tmp_path / "lake"
    for topic, decode in (("orders", "utf8"), ("images", None)):
        append(tmp_path / f"data/{topic}-0", 0, 10)
        assert [one.rows for one in seglog.write_table(tmp_path / f"data/{topic}-0", dst, decode=decode)] == [10]


def test_directories_behind_links_are_part_of_the_table(tmp_path):
    """A large partition that was moved to another disk."""
    data, dst = tmp_path / "data/orders-0", tmp_path / "lake"
    append(data, 0, 50)
    seglog.write_table(data, dst)
    (dst / "topic=orders").rename(tmp_path / "other")
    (dst / "topic=orders").symlink_to(tmp_path / "other")
    append(data, 50, 60)
    [written] = seglog.write_table(data, dst)
    assert (written.start_offset, written.stop_offset) == (50, 60)


def test_times_that_are_in_no_calendar_have_no_date(tmp_path):
    data, dst = tmp_path / "data/orders-0", tmp_path / "lake"
    last = 253_402_300_799_999      # 9999-12-31
    with seglog.open(data, config=ANY_TIME) as log:
        log.append_batch(seglog.build_batch([(b"k", b"v", (), t) for t in (T, -1, last, last + 1, 2**63 - 1)]))
    [written] = seglog.write_table(data, dst, partition_by=["date"])
    assert [path.parent.name for path in written.files] == [
        "date=2023-11-15", "date=9999-12-31", "date=__HIVE_DEFAULT_PARTITION__",
    ]
    assert offsets(dst) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("length", [1, 180, 240, 249])
def test_topics_may_have_names_of_any_length(tmp_path, length):
    data, dst = tmp_path / f"data/{'t' * length}-7", tmp_path / "lake"
    append(data, 0, 10)
    for _ in range(2):
        seglog.write_table(data, dst)
    table = pyarrow.dataset.dataset(dst, format="parquet", partitioning="hive").to_table()
    assert set(table["topic"].to_pylist()) == {"t" * length}
    assert table.num_rows == 10


def test_a_second_run_at_the_same_time_is_refused(tmp_path):
    data, dst = tmp_path / "data/orders-0", tmp_path / "lake"
    append(data, 0, 50)
    refused = []

    def second():
        try:
            seglog.write_table(data, dst)
        except LogLockedError as error:
            refused.append(error)

    class Waiting(OsFileSystem):
        def replace(self, source, target):
            other = threading.Thread(target=second)
            other.start()
            other.join()
            super().replace(source, target)

    list(ParquetTable(dst, ["date"], file_bytes=1 << 20, fs=Waiting()).add(seglog.scan(data)))
    assert len(refused) == 1
    assert "another run writes to this table" in str(refused[0])
    assert offsets(dst) == [*range(50)]
    assert seglog.write_table(data, dst) == []


@pytest.mark.parametrize("wrong", [
    {"file_bytes": "5"}, {"file_bytes": 0}, {"file_bytes": 1.5}, {"compression": "nope"},
    {"compression": 5}, {"partition_by": [["a"]]}, {"partition_by": "topic"}, {"dst": None},
    {"dst": 5}, {"dst": b"x"}, {"dst": ""},
])
def test_wrong_arguments_are_refused_before_anything_is_read(tmp_path, wrong):
    data = tmp_path / "data/orders-0"
    append(data, 0, 10)
    (name, value), = wrong.items()
    with pytest.raises(InvalidArgumentError) as refused:
        seglog.write_table(data, **{"dst": tmp_path / "lake", **wrong})
    assert name in str(refused.value) or repr(value) in str(refused.value)
    assert not (tmp_path / "lake").exists()
