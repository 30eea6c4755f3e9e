"""The transaction coordinator: transactional ids, their producers, and the markers that end their transactions.

    InitProducerId ── AddPartitionsToTxn, AddOffsetsToTxn ── (Produce, TxnOffsetCommit) ── EndTxn
                                                                                             │
        __transaction_state: PREPARE_COMMIT ── a marker in each partition ── COMPLETE_COMMIT

Producers of Kafka 4 leave the second step out: a Produce or TxnOffsetCommit adds its partitions itself (KIP-890).

Once PREPARE_COMMIT is durable, the transaction is committed, whatever happens: after a crash, the next start writes the
missing markers. Like the group coordinator, it belongs to the server's loop.
"""
import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from functools import partial

from seglog.clock import Clock
from seglog.coordinators.coordinator_config import CoordinatorConfig
from seglog.coordinators.group_offsets import TopicPartition
from seglog.coordinators.groups import GroupCoordinator
from seglog.coordinators.held import Held
from seglog.coordinators.internal_topic import CoordinatorLogs, InternalTopic, has_room
from seglog.coordinators.pending_answer import PendingAnswer
from seglog.coordinators.producer_ids import ProducerIds
from seglog.coordinators.refusals import error_of
from seglog.coordinators.transaction import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    WITH_EPOCHS,
    WITHOUT_EPOCHS,
    Fenced,
    Transaction,
    TransactionState,
    TransactionStep,
)
from seglog.coordinators.transaction_topic import TransactionTopic
from seglog.errors import InvalidProducerEpochError, InvalidTxnStateError, SeglogError
from seglog.fs.files import FileSystem
from seglog.log.append import PendingAppend
from seglog.log.log import Log
from seglog.logger import Logger
from seglog.named_tuple import NamedTuple
from seglog.wire.error_codes import Errors
from seglog.wire.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

_LOG = Logger(__name__)

# A marker that cannot be written is retried: its log may be read-only, or its disk full.
_MARKER_RETRY_MS = 1_000
# EndTxn is answered when the markers are durable, so that a later read sees the records, but after this time at the
# latest.
_MARKERS_WAIT_MS = 500
# How long `stop` waits for markers; those not written by then are written at the next start.
_STOP_WAIT_S = 5.0
# How long `start` waits for the markers of transactions that a crash left prepared.
_RECOVERY_WAIT_S = 10.0
# Markers of one transaction that are written at a time.
_MARKERS_AT_ONCE = 64
# Overdue transactions of which a line each is logged in one look; the number of the others is.
_OVERDUE_LINES = 20



