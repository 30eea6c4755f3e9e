"""A durable topic in one directory, without a server: each subscription gets every message.

    with seglog.Topic("data/orders") as topic:
        topic.publish(b"...", key=b"u1")
        with topic.subscribe("billing", kind="key_shared", start="earliest") as billing:
            for message in billing:
                with message:
                    bill(message.value)

    Topic ── JournaledLedger ──┬── SubscriptionLane ──┬── Consumer
                               │                  └── Consumer
                               └── SubscriptionLane ───── Consumer

A queue is a topic with one shared subscription; both are made of lanes (queue.lane).
"""
import os
import random
import weakref
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, get_args

from seglog._kernels.entry_frame import KEY_IS_BASE64
from seglog._kernels.quick_lock import QuickLock
from seglog._kernels.shield import shielded
from seglog.clock import Clock, checked_clock, listen, unlisten
from seglog.config import Fsync
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.errors import InvalidArgumentError, LogClosedError, LogLockedError, NotALogError, SubscriptionBusyError
from seglog.format.directory_kinds import refuse_other_place
from seglog.fs.files import FileSystem, checked_fs
from seglog.fs.handles import OpenHandle
from seglog.fs.refusals import as_path, refusals
from seglog.late_import import late
from seglog.ledger.config import ManagedLedgerConfig
from seglog.ledger.managed.cursor_file import cursor_path
from seglog.ledger.managed.manifest import FILE_NAME, Manifest
from seglog.ledger.position import EARLIEST, Position
from seglog.metrics import PROCESS
from seglog.named_tuple import NamedTuple
from seglog.queue.backlog import Backlog
from seglog.queue.consumer import Consumer, SubscriptionStats, stats_of
from seglog.queue.journaled_ledger import JournaledLedger
from seglog.queue.lane import SUBSCRIPTION
from seglog.queue.message import Message
from seglog.queue.options import checked_options, time_ms
from seglog.queue.producer import TopicProducer
from seglog.queue.queue import LEDGER_MB, TOPIC, checked_at, parts_of
from seglog.queue.sequences import UNNAMED, Sequences
from seglog.queue.subscription import Kind, SubscriptionLane
from seglog.queue.topic_metrics import OpenTopics
from seglog.threads.late_close import close_in_order
from seglog.topic.compacted_reader import TopicMessage, read_compacted
from seglog.topic.delayed_index import DEDUPLICATION_CURSOR, INNER_CURSORS

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from seglog.upkeep.topic_compaction import PulsarTopicCompactionService

# The options of a subscription before its first consumer.
_NO_CONSUMERS = checked_options(60, None, 1, 300, 0, False, random.random)
HINT_OF_LOCKED = "one process at a time has a topic open, and shares it among its threads"


@dataclass(frozen=True, slots=True)
class CompactedMessage:
    """A message that `Topic.read_compacted` returns. position: where its entry is. key, value: as it was published."""

    position: Position
    key: str | bytes | None
    value: bytes


class PublishCall(NamedTuple):
    """The arguments of a `publish`."""

    value: "Buffer"
    key: str | bytes | None = None
    delay: timedelta | float | None = None
    at: datetime | str | None = None
    properties: Mapping[str, str] | None = None


