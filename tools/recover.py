"""`seglog recover`: show what a damaged log would lose, or recover it."""
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click

from seglog.errors import NotALogError
from seglog.format.names import METADATA_TOPIC, has_segments, parse_partition_dir
from seglog.reading.unproven import count_unproven
from seglog.segment.positions import LostRange
from seglog.state.quarantine import DIRECTORY as QUARANTINE
from seglog.state.quarantine import offsets_within
from seglog.upkeep.recover import MODES, Recovery, recover
from seglog.upkeep.refill import FilledRange

from . import report, targets
from .cli import Command
from .each_place import EachPlace
from .options import PATH, SOURCE, apply_option, config_option, json_option
from .start_retention import StartRetention
from .targets import Place


@click.command(cls=Command)
@click.argument("src", metavar="SRC", type=SOURCE)
@click.option("--partition", "partitions", metavar="NAME", multiple=True,
              help="Only this partition, such as orders-0. May be repeated. For a log dir.")
@click.option("--mode", type=click.Choice(MODES),
              help="truncate: end the log at the first damage, as Kafka does. quarantine: move only the damaged bytes "
              f"to {QUARANTINE}/, and keep all later batches with their offsets.")
@click.option("--from", "sources", metavar="OTHER", type=PATH, multiple=True,
              help="With --mode quarantine: fill what is damaged or gone from this replica, a partition directory, "
              "a log dir that has it, or the directory above several. May be repeated: what one replica lacks is asked "
              "of the next.")
@click.option("--out", metavar="DST", type=PATH, help="Recover into the new partition directory DST, at once.")
@apply_option("Do it: recover SRC itself. Its log dir must not be in use. Without this and --out, or with --dry-run, "
              "change nothing.")
@click.option("--backup", metavar="DIR", type=PATH,
              help="Keep what is replaced in DIR: each .log that is changed or removed, under the name of the "
              "partition. On the same file system, but not in the log dir. With --apply.")
@config_option
@json_option
def command(
    src: Path, partitions: Sequence[str], mode: str | None, sources: Sequence[Path], out: Path | None,
    applies: bool | None, backup: Path | None, settings: Sequence[tuple[str, str]], as_json: bool,
) -> int:
    """Recover the partition directory SRC as after a crash: check every batch, and remove what is damaged. Or all
    partitions of the log dir SRC, one after the other, with a table at the end.

    Without --out and --apply, show a dry run: every range of bytes and offsets that would be lost. Status 0 if nothing
    is or would be lost and a dry run finds nothing to repair, otherwise 1; 7 if one of several partitions could not be
    recovered.
    """
    if mode is None:
        raise click.UsageError("choose --mode quarantine or --mode truncate; without --apply, either is a dry run")
    if out is not None and applies:
        raise click.UsageError("pass only one of --out and --apply")
    if backup is not None and out is not None:
        raise click.UsageError("--backup belongs to --apply: with --out, SRC does not change")
    if sources and mode != "quarantine":
        raise click.UsageError("--from takes --mode quarantine: truncate ends the log at the first damage")
    if src.is_file():
        raise NotALogError("not a partition directory", file=src, hint="pass a directory, such as orders-0")
    is_log_dir = not has_segments(src)
    if is_log_dir or partitions:
        if out is not None:
            raise click.UsageError("--out takes one partition directory")
        if not is_log_dir:
            raise click.UsageError("--partition takes a log dir")
        return _recover_all(
            src, partitions, mode, sources, applies=bool(applies), backup=backup, settings=dict(settings),
            as_json=as_json,
        )
    is_dry = not applies and (out is None or applies is False)
    done = recover(
        src, None if is_dry else out, mode=mode, apply=bool(applies), backup=backup if applies else None,
        sources=_replicas(sources, [src])[0], config=dict(settings),
    )
    is_needed = bool(done.lost or done.repairs or done.filled)
    if as_json:
        _print_json(done, report.dry_run_fields(is_dry, is_needed or out is not None, apply=out is None))
    else:
        print("\n".join(_text(done, src, out)))
        if out is None:
            retention = StartRetention(dict(settings))
            retention.see(Place(src))
            retention.show()
        if is_dry:
            print(report.dry_run_text(is_needed or out is not None, apply=out is None))
    return 1 if done.lost or (is_dry and is_needed) else 0


