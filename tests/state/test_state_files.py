"""Producer snapshots, checkpoints and metadata: read as Kafka reads them, written again the same."""
import gzip
import json
import struct
import uuid

import pytest

from seglog.errors import CorruptCheckpointError, CorruptSnapshotError
from seglog.state.checkpoints import format_offset_checkpoint, parse_offset_checkpoint
from seglog.state.leader_epochs import EpochStart, LeaderEpochs
from seglog.state.partition_metadata import PartitionMetadata, format_topic_id, parse_topic_id
from seglog.state.producer_snapshot import ENTRY_SIZE, ProducerEntry, ProducerSnapshot
from support.golden import golden_cases

CASES = [pytest.param(case, id=case.name) for case in golden_cases()]


@pytest.mark.parametrize("case", CASES)
def test_producer_snapshots_are_as_kafka_reads_them_and_written_again_the_same(case):
    kafka = json.loads((case / "index.json").read_text())["producer_snapshots"]
    files = sorted((case / f"{case.name}-0").glob("*.snapshot"))
    assert [f.name for f in files] == [row["file"] for row in kafka]
    for file, row in zip(files, kafka, strict=True):
        snapshot = ProducerSnapshot.read(file)
        assert snapshot.to_bytes() == file.read_bytes()
        ours = {p.producer_id: p for p in snapshot.producers}
        assert len(ours) == len(row["producers"])
        for producer in row["producers"]:
            mine = ours[producer["producer_id"]]
            for name, value in producer.items():
                assert getattr(mine, name) == (-1 if value is None else value), name


@pytest.mark.parametrize("case", CASES)
def test_leader_epochs_are_as_kafka_reads_them_and_written_again_the_same(case):
    kafka = json.loads((case / "index.json").read_text())["leader_epoch_checkpoint"]
    path = case / f"{case.name}-0" / "leader-epoch-checkpoint"
    if kafka is None:
        assert not path.exists()
    else:
        assert path.read_bytes() == kafka.encode()
        # 4.1.1 leaves the file of a log without epochs empty; with entries the bytes are the same.
        assert LeaderEpochs.read(path).to_bytes() == (kafka.encode() or b"0\n0\n")


ENTRY = ProducerEntry(7, 1, 10, 42, 3, 1700000000000, 5, -1)


@pytest.mark.parametrize(("damage", "error", "position"), [
    (lambda raw: raw[:5], CorruptSnapshotError, 0),
    (lambda raw: b"\0\2" + raw[2:], CorruptSnapshotError, 0),
    (lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]), CorruptSnapshotError, 2),
    (lambda raw: raw[:-1], CorruptSnapshotError, 2),
])
def test_a_damaged_snapshot_is_refused_by_name_and_byte(damage, error, position):
    with pytest.raises(error) as e:
        ProducerSnapshot.parse(damage(ProducerSnapshot.of([ENTRY]).to_bytes()), file="x.snapshot")
    assert (e.value.file, e.value.position) == ("x.snapshot", position)


def test_a_snapshot_whose_count_is_wrong_is_refused_though_its_checksum_fits():
    from seglog._kernels.crc import crc32c

    body = struct.pack(">i", 2) + bytes(ENTRY_SIZE)
    with pytest.raises(CorruptSnapshotError, match="2 entries"):
        ProducerSnapshot.parse(struct.pack(">hI", 1, crc32c(body)) + body)


@pytest.mark.parametrize("case", CASES)
def test_leader_epochs_are_a_function_of_the_batches(case):
    path = case / f"{case.name}-0" / "leader-epoch-checkpoint"
    if not path.exists():
        return
    with gzip.open(case / "batches.jsonl.gz", "rt") as lines:
        batches = [json.loads(line) for line in lines]
    ours = LeaderEpochs.of_batches((batch["leader_epoch"], batch["base_offset"]) for batch in batches)
    if "compact-" in case.name:
        # The cleaner took the batches of some epochs; the file keeps them, and keeps where they began.
        assert {entry.epoch for entry in ours} <= {entry.epoch for entry in LeaderEpochs.read(path)}
    else:
        assert ours == LeaderEpochs.read(path)


