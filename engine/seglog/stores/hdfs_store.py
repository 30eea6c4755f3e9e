"""HDFS through WebHDFS: a task's machine needs neither Java nor a Hadoop client."""
import getpass
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from seglog.errors import InvalidArgumentError, StorageError
from seglog.format.foreign_names import Shape, judged
from seglog.fs.aside import SCRATCH_SUFFIX
from seglog.fs.staging import deleted_name, is_ours_deleted
from seglog.stores.remote_store import PIECE_BYTES, RemoteStore, warn_of_plain_http
from seglog.stores.store import WORKPLACE_SUFFIX, RenamingStore, StoredFile, in_workplace
from seglog.stores.webhdfs import HdfsFile, WebHdfs

SCHEMES = ("hdfs", "webhdfs", "swebhdfs")
OPTIONS = ("user", "delegation", "http_port", "tls_ca_file_path", "scratch")
_HTTP_PORT, _HTTPS_PORT = 9870, 9871


class HdfsStore(RemoteStore, RenamingStore):
    """Paths are webhdfs://HOST:PORT/PATH with the namenode's web address, or swebhdfs:// with TLS.

    A partition is published by one rename, as on a disk. A file is written aside, closed with its blocks forced to the
    disks of its datanodes, and renamed; the namenode's journal is synced before it answers.
    """

    def __init__(
        self, client: WebHdfs, scratch: str | None = None, removable: Callable[[str], str] = in_workplace
    ) -> None:
        """`removable`: see ObjectStore."""
        super().__init__(scratch)
        self._client = client
        self._removable = removable

    @classmethod
    def open(
        cls, url: str, options: Mapping[str, str], removable: Callable[[str], str] = in_workplace
    ) -> tuple[Self, str]:
        """The store of a URL, and the path that the URL names. hdfs://HOST is treated as webhdfs://HOST:9870.

        Raises InvalidArgumentError.
        """
        parts = urlsplit(url)
        tls = parts.scheme == "swebhdfs"
        if not parts.hostname:
            raise InvalidArgumentError(
                "the URL names no namenode", file=url,
                hint="write it as webhdfs://HOST:PORT/PATH, with the port of the namenode's web address",
            )
        # The port in an hdfs:// URL belongs to another protocol.
        try:
            port = None if parts.scheme == "hdfs" else parts.port
        except ValueError as error:
            raise InvalidArgumentError(f"invalid port: {error}", file=url, hint="write it as HOST:PORT") from error
        if port is None:
            port = int(options.get("http_port") or (_HTTPS_PORT if tls else _HTTP_PORT))
        user = options.get("user") or parts.username or os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
        if not tls:
            warn_of_plain_http(parts.hostname, "swebhdfs://HOST:PORT/PATH")
        client = WebHdfs(
            parts.hostname, port, user=user, delegation=options.get("delegation"), tls=tls,
            tls_ca_file=options.get("tls_ca_file_path"),
        )
        return cls(client, options.get("scratch"), removable), f"{client.url}{parts.path.rstrip('/')}"

    def check(self, path: str) -> None:
        self._client.status("/")

    # --- looking ---------------------------------------------------------------------------------

    def directories(self, path: str) -> list[str]:
        return [file.name for file in self._client.list(self._in(path)) if file.is_directory]

    def files(self, path: str) -> list[StoredFile]:
        return [_stored(file, file.name) for file in self._client.list(self._in(path)) if not file.is_directory]

    def exists(self, path: str) -> bool:
        return self._client.status(self._in(path)) is not None

    def file(self, path: str) -> StoredFile | None:
        found = self._client.status(self._in(path))
        return None if found is None or found.is_directory else _stored(found, path.rpartition("/")[2])

    def read(self, path: str) -> bytes | None:
        if not self.exists(path):
            return None
        return self._whole(path)

    def pieces(self, path: str) -> Iterator[bytes]:
        return self._client.pieces(self._in(path), PIECE_BYTES)

    def part(self, path: str, position: int, size_bytes: int) -> bytes:
        return b"".join(self._client.part(self._in(path), position, size_bytes))

    # --- changing --------------------------------------------------------------------------------

    def write(self, path: str, data: bytes | memoryview) -> None:
        # Two attempts of a task may write the same file at the same time: each uses its own temporary name.
        scratch = f"{self._in(path)}.{secrets.token_hex(8)}{SCRATCH_SUFFIX}"
        self._client.create(scratch, data, len(data))
        self._client.rename(scratch, self._in(path), replace=True)

    def upload(self, file: Path, path: str) -> None:
        with open(file, "rb") as body:
            self._client.create(self._in(path), body, os.fstat(body.fileno()).st_size)

    @contextmanager
    def attempt(self, workplace: str) -> Iterator[Path]:
        with super().attempt(workplace) as scratch:
            try:
                yield scratch
            finally:
                self._client.remove(self._in(_aside(workplace, scratch)))

    def take(self, attempt: Path, names: Iterable[str], into: str) -> None:
        # Never put temporary files into `into`: a rename may publish it while an abandoned attempt still sends.
        aside = _aside(into[: into.index(WORKPLACE_SUFFIX)] + WORKPLACE_SUFFIX, attempt)
        for name in names:
            self.upload(attempt / name, f"{aside}/{name}")
            self._client.rename(self._in(f"{aside}/{name}"), self._in(f"{into}/{name}"), replace=True)

    def make_directory(self, path: str) -> None:
        self._client.make_directory(self._in(path))

    def remove_file(self, path: str) -> None:
        self._client.remove(self._in(self._removable(path)))

    def remove_tree(self, path: str) -> None:
        self._client.remove(self._in(in_workplace(path)))

    def rename(self, path: str, target: str) -> None:
        self._client.rename(self._in(path), self._in(target))

    def remove_partition(self, path: str) -> None:
        log_dir, _, name = path.rpartition("/")
        gone = f"{log_dir}/{deleted_name(judged(name, Shape.PARTITION, log_dir))}"
        self.rename(path, gone)
        self._client.remove(self._in(gone))

    def remove_deleted(self, log_dir: str) -> None:
        for name in self.directories(log_dir):
            if is_ours_deleted(name):
                self._client.remove(self._in(f"{log_dir}/{name}"))

    def _in(self, path: str) -> str:
        """The path on the namenode. Raises StorageError for a path of another store."""
        if not path.startswith(f"{self._client.url}/") and path != self._client.url:
            raise StorageError(f"the path is not on {self._client.url}", file=path)
        return path.removeprefix(self._client.url) or "/"


def _aside(workplace: str, attempt: Path) -> str:
    return f"{workplace}/attempts/{attempt.name}"


def _stored(file: HdfsFile, name: str) -> StoredFile:
    return StoredFile(name, file.size_bytes, f"{file.changed_ms}-{file.number}")
