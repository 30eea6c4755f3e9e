"""A disk whole: `verify` and `recover` over log dirs, one line a partition, folded findings, figures for monitoring."""
import re
import shutil

import pytest

import seglog as engine
from seglog.errors import CorruptRecordError
from seglog.state.checkpoints import format_offset_checkpoint
from support.command import seglog, seglog_json
from support.internal_topics import kraft


def written(path, batches=6):
    with engine.open(path) as log:
        for n in range(batches):
            log.append_many([(None, b"v%d" % n)] * 3)
            log.roll()
        log.append(b"last")
    return path


def flip(path, position):
    raw = bytearray(path.read_bytes())
    raw[position] ^= 1
    path.write_bytes(raw)


def log_of(directory, base_offset):
    return directory / f"{base_offset:020}.log"


@pytest.fixture
def disk(tmp_path):
    """A log dir with a damaged partition, one in order, and one that is a file's worth of nothing."""
    data = tmp_path / "data"
    data.mkdir()
    for name in ("bad-0", "good-0", "good-1"):
        written(data / name)
    flip(log_of(data / "bad-0", 3), 80)
    return data


def files(directory):
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


# --- verify ----------------------------------------------------------------------------------------


def killed(disk, recovery_point=0):
    """As if the process was killed that wrote to the log dir, with this recovery point of bad-0."""
    (disk / ".kafka_cleanshutdown").unlink()
    (disk / "recovery-point-offset-checkpoint").write_bytes(format_offset_checkpoint({("bad", 0): recovery_point}))


def test_a_summary_is_a_line_a_partition_and_one_for_all(disk):
    killed(disk)
    lines = seglog("verify", disk, "--summary", status=1).stdout.splitlines()
    assert lines[0].split()[0] == "partition"
    assert [line.split()[0] for line in lines[1:4]] == ["bad-0", "good-0", "good-1"]
    assert "1 error" in lines[1]
    assert "16 records" in lines[1]
    assert "3 records" in lines[1]      # what quarantine would lose: the batch alone
    assert "clean" in lines[2]
    assert lines[5].startswith("3 partitions")
    assert "1 with errors or warnings" in lines[5]
    assert not any("[crc_mismatch]" in line for line in lines)


def test_json_says_what_both_ways_out_would_lose(disk):
    killed(disk)
    *partitions, summary = seglog_json("verify", disk, "--summary", status=1)
    assert [line["type"] for line in partitions] == ["partition"] * 3
    bad = partitions[0]
    assert bad["quarantine_loses"]["records"] == 3
    assert bad["broker_loses"]["records"] == 16     # of 19: all from the damage on
    assert bad["broker_loses"]["bytes"] > bad["quarantine_loses"]["bytes"] > 0
    assert bad["losses_are_exact"]
    assert (bad["start_checks_from"], bad["readers_fail_at"]) == (0, None)      # the start removes the damage
    assert "broker_loses" not in partitions[1]
    assert summary["errors"] == 1
    # What is foretold is what happens.
    recovered = seglog_json("recover", disk, "--mode", "truncate", status=1)[-1]
    assert recovered["lost_bytes"] == bad["broker_loses"]["bytes"]


def test_a_start_cuts_nothing_below_its_recovery_point_and_readers_fail_there(disk):
    """LogLoader.recoverLog checks the segment with the recovery point and later ones. Red: "a broker would lose 16"."""
    killed(disk, recovery_point=6)
    bad = seglog_json("verify", disk, "--summary", status=1)[0]
    assert bad["broker_loses"] == {"records": 0, "bytes": 0}
    assert (bad["start_checks_from"], bad["readers_fail_at"]) == (6, 3)
    assert bad["quarantine_loses"]["records"] == 3
    text = seglog("verify", disk, "--summary", status=1).stdout
    assert re.search(r"^bad-0 .* nothing +3 +3 records", text, re.MULTILINE)
    assert "loses 3 records; a broker's start checks only from offset 6 on: it cuts nothing, and readers fail at " \
        "offset 3; make a copy first" in text
    # And so it is: the log opens, whole, and only the read fails.
    with engine.open(disk / "bad-0", config={"seglog.recovery.mode": "truncate"}) as log:
        assert (log.recovery.lost, log.log_end_offset) == ((), 19)
        with pytest.raises(CorruptRecordError):
            list(log.read(3))


