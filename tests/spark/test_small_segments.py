"""Very many small segments: a task has several under way, since each waits longer for the disk than it is worked on."""
import shutil
import threading
from contextlib import contextmanager

import pytest

import seglog
from seglog.errors import StorageError
from seglog.spark import convert_topics, partition_task, segment_task
from seglog.stores.side_by_side import side_by_side
from support.conversion import UnsyncedFs
from support.spark_double import SparkDouble

PARTITIONS = 24
IN_ONE_TASK = 1 << 30


@pytest.fixture(autouse=True)
def one_lane(monkeypatch):
    """One task has all segments, four have all partitions."""
    monkeypatch.setattr("seglog.spark.cluster._LANES_OF_CONNECT", 1)


@pytest.fixture
def small(tmp_path):
    """A log dir of many partitions of three small segments each, in v1."""
    old = tmp_path / "old"
    for n in range(PARTITIONS):
        (old / f"t-{n}").mkdir(parents=True)
        for offset in (0, 10, 20):
            records = [(b"key", b"value %d " % m * 8, (), 1_700_000_000_000 + m) for m in range(10)]
            batch = seglog.build_batch(records, magic=1, base_offset=offset)
            (old / f"t-{n}/{offset:020}.log").write_bytes(batch[:])
    return old


def converted(old, new, fs=None, **options):
    return convert_topics(SparkDouble(), old, new, task_bytes=IN_ONE_TASK, fs=fs or UnsyncedFs(), **options)


def damage(log):
    raw = log.read_bytes()
    log.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))


class Meeting:
    """Who enters waits until so many are there; `most` were there at one time."""

    def __init__(self, parties):
        self._parties, self._there, self.most = parties, 0, 0
        self._changed = threading.Condition()

    @contextmanager
    def entered(self):
        with self._changed:
            self._there += 1
            self.most = max(self.most, self._there)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= self._parties, 5)
        yield
        with self._changed:
            self._there -= 1


def meeting_in(monkeypatch, module, name, parties):
    """The calls of a module's function meet."""
    meeting, work = Meeting(parties), getattr(module, name)

    def met(*arguments, **options):
        with meeting.entered():
            return work(*arguments, **options)

    monkeypatch.setattr(module, name, met)
    return meeting


def test_a_task_has_several_segments_under_way(small, tmp_path, monkeypatch):
    meeting = meeting_in(monkeypatch, segment_task, "_convert", segment_task.SMALL_AT_A_TIME)
    report = converted(small, tmp_path / "new")
    assert report.is_whole
    assert report.total.segments == 3 * PARTITIONS
    assert meeting.most == segment_task.SMALL_AT_A_TIME


@pytest.mark.parametrize("how", ["large", "throttled"])
def test_large_segments_and_throttled_ones_go_one_by_one(small, tmp_path, monkeypatch, how):
    """A large one takes a core by itself, and memory; a rate is kept by one thread."""
    if how == "large":
        monkeypatch.setattr(segment_task, "SMALL_BYTES", 10)
    meeting = meeting_in(monkeypatch, segment_task, "_convert", 1)
    options = {"throttle_bytes_per_s": 1 << 30} if how == "throttled" else {}
    assert converted(small, tmp_path / "new", **options).is_whole
    assert meeting.most == 1


def test_several_partitions_are_assembled_at_a_time(small, tmp_path, monkeypatch):
    parties = PARTITIONS // 4
    meeting = meeting_in(monkeypatch, partition_task, "assemble", parties)
    assert converted(small, tmp_path / "new").is_whole
    assert meeting.most == parties


def test_partitions_of_very_many_segments_are_assembled_one_by_one(small, tmp_path, monkeypatch):
    monkeypatch.setattr(partition_task, "LONG_PLAN_BYTES", 10)
    meeting = meeting_in(monkeypatch, partition_task, "assemble", 1)
    assert converted(small, tmp_path / "new").is_whole
    assert meeting.most == 1


def test_how_many_are_under_way_changes_nothing(small, tmp_path, monkeypatch):
    converted(small, tmp_path / "new")
    monkeypatch.setattr(segment_task, "SMALL_BYTES", 0)
    converted(small, tmp_path / "one by one")

    def files(log_dir):
        return {
            path.relative_to(log_dir): path.read_bytes()
            for path in log_dir.glob("*/*") if path.suffix != ".json"
        }

    assert files(tmp_path / "new") == files(tmp_path / "one by one")
    assert len(files(tmp_path / "new")) > 9 * PARTITIONS


def test_damage_stops_its_partition_alone_and_is_told_once(small, tmp_path):
    for offset in (0, 10, 20):
        damage(small / f"t-3/{offset:020}.log")
    damage(small / f"t-7/{20:020}.log")
    report = converted(small, tmp_path / "new")
    assert [(row.partition, row.error) for row in report.failed] == [(t, "corrupt_record") for t in ("t-3", "t-7")]
    # The first of three, whichever thread was first.
    assert f"{0:020}.log" in report.failed[0].what
    assert len([row for row in report.rows if row.status == "converted"]) == PARTITIONS - 2


class RefusesOne(UnsyncedFs):
    """The disk refuses one partition's files."""

    def replace(self, source, target):
        if "/staged/t-5/" in str(target):
            raise StorageError("no room", file=str(target), errno=28)
        super().replace(source, target)


def test_what_a_machine_refuses_is_raised_for_spark_to_try_elsewhere(small, tmp_path):
    with pytest.raises(StorageError, match="no room"):
        converted(small, tmp_path / "new", fs=RefusesOne())
    assert not list((tmp_path / "new.seglog-spark/attempts").iterdir())
    report = converted(small, tmp_path / "new")
    assert report.is_whole
    assert report.total.skipped > 0


def test_a_marker_that_a_power_cut_took_costs_its_segment_once_more(small, tmp_path):
    """Markers are not synced: what they say is, and one that is lost or torn is made again."""
    with pytest.raises(StorageError):
        converted(small, tmp_path / "new", fs=RefusesOne())
    markers = sorted((tmp_path / "new.seglog-spark/done").glob("t-0/*"))
    assert len(markers) == 3
    markers[0].write_bytes(b"")
    markers[1].write_bytes(bytes(markers[1].stat().st_size))
    markers[2].unlink()
    report = converted(small, tmp_path / "new")
    assert report.is_whole
    assert {row.partition: row.skipped for row in report.rows}["t-0"] == 0
    shutil.rmtree(tmp_path / "new.seglog-spark")


# --- the tool --------------------------------------------------------------------------------


def test_results_come_in_their_order_and_few_wait():
    taken = []

    def items():
        for n in range(100):
            taken.append(n)
            yield n

    found = side_by_side(lambda n: n * n, items(), 4)
    assert next(found) == 0
    assert len(taken) <= 6
    assert [*found] == [n * n for n in range(1, 100)]


def test_the_first_error_ends_it_and_what_was_not_begun_is_left_out():
    begun = []

    def work(n):
        begun.append(n)
        if n >= 10:
            raise ValueError(n)
        return n

    found = side_by_side(work, range(1000), 4)
    assert [next(found) for _ in range(10)] == list(range(10))
    with pytest.raises(ValueError, match=r"^10$"):
        next(found)
    assert len(begun) < 20


def test_who_stops_asking_leaves_no_thread():
    before = set(threading.enumerate())
    found = side_by_side(lambda n: n, range(1000), 4)
    next(found)
    started = set(threading.enumerate()) - before
    assert started
    found.close()
    assert not any(thread.is_alive() for thread in started)
