"""Checks, at level deep, that no record of a v2 batch is later than its header says, which searches by time trust.

The opposite is no damage: a batch of which compaction removed the latest record keeps its time. Makes one finding for
each segment: usually the same program wrote all such batches.
"""
from seglog._kernels import batch_survey as survey
from seglog._kernels.columns import Columns
from seglog._kernels.record_batch import RecordBatch
from seglog._kernels.segment_scan import BatchTable
from seglog.verification.findings import Finding
from seglog.verification.segment_finding import SegmentFinding


class BatchTimeCheck(SegmentFinding):
    """The check of the segment whose .log is `file`."""

    def __init__(self, file: str, findings: list[Finding]) -> None:
        super().__init__(file, findings, "batches")

    def see(self, table: BatchTable, first: int, columns: Columns) -> None:
        """Check the batches of the table from slot `first` on, whose records these are."""
        count, slot, largest = survey.later_than_header(table, columns.offset, columns.timestamp, first)
        if count:
            self._add(count, table[slot], largest)

    def see_batch(self, batch: RecordBatch, largest: int) -> None:
        """Check one batch; its latest record has the timestamp `largest`."""
        if batch.magic == 2 and largest > batch.max_timestamp:
            self._add(1, batch, largest)

    def _add(self, count: int, batch: RecordBatch, largest: int) -> None:
        self.add(count, Finding(
            "batch_time", self.file, batch.position, batch.last_offset,
            found=f"timestamp {batch.max_timestamp}", expected=f"at least {largest}"))
