"""`seglog backup create | ls | check | forget | prune`, and what `seglog restore` shares with it."""
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from seglog.archive.backup_store import BackupStore
from seglog.archive.creating import BackupRun
from seglog.backups.manifest import Snapshot
from seglog.backups.pieces import COMPRESSIONS
from seglog.errors import SeglogError

from . import report
from .cli import Command, CommandGroup
from .options import SOURCE, NumberType, apply_option, dry_run_option, json_option, progress_option, store_option

Options = Sequence[tuple[str, str]]

store_argument = click.argument("store", metavar="STORE")
snapshot_option = click.option(
    "--snapshot", "snapshot_id", metavar="ID", default="latest", show_default=True,
    help="A snapshot: its id, the beginning of it, or `latest`.",
)


@click.group(name="backup", cls=CommandGroup)
def command() -> None:
    """Back up logs, queues and log dirs while they are in use, and look after the backups. `seglog restore` restores
    them.

    STORE is a directory, best on another machine's disk, or a URL: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX,
    webhdfs://HOST:PORT/PATH. docs/backup.md says what is promised, and what is not.
    """


@command.command(cls=Command)
@click.argument("source", metavar="SRC", type=SOURCE)
@store_argument
@click.option("--compression", type=click.Choice(COMPRESSIONS),
              help="How a new STORE compresses data that is not compressed yet; none by default.")
@click.option("--reread", is_flag=True,
              help="Read all files again, instead of trusting their times and the last snapshot, and the objects in "
              "STORE that they need: what is damaged there is stored again.")
@click.option("--every", "every_s", metavar="SECONDS", type=NumberType(1),
              help="Keep running until ^C, and back up again after so many seconds, if something has changed.")
@dry_run_option
@progress_option
@store_option
@json_option
def create(
    source: Path, store: str, compression: str | None, reread: bool, every_s: int | None, dry_run: bool,
    no_progress: bool, store_options: Options, as_json: bool,
) -> int:
    """Back up SRC to STORE: a partition directory, a queue, a managed ledger, or a directory with any of these, such as
    a log dir.

    SRC may be in use, by seglog or by a Kafka broker: nothing in it is locked or changed. Each partition or queue is
    backed up as of one moment. What STORE has already is not stored again. A run that was killed is simply run again.
    Status 7 if a part of a log dir could not be backed up: the snapshot has the others. Also if a file that was growing
    has damage that whole batches follow: it is stored byte by byte, and named. Status 5 if another run is at work on
    STORE.

    With --every, the last snapshot of each hour stays, of those that this command makes. A run that fails is reported,
    and the next one follows.
    """
    backups = BackupStore(store, options=dict(store_options))
    if every_s is not None:
        if dry_run or reread:
            raise click.UsageError("--every does not go with --dry-run and --reread")
        if compression is not None:
            backups.create(source, compression=compression)
        _follow(backups, source, every_s, as_json=as_json)
        return 0
    with report.Progress("backing up", enabled=not no_progress) as progress:
        done = backups.create(
            source, compression=compression, reread=reread, dry_run=dry_run,
            progress=progress if progress.is_shown else None,
        )
    _show(done, dry_run=dry_run, as_json=as_json)
    if done.snapshot.left_out or done.damaged:
        return report.PARTIAL
    return int(dry_run)


def _follow(backups: BackupStore, source: Path, every_s: int, *, as_json: bool) -> None:
    shown = ""

    def show(run: BackupRun) -> None:
        nonlocal shown
        if run.snapshot.id != shown:
            _show(run, dry_run=False, as_json=as_json)
            sys.stdout.flush()
        shown = run.snapshot.id

    def show_error(error: SeglogError) -> None:
        report.show_error(error, "seglog backup create", as_json=as_json)

    backups.follow(source, every_s=every_s, on_run=show, on_error=show_error)


def _show(done: BackupRun, *, dry_run: bool, as_json: bool) -> None:
    snapshot = done.snapshot
    if as_json:
        report.print_json(
            "backup", **report.dry_run_fields(dry_run, True, apply=False), **_fields(snapshot),
            read_bytes=done.read_bytes, stored_objects=done.stored_objects, unchanged_partitions=done.unchanged,
            left_out=dict(snapshot.left_out), damaged=dict(done.damaged), quarantined=dict(done.quarantined),
            missing_objects=done.missing_objects,
        )
    else:
        would = "would be stored" if dry_run else "stored"
        print(
            f"{count_of_parts(len(snapshot.partitions), len(snapshot.ledgers))}, {done.unchanged:,} unchanged; "
            f"{report.size(snapshot.size_bytes)}; {report.size(done.read_bytes)} read, "
            f"{report.size(done.stored_bytes)} {would}"
        )
        if done.missing_objects:
            report.note(
                f"{report.count_of(done.missing_objects, 'object')} of the last snapshot were gone from the store, or "
                "of another size; this one needs none that is gone. `seglog backup check` names the snapshots that do"
            )
        for name, why in snapshot.left_out.items():
            report.note(f"left out: {name}: {why}")
        of_ledgers = {ledger.name for ledger in snapshot.ledgers}
        for name, what in done.damaged.items():
            would = "would be stored" if dry_run else "stored"
            verify = "seglog ledger verify" if name in of_ledgers else "seglog verify"
            report.note(f"damaged in the source, and {would} as it is: {name}/{what}; run `{verify}`")
        if done.quarantined:
            report.note(
                f"not in a backup: {report.size(sum(done.quarantined.values()))} in quarantine/ of "
                f"{', '.join(done.quarantined)}; to keep these damaged bytes, copy the directories"
            )
        print(report.dry_run_text(True, apply=False) if dry_run else f"snapshot {snapshot.id}")