def test_an_offset_belongs_to_the_epoch_that_began_last_before_it():
    epochs = LeaderEpochs([EpochStart(0, 0), EpochStart(3, 9), EpochStart(6, 20)])
    assert [epochs.epoch_for_offset(o) for o in (0, 8, 9, 19, 20, 999)] == [0, 0, 3, 3, 6, 6]
    assert LeaderEpochs([EpochStart(5, 65)]).epoch_for_offset(64) is None
    assert (epochs.latest, LeaderEpochs().latest) == (6, None)


@pytest.mark.parametrize(("text", "error"), [
    ("0\n", CorruptCheckpointError),
    ("1\n0\n", CorruptCheckpointError),
    ("x\n0\n", CorruptCheckpointError),
    ("0\n2\n0 0\n", CorruptCheckpointError),
    ("0\n1\n0 0 0\n", CorruptCheckpointError),
    ("0\n1\n0 zero\n", CorruptCheckpointError),
    ("0\n2\n3 0\n3 5\n", CorruptCheckpointError),
    ("0\n2\n3 9\n4 5\n", CorruptCheckpointError),
    ("0\n1\n-1 0\n", CorruptCheckpointError),
    ("0\n1\n\xff 0\n".encode("latin-1"), CorruptCheckpointError),
])
def test_a_leader_epoch_checkpoint_that_does_not_parse_is_refused(text, error):
    with pytest.raises(error):
        LeaderEpochs.parse(text if isinstance(text, bytes) else text.encode())


def test_an_offset_checkpoint_is_written_as_kafka_writes_it():
    raw = b"0\n2\norders.eu-west 12 4200000000\n__consumer_offsets 0 0\n"
    offsets = parse_offset_checkpoint(raw)
    assert offsets == {("orders.eu-west", 12): 4200000000, ("__consumer_offsets", 0): 0}
    assert format_offset_checkpoint(offsets) == raw


@pytest.mark.parametrize(
    "line", ["a 0", "a 0 1 2", " 0 1", "a x 1", "a 0 1_0", "a 0 \u0661", "a 0 9223372036854775808"])
def test_an_offset_checkpoint_line_that_does_not_parse_is_refused(line):
    with pytest.raises(CorruptCheckpointError, match="line 3"):
        parse_offset_checkpoint(f"0\n1\n{line}\n".encode())


def test_a_partition_that_stands_twice_is_refused():
    with pytest.raises(CorruptCheckpointError, match="twice"):
        parse_offset_checkpoint(b"0\n2\na 0 1\na 0 2\n")


def test_a_topic_id_is_base64url_without_padding():
    topic_id = uuid.UUID(int=0xFB_EF_BE_FB_EF_BE_FB_EF_BE_FB_EF_BE_FB_EF_BE_01)
    assert parse_topic_id(format_topic_id(topic_id)) == topic_id
    assert "=" not in format_topic_id(topic_id)
    raw = f"version: 0\ntopic_id: {format_topic_id(topic_id)}".encode()
    for read in (raw, raw + b"\n", raw.replace(b"0", b"1", 1)):
        assert PartitionMetadata.parse(read).topic_id == topic_id
    assert PartitionMetadata(topic_id).to_bytes() == raw


@pytest.mark.parametrize(("raw", "error"), [
    (b"version: 0\n", CorruptCheckpointError),
    (b"version: -1\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ", CorruptCheckpointError),
    (b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", CorruptCheckpointError),
    (b"version: 0\ntopic_id: short\n", CorruptCheckpointError),
    (b"version: 0\ntopic_id: !!!!!!!!!!!!!!!!!!!!!!\n", CorruptCheckpointError),
    (b"version=0\n", CorruptCheckpointError),
])
def test_partition_metadata_that_does_not_parse_is_refused(raw, error):
    with pytest.raises(error):
        PartitionMetadata.parse(raw)
