"""Delayed messages of a topic: depending on the configuration, a tracker for each subscription or one for all.

    with ManagedLedger("topics/orders") as topic, DelayedDelivery(topic) as delayed:
        with delayed.dispatcher(topic.open_cursor("billing")) as dispatcher:
            entries = dispatcher.read(timeout=5)

If you open a topic with another kind of tracker than before, the old tracker's files are removed, and the index is
rebuilt from the log. Decisions about single messages are kept:

    in memory        nothing is stored
    bucket           <topic>/delayed/<subscription>, listed by the subscription's cursor
    shared           <topic>/delayed/__delayed_index, listed by the cursor of that name, which exists only then
"""
import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self
from uuid import uuid4

from seglog._kernels.message_entry import encode_message
from seglog._kernels.quick_lock import QuickLock
from seglog.clock import Clock, checked_clock, now_ns
from seglog.delayed.amendments import CANCELLED, MOVED, Amendments
from seglog.delayed.bucket import BUCKET_PROPERTY
from seglog.delayed.bucket_tracker import BucketDelayedDeliveryTracker
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.in_memory import InMemoryDelayedDeliveryTracker
from seglog.delayed.sealed import PROPERTIES
from seglog.delayed.tracker import DelayedDeliveryTracker
from seglog.delayed.worker import IdleWorker, Worker, WorkerPool
from seglog.errors import InvalidArgumentError, LogClosedError, SeglogError, TooManyDelayedError
from seglog.fs.handles import OpenHandle
from seglog.ledger.entry import Entry, pulsar_pb
from seglog.ledger.ledger_metadata import checked_properties
from seglog.ledger.managed.cursor import ManagedCursor
from seglog.ledger.managed.managed_ledger import OpenManagedLedger
from seglog.ledger.managed.relocated_entries import RelocatedHome
from seglog.ledger.message_batch import HINT_OF_NUMBER, build_batch_entry, contiguous
from seglog.ledger.position import Position
from seglog.ledger.snapshot_storage import LedgerSnapshotStorage, remove_snapshots, snapshot_directory
from seglog.ledger.stored_entry import StoredEntry
from seglog.topic.delayed_index import (
    BUILDING_CURSOR,
    INNER_CURSORS,
    DelayedIndex,
    SharedDelayedIndex,
    published_due_ms,
)
from seglog.topic.delayed_policies import policy_properties, stored_policies, under_policies
from seglog.topic.dispatcher import Dispatcher

if TYPE_CHECKING:
    from typing_extensions import Buffer


