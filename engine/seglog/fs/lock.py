"""Locks between a broker and seglog, and between writers of seglog.

Kafka holds `.lock` in each of its log dirs by FileChannel.tryLock (org.apache.kafka.server.util.FileLock): a POSIX
record lock, which only fcntl's F_SETLK sees; flock(2) does not.

    lock_log_dir(dir)            exclusive: nothing else changes anything in it. Offline tools.
    lock_log_dir(dir, SHARED)    several seglog writers, each with its own partition; no broker.
    lock_partition(dir)          exclusive, on the partition's `.seglog.lock`: its one writer. By a lock that needs no
                                 descriptor, if the system has such (fs.kept_lock).
    lock_file(path, mode)        for anything else, such as a cursor (log.log_cursor).
    turns(dir).run(section)      on the log dir's `.seglog.lock`, for short times: whose turn it is to change a file
                                 that all writers of the log dir share.
    turns(dir).claim(work)       on another byte of it, for long: one restore at a time, beside turns and writers.

Record locks belong to the process, not to the descriptor, which has two consequences. Closing *any* descriptor of the
file drops the lock: so each lock file is open at most once in a process, in the one registry here, and no other code
may open one, not even for reading. And they exclude nothing within a process: so the registry counts the holders
itself. A child after fork holds none of its parent's locks; its handles raise ForkedHandleError.

No lock stays taken after an interrupt. All that takes or releases one is shielded (_kernels.shield), so it is done
completely or not at all. If an interrupt comes just behind that, before the caller has stored its handle, nobody has
the handle: a handle that is garbage-collected releases what it holds.

Lock files are never removed. Otherwise, between one process's open and lock, another could remove the file, and a third
create and lock a new one: two holders. seglog could check again after locking; a broker does not. So an empty `.lock`
stays behind, as Kafka leaves its own. A holder detects by the inode that its lock file was removed (`Lock.check_file`).
A lock file that is a symbolic link is refused: a note would be written elsewhere.

Only writers create a lock file. `holder` and `is_locked` neither create one nor write to it.
"""
import enum
import errno
import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from seglog._kernels.shield import shielded
from seglog._kernels.unclosed import Unclosed
from seglog._kernels.write_gate import CallLock
from seglog.errors import ForkedHandleError, LogClosedError, LogLockedError, StorageError
from seglog.fs import kept_lock
from seglog.fs.files import AnyPath, FileSystem, WritableFile
from seglog.fs.kept_lock import NOTE_BYTES, KeptLock, flock, noted_process, try_lock
from seglog.fs.refusals import refusals, storage_error
from seglog.named_tuple import NamedTuple

LOG_DIR_LOCK = ".lock"                  # LogManager.LOCK_FILE_NAME
PARTITION_LOCK = ".seglog.lock"         # seglog's; a broker's loader ignores the name
TURNS_LOCK = ".seglog.lock"             # the same name in a log dir, where a broker looks at directories only

_TURN_WAIT_S = 60.0                     # a turn takes a few syncs; after this, its holder is stopped or the disk dead
_TURN_RETRY_S = 0.001
_TURN_BYTE, _PRESENCE_BYTE, _CLAIM_BYTE = 0, 1, 2      # of the file of turns, which is empty
_HINT_BROKER = (
    "stop the broker, and run the same command again; what only reads works beside it: `seglog ls`, `verify`, `dump`, "
    "and seglog.open_partition"
)
_HINT_ELSEWHERE = (
    "stop the broker or the writer, which may be in a container or on another machine, and run the same command again"
)
Result = TypeVar("Result")
HINT_SELF = "this process has it open already: pass that object around, or close it first"


class LockMode(enum.IntEnum):
    SHARED = fcntl.LOCK_SH
    EXCLUSIVE = fcntl.LOCK_EX


SHARED, EXCLUSIVE = LockMode.SHARED, LockMode.EXCLUSIVE


