"""OsFileSystem: each change does all of it or says, in words, what was refused."""
import errno
import fcntl
import os
import pickle
import resource
import subprocess
import sys
import threading
from array import array

import pytest

from seglog.errors import StorageError
from seglog.fs import files as files_module
from seglog.fs.files import OsFile, OsFileSystem
from seglog.fs.refusals import _REFUSALS, refusals, storage_error

FS = OsFileSystem()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "00000000000000000000.log"


@pytest.fixture
def file(path):
    with FS.create(path) as file:
        yield file


def refused(number):
    """A system call that is refused with this errno."""

    def call(*_, **__):
        raise OSError(number, os.strerror(number))

    return call


# --- writing -----------------------------------------------------------------------------


def test_appends_follow_each_other(file, path):
    assert file.append(b"one") == 0
    assert file.append(b"two", bytearray(b"three"), b"", memoryview(b"four")) == 3
    assert file.position == 15
    assert path.read_bytes() == b"onetwothreefour"


def test_any_buffer_is_written_as_its_bytes(file, path):
    file.append(array("q", [1, 2]), memoryview(array("i", [3])))
    assert path.read_bytes() == array("q", [1, 2]).tobytes() + array("i", [3]).tobytes()


def test_appending_nothing_is_no_change(file):
    assert file.append() == file.append(b"", b"") == 0
    assert not file.unsynced


def test_an_opened_file_is_appended_to_at_its_end(path):
    path.write_bytes(b"before")
    with FS.open_write(path) as file:
        assert file.append(b", after") == 6
    assert path.read_bytes() == b"before, after"


def test_a_file_with_a_preallocated_tail_is_appended_to_where_its_data_ends(file, path):
    file.append(b"data")
    file.preallocate(4096)
    file.preallocate(100)      # never shorter
    assert path.stat().st_size == 4096
    assert file.append(b"more") == 4
    with FS.open_write(path, position=8) as again:
        again.append(b"!")
    assert path.read_bytes() == b"datamore!".ljust(4096, b"\0")


def test_write_at_leaves_the_place_of_the_next_append(file, path):
    file.append(b"0123456789")
    file.write_at(2, b"ab", b"c")
    assert file.append(b"end") == 10
    assert path.read_bytes() == b"01abc56789end"


def test_a_write_at_a_negative_position_is_refused(file):
    with pytest.raises(ValueError, match="-1"):
        file.write_at(-1, b"x")


@pytest.mark.parametrize("at_once", [1, 2, 3, 7])
def test_short_writes_are_carried_on(file, path, monkeypatch, at_once):
    pwrite = os.pwrite

    def short(fd, data, position):
        return pwrite(fd, memoryview(data)[:at_once], position)

    monkeypatch.setattr(os, "pwrite", short)
    monkeypatch.setattr(os, "pwritev", lambda fd, views, position: short(fd, b"".join(views), position))
    file.append(b"alone in its call")
    file.append(b"some", b"", b"buffers", b"together")
    assert file.append_bytes(b"a piece") == 36
    assert file.append_bytes(memoryview(b"a view")) == 43
    assert file.position == 49
    assert path.read_bytes() == b"alone in its callsomebufferstogethera piecea view"


def test_a_short_write_of_one_piece_is_carried_on(file, path, monkeypatch):
    limits, pwritev = resource.getrlimit(resource.RLIMIT_FSIZE), os.pwritev

    def with_room(*args):
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        return pwritev(*args)

    monkeypatch.setattr(os, "pwritev", with_room)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5, limits[1]))
    try:
        assert file.append_bytes(b"a piece") == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.position == 7
    assert path.read_bytes() == b"a piece"


def test_reserved_space_is_no_part_of_the_file_and_is_given_back(file, path):
    def allocated_bytes():
        return path.stat().st_blocks * 512

    file.append_bytes(b"data")
    if not file.reserve(1 << 20):
        pytest.skip("this file system sets no space aside")
    assert allocated_bytes() >= 1 << 20
    assert path.read_bytes() == b"data"
    assert file.append_bytes(b" more") == 4
    file.release()
    assert path.read_bytes() == b"data more"
    assert allocated_bytes() < 1 << 20


def test_space_that_is_refused_is_no_error(file, path):
    assert not file.reserve(1 << 62)
    assert file.append_bytes(b"data") == 0
    file.close()
    assert not file.reserve(1 << 20)
    file.release()


def test_a_write_that_moves_nothing_is_an_error_and_not_a_loop(file, monkeypatch):
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with pytest.raises(StorageError, match="cannot write"):
        file.append(b"a", b"b")


def test_many_and_large_buffers_are_split_over_calls(file, path, monkeypatch):
    monkeypatch.setattr(files_module, "_WRITE_BYTES_MAX", 1000)
    monkeypatch.setattr(files_module, "_BUFFERS_MAX", 16)
    buffers = [bytes([n % 256]) * (n % 97) for n in range(1500)] + [b"x" * 4096]
    file.append(*buffers)
    file.append(b"y" * 2500)
    file.append_bytes(b"z" * 2500)
    assert path.read_bytes() == b"".join(buffers) + b"y" * 2500 + b"z" * 2500


# --- syncing -----------------------------------------------------------------------------


def test_a_file_knows_whether_it_is_synced(file):
    assert not file.unsynced
    file.append(b"x")
    assert file.unsynced
    file.sync_data()
    assert not file.unsynced
    file.write_at(0, b"y")
    assert file.unsynced
    file.sync()
    assert not file.unsynced
    file.preallocate(10)
    assert file.unsynced


class SlowWrite(OsFile):
    """A write that waits, once it has begun, until it is let go; by Python's way of writing."""

    def __init__(self, path, fd, position):
        super().__init__(path, fd, position)
        self.begun, self.go = threading.Event(), threading.Event()

    def _write(self, views, position):
        self.begun.set()
        assert self.go.wait(20)
        super()._write(views, position)


@pytest.mark.parametrize("sync", ["sync", "sync_data"])
@pytest.mark.parametrize("write", ["append", "write_at"])
def test_a_sync_that_begins_during_a_write_does_not_cover_it(path, write, sync):
    with SlowWrite(path, os.open(path, os.O_RDWR | os.O_CREAT), 0) as file:
        writing = threading.Thread(target=getattr(file, write), args=(b"x",) if write == "append" else (0, b"x"))
        writing.start()
        assert file.begun.wait(20)
        getattr(file, sync)()
        file.go.set()
        writing.join()
        assert file.unsynced
        file.sync()
        assert not file.unsynced


def test_a_sync_that_begins_during_a_write_of_the_kernel_does_not_cover_it(in_memory):
    """The system makes a long write page by page, so that its beginning can be seen in the file's length."""
    piece = bytes(64 << 20)
    for attempt in range(20):
        path = in_memory / f"{attempt}.log"
        with FS.create(path) as file:
            writing = threading.Thread(target=file.append_bytes, args=(piece,))
            writing.start()
            while os.fstat(file.fileno()).st_size == 0:
                pass
            file.sync_data()
            began_before_its_end = os.fstat(file.fileno()).st_size < len(piece)
            writing.join()
            assert file.unsynced or not began_before_its_end
        path.unlink()
        if began_before_its_end:
            return
    pytest.fail("no sync began during a write")


def test_an_interrupted_write_is_unsynced(path):
    class Interrupted(OsFile):
        def _write(self, views, position):
            super()._write(views, position)
            self.sync()
            raise KeyboardInterrupt

    with Interrupted(path, os.open(path, os.O_RDWR | os.O_CREAT), 0) as file:
        with pytest.raises(KeyboardInterrupt):
            file.append(b"x")
        assert file.unsynced


# The two calls, told on standard output in place of being done.
TOLD = """
#include <unistd.h>
int fsync(int fd) { return write(1, "fsync\\n", 6) == 6 ? 0 : -1; }
int fdatasync(int fd) { return write(1, "fdatasync\\n", 10) == 10 ? 0 : -1; }
"""


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has one kind of sync")
def test_sync_data_is_fdatasync_and_sync_is_fsync(tmp_path):
    """By what the process asks of the system: the kernel that syncs calls no function of Python's."""
    (tmp_path / "told.c").write_text(TOLD)
    library = tmp_path / "told.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "told.c"], check=True)
    script = (
        "import sys; from seglog.fs.files import OsFileSystem as Fs\n"
        "file = Fs().create(sys.argv[1]); file.sync(); file.sync_data()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "file"], env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True, text=True, check=True,
    )
    assert done.stdout.split() == ["fsync", "fdatasync"]


def test_macos_is_asked_for_f_fullfsync(file, monkeypatch):
    calls = []
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, command: calls.append(command))
    # (What both are where the kernel is built there.)
    file._sync_all(False)
    file._sync_all(True)
    assert calls == [51, 51]


def test_where_macos_cannot_fsync_must_do(file, monkeypatch):
    calls = []
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", refused(errno.ENOTSUP))
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("fsync"))
    file._sync_all(False)
    assert calls == ["fsync"]
    monkeypatch.setattr(fcntl, "fcntl", refused(errno.EIO))
    with pytest.raises(StorageError, match="input/output error"):
        file._sync_all(False)


def test_after_a_failed_sync_the_file_is_used_no_more(file):
    file.append(b"x")
    reader, writer = os.pipe()
    os.dup2(writer, file.fileno())      # which cannot be synced
    os.close(reader)
    os.close(writer)
    with pytest.raises(StorageError, match="cannot sync: "):
        file.sync()
    assert file.unsynced
    for use in (
        file.sync, file.sync_data, lambda: file.append(b"y"), lambda: file.append_bytes(b"y"),
        lambda: file.write_at(0, b"y"),
    ):
        with pytest.raises(StorageError, match="cannot continue after an error: cannot sync") as refusal:
            use()
        assert refusal.value.errno == errno.EINVAL
    file.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux and the BSDs")
@pytest.mark.parametrize("method", ["append", "append_bytes"])
def test_after_a_failed_write_the_file_is_used_no_more(file, method):
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, file.fileno())
    os.close(full)
    with pytest.raises(StorageError, match="no space is left"):
        getattr(file, method)(b"x")
    assert file.position == 0
    with pytest.raises(StorageError, match="cannot continue after an error: cannot write: no space"):
        file.sync()


def test_a_closed_file_says_so(file):
    file.close()
    file.close()
    assert file.closed
    for append in (file.append, file.append_bytes):
        with pytest.raises(StorageError, match="closed"):
            append(b"x")


def test_a_forgotten_file_gives_its_descriptor_back(path):
    before = len(os.listdir("/dev/fd"))
    with pytest.warns(ResourceWarning, match="was not closed"):
        FS.create(path)
    assert len(os.listdir("/dev/fd")) == before


def test_sync_of_a_path_and_of_a_directory(path, tmp_path, monkeypatch):
    synced = []
    path.touch()
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    FS.sync_file(path)
    FS.sync_directory(tmp_path)
    assert synced == [path.stat().st_ino, tmp_path.stat().st_ino]


# --- names -------------------------------------------------------------------------------


def test_create_refuses_what_is_there(path):
    path.touch()
    with pytest.raises(StorageError, match="cannot create: it exists already") as refusal:
        FS.create(path)
    assert refusal.value.errno == errno.EEXIST


def test_rename_wants_a_free_name(path, tmp_path):
    path.write_bytes(b"new")
    FS.rename(path, tmp_path / "free")
    (tmp_path / "taken").write_bytes(b"old")
    (tmp_path / "empty").mkdir()
    for target in ("taken", "empty"):
        with pytest.raises(StorageError, match="it exists already") as refusal:
            FS.rename(tmp_path / "free", tmp_path / target)
        assert refusal.value.file == str(tmp_path / "free")
    assert (tmp_path / "taken").read_bytes() == b"old"


def test_a_directory_is_not_renamed_over_an_empty_one(tmp_path):
    # rename(2) would do it.
    (tmp_path / "built").mkdir()
    (tmp_path / "target").mkdir()
    with pytest.raises(StorageError, match="it exists already"):
        FS.rename(tmp_path / "built", tmp_path / "target")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS])
def test_rename_looks_first_where_the_system_cannot_do_it_in_one_step(path, tmp_path, monkeypatch, number):
    monkeypatch.setattr(files_module, "_rename_with_flag", refused(number))
    path.write_bytes(b"new")
    FS.rename(path, tmp_path / "free")
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(StorageError, match="it exists already"):
        FS.rename(tmp_path / "free", tmp_path / "dangling")


