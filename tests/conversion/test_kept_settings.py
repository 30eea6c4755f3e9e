"""A conversion takes along what a log keeps in .seglog.config, but for the format that it converted from.

By Spark, too: tests/spark/test_convert_topics.py.
"""
import pytest

from seglog.conversion.directory import Options
from seglog.conversion.in_place import plan_in_place
from support.conversion import UnsyncedFs, check_kept_settings, converted, log_with_kept_settings


@pytest.fixture
def source(tmp_path):
    return log_with_kept_settings(tmp_path / "logs" / "orders-0")


def in_place(source, tmp_path):
    plan_in_place(source, tmp_path / "backups", Options(), fs=UnsyncedFs()).run()
    return source


def aside(source, tmp_path):
    done = converted(source, tmp_path / "new" / "orders-0")
    assert any("message.format.version" in note for note in done.notes)
    return done.target


@pytest.mark.parametrize("way", [aside, in_place])
def test_a_conversion_takes_settings_along_and_its_own_format(source, tmp_path, way):
    check_kept_settings(way(source, tmp_path))


def test_settings_that_nobody_can_read_stay_behind_and_are_named(source, tmp_path):
    file = source / ".seglog.config"
    file.write_bytes(file.read_bytes().replace(b'"2"', b'"3"'))
    done = converted(source, tmp_path / "new" / "orders-0")
    assert any(".seglog.config is not copied" in warning for warning in done.notes)
    assert not (done.target / ".seglog.config").exists()
