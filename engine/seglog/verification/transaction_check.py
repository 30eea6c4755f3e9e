"""Checks that each .txnindex lists exactly the transactions that were aborted in its segment.

Takes the walk's batches in order, like verification.index_check.
"""
from bisect import bisect_right
from pathlib import Path
from typing import Self

from seglog._kernels import batch_survey as survey
from seglog._kernels.record_batch import RecordBatch
from seglog._kernels.segment_scan import BatchTable
from seglog.errors import CorruptIndexError, StorageError, UnsupportedVersionError
from seglog.format import names
from seglog.format.dialect import beside
from seglog.segment.batches import UNREADABLE
from seglog.segment.segment import Segment
from seglog.segment.transaction_index import AbortedTransaction
from seglog.state.checked_aborts import Ended, TransactionWalk
from seglog.verification.findings import Finding


class TransactionCheck:
    """The check of one partition, segment by segment: a transaction may begin in one and be aborted in the next.

    Batches below `log_start_offset` do not count: nobody reads them, and a broker that recovers does not look for
    transactions there, so the index that it writes lacks them (ProducerStateManager.truncateAndReload).
    """

    def __init__(self, findings: list[Finding], log_start_offset: int) -> None:
        self._findings = findings
        self._log_start_offset = log_start_offset
        self._walk = TransactionWalk()
        self._logs: list[Path] = []     # of the segments up to the current one
        self._is_damaged = False        # a batch that was lost may have begun or ended a transaction

    def again(self, findings: list[Finding]) -> Self:
        """Return a copy as of before the current segment, for a second check of it."""
        copy = type(self)(findings, self._log_start_offset)
        copy._walk, copy._is_damaged, copy._logs = self._walk.copy(), self._is_damaged, list(self._logs)
        return copy

    def begin(self, segment: Segment) -> None:
        """Read the segment's .txnindex before its .log is mapped, so that each entry's marker is in the map."""
        self._file = str(beside(segment.path, names.TRANSACTION_INDEX_SUFFIX))
        self._logs.append(segment.path)
        self._listed: dict[int, AbortedTransaction] = {}
        self._compared: list[tuple[AbortedTransaction, Ended]] = []
        self._readable = False
        try:
            index = segment.transaction_index
        except (CorruptIndexError, UnsupportedVersionError) as e:
            self._findings.append(Finding("txnindex_corrupt", self._file, e.position, found=e.what))
            return
        except StorageError as e:
            self._findings.append(Finding("unreadable", self._file, found=e.what))
            return
        self._readable = True
        if index is not None:
            self._listed = {
                aborted.last_offset: aborted for aborted in index if aborted.last_offset >= self._log_start_offset
            }

    def see(self, table: BatchTable) -> None:
        slot = survey.first_transactional(table)
        while slot >= 0:
            self._see_batch(table[slot])
            slot = survey.first_transactional(table, slot + 1)

    def _see_batch(self, batch: RecordBatch) -> None:
        if batch.last_offset < self._log_start_offset:
            return
        try:
            ended = self._walk.see(batch)
        except UNREADABLE:      # the walk reports it
            return
        if ended is None or not ended.is_aborted:
            return
        listed = self._listed.pop(ended.marker_offset, None)
        if listed is not None:
            self._compared.append((listed, ended))
        elif ended.first_offset is not None and self._readable:
            self._findings.append(Finding(
                "txnindex_incomplete", self._file, offset=ended.marker_offset, found="not listed",
                expected=_in_words(ended.producer_id, ended.first_offset, ended.marker_offset)))

    def finish(self, *, is_damaged: bool) -> None:
        """Report the listed transactions that are not those of the log. `is_damaged`: the segment has lost batches."""
        for offset, listed in self._listed.items():
            self._report_misleading(listed, f"an abort marker at offset {offset}")
        self._is_damaged |= is_damaged
        for listed, ended in self._compared:
            if not self._is_damaged and not self._is_right(listed, ended):
                self._report_misleading(listed, _in_words(
                    ended.producer_id, ended.first_batch_offset, ended.marker_offset, ended.stable_offset))

    def _is_right(self, listed: AbortedTransaction, ended: Ended) -> bool:
        pairs = (listed.first_offset, ended.first_batch_offset), (listed.last_stable_offset, ended.stable_offset)
        # At an earlier offset, a transaction began with a batch that compaction removed. Nothing else has its place.
        return ended.is_entry(listed) and not any(
            offset < seen and self._has_batch_at(offset) for offset, seen in pairs
        )

    def _has_batch_at(self, offset: int) -> bool:
        slot = bisect_right(self._logs, offset, key=lambda log: names.parse_base_offset(log.name)) - 1
        if slot < 0 or offset < self._log_start_offset:
            return False
        segment = Segment(self._logs[slot], is_last=slot == len(self._logs) - 1)
        try:
            for table in segment.tables(check_crc=False):
                if len(table) and table[-1].last_offset >= offset:
                    return table[table.find_offset(offset)].base_offset <= offset
        except (*UNREADABLE, StorageError):     # the walk reports it
            pass
        finally:
            segment.close()
        return False

    def _report_misleading(self, listed: AbortedTransaction, expected: str) -> None:
        self._findings.append(Finding(
            "txnindex_misleads", self._file, offset=listed.last_offset, found=_entry_in_words(listed),
            expected=expected))


def _entry_in_words(aborted: AbortedTransaction) -> str:
    return _in_words(aborted.producer_id, aborted.first_offset, aborted.last_offset, aborted.last_stable_offset)


def _in_words(producer_id: int, first_offset: int, marker_offset: int, stable_offset: int | None = None) -> str:
    stable = "" if stable_offset is None else f", last stable offset {stable_offset}"
    return f"producer {producer_id}, offsets {first_offset} to {marker_offset}{stable}"
