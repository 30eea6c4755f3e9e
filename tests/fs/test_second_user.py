"""Two users on one machine: what another user plants changes nothing elsewhere, and what was closed to it stays closed.

The other user is a process under an id of its own; the one who runs seglog is root, whom no permission stops.
"""
import json
import os
import select
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import seglog
from seglog.attach.channel import SOCKET
from seglog.attach.errors_sent import error_received
from seglog.attach.shared_log import SOCKET as SOCKET_OF_LOG
from seglog.conversion.directory import Options
from seglog.conversion.in_place import plan_in_place
from seglog.errors import SeglogError, StorageError
from seglog.fs.files import OsFileSystem
from seglog.fs.scratch import scratch_directory
from support.second_user import ID, SecondUser

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it starts a process of another user")

SECRET = "a-secret-in-each-record"
CHANGES = (
    "create", "open_write", "rename", "replace", "exchange", "link", "unlink", "mkdir", "rmdir", "sync_file",
    "sync_directory",
)


@pytest.fixture
def other():
    with SecondUser() as user:
        yield user


@pytest.fixture
def shared():
    """A directory that the other user reaches. (pytest's own are closed to it.)"""
    root = Path(tempfile.mkdtemp(prefix="seglog-users-"))
    root.chmod(0o755)
    before = os.umask(0o022)
    yield root
    os.umask(before)
    shutil.rmtree(root)


def write_log(path, *, count=200):
    with seglog.open(path, config={"segment.bytes": 4096}) as log:
        for n in range(0, count, 50):
            log.append_many([(b"key", f"{SECRET} {n}".encode())] * 50)
    return path


