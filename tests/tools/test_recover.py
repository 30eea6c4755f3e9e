"""`seglog recover`: what it says would be lost, what it does where asked, and how it ends."""
import shutil
from pathlib import Path

import pytest

import seglog as engine
from support.command import seglog, seglog_json
from support.internal_topics import cluster
from support.killed_command import killed

KIND = "v2-none-ct-k411--flip-earlier-seg"


@pytest.fixture
def damaged(golden_kafka, tmp_path):
    case = golden_kafka / "corrupt" / KIND
    return Path(shutil.copytree(case / f"{KIND}-0", tmp_path / "old/orders-0"))


@pytest.fixture
def whole(golden_kafka, tmp_path):
    case = golden_kafka / "cases/v2-none-ct-k411"
    return Path(shutil.copytree(case / "v2-none-ct-k411-0", tmp_path / "old/orders-0"))


def contents(directory):
    """By their names; without locks and marks of ours."""
    found = {str(p.relative_to(directory)): p for p in directory.rglob("*") if p.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if not path.name.startswith(".seglog")}


def offsets(directory):
    return [line["offset"] for line in seglog_json("dump", directory)]


def test_without_a_target_it_is_a_dry_run(damaged):
    before = contents(damaged)
    *lost, summary = seglog_json("recover", damaged, "--mode", "truncate", status=1)
    fields = ("position", "size_bytes", "first_offset", "last_offset")
    assert [(Path(r["file"]).name, *(r[field] for field in fields)) for r in lost] == [
        ("00000000000000000000.log", 2154, 2231, 34, 74),
        ("00000000000000000075.log", 0, 3960, 75, 148),
    ]
    assert (summary["target"], summary["log_end_offset"], summary["lost_bytes"]) == (None, 34, 2231 + 3960)
    typed = "recover", damaged, "--mode", "quarantine"
    text = seglog(*typed, status=1).stdout
    assert text.splitlines()[-1].endswith(f"To do it: seglog recover {damaged} --mode quarantine --apply")
    assert summary["apply"] == f"seglog recover {damaged} --mode truncate --apply"
    seglog(*typed, "--out", damaged.parent / "new-0", "--dry-run", status=1)
    assert contents(damaged) == before
    assert [p.name for p in damaged.parent.iterdir()] == ["orders-0"]


def test_a_dry_run_needs_no_right_to_write(damaged):
    damaged.chmod(0o500)
    try:
        seglog("recover", damaged, "--mode", "quarantine", status=1)
    finally:
        damaged.chmod(0o700)


def test_a_whole_log_loses_nothing(whole):
    (summary,) = seglog_json("recover", whole, "--mode", "truncate")
    assert (summary["lost_ranges"], summary["lost_bytes"]) == (0, 0)
    assert "nothing would be lost" in seglog("recover", whole, "--mode", "truncate").stdout


@pytest.mark.parametrize(("mode", "kept"), [("truncate", range(34)), ("quarantine", [*range(34), *range(43, 149)])])
def test_a_copy_is_recovered_and_the_source_stays(damaged, tmp_path, mode, kept):
    before = contents(damaged)
    target = tmp_path / "new/orders-0"
    target.parent.mkdir()
    said = seglog("recover", damaged, "--mode", mode, "--out", target, status=1).stdout
    assert "would" not in said
    assert contents(damaged) == before
    assert offsets(target) == list(kept)
    assert (target / "quarantine").exists() == (mode == "quarantine")
    # What was recovered has nothing to lose.
    seglog("recover", target, "--mode", mode)


@pytest.mark.parametrize(("method", "part"), [
    ("create", ".log"), ("create", ".index"), ("sync_directory", ".seglog-staging"), ("rename", "new/orders-0"),
])
def test_a_copy_that_was_killed_is_made_by_the_next_run(damaged, tmp_path, method, part):
    command = "recover", damaged, "--mode", "quarantine", "--out"
    seglog(*command, tmp_path / "whole/orders-0", status=1)
    before, target = contents(damaged), tmp_path / "new/orders-0"
    target.parent.mkdir()
    killed(method, part, 1, *command, target)
    assert contents(damaged) == before
    assert not target.exists()
    assert [line["kind"] for line in seglog_json("tidy", target.parent, status=1)[:-1]] == ["staging"]
    seglog(*command, target, status=1)
    assert contents(target) == contents(tmp_path / "whole/orders-0")
    assert {path.name for path in tmp_path.iterdir()} == {"old", "new", "whole"}
    assert {path.name for path in target.parent.iterdir()} == {"orders-0", ".lock"}


