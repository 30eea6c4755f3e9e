"""A volume of 64 MB filled to the last byte: retention frees it without a hand, and nothing acknowledged is lost."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
# `make torture` sets SEGLOG_TORTURE: the full size; otherwise a quarter.
SIZE_MIB = 64 if os.environ.get("SEGLOG_TORTURE") else 16


@pytest.mark.long
def test_retention_frees_a_full_volume_without_a_hand(tmp_path):
    namespace = ["unshare", "-rm"]
    try:
        subprocess.run([*namespace, "mount", "-t", "tmpfs", "none", tmp_path], check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no small volume to be had: this system gives no mount namespace ({error})")
    done = subprocess.run(
        [*namespace, sys.executable, "-m", "support.full_volume", tmp_path, str(SIZE_MIB)],
        env=os.environ | {"PYTHONPATH": str(TESTS)}, capture_output=True, text=True, timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr
