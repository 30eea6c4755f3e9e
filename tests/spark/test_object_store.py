"""Topics converted in an object store, whatever becomes of the driver; fetched, and served by a broker.

In `make spark` a real S3 server on loopback; where it cannot be built these tests are skipped. In `make test` objects
in a directory, without a server.
"""
import contextlib
import json
import os
import re
import secrets
import subprocess
import sys

import pytest

from seglog.conversion.directory import Options
from seglog.conversion.log_dir import convert_log_dir
from seglog.conversion.losses import LOSS_KINDS
from seglog.errors import (
    CorruptCheckpointError,
    InvalidArgumentError,
    LogLockedError,
    NotALogError,
    ProofMismatchError,
    StorageError,
    UnsupportedVersionError,
)
from seglog.format.checked_json import format_json
from seglog.spark import convert_topics, fetch_topics, finalize_topics, rollback_topics
from seglog.spark.manifest import MANIFEST_FILE, removable
from seglog.spark.session import session
from seglog.stores.object_store import ObjectStore
from seglog.stores.remote_store import PIECE_BYTES
from seglog.verification.verify import verify
from support.command import seglog, seglog_json
from support.conversion import UnsyncedFs, but_of_compaction
from support.dying_driver import dies_in_wave
from support.objects_on_disk import ObjectsOnDisk
from support.remote_log_dir import bytes_of, put_log_dir
from support.served_log_dir import served_log_dir
from support.spark_cluster import lacking
from support.spark_double import SparkDouble

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

EVERY_STATE = bool(os.environ.get("SEGLOG_TORTURE"))


class Lake:
    """A bucket of its own with a source in it, and what a test does there."""

    def __init__(self, server, work):
        self.server = server
        self.url = server.bucket(f"lake-{secrets.token_hex(8)}")
        self.options = server.options
        self.new = f"{self.url}/data/new"
        self._work = work

    def put(self, log_dir):
        self.old = put_log_dir(log_dir, f"{self.url}/data/old", self.options)

    def convert(self, source=None, *, sabotage=None, **more):
        spark = SparkDouble(sabotage) if sabotage else SparkDouble()
        return convert_topics(spark, source or self.old, self.new, task_bytes=1, store_options=self.options, **more)

    def rollback(self):
        return rollback_topics(self.new, store_options=self.options)

    def finalize(self):
        return finalize_topics(self.new, store_options=self.options).partitions

    def fetch(self, url=None):
        """{partition/file: bytes} of a fresh log dir."""
        log_dir = self._work / secrets.token_hex(4)
        list(fetch_topics(url or self.new, log_dir, store_options=self.options, fs=UnsyncedFs()))
        return bytes_of(log_dir)

    def objects(self):
        """{key below data/: bytes}, past our own client; but for the source."""
        found = self.server.objects(f"{self.url}/data")
        return {key: data for key, data in found.items() if not key.startswith("old/")}

    def versions(self):
        """Prefixes that hold anything."""
        return {key.split("/")[1] for key in self.objects() if key.startswith("new/v")}


@pytest.fixture(params=["on disk", pytest.param("s3", marks=pytest.mark.spark)])
def lake(request, log_dir, tmp_path, monkeypatch):
    """With three partitions of old formats."""
    if request.param == "s3":
        server = request.getfixturevalue("s3")
    else:
        server = ObjectsOnDisk(tmp_path / "objects", monkeypatch)
    lake = Lake(server, tmp_path)
    lake.put(log_dir)
    return lake


@pytest.fixture
def s3_lake(s3, log_dir, tmp_path):
    """The same in a real server alone."""
    lake = Lake(s3, tmp_path)
    lake.put(log_dir)
    return lake


def by_cli(log_dir, target, topics=(), **options):
    """What one machine makes of it."""
    rows = list(convert_log_dir(log_dir, target, Options(**options), topics=topics, fs=UnsyncedFs()))
    assert {row.status for row in rows} == {"converted"}
    return bytes_of(target)


