"""A topic of the coordinators, such as __consumer_offsets: they write to its logs, and read them when they start."""
import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from seglog._kernels.record_batch import RecordBatch
from seglog.clock import Clock
from seglog.coordinators.refusals import error_of
from seglog.errors import SeglogError
from seglog.format.batch import build_batch
from seglog.log.append import AppendResult, PendingAppend
from seglog.log.log import Log
from seglog.logger import Logger
from seglog.named_tuple import NamedTuple
from seglog.wire.error_codes import Errors

_LOG = Logger(__name__)

# In a key or value, the length of a name has 16 bits; newer versions of requests allow 32.
_NAME_BYTES_MAX = 2**15 - 1

# Kafka's errors of an append, and what clients of a coordinator get instead (GroupMetadataManager.storeGroup,
# TransactionStateManager.appendTransactionToLog).
APPEND_ERRORS = {
    Errors.UNKNOWN_TOPIC_OR_PARTITION: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_LEADER_OR_FOLLOWER: Errors.NOT_COORDINATOR,
    Errors.KAFKA_STORAGE_ERROR: Errors.NOT_COORDINATOR,
    Errors.MESSAGE_TOO_LARGE: Errors.UNKNOWN_SERVER_ERROR,
}

# Key and value; None is a tombstone.
KeyValue = tuple[bytes, bytes | None]
# Gets Errors.NONE and the offset of the batch once it is durable, or the error that prevents it.
Appended = Callable[[Errors, int | None], None]


class CoordinatorLogs(Protocol):
    """What the coordinators need from the server."""

    @property
    def changes(self) -> int:
        """How often a topic was made, widened or deleted."""

    def names(self) -> list[str]:
        """Of all topics."""

    def id_and_partitions(self, name: str) -> tuple[bytes, int] | None:
        """A topic's id and its number of partitions. None: there is no such topic."""

    def log(self, topic: str, partition: int) -> Log | None:
        """The open log, or None if there is no such partition."""

    async def opened(self, topic: str, partition: int) -> Log | None:
        """As `log`, without blocking the loop while the log opens."""

    def is_made(self, topic: str, partition: int) -> bool:
        """Whether anything was ever written to the partition."""

    def partition_count(self, topic: str) -> int:
        """The topic's number of partitions; 0: there is no such topic."""

    async def create_internal(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic that clients may not write to, unless it exists."""

    async def durable(self, log: Log, written: PendingAppend[Any]) -> None:
        """Return when the append is on the disk, or raise why it will never be."""


class ProducerOfBatch(NamedTuple):
    """The producer in whose transaction a batch is."""

    producer_id: int
    producer_epoch: int


class InternalTopic:
    """One internal topic. Belongs to the server's loop."""

    def __init__(
        self, name: str, partitions: int, config: Mapping[str, str], logs: CoordinatorLogs, clock: Clock
    ) -> None:
        self.name = name
        self._partitions = partitions
        self._config = config
        self._logs = logs
        self._now_ms = clock.now_ms
        self._reports: set[asyncio.Task[None]] = set()
        self._creating = asyncio.Lock()

    @property
    def exists(self) -> bool:
        return self._logs.partition_count(self.name) > 0

    async def ensure(self, *keys: str) -> None:
        """Create the topic, and its partitions for `keys`, unless they exist."""
        if not self.exists:
            async with self._creating:
                await self._logs.create_internal(self.name, self._partitions, self._config)
        for key in keys:
            await self._logs.opened(self.name, self.partition_for(key))

    def partition_for(self, key: str) -> int:
        """The partition for a group or a transactional id, which depends on the topic's number of partitions."""
        count = self._logs.partition_count(self.name) or self._partitions
        return java_abs(java_hash(key)) % count

    def append(
        self, key: str, records: Sequence[KeyValue], done: Appended, producer: ProducerOfBatch | None = None
    ) -> None:
        """Append records of `key` as one batch. `done` is called during this call or later, in the loop."""
        log = self._logs.log(self.name, self.partition_for(key)) if self.exists else None
        if log is None:
            done(Errors.UNKNOWN_TOPIC_OR_PARTITION, None)
            return
        try:
            now_ms = self._now_ms()
            if producer is None:
                raw = build_batch(records, timestamp=now_ms)
                written: PendingAppend[AppendResult] = log.append_batch(raw, wait=False)
            else:
                # A coordinator does not number its batches: Kafka's writes 0 as the sequence of each.
                batch = build_batch(
                    records, timestamp=now_ms, transactional=True, base_sequence=0,
                    producer_id=producer.producer_id, producer_epoch=producer.producer_epoch,
                )
                written = log.append_batch(batch, from_coordinator=True, wait=False)
        except SeglogError as error:
            _LOG.warning("%s: nothing was written for %.200a: %s", self.name, key, error)
            done(error_of(error), None)
            return
        self.report(log, written, lambda error: done(error, None if error else written.result.first_offset))

    def report(self, log: Log, written: PendingAppend[Any], done: Callable[[Errors], None]) -> None:
        """Call `done` once an append is durable, or with the error that prevents it."""
        task = asyncio.get_running_loop().create_task(self._report(log, written, done))
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def _report(self, log: Log, written: PendingAppend[Any], done: Callable[[Errors], None]) -> None:
        error = Errors.NONE
        try:
            await self._logs.durable(log, written)
        except SeglogError as failure:
            _LOG.warning("%s: not durable: %s", log.path, failure)
            error = error_of(failure)
        done(error)

    async def settle(self) -> None:
        """Return when every append has been reported."""
        while self._reports:
            await asyncio.wait(set(self._reports))

    def partitions(self) -> Iterator[Iterator[RecordBatch]]:
        """The batches of each partition, from the beginning; iteration ends if its log is closed."""
        for partition in range(self._logs.partition_count(self.name)):
            log = self._logs.log(self.name, partition) if self._logs.is_made(self.name, partition) else None
            if log is not None and log.log_end_offset > log.log_start_offset:
                yield _until_closed(log)


def _until_closed(log: Log) -> Iterator[RecordBatch]:
    for batch in log.batches():
        if log.closed:
            return
        yield batch


def has_room(*names: str | None, more: int = 0) -> bool:
    """Whether each of these names would fit into a record if it were `more` bytes longer."""
    return all(
        name is None or 4 * (len(name) + more) <= _NAME_BYTES_MAX
        or len(name.encode("utf-8", "surrogatepass")) + more <= _NAME_BYTES_MAX
        for name in names
    )


def java_hash(text: str) -> int:
    """String.hashCode(), over UTF-16."""
    data = text.encode("utf-16-be", "surrogatepass")
    result = 0
    for at in range(0, len(data), 2):
        result = (31 * result + (data[at] << 8 | data[at + 1])) & 0xFFFF_FFFF
    return result - (1 << 32) if result >> 31 else result


def java_abs(number: int) -> int:
    """Utils.abs: 0 for the smallest int, whose absolute value is not an int."""
    return 0 if number == -(1 << 31) else abs(number)