class Holder(NamedTuple):
    """The holder of a lock: its process id, None if the system does not tell it, and its name, if known."""

    pid: int | None
    name: str = ""

    @property
    def hint(self) -> str | None:
        """What to do about it, for a LogLockedError; None for that of the class."""
        if self.name == "java":
            return _HINT_BROKER
        return _HINT_ELSEWHERE if self.pid is None and not self.name else None

    def __str__(self) -> str:
        if self.pid is None:
            return self.name or "another process"
        return f"process {self.pid} ({self.name})" if self.name else f"process {self.pid}"


class Lock(Unclosed):
    """A lock that is held until release(). Made by lock_log_dir and lock_partition.

    note            what was written to its file, for this acquisition alone; None if nothing was
    found_note      what was there before: the note of the previous holder
    """

    def __init__(self, path: str, mode: LockMode, entry: "_Entry") -> None:
        self.path = path
        self.mode = mode
        self._entry: _Entry | None = entry
        self._pid = os.getpid()
        self.note = entry.note
        self.found_note = entry.found_note
        self._is_unclosed = True

    @property
    def held(self) -> bool:
        """Whether it is held, and by this process."""
        return self._entry is not None and self._pid == os.getpid()

    def check(self) -> None:
        """Call before each change. Raises ForkedHandleError in a child of the holder, LogClosedError once released."""
        if self._pid != os.getpid():
            raise ForkedHandleError(f"the lock belongs to process {self._pid}, which forked this one", file=self.path)
        if self._entry is None:
            raise LogClosedError("it was closed, and its lock released", file=self.path)

    def check_file(self) -> None:
        """As check(), and check that the lock file is still the one that was locked: before steps that cost a sync.

        If the file was removed, another writer can create and lock a new one. Raises StorageError then.
        """
        self.check()
        entry = self._entry
        if entry is not None and _identity(self.path) != entry.identity:
            raise StorageError(
                "the lock file was removed or replaced while we held it: another writer may be active", file=self.path,
                hint="close this log, find out what removes lock files, and open it again, which recovers it",
            )

    def release(self) -> None:
        """Release the lock. Idempotent; does nothing in a child process."""
        if self._entry is not None:
            shielded(self._release)

    def _release(self) -> None:
        entry, self._entry = self._entry, None
        self._is_unclosed = False
        if entry is not None and self._pid == os.getpid():
            _REGISTRY.release(entry)

    def _collected(self) -> None:
        entry = self._entry
        if entry is not None and os is not None and self._pid == os.getpid():
            _REGISTRY.drop(partial(_REGISTRY.let_go, entry))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Turns(Unclosed):
    """`run` takes one turn; it waits while another handle, in this process or another, has its turn. Made by turns().

    A handle that has joined is present until close() or the end of its process, even between turns: so a newcomer can
    tell whether some handle was present all the time.
    """

    def __init__(self, path: str, entry: "_TurnsEntry") -> None:
        self.path = path
        self._entry: _TurnsEntry | None = entry
        self._pid = os.getpid()
        self._present = False
        self._claims = False
        self._is_unclosed = True

    def claim(self, what: str) -> None:
        """Until close(), be the only handle with a claim; turns go on. Raises LogLockedError, "another `what`": in this
        process or another one."""
        shielded(self._claim, what)

    def _claim(self, what: str) -> None:
        _REGISTRY.claim(self._mine(), what)
        self._claims = True

    def join(self) -> bool:
        """During a turn: be present until close(). True if no handle was present, in this process or another."""
        return shielded(self._join)

    def _join(self) -> bool:
        entry = self._mine()
        self._present = True
        return _REGISTRY.join(entry)

    def _mine(self) -> "_TurnsEntry":
        if self._pid != os.getpid():
            raise ForkedHandleError(f"the lock belongs to process {self._pid}, which forked this one", file=self.path)
        if self._entry is None:
            raise LogClosedError("it was closed, and its lock released", file=self.path)
        return self._entry

    def run(self, section: Callable[..., Result], *args: Any) -> Result:
        """Call `section(*args)` in a turn; no interrupt comes from the begin of the turn to its end.

        Raises LogLockedError if another process does not end its turn within a minute, ForkedHandleError in a child.
        """
        return shielded(self._run, section, args)

    def _run(self, section: Callable[..., Result], args: tuple[Any, ...]) -> Result:
        entry = self._mine()
        return entry.mutex.run(self._take_turn, entry, section, args)

    def _take_turn(self, entry: "_TurnsEntry", section: Callable[..., Result], args: tuple[Any, ...]) -> Result:
        deadline = time.monotonic() + _TURN_WAIT_S
        while True:
            try:
                _lock(entry.file.fileno(), self.path, EXCLUSIVE, _TURN_BYTE)
                break
            except LogLockedError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_TURN_RETRY_S)
        try:
            return section(*args)
        finally:
            with refusals("unlock", self.path):
                fcntl.lockf(entry.file.fileno(), fcntl.LOCK_UN, 1, _TURN_BYTE)

    def close(self) -> None:
        """End the use of this handle. Idempotent; may be called in a child process, but not during a turn."""
        if self._entry is not None:
            shielded(self._close)

    def _close(self) -> None:
        entry, self._entry = self._entry, None
        self._is_unclosed = False
        if entry is not None and self._pid == os.getpid():
            _REGISTRY.leave(entry, self._present, self._claims)

    def _collected(self) -> None:
        entry = self._entry
        if entry is not None and os is not None and self._pid == os.getpid():
            _REGISTRY.drop(partial(_REGISTRY.let_go_turns, entry, self._present, self._claims))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def lock_log_dir(fs: FileSystem, log_dir: AnyPath, mode: LockMode = EXCLUSIVE) -> Lock:
    """Lock a log dir (the directory above a partition, whatever else is in it) against brokers and seglog writers.

    Raises LogLockedError if another process, or other code in this one, holds it in a mode that conflicts with `mode`;
    StorageError if the lock file cannot be created, opened or locked.
    """
    return _REGISTRY.acquire(fs, os.path.join(os.path.abspath(log_dir), LOG_DIR_LOCK), mode)


