"""Records that are gone with all their files: at either end of a log, a whole partition, ahead of which a group was."""
import re
import shutil

import pytest

import seglog
from seglog.verification.disk_check import commit_beyond_end, missing_partitions
from seglog.verification.verify import verify
from support.internal_topics import kraft

LAST = 5


def log_dir(path):
    """A log dir of a log with five full segments and a short one, closed."""
    with seglog.open(path / "orders-0") as log:
        for n in range(LAST):
            log.append_many([(None, b"%d" % n)] * 20)
            log.roll()
        log.append(b"last")
    return path


def remove_segment(directory, base_offset):
    for path in directory.glob(f"{base_offset:020}.*"):
        path.unlink()


def found(directory):
    return {finding.code: finding for finding in verify(directory, level="headers").findings}


def test_a_first_segment_that_is_gone_is_told_with_its_offsets(tmp_path):
    directory = log_dir(tmp_path) / "orders-0"
    assert found(directory) == {}
    remove_segment(directory, 0)
    missing = found(directory)["start_missing"]
    assert (missing.offset, missing.last_offset) == (0, 19)
    remove_segment(directory, 20)
    assert found(directory)["start_missing"].last_offset == 39


def test_a_start_that_retention_moved_is_in_order(tmp_path):
    directory = log_dir(tmp_path) / "orders-0"
    with seglog.open(directory) as log:
        log.delete_records(45)
    assert found(directory) == {}
    remove_segment(directory, 40)
    missing = found(directory)["start_missing"]
    assert (missing.offset, missing.last_offset) == (45, 59)


def test_segments_that_a_broker_is_about_to_remove_are_not_missing(tmp_path):
    """It renames them before it moves the epochs."""
    directory = log_dir(tmp_path) / "orders-0"
    for path in directory.glob(f"{0:020}.*"):
        path.rename(f"{path}.deleted")
    assert "start_missing" not in found(directory)


@pytest.mark.parametrize("witness", [
    "recovery-point-offset-checkpoint", "replication-offset-checkpoint", "leader-epoch-checkpoint",
    f"{101:020}.snapshot",
])
def test_each_file_that_knows_the_end_tells_of_a_last_segment_that_is_gone(tmp_path, witness):
    directory = log_dir(tmp_path) / "orders-0"
    if witness == "leader-epoch-checkpoint":
        (directory / witness).write_text("0\n2\n0 0\n1 101\n")
    for path in (*tmp_path.glob("*-checkpoint"), *directory.glob("*.snapshot"), *directory.glob("*-checkpoint")):
        if path.name != witness:
            path.unlink()
    remove_segment(directory, 100)
    missing = found(directory)["end_missing"]
    assert missing.offset == 100
    assert witness in missing.expected


def test_a_torn_last_batch_below_the_recovery_point_was_no_unfinished_write(tmp_path):
    directory = log_dir(tmp_path) / "orders-0"
    log = directory / f"{100:020}.log"
    log.write_bytes(log.read_bytes()[:-3])
    assert {"torn_tail", "end_missing"} <= found(directory).keys()


def test_damage_at_the_end_is_told_once(tmp_path):
    directory = log_dir(tmp_path) / "orders-0"
    log = directory / f"{100:020}.log"
    raw = bytearray(log.read_bytes())
    raw[-1] ^= 1
    log.write_bytes(raw)
    assert {finding.code for finding in verify(directory).findings} == {"crc_mismatch"}


@pytest.mark.parametrize("mode", ["truncate", "quarantine"])
def test_what_was_recovered_is_in_order(tmp_path, mode):
    """Its high watermark stayed above the end: red."""
    directory = log_dir(tmp_path) / "orders-0"
    log = directory / f"{100:020}.log"
    log.write_bytes(log.read_bytes()[:-3])
    seglog.recover(directory, mode=mode, apply=True)
    report = verify(directory)
    assert report.ok
    assert {finding.code for finding in report.findings} == ({"quarantined"} if mode == "quarantine" else set())


