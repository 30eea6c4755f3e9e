"""`seglog verify`: its lines, its status. What it finds is tests/upkeep/test_verify.py's matter."""
import json
import math
import os
import re
import shlex
import shutil

import pytest

import seglog as engine
from seglog import open_partition
from support.command import partition_of, seglog, seglog_json
from support.golden import golden_cases, unpack
from support.many_segments import log_of

FIELDS = {
    "type", "schema", "code", "severity", "partition", "file", "position", "offset", "last_offset", "size", "meaning",
    "found", "expected", "fix",
}


def settings_of(case):
    config = json.loads((case / "case.json").read_text())["config"]
    for key in ("segment.bytes", "index.interval.bytes", "segment.index.bytes"):
        if key in config:
            yield from ("--config", f"{key}={config[key]}")


def damaged(name):
    case = unpack("kafka") / "corrupt" / name
    return case / f"{name}-0"


def test_every_golden_case_is_clean_the_crashed_ones_with_notes():
    for case in golden_cases():
        *findings, summary = seglog_json("verify", partition_of(case), *settings_of(case))
        assert summary["type"] == "summary"
        assert summary["ok"], case.name
        assert {f["severity"] for f in findings} <= {"note"}
        assert findings or not case.name.startswith("crash-")


@pytest.mark.parametrize("level", ["headers", "crc", "deep"])
def test_every_level_ends_clean_on_a_clean_partition(golden_kafka, level, monkeypatch):
    monkeypatch.setattr("seglog.tools.verify._WORTH_TIMING_S", math.inf)        # on a busy machine, a second passes
    case = golden_kafka / "cases/mixed-formats-k282"
    summary, = seglog_json("verify", partition_of(case), "--level", level)
    assert (summary["level"], summary["ok"], summary["errors"], summary["suggest"]) == (level, True, 0, [])
    assert (summary["log_start_offset"], summary["log_end_offset"]) == (0, 101)
    text = seglog("verify", partition_of(case), "--level", level).stdout
    assert text.splitlines()[-1] == f"clean, checked to level {level}"


def test_a_finding_has_every_field_and_the_status_is_1():
    path = damaged("v1-none-ct-k391--flip-earlier-seg")
    finding, summary = seglog_json("verify", path, status=1)
    assert set(finding) == FIELDS
    assert (finding["type"], finding["schema"]) == ("finding", 1)
    assert (finding["code"], finding["severity"]) == ("crc_mismatch", "error")
    assert (finding["file"], finding["position"], finding["offset"]) == (
        str(path / "00000000000000000000.log"), 2288, 35
    )
    assert (summary["errors"], summary["warnings"], summary["ok"]) == (1, 0, False)
    assert summary["suggest"] == [finding["fix"]]


def test_headers_alone_do_not_see_a_flipped_bit_in_a_record():
    path = damaged("v1-none-ct-k391--flip-earlier-seg")
    summary, = seglog_json("verify", path, "--level", "headers")
    assert summary["ok"]


def test_text_says_where_what_and_what_to_do():
    path = damaged("v2-lz4-ct-k391--index-swapped")
    head, where, facts, counts, fix = seglog("verify", path, status=1).stdout.splitlines()
    assert head.startswith(path.name)
    assert where.startswith("! 00000000000000000000.index, byte 8: ")
    assert where.endswith("[index_corrupt]")
    assert facts.startswith("    found ")
    assert counts == "1 warning"
    assert fix == f"  try: seglog index rebuild --apply {path}"


FLIPPED = sorted(path.name for path in (unpack("kafka") / "corrupt").iterdir() if "--flip-" in path.name)


def records_of(path):
    with open_partition(path) as partition:
        return sum(1 for batch in partition.batches() for _ in batch)


@pytest.mark.parametrize("name", FLIPPED)
def test_a_flipped_bit_names_the_command_and_both_losses(name, tmp_path):
    """A broker loses what the real recovery removed; the command, what it removes when it runs."""
    path = damaged(name)
    recovered, = path.parent.glob("recovered-*")
    whole = records_of(unpack("kafka") / "cases" / name.split("--")[0] / f"{name.split('--')[0]}-0")
    finding, = (f for f in seglog_json("verify", path, status=1) if f.get("code") == "crc_mismatch")
    command, loses, brokers = re.fullmatch(
        r"`(seglog recover .* --mode quarantine) --apply` loses (\d+) records?; a broker would lose (\d+); make a copy "
        "first",
        finding["fix"]).groups()
    copy = tmp_path / path.name
    seglog(*shlex.split(command)[1:], "--out", copy, status=1)
    assert whole - records_of(copy) == int(loses)
    assert whole - records_of(recovered) == int(brokers)
    assert f"  try: {finding['fix']}" in seglog("verify", path, status=1).stdout.splitlines()


