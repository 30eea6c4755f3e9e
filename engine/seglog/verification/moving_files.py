"""Checks files that may be changing: a finding counts if every check reports it.

A broker or a seglog writer may append, roll, delete and compact while `verify` reads. Each file is read at a different
moment, so one check may see the old state of one file and the new state of another: an index entry whose batch was
written after the .log was mapped, an index whose .log has since been renamed to `.deleted`. If a check finds something
and the files changed meanwhile, another check follows, and findings that only one of them reports are dropped.
"""
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from seglog.format.dialect import dialect_of, text_beside
from seglog.verification.findings import Finding

LOOKS = 4
PAUSE_S = 0.1           # longer than a write, a rename, or the delayed write of a checkpoint takes
GLANCE_S = 0.02         # how long a directory is watched, once, before it counts as quiet

# The identity of a file: its inode and size; None if it does not exist.
Identity = Sequence[tuple[int, int] | None]


def identity_of_segment(log: Path) -> Identity:
    """Return the identity of a segment's .log and its index files."""
    path = os.fspath(log)
    return [_identity(path), *(_identity(text_beside(path, suffix)) for suffix in dialect_of(path).indexes)]


def size_of(path: Path) -> int:
    """Return the size in bytes; 0 if the file cannot be read, or was removed."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _identity(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size


class MovingFiles:
    """A partition directory that may be changing. `live`: another process holds the log dir's lock."""

    def __init__(self, directory: Path, *, live: bool) -> None:
        self._directory = directory
        self._is_quiet: bool | None = None
        self._moved = False
        self._at_first = self.identity()
        self.live = live

    def standing_findings(
        self, look: Callable[[], Iterable[Finding]], identity: Callable[[], Identity], *, is_growing: bool = False
    ) -> list[Finding]:
        """Return the findings of every check. There is no second one if nothing was found, or if nothing changes here.

        `is_growing`: the holder of the lock writes to it, and may be in the middle of a change even if its size is the
        same.
        """
        before = identity()
        found = list(look())
        moved = identity() != before
        for _ in range(LOOKS - 1):
            if not found or not (moved or (is_growing and self.live) or self._is_moving()):
                break
            time.sleep(PAUSE_S)
            before = identity()
            told = {_what(finding) for finding in look()}
            found = [finding for finding in found if _what(finding) in told]
            moved = identity() != before or moved
        self._moved |= moved
        return found

    def _is_moving(self) -> bool:
        """Whether anything here has changed so far. The first call watches the directory for a moment."""
        if self._moved:
            return True
        if self._is_quiet is None:
            before = self.identity()
            time.sleep(GLANCE_S)
            self._is_quiet = self.identity() == before
            self._moved = not self._is_quiet
        return not self._is_quiet

    def has_moved(self) -> bool:
        """Whether anything here has changed since this was created."""
        return self._moved or self.identity() != self._at_first

    def identity(self) -> Identity:
        """Return the identity of all files of the directory; empty if it is gone."""
        try:
            with os.scandir(self._directory) as entries:
                return [_identity(path) for path in sorted(entry.path for entry in entries)]
        except FileNotFoundError:
            return ()


def _what(finding: Finding) -> tuple[object, ...]:
    return finding.code, finding.file, finding.position, finding.offset
