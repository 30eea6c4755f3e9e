"""The files of two real brokers' log dirs (tests/golden/log_dir), read and written again."""
from pathlib import Path

import pytest

from seglog.errors import CorruptCheckpointError
from seglog.format import names
from seglog.state.checkpoints import format_offset_checkpoint, read_offset_checkpoint
from seglog.state.leader_epochs import LeaderEpochs
from seglog.state.meta_properties import CleanShutdown, MetaProperties
from seglog.state.partition_metadata import PartitionMetadata, format_topic_id
from seglog.state.producer_snapshot import ProducerSnapshot

GOLDEN = Path(__file__).parent.parent / "golden/log_dir"
BROKERS = [pytest.param(GOLDEN / name, id=name) for name in ("kafka-3.9.1", "kafka-4.1.1")]
OF_THE_TWO_TOPICS = {("epochs-v2-k391", 0): 38, ("idempotent-v2-k391", 0): 67}


@pytest.mark.parametrize("log_dir", BROKERS)
@pytest.mark.parametrize("name", [names.RECOVERY_POINT_CHECKPOINT, names.REPLICATION_CHECKPOINT])
def test_checkpoints_say_an_offset_for_each_partition(log_dir, name):
    offsets = read_offset_checkpoint(log_dir / name)
    assert offsets == OF_THE_TWO_TOPICS
    assert format_offset_checkpoint(offsets) == (log_dir / name).read_bytes()


@pytest.mark.parametrize("log_dir", BROKERS)
def test_a_checkpoint_without_entries_is_written_as_kafka_writes_it(log_dir):
    path = log_dir / names.LOG_START_OFFSET_CHECKPOINT
    assert read_offset_checkpoint(path) == {}
    assert format_offset_checkpoint({}) == path.read_bytes()


@pytest.mark.parametrize("log_dir", BROKERS)
def test_partition_metadata_is_written_again_the_same(log_dir):
    paths = sorted(log_dir.glob("*/partition.metadata"))
    assert len(paths) == 3
    for path in paths:
        assert PartitionMetadata.read(path).to_bytes() == path.read_bytes()
    metadata = PartitionMetadata.read(log_dir / "__cluster_metadata-0/partition.metadata")
    assert metadata.topic_id.int == 1       # Uuid.METADATA_TOPIC_ID


@pytest.mark.parametrize("log_dir", BROKERS)
def test_leader_epochs_and_snapshots_of_a_broker_are_written_again_the_same(log_dir):
    for path in log_dir.glob("*/leader-epoch-checkpoint"):
        assert len(LeaderEpochs.read(path)) == 2
        assert LeaderEpochs.read(path).to_bytes() == path.read_bytes()
    for path in log_dir.glob("*/*.snapshot"):
        assert ProducerSnapshot.read(path).to_bytes() == path.read_bytes()


@pytest.mark.parametrize("log_dir", BROKERS)
def test_meta_properties_name_cluster_and_node(log_dir):
    properties = MetaProperties.read(log_dir / names.META_PROPERTIES)
    text = (log_dir / names.META_PROPERTIES).read_text()
    assert (properties.version, properties.node_id) == (1, 1)
    assert f"\ncluster.id={properties.cluster_id}\n" in text
    assert f"\ndirectory.id={properties.directory_id}\n" in text
    assert len(properties.cluster_id) == len(format_topic_id(PartitionMetadata.read(
        log_dir / "__cluster_metadata-0/partition.metadata").topic_id))


def test_meta_properties_of_zookeeper_name_the_broker():
    raw = b"#\n#Wed May 08 10:23:45 CST 2024\nbroker.id=2\nversion=0\ncluster.id=tfIO-Ab4PdddYjiU3pEWqw\n"
    assert MetaProperties.parse(raw) == MetaProperties(0, "tfIO-Ab4PdddYjiU3pEWqw", 2, None)


def test_java_escapes_are_undone():
    raw = b"! note\n version : 1\nnode.id = 7\ncluster.id=a\\:b\\=c\\u0041\\\\\\t\n\r\ncluster\\.x=1\n"
    assert MetaProperties.parse(raw) == MetaProperties(1, "a:b=cA\\\t", 7, None)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "version None"),
        (b"version=2\n", "version 2"),
        (b"version=one\n", "line 1"),
        (b"version=1\nnode.id=x\n", "line 2"),
        (b"\0" * 100, "version None"),
    ],
)
def test_meta_properties_that_do_not_parse_are_refused(raw, why):
    with pytest.raises(CorruptCheckpointError, match=why):
        MetaProperties.parse(raw, file="meta.properties")


@pytest.mark.parametrize("log_dir", BROKERS)
def test_the_mark_of_a_clean_shutdown_holds_the_brokers_epoch(log_dir):
    path = log_dir / names.CLEAN_SHUTDOWN
    mark = CleanShutdown.read(path)
    assert mark.broker_epoch > 0
    assert mark.to_bytes() == path.read_bytes()


def test_the_mark_of_older_brokers_is_empty():
    assert CleanShutdown.parse(b"") == CleanShutdown(None)
    assert CleanShutdown().to_bytes() == b""


@pytest.mark.parametrize("raw", [b"{", b"[]", b"7", b'{"version":0}', b'{"brokerEpoch":"x"}', b"\xff", b"[" * 100_000])
def test_a_mark_that_does_not_parse_is_a_mark_all_the_same(raw):
    assert CleanShutdown.parse(raw).broker_epoch is None


def test_without_the_file_the_shutdown_was_not_clean(tmp_path):
    with pytest.raises(FileNotFoundError):
        CleanShutdown.read(tmp_path / names.CLEAN_SHUTDOWN)
