"""File systems that fail: one that remembers every change and loses what was not synced, one that returns errors.

Crash states. Run the code under test once over a RecordingFs; then, for each thing that the disk may hold
after a crash anywhere in that run, open it again and look:

    record = RecordingFs(tmp_path / "disk")             # an existing directory; what is in it counts as safe
    log = open_log(record.root / "orders-0", fs=record)
    for value in values:
        log.append(value)
        record.mark(value)                              # from here on it must survive
    for state in record.crash_states(limit=10_000, seed=1):
        with state.materialise() as disk:               # a fresh copy of the root
            found = read(disk / "orders-0")
            assert found[: len(state.marks)] == state.marks, state.story()

`state.files` and `state.directories` answer without a disk. A crash during recovery is a RecordingFs over
a materialised state. What a disk may do is in crash_states.py and docs/durability.md.

Errors. FailingFs lets the first `fail_at` changes through and then answers with an error. To fail at each:

    count = FailingFs(OsFileSystem())
    run(count)
    for k in range(len(count.calls)):
        fs = FailingFs(OsFileSystem(), fail_at=k, error=errno.ENOSPC)
        with pytest.raises(StorageError):
            run(fs)                                     # in a fresh directory
        ...

Both go around any FileSystem, so also around each other: RecordingFs(root, FailingFs(OsFileSystem(), ...))
gives the crash states of a run that met an error.
"""
import errno
import os
import threading
from pathlib import Path

from seglog.errors import StorageError
from seglog.fs.files import FileSystem, OsFileSystem, WritableFile
from seglog.fs.refusals import storage_error
from support.crash_states import GRAINS, History, Mark, Names, Sync, Time, Write


