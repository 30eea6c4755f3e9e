"""`seglog groups`: groups, offsets and lag from the disk of a broker."""
import re
import shutil

import pytest

import seglog as engine
from support.command import seglog, seglog_json
from support.internal_topics import KRAFT_VERSIONS, kraft, kraft_answers
from support.old_directories import root as old_brokers


@pytest.mark.parametrize("version", KRAFT_VERSIONS)
def test_groups_are_what_the_broker_said_and_lag_is_to_the_ends_here(version):
    lines = seglog_json("groups", kraft(version))
    expected = kraft_answers(version)["groups"]
    assert [line["group"] for line in lines if line["type"] == "group"] == sorted(expected)
    ends = {}
    for name in ("orders-0", "orders-1"):
        with engine.open_partition(kraft(version) / name) as partition:
            ends[name] = partition.log_end_offset
    shown = {}
    for line in lines:
        if line["type"] == "committed_offset":
            where = f"{line['topic']}-{line['partition']}"
            shown.setdefault(line["group"], {})[where] = [line["offset"], line["metadata"]]
            assert (line["log_end_offset"], line["lag"]) == (ends[where], ends[where] - line["offset"])
    assert shown == {name: group["offsets"] for name, group in expected.items() if group["offsets"]}
    members = {line["group"]: line for line in lines if line["type"] == "group_member"}
    assert members["modern"]["assigned"] == members["statics"]["assigned"] == {"orders": [0, 1]}
    waiting, = [line["waiting"] for line in lines if line["type"] == "group" and line["group"] == "open"]
    assert waiting == [{"topic": "orders", "partition": 0, "offset": 14, "producer_id": waiting[0]["producer_id"]}]


def test_text_names_members_and_lag():
    text = seglog("groups", kraft("4.4.0")).output
    assert "modern   consumer, epoch 2, 1 member" in text
    assert "orders 0-1" in text
    assert "orders-0: a commit of offset 14 waits for the end of the transaction of producer id" in text
    assert "some-metadata" in text


def test_a_partition_whose_end_cannot_be_read_is_an_error_and_the_status_is_7(tmp_path):
    """Red: a note, and status 0."""
    data = shutil.copytree(kraft("4.1.1"), tmp_path / "data")
    shutil.rmtree(data / "orders-0")
    (data / "orders-0").symlink_to("orders-0")
    lines = seglog_json("groups", data, status=7)
    assert [line["file"] for line in lines if line["type"] == "error"] == [str(data / "orders-0")]
    committed = {line["partition"]: line["lag"] for line in lines if line.get("group") == "readers" and "lag" in line
                 and "partition" in line}
    assert committed == {0: None, 1: 6}
    text = seglog("groups", data, status=7)
    assert re.search(r"orders-0 +10 +unread +\?", text.stdout)
    (data / "orders-0").unlink()
    assert re.search(r"orders-0 +10 +not here +\?", seglog("groups", data).stdout)


def test_what_quarantine_took_is_not_what_a_group_has_still_to_read(tmp_path):
    """Red: "lag 13", of which 10 are gone."""
    data = shutil.copytree(kraft("4.1.1"), tmp_path / "data")
    log = data / "orders-0/00000000000000000000.log"
    raw = bytearray(log.read_bytes())
    raw[500] ^= 1
    log.write_bytes(raw)
    recovered = seglog("recover", data / "orders-0", "--mode", "quarantine", "--apply", status=1).stdout
    lost = int(re.search(r"has offsets (\d+)…22 \(0…(\d+) missing\)", recovered)[2])
    lines = [line for line in seglog_json("groups", data) if line.get("topic") == "orders" and line["partition"] == 0]
    assert {line["missing"] for line in lines if line["offset"] == 10} == {lost + 1 - 10}
    text = seglog("groups", data).stdout
    assert "of these missing" in text
    assert "lag of all partitions here: 19" in text
    assert "of these missing" not in seglog("groups", kraft("4.1.1")).stdout
    row = next(line for line in seglog("ls", data).stdout.splitlines() if line.startswith("orders-0"))
    assert row.split()[1:6] == ["3", "246", "B", "20", "22"]
    assert "all in order, but 20 offsets in quarantine" in seglog("verify", data, "--summary").stdout


