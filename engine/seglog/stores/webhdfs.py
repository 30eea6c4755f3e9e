"""A client of WebHDFS, Hadoop's file system over HTTP: as much of it as a conversion needs.

We have our own client because fsspec's and others lack what matters here: renames with an option, so that an existing
target is an error (or is replaced in one step), and not just an answer that may be overlooked; and blocks that are
forced to the disks when a file is closed.

https://hadoop.apache.org/docs/stable/hadoop-project-dist/hadoop-hdfs/WebHDFS.html
"""
import errno
import json
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import IO, Any
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

from seglog.errors import StorageError
from seglog.format.foreign_names import Shape, judged, judged_size

_PREFIX = "/webhdfs/v1"
_TIMEOUT_S = 120.0
_PIECE_BYTES = 1 << 20
# A listing of a million files has about 400 MB. A refusal has a stack trace of some KB.
_ANSWER_BYTES_MAX, _REFUSAL_BYTES_MAX = 1 << 30, 1 << 16
# A file is closed when its blocks are on the disks of all replicas (HDFS: CreateFlag.SYNC_BLOCK, hsync on close).
_CREATE = "CREATE,OVERWRITE,SYNC_BLOCK"

# RemoteException -> (errno, what to do)
_REFUSALS = {
    "FileNotFoundException": (errno.ENOENT, "check the path"),
    "AccessControlException": (
        errno.EACCES, "name a user with access (--store-option user=NAME, or HADOOP_USER_NAME), or grant permission"
    ),
    "FileAlreadyExistsException": (errno.EEXIST, "choose another target, or move the existing one away"),
    "ParentNotDirectoryException": (errno.ENOTDIR, "check the path; move the file away"),
    "NSQuotaExceededException": (errno.EDQUOT, "raise the quota of names, then run again"),
    "DSQuotaExceededException": (errno.EDQUOT, "free space or raise the quota, then run again"),
    "SafeModeException": (None, "wait until the namenode has left its safe mode, then run again"),
    "StandbyException": (None, "name the active namenode: this one is on standby"),
    "SecurityException": (None, "give a delegation token: --store-option delegation=TOKEN (`hdfs fetchdt`)"),
    "InvalidToken": (None, "the delegation token has expired: fetch a new one"),
}


@dataclass(frozen=True, slots=True)
class HdfsFile:
    """A file or directory, as the namenode describes it."""

    name: str
    is_directory: bool
    size_bytes: int
    changed_ms: int
    number: int         # of its inode: another file with the same name has a different one


