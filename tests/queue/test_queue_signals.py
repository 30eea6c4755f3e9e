"""A signal's handler closes a queue or a topic in the middle of a call of the same thread: nothing waits forever."""
import pytest

from support.crash.closing_handler import run_closing

HEAD = """
def a_queue(**options):
    global path
    path = new_path()
    queue = seglog.Queue(path, fsync="never", **options)
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
    return seglog.Topic(new_path(), fsync="never")
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
    run_closing(HEAD + script, in_memory)
