"""A client of WebHDFS, the file system of Hadoop over HTTP: as much of it as a conversion needs.

Of our own, since fsspec's and others leave out what matters here: renaming with an option, so that a target that is
there is an error (or is replaced in one step) and not an answer that nobody looks at; and blocks that are forced to the
disks when a file is closed.

https://hadoop.apache.org/docs/stable/hadoop-project-dist/hadoop-hdfs/WebHDFS.html
"""
import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import IO, Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from seglog.errors import StorageError

_PREFIX = "/webhdfs/v1"
_TIMEOUT_S = 120.0
_PIECE_BYTES = 1 << 20
# A file is closed when its blocks are on the disks of all replicas (HDFS: CreateFlag.SYNC_BLOCK, hsync on close).
_CREATE = "CREATE,OVERWRITE,SYNC_BLOCK"

# RemoteException -> (errno, what to do)
_REFUSALS = {
    "FileNotFoundException": (errno.ENOENT, "check the path"),
    "AccessControlException": (
        errno.EACCES, "name a user who may (--store-option user=NAME, or HADOOP_USER_NAME), or mend the permission"
    ),
    "FileAlreadyExistsException": (errno.EEXIST, "choose another target, or move what is there away"),
    "ParentNotDirectoryException": (errno.ENOTDIR, "check the path; move the file away"),
    "NSQuotaExceededException": (errno.EDQUOT, "raise the quota of names, then run again"),
    "DSQuotaExceededException": (errno.EDQUOT, "free space or raise the quota, then run again"),
    "SafeModeException": (None, "wait until the namenode has left its safe mode, then run again"),
    "StandbyException": (None, "name the active namenode: this one stands by"),
    "SecurityException": (None, "give a delegation token: --store-option delegation=TOKEN (`hdfs fetchdt`)"),
    "InvalidToken": (None, "the delegation token has ended: fetch another one"),
}


@dataclass(frozen=True, slots=True)
class HdfsFile:
    """A file or directory, as the namenode tells of it."""

    name: str
    is_directory: bool
    size_bytes: int
    changed_ms: int
    number: int         # of its inode: another file of the same name has another


class WebHdfs:
    """The WebHDFS of one namenode. Paths are absolute. Each method raises StorageError, with an errno where one fits.

    `delegation`: a delegation token, of a cluster with Kerberos; without it `user` is who we say we are. Pickles.
    """

    def __init__(self, host: str, port: int, *, user: str, delegation: str | None = None, tls: bool = False) -> None:
        self._netloc = f"{host}:{port}"
        self._tls = tls
        self._identity = {"user.name": user} if delegation is None else {"delegation": delegation}
        self.url = f"{'swebhdfs' if tls else 'webhdfs'}://{self._netloc}"

    def status(self, path: str) -> HdfsFile | None:
        """None where there is nothing of this name."""
        try:
            return _file(self._ask("GET", path, "GETFILESTATUS", "look at")["FileStatus"])
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return None
            raise

    def list(self, path: str) -> list[HdfsFile]:
        """What is in a directory, by name."""
        answer = self._ask("GET", path, "LISTSTATUS", "list")
        return sorted(map(_file, answer["FileStatuses"]["FileStatus"]), key=lambda file: file.name)

    def make_directory(self, path: str) -> None:
        """It and those above it; one that is there is left alone."""
        self._ask("PUT", path, "MKDIRS", "make a directory")

    def remove(self, path: str) -> None:
        """A file, or a directory with all that is in it; nothing where there is none."""
        self._ask("DELETE", path, "DELETE", "remove", recursive="true")

    def rename(self, path: str, target: str, *, replace: bool = False) -> None:
        """In one step. Where the target is there it is replaced (a file by a file), or that is an error."""
        how = "OVERWRITE" if replace else "NONE"
        self._ask("PUT", path, "RENAME", f"rename to {target}", destination=target, renameoptions=how)

    def create(self, path: str, body: "IO[bytes] | bytes", size_bytes: int) -> None:
        """A file of these bytes, on the disks of its datanodes when this returns. One that is there is replaced."""
        where = self._ask("PUT", path, "CREATE", "write", overwrite="true", noredirect="true")["Location"]
        # The namenode quotes the commas of such a flag twice: it is set here, where it is read.
        parts = urlsplit(where)
        query = [pair for pair in parse_qsl(parts.query) if pair[0] != "createflag"]
        query_text = f"{urlencode(query)}&createflag={_CREATE}"
        headers = {"Content-Length": str(size_bytes), "Content-Type": "application/octet-stream"}
        with self._exchange("PUT", parts.netloc, f"{parts.path}?{query_text}", path, "write", body, headers) as answer:
            answer.read()

    def pieces(self, path: str, piece_bytes: int) -> Iterator[bytes]:
        """The bytes of a file, so many at a time."""
        where = urlsplit(self._ask("GET", path, "OPEN", "read", noredirect="true")["Location"])
        with self._exchange("GET", where.netloc, f"{where.path}?{where.query}", path, "read") as answer:
            while piece := answer.read(piece_bytes):
                yield piece
            if answer.length:
                raise HTTPException(f"the datanode ended {answer.length} bytes too early")

    def _ask(self, method: str, path: str, operation: str, doing: str, **options: str) -> dict[str, Any]:
        query = urlencode({"op": operation, **self._identity, **options})
        with self._exchange(method, self._netloc, f"{_PREFIX}{quote(path)}?{query}", path, doing) as answer:
            raw = answer.read()
        return json.loads(raw) if raw else {}

    @contextmanager
    def _exchange(
        self, method: str, netloc: str, target: str, path: str, doing: str, body: "IO[bytes] | bytes | None" = None,
        headers: dict[str, str] | None = None,
    ) -> Iterator[HTTPResponse]:
        """A request and its good answer. Whatever goes wrong until the end of the block is a StorageError."""
        file = f"{self.url}{path}"
        make = HTTPSConnection if self._tls else HTTPConnection
        connection = make(netloc, timeout=_TIMEOUT_S, blocksize=_PIECE_BYTES)
        try:
            connection.request(method, target, body, headers or {})
            answer = connection.getresponse()
            if answer.status >= 300:
                raise _refusal(answer.status, answer.read(), doing, file)
            yield answer
        except StorageError:
            raise
        except (OSError, HTTPException) as error:
            words = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
            raise StorageError(
                f"cannot {doing}: {netloc}: {words}", file=file,
                hint="check host and port of the namenode's web address (dfs.namenode.http-address; 9870 by default),"
                " and that the datanodes can be reached from here",
            ) from error
        finally:
            connection.close()


def _file(status: dict[str, Any]) -> HdfsFile:
    return HdfsFile(
        status["pathSuffix"], status["type"] == "DIRECTORY", status["length"], status["modificationTime"],
        status["fileId"],
    )


def _refusal(status: int, body: bytes, doing: str, file: str) -> StorageError:
    """What the server said, in the words of an operator."""
    try:
        told = json.loads(body)["RemoteException"]
        name, message = told["exception"], told["message"].splitlines()[0]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        name, message = "", f"HTTP status {status}"
    number, hint = _REFUSALS.get(name, (None, "see the log of the namenode, and of the datanode that it chose"))
    if number == errno.ENOENT:
        message = os.strerror(number).lower()
    return StorageError(f"cannot {doing}: {message}", file=file, hint=hint, errno=number)
