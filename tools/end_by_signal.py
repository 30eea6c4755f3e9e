"""The end of a command that runs until it is told to stop."""
import contextlib
import signal
import socket
from collections.abc import Iterator
from typing import Self


class _Ended(BaseException):
    """A signal came during the start."""


class EndBySignal:
    """Waits for ^C, SIGTERM or SIGHUP, from its creation on. A signal that the parent process ignores stays ignored.

    Python writes the number of each signal that it handles to a socket. An event that a handler sets would not do:
    between its last look for signals and the moment in which it sleeps, the main thread misses one, and so it does if
    the system gives the signal to another thread. The command would then run until the next signal.
    """

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)      # as Python demands; the first number is enough
        self._former = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
                          if signal.getsignal(number) is not signal.SIG_IGN}
        for number in self._handlers:
            signal.signal(number, self._hear)
        self._is_starting = self._was_heard = False

    def _hear(self, *_: object) -> None:
        self._was_heard = True
        if self._is_starting:
            raise _Ended

    @contextlib.contextmanager
    def during_start(self) -> Iterator[None]:
        """Within the context, until `has_started`, a signal ends it without an error: a start may take long."""
        try:
            self._is_starting = True
            if self._was_heard:
                raise _Ended
            yield
        except _Ended:
            pass
        finally:
            self._is_starting = False

    def has_started(self) -> None:
        self._is_starting = False

    def wait(self) -> None:
        while self._read.recv(1)[0] not in self._handlers:
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        signal.set_wakeup_fd(self._former)
        if error is not None:       # else the command has done what a signal told it to: a second one changes nothing
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
        self._read.close()
        self._write.close()
