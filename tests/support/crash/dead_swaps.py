"""Partition directories as a compaction leaves them that dies while its new segments take the place of the old ones."""
import contextlib
import errno
import itertools
import os
import shutil
import time

from seglog.errors import StorageError
from seglog.format import names
from seglog.fs.files import OsFileSystem
from seglog.log.log import Log
from seglog.upkeep.cleaner import clean
from support.faultfs import FailingFs

CONFIG = {"cleanup.policy": "compact", "segment.bytes": 3000, "index.interval.bytes": 200}


def fill(log):
    """Segments with old values of all keys, an aborted transaction among them, and a value that stays."""
    for n in range(150):
        if n == 70:
            with log.producer(7) as producer:
                producer.begin()
                producer.append_many([(b"key 3", b"never"), (b"once", b"never")])
                producer.abort()
        log.append(b"%d." % n + b"v" * 40, key=b"key %d" % (n % 11) if n % 5 else b"once %d" % n)
    return log


def dead_in_the_swap(path):
    """Directories as a cleaner leaves them that dies between two changes, from the first .swap to the last one."""
    fill(Log(path / "whole" / "orders-0", config=CONFIG, fsync="never")).close()
    for fail_at in itertools.count():
        directory = shutil.copytree(path / "whole", path / f"dead{fail_at}") / "orders-0"
        fs = FailingFs(OsFileSystem())
        log = Log(directory, config=CONFIG, fsync="never", fs=fs)
        fs.fail(len(fs.calls) + fail_at, errno.EIO)
        with contextlib.suppress(StorageError):
            clean(log)
        is_over = not fs.failed
        with contextlib.suppress(StorageError):
            log.close()
        if any(name.endswith(names.SWAP_SUFFIX) for name in os.listdir(directory)):
            quiet(directory)
            yield directory
        if is_over:
            return


def quiet(directory):
    """Nothing has changed there for a while: readers wait for a living writer."""
    long_ago = time.time() - 60
    os.utime(directory, (long_ago, long_ago))
