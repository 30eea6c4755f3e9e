"""Judges whether an .index without entries can be right for its log; takes the walk's batches in order.

Kafka gives a batch an entry if more than index.interval.bytes of log are between it and the last entry. 2.8's cleaner
and replicas up to 4.0 decide this once for each append, and an append may have many batches: a segment written in one
append has no entries, however long it is. Other evidence: a leader appends v2 batches one by one; and the time index
gets an entry with each one of the offset index, besides those from a close or a roll of the log.

If the interval is not known, it may be far below its default: then a small segment needs entries, too. It is clean if
it has one batch, since the first one never gets an entry, or if its time index does not show that there were any.
"""
from bisect import bisect_right
from collections.abc import Sequence

from seglog._kernels import batch_survey as survey
from seglog._kernels.segment_scan import BatchTable
from seglog.segment.index_file import IndexFile

# Beyond this many intervals, a single append is unlikely, and so are this many closes within one interval.
MANY = 12

Times = Sequence[tuple[int, int]] | IndexFile


class EmptyIndex:
    """The judgement of one segment. `interval_bytes`: index.interval.bytes, or its default."""

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._first_end = base_offset - 1   # the last offset of the batches that begin within the first interval
        self._wanted_at: int | None = None  # the largest timestamp up to the first batch after it, which gets an entry
        self._largest = -1
        self._batches = 0
        self._records = 0
        self._next_offset = base_offset
        self._last_position = 0
        self._is_v2 = True

    def see(self, table: BatchTable) -> None:
        if self._wanted_at is None:
            within = bisect_right(range(len(table)), self._interval_bytes, key=lambda slot: table[slot].position)
            if within:
                self._first_end = table[within - 1].last_offset
            if within < len(table):
                self._wanted_at = max(self._largest, survey.largest_timestamp(table, 0, within + 1))
        self._largest = max(self._largest, survey.largest_timestamp(table, 0, -1))
        self._batches += len(table)
        for (magic, _), (_, _, records) in survey.tally(table).items():
            self._is_v2 &= magic not in (0, 1)
            self._records += records
        self._next_offset, self._last_position = table[-1].last_offset + 1, table[-1].position

    def judge(self, times: Times, *, interval_given: bool) -> str | None:
        """Return the finding's code, None if there is none. `times`: the time index's entries."""
        if self._wanted_at is None:
            return None if interval_given or self._never_had_entries(times) else "index_undecided"
        was_emptied = self._has_entry_of_no_close(times) or self._was_written_by_a_leader(times)
        if interval_given:
            was_emptied |= self._last_position > MANY * self._interval_bytes
        else:
            was_emptied &= len(times) > MANY    # the interval may be larger than its default
        return "index_empty" if was_emptied else "index_undecided"

    def _never_had_entries(self, times: Times) -> bool:
        """Whether this is so, for all that can be seen, of a segment within the default interval.

        An entry of the offset index brings one of the time index. A single one of these comes from a close or a roll.
        (Or it came with the last batch, if the interval was that large: a search then reads a few batches more.)
        Without timestamps there is nothing to judge by, and every such segment would have the note.
        """
        return self._batches <= 1 or self._largest < 0 or len(times) <= 1

    def _has_entry_of_no_close(self, times: Times) -> bool:
        """Whether there is a time entry, other than the last, that reaches beyond the first interval.

        A single append begins within that interval, and a log that is closed after it gets no further entry.
        """
        return len(times) > 1 and times[len(times) - 2][1] > self._first_end

    def _was_written_by_a_leader(self, times: Times) -> bool:
        """Whether it was appended batch by batch: v2 batches without gaps from the cleaner, and an early time entry.

        In v0 and v1, a producer's request with many messages is one append.
        """
        is_early = self._wanted_at is not None and not (len(times) and times[0][0] > self._wanted_at)
        return is_early and self._is_v2 and self._records == self._next_offset - self._base_offset
