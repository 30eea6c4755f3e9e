"""What a KRaft cluster knows, from its metadata log on a disk, against what the broker's own clients said."""
import shutil

import pytest

from seglog._kernels.batch_builder import BatchBuilder
from seglog.errors import CorruptRecordError, NotALogError
from seglog.format.names import file_name
from seglog.reading.cluster_metadata import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    PartitionReplicas,
    metadata_directory,
    node_of,
    read_cluster_metadata,
)
from seglog.reading.topic_settings import BROKER_NAMES, DirectorySettings, ToldSetting, told_settings
from seglog.wire import stored_records as r
from seglog.wire.codec import encode_message
from support.internal_topics import KRAFT_VERSIONS, kraft, kraft_answers

SOURCES = {
    "topic": "DYNAMIC_TOPIC_CONFIG", "broker": "DYNAMIC_BROKER_CONFIG", "brokers": "DYNAMIC_DEFAULT_BROKER_CONFIG",
}
A, B = bytes(15) + b"\1", bytes(15) + b"\2"


@pytest.mark.parametrize("version", KRAFT_VERSIONS)
def test_topics_are_what_the_broker_said(version):
    metadata = read_cluster_metadata(metadata_directory(kraft(version)))
    expected = kraft_answers(version)["topics"]
    assert metadata.topics.keys() == expected.keys()
    assert metadata.unknown == 0
    for name, topic in metadata.topics.items():
        assert topic.topic_id == expected[name]["id"]
        assert [
            {"partition": n, "leader": one.leader, "replicas": one.replicas, "isr": one.isr}
            for n, one in sorted(topic.partitions.items())
        ] == expected[name]["partitions"]


@pytest.mark.parametrize("version", KRAFT_VERSIONS)
def test_settings_are_what_the_broker_said_and_no_other(version):
    """Of topics, of this broker, of all brokers; what server.properties or Kafka's defaults say is not on the disk."""
    metadata = read_cluster_metadata(metadata_directory(kraft(version)))
    met = set()
    for name, topic in kraft_answers(version)["topics"].items():
        told = told_settings(metadata, name, "1")
        assert {key: [one.value, SOURCES[one.source]] for key, one in told.items()} == {
            key: value for key, value in topic["settings"].items() if value[1] in SOURCES.values()
        }
        met |= {one.source for one in told.values()}
        # Every setting of a topic has the name as a broker's that we look for.
        assert {key for key in topic["settings"] if key in BROKER_NAMES} <= BROKER_NAMES.keys()
    assert met == SOURCES.keys()


def metadata_log(directory, *messages, base=0):
    """A metadata log with these records."""
    directory.mkdir(exist_ok=True)
    batch = BatchBuilder(base)
    for n, message in enumerate(messages):
        value = message if isinstance(message, bytes) else (
            bytes([1, message.API_KEY, message.MAX_VERSION]) + encode_message(message, message.MAX_VERSION)
        )
        batch.append(base + n, 0, None, value)
    (directory / file_name(base, ".log")).write_bytes(batch.finish())
    return directory


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "__cluster_metadata-0"


def partition(topic_id, **fields):
    return r.PartitionRecord(partition_id=0, topic_id=topic_id, replicas=[1, 2], isr=[1, 2], leader=1, leader_epoch=0,
                             **fields)


def test_changes_of_a_partition_and_removals_count(directory):
    metadata = read_cluster_metadata(metadata_log(
        directory,
        r.TopicRecord(name="a", topic_id=A), partition(A),
        r.ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name="a", name="retention.ms", value="5"),
        r.TopicRecord(name="b", topic_id=B), partition(B),
        r.PartitionChangeRecord(partition_id=0, topic_id=B, isr=[2], leader=2),
        r.PartitionChangeRecord(partition_id=0, topic_id=B, replicas=[2, 3]),
        r.PartitionChangeRecord(partition_id=7, topic_id=B, leader=2),      # there is no such partition
        r.ConfigRecord(resource_type=BROKER_RESOURCE, resource_name="", name="log.retention.ms", value="9"),
        r.ConfigRecord(resource_type=BROKER_RESOURCE, resource_name="", name="log.roll.ms", value="9"),
        r.ConfigRecord(resource_type=BROKER_RESOURCE, resource_name="", name="log.roll.ms", value=None),
        r.RemoveTopicRecord(topic_id=A), r.RemoveTopicRecord(topic_id=A),
    ))
    assert metadata.topics.keys() == {"b"}
    assert metadata.topics["b"].partitions == {0: PartitionReplicas([2, 3], [2], 2, 1)}
    assert told_settings(metadata, "a", "1") == told_settings(metadata, "b", "1") == {
        "retention.ms": ToldSetting("9", "brokers"),
    }
    assert metadata.end_offset == 13