def test_the_indexes_are_made_by_the_topic_s_settings(damaged, tmp_path):
    interval = "--config", "index.interval.bytes=256"
    seglog("recover", damaged, "--mode", "quarantine", "--out", tmp_path / "new-0", *interval, status=1)
    seglog("verify", tmp_path / "new-0", "--level", "deep", *interval)


def test_in_place_with_a_backup_keeps_the_logs_that_change_or_go(damaged, tmp_path):
    before = contents(damaged)
    apply = "recover", damaged, "--mode", "truncate", "--apply", "--backup", tmp_path / "kept"
    summary = seglog_json(*apply, status=1)[-1]
    kept = [Path(backup) for backup in summary["backups"]]
    names = ["00000000000000000000.log", "00000000000000000075.log"]
    assert kept == [tmp_path / "kept/orders-0" / name for name in names]
    for path in kept:
        assert path.read_bytes() == before[path.name]
    assert offsets(damaged) == list(range(34))
    seglog(*apply)


def test_an_older_backup_is_never_written_over(damaged, tmp_path):
    backup = tmp_path / "kept/orders-0/00000000000000000000.log"
    backup.parent.mkdir(parents=True)
    backup.write_bytes(b"precious")
    before = contents(damaged)
    apply = "recover", damaged, "--mode", "truncate", "--apply", "--backup"
    assert "a backup already" in seglog(*apply, tmp_path / "kept", status=2).stderr
    for inside in (damaged.parent, damaged, damaged.parent / "kept"):
        assert "would be in the log dir" in seglog(*apply, inside, status=2).stderr
    assert contents(damaged) == before


@pytest.mark.parametrize("options", [
    ("--out", "new-0", "--in-place", "--apply"), ("--backup",), ("--mode", "guess"), ("--out", ".", "--backup"),
])
def test_what_cannot_be_meant_is_a_usage_error(damaged, options):
    before = contents(damaged)
    seglog("recover", damaged, "--mode", "truncate", *options, status=2)
    assert contents(damaged) == before


def test_a_mode_has_to_be_chosen(damaged):
    assert "--mode" in seglog("recover", damaged, status=2).stderr


def test_a_target_that_exists_is_refused(damaged, tmp_path):
    (tmp_path / "new-0").mkdir()
    seglog("recover", damaged, "--mode", "truncate", "--out", tmp_path / "new-0", status=2)
    seglog("recover", damaged, "--mode", "truncate", "--out", damaged / "new-0", status=2)


def test_what_is_no_log_is_refused(tmp_path):
    (tmp_path / "file.log").write_bytes(b"")
    seglog("recover", tmp_path, "--mode", "truncate", status=4)
    seglog("recover", tmp_path / "file.log", "--mode", "truncate", status=4)
    seglog("recover", tmp_path / "nothing-0", "--mode", "truncate", status=3)


# --- from replicas -----------------------------------------------------------------------------


@pytest.fixture
def brokers(tmp_path):
    """Two log dirs with the same partition, damaged in the first."""
    for name in ("node1", "node2"):
        (tmp_path / name).mkdir()
    with engine.open(tmp_path / "node1/orders-0") as log:
        for n in range(3):
            log.append_many([(None, b"%d" % n)] * 5)
            log.roll()
        log.append(b"last")
    shutil.copytree(tmp_path / "node1/orders-0", tmp_path / "node2/orders-0")
    shutil.copytree(tmp_path / "node1/orders-0", tmp_path / "node1/only-here-0")
    path = tmp_path / f"node1/orders-0/{5:020}.log"
    raw = bytearray(path.read_bytes())
    raw[80] ^= 1
    path.write_bytes(raw)
    return tmp_path


