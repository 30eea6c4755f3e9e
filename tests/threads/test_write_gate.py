"""Appenders that wait for the disk share one sync; none is told of a success that was not, none waits for ever."""
import _thread
import ctypes
import os
import signal
import sys
import threading
import time
import weakref
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from seglog._kernels import write_gate
from seglog._kernels.shield import shielded, start_thread
from seglog.errors import LogClosedError, LogFailedError, StorageError
from seglog.threads.write_gate import WriteGate
from support.waiting import signals_meanwhile

pytestmark = pytest.mark.usefixtures("no_collector_hooks")


class Disk(WriteGate):
    """A file of appends, counted. A sync takes until `gate` opens, and covers what was written when it began."""

    def __init__(self):
        super().__init__(Path("orders-0"), "log")
        self.written = 0
        self.synced = 0
        self.gate = threading.Event()
        self.gate.set()
        self.in_sync = threading.Event()
        self.error = None
        self.reloaded = 0

    def append(self):
        self.written += 1
        return self.written

    def sync(self):
        covered = self.written
        self.in_sync.set()
        assert self.gate.wait(20)
        if self.error:
            raise self.error
        self.synced += 1
        return covered

    def reload(self):
        self.with_lock(self._reload)

    def _reload(self):
        if self.is_torn:
            self.reloaded += 1
            self.is_torn = False


@pytest.fixture
def disk():
    return Disk()


def append_and_wait(disk):
    """An append of now, whose number is waited for when the result is called."""
    number = disk.append()
    return lambda: disk.wait(number)


def in_threads(*functions):
    """Each started in its own thread; their results, or the errors that they raised, when asked."""
    results = [None] * len(functions)

    def run(slot, function):
        try:
            results[slot] = function()
        except Exception as error:
            results[slot] = error

    threads = [threading.Thread(target=run, args=item) for item in enumerate(functions)]
    for thread in threads:
        thread.start()

    def finish():
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        return results

    return finish


def waiting(disk, count):
    """Wait until so many appenders wait for somebody else's sync."""
    for _ in range(20_000):
        if disk.waiting == count:
            return
        threading.Event().wait(0.001)
    raise AssertionError("they do not wait")


def test_a_lone_appender_syncs_once_for_each_append(disk):
    for _ in range(3):
        disk.wait(disk.append())
    assert (disk.synced, disk.committed) == (3, 3)


def test_what_was_synced_is_not_synced_again(disk):
    disk.append()
    disk.wait(disk.append())
    disk.wait(1)
    assert disk.synced == 1


def test_those_who_come_during_a_sync_share_the_next_one(disk):
    disk.gate.clear()
    leader = in_threads(append_and_wait(disk))
    assert disk.in_sync.wait(20)
    others = in_threads(*[append_and_wait(disk) for _ in range(7)])
    waiting(disk, 7)
    assert disk.committed == 0
    disk.gate.set()
    assert leader() + others() == [None] * 8
    assert (disk.synced, disk.committed) == (2, 8)


def test_a_sync_does_not_cover_what_was_written_while_it_ran(disk):
    disk.gate.clear()
    leader = in_threads(append_and_wait(disk))
    assert disk.in_sync.wait(20)
    late = disk.append()
    disk.gate.set()
    leader()
    assert disk.committed < late


def test_after_a_failed_sync_everybody_who_waits_learns_of_the_first_error(disk):
    disk.gate.clear()
    disk.error = StorageError("the device reported an input/output error")
    leader = in_threads(append_and_wait(disk))
    assert disk.in_sync.wait(20)
    others = in_threads(*[append_and_wait(disk) for _ in range(3)])
    waiting(disk, 3)
    disk.gate.set()
    for error in leader() + others():
        assert isinstance(error, LogFailedError)
        assert error.__cause__ is disk.error
    disk.error = None
    with pytest.raises(LogFailedError, match="input/output"):
        disk.wait(disk.append())
    assert (disk.synced, disk.committed) == (0, 0)


def test_what_was_durable_before_a_failure_stays_so(disk):
    disk.wait(disk.append())
    disk.fail(StorageError("no space"))
    disk.wait(1)
    with pytest.raises(LogFailedError, match="no space"):
        disk.wait(2)
    with pytest.raises(LogFailedError, match="no space"):
        disk.alone(int)


