"""seglog in an event loop: calls that wait are awaited, and no thread waits for a reader or an append.

    import seglog.aio

    async with seglog.aio.open("data/orders-0") as log:
        offset = await log.append(b"value", key=b"key")
        async for record in log.follow("start"):
            print(record.offset, record.value)

See docs/asyncio.md. `import seglog` loads neither this package nor asyncio.
"""
from seglog.aio.cursor import AsyncCursor
from seglog.aio.log import AsyncLog
from seglog.aio.opening import follow, open, open_partition
from seglog.aio.producer import AsyncProducer
from seglog.aio.queue import AsyncQueue as Queue
from seglog.aio.readers import AsyncFollower, AsyncPartition
from seglog.aio.records import AsyncRecords
from seglog.aio.taking import AsyncDeadJob, AsyncDeadJobs, AsyncJob
from seglog.aio.topic import AsyncConsumer, AsyncDeadMessage, AsyncMessage, AsyncTopicProducer
from seglog.aio.topic import AsyncTopic as Topic

__all__ = [
    "AsyncConsumer", "AsyncCursor", "AsyncDeadJob", "AsyncDeadJobs", "AsyncDeadMessage", "AsyncFollower", "AsyncJob",
    "AsyncLog", "AsyncMessage", "AsyncPartition", "AsyncProducer", "AsyncRecords", "AsyncTopicProducer", "Queue",
    "Topic", "follow", "open", "open_partition",
]
