"""How many Python calls the common ways take: a frame costs as much as a small write."""
import _thread
import sys

import pytest

import seglog
from seglog.fs.files import OsFileSystem
from support.faultfs import FailingFs
from support.topics import message


@pytest.fixture
def calls(monkeypatch):
    """calls(action): Python functions called in it, in the threads that it starts as well, without `action` itself."""
    start = _thread.start_new_thread
    count = 0

    def hook(frame, event, arg):
        nonlocal count
        count += event == "call"

    def start_counted(function, args, *more):
        def run(*given):
            sys.setprofile(hook)
            function(*given)
            sys.setprofile(None)

        return start(run, args, *more)

    def counted(action):
        nonlocal count
        with monkeypatch.context() as patched:
            patched.setattr(_thread, "start_new_thread", start_counted)
            count = 0
            sys.setprofile(hook)
            try:
                action()
            finally:
                sys.setprofile(None)
        return count - 1

    return counted


@pytest.fixture(params=["never", "interval", "batch"])
def log(in_memory, request):
    with seglog.open(in_memory / "orders-0", fsync=request.param) as log:
        for _ in range(3):
            log.append(b"value")
            log.append_many([(b"key", b"value")] * 3)
        yield log


def test_a_quiet_append(log, calls):
    syncs = {"never": 0, "interval": 1, "batch": 5}[log.fsync]      # the look at flush.messages; the sync
    assert calls(lambda: log.append(b"value", key=b"key")) <= 3 + syncs
    assert calls(lambda: log.append_many([(b"key", b"value")] * 3)) <= 6 + syncs


def test_an_entry_of_a_managed_ledger(in_memory, calls):
    with seglog.ManagedLedger(in_memory / "orders") as topic:
        for n in range(3):
            topic.add_entry(message(n))
        entry = message(3)
        assert calls(lambda: topic.add_entry(entry)) <= 30


def test_a_roll_syncs_what_must_be_on_the_disk_and_no_name_twice(in_memory):
    fs = FailingFs(OsFileSystem())
    with seglog.open(in_memory / "orders-0", fsync="never", fs=fs) as log:
        log.append(b"value")
        log.roll()
        log.append(b"value")
        done = len(fs.calls)
        log.roll()
        assert sum(call.startswith("sync") for call in fs.calls[done:]) <= 6
