"""Locks: who is refused, who is named, and what must not drop a lock."""
import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from seglog.errors import ForkedHandleError, LogLockedError, StorageError
from seglog.fs import kept_lock
from seglog.fs import lock as lock_module
from seglog.fs.files import OsFileSystem
from seglog.fs.lock import EXCLUSIVE, SHARED, Holder, holder, is_locked, lock_log_dir, lock_partition, turns
from support.waiting import line_of

FS = OsFileSystem()

OTHER = """
import sys
from seglog.errors import SeglogError
from seglog.fs.files import OsFileSystem
from seglog.fs.lock import EXCLUSIVE, SHARED, is_locked, lock_log_dir, lock_partition
held = []
for line in sys.stdin:
    command, _, path = line.strip().partition(" ")
    try:
        if command == "release":
            while held: held.pop().release()
        elif command == "is_locked":
            print(is_locked(path), flush=True)
            continue
        elif command == "partition":
            held.append(lock_partition(OsFileSystem(), path))
        else:
            held.append(lock_log_dir(OsFileSystem(), path, {"shared": SHARED, "exclusive": EXCLUSIVE}[command]))
        print("ok", flush=True)
    except SeglogError as error:
        print(f"{error.code} {error.exit_status} {error.what}", flush=True)
"""


class Other:
    """Another process, which takes locks on command."""

    def __init__(self, command=(sys.executable, "-c", OTHER)):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid

    def __call__(self, command, path=""):
        self.process.stdin.write(f"{command} {path}\n")
        self.process.stdin.flush()
        return line_of(self.process).strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def other_process():
    with Other() as other:
        yield other


@pytest.fixture
def other(other_process):
    yield other_process
    other_process("release")


