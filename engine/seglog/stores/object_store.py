"""Object stores through pyarrow.fs: S3 and stores with its protocol, and Google Cloud Storage.

They have no directories and no renames. An object is complete once it is put, and listings show it at once (S3 since
2020). So a conversion collects its result under its own prefix, and one object, put at the end, makes that result the
current one (spark.manifest).
"""
import errno
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from seglog._kernels.shield import shielded
from seglog.errors import InvalidArgumentError, SeglogError, StorageError
from seglog.format.foreign_names import Shape, judged, judged_size
from seglog.late_import import late
from seglog.stores.remote_store import PIECE_BYTES, RemoteStore, warn_of_plain_http
from seglog.stores.store import StoredFile, in_workplace

SCHEMES = ("s3", "gs", "gcs")
# Options of pyarrow.fs.S3FileSystem, and the directory for copies.
OPTIONS = (
    "access_key", "secret_key", "session_token", "anonymous", "region", "endpoint_override", "scheme", "role_arn",
    "session_name", "external_id", "request_timeout", "connect_timeout", "retries", "force_virtual_addressing",
    "tls_ca_file_path", "scratch",
)
_BOOLEANS, _NUMBERS = ("anonymous", "force_virtual_addressing"), ("request_timeout", "connect_timeout")
_RETRIES = 9            # the last one waits about 13 s
_RETRY_WAIT_S = 0.025   # doubled each time, as the AWS SDK does
# The SDK puts an answer into a buffer of the size that was asked for. If the document of an error is longer, it neither
# reads which error that is nor tries again.
_PART_BYTES_MIN = 4096
_UNREAD_ERROR = "Failed to flush response stream"

# Words in the error -> what to do
_HINTS = (
    (("NO_SUCH_BUCKET", "NoSuchBucket"), "check the name of the bucket, or create it"),
    (("SIGNATURE_DOES_NOT_MATCH", "INVALID_ACCESS_KEY_ID", "NotSignedUp", "InvalidToken", "ExpiredToken"),
     "the store does not know these credentials: check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or --store-option"
     " access_key=... secret_key=..."),
    (("ACCESS_DENIED", "403", "Signature is required"),
     "the store denies access: give credentials by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ~/.aws, a role of"
     " the machine, or --store-option access_key=... secret_key=...; they must allow listing, reading, writing and"
     " deleting"),
    (("NETWORK_CONNECTION", "curlCode", "Could not connect", "Couldn't resolve"),
     "check that this machine can reach the store, and --store-option endpoint_override=HOST:PORT, scheme, region"),
    (("SLOW_DOWN", "THROTTLING", "SERVICE_UNAVAILABLE", "503", _UNREAD_ERROR),
     "the store refused this request again and again; if it asks for fewer requests: run again later, with"
     " --max-concurrent, or with more --store-option retries=N"),
    (("PERMANENT_REDIRECT", "301"), "the bucket is in another region: --store-option region=..."),
)


