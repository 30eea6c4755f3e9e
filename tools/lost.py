"""What a reader of records says of those that it did not get, and when that is status 7."""
from collections.abc import Iterable, Sequence
from pathlib import Path

from seglog.segment.positions import LostRange
from seglog.state.quarantine import offsets_within, quarantined_offsets

from . import report


def note_lost(lost: Sequence[LostRange]) -> None:
    """Say on stderr what was skipped, and which offsets the log does not have."""
    skipped = sum(1 for one in lost if one.size_bytes)
    if skipped:
        report.note(f"{report.count_of(skipped, 'range')} of bytes skipped: `seglog verify` says what is wrong there")
    for words, ranges in (
        ("in quarantine: a recovery took them out", [one for one in lost if _is_quarantined(one)]),
        ("in no segment: `seglog verify` says more", [one for one in _gaps(lost) if not _is_quarantined(one)]),
    ):
        if ranges:
            offsets = [(one.first_offset, one.last_offset) for one in ranges]
            report.note(f"offsets {report.ranges(offsets)} are {words}")


def is_partial(lost: Iterable[LostRange]) -> bool:
    """Whether something could not be read. What a recovery has taken out is no part of the log any more."""
    return any(not _is_quarantined(one) for one in lost)


def _gaps(lost: Iterable[LostRange]) -> Iterable[LostRange]:
    return (one for one in lost if not one.size_bytes)


def _is_quarantined(lost: LostRange) -> bool:
    """Whether all offsets of a gap are in the quarantine of its partition."""
    if lost.size_bytes:
        return False
    within = offsets_within(quarantined_offsets(Path(lost.file).parent), lost.first_offset, lost.last_offset)
    return within == [(lost.first_offset, lost.last_offset)]
