"""`seglog restore`: partitions and queues from a backup, or partitions from a log dir in a store, into a log dir."""
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from seglog.archive.backup_store import BackupStore
from seglog.archive.restored_ledgers import RestoredLedger
from seglog.archive.restoring import RestoredPartition
from seglog.backups.repository import Repository
from seglog.fs.files import OsFileSystem
from seglog.reading.cluster_metadata import METADATA_PARTITION
from seglog.stores.open_store import is_local

from . import report, terminal
from .backup import count_of_parts, names_of, snapshot_option, store_argument
from .cli import Command
from .options import (
    PATH,
    NumberType,
    TimeType,
    config_option,
    dry_run_option,
    json_option,
    progress_option,
    store_option,
)

# Partitions that a note names.
_NAMED = 5


@click.command(cls=Command)
@store_argument
@click.argument("target", metavar="DST", type=PATH)
@snapshot_option
@click.option("--topic", "topics", metavar="GLOB", multiple=True,
              help="Only topics that match, also queues and managed ledgers. May be repeated.")
@click.option("--partition", "partitions", metavar="NAME", multiple=True,
              help="Only this partition, such as orders-0. May be repeated.")
@click.option("--until", metavar="TIME", type=TimeType(),
              help="Up to this time: each partition ends before its first batch with a later record. Queues that were "
              "backed up later are left out. `-2h`, `2026-11-24T12:00`.")
@click.option("--until-offset", metavar="OFFSET", type=NumberType(0),
              help="End before the batch that holds this offset. With --partition or --topic.")
@click.option("--rename", "renamed", metavar="TOPIC=NAME", multiple=True,
              help="Give a topic another name; it loses its topic id. May be repeated.")
@click.option("--adopt", is_flag=True,
              help="DST is the log dir of a stopped broker whose cluster goes on: fill the empty partitions of topics "
              "that were just created there. They keep their topic ids.")
