"""Clients that load a server while it is killed and started again, and note what was acknowledged."""
import signal
import threading
import time

from support.free_ports import free_port
from support.serve_process import ServeProcess


class ServerLoad:
    """A thread that calls `run` until it is stopped. `run` counts in `acknowledged`, and ends with a fault in `faults`
    if the server refuses what it may not refuse."""

    def __init__(self, server, number):
        self.server = server
        self.number = number
        self.acknowledged = 0
        self.faults = []
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run)


def serve_on_one_port(directory, *arguments):
    """A server that listens on the same port each time it is started."""
    return ServeProcess(directory, "--listen", f"127.0.0.1:{free_port()}", *arguments)


def kill_under_load(server, loads, kills, rng, *, stays_dead=False):
    """Kill the server and start it again, each time after every load has had something acknowledged.

    `stays_dead`: not after the last time, so that what the loads had begun is as the kill left it.
    """
    for load in loads:
        load.thread.start()
    try:
        for left in reversed(range(kills)):
            before = [load.acknowledged for load in loads]
            end = time.monotonic() + 60
            while any(load.acknowledged <= one for load, one in zip(loads, before, strict=True)):
                assert time.monotonic() < end, [load.faults for load in loads]
                assert not any(load.faults for load in loads), [load.faults for load in loads]
                time.sleep(0.001)
            time.sleep(rng.random() / 20)
            server.end(signal.SIGKILL)
            if left or not stays_dead:
                server.start()
    finally:
        for load in loads:
            load.stopped.set()
        for load in loads:
            load.thread.join()
    assert not any(load.faults for load in loads), [load.faults for load in loads]
