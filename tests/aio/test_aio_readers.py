"""Reading and following in an event loop: what is given, when, and what a cancelled, closed or odd reader meets."""
import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import seglog
import seglog.aio
from seglog.errors import (
    CorruptRecordError,
    IdleTimeoutError,
    InvalidArgumentError,
    LogClosedError,
    OffsetOutOfRangeError,
)
from seglog.fs.file_watch import FILE_WATCHES
from support.loops import in_both_loops, run_in
from support.waiting import wait_for

CONFIG = {"segment.bytes": 2000, "index.interval.bytes": 200}


@pytest.fixture
def path(in_memory):
    return in_memory / "orders-0"


def filled(path, count, config=CONFIG):
    with seglog.open(path, config=config, fsync="never") as log:
        for n in range(count):
            log.append(b"%d" % n)
    return path


async def taken(records, count):
    return [(await asyncio.wait_for(anext(records), 20)).value for _ in range(count)]


# --- read ----------------------------------------------------------------------------------------------------


@in_both_loops
@pytest.mark.parametrize("named", [
    {}, {"start": 30, "stop": 700}, {"since": "-1h"}, {"until": 0}, {"on_corrupt": "skip"},
    {"isolation": "read_committed"}, {"start": -5, "on_out_of_range": "earliest"},
], ids=str)
def test_a_read_gives_what_a_partition_gives(path, new_loop, named):
    filled(path, 1000)
    with seglog.open_partition(path) as partition:
        expected = [(r.offset, r.value) for r in partition.read(**named)]

    async def main():
        async with seglog.aio.open_partition(path) as reader:
            assert [(r.offset, r.value) async for r in reader.read(**named)] == expected
            assert (await reader.get(7)).value == b"7"
            assert (reader.log_start_offset, reader.log_end_offset) == (0, 1000)

    run_in(new_loop, main())


def test_a_reader_gives_the_loop_its_turns_and_reads_ahead_no_more_than_a_run(path):
    """Of 20 MB, only what lies in a table or two has been looked at when the first record is there."""
    with seglog.open(path, fsync="never") as log:
        for _ in range(200):
            log.append_many([(None, b"x" * 1000)] * 100)

    async def main():
        async with seglog.aio.open_partition(path) as reader:
            records, walked = reader.read(), []
            walk = reader.blocking._walk

            def counted(*args):
                for segment, table in walk(*args):
                    walked.append(len(table))
                    yield segment, table

            reader.blocking._walk = counted
            await anext(records)
            assert len(walked) == 1
            turns, count = 0, 1

            async def other():
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            task = asyncio.ensure_future(other())
            async for _ in records:
                count += 1
            task.cancel()
            assert count == 20_000
            assert turns >= count // 300

    asyncio.run(main())


