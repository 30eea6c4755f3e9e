"""`seglog prune`: what it says would go, what goes, and how it ends."""
import json
import shutil
import subprocess
import sys

import pytest

import seglog as engine
from seglog.clock import ManualClock
from support.command import seglog, seglog_json
from support.internal_topics import kraft

NOW = 1_700_000_000_000
DELETE = ["--config", "cleanup.policy=delete"]


def written(path, segments=4, timestamp=NOW):
    """So many sealed segments with five records each, a second apart, and an active one."""
    with engine.open(path, clock=ManualClock(timestamp)) as log:
        for n in range(5 * segments):
            log.append(b"v" * 100, timestamp=timestamp + 1000 * n)
            if n % 5 == 4:
                log.roll()
        log.append(b"last", timestamp=timestamp + 5000 * segments)
    return path


def files(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def bases(directory):
    return sorted(int(path.stem) for path in directory.glob("*.log"))


def test_a_dry_run_says_what_would_go_and_changes_nothing(tmp_path):
    path = written(tmp_path / "orders-0")
    before = files(path)
    *gone, one, summary = seglog_json("prune", path, "--config", "retention.bytes=900", *DELETE, status=1)
    assert [(line["base_offset"], line["next_offset"], line["reason"]) for line in gone] == [
        (0, 5, "size"), (5, 10, "size"), (10, 15, "size"),
    ]
    assert (one["log_start_offset"], one["kept_segments"], summary["deleted_segments"]) == (15, 2, 3)
    assert "dry run: nothing to do" in seglog("prune", path).stdout
    typed = f"seglog prune {path} --config retention.bytes=900 --config cleanup.policy=delete"
    assert summary["apply"] == f"{typed} --apply"
    assert files(path) == before


@pytest.mark.parametrize("how", [["--config", "retention.bytes=900", *DELETE], ["--total-bytes", "1000", *DELETE]])
@pytest.mark.parametrize("more", [["--apply"], ["--dry-run"]])
def test_a_partition_with_two_names_is_taken_once(tmp_path, how, more):
    """Its bytes stand on the disk once."""
    path = written(tmp_path / "alone" / "orders-0")
    *_, expected = seglog_json("prune", path, "--dry-run", *how, status=1)
    (tmp_path / "data").mkdir()
    for name in ("orders-0", "orders-1"):
        (tmp_path / "data" / name).symlink_to(path)
    lines = seglog_json("prune", tmp_path / "data", *how, *more, status=int("--dry-run" in more))
    summary = lines[-1]
    assert [line["partition"] for line in lines if line["type"] == "partition"] == ["orders-0"]
    assert expected["deleted_segments"] > 0
    for name in ("partitions", "deleted_segments", "deleted_bytes", "kept_bytes"):
        assert summary[name] == expected[name], name


def test_it_deletes_by_time_and_size_and_says_what(tmp_path):
    path = written(tmp_path / "orders-0")
    text = seglog("prune", "--apply", path, "--config", "retention.bytes=900", *DELETE).stdout
    assert "more than retention.bytes" in text
    assert "3 segments" in text.splitlines()[-1]
    assert bases(path) == [15, 20]
    # Ages ago: all of it.
    (gone, rest, one, summary) = seglog_json("prune", "--apply", path, "--config", "retention.ms=1000", *DELETE)
    assert (gone["reason"], rest["reason"], one["log_start_offset"], summary["kept_bytes"]) == ("time", "time", 21, 0)
    assert bases(path) == [21]
    assert not list(path.glob("0*.deleted"))
    with engine.open(path) as log:
        assert (log.log_start_offset, log.log_end_offset, log.recovery.repairs) == (21, 21, ())


def test_without_a_setting_nothing_goes(tmp_path):
    path = written(tmp_path / "orders-0")
    one, summary = seglog_json("prune", "--apply", path)
    assert (one["deleted_segments"], summary["deleted_segments"]) == (0, 0)
    assert bases(path) == [0, 5, 10, 15, 20]


def test_all_partitions_of_a_log_dir_together_are_held_to_a_total(tmp_path):
    older, newer = written(tmp_path / "orders-0"), written(tmp_path / "orders-1", timestamp=NOW + 500)
    lines = seglog_json("prune", "--apply", tmp_path, "--total-bytes", "4500", *DELETE)
    gone = [(line["partition"], line["base_offset"]) for line in lines if line["type"] == "expired_segment"]
    assert gone == [("orders-0", 0), ("orders-0", 5), ("orders-1", 0)]
    assert {line["reason"] for line in lines if line["type"] == "expired_segment"} == {"total"}
    assert (bases(older), bases(newer)) == ([10, 15, 20], [5, 10, 15, 20])
    assert sum(file.stat().st_size for file in tmp_path.rglob("*.log")) <= 4500


def test_what_a_hot_backup_still_holds_is_said(tmp_path):
    path = written(tmp_path / "orders-0")
    with engine.open(path) as log:
        log.snapshot(tmp_path / "kept/orders-0")
    *_, summary = seglog_json("prune", "--apply", path, "--config", "retention.bytes=900", *DELETE)
    assert summary["linked_bytes"] == summary["deleted_bytes"] > 0
    shutil.rmtree(tmp_path / "kept")


def test_a_log_that_somebody_has_open_is_left_alone_and_the_others_are_done(tmp_path):
    held, free = written(tmp_path / "held-0"), written(tmp_path / "orders-0")
    child = "import seglog, sys; log = seglog.open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", child, held], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"open\n"
        result = seglog("prune", "--apply", tmp_path, "--config", "retention.bytes=0", *DELETE, "--json", status=7)
        assert seglog("prune", "--apply", held, "--config", "retention.bytes=0", *DELETE, status=5)
        assert seglog("prune", held, "--config", "retention.bytes=0", *DELETE, "--dry-run", status=1)
        holder.stdin.close()
    summary = json.loads(result.stdout.splitlines()[-1])
    assert (summary["unread"], summary["partitions"]) == (1, 1)
    assert len(bases(held)) == 5
    assert bases(free) == [21]


