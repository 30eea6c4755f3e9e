"""`seglog index check | rebuild`: the index files of a log, against it and from it."""
import os
from collections.abc import Sequence
from pathlib import Path

import click

from seglog.upkeep.index_rebuild import RebuiltIndex, RefusedSegment, rebuild_indexes

from . import report
from .cli import Command
from .options import config_option, json_option, paths_argument, progress_option
from .targets import Place, resolve


@click.group(name="index")
def command() -> None:
    """Check the index files, or rebuild them from the log.

    An index is a function of its log. A missing, torn or misleading one costs a broker a rebuild at its next unclean
    start, and at a clean start it is trusted as it is.
    """


@command.command(cls=Command)
@paths_argument
@config_option
@progress_option
@json_option
def rebuild(
    paths: Sequence[Path], settings: Sequence[tuple[str, str]], no_progress: bool, as_json: bool
) -> int:
    """Write the index files anew from the log.

    Each file is written aside and replaced in one step; the one before stays as .bak. A file that holds the right
    bytes is left alone. The log dir's .lock is taken: status 5 where a broker runs. A segment whose log is damaged
    is left alone and named, and the status is 7.
    """
    rows: list[list[str]] = []
    refused = changed = 0
    for place in resolve(paths):
        directory = place.directory if place.directory.name else place.directory.resolve()
        only = () if place.only is None else (place.only.name,)
        with report.Progress(f"indexing {place.name}", enabled=not no_progress) as progress:
            for step in rebuild_indexes(directory, config=dict(settings), only=only, progress=progress):
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
        print(f"{report.count_of(changed, 'file')} written, {len(rows) - changed} right already")
    return report.PARTIAL if refused else 0


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
    report.note(f"left alone: the indexes of {step.file}: {step.error}")
