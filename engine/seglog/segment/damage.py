"""What a walk over the batches of a segment says of bytes that are no batch, or one at a wrong offset."""
from pathlib import Path

from seglog._kernels.segment_scan import BatchTable, scan
from seglog._kernels.status import Status, words
from seglog._kernels.window import Window
from seglog.format.batch_layout import LAST_OFFSET_DELTA_POS, LOG_OVERHEAD, MAGIC_POS, SIZE_POS
from seglog.format.compression import Decompress
from seglog.segment.batches import first_offset_of
from seglog.segment.positions import LostRange

# `end_offset` of the last segment: no batch ends at the last int64.
NO_END = 2**63 - 1


def what_is_wrong(table: BatchTable, next_offset: int, end_offset: int) -> str:
    """Say what is wrong where the table's scan ended. Offsets from `next_offset` to before `end_offset` are expected.
    """
    if table.stop not in (Status.OFFSET_BACK, Status.OFFSET_AHEAD):
        return words(table.stop)
    found, expected = table.stop_details() or ("", "")
    if table.stop == Status.OFFSET_BACK:
        expected = f"expected {next_offset} or above"
    elif end_offset != NO_END:
        expected = f"the next segment begins at {end_offset}"
    return f"{words(table.stop)}: {found}, {expected}"


def lost_range(
    path: Path, window: Window, position: int, end: int, first_offset: int, reason: str, decompress: Decompress
) -> LostRange:
    """Make the range [position, end) of a .log, which is skipped. The batch that follows it, if there is one, tells
    how far its offsets reach."""
    following = next(iter(scan(window, end, max_batches=1, decompress=decompress)), None)
    return LostRange(
        file=str(path),
        position=position,
        size_bytes=end - position,
        first_offset=first_offset,
        last_offset=-1 if following is None else first_offset_of(following) - 1,
        reason=reason,
    )


def last_offset_of_final(raw: memoryview) -> int | None:
    """The last offset of a damaged batch by its header, if it is the last one of a .log whose bytes from there on these
    are; None if more may follow it, or if its header is not whole. The header may be what is damaged."""
    if len(raw) <= MAGIC_POS:
        return None
    size_bytes = int.from_bytes(raw[SIZE_POS:LOG_OVERHEAD], "big", signed=True) + LOG_OVERHEAD
    if size_bytes < len(raw):
        return None
    offset = int.from_bytes(raw[:SIZE_POS], "big", signed=True)
    if raw[MAGIC_POS] < 2:     # a message, or a wrapper, whose offset is that of its last message
        return offset
    if len(raw) < LAST_OFFSET_DELTA_POS + 4:
        return None
    delta = int.from_bytes(raw[LAST_OFFSET_DELTA_POS : LAST_OFFSET_DELTA_POS + 4], "big", signed=True)
    return offset + delta if delta >= 0 else None
