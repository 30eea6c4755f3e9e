"""A log that an event loop appends to: durability, order, cancellation, failures, and what strangers do to it."""
import asyncio
import errno
import gc
import threading
import time
import warnings
import weakref

import pytest

import seglog
import seglog.aio
from seglog.errors import (
    InvalidArgumentError,
    InvalidTimestampError,
    LogClosedError,
    LogFailedError,
    LogLockedError,
    RecordTooLargeError,
    StorageError,
)
from seglog.fs.files import OsFileSystem
from seglog.log.append import NOT_AT_ONCE
from seglog.loop.home import HomeLoop
from seglog.loop.in_flight import AppendsInFlight
from support.descriptors import descriptors_of
from support.faultfs import FailingFs, HeldSyncFs
from support.loops import in_both_loops, run_in
from support.waiting import wait_for


class HeldFs(HeldSyncFs):
    """New .log files wait, too."""

    def create(self, path, within=None, mode=0o666):
        if str(path).endswith(".log"):
            self.syncing.set()
            assert self.go.wait(120)
        return self._held(super().create(path, within, mode))


class HeldCall:
    """A call of `function` that waits until `go`."""

    def __init__(self, function):
        self._function = function
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, *args):
        self.begun.set()
        assert self.go.wait(60)
        return self._function(*args)


async def warmed(log):
    """Have five records in the log, and the marks that a thread writes before the first of several at a time."""
    await log.append(b"first")
    for _ in range(4):
        log.blocking.append(b"first", wait=False)
    await log.flush()


async def until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


@in_both_loops
def test_500_appends_at_once_share_the_syncs_and_are_durable(in_memory, new_loop):
    async def main():
        async with seglog.aio.open(in_memory / "orders-0") as log:
            offsets = await asyncio.gather(*(log.append(b"%d" % n, key=b"k") for n in range(500)))
            assert offsets == list(range(500))          # in the order of the calls
            assert log.blocking.durable_offset == 500
            assert log.blocking.stats().syncs < 50
            assert await log.append_many([(None, b"a"), (None, b"b")]) == 501
            assert [int(r.value) async for r in log.read(stop=500)] == list(range(500))
        assert log.closed

    run_in(new_loop, main())


@pytest.mark.parametrize("config", [
    {}, {"compression.type": "gzip"}, {"cleanup.policy": "compact"}, {"message.timestamp.type": "LogAppendTime"},
    {"segment.bytes": 1000}, {"message.format.version": "0.10.2"},
], ids=str)
@pytest.mark.parametrize("fsync", ["batch", "interval", "never"])
def test_what_is_appended_is_what_a_log_gets_by_its_own_methods(in_memory, config, fsync):
    has_headers = "message.format.version" not in config
    records = [(b"k%d" % n, b"v" * n, [("h", b"x")] if n % 2 and has_headers else []) for n in range(60)]
    now = int(time.time() * 1000)

    async def main():
        async with seglog.aio.open(in_memory / "orders-0", config=config, fsync=fsync) as log:
            for n, (key, value, headers) in enumerate(records):
                assert await log.append(value, key=key, headers=iter(headers), timestamp=now - 60 + n) == n
            await log.append_many(iter([(k, v, h, now) for k, v, h in records]), atomic=False)
            return [(r.key, r.value, list(r.headers)) async for r in log]

    assert asyncio.run(main()) == [(k, v, [tuple(x) for x in h]) for k, v, h in records * 2]
    report = seglog.verify(in_memory / "orders-0")
    assert not report.findings, report.findings


def test_no_append_and_no_reader_has_a_thread(in_memory):
    async def main():
        async with seglog.aio.open(in_memory / "orders-0") as log:
            await warmed(log)
            loop, by_thread = asyncio.get_running_loop(), []
            run_in_executor = loop.run_in_executor
            loop.run_in_executor = lambda *args: (by_thread.append(args), run_in_executor(*args))[1]
            before = threading.active_count()
            followers = [asyncio.create_task(anext(log.follow())) for _ in range(50)]
            await asyncio.sleep(0.05)
            await asyncio.gather(*(log.append(b"v") for _ in range(200)))
            await asyncio.gather(*followers)
            after = threading.active_count()
            assert (await log.get(3)).value == b"first"         # which may wait for a disk
            return before, after, len(by_thread)

    before, after, by_thread = asyncio.run(main())
    assert after <= before
    assert by_thread == 1


