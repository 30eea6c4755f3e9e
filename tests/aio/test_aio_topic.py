"""A topic in an event loop: publishing, consumers of each kind, producers, cancelling, closing; it never blocks the
loop. What its consumers have in common with a queue: test_aio_queue.py."""
import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import seglog
import seglog.aio
from seglog.clock import ManualClock
from seglog.errors import (
    InvalidArgumentError,
    LogClosedError,
    LogLockedError,
    RecordTooLargeError,
    SubscriptionBusyError,
)
from support.faultfs import RecordingFs

NOW = 1_700_000_000_000


@pytest.fixture
def path(in_memory):
    return in_memory / "topic"


def runs(work):
    """asyncio.run for a test whose body is a coroutine."""
    def test(path):
        asyncio.run(asyncio.wait_for(work(path), 60))
    test.__name__, test.__doc__ = work.__name__, work.__doc__
    return test


async def values(consumer, count=100):
    return [message.value for message in await consumer.get_many(count, timeout=0.05)]


@runs
async def test_every_call_does_what_that_of_a_topic_does(path):
    async with seglog.aio.Topic(path, config={"brokerEntryMetadataInterceptors": "index"}) as topic:
        first = await topic.publish(b"a", key="k", properties={"p": "q"})
        await topic.publish_many([("k", b"b"), (None, b"c")])
        one = await topic.subscribe("one", start="earliest", max_attempts=1)
        message = await one.get()
        assert (message.id, message.value, message.key, message.properties) == (first, b"a", "k", {"p": "q"})
        assert (message.index, message.attempt, f"{message.position}") == (0, 1, first)
        assert (one.name, one.kind, await one.is_active(), one.closed) == ("one", "exclusive", True, False)
        await one.get()
        last = await one.get(lease=5)
        await last.ack_cumulative()
        assert last.is_settled
        assert (await one.stats()).backlog == 0
        await one.seek(message)
        assert await values(one) == [b"a", b"b", b"c"]
        await one.seek("earliest")
        message = await one.get()
        await message.nack(reason="never")
        [dead] = [found async for found in one.dead]
        assert (dead.value, dead.reason, dead.position) == (b"a", "never", message.position)
        assert (await topic.stats())["one"].dead == 1
        assert await dead.requeue()
        message = await one.get(timeout=60)
        await one.release([message])
        assert [found.value for found in await one.peek(9)] == [b"a", b"b", b"c"]
        await one.ack([await one.get()])
        await topic.compact()
        assert [(found.key, found.value) async for found in topic.read_compacted()] == [("k", b"b")]
        assert await topic.subscriptions() == ["one"]
        with pytest.raises(SubscriptionBusyError):
            await topic.unsubscribe("one")
        await one.unsubscribe()
        assert (one.closed, await topic.subscriptions()) == (True, [])
        with pytest.raises(LogClosedError):
            await one.get()
        await topic.subscribe("two")
        await topic.flush()
        with pytest.raises(LogLockedError):
            async with seglog.aio.Topic(path):
                pass
        assert repr(topic) == "<AsyncTopic topic>"
    assert topic.closed
    with pytest.raises(LogClosedError):
        await topic.publish(b"x")
    with seglog.Topic(path) as again:
        assert again.subscriptions == ["two"]


@runs
async def test_tasks_share_syncs_and_one_refusal_refuses_no_other(path):
    path.parent.mkdir(exist_ok=True)
    fs = RecordingFs(path.parent)
    async with seglog.aio.Topic(path, fs=fs, config={"maxMessageSize": 1000}) as topic:
        await topic.publish(b"first")
        before = len(fs.operations)
        tasks = [topic.publish(b"%d" % n if n != 50 else b"x" * 2000) for n in range(100)]
        answers = await asyncio.gather(*tasks, topic.publish(b"later", delay=1000), return_exceptions=True)
        assert sum(isinstance(answer, RecordTooLargeError) for answer in answers) == 1
        assert len({answer for answer in answers if isinstance(answer, str)}) == 100
        syncs = [one for one in fs.operations[before:] if "sync" in str(one)]
        assert len(syncs) < 20
        with pytest.raises(InvalidArgumentError):
            await topic.publish(b"x", delay=1, at="+1m")


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key_shared"])
def test_tasks_take_what_is_published_and_loops_end_when_the_topic_closes(path, kind):
    async def work():
        got = []
        async with seglog.aio.Topic(path) as topic:
            async def take(consumer):
                async for message in consumer:
                    async with message:
                        got.append(message.value)

            consumers = [await topic.subscribe("s", kind=kind) for _ in range(1 if kind == "exclusive" else 2)]
            takers = [asyncio.create_task(take(consumer)) for consumer in consumers for _ in range(3)]
            for number in range(60):
                await topic.publish(b"%d" % number, key=f"k{number % 5}")
            while (await consumers[0].stats()).backlog:
                await asyncio.sleep(0.001)
        await asyncio.gather(*takers)
        assert sorted(got, key=int) == [b"%d" % number for number in range(60)]

    asyncio.run(asyncio.wait_for(work(), 60))