def test_a_c_library_without_renameat2_is_enosys(path, tmp_path, monkeypatch):
    monkeypatch.setattr(files_module, "_system_rename", lambda name: getattr(object(), name))
    path.touch()
    FS.rename(path, tmp_path / "free")
    with pytest.raises(StorageError, match="this system cannot do that"):
        FS.exchange(tmp_path / "free", tmp_path / "other")


def test_replace_takes_the_place_of_a_file(path, tmp_path):
    path.write_bytes(b"new")
    (tmp_path / "old").write_bytes(b"old")
    FS.replace(path, tmp_path / "old")
    assert (tmp_path / "old").read_bytes() == b"new"
    assert not path.exists()


def test_exchange_swaps_two_directories(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"of-{name}").touch()
    try:
        FS.exchange(tmp_path / "one", tmp_path / "other")
    except StorageError as refusal:
        pytest.skip(str(refusal))
    assert os.listdir(tmp_path / "one") == ["of-other"]
    assert os.listdir(tmp_path / "other") == ["of-one"]


def test_link_and_unlink(path, tmp_path):
    path.write_bytes(b"x")
    FS.link(path, tmp_path / "second")
    FS.unlink(path)
    assert (tmp_path / "second").read_bytes() == b"x"
    (tmp_path / "third").touch()
    with pytest.raises(StorageError, match="it exists already"):
        FS.link(tmp_path / "second", tmp_path / "third")


def test_directories_come_and_go(tmp_path):
    FS.mkdir(tmp_path / "orders-0")
    with pytest.raises(StorageError, match="cannot make a directory: it exists already"):
        FS.mkdir(tmp_path / "orders-0")
    (tmp_path / "orders-0/file").touch()
    with pytest.raises(StorageError, match="the directory is not empty"):
        FS.rmdir(tmp_path / "orders-0")
    FS.unlink(tmp_path / "orders-0/file")
    FS.rmdir(tmp_path / "orders-0")
    assert os.listdir(tmp_path) == []


def test_the_time_of_a_file_is_set_to_the_nanosecond(path):
    path.touch()
    FS.set_mtime(path, 1_700_000_000_123_456_789)
    assert path.stat().st_mtime_ns == 1_700_000_000_123_456_789


# --- what is refused, in words -----------------------------------------------------------


def test_wrong_places_are_said_in_words(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="expected a file, found a directory"):
        FS.open_write(tmp_path)
    with pytest.raises(StorageError, match="expected a directory, found a file"):
        FS.create(tmp_path / "file" / "under")
    with pytest.raises(StorageError, match="expected a directory, found a file"):
        FS.sync_directory(tmp_path / "file")
    with pytest.raises(StorageError, match="no such file"):
        FS.open_write(tmp_path / "gone")
    with pytest.raises(StorageError, match="no such file"):
        FS.unlink(tmp_path / "gone")
    with pytest.raises(StorageError, match="too long"):
        FS.create(tmp_path / ("x" * 300))


@pytest.mark.parametrize("number", sorted(_REFUSALS))
def test_every_refusal_says_what_where_and_what_to_do(number):
    error = storage_error(OSError(number, os.strerror(number)), "write", "/data/x.log")
    assert error.what.startswith("cannot write: ")
    assert error.where == "/data/x.log"
    assert error.hint
    assert error.errno == number
    assert error.exit_status == 3


def test_an_errno_without_words_keeps_the_system_s():
    assert storage_error(OSError(errno.EPIPE, "Broken pipe"), "write", "/x").what == "cannot write: Broken pipe"
    assert storage_error(OSError("odd"), "write", "/x").what == "cannot write: odd"


def test_other_exceptions_pass_through():
    with pytest.raises(KeyError), refusals("write", "/x"):
        raise KeyError


def test_a_storage_error_crosses_a_process_border_whole():
    error = pickle.loads(pickle.dumps(storage_error(OSError(errno.EIO, "x"), "sync", "/data/x.log")))
    assert (error.errno, error.file, error.hint) == (errno.EIO, "/data/x.log", _REFUSALS[errno.EIO][1])


@pytest.mark.skipif(os.getuid() == 0, reason="root may do everything")
def test_a_directory_that_may_not_be_written_is_said_in_words(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(StorageError, match="permission denied"):
        FS.create(tmp_path / "x")