@in_both_loops
def test_a_cancelled_append_is_written_and_nobody_waits_for_it(in_memory, new_loop):
    async def main():
        fs = HeldFs()
        async with seglog.aio.open(in_memory / "orders-0", fs=fs) as log:
            await warmed(log)
            fs.go.clear()
            fs.syncing.clear()
            tasks = [asyncio.create_task(log.append(b"%d" % n)) for n in range(20)]
            never = asyncio.create_task(log.append(b"never"))
            never.cancel()                      # before it began: it is not written
            await until(fs.syncing.is_set)
            for task in tasks[::2]:
                task.cancel()
            found = await asyncio.gather(*tasks[::2], never, return_exceptions=True)
            assert {type(one) for one in found} == {asyncio.CancelledError}
            assert not any(task.done() for task in tasks[1::2])
            fs.go.set()
            assert await asyncio.gather(*tasks[1::2]) == list(range(6, 25, 2))
            assert [r.value async for r in log.read(5)] == [b"%d" % n for n in range(20)]
            await until(lambda: not len(log._in_flight))

    run_in(new_loop, main())


def test_a_cancelled_append_that_a_thread_does_is_written_in_its_place(in_memory):
    """The first append of a log writes marks: a thread does it, and those that come meanwhile stand behind it."""
    async def main():
        fs = HeldFs()
        async with seglog.aio.open(in_memory / "orders-0", fs=fs, config={"segment.bytes": 300}) as log:
            await log.append(b"x" * 150)
            fs.go.clear()
            fs.syncing.clear()
            rolls = asyncio.create_task(log.append(b"y" * 150))
            await until(fs.syncing.is_set)
            behind = [asyncio.create_task(log.append(b"%d" % n)) for n in range(3)]
            await asyncio.sleep(0)              # they begin
            rolls.cancel()
            behind[1].cancel()
            with pytest.raises(asyncio.CancelledError):
                await rolls
            fs.go.set()
            assert [await behind[0], await behind[2]] == [2, 3]
            return [r.value async for r in log]

    assert asyncio.run(main()) == [b"x" * 150, b"y" * 150, b"0", b"2"]


@in_both_loops
def test_closing_while_appends_are_awaited_answers_each_of_them(in_memory, new_loop):
    async def main():
        fs = HeldFs()
        log = await seglog.aio.open(in_memory / "orders-0", fs=fs)
        await log.append(b"first")
        fs.go.clear()
        tasks = [asyncio.create_task(log.append(b"%d" % n)) for n in range(10)]
        await asyncio.sleep(0.02)           # nothing shows when the last of them is accepted
        closings = [asyncio.create_task(log.close()) for _ in range(3)]
        late = asyncio.create_task(log.append(b"late"))
        await asyncio.sleep(0.02)
        fs.go.set()
        await asyncio.gather(*closings)
        assert await asyncio.gather(*tasks) == list(range(1, 11))
        with pytest.raises(LogClosedError):
            await late
        with pytest.raises(LogClosedError):
            await log.append(b"later")
        with pytest.raises(LogClosedError):
            await log.append_many([(None, b"later")])
        await log.close()

    run_in(new_loop, main())
    with seglog.open(in_memory / "orders-0") as log:
        assert log.log_end_offset == 11
        assert not log.recovery.lost


@in_both_loops
def test_a_close_lets_the_append_before_it_that_a_thread_has_not_begun_be_written(in_memory, new_loop, monkeypatch):
    async def main():
        log = await seglog.aio.open(in_memory / "orders-0")
        later = HeldCall(log._at_once.append_later)
        monkeypatch.setattr(log._at_once, "append", lambda *_: NOT_AT_ONCE)
        monkeypatch.setattr(log._at_once, "append_later", later)
        append = asyncio.create_task(log.append(b"before"))
        await until(later.begun.is_set)
        closings = [asyncio.create_task(log.close()) for _ in range(2)]
        await asyncio.sleep(0)              # they begin
        late = asyncio.create_task(log.append(b"late"))
        await asyncio.sleep(0)
        later.go.set()
        assert await append == 0
        await asyncio.gather(*closings)
        with pytest.raises(LogClosedError):
            await late

    run_in(new_loop, main())
    with seglog.open_partition(in_memory / "orders-0") as partition:
        assert [record.value for record in partition.read()] == [b"before"]


