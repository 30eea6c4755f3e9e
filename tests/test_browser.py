"""What the tests of pages start ends with them."""
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.waiting import wait_for

# Names itself and goes on, as a browser does whose page never answers.
ENDLESS = "echo $$ > {file}.new; mv {file}.new {file}; while :; do sleep 1000; done"


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="not Linux")
def test_a_browser_ends_with_the_run_that_started_it_however_that_ends(tmp_path):
    code = (
        "import sys, time; from support.browser import running\n"
        "with running(sys.argv[2:]): sys.stdin.read() if sys.argv[1] == 'done' else time.sleep(1000)"
    )
    for end in ("done", "killed"):
        file = tmp_path / end
        run = subprocess.Popen(
            [sys.executable, "-c", code, end, "sh", "-c", ENDLESS.format(file=file)], stdin=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        )
        wait_for(file.exists)
        browser = int(file.read_text())
        assert is_alive(browser)
        if end == "killed":
            run.send_signal(signal.SIGKILL)
        run.stdin.close()
        run.wait()
        wait_for(lambda browser=browser: not is_alive(browser))
