"""The topics of a log dir, their ids and their logs; creates, widens and deletes topics.

A topic consists of the partition directories with its name. As with a broker, each of them has the topic's id in its
`partition.metadata`; directories without that file (from `seglog.open`) have no id, and clients use the name instead.
An internal topic starts with its last partition only; each other one is created when it is first used, since most of
the fifty never are. Everything except `log` runs in the loop's thread; one worker thread does the work on files, in
the order of the requests.
"""
import asyncio
import contextlib
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from seglog.coordinators.topic_errors import ProhibitedTopicError, TopicExistsError
from seglog.endpoint import topic_creation, topic_deletion
from seglog.endpoint.operator_limits import OperatorLimits
from seglog.endpoint.topic_creation import Creation
from seglog.errors import CorruptCheckpointError, InvalidArgumentError, LogClosedError, SeglogError
from seglog.format import names
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.log.append import PendingAppend
from seglog.log.log import Log
from seglog.log.open_dir import LogDir
from seglog.logger import Logger
from seglog.loop.durability import Durability
from seglog.reading.settings import as_text, checked_changes
from seglog.state.kept_settings import read_settings
from seglog.state.leader_epochs import LeaderEpochs
from seglog.state.partition_metadata import PartitionMetadata

# Kafka's internal topics (Topic.INTERNAL_TOPICS): clients may read them, and only a broker writes to them.
INTERNAL_TOPICS = frozenset(names.BROKER_TOPICS)
# Those of the server's own coordinators.
_COORDINATOR_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
ZERO_ID = bytes(16)

_LOG = Logger(__name__)

_Done = TypeVar("_Done")


class ServedTopic:
    """A topic as clients see it. `partitions`: the highest number of a partition directory plus one."""

    __slots__ = ("name", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: bytes, partitions: int) -> None:
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    @property
    def is_of_coordinator(self) -> bool:
        return self.name in _COORDINATOR_TOPICS