def in_child(what):
    """Run `what` after fork, in the child; its exception's name, or what it returned."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = str(what())
        except BaseException as error:
            answer = type(error).__name__
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        answer = pipe.read().decode()
    os.waitpid(pid, 0)
    return answer


# --- between processes -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs", "answer"),
    [
        (EXCLUSIVE, "exclusive", "locked 5"),
        (EXCLUSIVE, "shared", "locked 5"),
        (SHARED, "exclusive", "locked 5"),
        (SHARED, "shared", "ok"),
    ],
)
def test_shared_goes_with_shared_and_nothing_else(tmp_path, other, ours, theirs, answer):
    with lock_log_dir(FS, tmp_path, ours):
        assert other(theirs, tmp_path).startswith(answer)
    other("release")
    assert other("exclusive", tmp_path) == "ok"


def test_the_holder_is_named(tmp_path, other):
    assert other("exclusive", tmp_path) == "ok"
    with pytest.raises(LogLockedError, match=f"locked by process {other.pid} ") as refusal:
        lock_log_dir(FS, tmp_path)
    assert refusal.value.exit_status == 5
    assert refusal.value.file == str(tmp_path / ".lock")
    assert holder(tmp_path).pid == other.pid


def test_a_killed_holder_holds_nothing(tmp_path):
    with Other() as other:
        assert other("exclusive", tmp_path) == "ok"
        other.process.kill()
        other.process.wait()
        lock_log_dir(FS, tmp_path).release()


def test_a_refused_attempt_leaves_the_lock_with_its_holder(tmp_path, other):
    assert other("exclusive", tmp_path) == "ok"
    for _ in range(2):
        with pytest.raises(LogLockedError):
            lock_log_dir(FS, tmp_path)
    assert is_locked(tmp_path)


def test_partitions_of_one_log_dir_have_writers_of_their_own(tmp_path, other):
    for name in ("orders-0", "orders-1"):
        (tmp_path / name).mkdir()
    with lock_log_dir(FS, tmp_path, SHARED), lock_partition(FS, tmp_path / "orders-0"):
        assert other("shared", tmp_path) == "ok"
        assert other("partition", tmp_path / "orders-1") == "ok"
        assert other("partition", tmp_path / "orders-0").startswith("locked 5 locked by process")


def test_a_partition_s_lock_file_says_who_holds_it(tmp_path, monkeypatch):
    monkeypatch.setattr("seglog.fs.kept_lock.host_name", lambda: "a-host-with-a-long-name")
    lock_partition(FS, tmp_path).release()
    monkeypatch.setattr("seglog.fs.kept_lock.host_name", lambda: "short")
    with lock_partition(FS, tmp_path):
        note = (tmp_path / ".seglog.lock").read_bytes()     # drops the lock: nobody but a test may do this
    assert note.decode().split()[:2] == [str(os.getpid()), "short"]
    assert lock_module._noted(note) == f"process {os.getpid()} on short"


@pytest.mark.parametrize("note", [b"", b"\xff\xfe", b"no number", b"12\x00\x01 x\x07y"])
def test_a_note_that_is_none_is_not_quoted(note):
    assert lock_module._noted(note) == ""


def test_a_lock_file_of_kafka_stays_empty(tmp_path):
    with lock_log_dir(FS, tmp_path):
        assert (tmp_path / ".lock").stat().st_size == 0


def test_the_lock_file_stays_behind(tmp_path):
    lock_log_dir(FS, tmp_path).release()
    assert os.listdir(tmp_path) == [".lock"]


# --- within a process --------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), [(EXCLUSIVE, EXCLUSIVE), (EXCLUSIVE, SHARED), (SHARED, EXCLUSIVE)])
def test_a_process_excludes_itself_as_it_excludes_others(tmp_path, first, second):
    with lock_log_dir(FS, tmp_path, first):
        with pytest.raises(LogLockedError, match="this process already holds the lock"):
            lock_log_dir(FS, tmp_path, second)
        assert is_locked(tmp_path)
    lock_log_dir(FS, tmp_path, second).release()


def test_shared_locks_of_one_process_share_one_descriptor(tmp_path, other):
    before = len(os.listdir("/dev/fd"))
    locks = [lock_log_dir(FS, tmp_path, SHARED) for _ in range(3)]
    assert len(os.listdir("/dev/fd")) == before + 1
    for lock in locks[:2]:
        lock.release()
        assert other("exclusive", tmp_path).startswith("locked")
    locks[2].release()
    assert len(os.listdir("/dev/fd")) == before
    assert other("exclusive", tmp_path) == "ok"


def test_releasing_twice_does_not_let_go_of_another_s_share(tmp_path, other):
    one, two = lock_log_dir(FS, tmp_path, SHARED), lock_log_dir(FS, tmp_path, SHARED)
    one.release()
    one.release()
    assert other("exclusive", tmp_path).startswith("locked")
    two.release()


def test_one_directory_has_one_lock_by_whatever_path(tmp_path, other):
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    with lock_log_dir(FS, tmp_path / "data", SHARED) as one:
        two = lock_log_dir(FS, tmp_path / "link", SHARED)
        two.release()
        assert one.held
        assert other("exclusive", tmp_path / "data").startswith("locked")
        with pytest.raises(LogLockedError):
            lock_log_dir(FS, tmp_path / "link", EXCLUSIVE)


def test_looking_does_not_drop_a_lock_of_this_process(tmp_path, other):
    (tmp_path / "link").symlink_to(tmp_path)
    with lock_log_dir(FS, tmp_path):
        assert is_locked(tmp_path)
        assert holder(tmp_path / "link") == Holder(os.getpid(), "this process")
        assert other("is_locked", tmp_path) == "True"
        assert other("exclusive", tmp_path).startswith("locked")


def test_threads_that_look_and_lock_never_lose_a_lock(tmp_path, other):
    stop = threading.Event()

    def look():
        while not stop.is_set():
            is_locked(tmp_path)

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(30):
            with lock_log_dir(FS, tmp_path):
                assert other("is_locked", tmp_path) == "True"
    finally:
        stop.set()
        for looker in lookers:
            looker.join()


def test_a_released_lock_says_so(tmp_path):
    lock = lock_log_dir(FS, tmp_path)
    lock.check()
    assert lock.held
    lock.release()
    assert not lock.held
    with pytest.raises(StorageError, match="released"):
        lock.check()


# --- over fork ---------------------------------------------------------------------------


def test_a_child_process_does_not_hold_its_parent_s_lock(tmp_path, other):
    with lock_log_dir(FS, tmp_path) as lock:
        assert in_child(lock.check) == "ForkedHandleError"
        assert in_child(lambda: lock.held) == "False"
        assert in_child(lambda: holder(tmp_path).pid) == str(os.getpid())
        assert in_child(lambda: lock_log_dir(FS, tmp_path)) == "LogLockedError"
        assert in_child(lock.release) == "None"
        assert other("exclusive", tmp_path).startswith("locked")        # the parent's is whole


def test_a_child_process_may_lock_what_its_parent_let_go(tmp_path):
    lock = lock_log_dir(FS, tmp_path)
    lock.release()
    assert in_child(lambda: lock_log_dir(FS, tmp_path).held) == "True"


def test_the_error_of_a_forked_handle_says_exit_5():
    assert ForkedHandleError.exit_status == 5


# --- looking without leave to write ------------------------------------------------------


def test_looking_makes_no_lock_file(tmp_path):
    assert not is_locked(tmp_path)
    assert not is_locked(tmp_path / "no such log dir")
    assert os.listdir(tmp_path) == []


def test_looking_needs_no_leave_to_write(tmp_path, other, monkeypatch):
    assert other("exclusive", tmp_path) == "ok"
    (tmp_path / ".lock").chmod(0o444)
    opened = []
    real_open = os.open
    monkeypatch.setattr(os, "open", lambda path, flags, *a: opened.append(flags) or real_open(path, flags, *a))
    assert holder(tmp_path).pid == other.pid
    assert [flags & os.O_ACCMODE for flags in opened] == [os.O_RDONLY]


def test_a_shared_lock_of_others_counts_as_locked(tmp_path, other):
    assert other("shared", tmp_path) == "ok"
    assert holder(tmp_path).pid == other.pid


@pytest.mark.parametrize("pid", [0, -1])
def test_a_holder_that_the_system_does_not_name_is_another_process(tmp_path, other, monkeypatch, pid):
    assert other("exclusive", tmp_path) == "ok"
    fields = {"l_type": fcntl.F_WRLCK, "l_pid": pid}
    answer = kept_lock.FLOCK.pack(*(fields.get(name, 0) for name in kept_lock.FLOCK_FIELDS))
    monkeypatch.setattr(fcntl, "fcntl", lambda *_: answer)
    assert str(holder(tmp_path)) == "another process"
    with pytest.raises(LogLockedError, match="locked by another process"):
        lock_log_dir(FS, tmp_path)


def test_a_holder_whose_name_is_unknown_has_its_number():
    assert str(Holder(12)) == "process 12"
    assert str(Holder(12, "java")) == "process 12 (java)"
    assert str(Holder(None, "process 12 on far")) == "process 12 on far"
    assert lock_module._process_name(2**22 + 1) == ""


# --- what the system refuses -------------------------------------------------------------


def test_a_log_dir_that_is_none_is_an_error_of_storage(tmp_path):
    with pytest.raises(StorageError, match="no such file or directory"):
        lock_log_dir(FS, tmp_path / "gone")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="expected a directory, found a file"):
        lock_log_dir(FS, tmp_path / "file")
    with pytest.raises(StorageError, match="expected a directory, found a file"):
        is_locked(tmp_path / "file")


def test_a_file_system_without_locks_is_said_to_be_one(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    with pytest.raises(StorageError, match=r"cannot grant a record lock \(ENOLCK\)"):
        lock_log_dir(FS, tmp_path)
    monkeypatch.undo()
    lock_log_dir(FS, tmp_path).release()


def test_a_lock_file_that_was_replaced_meanwhile_is_locked_anew(tmp_path, other, monkeypatch):
    real = lock_module._lock
    replaced = []

    def lock_and_replace(fd, path, mode):
        real(fd, path, mode)
        if not replaced:
            replaced.append(path)
            os.unlink(path)
            Path(path).touch()

    monkeypatch.setattr(lock_module, "_lock", lock_and_replace)
    with lock_log_dir(FS, tmp_path):
        assert replaced == [str(tmp_path / ".lock")]
        assert other("exclusive", tmp_path).startswith("locked")


def test_a_lock_file_that_another_process_makes_first_is_used(tmp_path):
    class Late(OsFileSystem):
        def create(self, path, within=None, mode=0o666):
            Path(path).touch()
            return super().create(path, within, mode)

    lock_log_dir(Late(), tmp_path).release()


def test_a_note_that_cannot_be_written_drops_the_lock(tmp_path, other, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(StorageError, match="no space"):
        lock_partition(FS, tmp_path)
    assert other("partition", tmp_path) == "ok"


# --- turns ---------------------------------------------------------------------------------

OTHER_TURNS = """
import sys
from seglog.errors import SeglogError
from seglog.fs.files import OsFileSystem
from seglog.fs.lock import turns
mine = None
for line in sys.stdin:
    command, _, path = line.strip().partition(" ")
    if command == "open":
        mine = turns(OsFileSystem(), path)
        print("ok", flush=True)
    elif command == "take":     # until it is told to give
        mine.run(lambda: (print("ok", flush=True), sys.stdin.readline()))
        print("ok", flush=True)
    elif command == "join":
        print(mine.join(), flush=True)
    elif command == "release":
        mine.close()
        print("ok", flush=True)
