"""What a recovery of damaged partitions would lose: the advice that `seglog verify` gives with damage."""
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from seglog.errors import SeglogError
from seglog.verification.findings import RECOVER, REORDER, Finding, Report

from . import report as say
from .targets import Place

if TYPE_CHECKING:
    from seglog.upkeep.recover import Recovery

_COPY = "make a copy first"


# Bytes after the last batch, which both ways out remove: an unfinished write, and zeros that were never overwritten.
_TAILS = ("torn_tail", "zero_tail")


@dataclass(frozen=True, slots=True)
class RecoveryLosses:
    """What the two ways out of damage lose: records and bytes of .log files. `is_exact`: else at least so many.
    `broker_may_refuse`: it may also fail to open the log, or keep it as it is."""

    quarantine_records: int
    quarantine_bytes: int
    broker_records: int
    broker_bytes: int
    is_exact: bool
    broker_may_refuse: bool = False


def losses_of(report: Report, place: Place, settings: Mapping[str, object]) -> RecoveryLosses | None:
    """What `seglog recover` would lose of a partition with damage, and what a broker. None if nothing would be
    truncated, or if something stops a recovery. Costs two dry runs, unless only the tail goes."""
    damage = [finding for finding in report.findings if finding.fix in (RECOVER, REORDER)]
    if place.only is not None:
        return None
    if not damage:
        return _losses_of_tail([finding for finding in report.findings if finding.code in _TAILS])
    from seglog.upkeep.recover import recover  # most logs have no damage, and it takes a fifth of the start-up time

    try:
        ours, brokers = (
            recover(place.directory, mode=mode, config=dict(settings)) for mode in ("quarantine", "truncate")
        )
    except (SeglogError, OSError):
        return None     # what stops a recovery is a finding, or will be its error
    quarantined, is_exact = _lost_records(ours, damage)
    cut, is_cut_exact = _lost_records(brokers, damage)
    return RecoveryLosses(
        quarantined, ours.lost_bytes, cut, brokers.lost_bytes, is_exact and is_cut_exact,
        any(finding.fix == REORDER for finding in damage),
    )


def _losses_of_tail(tails: Sequence[Finding]) -> RecoveryLosses | None:
    if not tails:
        return None
    torn = [finding for finding in tails if finding.code == "torn_tail"]
    records = sum(one.last_offset - (one.offset or 0) + 1 for one in torn if one.last_offset is not None)
    size_bytes = sum(finding.size_bytes or 0 for finding in tails)
    is_exact = all(one.last_offset is not None for one in torn)
    return RecoveryLosses(records, size_bytes, records, size_bytes, is_exact)


def with_advice(report: Report, place: Place, losses: RecoveryLosses | None) -> Report:
    """The report whose findings of damage say what `seglog recover` would lose, and what a broker."""
    if losses is not None:
        command = f"`seglog recover {shlex.quote(str(place.directory))} --mode quarantine --apply`"
        ours = (
            f"{command} loses {records_text(losses.quarantine_records, losses)} "
            f"{'record' if losses.quarantine_records == 1 and losses.is_exact else 'records'}"
        )
        broker = f"a broker would lose {records_text(losses.broker_records, losses)}"
        if losses.broker_may_refuse:
            broker = "a broker may fail to open the log, or serve it as it is"
        advice = f"{ours}; {broker}; {_COPY}"
        report.findings[:] = [_advised(finding, advice) for finding in report.findings]
    return report


def records_text(count: int, losses: RecoveryLosses) -> str:
    return ("" if losses.is_exact else "at least ") + say.number(count)


def _advised(finding: Finding, advice: str) -> Finding:
    return replace(finding, advice=advice) if finding.fix in (RECOVER, REORDER) else finding


def _lost_records(recovery: "Recovery", damage: Sequence[Finding]) -> tuple[int, bool]:
    """Count by the offsets of the lost ranges, and by a damaged batch's own header; whether that is all: a range may
    have no end."""
    last_offsets = {(os.path.basename(finding.file), finding.position): finding.last_offset for finding in damage}
    count, is_exact = 0, True
    for lost in recovery.lost:
        last: int | None = lost.last_offset
        if lost.last_offset < 0:
            last = last_offsets.get((os.path.basename(lost.file), lost.position))
        if last is None:
            is_exact = False
        else:
            count += max(last - lost.first_offset + 1, 0)
    return count, is_exact
