"""`seglog topics`: what the metadata log on a disk says of topics, and what of them is there."""
import shutil

import pytest

import seglog as engine
from support.command import seglog, seglog_json
from support.internal_topics import KRAFT_VERSIONS, cluster, cluster_answers, kraft, kraft_answers
from support.old_directories import root as old_brokers


@pytest.mark.parametrize("version", KRAFT_VERSIONS)
def test_topics_are_what_the_broker_said(version):
    lines = seglog_json("topics", kraft(version))
    topics = {line["topic"]: line for line in lines if line["type"] == "topic"}
    for name, expected in kraft_answers(version)["topics"].items():
        assert topics[name]["topic_id"] == expected["id"]
        assert topics[name]["partitions"] == topics[name]["here"] == len(expected["partitions"])
        assert [
            {key: line[key] for key in ("partition", "leader", "replicas", "isr")} for line in lines
            if line["type"] == "topic_partition" and line["topic"] == name
        ] == expected["partitions"]
    assert topics["orders"]["settings"]["retention.ms"] == {"value": "3600000", "source": "topic"}
    assert topics["orders"]["settings"]["segment.bytes"] == {"value": "1048576", "source": "broker"}
    assert topics["__consumer_offsets"]["settings"]["retention.ms"] == {"value": "86400000", "source": "brokers"}
    assert "__cluster_metadata" not in topics


def test_which_broker_may_lead_is_what_kafka_topics_said():
    """After elections that left one partition without a replica in sync: only one disk has all of it."""
    data = cluster("before", 3)
    lines = [line for line in seglog_json("topics", data) if line["type"] == "topic_partition"]
    said = cluster_answers()["kafka-topics by 3"]
    assert {line["topic"] for line in lines} == said.keys() == {"lagged", "orders", "table"}
    for line in lines:
        told = said[line["topic"]]
        listed = [line[key] for key in ("replicas", "isr", "eligible_leaders", "last_known_leaders")]
        assert [",".join(map(str, nodes)) for nodes in listed] == [
            told[key] for key in ("Replicas", "Isr", "Elr", "LastKnownElr")
        ]
        assert ("none" if line["leader"] < 0 else str(line["leader"])) == told["Leader"]
    assert {line["topic"]: line["leader_is_unclean"] for line in lines} == {
        "lagged": False, "orders": True, "table": True,
    }
    text = seglog("topics", data).output
    assert "none      1  1,2,3     none, 1 may lead  yes" in text
    assert "3, unclean      2  1,2,3     3        yes" in text
    assert "unclean  " not in seglog("topics", cluster("after", 3)).output


def test_text_says_where_a_setting_comes_from_and_which_is_unknown():
    text = seglog("topics", kraft("4.4.0"), "--topic", "orders").output
    assert "cleanup.policy = delete   (topic)" in text
    assert "segment.bytes = 1048576   (this broker)" in text
    assert "min.insync.replicas = 1   (all brokers)" in text
    assert "retention.bytes: unknown (server.properties, or else Kafka's default)" in text
    assert "table" not in text


