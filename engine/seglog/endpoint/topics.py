"""The topics of a log dir, their ids and their logs; creates, widens and deletes topics.

A topic consists of the partition directories with its name. As with a broker, each of them has the topic's id in its
`partition.metadata`; directories without that file (from `seglog.open`) have no id, and clients see one that is made
from the topic's name: Produce 13 and its like name topics by ids alone.
An internal topic starts with its last partition only; each other one is created when it is first used, since most of
the fifty never are. Everything except `log` runs in the loop's thread; one worker thread does the work on files, in
the order of the requests. Topics that wait for it together are created together, and so are deletions done.

A topic is created without opening its logs: that happens when they are first used. When a creation is answered, its
mark (endpoint.topic_creation) and the names of its directories are on the disk; another thread syncs the files in them,
when no more topics come.

When a deletion is answered, its mark (endpoint.topic_deletion) is on the disk, and no client sees the topic any more.
The worker renames the directories of a few partitions before that, those of many afterwards, some at a time.
"""
import asyncio
import contextlib
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from seglog.config import MAX_INT, LogConfig
from seglog.endpoint import topic_creation, topic_deletion
from seglog.endpoint.operator_limits import OperatorLimits
from seglog.endpoint.topic_creation import Creation
from seglog.endpoint.topic_deletion import Deletion
from seglog.errors import (
    CorruptCheckpointError,
    CorruptSettingsError,
    InvalidArgumentError,
    InvalidTopicError,
    LogClosedError,
    ProhibitedTopicError,
    SeglogError,
    StorageError,
    TooManyPartitionsError,
    TopicExistsError,
)
from seglog.format import names
from seglog.fs.files import FileSystem
from seglog.log.append import PendingAppend
from seglog.log.log import Log
from seglog.log.open_dir import LogDir
from seglog.logger import Logger
from seglog.loop.durability import Durability
from seglog.named_tuple import NamedTuple
from seglog.reading.arguments import checked_config, key_name
from seglog.reading.cluster_settings import POLICY
from seglog.reading.settings import LogSettings, Setting, checked_changes, settings_of_new_log
from seglog.state.checkpoints import TopicPartition
from seglog.state.kept_settings import FILE_NAME as SETTINGS_FILE
from seglog.state.kept_settings import read_settings, settings_to_bytes
from seglog.state.leader_epochs import LeaderEpochs
from seglog.state.partition_metadata import PartitionMetadata, id_of_topic

# Kafka's internal topics (Topic.INTERNAL_TOPICS): clients may read them, and only a broker writes to them.
INTERNAL_TOPICS = frozenset(names.BROKER_TOPICS)
# Those of the server's own coordinators.
_COORDINATOR_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
ZERO_ID = bytes(16)

_LOG = Logger(__name__)

# So many partitions are created with one sync, or removed without looking whether the server stops.
_AT_ONCE = 1000
# So many logs are opened before their first appends begin together: a request waits for no more.
_BEGUN_AT_ONCE = 32
# So many directories of deleted partitions are renamed before other work has its turn.
_RENAMED_AT_ONCE = 64
# The files of new topics are synced, and their logs opened, when no topic was created for so long: while the disk
# syncs, making a directory takes ten times as long, and clients create topics one request after another. But not later
# than this, since every creation writes the mark of all that are not synced.
_QUIET_S = 0.5
_PATIENCE_S = 10.0
# What is not synced when the server stops, the next start syncs.
_SYNCED_AT_STOP_S = 1.0
_Done = TypeVar("_Done")


class NewTopic(NamedTuple):
    """A topic that a client asks for."""

    name: str
    partitions: int
    settings: Mapping[str, object]


