"""Reads the rows of parts for a table, and counts what their source has lost, and what could not be decoded."""
from collections.abc import Iterator, Sequence

from seglog._kernels.topic_rows import TopicRows
from seglog.frames.options import OFFSET_MAX
from seglog.frames.part import ScanPart
from seglog.frames.rows import RowScan
from seglog.frames.typed.typed_rows import TypedRows
from seglog.logger import Logger
from seglog.segment.positions import LostRange

_LOG = Logger(__name__)


class RowLosses:
    """Reads the rows of parts, and warns of what their source has lost of the offsets asked for."""

    def __init__(self, parts: Sequence[ScanPart], scan: RowScan) -> None:
        self._parts = parts
        self._scan = scan
        self._spans: list[tuple[int, int]] = []     # first and stop offset, in order; not yet counted

    def batches(self) -> Iterator[TopicRows | TypedRows]:
        """The rows of all parts. `scan.lost` gets what is lost, `scan.undecodable` what could not be decoded."""
        for part in self._parts:
            found: list[LostRange] = []
            for rows in part.batches(found):
                self._take(part, found)
                self._scan._undecodable.update(rows.undecodable)
                yield rows
            self._take(part, found)

    def before(self, stop: int) -> int:
        """How many offsets below `stop` are lost that were not counted yet."""
        count, counted = 0, 0
        for first, end in self._spans:
            count += max(0, min(end, stop) - max(first, counted))
            counted = max(counted, min(end, stop))
        self._spans = [(max(first, stop), end) for first, end in self._spans if end > stop]
        return count

    def _take(self, part: ScanPart, found: list[LostRange]) -> None:
        for lost in found:
            first, stop = lost_offsets(part, lost)
            if first >= stop:
                continue
            reason = lost.reason
            if lost.size_bytes:
                named = f"offsets {first} to {stop - 1}" if stop < OFFSET_MAX else f"the offsets from {first} on"
                reason = f"{named} were skipped at byte {lost.position}: {reason}"
            _LOG.warning("%s: %s; the table lacks them", lost.file, reason)
            self._scan._lost.append(lost)
            self._spans.append((first, stop))
        found.clear()


def lost_offsets(part: ScanPart, lost: LostRange) -> tuple[int, int]:
    """First and stop offset of what the part should have had of a lost range; nothing if first >= stop."""
    first, stop = lost.first_offset, lost.last_offset + 1
    if lost.size_bytes:     # a scan that skips damage walks the whole segment
        stop = part.stop_offset if lost.last_offset < 0 else min(stop, part.stop_offset)
        first = max(first, part.start_offset)
    return first, stop
