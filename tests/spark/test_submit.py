"""spark-submit as in docs/spark_jobs.md, to a cluster of Spark 3.5 without seglog: the archive has it all."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

from seglog.conversion.directory import Options
from seglog.conversion.log_dir import convert_log_dir
from support.conversion import UnsyncedFs
from support.mixed_topic import write_mixed_topic
from support.spark_cluster import SparkCluster, lacking

# As .ci/spark-archive leaves them.
MADE = Path(__file__).parents[2] / "build/spark"
SPARK, ENV, ARCHIVE = MADE / "3.5.9/pyspark", MADE / "env", MADE / "seglog-env.zip"
# The interpreter of the environment without the environment.
PYTHON = sys._base_executable

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(lacking() is not None, reason=str(lacking())),
    pytest.mark.skipif(not (SPARK.exists() and ARCHIVE.exists()), reason="there is no archive: `make spark` makes it"),
]


def files(log_dir):
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for path in sorted(log_dir.glob("*/*")) if path.suffix != ".json"
    }


def test_the_archive_alone_goes_to_a_cluster_of_spark_3_5(in_memory, tmp_path):
    bare = subprocess.run([PYTHON, "-c", "import seglog"], capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError" in bare.stderr
    write_mixed_topic(in_memory / "old", "orders")
    assert all(r.status == "converted" for r in convert_log_dir(in_memory / "old", in_memory / "cli", Options(),
                                                                 fs=UnsyncedFs()))
    (tmp_path / "seglog_job.py").write_text("from seglog.tools.start import main\n\nmain()\n")
    with SparkCluster(tmp_path / "cluster", home=SPARK, python=PYTHON) as cluster:
        settings = {**cluster.settings(), "spark.executorEnv.PYTHONPATH": "environment"}
        done = subprocess.run(
            [
                SPARK / "bin/spark-submit", "--master", cluster.url, "--archives", f"{ARCHIVE}#environment",
                *(word for key, value in settings.items() for word in ("--conf", f"{key}={value}")),
                tmp_path / "seglog_job.py", "spark", "convert", in_memory / "old", in_memory / "new",
                "--task-bytes", "4000", "--report", tmp_path / "report.json",
            ],
            capture_output=True, text=True, check=False,
            env={**cluster.environment(), "PYSPARK_DRIVER_PYTHON": PYTHON, "PYTHONPATH": str(ENV)},
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert files(in_memory / "new") == files(in_memory / "cli")
    rows = json.loads((tmp_path / "report.json").read_text())["partitions"]
    assert [(row["status"], row["segments"]) for row in rows] == 4 * [("converted", 12)]
