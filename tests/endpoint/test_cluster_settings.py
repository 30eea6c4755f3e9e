"""A KRaft broker's log dir: each topic is served with its own settings from the cluster's metadata."""
import shutil
import uuid

import pytest

import seglog
from seglog.state.partition_metadata import PartitionMetadata
from support.internal_topics import kraft
from support.waiting import wait_for
from support.wire_client import WireClient

RETENTION = {"retention.ms": 1000, "log.retention.check.interval.ms": 20}
OLD_MS = 1_600_000_000_000


@pytest.fixture
def data(tmp_path):
    return shutil.copytree(kraft("4.1.1"), tmp_path / "data")


@pytest.fixture
def old(tmp_path):
    """A partition directory with old records, to be copied under another name."""
    with seglog.open(tmp_path / "old-0") as log:
        for n in range(3):
            log.append(b"v", key=b"k%d" % n, timestamp=OLD_MS + n)
    return tmp_path / "old-0"


def extents(server, *topics):
    logs = [server.log(topic) for topic in topics]
    return [(log.log_start_offset, log.log_end_offset) for log in logs]


def wait_until_deleted(server, topic):
    wait_for(lambda: (log := server.log(topic)).log_start_offset == log.log_end_offset)


def run_retention(server):
    """Wait until the cleaner has deleted what it may: it has looked at a log twice that was opened later."""
    server.create_topic("looked", config={"cleanup.policy": "delete", "retention.ms": 1})
    for n in range(2):
        server.log("looked").append(b"v", key=b"k", timestamp=OLD_MS + n)
        wait_until_deleted(server, "looked")


def test_a_servers_retention_leaves_a_topic_that_the_cluster_compacts(data):
    with seglog.serve(data, config=RETENTION) as server:
        before = extents(server, "table")
        # Its own retention is an hour, and its records are older.
        wait_for(lambda: server.log("orders").log_start_offset > 0)
        run_retention(server)
        assert extents(server, "table") == before == [(0, before[0][1])]
        table = server.log("table").settings
        assert {name: table[name].value for name in ("cleanup.policy", "retention.ms", "max.message.bytes")} == {
            "cleanup.policy": "compact", "retention.ms": -1, "max.message.bytes": 2_000_000}
        assert server.log("orders").settings["retention.ms"].value == 3_600_000
        # Settings of the broker are not the topic's.
        assert server.log("orders").settings["segment.bytes"].value == 1 << 30


def test_a_server_without_retention_deletes_nothing_although_the_topic_has_one(data):
    """The broker would have deleted these records: whoever serves the disk of a dead one may want them."""
    with seglog.serve(data, config={"log.retention.check.interval.ms": 20}) as server:
        assert server.log("orders").settings["cleanup.policy"].value == "delete"
        run_retention(server)
        assert [server.log(topic).log_start_offset for topic in ("orders", "table")] == [0, 0]


def test_settings_that_seglog_keeps_come_first(data):
    with seglog.open(data / "table-0") as log:
        log.configure({"cleanup.policy": "delete", "retention.ms": 1000})
    with seglog.serve(data, config={"log.retention.check.interval.ms": 20}) as server:
        wait_until_deleted(server, "table")
        assert server.log("table").settings["max.message.bytes"].value == 2_000_000


def test_a_topic_without_own_settings_follows_the_server(data, old, monkeypatch):
    from seglog.reading import topic_settings

    read = topic_settings.read_cluster_metadata

    def without_settings(directory):
        metadata = read(directory)
        metadata.topics["plain"] = metadata.topics["orders"]
        return metadata

    monkeypatch.setattr(topic_settings, "read_cluster_metadata", without_settings)
    shutil.copytree(old, data / "plain-0")
    with seglog.serve(data, config=RETENTION) as server:
        wait_until_deleted(server, "plain")


def test_a_log_dir_without_metadata_follows_the_server(data):
    shutil.rmtree(data / "__cluster_metadata-0")
    with seglog.serve(data, config=RETENTION) as server:
        wait_until_deleted(server, "table")


def test_a_topic_that_the_metadata_does_not_have_is_kept(data, old):
    """Its policy is unknown. One that a client creates has a policy, also after the next start."""
    shutil.copytree(old, data / "stray-0")
    with seglog.serve(data, topics={"made": 1}) as server:
        server.log("made").append(b"v", key=b"k", timestamp=OLD_MS)
    with seglog.serve(data, config=RETENTION) as server:
        wait_until_deleted(server, "made")
        run_retention(server)
        assert extents(server, "stray") == [(0, 3)]


def test_a_topic_of_the_same_name_with_another_id_is_another(data, old):
    shutil.rmtree(data / "table-0")
    shutil.copytree(old, data / "table-0")
    (data / "table-0/partition.metadata").write_bytes(PartitionMetadata(uuid.uuid4()).to_bytes())
    with seglog.serve(data, config=RETENTION) as server:
        run_retention(server)
        assert extents(server, "table") == [(0, 3)]
        assert server.log("table").settings["cleanup.policy"].value == "delete"


@pytest.mark.parametrize("damage", ["unreadable", "invalid"])
def test_metadata_that_cannot_be_used_is_said_and_keeps_logs(data, caplog, damage, monkeypatch):
    if damage == "unreadable":
        for file in (data / "__cluster_metadata-0").iterdir():
            if file.suffix in (".log", ".checkpoint"):
                file.unlink()
        said = "the cluster's metadata cannot be read"
    else:
        from seglog.reading import topic_settings

        told = topic_settings.told_settings
        monkeypatch.setattr(topic_settings, "told_settings", lambda metadata, topic, node: {
            key: one._replace(value="many") if key == "segment.bytes" else one
            for key, one in told(metadata, topic, node).items()})
        said = "table: its settings in the cluster's metadata are not used"
    with seglog.serve(data, config=RETENTION) as server:
        before = extents(server, "table")
        run_retention(server)
        assert extents(server, "table") == before
    assert sum(said in record.message for record in caplog.records) == 1


def test_a_clusters_setting_beyond_the_servers_limit_is_the_servers(data, monkeypatch, caplog):
    from seglog.reading import topic_settings
    from seglog.reading.topic_settings import ToldSetting

    monkeypatch.setattr(topic_settings, "told_settings", lambda *_: {
        "compression.zstd.level": ToldSetting("22", "topic"), "cleanup.policy": ToldSetting("compact", "topic")})
    with seglog.serve(data) as server, WireClient(server):
        assert server.log("table").settings["compression.zstd.level"].value == 3
    assert "table: compression.zstd.level = 22 protects the server" in caplog.text
