"""Appenders that wait for the disk share one sync, and none is told of a success that was not."""
import threading

import pytest

from seglog.errors import LogFailedError, StorageError
from seglog.segment import group_commit
from seglog.segment.group_commit import GroupCommit


class Disk:
    """A file of appends, counted. A sync takes until `gate` opens, and covers what was written when it began."""

    def __init__(self):
        self.written = 0
        self.syncs = 0
        self.gate = threading.Event()
        self.gate.set()
        self.in_sync = threading.Event()
        self.error = None

    def append(self):
        self.written += 1
        return self.written

    def sync(self):
        covered = self.written
        self.in_sync.set()
        assert self.gate.wait(20)
        if self.error:
            raise self.error
        self.syncs += 1
        return covered


def failed(first):
    return LogFailedError(f"failed: {first}")


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def commit():
    return GroupCommit(failed)


def append_and_wait(disk, commit):
    """An append of now, whose number is waited for when the result is called."""
    number = disk.append()
    return lambda: commit.wait(number, disk.sync)


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


def waiting(commit, count):
    """Wait until so many appenders wait for somebody else's sync."""
    for _ in range(20_000):
        if len(commit._queue) == count:
            return
        threading.Event().wait(0.001)
    raise AssertionError("they do not wait")


def test_a_lone_appender_syncs_once_for_each_append(disk, commit):
    for _ in range(3):
        commit.wait(disk.append(), disk.sync)
    assert (disk.syncs, commit.committed) == (3, 3)


def test_what_was_synced_is_not_synced_again(disk, commit):
    disk.append()
    commit.wait(disk.append(), disk.sync)
    commit.wait(1, disk.sync)
    assert disk.syncs == 1


def test_those_who_come_during_a_sync_share_the_next_one(disk, commit):
    disk.gate.clear()
    leader = in_threads(append_and_wait(disk, commit))
    assert disk.in_sync.wait(20)
    others = in_threads(*[append_and_wait(disk, commit) for _ in range(7)])
    waiting(commit, 7)
    assert commit.committed == 0
    disk.gate.set()
    assert leader() + others() == [None] * 8
    assert (disk.syncs, commit.committed) == (2, 8)


def test_a_sync_does_not_cover_what_was_written_while_it_ran(disk, commit):
    disk.gate.clear()
    leader = in_threads(append_and_wait(disk, commit))
    assert disk.in_sync.wait(20)
    late = disk.append()
    disk.gate.set()
    leader()
    assert commit.committed < late


def test_after_a_failed_sync_everybody_who_waits_learns_of_the_first_error(disk, commit):
    disk.gate.clear()
    disk.error = StorageError("the device reported an input/output error")
    leader = in_threads(append_and_wait(disk, commit))
    assert disk.in_sync.wait(20)
    others = in_threads(*[append_and_wait(disk, commit) for _ in range(3)])
    waiting(commit, 3)
    disk.gate.set()
    assert leader() == [disk.error]
    for error in others():
        assert isinstance(error, LogFailedError)
        assert error.__cause__ is disk.error
    disk.error = None
    with pytest.raises(LogFailedError, match="input/output"):
        commit.wait(disk.append(), disk.sync)
    assert (disk.syncs, commit.committed) == (0, 0)


def test_what_was_durable_before_a_failure_stays_so(disk, commit):
    commit.wait(disk.append(), disk.sync)
    commit.fail(StorageError("no space"))
    commit.wait(1, disk.sync)
    with pytest.raises(LogFailedError, match="no space"):
        commit.wait(2, disk.sync)
    with pytest.raises(LogFailedError, match="no space"), commit.exclusive():
        pass


def test_who_has_the_files_for_himself_keeps_syncs_away_and_may_cover_for_them(disk, commit):
    number = disk.append()
    with commit.exclusive():
        waiter = in_threads(lambda: commit.wait(number, disk.sync))
        waiting(commit, 1)
        commit.cover(number)
    assert waiter() == [None]
    assert disk.syncs == 0


def test_who_wants_the_files_waits_for_the_sync_that_runs(disk, commit):
    disk.gate.clear()
    leader = in_threads(append_and_wait(disk, commit))
    assert disk.in_sync.wait(20)
    seen = []

    def take():
        with commit.exclusive():
            seen.append(disk.syncs)

    taker = in_threads(take)
    assert not seen
    disk.gate.set()
    assert leader() + taker() == [None, None]
    assert seen == [1]


def test_an_error_while_the_files_are_taken_is_a_failure(disk, commit):
    with pytest.raises(OSError, match="lost"), commit.exclusive():
        raise OSError("lost")
    with pytest.raises(LogFailedError, match="lost"):
        commit.wait(disk.append(), disk.sync)


def test_many_threads_append_and_each_is_durable_when_told_so(disk, commit):
    lock = threading.Lock()

    def run():
        for _ in range(200):
            with lock:
                number = disk.append()
            commit.wait(number, disk.sync)
            assert commit.committed >= number

    assert in_threads(*[run] * 6)() == [None] * 6
    assert commit.committed == 1200
    assert disk.syncs <= 1200


