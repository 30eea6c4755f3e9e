"""`seglog du`: every byte counted once, whatever it is counted by, and what could be freed."""
import shutil

import pytest

import seglog as engine
from support.command import seglog, seglog_json
from support.internal_topics import kraft

BYS = ["topic", "day", "format", "codec"]
DAY_MS = 86_400_000


def usage(path, by, *more):
    *rows, summary = seglog_json("du", path, "--by", by, *more)
    return {row["name"]: row for row in rows}, summary


@pytest.fixture
def disk(tmp_path):
    data = tmp_path / "data"
    for name, codec, value in (
        ("plain-0", "none", b"word " * 200), ("small-0", "gzip", b"x"), ("plain-1", "none", b"y"),
    ):
        with engine.open(data / name, config={"compression.type": codec}) as log:
            for n in range(4):
                log.append(value, timestamp=1_700_000_000_000 + n * DAY_MS)
                log.roll()
    return data


def batch_bytes(data):
    return sum(file.stat().st_size for file in data.rglob("*.log"))


@pytest.mark.parametrize("by", BYS)
def test_every_byte_is_counted_once(disk, by):
    rows, summary = usage(disk, by)
    assert sum(row["log_bytes"] for row in rows.values()) == batch_bytes(disk)
    assert sum(row["batches"] for row in rows.values()) == 12
    assert summary["bytes"] == sum(row["bytes"] for row in rows.values())
    if by == "topic":
        everything = sum(file.stat().st_size for name in ("plain-0", "plain-1", "small-0")
                         for file in (disk / name).rglob("*") if file.is_file())
        assert summary["bytes"] == everything
    assert "total" in seglog("du", disk, "--by", by).output


def test_what_it_is_counted_by(disk):
    assert usage(disk, "topic")[0].keys() == {"plain", "small"}
    assert list(usage(disk, "day")[0]) == ["2023-11-14", "2023-11-15", "2023-11-16", "2023-11-17"]
    assert usage(disk, "codec")[0].keys() == {"none", "gzip"}
    assert usage(disk, "format")[0].keys() == {"v2"}


def test_what_compression_would_free_is_near_the_truth(disk):
    rows, _ = usage(disk, "topic")
    plain = rows["plain"]
    assert 0.8 * plain["log_bytes"] < plain["compression_frees"] < plain["log_bytes"]
    assert rows["small"]["compression_frees"] == 0


def test_what_prune_would_free_is_what_prune_deletes(tmp_path):
    data = shutil.copytree(kraft("4.1.1"), tmp_path / "data")
    rows, _ = usage(data, "topic")
    deleted = seglog_json("prune", data, "--apply")[-1]["deleted_bytes"]
    assert rows["orders"]["prune_frees"] == deleted > 0
    assert rows["__consumer_offsets"]["prune_frees"] == rows["table"]["prune_frees"] == 0


def test_what_nothing_says_is_unknown(disk):
    rows, _ = usage(disk, "topic")
    assert {row["prune_frees"] for row in rows.values()} == {None}
    assert "unknown" in seglog("du", disk).output
    config = ["--config", "cleanup.policy=delete", "--config", "retention.ms=1"]
    rows, _ = usage(disk, "topic", *config)
    assert rows["plain"]["prune_frees"] == sum(
        file.stat().st_size for name in ("plain-0", "plain-1") for file in (disk / name).glob("*.log")
    )


def test_a_damaged_batch_leaves_the_others(disk):
    log = disk / "plain-0/00000000000000000001.log"
    raw = bytearray(log.read_bytes())
    raw[16] = 9
    log.write_bytes(raw)
    assert usage(disk, "codec")[0]["none"]["batches"] == 7