def test_who_has_the_files_for_himself_keeps_syncs_away_and_may_cover_for_them(disk):
    number = disk.append()
    waiter = []

    def alone():
        waiter.append(in_threads(lambda: disk.wait(number)))
        waiting(disk, 1)
        disk.cover(number)

    disk.alone(alone)
    assert waiter[0]() == [None]
    assert disk.synced == 0


def test_who_wants_the_files_waits_for_the_sync_that_runs(disk):
    disk.gate.clear()
    leader = in_threads(append_and_wait(disk))
    assert disk.in_sync.wait(20)
    seen = []

    taker = in_threads(lambda: disk.alone(lambda: seen.append(disk.synced)))
    assert not seen
    disk.gate.set()
    assert leader() + taker() == [None, None]
    assert seen == [1]


def change_and_raise(disk, error):
    with disk.changing():
        raise error


def test_an_error_of_ours_in_the_middle_of_a_change_is_a_failure(disk):
    with pytest.raises(LogFailedError, match="lost"):
        disk.alone(change_and_raise, disk, StorageError("lost"))
    with pytest.raises(LogFailedError, match="lost"):
        disk.wait(disk.append())
    with pytest.raises(LogFailedError, match="lost"):
        disk.change(int)
    assert disk.reloaded == 0


def test_an_error_before_a_change_is_a_refusal(disk):
    def refuse():
        raise StorageError("not now")

    with pytest.raises(StorageError, match="not now"):
        disk.change(refuse)
    assert (disk.change(int), disk.failure) == (0, None)


def test_an_error_after_a_change_is_a_refusal_too(disk):
    def change_and_refuse():
        with disk.changing():
            pass
        raise StorageError("not now")

    with pytest.raises(StorageError, match="not now"):
        disk.change(change_and_refuse)
    assert (disk.change(int), disk.failure) == (0, None)


@pytest.mark.parametrize("kind", [StorageError, KeyboardInterrupt])
def test_a_change_goes_on_after_one_within_it(disk, kind):
    def changes():
        with disk.changing():
            with disk.changing():
                pass
            raise kind("in the middle")

    with pytest.raises((LogFailedError, KeyboardInterrupt), match="in the middle"):
        disk.change(changes)
    assert (disk.failure is not None, disk.reloaded) == ((True, 0) if kind is StorageError else (False, 1))


@pytest.mark.parametrize("kind", [StorageError, KeyboardInterrupt])
def test_what_a_change_refuses_leaves_the_log_as_it_was(disk, kind):
    def refuse():
        with disk.changing() as change:
            change.refused()
            raise kind("not now")

    with pytest.raises(kind, match="not now"):
        disk.change(refuse)
    assert (disk.change(int), disk.failure, disk.reloaded) == (0, None, 0)


def test_a_section_that_caught_its_own_error_within_a_change_has_ended_it(disk):
    def change_and_catch():
        with suppress(StorageError), disk.changing():
            raise StorageError("told to nobody")

    disk.change(change_and_catch)
    assert not disk.is_changing
    with pytest.raises(AttributeError):
        disk.is_changing = True


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ValueError])
def test_anything_else_in_the_middle_of_a_change_is_mended_at_once(disk, kind):
    with pytest.raises(kind):
        disk.change(change_and_raise, disk, kind())
    assert (disk.reloaded, disk.is_torn, disk.failure) == (1, False, None)
    assert disk.change(int) == 0


def test_what_could_not_be_mended_is_mended_by_whoever_comes_next(disk, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(disk, "_reload", interrupted)
        with pytest.raises(KeyboardInterrupt):
            disk.change(change_and_raise, disk, KeyboardInterrupt())
    assert (disk.reloaded, disk.is_torn) == (0, True)
    disk.wait(disk.append())
    assert (disk.reloaded, disk.is_torn, disk.committed) == (1, False, 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()])
def test_an_interrupt_while_a_torn_change_is_mended_reaches_the_caller(disk, monkeypatch, error):
    """Whatever tore it: an error of the program would hide ^C, and the program go on."""
    def interrupted():
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(disk, "reload", interrupted)
        with pytest.raises(KeyboardInterrupt):
            disk.change(change_and_raise, disk, error)
    assert disk.is_torn
    assert disk.change(int) == 0
    assert (disk.reloaded, disk.is_torn, disk.failure) == (1, False, None)


