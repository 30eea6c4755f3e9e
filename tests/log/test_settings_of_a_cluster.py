"""A broker's directory is opened with its topic's own settings from the cluster's metadata."""
import contextlib
import shutil
import uuid

import pytest

import seglog
from seglog.reading import topic_settings
from seglog.state.partition_metadata import PartitionMetadata
from support.internal_topics import kraft

RETENTION = {"retention.ms": 1000}


@pytest.fixture
def data(tmp_path):
    return shutil.copytree(kraft("4.1.1"), tmp_path / "data")


def alone(data, topic, **arguments):
    return seglog.open(data / f"{topic}-0", **arguments)


@contextlib.contextmanager
def in_log_dir(data, topic, config=None):
    with seglog.open_dir(data, config=config) as log_dir:
        yield log_dir.log(topic, 0)


EACH_DOOR = pytest.mark.parametrize("opened", [alone, in_log_dir])


def is_emptied(log):
    """Whether retention deletes all records, which are older than any retention here."""
    log.delete_old_segments()
    return log.log_start_offset == log.log_end_offset


@EACH_DOOR
def test_retention_leaves_a_topic_that_the_cluster_compacts(data, opened):
    with opened(data, "table", config=RETENTION) as log:
        assert not is_emptied(log)
        assert {name: log.settings[name].value for name in ("cleanup.policy", "max.message.bytes")} == {
            "cleanup.policy": "compact", "max.message.bytes": 2_000_000}


def test_retention_for_all_logs_leaves_what_a_topic_itself_was_given(data):
    """For this log alone, it counts."""
    with in_log_dir(data, "orders", config=RETENTION) as log:
        assert log.config.retention_ms == 3_600_000
    with alone(data, "orders", config=RETENTION) as log:
        assert log.config.retention_ms == 1000
        assert is_emptied(log)


def test_settings_for_one_log_of_a_log_dir_count(data):
    config = {**RETENTION, "cleanup.policy": "delete"}
    with seglog.open_dir(data) as log_dir:
        assert is_emptied(log_dir.log("table", 0, config=config))
        assert not is_emptied(log_dir.log("orders", 0))


@EACH_DOOR
def test_a_topics_own_retention_begins_no_deletion(data, opened):
    """The broker would have deleted these records: whoever opens the disk of a dead one may want them."""
    with opened(data, "orders") as log:
        assert not is_emptied(log)
        assert log.config.retention_ms == -1


@EACH_DOOR
def test_settings_that_seglog_keeps_come_before_the_clusters(data, opened):
    with alone(data, "table") as log:
        log.configure({"cleanup.policy": "delete", "retention.ms": 1000})
        assert log.settings["max.message.bytes"].value == 2_000_000
    with opened(data, "table") as log:
        assert is_emptied(log)


@EACH_DOOR
def test_kept_retention_does_not_empty_a_topic_that_the_cluster_compacts(data, opened):
    with alone(data, "table") as log:
        log.configure(RETENTION)
    with opened(data, "table") as log:
        assert not is_emptied(log)


@EACH_DOOR
@pytest.mark.parametrize("unknown", ["no such topic", "another id", "damaged metadata"])
def test_retention_deletes_nothing_of_a_topic_whose_policy_is_unknown(data, opened, unknown, caplog):
    topic = "orders"
    if unknown == "no such topic":
        topic = "stray"
        shutil.copytree(data / "orders-0", data / "stray-0", ignore=shutil.ignore_patterns("partition.metadata"))
    elif unknown == "another id":
        (data / "orders-0/partition.metadata").write_bytes(PartitionMetadata(uuid.uuid4()).to_bytes())
    else:
        for file in (data / "__cluster_metadata-0").iterdir():
            if file.suffix in (".log", ".checkpoint"):
                file.unlink()
    with opened(data, topic, config=RETENTION) as log:
        assert not is_emptied(log)
    assert any("retention deletes nothing" in record.message and "cleanup.policy" in record.message
               for record in caplog.records)
    with alone(data, topic, config={**RETENTION, "cleanup.policy": "delete"}) as log:
        assert is_emptied(log)


def test_a_policy_for_all_logs_of_a_log_dir_is_none_of_a_topic_that_the_cluster_does_not_know(data):
    shutil.copytree(data / "orders-0", data / "stray-0", ignore=shutil.ignore_patterns("partition.metadata"))
    with in_log_dir(data, "stray", config={**RETENTION, "cleanup.policy": "delete"}) as log:
        assert not is_emptied(log)


@EACH_DOOR
@pytest.mark.parametrize("trace", ["cleaner-offset-checkpoint", "a topic of the broker"])
def test_retention_deletes_nothing_of_a_log_that_was_compacted(data, opened, trace, caplog):
    """Brokers with ZooKeeper have no metadata in their log dirs."""
    shutil.rmtree(data / "__cluster_metadata-0")
    topic = "table" if trace.startswith("cleaner") else "__consumer_offsets"
    if topic == "table":
        (data / trace).write_text("0\n1\ntable 0 2\n")
    with opened(data, topic, config=RETENTION) as log:
        assert not is_emptied(log)
    assert any("retention deletes nothing" in record.message for record in caplog.records)


@EACH_DOOR
def test_without_metadata_and_traces_retention_is_as_given(data, opened):
    shutil.rmtree(data / "__cluster_metadata-0")
    with opened(data, "table", config=RETENTION) as log:
        assert is_emptied(log)


@EACH_DOOR
def test_a_link_in_a_log_dir_is_a_partition_of_its_cluster(data, tmp_path, opened):
    (tmp_path / "disk").mkdir()
    (data / "table-0").rename(tmp_path / "disk/table-0")
    (data / "table-0").symlink_to(tmp_path / "disk/table-0")
    with opened(data, "table", config=RETENTION) as log:
        assert not is_emptied(log)


def test_a_link_to_a_partition_has_the_cluster_of_its_log_dir(data, tmp_path):
    (tmp_path / "table-0").symlink_to(data / "table-0")
    with seglog.open(tmp_path / "table-0", config=RETENTION) as log:
        assert not is_emptied(log)


def test_the_metadata_is_read_once_for_many_logs_and_again_once_it_changed(data, monkeypatch):
    read = []
    monkeypatch.setattr(topic_settings, "read_cluster_metadata", lambda directory, real=topic_settings.
                        read_cluster_metadata: read.append(directory) or real(directory))
    for _ in range(3):
        for topic in ("orders", "table"):
            alone(data, topic).close()
    assert len(read) == 1
    newest = max((data / "__cluster_metadata-0").glob("*.log"))
    newest.write_bytes(newest.read_bytes() + bytes(1))
    alone(data, "table").close()
    assert len(read) == 2