def lock_partition(fs: FileSystem, partition_dir: AnyPath) -> Lock:
    """Lock one partition exclusively against other seglog writers; the file names the process and the host.

    A number follows that no other acquisition has: so a process that locks it again can tell whether another one locked
    it in between. Brokers ignore this lock: hold the log dir's lock, shared, as well. Raises what lock_log_dir raises.
    """
    path = os.path.join(os.path.abspath(partition_dir), PARTITION_LOCK)
    note = f"{os.getpid()} {kept_lock.host_name()}\n{os.urandom(8).hex()}\n"
    return _REGISTRY.acquire(fs, path, EXCLUSIVE, note=note, is_kept=True)


def lock_file(fs: FileSystem, path: AnyPath, mode: LockMode) -> Lock:
    """Lock a separate file for any other purpose; it is created if missing. Raises what lock_log_dir raises."""
    note = f"{os.getpid()} {kept_lock.host_name()}\n" if mode is EXCLUSIVE else ""
    return _REGISTRY.acquire(fs, os.path.abspath(path), mode, note=note)


def turns(fs: FileSystem, log_dir: AnyPath) -> Turns:
    """A handle for changing the files of a log dir that several writers share, one after the other.

    It does not exclude brokers or other code by itself: hold the log dir's lock, shared, as well.
    """
    return _REGISTRY.take_part(fs, os.path.join(os.path.abspath(log_dir), TURNS_LOCK))


def holder(log_dir: AnyPath) -> Holder | None:
    """The holder of a log dir's lock, in either mode: this process, another one, or None.

    Only reads: works on read-only media, creates no file, and drops no lock of this process.
    """
    return _REGISTRY.holder(os.path.join(os.path.abspath(log_dir), LOG_DIR_LOCK))


def writer_of(partition_dir: AnyPath) -> Holder | None:
    """The holder of a partition's lock: this process, another one, or None. Only reads, as `holder` does."""
    return _REGISTRY.holder(os.path.join(os.path.abspath(partition_dir), PARTITION_LOCK))