@pytest.mark.parametrize("wrong", [["--config", "retention.days=1", *DELETE], ["--total-bytes", "much"], []])
def test_a_wrong_use_ends_with_2(tmp_path, wrong):
    path = [tmp_path] if wrong else []
    written(tmp_path / "orders-0")
    seglog("prune", "--apply", *path, *wrong, status=2)


def test_what_is_no_log_ends_with_4(tmp_path):
    (tmp_path / "empty").mkdir()
    seglog("prune", "--apply", tmp_path / "empty", status=4)
    path = written(tmp_path / "orders-0")
    seglog("prune", "--apply", path / "00000000000000000000.log", "--config", "retention.bytes=0", *DELETE, status=4)
    assert len(bases(path)) == 5


# --- settings that the directory does not have -----------------------------------------------------


@pytest.mark.parametrize("how", [
    ["--config", "retention.ms=1"], ["--config", "retention.bytes=9"], ["--total-bytes", "9"],
])
@pytest.mark.parametrize("more", [["--apply"], []])
def test_a_partition_whose_policy_is_unknown_is_refused(tmp_path, how, more):
    """A compacted topic has all its keys in old segments: red when Kafka's default was taken in silence."""
    path = written(tmp_path / "orders-0")
    before = files(path)
    result = seglog("prune", path, *how, *more, status=2)
    assert "cleanup.policy is unknown" in result.stderr
    assert "pass --config cleanup.policy=delete" in result.stderr
    assert files(path) == before


def test_a_policy_that_is_kept_with_the_log_is_known(tmp_path):
    path = written(tmp_path / "orders-0")
    with engine.open(path) as log:
        log.configure({"cleanup.policy": "delete", "retention.bytes": 900})
    *_, summary = seglog_json("prune", path, status=1)
    assert summary["deleted_segments"] == 3


def test_a_log_that_keeps_limits_of_retention_is_pruned_as_its_opening_would_do(tmp_path):
    path = written(tmp_path / "orders-0")
    with engine.open(path) as log:
        log.configure({"retention.bytes": 900})
        assert log.settings["cleanup.policy"].value == "delete"
    *_, summary = seglog_json("prune", path, status=1)
    assert summary["deleted_segments"] == 3
    assert "0 B" not in seglog("du", tmp_path).stdout


def test_traces_of_a_compaction_outweigh_limits_that_are_kept(tmp_path):
    path = written(tmp_path / "orders-0")
    with engine.open(path) as log:
        log.configure({"retention.bytes": 900})
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 5\n")
    assert "dry run: nothing to do" in seglog("prune", path).stdout