@pytest.mark.parametrize(("end", "names"), [
    (r.EndTransactionRecord(), {"a", "b"}), (r.AbortTransactionRecord(), {"a"}), (None, {"a"}),
])
def test_a_transaction_of_the_controller_holds_at_its_end(directory, end, names):
    records = [r.TopicRecord(name="a", topic_id=A), r.BeginTransactionRecord(), r.TopicRecord(name="b", topic_id=B)]
    metadata = read_cluster_metadata(metadata_log(directory, *records, *filter(None, [end])))
    assert metadata.topics.keys() == names


def test_records_of_unknown_types_and_of_no_partition_are_counted_or_passed_over(directory):
    metadata = read_cluster_metadata(metadata_log(
        directory, b"\1\x7f\0\0", b"", b"\0\2\0", partition(A), r.TopicRecord(name="a", topic_id=A),
    ))
    assert (metadata.unknown, metadata.topics["a"].partitions) == (3, {})


def test_a_log_that_begins_behind_its_snapshots_is_refused(directory):
    metadata_log(directory, r.TopicRecord(name="a", topic_id=A), base=5)
    with pytest.raises(CorruptRecordError, match="begins at offset 5, and no snapshot reaches so far"):
        read_cluster_metadata(directory)


def test_a_snapshot_alone_is_enough_and_nothing_is_not(tmp_path):
    copy = shutil.copytree(kraft("4.1.1") / "__cluster_metadata-0", tmp_path / "__cluster_metadata-0")
    for file in copy.glob("*.log"):
        file.unlink()
    metadata = read_cluster_metadata(copy)
    assert "orders" in metadata.topics
    assert metadata.end_offset == max(int(file.name[:20]) for file in copy.glob("*.checkpoint"))
    for file in copy.glob("*.checkpoint"):
        file.unlink()
    with pytest.raises(NotALogError, match="no segment and no snapshot"):
        read_cluster_metadata(copy)


def test_the_metadata_log_is_found_in_another_log_dir_of_the_same_node(tmp_path):
    data = shutil.copytree(kraft("4.1.1"), tmp_path / "data")
    other = tmp_path / "more"
    other.mkdir()
    assert metadata_directory(other) is None
    meta = (data / "meta.properties").read_text()
    (other / "meta.properties").write_text(meta.replace("directory.id=", "directory.id=x"))
    assert metadata_directory(other) == tmp_path / "data/__cluster_metadata-0"
    properties = (other / "meta.properties").read_text()
    (other / "meta.properties").write_text(properties.replace("node.id=1", "node.id=2"))
    assert metadata_directory(other) is None
    (other / "meta.properties").write_text("\\u12")
    assert node_of(other) is None


def test_what_seglog_keeps_with_a_log_and_keys_that_it_does_not_know_are_left_out(tmp_path):
    import seglog

    data = shutil.copytree(kraft("4.1.1"), tmp_path / "data")
    directory = data / "orders-0"
    assert DirectorySettings().told(directory)["retention.ms"] == ToldSetting("3600000", "topic")
    with seglog.open(directory) as log:
        log.configure({"retention.ms": 7})
    told = DirectorySettings().told(directory)
    assert "retention.ms" not in told
    assert told["cleanup.policy"] == ToldSetting("delete", "topic")
    assert DirectorySettings().told(data / "stray-0") == {}