def is_locked(log_dir: AnyPath) -> bool:
    """Whether the lock of a log dir is held, as by a running broker or a seglog writer."""
    return holder(log_dir) is not None


class _Entry:
    """One lock file that this process has open, and how it is held."""

    __slots__ = ("count", "file", "found_note", "identity", "mode", "note")

    def __init__(
        self, identity: tuple[int, int], file: WritableFile | KeptLock, mode: LockMode, *,
        note: bytes | None, found_note: bytes,
    ) -> None:
        self.identity = identity    # device and inode: one file may have many paths
        self.file = file            # closing it drops the lock
        self.mode = mode
        self.count = 1              # handles; more than one only if SHARED
        self.note = note
        self.found_note = found_note


class _TurnsEntry:
    """A lock file of turns. It is open while any handle exists, and locked only during a turn."""

    __slots__ = ("count", "file", "identity", "is_claimed", "mutex", "present")

    def __init__(self, identity: tuple[int, int], file: WritableFile) -> None:
        self.identity = identity
        self.file = file
        self.count = 1              # handles
        self.present = 0            # handles that have joined
        self.is_claimed = False     # by one of the handles
        # Orders turns within this process; guards the record lock, which does not exclude threads.
        self.mutex = CallLock()


class _Registry:
    """Every lock file that this process has open.

    `_mutex` guards `_entries`, `_turns` and every open and close of a lock file: a close during an acquire of the same
    file would drop the new lock. It is held across fork, so that a child finds the registry consistent; taken in a
    shielded call only, and released in it.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._entries: dict[tuple[int, int], _Entry] = {}
        self._turns: dict[tuple[int, int], _TurnsEntry] = {}
        self._dropped: deque[Callable[[], None]] = deque()
        os.register_at_fork(
            before=self._mutex.acquire, after_in_parent=self._mutex.release, after_in_child=self._forget
        )
        os.register_at_fork(after_in_child=self._mutex.release)     # whatever becomes of the one before

    def _alone(self, section: Callable[..., Result], *args: Any) -> Result:
        """Call `section(*args)` shielded, with the mutex."""
        return shielded(self._with_mutex, section, args)

    def _with_mutex(self, section: Callable[..., Result], args: tuple[Any, ...]) -> Result:
        with self._mutex:
            self._settle()
            return section(*args)

    def acquire(self, fs: FileSystem, path: str, mode: LockMode, *, note: str = "", is_kept: bool = False) -> Lock:
        """`is_kept`: without a descriptor, if the system supports that (fs.kept_lock)."""
        return self._alone(self._acquire, fs, path, mode, note, is_kept)

    def _acquire(self, fs: FileSystem, path: str, mode: LockMode, note: str, is_kept: bool) -> Lock:
        while True:
            identity = _identity(path)
            if identity is not None and identity in self._entries:
                return self._join(self._entries[identity], path, mode)
            entry = self._open_kept(fs, path, note) if is_kept else self._open(fs, path, mode, note)
            if entry is not None:
                self._entries[entry.identity] = entry
                return Lock(path, mode, entry)

    def release(self, entry: _Entry) -> None:
        self._alone(self.let_go, entry)

    def let_go(self, entry: _Entry) -> None:
        """Release it, with the mutex."""
        entry.count -= 1
        if entry.count == 0:
            del self._entries[entry.identity]
            entry.file.close()      # drops the lock

    def drop(self, release: Callable[[], None]) -> None:
        """Call `release` with the mutex: now if it is free, else when it is next taken. For the garbage collector,
        which may run in the thread that has it."""
        self._dropped.append(release)
        shielded(self._settle_at_once)

    def _settle_at_once(self) -> None:
        if self._mutex.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self._mutex.release()

    def _settle(self) -> None:
        while self._dropped:
            self._dropped.popleft()()

    def take_part(self, fs: FileSystem, path: str) -> Turns:
        return self._alone(self._take_part, fs, path)

    def _take_part(self, fs: FileSystem, path: str) -> Turns:
        while True:
            identity = _identity(path)
            if identity is not None and identity in self._turns:
                self._turns[identity].count += 1
                return Turns(path, self._turns[identity])
            file = _open_or_create(fs, path)
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            if _identity(path) == identity:
                self._turns[identity] = _TurnsEntry(identity, file)
                return Turns(path, self._turns[identity])
            file.close()        # the name belongs to another file by now: try again

    def join(self, entry: _TurnsEntry) -> bool:
        return self._alone(self._be_present, entry)

    def _be_present(self, entry: _TurnsEntry) -> bool:
        entry.present += 1
        if entry.present > 1:
            return False
        fd = entry.file.fileno()
        try:
            _lock(fd, entry.file.path, EXCLUSIVE, _PRESENCE_BYTE)
            was_alone = True
        except LogLockedError:
            was_alone = False
        _lock(fd, entry.file.path, SHARED, _PRESENCE_BYTE)
        return was_alone

    def claim(self, entry: _TurnsEntry, what: str) -> None:
        self._alone(self._take_claim, entry, what)

    def _take_claim(self, entry: _TurnsEntry, what: str) -> None:
        if entry.is_claimed:
            raise LogLockedError(f"another {what} is under way, in this process", file=entry.file.path)
        fd = entry.file.fileno()
        try:
            _lock(fd, entry.file.path, EXCLUSIVE, _CLAIM_BYTE)
        except LogLockedError as error:
            pid = flock(fd, fcntl.F_GETLK, fcntl.F_WRLCK, _CLAIM_BYTE, 1)["l_pid"]
            who = Holder(pid, _process_name(pid)) if pid > 0 else Holder(None)
            raise LogLockedError(
                f"another {what} is under way, by {who}", file=entry.file.path, hint="wait until it has ended"
            ) from error
        entry.is_claimed = True

    def leave(self, entry: _TurnsEntry, present: bool, claims: bool) -> None:
        self._alone(self.let_go_turns, entry, present, claims)

    def let_go_turns(self, entry: _TurnsEntry, present: bool, claims: bool) -> None:
        """End the use of one handle, with the mutex."""
        if claims:
            with refusals("unlock", entry.file.path):
                fcntl.lockf(entry.file.fileno(), fcntl.LOCK_UN, 1, _CLAIM_BYTE)
            entry.is_claimed = False
        entry.present -= present
        if entry.present == 0:
            with refusals("unlock", entry.file.path):
                fcntl.lockf(entry.file.fileno(), fcntl.LOCK_UN, 1, _PRESENCE_BYTE)
        entry.count -= 1
        if entry.count == 0:
            del self._turns[entry.identity]
            entry.file.close()

    def holder(self, path: str) -> Holder | None:
        return self._alone(self._find_holder, path)

    def _find_holder(self, path: str) -> Holder | None:
        identity = _identity(path)
        if identity is None:
            return None
        if identity in self._entries:
            return Holder(os.getpid(), "this process")
        with refusals("open", path):
            # O_NONBLOCK: the name of a lock file may belong to a pipe.
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                return _holder_of(fd, path)
            finally:
                os.close(fd)

    def _join(self, entry: _Entry, path: str, mode: LockMode) -> Lock:
        """Add a holder of a lock that this process has. Record locks would allow it whatever the modes."""
        if EXCLUSIVE in (entry.mode, mode):
            words = "shared" if entry.mode is SHARED else "exclusively"
            raise LogLockedError(f"this process already holds the lock, {words}", file=path, hint=HINT_SELF)
        entry.count += 1
        return Lock(path, mode, entry)

    def _open(self, fs: FileSystem, path: str, mode: LockMode, note: str) -> _Entry | None:
        """Open the lock file and lock it. None if the name belongs to another file by now: try again."""
        file = _open_or_create(fs, path)
        try:
            _lock(file.fileno(), path, mode)
            entry = _noted_entry(file, mode, note)
            if _identity(path) == entry.identity:
                return entry
        except BaseException:
            file.close()
            raise
        file.close()
        return None

    def _open_kept(self, fs: FileSystem, path: str, note: str) -> _Entry | None:
        """The same with a lock that needs no descriptor; with a record lock if the system has no such locks."""
        file = _open_or_create(fs, path)
        kept: KeptLock | None = None
        try:
            try:
                with refusals("lock", path):
                    kept = try_lock(file)
            except StorageError as error:
                if error.errno == errno.EAGAIN:
                    raise _locked_error(file.fileno(), path) from None
                raise
            if kept is None:
                file.close()
                return self._open(fs, path, EXCLUSIVE, note)
            entry = _noted_entry(file, EXCLUSIVE, note)
            if _identity(path) != entry.identity:
                kept.close()
                return None
            entry.file = kept
            if kept.settle():
                return entry
        except BaseException:
            (kept or file).close()
            raise
        again = self._open(fs, path, EXCLUSIVE, note)
        # Between the two locks it was free. If our note is still there, the note that we found was the last holder's.
        if again is not None and again.found_note == entry.note:
            again.found_note = entry.found_note
        return again

    def _forget(self) -> None:
        """In a child after fork: close its copies; the locks stay its parent's."""
        for held in (self._entries, self._turns):
            for entry in held.values():
                entry.file.close()
            held.clear()
        self._dropped.clear()