"""


@pytest.fixture
def other_turns(tmp_path):
    with Other((sys.executable, "-c", OTHER_TURNS)) as other:
        assert other("open", tmp_path) == "ok"
        yield other


def test_a_turn_waits_for_another_process(tmp_path, other_turns, monkeypatch):
    mine = turns(FS, tmp_path)
    assert other_turns("take") == "ok"
    monkeypatch.setattr(lock_module, "_TURN_WAIT_S", 0.01)
    with pytest.raises(LogLockedError, match=f"locked by process {other_turns.pid} "):
        mine.run(lambda: None)
    assert other_turns("give") == "ok"
    mine.run(lambda: None)
    mine.close()


def test_the_turn_of_a_killed_process_is_over(tmp_path):
    mine = turns(FS, tmp_path)
    with Other((sys.executable, "-c", OTHER_TURNS)) as other:
        assert (other("open", tmp_path), other("take")) == ("ok", "ok")
        other.process.kill()
        other.process.wait()
    mine.run(lambda: None)
    mine.close()


def test_threads_of_a_process_take_turns_too(tmp_path):
    together, most = [], []

    def look():
        together.append(1)
        most.append(len(together))
        together.pop()

    def work():
        mine = turns(FS, tmp_path)
        for _ in range(50):
            mine.run(look)
        mine.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 200


def test_who_comes_learns_whether_somebody_was_there(tmp_path, other_turns):
    assert other_turns("join") == "True"
    mine, again = turns(FS, tmp_path), turns(FS, tmp_path)
    assert not mine.join()
    other_turns("release")
    assert not again.join()
    mine.close()
    assert other_turns("open", tmp_path) == "ok"
    assert other_turns("join") == "False"
    other_turns("release")
    again.close()
    late = turns(FS, tmp_path)
    assert late.join()
    late.close()


def test_a_handle_that_did_not_join_keeps_nobody_s_presence_alive(tmp_path):
    joined, other = turns(FS, tmp_path), turns(FS, tmp_path)
    assert joined.join()
    joined.close()
    assert other.join()
    other.close()
    other.close()
    with pytest.raises(StorageError):
        other.run(lambda: None)


def test_turns_are_not_inherited(tmp_path):
    mine = turns(FS, tmp_path)
    assert in_child(lambda: mine.run(lambda: None)) == "ForkedHandleError"
    assert in_child(mine.join) == "ForkedHandleError"
    assert in_child(mine.close) == "None"
    mine.run(lambda: None)
    mine.close()
