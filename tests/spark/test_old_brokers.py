"""Whole log dirs of brokers before 0.11, and what clients sent through them, converted by tasks: the same records."""
import shutil

import pytest

import seglog
from seglog.spark import convert_topics
from support.conversion import UnsyncedFs
from support.old_brokers import VERSIONS, numbers
from support.old_directories import CONFIG, client_cases, directory_of, partitions, seen
from support.spark_double import SparkDouble


def source_of(what, target):
    """A log dir of a version's partitions, or of what all clients sent."""
    if what == "clients":
        directories = [directory_of(p.values[0]) for p in client_cases()]
    else:
        directories = [p.values[1] for p in partitions("logs", [what])]
    for directory in directories:
        shutil.copytree(directory, target / directory.name)
    return directories


@pytest.mark.parametrize("what", ["clients", *(version for version in VERSIONS if numbers(version) < (0, 11))])
def test_tasks_convert_every_record(what, tmp_path):
    directories = source_of(what, tmp_path / "logs")
    convert_topics(
        SparkDouble(), tmp_path / "logs", tmp_path / "converted", task_bytes=1, fs=UnsyncedFs(), config=CONFIG)
    for directory in directories:
        with (
            seglog.open_partition(directory) as source,
            seglog.open_partition(tmp_path / "converted" / directory.name) as result,
        ):
            before, after = seen(source.read()), seen(result.read())
        # (v0 has no type of its times, v2 always one.)
        assert [r._replace(type="") for r in after] == [r._replace(type="") for r in before], directory.name
        assert {r.type for r in after} <= {"CreateTime", "LogAppendTime"}
