"""A queue in an event loop: what is put and finished, waiting, cancelling, closing; the loop is never blocked."""
import asyncio
import contextlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import seglog
import seglog.aio
from seglog.errors import InvalidArgumentError, LeaseLostError, LogClosedError, LogLockedError, RecordTooLargeError
from support.faultfs import RecordingFs


@pytest.fixture
def path(in_memory):
    return in_memory / "jobs"


def runs(work):
    """asyncio.run for a test whose body is a coroutine."""
    def test(path):
        asyncio.run(asyncio.wait_for(work(path), 60))
    test.__name__, test.__doc__ = work.__name__, work.__doc__
    return test


@runs
async def test_a_job_is_put_taken_and_finished(path):
    async with seglog.aio.Queue(path, retry_delay=0) as jobs:
        put_id = await jobs.put(b"value", key="k", properties={"a": "b"})
        job = await jobs.get()
        assert (job.id, job.value, job.key, job.properties, job.attempt) == (put_id, b"value", "k", {"a": "b"}, 1)
        await job.nack(0, reason="not yet")
        job = await jobs.get(timeout=60)
        assert job.attempt == 2
        await job.extend(100)
        await job.ack()
        with pytest.raises(LeaseLostError):
            await job.nack()
        assert (await jobs.stats()).backlog == 0
        assert await jobs.get(timeout=0.01) is None
        assert len(await jobs.put_many([b"a", b"b"], delay=0)) == 2
        await jobs.ack([await jobs.get(), await jobs.get()])
        with pytest.raises(AttributeError):
            job.no_such_name  # noqa: B018
    with seglog.Queue(path) as again:
        assert again.stats().backlog == 0


@runs
async def test_a_task_waits_while_the_queue_is_paused(path):
    async with seglog.aio.Queue(path) as jobs:
        await jobs.put(b"a")
        await jobs.pause()
        waiting = asyncio.create_task(jobs.get())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert (await jobs.stats()).is_paused
        await jobs.resume()
        assert (await waiting).value == b"a"


@runs
async def test_tasks_that_put_a_key_at_once_put_one_job(path):
    async with seglog.aio.Queue(path) as jobs:
        ids = await asyncio.gather(*(jobs.put(b"%d" % n, key="u", unique_for=60) for n in range(20)))
        assert len(set(ids)) == 1
        assert (await jobs.stats()).backlog == 1


@runs
async def test_tasks_share_syncs(path):
    path.parent.mkdir(exist_ok=True)
    fs = RecordingFs(path.parent)
    async with seglog.aio.Queue(path, fs=fs) as jobs:
        await jobs.put(b"first")
        before = len(fs.operations)
        await asyncio.gather(*(jobs.put(b"%d" % n, priority=0) for n in range(500)))
        assert sum(step.startswith("sync") for step in fs.operations[before:]) <= 10
        taken = [await jobs.get() for _ in range(501)]
        before = len(fs.operations)
        await asyncio.gather(*(job.ack() for job in taken))
        assert sum(step.startswith("sync") for step in fs.operations[before:]) <= 10
        assert sorted(job.value for job in taken) == sorted([b"first", *(b"%d" % n for n in range(500))])
        assert (await jobs.stats()).backlog == 0


@runs
async def test_one_call_that_is_refused_refuses_no_other(path):
    async with seglog.aio.Queue(path) as jobs:
        answers = await asyncio.gather(
            jobs.put(b"good"), jobs.put("text"), jobs.put(b"x", delay=-1), jobs.put(bytes(6 << 20)),
            jobs.put(b"also good", priority=3), jobs.put(b"x", priority=1000), return_exceptions=True,
        )
        assert [type(answer) for answer in answers] == [
            str, InvalidArgumentError, InvalidArgumentError, RecordTooLargeError, str, InvalidArgumentError]
        assert [(await jobs.get()).value, (await jobs.get()).value] == [b"also good", b"good"]


@runs
async def test_blocks_acknowledge_refuse_and_give_back(path):
    async with seglog.aio.Queue(path, retry_delay=0.05, retry_jitter=0) as jobs:
        await jobs.put(b"x")
        async with await jobs.get():
            raise ValueError("bad")
        job = await jobs.get(timeout=60)
        assert job.attempt == 2

        async def long_work():
            async with job:
                await asyncio.sleep(60)

        task = asyncio.create_task(long_work())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with await jobs.get(timeout=60) as job:
            assert job.attempt == 2     # it was given back, and did not fail
        async with job:     # finished already
            pass
        assert (await jobs.stats()).backlog == 0


