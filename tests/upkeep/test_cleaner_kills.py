"""SIGKILL while a log is compacted: what was acknowledged stays the last of its key, and no file is left over."""
import os
import random
import signal
import subprocess
import sys
import time

from seglog.log.log import Log
from seglog.upkeep.cleaner import clean
from support.killed_cleaner import CONFIG

KILLS = 100 if os.environ.get("SEGLOG_TORTURE") else 5


def test_a_killed_cleaner_loses_no_last_record_of_a_key(tmp_path):
    path, rng = tmp_path / "killed-0", random.Random(4)
    acknowledged, cleaned = {}, 0
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    for number in range(KILLS):
        command = [sys.executable, "-m", "support.killed_cleaner", str(path), str(number)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as child:
            head = child.stdout.readline()          # it is at work
            time.sleep(rng.random() * 0.4)
            while number == KILLS - 1 and not cleaned and b"cleaned" not in head:   # nobody came so far: a slow machine
                head += child.stdout.readline()
            child.send_signal(signal.SIGKILL)
            told = (head + child.stdout.read()).decode()
        for line in told.splitlines(keepends=True):
            match line.split():
                case ["took", key, offset] if line.endswith("\n"):
                    acknowledged[key.encode()] = int(offset)
                case ["cleaned", _]:
                    cleaned += 1
        with Log(path, config=CONFIG) as log:
            last = {record.key: record.offset for record in log.read()}
            assert all(last.get(key, -1) >= offset for key, offset in acknowledged.items()), (number, last)
            assert not [p.name for p in path.iterdir() if p.suffix in (".cleaned", ".swap", ".deleted")]
            if number % 4 == 3:
                clean(log)
                assert {record.key: record.offset for record in log.read()} == last
    assert cleaned > 0
