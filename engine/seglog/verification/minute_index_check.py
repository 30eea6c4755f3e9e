"""Checks a segment's minute index (docs/formats/minute_index.md) against its log; takes the walk's batches in order.

Each entry must name a batch with the largest timestamp so far, in a later minute than the entry before. A search skips
an entry that does not, so a wrong file costs time but never gives a wrong answer.
"""
from seglog._kernels import batch_survey as survey
from seglog._kernels.segment_scan import BatchTable
from seglog.errors import CorruptIndexError, StorageError
from seglog.fs.mapping import read_file
from seglog.segment.index_file import MINUTE_MS, MinuteIndex, minute_index_path
from seglog.segment.segment import Segment
from seglog.verification.findings import Finding


class MinuteIndexCheck:
    """The check of one segment; its file, if any, is read at creation."""

    def __init__(self, segment: Segment, findings: list[Finding]) -> None:
        self._path = minute_index_path(segment.path)
        self._findings = findings
        self._entries: list[tuple[int, int]] = []
        self._slot = 0
        self._largest = -1
        self._wrong: list[int] = []
        try:
            index = MinuteIndex(read_file(self._path), segment.base_offset, path=self._path)
        except FileNotFoundError:
            return
        except StorageError as e:
            self._find("unreadable", None, e.what)
            return
        except CorruptIndexError as e:
            self._find("minuteindex_corrupt", e.position, e.what)
            return
        if index.preallocated_bytes:
            self._find("minuteindex_corrupt", len(index) * index.ENTRY_SIZE, f"{index.preallocated_bytes} zero bytes")
        self._entries = list(index)

    def see(self, table: BatchTable) -> None:
        """Take the next batches of the segment."""
        seen = 0
        while self._slot < len(self._entries):
            timestamp, offset = self._entries[self._slot]
            batch_slot = table.find_offset(offset, seen)
            if batch_slot < 0:
                break
            self._largest = max(self._largest, survey.largest_timestamp(table, seen, batch_slot + 1))
            batch = table[batch_slot]
            is_later = self._slot == 0 or timestamp // MINUTE_MS > self._entries[self._slot - 1][0] // MINUTE_MS
            if batch.last_offset != offset or not batch.max_timestamp == timestamp == self._largest or not is_later:
                self._wrong.append(self._slot)
            seen = batch_slot       # the next entry may name the same batch, wrongly
            self._slot += 1
        self._largest = max(self._largest, survey.largest_timestamp(table, seen, -1))

    def finish(self, *, is_damaged: bool) -> None:
        """Report the findings. `is_damaged`: parts of the log are damaged; entries that point into them are ignored."""
        self._wrong += range(self._slot, len(self._entries))
        if self._wrong and not is_damaged:
            slot = self._wrong[0]
            more = f", and {len(self._wrong) - 1} more" if len(self._wrong) > 1 else ""
            found = f"entry {slot} {self._entries[slot]}{more}"
            self._find("minuteindex_misleads", slot * MinuteIndex.ENTRY_SIZE, found)

    def _find(self, code: str, position: int | None, found: str) -> None:
        self._findings.append(Finding(code, str(self._path), position, found=found))
