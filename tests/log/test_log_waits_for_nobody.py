"""Appends that do not wait, and who is told of what is durable and of what readers see."""
import array
import errno
import gc
import os
import threading
import weakref

import pytest

import seglog
from seglog.errors import ForkedHandleError, InvalidArgumentError, LogClosedError, LogFailedError
from seglog.fs.files import OsFileSystem
from seglog.log.append import AppendResult
from support.faultfs import FailingFs, HeldSyncFs
from support.waiting import wait_for


class Told:
    """What callbacks were told, in which threads."""

    def __init__(self):
        self.answers, self.threads = [], set()

    def __call__(self, answer):
        self.threads.add(threading.get_ident())
        self.answers.append(answer)

    def after(self, count):
        wait_for(lambda: len(self.answers) >= count, 120)
        return self.answers


@pytest.mark.parametrize("fsync", ["batch", "interval", "never"])
def test_a_token_is_answered_when_the_append_is_on_the_disk(in_memory, fsync):
    told = Told()
    with seglog.open(in_memory / "orders-0", fsync=fsync, config={"flush.ms": 3_600_000}) as log:
        raw = seglog.build_batch([(b"k", b"v")])
        tokens = [
            log.append(b"one", wait=False), log.append_many([(b"k", b"v")] * 2, wait=False),
            log.append_columns(values=(array.array("i", [0, 1]), b"v"), timestamps=1_700_000_000_000, wait=False),
            log.append_batch(raw, wait=False),
        ]
        assert [token.result for token in tokens] == [0, 2, 3, AppendResult(4, 4)]
        for token in tokens:
            log.when_durable(token, lambda error: told((error, log.durable_offset)))
        assert [error for error, _ in told.after(4)] == [None] * 4
        assert min(durable for _, durable in told.answers) == 5
        assert len(told.threads) == 1
        assert threading.get_ident() not in told.threads


def test_an_append_that_does_not_wait_returns_before_its_sync_and_is_seen_after_it(in_memory):
    fs, told = HeldSyncFs(), Told()
    with seglog.open(in_memory / "orders-0", fs=fs) as log:
        log.append(b"first")
        fs.go.clear()
        fs.syncing.clear()
        token = log.append(b"second", wait=False)
        log.when_durable(token, told)
        assert fs.syncing.wait(20)
        assert (token.result, log.log_end_offset, told.answers) == (1, 1, [])
        fs.go.set()
        assert told.after(1) == [None]
        assert log.log_end_offset == 2


def test_callers_of_all_logs_share_one_thread_and_those_of_a_log_one_sync(in_memory):
    fs, told = HeldSyncFs(), Told()
    logs = [seglog.open(in_memory / f"orders-{n}", fs=fs) for n in range(3)]
    for log in logs:
        log.append(b"first")
    before = threading.active_count(), [log.stats().syncs for log in logs]
    fs.go.clear()
    for _ in range(50):
        for log in logs:
            log.when_durable(log.append(b"value", wait=False), told)
    fs.go.set()
    assert told.after(150) == [None] * 150
    assert len(told.threads) == 1
    assert all(log.stats().syncs - syncs <= 2 for log, syncs in zip(logs, before[1], strict=True))
    for log in logs:
        log.close()


def test_lingering_records_are_written_for_who_asks(in_memory):
    told = Told()
    config = {"linger.ms": 3_600_000, "flush.ms": 3_600_000}
    with seglog.open(in_memory / "orders-0", fsync="interval", config=config) as log:
        token = log.append(b"value", wait=False)
        assert log.log_end_offset == 0
        log.when_durable(token, told)
        assert told.after(1) == [None]
        assert log.durable_offset == log.log_end_offset == 1


def test_each_token_is_answered_once_also_after_close_and_after_a_cut(in_memory):
    told = Told()
    log = seglog.open(in_memory / "orders-0")
    tokens = [log.append(b"value", wait=False) for _ in range(3)]
    log.when_durable(tokens[0], told)
    log.truncate_to(1)
    log.when_durable(tokens[2], told)
    log.close()
    log.when_durable(tokens[1], told)
    assert told.after(3) == [None] * 3
    threads = told.threads - {threading.get_ident()}
    wait_for(lambda: not threads & {thread.ident for thread in threading.enumerate()})      # those that could tell more
    assert len(told.answers) == 3


def test_a_sync_that_fails_is_the_answer_to_what_it_did_not_cover(in_memory):
    fs, told = FailingFs(OsFileSystem()), Told()
    log = seglog.open(in_memory / "orders-0", fs=fs)
    durable = log.append(b"value", wait=False)
    log.flush()
    tokens = [log.append(b"value", wait=False) for _ in range(2)]
    fs._fail_at, fs._error = len(fs.calls), errno.ENOSPC
    for token in (*tokens, durable):
        log.when_durable(token, told)
    answers = told.after(3)
    assert sum(isinstance(answer, LogFailedError) for answer in answers) == 2
    assert answers.count(None) == 1
    with pytest.raises(LogFailedError):
        log.append(b"value")
    log.close()


