"""Coordinates threads that write to one log, ledger or managed ledger: locking, refusal, failure and sync.

    gate.change(section, *args)     with the lock, if a change is possible
    gate.alone(section, *args)      no sync runs meanwhile: for closing and replacing files
    gate.wait(number)               return when the appends up to `number` are on the disk; threads share the syncs
    gate.when(number, callback)     the same without blocking a thread

How this stays consistent under ^C and other asynchronous exceptions: see _kernels.write_gate. A section makes each
change within `with gate.changing():`. If a SeglogError leaves that block, the log becomes read-only, because the state
on disk is unknown (LogFailedError names the first error). Any other exception leaves the log torn, and `reload` reads
it again from the disk, as the next opening would.
"""
from pathlib import Path

from seglog._kernels.write_gate import ChangeGate
from seglog.errors import LogFailedError
from seglog.logger import Logger
from seglog.threads.sync_thread import SYNC_CALLS, Callback

_LOG = Logger(__name__)


class WriteGate(ChangeGate):
    """A subclass defines `reload`, and `sync` if threads wait. `subject`: what it guards, for messages."""

    def __init__(self, path: Path, subject: str) -> None:
        self.path = path
        self._subject = subject

    def sync(self) -> int:
        """Make everything written before the call durable; return the number of the last append in it."""
        raise NotImplementedError

    def reload(self) -> None:
        """Read the log again from the disk if it is torn."""
        raise NotImplementedError

    def failed(self, first: BaseException) -> LogFailedError:
        """Make the error that every change of a read-only log raises."""
        return LogFailedError.since(first, self._subject)

    def settle(self, error: BaseException) -> None:
        """Handle `error`, which left the log read-only or torn. Raises LogFailedError instead of SeglogErrors, and an
        interrupt that comes meanwhile instead of any error: otherwise ^C would have no effect."""
        if self.failure is None:
            try:
                self.reload()
            except BaseException as another:        # the next caller tries again, and gets the error
                self.is_told = False
                if not isinstance(another, Exception):
                    raise
            return
        if error is self.failure and not isinstance(error, LogFailedError):     # then what failed first has logged it
            _LOG.error("%s is read-only until it is opened again: %s", self.path, error)
        if isinstance(error, Exception) and not isinstance(error, LogFailedError):
            raise self.failed(error) from error

    def reach(self, number: int) -> None:
        """Do `wait`, for the thread of `when`."""
        self.wait(number)

    def when(self, number: int, callback: Callback) -> None:
        """Call `callback(None)` when the appends up to `number` are durable, `callback(error)` if they never will be.

        Runs in the process's sync thread, in the order of the calls, without the lock: it must be quick.
        """
        SYNC_CALLS.started().put((self, number, callback))
