"""`seglog tidy`: list what crashes, repairs and deletions have left in a log dir, or remove it."""
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from seglog.errors import NotALogError
from seglog.format import names
from seglog.fs.staging import leftovers
from seglog.upkeep.tidy import Litter, holds_backups, tidy

from . import report
from .cli import Command
from .options import apply_option, json_option, paths_argument
from .targets import log_dirs

# Items of one kind that are shown of a directory.
_FOLD = 10


@click.command(cls=Command)
@paths_argument
@click.option("--stray", "with_stray", is_flag=True,
              help="Also partitions that a broker has marked as -stray: the cluster does not know them, or did not.")
@click.option("--all", "shows_all", is_flag=True,
              help=f"List every item. Without this, only {_FOLD} of a kind in each directory, and how many more.")
@apply_option("Do it: remove it. The log dir must not be in use. Without this, or with --dry-run, list it, and change "
              "nothing.")
@json_option
def command(paths: Sequence[Path], with_stray: bool, shows_all: bool, applies: bool | None, as_json: bool) -> int:
    """List what crashes, repairs and deletions have left in the log dirs at PATH: .bak, .deleted and half-written
    files, partitions of deleted topics, and directories that a killed run was building. PATH may also be the --backup
    directory of `convert --in-place` or `erase`: lists what a killed run left there, and journals without a backup.

    It never lists what a broker or a writer needs, such as an unfinished compaction, locks, settings or the quarantine.
    Without --apply, show a dry run: status 1 if there is something to remove. Status 5 if a log dir is in use.
    """
    found: list[Litter] = []
    for path in paths:
        for log_dir in _log_dirs(path):
            found += tidy(log_dir, apply=bool(applies), with_stray=with_stray)
    size_bytes = sum(one.size_bytes for one in found)
    if as_json:
        for one in found:
            report.print_json("litter", path=one.path, kind=one.kind, size_bytes=one.size_bytes)
        report.print_json(
            "summary", **report.dry_run_fields(not applies, bool(found)), items=len(found), size_bytes=size_bytes,
        )
    else:
        if found:
            print(report.table(("what", "size", "kind"), _rows(found, len(found) if shows_all else _FOLD), left=(0, 2)))
        would = "" if applies else "would be "
        print(f"{report.count_of(len(found), 'item')}, {report.size(size_bytes)}, {would}removed")
        if not applies:
            print(report.dry_run_text(bool(found)))
    return int(bool(found) and not applies)


def _rows(found: Sequence[Litter], most: int) -> Iterator[Sequence[str]]:
    """A row for each, and for more than `most` of a kind in a directory one row for the others."""
    grouped: dict[tuple[Path, str], list[Litter]] = {}
    for one in found:
        grouped.setdefault((one.path.parent, one.kind), []).append(one)
    for (directory, kind), group in grouped.items():
        for one in group[:most]:
            yield report.printable(str(one.path)), report.size(one.size_bytes), kind
        if others := group[most:]:
            size = report.size(sum(one.size_bytes for one in others))
            yield f"and {report.number(len(others))} more in {report.printable(str(directory))}: --all", size, kind


def _log_dirs(path: Path) -> Sequence[Path]:
    """The log dirs that a path is, or is above, even if all their partitions are marked; and the path itself if it has
    backups of conversions in place. Raises NotALogError.
    """
    if path.is_dir() and holds_backups(path):
        return [path, *(log_dir for log_dir in log_dirs(path) if log_dir != path)]
    if path.is_dir() and not names.has_segments(path):
        if any((path / name).is_file() for name in (*names.OFFSET_CHECKPOINTS, names.META_PROPERTIES)):
            return [path]
        if any(names.parse_partition_dir(child.name) is not None for child in path.iterdir() if child.is_dir()):
            return [path]
        if found := log_dirs(path):
            return found
        if leftovers(path):     # of a run that was killed before there was a partition
            return [path]
    raise NotALogError("not a log dir", file=path, hint="pass the directory that has partition directories in it")
