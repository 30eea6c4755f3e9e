"""`seglog erase`: remove the records of some keys from partitions, in place, with a proof that all others stay."""
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path

import click

from seglog.conversion.directory import plan_from_options
from seglog.conversion.erasing import erasing
from seglog.conversion.in_place import plan_in_place
from seglog.conversion.log_dir import convert_log_dir, convert_log_dir_in_place, partitions_in
from seglog.conversion.report import PartitionRow
from seglog.conversion.throttle import Throttle
from seglog.errors import NotALogError
from seglog.format import names

from . import report
from .cli import Command
from .conversion_report import rows_remarks
from .convert import Watch, as_open_as, roll_back_each
from .options import PATH, SOURCE, SizeType, apply_option, config_option, json_option, progress_option

# A conversion's status of a row, and its name here.
_STATUS = {"converted": "erased", "planned": "planned", "skipped": "unchanged", "failed": "failed"}


@click.command(cls=Command)
@click.argument("src", metavar="SRC", type=SOURCE)
@click.option("--key", "keys", metavar="KEY", multiple=True, help="A key: its records are erased. May be repeated.")
@click.option("--key-file", "key_files", metavar="FILE", type=PATH, multiple=True,
              help="Erase the records with the keys in this file: one key per line, as raw bytes.")
@click.option("--hex", "is_hex", is_flag=True, help="The keys of --key and --key-file are in hex.")
@click.option("--topic", "topics", metavar="GLOB", multiple=True,
              help="Only topics that match. May be repeated. For a log dir.")
@apply_option("Do it: erase the records, with --backup. Without this, or with --dry-run, count them and change "
              "nothing.")
@click.option("--backup", metavar="DIR", type=PATH,
              help="Keep what is replaced in DIR: the old partition directories, which still contain the records. On "
              "the same file system, but not in the log dir.")
@click.option("--rollback", is_flag=True, help="Undo it: restore the directories in --backup.")
@click.option("--throttle", "throttle_bytes", metavar="BYTES", type=SizeType(), default=0,
              help="At most this many bytes of the source per second, such as 50m.")
@config_option
@progress_option
@json_option
def command(
    src: Path, keys: Sequence[str], key_files: Sequence[Path], is_hex: bool, topics: Sequence[str],
    applies: bool | None, backup: Path | None, rollback: bool, throttle_bytes: int,
    settings: Sequence[tuple[str, str]], no_progress: bool, as_json: bool,
) -> int:
    """Remove the records of some keys from SRC, a partition directory or a log dir of them, even if a topic is not
    compacted.

    Without --apply, show a dry run that counts them: status 1 if there are any. All other records keep offset,
    timestamp, key, value and headers; batches keep their offsets, format and codec. The result is proven against the
    files before it replaces the partition, in one step; no broker may run. The erased records are gone once you remove
    the backup. Do the same for each replica. If a partition of a log dir fails, it is reported and the others are
    processed: status 7.
    """
    if src.is_file():
        raise NotALogError("neither a partition directory nor a log dir", file=src, hint="pass one, such as orders-0")
    is_partition = not src.is_dir() or names.has_segments(src)
    if is_partition and topics:
        raise click.UsageError("--topic needs a log dir: SRC is a single partition")
    if rollback:
        if backup is None or keys or key_files:
            raise click.UsageError("--rollback needs --backup, and takes no keys")
        partitions = [src] if is_partition else partitions_in(src, topics)
        return roll_back_each(
            partitions, backup, dry_run=applies is False, as_json=as_json, command="seglog erase",
            before="before records were erased", unchanged="has all of its records",
        )
    if applies and backup is None:
        raise click.UsageError("--apply needs --backup DIR, the directory that keeps the old partition directories")
    missing = ["--backup", "DIR"] if backup is None else []
    if not applies:
        backup = None
    options = erasing(_keys(keys, key_files, is_hex=is_hex), dict(settings))
    rows: list[PartitionRow] = []
    with (
        nullcontext() if backup is None else as_open_as(src),
        closing(Watch(
            Throttle(throttle_bytes), [src] if is_partition else partitions_in(src, topics), 1 if backup is None else 2,
            enabled=not no_progress,
        )) as watch,
    ):
        if is_partition:
            began_s = time.monotonic()
            name = Path(os.path.abspath(src)).name
            progress = watch("reading", name)
            plan = (
                plan_from_options(src, None, options, progress=progress) if backup is None
                else plan_in_place(src, backup, options, progress=progress)
            )
            if backup is None:
                rows.append(PartitionRow.of_plan(plan, time.monotonic() - began_s))
            elif plan.changes_nothing:
                rows.append(PartitionRow.of_no_change(plan, time.monotonic() - began_s))
            else:
                result = plan.run(watch("erasing", name))
                rows.append(PartitionRow.of_result(result, time.monotonic() - began_s))
        elif backup is None:
            rows += convert_log_dir(src, None, options, topics=topics, watch=watch)
        else:
            rows += convert_log_dir_in_place(src, backup, options, topics=topics, watch=watch)
    if as_json:
        told = report.dry_run_fields(not applies, any(map(_erased, rows)), *missing)
        _print_json(rows, len(options.erased), told)
    else:
        print("\n".join(_text(rows, len(options.erased), backup)))
        if not applies:
            print(report.dry_run_text(any(map(_erased, rows)), *missing))
    if any(row.status == "failed" for row in rows):
        return report.PARTIAL
    return int(not applies and any(map(_erased, rows)))


