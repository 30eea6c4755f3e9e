"""`seglog verify`: check whether a log is intact: a line for each finding, and what to do."""
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from seglog.verification.findings import Report, Severity
from seglog.verification.verify import LEVELS

from . import report as say
from .cli import Command
from .each_place import EachPlace
from .findings import check, finding_text, fixes, has_unreadable, print_finding
from .index_files import show_indexes
from .losses import with_advice
from .options import NumberType, config_option, json_option, paths_argument, progress_option
from .targets import Place

# Below this, the time taken says more about the start of Python than about the log.
_WORTH_TIMING_S = 1.0


@click.command(cls=Command, only_reads=True)
@paths_argument
@click.option(
    "--level", type=click.Choice(LEVELS), default="crc", show_default=True,
    help="headers: only batch headers; crc: also every checksum; deep: also every record, decompressed.",
)
@click.option(
    "--indexes", is_flag=True,
    help="Only check that every index entry leads to its batch and that every index is complete, and list each index "
    "file. Of the log, read only batch headers.",
)
@click.option(
    "--witness", is_flag=True,
    help="Read everything a second time in plain Python, which shares no code with the first reader, and compare. "
    "Slow: a few MB/s. Needs seglog[witness].",
)
@click.option(
    "--witness-every", metavar="N", type=NumberType(1),
    help="Read only every Nth segment of each partition, and the last one, a second time.",
)
@config_option
@progress_option
@json_option
def command(
    paths: Sequence[Path], level: str, indexes: bool, witness: bool, witness_every: int | None,
    settings: Sequence[tuple[str, str]], no_progress: bool, as_json: bool,
) -> int:
    """Check PATH against its checksums, its indexes, its checkpoints and itself. Changes nothing.

    Also checks what no checksum covers: offsets, sizes, epochs, and that every index entry leads to its batch.
    A directory that is being written to is checked as it was at one moment. If one of several partitions cannot be
    read, the others are still checked. Status 0: clean, or only notes; 1: errors or warnings; 7: something could not
    be read.
    """
    if indexes:
        level_from = click.get_current_context().get_parameter_source("level")
        if witness or witness_every or level_from is ParameterSource.COMMANDLINE:
            raise click.UsageError("--indexes reads only batch headers: leave out --level and --witness")
        return show_indexes(paths, dict(settings), no_progress=no_progress, as_json=as_json)
    began = time.monotonic()
    total = Report(path=", ".join(map(str, paths)), level=level)
    places = EachPlace(paths, as_json=as_json)
    report: Report | None = None
    with places.progress("verifying", enabled=not no_progress) as progress:
        for place in places:
            with places.reading(place):
                report = check(
                    place, level, dict(settings), progress=progress.of(place),
                    witness_every=witness_every or int(witness),
                )
                report = with_advice(report, place, dict(settings))
                _add(total, report)
                places.unread += has_unreadable(report.findings)
                progress.wipe()
                if as_json:
                    for finding in report.findings:
                        print_finding(place, finding)
                    if len(places) > 1:
                        say.print_json("partition", partition=place.name, **_sums(report))
                else:
                    print("\n".join(_text(place, report)))
    if as_json:
        alone = report if len(places) == 1 else None
        say.print_json(
            "summary", level=level, partitions=len(places), **_sums(total), unread=places.unread,
            witnessed=total.witnessed, log_start_offset=alone and alone.log_start_offset,
            log_end_offset=alone and alone.log_end_offset, suggest=fixes(total.findings, paths),
        )
    else:
        print("\n".join(_verdict(total, paths, time.monotonic() - began, places.unread)))
    return places.status(found=not total.ok)


def _add(total: Report, report: Report) -> None:
    total.segments += report.segments
    total.witnessed += report.witnessed
    total.size_bytes += report.size_bytes
    total.batches += report.batches
    total.records += report.records
    total.findings += report.findings


def _sums(report: Report) -> dict[str, object]:
    return {
        "ok": report.ok, "segments": report.segments, "bytes": report.size_bytes, "batches": report.batches,
        "records": report.records, "errors": report.count(Severity.ERROR), "warnings": report.count(Severity.WARNING),
        "notes": report.count(Severity.NOTE),
    }


# --- text --------------------------------------------------------------------------------


def _text(place: Place, report: Report) -> Iterable[str]:
    start, end = report.log_start_offset or 0, report.log_end_offset or 0
    offsets = f"offsets {start:,}…{end - 1:,}" if end > start else "no offsets"
    yield say.paint(place.name, "bold") + "   " + "   ".join((
        say.count_of(report.segments, "segment"), say.size(report.size_bytes),
        say.count_of(report.batches, "batch", "batches"), offsets,
    ))
    for finding in report.findings:
        yield from finding_text(finding)


def _verdict(total: Report, paths: Iterable[Path], seconds: float, unread: int) -> Iterable[str]:
    counts = [
        say.count_of(total.count(severity), str(severity)) for severity in Severity if total.count(severity)
    ]
    took = f" in {say.duration(1000 * seconds)} ({say.size(total.size_bytes / seconds)}/s)"
    timing = took if seconds > _WORTH_TIMING_S else ""
    if total.witnessed:
        timing += f"; {say.count_of(total.witnessed, 'segment')} read a second time by plain Python"
    if unread:
        counts.append(f"{say.count_of(unread, 'partition')} not read, or not completely")
    if not counts:
        yield f"{say.paint('clean', 'green')}, checked to level {total.level}{timing}"
        return
    yield f"{', '.join(counts)}{timing}"
    for fix in fixes(total.findings, paths):
        yield f"  try: {fix}"
