"""The transactions that a compaction round meets: Kafka's CleanedTransactionMetadata.

Data of aborted transactions is removed at once. A marker may be removed if the round met no batch of its transaction;
it first gets a delete horizon, and is removed in a later round. (LogCleaner.scala, KAFKA-8522)
"""
import struct
from collections.abc import Iterable
from heapq import heappop, heappush

from seglog._kernels.record_batch import RecordBatch
from seglog.segment.transaction_index import AbortedTransaction

_CONTROL_KEY = struct.Struct(">hh")     # version, type
_ABORT, _COMMIT = 0, 1


class CleanedTransactions:
    """Takes aborted transactions before their batches, and every batch that has a producer."""

    def __init__(self) -> None:
        self._aborted: list[tuple[int, int, AbortedTransaction]] = []    # a heap by first offset
        self._ongoing_aborted: dict[int, AbortedTransaction] = {}       # by producer id
        self._met: set[int] = set()             # producers of ongoing aborted transactions with data that was met
        self._ongoing_committed: set[int] = set()
        self.kept: list[AbortedTransaction] = []        # those with data that was met: they stay in the .txnindex

    def add(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Add the transactions that overlap the next segment."""
        for transaction in transactions:
            heappush(self._aborted, (transaction.first_offset, transaction.producer_id, transaction))

    def may_go(self, batch: RecordBatch) -> bool:
        """Whether a batch is data of an aborted transaction, or the marker of a transaction without data."""
        while self._aborted and self._aborted[0][0] <= batch.last_offset:
            _, producer_id, transaction = heappop(self._aborted)
            self._ongoing_aborted.setdefault(producer_id, transaction)
        return self._marker_may_go(batch) if batch.is_control else self._data_may_go(batch)

    def _data_may_go(self, batch: RecordBatch) -> bool:
        if not batch.is_transactional:
            return False
        if batch.producer_id in self._ongoing_aborted:
            self._met.add(batch.producer_id)
            return True
        self._ongoing_committed.add(batch.producer_id)
        return False

    def _marker_may_go(self, batch: RecordBatch) -> bool:
        record = next(iter(batch), None)
        if record is None or record.key is None or len(record.key) < _CONTROL_KEY.size:
            return record is None       # an empty one was cleaned before
        producer_id = batch.producer_id
        _, kind = _CONTROL_KEY.unpack_from(record.key)
        if kind == _ABORT:
            transaction = self._ongoing_aborted.pop(producer_id, None)
            if transaction is None or producer_id not in self._met:
                return True
            self._met.discard(producer_id)
            self.kept.append(transaction)
            return False
        if kind == _COMMIT:
            had_data = producer_id in self._ongoing_committed
            self._ongoing_committed.discard(producer_id)
            return not had_data
        return False
