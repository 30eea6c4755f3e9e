"""The benchmarks run, at a size that says nothing: so that they cannot rot."""
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.long
def test_every_benchmark_runs_and_reports(tmp_path):
    out = tmp_path / "run.json"
    with subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-m", "benches", "--all", "--records", "2000",
         "--repetitions", "1", "--json", str(out)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    ) as child:
        try:
            printed, errors = child.communicate(timeout=900)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGABRT)       # it prints where each of its threads is
            child.wait(60)
            os.killpg(child.pid, signal.SIGKILL)    # a server that it waited for, which has the same stderr
            printed, errors = child.communicate()
    assert child.returncode == 0, f"{printed[-2000:]}\n{errors}"
    run = json.loads(out.read_text())
    assert len(run["results"]) >= 17
    assert all(r["ratio"] > 0 for r in run["results"])
    assert {"commit", "cores", "date", "load", "load_at_end", "processor", "versions"} <= run["machine"].keys()


def test_a_crowd_of_clients_is_served_and_reported():
    done = subprocess.run(
        [sys.executable, "-m", "benches.crowd", "--topics", "6", "--groups", "2", "--seconds", "0.5"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300, check=True)
    name, connections, *figures = (cell.strip() for cell in done.stdout.splitlines()[-1].strip("|").split("|"))
    assert (name, connections) == ("seglog", "28")      # two of each member, two that make things, six producers
    assert all(float(figure) > 0 for figure in figures)
