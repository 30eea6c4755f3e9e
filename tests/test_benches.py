"""The benchmarks run, at a size that says nothing: so that they cannot rot."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.long
def test_every_benchmark_runs_and_reports(tmp_path):
    out = tmp_path / "results.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", "benches", "--records", "2000", "--repetitions", "1", "--json", str(out)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(results) >= 17
    assert all(r["ratio"] > 0 for r in results)
