"""`seglog index rebuild | stats`: write the index files of a log from it."""
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import click

from seglog.errors import LogLockedError
from seglog.upkeep.column_stats import write_column_stats
from seglog.upkeep.index_rebuild import RebuiltIndex, RefusedSegment, rebuild_indexes

from . import report
from .cli import Command, CommandGroup
from .each_place import EachPlace
from .options import apply_option, config_option, dry_run_option, json_option, paths_argument, progress_option
from .targets import Place


@click.group(name="index", cls=CommandGroup)
def command() -> None:
    """Rebuild the index files from the log, or add statistics. `seglog verify --indexes` checks them.

    An index can always be rebuilt from its log. If one is missing, torn or wrong, a broker rebuilds it at its next
    unclean start, but trusts it at a clean start.
    """


# --- rebuild -----------------------------------------------------------------------------


@command.command(cls=Command)
@paths_argument
@click.option(
    "--time-ranges", is_flag=True,
    help="Also write a .ranges.index for each segment, for lookups by time if timestamps are out of order.",
)
@click.option(
    "--keep-replaced", is_flag=True, help="Keep each file that is replaced, as .bak; `seglog tidy` removes it."
)
@apply_option("Do it: write them. Without this, or with --dry-run, list which files would be written, and change "
              "nothing.")
@config_option
@progress_option
@json_option
def rebuild(
    paths: Sequence[Path], time_ranges: bool, keep_replaced: bool, applies: bool | None,
    settings: Sequence[tuple[str, str]], no_progress: bool, as_json: bool,
) -> int:
    """Rebuild the index files from the log.

    Without --apply, show a dry run: status 1 if a file would be written. Each file is written under a temporary name
    and replaced in one step. Files that are already correct are not changed. The command takes the log dir's .lock:
    status 5 if a broker runs. It skips a segment whose log is damaged, and names it; the status is then 7.
    """
    rebuilt = partial(
        rebuild_indexes, config=dict(settings), time_ranges=time_ranges, keep_replaced=keep_replaced,
        dry_run=not applies,
    )
    return _write_each(paths, "indexing", rebuilt, is_dry=not applies, no_progress=no_progress, as_json=as_json)


@command.command(cls=Command)
@paths_argument
@dry_run_option
@config_option
@progress_option
@json_option
def stats(
    paths: Sequence[Path], dry_run: bool, settings: Sequence[tuple[str, str]], no_progress: bool, as_json: bool
) -> int:
    """Write a .stats.index for each segment: the smallest and largest timestamp and key of each 256 KiB.

    Queries over the topic as a table (seglog.scan, DuckDB, polars) then read only the parts where their filters on
    timestamp and key may match. Nothing else reads the file, brokers ignore it, and it is deleted with its segment.
    Run the command again for new segments and for those that have grown: files that are up to date stay. It takes the
    log dir's .lock: status 5 if a broker runs. It skips a segment whose log is damaged, and names it; the status is
    then 7.
    """
    written = partial(write_column_stats, config=dict(settings), dry_run=dry_run)
    return _write_each(paths, "checking", written, is_dry=dry_run, no_progress=no_progress, as_json=as_json)


def _write_each(
    paths: Sequence[Path], label: str, write: Callable[..., Iterator[RebuiltIndex | RefusedSegment]], *,
    is_dry: bool, no_progress: bool, as_json: bool,
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
                        _show_rebuilt(place, step, rows, is_dry=is_dry, as_json=as_json)
    applies = click.get_current_context().info_name == "rebuild"
    if as_json:
        report.print_json(
            "summary", **report.dry_run_fields(is_dry, changed > 0, apply=applies), rebuilt=changed,
            unchanged=len(rows) - changed, refused_segments=refused,
        )
    else:
        print(report.table(("index", "entries", "bytes", "before", ""), rows, left=(0, 4)))
        would = "would be " if is_dry else ""
        print(f"{report.count_of(changed, 'file')} {would}written, {len(rows) - changed} already correct")
        if is_dry:
            print(report.dry_run_text(changed > 0, apply=applies))
    return report.PARTIAL if refused else places.status(found=is_dry and changed > 0)


def _show_rebuilt(place: Place, step: RebuiltIndex, rows: list[list[str]], *, is_dry: bool, as_json: bool) -> None:
    name = os.path.basename(step.file)
    done = ("would be written" if is_dry else "written") if step.changed else "unchanged"
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
            position=step.error.position, offset=step.error.offset, fix=report.as_options(step.error.hint),
        )
    report.note(f"skipped the indexes of {step.file}: {step.error}")
