"""Finds out why a Spark session does not start: the JVM says it on stderr, among many lines of a stack, or not at all.

Spark tries to reach an absent master for a minute or longer, so its address is checked before.
"""
import os
import re
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from seglog._kernels.write_gate import Bell
from seglog.errors import StorageError

_STDERR = 2
_LINES_MAX = 400
_SO_FAR = b"\0\n"       # a mark, written after the output to collect
_SO_FAR_S = 2.0
_CONNECT_S = 5.0
_PROBE_S = 15.0     # for all addresses of a master together
# Spark's RPC answers a request for a stream that it does not have with a failure, whose length has eight bytes, or over
# TLS with an alert; a gRPC server answers empty settings, which begin an HTTP/2 connection, with its own. A stopped
# process accepts a connection, but answers nothing.
_STREAM = b"/files/seglog-asks-whether-this-is-spark\r\n\r\n"     # a web server answers at the end of a line
_REQUESTS = {
    "spark": struct.pack(">QBI", 13 + len(_STREAM), 6, len(_STREAM)) + _STREAM,
    "sc": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">3sBBI", b"", 4, 0, 0),
}
_ANSWERS = {"spark": re.compile(rb"[\0\x15]"), "sc": re.compile(rb"(?s)...\x04")}
_MASTER = re.compile(r"(?:spark|sc)://([^/;]+)")
_DEFAULT_PORTS = {"spark": 7077, "sc": 15002}
# The class of a JVM or Python exception, followed by its message.
_CAUSE = re.compile(r'^(?:Caused by: |: |Exception in thread "\S+" )?[\w.$]+(?:Error|Exception): (.+)')
_TELLS_NOTHING = re.compile(r"An error occurred while calling|\[JAVA_GATEWAY_EXITED\]")


def cause_of(error: BaseException, said: str) -> str:
    """The line that says why: the last cause in the error, or in what the JVM `said` on stderr, else its first line."""
    for text in (str(error), said):
        lines = [line.strip() for line in text.splitlines()]
        causes = [match[1] for line in lines if (match := _CAUSE.match(line)) and not _TELLS_NOTHING.search(line)]
        if causes:
            return causes[-1]
    words = [line.strip() for text in (said, str(error)) for line in text.splitlines() if line.strip()]
    return next((line for line in words if line.startswith(("Error:", "Invalid", "Unrecognized"))), None) or (
        words[-1] if words else type(error).__name__
    )


def check_master(master: str) -> None:
    """Raises StorageError if Spark answers at no address of `master`, a standalone cluster or a Connect server."""
    found = _MASTER.match(master)
    if found is None:
        return
    scheme = master.partition(":")[0]
    # Over TLS, which a Connect client uses with a token too, only the connection is tried.
    asks = scheme == "spark" or not re.search(r"[;/]use_ssl=true|[;/]token=", master)
    refused = []
    addresses = found[1].split(",")
    end_s = time.monotonic() + _PROBE_S
    for n, address in enumerate(addresses):
        host, _, port = address.rpartition(":") if re.search(r":\d+$", address) else (address, "", "")
        number = int(port) if port else _DEFAULT_PORTS[scheme]
        seconds = (end_s - time.monotonic()) / (len(addresses) - n)
        why = _refusal(scheme, host.strip("[]"), number, seconds, asks=asks)
        if why is None:
            return
        refused.append(f"{host}:{number}: {why}")
    raise StorageError(
        f"the Spark master does not answer: {', '.join(refused)}",
        hint="check that it is running, and its address, which Spark shows at the top of its web page",
    )


def _refusal(scheme: str, host: str, port: int, seconds: float, *, asks: bool) -> str | None:
    """Why Spark cannot be there; None if something answers, or closes the connection, that may be Spark."""
    end_s = time.monotonic() + seconds
    try:
        connection = socket.create_connection((host, port), timeout=min(_CONNECT_S, seconds))
    except OSError as error:
        return error.strerror or str(error)
    with connection:
        try:
            if not asks:
                return None
            connection.sendall(_REQUESTS[scheme])
            connection.settimeout(max(end_s - time.monotonic(), 0.01))
            answer = connection.recv(4096)
        except TimeoutError:
            return f"it accepts connections, but did not answer within {seconds:.0f} s"
        except OSError:
            return None
    is_spark = not answer or _ANSWERS[scheme].match(answer)
    return None if is_spark else "this is another server, not Spark's port for applications"


@contextmanager
def stderr_held() -> "Iterator[HeldStderr]":
    """Hold back what this process, and processes started in the block, write on stderr until the block ends.

    A process that lives on keeps writing into the pipe: from then on its lines are passed on as they come.
    """
    real = os.dup(_STDERR)
    read, write = os.pipe()
    os.dup2(write, _STDERR)
    os.close(write)
    held = HeldStderr(read, real)
    try:
        yield held
    except BaseException:
        os.dup2(real, _STDERR)
        raise
    else:
        os.dup2(real, _STDERR)
        held.let_go()


class HeldStderr:
    """Keeps the last lines that were written, until `let_go` passes them on, with all that follow."""

    def __init__(self, read: int, real: int) -> None:
        self._read = read
        self._real = real
        self._lines: deque[bytes] = deque(maxlen=_LINES_MAX)
        self._lock = threading.Lock()
        self._passes = False
        self._told = Bell()
        threading.Thread(target=self._pump, name="seglog-spark-stderr", daemon=True).start()

    def text(self) -> str:
        """The text written so far."""
        os.write(_STDERR, _SO_FAR)
        self._told.wait(_SO_FAR_S)
        with self._lock:
            return b"".join(self._lines).decode(errors="replace")

    def let_go(self) -> None:
        with self._lock:
            self._passes = True
            for line in self._lines:
                os.write(self._real, line)
            self._lines.clear()

    def _pump(self) -> None:
        with open(self._read, "rb") as lines:
            for line in lines:
                with self._lock:
                    if line.endswith(_SO_FAR):
                        self._told.ring()
                    elif self._passes:
                        os.write(self._real, line)
                    else:
                        self._lines.append(line)
        os.close(self._real)
