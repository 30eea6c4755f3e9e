"""`seglog.kombu`: a directory as the broker of kombu and celery."""
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from queue import Empty

import pytest

import seglog
from seglog.errors import InvalidArgumentError
from support.told_process import Other
from support.waiting import wait_for

celery = pytest.importorskip("celery", reason="the extra `test` brings it")
kombu = pytest.importorskip("kombu")
importlib.import_module("kombu.pidbox")
importlib.import_module("seglog.kombu")

COUNT, KILLS = 240, 4


@pytest.fixture
def url(in_memory):
    return f"seglog:///{in_memory}/broker"


@pytest.fixture
def connected(url, in_memory):
    """Open connections; they are closed at the end."""
    opened = []

    def connected(**options):
        opened.append(kombu.Connection(url, transport_options=options))
        return opened[-1]

    yield connected
    for connection in opened:
        connection.close()
    assert in_memory / "broker" not in seglog.kombu._brokers


@pytest.fixture
def tasks(connected):
    """One of kombu's simple queues."""
    with connected().SimpleQueue("tasks") as queue:
        yield queue


MESSAGE = {
    "body": "ImhpIg==", "headers": {}, "content-type": "application/json", "content-encoding": "utf-8",
    "properties": {"delivery_tag": "1", "delivery_info": {"exchange": "", "routing_key": "tasks"},
                   "body_encoding": "base64", "priority": 0, "delivery_mode": 2}}


@pytest.mark.parametrize("raw", [
    b"", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"__type__": "decimal", "__value__": "x"}',
    b'{"__type__": "bytes", "__value__": 5}', *(json.dumps(MESSAGE | change).encode() for change in (
        {"body": 5}, {"body": "a"}, {"headers": 5}, {"properties": []},
        {"properties": MESSAGE["properties"] | {"body_encoding": "none"}})),
], ids=lambda raw: raw[:60].decode("latin1"))
def test_what_is_no_message_is_set_aside_and_ends_no_consumer(tasks, in_memory, raw):
    """Some of it raised in the consumer, which had taken the job and kept it."""
    with seglog.Queue(in_memory / "broker/tasks", attach=True) as jobs:
        jobs.put(raw)
        jobs.put(json.dumps(MESSAGE).encode())
        assert tasks.get(timeout=60).payload == "hi"
        assert (jobs.get(timeout=0), jobs.stats().backlog) == (None, 2)


def backlog(in_memory):
    """How many messages are not finished."""
    with seglog.Queue(in_memory / "broker/tasks", attach=True) as jobs:
        return jobs.stats().backlog


def test_messages_come_in_their_order_and_those_of_a_higher_priority_first(tasks, in_memory):
    for number in range(3):
        tasks.put({"number": number})
    tasks.put({"number": 9}, priority=9)
    assert tasks.qsize() == 4
    found = []
    for _ in range(4):
        message = tasks.get(timeout=30)
        found.append(message.payload["number"])
        message.ack()
    assert found == [9, 0, 1, 2]
    assert (tasks.qsize(), backlog(in_memory)) == (0, 0)
    with pytest.raises(Empty):
        tasks.get(timeout=0.1)


def test_the_mailboxes_of_calls_of_control_and_of_workers_are_removed(connected, url, in_memory):
    """Each `ping` left a directory."""
    def left():
        return os.listdir(in_memory / "broker")

    app = celery.Celery("tasks", broker=url)
    try:
        app.control.ping(timeout=0.05)
        assert left() == []
    finally:
        app.pool.force_close_all()
    connection = connected()
    channel = connection.channel()
    kombu.pidbox.Mailbox("tasks")(connection).Node("worker", channel=channel).listen()
    assert left() == ["worker.tasks.pidbox"]
    kombu.Queue("kept", auto_delete=True, channel=channel).declare()
    connection.close()
    assert left() == ["kept"]


def test_a_requeued_message_is_there_again_and_one_that_was_rejected_or_acknowledged_is_not(tasks, in_memory):
    for name in "abc":
        tasks.put(name)
    first = tasks.get(timeout=30)
    assert (first.payload, first.delivery_info["redelivered"]) == ("a", False)
    first.requeue()
    again = tasks.get(timeout=30)
    assert (again.payload, again.delivery_info["redelivered"]) == ("a", True)
    again.ack()
    tasks.get(timeout=30).reject()
    assert tasks.get(timeout=30).payload == "c"
    assert backlog(in_memory) == 1


