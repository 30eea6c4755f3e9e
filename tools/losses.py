"""What a recovery of damaged partitions would lose: the advice that `seglog verify` gives with damage."""
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from seglog.errors import SeglogError
from seglog.reading.listing import settled_log_files
from seglog.segment.positions import LostRange
from seglog.state.directory_dialect import DIALECT_SETTING, directory_dialect
from seglog.verification.findings import RECOVER, REORDER, Finding, Report

from . import report as say
from .targets import Place

_COPY = "make a copy first"


# Bytes after the last batch, which both ways out remove: an unfinished write, and zeros that were never overwritten.
_TAILS = ("torn_tail", "zero_tail")


@dataclass(frozen=True, slots=True)
class RecoveryLosses:
    """What `seglog recover --mode quarantine` loses of damaged partitions, and what the next start of a broker does.

    Records and bytes of .log files. `is_exact`: else at least so many. `broker_may_refuse`: it may also fail to open
    the log, or keep it as it is. `start_checks_from`: a start looks for damage only from this offset on; None: nowhere,
    after a clean stop. `readers_fail_at`: the first damaged offset that is still in the log after a start, if any.
    """

    quarantine_records: int
    quarantine_bytes: int
    broker_records: int
    broker_bytes: int
    is_exact: bool
    broker_may_refuse: bool = False
    start_checks_from: int | None = 0
    readers_fail_at: int | None = None


def losses_of(report: Report, place: Place, settings: Mapping[str, object]) -> RecoveryLosses | None:
    """What `seglog recover` would lose of a partition with damage, and the next start of a broker. None if there is no
    damage, or if something stops a recovery. Costs two dry runs, unless only the tail is damaged."""
    damage = [finding for finding in report.findings if finding.fix in (RECOVER, REORDER)]
    tails = [finding for finding in report.findings if finding.code in _TAILS]
    if place.only is not None or not (damage or tails):
        return None
    # Only here: most logs have no damage, and it takes a fifth of the start-up time.
    from seglog.config import LogConfig
    from seglog.upkeep.recover import recover
    from seglog.verification.next_start import NextStart

    try:
        logs = settled_log_files(place.directory)
        start = NextStart(place.directory, [int(log.name.partition(".")[0]) for log in logs])
        if not damage:
            return _losses_of_tail(tails, start.checks_from)
        ours = recover(place.directory, mode="quarantine", config=dict(settings))
        dialect = directory_dialect(place.directory).dialect.name
        cuts = start.cuts(LogConfig.of({**settings, DIALECT_SETTING: dialect}))
    except (SeglogError, OSError):
        return None     # what stops a recovery is a finding, or will be its error
    left = [one for one in ours.lost if not _is_among(one, cuts)]
    quarantined, is_exact = _lost_records(ours.lost, [*damage, *tails])
    cut, is_cut_exact = _lost_records(cuts, [*damage, *tails])
    return RecoveryLosses(
        quarantined, ours.lost_bytes, cut, sum(one.size_bytes for one in cuts), is_exact and is_cut_exact,
        any(finding.fix == REORDER for finding in damage) or _fails_on_zeros(tails, start.checks_from),
        start.checks_from, min((one.first_offset for one in left), default=None),
    )


def _losses_of_tail(tails: Sequence[Finding], checks_from: int | None) -> RecoveryLosses:
    torn = [finding for finding in tails if finding.code == "torn_tail"]
    records = sum(one.last_offset - (one.offset or 0) + 1 for one in torn if one.last_offset is not None)
    size_bytes = sum(finding.size_bytes or 0 for finding in tails)
    is_exact = all(one.last_offset is not None for one in torn)
    cut = (0, 0) if checks_from is None else (records, size_bytes)
    return RecoveryLosses(records, size_bytes, *cut, is_exact, _fails_on_zeros(tails, checks_from), checks_from)


def _fails_on_zeros(tails: Sequence[Finding], checks_from: int | None) -> bool:
    """The start after a clean stop fails on zeros after the last batch."""
    return checks_from is None and any(finding.code == "zero_tail" for finding in tails)


def _is_among(lost: LostRange, cuts: Sequence[LostRange]) -> bool:
    """Whether a range of damage is within what a start cuts."""
    name = os.path.basename(lost.file)
    return any(os.path.basename(cut.file) == name and cut.position <= lost.position for cut in cuts)


def with_advice(report: Report, place: Place, losses: RecoveryLosses | None) -> Report:
    """The report whose findings of damage say what `seglog recover` would lose, and what a broker's start does."""
    if losses is not None:
        command = f"`seglog recover {shlex.quote(str(place.directory))} --mode quarantine --apply`"
        ours = (
            f"{command} loses {records_text(losses.quarantine_records, losses)} "
            f"{'record' if losses.quarantine_records == 1 and losses.is_exact else 'records'}"
        )
        advice = f"{ours}; {_at_start(losses)}; {_COPY}"
        report.findings[:] = [_advised(finding, advice) for finding in report.findings]
    return report


def _at_start(losses: RecoveryLosses) -> str:
    if losses.broker_may_refuse:
        return "a broker may fail to open the log, or serve it as it is"
    fails = "" if losses.readers_fail_at is None else f"readers fail at offset {say.number(losses.readers_fail_at)}"
    if losses.broker_bytes:
        still = f", and {fails}" if fails else ""
        return f"a broker would lose {records_text(losses.broker_records, losses)}{still}"
    why = (
        "after a clean stop, a broker's start checks nothing" if losses.start_checks_from is None else
        f"a broker's start checks only from offset {say.number(losses.start_checks_from)} on"
    )
    if not fails:       # a batch with a magic above 2: a broker reads it as one with 2
        return "a broker leaves this as it is"
    return f"{why}: it cuts nothing, and {fails}"


def records_text(count: int, losses: RecoveryLosses) -> str:
    return ("" if losses.is_exact else "at least ") + say.number(count)


def _advised(finding: Finding, advice: str) -> Finding:
    return replace(finding, advice=advice) if finding.fix in (RECOVER, REORDER) else finding


def _lost_records(ranges: Iterable[LostRange], damage: Sequence[Finding]) -> tuple[int, bool]:
    """Count by the offsets of the lost ranges, and by a damaged batch's own header; whether that is all: a range may
    have no end."""
    last_offsets = {
        (os.path.basename(finding.file), finding.position):
        (finding.offset or 0) - 1 if finding.code == "zero_tail" else finding.last_offset for finding in damage
    }
    count, is_exact = 0, True
    for lost in ranges:
        last: int | None = lost.last_offset
        if lost.last_offset < 0:
            last = last_offsets.get((os.path.basename(lost.file), lost.position))
        if last is None:
            is_exact = False
        else:
            count += max(last - lost.first_offset + 1, 0)
    return count, is_exact
