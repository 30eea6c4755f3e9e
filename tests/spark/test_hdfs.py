"""Topics converted in a real HDFS on loopback, a namenode and two datanodes; fetched, and served by a broker.

`make spark`. Where Maven and Java are missing these tests are skipped.
"""
import contextlib
import json
import os
import secrets
import subprocess
import sys
import time

import pytest

from seglog.conversion.directory import Options
from seglog.conversion.log_dir import convert_log_dir, is_topics_name
from seglog.conversion.losses import LOSS_KINDS
from seglog.errors import InvalidArgumentError, StorageError
from seglog.fs.files import OsFileSystem
from seglog.spark import convert_topics, fetch_topics, finalize_topics, rollback_topics
from seglog.spark.session import session
from seglog.stores.open_store import open_store
from seglog.stores.webhdfs import WebHdfs
from seglog.verification.verify import verify
from support.command import seglog, seglog_json
from support.conversion import UnsyncedFs, but_of_compaction
from support.remote_log_dir import bytes_of, put_log_dir
from support.served_log_dir import served_log_dir
from support.spark_cluster import lacking
from support.spark_double import SparkDouble

EVERY_STATE = bool(os.environ.get("SEGLOG_TORTURE"))

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Home:
    """A directory of its own with a source in it, and what a test does there."""

    def __init__(self, hdfs, work):
        self.url = f"{hdfs.url}/home-{secrets.token_hex(8)}"
        self.options = hdfs.options
        self.old, self.new = f"{self.url}/old", f"{self.url}/new"
        self.store = open_store(self.url, self.options, OsFileSystem())[0]
        self._work = work

    def convert(self, *, sabotage=None, **more):
        spark = SparkDouble(sabotage) if sabotage else SparkDouble()
        return convert_topics(spark, self.old, self.new, task_bytes=1, store_options=self.options, **more)

    def rollback(self):
        return rollback_topics(self.new, store_options=self.options)

    def finalize(self):
        return finalize_topics(self.new, store_options=self.options).partitions

    def fetch(self):
        log_dir = self._work / secrets.token_hex(4)
        list(fetch_topics(self.new, log_dir, store_options=self.options, fs=UnsyncedFs()))
        return bytes_of(log_dir)


@pytest.fixture
def home(hdfs, log_dir, tmp_path):
    """With three partitions of old formats."""
    home = Home(hdfs, tmp_path)
    put_log_dir(log_dir, home.old, home.options)
    return home


def by_cli(log_dir, target, topics=(), **options):
    """What one machine makes of it."""
    rows = list(convert_log_dir(log_dir, target, Options(**options), topics=topics, fs=UnsyncedFs()))
    assert {row.status for row in rows} == {"converted"}
    return bytes_of(target)


# --- a cluster, a broker ---------------------------------------------------------------------


@pytest.mark.skipif(lacking() is not None, reason=str(lacking()))
def test_a_cluster_converts_a_topic_and_a_broker_serves_it(hdfs, cluster, tmp_path, in_memory, monkeypatch):
    for name, value in cluster.environment().items():
        monkeypatch.setenv(name, value)
    with served_log_dir(tmp_path / "broker", "orders", batches=3) as served:
        home = Home(hdfs, in_memory)
        put_log_dir(served.log_dir, home.old, home.options)
        forced = hdfs.forced_blocks()
        with session(cluster.url, cluster.settings(**{"spark.log.level": "OFF"})) as spark:
            report = convert_topics(
                spark, home.old, home.new, topics=["orders"], task_bytes=4000, store_options=home.options
            )
        assert report.is_whole
        assert report.tasks > 8
        # Each .log, each index, each marker is on the disks of its datanodes.
        assert hdfs.forced_blocks() - forced > 3 * report.total.segments
        options = [f"--store-option={key}={value}" for key, value in home.options.items()]
        *rows, _ = seglog_json("restore", home.new, in_memory / "got", *options)
        assert [row["partition"] for row in rows] == sorted(served.partitions)
        for name in served.partitions:
            assert not but_of_compaction(verify(in_memory / "got" / name).findings)
        assert bytes_of(in_memory / "got") == by_cli(served.log_dir, in_memory / "cli", topics=["orders"])
        served.check(in_memory / "got", served.partitions)
        assert seglog("spark", "convert", home.old, home.new, "--finalize", *options).exit_code == 0
        assert home.store.directories(home.url) == ["new", "old"]


