"""Changes of one file that a crash leaves done or not done: write aside, sync, rename, sync the directory.

What a killed run leaves is `<name>.tmp`, Kafka's own word for it: its loader ignores such a file, the
next write here replaces it. Two writers of one file must exclude each other by a lock (fs.lock).
"""
import errno
import os
from typing import TYPE_CHECKING

from seglog.errors import StorageError
from seglog.fs.files import AnyPath, FileSystem, WritableFile
from seglog.fs.mapping import Mapping
from seglog.fs.refusals import refusals

if TYPE_CHECKING:
    from typing_extensions import Buffer

SCRATCH_SUFFIX = ".tmp"
_COPY_BYTES = 8 << 20


def write_atomically(
    fs: FileSystem, path: AnyPath, *buffers: "Buffer", backup: AnyPath | None = None, sync_names: bool = True
) -> None:
    """Let `path` hold the bytes of `buffers`, durably; whatever happens it holds those or what it held before.

    With `backup` (in the same directory) the file of before, if there was one, goes on under that name,
    in the place of an older backup; `path` names a whole file at every moment. `sync_names` False: durable only when
    the caller has synced the directory, once for several files.
    """
    path = os.fspath(path)
    file = _new_scratch(fs, path)
    try:
        for buffer in buffers:
            file.append_bytes(buffer)
        file.sync()
        file.close()
        if backup is not None and os.path.lexists(path):
            _keep(fs, path, os.fspath(backup))
        fs.replace(file.path, path)
    except BaseException as error:
        file.close()
        try:
            fs.unlink(file.path)
        except StorageError as refusal:
            error.add_note(f"{file.path} is left over: {refusal.what}")
        raise
    if sync_names:
        fs.sync_directory(os.path.dirname(path) or ".")


def shorten(fs: FileSystem, path: AnyPath, size_bytes: int) -> None:
    """Let `path` hold its first `size_bytes` bytes only, durably: a shorter copy takes its name.

    Never by cutting: whoever has the file mapped keeps the whole one. Costs a copy of what stays.
    """
    with Mapping(path) as whole:
        if size_bytes > len(whole):
            raise ValueError(f"{os.fspath(path)} has {len(whole)} bytes, fewer than {size_bytes}")
        write_atomically(fs, path, memoryview(whole)[:size_bytes])


def copy_file(fs: FileSystem, source: AnyPath, target: AnyPath, size_bytes: int | None = None) -> None:
    """A new file `target` with the bytes of `source`, or the first `size_bytes` of them, and its time; synced.

    (A segment without timestamps is as old as its file.) The caller syncs the directory.
    """
    with Mapping(source) as whole, fs.create(target) as file:
        raw = memoryview(whole)[:size_bytes]
        for at in range(0, len(raw), _COPY_BYTES):
            file.append(raw[at : at + _COPY_BYTES])
        fs.set_mtime(target, os.stat(source).st_mtime_ns)
        file.sync()


def write_again(fs: FileSystem, path: AnyPath, position: int = 0) -> None:
    """Have the bytes of `path` from `position` on written to the disk, durably, also where a sync of them failed.

    After a failed sync the system may hold pages that it takes for written: reading finds them, and no later sync
    writes them. The same bytes, written over themselves, are written for certain. A crash on the way changes no sector
    that was on the disk already.
    """
    with Mapping(path) as whole, fs.open_write(path) as file:
        raw = memoryview(whole)
        for at in range(position, len(raw), _COPY_BYTES):
            file.write_at(at, bytes(raw[at : at + _COPY_BYTES]))
        file.sync()


def unshare(fs: FileSystem, path: AnyPath) -> None:
    """Before a file is written to in place: where it has other names (in a hot backup), `path` gets its own copy.

    Nothing if there is no such file.
    """
    try:
        links = os.stat(path).st_nlink
    except FileNotFoundError:
        return
    if links > 1:
        with Mapping(path) as whole:
            write_atomically(fs, path, memoryview(whole))


def make_directories(fs: FileSystem, path: AnyPath) -> None:
    """Make a directory and those above it that are missing, durably.

    One that is there is left alone. But if it is empty, whoever made it may have been killed before its name was
    synced: so its name is synced before anything stands in it.
    """
    path = os.path.abspath(path)
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    if _is_empty(path):
        _sync_name(fs, path)
    for directory in reversed(missing):
        _make(fs, directory)


def make_directory(fs: FileSystem, path: AnyPath) -> None:
    """The same of one directory, in one that is there and not empty."""
    path = os.path.abspath(path)
    if not os.path.isdir(path):
        _make(fs, path)
    elif _is_empty(path):
        _sync_name(fs, path)


def _make(fs: FileSystem, directory: str) -> None:
    """Durably; one that somebody else makes in this moment will do, and need not be durable yet."""
    try:
        fs.mkdir(directory)
    except StorageError as error:
        if error.errno != errno.EEXIST or not os.path.isdir(directory):
            raise
    fs.sync_directory(os.path.dirname(directory))


def _is_empty(directory: str) -> bool:
    with refusals("list", directory), os.scandir(directory) as entries:
        return next(entries, None) is None


def _sync_name(fs: FileSystem, directory: str) -> None:
    try:
        fs.sync_directory(os.path.dirname(directory))
    except StorageError as error:
        # A directory that we may not read is none that we made something in.
        if error.errno not in (errno.EACCES, errno.EPERM):
            raise


def _new_scratch(fs: FileSystem, path: str) -> WritableFile:
    """A new file `<path>.tmp`."""
    scratch = path + SCRATCH_SUFFIX
    try:
        return fs.create(scratch)
    except StorageError as error:
        if error.errno != errno.EEXIST:
            raise
    fs.unlink(scratch)      # of a run that was killed
    return fs.create(scratch)


def _keep(fs: FileSystem, path: str, backup: str) -> None:
    """Let `backup` name the file that `path` names, without `path` being gone for a moment."""
    if os.path.lexists(backup):
        fs.unlink(backup)
    fs.link(path, backup)