def test_a_start_that_cuts_the_second_damage_leaves_the_first(disk):
    flip(log_of(disk / "bad-0", 12), 80)
    killed(disk, recovery_point=9)
    bad = seglog_json("verify", disk, "--summary", status=1)[0]
    assert bad["broker_loses"]["records"] == 7      # 12…18
    assert bad["readers_fail_at"] == 3
    assert "a broker would lose 7, and readers fail at offset 3" in seglog("verify", disk, status=1).stdout


def test_a_start_after_a_clean_stop_checks_nothing(disk):
    bad = seglog_json("verify", disk, "--summary", status=1)[0]
    assert bad["broker_loses"] == {"records": 0, "bytes": 0}
    assert (bad["start_checks_from"], bad["readers_fail_at"]) == (None, 3)
    assert "after a clean stop, a broker's start checks nothing: it cuts nothing" in seglog(
        "verify", disk, status=1).stdout
    # But it recovers a segment that has no .index, alone: LogLoader.loadSegmentFiles.
    log_of(disk / "bad-0", 3).with_suffix(".index").unlink()
    bad = seglog_json("verify", disk, "--summary", status=1)[0]
    assert (bad["broker_loses"]["records"], bad["readers_fail_at"]) == (3, None)


def test_findings_of_one_kind_are_folded_unless_all_are_asked_for(tmp_path):
    data = tmp_path / "data"
    path = written(data / "orders-0", batches=25)
    for index in path.glob("*.index"):
        index.unlink()
    folded = seglog("verify", path, status=1).stdout
    assert folded.count("[index_missing]") == 10 + 1
    assert "and 16 more [index_missing]: --all shows them" in folded
    everything = seglog("verify", path, "--all", status=1).stdout
    assert everything.count("[index_missing]") == 26
    assert sum(line["type"] == "finding" for line in seglog_json("verify", path, status=1)) >= 25


def test_the_disk_of_a_killed_broker_has_only_notes():
    result = seglog("verify", kraft("4.1.1"), "--summary")
    assert "7 partitions" in result.stdout
    assert "all in order" in result.stdout


def test_what_a_brokers_retention_would_delete_at_its_start_is_told(tmp_path):
    """Red: nothing warned that `orders`, with retention.ms of an hour, would be empty."""
    data = shutil.copytree(kraft("4.1.1"), tmp_path / "data")
    for command in (("verify", data), ("recover", data, "--mode", "quarantine")):
        lines = seglog(*command, status=None).stdout.splitlines()
        at = next(n for n, line in enumerate(lines) if line.startswith("retention: "))
        assert "deletes 4 segments, 1.1 KiB, as too old" in lines[at]
        assert lines[at + 1] == "  orders-0: 2 segments, 832 B (retention.ms=3600000)"
    told = {line["partition"]: line.get("retention_deletes") for line in seglog_json("verify", data)
            if line["type"] == "partition"}
    assert {name for name, deletes in told.items() if deletes} == {"orders-0", "orders-1"}
    assert told["orders-1"] == {"segments": 2, "bytes": 326}
    assert "retention:" not in seglog("verify", data, "--config", "retention.ms=-1").stdout
    (data / "__cluster_metadata-0").rename(tmp_path / "metadata")
    assert "retention:" not in seglog("verify", data, status=None).stdout       # nothing says the policy


def test_several_log_dirs_and_the_directory_above_them(tmp_path):
    for name in ("disk1", "disk2"):
        shutil.copytree(kraft("4.1.1"), tmp_path / name)
    assert "14 partitions" in seglog("verify", tmp_path / "disk1", tmp_path / "disk2", "--summary").stdout
    assert "14 partitions" in seglog("verify", tmp_path, "--summary").stdout
    (tmp_path / "disk2/meta.properties").unlink()
    assert "7 partitions" in seglog("verify", tmp_path, "--summary").stdout


