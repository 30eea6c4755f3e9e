"""Finds the transactions that a reader of committed records must skip: by the .txnindex of the segments it reads.

A broker sends them with each fetch, and the client skips their data (Kafka's LocalLog.collectAbortedTransactions and
the consumer's CompletedFetch); here both are one. A batch is skipped if it is transactional and lies between the first
offset and the abort marker of an aborted transaction of its producer.
"""
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice
from typing import Protocol

from seglog._kernels.segment_scan import BatchTable
from seglog.segment.batches import first_offset_of
from seglog.segment.transaction_index import AbortedTransaction, TransactionIndex


class _Aborts(ABC):
    """Removes the data of aborted transactions from tables."""

    @abstractmethod
    def put_between(self, from_offset: int, to_offset: int, fields: "array[int]") -> None:
        """Append producer id, first offset and marker of the transactions that overlap [from_offset, to_offset)."""

    def left_out_of(self, table: BatchTable) -> BatchTable:
        """Return the table without their data; the table itself if none concerns it."""
        fields = array("q")
        self.put_between(first_offset_of(table[0]), table[-1].last_offset + 1, fields)
        return table.without(fields) if fields else table


class AbortedFilter(_Aborts):
    """Aborted transactions in the order of their markers."""

    def __init__(self, transactions: Iterable[AbortedTransaction] = ()) -> None:
        self._transactions = list(transactions)
        self._markers = [t.last_offset for t in self._transactions]
        # The smallest first offset from each on: if it is after a table, no later transaction concerns the table.
        firsts = [t.first_offset for t in reversed(self._transactions)]
        self._first_from = list(accumulate(firsts, min))[::-1]

    def __len__(self) -> int:
        return len(self._transactions)

    def put_between(self, from_offset: int, to_offset: int, fields: "array[int]") -> None:
        slot = bisect_left(self._markers, from_offset)
        while slot < len(self._transactions) and self._first_from[slot] < to_offset:
            transaction = self._transactions[slot]
            fields.extend((transaction.producer_id, transaction.first_offset, transaction.last_offset))
            slot += 1


class HasTransactions(Protocol):
    """A segment, wherever it is stored."""

    @property
    def transaction_index(self) -> TransactionIndex | None: ...


class IndexedAborts(_Aborts):
    """Removes the data of aborted transactions by the .txnindex of segments; a kernel searches them for each table."""

    def __init__(self, segments: Iterable[HasTransactions], stop: int) -> None:
        """`segments`: from the first one to be read on. `stop`: nothing from this offset on will be asked for.

        All files are read here, as they are now. Raises CorruptIndexError, and StorageError if a file cannot be read.
        """
        self._indexes: list[TransactionIndex] = []
        for segment in segments:
            index = segment.transaction_index
            if index is not None and len(index):
                self._indexes.append(index)
                if index.decides(stop):
                    break
        self._markers = [index[-1].last_offset for index in self._indexes]

    def put_between(self, from_offset: int, to_offset: int, fields: "array[int]") -> None:
        for index in self._indexes_from(from_offset):
            if index.put_between(from_offset, to_offset, fields):
                break

    def between(self, from_offset: int, to_offset: int) -> Iterator[AbortedTransaction]:
        """Yield those that overlap [from_offset, to_offset), in the order of their markers."""
        for index in self._indexes_from(from_offset):
            found, is_complete = index.aborted_between(from_offset, to_offset)
            yield from found
            if is_complete:
                break

    def _indexes_from(self, offset: int) -> Iterator[TransactionIndex]:
        return islice(self._indexes, bisect_left(self._markers, offset), None)