class DelayedDelivery(OpenHandle):
    """Trackers and dispatchers of one managed ledger, which the caller closes. `config`: docs/config.md.

    Raises what opening the trackers raises.
    """

    def __init__(
        self,
        managed_ledger: OpenManagedLedger,
        config: Mapping[str, object] | DelayedDeliveryConfig | None = None,
        *,
        clock: Clock | None = None,
        new_worker: Callable[[], Worker] | None = None,
    ) -> None:
        if not isinstance(managed_ledger, OpenManagedLedger):
            raise InvalidArgumentError(f"delayed delivery needs a ManagedLedger, not {managed_ledger!r}")
        if not isinstance(config, DelayedDeliveryConfig):
            config = DelayedDeliveryConfig.of({} if config is None else config)
        if config.shared_index and not config.bucket_tracker:
            raise InvalidArgumentError(
                "enableShareDelayedMessageIndex needs enableBucketDelayedDeliveryTracker", hint="set both or neither"
            )
        self._given = config
        self.config = under_policies(config, managed_ledger.properties)
        self._managed_ledger = managed_ledger
        # Unique, like the name of a client's producer that is given none.
        self._producer_name = f"seglog-{uuid4().hex[:12]}".encode()
        self._sequence_ids = count()
        self._clock = checked_clock(clock)
        # A few threads for the background work of all subscriptions, however many there are.
        self._workers = WorkerPool()
        self._new_worker = new_worker or self._workers.new_worker
        # Guards the fields below, and the opening of trackers. Acquired before a tracker's lock.
        self._lock = QuickLock()
        self._indexes: dict[str, DelayedIndex] = {}
        self._is_closed = False
        self._remove_other_kinds()

    @classmethod
    def _as_found(
        cls,
        managed_ledger: OpenManagedLedger,
        *,
        clock: Clock | None = None,
        new_worker: Callable[[], Worker] = IdleWorker,
    ) -> Self:
        """Open with the kind of tracker that was used last, and without background work, for inspection and single
        changes."""
        cursors = managed_ledger.cursors
        config = DelayedDeliveryConfig(
            bucket_tracker=any(snapshot_directory(managed_ledger.path, name).is_dir() for name in cursors),
            shared_index=BUILDING_CURSOR in cursors,
        )
        if config.shared_index:
            config = DelayedDeliveryConfig(shared_index=True)
        return cls(managed_ledger, config, clock=clock, new_worker=new_worker)

    # --- publishing --------------------------------------------------------------------------

    def add_entry(self, headers_and_payload: "Buffer") -> Position:
        """Add an entry to the managed ledger, unless it asks for a delay above delayedDeliveryMaxDelayInMillis, counted
        from its publish time (PersistentTopic.isExceedMaximumDeliveryDelay of Pulsar 4.2.4).

        Raises InvalidArgumentError for such a delay, TooManyDelayedError for an entry that would be delayed while a
        subscription has seglog.delayed.max.messages of them, and what ManagedLedger.add_entry raises.
        """
        if not self.config.max_delay_ms and self.config.max_delayed < 0:
            return self._managed_ledger.add_entry(headers_and_payload)
        fields = Entry(headers_and_payload).fields()
        return self._add_within_limits(headers_and_payload, fields.publish_time, fields.deliver_at_time)

    def _add_within_limits(
        self, headers_and_payload: "Buffer", publish_time_ms: int, deliver_at_ms: int | None
    ) -> Position:
        longest, most = self.config.max_delay_ms, self.config.max_delayed
        if longest and deliver_at_ms is not None and deliver_at_ms - publish_time_ms > longest:
            raise InvalidArgumentError(
                f"a delay of {deliver_at_ms - publish_time_ms} ms; delayedDeliveryMaxDelayInMillis is {longest}"
            )
        if most < 0 or deliver_at_ms is None or deliver_at_ms <= self._clock.now_ms():
            return self._managed_ledger.add_entry(headers_and_payload)
        with self._lock:        # one publisher at a time: what one adds, the next counts
            for index in self._all_indexes():
                self._refuse_full(index, most)
            return self._managed_ledger.add_entry(headers_and_payload)

    def _all_indexes(self) -> list[DelayedIndex]:
        """The indexes of all subscriptions, opened if necessary."""
        cursors = [cursor for name, cursor in self._managed_ledger.cursors.items() if name not in INNER_CURSORS]
        indexes = [self.index(cursor) for cursor in cursors]
        return indexes[:1] if self.config.shared_index else indexes

    @staticmethod
    def _refuse_full(index: DelayedIndex, most: int) -> None:
        with index.lock:
            index.read_up()
            delayed = index.tracker.number_of_delayed_messages
        if delayed >= most:
            raise TooManyDelayedError(
                f"{delayed} messages are delayed; seglog.delayed.max.messages is {most}",
                hint="wait until some are delivered, or cancel some",
            )

    def publish(
        self,
        value: "Buffer",
        *,
        delay: timedelta | float | None = None,
        deliver_at_ms: int | None = None,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Position:
        """Add a message, and return its position. It is held back for `delay` (seconds or a timedelta) or until
        `deliver_at_ms` (ms since 1970); with neither it is delivered at once. A `key` of bytes is stored in base64, as
        Pulsar's keyBytes.

        Raises InvalidArgumentError for a negative delay, or if both are given, and what `add_entry` raises.
        """
        return self._add_within_limits(*self.build(
            value, delay=delay, deliver_at_ms=deliver_at_ms, key=key, properties=properties
        ))

    def build(
        self,
        value: "Buffer",
        *,
        delay: timedelta | float | None = None,
        deliver_at_ms: int | None = None,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        identity: tuple[bytes, int] | None = None,
    ) -> tuple[bytes, int, int | None]:
        """The entry that `publish` would add, its publish time, and its delivery time (ms since 1970, or None).
        `identity`: its producer's name and sequence id. Raises InvalidArgumentError."""
        if (
            delay is None and deliver_at_ms is None and key is None and properties is None and type(value) is bytes
            and identity is None
        ):
            now_ms = self._clock.now_ms()       # (without calls: most jobs of a queue are such messages)
            return encode_message(
                self._producer_name, next(self._sequence_ids), now_ms, None, None, False, None, value
            ), now_ms, None
        publish_time_ms, deliver_at_ms = self._times(delay, deliver_at_ms)
        pairs = None
        if properties is not None:
            pairs = [(name.encode(), text.encode()) for name, text in _texts(properties)]
        stored_key, is_base64 = _stored_key(key)
        name, sequence_id = identity or (self._producer_name, next(self._sequence_ids))
        entry = encode_message(
            name, sequence_id, publish_time_ms, deliver_at_ms, stored_key, is_base64, pairs,
            contiguous(value),
        )
        return entry, publish_time_ms, deliver_at_ms

    def publish_batch(
        self,
        messages: "Iterable[tuple[str | bytes | None, Buffer]]",
        *,
        delay: timedelta | float | None = None,
        deliver_at_ms: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Position:
        """Add messages, each with a key or None, as one entry, and return its position: all are held back until the
        same time. Otherwise like `publish`; raises InvalidArgumentError if there is none."""
        publish_time_ms, deliver_at_ms = self._times(delay, deliver_at_ms)
        metadata = pulsar_pb().MessageMetadata(
            producer_name=self._producer_name.decode(), sequence_id=next(self._sequence_ids),
            publish_time=publish_time_ms, deliver_at_time=deliver_at_ms,
        )
        kind, checked = pulsar_pb().SingleMessageMetadata, list(_texts(properties))
        singles = []
        for key, value in messages:
            single = kind(payload_size=0)       # set by write_batch
            stored_key, is_base64 = _stored_key(key)
            if stored_key is not None:
                single.partition_key = stored_key.decode()
            if is_base64:
                single.partition_key_b64_encoded = True
            for name, text in checked:
                single.properties.add(key=name, value=text)
            singles.append((single, value))
        return self._add_within_limits(build_batch_entry(metadata, singles), publish_time_ms, deliver_at_ms)

    def _times(self, delay: timedelta | float | None, deliver_at_ms: int | None) -> tuple[int, int | None]:
        """The publish time and the delivery time of a message, in ms since 1970."""
        publish_time_ms = self._clock.now_ms()
        if delay is not None:
            if deliver_at_ms is not None:
                raise InvalidArgumentError("give a message a delay or deliver_at_ms, not both")
            at_ns, delay_ns = now_ns(self._clock), _delay_ns(delay)
            deliver_at_ms = publish_time_ms
            if delay_ns:        # Both rounded up: it is never early, nor is the longest delay exceeded by the rounding.
                publish_time_ms, deliver_at_ms = -(-at_ns // 1_000_000), -(-(at_ns + delay_ns) // 1_000_000)
        elif deliver_at_ms is not None and (type(deliver_at_ms) is not int or not 0 <= deliver_at_ms < 2**63):
            raise InvalidArgumentError(f"deliver_at_ms must be an integer (ms since 1970), not {deliver_at_ms!r}")
        return publish_time_ms, deliver_at_ms

    # --- configuration -----------------------------------------------------------------------

    @property
    def policies(self) -> dict[str, str]:
        """The keys stored with the topic, and their values: they override the configuration given when opening."""
        return stored_policies(self._managed_ledger.properties)

    def set_policies(self, changes: Mapping[str, object]) -> None:
        """Store these keys with the topic, durably, and remove those that are None. They apply from now on, and
        whenever the topic is opened.

        Raises InvalidConfigError for an unknown key or a bad value, InvalidArgumentError for the kind of tracker.
        """
        properties = policy_properties(changes)
        with self._lock:
            self._managed_ledger.update_properties(properties)
            self.reconfigure(under_policies(self._given, self._managed_ledger.properties))

    def reconfigure(self, config: Mapping[str, object] | DelayedDeliveryConfig) -> None:
        """Use another configuration until this is closed; for permanent changes, set a policy. docs/config.md says
        which keys take effect only at the next seal.

        Raises InvalidArgumentError for another kind of tracker, which requires reopening.
        """
        if not isinstance(config, DelayedDeliveryConfig):
            config = DelayedDeliveryConfig.of(config)
        if (config.bucket_tracker, config.shared_index) != (self.config.bucket_tracker, self.config.shared_index):
            raise InvalidArgumentError(
                "the kind of tracker cannot be changed while delayed delivery is open",
                hint="close this DelayedDelivery, and open another"
            )
        with self._lock:
            self.config = config
            for index in self._indexes.values():
                index.tracker.reconfigure(config)

    # --- indexes, trackers, dispatchers ------------------------------------------------------

    def index(self, cursor: ManagedCursor) -> DelayedIndex:
        """The index with the delayed messages of a subscription: its own, or the shared one. Raises LogClosedError if
        this is closed, InvalidArgumentError if `cursor` is not a cursor of this managed ledger."""
        if not isinstance(cursor, ManagedCursor) or self._managed_ledger.cursors.get(cursor.name) not in (cursor, None):
            raise InvalidArgumentError(f"no cursor of this managed ledger: {cursor!r}", file=self._managed_ledger.path)
        with self._lock:
            if self._is_closed:
                raise LogClosedError("the delayed delivery is closed", file=self._managed_ledger.path)
            name = BUILDING_CURSOR if self.config.shared_index else cursor.name
            found = self._indexes.get(name)
            if found is not None and not found.is_of(cursor):
                self._close(name)       # the subscription was deleted, and this is a new one with the same name
                found = None
            if found is None:
                found = self._indexes[name] = self._open(cursor)
            return found

    def tracker(self, cursor: ManagedCursor) -> DelayedDeliveryTracker:
        """The tracker with the delayed messages of a subscription. Raises what `index` raises."""
        return self.index(cursor).tracker

    def dispatcher(
        self, cursor: ManagedCursor, *, keeper: Callable[[StoredEntry], bool] | None = None,
        unreadable: Callable[[Position, SeglogError], None] | None = None,
    ) -> Dispatcher:
        """A dispatcher for a subscription, for all threads that read it. `keeper`, `unreadable`: see Dispatcher. Raises
        InvalidArgumentError if the subscription has an open dispatcher already, and LogClosedError if this is
        closed."""
        return Dispatcher(
            self._managed_ledger, cursor, self.index(cursor), clock=self._clock, keeper=keeper, unreadable=unreadable
        )

    def _open(self, cursor: ManagedCursor) -> DelayedIndex:
        if not self.config.bucket_tracker:
            in_memory = InMemoryDelayedDeliveryTracker(self.config, clock=self._clock, decisions=cursor)
            return DelayedIndex(in_memory, self._managed_ledger, cursor)
        if self.config.shared_index:
            owner = self._managed_ledger.open_cursor(BUILDING_CURSOR, "earliest")
            return SharedDelayedIndex(self._open_buckets(owner), self._managed_ledger)
        return DelayedIndex(self._open_buckets(cursor), self._managed_ledger, cursor)

    def _open_buckets(self, owner: ManagedCursor) -> BucketDelayedDeliveryTracker:
        storage = LedgerSnapshotStorage(
            snapshot_directory(self._managed_ledger.path, owner.name),
            owner=owner,
            new_ledger_id=self._managed_ledger.new_ledger_id,
            fs=self._managed_ledger._fs,
            clock=self._clock,
        )
        return BucketDelayedDeliveryTracker(storage, self.config, clock=self._clock, worker=self._new_worker())

    # --- change of the kind of tracker -------------------------------------------------------

    def _remove_other_kinds(self) -> None:
        """Remove the snapshots of trackers that are no longer used. Cancelled messages are acknowledged, and
        rescheduled ones keep their time. After a crash in between, this can be repeated."""
        cursors = self._managed_ledger.cursors
        building = cursors.pop(BUILDING_CURSOR, None)
        subscriptions = list(cursors.values())
        if self.config.shared_index:
            self._share_moves(building, subscriptions)
            for cursor in subscriptions:
                self._settle(cursor, [cursor], PROPERTIES)
        elif building is not None:
            moved = _decided(building).moved
            for cursor in subscriptions:
                cursor.update_properties(_properties({**moved, **_decided(cursor).moved}))
            self._settle(building, subscriptions, PROPERTIES)
            self._managed_ledger.delete_cursor(BUILDING_CURSOR)
        if not self.config.bucket_tracker:
            for cursor in subscriptions:
                self._settle(cursor, [cursor], (BUCKET_PROPERTY, CANCELLED))
        used: set[Path] = set()
        if self.config.shared_index:
            used = {snapshot_directory(self._managed_ledger.path, BUILDING_CURSOR)}
        elif self.config.bucket_tracker:
            used = {snapshot_directory(self._managed_ledger.path, name) for name in cursors}
        remove_snapshots(self._managed_ledger._fs, self._managed_ledger.path, besides=used)

    def _share_moves(self, building: ManagedCursor | None, subscriptions: list[ManagedCursor]) -> None:
        """Take over the times of messages that single subscriptions rescheduled into the shared index. A message has
        one time there: the latest of its subscriptions' times, so that none gets it early."""
        decided = {cursor.name: _decided(cursor).moved for cursor in subscriptions}
        positions = {position for moved in decided.values() for position in moved}
        if not positions:
            return
        building = building or self._managed_ledger.open_cursor(BUILDING_CURSOR, "earliest")
        shared = _decided(building).moved
        home = self._managed_ledger._shared(RelocatedHome)
        relocated = dict(home.join(self._managed_ledger).times())
        home.leave()
        for position in map(Position._make, positions):
            waiting = [cursor for cursor in subscriptions if self._waits_for(cursor, position)]
            if waiting:
                published = relocated.get(position)
                if published is None:
                    # A message that cannot be read has no published time: only the rescheduled times count.
                    is_there = self._managed_ledger.is_valid(position)
                    published = published_due_ms(self._managed_ledger.read(position)) if is_there else 0
                times = [decided[cursor.name].get(position, published) for cursor in waiting]
                shared[position] = max(*times, shared.get(position, 0))
        building.update_properties(_properties(shared))

    def _waits_for(self, cursor: ManagedCursor, position: Position) -> bool:
        """Whether the entry exists, and the subscription has not acknowledged it."""
        there = cursor.is_aside(position) or self._managed_ledger.is_valid(position)
        return there and not cursor.is_acknowledged(position)

    def _settle(self, owner: ManagedCursor, cursors: list[ManagedCursor], kinds: tuple[str, ...]) -> None:
        """Apply the decisions in `owner`'s properties of these kinds to `cursors`, and remove the properties."""
        ours = {name: value for name, value in owner.properties.items() if name.startswith(kinds)}
        if not ours:
            return
        amendments = Amendments()
        amendments.read(ours)
        for cursor in cursors:
            for position in _existing(self._managed_ledger, amendments):
                cursor.acknowledge(position)
            for ledger_id, ids in cursor.aside.items():
                for entry_id in amendments.cancelled_among(ledger_id, ids):
                    cursor.acknowledge(Position(ledger_id, entry_id))
            cursor.flush()
        owner.update_properties(dict.fromkeys(ours))

    # --- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """Close the trackers; dispatchers then deliver nothing more. Idempotent."""
        with self._lock:
            self._is_closed = True
            for name in list(self._indexes):
                self._close(name)
            self._workers.close()

    def _close(self, name: str) -> None:
        index = self._indexes[name]
        for reader in list(index.readers):
            reader.close()
        index.close()
        index.tracker.close()
        del self._indexes[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _stored_key(key: str | bytes | None) -> tuple[bytes | None, bool]:
    """A key as it is stored, and whether it is in base64. Raises InvalidArgumentError."""
    if isinstance(key, bytes):
        return base64.b64encode(key), True
    _check_text("a key", key, "text or bytes")
    return None if key is None else key.encode(), False


def _texts(properties: Mapping[str, str] | None) -> Iterator[tuple[str, str]]:
    """The properties, checked."""
    for name, text in checked_properties(properties).items() if properties is not None else ():
        _check_text("a property's name", name)
        _check_text("a property", text)
        yield name, text


def _check_text(what: str, text: object, kinds: str = "text") -> None:
    """Raises InvalidArgumentError unless `text` is None or text that UTF-8 can encode. `kinds`: what it must
    be, for the message."""
    if text is None:
        return
    if not isinstance(text, str):
        hint = HINT_OF_NUMBER if isinstance(text, int) else None
        raise InvalidArgumentError(f"{what} must be {kinds}, not {repr(text)[:80]}", hint=hint)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{what} must be text that UTF-8 can encode, not {repr(text)[:80]}") from None


def _delay_ns(delay: timedelta | float) -> int:
    try:
        if isinstance(delay, (str, bytes, bytearray, bool)):
            raise TypeError
        if isinstance(delay, timedelta):
            seconds, delay_ns = delay.total_seconds(), delay // timedelta(microseconds=1) * 1000
        else:
            seconds = float(delay)
            delay_ns = round(seconds * 1e9)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgumentError(
            f"delay must be seconds or a timedelta, not {delay!r}", hint="for example 10, or timedelta(seconds=10)",
        ) from None
    if not 0 <= delay_ns < 2**62 * 1_000_000:
        raise InvalidArgumentError(
            f"delay must be 0 seconds or more, and less than 2**62 ms, not {seconds:g}",
            hint="leave it out for no delay",
        )
    return delay_ns


def _decided(cursor: ManagedCursor) -> Amendments:
    """The decisions about single messages in a cursor's properties. Raises CorruptDelayedIndexError."""
    amendments = Amendments()
    amendments.read(cursor.properties)
    return amendments


def _properties(moved: Mapping[tuple[int, int], int]) -> dict[str, str | None]:
    """The properties that record rescheduled messages."""
    amendments = Amendments()
    amendments.moved.update(moved)
    return {name: value for name, value in amendments.properties().items() if name.startswith(MOVED)}


def _existing(managed_ledger: OpenManagedLedger, amendments: Amendments) -> Iterator[Position]:
    """The cancelled positions whose entries exist."""
    extent = managed_ledger.extent
    for ledger_id, ids in sorted(amendments.cancelled_in.items()):
        slot = extent.slot_of(ledger_id)
        if slot >= 0:
            there = amendments.cancelled_among(ledger_id, type(ids)(range(extent.entries_of(slot))))
            yield from (Position(ledger_id, entry_id) for entry_id in there)