class ObjectStore(RemoteStore):
    """Paths are URLs: s3://BUCKET/KEY. The store never shows its credentials.

    `removable` returns a path that may be removed, and raises ValueError for any other.
    """

    def __init__(self, url: str, options: Mapping[str, str], removable: Callable[[str], str] = in_workplace) -> None:
        super().__init__(options.get("scratch"))
        self._root = f"{urlsplit(url).scheme}://"
        self._bucket = urlsplit(url).netloc
        self._options = {
            key: _value(key, value) for key, value in options.items() if key not in ("scratch", "retries")
        }
        self._retries = int(options.get("retries", _RETRIES))
        self._removable = removable
        self._opened: Any = None

    @classmethod
    def open(
        cls, url: str, options: Mapping[str, str], removable: Callable[[str], str] = in_workplace
    ) -> tuple[Self, str]:
        """The store of a URL, and the path that the URL names. Raises InvalidArgumentError."""
        if find_spec("pyarrow") is None:
            raise InvalidArgumentError(
                "object stores need pyarrow, which is not installed", file=url, hint="pip install 'seglog[spark]'"
            )
        parts = urlsplit(url)
        if not parts.netloc or not parts.path.strip("/"):
            raise InvalidArgumentError(
                "the URL names no bucket, or nothing in it", file=url, hint="write it as s3://BUCKET/PREFIX"
            )
        if parts.query or parts.fragment:
            raise InvalidArgumentError(
                "a key may not contain ? or # here", file=url, hint="pass options for the store with --store-option"
            )
        if options.get("scheme") == "http":
            endpoint = options.get("endpoint_override", "")
            host = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}").hostname
            warn_of_plain_http(host or "the store", "scheme=https")
        return cls(url, options, removable), f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_opened": None}      # a client belongs to one process

    def check(self, path: str) -> None:
        late("pyarrow.fs")
        from pyarrow.fs import FileType  # type: ignore[import-untyped]

        with refusals("look at", path):
            if self._fs.get_file_info(self._bucket).type == FileType.NotFound:
                words = f"the bucket {self._bucket} does not exist"
                raise StorageError(words, file=path, hint="check its name, or create it", errno=errno.ENOENT)

    # --- looking ---------------------------------------------------------------------------------

    def directories(self, path: str) -> list[str]:
        return sorted(info.base_name for info in self._list(path) if not info.is_file)

    def files(self, path: str) -> list[StoredFile]:
        return sorted((_stored(info) for info in self._list(path) if info.is_file), key=lambda file: file.name)

    def exists(self, path: str) -> bool:
        # Use listings only: some stores report an error for a name that is only a prefix.
        above, _, name = path.rpartition("/")
        return any(info.base_name == name for info in self._list(above)) or bool(self._list(path))

    def file(self, path: str) -> StoredFile | None:
        info = self._info(path)
        return _stored(info) if info is not None else None

    def read(self, path: str) -> bytes | None:
        try:
            return self._whole(path)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return None
            raise

    def part(self, path: str, position: int, size_bytes: int) -> bytes:
        with refusals("read", path), self._fs.open_input_file(self._in(path)) as file:
            # Also before the part, if it is the end of the object.
            begin = min(position, max(file.size() - _PART_BYTES_MIN, 0))
            end = max(position + size_bytes, begin + _PART_BYTES_MIN)
            piece = self._again(lambda: file.read_at(end - begin, begin))
            return piece[position - begin : position - begin + size_bytes]

    def pieces(self, path: str) -> Iterator[bytes]:
        with refusals("read", path), self._input(path) as stream:
            tag, count = _tag(stream), 0
            while piece := self._again(lambda: stream.read(PIECE_BYTES)):
                yield piece
                count += 1
            # A large object takes several requests: all of them must have read the same one.
            if count > 1 and tag is not None and _tag(self._input(path)) != tag:
                raise StorageError(
                    "the object was replaced while it was read", file=path, hint="run again when it is at rest"
                )

    def _input(self, path: str) -> Any:
        # Without `compression`, pyarrow compresses and decompresses a name that ends in .zst, .gz, .lz4 or .bz2.
        return self._fs.open_input_stream(self._in(path), compression=None)

    # --- changing --------------------------------------------------------------------------------

    def write(self, path: str, data: bytes | memoryview) -> None:
        with refusals("write", path):
            # An exception within the block would put the object without its bytes: pyarrow cannot give a stream up.
            shielded(self._put, self._in(path), data)

    def _put(self, place: str, data: bytes | memoryview) -> None:
        with self._fs.open_output_stream(place, compression=None) as stream:
            stream.write(data)

    def upload(self, file: Path, path: str) -> None:
        # pyarrow sends a large object in parts: the object appears when the last one is sent and the stream is closed.
        with refusals("write", path), open(file, "rb") as source:
            try:
                with self._fs.open_output_stream(self._in(path), compression=None) as stream:
                    while piece := source.read(PIECE_BYTES):
                        stream.write(piece)
            except BaseException:
                # pyarrow cannot give a stream up: an object with the first bytes is there now.
                with suppress(OSError):
                    shielded(self._remove_part, self._in(path), os.fstat(source.fileno()).st_size)
                raise

    def _remove_part(self, place: str, size_bytes: int) -> None:
        """Remove an object, unless it is whole: another attempt may have put that."""
        info = self._fs.get_file_info(place)
        if info.is_file and info.size != size_bytes:
            self._fs.delete_file(place)

    def make_directory(self, path: str) -> None:
        """Does nothing: a prefix exists as soon as it has an object."""

    def remove_file(self, path: str) -> None:
        place = self._in(self._removable(path))
        with refusals("remove", path), suppress(FileNotFoundError):
            self._fs.delete_file(place)

    def remove_tree(self, path: str) -> None:
        # Object by object: pyarrow's delete_dir first asks for an object with the prefix's name, which not every store
        # handles well.
        found = (f"{self._root}{info.path}" for info in self._list(path, recursive=True) if info.is_file)
        for _ in self.each(self.remove_file, found):
            pass

    # --- the client ------------------------------------------------------------------------------

    @property
    def _fs(self) -> Any:       # pyarrow.fs.FileSystem
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _again(self, read: Callable[[], bytes]) -> bytes:
        """The result of `read`, which is tried again if the client could not read an error: of an object that is
        smaller than the error's document."""
        for retry in range(self._retries):
            try:
                return read()
            except OSError as error:
                if _UNREAD_ERROR not in str(error):
                    raise
            time.sleep(_RETRY_WAIT_S * 2**retry)
        return read()

    def _open(self) -> Any:
        late("pyarrow.fs")
        from pyarrow import fs  # type: ignore[import-untyped]

        url = f"{self._root}{self._bucket}"
        with refusals("open", url):
            if self._root != "s3://":
                return fs.FileSystem.from_uri(url)[0]
            options = {**self._options, "retry_strategy": fs.AwsDefaultS3RetryStrategy(max_attempts=self._retries)}
            try:
                # Put a small object with one request; pyarrow 19 and older need three.
                return fs.S3FileSystem(**options, allow_delayed_open=True)
            except TypeError:
                return fs.S3FileSystem(**options)
            except ValueError as error:
                raise InvalidArgumentError(
                    f"these options cannot be combined: {error}", file=url, hint="omit one of the options that it names"
                ) from error

    def _in(self, path: str) -> str:
        """The path in pyarrow's form, BUCKET/KEY. Raises StorageError for a path of another store."""
        if not f"{path}/".startswith(f"{self._root}{self._bucket}/"):
            raise StorageError(f"the path is not in {self._root}{self._bucket}", file=path)
        return path.removeprefix(self._root)

    def _info(self, path: str) -> Any:
        late("pyarrow.fs")
        from pyarrow.fs import FileType

        with refusals("look at", path):
            info = self._fs.get_file_info(self._in(path))
        return info if info.type == FileType.File else None

    def _list(self, path: str, *, recursive: bool = False) -> list[Any]:
        late("pyarrow.fs")
        from pyarrow.fs import FileSelector

        with refusals("list", path):
            # A prefix without objects is empty: it exists only through the objects that begin with it.
            found = self._fs.get_file_info(FileSelector(self._in(path), allow_not_found=True, recursive=recursive))
            for info in found:
                judged(info.base_name, Shape.COMPONENT, path)
                if not info.path.startswith(f"{self._in(path)}/"):
                    raise StorageError(f"the listing names {ascii(info.path)[:200]}, which is elsewhere", file=path)
            return list(found)


