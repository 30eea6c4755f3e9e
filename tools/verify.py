"""`seglog verify`: check whether a log is intact: a line for each finding, and what to do."""
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import click
from click.core import ParameterSource

from seglog.errors import SeglogError
from seglog.format import names
from seglog.named_tuple import NamedTuple
from seglog.state.checkpoints import TopicPartition
from seglog.verification.findings import Finding, Report, Severity
from seglog.verification.verify import LEVELS

from . import report as say
from .cli import Command
from .each_place import EachPlace, of_topics
from .findings import check, finding_text, fixes, has_unreadable, print_finding
from .losses import RecoveryLosses, losses_of, with_advice
from .options import (
    NumberType,
    config_option,
    json_option,
    metrics_option,
    paths_argument,
    progress_option,
    topic_option,
)
from .start_retention import StartRetention
from .targets import Place, log_dirs
from .textfile import Gauge, write_textfile

# Below this, the time taken says more about the start of Python than about the log.
_WORTH_TIMING_S = 1.0


# Findings of one kind that are shown of a partition.
_FOLD = 10
_SEVERITIES = [*Severity]


class _Row(NamedTuple):
    """What was found in one place."""

    place: Place
    report: Report
    losses: RecoveryLosses | None


@click.command(cls=Command, only_reads=True)
@paths_argument
@topic_option
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
@click.option("--summary", "only_summary", is_flag=True,
              help="Print only a line for each partition, and one for all: what is wrong, what the next start of a "
              "broker cuts, where readers fail then, and what a recovery would lose.")
@click.option("--all", "shows_all", is_flag=True,
              help=f"List every item. Without this, only {_FOLD} of a kind in each partition, and how many more; "
              "what the next start repairs only by its codes.")
@metrics_option
@config_option
@progress_option
@json_option
def command(
    paths: Sequence[Path], topics: Sequence[str], level: str, indexes: bool, witness: bool, witness_every: int | None,
    only_summary: bool, shows_all: bool, metrics_file: Path | None, settings: Sequence[tuple[str, str]],
    no_progress: bool, as_json: bool,
) -> int:
    """Check PATH against its checksums, its indexes, its checkpoints and itself. Changes nothing.

    Also checks what no checksum covers: offsets, sizes, epochs, and that every index entry leads to its batch.
    A directory that is being written to is checked as it was at one moment. If one of several partitions cannot be
    read, the others are still checked. Status 0: clean, or only notes; 1: errors or warnings; 7: something could not
    be read.

    Several PATHs may be the log dirs of one broker, or the directory above them.
    """
    if indexes:
        level_from = click.get_current_context().get_parameter_source("level")
        if witness or witness_every or level_from is ParameterSource.COMMANDLINE:
            raise click.UsageError("--indexes reads only batch headers: leave out --level and --witness")
        if only_summary or metrics_file:
            raise click.UsageError("--indexes lists index files: leave out --summary and --metrics")
        from .index_files import show_indexes  # the rebuilding of indexes comes with it

        return show_indexes(paths, dict(settings), topics=topics, no_progress=no_progress, as_json=as_json)
    began = time.monotonic()
    total = Report(path=", ".join(map(str, paths)), level=level)
    places = EachPlace(paths, as_json=as_json, topics=topics)
    commits = _commits(places)
    retention = StartRetention(dict(settings))
    report: Report | None = None
    rows: list[_Row] = []
    with places.progress("verifying", enabled=not no_progress) as progress:
        for place in places:
            with places.reading(place):
                report = check(
                    place, level, dict(settings), progress=progress.of(place),
                    witness_every=witness_every or int(witness),
                )
                committed = commits.get(place.topic_partition())
                if committed:
                    report.findings += _beyond_end(place, report.log_end_offset or 0, committed)
                losses = losses_of(report, place, dict(settings))
                report = with_advice(report, place, losses)
                deletion = retention.see(place)
                rows.append(_Row(place, report, losses))
                _add(total, report)
                places.unread += has_unreadable(report.findings)
                progress.wipe()
                if as_json:
                    for finding in () if only_summary else report.findings:
                        print_finding(place, finding)
                    if len(places) > 1 or only_summary:
                        say.print_json("partition", partition=place.name, **_sums(report), **_lost_fields(losses),
                                       **({} if deletion is None else {"retention_deletes": deletion.fields()}))
                elif not only_summary:
                    print("\n".join(_text(place, report, None if shows_all else _FOLD)))
        for place, finding in _missing(paths, topics):
            report = Report(str(place.directory), level, findings=[finding])
            rows.append(_Row(place, report, None))
            _add(total, report)
            progress.wipe()
            if as_json:
                if not only_summary:
                    print_finding(place, finding)
                say.print_json("partition", partition=place.name, **_sums(report))
            elif not only_summary:
                print("\n".join((say.paint(place.label, "bold") + "   missing", *finding_text(finding))))
    if metrics_file is not None:
        write_textfile(metrics_file, "verify", _gauges(rows, places.unread, time.monotonic() - began))
    if as_json:
        alone = report if len(places) == 1 and len(rows) == 1 else None
        say.print_json(
            "summary", level=level, partitions=len(places), **_sums(total), unread=places.unread,
            missing_partitions=sum(finding.code == "partition_missing" for finding in total.findings),
            witnessed=total.witnessed, log_start_offset=alone and alone.log_start_offset,
            log_end_offset=alone and alone.log_end_offset, suggest=[*fixes(total.findings, paths)],
        )
    else:
        if only_summary or (len(rows) > 1 and total.findings):
            print(_table(rows))
        print("\n".join(_verdict(total, paths, time.monotonic() - began, places.unread)))
        retention.show()
    return places.status(found=not total.ok)