@runs
async def test_a_task_waits_without_blocking_the_loop_and_each_gets_its_own(path):
    async with seglog.aio.Queue(path) as jobs:
        waiting = [asyncio.create_task(jobs.get(timeout=50)) for _ in range(100)]
        for _ in range(100):        # one that blocked the loop would wait for its 50 s and get nothing
            await asyncio.sleep(0.001)
        await jobs.put_many(b"%d" % n for n in range(100))
        taken = await asyncio.gather(*waiting)
        assert sorted(int(job.value) for job in taken) == list(range(100))


@runs
async def test_a_get_that_is_cancelled_or_times_out_takes_nothing(path):
    async with seglog.aio.Queue(path) as jobs:
        for _ in range(30):
            task = asyncio.create_task(jobs.get())
            await asyncio.sleep(0)
            await jobs.put(b"x")
            task.cancel()
            try:
                job = await task
            except asyncio.CancelledError:
                job = await jobs.get(timeout=60)
            assert job is not None
            assert job.attempt == 1
            await job.ack()
        assert await jobs.get(timeout=0) is None
        await asyncio.to_thread(jobs.blocking.put, b"by a thread")
        # Not in the loop: what waited for a task may have taken it, and gives it back when the loop has a turn.
        assert (await asyncio.to_thread(jobs.blocking.get, timeout=60)).value == b"by a thread"
        assert (await jobs.stats()).in_flight == 1


@pytest.mark.parametrize("attach", [False, True])
def test_workers_that_are_cancelled_at_each_restart_take_no_attempt_of_a_job(path, attach):
    attempts = []

    async def serve():
        async with seglog.aio.Queue(path, max_attempts=2, attach=attach) as jobs:
            taken = asyncio.Event()

            async def work():
                async for job in jobs:
                    async with job:
                        attempts.append(job.attempt)
                        taken.set()
                        await asyncio.sleep(600)

            workers = [asyncio.create_task(work()) for _ in range(4)]
            await asyncio.sleep(0)
            if not attempts:
                await jobs.put(b"x")
            await taken.wait()
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            # (A job that was given back may have been taken for a worker that was cancelled just after.)
            while (stats := await jobs.stats()).in_flight:
                await asyncio.sleep(0.001)
            assert stats.dead == 0

    for _ in range(5):
        asyncio.run(serve())
    assert attempts == [1] * 5


@pytest.mark.parametrize("attach", [False, True])
def test_every_call_does_what_that_of_a_queue_does(path, attach):
    async def main():
        async with seglog.aio.Queue(path, max_attempts=1, max_backlog=9, when_full="block", attach=attach) as jobs:
            await jobs.put_many([b"%d" % n for n in range(6)], properties={"a": "b"})
            assert [job.value for job in await jobs.peek(2)] == [b"0", b"1"]
            taken = await jobs.get_many(4, timeout=60, lease=600)
            assert [(job.value, job.attempt, job.properties, job.key) for job in taken] == [
                (b"%d" % n, 1, {"a": "b"}, None) for n in range(4)
            ]
            assert len(await jobs.get_many(9, timeout=60)) == 2
            assert await jobs.get_many(9, timeout=0) == []
            await jobs.release(taken[:1])
            assert (await jobs.get(timeout=60, lease=600)).value == b"0"
            for job in taken[:3]:
                await job.nack(reason="bad")
            assert taken[0].is_settled
            assert not taken[3].is_settled
            await jobs.ack([taken[3]])
            assert [(job.value, job.reason) async for job in jobs.dead] == [(b"%d" % n, "bad") for n in range(3)]
            [first] = await jobs.dead.peek()
            assert first.died_at >= first.enqueued_at
            assert await first.requeue()
            assert await jobs.dead.requeue(await jobs.dead.peek()) == 1
            assert await jobs.dead.purge() == 1
            await jobs.pause()
            assert await jobs.is_paused()
            await jobs.resume()
            await jobs.flush()
            await jobs.put(b"x", timeout=60)
            assert await jobs.purge() == 5
            with pytest.raises(InvalidArgumentError):
                await jobs.get_many(0)
            with pytest.raises(InvalidArgumentError):
                await jobs.ack([5])
            assert not jobs.closed
        assert jobs.closed

    asyncio.run(main())