@pytest.mark.parametrize("command", ["verify", "ls"])
def test_metrics_are_read_by_prometheus(disk, tmp_path, command):
    killed(disk)
    parser = pytest.importorskip("prometheus_client.parser")
    file = tmp_path / "seglog.prom"
    file.write_text("old")
    seglog(command, disk, "--metrics", file, status=None)
    families = {family.name: family for family in parser.text_string_to_metric_families(file.read_text())}
    assert f"seglog_{command}_timestamp_seconds" in families
    samples = {
        (sample.labels["topic"], sample.labels["partition"], sample.labels.get("severity")): sample.value
        for sample in families["seglog_verify_findings" if command == "verify" else "seglog_ls_log_end_offset"].samples
    }
    if command == "verify":
        assert samples["bad", "0", "error"] == 1
        assert samples["good", "1", "error"] == 0
        lost = families["seglog_verify_lost_bytes"].samples
        assert {s.labels["by"]: s.value > 0 for s in lost if s.labels["topic"] == "bad"} == {
            "broker": True, "quarantine": True,
        }
    else:
        assert samples["good", "0", None] == 19
    assert not list(tmp_path.glob("*.tmp*"))


def test_names_in_metrics_are_escaped(tmp_path):
    data = tmp_path / 'a"b\\c'
    data.mkdir()
    written(data / "orders-0", batches=1)
    seglog("ls", data, "--metrics", tmp_path / "x.prom")
    assert 'a\\"b\\\\c"' in (tmp_path / "x.prom").read_text()


def test_a_summary_of_index_files_is_refused(disk):
    assert "--indexes lists index files" in seglog("verify", disk, "--indexes", "--summary", status=2).stderr


def test_a_partition_and_segments_that_are_gone_are_not_in_order(disk):
    """Red: "all in order", status 0."""
    shutil.copy(log_of(disk / "good-0", 3), log_of(disk / "bad-0", 3))
    for base_offset in (0, 18):
        for path in (disk / "good-0").glob(f"{base_offset:020}.*"):
            path.unlink()
    shutil.rmtree(disk / "good-1")
    lines = seglog("verify", disk, "--summary", status=1).stdout.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["good-0", "good-1"]
    assert "2 warnings" in lines[2]
    assert "1 warning" in lines[3]
    text = seglog("verify", disk, status=1).stdout
    assert "good-1   missing\n" in text
    assert all(f"[{code}]" in text for code in ("start_missing", "end_missing", "partition_missing"))
    assert seglog_json("verify", disk, status=1)[-1]["missing_partitions"] == 1
    # A single partition does not ask for the others.
    assert "good-1" not in seglog("verify", disk / "good-0", status=1).stdout


def test_a_commit_above_the_end_of_a_log_is_found(tmp_path):
    data = shutil.copytree(kraft("4.1.1"), tmp_path / "data")
    assert seglog_json("verify", data)[-1]["warnings"] == 0
    # As if the last segments were gone, and nothing else knew the end.
    path = data / "orders-1"
    shutil.rmtree(path)
    with engine.open(path) as log:
        log.append(b"another")
    for checkpoint in data.glob("*-checkpoint"):
        checkpoint.unlink()
    log = log_of(data / "orders-0", 0)
    for old in (data / "orders-0").glob("*0020.*"):
        old.unlink()
    log.write_bytes(b"")
    found = [line for line in seglog_json("verify", data, status=1) if line.get("code") == "commit_beyond_end"]
    assert [(line["partition"], line["offset"], line["last_offset"]) for line in found] == [("orders-0", 0, 10)]
    assert "by the group 'simple', and 4 others" in found[0]["expected"]


def test_a_torn_tail_is_among_what_would_be_lost(disk):
    """Red: empty columns."""
    killed(disk)
    log = log_of(disk / "good-0", 18)
    size = log.stat().st_size
    log.write_bytes(log.read_bytes()[:-3])
    lines = {line["partition"]: line for line in seglog_json("verify", disk, "--summary", status=1)[:-1]}
    lost = {"records": 1, "bytes": size - 3}
    assert lines["good-0"]["broker_loses"] == lines["good-0"]["quarantine_loses"] == lost
    recovered = seglog_json("recover", disk, "--mode", "truncate", "--partition", "good-0", status=1)
    assert recovered[-1]["lost_bytes"] == size - 3
    assert (recovered[0]["first_offset"], recovered[0]["last_offset"]) == (18, 18)


@pytest.mark.parametrize("mode", ["truncate", "quarantine"])
def test_recover_names_the_offsets_that_verify_names(disk, mode):
    """Red: "from 3 on"."""
    finding = seglog_json("verify", disk / "bad-0", status=1)[0]
    lost = seglog_json("recover", disk / "bad-0", "--mode", mode, status=1)[0]
    assert (finding["offset"], finding["last_offset"]) == (lost["first_offset"], lost["last_offset"]) == (3, 5)