def test_traces_of_a_compaction_keep_the_segments(tmp_path):
    path = written(tmp_path / "orders-0")
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 5\n")
    assert "dry run: nothing to do" in seglog("prune", path, "--config", "retention.ms=1").stdout


def test_one_unknown_policy_of_several_does_not_stop_the_others(tmp_path):
    for name in ("orders-0", "payments-0"):
        written(tmp_path / name)
    with engine.open(tmp_path / "payments-0") as log:
        log.configure({"cleanup.policy": "delete"})
    result = seglog("prune", tmp_path, "--config", "retention.bytes=900", status=7)
    assert "unknown_policy" in result.stderr
    assert "payments-0" in result.stdout


@pytest.fixture
def of_kraft(tmp_path):
    """The log dir of a KRaft broker that was killed; a copy."""
    return shutil.copytree(kraft("4.1.1"), tmp_path / "data")


def test_what_the_cluster_says_of_a_topic_decides(of_kraft):
    result = seglog("prune", of_kraft, status=1)
    assert "orders: from the cluster's metadata: cleanup.policy=delete, retention.ms=3600000" in result.stderr
    assert "retention.ms=86400000 (of all brokers)" in result.stderr
    assert "__cluster_metadata-0 is left alone" in result.stderr
    lines = seglog_json("prune", of_kraft, status=1)
    assert {line["partition"] for line in lines if line["type"] == "expired_segment"} == {"orders-0", "orders-1"}
    # The compacted ones stay, however old their records are.
    assert {line["partition"] for line in lines if line["type"] == "partition"} == {
        "__consumer_offsets-0", "__transaction_state-0", "__transaction_state-1", "orders-0", "orders-1", "table-0",
    }


def test_a_setting_that_was_typed_counts_before_the_clusters(of_kraft):
    assert "dry run: nothing to do" in seglog("prune", of_kraft / "orders-0", "--config", "retention.ms=-1").stdout


@pytest.mark.parametrize("how", [["--config", "retention.ms=1"], ["--total-bytes", "9"]])
def test_a_compacted_topic_is_not_deleted_because_of_what_was_typed(of_kraft, how):
    """Red: the typed policy won in silence, and the keys went."""
    path = of_kraft / "table-0"
    before = files(path)
    result = seglog("prune", path, *DELETE, *how, "--apply", status=2)
    assert "the topic is compacted" in result.stderr
    assert "--delete-compacted" in result.stderr
    assert files(path) == before
    result = seglog("prune", path, *DELETE, "--config", "retention.ms=1", "--delete-compacted", status=1)
    assert "older than retention.ms" in result.stdout


def test_of_a_log_dir_only_the_compacted_topics_are_refused(of_kraft):
    result = seglog("prune", of_kraft, *DELETE, "--config", "retention.ms=1", status=7)
    assert result.stderr.count("[compacted_topic]") == 4
    assert "orders-0" in result.stdout


@pytest.mark.parametrize("sign", ["kept", "trace"])
def test_a_policy_that_is_kept_or_left_by_a_cleaner_is_known_too(tmp_path, sign):
    path = written(tmp_path / "orders-0")
    if sign == "kept":
        with engine.open(path) as log:
            log.configure({"cleanup.policy": "compact"})
    else:
        (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 5\n")
    assert "compacted_topic" in seglog("prune", path, *DELETE, "--config", "retention.ms=1", status=2).stderr


def test_the_metadata_log_is_left_alone_by_name_too(of_kraft):
    path = of_kraft / "__cluster_metadata-0"
    before = files(path)
    result = seglog("prune", path, "--config", "retention.ms=1", *DELETE, "--apply")
    assert "only its cluster prunes it" in result.stderr
    assert files(path) == before


def test_a_metadata_log_that_cannot_be_read_leaves_the_policy_unknown(of_kraft):
    for file in (of_kraft / "__cluster_metadata-0").glob("*.checkpoint"):
        file.chmod(0o644)
        file.write_bytes(b"torn")
    result = seglog("prune", of_kraft / "orders-0", "--config", "retention.ms=1", status=2)
    assert "the cluster's metadata cannot be read" in result.stderr
    assert "cleanup.policy is unknown" in result.stderr
