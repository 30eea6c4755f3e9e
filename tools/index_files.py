"""`seglog verify --indexes`: each index file of a log, and what is wrong with it."""
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from operator import attrgetter
from pathlib import Path

from seglog.errors import CorruptIndexError, StorageError, UnsupportedVersionError
from seglog.format import names
from seglog.segment.column_stats import read_column_stats
from seglog.segment.segment import Segment
from seglog.upkeep.index_rebuild import Progress
from seglog.verification.findings import Finding, Severity

from . import report
from .each_place import EachPlace
from .findings import check, finding_text, fixes, has_unreadable, print_finding
from .targets import Place

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


def show_indexes(
    paths: Sequence[Path], settings: Mapping[str, object], *, topics: Sequence[str], no_progress: bool, as_json: bool
) -> int:
    """Check the index files, list them, and return the exit status, as `seglog verify` does.

    An entry may have the first offset of its batch (Kafka up to 1.1) or the last (since 2.0): both are valid.
    """
    files = clean = 0
    found: list[Finding] = []
    places = EachPlace(paths, as_json=as_json, topics=topics)
    with places.progress("checking", enabled=not no_progress) as progress:
        for place in places:
            with places.reading(place):
                indexes, findings = _look_at(place, settings, progress.of(place))
                found += findings
                places.unread += has_unreadable(findings)
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
                        print_finding(place, finding)
                else:
                    print("\n".join(_check_text(place, indexes, findings)))
    suggest = [*fixes(found, paths)]
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
    place: Place, settings: Mapping[str, object], progress: Progress
) -> tuple[list[tuple[Path, int | None, int]], list[Finding]]:
    """Return the index files of a place, in the form of `_indexes_of`, and the findings in them."""
    whole = check(place, "headers", dict(settings), progress=progress)
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
        yield from finding_text(finding)
