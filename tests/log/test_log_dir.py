"""The files of two real brokers' log dirs (tests/golden/log_dir), read and written again."""
from pathlib import Path

import pytest

from seglog.format import names
from seglog.state.checkpoints import format_offset_checkpoint, read_offset_checkpoint
from seglog.state.leader_epochs import LeaderEpochs
from seglog.state.partition_metadata import PartitionMetadata
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
