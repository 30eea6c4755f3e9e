"""Which store a path or a URL names."""
import os
from collections.abc import Callable, Mapping
from urllib.parse import unquote, urlsplit

from seglog.errors import InvalidArgumentError
from seglog.fs.files import FileSystem
from seglog.stores import hdfs_store, object_store
from seglog.stores.hdfs_store import HdfsStore
from seglog.stores.object_store import ObjectStore
from seglog.stores.store import LocalStore, Store, in_workplace

AnyPath = str | os.PathLike[str]
_KNOWN = {*hdfs_store.OPTIONS, *object_store.OPTIONS}
_NUMBERS = {"http_port", "request_timeout", "connect_timeout"}


def is_local(path: AnyPath) -> bool:
    """Whether it is a path of mounted files, and no URL of another store."""
    return scheme_of(path) in ("", "file")


def open_store(
    path: AnyPath, options: Mapping[str, str], fs: FileSystem, *, removable: Callable[[str], str] = in_workplace
) -> tuple[Store, str]:
    """The store of a path or URL, and what to call the place in it: without a slash at its end.

    Nothing is looked at yet. `removable`: see ObjectStore. `options` that only the other store of a command knows are
    passed over. Raises InvalidArgumentError.
    """
    for key, value in options.items():
        if key not in _KNOWN:
            raise InvalidArgumentError(
                f"no store has an option {key}", hint=f"there are {', '.join(sorted(_KNOWN))}"
            )
        if key in _NUMBERS and not value.isdecimal():
            raise InvalidArgumentError(f"{key} is a number, not {value!r}", hint=f"as in {key}=30")
    scheme = scheme_of(path)
    if scheme in hdfs_store.SCHEMES:
        return HdfsStore.open(str(path), _of(options, hdfs_store.OPTIONS))
    if scheme in object_store.SCHEMES:
        return ObjectStore.open(str(path), _of(options, object_store.OPTIONS), removable)
    if scheme == "file":
        path = unquote(urlsplit(str(path)).path)
    elif scheme:
        raise InvalidArgumentError(
            f"no store for {scheme}://", file=path,
            hint=f"there are paths, file, {', '.join((*hdfs_store.SCHEMES, *object_store.SCHEMES))}",
        )
    return LocalStore(fs), os.path.abspath(path)


def scheme_of(path: AnyPath) -> str:
    """Empty for a path."""
    scheme, separator, _ = str(path).partition("://")
    return scheme.lower() if separator and scheme.isalnum() else ""


def _of(options: Mapping[str, str], known: tuple[str, ...]) -> dict[str, str]:
    return {key: value for key, value in options.items() if key in known}
