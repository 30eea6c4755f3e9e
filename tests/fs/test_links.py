"""Symbolic links where our own files stand: nothing is written through one, and a partition with two names is one."""
import errno
import os
import subprocess
import sys

import pytest

import seglog
from seglog.errors import ForkedHandleError, LogLockedError, StorageError
from seglog.fs.files import OsFileSystem
from seglog.fs.lock import SHARED, holder, lock_log_dir, lock_partition
from seglog.fs.partition_locks import holder_of, lock_alone, names_of
from support.command import seglog as command

FS = OsFileSystem()
SECRET = b"a file of somebody's, longer than the note that a lock file has in it " * 4


@pytest.fixture
def elsewhere(tmp_path):
    path = tmp_path / "elsewhere"
    path.write_bytes(SECRET)
    return path


@pytest.mark.parametrize("leads_to", ["elsewhere", "nowhere"])
def test_a_lock_file_that_is_a_link_is_refused(tmp_path, elsewhere, leads_to):
    takers = {"lock_partition": ".seglog.lock", "lock_log_dir": ".lock", "turns": ".seglog.lock"}
    for taker, name in takers.items():
        (tmp_path / taker / "orders-0").mkdir(parents=True)
        (tmp_path / taker / "orders-0" / name).symlink_to(tmp_path / leads_to)
    # A dangling one hung: neither opening nor creating it succeeds. In a process of its own, so that it can be ended.
    script = (
        "import sys; from seglog.fs.files import OsFileSystem; from seglog.fs import lock\n"
        "for taker in sys.argv[2:]:\n"
        "    print(taker, flush=True)\n"
        "    try: getattr(lock, taker)(OsFileSystem(), f'{sys.argv[1]}/{taker}/orders-0')\n"
        "    except Exception as error: print(type(error).__name__, error.errno, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path, *takers], capture_output=True, text=True, timeout=30, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[::2] == list(takers), done.stdout
    for said in lines[1::2]:
        assert said.startswith(f"StorageError {errno.ELOOP} "), done.stdout
        assert "symbolic link" in said
    assert elsewhere.read_bytes() == SECRET
    assert not (tmp_path / "nowhere").exists()


def test_a_log_with_a_link_for_a_lock_file_does_not_open(tmp_path, elsewhere):
    seglog.open(tmp_path / "data/orders-0").close()
    (tmp_path / "data/orders-0/.seglog.lock").unlink()
    (tmp_path / "data/orders-0/.seglog.lock").symlink_to(elsewhere)
    with pytest.raises(StorageError, match="symbolic link"):
        seglog.open(tmp_path / "data/orders-0")
    assert elsewhere.read_bytes() == SECRET


def test_a_lock_file_that_is_another_name_of_a_file_keeps_its_bytes(tmp_path, elsewhere):
    directory = tmp_path / "orders-0"
    directory.mkdir()
    os.link(elsewhere, directory / ".seglog.lock")
    with lock_partition(FS, directory):
        assert elsewhere.read_bytes() == SECRET


def test_nothing_is_opened_for_writing_through_a_link(tmp_path, elsewhere):
    (tmp_path / "link").symlink_to(elsewhere)
    with pytest.raises(StorageError) as caught:
        FS.open_write(tmp_path / "link")
    assert caught.value.errno == errno.ELOOP
    for name in ("link", "dangling"):
        if name == "dangling":
            (tmp_path / name).symlink_to(tmp_path / "nowhere")
        with pytest.raises(StorageError) as caught:
            FS.create(tmp_path / name)
        assert caught.value.errno == errno.EEXIST
    assert elsewhere.read_bytes() == SECRET
    assert not (tmp_path / "nowhere").exists()


def test_a_pipe_that_is_named_as_a_lock_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / ".lock")
    script = "import sys; from seglog.fs.lock import holder; print(holder(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, timeout=30, check=True)
    assert done.stdout == b"None\n"


# --- a lock file that goes away ------------------------------------------------------------------


