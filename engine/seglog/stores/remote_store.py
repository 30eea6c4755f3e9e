"""What stores that are reached over a network have in common: files come to this machine, and results go back.

A task copies a segment into a directory of its own, converts it there, and sends the result on: what it needs here is
room for one segment twice, and memory for a piece of it.
"""
import os
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from seglog.errors import SeglogError
from seglog.format import names
from seglog.fs.files import OsFileSystem
from seglog.fs.scratch import scratch_directory
from seglog.stores.store import Item, Result, Store

PIECE_BYTES = 8 << 20
# A request takes tens of milliseconds, most of them spent waiting.
_AT_A_TIME = 16


class RemoteStore(Store):
    """`scratch`: where copies lie meanwhile; by default where Spark has its own, or the system's place for such."""

    def __init__(self, scratch: str | None) -> None:
        self._scratch = scratch

    @abstractmethod
    def pieces(self, path: str) -> Iterator[bytes]:
        """A file in pieces of at most PIECE_BYTES. Raises StorageError, with ENOENT where there is none."""

    @abstractmethod
    def upload(self, file: Path, path: str) -> None:
        """Let the file at `path` hold the bytes of a file on this machine; a reader sees all of them or none."""

    @abstractmethod
    def check(self, path: str) -> None:
        """Raises StorageError where the store cannot be reached, or does not let us in."""

    def download(self, path: str, file: Path) -> int:
        """Copy the file at `path` to this machine, where no file of that name is; its size. Not synced."""
        with OsFileSystem().create(file) as copy:
            for piece in self.pieces(path):
                copy.append(piece)
            return copy.position

    @contextmanager
    def local(self, directory: str, name: str) -> Iterator[Path]:
        with self._here() as scratch:
            path = scratch / name
            self.download(f"{directory}/{name}", path)
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
