"""Looks at files that somebody else may be changing: a finding stands if every look tells it.

A broker or a writer of ours may append, roll, delete and compact while `verify` reads. Each file is read at a moment of
its own, so that one look may see the old state of one file and the new state of another: an index entry whose batch
was written after the .log was mapped, an index whose .log has been renamed to `.deleted` in between. If a look finds
something and the files moved under it, another look follows, and what only one of them tells was never there.
"""
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from seglog.format.dialect import dialect_of
from seglog.verification.findings import Finding

LOOKS = 4
PAUSE_S = 0.1           # longer than a write, a rename, or the delayed write of a checkpoint takes
GLANCE_S = 0.02         # so long a directory is watched, once, before it is taken to be quiet

# What a file is known by: its inode and size; None if there is none.
Identity = Sequence[tuple[int, int] | None]


def identity_of_segment(log: Path) -> Identity:
    """Of a segment's .log and its index files."""
    return [_identity(log), *(_identity(log.with_suffix(suffix)) for suffix in dialect_of(log).indexes)]


def size_of(path: Path) -> int:
    """In bytes; 0 where the file cannot be looked at, or was removed."""
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
    """A partition directory that may be changing. `live`: somebody holds the log dir's lock."""

    def __init__(self, directory: Path, *, live: bool) -> None:
        self._directory = directory
        self._is_quiet: bool | None = None
        self._moved = False
        self._at_first = self.identity()
        self.live = live

    def standing_findings(
        self, look: Callable[[], Iterable[Finding]], identity: Callable[[], Identity], *, is_growing: bool = False
    ) -> list[Finding]:
        """What every look tells. No second one is taken if nothing was found, or if nothing moves here.

        `is_growing`: it is what the holder of the lock writes to, and may be in the middle of a change though its size
        is as before.
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
        """Has anything here changed so far? Asked for the first time, watches the directory for a moment."""
        if self._moved:
            return True
        if self._is_quiet is None:
            before = self.identity()
            time.sleep(GLANCE_S)
            self._is_quiet = self.identity() == before
            self._moved = not self._is_quiet
        return not self._is_quiet

    def has_moved(self) -> bool:
        """Has anything here changed since this was made?"""
        return self._moved or self.identity() != self._at_first

    def identity(self) -> Identity:
        """Of all files of the directory; empty where it is gone."""
        try:
            with os.scandir(self._directory) as entries:
                return [_identity(path) for path in sorted(entry.path for entry in entries)]
        except FileNotFoundError:
            return ()


def _what(finding: Finding) -> tuple[object, ...]:
    return finding.code, finding.file, finding.position, finding.offset