@runs
async def test_getting_many_that_is_cancelled_takes_nothing(path):
    async with seglog.aio.Queue(path) as jobs:
        await jobs.put_many([b"%d" % n for n in range(5)])
        for turns in range(30):
            task = asyncio.create_task(jobs.get_many(5, lease=60))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await jobs.release(await task)
        while (await jobs.stats()).in_flight:
            await asyncio.sleep(0.001)
        assert [job.attempt for job in await jobs.get_many(9, timeout=60)] == [1] * 5


@runs
async def test_a_thread_gets_a_job_that_no_task_wants_any_more(path):
    async with seglog.aio.Queue(path) as jobs:
        left = asyncio.create_task(jobs.get())
        await asyncio.sleep(0.05)       # its thread waits in the queue, as a rule
        by_thread = asyncio.create_task(asyncio.to_thread(jobs.blocking.get, 60))
        await asyncio.sleep(0.05)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        await jobs.put(b"x")
        assert (await by_thread).attempt == 1
        assert (await jobs.stats()).in_flight == 1


@runs
async def test_an_acknowledgement_that_began_is_made_though_its_task_is_cancelled(path):
    async with seglog.aio.Queue(path) as jobs:
        for _ in range(20):
            await jobs.put(b"x")

            async def work(job):
                async with job:
                    pass

            task = asyncio.create_task(work(await jobs.get(timeout=60)))
            await asyncio.sleep(0)      # it has asked for the acknowledgement
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        while (await jobs.stats()).in_flight:
            await asyncio.sleep(0.001)
        assert (await jobs.stats()).backlog == 0


class Held:
    """A call that waits in its thread until it may go on."""

    def __init__(self, call):
        self.call, self.has_begun, self.may_go_on = call, threading.Event(), threading.Event()

    def __call__(self, *args):
        self.has_begun.set()
        self.may_go_on.wait(60)
        return self.call(*args)


