"""A server that stops closes the socket of every connection, however far the connection has come."""
import asyncio
import contextlib
import gc
import socket
import warnings

import pytest

import seglog
from support.loops import in_both_loops

STEPS_MAX = 8       # of the loop: then each connection waits for its first request


@pytest.mark.parametrize("door", ["kafka", "page"])
@in_both_loops
def test_no_socket_is_left_to_the_collector_at_whichever_step_of_its_loop_a_server_stops(in_memory, new_loop, door):
    async def stop_after(steps):
        async with seglog.serve(in_memory / "data", topics={"orders": 1}, http="127.0.0.1:0") as server:
            host, _, port = (server.bootstrap_servers if door == "kafka" else server.http_address).rpartition(":")
            clients = [socket.create_connection((host, int(port))) for _ in range(3)]
            for _ in range(steps):
                await asyncio.sleep(0)
        async with asyncio.timeout(5):
            while asyncio.all_tasks() != {asyncio.current_task()}:
                await asyncio.sleep(0)
        return clients

    for steps in range(STEPS_MAX):
        with warnings.catch_warnings(record=True) as caught, asyncio.Runner(loop_factory=new_loop) as runner:
            warnings.simplefilter("always", ResourceWarning)
            clients = runner.run(stop_after(steps))
            gc.collect()
        for client in clients:
            with client:
                client.settimeout(20)
                with contextlib.suppress(ConnectionResetError):     # one that was not accepted
                    assert client.recv(1) == b""
        assert [str(warning.message) for warning in caught] == [], f"after {steps} steps"
