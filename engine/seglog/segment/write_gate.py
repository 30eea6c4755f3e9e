"""How threads come to write to one log, ledger or managed ledger: the one place for lock, refusal, failure and sync.

    gate.change(section, *args)     with the lock, if a change is possible
    gate.alone(section, *args)      nobody syncs meanwhile: for closing and replacing files
    gate.wait(number)               return when the appends up to `number` are on the disk; threads share the syncs
    gate.when(number, callback)     the same without a thread that waits

How that is kept whole under ^C and other asynchronous exceptions: _kernels.write_gate. A section says
`gate.is_changing = True` before its first change. If an error of ours leaves it then, the log is read-only: what is on
the disk is unknown (LogFailedError names the first error). If anything else does, the log is torn, and `mend` takes it
up from the disk, as the next opening would.
"""
import logging
from pathlib import Path

from seglog._kernels.write_gate import ChangeGate
from seglog.errors import LogFailedError
from seglog.segment.sync_thread import SYNC_CALLS, Callback

_LOG = logging.getLogger(__name__)


class WriteGate(ChangeGate):
    """A subclass has `mend`, and `sync` if anybody waits. `subject`: what it is the gate of, for messages."""

    def __init__(self, path: Path, subject: str) -> None:
        self.path = path
        self._subject = subject

    def sync(self) -> int:
        """Make durable what was written before the call; the number of the last append in it."""
        raise NotImplementedError

    def mend(self) -> None:
        """Take the log up from the disk if it is torn."""
        raise NotImplementedError

    def failed(self, first: BaseException) -> LogFailedError:
        """What is raised whenever a read-only log is to change."""
        return LogFailedError.since(first, self._subject)

    def settle(self, error: BaseException) -> None:
        """After `error` left the log read-only or torn. Raises LogFailedError instead of errors of ours."""
        if self.failure is None:
            try:
                self.mend()
            except BaseException:       # whoever comes next tries again, and meets it
                self.is_told = False
            return
        if error is self.failure:
            _LOG.error("%s is read-only until it is opened again: %s", self.path, error)
        if isinstance(error, Exception) and not isinstance(error, LogFailedError):
            raise self.failed(error) from error

    def reach(self, number: int) -> None:
        """`wait`, as the thread of `when` calls it."""
        self.wait(number)

    def when(self, number: int, callback: Callback) -> None:
        """Call `callback(None)` when the appends up to `number` are on the disk, `callback(error)` if they never will.

        In the sync thread of the process, in the order of the calls: it must be quick. Without the lock.
        """
        SYNC_CALLS.started().put((self, number, callback))
