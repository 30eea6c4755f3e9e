"""What became of the transactions whose records `seglog dump` shows."""
from array import array
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from seglog._kernels.record_batch import RecordBatch
from seglog.errors import SeglogError
from seglog.reading.partition import Partition

if TYPE_CHECKING:
    from seglog.segment.aborted_transactions import IndexedAborts

Outcome = Literal["committed", "aborted", "open", ""]


class TransactionOutcomes:
    """Of one partition. Its .txnindex files and its end are read when the first transactional batch asks.

    If they cannot be read because of damage, no outcome is known: then nothing is said.
    """

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def of(self, batch: RecordBatch) -> Outcome:
        """What became of a batch of data; empty for one without a transaction, and if it is not known."""
        if not batch.is_transactional or batch.is_control or self._aborts is None:
            return ""
        fields = array("q")
        self._aborts.put_between(batch.base_offset, batch.last_offset + 1, fields)
        for n in range(0, len(fields), 3):
            producer_id, first_offset, marker = fields[n : n + 3]
            if producer_id == batch.producer_id and first_offset <= batch.base_offset and batch.last_offset < marker:
                return "aborted"
        first_open = self._open.get(batch.producer_id)
        return "open" if first_open is not None and batch.base_offset >= first_open else "committed"

    @cached_property
    def _aborts(self) -> "IndexedAborts | None":
        from seglog.state.checked_aborts import checked_aborts  # few logs have transactions

        partition = self._partition
        try:
            return checked_aborts(partition.segments, partition.log_end_offset) if self._open is not None else None
        except (SeglogError, OSError):
            return None

    @cached_property
    def _open(self) -> Mapping[int, int]:
        """The first offset of each open transaction, by producer id."""
        return {
            entry.producer_id: entry.current_txn_first_offset for entry in self._partition.producers
            if entry.current_txn_first_offset >= 0
        }