@runs
async def test_a_failover_consumer_takes_over_when_the_active_one_is_closed(path):
    async with seglog.aio.Topic(path) as topic:
        first, second = [await topic.subscribe("s", kind="failover") for _ in range(2)]
        waiting = asyncio.create_task(second.get())
        gave_up = asyncio.create_task(second.get())
        await topic.publish(b"a")
        assert (await first.get(timeout=60)).value == b"a"
        gave_up.cancel()
        assert not await second.is_active()
        await first.close()
        message = await waiting
        assert (message.value, message.attempt) == (b"a", 2)
        third = await topic.subscribe("s", kind="failover")
        late = asyncio.create_task(third.get())
        await asyncio.sleep(0.05)
        await third.close()             # also while it waits for its turn
        with pytest.raises(LogClosedError, match="consumer of s"):
            await late


@runs
async def test_a_producers_messages_are_stored_once_and_in_the_order_of_the_calls(path):
    async with seglog.aio.Topic(path) as topic:
        async with topic.producer("import") as producer:
            with pytest.raises(SubscriptionBusyError):
                await topic.producer("import")
            ids = await asyncio.gather(*(producer.publish(b"%d" % n, sequence_id=n) for n in [*range(200), *range(9)]))
            assert None not in ids[:200]
            assert ids[200:] == [None] * 9
            assert await producer.last_sequence_id() == 199
            with pytest.raises(InvalidArgumentError):
                await producer.publish(b"x", sequence_id=-1)
        assert producer.closed
        with pytest.raises(LogClosedError):
            await producer.publish(b"x")
        reader = await topic.subscribe("s", start="earliest")
        assert await values(reader, 300) == [b"%d" % n for n in range(200)]


@runs
async def test_a_cancelled_get_takes_nothing_and_a_cumulative_acknowledgement_is_made(path):
    """Also if no thread of the loop's pool is free yet."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    async with seglog.aio.Topic(path) as topic:
        reader = await topic.subscribe("s")
        waiting = asyncio.create_task(reader.get())
        await asyncio.sleep(0.01)
        waiting.cancel()
        await topic.publish_many([b"a", b"b"])
        one, two = await reader.get(), await reader.get()
        assert (one.attempt, two.attempt) == (1, 1)
        may_go_on = threading.Event()
        busy = asyncio.get_running_loop().run_in_executor(None, may_go_on.wait, 60)

        async def work():
            async with two:
                await two.ack_cumulative()

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await busy
    with seglog.Topic(path) as again:
        assert again.stats()["s"].backlog == 0


@runs
async def test_an_opening_of_a_consumer_that_is_cancelled_leaves_none(path):
    async with seglog.aio.Topic(path) as topic:
        for n in range(30):
            task = asyncio.ensure_future(_awaited(topic.subscribe("s")))
            await asyncio.sleep(0.0002 * n)
            task.cancel()
            for opened in await asyncio.gather(task, return_exceptions=True):
                if not isinstance(opened, BaseException):
                    await opened.close()
        for _ in range(8000):       # the thread of a cancelled opening closes it soon
            try:
                await topic.subscribe("s")
                break
            except SubscriptionBusyError:
                await asyncio.sleep(0.005)
        else:
            raise AssertionError("a consumer is still there")


async def _awaited(opening):
    return await opening


def test_another_loop_and_a_topic_that_is_not_open_are_refused(path):
    topic = seglog.aio.Topic(path, clock=ManualClock(NOW))
    with pytest.raises(LogClosedError, match="async with"):
        topic.subscribe("s")

    async def open_it():
        with pytest.raises(LogClosedError, match="async with"):
            await topic.publish(b"x")
        await topic.__aenter__()

    async def elsewhere():
        for call in (lambda: topic.publish(b"x"), topic.stats, lambda: _awaited(topic.subscribe("s"))):
            with pytest.raises(InvalidArgumentError, match="another event loop"):
                await call()

    asyncio.run(open_it())
    asyncio.run(elsewhere())
    topic.blocking.close()