@pytest.mark.parametrize("whole_segment", [False, True])
def test_holes_of_a_quarantine_are_notes_that_name_their_offsets(tmp_path, whole_segment):
    """If a segment lost all its batches, it was a warning, and else nothing."""
    with seglog.open(tmp_path / "orders-0") as log:
        for n in range(3):
            log.append_many([(None, b"%d" % n)] * 20)
            if not whole_segment:
                log.append(b"another batch")
            log.roll()
        log.append(b"last")
    directory = tmp_path / "orders-0"
    path = sorted(directory.glob("*.log"))[1]
    raw = bytearray(path.read_bytes())
    raw[80] ^= 1
    path.write_bytes(raw)
    base_offset = int(path.stem)
    seglog.recover(directory, mode="quarantine", apply=True)
    report = verify(directory)
    note, = report.findings
    assert (note.code, note.offset, note.last_offset) == ("quarantined", base_offset, base_offset + 19)
    assert report.ok


# --- a partition, and groups of consumers --------------------------------------------------------


@pytest.fixture
def broker(tmp_path):
    return shutil.copytree(kraft("4.1.1"), tmp_path / "data")


def test_nothing_is_missing_on_brokers_disks():
    for version in ("3.9.1", "4.1.1", "4.4.0"):
        assert missing_partitions(kraft(version)) == {}


@pytest.mark.parametrize("how", ["directory", "logs"])
def test_a_partition_that_is_gone_is_told_by_all_who_know_it(broker, how):
    if how == "directory":
        shutil.rmtree(broker / "orders-1")
    else:
        for path in (broker / "orders-1").glob("*.log"):
            path.unlink()
    (where, finding), = missing_partitions(broker).items()
    assert where == ("orders", 1)
    assert finding.code == "partition_missing"
    assert finding.expected == "by recovery-point-offset-checkpoint, the cluster's metadata"
    for path in broker.glob("*-checkpoint"):
        path.unlink()
    assert missing_partitions(broker)["orders", 1].expected == "by the cluster's metadata"


def test_a_partition_of_another_log_dir_or_a_deleted_topic_is_not_missing(broker, tmp_path):
    other = tmp_path / "disk2"
    other.mkdir()
    add_log_dir(broker, other)
    shutil.move(broker / "orders-1", other)
    assert missing_partitions(broker) == {}
    shutil.move(other / "orders-1", broker / f"orders-1.{'0' * 32}-delete")
    assert missing_partitions(broker) == {}
    with open(broker / "replication-offset-checkpoint", "a") as file:
        file.write("unknown-to-the-cluster 0 5\n")
    assert missing_partitions(broker) == {}


def add_log_dir(broker, other):
    """Make `other` another log dir of the same broker."""
    meta = (broker / "meta.properties").read_text()
    own = re.search(r"directory\.id=(\S+)", meta)[1]
    (other / "meta.properties").write_text(meta.replace(own, own[::-1]))


@pytest.mark.parametrize("has_ids", [True, False])
def test_a_copy_of_the_log_dir_beside_it_is_no_log_dir_of_the_broker(broker, tmp_path, has_ids):
    """It held the partition, so that nothing was missing."""
    if not has_ids:     # as before 3.7
        meta = broker / "meta.properties"
        meta.write_text(re.sub(r"directory\.id=.*\n", "", meta.read_text()))
        shutil.rmtree(broker / "__cluster_metadata-0")
    shutil.copytree(broker, tmp_path / "data.bak")
    assert missing_partitions(broker) == {}
    shutil.rmtree(broker / "orders-1")
    assert list(missing_partitions(broker)) == [("orders", 1)]


def test_without_a_cluster_the_checkpoints_alone_know_it(tmp_path):
    data = log_dir(tmp_path)
    shutil.rmtree(data / "orders-0")
    assert list(missing_partitions(data)) == [("orders", 0)]


def test_a_commit_above_the_end_names_the_group_that_was_furthest(tmp_path):
    finding, = commit_beyond_end(tmp_path, 10, {"a": 10, "b": 12, "c": 15})
    assert (finding.offset, finding.last_offset) == (10, 14)
    assert "'c', and 1 others" in finding.expected
    assert commit_beyond_end(tmp_path, 15, {"a": 10, "b": 12, "c": 15}) == []
