"""The findings in a place, and how they are printed: for `seglog verify` with and without --indexes."""
import os
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

from seglog.verification.findings import Finding, Report, Severity
from seglog.verification.log_check import Level
from seglog.verification.verify import verify_partition

from . import report as say
from .targets import Place

_MARKS = {Severity.ERROR: ("✗", "red"), Severity.WARNING: ("!", "yellow"), Severity.NOTE: ("·", "dim")}


def has_unreadable(findings: Iterable[Finding]) -> bool:
    """Whether one of them says that a file could not be read."""
    return any(finding.code == "unreadable" for finding in findings)


def check(
    place: Place, level: str, settings: dict[str, object], *, progress: Callable[[int, int], None],
    witness_every: int = 0,
) -> Report:
    """Return the report on a place; for one segment only what concerns its own files."""
    with place.open(settings) as partition:
        report = verify_partition(
            partition, level=cast(Level, level), progress=progress, given=settings,
            witness_every=witness_every,
        )
    if place.only is not None:
        base = place.only.stem
        report.findings[:] = [f for f in report.findings if os.path.basename(f.file).startswith(base)]
    return report


def print_finding(place: Place, finding: Finding) -> None:
    say.print_json(
        "finding", code=finding.code, severity=str(finding.severity), partition=place.name, file=finding.file,
        position=finding.position, offset=finding.offset, last_offset=finding.last_offset, size=finding.size_bytes,
        meaning=finding.meaning, found=finding.found or None, expected=finding.expected or None, fix=finding.fix,
    )


def fixes(findings: Iterable[Finding], paths: Iterable[Path]) -> dict[str, list[str]]:
    """Return what to do, without repetition, for the worst first, and for which codes; commands include the paths to
    work on."""
    order = list(Severity)
    where = shlex.join(map(str, paths))
    said: dict[str, list[str]] = {}
    for finding in sorted(findings, key=lambda f: order.index(f.severity)):
        fix = f"{finding.fix} {where}" if finding.fix.startswith("seglog ") else finding.fix
        codes = said.setdefault(fix, [])
        if finding.code not in codes:
            codes.append(finding.code)
    return said


def finding_text(finding: Finding) -> Iterable[str]:
    """Say where and what, then what was found and expected."""
    mark, colour = _MARKS[finding.severity]
    where = [os.path.basename(finding.file)]
    if finding.position is not None:
        where.append(f"byte {finding.position:,}" + (f" ({finding.size_bytes:,} B)" if finding.size_bytes else ""))
    if finding.offset is not None:
        last = finding.last_offset
        many = last is not None and last > finding.offset
        where.append(f"offset {finding.offset:,}" + (f"…{last:,}" if many else ""))
    yield f"{say.paint(mark, colour)} {', '.join(where)}: {finding.meaning} [{finding.code}]"
    facts = [f"{name} {text}" for name, text in (("found", finding.found), ("expected", finding.expected)) if text]
    if facts:
        yield f"    {', '.join(facts)}"
