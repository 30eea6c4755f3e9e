"""The services of docs/embedding.md on a real gunicorn and a real uvicorn, under load, with workers that are killed."""
import http.client
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

import seglog
from support.waiting import wait_for

PAGE = Path(__file__).parents[2] / "docs/embedding.md"
FILE = re.compile(r'```python title="(?P<name>[\w.]+)"\n(?P<code>.*?)```\n', re.DOTALL)
CLIENTS = 8
IS_TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
KILLS = 20 if IS_TORTURE else 1
# (It kills a worker that does not answer it within 5 s: on a machine that has other work they never all started. And it
# waits as long for a worker that was killed before it answered, so the limit is not far above.)
_UVICORN = [
    "uvicorn", "--fd", "{fd}", "--workers", "3", "--timeout-worker-healthcheck", "30", "asgi_service:app", "--loop",
]
SERVERS = {
    "gunicorn": ["gunicorn", "--bind", "fd://{fd}", "service:app"],
    "uvicorn on uvloop": [*_UVICORN, "uvloop"],
    "uvicorn on asyncio": [*_UVICORN, "asyncio"],
}
if not IS_TORTURE:      # the loop makes a difference to seglog.aio, whose other tests run in both
    del SERVERS["uvicorn on asyncio"]


def children(pid):
    """Process ids of the children of a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, task.read_text().split())
    return found


def workers_of(server, directory):
    """Those of its children that use seglog, once one of them owns the log. (One that attaches has no file of it.)"""
    found = set()
    for pid in children(server.pid):
        with suppress(OSError):
            if "/seglog/_kernels/quick_lock" in Path(f"/proc/{pid}/maps").read_text():
                found.add(pid)
    return found if (directory / "data/orders-0/.seglog.sock").exists() else set()


def owner_of(workers, directory):
    """The worker that owns the log; another one if that is just changing."""
    pid = int((directory / "data/orders-0/.seglog.lock").read_text().split()[0])
    return pid if pid in workers else min(workers)


class Load:
    """Clients that post values, each another one, and note what was acknowledged: {(partition, offset): value}."""

    def __init__(self, port):
        self._port = port
        self._numbers = itertools.count()
        self._is_over = False
        self.acknowledged, self.errors = {}, []
        self._threads = [threading.Thread(target=self._post) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _post(self):
        while not self._is_over:
            value = b"value %d" % next(self._numbers)
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
            try:
                connection.request("POST", "/", value, {"Connection": "close"})
                answer = connection.getresponse()
                place = tuple(map(int, answer.read().split()))
            except (OSError, http.client.HTTPException, ValueError):
                continue        # of a worker that was killed, or of none yet: not acknowledged
            finally:
                connection.close()
            if answer.status != 200 or place in self.acknowledged:
                self.errors.append((answer.status, place))
            self.acknowledged[place] = value

    def after(self, more):
        """Return when so many more were acknowledged."""
        wanted = len(self.acknowledged) + more
        wait_for(lambda: len(self.acknowledged) >= wanted, 120)

    def stop(self):
        self._is_over = True
        for thread in self._threads:
            thread.join(120)


@pytest.mark.skipif(sys.platform != "linux", reason="the workers of a server are found in /proc")
@pytest.mark.parametrize("kind", SERVERS)
def test_workers_are_killed_under_load_and_nothing_acknowledged_is_lost(tmp_path, kind):
    for file in FILE.finditer(PAGE.read_text()):
        (tmp_path / file["name"]).write_text(file["code"])
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(100)
    module, *arguments = (word.format(fd=listener.fileno()) for word in SERVERS[kind])
    with (tmp_path / "server.out").open("w") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], cwd=tmp_path, pass_fds=[listener.fileno()], stdout=out,
            stderr=out, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])},
        )
    load = None
    try:
        wait_for(lambda: len(workers_of(server, tmp_path)) == 3, 120)
        load = Load(listener.getsockname()[1])
        killed = set()
        for number in range(KILLS):
            load.after(50)
            victim = owner_of(workers_of(server, tmp_path) - killed, tmp_path)
            if number % 3 == 2:     # the owner lives
                victim = max(workers_of(server, tmp_path) - killed - {victim})
            os.kill(victim, signal.SIGKILL)
            killed.add(victim)
            load.after(50)
            wait_for(lambda: len(workers_of(server, tmp_path) - killed) == 3, 120)     # another one took its place
        load.after(50)
        load.stop()
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    finally:
        if load is not None:
            load.stop()
        if server.poll() is None:
            for pid in [*children(server.pid), server.pid]:
                os.kill(pid, signal.SIGKILL)
            server.wait()
        listener.close()
    said = (tmp_path / "server.out").read_text()
    assert not load.errors, said
    assert len(load.acknowledged) >= 100 * KILLS + 50
    [path] = (tmp_path / "data").glob("orders-*")
    assert not seglog.verify(path).findings
    with seglog.open(path) as log:
        assert not log.recovery.repairs         # SIGTERM closed it
        assert not log.recovery.lost
        found = {(log.partition, record.offset): record.value for record in log}
    lost = {place: value for place, value in load.acknowledged.items() if found.get(place) != value}
    assert not lost, said
    values = list(found.values())
    assert len(values) == len(set(values))
