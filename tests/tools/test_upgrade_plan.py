"""`seglog convert --plan`: what it says, and that it changes nothing."""
import shutil

import pytest

from support.command import partition_of, seglog, seglog_json
from support.conversion import tree


@pytest.fixture
def logs(golden_kafka, tmp_path):
    for n, name in enumerate(["v1-none-ct-k391", "mixed-formats-k282", "v2-none-ct-k411"]):
        shutil.copytree(partition_of(golden_kafka / "cases" / name), tmp_path / f"logs/orders-{n}")
    return tmp_path / "logs"


def test_each_partition_with_old_formats_has_a_line_and_the_steps_name_its_topic(logs):
    before = tree(logs)
    text = seglog("convert", "--plan", logs, "--config", "retention.ms=-1").stdout
    assert "orders-0" in text
    assert "orders-1" in text
    assert "orders-2" not in text
    assert text.count("  stays  ") == 2
    assert "--in-place --backup" in text
    assert "--topic orders" in text
    assert tree(logs) == before


def test_the_command_that_it_names_goes_through(logs):
    text = seglog("convert", "--plan", logs).stdout
    command, = (line.split("seglog ", 1)[1].split() for line in text.splitlines() if " seglog convert " in line)
    seglog(*command)
    assert "all in v2: nothing to migrate" in seglog("convert", "--plan", logs).stdout


def test_json_has_a_line_for_each_partition_and_a_sum(logs):
    *rows, summary = seglog_json("convert", "--plan", logs, "--topic-config", "ord*:cleanup.policy=compact")
    assert [row["verdict"] for row in rows] == ["compaction", "compaction", "nothing"]
    assert summary["compacted_bytes"] == summary["old_bytes"] == sum(row["old_bytes"] for row in rows)
    assert (summary["partitions"], summary["with_old_formats"]) == (3, 2)


def test_a_link_that_leads_nowhere_is_named_with_status_7(logs):
    link = logs / "orders-3"
    link.symlink_to(logs / "unmounted")
    done = seglog("convert", "--plan", logs, status=7)
    assert "orders-1" in done.stdout
    assert str(link) in done.stderr
    *lines, summary = seglog_json("convert", "--plan", logs, status=7)
    assert [line["type"] for line in lines] == ["upgrade_partition"] * 3 + ["error"]
    assert summary["partitions"] == 3


@pytest.mark.parametrize("wrong", [
    ["--config", "retention.hours=1"], ["--topic-config", "retention.ms=1"], ["--topic", "nothing"],
])
def test_what_cannot_be_meant_is_status_2(logs, wrong):
    seglog("convert", "--plan", logs, *wrong, status=2)


def test_what_is_no_log_dir_is_status_4(logs):
    for path in (logs / "orders-0", next((logs / "orders-0").glob("*.log"))):
        assert "pass the log dir" in seglog("convert", "--plan", path, status=4).stderr