# --- a cluster, a broker ---------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.skipif(lacking() is not None, reason=str(lacking()))
def test_a_cluster_converts_a_topic_from_bucket_to_bucket_and_a_broker_serves_it(
    s3, cluster, tmp_path, in_memory, monkeypatch
):
    for name, value in cluster.environment().items():
        monkeypatch.setenv(name, value)
    with served_log_dir(tmp_path / "broker", "orders") as served:
        lake = Lake(s3, in_memory)
        lake.put(served.log_dir)
        with session(cluster.url, cluster.settings(**{"spark.log.level": "OFF"})) as spark:
            report = convert_topics(
                spark, lake.old, lake.new, topics=["orders"], task_bytes=4000, verify="full", store_options=s3.options
            )
        assert report.is_whole
        assert report.tasks > 8
        # As a person would, by the command.
        options = [f"--store-option={key}={value}" for key, value in s3.options.items()]
        *rows, _ = seglog_json("restore", lake.new, in_memory / "got", *options)
        assert [row["partition"] for row in rows] == sorted(served.partitions)
        (version,) = lake.versions()
        assert {row["version"] for row in rows} == {version}
        for name in served.partitions:
            assert not but_of_compaction(verify(in_memory / "got" / name).findings)
        assert bytes_of(in_memory / "got") == by_cli(served.log_dir, in_memory / "cli", topics=["orders"])
        served.check(in_memory / "got", served.partitions)
        # Nothing was left but what the manifest names, and the workplace.
        assert seglog("spark", "convert", lake.old, lake.new, "--finalize", *options).exit_code == 0
        assert {key.split("/")[0] for key in lake.objects()} == {"new"}
        *rows, summary = seglog_json("restore", lake.new, in_memory / "got", *options)
        assert {row["is_new"] for row in rows} == {False}
        assert (summary["partitions"], summary["found_whole"]) == (0, len(served.partitions))


DRIVER = """
import json, os, signal, sys
from seglog.spark import convert_topics
from seglog.stores.object_store import ObjectStore
from seglog.spark.session import session

old, new, options = sys.argv[1:4]
write = ObjectStore.write

def mortal(self, path, data):
    if path.endswith("/seglog-manifest.json"):
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, path, data)

ObjectStore.write = mortal
with session("local[2]") as spark:
    convert_topics(spark, old, new, task_bytes=4000, codec="lz4", store_options=json.loads(options))
"""


@pytest.mark.spark
@pytest.mark.skipif(lacking() is not None, reason=str(lacking()))
def test_a_driver_killed_before_the_manifest_leaves_the_old_version_and_another_goes_on(s3_lake, log_dir, tmp_path):
    lake = s3_lake
    lake.convert()
    lake.finalize()
    first, (version,) = lake.fetch(), lake.versions()
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, lake.old, lake.new, json.dumps(lake.options)], capture_output=True, text=True,
        check=False, env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == -9, done.stderr[-2000:]
    assert len(lake.versions()) == 2
    assert lake.fetch() == first
    report = lake.convert(codec="lz4")
    assert report.is_whole
    assert report.total.skipped == report.total.segments
    assert lake.fetch() == by_cli(log_dir, tmp_path / "cli", codec="lz4")
    lake.finalize()
    assert version not in lake.versions()
    assert len(lake.versions()) == 1


# --- where it comes from, where it goes ------------------------------------------------------


def test_the_result_is_that_of_one_machine_and_the_source_stays(lake, log_dir, tmp_path):
    before = lake.server.objects(f"{lake.url}/data/old")
    report = lake.convert(verify="full")
    assert report.is_whole
    assert lake.fetch() == by_cli(log_dir, tmp_path / "cli")
    assert lake.server.objects(f"{lake.url}/data/old") == before


@pytest.mark.parametrize("options", [
    {"to": 1, "allow_lossy": LOSS_KINDS, "aborted": "drop", "codec": "lz4"}, {"repack_bytes": 4096, "codec": "zstd"},
], ids=["to v1", "repacked"])
def test_options_mean_the_same_as_on_one_machine(lake, log_dir, tmp_path, options):
    assert lake.convert(**options).is_whole
    assert lake.fetch() == by_cli(log_dir, tmp_path / "cli", **options)


