"""A signal's handler closes a queue or a topic in the middle of a call of the same thread: nothing waits forever."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

# A thread that waits forever ends the child, with the stacks of all threads.
HEAD = """
import faulthandler, os, signal, sys
faulthandler.dump_traceback_later(20, exit=True)
import seglog
from seglog.errors import LogClosedError
from support.crash import interrupts

class Closer(interrupts.Interrupter):
    # What a signal's handler does before the n-th instruction: it closes.
    def __init__(self, at, close):
        super().__init__(at)
        self.close = close
    def _before_instruction(self, code, offset, frame):
        try:
            super()._before_instruction(code, offset, frame)
        except interrupts.Interrupted:
            self.close()

def at_each_opcode(opened, action, step):
    at, is_reached = 0, True
    while is_reached:
        it = opened()
        closer = Closer(at, it.close)
        with closer._monitoring() if interrupts.BY_MONITORING else closer._tracing():
            try:
                action(it)
            except LogClosedError:
                assert closer.where
        it.close()
        is_reached = closer.where is not None
        at += step

def while_it_waits(it, wait):
    signal.signal(signal.SIGALRM, lambda *_: it.close())
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    try:
        wait()
    except LogClosedError:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    it.close()
    assert it.closed

STEP = 97 if os.environ.get("SEGLOG_TORTURE") else 1499
path, count = sys.argv[1], 0
def a_path():
    global path, count
    count += 1
    path = f"{sys.argv[1]}{count}"
    return path
def a_queue(**options):
    queue = seglog.Queue(a_path(), fsync="never", **options)
    queue.put(b"first")
    return queue
"""

WAITS = """
def full(queue):
    queue.put(b"too much")
def drained(queue):
    for job in queue:
        job.ack()
def in_flight(queue):
    job = queue.get()
    queue.get()
for wait in (full, drained, in_flight):
    queue = a_queue(max_backlog=1)
    while_it_waits(queue, lambda: wait(queue))
    seglog.Queue(path).close()
"""

CALLS = """
def calls(queue):
    queue.put(b"x", key="k")
    queue.put(b"x", key="u", unique_for=60)
    queue.stats()
    queue.peek(3)
    with queue.get(timeout=0):
        pass
at_each_opcode(a_queue, calls, STEP)
"""

OWNER = """
def calls(queue):
    queue.put(b"x", key="k")
    queue.stats()
    queue.get(timeout=0).ack()
at_each_opcode(lambda: a_queue(attach=True), calls, STEP)
queue = a_queue(attach=True)
queue.purge()
while_it_waits(queue, queue.get)
"""

ATTACHED = """
owner = a_queue(attach=True)
def calls(queue):
    queue.put(b"x", key="k")
    queue.stats()
    queue.get(timeout=0).ack()
at_each_opcode(lambda: seglog.Queue(path, attach=True), calls, 2 * STEP)
owner.purge()
queue = seglog.Queue(path, attach=True)
while_it_waits(queue, queue.get)
owner.close()
"""

TOPIC = """
def a_topic():
    return seglog.Topic(a_path(), fsync="never")
def calls(topic):
    with topic.subscribe("s", kind="failover", start="earliest") as consumer:
        topic.publish(b"x", key="k")
        consumer.stats()
        with consumer.get(timeout=0):
            pass
at_each_opcode(a_topic, calls, STEP)
for kind in ("shared", "failover"):
    topic = a_topic()
    consumers = [topic.subscribe("s", kind=kind) for _ in range(2)]
    for message in consumers[0].get_many(1000, timeout=0):
        message.ack()
    while_it_waits(topic, lambda: list(consumers[1]))
"""


@pytest.mark.parametrize(
    "script", [WAITS + CALLS, OWNER + ATTACHED, TOPIC], ids=["queue", "shared queue", "topic"]
)
def test_a_signals_handler_closes(in_memory, script):
    tests = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", HEAD + script, str(in_memory / "home")], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": tests},
    )
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr, done.stderr