@in_both_loops
def test_records_before_damage_come_first_and_then_its_error(path, new_loop):
    filled(path, 100, {})
    log = path / "00000000000000000000.log"
    raw = bytearray(log.read_bytes())
    raw[len(raw) // 2] ^= 1
    log.write_bytes(raw)

    async def main():
        async with seglog.aio.open_partition(path) as reader:
            records, seen = reader.read(), []

            async def see():
                async for record in records:
                    seen.append(record.offset)

            with pytest.raises(CorruptRecordError):
                await see()
            with pytest.raises(StopAsyncIteration):
                await anext(records)
            found = reader.read(on_corrupt="skip")
            assert found.lost == ()
            skipped = [r.offset async for r in found]
            return seen, skipped, found.lost

    seen, skipped, lost = run_in(new_loop, main())
    with seglog.open_partition(path) as partition:
        expected = []
        with pytest.raises(CorruptRecordError):
            expected.extend(record.offset for record in partition.read())
        assert skipped == [r.offset for r in partition.read(on_corrupt="skip")]
    assert seen == expected
    assert lost


@in_both_loops
def test_wrong_reads_are_refused(path, new_loop):
    filled(path, 10)

    async def main():
        async with seglog.aio.open_partition(path) as reader:
            for records, error in [
                (reader.read("3"), InvalidArgumentError), (reader.read(11), OffsetOutOfRangeError),
                (reader.read(isolation="serializable"), InvalidArgumentError),
                (reader.read(since=object()), InvalidArgumentError),
            ]:
                with pytest.raises(error):
                    await anext(records)
            with pytest.raises(OffsetOutOfRangeError):
                await reader.get(10)
            with pytest.raises(InvalidArgumentError):
                await reader.get("0")
        with pytest.raises(LogClosedError):
            await anext(reader.read())
        async with seglog.aio.follow(path) as reader:
            for named, error in [
                ({"start": 11}, OffsetOutOfRangeError), ({"timeout": "x"}, InvalidArgumentError),
                ({"timeout": -1}, InvalidArgumentError), ({"on_out_of_range": "first"}, InvalidArgumentError),
                ({"isolation": "none"}, InvalidArgumentError),
            ]:
                with pytest.raises(error):
                    reader.follow(**named)
            with pytest.raises(InvalidArgumentError):
                await anext(reader.follow("yesterday, perhaps"))
        with pytest.raises(LogClosedError):
            reader.follow()

    run_in(new_loop, main())


# --- follow --------------------------------------------------------------------------------------------------


@in_both_loops
def test_a_follower_looks_again_before_its_loop_is_told_of_a_cut(path, new_loop):
    """The call that tells the loop comes after this task: it must not wait for it by looking at the old extent."""
    async def main():
        async with seglog.aio.open(path, config=CONFIG) as log:
            ahead, behind = log.follow("start"), log.follow("start")
            waiting = [asyncio.ensure_future(anext(reader)) for reader in (ahead, behind)]
            await asyncio.sleep(0.02)
            await log.append(b"0")
            await asyncio.gather(*waiting)      # both have waited: the loop itself reads for them now
            for value in (b"1", b"2"):
                await log.append(value)
                await asyncio.sleep(0.1)        # the loop is told of it
                assert await taken(ahead, 1) == [value]
            log.blocking.truncate_to(2)
            assert (await anext(behind)).value == b"1"      # in this turn: a task of its own would let the loop be told
            await log.append(b"2, again")
            assert await taken(behind, 1) == await taken(ahead, 1) == [b"2, again"]

    run_in(new_loop, main())


@in_both_loops
@pytest.mark.parametrize("is_own", [True, False], ids=["the log itself", "a follower"])
def test_followers_see_appends_rolls_cuts_and_deletions(path, new_loop, is_own):
    async def main():
        async with seglog.aio.open(path, config=CONFIG) as log, seglog.aio.follow(path) as other:
            reader = log if is_own else other
            await log.append_many([(None, b"0"), (None, b"1")])
            while reader.log_end_offset < 2:    # a follower learns of it some milliseconds later
                await asyncio.sleep(0.001)
            by_start, by_end, by_time = reader.follow("start"), reader.follow(), reader.follow("-1h")
            assert await taken(by_start, 2) == [b"0", b"1"]
            assert await taken(by_time, 2) == [b"0", b"1"]
            waiting = [asyncio.ensure_future(taken(one, 1)) for one in (by_start, by_end, by_time)]
            await asyncio.sleep(0.02)
            await log.append(b"2")
            assert await asyncio.gather(*waiting) == [[b"2"]] * 3
            await log.truncate_to(1)
            waiting = asyncio.ensure_future(taken(by_start, 1))
            await asyncio.sleep(0.02)
            await log.append(b"1, again")
            assert await waiting == [b"1, again"]
            for n in range(200):                # over several segments
                await log.append(b"n%d" % n)
            assert await taken(by_start, 200) == [b"n%d" % n for n in range(200)]
            await log.roll()
            await log.delete_records(201)
            await log.append(b"last")
            assert await taken(by_start, 1) == [b"last"]
            with pytest.raises(OffsetOutOfRangeError):
                await asyncio.wait_for(anext(by_end), 20)       # what it had yet to read is gone

    run_in(new_loop, main())


@in_both_loops
@pytest.mark.parametrize("is_own", [True, False], ids=["the log itself", "a follower"])
def test_cancelled_waiting_loses_no_record(path, new_loop, is_own):
    async def main():
        async with seglog.aio.open(path, fsync="never") as log, seglog.aio.follow(path) as other:
            await log.append(b"first")
            records = (log if is_own else other).follow("start")
            seen, stop = [], 300

            async def write():
                for n in range(1, stop):
                    await log.append(b"%d" % n)
                    if n % 7 == 0:
                        await asyncio.sleep(0.001)

            task = asyncio.ensure_future(write())
            cancelled = 0
            while len(seen) < stop:
                try:
                    seen.append((await asyncio.wait_for(anext(records), 0.0005 if cancelled < 200 else 20)).offset)
                except TimeoutError:
                    cancelled += 1
            await task
            assert seen == list(range(stop))
            assert cancelled

    run_in(new_loop, main())


@in_both_loops
@pytest.mark.parametrize("is_own", [True, False], ids=["the log itself", "a follower"])
def test_closing_ends_whoever_follows(path, new_loop, is_own):
    async def main():
        log = await seglog.aio.open(path)
        await log.append(b"v")
        reader = log if is_own else await seglog.aio.follow(path)
        while reader.log_end_offset < 1:        # a follower learns of it some milliseconds later
            await asyncio.sleep(0.001)

        seen = {"end": [], "start": [], "-1h": []}

        async def follow(start):
            async for record in reader.follow(start):
                seen[start].append(record.offset)

        tasks = [asyncio.ensure_future(follow(start)) for start in seen]
        while not (seen["start"] and seen["-1h"]):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)       # they wait again, most often
        await reader.close()
        await asyncio.wait_for(asyncio.gather(*tasks), 50)
        assert seen == {"end": [], "start": [0], "-1h": [0]}
        await reader.close()
        await log.close()

    run_in(new_loop, main())


