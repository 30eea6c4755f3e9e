"""Two lives over one directory: the first ends by a failed call or a kill, the second opens what it left, and the power
fails in it. What the second one read came from the page cache, and may be on no disk."""
import contextlib
import errno
import os
import shutil

from seglog.errors import StorageError
from seglog.fs.files import OsFileSystem
from support.faultfs import FailingFs, RecordingFs

TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))


class Killed(BaseException):
    """What each call of a process that was killed gets."""


class Kill(FailingFs):
    """From change number `fail_at` on nothing happens any more, until it is another process's turn."""

    def __init__(self, fail_at):
        super().__init__(OsFileSystem(), fail_at=fail_at, error=errno.EINTR)

    def _refuse(self, word, path):
        return Killed(f"{word} {path}")


class Life:
    """A program over what `opened` is, a log or a managed ledger."""

    opened = None

    def __init__(self, record, fsync):
        self.record = record
        self.fsync = fsync

    def leave(self):
        """Let go of it as a process does that ends: nothing is changed any more."""
        if self.opened is not None:
            with contextlib.suppress(Killed, StorageError):
                self.opened.close()


def calls_of(root, new_life, first_life):
    """The changes of a first life that nothing ends."""
    fs = FailingFs(OsFileSystem())
    (root / "whole").mkdir()
    first_life(new_life(RecordingFs(root / "whole", fs)))
    shutil.rmtree(root / "whole")
    return fs.calls


def live_twice(root, fs, new_life, first_life, second_life, look, *, states, seed):
    """A first life that ends by `fs`, a second one, and `look(life, state)` after power cuts in that one."""
    root.mkdir()
    record = RecordingFs(root, fs)
    life = new_life(record)
    with contextlib.suppress(Killed, StorageError):
        first_life(life)
    life.leave()
    fs.heal()
    begin = record.steps
    second_life(life)
    for state in record.crash_states(limit=states, seed=seed, shuffled=True, after=begin):
        try:
            look(life, state)
        except Exception as error:
            error.add_note(state.story())
            raise
    life.leave()
    shutil.rmtree(root)


def every_end(root, how, new_life, first_life, second_life, look, *, begin=0, step):
    """`live_twice` for each `step`th call of the first life from `begin` on: it fails once, or is the last one. All of
    them in a torture."""
    calls = calls_of(root, new_life, first_life)
    step, states = (1, 60) if TORTURE else (step, 5)
    for k in range(begin % step, len(calls), step):
        fs = Kill(k) if how == "killed" else FailingFs(OsFileSystem(), fail_at=k, error=errno.EIO, once=True)
        try:
            live_twice(root / f"{k}", fs, new_life, first_life, second_life, look, states=states, seed=k)
        except Exception as error:
            error.add_note(f"{how} at call {k}: {calls[k]}")
            raise
