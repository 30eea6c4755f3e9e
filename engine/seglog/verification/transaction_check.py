"""Checks that each .txnindex lists exactly the transactions that were aborted in its segment.

Takes the walk's batches in order, like verification.index_check.
"""
import struct
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
from seglog.verification.findings import Finding

ABORT_MARKER = struct.pack(">hh", 0, 0)     # a control record's key: version 0, type ABORT


class TransactionCheck:
    """The check of one partition, segment by segment: a transaction may begin in one and be aborted in the next."""

    def __init__(self, findings: list[Finding]) -> None:
        self._findings = findings
        self._open: dict[int, int] = {}     # producer id -> first offset of its data since its last marker

    def again(self, findings: list[Finding]) -> Self:
        """Return a copy as of before the current segment, for a second check of it."""
        copy = type(self)(findings)
        copy._open = dict(self._open)
        return copy

    def begin(self, segment: Segment) -> None:
        """Read the segment's .txnindex before its .log is mapped, so that each entry's marker is in the map."""
        self._file = str(beside(segment.path, names.TRANSACTION_INDEX_SUFFIX))
        self._listed: dict[int, AbortedTransaction] = {}
        self._markers: set[int] = set()
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
            self._listed = {aborted.last_offset: aborted for aborted in index}

    def see(self, table: BatchTable) -> None:
        slot = survey.first_transactional(table)
        while slot >= 0:
            self._see_batch(table[slot])
            slot = survey.first_transactional(table, slot + 1)

    def _see_batch(self, batch: RecordBatch) -> None:
        if not batch.is_control:
            self._open.setdefault(batch.producer_id, batch.base_offset)
            return
        first = self._open.pop(batch.producer_id, None)
        try:
            aborted = any(record.key == ABORT_MARKER for record in batch)
        except UNREADABLE:      # the walk reports it
            return
        if not aborted:
            return
        self._markers.add(batch.last_offset)
        if first is not None and self._readable and batch.last_offset not in self._listed:
            self._findings.append(Finding(
                "txnindex_incomplete", self._file, offset=batch.last_offset,
                found="not listed", expected=f"producer {batch.producer_id}, offsets {first} to {batch.last_offset}"))

    def finish(self) -> None:
        """Report the listed transactions that have no marker in the segment."""
        for offset, aborted in self._listed.items():
            if offset not in self._markers:
                self._findings.append(Finding(
                    "txnindex_misleads", self._file, offset=offset,
                    found=f"producer {aborted.producer_id}, offsets {aborted.first_offset} to {offset}",
                    expected=f"an abort marker at offset {offset}"))