@in_both_loops
def test_an_idle_follower_times_out_and_says_where(path, new_loop):
    async def main():
        async with seglog.aio.open(path) as log:
            await log.append(b"v")
            records = log.follow("start", timeout=0.05)
            await anext(records)
            with pytest.raises(TimeoutError) as idle:
                await anext(records)
            assert type(idle.value) is IdleTimeoutError
            assert idle.value.offset == 1
            with pytest.raises(StopAsyncIteration):
                await anext(records)

    run_in(new_loop, main())


@in_both_loops
def test_a_timeout_may_be_any_number_of_seconds(path, new_loop):
    """An int that no float holds was an OverflowError, in the middle of following."""
    filled(path, 1)

    async def main():
        async with seglog.aio.follow(path) as reader:
            for timeout in (10**400, 1e300, float("inf"), 10**9):
                with pytest.raises(TimeoutError) as error:
                    await asyncio.wait_for(anext(reader.follow(timeout=timeout)), 0.05)
                assert not isinstance(error.value, IdleTimeoutError)
                records = reader.blocking.follow("start", timeout=timeout)
                assert next(records).value == b"0"

    run_in(new_loop, main())


@in_both_loops
def test_one_iterator_is_for_one_task_and_can_be_ended_by_another(path, new_loop):
    async def main():
        async with seglog.aio.open(path) as log:
            records = log.follow()
            waiting = asyncio.ensure_future(anext(records))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="a separate iterator for each task"):
                await anext(records)
            await records.aclose()
            with pytest.raises(StopAsyncIteration):
                await asyncio.wait_for(waiting, 20)
            await records.aclose()

    run_in(new_loop, main())


def test_followers_share_one_watch_and_leave_none(path):
    filled(path, 1)
    before = sum(map(len, FILE_WATCHES._watched.values()))

    async def main():
        async with seglog.aio.follow(path) as reader:
            tasks = [asyncio.ensure_future(anext(reader.follow())) for _ in range(100)]
            while len(reader._arrivals._waiting) < len(tasks):
                await asyncio.sleep(0.01)
            assert sum(map(len, FILE_WATCHES._watched.values())) == before + 1
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            while sum(map(len, FILE_WATCHES._watched.values())) > before:     # a moment later nobody watches
                await asyncio.sleep(0.01)
            task = asyncio.ensure_future(anext(reader.follow()))
            await asyncio.sleep(0.05)
            with seglog.open(path) as log:
                log.append(b"v")
                assert (await asyncio.wait_for(task, 20)).value == b"v"

    asyncio.run(asyncio.wait_for(main(), 60))
    assert sum(map(len, FILE_WATCHES._watched.values())) == before


@in_both_loops
def test_a_loop_that_is_closed_while_tasks_wait_leaves_no_watch(path, new_loop):
    """asyncio.run cancels its tasks and is closed in the same moment: before the timer that ends the watch. Each such
    loop stayed among those that each append rings, as long as the log."""
    filled(path, 1)
    before = sum(map(len, FILE_WATCHES._watched.values()))

    async def wait(reader):
        task = asyncio.ensure_future(anext(reader.follow()))
        await asyncio.sleep(0.02)
        assert not task.done()
        task.cancel()

    async def main(log, follower):
        await asyncio.gather(wait(seglog.aio.AsyncLog(log)), wait(seglog.aio.AsyncFollower(follower)))

    with seglog.open(path) as log, seglog.follow(path) as follower:
        for _ in range(3):
            run_in(new_loop, main(log, follower))
        log.append(b"v")
        wait_for(lambda: len(log._tail.listeners) == 0)
        wait_for(lambda: len(follower._bells) == 0)
        assert sum(map(len, FILE_WATCHES._watched.values())) == before
        log.append(b"w")
        wait_for(lambda: follower.log_end_offset == 3)