class ServedTopic:
    """A topic as clients see it. `topic_id`: the one on the disk, or ZERO_ID; `partitions`: the highest number of a
    partition directory plus one."""

    __slots__ = ("name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: bytes, partitions: int) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions

    @property
    def shown_id(self) -> bytes:
        """The id by which clients know it."""
        return self.topic_id if self.topic_id != ZERO_ID else _made_id(self.name)

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    @property
    def is_of_coordinator(self) -> bool:
        return self.name in _COORDINATOR_TOPICS


class _Waiting:
    """Topics of a request that wait for the worker, and later what became of each: what it gives, or the error."""

    __slots__ = ("results", "wanted")

    def __init__(self, wanted: Sequence[Any]) -> None:
        self.wanted = wanted
        self.results: list[Any] | None = None


class Topics:
    """The topics of an open log dir, and the logs of their partitions, which it opens on demand.

    The metadata log of KRaft is not among them: it has its own rules, and holds the credentials of a cluster. No
    request reaches it, because every handler looks up its topics here.
    """

    def __init__(
        self, log_dir: LogDir, fs: FileSystem, durability: Durability, log_config: Mapping[str, object],
        partitions_max: int = 10_000, all_partitions_max: int = MAX_INT,
    ) -> None:
        """`log_config`: settings of every log that has not stored others, unless its topic has its own in the metadata
        of a cluster. `partitions_max`: of a topic. A directory with a higher number is ignored: its name alone would
        make a topic of that many partitions."""
        self.partitions_max = partitions_max
        self._all_partitions_max = all_partitions_max
        self._promised = 0          # partitions that are being created
        self._is_closing = False
        self._log_dir = log_dir
        self._log_config = log_config
        self._cluster = log_dir._cluster_settings
        self.limits = OperatorLimits(log_config)
        self._limited: set[str] = set()     # topics that were said to be opened with them
        self._fs = fs
        self._durability = durability
        self._logs: dict[tuple[str, int], Log] = {}
        self._epochs: dict[tuple[str, int], int] = {}
        self._topics: dict[str, ServedTopic] = {}
        self._by_id: dict[bytes, ServedTopic] = {}
        self.changes = 0            # how often a topic was made, widened or deleted
        # By names in which dots are underscores, since metrics cannot tell such names apart.
        self._alike: dict[str, set[str]] = {}
        self._creating: deque[_Waiting] = deque()
        self._deleting: deque[_Waiting] = deque()
        # The names of topics that are being created because a client asked for their metadata.
        self._expected: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        # Held while a log is opened or created: by the loop's thread, the worker, or a thread that loads a coordinator.
        self._opening = threading.RLock()
        # One thread, so that topics are created and deleted in the order of the requests.
        self._worker = ThreadPoolExecutor(1, "seglog-topics")
        # Syncs the files of new topics, and removes those of deleted ones. The worker alone uses the two fields below.
        self._finisher = ThreadPoolExecutor(1, "seglog-topics-finish")
        self._unsynced: tuple[Creation, ...] = ()
        self._is_syncing = False
        # Topics whose deletion was answered and whose directories still have their names; and what removes the files of
        # those that were renamed since the log dir was synced. The worker alone uses them.
        self._leaving: dict[str, ServedTopic] = {}
        self._renamed: list[Callable[[], None]] = []
        # New topics, until all of their logs were opened once.
        self._unopened: dict[str, ServedTopic] = {}
        self._created_s = 0.0       # when the last creation was done, by the loop's clock
        self.is_opening = True      # until `open_all` is done
        listed = log_dir.partitions()
        # Partitions to open in the background. Numbers in between may have no directory.
        self._found = [(name, number) for name, number in listed
                       if name != names.METADATA_TOPIC and number < partitions_max]
        for name, partition in listed:
            if name != names.METADATA_TOPIC and partition >= partitions_max:
                _LOG.warning(
                    "%s-%d is not served: a topic has at most seglog.max.topic.partitions = %d", name, partition,
                    partitions_max)
        for name, partition in self._found:
            topic = self._topics.setdefault(name, ServedTopic(name, ZERO_ID, 0))
            topic.partitions = max(topic.partitions, partition + 1)
            if topic.topic_id == ZERO_ID:
                topic.topic_id = self._id_of(name, partition)
        self._forget_shared_ids()
        for topic in self._topics.values():
            self._show(topic)

    def _forget_shared_ids(self) -> None:
        """A directory that was copied under another name has the id of the first: then it leads to neither, or a client
        would read or delete one for the other."""
        made = {_made_id(name) for name in self._topics}
        by_id: dict[bytes, list[ServedTopic]] = {}
        for topic in self._topics.values():
            if topic.topic_id != ZERO_ID:
                by_id.setdefault(topic.topic_id, []).append(topic)
        for topic_id, topics in by_id.items():
            if len(topics) > 1 or topic_id in made:
                for topic in topics:
                    topic.topic_id = ZERO_ID
                _LOG.warning(
                    "clients get other ids for %s: their partition.metadata has the id of another topic (a copied "
                    "directory?). Remove that file from the copies",
                    ", ".join(sorted(topic.name for topic in topics)))

    def close(self) -> None:
        """Wait until pending creations and deletions are done. The log dir stays open."""
        self._is_closing = True
        self._worker.shutdown(cancel_futures=True)
        self._finisher.shutdown()       # what it leaves, the next start does
        self._rename_left()             # whoever opens the log dir next may know nothing of the mark
        until_s = time.monotonic() + _SYNCED_AT_STOP_S
        if self._unsynced and self._are_synced(self._unsynced, lambda: time.monotonic() >= until_s):
            self._synced(self._unsynced)
        self._open_until(until_s)

    def _open_until(self, until_s: float) -> None:
        """Open logs of new topics, so that whoever looks at the log dir next finds a .log in each directory."""
        for topic in list(self._unopened.values()):
            for partition in range(topic.partitions):
                if time.monotonic() >= until_s:
                    return
                self._open_early(topic.name, partition)

    # --- lookups ---------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return sorted(self._topics)

    def topic(self, name: str) -> ServedTopic | None:
        return self._topics.get(name)

    def topic_of_id(self, topic_id: bytes) -> ServedTopic | None:
        return self._by_id.get(topic_id)

    def name_of_id(self, topic_id: bytes) -> str:
        """The name of the topic with this id; empty if there is none."""
        topic = self._by_id.get(topic_id)
        return "" if topic is None else topic.name

    def id_and_partitions(self, name: str) -> tuple[bytes, int] | None:
        """A topic's id and its number of partitions. None: there is no such topic."""
        topic = self._topics.get(name)
        return None if topic is None else (topic.shown_id, topic.partitions)

    def partition_count(self, topic: str) -> int:
        """The topic's number of partitions; 0: there is no such topic."""
        found = self._topics.get(topic)
        return 0 if found is None else found.partitions

    def has(self, topic: str, partition: int) -> bool:
        """Whether the partition exists. Below the highest number, a partition may have no directory: in internal topics
        it exists all the same, and its directory is created when it is needed."""
        return 0 <= partition < self.partition_count(topic) and (
            topic in _COORDINATOR_TOPICS or self.is_made(topic, partition))

    def is_made(self, topic: str, partition: int) -> bool:
        """Whether the partition has a directory."""
        return (topic, partition) in self._logs or os.path.isdir(self._path(topic, partition))

    def open_log(self, topic: str, partition: int) -> Log | None:
        """The log, if it is open."""
        log = self._logs.get((topic, partition))
        return None if log is None or log.closed else log

    def log(self, topic: str, partition: int) -> Log | None:
        """The open log, or None if there is no such partition. Raises what opening it raises. Opening may recover the
        log, which takes time, so the loop calls `opened` instead."""
        log = self.open_log(topic, partition)
        if log is not None:
            return log
        served = self._topics.get(topic)
        if served is None or not self.has(topic, partition):
            return None
        with self._opening:
            if self._topics.get(topic) is not served:
                return None     # it was deleted meanwhile
            # Includes a directory that a crash left without its settings.
            if served.is_of_coordinator and partition != served.partitions - 1 and not read_settings(
                self._directory(topic, partition)
            ):
                return self.open_log(topic, partition) or self._make(served, partition, self._kept_settings(topic))
            return self._open(topic, partition, create=False)

    async def opened_to_append(self, topic: str, partition: int) -> Log | None:
        """As `opened`. What the first append waits for on the disk is done then, while other clients are served."""
        if not 0 <= partition < self.partition_count(topic):
            return None
        return await self._in_worker(self._log_to_append, topic, partition)

    def _log_to_append(self, topic: str, partition: int) -> Log | None:
        log = self.log(topic, partition)
        if log is not None:
            with contextlib.suppress(SeglogError):      # the append raises it, too
                log._begin_appends()
        return log

    async def opened(self, topic: str, partition: int) -> Log | None:
        """As `log`, without blocking the loop."""
        log = self.open_log(topic, partition)
        if log is not None:
            return log
        if not 0 <= partition < self.partition_count(topic):
            return None     # as `log` says, without another thread
        return await self._in_worker(self.log, topic, partition)

    def leader_epoch(self, topic: str, partition: int) -> int:
        """The leader epoch of new appends; for a log that is not open yet, the latest in its file of epochs."""
        log = self.open_log(topic, partition)
        if log is not None:
            return log.leader_epoch
        epoch = self._epochs.get((topic, partition))
        if epoch is None:
            epoch = 0
            with contextlib.suppress(FileNotFoundError, SeglogError):   # opening the log reports the error
                epoch = LeaderEpochs.read(self._directory(topic, partition) / names.LEADER_EPOCH_CHECKPOINT).latest or 0
            self._epochs[topic, partition] = epoch
        return epoch

    def logs(self) -> list[tuple[str, int, Log]]:
        """The open logs: (topic, partition, log)."""
        return [(*where, log) for where, log in sorted(self._logs.copy().items()) if not log.closed]

    def open_logs(self) -> list[Log]:
        """As `logs`, in any order."""
        return [log for log in self._logs.values() if not log.closed]

    async def open_all(self) -> None:
        """Open every log, one after another, in the background: retention and compaction act on open logs only."""
        for name, partition in self._found:
            if (name, partition) not in self._logs:
                await self._in_worker(self._open_early, name, partition)
        self._found = []
        self.is_opening = False

    def _open_early(self, name: str, partition: int) -> None:
        """Before a request needs it. Requests get the error, too, but their clients may not show it."""
        try:
            if self.is_made(name, partition):
                self.log(name, partition)
        except SeglogError as error:
            _LOG.warning("%s-%d is not served: %s", name, partition, error)

    def _open_and_begin(self, wanted: "Sequence[tuple[ServedTopic, int]]") -> None:
        """In the worker's thread: open logs of new topics that nobody has opened, and begin their appends. What fails
        is tried again by the request that needs it."""
        opened: dict[TopicPartition, Log] = {}
        with self._opening:
            try:
                for topic, partition in wanted:
                    where = topic.name, partition
                    if self._topics.get(topic.name) is topic and where not in self._logs and self.is_made(*where):
                        opened[where] = self._opened_in(*where, create=False)
                self._log_dir._begin_appends(list(opened.values()))
            except SeglogError as error:
                _LOG.warning("new topics are not ready to be written to: %s", error)
            self._logs.update(opened)

    # --- durable ---------------------------------------------------------------------------------

    async def durable(self, log: Log, written: PendingAppend[Any]) -> None:
        """Return when the append is as durable as `fsync` asks: with "batch", when it is on the disk. Raises the error
        that `when_durable` reports."""
        if self._durability.fsync == "batch":
            await self._durability.reached(log, written)

    # --- changes ---------------------------------------------------------------------------------

    def fault(self, name: str) -> str | None:
        """Why a topic with this name cannot be created, or None if it can. (Topic.validate, Topic.hasCollision)"""
        why = names.topic_fault(name)
        if why is not None:
            return f"Topic name is invalid: {repr(name)[:80]}: {why}"
        # A copy: the worker creates and deletes topics meanwhile.
        twin = next((other for other in tuple(self._alike.get(_flat(name), ())) if other != name), None)
        return twin and f"Topic '{name}' collides with existing topics: {twin}"

    @property
    def room(self) -> int:
        """How many partitions clients may still make."""
        return self._all_partitions_max - self._promised - sum(topic.partitions for topic in self._topics.values())

    def _without_room(self) -> TooManyPartitionsError:
        return TooManyPartitionsError(
            f"all topics together may have no more partitions: seglog.max.partitions = {self._all_partitions_max}",
            hint="delete topics, or let the operator of the server raise it: seglog serve --config "
            "seglog.max.partitions=...")

    @staticmethod
    def check_name(name: str) -> None:
        """Raises ProhibitedTopicError. (ControllerApis.createTopics)"""
        if name == names.METADATA_TOPIC:
            raise ProhibitedTopicError(f"Creation of internal topic {name} is prohibited.")

    def check_partitions(self, count: int) -> None:
        """Raises InvalidArgumentError."""
        if count > self.partitions_max:
            raise InvalidArgumentError(
                f"{count} partitions are more than a topic may have: "
                f"seglog.max.topic.partitions = {self.partitions_max}",
                hint="the operator of the server can raise it: seglog serve --config seglog.max.topic.partitions=...")

    async def create(self, name: str, partitions: int, settings: Mapping[str, object]) -> ServedTopic:
        """Create a topic with these partitions, durably. Raises TopicExistsError, InvalidArgumentError (for name or
        number), InvalidConfigError, StorageError."""
        made, = await self.create_all([NewTopic(name, partitions, settings)])
        if isinstance(made, Exception):
            raise made
        return made

    async def create_all(
        self, wanted: Sequence[NewTopic], *, are_written_to: bool = False
    ) -> "list[ServedTopic | SeglogError]":
        """Create topics, durably; for each, the topic or the error that `create` raises. `are_written_to`: somebody is
        about to, so that what the first append to each waits for is done in the background, for many at once."""
        faults, room, promised = [], self.room, 0
        for topic in wanted:
            fault = self._fault_of(topic)
            if fault is None and promised + topic.partitions > room:
                fault = self._without_room()
            faults.append(fault)
            if fault is None:
                promised += topic.partitions
        waiting = _Waiting([topic for topic, fault in zip(wanted, faults, strict=True) if fault is None])
        if waiting.wanted:
            self._creating.append(waiting)
            self._promised += promised
            try:
                await self._in_worker(self._create_waiting, waiting)
            finally:
                self._promised -= promised
                self._created()
        made = [one for one in waiting.results or () if isinstance(one, ServedTopic)]
        self._unopened |= {topic.name: topic for topic in made}
        self._begin(self._open_to_append(made) if are_written_to else self._open_new(made))
        results = iter(waiting.results or ())
        return [next(results) if fault is None else fault for fault in faults]

    async def _open_new(self, topics: Sequence[ServedTopic]) -> None:
        """Open the logs of new topics in the background, one after another, as at the start."""
        await self._quiet()
        with contextlib.suppress(RuntimeError):     # the worker was shut down
            for topic in topics:
                for partition in range(topic.partitions):
                    if self._topics.get(topic.name) is topic and self.open_log(topic.name, partition) is None:
                        await self._in_worker(self._open_early, topic.name, partition)
                self._were_opened(topic)

    async def _open_to_append(self, topics: Sequence[ServedTopic]) -> None:
        """Open the logs of new topics in the background, some at a time, and begin their appends."""
        wanted = [(topic, partition) for topic in topics for partition in range(topic.partitions)]
        with contextlib.suppress(RuntimeError):     # the worker was shut down
            for at in range(0, len(wanted), _BEGUN_AT_ONCE):
                await self._in_worker(self._open_and_begin, wanted[at : at + _BEGUN_AT_ONCE])
            for topic in topics:
                self._were_opened(topic)

    def _were_opened(self, topic: ServedTopic) -> None:
        if self._unopened.get(topic.name) is topic:
            del self._unopened[topic.name]

    def _created(self) -> None:
        """Call when a creation is done, or has failed."""
        self._created_s = asyncio.get_running_loop().time()
        self._begin(self._sync_new())

    async def _sync_new(self) -> None:
        """Sync the files of new topics in the background."""
        await self._quiet()
        with contextlib.suppress(RuntimeError):     # the worker was shut down
            await self._in_worker(self._sync_later)

    async def _quiet(self) -> None:
        """Wait until no topics are created."""
        clock = asyncio.get_running_loop().time
        patient_to = clock() + _PATIENCE_S
        while (now := clock()) < patient_to:
            # A creation on a busy machine takes longer than that itself.
            quiet_from = now + _QUIET_S if self._promised else self._created_s + _QUIET_S
            if quiet_from <= now:
                return
            await asyncio.sleep(min(quiet_from, patient_to) - now)

    def _begin(self, work: "Coroutine[Any, Any, None]") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _fault_of(self, topic: NewTopic) -> SeglogError | None:
        name, partitions = topic.name, topic.partitions
        if not isinstance(name, str):
            return InvalidArgumentError(f"a topic name must be a string, not {type(name).__name__}")
        if not isinstance(partitions, int) or isinstance(partitions, bool) or partitions < 1:
            return InvalidArgumentError(f"the number of partitions must be a positive integer, not {partitions!r}")
        try:
            self.check_name(name)
            self.check_partitions(partitions)
        except SeglogError as error:
            return error
        return None

    def expect(self, wanted: Sequence[NewTopic]) -> None:
        """Create topics that are not being created yet, and return at once. What fails is logged."""
        new = [topic for topic in wanted if topic.name not in self._expected]
        if new:
            self._expected.update(topic.name for topic in new)
            self._begin(self._create_expected(new))

    async def _create_expected(self, wanted: Sequence[NewTopic]) -> None:
        try:
            results = await self.create_all(wanted, are_written_to=True)
            for topic, made in zip(wanted, results, strict=True):
                if isinstance(made, Exception) and not isinstance(made, TopicExistsError):
                    _LOG.warning("topic %.200a was not created: %s", topic.name, made)
        finally:
            self._expected.difference_update(topic.name for topic in wanted)

    async def create_internal(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create an internal topic, unless it exists."""
        if self.partition_count(topic) == 0:
            with contextlib.suppress(TopicExistsError):     # another request created it first
                await self.create(topic, partitions, config)

    async def widen(self, name: str, partitions: int) -> bool:
        """Increase a topic's number of partitions; False: there is no such topic. Raises TooManyPartitionsError."""
        more = partitions - self.partition_count(name)
        if more > self.room:
            raise self._without_room()
        self._promised += more
        try:
            return await self._in_worker(self._widen, name, partitions)
        finally:
            self._promised -= more
            self._created()

    async def delete_all(self, wanted: Sequence[str]) -> "list[int | SeglogError]":
        """Delete topics, durably. For each, how many partitions it had, 0 if there is no such topic, or the error."""
        waiting = _Waiting(wanted)
        self._deleting.append(waiting)
        await self._in_worker(self._delete_waiting, waiting)
        return waiting.results or []

    async def finish_changes(self) -> list[tuple[str, int]]:
        """Delete the rest of topics that a crash left partly deleted, and create the rest of one that it left partly
        created. Returns the deleted partitions. Call it before clients connect."""
        await self._in_worker(self._take_ids)
        deleted = await self._in_worker(self._finish_deletions)
        await self._in_worker(self._finish_creation)
        return deleted

    async def configure(self, name: str, changes: Mapping[str, object]) -> None:
        """Change settings of a topic in all of its partitions. Raises InvalidConfigError, StorageError."""
        await self._in_worker(self._configure, name, checked_changes(changes))

    async def run(self, function: Callable[..., _Done], *arguments: Any) -> _Done:
        """Run work on files in the worker thread."""
        return await self._in_worker(function, *arguments)

    async def _in_worker(self, function: Callable[..., _Done], *arguments: Any) -> _Done:
        return await asyncio.get_running_loop().run_in_executor(self._worker, function, *arguments)

    # --- in the worker's thread: creating --------------------------------------------------------

    def _create_waiting(self, waiting: _Waiting) -> None:
        if waiting.results is None:     # not done with an earlier request
            self._do_together(self._creating, self._create_together)

    def _do_together(self, queue: "deque[_Waiting]", do: Callable[[Sequence[Any]], list[Any]]) -> None:
        """Do what all waiting requests want, at once."""
        taken = [queue.popleft() for _ in range(len(queue))]
        wanted = [one for waiting in taken for one in waiting.wanted]
        results: list[Any] = [StorageError("another request that was done together with this one failed")] * len(wanted)
        try:
            results = do(wanted)
        finally:
            each = iter(results)
            for waiting in taken:
                waiting.results = [next(each) for _ in waiting.wanted]

    def _create_together(self, wanted: Sequence[NewTopic]) -> "list[ServedTopic | SeglogError]":
        if any(new.name in self._leaving for new in wanted):
            self._rename_left()
        results: list[ServedTopic | SeglogError] = []
        creations: list[Creation] = []
        flat: dict[str, str] = {}
        kept: dict[tuple[object, ...], Mapping[str, str]] = {}      # few requests have many different settings
        for new in wanted:
            try:
                twin = flat.get(_flat(new.name))
                if new.name in self._topics or twin == new.name:
                    raise TopicExistsError(
                        f"Topic '{new.name}' already exists.", hint="use another name, or let a client delete it")
                why = self.fault(new.name) or (twin and f"Topic '{new.name}' collides with existing topics: {twin}")
                if why:
                    raise InvalidTopicError(why)
                given = sorted((key, str(value)) for key, value in new.settings.items())
                same = (new.name in _COORDINATOR_TOPICS, *given)
                if same not in kept:
                    kept[same] = self._settings_of_new(new.name, new.settings).kept
            except SeglogError as error:
                results.append(error)
                continue
            topic = ServedTopic(new.name, uuid.uuid4().bytes, new.partitions)
            first = new.partitions - 1 if topic.is_of_coordinator else 0
            creations.append(Creation(new.name, topic.topic_id, first, new.partitions, kept[same]))
            flat[_flat(new.name)] = new.name
            results.append(topic)
        if creations:
            try:
                self._make_all(creations)
            except SeglogError as error:
                return [error if isinstance(one, ServedTopic) else one for one in results]
        for one in results:
            if isinstance(one, ServedTopic):
                self._show(one)
        return results

    def _settings_of_new(self, name: str, settings: Mapping[str, object]) -> LogSettings:
        config = self._config_for(name, {key: "" for key, value in settings.items() if value is not None})
        if self._cluster.is_there and POLICY not in map(key_name, settings):
            # The metadata has none for it, and without one the next start would not delete from it.
            settings = {**settings, POLICY: config.get(POLICY, LogConfig().cleanup_policy)}
        return settings_of_new_log(self._directory(name, 0), config, settings, self._durability.fsync)

    def _make_all(self, creations: Sequence[Creation]) -> None:
        """Make all of these partitions, or none of them. After a crash on the way the next start makes the rest."""
        wanted = {(one.topic, partition): one for one in creations for partition in range(one.first, one.end)}
        made = [where for where in wanted if not os.path.exists(self._path(*where))]
        try:
            topic_creation.mark(self._fs, self._log_dir.path, [*self._unsynced, *creations])
            for some in _pieces(list(wanted.items())):
                if self._is_closing:
                    raise LogClosedError(f"the server was stopped before topic {creations[0].topic} was created")
                self._log_dir._create_partitions({where: self._files(of) for where, of in some})
        except BaseException:
            self._unmake(made)
            raise
        self._unsynced = (*self._unsynced, *creations)

    @staticmethod
    def _files(creation: Creation) -> dict[str, bytes]:
        """What each partition directory begins with."""
        files = {}
        if creation.topic_id != ZERO_ID:
            files[names.PARTITION_METADATA] = PartitionMetadata(uuid.UUID(bytes=creation.topic_id)).to_bytes()
        if creation.settings:
            files[SETTINGS_FILE] = settings_to_bytes(creation.settings)
        return files

    def _unmake(self, made: Sequence[TopicPartition]) -> None:
        """Delete partitions of a creation that failed. If that fails too, its mark stays, and the next start creates
        the rest instead."""
        try:
            left: list[Callable[[], None]] = []
            self._log_dir._delete_partitions([where for where in made if self._directory(*where).is_dir()], left)
            for remove in left:
                remove()
            if self._unsynced:
                topic_creation.mark(self._fs, self._log_dir.path, self._unsynced)
            else:
                topic_creation.unmark(self._fs, self._log_dir.path)
        except SeglogError as error:
            _LOG.warning("topics were not created, and some of their partitions are left: %s", error)

    def _show(self, topic: ServedTopic) -> None:
        self._topics[topic.name] = topic
        self._alike.setdefault(_flat(topic.name), set()).add(topic.name)
        self._by_id[topic.shown_id] = topic
        self.changes += 1

    def _make(self, topic: ServedTopic, partition: int, settings: Mapping[str, str]) -> Log:
        """Make a partition of an internal topic that is used for the first time, durably."""
        where = topic.name, partition
        files = self._files(Creation(topic.name, topic.topic_id, partition, partition + 1, settings))
        self._log_dir._create_partitions({where: files})
        for _ in self._log_dir._sync_partitions({where: files}):
            pass
        return self._open(topic.name, partition, create=True)

    def _kept_settings(self, name: str) -> dict[str, str]:
        """The stored settings of the last partition, which every topic has."""
        return read_settings(self._directory(name, self.partition_count(name) - 1))

    def _widen(self, name: str, partitions: int) -> bool:
        topic = self._topics.get(name)
        if topic is None:
            return False    # it was deleted meanwhile
        self._make_all([
            Creation(topic.name, topic.topic_id, topic.partitions, partitions, self._kept_settings(name))])
        topic.partitions = partitions
        self.changes += 1
        return True

    def _sync_later(self) -> None:
        if self._unsynced and not self._is_syncing and not self._is_closing:
            self._is_syncing = True
            self._finisher.submit(self._sync_files, self._unsynced)

    def _sync_files(self, creations: tuple[Creation, ...]) -> None:
        """In the finisher's thread: sync the files of new topics."""
        is_done = False
        try:
            is_done = self._are_synced(creations, lambda: self._is_closing)
        finally:
            with contextlib.suppress(RuntimeError):     # the worker was shut down
                self._worker.submit(self._synced, creations if is_done else ())

    def _are_synced(self, creations: tuple[Creation, ...], must_end: Callable[[], bool]) -> bool:
        """Sync the files of new topics. False: an error, or `must_end`, ended it. The mark stays for the next start."""
        try:
            for one in creations:
                files = {(one.topic, partition): self._files(one) for partition in range(one.first, one.end)}
                for _ in self._log_dir._sync_partitions(files):
                    if must_end():
                        return False
        except SeglogError as error:
            _LOG.warning("files of new topics are not on the disk yet: %s", error)
            return False
        return True

    def _synced(self, creations: tuple[Creation, ...]) -> None:
        self._is_syncing = False
        self._unsynced = self._unsynced[len(creations):]
        try:
            if not self._unsynced:
                topic_creation.unmark(self._fs, self._log_dir.path)
            elif creations:     # after an error, the next creation tries again
                self._sync_later()
        except SeglogError as error:
            _LOG.warning("%s", error)

    def _is_free(self, topic_id: bytes, topic: ServedTopic) -> bool:
        """Whether no other topic has this id."""
        return self._by_id.get(topic_id, topic) is topic

    def _take_ids(self) -> None:
        """Give topics whose `partition.metadata` a power cut left without contents the ids that they were created with:
        what is to be deleted is known by them."""
        with contextlib.suppress(SeglogError):      # `_finish_creation` reports the error
            for one in topic_creation.read_mark(self._log_dir.path, self.partitions_max):
                topic = self._topics.get(one.topic)
                if topic is not None and topic.topic_id == ZERO_ID and self._is_free(one.topic_id, topic):
                    topic.topic_id = one.topic_id
                    self._show(topic)

    def _finish_creation(self) -> None:
        try:
            creations = topic_creation.read_mark(self._log_dir.path, self.partitions_max)
            if not creations:
                return
            self._unsynced = tuple(creations)
            for one in creations:
                topic = self._topics.get(one.topic)
                # A directory has no id before its `partition.metadata` is written. Without any directory nothing was
                # acknowledged, or the topic was deleted since.
                if (topic is not None and topic.topic_id in (one.topic_id, ZERO_ID)
                        and self._is_free(one.topic_id, topic)):
                    topic.topic_id = one.topic_id
                    for some in _pieces(range(one.first, one.end)):
                        if self._is_closing:
                            return      # the next start goes on
                        for partition in some:
                            self._remove_torn_files(one, partition)
                        files = {(one.topic, partition): self._files(one) for partition in some}
                        self._log_dir._create_partitions(files)
                        for _ in self._log_dir._sync_partitions(files):
                            pass
                    topic.partitions = max(topic.partitions, one.end)
                    self._show(topic)
            self._unsynced = ()
            topic_creation.unmark(self._fs, self._log_dir.path)
        except SeglogError as error:
            _LOG.warning("a topic may have fewer partitions than a client asked for: %s", error)

    def _remove_torn_files(self, creation: Creation, partition: int) -> None:
        """Remove files that a power cut left without their contents: they were not synced."""
        directory = self._directory(creation.topic, partition)
        try:
            PartitionMetadata.read(directory / names.PARTITION_METADATA)
        except FileNotFoundError:
            pass
        except CorruptCheckpointError:
            self._fs.unlink(directory / names.PARTITION_METADATA)
        try:
            read_settings(directory)
        except CorruptSettingsError:
            self._fs.unlink(directory / SETTINGS_FILE)

    # --- in the worker's thread: deleting --------------------------------------------------------

    def _delete_waiting(self, waiting: _Waiting) -> None:
        if waiting.results is None:
            self._do_together(self._deleting, self._delete_together)

    def _delete_together(self, wanted: Sequence[str], *, now: bool = False) -> "list[int | SeglogError]":
        """`now`: rename all directories before this returns."""
        with self._opening:     # logs being created or opened are registered by then, and no more are added
            taken = [self._hide(name) for name in wanted]
        topics = [topic for topic in taken if topic is not None]
        failed: dict[str, SeglogError] = {}
        for topic in topics:
            try:
                self._log_dir._check_deletable(self._made_of(topic))
            except SeglogError as error:
                failed[topic.name] = error
        leaving = {topic.name: topic for topic in topics if topic.name not in failed}
        try:
            if leaving:
                # With those whose directories still have their names.
                topic_deletion.mark(self._fs, self._log_dir.path, [
                    Deletion(topic.name, topic.topic_id) for topic in (*self._leaving.values(), *leaving.values())])
        except SeglogError as error:
            failed.update(dict.fromkeys(leaving, error))
        else:
            is_short = sum(topic.partitions for topic in leaving.values()) <= _RENAMED_AT_ONCE
            for topic in leaving.values():
                self._taken(topic)
            if leaving and (now or (is_short and not self._leaving)):
                failed |= self._rename_all(leaving.values())
                self._forget_mark()
            elif leaving:
                self._leaving |= leaving
                self._rename_later()
        for topic in topics:
            if topic.name in failed:
                self._show(topic)       # so that a client can try again
        return [0 if topic is None else failed.get(topic.name, topic.partitions) for topic in taken]

    def _rename_all(self, topics: Collection[ServedTopic]) -> dict[str, SeglogError]:
        """Rename the directories of deleted topics, durably. The errors of those that stay."""
        failed: dict[str, SeglogError] = {}
        try:
            # Gathered, so that there is one sync; where that fails, each for itself.
            self._log_dir._delete_partitions([where for topic in topics for where in self._taken(topic)], self._renamed)
        except SeglogError:
            for topic in topics:
                try:
                    self._log_dir._delete_partitions(self._taken(topic), self._renamed)
                except SeglogError as error:
                    failed[topic.name] = error
        return failed

    def _rename_later(self) -> None:
        with contextlib.suppress(RuntimeError):     # it was shut down: `close` renames them
            self._worker.submit(self._rename_some)

    def _rename_some(self) -> None:
        if self._leaving:
            self._rename(_RENAMED_AT_ONCE)
            self._rename_later()

    def _rename_left(self) -> None:
        """Rename the directories of all deleted topics now."""
        while self._leaving:
            self._rename(_AT_ONCE)

    def _rename(self, count: int) -> None:
        """Rename the directories of about so many partitions of deleted topics. The mark goes with the last."""
        topics: list[ServedTopic] = []
        for topic in self._leaving.values():
            topics.append(topic)
            count -= topic.partitions
            if count <= 0:
                break
        failed = self._rename_all(topics)
        for topic in topics:
            del self._leaving[topic.name]
            if topic.name in failed:        # as at the start
                _LOG.warning("topic %s stays, although it was deleted: %s", topic.name, failed[topic.name])
                self._show(topic)
        if not self._leaving:
            self._forget_mark()

    def _forget_mark(self) -> None:
        """Remove the mark, since what it lists is done; and the files, since the new names are durable."""
        try:
            topic_deletion.unmark(self._fs, self._log_dir.path)
        except SeglogError as error:
            _LOG.warning("%s", error)       # the next start finds nothing to delete, unless a topic stayed
        renamed, self._renamed = self._renamed, []
        for some in _pieces(renamed):
            with contextlib.suppress(RuntimeError):     # it was shut down: the next start removes them
                self._finisher.submit(self._remove, some)

    def _made_of(self, topic: ServedTopic) -> list[TopicPartition]:
        """The partitions of a topic that have a directory."""
        return [(topic.name, partition) for partition in range(topic.partitions)
                if os.path.isdir(self._path(topic.name, partition))]

    def _taken(self, topic: ServedTopic) -> list[TopicPartition]:
        """The same, without a log in our table any more. The last one goes last: until then, the directories show how
        many partitions the topic has."""
        found = self._made_of(topic)
        for where in found:
            self._logs.pop(where, None)
            self._epochs.pop(where, None)
        return found

    def _remove(self, removals: Iterable[Callable[[], None]]) -> None:
        """In the finisher's thread: remove directories of deleted partitions."""
        for remove in removals:
            if self._is_closing:
                return      # the next start removes them
            try:
                remove()
            except SeglogError as error:
                _LOG.warning("a deleted partition is left: %s", error)

    def _hide(self, name: str) -> ServedTopic | None:
        topic = self._topics.pop(name, None)
        if topic is not None:
            self.changes += 1
            for topic_id in (topic.topic_id, _made_id(name)):
                self._by_id.pop(topic_id, None)
            alike = self._alike[_flat(name)]
            alike.discard(name)
            if not alike:
                del self._alike[_flat(name)]
        return topic

    def _finish_deletions(self) -> list[tuple[str, int]]:
        deleted: list[tuple[str, int]] = []
        try:
            marked = topic_deletion.read_mark(self._log_dir.path)
        except SeglogError as error:
            _LOG.warning("topics whose deletion had begun may be there in part: %s", error)
            return []
        # The mark of another one means nothing: a broker made the topic again, or directories were renamed.
        begun = [topic for name, topic_id in dict.fromkeys(marked)
                 if (topic := self._topics.get(name)) is not None and topic.topic_id == topic_id]
        for topic, result in zip(begun, self._delete_together([topic.name for topic in begun], now=True), strict=True):
            if isinstance(result, SeglogError):
                _LOG.warning("topic %s stays, although its deletion had begun: %s", topic.name, result)
            else:
                deleted += [(topic.name, number) for number in range(result)]
        with contextlib.suppress(SeglogError):      # whatever stays is not deleted at the next start
            topic_deletion.unmark(self._fs, self._log_dir.path)
        return deleted

    def _configure(self, name: str, changes: Mapping[str, object]) -> None:
        for partition in range(self.partition_count(name)):
            log = self.log(name, partition) if self.is_made(name, partition) else None
            if log is not None:
                log.configure(changes)

    # --- logs ------------------------------------------------------------------------------------

    def _open(self, topic: str, partition: int, *, create: bool) -> Log:
        """Open a log. Its stored settings take precedence over the server's settings for all logs."""
        with self._opening:
            log = self._logs.get((topic, partition))
            if log is not None and not log.closed:
                return log
            log = self._logs[topic, partition] = self._opened_in(topic, partition, create=create)
            return log

    def _opened_in(self, topic: str, partition: int, *, create: bool) -> Log:
        config = self._config_for(topic, read_settings(self._directory(topic, partition)))
        return self._log_dir.log(topic, partition, create=create, config=config)

    def _config_for(self, topic: str, kept: Mapping[str, str]) -> dict[str, object]:
        """The settings that a log of this topic is opened with, if it has stored those in `kept`."""
        served = self._topics.get(topic)
        told = self._cluster.of(topic, None if served is None else served.topic_id, kept, self._log_config)
        config = {name: value for name, value in {**self._log_config, **told}.items() if name not in kept}
        own = {**told, **kept}
        if beyond := self.limits.instead(own):
            config |= beyond
            if topic not in self._limited:
                self._limited.add(topic)
                for name, limit in beyond.items():
                    _LOG.warning(
                        "%s: %s = %s protects the server; its own value counts: %s", topic, name, own[name], limit)
        if topic in _COORDINATOR_TOPICS:
            config.pop("message.format.version", None)      # transactions need v2
            if "cleanup.policy" not in kept:                # a broker stores it elsewhere
                config["cleanup.policy"] = "compact"
        return config

    async def settings(self, name: str) -> Mapping[str, Setting] | None:
        """The settings of a topic, or None if there is no such topic. Opens no log."""
        log = self.open_log(name, 0)
        if log is not None:
            return log.settings
        return await self._in_worker(self._settings, name) if self.has(name, 0) else None

    def _settings(self, name: str) -> Mapping[str, Setting] | None:
        if not self.is_made(name, 0):
            log = self.log(name, 0)     # of an internal topic
            return None if log is None else log.settings
        directory = self._directory(name, 0)
        config = self._config_for(name, read_settings(directory))
        return LogSettings(directory, config, checked_config(config, self._durability.fsync, 0))

    # --- files -----------------------------------------------------------------------------------

    def _directory(self, topic: str, partition: int) -> Path:
        return self._log_dir.path / names.partition_dir(topic, partition)

    def _path(self, topic: str, partition: int) -> str:
        """The same as text: for thousands of partitions, objects of pathlib take longer than what is done with them."""
        return os.path.join(self._log_dir.path, names.partition_dir(topic, partition))

    def _id_of(self, topic: str, partition: int) -> bytes:
        return id_of_topic(self._directory(topic, partition))


def _made_id(name: str) -> bytes:
    """The id of a topic that has none on the disk: the same after each start, and none that a broker could choose."""
    return uuid.uuid5(uuid.NAMESPACE_URL, f"seglog:topic:{name}").bytes


def _flat(name: str) -> str:
    return name.replace(".", "_")


def _pieces(whole: Sequence[_Done]) -> "list[Sequence[_Done]]":
    return [whole[at : at + _AT_ONCE] for at in range(0, len(whole), _AT_ONCE)]