def test_source_and_target_need_not_be_in_one_store(lake, log_dir, tmp_path):
    whole = by_cli(log_dir, tmp_path / "cli")
    # From this machine into the store, and from there back as it was written.
    assert lake.convert(log_dir).is_whole
    (version,) = lake.versions()
    report = convert_topics(
        SparkDouble(), f"{lake.new}/{version}", tmp_path / "back", store_options=lake.options, fs=UnsyncedFs()
    )
    assert report.is_whole
    assert bytes_of(tmp_path / "back") == whole
    # Straight from the store to this machine.
    report = convert_topics(
        SparkDouble(), lake.old, tmp_path / "here", store_options=lake.options, fs=UnsyncedFs()
    )
    assert report.is_whole
    assert bytes_of(tmp_path / "here") == whole


def test_a_dry_run_writes_nothing(lake):
    report = lake.convert(dry_run=True)
    assert {row.status for row in report.rows} == {"planned"}
    assert lake.objects() == {}


def test_a_command_restores_the_current_version_and_its_dry_run_writes_nothing(lake, tmp_path):
    lake.convert()
    words = ["restore", lake.new, tmp_path / "got", *(f"--store-option={k}={v}" for k, v in lake.options.items())]
    *planned, summary = seglog_json(*words, "--dry-run", "--topic", "pay*", status=1)
    assert [(row["partition"], row["is_new"]) for row in planned] == [("payments-0", True)]
    assert summary["dry_run"]
    assert not (tmp_path / "got").exists()
    assert "orders-0 of v" in seglog(*words).stdout
    assert "dry run: nothing to do" in seglog(*words, "--dry-run").stdout
    assert bytes_of(tmp_path / "got") == lake.fetch()
    refused = seglog(*words, "--until", "-2h", status=2)
    assert "--until is for a backup, and there are no backups in" in refused.stderr


def test_topics_fetched_are_chosen_by_patterns_and_passed_over_when_they_are_here(lake, tmp_path):
    lake.convert()
    got = list(fetch_topics(lake.new, tmp_path / "got", topics=["pay*"], store_options=lake.options))
    assert [(row.partition, row.is_new) for row in got] == [("payments-0", True)]
    got = list(fetch_topics(lake.new, tmp_path / "got", store_options=lake.options))
    assert [row.is_new for row in got] == [True, True, False]
    assert sum(row.size_bytes for row in got) == sum(
        path.stat().st_size for path in (tmp_path / "got").glob("*/*") if not path.name.startswith(".seglog")
    )
    # What a broker would trust: all were whole when they came.
    assert (tmp_path / "got/.kafka_cleanshutdown").exists()


# --- what changes, what fails ----------------------------------------------------------------


def test_a_source_object_that_changes_meanwhile_stops_its_partition_alone(lake, log_dir, tmp_path):
    log = sorted((log_dir / "orders-0").glob("*.log"))[0]
    key = f"{lake.old}/orders-0/{log.name}"
    store = ObjectStore.open(lake.old, lake.options)[0]

    def replaced(job, number, run):
        out = run()
        if (job, number) == (0, 0):
            store.write(key, log.read_bytes() + b"\0")
        return out

    report = lake.convert(sabotage=replaced)
    assert [(row.partition, row.error) for row in report.failed] == [("orders-0", "invalid_argument")]
    assert key in report.failed[0].what
    assert {name.partition("/")[0] for name in lake.fetch()} == {"orders-1", "payments-0"}
    # Mended, the next run does that segment again, and no other one.
    store.write(key, log.read_bytes())
    report = lake.convert()
    assert [row.status for row in report.rows] == ["skipped", "converted", "skipped"] or report.is_whole
    assert lake.fetch() == by_cli(log_dir, tmp_path / "cli")