def test_an_interrupt_behind_a_refusal_that_meets_a_torn_change_reaches_the_caller(disk, monkeypatch):
    """Another thread may have torn it meanwhile, in a sync."""
    def refuse():
        disk.is_torn = True
        raise StorageError("not now")

    def interrupted():
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(disk, "reload", interrupted)
    with pytest.raises(KeyboardInterrupt):
        disk.alone(refuse)


def test_a_gate_that_was_closed_refuses_and_gives_the_lock_back(disk):
    disk.refusal = lambda: LogClosedError("closed")
    for _ in range(2):
        with pytest.raises(LogClosedError):
            disk.change(int)
    assert disk.with_lock(int) == 0


def test_callbacks_are_called_when_the_appends_are_on_the_disk(disk):
    seen, told = [], threading.Event()
    disk.gate.clear()
    first, second = disk.append(), disk.append()
    disk.when(first, seen.append)
    disk.when(second, lambda error: (seen.append(error), told.set()))
    assert disk.in_sync.wait(20)
    assert seen == []
    disk.gate.set()
    assert told.wait(20)
    assert (seen, disk.synced) == ([None, None], 1)


def test_a_callback_is_told_of_a_failure(disk):
    seen, told = [], threading.Event()
    disk.error = StorageError("the device reported an input/output error")
    disk.when(disk.append(), lambda error: (seen.append(error), told.set()))
    assert told.wait(20)
    assert isinstance(seen[0], LogFailedError)


def test_a_shielded_call_runs_in_another_thread_and_gives_what_it_gives():
    assert shielded(divmod, 7, 2) == (3, 1)
    assert shielded(threading.get_ident) != threading.get_ident()
    assert shielded(lambda: shielded(threading.get_ident) == threading.get_ident())      # one thread is enough
    with pytest.raises(ZeroDivisionError):
        shielded(divmod, 1, 0)


def thread_of_shield():
    return shielded(threading.get_native_id)


def is_alive(thread):
    return Path(f"/proc/self/task/{thread}").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="threads are told apart by /proc")
def test_shielded_calls_that_follow_each_other_share_a_thread_which_ends_behind_them():
    threads = {thread_of_shield() for _ in range(20)}
    assert len(threads) < 20    # one, but where the machine takes longer from call to call than the thread waits
    end = time.monotonic() + 20
    while any(map(is_alive, threads)):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_shielded_calls_of_several_threads_at_once_do_not_wait_for_each_other():
    meeting = threading.Barrier(3)
    for _ in range(50):
        in_threads(*[lambda: shielded(meeting.wait, 20)] * 3)()


def test_the_thread_of_a_shielded_call_keeps_nothing_of_it():
    class Subject:
        pass

    def is_gone_at_once():
        end = time.monotonic() + 0.05       # sooner than the thread ends
        subject = Subject()
        gone = weakref.ref(subject)
        assert shielded(lambda one: one, subject) is subject
        del subject
        while gone() is not None and time.monotonic() < end:
            time.sleep(0)
        return time.monotonic() < end

    assert any(is_gone_at_once() for _ in range(50))        # a busy machine may keep us from looking for so long


def test_a_forked_child_has_shielded_calls_of_its_own():
    """The thread that waits for the next one is the parent's."""
    assert shielded(int) == 0
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(shielded(lambda: 7))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_an_interrupt_comes_behind_a_shielded_call():
    done = []

    def work():
        os.kill(os.getpid(), signal.SIGINT)
        for n in range(10_000):
            done.append(n)

    def call():
        shielded(work)
        pytest.fail("not interrupted")

    with pytest.raises(KeyboardInterrupt):
        call()
    assert len(done) == 10_000


class Sent(BaseException):
    """An exception from outside."""


@pytest.fixture
def sent_as_threads_start(monkeypatch):
    """Sends an exception to whoever starts a thread, while the new thread still has the number of its starter."""

    def start(function, args, start=_thread.start_new_thread):
        ident = start(function, args)
        while not ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(Sent)):
            pass
        return ident

    time.sleep(0.3)     # no thread waits for a shielded call
    before = sys.getswitchinterval()
    sys.setswitchinterval(60)
    monkeypatch.setattr(_thread, "start_new_thread", start)
    yield
    sys.setswitchinterval(before)