class Topics:
    """The topics of an open log dir, and the logs of their partitions, which it opens on demand.

    The metadata log of KRaft is not among them: it has its own rules, and holds the credentials of a cluster. No
    request reaches it, because every handler looks up its topics here.
    """

    def __init__(
        self, log_dir: LogDir, fs: FileSystem, durability: Durability, log_config: Mapping[str, object],
        partitions_max: int = 10_000,
    ) -> None:
        """`log_config`: settings of every log that has not stored others. `partitions_max`: of a topic. A directory
        with a higher number is ignored: its name alone would make a topic of that many partitions."""
        self.partitions_max = partitions_max
        self._is_closing = False
        self._log_dir = log_dir
        self._log_config = log_config
        self.limits = OperatorLimits(log_config)
        self._fs = fs
        self._durability = durability
        self._logs: dict[tuple[str, int], Log] = {}
        self._epochs: dict[tuple[str, int], int] = {}
        self._topics: dict[str, ServedTopic] = {}
        self._by_id: dict[bytes, ServedTopic] = {}
        # Held while a log is opened or created: by the loop's thread, the worker, or a thread that loads a coordinator.
        self._opening = threading.RLock()
        # One thread, so that topics are created and deleted in the order of the requests.
        self._worker = ThreadPoolExecutor(1, "seglog-topics")
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
        self._by_id = {topic.topic_id: topic for topic in self._topics.values() if topic.topic_id != ZERO_ID}

    def close(self) -> None:
        """Wait until pending creations and deletions are done. The log dir stays open."""
        self._is_closing = True
        self._worker.shutdown(cancel_futures=True)

    # --- lookups ---------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return sorted(self._topics)

    def topic(self, name: str) -> ServedTopic | None:
        return self._topics.get(name)

    def topic_of_id(self, topic_id: bytes) -> ServedTopic | None:
        return self._by_id.get(topic_id)

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
        return (topic, partition) in self._logs or self._directory(topic, partition).is_dir()

    def open_log(self, topic: str, partition: int) -> Log | None:
        """The log, if it is open."""
        log = self._logs.get((topic, partition))
        return None if log is None or log.closed else log

    def log(self, topic: str, partition: int) -> Log | None:
        """The open log; None: there is no such partition. Raises what opening it raises. Opening may recover the log,
        which takes time, so the loop calls `opened` instead."""
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
        return [(*where, log) for where, log in sorted(self._logs.items()) if not log.closed]

    async def open_all(self) -> None:
        """Open every log, one after another, in the background: retention and compaction act on open logs only."""
        for name, partition in self._found:
            if (name, partition) not in self._logs:
                with contextlib.suppress(SeglogError):      # requests that need the log report the error
                    await self._in_worker(self._open_quietly, name, partition)
        self._found = []
        self.is_opening = False

    def _open_quietly(self, name: str, partition: int) -> None:
        if self.is_made(name, partition):
            self.log(name, partition)

    # --- durable ---------------------------------------------------------------------------------

    async def durable(self, log: Log, written: PendingAppend[Any]) -> None:
        """Return when the append is as durable as `fsync` asks: with "batch", when it is on the disk. Raises the error
        that `when_durable` reports."""
        if self._durability.fsync == "batch":
            await self._durability.reached(log, written)

    # --- changes ---------------------------------------------------------------------------------

    def fault(self, name: str) -> str | None:
        """Why a topic with this name cannot be created; None: it can. (Topic.validate, Topic.hasCollision)"""
        why = names.topic_fault(name)
        if why is not None:
            return why
        flat = name.replace(".", "_")
        others = list(self._topics)     # a copy: the worker creates and deletes topics meanwhile
        twin = next((other for other in others if other != name and other.replace(".", "_") == flat), None)
        return twin and f"Topic '{name}' collides with existing topics: {twin}"

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
        if not isinstance(name, str):
            raise InvalidArgumentError(f"a topic name must be a string, not {type(name).__name__}")
        if not isinstance(partitions, int) or isinstance(partitions, bool) or partitions < 1:
            raise InvalidArgumentError(f"the number of partitions must be a positive integer, not {partitions!r}")
        self.check_name(name)
        self.check_partitions(partitions)
        checked = checked_changes(settings)
        return await self._in_worker(self._create, name, partitions, checked)

    async def create_internal(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create an internal topic, unless it exists."""
        if self.partition_count(topic) == 0:
            with contextlib.suppress(TopicExistsError):     # another request created it first
                await self.create(topic, partitions, config)

    async def widen(self, name: str, partitions: int) -> bool:
        """Increase a topic's number of partitions; False: there is no such topic."""
        return await self._in_worker(self._widen, name, partitions)

    async def delete(self, name: str) -> int:
        """Delete a topic, and return how many partitions it had; 0: there is no such topic. Raises StorageError."""
        return await self._in_worker(self._delete, name)

    async def finish_changes(self) -> list[tuple[str, int]]:
        """Delete the rest of topics that a crash left partly deleted, and create the rest of one that it left partly
        created. Returns the deleted partitions. Call it before clients connect."""
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

    # --- in the worker's thread ------------------------------------------------------------------

    def _create(self, name: str, partitions: int, settings: Mapping[str, object]) -> ServedTopic:
        if name in self._topics:
            raise TopicExistsError(f"Topic '{name}' already exists.")
        why = self.fault(name)
        if why is not None:
            raise InvalidArgumentError(why)
        topic = ServedTopic(name, uuid.uuid4().bytes, partitions)
        self._make_all(topic, partitions - 1 if topic.is_of_coordinator else 0, partitions, settings)
        self._show(topic)
        return topic

    def _make_all(self, topic: ServedTopic, first: int, end: int, settings: Mapping[str, object]) -> None:
        """Create these partitions, or none of them. After a crash on the way the next start creates the rest."""
        made = []
        try:
            topic_creation.mark(self._fs, self._log_dir.path, Creation(
                topic.name, topic.topic_id, first, end,
                {key: as_text(value) for key, value in settings.items() if value is not None},
            ))
            for partition in range(first, end):
                if self._is_closing:
                    raise LogClosedError(f"the server was stopped before topic {topic.name} was created")
                if not self._directory(topic.name, partition).exists():
                    made.append(partition)
                self._make(topic, partition, settings)
            topic_creation.unmark(self._fs, self._log_dir.path)
        except BaseException:
            self._unmake(topic.name, made)
            raise

    def _unmake(self, name: str, made: Sequence[int]) -> None:
        """Delete partitions of a creation that failed. If that fails too, its mark stays, and the next start creates
        the rest instead."""
        try:
            for partition in made:
                self._logs.pop((name, partition), None)
                if self._directory(name, partition).is_dir():
                    self._log_dir.delete(name, partition)
            if (self._log_dir.path / topic_creation.FILE_NAME).exists():
                topic_creation.unmark(self._fs, self._log_dir.path)
        except SeglogError as error:
            _LOG.warning("topic %s was not created, and some of its partitions are left: %s", name, error)

    def _show(self, topic: ServedTopic) -> None:
        self._topics[topic.name] = topic
        if topic.topic_id != ZERO_ID:
            self._by_id[topic.topic_id] = topic

    def _make(self, topic: ServedTopic, partition: int, settings: Mapping[str, object]) -> Log:
        log = self._open(topic.name, partition, create=True)
        path = log.path / names.PARTITION_METADATA
        if topic.topic_id != ZERO_ID and not path.exists():
            write_atomically(self._fs, path, PartitionMetadata(uuid.UUID(bytes=topic.topic_id)).to_bytes())
        if settings:
            log.configure(settings)
        return log

    def _kept_settings(self, name: str) -> dict[str, object]:
        """The stored settings of the last partition, which every topic has."""
        log = self.log(name, self.partition_count(name) - 1)
        return {} if log is None else {
            key: setting.value for key, setting in log.settings.items() if setting.source == "kept"
        }

    def _widen(self, name: str, partitions: int) -> bool:
        topic = self._topics.get(name)
        if topic is None:
            return False    # it was deleted meanwhile
        self._make_all(topic, topic.partitions, partitions, self._kept_settings(name))
        topic.partitions = partitions
        return True

    def _delete(self, name: str) -> int:
        with self._opening:     # logs being created or opened are registered by then, and no more are added
            topic = self._topics.pop(name, None)
        if topic is None:
            return 0
        self._by_id.pop(topic.topic_id, None)
        made = [partition for partition in range(topic.partitions) if self._directory(name, partition).is_dir()]
        last = self._directory(name, topic.partitions - 1)
        try:
            if len(made) > 1:
                topic_deletion.mark(self._fs, last, name, topic.topic_id)
            # The last one goes last: until then, the directories show how many partitions the topic has.
            for partition in made:
                self._logs.pop((name, partition), None)
                self._epochs.pop((name, partition), None)
                self._log_dir.delete(name, partition)
        except BaseException:
            self._show(topic)       # so that a client can try again
            with contextlib.suppress(SeglogError):
                topic_deletion.unmark(self._fs, last)
            raise
        return topic.partitions

    def _finish_deletions(self) -> list[tuple[str, int]]:
        deleted = []
        for topic in list(self._topics.values()):
            try:
                if topic_deletion.is_marked(
                    self._directory(topic.name, topic.partitions - 1), topic.name, topic.topic_id
                ):
                    deleted += [(topic.name, number) for number in range(self._delete(topic.name))]
            except SeglogError as error:
                _LOG.warning("topic %s stays, although its deletion had begun: %s", topic.name, error)
        return deleted

    def _finish_creation(self) -> None:
        try:
            creation = topic_creation.read_mark(self._log_dir.path, self.partitions_max)
            if creation is None:
                return
            topic = self._topics.get(creation.topic)
            # A directory has no id before its `partition.metadata` is written. Without any directory, nothing was made.
            if topic is not None and topic.topic_id in (creation.topic_id, ZERO_ID):
                topic.topic_id = creation.topic_id
                for partition in range(creation.first, creation.end):
                    if self._is_closing:
                        return      # the next start goes on
                    self._make(topic, partition, creation.settings)
                topic.partitions = max(topic.partitions, creation.end)
                self._show(topic)
            topic_creation.unmark(self._fs, self._log_dir.path)
        except SeglogError as error:
            _LOG.warning("a topic may have fewer partitions than a client asked for: %s", error)

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
            kept = read_settings(self._directory(topic, partition))
            config = {name: value for name, value in self._log_config.items() if name not in kept}
            if topic in _COORDINATOR_TOPICS:
                config.pop("message.format.version", None)      # transactions need v2
                if "cleanup.policy" not in kept:                # a broker stores it elsewhere
                    config["cleanup.policy"] = "compact"
            log = self._log_dir.log(topic, partition, create=create, config=config)
            self._logs[topic, partition] = log
            return log

    # --- files -----------------------------------------------------------------------------------

    def _directory(self, topic: str, partition: int) -> Path:
        return self._log_dir.path / names.partition_dir(topic, partition)

    def _id_of(self, topic: str, partition: int) -> bytes:
        try:
            return PartitionMetadata.read(self._directory(topic, partition) / names.PARTITION_METADATA).topic_id.bytes
        except (FileNotFoundError, CorruptCheckpointError):
            return ZERO_ID