@command.command(name="ls", cls=Command, only_reads=True)
@store_argument
@click.option("--snapshot", "snapshot_id", metavar="ID",
              help="A snapshot: its id, the beginning of it, or `latest`. Lists what it has.")
@store_option
@json_option
def list_(store: str, snapshot_id: str | None, store_options: Options, as_json: bool) -> int:
    """List the snapshots in STORE, or the partitions, queues and ledgers of one."""
    backups = BackupStore(store, options=dict(store_options))
    if snapshot_id is not None:
        _list_partitions(backups.snapshot(snapshot_id), as_json=as_json)
        return 0
    snapshots = backups.snapshots()
    if as_json:
        for snapshot in snapshots:
            report.print_json("snapshot", **_fields(snapshot), left_out=dict(snapshot.left_out))
        return 0
    rows = [
        [snapshot.id, report.moment(snapshot.began_at_ms), f"{snapshot.host}:{snapshot.source}",
         f"{len(snapshot.partitions):,}", f"{len(snapshot.ledgers):,}" if snapshot.ledgers else "-",
         report.size(snapshot.size_bytes),
         report.size(snapshot.stored_bytes)]
        for snapshot in snapshots
    ]
    head = ("snapshot", "began", "source", "partitions", "queues", "size", "added")
    print(report.table(head, rows, left=(0, 1, 2), optional=(4,)))
    return 0


def _list_partitions(snapshot: Snapshot, *, as_json: bool) -> None:
    if as_json:
        for part in snapshot.partitions:
            report.print_json(
                "partition", snapshot=snapshot.id, partition=part.name, log_start_offset=part.log_start_offset,
                next_offset=part.next_offset, size_bytes=part.size_bytes, taken_at_ms=part.taken_at_ms,
            )
        for ledger in snapshot.ledgers:
            report.print_json(
                "queue", snapshot=snapshot.id, name=ledger.name, kind=ledger.kind.value, size_bytes=ledger.size_bytes,
                taken_at_ms=ledger.taken_at_ms,
            )
        return
    rows = [
        [part.name, f"{part.log_start_offset:,}", f"{part.next_offset:,}", report.size(part.size_bytes),
         report.moment(part.taken_at_ms)]
        for part in snapshot.partitions
    ]
    rows += [
        [f"{ledger.name} ({ledger.kind.value})", "", "", report.size(ledger.size_bytes),
         report.moment(ledger.taken_at_ms)]
        for ledger in snapshot.ledgers
    ]
    print(report.table(("partition", "first offset", "next offset", "size", "as of"), rows, left=(0, 4)))
    for name, why in snapshot.left_out.items():
        report.note(f"left out: {name}: {why}")


@command.command(cls=Command, only_reads=True)
@store_argument
@click.option("--read-data", is_flag=True,
              help="Read every object, and compare its SHA-256 with its name. Otherwise names and sizes are checked.")
@progress_option
@store_option
@json_option
def check(store: str, read_data: bool, no_progress: bool, store_options: Options, as_json: bool) -> int:
    """Check that STORE has all that its snapshots name. Status 1 if something is damaged or gone."""
    with report.Progress("checking", enabled=not no_progress) as progress:
        found = BackupStore(store, options=dict(store_options)).check(read_data=read_data, progress=progress)
    if as_json:
        for finding in found.findings:
            report.print_json("finding", file=finding.file, what=finding.what, snapshots=list(finding.snapshots))
        report.print_json(
            "summary", snapshots=found.snapshots, objects=found.objects, object_bytes=found.object_bytes,
            unused_objects=found.unused, unused_bytes=found.unused_bytes, read_bytes=found.read_bytes,
            findings=len(found.findings),
        )
        return int(not found.ok)
    for finding in found.findings:
        users = f"; needed by {', '.join(finding.snapshots)}" if finding.snapshots else ""
        print(report.printable(f"{finding.file}: {finding.what}{users}"))
    print(
        f"{report.count_of(found.snapshots, 'snapshot')}, {report.count_of(found.objects, 'object')}, "
        f"{report.size(found.object_bytes)}; {report.size(found.read_bytes)} read; "
        f"{report.count_of(found.unused, 'object')}, {report.size(found.unused_bytes)}, in no snapshot"
    )
    print("nothing is damaged" if found.ok else f"{report.count_of(len(found.findings), 'finding')}")
    return int(not found.ok)


