"""The only removal of whole directories: it goes from descriptor to descriptor, and so never leaves its root.

A symbolic link may take a name at any moment, also between a look and a removal. So no path below the root is followed:
each directory is opened within the one above it, and must not be a link; each name is removed within its directory. A
link is removed itself, what it leads to stays.
"""
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from seglog.errors import StorageError
from seglog.fs.files import AnyPath, FileSystem
from seglog.fs.refusals import storage_error

# Every level needs a descriptor. What we remove has at most five.
_LEVELS_MAX = 64
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(fs: FileSystem, root: AnyPath, *names: str) -> None:
    """Remove the directory `names` below `root` with everything in it, or the file or link of that name.

    `root` may be behind a link, the names may not, except the last one. What is gone already is fine, also if another
    process removes it at the same time. Raises StorageError, also where another file system is mounted below.
    """
    with _above(root, names) as descriptor:
        if descriptor is not None:
            _remove(fs, os.path.join(root, *names), descriptor, os.fstat(descriptor).st_dev, 0)


def remove_file(fs: FileSystem, root: AnyPath, *names: str) -> None:
    """Remove the file `names` below `root`, or a link with that name; as `remove_tree`."""
    with _above(root, names) as descriptor:
        if descriptor is not None:
            _unlink(fs, os.path.join(root, *names), descriptor)


def remove_files(fs: FileSystem, root: AnyPath, is_chosen: Callable[[str], bool]) -> None:
    """Remove the files with chosen names in `root` and the directories below it, but not behind links."""
    with _opened(os.fspath(root), None) as descriptor:
        if descriptor is not None:
            _remove_chosen(fs, os.fspath(root), descriptor, is_chosen, 0)


def _remove(fs: FileSystem, path: str, above: int, device: int, level: int) -> None:
    with _opened(path, above, may_be_file=True) as descriptor:
        if descriptor is None:
            _unlink(fs, path, above)
            return
        _check_level(path, level)
        if os.fstat(descriptor).st_dev != device:
            raise StorageError(
                "cannot remove: another file system is mounted here", file=path, hint="unmount it, and run again",
                errno=errno.EXDEV,
            )
        directories, files = _entries(path, descriptor)
        for name in directories:
            _remove(fs, os.path.join(path, name), descriptor, device, level + 1)
        for name in files:
            _unlink(fs, os.path.join(path, name), descriptor)
    with _gone_is_fine():
        fs.rmdir(path, within=above)


def _remove_chosen(
    fs: FileSystem, path: str, descriptor: int, is_chosen: Callable[[str], bool], level: int
) -> None:
    _check_level(path, level)
    directories, files = _entries(path, descriptor)
    for name in directories:
        below = os.path.join(path, name)
        with _opened(below, descriptor, may_be_file=True) as inner:
            if inner is not None:
                _remove_chosen(fs, below, inner, is_chosen, level + 1)
    for name in filter(is_chosen, files):
        _unlink(fs, os.path.join(path, name), descriptor)


def _unlink(fs: FileSystem, path: str, within: int) -> None:
    with _gone_is_fine():
        fs.unlink(path, within=within)


def _entries(path: str, descriptor: int) -> tuple[list[str], list[str]]:
    """The names of the directories, and of everything else, sorted."""
    directories: list[str] = []
    files: list[str] = []
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                (directories if entry.is_dir(follow_symlinks=False) else files).append(entry.name)
    except OSError as error:
        raise storage_error(error, "list", path) from error
    return sorted(directories), sorted(files)


def _check_level(path: str, level: int) -> None:
    if level >= _LEVELS_MAX:
        raise StorageError(
            f"cannot remove: more than {_LEVELS_MAX} directories inside each other", file=path,
            hint="none of seglog's is so deep: look at it, and remove it by hand",
        )


@contextmanager
def _above(root: AnyPath, names: tuple[str, ...]) -> Iterator[int | None]:
    """A descriptor of the directory that holds the last of `names`; None if it is gone."""
    if not names or any(name in ("", ".", "..") or "/" in name for name in names):
        raise ValueError(f"{names} are not the names of files and directories")
    path, descriptor = os.fspath(root), _open(os.fspath(root), None)
    try:
        for name in names[:-1]:
            if descriptor is None:
                break
            path, outer, descriptor = os.path.join(path, name), descriptor, None
            try:
                descriptor = _open(path, outer)
            finally:
                os.close(outer)
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def _opened(path: str, within: int | None, *, may_be_file: bool = False) -> Iterator[int | None]:
    descriptor = _open(path, within, may_be_file=may_be_file)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open(path: str, within: int | None, *, may_be_file: bool = False) -> int | None:
    """A descriptor of the directory `path`, whose name is looked up in the directory `within` and must not be a link;
    without `within` the path is followed. None if it is gone or, with `may_be_file`, is something else."""
    try:
        if within is None:
            return os.open(path, _FLAGS & ~os.O_NOFOLLOW)
        return os.open(os.path.basename(path), _FLAGS, dir_fd=within)
    except OSError as error:
        # Of a link, Linux says ENOTDIR, other systems say ELOOP.
        is_other = error.errno in (errno.ENOTDIR, errno.ELOOP)
        if error.errno == errno.ENOENT or (is_other and may_be_file):
            return None
        if is_other and within is not None:
            raise StorageError(
                "cannot remove what is below it: not a directory, or a symbolic link", file=path,
                hint="nothing was removed; find out who put it there, and remove it by hand", errno=error.errno,
            ) from error
        raise storage_error(error, "open", path) from error


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