def test_who_is_interrupted_while_he_waits_keeps_nobody_waiting(disk, commit, monkeypatch):
    class Interrupted(group_commit._Turn):
        def __init__(self, number):
            super().__init__(number)
            wait = self.wait

            def interrupted():
                if self.number == 3:        # when the files are his
                    wait()
                raise KeyboardInterrupt

            self.wait = interrupted

    disk.gate.clear()
    commit._rest = 2        # nobody gathers
    leader = in_threads(append_and_wait(disk, commit))
    assert disk.in_sync.wait(20)
    with monkeypatch.context() as patched:
        patched.setattr(group_commit, "_Turn", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            append_and_wait(disk, commit)()
        assert commit._queue == []
        number = disk.append()

        def interrupted():
            with pytest.raises(KeyboardInterrupt):
                commit.wait(number, disk.sync)

        first = in_threads(interrupted)
        waiting(commit, 1)
    second = in_threads(append_and_wait(disk, commit))
    waiting(commit, 2)
    disk.gate.set()
    assert leader() + first() + second() == [None] * 3
    assert (disk.syncs, commit.committed) == (2, 4)


# --- gathering: who leads waits for those whom the last sync let go ----------------------------------


@pytest.fixture
def patient(monkeypatch):
    """Nobody gives up gathering while a test looks."""
    monkeypatch.setattr(group_commit, "_PATIENCE_S_MAX", 20)
    monkeypatch.setattr(group_commit.time, "perf_counter", iter(range(0, 10**6, 20)).__next__)


def shared_sync(disk, commit, count):
    """A sync that lets so many go at once."""
    commit._rest = 2        # nobody gathers before
    disk.gate.clear()
    leader = in_threads(append_and_wait(disk, commit))
    assert disk.in_sync.wait(20)
    others = in_threads(*[append_and_wait(disk, commit) for _ in range(count)])
    waiting(commit, count)
    commit._rest = 1
    disk.gate.set()
    assert leader() + others() == [None] * (count + 1)
    assert disk.syncs == 2


def gathering(commit):
    for _ in range(20_000):
        if commit._gatherer is not None:
            return
        threading.Event().wait(0.001)
    raise AssertionError("nobody gathers")


def test_who_comes_back_first_waits_for_the_others_and_the_last_one_leads_for_all(disk, commit, patient):
    shared_sync(disk, commit, 3)
    first = in_threads(append_and_wait(disk, commit))
    gathering(commit)
    second = in_threads(append_and_wait(disk, commit))
    waiting(commit, 1)
    assert disk.syncs == 2
    append_and_wait(disk, commit)()
    assert first() + second() == [None] * 2
    assert (disk.syncs, commit.committed) == (3, disk.written)


def test_those_who_waited_for_a_sync_gather_those_whom_it_let_go(disk, commit, patient):
    disk.gate.clear()
    leader = in_threads(append_and_wait(disk, commit))
    assert disk.in_sync.wait(20)
    waiter = in_threads(append_and_wait(disk, commit))
    waiting(commit, 1)
    disk.gate.set()
    assert leader() == [None]
    gathering(commit)
    assert disk.syncs == 1
    append_and_wait(disk, commit)()
    assert waiter() == [None]
    assert (disk.syncs, commit.committed) == (2, 3)


def test_who_waits_in_vain_leads_and_others_do_not_wait_after_that(disk, commit, monkeypatch):
    monkeypatch.setattr(group_commit, "_GATHER_FROM_S", 0)
    shared_sync(disk, commit, 3)
    append_and_wait(disk, commit)()
    assert (disk.syncs, commit.committed, commit._rest) == (3, disk.written, 1)
    shared = disk.syncs
    append_and_wait(disk, commit)()
    assert disk.syncs == shared + 1


def test_nobody_waits_for_others_where_a_sync_is_quick(disk, commit, monkeypatch):
    monkeypatch.setattr(group_commit, "_GATHER_FROM_S", 20)
    shared_sync(disk, commit, 3)
    commit._rest = 0
    append_and_wait(disk, commit)()
    assert (disk.syncs, commit.committed, commit._rest) == (3, disk.written, 0)


def test_a_lone_appender_does_not_gather(disk, commit, patient):
    for _ in range(3):
        append_and_wait(disk, commit)()
    assert disk.syncs == 3


def test_who_wants_the_files_waits_for_nobody_who_may_come(disk, commit, patient):
    shared_sync(disk, commit, 3)
    gatherer = in_threads(append_and_wait(disk, commit))
    gathering(commit)
    with commit.exclusive():
        assert commit.committed == disk.written
    assert gatherer() == [None]


def test_the_files_are_free_for_who_wants_them_after_a_shared_sync(disk, commit, patient):
    shared_sync(disk, commit, 3)
    with commit.exclusive():
        pass
    append_and_wait(disk, commit)()
    assert commit.committed == disk.written


def test_who_is_interrupted_while_he_gathers_hands_on(disk, commit, monkeypatch, patient):
    class Interrupted(group_commit._Turn):
        def __init__(self, number):
            super().__init__(number)
            wait = self.wait

            def interrupted(*patience):
                if not patience:
                    return wait()
                assert another_waits.wait(20)
                raise KeyboardInterrupt

            self.wait = interrupted

    another_waits = threading.Event()
    shared_sync(disk, commit, 3)
    monkeypatch.setattr(group_commit, "_Turn", Interrupted)

    def gather():
        with pytest.raises(KeyboardInterrupt):
            append_and_wait(disk, commit)()

    gatherer = in_threads(gather)
    gathering(commit)
    other = in_threads(append_and_wait(disk, commit))
    waiting(commit, 1)
    another_waits.set()
    assert gatherer() + other() == [None] * 2
    assert commit.committed == disk.written
