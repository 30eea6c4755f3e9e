"""What stores that are reached over a network have in common: files come to this machine, and results go back.

A task copies a segment into a directory of its own, converts it there, and sends the result on: what it needs here is
room for one segment twice, and memory for a piece of it.
"""
import ipaddress
import logging
import os
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from seglog.errors import ProofMismatchError, SeglogError, StorageError
from seglog.format import names
from seglog.format.foreign_names import Shape, judged
from seglog.fs.files import OsFileSystem, WritableFile
from seglog.fs.scratch import scratch_directory
from seglog.stores.store import Item, Result, Store

_LOG = logging.getLogger(__name__)

PIECE_BYTES = 8 << 20
# A file that is read whole: the plan of a partition of a million segments has about 80 MB.
READ_BYTES_MAX = 512 << 20
_OTHER_SIZE = "run again when it is at rest; else convert again, or go back to the version of before"
# A request takes tens of milliseconds, most of them spent waiting.
_AT_A_TIME = 16


class RemoteStore(Store):
    """`scratch`: where copies lie meanwhile; by default where Spark has its own, or the system's place for such."""

    def __init__(self, scratch: str | None) -> None:
        self._scratch = scratch

    @abstractmethod
    def pieces(self, path: str) -> Iterator[bytes]:
        """A file in pieces of at most PIECE_BYTES. Raises StorageError, with ENOENT if there is none."""

    @abstractmethod
    def upload(self, file: Path, path: str) -> None:
        """Let the file at `path` hold the bytes of a file on this machine; a reader sees all of them or none."""

    @abstractmethod
    def check(self, path: str) -> None:
        """Raises StorageError where the store cannot be reached, or does not let us in."""

    def copy_to(self, path: str, size_bytes: int, copy: WritableFile) -> None:
        """Append the file at `path`, which has `size_bytes`, to one on this machine. Not synced.

        No byte is written behind that size: whoever sends more would fill the disk. Raises ProofMismatchError for any
        other number of bytes, StorageError.
        """
        came = 0
        for piece in self.pieces(path):
            came += len(piece)
            if came > size_bytes:
                raise ProofMismatchError(
                    f"more than the {size_bytes} bytes come that it is said to have", file=path, hint=_OTHER_SIZE
                )
            copy.append(piece)
        if came != size_bytes:
            raise ProofMismatchError(f"{came} bytes came where {size_bytes} were written", file=path, hint=_OTHER_SIZE)

    @contextmanager
    def local(self, directory: str, name: str, size_bytes: int) -> Iterator[Path]:
        with self._here() as scratch:
            path = scratch / judged(name, Shape.FILE, directory)
            with OsFileSystem().create(path) as copy:
                self.copy_to(f"{directory}/{name}", size_bytes, copy)
            beside = path.with_suffix(names.TRANSACTION_INDEX_SUFFIX).name
            index = self.read(f"{directory}/{beside}")
            if index is not None:
                with OsFileSystem().create(scratch / beside) as copy:
                    copy.append(index)
            with told_of(directory, scratch):
                yield path

    @contextmanager
    def attempt(self, workplace: str) -> Iterator[Path]:
        with self._here() as scratch:
            yield scratch

    def take(self, attempt: Path, names: Iterable[str], into: str) -> None:
        for name in names:
            self.upload(attempt / name, f"{into}/{name}")

    def each(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        pool, waiting = ThreadPoolExecutor(_AT_A_TIME), deque[Future[Result]]()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > _AT_A_TIME:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def sync(self, path: str) -> None:
        """Nothing: what the server has answered for stays."""

    def _whole(self, path: str) -> bytes:
        """A small file whole. Raises StorageError, with ENOENT if there is none."""
        pieces, left = [], READ_BYTES_MAX
        for piece in self.pieces(path):
            left -= len(piece)
            if left < 0:
                raise StorageError(
                    f"more than {READ_BYTES_MAX} bytes come, of a file that has to be read whole", file=path,
                    hint="look at what lies there: no file of this name is so large",
                )
            pieces.append(piece)
        return b"".join(pieces)

    def _here(self) -> AbstractContextManager[Path]:
        # Spark removes its own directories when the application ends, also after a worker that was killed.
        of_spark = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
        return scratch_directory(self._scratch or of_spark)


@contextmanager
def told_of(path: str, copy: Path) -> Iterator[None]:
    """Within it, an error of a file in the directory `copy` names the file at `path` of which that is a copy."""
    try:
        yield
    except SeglogError as error:
        if error.file is not None and error.file.startswith(f"{copy}/"):
            error.file = path + error.file.removeprefix(str(copy))
        raise


def warn_of_plain_http(host: str, instead: str) -> None:
    """Unless the host is this machine: whoever is on the way reads all of it, and may answer in the server's place."""
    if not _is_loopback(host):
        _LOG.warning("plain HTTP to %s: anyone on the network path can read and change the data; use %s", host, instead)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