def test_a_stretch_is_filled_from_a_replica(brokers):
    arguments = ("recover", brokers / "node1/orders-0", "--mode", "quarantine", "--from", brokers / "node2/orders-0")
    dry = seglog(*arguments, status=1).stdout
    assert "offsets 5…9, " in dry
    assert f"B, would be filled from {brokers / 'node2/orders-0'}" in dry
    assert "nothing would be lost" in dry
    assert "To do it:" in dry
    *filled, summary = seglog_json(*arguments, "--apply")
    assert [(line["type"], line["first_offset"], line["last_offset"]) for line in filled] == [("filled_range", 5, 9)]
    assert (summary["lost_ranges"], summary["filled_ranges"], summary["unfilled"]) == (0, 1, [])
    assert "dry run: nothing to do" in seglog(*arguments).stdout
    seglog("diff", brokers / "node1/orders-0", brokers / "node2/orders-0")


def test_a_log_dir_is_filled_from_log_dirs(brokers):
    arguments = ("recover", brokers / "node1", "--mode", "quarantine", "--from", brokers / "node2")
    assert seglog_json(*arguments, status=1)[-1]["filled_ranges"] == 1
    assert seglog_json(*arguments, "--apply")[-1]["lost_ranges"] == 0
    seglog("diff", brokers / "node1/orders-0", brokers / "node2/orders-0")
    # A partition may name the log dir, too.
    assert "nothing to do" in seglog("recover", brokers / "node1/orders-0", *arguments[2:]).stdout


def test_why_a_replica_does_not_fill_is_told(brokers):
    with engine.open(brokers / "other-0") as log:
        for n in range(20):
            log.append(b"%d" % n)
    arguments = ("recover", brokers / "node1/orders-0", "--mode", "quarantine", "--from", brokers / "other-0")
    assert "does not fill all: its batch at offset 4 is another one" in seglog(*arguments, status=1).stdout
    assert seglog_json(*arguments, status=1)[-1]["unfilled"][0]["source"] == str(brokers / "other-0")


def test_a_replica_takes_quarantine_and_must_be_there(brokers):
    path = brokers / "node1/orders-0"
    result = seglog("recover", path, "--mode", "truncate", "--from", brokers / "node2/orders-0", status=2)
    assert "--from takes --mode quarantine" in result.stderr
    result = seglog("recover", path, "--mode", "quarantine", "--from", brokers / "nowhere", status=3)
    assert "no such file" in result.stderr


def test_replicas_are_found_in_a_log_dir_above_it_and_by_their_own_directory(tmp_path):
    def damaged(name):
        shutil.rmtree(tmp_path / "damaged", ignore_errors=True)
        broken = shutil.copytree(cluster("before", 3), tmp_path / "damaged") / name / f"{0:020}.log"
        raw = bytearray(broken.read_bytes())
        raw[70] ^= 1
        broken.write_bytes(raw)
        return tmp_path / "damaged"

    log_dir = cluster("before", 1)
    for source in (log_dir, log_dir.parent, log_dir / "table-0"):
        for src in (damaged("table-0"), damaged("table-0") / "table-0"):
            lines = seglog_json("recover", src, "--mode", "quarantine", "--from", source, status=1)
            assert (lines[-1]["lost_bytes"], lines[-1]["apply"] is None) == (0, False), (source, src)


@pytest.mark.parametrize("src", ["", "table-0"])
def test_a_source_without_a_replica_is_an_error_and_nothing_is_quarantined(tmp_path, src):
    """Once it was passed over in silence, and what it was to save was quarantined."""
    data = shutil.copytree(cluster("before", 3), tmp_path / "data")
    log = data / f"table-0/{0:020}.log"
    raw = bytearray(log.read_bytes())
    raw[70] ^= 1
    log.write_bytes(raw)
    (tmp_path / "empty").mkdir()
    said = seglog(
        "recover", data / src, "--mode", "quarantine", "--from", tmp_path / "empty", "--apply", status=4).stderr
    assert "--from has no replica of" in said
    assert str(tmp_path / "empty") in said
    assert log.read_bytes() == raw
    shutil.copytree(cluster("before", 1) / "orders-0", tmp_path / "other/orders-0")
    said = seglog("recover", data, "--mode", "quarantine", "--from", tmp_path / "other", status=1).stderr
    assert "table-0 is in no directory of --from: nothing was filled" in said
