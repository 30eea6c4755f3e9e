"""`seglog compact`: what it says would stay, what it does and proves, and what it refuses."""
import pytest

import seglog as engine
from seglog.errors import ProofMismatchError
from seglog.upkeep import compact as compaction
from support.command import seglog, seglog_json


def written(path, keyless=False):
    with engine.open(path, config={"segment.bytes": 3000}, fsync="never") as log:
        for n in range(150):
            log.append(b"value %d" % n, key=None if keyless and n == 20 else b"key %d" % (n % 12))
    return path


def content(path):
    with engine.open_partition(path) as partition:
        return [(r.offset, r.key, r.value) for r in partition.read()]


def files(path):
    return {p.name: p.read_bytes() for p in path.iterdir() if not p.name.startswith(".seglog")}


def test_a_dry_run_says_what_would_stay_and_changes_nothing(tmp_path):
    path = written(tmp_path / "orders-0")
    before = files(path)
    *groups, summary = seglog_json("compact", path, "--dry-run", status=1)
    assert (summary["dry_run"], summary["outcome"]) == (True, "cleaned")
    assert f"To do it: seglog compact {path} --apply\n" in seglog("compact", path, status=1).stdout
    assert summary["apply"] == f"seglog compact {path} --apply"
    assert files(path) == before
    *done, after = seglog_json("compact", "--apply", path)
    assert [{**group, "bytes_after": 0} for group in done] == [{**group, "bytes_after": 0} for group in groups]
    assert (after["bytes_after"], after["keys"]) == (summary["bytes_after"], 12)


# So that the log that keeps its settings does not compact itself, but the command does.
LATER = {"min.compaction.lag.ms": 10**12}
NOW = ["--config", "min.compaction.lag.ms=0"]


def test_of_a_log_dir_the_compacted_topics_are_compacted(tmp_path):
    """Red: "no segment file in the directory", status 4."""
    kinds = {"table-0": "compact", "table-1": "compact,delete", "orders-0": "delete", "unknown-0": None}
    for name, policy in kinds.items():
        with engine.open(written(tmp_path / name)) as log:
            if policy is not None:
                log.configure({"cleanup.policy": policy, **LATER})
    before = {name: files(tmp_path / name) for name in kinds}
    result = seglog("compact", tmp_path, *NOW, status=1)
    assert "unknown-0 is left alone: its cleanup.policy is unknown" in result.stderr
    assert "2 compacted partitions" in result.stdout
    assert f"To do it: seglog compact {tmp_path} {' '.join(NOW)} --apply\n" in result.stdout
    assert {name: files(tmp_path / name) for name in kinds} == before
    lines = seglog_json("compact", tmp_path, *NOW, "--apply")
    assert [line["partition"] for line in lines if line["type"] == "partition"] == ["table-0", "table-1"]
    assert lines[-1]["partitions"] == 2
    assert lines[-1]["bytes_after"] < lines[-1]["bytes_before"]
    for name in ("orders-0", "unknown-0"):
        assert files(tmp_path / name) == before[name]
    # What is typed decides where nothing is known, and changes nothing else.
    lines = seglog_json("compact", tmp_path, *NOW, "--config", "cleanup.policy=compact", "--apply")
    assert [line["partition"] for line in lines if line["type"] == "partition"] == ["table-0", "table-1", "unknown-0"]


def test_one_compacted_partition_that_fails_does_not_stop_the_others(tmp_path):
    for name in ("table-0", "table-1"):
        with engine.open(written(tmp_path / name, keyless=name == "table-0")) as log:
            log.configure({"cleanup.policy": "compact", **LATER})
    result = seglog("compact", tmp_path, *NOW, "--apply", status=7)
    assert "without a key" in result.stderr
    assert "table-1" in result.stdout


def test_an_empty_log_has_no_open_transaction_and_an_empty_directory_stays_so(tmp_path):
    with engine.open(tmp_path / "orders-0"):
        pass
    assert "the active segment begins at 0" in seglog("compact", "--apply", tmp_path / "orders-0").stdout
    (tmp_path / "none-0").mkdir()
    assert "no segment" in seglog("compact", "--apply", tmp_path / "none-0", status=4).stderr
    assert not list((tmp_path / "none-0").iterdir())


def test_it_leaves_the_last_of_each_key_and_proves_it(tmp_path):
    path = written(tmp_path / "orders-0")
    before = content(path)
    *_, summary = seglog_json("compact", "--apply", path, "--prove")
    end = summary["end_offset"]
    last = {key: offset for offset, key, _ in before if offset < end}
    assert content(path) == [r for r in before if r[0] >= end or last[r[1]] == r[0]]
    assert summary["proven_keys"] == len(last) == 12
    assert (tmp_path / "cleaner-offset-checkpoint").read_text() == f"0\n1\norders 0 {end}\n"
    assert "nothing after offset" in seglog("compact", "--apply", path).stdout
    seglog("verify", path)


def test_a_proof_that_does_not_come_out_is_an_error(tmp_path, monkeypatch):
    path = written(tmp_path / "orders-0")
    real = compaction.last_records

    def one_more(log, end):
        return real(log, end) | {b"a key of nobody": (3, False)}

    monkeypatch.setattr(compaction, "last_records", one_more)
    with pytest.raises(ProofMismatchError, match="are gone, the first one at offset 3"):
        compaction.compact(path, config={}, prove=True)
    assert seglog("compact", "--apply", written(tmp_path / "more-0"), "--prove", status=None).exit_code == 1


@pytest.mark.parametrize("options", [["--dry-run"], ["--apply"]])
def test_records_without_a_key_are_refused_unless_they_may_go(options, tmp_path):
    path = written(tmp_path / "orders-0", keyless=True)
    before = content(path)
    refused = seglog("compact", path, *options, status=None)
    assert refused.exit_code != 0
    assert "without a key" in refused.output
    assert "--drop-keyless" in refused.output
    assert content(path) == before
    assert seglog_json("compact", path, *options, "--drop-keyless", status=None)[0]["keyless"] == 1


def test_a_log_that_is_open_is_refused(tmp_path):
    path = written(tmp_path / "orders-0")
    with engine.open(path):
        assert seglog("compact", path, "--dry-run", status=1).stdout
        seglog("compact", path, "--prove", status=2)
        seglog("compact", path, "--apply", status=5)
    assert seglog("compact", "--apply", tmp_path / "nothing-0", status=None).exit_code in (3, 4)
