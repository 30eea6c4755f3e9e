"""A conversion takes along what a log keeps in .seglog.config, but for the format that it converted from."""
import pytest

import seglog
from seglog.conversion.directory import Options
from seglog.conversion.in_place import plan_in_place
from seglog.spark import convert_topics
from seglog.verification.verify import verify
from support.command import seglog as command
from support.conversion import UnsyncedFs, converted
from support.spark_double import SparkDouble

KEPT = {"segment.bytes": 1 << 20, "min.insync.replicas": "2"}


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "logs" / "orders-0"
    with seglog.open(path, config={"message.format.version": 1}, fsync="never") as log:
        log.append_many([(b"k", b"%d" % n) for n in range(20)])
        log.configure(KEPT)
    return path


def in_place(source, tmp_path):
    plan_in_place(source, tmp_path / "backups", Options(), fs=UnsyncedFs()).run()
    return source


def aside(source, tmp_path):
    done = converted(source, tmp_path / "new" / "orders-0")
    assert any("message.format.version" in note for note in done.notes)
    return done.target


def by_spark(source, tmp_path):
    assert convert_topics(SparkDouble(), source.parent, tmp_path / "new", fs=UnsyncedFs()).is_whole
    return tmp_path / "new" / "orders-0"


@pytest.mark.parametrize("way", [aside, in_place, by_spark])
def test_a_conversion_takes_settings_along_and_its_own_format(source, tmp_path, way):
    target = way(source, tmp_path)
    with seglog.open(target, fsync="never") as log:
        assert log.settings.kept == {**{k: str(v) for k, v in KEPT.items()}, "message.format.version": "2"}
        assert log.config.segment_bytes == 1 << 20
        assert log.settings["min.insync.replicas"] == ("2", "kept", False)
        log.append(b"behind")
        assert {batch.magic for batch in log.batches()} == {2}
    assert not verify(target).findings
    for name in ("verify", "ls", "stats"):
        assert ".seglog.config" not in command(name, target).output


def test_settings_that_nobody_can_read_stay_behind_and_are_named(source, tmp_path):
    file = source / ".seglog.config"
    file.write_bytes(file.read_bytes().replace(b'"2"', b'"3"'))
    done = converted(source, tmp_path / "new" / "orders-0")
    assert any(".seglog.config is not carried over" in warning for warning in done.notes)
    assert not (done.target / ".seglog.config").exists()