FOUND_FIRST = pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="a thread has no other's number any more as it starts")


@FOUND_FIRST
@pytest.mark.usefixtures("sent_as_threads_start")
def test_an_exception_that_reaches_the_thread_of_a_shielded_call_as_it_starts_is_the_callers(monkeypatch):
    def work():
        for _ in range(1000):
            pass
        done.append(True)

    done = []
    with pytest.raises(Sent):
        shielded(work)
    assert done
    monkeypatch.undo()
    assert shielded(divmod, 7, 2) == (3, 1)


@FOUND_FIRST
@pytest.mark.usefixtures("sent_as_threads_start")
def test_an_exception_that_reaches_a_thread_as_it_starts_is_its_starters_and_the_thread_works():
    def work(number):
        for _ in range(1000):
            pass
        done.append(number)
        over.set()

    done, over = [], threading.Event()
    def start():
        start_thread(work, (7,))
        over.wait(20)

    with pytest.raises(Sent):
        start()
    assert over.wait(20)
    assert done == [7]


def test_many_threads_append_and_each_is_durable_when_told_so(disk):
    lock = threading.Lock()

    def run():
        for _ in range(200):
            with lock:
                number = disk.append()
            disk.wait(number)
            assert disk.committed >= number

    assert in_threads(*[run] * 6)() == [None] * 6
    assert disk.committed == 1200
    assert disk.synced <= 1200


