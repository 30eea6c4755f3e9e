"""Opens the store that a path or URL names."""
import os
from collections.abc import Callable, Mapping
from urllib.parse import unquote, urlsplit

from seglog.errors import InvalidArgumentError, without_credentials
from seglog.fs.files import FileSystem
from seglog.stores import hdfs_store, object_store
from seglog.stores.hdfs_store import HdfsStore
from seglog.stores.object_store import ObjectStore
from seglog.stores.store import LocalStore, Store, in_workplace

AnyPath = str | os.PathLike[str]
_KNOWN = {*hdfs_store.OPTIONS, *object_store.OPTIONS}
_NUMBERS = {"http_port", "request_timeout", "connect_timeout", "retries"}


def is_local(path: AnyPath) -> bool:
    """Whether `path` is a mounted path, not the URL of another store."""
    return scheme_of(path) in ("", "file")


def open_store(
    path: AnyPath, options: Mapping[str, str], fs: FileSystem, *, removable: Callable[[str], str] = in_workplace
) -> tuple[Store, str]:
    """The store of a path or URL, and the path in it, without a trailing slash.

    Nothing is accessed yet. `removable`: see ObjectStore. `options` that only other kinds of stores know are ignored.
    Raises InvalidArgumentError.
    """
    for key, value in options.items():
        if key not in _KNOWN:
            raise InvalidArgumentError(
                f"unknown store option {key}", hint=f"expected one of {', '.join(sorted(_KNOWN))}"
            )
        if key in _NUMBERS and not value.isdecimal():
            raise InvalidArgumentError(f"{key} must be a number, not {value!r}", hint=f"such as {key}=30")
    scheme = scheme_of(path)
    if scheme not in ("", "file") and without_credentials(str(path)) != str(path):
        raise InvalidArgumentError(
            "credentials do not belong in a URL, which shells, logs and lists of processes show", file=path,
            hint="pass them as options of the store, such as access_key and secret_key, or by the environment",
        )
    if scheme in hdfs_store.SCHEMES:
        return HdfsStore.open(str(path), _of(options, hdfs_store.OPTIONS), removable)
    if scheme in object_store.SCHEMES:
        return ObjectStore.open(str(path), _of(options, object_store.OPTIONS), removable)
    if scheme == "file":
        path = unquote(urlsplit(str(path)).path)
    elif scheme:
        raise InvalidArgumentError(
            f"no store for {scheme}://", file=path,
            hint=f"expected a path, or one of file, {', '.join((*hdfs_store.SCHEMES, *object_store.SCHEMES))}",
        )
    return LocalStore(fs), os.path.abspath(path)


def scheme_of(path: AnyPath) -> str:
    """The scheme of a URL; empty for a path."""
    scheme, separator, _ = str(path).partition("://")
    return scheme.lower() if separator and scheme.isalnum() else ""


def _of(options: Mapping[str, str], known: tuple[str, ...]) -> dict[str, str]:
    return {key: value for key, value in options.items() if key in known}
