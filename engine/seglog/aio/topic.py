"""A topic in an event loop: `seglog.aio.Topic`, its consumers and producers.

    publish ── gathered while a thread of the loop's pool writes what came before ── one write and one sync for all
    subscribe ── a consumer: seglog.aio.taking; one thread of each that tasks wait for takes its messages
"""
import asyncio
import os
import random
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from seglog.aio.handover import Opening, open_by_thread
from seglog.aio.taking import AsyncDeadJob, AsyncJob, AsyncTaker
from seglog.aio.together import Together
from seglog.errors import InvalidArgumentError, LogClosedError
from seglog.fs.refusals import as_path
from seglog.ledger.position import Position
from seglog.loop.home import HomeLoop
from seglog.queue.consumer import Consumer, SubscriptionStats
from seglog.queue.message import DeadMessage, Message
from seglog.queue.producer import NumberedCall, TopicProducer
from seglog.queue.queue import _listed
from seglog.queue.subscription import Kind
from seglog.queue.topic import CompactedMessage, PublishCall, Topic

if TYPE_CHECKING:
    from typing_extensions import Buffer

Answer = TypeVar("Answer")
# Messages that one turn of a thread reads for `read_compacted`.
_READ_AT_ONCE = 100


class AsyncMessage(AsyncJob):
    """A message that a task took, or looked at, with what a Message has; that is `blocking`. `async with message:` as
    of AsyncJob."""

    __slots__ = ()
    blocking: Message

    @property
    def position(self) -> Position:
        """As Message.position."""
        return self.blocking.position

    @property
    def index(self) -> int | None:
        """As Message.index."""
        return self.blocking.index

    async def ack_cumulative(self) -> None:
        """Acknowledge it, and all that were delivered before it, durably: as Message.ack_cumulative. Also if the task
        is cancelled meanwhile."""
        await self._settled_by(self.blocking.ack_cumulative)


class AsyncDeadMessage(AsyncMessage, AsyncDeadJob):
    """A message that a subscription gave up: as DeadMessage, which is `blocking`."""

    __slots__ = ()
    blocking: DeadMessage