def test_an_offset_that_goes_back_has_a_way_out(disk):
    killed(disk)
    path = log_of(disk / "bad-0", 3)
    flip(path, 80)                          # whole again
    with engine.open(disk / "bad-0") as log:
        log.append(b"more")
    last = log_of(disk / "bad-0", 18)
    raw = bytearray(last.read_bytes())
    second = len(raw) // 2
    raw[second : second + 8] = (18).to_bytes(8, "big")
    last.write_bytes(raw)
    text = seglog("verify", disk / "bad-0", status=1).stdout
    assert "[offset_back]" in text
    assert "--mode quarantine --apply` loses 1 record; a broker may fail to open the log, or serve it as it is" in text
    assert "may fail to open it" in seglog("verify", disk, "--summary", status=1).stdout
    seglog("recover", disk / "bad-0", "--mode", "quarantine", "--apply", status=1)
    seglog("verify", disk / "bad-0")


# --- recover ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["truncate", "quarantine"])
def test_a_log_dir_is_recovered_dry_first(disk, mode):
    before = files(disk)
    result = seglog("recover", disk, "--mode", mode, status=1)
    assert files(disk) == before
    assert "1 range" in result.stdout or "ranges" in result.stdout
    assert f"To do it: seglog recover {disk} --mode {mode} --apply" in result.stdout
    foretold = seglog_json("recover", disk, "--mode", mode, status=1)
    done = seglog_json("recover", disk, "--mode", mode, "--apply", status=1)
    for name in ("lost_ranges", "lost_bytes", "partitions"):
        assert done[-1][name] == foretold[-1][name]
    assert done[-1]["lost_bytes"] > 0
    assert [line["partition"] for line in done if line["type"] == "partition"] == ["bad-0", "good-0", "good-1"]
    left = 3 if mode == "truncate" else 19
    with engine.open(disk / "bad-0") as log:
        assert log.log_end_offset == left
    with engine.open(disk / "good-1") as log:
        assert log.log_end_offset == 19
    assert "dry run: nothing to do" in seglog("recover", disk, "--mode", mode).stdout


def test_only_some_partitions_are_recovered(disk):
    flip(log_of(disk / "good-0", 0), 80)
    before = files(disk / "good-0")
    seglog("recover", disk, "--mode", "truncate", "--partition", "bad-0", "--apply", status=1)
    assert files(disk / "good-0") == before
    result = seglog("recover", disk, "--mode", "truncate", "--partition", "none-0", status=4)
    assert "no partition none-0" in result.stderr


def test_a_locked_partition_does_not_stop_the_others(disk):
    with engine.open(disk / "good-0") as log:
        log.append(b"x")
        result = seglog("recover", disk, "--mode", "truncate", "--apply", status=7)
    assert "locked" in result.stderr
    with engine.open(disk / "bad-0") as log:
        assert log.log_end_offset == 3


def test_the_metadata_log_is_recovered_only_by_name(tmp_path):
    data = shutil.copytree(kraft("4.1.1"), tmp_path / "data")
    path = data / "__cluster_metadata-0"
    before = files(path)
    result = seglog("recover", data, "--mode", "truncate", "--apply")
    assert "__cluster_metadata-0 is left alone" in result.stderr
    assert files(path) == before
    assert "__cluster_metadata-0" in seglog(
        "recover", data, "--mode", "truncate", "--partition", "__cluster_metadata-0"
    ).stdout


def test_backups_of_a_log_dir_are_kept_by_partition(disk, tmp_path):
    seglog("recover", disk, "--mode", "truncate", "--apply", "--backup", tmp_path / "kept", status=1)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["bad-0"]


@pytest.mark.parametrize("wrong", [["--out", "x"], []])
def test_what_a_log_dir_cannot_take_is_refused(disk, wrong):
    if wrong:
        assert "--out takes one partition" in seglog("recover", disk, "--mode", "truncate", *wrong, status=2).stderr
    else:
        result = seglog("recover", disk / "good-0", "--mode", "truncate", "--partition", "good-0", status=2)
        assert "--partition takes a log dir" in result.stderr