DRIVER = """
import json, os, signal, sys
from seglog.spark import convert_topics
from seglog.stores.hdfs_store import HdfsStore
from seglog.spark.session import session

old, new, options, renames = sys.argv[1:5]
rename, left = HdfsStore.rename, int(renames)

def mortal(self, path, target):
    global left
    if "/staged/" in path:
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
    rename(self, path, target)

HdfsStore.rename = mortal
with session("local[2]") as spark:
    convert_topics(spark, old, new, task_bytes=1 << 20, store_options=json.loads(options))
"""


@pytest.mark.skipif(lacking() is not None, reason=str(lacking()))
def test_a_driver_killed_between_renames_is_followed_by_another(home, log_dir, tmp_path):
    whole = by_cli(log_dir, tmp_path / "cli")
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, home.old, home.new, json.dumps(home.options), "1"], capture_output=True,
        text=True, check=False, env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == -9, done.stderr[-2000:]
    assert home.fetch() == {name: data for name, data in whole.items() if name.startswith("orders-0/")}
    report = home.convert()
    assert report.is_whole
    assert report.total.skipped == report.total.segments
    assert home.fetch() == whole
    home.finalize()
    assert home.store.directories(home.url) == ["new", "old"]


class Died(BaseException):
    """kill -9: nothing runs any more."""


def test_a_driver_may_die_at_any_step_and_another_ends_the_work(home, log_dir, tmp_path, monkeypatch):
    whole, left = by_cli(log_dir, tmp_path / "cli"), 0

    def mortal(name):
        change = getattr(WebHdfs, name)

        def counted(self, *arguments, **options):
            nonlocal left
            left -= 1
            if left < 0:
                raise Died
            change(self, *arguments, **options)

        return counted

    def die_after(steps, work):
        nonlocal left
        left = steps
        with monkeypatch.context() as patch:
            for name in ("create", "rename", "remove", "make_directory"):
                patch.setattr(WebHdfs, name, mortal(name))
            with contextlib.suppress(Died):
                work()
        return steps - left

    def each_whole_or_absent():
        found = home.fetch() if any(map(is_topics_name, home.store.directories(home.new))) else {}
        partitions = {name.partition("/")[0] for name in found}
        assert found == {name: data for name, data in whole.items() if name.partition("/")[0] in partitions}
        return len(partitions)

    steps = die_after(10**9, home.convert)
    assert home.fetch() == whole
    assert home.rollback()
    for step in {*range(1, steps, 1 if EVERY_STATE else 80), *range(steps - 9, steps, 2)}:
        die_after(step, home.convert)
        assert each_whole_or_absent() < 3 or step > steps - 9
        assert home.convert().is_whole
        assert home.fetch() == whole, step
        for end in (1, 4, 9):
            die_after(end, home.rollback)
            each_whole_or_absent()
        with contextlib.suppress(InvalidArgumentError):
            home.rollback()
        assert each_whole_or_absent() == 0
        assert home.store.directories(home.url) == ["new", "old"]


# --- what a driver does ----------------------------------------------------------------------


def test_the_result_is_that_of_one_machine_and_is_taken_back_as_a_whole(home, log_dir, tmp_path):
    assert home.convert(verify="full").is_whole
    assert home.fetch() == by_cli(log_dir, tmp_path / "cli")
    assert home.rollback() == ["orders-0", "orders-1", "payments-0"]
    assert home.store.directories(home.new) == []
    assert home.store.directories(home.url) == ["new", "old"]
    assert all(b"orders" not in home.store.read(f"{home.new}/{file.name}") for file in home.store.files(home.new))
    with pytest.raises(InvalidArgumentError, match="no conversion"):
        home.rollback()


