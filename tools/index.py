"""`seglog index check | rebuild | stats`: check the index files of a log, or write them from it."""
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from functools import partial
from operator import attrgetter
from pathlib import Path

import click

from seglog.errors import CorruptIndexError, LogLockedError, StorageError, UnsupportedVersionError
from seglog.format import names
from seglog.segment.column_stats import read_column_stats
from seglog.segment.segment import Segment
from seglog.upkeep.column_stats import write_column_stats
from seglog.upkeep.index_rebuild import Progress, RebuiltIndex, RefusedSegment, rebuild_indexes
from seglog.verification.findings import Finding, Severity

from . import report, verify
from .cli import Command
from .each_place import EachPlace
from .options import config_option, json_option, paths_argument, progress_option
from .targets import Place


@click.group(name="index")
def command() -> None:
    """Check the index files, or rebuild them from the log.

    An index can always be rebuilt from its log. If one is missing, torn or wrong, a broker rebuilds it at its next
    unclean start, but trusts it at a clean start.
    """


# --- check -------------------------------------------------------------------------------

# How to read the file of a Segment, by suffix.
_READ_AS: Mapping[str, Callable[[Segment], Sized | None]] = {
    names.OFFSET_INDEX_SUFFIX: attrgetter("offset_index"), names.TIME_INDEX_SUFFIX: attrgetter("time_index"),
    names.MINUTE_INDEX_SUFFIX: attrgetter("minute_index"),
    names.TRANSACTION_INDEX_SUFFIX: attrgetter("transaction_index"),
    names.TIME_RANGES_SUFFIX: attrgetter("time_ranges"),
    names.COLUMN_STATS_SUFFIX: lambda segment: read_column_stats(segment.path),
    names.TAGGED_INDEX_SUFFIX: attrgetter("offset_index"),
}
_SUFFIXES = tuple(_READ_AS)


@command.command(cls=Command)
@paths_argument
@config_option
@progress_option
@json_option
def check(paths: Sequence[Path], settings: Sequence[tuple[str, str]], no_progress: bool, as_json: bool) -> int:
    """Check that every index entry leads to its batch, and that every index is complete. Changes nothing.

    This is the part of `seglog verify` that checks .index, .timeindex and .txnindex; of the log it reads only batch
    headers. An entry may have the first offset of its batch (Kafka up to 1.1) or the last (since 2.0): both are valid.
    Status as for `seglog verify`: 0 if there are only notes, 7 if something could not be read.
    """
    files = clean = 0
    found: list[Finding] = []
    places = EachPlace(paths, as_json=as_json)
    with places.progress("checking", enabled=not no_progress) as progress:
        for place in places:
            with places.reading(place):
                indexes, findings = _look_at(place, dict(settings), progress.of(place))
                found += findings
                places.unread += verify.has_unreadable(findings)
                files += len(indexes)
                clean += sum(_is_clean(_about(path, findings)) for path, _, _ in indexes)
                progress.wipe()
                if as_json:
                    for path, entries, size in indexes:
                        about = _about(path, findings)
                        report.print_json(
                            "index", partition=place.name, file=path, entries=entries, size=size, ok=_is_clean(about),
                            codes=[f.code for f in about],
                        )
                    for finding in findings:
                        verify.print_finding(place, finding)
                else:
                    print("\n".join(_check_text(place, indexes, findings)))
    suggest = verify.fixes(found, paths)
    ok = _is_clean(found)
    if as_json:
        report.print_json(
            "summary", ok=ok, indexes=files, clean=clean, findings=len(found), unread=places.unread, suggest=suggest
        )
    else:
        print(f"{report.count_of(files, 'index file')}, {clean} clean, {report.count_of(len(found), 'finding')}")
        for fix in suggest:
            print(f"  try: {fix}")
    return places.status(found=not ok)


def _look_at(
    place: Place, settings: dict[str, object], progress: Progress
) -> tuple[list[tuple[Path, int | None, int]], list[Finding]]:
    """Return the index files of a place, in the form of `_indexes_of`, and the findings in them."""
    whole = verify.check(place, "headers", settings, progress=progress)
    with place.open(settings) as partition:
        indexes = [index for segment in partition.segments for index in _indexes_of(segment)]
    return indexes, [f for f in whole.findings if _is_index(f)]


def _is_clean(findings: Iterable[Finding]) -> bool:
    """Whether there are no findings but notes, as in `seglog verify`."""
    return all(finding.severity == Severity.NOTE for finding in findings)


def _is_index(finding: Finding) -> bool:
    """Whether it is about an index file, or about a .log that cannot be read: then its indexes cannot be judged."""
    if finding.code == "timeindex_none":
        return True
    parsed = names.parse_file_name(os.path.basename(finding.file))
    suffixes = (*_SUFFIXES, *names.LOG_SUFFIXES) if finding.code == "unreadable" else _SUFFIXES
    return parsed is not None and not parsed.state and parsed.suffix in suffixes


def _about(path: Path, findings: Iterable[Finding]) -> list[Finding]:
    return [f for f in findings if f.file == os.fspath(path)]


