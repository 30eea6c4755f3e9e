"""The common part of stores reached over a network: files are copied to this machine, and results are sent back.

A task copies a segment into its own local directory, converts it there, and sends the result: it needs local space for
twice one segment, and memory for a piece of it.
"""
import ipaddress
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from seglog.errors import ProofMismatchError, SeglogError, StorageError
from seglog.format import names
from seglog.format.foreign_names import Shape, judged
from seglog.fs.files import OsFileSystem, WritableFile
from seglog.fs.scratch import scratch_directory
from seglog.logger import Logger
from seglog.stores.side_by_side import Item, Result, side_by_side
from seglog.stores.store import Store

_LOG = Logger(__name__)

PIECE_BYTES = 8 << 20
# The limit for a file that is read whole: the plan of a partition of a million segments has about 80 MB.
READ_BYTES_MAX = 512 << 20
_OTHER_SIZE = "run again when it no longer changes; otherwise convert again, or restore the previous version"
# A request takes tens of milliseconds, most of them spent waiting.
_AT_A_TIME = 16


class RemoteStore(Store):
    """`scratch`: the directory for local copies; by default Spark's local directory, or the system's temporary one."""

    def __init__(self, scratch: str | None) -> None:
        self._scratch = scratch

    @abstractmethod
    def pieces(self, path: str) -> Iterator[bytes]:
        """The bytes of a file, in pieces of at most PIECE_BYTES. Raises StorageError, with ENOENT if there is none."""

    @abstractmethod
    def upload(self, file: Path, path: str) -> None:
        """Store a file of this machine at `path`; readers see all of its bytes or none."""

    @abstractmethod
    def check(self, path: str) -> None:
        """Raises StorageError if the store cannot be reached, or denies access."""

    def copy_to(self, path: str, size_bytes: int, copy: WritableFile) -> None:
        """Append the file at `path`, which has `size_bytes`, to a file on this machine, without a sync.

        Nothing is written beyond that size, so a server that sends more cannot fill the disk. Raises ProofMismatchError
        for any other number of bytes, StorageError.
        """
        came = 0
        for piece in self.pieces(path):
            came += len(piece)
            if came > size_bytes:
                raise ProofMismatchError(
                    f"received more than the expected {size_bytes} bytes", file=path, hint=_OTHER_SIZE
                )
            copy.append(piece)
        if came != size_bytes:
            raise ProofMismatchError(f"received {came} bytes; expected {size_bytes}", file=path, hint=_OTHER_SIZE)

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
        return side_by_side(work, items, _AT_A_TIME)

    def sync(self, path: str) -> None:
        """Does nothing: what the server has acknowledged is durable."""

    def _whole(self, path: str) -> bytes:
        """Read a small file whole. Raises StorageError, with ENOENT if there is none."""
        pieces, left = [], READ_BYTES_MAX
        for piece in self.pieces(path):
            left -= len(piece)
            if left < 0:
                raise StorageError(
                    f"received more than {READ_BYTES_MAX} bytes for a file that must be read whole", file=path,
                    hint="inspect the file: none with this name should be so large",
                )
            pieces.append(piece)
        return b"".join(pieces)

    def _here(self) -> AbstractContextManager[Path]:
        # Spark removes its own directories when the application ends, even after a worker was killed.
        of_spark = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
        return scratch_directory(self._scratch or of_spark)


@contextmanager
def told_of(path: str, copy: Path) -> Iterator[None]:
    """Within the context, errors for a file in the directory `copy` name the original file at `path` instead."""
    try:
        yield
    except SeglogError as error:
        if error.file is not None and error.file.startswith(f"{copy}/"):
            error.file = path + error.file.removeprefix(str(copy))
        raise


def warn_of_plain_http(host: str, instead: str) -> None:
    """Log a warning about plain HTTP, unless the host is this machine: others could read and change the data."""
    if not _is_loopback(host):
        _LOG.warning("plain HTTP to %s: anyone on the network path can read and change the data; use %s", host, instead)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
