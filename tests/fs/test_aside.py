"""Files that hold what they held or what they should hold, and nothing between."""
import errno
import os

import pytest

from seglog.errors import StorageError
from seglog.fs.aside import make_directories, make_directory, shorten, write_atomically, write_derived
from seglog.fs.files import OsFileSystem
from seglog.fs.mapping import Mapping
from seglog.fs.refusals import storage_error
from support.faultfs import FailingFs

FS = OsFileSystem()


class Refusing(OsFileSystem):
    """Refuses the calls that are named."""

    def __init__(self, *calls):
        for call in calls:
            setattr(self, call, self.refuse)

    def refuse(self, path, *_, **__):
        raise StorageError("refused", file=path, errno=errno.EIO)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "leader-epoch-checkpoint"


def test_a_file_is_made_or_replaced(path, tmp_path):
    write_atomically(FS, path, b"0\n", b"0\n")
    assert path.read_bytes() == b"0\n0\n"
    write_atomically(FS, path, b"0\n1\n0 0\n")
    assert path.read_bytes() == b"0\n1\n0 0\n"
    assert os.listdir(tmp_path) == [path.name]


def test_a_path_without_directory_is_in_this_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_atomically(FS, "here", b"x")
    assert (tmp_path / "here").read_bytes() == b"x"


def test_what_a_killed_run_left_is_replaced(path, tmp_path):
    (tmp_path / f"{path.name}.tmp").write_bytes(b"half of something lon")
    write_atomically(FS, path, b"short")
    assert path.read_bytes() == b"short"
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("call", ["replace", "link"])
def test_a_refusal_leaves_the_old_bytes_and_no_scratch(path, tmp_path, call):
    path.write_bytes(b"old")
    with pytest.raises(StorageError, match="refused"):
        write_atomically(Refusing(call), path, b"new", backup=tmp_path / "bak")
    assert path.read_bytes() == b"old"
    assert path.name + ".tmp" not in os.listdir(tmp_path)


def test_an_interrupt_leaves_the_old_bytes_and_no_scratch(path, tmp_path):
    class Interrupted(OsFileSystem):
        def replace(self, source, target):
            raise KeyboardInterrupt

    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        write_atomically(Interrupted(), path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == [path.name]


def test_a_scratch_that_cannot_be_removed_is_named(path):
    with pytest.raises(StorageError, match="refused") as refusal:
        write_atomically(Refusing("replace", "unlink"), path, b"new")
    assert refusal.value.__notes__[1:] == [f"{path}.tmp is left over: refused"]      # behind the hint


def test_a_create_that_is_refused_for_another_reason_is_no_leftover(path):
    with pytest.raises(StorageError, match="refused"):
        write_atomically(Refusing("create"), path, b"new")


def test_a_backup_keeps_the_file_of_before(path, tmp_path):
    backup = tmp_path / f"{path.name}.bak"
    write_atomically(FS, path, b"one", backup=backup)
    assert not backup.exists()
    write_atomically(FS, path, b"two", backup=backup)
    assert backup.read_bytes() == b"one"
    write_atomically(FS, path, b"three", backup=backup)
    assert backup.read_bytes() == b"two"
    assert path.read_bytes() == b"three"


def test_shortening_leaves_maps_whole(path):
    path.write_bytes(b"0123456789")
    with Mapping(path) as before:
        shorten(FS, path, 4)
        assert path.read_bytes() == b"0123"
        assert bytes(before) == b"0123456789"
    shorten(FS, path, 0)
    assert path.read_bytes() == b""


def test_shortening_makes_nothing_longer(path):
    path.write_bytes(b"0123")
    with pytest.raises(ValueError, match="has 4 bytes, fewer than 5"):
        shorten(FS, path, 5)


def test_only_a_file_with_one_name_is_cut_in_place_and_nothing_becomes_longer(path, tmp_path):
    path.write_bytes(b"0123456789")
    FS.truncate(path, 4)
    assert path.read_bytes() == b"0123"
    with pytest.raises(StorageError, match="cannot truncate") as caught:
        FS.truncate(path, 5)
    assert caught.value.errno == errno.EINVAL
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(StorageError, match="symbolic link"):
        FS.truncate(tmp_path / "link", 1)
    os.link(path, tmp_path / "other")
    with pytest.raises(StorageError, match="hard links"):
        FS.truncate(path, 1)
    assert path.read_bytes() == b"0123"


def test_a_full_disk_is_told_with_how_many_bytes_to_free(path):
    full = FailingFs(FS, fail_at=1, error=errno.ENOSPC)     # the write after the create
    with pytest.raises(StorageError, match="no space") as caught:
        write_atomically(full, path, b"four", b"five")
    assert caught.value.hint == "free at least 65536 bytes on that file system, and run the same command again"


def test_an_old_index_makes_room_for_the_new_one(path, tmp_path):
    class Full(OsFileSystem):
        """Holds one file of this name at a time, besides the others."""

        def create(self, name, within=None, mode=0o666):
            if path.exists():
                raise storage_error(OSError(errno.ENOSPC, "full"), "create", name)
            return super().create(name, within, mode)

    path.write_bytes(b"old")
    with pytest.raises(StorageError, match="no space"):
        write_atomically(Full(), path, b"four")
    (tmp_path / "source").write_bytes(b"")
    (tmp_path / "source").chmod(0o640)
    write_derived(Full(), path, b"new", tmp_path / "source")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o640)