def test_a_partition_of_a_topic_that_was_deleted_is_told_apart(tmp_path):
    data = shutil.copytree(kraft("4.4.0"), tmp_path / "data")
    (data / "orders-0/partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    shutil.copytree(data / "orders-1", data / "orders-5")
    lines = seglog_json("topics", data, "--topic", "orders")
    problems = {line["partition"]: line["problem"] for line in lines if line["type"] == "topic_partition"}
    assert problems == {
        0: "has the topic id AAAAAAAAAAAAAAAAAAAAAQ: of a topic that was deleted", 1: None,
        5: "the topic has no partition 5",
    }
    shutil.copytree(data / "orders-1", data / "other-0")
    text = seglog("topics", data, "--topic", "other").output
    assert "not in the metadata" in text
    assert "settings: unknown" in text


def test_a_partition_that_is_elsewhere_is_listed(tmp_path):
    data = shutil.copytree(kraft("4.4.0"), tmp_path / "data")
    shutil.rmtree(data / "orders-1")
    shutil.copytree(kraft("4.4.0") / "orders-1", tmp_path / "more/orders-1")
    lines = seglog_json("topics", data, "--topic", "orders")
    assert [line["path"] is None for line in lines if line["type"] == "topic_partition"] == [False, True]
    lines = seglog_json("topics", data, tmp_path / "more", "--topic", "orders")
    assert [line["path"] is None for line in lines if line["type"] == "topic_partition"] == [False, False]


def test_without_a_metadata_log_everything_else_is_unknown():
    path = next(iter(sorted(old_brokers().glob("2.4.1/logs"))))
    result = seglog("topics", path)
    assert "no metadata log here: replicas and settings are unknown" in result.stderr
    assert "unknown" in result.stdout
    line = next(line for line in seglog_json("topics", path) if line["type"] == "topic")
    assert (line["in_metadata"], line["settings"], line["partitions"]) == (False, None, None)


def test_a_topic_that_is_not_there(tmp_path):
    result = seglog("topics", kraft("4.4.0"), "--topic", "nothing", status=1)
    assert "topic 'nothing' is unknown here" in result.stderr


def test_a_metadata_log_that_cannot_be_read_is_reported_and_the_rest_is_shown(tmp_path):
    data = shutil.copytree(kraft("4.4.0"), tmp_path / "data")
    for file in (data / "__cluster_metadata-0").glob("*.checkpoint"):
        file.chmod(0o644)
        file.write_bytes(b"x" * 99)
    result = seglog("topics", data, status=7)
    assert "corrupt" in result.stderr
    assert "orders" in result.stdout


def test_a_partition_directory_finds_the_metadata_of_its_log_dir():
    text = seglog("topics", kraft("4.4.0") / "table-0", "--topic", "table").output
    assert "cleanup.policy = compact   (topic)" in text


def test_the_metadata_log_is_found_from_above_the_log_dirs_and_from_the_other_one(tmp_path):
    shutil.copytree(kraft("4.4.0"), tmp_path / "disks/one")
    (tmp_path / "disks/two").mkdir()
    meta = (tmp_path / "disks/one/meta.properties").read_text()
    (tmp_path / "disks/two/meta.properties").write_text(meta.replace("directory.id=", "directory.id=x"))
    shutil.move(tmp_path / "disks/one/orders-1", tmp_path / "disks/two/orders-1")
    expected = [line for line in seglog_json("topics", kraft("4.4.0"), "--topic", "orders") if line["type"] == "topic"]
    for paths in ([tmp_path / "disks"], [tmp_path / "disks/one", tmp_path / "disks/two"]):
        lines = seglog_json("topics", *paths, "--topic", "orders")
        assert [line for line in lines if line["type"] == "topic"] == expected
    line = seglog_json("topics", tmp_path / "disks/two", "--topic", "orders")[0]
    assert (line["settings"], line["here"]) == (expected[0]["settings"], 1)
    # The page of a partition, too: the commits are in the other log dir.
    page = tmp_path / "page.html"
    seglog("report", tmp_path / "disks/two/orders-1", "-o", page)
    assert "Committed offsets" in page.read_text()


def test_settings_that_are_kept_with_the_logs_are_shown(tmp_path):
    """Of a log dir of seglog's own server, which has no metadata log. Red: "settings: unknown"."""
    with engine.serve(tmp_path) as server:
        server.create_topic("kept", 2, {"cleanup.policy": "compact", "retention.ms": 60_000})
        server.create_topic("plain")
        server.log("kept", 1).append(b"v", key=b"k")
        server.log("plain").append(b"v")
    text = seglog("topics", tmp_path).output
    kept, plain = text.split("plain   id")
    assert "  cleanup.policy = compact   (kept with the log)\n  retention.ms = 60000   (kept with the log)" in kept
    assert "settings: unknown" not in kept
    assert "settings: unknown" in plain
    topics = {line["topic"]: line for line in seglog_json("topics", tmp_path) if line["type"] == "topic"}
    assert topics["kept"]["settings"] == {
        "cleanup.policy": {"value": "compact", "source": "log"}, "retention.ms": {"value": "60000", "source": "log"}}
    assert topics["plain"]["settings"] is None
    (tmp_path / "kept-0/.seglog.config").write_bytes(b"damaged")
    assert "corrupt_settings" in seglog("topics", tmp_path, status=7).stderr
