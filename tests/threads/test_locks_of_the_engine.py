"""Where the engine takes locks, an interrupt leaves none taken: ^C, or what PyThreadState_SetAsyncExc sends.

`with lock:` over a lock of C takes and releases it in one step of the interpreter (until Python 3.13). What threading
and queue write in Python, over a lock of their own, does not: an interrupt within leaves that lock taken, and every
other thread waits for it for ever. The engine has Bell, CallLock, QuickLock and LockCondition instead.
"""
import re
from pathlib import Path

import seglog

ENGINE = Path(seglog.__file__).parent
SOURCES = {path.relative_to(ENGINE).as_posix(): path.read_text() for path in sorted(ENGINE.rglob("*.py"))}
IN_PYTHON = re.compile(
    r"threading\.(?:Barrier|BoundedSemaphore|Condition|Event|Semaphore|Timer)\b|queue\.(?:Lifo|Priority)?Queue\b"
    r"|from threading import .*\b(?:Barrier|BoundedSemaphore|Condition|Event|Semaphore|Timer)\b"
    r"|from queue import .*\b(?:Lifo|Priority)?Queue\b"
)
# Where a lock is taken and released by two calls, and why an interrupt between them hangs nobody.
BY_TWO_CALLS = {
    "_public.py": "a lock that one call alone knows; it stops waiting every 0.2 s",
    "endpoint/workload.py": "a semaphore of asyncio: exceptions come to tasks at `await` alone",
    "frames/ahead.py": "locks of one iterator; the other threads look now and then whether it is over",
    "fs/lock.py": "within `shielded`; and the registry of locks, which shields itself",
}

# Why a thread may be lost if its starter is interrupted.
BY_THREADING = {
    "backups/store_lease.py": "the thread of a command; a run whose lease is not renewed ends",
    "log/open_dir.py": "a log dir is closed in a shield; the caller closes what no thread has taken",
    "endpoint/local_server.py": "seglog.serve waits until the thread listens, and gives up if it ends",
    "spark/cluster.py": "in Spark's driver, which waits in Java",
    "spark/start_errors.py": "copies what Spark prints",
    "upkeep/cleaner_thread.py": "the program starts it, and sees whether that was interrupted",
}


# Why a thread that was started without `shield.start_thread` hangs nobody.
BY_ITSELF = {"_public.py": "it imports what has `start_thread`; if it is lost, another one is started"}


def test_no_lock_is_one_that_is_taken_in_python():
    assert {path: found for path, text in SOURCES.items() if (found := IN_PYTHON.findall(text))} == {}


def test_locks_are_taken_by_with_or_within_a_shield():
    assert {path for path, text in SOURCES.items() if ".acquire(" in text} == BY_TWO_CALLS.keys()


def test_threads_are_started_so_that_an_interrupt_of_the_starter_does_not_end_them():
    assert {path for path, text in SOURCES.items() if "threading.Thread(" in text} == BY_THREADING.keys()
    assert {path for path, text in SOURCES.items() if "start_new_thread" in text} == BY_ITSELF.keys()
