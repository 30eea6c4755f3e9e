"""Who changes a store that has no locks: an object store, HDFS.

A run writes `runs/<its token>.json`, then lists all runs: if it sees another one, it withdraws. Of two that come at the
same time at least one sees the other, in a store whose listings show what was put (S3, Google Cloud Storage, HDFS); no
conditional put is needed. A run renews its file each minute. The file of a run that died is removed at once on the same
machine, elsewhere after half an hour: clocks must agree that far. A run whose file was removed publishes nothing.
"""
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Self

from seglog._kernels.write_gate import Bell
from seglog.errors import CorruptBackupError, LogLockedError, SeglogError, StorageError
from seglog.format.checked_json import format_json, parse_json
from seglog.fs.live_file import BOOT_ID
from seglog.logger import Logger
from seglog.stores.store import Store

_LOG = Logger(__name__)

FORMAT, VERSION = "seglog-backup-run", 1
RENEW_S = 60.0
STALE_MS = 30 * 60_000

# The marks of runs of this process that have ended, and could not be removed: the process lives on, its runs do not.
_left_over: set[str] = set()


@dataclass(frozen=True, slots=True)
class RunMark:
    """The file of a run. `boot_id`: of the system's start, by which a process id is known to be of this machine."""

    host: str
    boot_id: str
    pid: int
    renewed_at_ms: int

    def to_bytes(self) -> bytes:
        return format_json(
            FORMAT, VERSION, host=self.host, boot_id=self.boot_id, pid=self.pid, renewed_at_ms=self.renewed_at_ms
        )

    @classmethod
    def parse(cls, raw: bytes, file: str) -> Self:
        """Raises CorruptBackupError, UnsupportedVersionError."""
        return parse_json(raw, FORMAT, VERSION, file, cls._of, CorruptBackupError)

    @classmethod
    def _of(cls, body: dict[str, Any]) -> Self:
        host, boot_id, pid, renewed_at_ms = body["host"], body["boot_id"], body["pid"], body["renewed_at_ms"]
        if not (isinstance(host, str) and isinstance(boot_id, str) and type(pid) is type(renewed_at_ms) is int):
            raise ValueError("a member has another type")
        return cls(host, boot_id, pid, renewed_at_ms)

    def is_dead(self, now_ms: int) -> bool:
        """Whether its process is known to be gone, or has not renewed it for long."""
        if any(BOOT_ID) and (self.host, self.boot_id) == (socket.gethostname(), BOOT_ID.hex()):
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                return True
            except (OSError, OverflowError):
                pass
        return now_ms - self.renewed_at_ms > STALE_MS


class StoreLease:
    """The mark of a run, while it lasts. Made by `leased`."""

    def __init__(self, store: Store, path: str) -> None:
        self._store = store
        self.path = path
        self._mark = RunMark(socket.gethostname(), BOOT_ID.hex(), os.getpid(), _now_ms())
        self._over = Bell()

    def write(self) -> None:
        self._mark = replace(self._mark, renewed_at_ms=_now_ms())
        self._store.write(self.path, self._mark.to_bytes())

    def check(self) -> None:
        """Raise StorageError unless the mark is there, and renewed: else another run may have taken over."""
        raw = self._store.read(self.path)
        if raw is None or RunMark.parse(raw, self.path).is_dead(_now_ms()):
            raise StorageError(
                "the mark of this run was removed, or is too old: another run may have begun", file=self.path,
                hint="nothing was published; run again, and check that this machine was not suspended",
            )

    def keep(self) -> None:
        """Renew the mark until `end`; in a thread of its own."""
        while not self._over.wait(RENEW_S):
            try:
                if self._store.read(self.path) is None:
                    return      # taken over: `check` says so
                self.write()
            except SeglogError as error:
                _LOG.warning("cannot renew the mark of this run: %s", error)

    def end(self) -> None:
        self._over.ring()


@contextmanager
def leased(store: Store, directory: str, remove: Callable[[str], None]) -> Iterator[StoreLease]:
    """Exclude other runs in this block. Raises LogLockedError if there is one, StorageError."""
    store.make_directory(directory)
    lease = StoreLease(store, f"{directory}/{secrets.token_hex(16)}.json")
    _refuse_others(store, directory, lease.path, remove)
    try:
        lease.write()
        _refuse_others(store, directory, lease.path, remove)
        keeper = threading.Thread(target=lease.keep, daemon=True, name="seglog-backup-run")
        keeper.start()
        try:
            yield lease
        finally:
            lease.end()
            keeper.join()
    finally:
        _left_over.add(lease.path)
        with suppress(SeglogError):     # otherwise the next run removes it
            _remove_left_over(lease.path, remove)


def _remove_left_over(path: str, remove: Callable[[str], None]) -> None:
    remove(path)
    _left_over.discard(path)


def _refuse_others(store: Store, directory: str, own: str, remove: Callable[[str], None]) -> None:
    for file in store.files(directory):
        path = f"{directory}/{file.name}"
        if path == own or not file.name.endswith(".json"):
            continue
        raw = store.read(path)
        if raw is None:
            continue        # it has ended
        if path in _left_over:
            _remove_left_over(path, remove)
            continue
        mark = RunMark.parse(raw, path)
        if mark.is_dead(_now_ms()):
            remove(path)
            continue
        raise LogLockedError(
            f"another run changes these backups: process {mark.pid} on {mark.host}", file=path,
            hint="wait until it has ended; if its machine is gone, for half an hour, or remove the file",
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
