"""Checks, at level deep, that wrappers in a .tlog hold what their tags say: tag 32 how many messages, tag 1 the largest
time of one.

A message beyond tag 33 is damage (bad_records): readers refuse it. Makes one finding for each segment: usually the same
program wrote all such wrappers.
"""
from seglog._kernels.columns import Columns
from seglog._kernels.record_batch import RecordBatch
from seglog._kernels.segment_scan import BatchTable
from seglog._kernels.tag_list import contradicted, tags_of
from seglog.verification.findings import Finding
from seglog.verification.segment_finding import SegmentFinding

_LARGEST_MS, _COUNT, _TIMESTAMP_TYPE = 1, 32, 66


class TagCheck(SegmentFinding):
    """The check of the segment whose .tlog is `file`."""

    def __init__(self, file: str, findings: list[Finding]) -> None:
        super().__init__(file, findings, "wrappers")

    def see(self, table: BatchTable, first: int, columns: Columns) -> None:
        """Check the wrappers of the table from slot `first` on, whose messages these are."""
        count, slot, tag, actual = contradicted(table, columns.offset, columns.timestamp, first)
        if count:
            self._add(count, table[slot], tag, actual)

    def see_batch(self, batch: RecordBatch, records: int, largest: int) -> None:
        """Check one message or wrapper; it holds so many messages, the latest of which has the timestamp `largest`."""
        if not batch.codec:
            return
        tags = tags_of(batch)
        if tags.get(_COUNT, records) != records:
            self._add(1, batch, _COUNT, records)
        elif not tags.get(_TIMESTAMP_TYPE):
            stated = tags.get(_LARGEST_MS, largest)
            if isinstance(stated, int) and stated < largest:
                self._add(1, batch, _LARGEST_MS, largest)

    def _add(self, count: int, batch: RecordBatch, tag: int, actual: int) -> None:
        self.add(count, Finding(
            "tags_wrong", self.file, batch.position, batch.last_offset,
            found=f"tag {tag} is {tags_of(batch)[tag]!r}",
            expected=f"{actual}, as its messages say" if tag == _COUNT else f"at least {actual}"))
