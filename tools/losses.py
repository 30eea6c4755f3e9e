"""What a recovery of damaged partitions would lose: the advice that `seglog verify` gives with damage."""
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from seglog.errors import SeglogError
from seglog.upkeep.recover import Recovery, recover
from seglog.verification.findings import RECOVER, Finding, Report

from . import report as say
from .targets import Place

_COPY = "make a copy first"


def with_advice(report: Report, place: Place, settings: Mapping[str, object]) -> Report:
    """The report whose findings of damage say what `seglog recover` would lose, and what a broker.

    Costs two dry runs, and nothing if there is no damage. For a single segment, the findings stay as they are.
    """
    damage = [finding for finding in report.findings if finding.fix == RECOVER]
    if place.only is None and damage:
        advice = _advice(place, settings, damage)
        report.findings[:] = [_advised(finding, advice) for finding in report.findings]
    return report


def _advised(finding: Finding, advice: str) -> Finding:
    return replace(finding, advice=advice) if finding.fix == RECOVER else finding


def _advice(place: Place, settings: Mapping[str, object], damage: Sequence[Finding]) -> str:
    try:
        ours, brokers = (
            recover(place.directory, mode=mode, config=dict(settings)) for mode in ("quarantine", "truncate")
        )
    except (SeglogError, OSError):
        return ""       # what stops a recovery is a finding, or will be its error
    command = f"`seglog recover {shlex.quote(str(place.directory))} --mode quarantine --apply`"
    lost, at_brokers = _lost_records(ours, damage), _lost_records(brokers, damage)
    return f"{command} loses {lost} {'record' if lost == '1' else 'records'}; a broker would lose {at_brokers}; {_COPY}"


def _lost_records(recovery: Recovery, damage: Sequence[Finding]) -> str:
    """Count by the offsets of the lost ranges, and by a damaged batch's own header; `at least 5` if one has no end."""
    last_offsets = {(os.path.basename(finding.file), finding.position): finding.last_offset for finding in damage}
    count, at_least = 0, ""
    for lost in recovery.lost:
        last: int | None = lost.last_offset
        if lost.last_offset < 0:
            last = last_offsets.get((os.path.basename(lost.file), lost.position))
        if last is None:
            at_least = "at least "
        else:
            count += max(last - lost.first_offset + 1, 0)
    return at_least + say.number(count)