def test_what_a_connection_had_when_it_was_closed_is_delivered_to_another_at_once(connected):
    one, two = connected(), connected()
    ours, theirs = one.SimpleQueue("tasks"), two.SimpleQueue("tasks")
    ours.put("x")
    assert ours.get(timeout=30).payload == "x"
    with pytest.raises(Empty):
        theirs.get(timeout=0.1)
    ours.close()
    one.close()
    message = theirs.get(timeout=30)
    assert message.payload == "x"
    message.ack()
    theirs.close()


def test_a_consumer_that_does_not_acknowledge_loses_no_room(connected):
    connection = connected()
    with connection.SimpleQueue("tasks", no_ack=True) as tasks:
        for _ in range(3):
            tasks.put("x")
            assert tasks.get(timeout=30).payload == "x"
        channel = tasks.channel
        assert channel._jobs == {}
        tasks.put("y")
        assert channel.basic_get("tasks", no_ack=True).payload == "y"
        assert channel._jobs == {}
        assert channel.queue_declare("tasks", passive=True).message_count == 0


def test_several_queues_are_consumed_and_threads_acknowledge(connected):
    connection = connected()
    channel = connection.channel()
    queues = [kombu.Queue(name, kombu.Exchange(name), routing_key=name, channel=channel) for name in ("a", "b", "c")]
    producer = kombu.Producer(connection.channel())
    for number in range(30):
        queue = queues[number % 3]
        producer.publish({"number": number}, exchange=queue.exchange, routing_key=queue.name, declare=[queue])
    found, threads = [], []

    def received(body, message):
        found.append(body["number"])
        threads.append(threading.Thread(target=message.ack))
        threads[-1].start()

    with kombu.Consumer(channel, queues, callbacks=[received], prefetch_count=4):
        wait_for(lambda: drained(connection) or len(found) == 30, 60)
        for thread in threads:
            thread.join()
    assert sorted(found) == list(range(30))
    assert [channel._size(name) for name in "abc"] == [0, 0, 0]
    assert channel._jobs == {}


def drained(connection):
    with suppress(TimeoutError):
        connection.drain_events(timeout=1)


def test_a_connection_has_no_host_and_kombu_warns_of_none(connected, caplog):
    assert connected().info()["hostname"] is None
    assert caplog.text == ""


def test_a_task_with_a_countdown_stays_in_the_queue_until_it_is_due(url, in_memory):
    app = celery.Celery("tasks", broker=url)

    def work():
        pass

    before = datetime.now(UTC)
    with app, app.connection_for_write() as connection:
        producer = connection.Producer()
        task = app.task(name="work")(work)
        task.apply_async(countdown=3600, producer=producer)
        task.apply_async(eta=before + timedelta(hours=2), producer=producer)
        task.apply_async(producer=producer)
        with seglog.Queue(in_memory / "broker/celery", attach=True) as jobs:
            stats = jobs.stats()
            assert (stats.ready, stats.delayed) == (1, 2)
            dues = sorted((job.due_at - before).total_seconds() for job in jobs.peek(3))
    assert 0 <= dues[0] < 60
    assert 3600 <= dues[1] < 3660
    assert abs(dues[2] - 7200) < 0.01


def test_what_is_no_message_of_kombu_holds_no_other_up(tasks, in_memory, caplog):
    tasks.put("x")
    with seglog.Queue(in_memory / "broker/tasks", attach=True) as jobs:
        jobs.put(b"{}", priority=9)
        assert tasks.get(timeout=30).payload == "x"
        assert "is no message of kombu" in caplog.text
        assert jobs.stats().waiting == 1


@pytest.mark.parametrize("name", ["..", ".", "a/b", "../c", ".hidden", "w@h.celery", "a b\n"])
def test_a_queue_of_any_name_is_a_directory_of_its_own_in_that_of_the_broker(connected, in_memory, name):
    channel = connected().channel()
    channel.queue_declare(name)
    assert channel._has_queue(name)
    [found] = list((in_memory / "broker").iterdir())
    assert not found.name.startswith(".")
    assert any(found.iterdir())
    assert [path.name for path in in_memory.iterdir()] == ["broker"]


def test_a_queue_that_was_not_declared_is_not_there(connected):
    channel = connected().channel()
    assert not channel._has_queue("tasks")


def test_a_url_without_a_directory_is_refused():
    with pytest.raises(InvalidArgumentError, match="names no directory"):
        kombu.Connection("seglog://").connect()