def interrupt_when(condition):
    """^C for the main thread as soon as something holds."""
    def watch():
        for _ in range(20_000):
            if condition():
                break
            threading.Event().wait(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    return in_threads(watch)


def test_who_is_interrupted_while_he_waits_keeps_nobody_waiting(disk):
    disk.gather_from_s = 1000       # nobody gathers
    disk.gate.clear()
    leader = in_threads(append_and_wait(disk))
    assert disk.in_sync.wait(20)
    interrupter = interrupt_when(lambda: disk.waiting == 1)
    with pytest.raises(KeyboardInterrupt):
        append_and_wait(disk)()
    interrupter()
    assert disk.waiting == 0
    other = in_threads(append_and_wait(disk))
    waiting(disk, 1)
    disk.gate.set()
    assert leader() + other() == [None] * 2
    assert (disk.synced, disk.committed) == (2, 3)


def test_who_is_interrupted_in_his_sync_hands_on(disk, monkeypatch):
    disk.gather_from_s = 1000
    real, threads = disk.sync, []

    def interrupted():
        monkeypatch.setattr(disk, "sync", real)
        threads.append(in_threads(append_and_wait(disk), append_and_wait(disk)))
        waiting(disk, 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(disk, "sync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        append_and_wait(disk)()
    assert threads[0]() == [None] * 2
    assert (disk.synced, disk.committed, disk.failure) == (1, 3, None)


# --- signals -----------------------------------------------------------------------------------------


def test_a_wait_with_a_limit_ends_though_signals_come_meanwhile():
    with signals_meanwhile(most=100) as signals:
        assert not write_gate.Bell().wait(0.3)
        assert len(signals) < 100


@contextmanager
def interrupted_through_another_thread():
    """^C, a moment later, for whose signal the system wakes another thread than the main one: soon even so."""
    is_over, began_s = threading.Event(), time.monotonic()

    def take():
        is_over.wait(0.2)
        os.kill(os.getpid(), signal.SIGINT)
        is_over.wait(60)

    finish = in_threads(take)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        is_over.set()
        finish()
        assert time.monotonic() - began_s < 10


def test_an_interrupt_ends_a_wait_that_its_signal_did_not_wake():
    """As if it came just before the thread fell asleep."""
    with pytest.raises(KeyboardInterrupt), interrupted_through_another_thread():
        write_gate.Bell().wait(20)


def test_an_interrupt_ends_a_wait_for_a_lock_that_its_signal_did_not_wake():
    lock, is_held, is_over = write_gate.CallLock(), threading.Event(), threading.Event()

    def hold():
        is_held.set()
        is_over.wait(20)

    holder = in_threads(lambda: lock.run(hold))
    assert is_held.wait(20)
    with pytest.raises(KeyboardInterrupt), interrupted_through_another_thread():
        lock.run(int)
    is_over.set()
    holder()


# --- gathering: who leads waits for those whom the last sync let go ----------------------------------


@pytest.fixture
def patient(disk, monkeypatch):
    """Nobody gives up gathering while a test looks."""
    disk.patience_s_max = 20
    monkeypatch.setattr(write_gate, "perf_counter", iter(range(0, 10**6, 20)).__next__)


def shared_sync(disk, count):
    """A sync that lets so many go at once."""
    gather_from_s, disk.gather_from_s = disk.gather_from_s, 1000      # nobody gathers before
    real = disk.sync

    def second():
        disk.gather_from_s = gather_from_s
        return real()

    disk.gate.clear()
    leader = in_threads(append_and_wait(disk))
    assert disk.in_sync.wait(20)
    disk.sync = second
    others = in_threads(*[append_and_wait(disk) for _ in range(count)])
    waiting(disk, count)
    disk.gate.set()
    assert leader() + others() == [None] * (count + 1)
    assert disk.synced == 2
    del disk.sync


def gathering(disk):
    for _ in range(20_000):
        if disk.is_gathering:
            return
        threading.Event().wait(0.001)
    raise AssertionError("nobody gathers")


def test_who_comes_back_first_waits_for_the_others_and_the_last_one_leads_for_all(disk, patient):
    shared_sync(disk, 3)
    first = in_threads(append_and_wait(disk))
    gathering(disk)
    second = in_threads(append_and_wait(disk))
    waiting(disk, 1)
    assert disk.synced == 2
    append_and_wait(disk)()
    assert first() + second() == [None] * 2
    assert (disk.synced, disk.committed) == (3, disk.written)


def test_those_who_waited_for_a_sync_gather_those_whom_it_let_go(disk, patient):
    disk.gate.clear()
    leader = in_threads(append_and_wait(disk))
    assert disk.in_sync.wait(20)
    waiter = in_threads(append_and_wait(disk))
    waiting(disk, 1)
    disk.gate.set()
    assert leader() == [None]
    gathering(disk)
    assert disk.synced == 1
    append_and_wait(disk)()
    assert waiter() == [None]
    assert (disk.synced, disk.committed) == (2, 3)


def test_who_waits_in_vain_leads_and_others_do_not_wait_after_that(disk, patient):
    disk.patience_s_max = 0.05
    shared_sync(disk, 3)
    began = time.monotonic()
    append_and_wait(disk)()
    assert time.monotonic() - began > 0.04      # it gathered, in vain
    assert (disk.synced, disk.committed) == (3, disk.written)
    disk.patience_s_max = 20
    pair = in_threads(append_and_wait(disk), append_and_wait(disk))
    assert pair() == [None] * 2         # with 20 s of patience: nobody gathers
    assert not disk.is_gathering


def test_nobody_waits_for_others_where_a_sync_is_quick(disk, patient):
    disk.gather_from_s = 30
    shared_sync(disk, 3)
    append_and_wait(disk)()
    assert (disk.synced, disk.committed) == (3, disk.written)


def test_a_lone_appender_does_not_gather(disk, patient):
    for _ in range(3):
        append_and_wait(disk)()
    assert disk.synced == 3


def test_who_wants_the_files_waits_for_nobody_who_may_come(disk, patient):
    shared_sync(disk, 3)
    gatherer = in_threads(append_and_wait(disk))
    gathering(disk)
    disk.alone(lambda: None)
    assert disk.committed == disk.written
    assert gatherer() == [None]


def test_the_files_are_free_for_who_wants_them_after_a_shared_sync(disk, patient):
    shared_sync(disk, 3)
    disk.alone(lambda: None)
    append_and_wait(disk)()
    assert disk.committed == disk.written


def test_who_is_interrupted_while_he_gathers_hands_on(disk, patient):
    shared_sync(disk, 3)
    others = []

    def another_waits():
        if disk.is_gathering and not others:
            others.append(in_threads(append_and_wait(disk)))
        return disk.waiting == 1

    interrupter = interrupt_when(another_waits)
    with pytest.raises(KeyboardInterrupt):
        append_and_wait(disk)()
    interrupter()
    assert others[0]() == [None]
    assert disk.committed == disk.written
