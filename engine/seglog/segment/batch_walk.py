"""The batch headers of a segment from some position on. Damage ends the walk, or is reported and skipped."""
from collections.abc import Callable, Iterator
from pathlib import Path

from seglog._kernels.segment_scan import BatchFinder, BatchTable, scan
from seglog._kernels.status import Status, words
from seglog._kernels.window import Window
from seglog.errors import CorruptRecordError
from seglog.format.compression import Decompress
from seglog.segment.answers import LostRange
from seglog.segment.batches import SCAN_BYTES, begins_at, first_offset_of

# `end_offset` of the last segment: no batch ends at the last int64.
NO_END = 2**63 - 1


class BatchWalk:
    """A walk over the .log at `path`, mapped in `window`, whose offsets are in [base_offset, end_offset).

    `is_last`: an incomplete batch, or zero bytes after the last batch, end the data.
    """

    __slots__ = ("_base_offset", "_decompress", "_end_offset", "_is_last", "_path", "_window")

    def __init__(
        self, path: Path, window: Window, decompress: Decompress, *, base_offset: int, end_offset: int, is_last: bool
    ) -> None:
        self._path = path
        self._window = window
        self._decompress = decompress
        self._base_offset = base_offset
        self._end_offset = end_offset
        self._is_last = is_last

    def tables(
        self, position: int, check_crc: bool, max_batches: int, max_bytes: int,
        on_lost: Callable[[LostRange], None] | None,
    ) -> Iterator[BatchTable]:
        """Do Segment.tables, which describes the arguments."""
        window = self._window
        decompress = self._decompress
        size = len(window)
        finder = BatchFinder(window)
        next_offset = self._base_offset
        lost: LostRange | None = None
        while position < size:
            table = scan(
                window, position, check_crc=check_crc, max_batches=max_batches,
                max_bytes=max_bytes or (SCAN_BYTES if check_crc else -1), min_offset=next_offset,
                end_offset=self._end_offset, decompress=decompress,
            )
            if len(table):
                if lost is not None and on_lost is not None:
                    on_lost(lost)
                    lost = None
                next_offset = table[-1].last_offset + 1
                yield table
            position = table.end
            if table.stop in (Status.OK, Status.LIMIT):
                continue
            if table.stop == Status.OFFSET_AHEAD and begins_at(window, position, next_offset, decompress):
                table = scan(window, position, check_crc=check_crc, max_batches=1, decompress=decompress)
                yield table     # this wrapper is right: the one after it is not
                next_offset = table[0].last_offset + 1
                position = table.end
                continue
            resume = finder.behind(table, next_offset)
            if resume < 0 and self._is_last and table.stop in (Status.SHORT, Status.ZEROS):
                break       # the unfinished write
            reason = self._what(table, next_offset)
            if on_lost is None:
                raise CorruptRecordError(reason, file=self._path, position=position, offset=next_offset)
            start = position
            if lost is not None:        # one range with what was lost just before
                start = lost.position
                reason = lost.reason
            position = size if resume < 0 else resume
            lost = self._lost(start, position, next_offset, reason)
        if lost is not None and on_lost is not None:
            on_lost(lost)

    def _lost(self, position: int, end: int, first_offset: int, reason: str) -> LostRange:
        following = next(iter(scan(self._window, end, max_batches=1, decompress=self._decompress)), None)
        return LostRange(
            file=str(self._path),
            position=position,
            size_bytes=end - position,
            first_offset=first_offset,
            last_offset=-1 if following is None else first_offset_of(following) - 1,
            reason=reason,
        )

    def _what(self, table: BatchTable, next_offset: int) -> str:
        """Say what is wrong where the table's scan ended."""
        if table.stop not in (Status.OFFSET_BACK, Status.OFFSET_AHEAD):
            return words(table.stop)
        found, expected = table.stop_details() or ("", "")
        if table.stop == Status.OFFSET_BACK:
            expected = f"expected {next_offset} or above"
        elif self._end_offset != NO_END:
            expected = f"the next segment begins at {self._end_offset}"
        return f"{words(table.stop)}: {found}, {expected}"