class Topic(OpenHandle):
    """Open the topic in a directory, and create it if it does not exist. Threads share it; one process at a time.

    `fsync`: when what was published or acknowledged is on the disk: "batch": when the call returns; threads share
    syncs. "interval": a second later (flush.ms). "never": when the system writes it, or it is closed. `config`:
    Pulsar's keys of a managed ledger and of delayed messages (docs/config.md). With `create=False` it must exist.
    `recover`: go on with a damaged journal; messages may be delivered again. `clock`, `fs`: for tests. Its directory is
    `path`.

    Raises LogLockedError while another process has it, NotALogError, CorruptManifestError, CorruptJournalError,
    CorruptRecordError, UnsupportedVersionError, StorageError.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fsync: Fsync = "batch",
        config: Mapping[str, object] | None = None,
        create: bool = True,
        recover: bool = False,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.path = Path(os.path.abspath(as_path(path)))
        if fsync not in get_args(Fsync):
            raise InvalidArgumentError(f'fsync must be "batch", "interval" or "never", not {fsync!r}')
        ledger_config, delayed = _configs(config)
        if not create and not (self.path / FILE_NAME).exists():
            raise NotALogError(
                f"not a topic: it has no {FILE_NAME}", file=self.path, hint="pass a topic's directory, or create=True"
            )
        self._fs = fs
        self._clock = checked_clock(clock)
        # Guards the subscriptions and their state. Taken before a tracker's lock, and a cursor's.
        self._lock = QuickLock()
        self._subscriptions: dict[str, SubscriptionLane] = {}
        self._producers: dict[str, TopicProducer] = {}
        self._sequences: Sequences | None = None
        # Guards the two fields above.
        self._producing = QuickLock()
        self._consumer_number = 0
        self._compaction: PulsarTopicCompactionService | None = None
        self._is_closed = False
        self._is_told = False
        # (Of no queue: it limits nothing.)
        self._backlog = Backlog(self._lock, None, "block", _nothing, int, int, int)
        self._home = JournaledLedger(
            self.path, config=ledger_config, delayed=delayed, fsync=fsync, fs=fs, clock=self._clock
        )
        self._wake = _weak_waker(self)
        try:
            shielded(self._open, recover)
        except LogLockedError as error:
            error.hint = HINT_OF_LOCKED
            raise

    def _open(self, recover: bool) -> None:
        self._refuse_others()
        if recover and (self.path / FILE_NAME).exists():
            late("seglog.ledger.managed.journal_repair")
            from seglog.ledger.managed.journal_repair import mend_journal

            mend_journal(checked_fs(self._fs), self.path)
        home = self._home
        home.open(create=True)
        try:
            if TOPIC not in home.managed_ledger.properties:
                home.managed_ledger.update_properties({TOPIC: "1"})
            if DEDUPLICATION_CURSOR in home.managed_ledger.cursors:
                self._sequences = Sequences(home, create=False)
        except BaseException:
            home._close_ledger()
            raise
        home.begin()
        self._is_told = listen(self._clock, self._wake)
        OPEN.add(self)

    def _refuse_others(self) -> None:
        """Raise NotALogError for a directory of something else."""
        with refusals("list", self.path):
            refuse_other_place(self.path, NotALogError(
                f"not a topic: it has no {FILE_NAME}", file=self.path,
                hint="pass a topic's directory, or one that is new or empty",
            ))
        is_topic = not (self.path / FILE_NAME).exists() or TOPIC in Manifest.read(self.path).properties
        if not is_topic and cursor_path(self.path, SUBSCRIPTION).exists():
            raise NotALogError("not a topic, but a queue", file=self.path, hint="open it with seglog.Queue")

    def __repr__(self) -> str:
        return f"<Topic {self.path.name}{': closed' if self._is_closed else ''}>"

    def _check(self) -> None:
        if self._is_closed:
            raise LogClosedError("the topic was closed", file=self.path)
        self._home.managed_ledger._tail.held.check()

    # --- publishing --------------------------------------------------------------------------

    def publish(
        self,
        value: "Buffer",
        *,
        key: str | bytes | None = None,
        delay: timedelta | float | None = None,
        at: datetime | str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> str:
        """Publish a message, and return its id. It is on the disk at return, with fsync="batch".

        Each subscription gets it, not before `delay` (seconds or a timedelta) has passed, or before `at` (a datetime
        with a time zone, or text: ISO 8601, UTC without a zone, or "+10m"). `key` and `properties` are stored with it.

        Raises InvalidArgumentError, RecordTooLargeError (maxMessageSize, 5 MiB), LogClosedError, LogFailedError.
        """
        id_ = self._publish(value, key=key, delay=delay, at=at, properties=properties)
        if self._sequences is not None:
            self._sequences.added(1)
        return id_

    def _publish(
        self, value: "Buffer", *, key: str | bytes | None, delay: timedelta | float | None, at: datetime | str | None,
        properties: Mapping[str, str] | None, identity: tuple[bytes, int] | None = None,
    ) -> str:
        self._check()
        deliver_at_ms = checked_at(at, delay, self._clock, "message")
        delayed = self._home.delayed
        entry, publish_time_ms, due_ms = delayed.build(
            value, delay=delay, deliver_at_ms=deliver_at_ms, key=key, properties=properties, identity=identity
        )
        ledger_id, entry_id = delayed._add_within_limits(entry, publish_time_ms, due_ms)
        return f"{ledger_id}:{entry_id}"

    def _publish_all(self, calls: "Sequence[PublishCall]") -> list[str | BaseException]:
        """Publish several messages, each with its own arguments, by one write and one sync; return the id of each, or
        the error because of which it was not published."""
        answers: list[str | BaseException] = [LogClosedError("the topic was closed", file=self.path)] * len(calls)
        built: list[tuple[int, bytes]] = []
        delayed = self._home.delayed
        has_limits = delayed.config.max_delay_ms or delayed.config.max_delayed >= 0
        for number, call in enumerate(calls):
            value, key, delay, at, properties = call
            try:
                self._check()
                if has_limits and (delay is not None or at is not None):
                    answers[number] = self.publish(value, key=key, delay=delay, at=at, properties=properties)
                    continue
                deliver_at_ms = checked_at(at, delay, self._clock, "message")
                built.append((number, delayed.build(
                    value, delay=delay, deliver_at_ms=deliver_at_ms, key=key, properties=properties
                )[0]))
            except Exception as error:      # also what a caller's own mapping raises: the others are not its callers
                answers[number] = error
        if built:
            found = self._home.add_all([entry for _, entry in built])
            for (number, _), answer in zip(built, found, strict=True):
                answers[number] = answer if isinstance(answer, BaseException) else f"{answer[0]}:{answer[1]}"
            if self._sequences is not None:
                self._sequences.added(sum(not isinstance(answer, BaseException) for answer in found))
        return answers

    def publish_many(
        self,
        messages: "Iterable[Buffer | tuple[str | bytes | None, Buffer]]",
        *,
        delay: timedelta | float | None = None,
        at: datetime | str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Publish messages, each its value, or (key, value), and return their ids. The other arguments are for all of
        them.

        They are written and synced together, a thousand or a MiB at a time: after a crash, each such part is there as a
        whole or not at all. Raises what `publish` raises.
        """
        self._check()
        deliver_at_ms = checked_at(at, delay, self._clock, "message")
        ids: list[str] = []
        for part in parts_of("message", messages):
            ledger_id, entry_id = self._home.delayed.publish_batch(
                part, delay=delay, deliver_at_ms=deliver_at_ms, properties=properties
            )
            ids += [f"{ledger_id}:{entry_id}:{number}" for number in range(len(part))]
            with self._lock:
                for lane in self._subscriptions.values():
                    if lane._sizes is not None:
                        lane._sizes[Position(ledger_id, entry_id)] = len(part)
            if self._sequences is not None:
                self._sequences.added(1)
        return ids

    def producer(self, name: str) -> TopicProducer:
        """A producer whose messages have sequence ids: a message with one that is repeated, or lower, is not stored
        again, also after a restart. One with this name at a time is open.

        Raises SubscriptionBusyError, InvalidArgumentError.
        """
        if not isinstance(name, str) or not name or not _is_utf8(name):
            raise InvalidArgumentError(f"the name of a producer must be text, not {repr(name)[:80]}")
        if UNNAMED.fullmatch(name):
            raise InvalidArgumentError(
                f"a producer cannot be called {name!r}: messages without a producer have such names",
                hint="choose a name of another form than `seglog-` and 12 hexadecimal digits",
            )
        with self._producing:
            self._check()
            if name in self._producers:
                raise SubscriptionBusyError(
                    f"a producer {name!r} is open", file=self.path,
                    hint="close the other one first, or share it among threads; or choose another name",
                )
            if self._sequences is None:
                self._sequences = shielded(partial(Sequences, self._home, create=True))
            producer = self._producers[name] = TopicProducer(self, name, self._sequences)
            return producer

    # --- subscribing -------------------------------------------------------------------------

    def subscribe(
        self,
        name: str,
        *,
        kind: Kind = "exclusive",
        start: "str | int | datetime | Position | Message" = "latest",
        lease: timedelta | float = 60,
        max_attempts: int | None = 10,
        retry_delay: timedelta | float = 1,
        max_retry_delay: timedelta | float = 300,
        retry_jitter: float = 0.1,
        reraise: bool = False,
        chance: Callable[[], float] = random.random,
    ) -> Consumer:
        """A consumer of the subscription with this name, which is created if it does not exist. It stays, and keeps its
        messages, also while it has no consumer, until `unsubscribe`.

        `kind`: "exclusive": one consumer; "failover": several, of which the one that came first gets the messages until
        it is closed; both in order. "shared": several, each message to one of them. "key_shared": the same, in order
        within a key. It is that of the consumers that are open; the next ones may have another.

        `start`: where a new subscription begins: "latest": with the next message; "earliest": with the first that is
        kept; a time (a datetime with a time zone, or text: ISO 8601, or "-2h"): with the first one of then or later; an
        int: with the message that has this index; a Position, or a Message: with that one. One that exists goes on
        where it was.

        `lease`, `max_attempts`, `retry_delay`, `max_retry_delay`, `retry_jitter`, `reraise`: as of seglog.Queue; the
        same ones for all consumers that a subscription has at a time. `chance`: for tests.

        Raises SubscriptionBusyError, InvalidArgumentError, LogClosedError, LogFailedError.
        """
        if kind not in get_args(Kind):
            raise InvalidArgumentError(f"kind must be one of {', '.join(get_args(Kind))}, not {kind!r}")
        if not isinstance(name, str) or name in INNER_CURSORS:
            raise InvalidArgumentError(f"not a name of a subscription: {repr(name)[:80]}")
        options = checked_options(lease, max_attempts, retry_delay, max_retry_delay, retry_jitter, reraise, chance)
        with self._lock:
            self._check()
            lane = self._subscriptions.get(name)
            if lane is None:
                begin = EARLIEST if name in self._home.managed_ledger.cursors else self._place_of("start", start)
                lane = shielded(partial(self._open_subscription, name, begin, options))
            number = self._consumer_number = self._consumer_number + 1
            consumer = Consumer(self, lane, number, kind, options)
            lane.join(number, consumer, kind, options)
            return consumer

    def _open_subscription(self, name: str, begin: Position, options: object) -> SubscriptionLane:
        home = self._home
        home.managed_ledger.open_cursor(name, begin)
        lane = SubscriptionLane(home, name, self._lock, options, self._backlog, None)  # type: ignore[arg-type]
        self._subscriptions[name] = lane
        return lane

    def _place_of(self, what: str, start: object) -> Position:
        """Where a start is: the position of its entry, or of the next one that is added."""
        ledger = self._home.managed_ledger
        last = ledger.last_position or EARLIEST
        end = Position(last.ledger_id, last.entry_id + 1)
        if isinstance(start, Message):
            return start.position
        if isinstance(start, Position):
            return start
        if start == "earliest":
            return EARLIEST
        if start == "latest":
            return end
        if type(start) is int:
            return ledger.position_at_index(start) or end
        if isinstance(start, str | datetime):
            try:
                since_ms = time_ms(what, start, self._clock.now_ms())
            except InvalidArgumentError as error:
                error.hint = f'"earliest" is the first message that is kept, "latest" the next one; or {error.hint}'
                raise
            return ledger.position_at_time(since_ms) or end
        raise InvalidArgumentError(
            f'{what} must be "earliest", "latest", a time, an index, a Position or a Message, not {repr(start)[:80]}'
        )

    @property
    def subscriptions(self) -> list[str]:
        """The names of the subscriptions, with and without consumers."""
        self._check()
        return sorted(name for name in self._home.managed_ledger.cursors if name not in INNER_CURSORS)

    def stats(self) -> dict[str, SubscriptionStats]:
        """Count the messages of each subscription, with and without consumers. Reads all entries that were not read
        yet."""
        found: dict[str, SubscriptionStats] = {}
        for name in self.subscriptions:
            with self._lock:
                if (lane := self._looked_at(name)) is not None:
                    found[name] = stats_of(lane, self._clock)
        return found

    def _looked_at(self, name: str) -> SubscriptionLane | None:
        """A subscription, with the lock, also if nobody has used it yet; None if it is gone."""
        self._check()
        lane = self._subscriptions.get(name)
        if lane is None and name in self._home.managed_ledger.cursors:
            lane = shielded(partial(self._open_subscription, name, EARLIEST, _NO_CONSUMERS))
        return lane

    def unsubscribe(self, name: str) -> None:
        """Remove a subscription, durably: messages are not kept for it any more. Raises SubscriptionBusyError if it has
        consumers, InvalidArgumentError if there is none with this name."""
        self._unsubscribe(name, None)

    def _unsubscribe(self, name: str, number: int | None) -> None:
        with self._lock:
            self._check()
            is_name = isinstance(name, str) and name not in INNER_CURSORS
            if not is_name or name not in self._home.managed_ledger.cursors:
                raise InvalidArgumentError(f"there is no subscription {repr(name)[:80]}", file=self.path)
            lane = self._subscriptions.get(name)
            if lane is not None and lane.consumers.keys() - {number}:
                raise SubscriptionBusyError(
                    f"subscription {name!r} has {len(lane.consumers)} consumers", file=self.path,
                )
            shielded(self._remove, name, lane)

    def _remove(self, name: str, lane: SubscriptionLane | None) -> None:
        home = self._home
        if lane is not None:
            lane.remove()
            del self._subscriptions[name]
        home.managed_ledger.delete_cursor(name)
        # Otherwise the journal would tell a later subscription of this name of deliveries that it never made.
        home.forget(name)

    def _seek(self, consumer: Consumer, to: object) -> None:
        with self._lock:
            consumer._check()
            place = self._place_of("to", to)
            shielded(self._move, consumer._lane, place)

    def _move(self, lane: SubscriptionLane, place: Position) -> None:
        self._home.note_covered()
        lane._cursor.seek(place)
        lane.moved()

    # --- compaction --------------------------------------------------------------------------

    def compact(self) -> None:
        """Keep the last message of each key for `read_compacted`, up to the end of the topic. A message with an empty
        value removes its key; one without a key is not kept (topicCompactionRetainNullKey). Subscriptions still get
        every message."""
        self._compactor().compact()

    def read_compacted(
        self, start: "str | int | datetime | Position | Message" = "earliest"
    ) -> Iterator[CompactedMessage]:
        """Read the topic up to its end, compacted as far as `compact` came, from a start on as of `subscribe`. It is
        not a subscription: nothing is acknowledged, delayed messages are there at once."""
        self._check()
        service = self._compactor()
        begin = EARLIEST if start == "earliest" else self._place_of("start", start)
        reader = read_compacted(self._home.managed_ledger, service, begin)
        return map(_compacted, iter(reader.read_next, None))

    def _compactor(self) -> "PulsarTopicCompactionService":
        late("seglog.upkeep.topic_compaction")
        from seglog.upkeep.topic_compaction import PulsarTopicCompactionService

        with self._producing:
            self._check()
            if self._compaction is None:
                self._compaction = PulsarTopicCompactionService(self._home.managed_ledger)
            return self._compaction

    # --- the end -----------------------------------------------------------------------------

    def flush(self) -> None:
        """Return when everything that was published and acknowledged is on the disk, with every `fsync`."""
        self._check()
        self._home.flush()

    def _message_count(self) -> int:
        """For seglog.metrics: how many messages were ever published."""
        self._check()
        return self._home.managed_ledger.last_index + 1

    def _figures(self, name: str) -> tuple[SubscriptionStats, Mapping[str, int]] | None:
        """For seglog.metrics: those of a subscription; None if it is gone."""
        with self._lock:
            lane = self._looked_at(name)
            return None if lane is None else (stats_of(lane, self._clock), lane._counts.values())

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def close(self) -> None:
        """Make everything durable, and close, with its consumers and producers. What they have is delivered again by
        the next opening. Idempotent. A signal's handler may call it, as Queue.close."""
        self._is_closed = True
        OPEN.discard(self)
        unlisten(self._clock, self._wake)
        self._wake()
        close_in_order(self._close, self.path)

    def _close(self) -> None:
        home = self._home
        if home.managed_ledger.closed:
            return
        self._wake()
        try:
            if self._sequences is not None and home.managed_ledger._tail.held.held:
                self._sequences.store()
        finally:
            with self._lock:
                try:
                    for lane in self._subscriptions.values():
                        lane.close()
                finally:
                    home.close()
            self._wake()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


