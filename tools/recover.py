"""`seglog recover`: show what a damaged log would lose, or recover it."""
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from seglog.errors import NotALogError
from seglog.segment.positions import LostRange
from seglog.state.quarantine import DIRECTORY as QUARANTINE
from seglog.upkeep.recover import MODES, Recovery, recover

from . import report
from .cli import Command
from .options import PATH, SOURCE, config_option, json_option


@click.command(cls=Command)
@click.argument("src", metavar="SRC", type=SOURCE)
@click.option("--mode", type=click.Choice(MODES), required=True,
              help="truncate: end the log at the first damage, as Kafka does. quarantine: move only the damaged bytes "
              f"to {QUARANTINE}/, and keep all later batches with their offsets.")
@click.option("--out", metavar="DST", type=PATH, help="Recover into the new partition directory DST.")
@click.option("--in-place", is_flag=True, help="Recover SRC itself. Its log dir must not be in use.")
@click.option("--backup", is_flag=True, help="With --in-place: keep each .log that is changed or removed as .bak.")
@config_option
@json_option
def command(
    src: Path, mode: str, out: Path | None, in_place: bool, backup: bool, settings: Sequence[tuple[str, str]],
    as_json: bool,
) -> int:
    """Recover the partition directory SRC as after a crash: check every batch, and remove what is damaged.

    Without --out and --in-place, show a dry run: every range of bytes and offsets that would be lost. Status 0 if
    nothing is or would be lost, otherwise 1.
    """
    if out is not None and in_place:
        raise click.UsageError("pass only one of --out and --in-place")
    if backup and not in_place:
        raise click.UsageError("--backup needs --in-place: otherwise SRC does not change")
    if src.is_file():
        raise NotALogError("not a partition directory", file=src, hint="pass a directory, such as orders-0")
    done = recover(src, out, mode=mode, in_place=in_place, backup=backup, config=dict(settings))
    if as_json:
        _print_json(done)
    else:
        print("\n".join(_text(done, src, out)))
    return 1 if done.lost else 0


def _print_json(done: Recovery) -> None:
    for lost in done.lost:
        report.print_json(
            "lost_range", file=lost.file, position=lost.position, size_bytes=lost.size_bytes,
            first_offset=lost.first_offset, last_offset=None if lost.last_offset < 0 else lost.last_offset,
            reason=lost.reason,
        )
    for repair in done.repairs:
        report.print_json("repair", file=repair.file, what=repair.what)
    report.print_json(
        "summary", source=done.source, target=done.target, mode=done.mode, segments=done.segments,
        log_start_offset=done.log_start_offset, log_end_offset=done.log_end_offset, lost_ranges=len(done.lost),
        lost_bytes=done.lost_bytes, backups=done.backups,
    )


def _text(done: Recovery, src: Path, out: Path | None) -> Iterable[str]:
    goes_to = "" if out is None else f" → {out}"
    yield report.paint(f"{report.printable(str(src))}{report.printable(goes_to)}", "bold") + f"  ({done.mode})"
    if done.lost:
        rows = [
            [Path(lost.file).name, f"{lost.position:,}…{lost.position + lost.size_bytes - 1:,}",
             report.size(lost.size_bytes), _offsets(lost), lost.reason]
            for lost in done.lost
        ]
        yield report.table(("segment", "bytes", "size", "offsets", "why"), rows, left=(0, 3, 4))
    for repair in done.repairs:
        yield f"{report.printable(Path(repair.file).name)}: {repair.what}"
    for backup in done.backups:
        yield f"kept as {report.printable(backup.name)}"
    would = "would be " if done.target is None else ""
    ranges = report.count_of(len(done.lost), "range")
    lost = f"{ranges}, {report.size(done.lost_bytes)}, {would}lost" if done.lost else f"nothing {would}lost"
    offsets = f"{done.log_start_offset:,}…{done.log_end_offset - 1:,}"
    kept = f"offsets {offsets}" if done.log_end_offset > done.log_start_offset else "no offsets"
    yield f"{lost}; the log then has {kept} in {report.count_of(done.segments, 'segment')}"
    if done.target is None:
        yield "dry run: nothing was written. Pass --out DST to recover a copy, or --in-place --backup to repair SRC"


def _offsets(lost: LostRange) -> str:
    if lost.last_offset < 0:
        return f"from {lost.first_offset:,} on"
    if lost.last_offset < lost.first_offset:
        return "none"
    return f"{lost.first_offset:,}…{lost.last_offset:,}"