@contextmanager
def refusals(doing: str, path: str) -> Iterator[None]:
    """Within the context, pyarrow's errors become a StorageError that says what was tried, where, and what to do."""
    try:
        yield
    except SeglogError:
        raise
    # ArrowInvalid, a ValueError, means that the server's answer does not parse; an invalid time is a TypeError.
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise _refusal(error, doing, path) from error


def _refusal(error: Exception, doing: str, path: str) -> StorageError:
    if isinstance(error, FileNotFoundError):
        return StorageError(f"cannot {doing}: no such object", file=path, hint="check the URL", errno=errno.ENOENT)
    text = str(error)
    # "When listing objects under key 'a/' in bucket 'b': AWS Error ACCESS_DENIED during ...": the first half is ours.
    words = re.sub(r"^When [^:]*: ", "", text.splitlines()[0] if text else type(error).__name__)
    hint = next((hint for marks, hint in _HINTS if any(mark in text for mark in marks)), "see the store's message")
    return StorageError(f"cannot {doing}: {words[:500]}", file=path, hint=hint)


def _stored(info: Any) -> StoredFile:
    # A listing gives times with fractions of a second, a query for one object whole seconds.
    with refusals("look at", info.path):
        size_bytes = judged_size(info.size, info.path, StorageError)
        return StoredFile(info.base_name, size_bytes, str(info.mtime_ns // 10**9))


def _tag(stream: Any) -> bytes | None:
    """The entity tag of an open object; None if the store gives none."""
    tag: bytes | None = (stream.metadata() or {}).get(b"ETag") or (stream.metadata() or {}).get("ETag")
    return tag


def _value(key: str, value: str) -> str | bool | float:
    if key in _BOOLEANS:
        return value.lower() in ("true", "1", "yes")
    return float(value) if key in _NUMBERS else value