def _commits(places: EachPlace) -> Mapping[TopicPartition | None, Mapping[str, int]]:
    """The committed offsets of groups by partition, as far as __consumer_offsets is here and can be read."""
    internal = [
        (place, where[0]) for place in places
        if (where := place.topic_partition()) is not None and where[0] in names.BROKER_TOPICS and place.only is None
    ]
    if not internal:
        return {}
    # Only here: all coordinators come with them, a third of the start-up time.
    from seglog.coordinators.stored_groups import StoredGroups
    from seglog.wire.internal_topics import OFFSETS_TOPIC

    stored = StoredGroups()
    for place, topic in internal:
        if topic == OFFSETS_TOPIC:
            # (Its own check reports what is wrong with it.)
            with suppress(SeglogError, OSError), place.open() as partition:
                stored.add_partition(partition.batches())
    found: dict[TopicPartition | None, dict[str, int]] = {}
    for name, group in stored.groups().items():
        for partition_of in group.offsets.partitions():
            commit = group.offsets.get(partition_of)
            if commit is not None:
                found.setdefault(partition_of, {})[name] = commit.offset
    return found


def _beyond_end(place: Place, log_end_offset: int, committed: Mapping[str, int]) -> list[Finding]:
    from seglog.verification.disk_check import commit_beyond_end

    return commit_beyond_end(place.directory, log_end_offset, committed)


def _missing(paths: Iterable[Path], topics: Sequence[str]) -> Iterable[tuple[Place, Finding]]:
    for path in paths:
        for log_dir in log_dirs(path):
            from seglog.verification.disk_check import missing_partitions  # it loads the records of Kafka's metadata

            for finding in missing_partitions(log_dir).values():
                place = Place(Path(finding.file), in_log_dir=True)
                if not topics or of_topics([place], topics):
                    yield place, finding


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


def _text(place: Place, report: Report, most: int | None) -> Iterable[str]:
    """`most`: findings of one kind that are shown; None: all."""
    start, end = report.log_start_offset or 0, report.log_end_offset or 0
    offsets = f"offsets {start:,}…{end - 1:,}" if end > start else "no offsets"
    yield say.paint(place.label, "bold") + "   " + "   ".join((
        say.count_of(report.segments, "segment"), say.size(report.size_bytes),
        say.count_of(report.batches, "batch", "batches"), offsets,
    ))
    seen = Counter[str]()
    folded = [] if most is None else [finding for finding in report.findings if finding.is_repaired]
    for finding in sorted(report.findings, key=lambda one: _SEVERITIES.index(one.severity)):
        if finding in folded:
            continue
        seen[finding.code] += 1
        if most is None or seen[finding.code] <= most:
            yield from finding_text(finding)
    if folded:
        codes = ", ".join(dict.fromkeys(finding.code for finding in folded))
        notes = say.count_of(len(folded), "note")
        yield f"{say.paint('·', 'dim')} {notes} that the next start repairs, shown by --all [{codes}]"
    for code, count in seen.items():
        if most is not None and count > most:
            yield f"  and {say.number(count - most)} more [{code}]: --all shows them"