@dry_run_option
@config_option
@progress_option
@store_option
@json_option
def command(
    store: str, target: Path, snapshot_id: str, topics: Sequence[str], partitions: Sequence[str], until: int | None,
    until_offset: int | None, renamed: Sequence[str], adopt: bool, dry_run: bool,
    settings: Sequence[tuple[str, str]], no_progress: bool,
    store_options: Sequence[tuple[str, str]], as_json: bool,
) -> int:
    """Restore a snapshot in STORE into the log dir DST, which is created; or only some topics, queues and partitions.

    STORE may also be the URL of a log dir, such as the result of `seglog spark convert`: its topics are copied, and
    partitions that are already there in the same version are skipped. Only --topic chooses then.

    Each partition or queue is as of its moment, and appears as a whole. Nothing that exists is replaced: status 2 if
    one exists already. Jobs that were in flight are delivered again. Indexes are rebuilt, and every checksum is
    checked. A run that was killed is run again, and goes on. Status 1 if the end that was asked for leaves no record of
    any partition; 7 if the source had damage: what was damaged is restored as it was, and named. Also if something
    could not be backed up, so that it is not in the snapshot, or a queue was left out, because it has no state of the
    time of --until.
    """
    if not is_local(store) and not Repository(store, dict(store_options), OsFileSystem()).exists:
        of_backups = {
            "--snapshot": snapshot_id != "latest", "--partition": partitions, "--until": until is not None,
            "--until-offset": until_offset is not None, "--rename": renamed, "--adopt": adopt, "--config": settings,
        }
        for option, is_given in of_backups.items():
            if is_given:
                raise click.UsageError(f"{option} is for a backup, and there are no backups in {store}")
        return _copy_topics(
            store, target, names_of(topics), dict(store_options), dry_run=dry_run, shows=not no_progress,
            as_json=as_json,
        )
    with report.Progress("restoring", enabled=not no_progress) as progress:
        done = BackupStore(store, options=dict(store_options)).restore(
            target, snapshot=snapshot_id, topics=names_of(topics), partitions=names_of(partitions),
            until=until, until_offset=until_offset, rename=_renamed(renamed), adopt=adopt, config=dict(settings),
            dry_run=dry_run, progress=progress,
        )
    parts: list[RestoredPartition | RestoredLedger] = [*done.partitions, *done.ledgers]
    damaged = [f"{part.name}/{name}" for part in parts for name in part.damaged]
    size_bytes = sum(part.size_bytes for part in parts)
    emptied = [part.name for part in done.partitions if part.is_emptied]
    is_nothing = bool(emptied) and not done.ledgers and not done.found_whole and all(
        part.next_offset <= part.log_start_offset or part.name == METADATA_PARTITION for part in done.partitions
    )
    if as_json:
        for part in done.partitions:
            report.print_json(
                "partition", partition=part.name, path=part.path, log_start_offset=part.log_start_offset,
                next_offset=part.next_offset, size_bytes=part.size_bytes, damaged=list(part.damaged),
                emptied=part.is_emptied,
            )
        for ledger in done.ledgers:
            report.print_json(
                "queue", name=ledger.name, kind=ledger.kind, path=ledger.path, size_bytes=ledger.size_bytes,
                damaged=list(ledger.damaged),
            )
        report.print_json(
            "summary", **report.dry_run_fields(dry_run, bool(parts), apply=False),
            snapshot=done.snapshot.id, partitions=len(done.partitions), queues=len(done.ledgers),
            size_bytes=size_bytes, found_whole=len(done.found_whole), left_out=done.left_out, damaged=damaged,
        )
    else:
        would = "would be restored" if dry_run else "restored"
        at_most = "at most " if dry_run and (until is not None or until_offset is not None) else ""
        there = f"; {report.count_of(len(done.found_whole), 'other')} were there already" if done.found_whole else ""
        print(
            f"{count_of_parts(len(done.partitions), len(done.ledgers))}, {at_most}{report.size(size_bytes)}, of the "
            f"snapshot {done.snapshot.id} {would}{there}"
        )
        for name, why in done.left_out.items():
            if name in done.snapshot.left_out:
                report.note(
                    f"not in the snapshot, as it could not be backed up: {name}: {why}; an earlier one may have it: "
                    f"seglog backup ls {shlex.quote(store)}"
                )
                continue
            report.note(
                f"left out: {name}: {why}; to restore it: seglog restore {shlex.join([store, str(target)])} --snapshot "
                f"{done.snapshot.id} --topic {shlex.quote(name)}"
            )
        if emptied:
            named = ", ".join(emptied[:_NAMED]) + (f" and {len(emptied) - _NAMED:,} more" * (len(emptied) > _NAMED))
            none = "no record was restored: all" if is_nothing else "restored empty, because all their records"
            report.note(f"{none} are behind the end that was asked for: {named}")
        for name in damaged:
            report.note(f"damaged in the source, and restored as it was: {name}; `seglog verify` shows where")
        if dry_run:
            print(report.dry_run_text(bool(parts), apply=False))
    if damaged or done.left_out:
        return report.PARTIAL
    return int(is_nothing or (dry_run and bool(parts)))


def _copy_topics(
    url: str, target: Path, topics: Sequence[str], options: dict[str, str], *, dry_run: bool, shows: bool, as_json: bool
) -> int:
    """Copy the topics of a log dir in a store."""
    from seglog.spark import fetch_topics

    with terminal.Line(enabled=shows) as line:
        come = 0

        def progress(partition: str, size_bytes: int) -> None:
            nonlocal come
            come += size_bytes
            line.say(f"{report.printable(partition)}  {report.size(come)}")

        rows = list(
            fetch_topics(url, target, topics=topics, store_options=options, dry_run=dry_run, progress=progress)
        )
    new = [row for row in rows if row.is_new]
    size_bytes = sum(row.size_bytes for row in new)
    if as_json:
        for row in rows:
            report.print_json(
                "partition", partition=row.partition, version=row.version, files=row.files, size_bytes=row.size_bytes,
                is_new=row.is_new,
            )
        report.print_json(
            "summary", **report.dry_run_fields(dry_run, bool(new), apply=False), partitions=len(new),
            size_bytes=size_bytes, found_whole=len(rows) - len(new),
        )
        return int(dry_run and bool(new))
    for row in rows:
        of_version = f" of {row.version}" if row.version else ""
        there = "" if row.is_new else ", already there"
        print(f"{report.printable(row.partition)}{of_version}: {report.count_of(row.files, 'file')}, "
              f"{report.size(row.size_bytes)}{there}")
    if dry_run:
        print(report.dry_run_text(bool(new), apply=False))
    return int(dry_run and bool(new))


def _renamed(words: Sequence[str]) -> dict[str, str]:
    renamed = {}
    for word in words:
        topic, equals, name = word.partition("=")
        if not equals or not topic or not name:
            raise click.UsageError(f"--rename {word}: expected TOPIC=NAME")
        renamed[topic] = name
    return renamed