def _keys(keys: Sequence[str], key_files: Sequence[Path], *, is_hex: bool) -> list[bytes]:
    """Collect the keys of all options. Raises click.UsageError, OSError."""
    if not keys and not key_files:
        raise click.UsageError("pass the keys whose records to erase with --key or --key-file")
    found = [os.fsencode(key) for key in keys]
    for file in key_files:
        lines = file.read_bytes().removesuffix(b"\n").split(b"\n")
        if b"" in lines:
            raise click.UsageError(
                f"--key-file {file}: line {lines.index(b'') + 1} is empty; for records with an empty key pass --key ''"
            )
        found += lines
    if not is_hex:
        return found
    try:
        return [bytes.fromhex(key.decode("ascii")) for key in found]
    except ValueError as error:
        raise click.UsageError(f"--hex: {error}") from None


def _erased(row: PartitionRow) -> int:
    return row.losses.erased_records if row.losses is not None else 0


def _print_json(rows: Sequence[PartitionRow], keys: int, told: Mapping[str, object]) -> None:
    for row in rows:
        report.print_json(
            "partition", partition=row.partition, status=_STATUS[row.status], erased_records=_erased(row),
            records=row.records, segments=row.segments, bytes_in=row.bytes_in, bytes_out=row.bytes_out,
            seconds=row.seconds, digest=row.digest, warnings=row.warnings, error=row.error, what=row.what, fix=row.fix,
        )
    report.print_json(
        "summary", **told, keys=keys, erased_records=sum(map(_erased, rows)),
        **{status: sum(_STATUS[row.status] == status for row in rows) for status in _STATUS.values()},
    )


def _text(rows: Sequence[PartitionRow], keys: int, backup: Path | None) -> Iterable[str]:
    head = ("partition", "status", "segments", "records to erase" if backup is None else "records erased", "bytes",
            "after", "digest of the rest")
    yield report.table(head, [
        [
            row.partition, _STATUS[row.status], str(row.segments), f"{_erased(row):,}", report.size(row.bytes_in),
            "-" if row.bytes_out is None else report.size(row.bytes_out), (row.digest or "-")[:16],
        ]
        for row in rows
    ], left=(0, 1, 6))
    yield from rows_remarks(rows)
    count, of = report.count_of(sum(map(_erased, rows)), "record"), report.count_of(keys, "key")
    if backup is None:
        yield f"{count} of {of} would be erased"
    elif any(row.status == "converted" for row in rows):
        yield (
            f"{count} of {of} erased; all others are unchanged, compared by reading the files again. "
            f"{report.printable(str(backup))} still contains the erased records: remove it when you need no --rollback"
        )
    else:
        yield f"no record of {of}: nothing was changed"
