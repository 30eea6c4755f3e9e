"""A transactional producer: readers of committed data see all records of a transaction at once, or none."""
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from seglog._kernels.write_gate import CallLock
from seglog.errors import InvalidTxnStateError, ProducerFencedError, SeglogError
from seglog.fs.handles import OpenHandle
from seglog.log.transactions import LogTransactions

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from seglog._kernels.batch_encode import Headers, Record
    from seglog.reading.times import Time


class Producer(OpenHandle):
    """A transactional producer, from `log.producer(producer_id)`. As a context manager, it aborts at its end what was
    not committed.

        with log.producer(7) as producer:
            producer.begin()
            producer.append(b"value", key=b"key")
            producer.commit()

    Threads may share it: their records go into the same transaction. `producer_id`, `epoch`: as in its batches.

    Every method raises ProducerFencedError if another producer with this id was opened, or if its transaction was
    aborted after transaction.max.timeout.ms; InvalidTxnStateError if the call does not fit the state of the
    transaction; and what `Log.append` raises.
    """

    def __init__(self, transactions: LogTransactions, producer_id: int) -> None:
        self._transactions = transactions
        self._lock = CallLock()
        self._is_begun = False
        self._first_offset: int | None = None       # of the transaction, once it has a record
        self.producer_id = producer_id
        self.epoch = transactions.begin_epoch(producer_id)

    def __repr__(self) -> str:
        state = "in a transaction" if self._is_begun else "no transaction"
        return f"<Producer {self.producer_id}, epoch {self.epoch}: {state}>"

    @property
    def in_transaction(self) -> bool:
        """Whether `begin` was called, and neither `commit` nor `abort` since."""
        return self._is_begun

    def begin(self) -> None:
        """Begin a transaction. Nothing is written yet."""
        self._lock.run(self._begin)

    def append(
        self,
        value: "Buffer | None",
        *,
        key: "Buffer | str | None" = None,
        headers: "Headers | None" = (),
        timestamp: "Time | None" = None,
    ) -> int:
        """Append a record to the transaction. Returns its offset. It is durable when the transaction is committed."""
        return self.append_many([(key, value, headers, timestamp)])

    def append_many(self, records: "Iterable[Record]") -> int:
        """Append records to the transaction as one batch. Returns the last one's offset."""
        return self._lock.run(self._append, list(records))

    def commit(self) -> int | None:
        """Let readers of committed data see the records, durably with fsync="batch". Returns the offset of the marker,
        or None if there were no records; nothing is written then.

        If it raises, only a later read can tell whether the marker was written; calling `abort` is safe in any case.
        """
        return self._lock.run(self._end, True)

    def abort(self) -> int | None:
        """Hide the records from readers of committed data forever; the same as `commit` otherwise."""
        return self._lock.run(self._end, False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_begun:
            return
        try:
            self.abort()
        except SeglogError:
            # The first error is raised. The next producer with this id, or the timeout, aborts what stays open.
            if error is None:
                raise

    # --- alone -----------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._is_begun:
            raise InvalidTxnStateError(
                f"producer {self.producer_id} is already in a transaction", hint="commit or abort it first"
            )
        # Ends what an interrupted `abort` left open. Also raises if the producer was fenced meanwhile.
        self._transactions.end_own(self.producer_id, self.epoch, False, None)
        self._is_begun = True
        self._first_offset = None

    def _append(self, records: "list[Record]") -> int:
        if not self._is_begun:
            raise InvalidTxnStateError(
                f"producer {self.producer_id} is in no transaction", hint="call begin() first"
            )
        first, last = self._transactions.append(self.producer_id, self.epoch, records, self._first_offset)
        if self._first_offset is None:
            self._first_offset = first
        return last

    def _end(self, commit: bool) -> int | None:
        if not self._is_begun:
            raise InvalidTxnStateError(
                f"producer {self.producer_id} is in no transaction", hint="call begin() first"
            )
        # An abort ends whatever is there: an interrupted append may have begun it, a truncation may have removed it.
        first_offset = self._first_offset if commit else None
        try:
            marker = self._transactions.end_own(self.producer_id, self.epoch, commit, first_offset)
        except ProducerFencedError:
            self._is_begun = False      # the producer that fenced this one has aborted it
            raise
        self._is_begun = False
        return marker
