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
GOES_ON = """
import time
from support import watchdog
def hangs_here():
    for _ in range(15):
        time.sleep(0.1)
        watchdog.goes_on()
def test_that_goes_on(monkeypatch):
    monkeypatch.setattr(watchdog, "AGAIN_S", 0)
    hangs_here()
"""
CONFTEST = """
from support.watchdog import Watchdog
def pytest_configure(config):
    config.pluginmanager.register(Watchdog(hangs_after_s={seconds}))
"""


@pytest.mark.parametrize(("test", "seconds", "is_told"), [
    (HANGS, 0.2, True), (HANGS, 60, False), (GOES_ON, 1, False)])
def test_where_a_test_hangs_is_told(tmp_path, monkeypatch, test, seconds, is_told):
    (tmp_path / "test_it.py").write_text(test)
    (tmp_path / "conftest.py").write_text(CONFTEST.format(seconds=seconds))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path],
        capture_output=True, text=True, timeout=120, check=False,
    )
    assert done.returncode == 0, done.stdout
    assert ("in hangs_here" in done.stderr) is is_told, done.stderr
