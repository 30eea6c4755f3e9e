"""`seglog cursors ls | reset`: the cursors of a log, and where they continue."""
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import click

from seglog.clock import SystemClock
from seglog.errors import SeglogError
from seglog.format.names import CURSOR_PREFIX
from seglog.fs.files import OsFileSystem
from seglog.fs.lock import EXCLUSIVE, lock_file
from seglog.reading.partition import Partition
from seglog.state.reader_cursor import ReaderCursor, checked_name, cursor_files, lock_path

from . import report
from .cli import Command, CommandGroup
from .each_place import EachPlace
from .options import SOURCE, NumberType, TimeType, dry_run_option, json_option, paths_argument
from .targets import Place, resolve


@click.group(name="cursors", cls=CommandGroup)
def command() -> None:
    """List the cursors of a log, or move one to another offset.

    A service that reads with `log.cursor("mailer")` stores its position in the partition.
    """


@command.command(cls=Command, only_reads=True)
@paths_argument
@json_option
def ls(paths: Sequence[Path], as_json: bool) -> int:
    """List the cursors, with the offset at which each continues, and its lag in offsets. Changes nothing."""
    places = EachPlace(paths, as_json=as_json)
    listed = 0
    for place in places:
        with places.reading(place), place.open() as partition:
            start, end = partition.log_start_offset, partition.log_end_offset
            for path in cursor_files(partition.path.resolve()):
                listed += 1
                found = ReaderCursor.read(path.parent, path.name.removeprefix(CURSOR_PREFIX))
                if found is not None:
                    lag = max(end - max(found.offset, start), 0)
                    _print(place, found, lag, not start <= found.offset <= end, as_json)
    if as_json:
        report.print_json("summary", ok=not places.unread, cursors=listed, unread=places.unread)
    else:
        print(report.count_of(listed, "cursor"))
    return places.status(found=False)


def _print(place: Place, found: ReaderCursor, lag: int, is_gone: bool, as_json: bool) -> None:
    if as_json:
        report.print_json(
            "cursor", partition=place.name, name=found.name, offset=found.offset, lag=lag,
            committed_at_ms=found.committed_at_ms, is_gone=is_gone,
        )
        return
    committed = f"committed {report.moment(found.committed_at_ms)}" + (", outside the log" if is_gone else "")
    print(f"{place.name}  {found.name}  offset {found.offset}  lag {lag}  {committed}")


@command.command(cls=Command)
@click.argument("path", type=SOURCE)
@click.argument("name")
@click.option("--offset", metavar="OFFSET", type=NumberType(), help="An offset: continue there.")
@click.option("--time", "time_ms", metavar="TIME", type=TimeType(),
              help="A time: continue at the first record at or after it. ISO 8601, milliseconds, or -2h.")
@click.option("--earliest", "where", flag_value="earliest", help="Continue at the start of the log.")
@click.option("--latest", "where", flag_value="latest", help="Continue at the end of the log, and skip its records.")
@dry_run_option
@json_option
def reset(
    path: Path, name: str, offset: int | None, time_ms: int | None, where: str | None, dry_run: bool, as_json: bool
) -> int:
    """Move the cursor NAME of the partition PATH to another offset; create it if it does not exist.

    Status 5 while a process uses this cursor: it would not notice the change, and would overwrite it.
    """
    if [offset, time_ms, where].count(None) != 2:
        raise click.UsageError("pass one of --offset, --time, --earliest and --latest")
    try:
        checked_name(name)
    except SeglogError as error:
        raise click.UsageError(f"{error.what}: {error.hint}") from error
    (place,) = resolve([path])
    fs = OsFileSystem()
    with place.open() as partition:
        directory = partition.path.resolve()
        with nullcontext() if dry_run else lock_file(fs, lock_path(directory, name), EXCLUSIVE):
            there = _offset(partition, offset, time_ms, where)
            if not dry_run:
                ReaderCursor(name, there, SystemClock().now_ms()).put(fs, directory)
            lag = partition.log_end_offset - there
    if as_json:
        report.print_json(
            "cursor", **report.dry_run_fields(dry_run, True, apply=False), partition=place.name, name=name,
            offset=there, lag=lag,
        )
    else:
        print(f"{place.name}  {name}  {'would continue' if dry_run else 'continues'} at offset {there}, lag {lag}")
    return int(dry_run)


def _offset(partition: Partition, offset: int | None, time_ms: int | None, where: str | None) -> int:
    start, end = partition.log_start_offset, partition.log_end_offset
    if offset is not None:
        if not start <= offset <= end:
            raise click.UsageError(f"offset {offset} is not within [{start}, {end}]")
        return offset
    if time_ms is not None:
        found = partition._offset_for_ms(time_ms)
        return end if found is None else found.offset
    return start if where == "earliest" else end
