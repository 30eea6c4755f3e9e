"""A log in an event loop has the methods of `Log`, its cursor those of LogCursor, its producer those of Producer."""
import asyncio
import inspect
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import seglog
import seglog.aio
from seglog.aio import (
    AsyncConsumer,
    AsyncCursor,
    AsyncDeadJob,
    AsyncDeadJobs,
    AsyncDeadMessage,
    AsyncFollower,
    AsyncJob,
    AsyncLog,
    AsyncMessage,
    AsyncPartition,
    AsyncProducer,
    AsyncTopicProducer,
)
from seglog.errors import InvalidArgumentError, InvalidTxnStateError, LogClosedError, LogLockedError
from seglog.queue.dead import DeadJobs
from support.loops import in_both_loops, run_in
from support.waiting import line_of

# What only `blocking` has, and why.
ITERATES = "gives blocks of many records, for work that belongs in a thread as a whole"
FOR_PROGRAMS = "a look at the files, or a change of them, for programs beneath the log"
OTHERWISE = "is there under the name of asyncio"
ONLY_OF_LOG = {
    "batches": ITERATES, "columns": ITERATES, "tables": ITERATES, "fetch": ITERATES,
    "aborted_transactions": FOR_PROGRAMS, "find_offset": FOR_PROGRAMS, "segments": FOR_PROGRAMS,
    "replace_segments": FOR_PROGRAMS, "recovery_point": FOR_PROGRAMS, "cleaner_offset": FOR_PROGRAMS,
    "leader_epochs": FOR_PROGRAMS, "end_offset_for": FOR_PROGRAMS, "producers": FOR_PROGRAMS,
    "check_batch": FOR_PROGRAMS, "append_checked": FOR_PROGRAMS,
    "when_durable": OTHERWISE, "on_published": OTHERWISE,
}
# A reader of files may have to search them for it; a Follower looks at them at each call by itself.
ONLY_OF_READERS = {**ONLY_OF_LOG, "last_stable_offset": FOR_PROGRAMS, "refresh": FOR_PROGRAMS}
# What they have beside these: `durable` for when_durable (`follow` for on_published), and as properties what are
# attributes of the others.
OF_THEIR_OWN = {"blocking", "durable", "name", "is_shared", "producer_id", "epoch"}
PAIRS = [
    (seglog.Log, AsyncLog, ONLY_OF_LOG),
    (seglog.Partition, AsyncPartition, ONLY_OF_READERS),
    (seglog.Follower, AsyncFollower, ONLY_OF_READERS),
    (seglog.LogCursor, AsyncCursor, set()),
    (seglog.Producer, AsyncProducer, set()),
    (seglog.Queue, seglog.aio.Queue, set()),
    (seglog.Job, AsyncJob, set()),
    (seglog.DeadJob, AsyncDeadJob, set()),
    (DeadJobs, AsyncDeadJobs, set()),
    (seglog.Topic, seglog.aio.Topic, set()),
    (seglog.Consumer, AsyncConsumer, set()),
    (seglog.TopicProducer, AsyncTopicProducer, set()),
    (seglog.Message, AsyncMessage, set()),
    (seglog.DeadMessage, AsyncDeadMessage, set()),
]
# What another process may know, or a thread that has a lock while it waits for the disk.
AWAITED = {"position", "lag", "is_paused", "is_active", "last_sequence_id", "subscriptions"}


def public(cls):
    return {name for name in dir(cls) if not name.startswith("_")}


@pytest.mark.parametrize(("blocking", "awaited", "missing"), PAIRS, ids=lambda one: getattr(one, "__name__", ""))
def test_each_has_the_methods_of_the_other(blocking, awaited, missing):
    assert public(blocking) - public(awaited) == set(missing) & public(blocking)
    assert public(awaited) - public(blocking) <= OF_THEIR_OWN


@pytest.mark.parametrize(("blocking", "awaited", "missing"), PAIRS, ids=lambda one: getattr(one, "__name__", ""))
def test_each_method_takes_the_same_arguments(blocking, awaited, missing):
    """Except for `wait`, which is what awaiting is for, and what is not for a loop."""
    for name in sorted(public(blocking) & public(awaited)):
        theirs, ours = (inspect.getattr_static(cls, name) for cls in (blocking, awaited))
        if not inspect.isfunction(theirs):
            assert isinstance(ours, property) or name in AWAITED
            continue
        differing = {*inspect.signature(theirs).parameters} ^ {*inspect.signature(ours).parameters}
        assert differing <= {"wait", "max_magic", "throttle"}, name