def _table(rows: Sequence[_Row]) -> str:
    """A line for each partition, and one for all."""
    shown = []
    for place, report, losses in rows:
        counts = [say.count_of(report.count(one), str(one)) for one in Severity if report.count(one)]
        shown.append([
            place.label, say.number(report.batches), say.size(report.size_bytes), ", ".join(counts) or "clean",
            *_loss_cells(losses),
        ])
    known = [losses for _, _, losses in rows if losses is not None]
    sums = RecoveryLosses(
        sum(one.quarantine_records for one in known), sum(one.quarantine_bytes for one in known),
        sum(one.broker_records for one in known), sum(one.broker_bytes for one in known),
        all(one.is_exact for one in known),
    )
    bad = sum(not report.ok for _, report, _ in rows)
    shown.append([
        say.count_of(len(rows), "partition"), say.number(sum(report.batches for _, report, _ in rows)),
        say.size(sum(report.size_bytes for _, report, _ in rows)),
        f"{say.number(bad)} with errors or warnings" if bad else _in_order(rows), *_loss_cells(sums if known else None),
    ])
    head = ("partition", "batches", "size", "found", "a start cuts", "readers fail at", "quarantine would lose")
    return say.table(head, shown, left=(0, 3, 4, 6), total=True, optional=(4, 5, 6))


def _in_order(rows: Sequence[_Row]) -> str:
    """What is said of partitions of which nothing has to be repaired."""
    gone = sum(
        finding.last_offset - finding.offset + 1 for _, report, _ in rows for finding in report.findings
        if finding.code == "quarantined" and finding.offset is not None and finding.last_offset is not None
    )
    return f"all in order, but {say.count_of(gone, 'offset')} in quarantine" if gone else "all in order"


def _loss_cells(losses: RecoveryLosses | None) -> tuple[str, str, str]:
    """What a broker's start cuts, where readers fail then, and what a quarantine would lose."""
    if losses is None:
        return "", "", ""
    at_least = "" if losses.is_exact else "at least "
    return (
        "may fail to open it" if losses.broker_may_refuse else
        "nothing" if not losses.broker_bytes else
        f"{at_least}{say.count_of(losses.broker_records, 'record')}, {say.size(losses.broker_bytes)}",
        "" if losses.readers_fail_at is None else say.number(losses.readers_fail_at),
        f"{at_least}{say.count_of(losses.quarantine_records, 'record')}, {say.size(losses.quarantine_bytes)}",
    )


def _lost_fields(losses: RecoveryLosses | None) -> dict[str, object]:
    if losses is None:
        return {}
    return {
        "broker_loses": {"records": losses.broker_records, "bytes": losses.broker_bytes},
        "quarantine_loses": {"records": losses.quarantine_records, "bytes": losses.quarantine_bytes},
        "losses_are_exact": losses.is_exact, "start_checks_from": losses.start_checks_from,
        "readers_fail_at": losses.readers_fail_at,
    }


def _gauges(rows: Sequence[_Row], unread: int, seconds: float) -> Iterable[Gauge]:
    labelled = [(place.labels(), report, losses) for place, report, losses in rows]
    yield Gauge("seglog_verify_findings", "Findings by severity.", [
        ({**labels, "severity": str(severity)}, report.count(severity))
        for labels, report, _ in labelled for severity in Severity
    ])
    yield Gauge("seglog_verify_checked_bytes", "Bytes of .log files that were checked.", [
        (labels, report.size_bytes) for labels, report, _ in labelled
    ])
    yield Gauge("seglog_verify_lost_bytes", "Bytes of .log files that a recovery would truncate.", [
        ({**labels, "by": by}, size)
        for labels, _, losses in labelled
        for by, size in (
            ("broker", 0 if losses is None else losses.broker_bytes),
            ("quarantine", 0 if losses is None else losses.quarantine_bytes),
        )
    ])
    yield Gauge("seglog_verify_unread_partitions", "Partitions that could not be read.", [({}, unread)])
    yield Gauge("seglog_verify_duration_seconds", "How long it took.", [({}, round(seconds, 3))])


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
    suggested = fixes(total.findings, paths)
    for fix, codes in suggested.items():
        # With several, it is not plain which finding each is for.
        about = f" for {', '.join(codes)}" if len(suggested) > 1 else ""
        yield f"  try{about}: {fix}"