def test_missing_directories_are_made_and_synced_from_above(tmp_path):
    calls = []

    class Recorded(OsFileSystem):
        def mkdir(self, path):
            calls.append(("mkdir", os.path.relpath(path, tmp_path)))
            super().mkdir(path)

        def sync_directory(self, path):
            calls.append(("sync", os.path.relpath(path, tmp_path)))
            super().sync_directory(path)

    (tmp_path / "of somebody").touch()
    make_directories(Recorded(), tmp_path / "a/b")
    assert calls == [("mkdir", "a"), ("sync", "."), ("mkdir", "a/b"), ("sync", "a")]
    make_directories(Recorded(), tmp_path / "a/b")
    assert calls[4:] == [("sync", "a")]     # an empty one may be of a process that was killed before it did that
    (tmp_path / "a/b/file").touch()
    make_directories(Recorded(), tmp_path / "a/b")
    make_directories(Recorded(), tmp_path / "a/b/c")
    assert calls[5:] == [("mkdir", "a/b/c"), ("sync", "a/b")]


def test_the_name_of_an_empty_directory_below_one_that_cannot_be_read_is_somebody_elses(tmp_path):
    class Unreadable(OsFileSystem):
        def sync_directory(self, path):
            raise StorageError("permission denied", file=os.fspath(path), errno=errno.EACCES)

    make_directories(Unreadable(), tmp_path)


def test_a_file_in_the_way_of_a_directory_is_named(tmp_path):
    (tmp_path / "a").touch()
    with pytest.raises(StorageError, match=r"it exists already|expected a directory, found a file"):
        make_directories(FS, tmp_path / "a/b")


def test_a_directory_that_another_process_makes_in_the_same_moment_will_do(tmp_path):
    """Processes of a pool that started together each made their log dir, and one of them met an error."""
    class Raced(OsFileSystem):
        def __init__(self):
            self.synced = []

        def mkdir(self, path):
            os.mkdir(path)
            super().mkdir(path)

        def sync_directory(self, path):
            self.synced.append(os.fspath(path))
            super().sync_directory(path)

    fs = Raced()
    make_directories(fs, tmp_path / "a/b")
    assert fs.synced[-2:] == [str(tmp_path), str(tmp_path / "a")]
    make_directory(fs, tmp_path / "a/b/c")
    assert fs.synced[-1] == str(tmp_path / "a/b")


def test_a_file_in_the_place_of_a_directory_is_refused(tmp_path):
    (tmp_path / "a").touch()
    with pytest.raises(StorageError):
        make_directory(OsFileSystem(), tmp_path / "a")
