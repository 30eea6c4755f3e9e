"""Locking a partition directory that may have several names: all code that writes to one uses this.

    /data/kafka/orders-0 -> /mnt/big/orders-0       a link in a log dir, to a directory elsewhere

A broker over /data/kafka, and a writer that was given the link, hold `/data/kafka/.lock`; a writer that was given the
other name holds `/mnt/big/.lock`. So a partition is in as many log dirs as it has names on the way from the link to the
directory, and code that changes it locks all of them.
"""
import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from seglog.errors import StorageError
from seglog.fs.files import AnyPath, FileSystem
from seglog.fs.lock import PARTITION_LOCK, SHARED, Holder, Lock, holder, lock_log_dir, lock_partition

_LINKS_MAX = 40         # MAXSYMLINKS of Linux
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS)


def names_of(partition: AnyPath) -> list[Path]:
    """The names of a partition directory, each in a log dir: the one given, then those that its links lead to.

    The log dirs are real directories; the last name is that of the directory itself.
    """
    found: list[Path] = []
    path = os.path.abspath(partition)
    for _ in range(_LINKS_MAX):
        log_dir, name = os.path.split(path)
        place = Path(os.path.realpath(log_dir), name)
        if place not in found:
            found.append(place)
        if not place.is_symlink():
            break
        path = os.path.normpath(os.path.join(place.parent, os.readlink(place)))
    return found


def holder_of(partition: AnyPath) -> tuple[Holder, Path] | None:
    """The holder of a log dir in which the partition has a name, and that log dir; None if none is held."""
    for name in names_of(partition):
        who = holder(name.parent)
        if who is not None:
            return who, name.parent
    return None


@contextmanager
def lock_alone(fs: FileSystem, partition: AnyPath) -> Iterator[None]:
    """Exclude every broker and writer from the partition, under all its names. Raises LogLockedError, StorageError."""
    with ExitStack() as locks:
        places = names_of(partition)
        for log_dir in dict.fromkeys(place.parent for place in places):     # a link may lead to a neighbour
            locks.enter_context(lock_log_dir(fs, log_dir))
        # A writer that came by another link holds this lock. Created only for a link: else the log dir's is enough.
        if len(places) > 1 or (places[-1] / PARTITION_LOCK).exists():
            locks.enter_context(lock_partition(fs, partition))
        yield


def lock_beside(fs: FileSystem, partition: AnyPath) -> list[Lock]:
    """For a writer that holds the log dir of the name it was given, shared: lock the log dirs of the other names, too.

    Without links there are none. A log dir that we cannot write to and that has no lock file is not a broker's. Raises
    LogLockedError, StorageError.
    """
    locks: list[Lock] = []
    if not os.path.islink(os.path.abspath(partition)):
        return locks
    try:
        for place in names_of(partition)[1:]:
            try:
                locks.append(lock_log_dir(fs, place.parent, SHARED))
            except StorageError as error:
                if error.errno not in _NOT_OURS:
                    raise
    except BaseException:
        for lock in locks:
            lock.release()
        raise
    return locks