def test_options_of_the_transport_are_those_of_the_queues(connected, in_memory):
    connection = connected(visibility_timeout=0.01, max_backlog=1)
    with connection.SimpleQueue("tasks") as tasks:
        tasks.put("x")
        tasks.get(timeout=30)
        again = tasks.get(timeout=30)       # its lease ended
        assert again.delivery_info["redelivered"]
        again.ack()


def test_what_a_process_had_when_it_was_killed_is_delivered_to_another(tasks, url):
    with Other(url, opening="import kombu, seglog.kombu") as other:
        other.does("theirs = kombu.Connection(path).SimpleQueue('tasks')")
        tasks.put("x")
        assert other.does("theirs.get(timeout=60).payload") == "x"
        other.kill()
    message = tasks.get(timeout=60)
    assert (message.payload, message.delivery_info["redelivered"]) == ("x", True)
    message.ack()


# --- a real worker ---------------------------------------------------------------------------

TASKS = """
import os, time
import celery, seglog.kombu
app = celery.Celery("tasks", broker="seglog:///broker")
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, broker_connection_retry_on_startup=True)

def note(kind, number):
    with open("done", "ab", buffering=0) as file:
        file.write(b"%s %d %f %d\\n" % (kind.encode(), number, time.time(), os.getpid()))

@app.task
def work(number):
    time.sleep(0.02)
    note("work", number)
    if number % 10 == 0:
        follow.delay(number)            # from a process of the pool

@app.task
def follow(number):
    note("follow", number)

@app.task(bind=True, max_retries=3)
def fail_once(self, number):
    note("fail", number)
    if self.request.retries == 0:
        raise self.retry(countdown=1)
    note("retried", number)
"""
CLIENT = """
import sys, time
from tasks import work, fail_once
for number in range(int(sys.argv[1])):
    work.delay(number)
    if number % 20 == 0:
        fail_once.delay(number)
        work.apply_async((100000 + number,), countdown=2)
        print(number, time.time(), flush=True)
"""


@pytest.mark.skipif("SEGLOG_TORTURE" not in os.environ, reason="a worker of celery takes 20 s and more: make torture")
@pytest.mark.skipif(sys.platform != "linux", reason="the pool forks")
def test_a_worker_that_is_killed_again_and_again_does_every_task_and_none_early(tmp_path):
    (tmp_path / "tasks.py").write_text(TASKS)
    python_path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    surroundings = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": python_path}}
    out = (tmp_path / "worker.out").open("w")

    def started():
        return subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--concurrency", "3"], stdout=out, stderr=out,
            **surroundings,
        )

    def done():
        lines = (tmp_path / "done").read_text().splitlines() if (tmp_path / "done").exists() else []
        return [(kind, int(number), float(at)) for kind, number, at, _ in map(str.split, lines)]

    worker = started()
    try:
        client = subprocess.run(
            [sys.executable, "-c", CLIENT, str(COUNT)], capture_output=True, text=True, check=False, **surroundings
        )
        assert (client.returncode, client.stderr) == (0, "")
        for kill in range(1, KILLS):
            wait_for(lambda kill=kill: len(done()) >= kill * COUNT // KILLS, 120)
            worker.kill()
            worker.wait()
            worker = started()
        wanted = {
            *(("work", number) for number in range(COUNT)), *(("follow", number) for number in range(0, COUNT, 10)),
            *((kind, number) for number in range(0, COUNT, 20) for kind in ("fail", "retried")),
            *(("work", 100000 + number) for number in range(0, COUNT, 20)),
            *(("follow", 100000 + number) for number in range(0, COUNT, 20)),
        }
        wait_for(lambda: wanted <= {one[:2] for one in done()}, 120)
        with seglog.Queue(tmp_path / "broker/celery", attach=True) as jobs:
            wait_for(lambda: jobs.stats().backlog == 0, 120)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(120) == 0
    finally:
        worker.kill()
        worker.wait()
        out.close()
    found = done()
    assert {one[:2] for one in found} == wanted
    asked = {int(number): float(at) for number, at in map(str.split, client.stdout.splitlines())}
    for kind, number, at in found:
        if kind == "work" and number >= 100000:
            assert at >= asked[number - 100000] + 1.9        # (it is told when it has been put)
    # What was killed on its way is done twice, and nothing else.
    assert len(found) <= len(wanted) + 8 * KILLS
