"""The commands on a directory of messages with tags."""
import shutil
import struct

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.format import names
from support.command import seglog as run
from support.command import seglog_json

NOW = 1_700_000_000_000


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "orders-0"
    config = {
        "seglog.message.dialect": "tagged", "segment.bytes": 4000, "index.interval.bytes": 300,
        "compression.type": "gzip",
        "seglog.message.tagged.timestamp.ms": False,
    }
    with seglog.open(path, clock=ManualClock(NOW), config=config) as log:
        for n in range(60):
            log.append_many([(b"key", b"value %d" % n * 5, None, NOW + n)] * 3)
    return path


@pytest.fixture
def path(written, tmp_path):
    return shutil.copytree(written, tmp_path / "orders-0")


def test_batches_show_their_tags_and_an_index_its_entries(path):
    batch = next(line for line in seglog_json("dump", "--batches", "--limit", "1", str(path)))
    assert batch["tags"] == {"0": NOW, "1": NOW, "32": 3, "33": 2, "64": 1, "65": 0, "66": 0}
    assert "tags " in run("dump", "--batches", "--limit", "1", str(path)).stdout
    index = names.log_files(path)[0].with_suffix(".tindex")
    entries = seglog_json("dump", str(index))
    raw = list(struct.iter_unpack(">iqi", index.read_bytes()))
    assert [(e["offset"], e["timestamp"], e["position"]) for e in entries] == raw


def test_ls_and_stats_name_them(path):
    (row,) = [line for line in seglog_json("ls", str(path.parent)) if line["type"] == "partition"]
    assert row["bytes_tagged"] == sum(log.stat().st_size for log in names.log_files(path))
    assert (row["tail_bytes"], row["bytes_v2"]) == (0, 0)
    assert "written by  seglog" in run("stats", str(path)).stdout


def test_verify_tells_what_is_wrong_and_what_is_only_missing(path):
    def codes(*more, status=0):
        return {line["code"] for line in seglog_json("verify", "--level", "deep", str(path), *more, status=status)
                if line["type"] == "finding"}

    (path / names.file_name(0, ".log")).touch()
    assert codes() == {"foreign_log"}
    first, second, *_ = names.log_files(path)
    first.with_suffix(".tindex").unlink()
    entry = bytearray(second.with_suffix(".tindex").read_bytes())
    struct.pack_into(">q", entry, 4, NOW - 10**6)
    second.with_suffix(".tindex").write_bytes(entry)
    assert codes(status=1) == {"foreign_log", "index_missing", "timeindex_misleads"}
    run("index", "rebuild", "--apply", str(path), "--config", "index.interval.bytes=300")
    assert codes("--config", "index.interval.bytes=300") == {"foreign_log"}
    raw = bytearray(second.read_bytes())
    raw[-3] ^= 1
    second.write_bytes(raw)
    assert "crc_mismatch" in codes(status=1)


def test_a_recovered_copy_is_a_tagged_log(path, tmp_path):
    *_, last = names.log_files(path)
    with last.open("ab") as file:
        file.write(b"\0\0\0\0\0\0\0\xff\0\0\1\0torn")
    with seglog.open_partition(path) as partition:
        before = [(r.offset, r.value) for r in partition.read()]
    run("recover", str(path), "--mode", "truncate", "--out", str(tmp_path / "copy-0"), status=1)
    with seglog.open(tmp_path / "copy-0", clock=ManualClock(NOW)) as log:
        assert log._dialect.name == "tagged"
        assert [(r.offset, r.value) for r in log.read()] == before