class OperatorsMarker(NamedTuple):
    """The end of a producer's transaction, as WriteTxnMarkers tells it."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    transaction_version: int


# Gets an error, or NONE with the producer's id and epoch.
Initialized = Callable[[Errors, int, int], None]
Ended = Callable[[Errors, int, int], None]


class TransactionCoordinator:
    """All transactional ids. `start` loads them and ends prepared transactions; `stop` waits until writes are
    durable."""

    def __init__(
        self, logs: CoordinatorLogs, groups: GroupCoordinator, config: CoordinatorConfig, clock: Clock,
        log_dir: str | os.PathLike[str], fs: FileSystem,
    ) -> None:
        self.logs = logs
        self.config = config
        self.groups = groups
        self.now_ms = clock.now_ms
        self._timer = groups.timer
        self._producer_ids = ProducerIds(log_dir, fs, clock)
        self.topic = InternalTopic(TRANSACTIONS_TOPIC, config.transaction_state_log_num_partitions, {
            "cleanup.policy": "compact", "compression.type": "uncompressed",
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
        }, logs, clock)
        self._store = TransactionTopic(self.topic)
        self._transactions: dict[str, Transaction] = {}
        # The tasks that write markers, by transactional id.
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._unready: Errors | None = Errors.COORDINATOR_LOAD_IN_PROGRESS     # see GroupCoordinator.unready
        groups.ensure_transactions = self.topic.ensure
        groups.verify = self.verify
        groups.join_transaction = self.join

    # --- its life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the transactional ids; call it after the groups' start. Raises what reading __transaction_state
        raises."""
        try:
            self._transactions = await asyncio.to_thread(self._store.load)
        except BaseException:
            self._unready = Errors.COORDINATOR_NOT_AVAILABLE
            raise
        self._unready = None
        # Not at once: a producer whose time passed while the server was down may still end its transaction.
        self._abort_later()
        for transaction in self._transactions.values():
            self._store.held.transactions += transaction.size_bytes
            if transaction.is_prepared:
                self._write_markers(transaction)
        if self._ending:
            await asyncio.wait(list(self._ending.values()), timeout=_RECOVERY_WAIT_S)
        self._expire_later()

    async def stop(self) -> None:
        """Stop, after a limited wait for markers being written. Call it before the groups' stop. Idempotent."""
        self._unready = Errors.COORDINATOR_NOT_AVAILABLE
        if self._ending:
            await asyncio.wait(list(self._ending.values()), timeout=_STOP_WAIT_S)
        for task in list(self._ending.values()):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.topic.settle()

    def topic_deleted(self) -> None:
        """Forget all transactional ids, because their topic was deleted."""
        self._transactions.clear()
        self._store.held = Held()
        for task in list(self._ending.values()):
            task.cancel()

    def check(self, transactional_id: str | None) -> Errors:
        """Why no request of this id can be answered; NONE: it can."""
        if not transactional_id or not has_room(transactional_id):
            return Errors.INVALID_REQUEST
        if self._unready is not None:
            return self._unready
        return Errors.NONE if self.topic.exists else Errors.NOT_COORDINATOR

    # --- producers -----------------------------------------------------------------------------------

    def new_producer_id(self) -> int:
        """A new producer id. Raises SeglogError if it cannot be reserved on the disk."""
        return self._producer_ids.next()

    def init_producer(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None, done: Initialized
    ) -> None:
        """Give the id's producer its next epoch. `expected`: the id and epoch that it believes it has. A transaction
        that an earlier producer left open is aborted first, and this producer is told to retry."""
        fail = partial(_failed, done)
        if not 0 < timeout_ms <= self.config.transaction_max_timeout_ms:
            fail(Errors.INVALID_TRANSACTION_TIMEOUT)
            return
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            if len(self._transactions) >= self.config.max_transactional_ids:
                fail(Errors.POLICY_VIOLATION)
                return
            transaction = Transaction(transactional_id, NO_PRODUCER_ID, timeout_ms, self.now_ms())
            if not self._has_room(transaction.size_bytes):
                fail(Errors.POLICY_VIOLATION)
                return
            transaction.producer_id = self.new_producer_id()
            self._transactions[transactional_id] = transaction
            self._store.held.transactions += transaction.size_bytes
        if transaction.is_in_a_step:
            fail(Errors.CONCURRENT_TRANSACTIONS)
        elif expected is not None and not transaction.is_of_expected(*expected):
            fail(Errors.PRODUCER_FENCED)
        elif transaction.state is TransactionState.ONGOING:
            self._fence(transaction, lambda error: fail(error or Errors.CONCURRENT_TRANSACTIONS))
        else:
            self._next_epoch(transaction, timeout_ms, expected, done)

    def _is_known(self, transaction: Transaction) -> bool:
        return self._transactions.get(transaction.transactional_id) is transaction

    def _has_room(self, more_bytes: int) -> bool:
        return self._store.held.transactions + more_bytes <= self.config.transactions_max_bytes

    def _next_epoch(
        self, transaction: Transaction, timeout_ms: int, expected: tuple[int, int] | None, done: Initialized
    ) -> None:
        expected_epoch = None if expected is None else expected[1]
        is_used_up = transaction.is_epoch_exhausted and expected_epoch in (None, transaction.producer_epoch)
        try:
            if is_used_up:
                step = transaction.prepare_producer_id(
                    self.new_producer_id(), timeout_ms, self.now_ms(), keep_last=expected is not None
                )
            else:
                step = transaction.prepare_epoch(timeout_ms, expected_epoch, self.now_ms())
        except Fenced:
            _failed(done, Errors.PRODUCER_FENCED)
            return

        def stored(error: Errors) -> None:
            if error is not Errors.NONE:
                _failed(done, error)
            else:
                done(Errors.NONE, step.producer_id, step.producer_epoch)

        self._store.store(transaction, step, stored)

    # --- a transaction -------------------------------------------------------------------------------

    def add_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Collection[TopicPartition],
        done: Callable[[Errors], None], client_version: int = WITHOUT_EPOCHS,
    ) -> None:
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            done(Errors.INVALID_PRODUCER_ID_MAPPING)
            return
        # Kafka looks for a step first: afterwards the producer may have another id and epoch.
        error = (
            Errors.CONCURRENT_TRANSACTIONS if transaction.is_in_a_step
            else transaction.check_producer(producer_id, producer_epoch)
        )
        is_known = transaction.state is TransactionState.ONGOING and transaction.partitions.issuperset(partitions)
        if error is not Errors.NONE or is_known:
            done(error)
            return
        more_bytes = transaction.size_with(len(transaction.partitions.union(partitions))) - transaction.size_bytes
        if more_bytes and not self._has_room(more_bytes):
            done(Errors.POLICY_VIOLATION)
            return
        self._store.store(transaction, transaction.prepare_partitions(
            partitions, self.now_ms(), client_version), done)

    async def join(
        self, transactional_id: str | None, producer_id: int, producer_epoch: int,
        partitions: Collection[TopicPartition],
    ) -> Errors:
        """Add partitions to the producer's transaction, and begin one if none is open, as the first write of a client
        of transaction.version 2 does. The errors are those of `verify`."""
        error = self.check(transactional_id)
        if error is Errors.NONE and transactional_id is not None:
            answer: PendingAnswer[Errors] = PendingAnswer()
            self.add_partitions(
                transactional_id, producer_id, producer_epoch, partitions, answer.give, WITH_EPOCHS)
            error = await answer
        return Errors.INVALID_PRODUCER_EPOCH if error is Errors.PRODUCER_FENCED else error

    def verify(
        self, transactional_id: str | None, producer_id: int, producer_epoch: int, topic: str, partition: int
    ) -> Errors:
        """Check that a batch's partition is in the producer's transaction, so that a marker will end it (KIP-890). The
        errors are ones that older clients know."""
        if self._unready is not None:
            return self._unready
        transaction = None if transactional_id is None else self._transactions.get(transactional_id)
        if transaction is not None and producer_id == transaction.next_producer_id != NO_PRODUCER_ID:
            return Errors.CONCURRENT_TRANSACTIONS
        if transaction is None or transaction.producer_id != producer_id:
            return Errors.INVALID_PRODUCER_ID_MAPPING
        if transaction.producer_epoch != producer_epoch:
            return Errors.INVALID_PRODUCER_EPOCH
        if transaction.is_prepared or transaction.pending not in (None, TransactionState.ONGOING):
            return Errors.CONCURRENT_TRANSACTIONS
        is_in_it = transaction.state is TransactionState.ONGOING and (topic, partition) in transaction.partitions
        return Errors.NONE if is_in_it else Errors.INVALID_TXN_STATE

    def end(
        self, transactional_id: str, producer_id: int, producer_epoch: int, commit: bool, done: Ended,
        client_version: int = WITHOUT_EPOCHS,
    ) -> None:
        """Commit or abort, as the producer asks. `done` is called when the markers are durable, or after a limit."""
        fail = partial(_failed, done)
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            fail(Errors.INVALID_PRODUCER_ID_MAPPING)
            return
        if client_version >= WITH_EPOCHS:
            self._end_with_epoch(transaction, producer_id, producer_epoch, commit, done)
            return
        error = transaction.check_producer(producer_id, producer_epoch)
        if error is Errors.NONE and transaction.is_in_a_step:
            error = Errors.CONCURRENT_TRANSACTIONS
        state = transaction.state
        if error is Errors.NONE and state is not TransactionState.ONGOING:
            # The producer asks again because the answer was lost: give the same answer.
            complete = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
            fail(Errors.NONE if state is complete else Errors.INVALID_TXN_STATE)
            return
        if error is not Errors.NONE:
            fail(error)
            return
        self._store_end(transaction, transaction.prepare_end(commit, self.now_ms(), client_version), done)

    def _end_with_epoch(
        self, transaction: Transaction, producer_id: int, producer_epoch: int, commit: bool, done: Ended
    ) -> None:
        """End the transaction, and give the producer its next epoch."""
        error, is_repeated = transaction.check_end(producer_id, producer_epoch, commit)
        if is_repeated:
            done(Errors.NONE, transaction.producer_id, transaction.producer_epoch)
        elif error is not Errors.NONE:
            _failed(done, error)
        else:
            next_id = self.new_producer_id() if transaction.is_epoch_exhausted else NO_PRODUCER_ID
            self._store_end(
                transaction, transaction.prepare_end(commit, self.now_ms(), WITH_EPOCHS, next_id), done)

    def _store_end(self, transaction: Transaction, step: TransactionStep, done: Ended) -> None:

        def prepared_is_durable(error: Errors) -> None:
            if error is not Errors.NONE:
                _failed(done, error)
            else:
                self._answer_when_marked(self._write_markers(transaction), partial(done, Errors.NONE, *step.after))

        self._store.store(transaction, step, prepared_is_durable)

    def _answer_when_marked(self, task: asyncio.Task[None], answer_now: Callable[[], None]) -> None:
        late = self._timer.call_in(_MARKERS_WAIT_MS, answer_now)

        def marked(task: asyncio.Task[None]) -> None:
            answer = late.take()
            if answer is not None:
                answer()

        task.add_done_callback(marked)

    def _fence(self, transaction: Transaction, done: Callable[[Errors], None]) -> None:
        """Abort an open transaction with the next epoch."""
        gets_epochs = transaction.client_version >= WITH_EPOCHS
        try:
            next_id = self.new_producer_id() if gets_epochs and transaction.is_epoch_exhausted else NO_PRODUCER_ID
        except SeglogError as error:
            _LOG.warning("%.200a: its transaction stays open: %s", transaction.transactional_id, error)
            done(error_of(error))
            return
        step = transaction.prepare_fence(self.now_ms(), next_id)

        def stored(error: Errors) -> None:
            if error is Errors.NONE:
                self._write_markers(transaction)
            done(error)

        self._store.store(transaction, step, stored)

    # --- markers -------------------------------------------------------------------------------------

    def _write_markers(self, transaction: Transaction) -> asyncio.Task[None]:
        """End a prepared transaction: the task is done when the end is durable."""
        task = asyncio.get_running_loop().create_task(self._end(transaction))
        self._ending[transaction.transactional_id] = task
        task.add_done_callback(partial(self._ended, transaction))
        return task

    def _ended(self, transaction: Transaction, task: asyncio.Task[None]) -> None:
        if self._ending.get(transaction.transactional_id) is task:
            del self._ending[transaction.transactional_id]
        if not task.cancelled() and task.exception() is not None:
            _LOG.error(
                "%.200a: the transaction stays prepared", transaction.transactional_id, exc_info=task.exception())

    async def _end(self, transaction: Transaction) -> None:
        commit = transaction.state is TransactionState.PREPARE_COMMIT
        left = sorted(transaction.partitions)
        while left:
            unmarked = []
            for at in range(0, len(left), _MARKERS_AT_ONCE):
                some = left[at : at + _MARKERS_AT_ONCE]
                marked = await asyncio.gather(*(self._mark(transaction, where, commit) for where in some))
                unmarked += [where for where, is_marked in zip(some, marked, strict=True) if not is_marked]
            left = unmarked
            if left:
                _LOG.warning("%.200a: no marker could be written to %d partitions, such as %s",
                             transaction.transactional_id, len(left), left[0])
                await asyncio.sleep(_MARKER_RETRY_MS / 1000)
        while True:
            stored: PendingAnswer[Errors] = PendingAnswer()
            self._store.store(transaction, transaction.prepare_completion(self.now_ms()), stored.give)
            if await stored is Errors.NONE:
                return
            await asyncio.sleep(_MARKER_RETRY_MS / 1000)

    async def _mark(self, transaction: Transaction, where: TopicPartition, commit: bool) -> bool:
        """Write the partition's marker. Returns whether it is durable, or the partition needs none."""
        producer_id, epoch = transaction.producer_id, transaction.producer_epoch
        try:
            log = await self.logs.opened(*where)
            if log is None:
                return True     # it was deleted
            written = log.end_transaction(producer_id, epoch, commit=commit, must_be_open=False, wait=False)
            await self.logs.durable(log, written)
        except (InvalidProducerEpochError, InvalidTxnStateError) as error:
            # A producer with a later epoch has written here, which ended what this one left open.
            _LOG.warning("%.200a: %s-%d needs no marker: %s", transaction.transactional_id, *where, error)
        except SeglogError as error:
            _LOG.warning("%.200a: %s-%d: %s", transaction.transactional_id, *where, error)
            return False
        if where[0] == OFFSETS_TOPIC:
            self.groups.end_transaction(producer_id, [where[1]], commit=commit)
        return True

    async def write_markers(
        self, markers: Iterable[tuple[TopicPartition, OperatorsMarker]], may_remember: Callable[[Log, int], bool],
        pause: Callable[[], Awaitable[None]],
    ) -> list[Errors]:
        """Write markers that an operator asks for, whatever the coordinator knows of these transactions; returns when
        they are durable. `may_remember`: whether a log may remember this producer; `pause`: lets others have
        their turn."""
        errors: list[Errors] = []
        waiting: list[tuple[int, TopicPartition, OperatorsMarker, Log, PendingAppend[int]]] = []
        for where, marker in markers:
            await pause()
            if len(waiting) >= _MARKERS_AT_ONCE:
                await self._await_markers(waiting, errors)
            errors.append(Errors.NONE)
            try:
                if where[0] == OFFSETS_TOPIC and self.groups.unready is not None:
                    errors[-1] = Errors.NOT_LEADER_OR_FOLLOWER
                    continue
                if marker.producer_id < 0 or marker.producer_epoch < 0 or marker.transaction_version < 0:
                    errors[-1] = Errors.INVALID_REQUEST
                    continue
                log = await self.logs.opened(*where)
                if log is None:
                    errors[-1] = Errors.UNKNOWN_TOPIC_OR_PARTITION
                elif not may_remember(log, marker.producer_id):
                    errors[-1] = Errors.POLICY_VIOLATION
                else:
                    written = log._mark(
                        marker.producer_id, marker.producer_epoch, commit=marker.commit,
                        coordinator_epoch=marker.coordinator_epoch,
                        must_be_newer=marker.transaction_version >= WITH_EPOCHS)
                    waiting.append((len(errors) - 1, where, marker, log, written))
            except SeglogError as error:
                errors[-1] = error_of(error)
        await self._await_markers(waiting, errors)
        return errors

    async def _await_markers(
        self, waiting: "list[tuple[int, TopicPartition, OperatorsMarker, Log, PendingAppend[int]]]",
        errors: list[Errors],
    ) -> None:
        for number, where, marker, log, written in waiting:
            try:
                await self.logs.durable(log, written)
            except SeglogError as error:
                errors[number] = error_of(error)
                continue
            if where[0] == OFFSETS_TOPIC:
                self.groups.end_transaction(marker.producer_id, [where[1]], commit=marker.commit)
        waiting.clear()

    # --- time ----------------------------------------------------------------------------------------

    def _abort_later(self) -> None:
        self._timer.call_in(self.config.transaction_abort_interval_ms, self._abort_overdue)

    def _abort_overdue(self) -> None:
        self._abort_later()
        self._timer.in_pieces(self._overdue_aborts())

    def _overdue_aborts(self) -> Iterator[None]:
        """Looks at one transaction in each step, and begins to abort it if it is overdue."""
        count = 0
        for transaction in list(self._transactions.values()):
            now_ms = self.now_ms()
            if transaction.is_overdue(now_ms) and self._is_known(transaction):
                count += 1
                if count <= _OVERDUE_LINES:
                    _LOG.warning(
                        "%.200a: aborting its transaction, which has been open for %d ms: transaction.timeout.ms = %d",
                        transaction.transactional_id, now_ms - transaction.start_ms, transaction.timeout_ms)
                self._fence(transaction, lambda error: None)
            yield
        if count > _OVERDUE_LINES:
            _LOG.warning("aborting %d more transactions that have been open for too long", count - _OVERDUE_LINES)

    def _expire_later(self) -> None:
        self._timer.call_in(self.config.transaction_expiration_interval_ms, self._expire)

    def _expire(self) -> None:
        self._expire_later()
        self._timer.in_pieces(self._expiry())

    def _expiry(self) -> Iterator[None]:
        oldest_ms = self.now_ms() - self.config.transactional_id_expiration_ms
        for transaction in list(self._transactions.values()):
            is_old = transaction.has_ended and transaction.pending is None and transaction.update_ms <= oldest_ms
            if is_old and self._is_known(transaction):
                transaction.pending = TransactionState.DEAD
                self._store.remove(transaction.transactional_id, partial(self._expired, transaction))
            yield

    def _expired(self, transaction: Transaction, error: Errors) -> None:
        if error is not Errors.NONE:
            transaction.give_up()
        elif self._is_known(transaction):
            del self._transactions[transaction.transactional_id]
            self._store.held.transactions -= transaction.size_bytes

    def transaction(self, transactional_id: str) -> Transaction | None:
        found = self._transactions.get(transactional_id)
        return None if found is None or found.state is TransactionState.DEAD else found

    def listed(self) -> "tuple[Errors, list[Transaction]]":
        """All transactional ids, or why they cannot be listed now."""
        if self._unready is not None:
            return self._unready, []
        return Errors.NONE, [one for one in self._transactions.values() if one.state is not TransactionState.DEAD]

    def open_transactions(self) -> Iterable[Transaction]:
        return [one for one in self._transactions.values() if not one.has_ended]


def _failed(done: Initialized, error: Errors) -> None:
    done(error, NO_PRODUCER_ID, NO_EPOCH)