class Changing:
    """A follower's source while segments are cut or exchanged: a thread has to look."""

    is_changing = True

    def __init__(self, source):
        self._source = source

    def __getattr__(self, name):
        return getattr(self._source, name)


def test_what_a_thread_reads_is_not_taken_for_what_the_loop_read_before(path):
    """Two follow; one goes on by a thread while the loop has yet to hear of a roll. The other one misses no record."""
    async def main():
        async with seglog.aio.open(path, fsync="never") as log:
            one, other = log.follow(), log.follow()
            for records in (one, other):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(records), 0.05)
            arrivals = log._arrivals
            heard = arrivals.number
            log.blocking.append(b"a")
            while arrivals.number == heard:
                await asyncio.sleep(0.001)
            assert await taken(one, 1) == [b"a"]
            arrivals._is_rung = True            # what rings from here on has yet to come through
            log.blocking.roll()
            log.blocking.append(b"b")
            one._following.source = Changing(one._following.source)
            assert await taken(one, 1) == [b"b"]
            arrivals._is_rung = False
            asyncio.get_running_loop().call_later(0.05, arrivals.ring)
            assert await taken(other, 1) == [b"a"]
            assert await taken(other, 1) == [b"b"]

    asyncio.run(main())


WRITER = """
import seglog, sys, time
with seglog.open(sys.argv[1], fsync="never") as log:
    print("up", flush=True)
    for line in sys.stdin:
        log.append(line.strip().encode())
"""


@in_both_loops
def test_a_writer_in_another_process_is_followed_also_when_it_was_killed_and_comes_back(path, new_loop):
    filled(path, 1, {})

    def started():
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        process.stdout.readline()
        return process

    def write(process, text):
        process.stdin.write(text + "\n")
        process.stdin.flush()

    async def main():
        process = await asyncio.to_thread(started)
        try:
            async with seglog.aio.follow(path) as reader:
                records = reader.follow()
                waiting = asyncio.ensure_future(taken(records, 2))
                await asyncio.sleep(0.05)
                write(process, "one\ntwo")
                assert await waiting == [b"one", b"two"]
                process.send_signal(signal.SIGKILL)
                process.communicate()
                waiting = asyncio.ensure_future(taken(records, 1))
                await asyncio.sleep(0.05)
                process = await asyncio.to_thread(started)
                write(process, "three")
                assert await waiting == [b"three"]
        finally:
            process.kill()
            process.communicate()

    run_in(new_loop, main())


def test_a_loop_in_each_of_two_threads_follows_one_partition(path):
    filled(path, 5)
    seen = {}

    def follow(name):
        async def main():
            async with seglog.aio.follow(path) as reader:
                seen[name] = await taken(reader.follow("start"), 6)

        asyncio.run(main())

    threads = [threading.Thread(target=follow, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    with seglog.open(path) as log:
        time.sleep(0.1)
        log.append(b"5")
        for thread in threads:
            thread.join(20)
    assert seen == {name: [b"%d" % n for n in range(6)] for name in "ab"}


TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))


@in_both_loops
def test_many_followers_and_appenders_in_one_loop_see_the_same_log(in_memory, new_loop):
    count, followers = (2000, 50) if TORTURE else (200, 10)

    async def main():
        paths = [in_memory / f"orders-{n}" for n in range(3)]
        logs = [await seglog.aio.open(path, config=CONFIG) for path in paths]
        readers = [*logs, *[await seglog.aio.follow(path) for path in paths]]

        async def follow(reader):
            return [r.value async for r in _first(reader.follow("start"), count)]

        tasks = [asyncio.ensure_future(follow(reader)) for reader in readers for _ in range(followers)]
        for begin in range(0, count, 20):
            await asyncio.gather(*(
                log.append(b"%d" % n) for log in logs for n in range(begin, begin + 20)
            ))
        found = await asyncio.gather(*tasks)
        for reader in readers:
            await reader.close()
        return found

    for seen in run_in(new_loop, main()):
        assert seen == [b"%d" % n for n in range(count)]


async def _first(records, count):
    while count:
        yield await anext(records)
        count -= 1
