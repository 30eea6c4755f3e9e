"""The watchdog over all tests tells where one hangs."""
import subprocess
import sys
from pathlib import Path

import pytest

HANGS = """
import time
def hangs_here():
    time.sleep(1)
def test_that_hangs():
    hangs_here()
"""
CONFTEST = """
from support.watchdog import Watchdog
def pytest_configure(config):
    config.pluginmanager.register(Watchdog(hangs_after_s={seconds}))
"""


@pytest.mark.parametrize(("seconds", "is_told"), [(0.2, True), (60, False)])
def test_where_a_test_hangs_is_told(tmp_path, monkeypatch, seconds, is_told):
    (tmp_path / "test_it.py").write_text(HANGS)
    (tmp_path / "conftest.py").write_text(CONFTEST.format(seconds=seconds))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path],
        capture_output=True, text=True, timeout=120, check=False,
    )
    assert done.returncode == 0, done.stdout
    assert ("in hangs_here" in done.stderr) is is_told, done.stderr