@pytest.mark.spark
def test_an_object_that_is_replaced_while_it_is_read_is_no_mixture_of_two(s3_lake):
    store, path = ObjectStore.open(f"{s3_lake.url}/large", s3_lake.options)
    store.write(path, bytes(3 * PIECE_BYTES))
    pieces = store.pieces(path)
    assert next(pieces) == bytes(PIECE_BYTES)
    store.write(path, b"\1" * 3 * PIECE_BYTES)
    with pytest.raises(StorageError, match="replaced while it was read"):
        list(pieces)


def test_a_damaged_object_is_named_by_its_url(lake, log_dir):
    log = sorted((log_dir / "orders-1").glob("*.log"))[0]
    raw = bytearray(log.read_bytes())
    raw[len(raw) // 2] ^= 1
    ObjectStore.open(lake.old, lake.options)[0].write(f"{lake.old}/orders-1/{log.name}", bytes(raw))
    (failed,) = lake.convert().failed
    assert (failed.partition, failed.error) == ("orders-1", "corrupt_record")
    assert f"{lake.old}/orders-1/{log.name}" in failed.what


def test_what_an_attempt_left_is_not_fetched(lake):
    lake.convert()
    whole, (version,) = lake.fetch(), lake.versions()
    store = ObjectStore.open(lake.new, lake.options, removable)[0]
    store.write(f"{lake.new}/{version}/orders-0/00000000000000099999.log", b"came too late")
    store.write(f"{lake.new}/v9-00000000/orders-9/00000000000000000000.log", b"of a version that does not count")
    assert lake.fetch() == whole


def test_a_second_attempt_at_the_same_time_changes_nothing(lake, log_dir, tmp_path):
    report = lake.convert(sabotage=lambda job, number, run: run() and run())
    assert report.is_whole
    assert lake.fetch() == by_cli(log_dir, tmp_path / "cli")


def test_a_driver_whose_conversion_another_has_taken_up_publishes_nothing(lake, log_dir, tmp_path):
    def overtaken(job, number, run):
        out = run()
        if (job, number) == (1, 0):
            assert lake.convert().is_whole
        return out

    with pytest.raises(LogLockedError, match="another run"):
        lake.convert(sabotage=overtaken)
    assert lake.fetch() == by_cli(log_dir, tmp_path / "cli")


class Died(BaseException):
    """kill -9: nothing runs any more."""


def test_a_driver_may_die_at_any_step_and_another_ends_the_work(lake, log_dir, tmp_path, monkeypatch):
    lake.convert()
    lake.finalize()
    first = lake.fetch()
    second = by_cli(log_dir, tmp_path / "cli", codec="lz4")
    left = 10**9

    def mortal(name):
        change = getattr(ObjectStore, name)

        def counted(self, *arguments):
            nonlocal left
            left -= 1
            if left < 0:
                raise Died
            change(self, *arguments)

        return counted

    def die_after(steps, work):
        nonlocal left
        left = steps
        with monkeypatch.context() as patch:
            for name in ("write", "upload", "remove_file"):
                patch.setattr(ObjectStore, name, mortal(name))
            with contextlib.suppress(Died):
                work()
        return steps - left

    def end(work, steps):
        """Interrupted after each of these numbers of steps, then not."""
        for step in steps:
            die_after(step, work)
            assert lake.fetch() in (first, second)
        # One that died behind its last word was at its end.
        with contextlib.suppress(InvalidArgumentError):
            work()

    def convert():
        assert lake.convert(codec="lz4").is_whole

    steps = die_after(10**9, convert)
    assert lake.fetch() == second
    assert die_after(10**9, lake.rollback) > 20
    assert lake.fetch() == first
    for step in {*range(0, steps, 1 if EVERY_STATE else 60), *range(steps - 3, steps)}:
        die_after(step, convert)
        assert lake.fetch() == first or step == steps - 1
        convert()
        assert lake.fetch() == second, step
        end(lake.rollback, (2, 7, 20))
        assert lake.fetch() == first, step
        assert len(lake.versions()) == 1
        assert not [key for key in lake.objects() if not key.startswith("new/")]
    convert()
    end(lake.finalize, (0, 1, 5, 20, 60))
    assert lake.fetch() == second
    assert len(lake.versions()) == 1
    assert not [key for key in lake.objects() if not key.startswith("new/")]


# --- ends ------------------------------------------------------------------------------------


def test_a_rollback_of_the_first_version_leaves_nothing(lake):
    lake.convert()
    assert lake.rollback() == ["orders-0", "orders-1", "payments-0"]
    assert lake.objects() == {}
    with pytest.raises(InvalidArgumentError, match="no conversion"):
        lake.rollback()


def test_the_former_version_of_a_partition_that_is_final_goes_at_once(lake, log_dir, tmp_path):
    lake.convert()
    lake.finalize()
    (former,) = lake.versions()
    with pytest.raises(Died):
        lake.convert(codec="lz4", wave_bytes=1, finalize_each=True, sabotage=dies_in_wave(3, Died))
    assert {key.split("/")[2] for key in lake.objects() if key.startswith(f"new/{former}/") and key.count("/") > 2} == {
        "payments-0"
    }
    # What is final stays when the rest is undone.
    assert lake.rollback() == []
    first, second = (by_cli(log_dir, tmp_path / f"cli {codec}", codec=codec) for codec in (None, "lz4"))
    partitions = {name: data for name, data in lake.fetch().items() if "/" in name}
    assert partitions == {
        name: data for found, has in ((first, "payments-0/"), (second, "orders-")) for name, data in found.items()
        if name.startswith(has)
    }
    assert not [key for key in lake.objects() if not key.startswith("new/")]


def test_another_run_goes_on_with_what_is_final_and_ends_with_one_version(lake, log_dir, tmp_path):
    lake.convert()
    lake.finalize()
    options = {"codec": "lz4", "wave_bytes": 1, "finalize_each": True}
    with pytest.raises(Died):
        lake.convert(sabotage=dies_in_wave(2, Died), **options)
    report = lake.convert(**options)
    assert [row.status for row in report.rows] == ["skipped", "converted", "converted"]
    assert report.rows[0].bytes_out > 0
    assert report.is_final
    assert lake.fetch() == by_cli(log_dir, tmp_path / "cli", codec="lz4")
    assert len(lake.versions()) == 1
    assert not [key for key in lake.objects() if not key.startswith("new/")]


def test_a_rollback_puts_the_former_version_back_and_finalizing_removes_it(lake):
    lake.convert()
    lake.finalize()
    first, before = lake.fetch(), lake.objects()
    lake.convert(codec="lz4")
    assert len(lake.versions()) == 2
    assert lake.fetch() != first
    assert lake.rollback() == ["orders-0", "orders-1", "payments-0"]
    after = lake.objects()
    # The manifest says the same, in a later edition.
    manifests = [json.loads(objects.pop(f"new/{MANIFEST_FILE}")) for objects in (before, after)]
    assert after == before
    assert manifests[0]["partitions"] == manifests[1]["partitions"]
    assert manifests[0]["serial"] < manifests[1]["serial"]
    assert lake.fetch() == first
    lake.convert(topics=["orders"], codec="lz4")
    assert lake.finalize() == ["orders-0", "orders-1"]
    assert lake.finalize() == ["orders-0", "orders-1", "payments-0"]        # again: all that is final
    # One partition is still of the first version, and that of the others is gone.
    assert len(lake.versions()) == 2
    second = lake.fetch()
    assert {name: data for name, data in second.items() if name.startswith("payments")} == {
        name: data for name, data in first.items() if name.startswith("payments")
    }
    assert not [key for key in lake.objects() if "orders" in key and key.startswith("new/v1-")]
    assert not [key for key in lake.objects() if not key.startswith("new/")]


# --- manifests -------------------------------------------------------------------------------


def test_a_manifest_of_a_newer_version_and_a_damaged_one_are_refused(lake):
    lake.convert()
    store = ObjectStore.open(lake.new, lake.options, removable)[0]
    path = f"{lake.new}/{MANIFEST_FILE}"
    good = store.read(path)
    store.write(path, format_json("seglog-topics-manifest", 2, serial=1, partitions={}))
    with pytest.raises(UnsupportedVersionError):
        lake.fetch()
    store.write(path, good.replace(b"orders-0", b"orders-7"))
    with pytest.raises(CorruptCheckpointError):
        lake.fetch()
    store.write(path, format_json("seglog-topics-manifest", 1, serial=1, partitions={"orders-0": "../../etc"}))
    with pytest.raises(CorruptCheckpointError):
        lake.fetch()


def test_an_object_that_is_not_as_it_was_written_is_found(lake):
    lake.convert()
    (version,) = lake.versions()
    store = ObjectStore.open(lake.new, lake.options, removable)[0]
    path = f"{lake.new}/{version}/orders-0/leader-epoch-checkpoint"
    store.write(path, store.read(path)[:-1])
    with pytest.raises(ProofMismatchError):
        lake.fetch()
    store.remove_file(path)
    with pytest.raises(StorageError):
        lake.fetch()
    store.remove_file(f"{lake.new}/{version}/orders-0.files")
    with pytest.raises(NotALogError):
        lake.fetch()


def test_a_source_of_several_versions_wants_one_named(lake):
    lake.convert()
    with pytest.raises(InvalidArgumentError, match="several versions"):
        convert_topics(SparkDouble(), lake.new, f"{lake.url}/data/newer", store_options=lake.options)


def test_another_partition_of_that_name_is_not_written_over(lake, log_dir, tmp_path):
    lake.convert()
    with pytest.raises(InvalidArgumentError, match="a different partition"):
        list(fetch_topics(lake.new, log_dir, store_options=lake.options))


# --- refusals --------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.parametrize(("change", "words", "fix"), [
    ({"secret_key": "not-the-one"}, "SIGNATURE_DOES_NOT_MATCH|ACCESS_DENIED", "AWS_SECRET_ACCESS_KEY"),
    ({"access_key": "nobody"}, "NotSignedUp|ACCESS_DENIED", "AWS_ACCESS_KEY_ID"),
    ({"access_key": None, "secret_key": None, "anonymous": "true"}, "ACCESS_DENIED", "AWS_ACCESS_KEY_ID"),
    ({"endpoint_override": "127.0.0.1:1"}, "127.0.0.1:1", "endpoint_override"),
    ({"scheme": "https"}, "SSL", "endpoint_override"),
], ids=["secret", "key", "anonymous", "nobody there", "no TLS"])
def test_a_store_that_does_not_let_us_in_is_told_in_words(s3_lake, tmp_path, change, words, fix):
    lake = s3_lake
    options = {key: value for key, value in {**lake.options, **change}.items() if value is not None}
    for work in (
        lambda: convert_topics(SparkDouble(), lake.old, lake.new, store_options=options),
        lambda: list(fetch_topics(lake.new, tmp_path / "got", store_options=options)),
        lambda: finalize_topics(lake.new, store_options=options),
    ):
        with pytest.raises(StorageError) as caught:
            work()
        # A request whose answer has no body, HeadBucket, is only denied.
        assert re.search(words, caught.value.what)
        assert fix in caught.value.hint
        assert caught.value.file.startswith(lake.url)
        assert "not-the-one" not in str(caught.value)


def test_a_bucket_that_is_not_there_is_named(lake, tmp_path):
    with pytest.raises(StorageError, match="the bucket nowhere does not exist"):
        convert_topics(SparkDouble(), lake.old, "s3://nowhere/new", store_options=lake.options)
    result = seglog(
        "restore", "s3://nowhere/new", tmp_path / "got",
        *(f"--store-option={key}={value}" for key, value in lake.options.items()), status=3,
    )
    assert "nowhere" in result.stderr
    with pytest.raises(StorageError, match="no such file or directory"):
        convert_topics(SparkDouble(), f"{lake.url}/data/none", lake.new, store_options=lake.options)