def test_one_group_and_one_that_is_not_there():
    result = seglog("groups", kraft("4.4.0"), "--group", "plain", "--group", "nobody", status=1)
    assert "plain" in result.stdout
    assert "readers" not in result.stdout
    assert "no group 'nobody' in the 1 partition of __consumer_offsets here" in result.stderr


def test_partitions_that_are_elsewhere_have_no_lag(tmp_path):
    shutil.copytree(kraft("4.4.0") / "__consumer_offsets-0", tmp_path / "__consumer_offsets-0")
    text = seglog("groups", tmp_path).output
    assert "not here" in text
    line = next(line for line in seglog_json("groups", tmp_path) if line["type"] == "committed_offset")
    assert (line["log_end_offset"], line["lag"]) == (None, None)
    # Two log dirs of one broker: the partitions are in the second.
    shutil.copytree(kraft("4.4.0") / "orders-0", tmp_path / "more/orders-0")
    lines = seglog_json("groups", tmp_path, tmp_path / "more", "--group", "plain")
    assert [line["lag"] for line in lines if line["type"] == "committed_offset"] == [16]


def test_old_brokers_have_groups_too():
    for path in sorted(old_brokers().glob("*/logs/__consumer_offsets-0")):
        lines = seglog_json("groups", path.parent)
        assert [line["group"] for line in lines if line["type"] == "group"], path
        assert any(line["lag"] is not None for line in lines if line["type"] == "committed_offset"), path


def test_a_log_dir_without_groups_and_one_without_the_topic(tmp_path):
    with engine.open(tmp_path / "orders-0") as log:
        log.append(b"x")
    assert "no partition of __consumer_offsets is here" in seglog("groups", tmp_path, status=4).stderr
    with engine.open(tmp_path / "__consumer_offsets-0") as log:
        log.append(b"x", key=b"\0\x63")
    result = seglog("groups", tmp_path)
    assert "no group in the 1 partition" in result.stderr
    assert "1 record of types or versions that this release does not know" in result.stderr


def test_names_that_would_control_a_terminal_are_escaped(tmp_path):
    from seglog.wire.codec import encode_versioned
    from seglog.wire.internal_records import encode_key
    from seglog.wire.stored_records import OffsetCommitKey, OffsetCommitValue

    with engine.open(tmp_path / "__consumer_offsets-0") as log:
        log.append(encode_versioned(OffsetCommitValue(offset=1, metadata="\x1b[2J"), 3),
                   key=encode_key(OffsetCommitKey(group="\x1b[31m", topic="\r", partition=0)))
    assert "\x1b[2J" not in seglog("groups", tmp_path).output
    assert "\\x1b[31m" in seglog("groups", tmp_path).output


def test_a_damaged_partition_does_not_hide_the_others(tmp_path):
    data = shutil.copytree(kraft("4.4.0"), tmp_path / "data")
    log = data / "orders-1/00000000000000000000.log"
    raw = bytearray(log.read_bytes())
    raw[20] ^= 1
    log.write_bytes(raw)
    shutil.copytree(data / "__consumer_offsets-0", data / "__consumer_offsets-1")
    log = data / "__consumer_offsets-1/00000000000000000000.log"
    raw = bytearray(log.read_bytes())
    raw[100] ^= 1
    log.write_bytes(raw)
    result = seglog("groups", data, status=7)
    assert "plain" in result.stdout
    assert "__consumer_offsets-1" in result.stderr


def test_a_served_log_dir_that_never_had_a_group_has_none(tmp_path):
    """Red: status 4, as if it were no log dir of a server."""
    with engine.serve(tmp_path, topics={"orders": 1}) as server:
        server.log("orders").append(b"x")
    result = seglog("groups", tmp_path)
    assert "no group" in result.stderr
    assert seglog_json("groups", tmp_path) == []
    assert "no group 'shop'" in seglog("groups", tmp_path, "--group", "shop", status=1).stderr