_REGISTRY = _Registry()


def _identity(path: str) -> tuple[int, int] | None:
    """Device and inode of a file, without opening it; None if there is none."""
    try:
        # Do not follow a link: opening one is refused.
        status = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(error, "check the lock file", path) from error
    return status.st_dev, status.st_ino


def _open_or_create(fs: FileSystem, path: str) -> WritableFile:
    while True:
        try:
            return fs.open_write(path)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
        try:
            return fs.create(path)
        except StorageError as error:
            if error.errno != errno.EEXIST:     # otherwise another process was quicker: open its file
                raise


def _lock(fd: int, path: str, mode: LockMode, byte: int | None = None) -> None:
    """Lock a file, or one byte of it. Raises LogLockedError, which names the holder."""
    try:
        # Length 0: to the end, however far it moves.
        fcntl.lockf(fd, mode | fcntl.LOCK_NB, 0 if byte is None else 1, byte or 0)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise storage_error(error, "lock", path) from error
        raise _locked_error(fd, path) from None


def _locked_error(fd: int, path: str) -> LogLockedError:
    who = _holder_of(fd, path) or Holder(None)
    return LogLockedError(f"locked by {who}", file=path, hint=who.hint)


def _noted_entry(file: WritableFile, mode: LockMode, note: str) -> _Entry:
    """The entry of a file that was just locked. Writes the note, unless the file has other hard links."""
    status = os.fstat(file.fileno())
    written, found = None, b""
    if note and status.st_nlink <= 1:
        found = os.pread(file.fileno(), NOTE_BYTES, 0)
        written = note.encode().ljust(NOTE_BYTES)
        file.write_at(0, written)
    return _Entry((status.st_dev, status.st_ino), file, mode, note=written, found_note=found)


def _holder_of(fd: int, path: str) -> Holder | None:
    """The other process that prevents an exclusive lock, or None. A descriptor open for reading is enough."""
    with refusals("check the lock", path):
        found = flock(fd, fcntl.F_GETLK, fcntl.F_WRLCK)
        if found["l_type"] == fcntl.F_UNLCK:
            return None
        # 0 or -1: a process in another pid namespace or on another machine, or a lock of another kind.
        if found["l_pid"] > 0:
            return Holder(found["l_pid"], _process_name(found["l_pid"]))
        return Holder(None, _noted(os.pread(fd, NOTE_BYTES, 0)))


def _noted(note: bytes) -> str:
    """The note of a seglog writer, in words; empty for Kafka's lock files, which are empty."""
    pid, host = noted_process(note)
    return "" if pid is None else f"process {pid} on {host}"


def _process_name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as comm:
            return comm.read().strip()
    except OSError:
        return ""       # no /proc, or the process has ended: only its id is known
