"""Processes that start at once: one that has imported everything forks for each of them.

A Python with the engine in it costs a quarter of a second of processor time to start, what a worker does a tenth of
that. The server opens nothing and starts no thread: a fork of it knows no more of logs than a new process does. It runs
under the recorder, which records nothing until `outside_begin` of recorder.c is called, in the fork.
"""
import ctypes
import gc
import hashlib
import importlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path

TESTS = Path(__file__).parents[2]
BUILT = TESTS.parent / "build/outside"
RECORDER = Path(__file__).with_name("recorder.c")
# What the forks run, and what their modules import when they are called.
RUNS = (
    *(
        f"support.outside.{of}_{who}"
        for of in ("log", "topic", "queue", "convert", "swap") for who in ("worker", "judge")
    ),
    "support.outside.interrupted_worker", "support.outside.interrupted_doors",
)
ALSO = (
    "pyroaring", "seglog.opening", "seglog.tools.convert", "seglog.tools.verify", "seglog.tools.ledger",
)
_REQUEST_BYTES_MAX = 1 << 16


def compile_recorder(directory):
    """The shared library, made in `directory` with the C compiler that the build needs anyway; one of the same source
    and compiler is there to stay in build/."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    of = hashlib.blake2b(RECORDER.read_bytes() + repr(compiler).encode(), digest_size=8).hexdigest()
    kept = BUILT / f"recorder-{of}.so"
    if not kept.exists():
        library = Path(directory) / "recorder.so"
        subprocess.run([*compiler, "-shared", "-fPIC", "-O2", "-o", library, RECORDER], check=True)
        BUILT.mkdir(parents=True, exist_ok=True)
        mine = BUILT / f"recorder-{of}.so.{os.getpid()}"
        shutil.copyfile(library, mine)
        mine.rename(kept)       # other workers make the same at the same time
    return kept


class ForkServer:
    """Starts one process at a time, under the recorder, which is compiled in `directory`."""

    def __init__(self, directory):
        library = compile_recorder(directory)
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", __spec__.name, str(its.fileno())], pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL, env=os.environ | {
                    "LD_PRELOAD": " ".join(filter(None, [os.environ.get("LD_PRELOAD"), str(library)])),
                    "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])),
                },
            )
        self.connection = mine

    def close(self):
        self.connection.close()
        self._process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Forked:
    """A process that calls `main` of a module. With `pipes` they are `stdin` and `stdout`; else stdin is empty.

    The reader of stdout closes it.
    """

    def __init__(self, server, module, arguments, environment, directory, *, pipes=False):
        self._connection = server.connection
        self.returncode = None
        self.stdin = self.stdout = None
        self._said, self._errors = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115
        if pipes:
            its_stdin, mine = os.pipe()
            self.stdin = os.fdopen(mine, "w")
            mine, its_stdout = os.pipe()
            self.stdout = os.fdopen(mine)
        else:
            its_stdin, its_stdout = os.open(os.devnull, os.O_RDONLY), os.dup(self._said.fileno())
        its = its_stdin, its_stdout, os.dup(self._errors.fileno())
        request = {
            "module": module, "arguments": list(map(str, arguments)), "environment": environment,
            "directory": str(directory),
        }
        try:
            message = json.dumps(request).encode()
            assert len(message) < _REQUEST_BYTES_MAX
            socket.send_fds(self._connection, [message], its)
            self.pid = int(self._receive())
        finally:
            for fd in its:
                os.close(fd)

    def _receive(self):
        if not (answer := self._connection.recv(100)):
            raise AssertionError("the fork server has ended: what it wrote is on stderr")
        return answer

    def wait(self, timeout_s=None):
        """Its exit status, negative for a signal. TimeoutError: it is not at its end."""
        if self.returncode is None:
            self._connection.settimeout(timeout_s)
            try:
                self.returncode = int(self._receive())
            finally:
                self._connection.settimeout(None)
        return self.returncode

    def kill(self):
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def said(self):
        """What it wrote to stdout, without pipes."""
        self._said.seek(0)
        return self._said.read()

    def errors(self):
        """What it wrote to stderr."""
        self._errors.seek(0)
        return self._errors.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """It ends: the server waits for it before it takes the next request."""
        self.kill()
        self.wait()
        for file in filter(None, (self.stdin, self._said, self._errors)):
            with suppress(BrokenPipeError):
                file.close()


def serve(connection):
    """Fork for each request; tell its pid, and when it has ended its status."""
    for module in RUNS + ALSO:
        importlib.import_module(module)
    importlib.import_module("support.outside.pester").import_all()
    gc.collect()
    gc.freeze()
    while True:
        message, fds, _, _ = socket.recv_fds(connection, _REQUEST_BYTES_MAX, 3)
        if not message:
            return
        pid = os.fork()
        if pid == 0:
            connection.close()
            become(json.loads(message), fds)
        for fd in fds:
            os.close(fd)
        connection.send(b"%d" % pid)
        _, status = os.waitpid(pid, 0)
        connection.send(b"%d" % os.waitstatus_to_exitcode(status))


def become(request, fds):
    """Be the process that is asked for, to its end."""
    status = 1
    try:
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
            os.close(fd)
        os.environ.update(request["environment"])
        os.chdir(request["directory"])
        ctypes.CDLL(None).outside_begin()
        sys.argv = [request["module"], *request["arguments"]]
        importlib.import_module(request["module"]).main()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # As a process that is killed: nothing is closed that was not closed.
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
