"""Ports of this machine on which nobody listens."""
import contextlib
import socket


def free_port():
    [port] = free_ports(1)
    return port


def free_ports(count):
    """Different ones: each is held until all are known."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]
