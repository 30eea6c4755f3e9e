"""A log dir with many logs closes several at once: each waits for the disk."""
import threading

import pytest

import seglog
from seglog.errors import LogFailedError
from seglog.log.log import Log

COUNT = 40


def written(path):
    log_dir = seglog.open_dir(path, fsync="never")
    for number in range(COUNT):
        log_dir.log("orders", number).append(b"value")
    return log_dir


def test_many_logs_are_closed_together_and_each_is_whole(tmp_path, monkeypatch):
    together, most, lock, are_two = [0], [0], threading.Lock(), threading.Event()
    close = Log.close

    def counted(log):
        with lock:
            together[0] += 1
            most[0] = max(most[0], together[0])
            if most[0] > 1:
                are_two.set()
        if not are_two.wait(60):        # the first one waits for another thread
            are_two.set()
        close(log)
        with lock:
            together[0] -= 1

    log_dir = written(tmp_path / "data")
    with monkeypatch.context() as counting:
        counting.setattr(Log, "close", counted)
        log_dir.close()
    assert 1 < most[0] <= 9
    assert not [thread for thread in threading.enumerate() if thread.name == "seglog-close"]
    with seglog.open_dir(tmp_path / "data") as again:
        for number in range(COUNT):
            log = again.log("orders", number, create=False)
            assert (log.log_end_offset, log.recovery.repairs) == (1, ())


def test_the_first_error_is_raised_once_every_other_log_is_closed(tmp_path, monkeypatch):
    log_dir = written(tmp_path / "data")
    logs = [log_dir.log("orders", number) for number in range(COUNT)]
    close = Log.close

    def failing(log):
        close(log)
        if log.path.name in ("orders-7", "orders-31"):
            raise LogFailedError(log.path.name)

    with monkeypatch.context() as failures:
        failures.setattr(Log, "close", failing)
        with pytest.raises(LogFailedError, match="orders-7"):
            log_dir.close()
    assert all(log.closed for log in logs)
    log_dir.close()


def test_they_are_closed_although_no_thread_can_be_started(tmp_path, monkeypatch):
    def refused(_):
        raise RuntimeError("can't start new thread")

    log_dir = written(tmp_path / "data")
    logs = [log_dir.log("orders", number) for number in range(COUNT)]
    start = threading.Thread.start
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start",
                     lambda thread: refused(thread) if thread.name == "seglog-close" else start(thread))
        log_dir.close()
    assert all(log.closed for log in logs)