class AsyncConsumer(AsyncTaker[AsyncMessage]):
    """A consumer for the tasks of an event loop: made by `subscribe` of a seglog.aio.Topic. Methods are those of
    Consumer, which is `blocking`, and are awaited; so is `is_active()`. `name`: that of its subscription; `kind`:
    "exclusive", "failover", "shared" or "key_shared"."""

    _kind, _dead_kind = AsyncMessage, AsyncDeadMessage

    def __init__(self, home: HomeLoop, blocking: Consumer) -> None:
        self._blocking = blocking
        self.name = blocking.name
        self.kind: Kind = blocking.kind
        self._begin(home, f"consumer of {self.name}")

    def __repr__(self) -> str:
        return f"<AsyncConsumer {self.name}: {'closed' if self.closed else self.kind}>"

    @property
    def blocking(self) -> Consumer:
        """The consumer itself, for threads."""
        return self._blocking

    def _is_over(self) -> bool:
        return self._blocking._is_over()

    # --- taking and finishing --------------------------------------------------------------------

    async def get_many(
        self, max_messages: int, timeout: timedelta | float | None = None, *, lease: timedelta | float | None = None
    ) -> list[AsyncMessage]:
        """Take the next messages: as Consumer.get_many. If it is cancelled, none is taken."""
        if type(max_messages) is not int or max_messages < 1:
            raise InvalidArgumentError(f"max_messages must be an int of 1 or more, not {max_messages!r}")
        return await self._get_many(max_messages, timeout, lease)

    async def ack(self, messages: Iterable[AsyncMessage]) -> None:
        """Acknowledge several messages, with one sync: as Consumer.ack. Also if the task is cancelled meanwhile."""
        await self._ack(messages)

    async def release(self, messages: Iterable[AsyncMessage]) -> None:
        """Give messages back that were taken and not worked on: as Consumer.release."""
        await self._release(messages)

    # --- moving and looking ----------------------------------------------------------------------

    async def seek(self, to: "str | int | datetime | Position | Message | AsyncMessage") -> None:
        """Let the subscription go on from another place, durably: as Consumer.seek."""
        place = _blocking(to)
        await self._by_thread(lambda: self._blocking.seek(place))

    async def unsubscribe(self) -> None:
        """Close it, and remove the subscription, durably: as Consumer.unsubscribe."""
        await self._by_thread(self._blocking.unsubscribe)
        await self.close()

    async def stats(self) -> SubscriptionStats:
        """Count the messages of the subscription: as Consumer.stats."""
        return await self._by_thread(self._blocking.stats)

    async def is_active(self) -> bool:
        """Whether it gets messages: as Consumer.is_active."""
        return await self._by_thread(lambda: self._blocking.is_active)

    # --- the end -----------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._blocking.closed

    async def close(self) -> None:
        """Take no more messages: as Consumer.close. Tasks that wait for one get LogClosedError; loops over it end."""
        await self._close_taken()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncTopicProducer:
    """A named producer for the tasks of an event loop: made by `producer` of a seglog.aio.Topic. Methods are those of
    TopicProducer, which is `blocking`, and are awaited; so is `last_sequence_id()`. `name`: what it was given."""

    def __init__(self, home: HomeLoop, blocking: TopicProducer) -> None:
        self._home = home
        self.blocking = blocking
        self.name = blocking.name
        self._calls: Together[NumberedCall, str | None] = Together(home, blocking._publish_all)

    def __repr__(self) -> str:
        return f"<AsyncTopicProducer {self.name}{': closed' if self.closed else ''}>"

    async def publish(
        self, value: "Buffer", *, sequence_id: int | None = None, key: str | bytes | None = None,
        delay: timedelta | float | None = None, at: datetime | str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> str | None:
        """Publish a message unless its sequence id was there: as TopicProducer.publish. Calls of several tasks are made
        in their order."""
        return await self._calls.do(NumberedCall(value, sequence_id, key, delay, at, properties))

    async def last_sequence_id(self) -> int:
        """That of its last message in the topic: as TopicProducer.last_sequence_id."""
        self._home.check()
        return await self._home.by_thread(lambda: self.blocking.last_sequence_id)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.blocking.closed

    async def close(self) -> None:
        """Let another producer have its name: as TopicProducer.close. What tasks have begun to publish is done
        before."""
        while left := self._calls.under_way():
            await asyncio.wait(left)
        await asyncio.shield(self._home.by_thread(self.blocking.close))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncTopic:
    """A topic for the tasks of an event loop; the arguments and methods are those of seglog.Topic, which is `blocking`.
    Methods are awaited; so is `subscriptions()`, which is one here.

        async with seglog.aio.Topic("data/orders") as topic:
            await topic.publish(b"value")
            async with topic.subscribe("billing") as billing:
                async for message in billing:
                    async with message:
                        ...

    `async with` opens and closes it, in a thread. Threads may use `blocking` beside the loop. Methods raise
    InvalidArgumentError in another event loop, and otherwise what those of seglog.Topic raise.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self.path = Path(os.path.abspath(as_path(path)))
        self._options = options
        self._opened: Topic | None = None
        # Consumers and producers that may be open.
        self._parts: weakref.WeakSet[AsyncConsumer | AsyncTopicProducer] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"<AsyncTopic {self.path.name}>"

    async def __aenter__(self) -> Self:
        home = HomeLoop(self.path)
        topic: Topic = await open_by_thread(home, lambda: Topic(self.path, **self._options))
        self._home = home
        self._opened = topic
        self._calls: Together[PublishCall, str] = Together(home, topic._publish_all)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def blocking(self) -> Topic:
        """The topic itself, for threads. Raises LogClosedError before it is opened by `async with`."""
        if self._opened is None:
            raise LogClosedError("the topic is not open: use `async with`", file=self.path)
        return self._opened

    async def _by_thread(self, work: Callable[[Topic], Answer]) -> Answer:
        topic = self.blocking
        self._home.check()
        return await self._home.by_thread(work, topic)

    # --- publishing --------------------------------------------------------------------------

    async def publish(
        self, value: "Buffer", *, key: str | bytes | None = None, delay: timedelta | float | None = None,
        at: datetime | str | None = None, properties: Mapping[str, str] | None = None,
    ) -> str:
        """Publish a message, and return its id: as Topic.publish. Tasks that publish at the same time share a write and
        a sync. If it is cancelled, the message is in the topic or it never will be."""
        self.blocking      # noqa: B018 - raises before it is opened
        return await self._calls.do(PublishCall(value, key, delay, at, properties))

    async def publish_many(
        self, messages: "Iterable[Buffer | tuple[str | bytes | None, Buffer]]", *,
        delay: timedelta | float | None = None, at: datetime | str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Publish messages, and return their ids: as Topic.publish_many."""
        listed = _listed("messages", messages)
        return await self._by_thread(
            lambda topic: topic.publish_many(listed, delay=delay, at=at, properties=properties)
        )

    def producer(self, name: str) -> Opening[AsyncTopicProducer]:
        """A producer whose messages have sequence ids: as Topic.producer. `async with topic.producer("p") as producer`,
        or await it."""
        topic = self.blocking
        return Opening(self._home_here, lambda: topic.producer(name), self._producer_of)

    def _producer_of(self, producer: TopicProducer) -> AsyncTopicProducer:
        opened = AsyncTopicProducer(self._home, producer)
        self._parts.add(opened)
        return opened

    # --- subscribing -------------------------------------------------------------------------

    def subscribe(
        self, name: str, *, kind: Kind = "exclusive",
        start: "str | int | datetime | Position | Message | AsyncMessage" = "latest", lease: timedelta | float = 60,
        max_attempts: int | None = 10, retry_delay: timedelta | float = 1, max_retry_delay: timedelta | float = 300,
        retry_jitter: float = 0.1, reraise: bool = False, chance: Callable[[], float] = random.random,
    ) -> Opening[AsyncConsumer]:
        """A consumer of the subscription with this name, with the arguments of Topic.subscribe.
        `async with topic.subscribe("billing") as billing`, or await it."""
        topic, begin = self.blocking, _blocking(start)
        return Opening(
            self._home_here, lambda: topic.subscribe(
                name, kind=kind, start=begin, lease=lease, max_attempts=max_attempts, retry_delay=retry_delay,
                max_retry_delay=max_retry_delay, retry_jitter=retry_jitter, reraise=reraise, chance=chance,
            ), self._consumer_of,
        )

    def _consumer_of(self, consumer: Consumer) -> AsyncConsumer:
        opened = AsyncConsumer(self._home, consumer)
        self._parts.add(opened)
        return opened

    def _home_here(self) -> HomeLoop:
        self._home.check()
        return self._home

    async def subscriptions(self) -> list[str]:
        """The names of the subscriptions: as Topic.subscriptions."""
        return await self._by_thread(lambda topic: topic.subscriptions)

    async def unsubscribe(self, name: str) -> None:
        """Remove a subscription, durably: as Topic.unsubscribe."""
        await self._by_thread(lambda topic: topic.unsubscribe(name))

    async def stats(self) -> dict[str, SubscriptionStats]:
        """Count the messages of each subscription: as Topic.stats."""
        return await self._by_thread(lambda topic: topic.stats())

    # --- compaction --------------------------------------------------------------------------

    async def compact(self) -> None:
        """Keep the last message of each key for `read_compacted`: as Topic.compact."""
        await self._by_thread(lambda topic: topic.compact())

    async def read_compacted(
        self, start: "str | int | datetime | Position | Message | AsyncMessage" = "earliest"
    ) -> AsyncIterator[CompactedMessage]:
        """Read the topic up to its end, compacted as far as `compact` came: as Topic.read_compacted."""
        begin = _blocking(start)
        messages = await self._by_thread(lambda topic: topic.read_compacted(begin))
        while some := await self._by_thread(lambda topic: list(islice(messages, _READ_AT_ONCE))):
            for message in some:
                yield message

    # --- the end -----------------------------------------------------------------------------

    async def flush(self) -> None:
        """Return when everything that was published and acknowledged is on the disk: as Topic.flush."""
        await self._by_thread(lambda topic: topic.flush())

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.blocking.closed

    async def close(self) -> None:
        """Close it, with its consumers and producers: as Topic.close. Tasks that wait for a message get LogClosedError;
        loops over consumers end. What tasks that were cancelled have acknowledged or given back is done before."""
        if self._opened is not None:
            try:
                for part in list(self._parts):
                    await part.close()
                while left := self._calls.under_way():
                    await asyncio.wait(left)
            finally:
                await asyncio.shield(self._home.by_thread(self._opened.close))


def _blocking(place: object) -> Any:
    return place.blocking if isinstance(place, AsyncMessage) else place