def test_a_callback_that_raises_or_exits_leaves_the_others_theirs(in_memory, caplog):
    told = Told()

    def exits(_):
        raise SystemExit

    with seglog.open(in_memory / "orders-0") as log:
        log.on_published(exits)
        log.on_published(told)
        for callback in (exits, lambda _: 1 / 0, told):
            log.when_durable(log.append(b"value", wait=False), callback)
        wait_for(lambda: None in told.answers and 3 in told.answers, 120)
    assert "ZeroDivisionError" in caplog.text
    assert "SystemExit" in caplog.text


@pytest.mark.parametrize("fsync", ["batch", "never"])
def test_whoever_listens_hears_of_the_end_and_at_last_of_the_close(in_memory, fsync):
    told, gone = Told(), Told()
    log = seglog.open(in_memory / "orders-0", fsync=fsync)
    log.on_published(told)
    listening = log.on_published(gone)
    log.append(b"value")
    wait_for(lambda: told.answers[-1:] == [1] and gone.answers[-1:] == [1], 120)
    listening.cancel()
    listening.cancel()
    for _ in range(1000):
        log.append(b"value")
    wait_for(lambda: told.answers[-1] == 1001, 120)
    assert told.answers == sorted(told.answers)
    assert len(told.answers) < 900          # several are one
    log.roll()
    log.append_many([(b"k", b"v")] * 3, atomic=False)
    wait_for(lambda: told.answers[-1] == 1004, 120)
    log.truncate_to(2)
    wait_for(lambda: told.answers[-1] == 2, 120)
    log.close()
    wait_for(lambda: told.answers[-1] is None, 120)
    assert gone.answers == [1]
    with pytest.raises(LogClosedError):
        log.on_published(told)


def test_a_log_that_was_dropped_is_not_kept_by_who_was_called_back(in_memory):
    told = Told()
    log = seglog.open(in_memory / "orders-0")
    log.on_published(told)
    log.when_durable(log.append(b"value", wait=False), told)
    wait_for(lambda: sorted(map(str, told.answers)) == ["1", "None"], 120)
    found = weakref.ref(log)
    log.close()
    del log
    wait_for(lambda: gc.collect() >= 0 and found() is None, 120)


def test_what_is_no_token_or_no_callback_is_refused(in_memory):
    with seglog.open(in_memory / "orders-0") as log:
        token = log.append(b"value", wait=False)
        for bad in (None, 5, token._replace(number=99), token._replace(number=-1), token._replace(number="1")):
            with pytest.raises(InvalidArgumentError):
                log.when_durable(bad, print)
        with pytest.raises(InvalidArgumentError):
            log.when_durable(token, None)
        with pytest.raises(InvalidArgumentError):
            log.on_published("print")


def test_a_forked_child_is_refused_and_has_threads_of_its_own(in_memory):
    told = Told()
    with seglog.open(in_memory / "orders-0") as log:
        token = log.append(b"value", wait=False)
        log.when_durable(token, told)
        told.after(1)
        child = os.fork()
        if not child:
            try:
                for refused in (lambda: log.when_durable(token, print), lambda: log.on_published(print)):
                    try:
                        refused()
                        os._exit(1)
                    except ForkedHandleError:
                        pass
                with seglog.open(in_memory / "others-0") as own:
                    heard = Told()
                    own.when_durable(own.append(b"value", wait=False), heard)
                    os._exit(0 if heard.after(1) == [None] else 2)
            finally:
                os._exit(3)
        assert os.waitpid(child, 0)[1] == 0


def test_flush_messages_counts_appends_that_do_not_wait(in_memory):
    config = {"flush.messages": 10, "flush.ms": 3_600_000}
    with seglog.open(in_memory / "orders-0", fsync="interval", config=config) as log:
        for _ in range(25):
            log.append(b"value", wait=False)
        wait_for(lambda: log.durable_offset >= 16, 120)


def test_a_token_counts_in_the_log_that_gave_it_and_until_that_is_closed(in_memory):
    """Another log took it for its own, and told that it was on the disk."""
    def refused(log, token):
        with pytest.raises(InvalidArgumentError, match="is not a token of this log"):
            log.when_durable(token, print)

    with seglog.open(in_memory / "orders-0") as log, seglog.open(in_memory / "orders-1") as other:
        tokens = [one.append(b"v", wait=False) for one in (log, other)]
        refused(log, tokens[1])
        refused(other, tokens[0])
        assert (log.stats().appends, other.stats().appends) == (1, 1)
    with seglog.open(in_memory / "orders-0") as again:
        again.append(b"w")
        refused(again, tokens[0])
