"""The delayed messages of a topic as it is configured: a tracker for each subscription, or one for all of them.

    with ManagedLedger("topics/orders") as topic, DelayedDelivery(topic) as delayed:
        with delayed.dispatcher(topic.open_cursor("billing")) as dispatcher:
            entries = dispatcher.read(timeout_s=5)

Opening with another kind of tracker than before removes what that one stored, and begins anew from the log. What was
decided about single messages is carried over:

    in memory        nothing is stored
    bucket           <topic>/delayed/<subscription>, listed by the subscription's cursor
    shared           <topic>/delayed/__delayed_index, listed by the cursor of that name, which is there only then
"""
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self
from uuid import uuid4

from seglog._kernels.quick_lock import QuickLock
from seglog.clock import Clock, SystemClock
from seglog.delayed.amendments import CANCELLED, MOVED, Amendments
from seglog.delayed.bucket import BUCKET_PROPERTY
from seglog.delayed.bucket_tracker import BucketDelayedDeliveryTracker
from seglog.delayed.config import DelayedDeliveryConfig
from seglog.delayed.in_memory import InMemoryDelayedDeliveryTracker
from seglog.delayed.sealed import PROPERTIES
from seglog.delayed.tracker import DelayedDeliveryTracker
from seglog.delayed.worker import IdleWorker, Worker, WorkerPool
from seglog.errors import InvalidArgumentError, LogClosedError, TooManyDelayedError
from seglog.fs.handles import OpenHandle
from seglog.ledger.cursor import Cursor
from seglog.ledger.entry import Entry, pulsar_pb
from seglog.ledger.ledger_metadata import checked_properties
from seglog.ledger.managed_ledger import ManagedLedger
from seglog.ledger.message_batch import build_message_entry
from seglog.ledger.position import Position
from seglog.ledger.relocated_entries import RelocatedHome
from seglog.ledger.snapshot_storage import LedgerSnapshotStorage, remove_snapshots, snapshot_directory
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
    """Trackers and dispatchers of one managed ledger, which stays the caller's. `config`: docs/config.md.

    Raises what opening the trackers raises.
    """

    def __init__(
        self,
        managed_ledger: ManagedLedger,
        config: Mapping[str, object] | DelayedDeliveryConfig | None = None,
        *,
        clock: Clock | None = None,
        new_worker: Callable[[], Worker] | None = None,
    ) -> None:
        if not isinstance(managed_ledger, ManagedLedger):
            raise InvalidArgumentError(f"delayed delivery is of a ManagedLedger, not of {managed_ledger!r}")
        if not isinstance(config, DelayedDeliveryConfig):
            config = DelayedDeliveryConfig.of({} if config is None else config)
        if config.shared_index and not config.bucket_tracker:
            raise InvalidArgumentError(
                "enableShareDelayedMessageIndex needs enableBucketDelayedDeliveryTracker", hint="set both, or neither"
            )
        self._given = config
        self.config = under_policies(config, managed_ledger.properties)
        self._managed_ledger = managed_ledger
        # As a client's producer that is given no name: nobody else's.
        self._producer_name = f"seglog-{uuid4().hex[:12]}"
        self._sequence_ids = count()
        self._clock = clock or SystemClock()
        # However many subscriptions there are: their background work shares a few threads.
        self._workers = WorkerPool()
        self._new_worker = new_worker or self._workers.new_worker
        # Guards what follows, and the opening of trackers. Taken before a tracker's lock.
        self._lock = QuickLock()
        self._indexes: dict[str, DelayedIndex] = {}
        self._is_closed = False
        self._remove_other_kinds()

    @classmethod
    def as_found(
        cls,
        managed_ledger: ManagedLedger,
        *,
        clock: Clock | None = None,
        new_worker: Callable[[], Worker] = IdleWorker,
    ) -> Self:
        """With the kind of tracker that was used last, and no background work: for looking, and for single changes."""
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
        subscription has delayedDeliveryMaxDelayedMessages of them, and what ManagedLedger.add_entry raises.
        """
        longest, most = self.config.max_delay_ms, self.config.max_delayed
        if not longest and most < 0:
            return self._managed_ledger.add_entry(headers_and_payload)
        fields = Entry(headers_and_payload).fields()
        deliver_at = fields.deliver_at_time
        if longest and deliver_at is not None and deliver_at - fields.publish_time > longest:
            raise InvalidArgumentError(
                f"a delay of {deliver_at - fields.publish_time} ms; delayedDeliveryMaxDelayInMillis is {longest}"
            )
        if most < 0 or deliver_at is None or deliver_at <= self._clock.now_ms():
            return self._managed_ledger.add_entry(headers_and_payload)
        with self._lock:        # one publisher at a time: what one adds, the next counts
            for index in self._all_indexes():
                self._refuse_full(index, most)
            return self._managed_ledger.add_entry(headers_and_payload)

    def _all_indexes(self) -> list[DelayedIndex]:
        """Those of every subscription, opened where they are not."""
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
                f"{delayed} messages are delayed; delayedDeliveryMaxDelayedMessages is {most}",
                hint="wait until some are delivered, or cancel some",
            )

    def publish(
        self,
        value: "Buffer",
        *,
        delay: timedelta | float | None = None,
        deliver_at_ms: int | None = None,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Position:
        """Add a message, and where it stands. `delay`: how long it is held back, in seconds or as a timedelta; or
        `deliver_at_ms`: until when, ms since 1970. Without either it is delivered at once.

        Raises InvalidArgumentError for a delay that is negative or given twice, and what `add_entry` raises.
        """
        now_ms = self._clock.now_ms()
        if delay is not None:
            if deliver_at_ms is not None:
                raise InvalidArgumentError("a message has a delay or a time, not both")
            deliver_at_ms = now_ms + _delay_ms(delay)
        elif deliver_at_ms is not None and (type(deliver_at_ms) is not int or not 0 <= deliver_at_ms < 2**63):
            raise InvalidArgumentError(f"a message is due at whole ms since 1970, not at {deliver_at_ms!r}")
        _check_text("a key", key)
        checked = checked_properties({} if properties is None else properties)
        metadata = pulsar_pb().MessageMetadata(
            producer_name=self._producer_name, sequence_id=next(self._sequence_ids), publish_time=now_ms,
            deliver_at_time=deliver_at_ms, partition_key=key,
        )
        for name, text in checked.items():
            _check_text("a property's name", name)
            _check_text("a property", text)
            metadata.properties.add(key=name, value=text)
        return self.add_entry(build_message_entry(metadata, value))

    # --- configuration -----------------------------------------------------------------------

    @property
    def policies(self) -> dict[str, str]:
        """The keys that are kept with the topic, and their values: they go before what this was opened with."""
        return stored_policies(self._managed_ledger.properties)

    def set_policies(self, changes: Mapping[str, object]) -> None:
        """Keep these keys with the topic, durably, and remove those that are None; they count from now on, and whenever
        it is opened.

        Raises InvalidConfigError for an unknown key or a bad value, InvalidArgumentError for the kind of tracker.
        """
        properties = policy_properties(changes)
        with self._lock:
            self._managed_ledger.update_properties(properties)
            self.reconfigure(under_policies(self._given, self._managed_ledger.properties))

    def reconfigure(self, config: Mapping[str, object] | DelayedDeliveryConfig) -> None:
        """Go on under another configuration until this is closed, of which docs/config.md says what counts from the
        next seal on only. What is to stay is a policy.

        Raises InvalidArgumentError for another kind of tracker: that requires reopening.
        """
        if not isinstance(config, DelayedDeliveryConfig):
            config = DelayedDeliveryConfig.of(config)
        if (config.bucket_tracker, config.shared_index) != (self.config.bucket_tracker, self.config.shared_index):
            raise InvalidArgumentError(
                "to use another kind of tracker, close the delivery and open it again", hint="close this one, and "
                "open another"
            )
        with self._lock:
            self.config = config
            for index in self._indexes.values():
                index.tracker.reconfigure(config)

    # --- what there is -----------------------------------------------------------------------

    def index(self, cursor: Cursor) -> DelayedIndex:
        """The index that has the delayed messages of a subscription: its own, or that of all. Raises LogClosedError
        once this was closed, InvalidArgumentError for what is no cursor of this managed ledger."""
        if not isinstance(cursor, Cursor) or self._managed_ledger.cursors.get(cursor.name) not in (cursor, None):
            raise InvalidArgumentError(f"no cursor of this managed ledger: {cursor!r}", file=self._managed_ledger.path)
        with self._lock:
            if self._is_closed:
                raise LogClosedError("the delayed delivery was closed", file=self._managed_ledger.path)
            name = BUILDING_CURSOR if self.config.shared_index else cursor.name
            found = self._indexes.get(name)
            if found is not None and not found.is_of(cursor):
                self._close(name)       # the subscription was deleted, and this is another one of its name
                found = None
            if found is None:
                found = self._indexes[name] = self._open(cursor)
            return found

    def tracker(self, cursor: Cursor) -> DelayedDeliveryTracker:
        """The tracker that has the delayed messages of a subscription."""
        return self.index(cursor).tracker

    def dispatcher(self, cursor: Cursor) -> Dispatcher:
        """A dispatcher of a subscription, for all threads that read it. Raises InvalidArgumentError if it has one that
        is not closed, and LogClosedError once this was closed."""
        return Dispatcher(self._managed_ledger, cursor, self.index(cursor), clock=self._clock)

    def _open(self, cursor: Cursor) -> DelayedIndex:
        if not self.config.bucket_tracker:
            in_memory = InMemoryDelayedDeliveryTracker(self.config, clock=self._clock, decisions=cursor)
            return DelayedIndex(in_memory, self._managed_ledger, cursor)
        if self.config.shared_index:
            owner = self._managed_ledger.open_cursor(BUILDING_CURSOR, "earliest")
            return SharedDelayedIndex(self._open_buckets(owner), self._managed_ledger)
        return DelayedIndex(self._open_buckets(cursor), self._managed_ledger, cursor)

    def _open_buckets(self, owner: Cursor) -> BucketDelayedDeliveryTracker:
        storage = LedgerSnapshotStorage(
            snapshot_directory(self._managed_ledger.path, owner.name),
            owner=owner,
            new_ledger_id=self._managed_ledger.new_ledger_id,
            fs=self._managed_ledger.fs,
            clock=self._clock,
        )
        return BucketDelayedDeliveryTracker(storage, self.config, clock=self._clock, worker=self._new_worker())

    # --- another kind than before ------------------------------------------------------------

    def _remove_other_kinds(self) -> None:
        """Leave no snapshot of a tracker that is not used now. A message that was cancelled is acknowledged, and one
        that was rescheduled keeps its time. A crash in between leaves what can be done once more."""
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
        remove_snapshots(self._managed_ledger.fs, self._managed_ledger.path, besides=used)

    def _share_moves(self, building: Cursor | None, subscriptions: list[Cursor]) -> None:
        """Let the index of all know what single subscriptions rescheduled. A message has one time there: the latest of
        those that the subscriptions have for it, so that nobody gets it early."""
        decided = {cursor.name: _decided(cursor).moved for cursor in subscriptions}
        positions = {position for moved in decided.values() for position in moved}
        if not positions:
            return
        building = building or self._managed_ledger.open_cursor(BUILDING_CURSOR, "earliest")
        shared = _decided(building).moved
        home = self._managed_ledger.shared(RelocatedHome)
        relocated = dict(home.join(self._managed_ledger).times())
        home.leave()
        for position in map(Position._make, positions):
            waiting = [cursor for cursor in subscriptions if self._waits_for(cursor, position)]
            if waiting:
                published = relocated.get(position)
                if published is None:
                    # A copy that cannot be read has no time: what was decided about it counts alone.
                    is_there = self._managed_ledger.is_valid(position)
                    published = published_due_ms(self._managed_ledger.read(position)) if is_there else 0
                times = [decided[cursor.name].get(position, published) for cursor in waiting]
                shared[position] = max(*times, shared.get(position, 0))
        building.update_properties(_properties(shared))

    def _waits_for(self, cursor: Cursor, position: Position) -> bool:
        """Whether there is an entry, and the subscription has not acknowledged it."""
        there = cursor.is_aside(position) or self._managed_ledger.is_valid(position)
        return there and not cursor.is_acknowledged(position)

    def _settle(self, owner: Cursor, cursors: list[Cursor], kinds: tuple[str, ...]) -> None:
        """Forget the properties of these kinds that `owner` kept for a tracker, which served `cursors`."""
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
        """Close the trackers; dispatchers give out nothing any more. Twice is fine."""
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


def _check_text(what: str, text: object) -> None:
    """Raises InvalidArgumentError for what is neither None nor text that UTF-8 can hold."""
    try:
        if text is not None:
            text.encode()   # type: ignore[attr-defined]
    except (AttributeError, UnicodeEncodeError):
        raise InvalidArgumentError(f"{what} is text, not {repr(text)[:80]}") from None


def _delay_ms(delay: timedelta | float) -> int:
    try:
        if isinstance(delay, (str, bytes, bytearray, bool)):
            raise TypeError
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
        delay_ms = int(seconds * 1000)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgumentError(f"a delay is seconds or a timedelta, not {delay!r}") from None
    if not 0 <= delay_ms < 2**62:
        raise InvalidArgumentError(f"a delay of {seconds} s")
    return delay_ms


def _decided(cursor: Cursor) -> Amendments:
    """What a cursor keeps of decisions. Raises CorruptDelayedIndexError."""
    amendments = Amendments()
    amendments.read(cursor.properties)
    return amendments


def _properties(moved: Mapping[tuple[int, int], int]) -> dict[str, str | None]:
    """The properties that say of messages that they were moved."""
    amendments = Amendments()
    amendments.moved.update(moved)
    return {name: value for name, value in amendments.properties().items() if name.startswith(MOVED)}


def _existing(managed_ledger: ManagedLedger, amendments: Amendments) -> Iterator[Position]:
    """The cancelled positions where there is an entry."""
    extent = managed_ledger.extent
    for ledger_id, ids in sorted(amendments.cancelled_in.items()):
        slot = extent.slot_of(ledger_id)
        if slot >= 0:
            there = amendments.cancelled_among(ledger_id, type(ids)(range(extent.entries_of(slot))))
            yield from (Position(ledger_id, entry_id) for entry_id in there)