@runs
async def test_a_job_whose_acknowledgement_was_cancelled_in_its_block_is_given_to_nobody_else(path):
    async with seglog.aio.Queue(path) as jobs:
        await jobs.put(b"x")
        held = jobs.blocking.ack = Held(jobs.blocking.ack)

        async def work(job):
            async with job:
                await job.ack()

        task = asyncio.create_task(work(await jobs.get(timeout=60)))
        await asyncio.to_thread(held.has_begun.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert jobs.blocking.get(timeout=0) is None
        held.may_go_on.set()
        while (await jobs.stats()).backlog:
            await asyncio.sleep(0.001)


@runs
async def test_a_refusal_that_began_is_made_though_its_task_is_cancelled(path):
    """Also if no thread of the loop's pool was free yet. The end of the block does not give the job back."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    async with seglog.aio.Queue(path) as jobs:
        await jobs.put(b"x")
        job, may_go_on = await jobs.get(timeout=60), threading.Event()
        busy = asyncio.get_running_loop().run_in_executor(None, may_go_on.wait, 60)

        async def work():
            async with job:
                await job.nack(1000, reason="not today")

        task = asyncio.create_task(work())
        await asyncio.sleep(0)      # it has asked for the refusal
        task.cancel()
        await asyncio.sleep(0)
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await busy
    with seglog.Queue(path) as again:
        stats = again.stats()
        assert (stats.waiting, stats.ready) == (1, 0)


@runs
async def test_closing_waits_for_what_cancelled_tasks_have_acknowledged_or_given_back(path):
    async with seglog.aio.Queue(path) as jobs:
        await jobs.put_many([b"done", b"also done", b"given back"])
        finished = jobs.blocking.ack = Held(jobs.blocking.ack)
        given_back = jobs.blocking._lanes[0].release = Held(jobs.blocking._lanes[0].release)

        async def work(job):
            async with job:
                if job.value == b"given back":
                    await asyncio.Event().wait()

        tasks = []
        for _ in range(3):      # the second acknowledgement waits for its turn
            tasks.append(asyncio.create_task(work(await jobs.get(timeout=60))))
            await asyncio.sleep(0)
        await asyncio.to_thread(finished.has_begun.wait, 60)
        for task in tasks:
            task.cancel()
        await asyncio.to_thread(given_back.has_begun.wait, 60)
        tasks[2].cancel()       # it does not wait for that any more
        await asyncio.gather(*tasks, return_exceptions=True)
        closing = asyncio.create_task(jobs.close())
        await asyncio.sleep(0)
        finished.may_go_on.set()
        given_back.may_go_on.set()
        await closing
    with seglog.Queue(path) as jobs:
        assert [(job.value, job.attempt) for job in jobs.get_many(5, timeout=0)] == [(b"given back", 1)]


@runs
async def test_closing_waits_for_jobs_that_a_cancelled_task_acknowledges_together(path):
    async with seglog.aio.Queue(path) as jobs:
        await jobs.put_many([b"a", b"b"])
        taken = [await jobs.get(timeout=60), await jobs.get(timeout=60)]
        held = jobs.blocking.ack = Held(jobs.blocking.ack)
        task = asyncio.create_task(jobs.ack(taken))
        await asyncio.to_thread(held.has_begun.wait, 60)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        closing = asyncio.create_task(jobs.close())
        # (Without waiting it would be closed soon.)
        await asyncio.wait([closing], timeout=0.2)
        held.may_go_on.set()
        await closing
    with seglog.Queue(path) as jobs:
        assert jobs.get(timeout=0) is None


@pytest.mark.parametrize("attach", [False, True])
def test_a_job_that_no_task_has_got_at_the_close_keeps_its_attempt(path, attach):
    async def main():
        async with seglog.aio.Queue(path, attach=attach) as jobs:
            await jobs.put(b"x")
            take, has_begun, may_go_on = jobs.blocking._take_wanted, threading.Event(), threading.Event()

            def late(wanted):
                found = take(wanted)
                if found:
                    has_begun.set()
                    may_go_on.wait(60)
                return found

            jobs.blocking._take_wanted = late
            getting = asyncio.create_task(jobs.get())
            await asyncio.to_thread(has_begun.wait, 60)
            getting.cancel()
            await asyncio.gather(getting, return_exceptions=True)
            closing = asyncio.create_task(jobs.close())
            # (Without waiting it would be closed soon.)
            await asyncio.wait([closing], timeout=0.2)
            may_go_on.set()
            await closing

    asyncio.run(main())
    with seglog.Queue(path) as jobs:
        assert jobs.get(timeout=0).attempt == 1


@pytest.mark.parametrize("by", ["task", "thread"])
def test_closing_ends_loops_and_waits(path, by):
    async def work():
        async with seglog.aio.Queue(path) as jobs:
            async def consume():
                async for job in jobs:
                    async with job:
                        pass

            consumers = [asyncio.create_task(consume()) for _ in range(3)]
            waits = asyncio.create_task(jobs.get())
            await asyncio.sleep(0.05)
            await (jobs.close() if by == "task" else asyncio.to_thread(jobs.blocking.close))
            await asyncio.wait_for(asyncio.gather(*consumers), 60)
            with pytest.raises(LogClosedError):
                await waits
            with pytest.raises(LogClosedError):
                await jobs.put(b"x")
            with pytest.raises(LogClosedError):
                await jobs.get()
            await jobs.close()

    asyncio.run(work())


@runs
async def test_it_is_opened_by_async_with_and_by_one_process(path):
    jobs = seglog.aio.Queue(path)
    for call in (jobs.put, lambda value: jobs.get()):
        with pytest.raises(LogClosedError, match="async with"):
            await call(b"x")
    await jobs.close()
    async with jobs:
        with pytest.raises(LogLockedError):
            async with seglog.aio.Queue(path):
                pass
    with pytest.raises(InvalidArgumentError):
        async with seglog.aio.Queue(path, lease=0):
            pass


def test_another_loop_is_refused(path):
    async def opened():
        return await seglog.aio.Queue(path).__aenter__()

    jobs = asyncio.run(opened())

    async def elsewhere():
        with pytest.raises(InvalidArgumentError, match="another event loop"):
            await jobs.put(b"x")
        with pytest.raises(InvalidArgumentError, match="another event loop"):
            await jobs.get()

    asyncio.run(elsewhere())
    jobs.blocking.close()


def test_a_loop_that_ends_while_tasks_wait_ends_and_loses_no_job(path):
    async def work():
        jobs = await seglog.aio.Queue(path).__aenter__()
        asyncio.create_task(jobs.get())  # noqa: RUF006
        await asyncio.sleep(0.05)
        return jobs.blocking

    queue = asyncio.run(work())
    queue.put(b"x")
    ends = time.monotonic() + 60
    while (job := queue.get(timeout=0.1)) is None:
        assert time.monotonic() < ends
    assert (job.value, job.attempt) == (b"x", 1)
    queue.close()
    assert os.path.exists(path)