class WebHdfs:
    """The WebHDFS of one namenode. Paths are absolute. Each method raises StorageError, with an errno if one fits.

    `delegation`: a delegation token, for a cluster with Kerberos; without it, `user` is the user name that we claim.
    `tls_ca_file`: certificates of the authorities to trust; by default those of the system. Can be pickled.

    No answer is trusted: with plain HTTP anyone on the network path may have written it. An answer that does not
    conform to the API is a StorageError, and a name in a listing must be a single path component
    (format.foreign_names).
    """

    def __init__(
        self, host: str, port: int, *, user: str, delegation: str | None = None, tls: bool = False,
        tls_ca_file: str | None = None,
    ) -> None:
        self._netloc = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._tls = tls
        self._tls_ca_file = tls_ca_file
        self._identity = {"user.name": user} if delegation is None else {"delegation": delegation}
        self.url = f"{'swebhdfs' if tls else 'webhdfs'}://{self._netloc}"

    def status(self, path: str) -> HdfsFile | None:
        """The file or directory with this name; None if there is none."""
        try:
            with self._sense("look at", path):
                told = self._ask("GET", path, "GETFILESTATUS", "look at")["FileStatus"]
                return self._file(told, path, path.rpartition("/")[2])
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return None
            raise

    def list(self, path: str) -> list[HdfsFile]:
        """The contents of a directory, by name."""
        with self._sense("list", path):
            told = self._ask("GET", path, "LISTSTATUS", "list")["FileStatuses"]["FileStatus"]
            if len(told) == 1 and told[0]["pathSuffix"] == "":
                raise StorageError(
                    "cannot list: expected a directory, found a file", file=self._url_of(path),
                    hint="check the path; move the file away", errno=errno.ENOTDIR,
                )
            files = [
                self._file(status, path, judged(status["pathSuffix"], Shape.COMPONENT, self._url_of(path)))
                for status in told
            ]
        return sorted(files, key=lambda file: file.name)

    def make_directory(self, path: str) -> None:
        """Create a directory and those above it, unless they exist."""
        self._ask("PUT", path, "MKDIRS", "make a directory")

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all its contents, if it exists."""
        self._ask("DELETE", path, "DELETE", "remove", recursive="true")

    def rename(self, path: str, target: str, *, replace: bool = False) -> None:
        """Rename in one step. An existing target is an error, or with `replace` it is replaced (a file by a file)."""
        how = "OVERWRITE" if replace else "NONE"
        self._ask("PUT", path, "RENAME", f"rename to {target}", destination=target, renameoptions=how)

    def create(self, path: str, body: "IO[bytes] | bytes | memoryview", size_bytes: int) -> None:
        """Create or replace a file with these bytes, which are on the disks of its datanodes when this returns."""
        # The namenode quotes the commas of this flag twice, so it is set here, where the datanode reads it.
        parts = self._datanode("PUT", path, "CREATE", "write", overwrite="true")
        query = [pair for pair in parse_qsl(parts.query) if pair[0] != "createflag"]
        query_text = f"{urlencode(query)}&createflag={_CREATE}"
        headers = {"Content-Length": str(size_bytes), "Content-Type": "application/octet-stream"}
        with self._exchange("PUT", parts.netloc, f"{parts.path}?{query_text}", path, "write", body, headers) as answer:
            answer.read()

    def pieces(self, path: str, piece_bytes: int) -> Iterator[bytes]:
        """The bytes of a file, `piece_bytes` at a time. The server decides how many there are in all: count them."""
        where = self._datanode("GET", path, "OPEN", "read")
        with self._exchange("GET", where.netloc, f"{where.path}?{where.query}", path, "read") as answer:
            while piece := answer.read(piece_bytes):
                yield piece
            if answer.length:
                raise HTTPException(f"the datanode's answer ended {answer.length} bytes early")

    def part(self, path: str, position: int, size_bytes: int) -> Iterator[bytes]:
        """The bytes [position, position + size_bytes) of a file, fewer if it ends before. Raises StorageError."""
        where = self._datanode("GET", path, "OPEN", "read", offset=str(position), length=str(size_bytes))
        left = size_bytes
        with self._exchange("GET", where.netloc, f"{where.path}?{where.query}", path, "read") as answer:
            while left > 0 and (piece := answer.read(min(_PIECE_BYTES, left))):
                left -= len(piece)
                yield piece

    def _ask(self, method: str, path: str, operation: str, doing: str, **options: str) -> dict[str, Any]:
        query = urlencode({"op": operation, **self._identity, **options})
        with self._exchange(method, self._netloc, f"{_PREFIX}{quote(path)}?{query}", path, doing) as answer:
            raw = _read_at_most(answer, _ANSWER_BYTES_MAX)
        with self._sense(doing, path):
            told: dict[str, Any] = json.loads(raw) if raw else {}
            if not isinstance(told, dict):
                raise TypeError("no JSON object")
            return told

    def _datanode(self, method: str, path: str, operation: str, doing: str, **options: str) -> SplitResult:
        """The address for reading or writing the bytes of a file."""
        with self._sense(doing, path):
            where = self._ask(method, path, operation, doing, noredirect="true", **options)["Location"]
            if not isinstance(where, str):
                raise TypeError("the location is not text")
            parts = urlsplit(where)
            if parts.scheme != ("https" if self._tls else "http") or not parts.hostname or parts.port == 0:
                raise ValueError(f"invalid location {ascii(where)[:200]}")
            return parts

    def _file(self, status: dict[str, Any], path: str, name: str) -> HdfsFile:
        url = self._url_of(path)
        if status["type"] not in ("FILE", "DIRECTORY", "SYMLINK"):
            raise ValueError(f"unknown type {ascii(status['type'])[:80]}")
        size_bytes = judged_size(status["length"], url, StorageError)
        changed_ms, number = status["modificationTime"], status["fileId"]
        if not (isinstance(changed_ms, int) and isinstance(number, int)):
            raise TypeError("the time or the inode number is not a number")
        return HdfsFile(name, status["type"] == "DIRECTORY", size_bytes, changed_ms, number)

    def _url_of(self, path: str) -> str:
        return f"{self.url}{path}"

    @contextmanager
    def _sense(self, doing: str, path: str) -> Iterator[None]:
        """Within the context, an answer that does not conform to the API becomes a StorageError."""
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
            raise StorageError(
                f"cannot {doing}: the answer is not from WebHDFS: {what[:200]}", file=self._url_of(path),
                hint="check that this is the namenode's web address (dfs.namenode.http-address; 9870 by default), and"
                " any proxy on the way to it",
            ) from error

    @contextmanager
    def _exchange(
        self, method: str, netloc: str, target: str, path: str, doing: str,
        body: "IO[bytes] | bytes | memoryview | None" = None, headers: dict[str, str] | None = None,
    ) -> Iterator[HTTPResponse]:
        """Send a request, and return its successful answer. Every failure until the end of the block is a
        StorageError."""
        file = self._url_of(path)
        connection: HTTPConnection | None = None
        try:
            connection = self._connection(netloc)
            connection.request(method, target, body, headers or {})
            answer = connection.getresponse()
            if answer.status >= 300:
                raise _refusal(answer.status, answer.read(_REFUSAL_BYTES_MAX), doing, file)
            yield answer
        except StorageError:
            raise
        except (OSError, HTTPException, ValueError) as error:       # ValueError: invalid host, port or header
            words = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
            if isinstance(error, ssl.SSLCertVerificationError):
                raise StorageError(
                    f"cannot {doing}: {netloc}: the certificate is not trusted: {error.verify_message}", file=file,
                    hint="give the file of the authority that signed it: --store-option tls_ca_file_path=FILE",
                ) from error
            raise StorageError(
                f"cannot {doing}: {netloc}: {words[:200]}", file=file,
                hint="check host and port of the namenode's web address (dfs.namenode.http-address; 9870 by default),"
                " and that this machine can reach the datanodes",
            ) from error
        finally:
            if connection is not None:
                connection.close()

    def _connection(self, netloc: str) -> HTTPConnection:
        if not self._tls:
            return HTTPConnection(netloc, timeout=_TIMEOUT_S, blocksize=_PIECE_BYTES)
        context = ssl.create_default_context(cafile=self._tls_ca_file)
        return HTTPSConnection(netloc, timeout=_TIMEOUT_S, blocksize=_PIECE_BYTES, context=context)


def _read_at_most(answer: HTTPResponse, size_bytes: int) -> bytes:
    pieces, left = [], size_bytes
    while piece := answer.read(_PIECE_BYTES):
        left -= len(piece)
        if left < 0:
            raise HTTPException(f"the answer has more than {size_bytes} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _refusal(status: int, body: bytes, doing: str, file: str) -> StorageError:
    """The StorageError for a refusal by the server, with what to do."""
    try:
        told = json.loads(body)["RemoteException"]
        name, message = str(told["exception"]), told["message"].splitlines()[0][:500]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        name, message = "", f"HTTP status {status}"
    number, hint = _REFUSALS.get(name, (None, "see the logs of the namenode and of the datanode that it chose"))
    if number == errno.ENOENT:
        message = os.strerror(number).lower()
    return StorageError(f"cannot {doing}: {message}", file=file, hint=hint, errno=number)
