"""Random programs on a queue that two processes share, and on a model of it: each answer is compared, over deaths of
owners, takeovers, restarts, checkpoints and trims."""
import os
import subprocess
import sys
from pathlib import Path

TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
PROGRAMS = 500 if TORTURE else 3


def test_a_shared_queue_answers_as_its_model(in_memory):
    """In a process of its own: it forks, which is better done beside no threads of others."""
    done = subprocess.run(
        [sys.executable, "-m", "support.models.shared_queue_model", in_memory, str(PROGRAMS)], capture_output=True,
        text=True, check=False, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr[-8000:]