def damage(path):
    """A bad byte in the second segment, and a torn end: what `recover` mends."""
    logs = sorted(path.glob("*.log"))
    raw = bytearray(logs[1].read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    logs[1].write_bytes(raw)


@contextmanager
def watched(monkeypatch, other, root):
    """Have the other user look for the secret after each change of the disk; gives what it has read."""
    seen = {}

    def after(name, change):
        def changed(self, *args, **kwargs):
            result = change(self, *args, **kwargs)
            for path in other.look(root, SECRET):
                seen.setdefault(path, f"after {name} {args}")
            return result
        return changed

    with monkeypatch.context() as patch:
        for name in CHANGES:
            patch.setattr(OsFileSystem, name, after(name, getattr(OsFileSystem, name)))
        yield seen
    for path in other.look(root, SECRET):
        seen.setdefault(path, "in the end")


def open_again(path):
    with seglog.open(path) as log:
        log.append_many([(b"key", SECRET.encode())] * 50)


def convert_in_place(path):
    plan_in_place(path, path.parents[1] / "closed/backup", Options(codec="zstd")).run()


def hot_backup(path):
    with seglog.open(path) as log:
        log.snapshot(path.parents[1] / "copies/orders-0")


def back_up(path):
    """Not compressed, so that the other user would find the secret."""
    seglog.backup(path, path.parents[1] / "copies/store", compression="none")


def back_up_and_restore(path):
    back_up(path)
    restored = path.parents[1] / "copies/restored"
    seglog.restore(path.parents[1] / "copies/store", restored)
    with seglog.open_partition(restored / path.name) as log:
        assert sum(1 for _ in log.read()) == 200


WORK = {
    "open again": open_again,
    "recover in place": lambda path: (
        damage(path), seglog.recover(path, mode="quarantine", apply=True, backup=path.parents[1] / "copies/before")),
    "recover a copy": lambda path: (
        damage(path), seglog.recover(path, path.parents[1] / "copies/orders-0", mode="quarantine")),
    "convert in place": convert_in_place,
    "hot backup": hot_backup,
    "backup": back_up,
    "backup and restore": back_up_and_restore,
}


@pytest.mark.parametrize("work", WORK)
def test_what_was_closed_to_others_stays_closed(monkeypatch, other, shared, work):
    """The log dir is closed to others; the files in it follow the umask, and would be open elsewhere."""
    (shared / "data").mkdir(mode=0o700)
    for name in ("copies", "closed"):
        (shared / name).mkdir(mode=0o700)
    path = write_log(shared / "data/orders-0")
    with watched(monkeypatch, other, shared) as seen:
        WORK[work](path)
    assert seen == {}


@pytest.mark.parametrize("work", WORK)
def test_files_closed_to_others_are_replaced_and_copied_by_closed_ones(monkeypatch, other, shared, work):
    """A broker whose umask is 077 for files: everybody may list its directories, nobody may read the logs."""
    for name in ("data", "copies", "closed"):
        (shared / name).mkdir()
    (shared / "closed").chmod(0o700)
    path = write_log(shared / "data/orders-0")
    for file in path.iterdir():
        file.chmod(0o600)
    if work == "open again":        # of its files only those that exist have a say over the next
        os.umask(0o077)
    with watched(monkeypatch, other, shared) as seen:
        WORK[work](path)
    assert seen == {}


@pytest.mark.parametrize("work", ["recover in place", "open again"])
def test_files_that_are_replaced_keep_their_owner(shared, work):
    path = write_log(shared / "data/orders-0")
    for file in [path, *path.iterdir()]:
        os.chown(file, ID, ID)
    before = {file.name for file in path.glob("*.log")}
    if work == "open again":
        with open(max(path.glob("*.log")), "ab") as log:
            log.write(b"torn")
    WORK[work](path)
    owners = {file.name: file.stat().st_uid for file in path.glob("*.log") if file.name in before}
    assert set(owners.values()) == {ID}, owners


def test_nothing_elsewhere_changes_through_what_others_plant(other, shared):
    """In a folder that all may write to, at each name that seglog writes."""
    names = {}
    sample = shared / "sample"
    write_log(sample / "orders-0")
    for file in sorted(sample.rglob("*")):
        if file.is_file():
            names[str(file.relative_to(sample))] = file.read_bytes()
    for name in ("orders-0/.seglog.lock", ".lock", "orders-0/.seglog.appender", "orders-0/leader-epoch-checkpoint.tmp"):
        names.setdefault(name, b"")
    tried = 0
    for kind in ("link", "link to nowhere", "hard link"):
        for planted, content in names.items():
            root = shared / f"{kind}-{planted.replace('/', '+')}"
            root.mkdir()
            elsewhere = root / "elsewhere"
            elsewhere.mkdir(mode=0o755)
            precious = elsewhere / "precious"
            # Not less than what stands there: what may be taken for a file of ours is where a check would stop.
            precious.write_bytes(content or b"precious, and longer than the note in a lock file " * 4)
            before = precious.read_bytes()
            data = root / "data"
            shutil.copytree(sample, data)
            for folder in (data, data / "orders-0"):
                folder.chmod(0o777)
            target = data / planted
            if target.exists():
                assert other.call("unlink", target) is None
            leads_to = elsewhere / ("new" if kind == "link to nowhere" else "precious")
            made = other.call("link" if kind == "hard link" else "symlink", leads_to, target)
            if made == "EPERM":     # fs.protected_hardlinks: the system refuses it
                os.link(leads_to, target)
            for action in (open_again, lambda path: seglog.recover(path, mode="quarantine", apply=True)):
                with suppress(SeglogError):
                    action(data / "orders-0")
            tried += 1
            assert precious.read_bytes() == before, (kind, planted)
            assert sorted(os.listdir(elsewhere)) == ["precious"], (kind, planted)
    assert tried > 20


@pytest.mark.parametrize("umask", [0, 0o027])
def test_scratch_files_are_closed_whatever_the_umask(other, shared, umask):
    os.umask(umask)
    with scratch_directory(shared) as path:
        (path / "copy").write_bytes(SECRET.encode())
        assert other.look(shared, SECRET) == []
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_sticky_folder_keeps_what_is_not_ours(other, shared):
    """As /tmp: all may make files there, and remove their own alone."""
    shared.chmod(0o1777)
    path = write_log(shared / "orders-0")
    assert other.call("rename", path, shared / "mine-0") == "EPERM"
    assert other.call("unlink", path / ".seglog.lock") == "EACCES"
    assert other.call("mkdir", shared / "theirs-0", 0o777) is None
    with pytest.raises(SeglogError):
        seglog.recover(path, shared / "theirs-0", mode="quarantine")
    assert os.listdir(shared / "theirs-0") == []


def test_a_queue_closed_to_others_stays_closed(monkeypatch, other, shared):
    """Its journal and cursors say what was taken and why it failed, and its ledgers hold the jobs."""
    (shared / "closed").mkdir(mode=0o700)
    with watched(monkeypatch, other, shared) as seen, seglog.Queue(shared / "closed/jobs", max_attempts=1) as queue:
        for n in range(5):
            queue.put(f"{SECRET} {n}".encode())
        queue.get(timeout=5).ack()
        queue.get(timeout=5).nack(reason=SECRET)
    assert seen == {}


@pytest.mark.parametrize("kind", ["link", "hard link"])
def test_what_others_plant_in_a_queue_or_a_store_changes_nothing_elsewhere(other, shared, kind):
    """Both in folders that all may write to."""
    with seglog.Queue(shared / "sample") as queue:
        queue.put(b"job")
    write_log(shared / "data/orders-0")
    seglog.backup(shared / "data", shared / "sample-store")
    tried = 0
    for sample, work in (
        ("sample", lambda path: put_and_take(path)),
        ("sample-store", lambda path: seglog.backup(shared / "data", path)),
    ):
        for file in sorted((shared / sample).rglob("*")):
            if not file.is_file():
                continue
            root = shared / f"{kind}-{tried}"
            root.mkdir()
            precious = root / "precious"
            precious.write_bytes(file.read_bytes() or b"precious, and longer than the note in a lock file " * 4)
            before = precious.read_bytes()
            shutil.copytree(shared / sample, root / sample)
            for folder in [root / sample, *(path for path in (root / sample).rglob("*") if path.is_dir())]:
                folder.chmod(0o777)
            target = root / sample / file.relative_to(shared / sample)
            assert other.call("unlink", target) is None
            made = other.call("link" if kind == "hard link" else "symlink", precious, target)
            if made == "EPERM":     # fs.protected_hardlinks: the system refuses it
                os.link(precious, target)
            with suppress(SeglogError):
                work(root / sample)
            tried += 1
            assert precious.read_bytes() == before, target
            assert sorted(os.listdir(root)) == ["precious", sample]
    assert tried > 8


def put_and_take(path):
    with seglog.Queue(path) as queue:
        queue.put(b"another")
        queue.get(timeout=5).ack()


# --- the socket of a queue that several processes have open -----------------------------------


@pytest.mark.parametrize("umask", [0, 0o022])
def test_nobody_else_connects_to_the_socket_of_a_queue(other, shared, umask):
    """In a folder that all may write to; and if somebody opens the socket to all, it asks who is there."""
    (shared / "jobs").mkdir()
    (shared / "jobs").chmod(0o777)
    os.umask(umask)
    with seglog.Queue(shared / "jobs", attach=True) as queue:
        queue.put(SECRET.encode())
        assert stat.S_IMODE((queue.path / SOCKET).stat().st_mode) == 0o600
        assert other.connect(queue.path / SOCKET, "x") == "EACCES"
        (queue.path / SOCKET).chmod(0o777)
        # It says nothing: an answer is lost if the other side closes with bytes that it has not read.
        assert f"user {ID}" in other.connect(queue.path / SOCKET, "")
        assert SECRET not in other.connect(queue.path / SOCKET, raw_frame({"call": "get", "count": 1, "timeout": 0}))
        assert queue.stats().ready == 1


@pytest.mark.parametrize("kind", ["link", "link to nowhere", "hard link", "file", "socket"])
def test_what_others_plant_for_the_socket_of_a_queue_is_replaced(other, shared, kind):
    precious = shared / "precious"
    precious.write_bytes(b"precious")
    (shared / "jobs").mkdir()
    (shared / "jobs").chmod(0o777)
    planted = shared / "jobs" / SOCKET
    match kind:
        case "link" | "link to nowhere":
            assert other.call("symlink", precious if kind == "link" else shared / "nowhere", planted) is None
        case "hard link":
            if other.call("link", precious, planted) == "EPERM":
                os.link(precious, planted)
        case "file":
            assert other.call("mknod", planted, 0o777) is None
        case "socket":
            other.listen(planted)
    with seglog.Queue(shared / "jobs", attach=True) as queue:
        queue.put(b"job")
        assert stat.S_ISSOCK(planted.lstat().st_mode)
        assert planted.lstat().st_uid == os.geteuid()
        assert other.connect(planted, "x") == "EACCES"
    assert precious.read_bytes() == b"precious"
    assert sorted(os.listdir(shared)) == ["jobs", "precious"]


def test_a_directory_that_others_plant_for_the_socket_is_told(other, shared):
    (shared / "jobs").mkdir()
    (shared / "jobs").chmod(0o777)
    assert other.call("mkdir", shared / "jobs" / SOCKET) is None
    with pytest.raises(StorageError, match="directory"):
        seglog.Queue(shared / "jobs", attach=True)


@pytest.mark.parametrize(("name", "how", "socket_name"), [
    ("jobs", seglog.Queue, SOCKET), ("orders-0", seglog.open, SOCKET_OF_LOG)])
def test_another_user_who_listens_for_an_owner_hears_nothing(other, shared, name, how, socket_name):
    """An owner has the lock, and somebody else took its socket's name."""
    (shared / name).mkdir()
    (shared / name).chmod(0o777)
    with how(shared / name):
        other.listen(shared / name / socket_name)
        with pytest.raises(SeglogError):
            ask_in_a_process(shared / name)
        assert other.heard() == ""


@pytest.mark.parametrize("umask", [0, 0o022])
def test_nobody_else_connects_to_the_socket_of_a_log(other, shared, umask):
    path = shared / "orders-0"
    path.mkdir()
    path.chmod(0o777)
    os.umask(umask)
    with seglog.open(path, attach=True) as log:
        assert stat.S_IMODE((path / SOCKET_OF_LOG).stat().st_mode) == 0o600
        assert other.connect(path / SOCKET_OF_LOG, "x") == "EACCES"
        (path / SOCKET_OF_LOG).chmod(0o777)
        assert f"user {ID}" in other.connect(path / SOCKET_OF_LOG, "")
        other.connect(path / SOCKET_OF_LOG, raw_frame({"call": "roll"}))
        assert log.append(b"x") == 0


def test_nothing_is_said_to_another_socket_of_ours_that_a_link_leads_to(other, shared):
    """An agent that holds keys, say, and takes what it is told."""
    (shared / "jobs").mkdir()
    (shared / "jobs").chmod(0o777)
    (shared / "private").mkdir(mode=0o700)
    with seglog.Queue(shared / "jobs"), socket.socket(socket.AF_UNIX) as agent:
        agent.bind(os.fspath(shared / "private/agent"))
        agent.listen()
        assert other.call("symlink", shared / "private/agent", shared / "jobs" / SOCKET) is None
        with pytest.raises(SeglogError):
            ask_in_a_process(shared / "jobs")
        assert select.select([agent], [], [], 0)[0] == []


def ask_in_a_process(path):
    """Attach to a queue, or a log, in another process, which waits no second for its owner. Raises what that got."""
    script = (
        "import sys, seglog, json\n"
        "from seglog.attach import shared_handle\n"
        "from seglog.attach.errors_sent import error_sent\n"
        "shared_handle.OPENING_S = 1\n"
        "how = seglog.open if sys.argv[1].endswith('-0') else seglog.Queue\n"
        "try: how(sys.argv[1], attach=True).stats()\n"
        "except Exception as error: print(json.dumps(error_sent(error)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, timeout=60, check=True)
    raise error_received(json.loads(done.stdout))


def raw_frame(header):
    text = json.dumps({**header, "sizes": []})
    return f"{len(text).to_bytes(4).decode()}{bytes(4).decode()}{text}"