class RecordingFs(FileSystem):
    """Passes every change on to `inner` and records it. All changes must be under `root`.

    Safe for threads: a sync covers what was recorded before it began.
    """

    def __init__(self, root, inner=None):
        self.root = Path(os.path.abspath(root))
        self._inner = inner or OsFileSystem()
        self._history = History()
        self._live = {}         # directory node -> {name: node}, as it is now
        # Guards the two above, so that the record has the order in which names changed.
        self._lock = threading.RLock()
        self._take_in(self.root, self._new_directory())

    def before_write(self, path):
        """Called before each write; a test replaces it to delay a write, or to interrupt it."""

    def _take_in(self, path, node):
        for found in sorted(os.scandir(path), key=lambda found: found.name):
            if found.is_dir(follow_symlinks=False):
                inner = self._new_directory()
                self._take_in(found.path, inner)
            elif found.is_file(follow_symlinks=False):
                with open(found.path, "rb") as file:
                    inner = self._new_file(file.read())
            else:
                raise ValueError(f"{found.path} is neither a file nor a directory: not in the model")
            self._live[node][found.name] = self._history.directories[node][found.name] = self._new_entry(inner)

    def _new_directory(self):
        node = len(self._history.directories) + len(self._history.files)
        self._history.directories[node] = {}
        self._live[node] = {}
        return node

    def _new_file(self, content=b""):
        node = len(self._history.directories) + len(self._history.files)
        self._history.files[node] = content
        return node

    def _new_entry(self, node):
        self._history.nodes.append(node)
        return len(self._history.nodes) - 1

    # --- what a test asks

    @property
    def operations(self):
        """Every change so far in words, such as "replace orders-0/x.tmp -> orders-0/x"."""
        return [step.text for step in self._history.steps if not isinstance(step, Mark)]

    def mark(self, value):
        """Remember that from here on `value` is promised; a crash state has those before its crash in `.marks`."""
        with self._lock:
            self._history.steps.append(Mark(value))

    def crash_states(self, limit=1000, seed=0, grains=GRAINS, *, shuffled=False, after=0):
        """Up to `limit` different states; the same ones for the same arguments and record.

        `grains` are the sizes that writes tear at; add 1 to tear inside a sector, too. Of each crash the plain cases
        come first; `shuffled`, for a long record and a small limit: any of its corners. `after`: only of crashes that
        come when so many steps were made (`record.steps`).
        """
        return self._history.crash_states(limit, seed, grains, shuffled, after)

    @property
    def steps(self):
        """How many steps were recorded so far, marks and syncs too."""
        return len(self._history.steps)

    # --- names

    def _place(self, path):
        """(directory node, name) of a path, and its words for the record."""
        relative = os.path.relpath(path, self.root)
        if relative == os.curdir or relative.split(os.sep)[0] == os.pardir:
            raise ValueError(f"{path} is changed outside of the recorded {self.root}")
        *parents, name = relative.split(os.sep)
        directory = 0
        for parent in parents:
            # -1, which leads nowhere: let the file system say what is wrong with the path.
            entry = self._live.get(directory, {}).get(parent)
            directory = -1 if entry is None else self._history.nodes[entry]
        return directory, name, relative

    def _entry(self, directory, name, text):
        try:
            return self._live[directory][name]
        except KeyError:
            raise ValueError(f"{text} came to be past the record") from None

    def _node(self, path):
        if os.path.abspath(path) == str(self.root):
            return 0, os.curdir
        directory, name, text = self._place(path)
        return self._history.nodes[self._entry(directory, name, text)], text

    def _record_names(self, text, *places):
        self._history.steps.append(Names(places, text))
        for directory, name, entry in places:
            if entry is None:
                self._live[directory].pop(name, None)
            else:
                self._live[directory][name] = entry

    def create(self, path, within=None, mode=0o666):
        with self._lock:
            directory, name, text = self._place(path)
            file = self._inner.create(path, within, mode)
            node = self._new_file()
            self._record_names(f"create {text}", (directory, name, self._new_entry(node)))
            return RecordingFile(self, file, node, text)

    def open_write(self, path, position=None):
        with self._lock:
            return RecordingFile(self, self._inner.open_write(path, position), *self._node(path))

    def rename(self, source, target):
        self._move(self._inner.rename, source, target, "rename")

    def replace(self, source, target):
        self._move(self._inner.replace, source, target, "replace")

    def _move(self, move, source, target, word):
        with self._lock:
            (d1, n1, t1), (d2, n2, t2) = self._place(source), self._place(target)
            move(source, target)
            self._record_names(f"{word} {t1} -> {t2}", (d1, n1, None), (d2, n2, self._entry(d1, n1, t1)))

    def exchange(self, one, other):
        with self._lock:
            (d1, n1, t1), (d2, n2, t2) = self._place(one), self._place(other)
            self._inner.exchange(one, other)
            e1, e2 = self._entry(d1, n1, t1), self._entry(d2, n2, t2)
            self._record_names(f"exchange {t1} <-> {t2}", (d1, n1, e2), (d2, n2, e1))

    def link(self, source, target):
        with self._lock:
            (d1, n1, t1), (d2, n2, t2) = self._place(source), self._place(target)
            self._inner.link(source, target)
            node = self._history.nodes[self._entry(d1, n1, t1)]
            self._record_names(f"link {t1} -> {t2}", (d2, n2, self._new_entry(node)))

    def unlink(self, path, within=None):
        self._take_away(self._inner.unlink, path, within, "unlink")

    def rmdir(self, path, within=None):
        self._take_away(self._inner.rmdir, path, within, "rmdir")

    def _take_away(self, take_away, path, within, word):
        with self._lock:
            directory, name, text = self._place(path)
            take_away(path, within)
            self._record_names(f"{word} {text}", (directory, name, None))

    def mkdir(self, path):
        with self._lock:
            directory, name, text = self._place(path)
            self._inner.mkdir(path)
            self._record_names(f"mkdir {text}", (directory, name, self._new_entry(self._new_directory())))

    def truncate(self, path, size_bytes):
        with self._lock:
            self._inner.truncate(path, size_bytes)
            node, text = self._node(path)
            self._history.steps.append(Write(node, size_bytes, b"", f"cut {text} at {size_bytes}", cuts=True))
            self._history.steps.append(Sync(node, len(self._history.steps), False, f"sync {text}"))

    def set_mtime(self, path, mtime_ns):
        with self._lock:
            self._inner.set_mtime(path, mtime_ns)
            node, text = self._node(path)
            self._history.steps.append(Time(node, mtime_ns, f"set the time of {text}"))

    # --- syncs

    def sync_file(self, path):
        node, text = self._node(path)
        self._sync(node, text, lambda: self._inner.sync_file(path))

    def sync_directory(self, path):
        if Path(os.path.abspath(path)) in self.root.parents:
            return      # it changes nothing here: the root's own name is safe
        node, text = self._node(path)
        self._sync(node, text, lambda: self._inner.sync_directory(path), word="sync directory")

    def _sync(self, node, text, sync, *, data_only=False, word="sync"):
        with self._lock:
            covers = len(self._history.steps)
        text = f"{word}{' data' if data_only else ''} {text}"
        try:
            sync()      # without the lock: appenders go on beside a slow sync, and are not covered by it
        except StorageError:
            with self._lock:
                self._history.steps.append(Sync(node, covers, data_only, f"{text} (failed)", failed=True))
            raise
        with self._lock:
            self._history.steps.append(Sync(node, covers, data_only, text))