def _recover_all(
    src: Path, partitions: Sequence[str], mode: str, sources: Sequence[Path], *, applies: bool, backup: Path | None,
    settings: dict[str, object], as_json: bool,
) -> int:
    """Recover the partitions of a log dir, or show what that would do. Returns the exit status."""
    places = EachPlace([src], as_json=as_json)
    wanted = [place for place in places if place.name in partitions or (not partitions and not _is_metadata(place))]
    missing = set(partitions).difference(place.name for place in wanted)
    if missing:
        raise NotALogError(
            f"no partition {', '.join(sorted(missing))} in the log dir", file=src, hint="`seglog ls` lists what is here"
        )
    done: list[Recovery] = []
    replicas = _replicas(sources, [place.directory for place in wanted])
    for place, has_it in zip(wanted, replicas, strict=True):
        with places.reading(place):
            one = recover(
                place.directory, mode=mode, apply=applies, backup=backup if applies else None, sources=has_it,
                config=settings,
            )
            done.append(one)
            if one.lost and sources and not has_it:
                report.note(f"{place.name} is in no directory of --from: nothing was filled")
            if as_json:
                _print_changes(one, place.name)
                report.print_json("partition", partition=place.name, **_fields(one))
            elif one.lost or one.repairs or one.filled:
                print("\n".join(_text(one, place.directory, None)))
    is_needed = any(one.lost or one.repairs or one.filled for one in done)
    if as_json:
        report.print_json(
            "summary", source=src, mode=mode, partitions=len(done), lost_ranges=sum(len(one.lost) for one in done),
            lost_bytes=sum(one.lost_bytes for one in done), filled_ranges=sum(len(one.filled) for one in done),
            repairs=sum(len(one.repairs) for one in done),
            unread=places.unread, **report.dry_run_fields(not applies, is_needed),
        )
    else:
        print(_table(done, applies=applies))
        retention = StartRetention(settings)
        for place in wanted:
            retention.see(place)
        retention.show()
        if not applies:
            print(report.dry_run_text(is_needed, unread=places.unread))
    return places.status(found=any(one.lost for one in done) or (not applies and is_needed))


def _replicas(sources: Sequence[Path], directories: Sequence[Path]) -> list[list[Path]]:
    """The replicas of each of these partitions, in the order of `sources`.

    A source is a partition directory, a log dir, or above log dirs. Raises NotALogError for one that has none of the
    partitions: then nothing would be filled from it, and what it was to save would be lost.
    """
    found: list[list[Path]] = [[] for _ in directories]
    names = [os.path.basename(os.path.realpath(directory)) for directory in directories]
    for source in sources:
        os.stat(source)
        if _has_segments_at(source):
            # A copy may have any name, if there is no choice.
            at = [source if len(names) == 1 or source.resolve().name == name else None for name in names]
        else:
            log_dirs = targets.log_dirs(source) or [source]
            at = [next((log_dir / name for log_dir in log_dirs if _has_segments_at(log_dir / name)), None)
                  for name in names]
        if not any(at):
            whose = names[0] if len(names) == 1 else "any of these partitions"
            raise NotALogError(
                f"--from has no replica of {whose}", file=source,
                hint="pass a partition directory, or the log dir of another broker",
            )
        for replicas, replica in zip(found, at, strict=True):
            if replica is not None:
                replicas.append(replica)
    return found


def _has_segments_at(path: Path) -> bool:
    return path.is_dir() and has_segments(path)


def _is_metadata(place: Place) -> bool:
    """A node gets its metadata log from the others again, and one with a gap stops it."""
    parsed = parse_partition_dir(place.directory.name)
    if parsed is None or parsed.topic != METADATA_TOPIC:
        return False
    report.note(f"{place.name} is left alone: pass --partition {place.name} to recover it, too")
    return True


def _table(done: Sequence[Recovery], *, applies: bool) -> str:
    """A line for each partition, and one for all."""
    rows = [
        [
            report.printable(one.source.name), f"{one.log_start_offset:,}", f"{one.log_end_offset:,}",
            f"{len(one.lost):,}" if one.lost else "-", report.size(one.lost_bytes) if one.lost else "-",
            f"{len(one.repairs):,}" if one.repairs else "-",
        ]
        for one in done
    ]
    rows.append([
        report.count_of(len(done), "partition"), "", "", f"{sum(len(one.lost) for one in done):,}",
        report.size(sum(one.lost_bytes for one in done)), f"{sum(len(one.repairs) for one in done):,}",
    ])
    lost = "lost" if applies else "would be lost"
    head = ("partition", "log start", "log end", f"ranges {lost}", "bytes", "repairs")
    return report.table(head, rows, total=True)