def test_to_v1_as_on_one_machine(home, log_dir, tmp_path):
    options = {"to": 1, "allow_lossy": LOSS_KINDS, "aborted": "drop", "codec": "lz4"}
    assert home.convert(**options).is_whole
    assert home.fetch() == by_cli(log_dir, tmp_path / "cli", **options)


def test_a_source_that_changes_meanwhile_stops_its_partition_alone(home, log_dir, tmp_path):
    log = sorted((log_dir / "orders-0").glob("*.log"))[0]

    def replaced(job, number, run):
        out = run()
        if (job, number) == (0, 0):
            # The same bytes: another file all the same.
            home.store.write(f"{home.old}/orders-0/{log.name}", log.read_bytes())
        return out

    report = home.convert(sabotage=replaced)
    assert [(row.partition, row.error) for row in report.failed] == [("orders-0", "invalid_argument")]
    assert f"{home.old}/orders-0" in report.failed[0].what
    report = home.convert()
    assert report.is_whole
    # That segment was done again, and no other.
    assert [row.segments - row.skipped for row in report.rows] == [1, 0, 0]
    assert home.fetch() == by_cli(log_dir, tmp_path / "cli")


def test_the_source_goes_wave_by_wave_and_another_run_ends_what_died(home, log_dir, tmp_path, monkeypatch):
    options = {"wave_bytes": 1, "finalize_each": True, "remove_source": True, "verify": "full"}
    remove = WebHdfs.remove

    def dies(client, path):
        if path.endswith("-delete"):
            raise Died
        remove(client, path)

    with monkeypatch.context() as patch:
        patch.setattr(WebHdfs, "remove", dies)
        with pytest.raises(Died):
            home.convert(**options)
    deleted, *left = sorted(home.store.directories(home.old), key=is_topics_name)
    assert deleted.startswith("orders-0.")
    assert left == ["orders-1", "payments-0"]
    report = home.convert(**options)
    assert (report.is_final, report.removed) == (True, ("orders-1", "payments-0"))
    assert home.store.directories(home.old) == []
    assert home.store.directories(home.url) == ["new", "old"]
    assert home.fetch() == by_cli(log_dir, tmp_path / "cli")


def test_a_partition_that_is_there_is_not_written_over(home):
    home.store.make_directory(f"{home.new}/orders-1")
    with pytest.raises(InvalidArgumentError, match="already"):
        home.convert()
    assert home.store.directories(home.new) == ["orders-1"]


# --- what the server does --------------------------------------------------------------------


def test_closing_a_file_forces_its_block_to_the_disks(hdfs):
    store, path = open_store(f"{hdfs.url}/forced-{secrets.token_hex(8)}", hdfs.options, OsFileSystem())
    store.make_directory(path)
    before = hdfs.forced_blocks()
    store.write(f"{path}/one", b"block")
    # The datanodes count at once, and tell of it when their figures are some seconds old.
    deadline = time.monotonic() + 60
    while hdfs.forced_blocks() == before and time.monotonic() < deadline:
        time.sleep(0.5)
    assert hdfs.forced_blocks() > before


# --- refusals --------------------------------------------------------------------------------


def test_who_may_not_write_is_told_so(home, tmp_path):
    with pytest.raises(StorageError, match="Permission denied") as caught:
        convert_topics(SparkDouble(), home.old, home.new, store_options={"user": "nobody"})
    assert "--store-option user=NAME" in caught.value.hint
    assert caught.value.file.startswith(home.url)


def test_a_namenode_that_is_not_there_is_told_with_its_address(home, tmp_path):
    for url in ("webhdfs://127.0.0.1:1/old", "hdfs://127.0.0.1/old"):
        with pytest.raises(StorageError, match=r"127\.0\.0\.1:(1|2)\b") as caught:
            convert_topics(SparkDouble(), url, tmp_path / "new", store_options={"http_port": "2"})
        assert "dfs.namenode.http-address" in caught.value.hint
    with pytest.raises(StorageError, match="no such file or directory"):
        convert_topics(SparkDouble(), f"{home.url}/none", home.new, store_options=home.options)