class RecordingFile(WritableFile):
    """Made by RecordingFs."""

    def __init__(self, fs, inner, node, text):
        super().__init__(inner.path, inner.position)
        self._fs = fs
        self._inner = inner
        self._node = node
        self._text = text

    def fileno(self):
        return self._inner.fileno()

    def _write(self, views, position):
        data = b"".join(views)
        self._fs.before_write(self.path)
        with self._fs._lock:
            try:
                self._inner.write_at(position, data)
            except StorageError:
                # What a failed write left behind is there, and no sync of this file will ever cover it.
                landed = os.pread(self.fileno(), len(data), position)
                self._record(position, landed, " (failed)")
                raise
            self._record(position, data)

    def _record(self, position, data, fate=""):
        text = f"write {len(data)} bytes at {position} of {self._text}{fate}"
        self._fs._history.steps.append(Write(self._node, position, data, text))

    def _grow(self, size_bytes):
        with self._fs._lock:
            self._inner.preallocate(size_bytes)
            text = f"grow {self._text} to {size_bytes} bytes"
            self._fs._history.steps.append(Write(self._node, size_bytes, b"", text))

    def _sync(self, *, data_only):
        sync = self._inner.sync_data if data_only else self._inner.sync
        self._fs._sync(self._node, self._text, sync, data_only=data_only)

    def _close(self):
        self._inner.close()


class FailingFs(FileSystem):
    """Passes changes on to `inner` and answers change number `fail_at` (from 0) with the errno `error`.

    once    only this one; without it every later change fails, too: a disk that died, or stays full
    short   a write that fails first writes half of its bytes: a full disk does
    calls   the words of every change asked for, also of those that were refused
    """

    def __init__(self, inner, fail_at=None, error=None, *, once=False, short=False):
        if (fail_at is None) != (error is None):
            raise ValueError("fail_at and error go together")
        self.calls = []
        self._inner = inner
        self._fail_at = fail_at
        self._error = error
        self._once = once
        self._short = short
        self._lock = threading.Lock()       # a change has one number, whichever thread makes it

    @property
    def failed(self):
        """Whether the error was given at least once: a workload may be over before."""
        return self._fail_at is not None and len(self.calls) > self._fail_at

    def fail(self, fail_at, error, *, once=False):
        """From here on change number `fail_at` is answered so."""
        self._fail_at, self._error, self._once = fail_at, error, once

    def heal(self):
        """From here on nothing fails: the disk is well again, or it is another process's turn."""
        self._fail_at = None

    def _fails(self, text):
        with self._lock:
            number = len(self.calls)
            self.calls.append(text)
        return self._fail_at is not None and (number == self._fail_at if self._once else number >= self._fail_at)

    def _refuse(self, word, path):
        return storage_error(OSError(self._error, os.strerror(self._error)), word, path)

    def _call(self, word, path, *more):
        if self._fails(" ".join([word, os.fspath(path)])):
            raise self._refuse(word, path)
        return getattr(self._inner, word)(path, *more)

    def create(self, path, within=None, mode=0o666):
        return FailingFile(self, self._call("create", path, within, mode))

    def open_write(self, path, position=None):
        return FailingFile(self, self._call("open_write", path, position))

    def sync_file(self, path):
        self._call("sync_file", path)

    def sync_directory(self, path):
        self._call("sync_directory", path)

    def rename(self, source, target):
        self._call("rename", source, target)

    def replace(self, source, target):
        self._call("replace", source, target)

    def exchange(self, one, other):
        self._call("exchange", one, other)

    def link(self, source, target):
        self._call("link", source, target)

    def unlink(self, path, within=None):
        self._call("unlink", path, within)

    def mkdir(self, path):
        self._call("mkdir", path)

    def rmdir(self, path, within=None):
        self._call("rmdir", path, within)

    def truncate(self, path, size_bytes):
        self._call("truncate", path, size_bytes)

    def set_mtime(self, path, mtime_ns):
        self._call("set_mtime", path, mtime_ns)