@pytest.mark.parametrize("name", [".seglog.lock", "../.lock"])
@pytest.mark.parametrize("made_again", [False, True])
def test_a_writer_notices_that_its_lock_file_was_removed(tmp_path, name, made_again):
    log = seglog.open(tmp_path / "data/orders-0", config={"segment.bytes": 2000})
    log.append(b"before")
    lock_file = tmp_path / "data/orders-0" / name
    lock_file.unlink()
    if made_again:
        lock_file.touch()

    def append_up_to_a_roll():
        for _ in range(100):
            log.append(b"x" * 100)

    with pytest.raises(StorageError, match="removed or replaced"):
        append_up_to_a_roll()
    log.close()
    # Nothing of it is lost, and the next one recovers.
    with seglog.open(tmp_path / "data/orders-0") as log:
        assert next(iter(log.read())).value == b"before"


def test_a_lock_that_was_not_touched_passes_the_check(tmp_path):
    with lock_partition(FS, tmp_path) as lock, lock_log_dir(FS, tmp_path, SHARED) as share:
        lock.check_file()
        share.check_file()
    with pytest.raises(StorageError, match="released"):
        lock.check_file()
    lock = lock_partition(FS, tmp_path)
    pid = os.fork()
    if pid == 0:
        try:
            lock.check_file()
        except ForkedHandleError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    lock.release()


# --- a partition with several names --------------------------------------------------------------


@pytest.fixture
def linked(tmp_path):
    """(the link in a log dir, the directory elsewhere, a second link by way of the first)"""
    real = tmp_path / "big/orders-0"
    real.mkdir(parents=True)
    for name in ("kafka", "other"):
        (tmp_path / name).mkdir()
    link = tmp_path / "kafka/orders-0"
    link.symlink_to("../big/orders-0")
    second = tmp_path / "other/orders-0"
    second.symlink_to(link)
    return link, real, second


def test_a_partition_stands_in_a_log_dir_for_each_of_its_names(linked):
    link, real, second = linked
    assert names_of(real) == [real]
    assert names_of(link) == [link, real]
    assert names_of(second) == [second, link, real]
    # The log dir itself may be a link: that is one place.
    (real.parent.parent / "by-link").symlink_to(link.parent)
    assert names_of(real.parent.parent / "by-link/orders-0") == [link, real]
    loop = real.parent / "loop-0"
    loop.symlink_to(loop)
    assert names_of(loop) == [loop]


def test_who_is_alone_in_a_partition_is_alone_in_all_its_log_dirs(linked):
    link, real, second = linked
    with lock_alone(FS, second):
        for place in (link, real, second):
            assert holder(place.parent) is not None
            with pytest.raises(LogLockedError):
                lock_log_dir(FS, place.parent, SHARED)
    for place in (link, real, second):
        assert holder_of(place) is None
        with lock_log_dir(FS, place.parent, SHARED):
            assert holder_of(second)[1] == place.parent
            with pytest.raises(LogLockedError), lock_alone(FS, second):
                pass
    with lock_partition(FS, real), pytest.raises(LogLockedError), lock_alone(FS, link):
        pass


def test_who_is_alone_may_come_by_a_link_to_a_neighbour(tmp_path):
    """Its log dir was locked twice, and the second time refused: this process already holds the lock."""
    with seglog.open(tmp_path / "orders-0") as log:
        log.append(b"value")
    link = tmp_path / "payments-0"
    link.symlink_to("orders-0")
    with lock_alone(FS, link):
        assert holder(tmp_path).name == "this process"
        for path in (link, tmp_path / "orders-0"):
            with pytest.raises(LogLockedError):
                seglog.open(path)
    assert holder(tmp_path) is None
    command("index", "rebuild", link)


def test_a_writer_by_a_link_keeps_a_broker_out_of_both_log_dirs(linked):
    link, real, _ = linked
    with seglog.open(link) as log:
        log.append(b"x")
        for place in (link, real):
            with pytest.raises(LogLockedError):
                lock_log_dir(FS, place.parent)
    for place in (link, real):
        lock_log_dir(FS, place.parent).release()
    with lock_log_dir(FS, real.parent), pytest.raises(LogLockedError):
        seglog.open(link)
    with seglog.open(link) as log:
        assert log.log_end_offset == 1