def _print_changes(done: Recovery, partition: str) -> None:
    for lost in done.lost:
        report.print_json(
            "lost_range", partition=partition, file=lost.file, position=lost.position, size_bytes=lost.size_bytes,
            first_offset=lost.first_offset, last_offset=None if lost.last_offset < 0 else lost.last_offset,
            reason=lost.reason,
        )
    for filled in done.filled:
        report.print_json("filled_range", partition=partition, **_filled_fields(filled))
    for repair in done.repairs:
        report.print_json("repair", partition=partition, file=repair.file, what=repair.what)


def _filled_fields(filled: FilledRange) -> dict[str, object]:
    return {
        "file": filled.file, "first_offset": filled.first_offset, "last_offset": filled.last_offset,
        "size_bytes": filled.size_bytes, "source": filled.source,
    }


def _fields(done: Recovery) -> dict[str, object]:
    return {
        "log_start_offset": done.log_start_offset, "log_end_offset": done.log_end_offset, "segments": done.segments,
        "lost_ranges": len(done.lost), "lost_bytes": done.lost_bytes, "filled_ranges": len(done.filled),
        "unfilled": [{"source": source, "why": why} for source, why in done.unfilled.items()],
        "repairs": len(done.repairs), "backups": done.backups,
    }


def _print_json(done: Recovery, told: Mapping[str, object]) -> None:
    for lost in done.lost:
        report.print_json(
            "lost_range", file=lost.file, position=lost.position, size_bytes=lost.size_bytes,
            first_offset=lost.first_offset, last_offset=None if lost.last_offset < 0 else lost.last_offset,
            reason=lost.reason,
        )
    for filled in done.filled:
        report.print_json("filled_range", **_filled_fields(filled))
    for repair in done.repairs:
        report.print_json("repair", file=repair.file, what=repair.what)
    report.print_json(
        "summary", source=done.source, target=done.target, mode=done.mode, segments=done.segments,
        log_start_offset=done.log_start_offset, log_end_offset=done.log_end_offset, lost_ranges=len(done.lost),
        lost_bytes=done.lost_bytes, filled_ranges=len(done.filled),
        unfilled=[{"source": source, "why": why} for source, why in done.unfilled.items()], backups=done.backups,
        **told,
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
    yield from _unproven(done)
    would = "would be " if done.target is None else ""
    for filled in done.filled:
        yield (
            f"{Path(filled.file).name}: offsets {filled.first_offset:,}…{filled.last_offset:,}, "
            f"{report.size(filled.size_bytes)}, {would}filled from {report.printable(str(filled.source))}"
        )
    for source, why in done.unfilled.items():
        yield f"{report.printable(str(source))} does not fill all: {report.printable(why)}"
    for repair in done.repairs:
        yield f"{report.printable(Path(repair.file).name)}: {repair.what}"
    for backup in done.backups:
        yield f"the former {report.printable(backup.name)} is kept: {report.printable(str(backup))}"
    ranges = report.count_of(len(done.lost), "range")
    lost = f"{ranges}, {report.size(done.lost_bytes)}, {would}lost" if done.lost else f"nothing {would}lost"
    yield f"{lost}; the log then has {_kept(done)} in {report.count_of(done.segments, 'segment')}"


def _unproven(done: Recovery) -> Iterable[str]:
    """How to look at what goes into quarantine."""
    if done.mode != "quarantine" or not done.lost:
        return
    if done.target is not None:
        kept = report.printable(shlex.quote(str(done.target / QUARANTINE)))
        yield f"`seglog dump {kept}/*.damaged` shows what can still be read of it, unproven"
        return
    count = sum(count_unproven(lost) for lost in done.lost if lost.size_bytes)
    if count:
        where = report.printable(shlex.quote(str(done.source)))
        yield (
            f"{report.count_of(count, 'record')} of it can still be read, unproven: "
            f"`seglog dump --on-corrupt show {where}`"
        )


def _kept(done: Recovery) -> str:
    """The offsets that are left, and those between them that are lost."""
    first, last = done.log_start_offset, done.log_end_offset - 1
    missing = offsets_within(((lost.first_offset, lost.last_offset) for lost in done.lost), first, last)
    whole = list(missing)
    if whole and whole[0][0] == first:
        first = whole.pop(0)[1] + 1
    if whole and whole[-1][1] == last:
        last = whole.pop()[0] - 1
    kept = f"offsets {first:,}…{last:,}" if last > first else f"offset {first:,}" if last == first else "no offsets"
    return f"{kept} ({report.ranges(missing)} missing)" if missing else kept


def _offsets(lost: LostRange) -> str:
    if lost.last_offset < 0:
        return f"from {lost.first_offset:,} on"
    if lost.last_offset < lost.first_offset:
        return "none"
    return f"{lost.first_offset:,}…{lost.last_offset:,}"