class NoRoom(OsFileSystem):
    """Has no room for another .log."""

    def create(self, path, within=None, mode=0o666):
        if os.fspath(path).endswith(".log.tmp"):
            raise storage_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "create", path)
        return super().create(path, within, mode)


class SlowSync(FailingFs):
    """Once armed, a sync of a .log waits until it is let go."""

    def __init__(self):
        super().__init__(OsFileSystem())
        self.begun, self.go = threading.Event(), threading.Event()
        self.armed = False

    def _fails(self, text):
        if self.armed and text.startswith("sync ") and text.endswith(".log"):
            self.begun.set()
            self.go.wait()
        return False


class HeldSyncFs(OsFileSystem):
    """Syncs of files whose names end in `suffix` wait until `go`; then they fail, if there is an `error`."""

    def __init__(self, suffix=".log"):
        self._suffix = suffix
        self.go, self.syncing = threading.Event(), threading.Event()
        self.error = None
        self.go.set()

    def open_write(self, path, position=None):
        return self._held(super().open_write(path, position))

    def _held(self, file):
        if str(file.path).endswith(self._suffix):
            sync = file.sync_data

            def held():
                self.syncing.set()
                assert self.go.wait(120)
                if self.error is not None:
                    raise self.error
                sync()

            file.sync_data = held
        return file


class HeldNameFs(OsFileSystem):
    """Once armed, the next file that is to take a name that ends in `suffix` waits, written, until `go`."""

    def __init__(self, suffix):
        self._suffix = suffix
        self.begun, self.go = threading.Event(), threading.Event()
        self.armed = False

    def replace(self, source, target):
        if self.armed and os.fspath(target).endswith(self._suffix):
            self.armed = False
            self.begun.set()
            assert self.go.wait(120)
        super().replace(source, target)


class HeldWriteFs(FailingFs):
    """Once armed, the next write to a file whose name ends in `suffix` waits in the system until `go`: closing its
    descriptor does not end it."""

    def __init__(self, suffix):
        super().__init__(OsFileSystem())
        self._suffix = suffix
        self.begun, self.go = threading.Event(), threading.Event()
        self.armed = False

    def create(self, path, within=None, mode=0o666):
        return HeldFile(self, self._inner.create(path, within, mode))

    def open_write(self, path, position=None):
        return HeldFile(self, self._inner.open_write(path, position))

    def holds(self, path):
        if not self.armed or not os.fspath(path).endswith(self._suffix):
            return False
        self.armed = False
        return True


class FailingFile(WritableFile):
    """Made by FailingFs."""

    def __init__(self, fs, inner):
        super().__init__(inner.path, inner.position)
        self._fs = fs
        self._inner = inner

    def fileno(self):
        return self._inner.fileno()

    def _write(self, views, position):
        if self._fs._fails(f"write {self.path}"):
            if self._fs._short:
                data = b"".join(views)
                self._inner.write_at(position, data[: len(data) // 2])
            raise self._fs._refuse("write", self.path)
        self._inner.write_at(position, *views)

    def _grow(self, size_bytes):
        if self._fs._fails(f"preallocate {self.path}"):
            raise self._fs._refuse("preallocate", self.path)
        self._inner.preallocate(size_bytes)

    def _sync(self, *, data_only):
        if self._fs._fails(f"sync {self.path}"):
            raise self._fs._refuse("sync", self.path)
        (self._inner.sync_data if data_only else self._inner.sync)()

    def _close(self):
        self._inner.close()


class HeldFile(FailingFile):
    """Made by HeldWriteFs."""

    def _write(self, views, position):
        if not self._fs.holds(self.path):
            super()._write(views, position)
            return
        fd = os.dup(self.fileno())
        self._fs.begun.set()
        assert self._fs.go.wait(120)
        os.pwrite(fd, b"".join(views), position)
        os.close(fd)