@command.command(cls=Command)
@store_argument
@click.option("--keep-last", type=NumberType(0), metavar="N", default=0, help="Keep the last N snapshots.")
@click.option("--keep-daily", type=NumberType(0), metavar="N", default=0,
              help="Keep the last snapshot of each of the last N days (UTC) that have one.")
@click.option("--keep-weekly", type=NumberType(0), metavar="N", default=0,
              help="Keep the last snapshot of each of the last N weeks that have one.")
@apply_option("Do it: remove the others. Without this, or with --dry-run, list them, and change nothing.")
@store_option
@json_option
def forget(
    store: str, keep_last: int, keep_daily: int, keep_weekly: int, applies: bool | None, store_options: Options,
    as_json: bool,
) -> int:
    """Remove the snapshots in STORE that no --keep option keeps. Each source counts by itself.

    Without --apply, show a dry run: status 1 if a snapshot would be removed. `seglog backup prune` then frees the
    space.
    """
    done = BackupStore(store, options=dict(store_options)).forget(
        keep_last=keep_last, keep_daily=keep_daily, keep_weekly=keep_weekly, dry_run=not applies
    )
    if as_json:
        for snapshot in done.forgotten:
            report.print_json("forgotten", **_fields(snapshot))
        report.print_json(
            "summary", **report.dry_run_fields(not applies, bool(done.forgotten)), forgotten=len(done.forgotten),
            kept=len(done.kept),
        )
    else:
        would = "would be removed" if not applies else "removed"
        for snapshot in done.forgotten:
            print(report.printable(f"{snapshot.id}  {snapshot.host}:{snapshot.source}"))
        print(f"{report.count_of(len(done.forgotten), 'snapshot')} {would}, {len(done.kept):,} kept")
        if not applies:
            print(report.dry_run_text(bool(done.forgotten)))
    return int(not applies and bool(done.forgotten))


@command.command(cls=Command)
@store_argument
@apply_option("Do it: remove them. Without this, or with --dry-run, count them, and change nothing.")
@store_option
@json_option
def prune(store: str, applies: bool | None, store_options: Options, as_json: bool) -> int:
    """Remove the objects in STORE that no snapshot names, and what killed runs left.

    Without --apply, show a dry run: status 1 if something would be removed. If a snapshot is damaged, nothing is
    removed, because it is unknown what it needs.
    """
    done = BackupStore(store, options=dict(store_options)).prune(dry_run=not applies)
    found = done.objects + done.leftovers > 0
    if as_json:
        report.print_json(
            "summary", **report.dry_run_fields(not applies, found), objects=done.objects, size_bytes=done.size_bytes,
            leftovers=done.leftovers, kept_objects=done.kept_objects, kept_bytes=done.kept_bytes,
        )
    else:
        would = "would be removed" if not applies else "removed"
        print(
            f"{report.count_of(done.objects, 'object')}, {report.size(done.size_bytes)}, {would}; "
            f"{done.kept_objects:,}, {report.size(done.kept_bytes)}, are needed"
        )
        if done.leftovers:
            print(f"{report.count_of(done.leftovers, 'file')} of killed runs {would}")
        if not applies:
            print(report.dry_run_text(found))
    return int(not applies and found)


def _fields(snapshot: Snapshot) -> Mapping[str, object]:
    return {
        "snapshot": snapshot.id, "source": snapshot.source, "host": snapshot.host,
        "began_at": f"{datetime.fromtimestamp(snapshot.began_at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}",
        "partitions": len(snapshot.partitions), "queues": len(snapshot.ledgers), "size_bytes": snapshot.size_bytes,
        "stored_bytes": snapshot.stored_bytes,
    }


def count_of_parts(partitions: int, ledgers: int) -> str:
    """`1 partition, 2 queues or ledgers`; `1 queue or ledger`."""
    told = [report.count_of(partitions, "partition")] if partitions or not ledgers else []
    if ledgers:
        told.append(f"{ledgers:,} queue{'s' * (ledgers > 1)} or ledger{'s' * (ledgers > 1)}")
    return ", ".join(told)


def names_of(words: Sequence[str]) -> list[str]:
    """The names of an option that may be repeated, and may list several with commas."""
    return [name for word in words for name in word.split(",") if name]
