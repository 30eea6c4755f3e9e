"""The descriptors that this process holds, and logs and ledgers that give theirs back (segment.growing_files).

Linux alone lists descriptors in /proc.
"""
import errno
import os

from seglog.fs.files import OsFile
from seglog.segment.growing_files import GROWING_FILES


def descriptors_of(prefix):
    """How many there are of files whose path begins with `prefix`.

    Another thread may close one meanwhile: such a one does not count.
    """
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    count = 0
    for link in links:
        try:
            count += os.readlink(link).startswith(str(prefix))
        except FileNotFoundError:
            continue
    return count


def rest():
    """Each log and ledger that may gives its descriptors back."""
    GROWING_FILES.leave(0)


def rest_while_syncs_fail(monkeypatch, number=errno.EIO):
    """Giving a file back syncs it first. Here, each of these syncs fails with this errno."""
    with monkeypatch.context() as failing:
        failing.setattr(OsFile, "sync_data", lambda file: file._refuse_sync(number))
        rest()