def _indexes_of(segment: Segment) -> Iterable[tuple[Path, int | None, int]]:
    """Return (path, entries, size) of the index files of a segment; entries is None if the file does not parse."""
    for suffix, read in _READ_AS.items():
        if suffix not in segment.dialect.indexes:
            continue
        path = segment.path.with_suffix(suffix)
        try:
            size = path.stat().st_size
        except OSError:         # missing, or removed since the listing; a file that cannot be read is a finding
            continue
        try:
            index = read(segment)
        except (CorruptIndexError, UnsupportedVersionError):
            yield path, None, size
        except (StorageError, FileNotFoundError):
            continue
        else:
            if index is not None:
                yield path, len(index), size


def _check_text(
    place: Place, indexes: Iterable[tuple[Path, int | None, int]], findings: Sequence[Finding]
) -> Iterable[str]:
    rows = [
        [
            f"{place.directory.name or place.name}/{path.name}", "?" if entries is None else f"{entries:,}",
            f"{size:,}", ", ".join(dict.fromkeys(f.code for f in _about(path, findings))) or "ok",
        ]
        for path, entries, size in indexes
    ]
    yield report.table(("index", "entries", "bytes", ""), rows, left=(0, 3))
    if findings:
        yield report.paint(place.name, "bold")
    for finding in findings:
        yield from verify.finding_text(finding)


# --- rebuild -----------------------------------------------------------------------------


@command.command(cls=Command)
@paths_argument
@click.option(
    "--time-ranges", is_flag=True,
    help="Also write a .ranges.index for each segment, for lookups by time if timestamps are out of order.",
)
@config_option
@progress_option
@json_option
def rebuild(
    paths: Sequence[Path], time_ranges: bool, settings: Sequence[tuple[str, str]], no_progress: bool, as_json: bool
) -> int:
    """Rebuild the index files from the log.

    Each file is written under a temporary name and replaced in one step; the previous file stays as .bak. Files that
    are already correct are not changed. The command takes the log dir's .lock: status 5 if a broker runs. It skips a
    segment whose log is damaged, and names it; the status is then 7.
    """
    rebuilt = partial(rebuild_indexes, config=dict(settings), time_ranges=time_ranges)
    return _write_each(paths, "indexing", rebuilt, no_progress=no_progress, as_json=as_json)


@command.command(cls=Command)
@paths_argument
@config_option
@progress_option
@json_option
def stats(paths: Sequence[Path], settings: Sequence[tuple[str, str]], no_progress: bool, as_json: bool) -> int:
    """Write a .stats.index for each segment: the smallest and largest timestamp and key of each 256 KiB.

    Queries over the topic as a table (seglog.scan, DuckDB, polars) then read only the parts where their filters on
    timestamp and key may match. Nothing else reads the file, brokers ignore it, and it is deleted with its segment.
    Run the command again for new segments and for those that have grown: files that are up to date stay. It takes the
    log dir's .lock: status 5 if a broker runs. It skips a segment whose log is damaged, and names it; the status is
    then 7.
    """
    written = partial(write_column_stats, config=dict(settings))
    return _write_each(paths, "checking", written, no_progress=no_progress, as_json=as_json)


def _write_each(
    paths: Sequence[Path], label: str, write: Callable[..., Iterator[RebuiltIndex | RefusedSegment]], *,
    no_progress: bool, as_json: bool,
) -> int:
    """Call `write(directory, only=, progress=)` for each partition, show what it did, and return the exit status."""
    rows: list[list[str]] = []
    refused = changed = 0
    places = EachPlace(paths, as_json=as_json)
    with places.progress(label, enabled=not no_progress) as progress:
        for place in places:
            directory = place.directory if place.directory.name else place.directory.resolve()
            only = () if place.only is None else (place.only.name,)
            with places.reading(place, stops=LogLockedError):
                for step in write(directory, only=only, progress=progress.of(place)):
                    progress.wipe()
                    if isinstance(step, RefusedSegment):
                        refused += 1
                        _show_refused(step, as_json)
                    else:
                        changed += step.changed
                        _show_rebuilt(place, step, rows, as_json)
    if as_json:
        report.print_json("summary", rebuilt=changed, unchanged=len(rows) - changed, refused_segments=refused)
    else:
        print(report.table(("index", "entries", "bytes", "before", ""), rows, left=(0, 4)))
        print(f"{report.count_of(changed, 'file')} written, {len(rows) - changed} already correct")
    return report.PARTIAL if refused else places.status(found=False)


def _show_rebuilt(place: Place, step: RebuiltIndex, rows: list[list[str]], as_json: bool) -> None:
    name = os.path.basename(step.file)
    done = "written" if step.changed else "unchanged"
    rows.append([
        f"{place.directory.name or place.name}/{name}", f"{step.entries:,}", f"{step.size_bytes:,}",
        "-" if step.size_before is None else f"{step.size_before:,}",
        f"{done}, kept as {os.path.basename(step.backup)}" if step.backup else done,
    ])
    if as_json:
        report.print_json(
            "rebuilt_index", partition=place.name, file=step.file, entries=step.entries, size=step.size_bytes,
            size_before=step.size_before, changed=step.changed, backup=step.backup,
        )


def _show_refused(step: RefusedSegment, as_json: bool) -> None:
    if as_json:
        report.print_json(
            "refused_segment", file=step.file, code=step.error.code, what=step.error.what,
            position=step.error.position, offset=step.error.offset, fix=step.error.hint,
        )
    report.note(f"skipped the indexes of {step.file}: {step.error}")
