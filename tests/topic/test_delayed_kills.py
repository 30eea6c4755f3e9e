"""SIGKILL at any moment of a topic with delayed messages, and another kind of tracker in the next life: what was
published comes, at or after its time, and what was cancelled does not. 200 kills in `make torture`, 8 here."""
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.killed_topic import Journal, check, open_topic
from support.topics import numbers
from support.waiting import line_of, wait_for

CHILD = Path(__file__).parent.parent / "support/crash/killed_topic.py"
TOPICS, KILLS = (25, 8) if os.environ.get("SEGLOG_TORTURE") else (1, 8)


def acts_in(journal):
    return {line[:1] for line in journal.read_text().splitlines()}


@pytest.mark.long
def test_kills_lose_nothing_and_bring_nothing_that_was_cancelled(in_memory):
    path = os.pathsep.join(filter(None, [str(CHILD.parent.parent.parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    for seed in range(TOPICS):
        chance, directory = random.Random(seed), in_memory / str(seed)
        directory.mkdir()
        for life in range(KILLS):
            command = [sys.executable, CHILD, directory, str(seed), str(life)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as child:
                assert line_of(child) == b"ready\n", child.stderr.read()
                time.sleep(chance.random() * 0.4)
                if life == KILLS - 1:       # on a slow machine nobody came so far
                    wait_for(lambda journal=directory / "journal": {"P", "C", "R"} <= acts_in(journal))
                child.send_signal(signal.SIGKILL)
                assert not child.stderr.read()
        log, delivery, dispatcher = open_topic(directory, KILLS)
        time.sleep(1.1)     # the longest delay
        drained = set()
        while entries := dispatcher.read(1000):
            drained.update(numbers(entries))
            dispatcher.cursor.acknowledge_many(entry.position for entry in entries)
        tracker = delivery.tracker(dispatcher.cursor)
        assert tracker.count(0, 2**63) == tracker.number_of_delayed_messages == dispatcher.cursor.backlog == 0
        delivery.close()
        log.close()
        journal = Journal(directory)
        published, cancelled, moved = check(journal.lines, drained)
        journal.close()
        assert min(published, cancelled, moved) > 0