def test_a_close_that_is_cancelled_while_an_append_is_before_it_closes(in_memory, monkeypatch):
    async def main():
        log = await seglog.aio.open(in_memory / "orders-0")
        roll = HeldCall(log.blocking.roll)
        monkeypatch.setattr(type(log.blocking), "roll", lambda _: roll())
        rolling = asyncio.create_task(log.roll())
        await until(roll.begun.is_set)
        closing = asyncio.create_task(log.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await until(lambda: log.closed)
        roll.go.set()
        with pytest.raises(LogClosedError):
            await rolling

    asyncio.run(main())
    seglog.open(in_memory / "orders-0").close()


def test_a_cancelled_close_closes(in_memory):
    async def main():
        log = await seglog.aio.open(in_memory / "orders-0")
        await log.append(b"v")
        closing = asyncio.create_task(log.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await until(lambda: log.closed)

    asyncio.run(main())
    seglog.open(in_memory / "orders-0").close()


def test_a_cancelled_opening_leaves_no_log_open(in_memory, monkeypatch):
    release, entered = threading.Event(), threading.Event()

    def slowly(*args, **named):
        entered.set()
        assert release.wait(120)
        return seglog.open(*args, **named)

    monkeypatch.setattr("seglog.aio.opening.open_log", slowly)

    async def main():
        opening = asyncio.ensure_future(seglog.aio.open(in_memory / "orders-0").__aenter__())
        await until(entered.is_set)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        release.set()

    asyncio.run(main())         # which waits for the threads of its pool
    monkeypatch.undo()
    seglog.open(in_memory / "orders-0").close()


@in_both_loops
@pytest.mark.parametrize("what", ["sync", "write"])
def test_a_failure_is_told_to_each_append_that_waits(in_memory, new_loop, what):
    held = HeldFs()
    fs = FailingFs(OsFileSystem()) if what == "write" else held

    async def main():
        log = await seglog.aio.open(in_memory / "orders-0", fs=fs)
        await asyncio.gather(*(log.append(b"first") for _ in range(5)))
        if what == "write":
            fs.fail(len(fs.calls), errno.EIO)
        else:
            fs.error = StorageError("no disk", errno=errno.EIO)
        found = await asyncio.gather(*(log.append(b"%d" % n) for n in range(20)), return_exceptions=True)
        assert {type(one) for one in found} == {LogFailedError}
        assert len({id(one) for one in found}) == 20        # each has a traceback of its own
        with pytest.raises(LogFailedError):
            await log.append(b"later")
        await log.close()

    run_in(new_loop, main())


@in_both_loops
def test_wrong_arguments_are_refused_as_by_a_log(in_memory, new_loop):
    async def main():
        async with seglog.aio.open(in_memory / "orders-0", config={"max.message.bytes": 1000}) as log:
            for call, error in [
                (lambda: log.append("text"), InvalidArgumentError),
                (lambda: log.append(b"k", b"v"), InvalidArgumentError),
                (lambda: log.append(5), InvalidArgumentError),
                (lambda: log.append(b"v", headers={"a": b"b"}), InvalidArgumentError),
                (lambda: log.append(b"v", timestamp=1_700_000_000), InvalidTimestampError),
                (lambda: log.append(b"v" * 2000), RecordTooLargeError),
                (lambda: log.append_many(5), InvalidArgumentError),
                (lambda: log.append_many([5]), InvalidArgumentError),
                (lambda: log.append_many([(None, b"v" * 2000)]), RecordTooLargeError),
                (lambda: log.durable(5), InvalidArgumentError),
                (lambda: log.truncate_to(-5), seglog.errors.OffsetOutOfRangeError),
            ]:
                for _ in range(2):      # before and behind the first record
                    with pytest.raises(error) as met:
                        await call()
                    assert met.value.hint
                await log.append(b"good")
            assert "encode the text" in (await _error_of(log.append("text"))).hint
            assert [r.value async for r in log] == [b"good"] * 11

    run_in(new_loop, main())


async def _error_of(awaitable):
    try:
        await awaitable
    except Exception as error:
        return error
    raise AssertionError


def test_wrong_openings_are_refused(in_memory):
    async def main():
        with pytest.raises(StorageError):
            await seglog.aio.open(in_memory / "orders-0", create=False)
        with pytest.raises(StorageError):
            await seglog.aio.follow(in_memory / "orders-0")
        with pytest.raises(StorageError):
            async with seglog.aio.open_partition(in_memory / "orders-0"):
                pass
        with pytest.raises(InvalidArgumentError):
            await seglog.aio.open(5)
        with pytest.raises(InvalidArgumentError):
            await seglog.aio.open(in_memory / "orders-0", fsync="sometimes")
        async with seglog.aio.open(in_memory / "orders-0"):
            with pytest.raises(LogLockedError):
                await seglog.aio.open(in_memory / "orders-0")

    asyncio.run(main())


def test_a_log_belongs_to_one_loop(in_memory):
    async def first():
        log = await seglog.aio.open(in_memory / "orders-0")
        await log.append(b"first")
        records = log.follow("start")
        assert (await anext(records)).value == b"first"
        return log, records

    log, records = asyncio.run(first())

    async def second():
        for call in (
            lambda: log.append(b"v"), lambda: log.append_many([(None, b"v")]), lambda: log.get(0), log.flush, log.close,
            lambda: anext(records), lambda: anext(log.read()),
        ):
            with pytest.raises(InvalidArgumentError, match="another event loop"):
                await call()

    asyncio.run(second())
    with pytest.raises(InvalidArgumentError, match="this thread has none"):
        seglog.aio.AsyncLog(log.blocking)
    log.blocking.close()


def test_a_loop_that_is_closed_under_a_log_leaves_what_was_written(in_memory):
    """Appends that were awaited when the loop ended are in the log, which goes on by its own methods."""
    fs = HeldFs()
    loop = asyncio.new_event_loop()

    async def begin():
        log = await seglog.aio.open(in_memory / "orders-0", fs=fs)
        await warmed(log)
        fs.go.clear()
        fs.syncing.clear()
        tasks = [asyncio.ensure_future(log.append(b"%d" % n)) for n in range(5)]
        follower = asyncio.ensure_future(anext(log.follow()))
        await until(fs.syncing.is_set)
        for task in [*tasks, follower]:
            task.cancel()
        await asyncio.gather(*tasks, follower, return_exceptions=True)
        return log

    log = loop.run_until_complete(begin())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    fs.go.set()
    written = log.blocking._tail.next_offset
    assert written > 5          # those that had not begun when they were cancelled are not
    assert log.blocking.append(b"by a thread") == written
    assert log.blocking.durable_offset == written + 1
    assert [r.value for r in log.blocking][:6] == [b"first"] * 5 + [b"0"]
    log.blocking.close()


async def use_log(path):
    async with seglog.aio.open(path) as log:
        await log.append(b"v")


async def use_follower(path):
    async with seglog.aio.follow(path) as follower:
        await anext(follower.follow("start", timeout=60))


async def use_queue(path):
    async with seglog.aio.Queue(path) as queue:
        await queue.put(b"v")


@pytest.mark.parametrize("has_started", [False, True])
@pytest.mark.parametrize("use", [use_log, use_follower, use_queue])
def test_an_interrupt_where_the_pool_starts_a_thread_leaves_nothing_open(in_memory, monkeypatch, use, has_started):
    """asyncio then knows of no thread, and the thread may work all the same: it opened what nobody closed."""
    path = in_memory / "orders-0"
    asyncio.run((use_queue if use is use_queue else use_log)(path))
    start, threads = threading.Thread.start, []

    def interrupted(thread):
        if "asyncio" not in thread.name or threads:
            return start(thread)
        threads.append(thread)
        if has_started:
            start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    gc.collect()        # of earlier tests
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(use(path))
    [thread] = threads
    if has_started:
        thread.join(20)
    gc.collect()
    assert [str(warning.message) for warning in told] == []
    assert descriptors_of(in_memory) == 0
    monkeypatch.undo()
    asyncio.run(use(path))


@in_both_loops
def test_appends_in_a_row_leave_the_loop_to_others(in_memory, new_loop):
    async def main():
        async with seglog.aio.open(in_memory / "orders-0", fsync="never") as log:
            turns = 0

            async def other():
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            task = asyncio.ensure_future(other())
            for _ in range(1000):
                await log.append(b"v")
            task.cancel()
            return turns

    assert run_in(new_loop, main()) >= 10


def test_a_token_of_an_append_that_waits_for_nobody_can_be_awaited(in_memory):
    async def main():
        async with seglog.aio.open(in_memory / "orders-0", fsync="never") as log:
            written = log.blocking.append(b"v", wait=False)
            await log.durable(written)
            assert log.blocking.durable_offset == 1
            await log.append(b"v")
            await log.flush()
            assert log.blocking.durable_offset == 2

    asyncio.run(main())


def test_a_log_of_a_log_dir_is_used_in_a_loop(in_memory):
    async def main():
        with seglog.open_dir(in_memory) as log_dir:
            log = seglog.aio.AsyncLog(log_dir.log("orders", 0))
            assert await log.append(b"v") == 0
            assert await log.roll() == 1
            assert await log.append(b"w", key="k") == 1
            assert (await log.get(1)).key == b"k"
            assert await log.snapshot(in_memory / "backups" / "orders-0") == 2
            assert await log.truncate_to(1) == 1
            assert await log.delete_records(1) == 1
            assert (log.log_start_offset, log.log_end_offset) == (1, 1)
            await log.close()

    asyncio.run(main())


def test_nothing_is_left_of_a_log_that_was_closed(in_memory):
    async def use(name):
        async with seglog.aio.open(in_memory / name) as log, seglog.aio.follow(in_memory / name) as reader:
            tasks = [asyncio.ensure_future(log.append(b"v")) for _ in range(50)]
            records = reader.follow("start", timeout=60)
            async for record in records:
                if record.offset == 30:
                    break
            waiting = asyncio.ensure_future(anext(reader.follow()))
            await asyncio.gather(*tasks)
            waiting.cancel()
        return weakref.ref(log), weakref.ref(log.blocking), weakref.ref(reader), weakref.ref(reader.blocking)

    async def main():
        return await use("orders-0")

    left = asyncio.run(main())
    wait_for(lambda: gc.collect() >= 0 and not any(one() for one in left))
    wait_for(lambda: descriptors_of(in_memory) == 0)


class ToldToSync:
    """A log and its appends, as AppendsInFlight sees them: `sync` answers what was asked, up to so many appends."""

    def __init__(self):
        self.asked, self.committed = [], 0

    def when_durable(self, token, callback):
        self.asked.append((token.number, callback))

    def sync(self, number):
        self.committed = number
        while self.asked and self.asked[0][0] <= number:
            self.asked.pop(0)[1](None)


def test_of_appends_that_come_to_wait_out_of_order_the_last_one_is_asked_about():
    """One that a thread wrote may come to wait behind a later one of the loop, which would wait for ever."""
    async def main():
        log = ToldToSync()
        in_flight = AppendsInFlight(HomeLoop("orders-0"), log, log)
        waiting = [in_flight.durable(number) for number in (1, 3, 2)]
        log.sync(1)
        await waiting[0]
        assert [number for number, _ in log.asked] == [3]
        log.sync(2)
        log.sync(3)
        await asyncio.gather(*waiting)
        assert not log.asked

    asyncio.run(asyncio.wait_for(main(), 60))


# --- in which order ------------------------------------------------------------------------------------------


@in_both_loops
def test_appends_of_a_task_are_in_the_order_in_which_it_awaits_them_whatever_threads_do(in_memory, new_loop):
    """As docs/asyncio.md says. Those of several tasks have no order among them."""
    async def main():
        async with seglog.aio.open(in_memory / "orders-0", config={"segment.bytes": 1000}, fsync="never") as log:
            first, second = log.append(b"made first"), log.append(b"made second")
            assert [await second, await first] == [0, 1]

            async def append(name):
                for n in range(40):
                    await log.append(b"%d" % n, key=name)

            await asyncio.gather(*(append(name) for name in "abcd"), log.roll(), log.flush())
            found = {}
            async for record in log.read(2):
                found.setdefault(record.key, []).append(int(record.value))
            assert found == {name: list(range(40)) for name in (b"a", b"b", b"c", b"d")}
            assert (await log.stats()).segments > 2

    run_in(new_loop, main())