OPEN: "weakref.WeakSet[Topic]" = weakref.WeakSet()
PROCESS.add(OpenTopics(lambda: list(OPEN)))


def _weak_waker(topic: Topic) -> Callable[[], None]:
    """Wakes all who wait for messages of the topic, without keeping it alive: the clock has this until it is closed."""
    found = weakref.ref(topic)

    def wake() -> None:
        there = found()
        for lane in [] if there is None else list(there._subscriptions.values()):
            lane._changed.notify()
            lane.turn.notify()

    return wake


def _compacted(message: TopicMessage) -> CompactedMessage:
    key: str | bytes | None = message.key
    if message.key is not None:
        single = message.metadata
        fields = message.entry.entry.fields()
        is_base64 = fields.flags & KEY_IS_BASE64 if single is None else single.partition_key_b64_encoded
        key = b64decode(message.key) if is_base64 else message.key.decode()
    return CompactedMessage(message.position.position, key, bytes(message.value))


def _nothing() -> None:
    pass


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _configs(config: Mapping[str, object] | None) -> tuple[ManagedLedgerConfig, DelayedDeliveryConfig]:
    """Pulsar's keys, by whose they are."""
    given = {} if config is None else config
    if not isinstance(given, Mapping):
        ManagedLedgerConfig.of(given)       # refuses it
    delayed_names = {key.name for key in DelayedDeliveryConfig.keys.values()} | {*DelayedDeliveryConfig.other_spellings}
    of_delayed = {name: given[name] for name in given if name in delayed_names}
    rest = {name: given[name] for name in given if name not in of_delayed}
    defaults = {"managedLedgerMaxSizePerLedgerMbytes": LEDGER_MB, "brokerEntryMetadataInterceptors": "index"}
    ledger = ManagedLedgerConfig.of({**defaults, **rest})
    delayed = DelayedDeliveryConfig.of(of_delayed)
    if delayed.shared_index and not delayed.bucket_tracker:
        raise InvalidArgumentError(
            "enableShareDelayedMessageIndex needs enableBucketDelayedDeliveryTracker", hint="set both or neither"
        )
    return ledger, delayed