def test_what_it_suggests_helps(tmp_path):
    for kind in ("index-swapped", "index-zero-tail", "index-empty", "index-missing", "timeindex-missing",
                 "index-odd-size", "timeindex-empty", "index-bad-last"):
        source = damaged(f"v1-none-ct-k391--{kind}")
        copy = shutil.copytree(source, tmp_path / kind / "orders-0")
        (tmp_path / kind / ".kafka_cleanshutdown").touch()
        settings = [*settings_of(source.parent)]
        summary = seglog_json("verify", copy, *settings, status=1)[-1]
        suggested = summary["suggest"][0].split()
        assert suggested == ["seglog", "index", "rebuild", "--apply", str(copy)], kind
        seglog(*suggested[1:], *settings)
        seglog("verify", copy, *settings)


def test_of_one_segment_only_its_own_files_matter(tmp_path):
    path = damaged("v1-none-ct-k391--flip-earlier-seg")
    first, second = sorted(path.glob("*.log"))
    seglog("verify", first, status=1)
    seglog("verify", second)


def test_a_log_dir_has_a_line_a_partition_and_one_summary(golden_kafka, tmp_path):
    shutil.copytree(partition_of(golden_kafka / "cases/v2-none-ct-k411"), tmp_path / "whole-0")
    shutil.copytree(damaged("v1-none-ct-k391--flip-earlier-seg"), tmp_path / "damaged-0")
    lines = seglog_json("verify", tmp_path, status=1)
    assert [(line["type"], line.get("partition"), line.get("ok")) for line in lines] == [
        ("finding", "damaged-0", None), ("partition", "damaged-0", False), ("partition", "whole-0", True),
        ("summary", None, False),
    ]
    assert lines[-1]["segments"] == lines[1]["segments"] + lines[2]["segments"]


def test_an_unknown_level_is_status_2(golden_kafka):
    seglog("verify", partition_of(golden_kafka / "cases/v2-none-ct-k411"), "--level", "quick", status=2)


# --- many segments --------------------------------------------------------------------------

SEGMENTS = 10_000 if os.environ.get("SEGLOG_TORTURE") else 300


def test_a_log_of_many_segments_that_is_in_order_is_two_lines(in_memory):
    path = log_of(in_memory / "orders-0", SEGMENTS)
    first, last = seglog("verify", path).stdout.splitlines()
    assert first.split()[:3] == ["orders-0", f"{SEGMENTS:,}", "segments"]
    assert last.startswith("clean, checked to level crc")
    summary, = seglog_json("verify", path)
    assert (summary["records"], summary["log_end_offset"]) == (SEGMENTS, SEGMENTS)


def test_faults_of_many_segments_are_each_named_or_counted_in_as_many_lines_for_any_number(in_memory):
    """Two segments are gone, one has a flipped bit, and sixty indexes are no index."""
    path = log_of(in_memory / "orders-0", SEGMENTS)
    gone, flipped = (SEGMENTS // 4, SEGMENTS // 2), SEGMENTS * 3 // 4
    for offset in gone:
        for file in path.glob(f"{offset:020}.*"):
            file.unlink()
    log = path / f"{flipped:020}.log"
    raw = log.read_bytes()
    log.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    indexes = [path / f"{offset:020}.index" for offset in range(SEGMENTS - 61, SEGMENTS - 1)]
    for index in indexes:
        index.write_bytes(b"123")

    *findings, summary = seglog_json("verify", path, "--all", status=1)
    assert [(f["code"], f["offset"]) for f in findings if f["code"] != "index_corrupt"] == [
        *(("segment_gap", offset) for offset in gone), ("crc_mismatch", flipped),
    ]
    assert [f["file"] for f in findings if f["code"] == "index_corrupt"] == [str(index) for index in indexes]
    assert (summary["errors"], summary["warnings"]) == (1, 62)

    lines = seglog("verify", path, status=1).stdout.splitlines()
    assert len(lines) == 1 + 2 * (2 + 1 + 10) + 1 + 1 + 3
    assert "  and 50 more [index_corrupt]: --all shows them" in lines
    assert any(line.startswith("1 error, 62 warnings") for line in lines)
    assert len(seglog("verify", path, "--all", status=1).stdout.splitlines()) == 1 + 2 * 63 + 1 + 3


@pytest.mark.parametrize("command", ["verify", "ls", "stats"])
def test_topics_of_a_log_dir_are_chosen_as_for_dump(tmp_path, command):
    """Red: no such option --topic."""
    with engine.open_dir(tmp_path / "data") as log_dir:
        for topic, partition in (("orders", 0), ("orders", 1), ("bills", 0), ("gone", 0)):
            log_dir.log(topic, partition).append(b"one")
    shutil.rmtree(tmp_path / "data/gone-0")
    lines = seglog_json(command, tmp_path / "data", "--topic", "ord*")
    assert {line["partition"] for line in lines if line["type"] in ("partition", "stats")} == {"orders-0", "orders-1"}
    told = seglog(command, tmp_path / "data", "--topic", "nope", status=4).stderr
    assert "no partition of a topic that matches 'nope'" in told


def test_figures_are_written_where_the_collector_reads_them(tmp_path):
    """Red: it never reads a file with another ending."""
    shutil.copytree(partition_of(unpack("kafka") / "cases/v2-none-ct-k411"), tmp_path / "orders-0")
    told = seglog("verify", tmp_path / "orders-0", "--metrics", tmp_path / "x.txt", status=2).stderr
    assert "does not end in .prom" in told
    assert not (tmp_path / "x.txt").exists()