@in_both_loops
def test_every_call_does_what_that_of_a_log_does(in_memory, new_loop):
    batch = seglog.build_batch([(b"k", b"built")])

    async def main():
        async with seglog.aio.open(in_memory / "orders-0", config={"retention.ms": "-1"}) as log:
            assert (await log.append_batch(batch)).last_offset == 0
            assert await log.append_columns(values=[b"a", b"b"]) == 2
            assert log.durable_offset == log.high_watermark == log.last_stable_offset == 3
            assert (await log.offset_for_time(0)).offset == 0
            assert await log.offset_for_time("2100-01-01") is None
            await log.configure({"retention.ms": 1000})
            assert log.blocking.config.retention_ms == 1000
            assert not (await log.delete_old_segments()).expired
            assert (await log.stats()).log_end_offset == 3
            assert log.leader_epoch == 0
            async with log.producer(7) as producer:
                await producer.begin()
                assert await producer.append(b"v", key="k") == 3
                assert await producer.append_many([(None, b"w")]) == 4
                assert (producer.in_transaction, log.last_stable_offset) == (True, 3)
                assert await producer.commit() == 5
                await producer.begin()
                await producer.append(b"never seen")
            assert (producer.in_transaction, producer.producer_id, producer.epoch) == (False, 7, 0)
            seen = [r.value async for r in log.read(isolation="read_committed")]
            assert seen == [b"built", b"a", b"b", b"v", b"w"]
            with pytest.raises(InvalidTxnStateError):
                await log.end_transaction(7, 0, commit=True)
            assert [r.value async for r in log.tail(3, isolation="read_committed")] == seen[2:]
            assert [r.value async for r in log.tail(1)] == [b"never seen"]
            with pytest.raises(InvalidArgumentError, match="number of records"):
                await anext(log.tail(-1))
            async with log.cursor("mailer") as cursor:
                assert (cursor.name, cursor.is_shared, await cursor.position(), await cursor.lag()) == (
                    "mailer", False, 0, 8)
                async for record in cursor.read():
                    await cursor.commit(record)
                    if record.offset == 2:
                        break
                assert await cursor.position() == 3
                with pytest.raises(LogLockedError):
                    await log.cursor("mailer")
            async with seglog.aio.follow(in_memory / "orders-0") as reader:
                while reader.log_end_offset < log.log_end_offset:       # a thread tells other readers of the end
                    await asyncio.sleep(0.001)
                cursor = await reader.cursor("mailer")
                assert [r.value async for r in cursor.read(isolation="read_committed")] == [b"v", b"w"]
                await cursor.close()
                await cursor.close()
                with pytest.raises(LogClosedError):
                    await cursor.commit(5)

    run_in(new_loop, main())
    assert not seglog.verify(in_memory / "orders-0").findings


def test_commits_of_a_cursor_are_made_in_the_order_of_the_calls(in_memory):
    """Its position may move back, so the last call counts, also if tasks are cancelled meanwhile."""
    async def main():
        async with seglog.aio.open(in_memory / "orders-0", fsync="never") as log:
            for _ in range(50):
                await log.append(b"v")
            async with log.cursor("mailer") as cursor:
                for round_ in range(5):
                    tasks = [asyncio.create_task(cursor.commit(n)) for n in range(20)]
                    await asyncio.sleep(0.001 * round_)
                    for task in tasks[1:-1:3]:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
                    assert await cursor.position() == 19

    asyncio.run(main())


async def cancelled_in_the_middle(coroutine, seconds):
    task = asyncio.ensure_future(coroutine)
    await asyncio.sleep(seconds)
    task.cancel()
    return (await asyncio.gather(task, return_exceptions=True))[0]


def test_a_cancelled_transaction_is_aborted_and_a_cancelled_cursor_gives_its_name_back(in_memory):
    async def transaction(log):
        async with log.producer(7) as producer:
            await producer.begin()
            await producer.append(b"never seen")
            await producer.append(b"never seen")
            await asyncio.sleep(1)

    async def reading(log):
        async with log.cursor("mailer") as cursor:
            await cursor.commit(0)
            await asyncio.sleep(1)

    async def main():
        async with seglog.aio.open(in_memory / "orders-0") as log:
            await log.append(b"v")
            for n in range(40):
                await cancelled_in_the_middle(transaction(log), 0.0005 * n)
                await cancelled_in_the_middle(reading(log), 0.0005 * n)
                producer = await log.producer(7)        # of the same id: it ends what is open
                assert not producer.in_transaction
                for _ in range(400):                    # the thread of a cancelled opening gives it back soon
                    try:
                        await (await log.cursor("mailer")).close()
                        break
                    except LogLockedError:
                        await asyncio.sleep(0.005)
                else:
                    raise AssertionError("the name is still taken")
            assert [r.value async for r in log.read(isolation="read_committed")] == [b"v"]

    asyncio.run(main())
    assert not seglog.verify(in_memory / "orders-0").findings


@pytest.mark.parametrize("kind", [seglog.aio.open_partition, seglog.aio.follow, seglog.aio.open])
def test_what_is_closed_by_a_cancelled_task_is_closed_also_if_every_thread_of_the_pool_is_busy(in_memory, kind):
    """Else the call is taken out of the pool's queue, and nobody ever closes it."""
    seglog.open(in_memory / "orders-0").close()
    release = threading.Event()

    async def main():
        reader = await kind(in_memory / "orders-0")
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, release.wait, 20)
        closing = asyncio.create_task(reader.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        release.set()
        await busy
        return reader

    reader = asyncio.run(main())        # which waits for the threads of its pool
    with pytest.raises(LogClosedError):
        _ = reader.blocking.log_start_offset


INTERRUPTED = """
import asyncio, sys
import seglog.aio

async def main():
    async with seglog.aio.open(sys.argv[1]) as log:
        print("open", flush=True)
        while True:
            async with log.producer(7) as producer, log.cursor("mailer") as cursor:
                await producer.begin()
                await producer.append_many([(None, b"never seen")] * 2)
                await cursor.commit(0)

asyncio.run(main())
"""


@pytest.mark.parametrize("after_ms", [0, 7, 23, 61])
def test_an_interrupted_program_ends_and_leaves_no_transaction_half_done(tmp_path, after_ms):
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "orders-0")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert line_of(process) == "open\n"
        time.sleep(after_ms / 1000)
        process.send_signal(signal.SIGINT)
        _, words = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, words
    assert words.rstrip().endswith("KeyboardInterrupt"), words
    with seglog.open(tmp_path / "orders-0") as log, log.cursor("mailer"):
        assert not log.recovery.lost
        assert log.last_stable_offset == log.log_end_offset
        assert not [*log.read(isolation="read_committed")]
