"""`seglog ledger ls | dump | verify | seek | recover | ...`: managed ledgers, single ledgers, files of Pulsar entries.

`compact` and `convert` are in ledger_compact.py.
"""
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import click

from seglog.errors import InvalidArgumentError, NotALogError, SeglogError
from seglog.ledger.config import ManagedLedgerConfig
from seglog.ledger.managed.closed import ClosedManagedLedger
from seglog.ledger.position import Position
from seglog.upkeep.ledger_recover import RecoveryPlan, plan_recovery
from seglog.verification.ledger_check import (
    LedgerReport,
    check_entries,
    check_managed_ledger,
    check_one_ledger,
    is_ledger,
    is_managed_ledger,
    read_stream,
)

from . import report
from .cli import Command, CommandGroup
from .entry_lines import Placed, entries_of, fields_of, no_entries, text_of
from .ledger_compact import compact, convert
from .options import (
    SOURCE,
    NumberType,
    PositionType,
    TimeType,
    apply_option,
    json_option,
    limit_option,
    paths_argument,
)
from .targets import name_of


@click.group(name="ledger", cls=CommandGroup)
def command() -> None:
    """Work on managed ledgers, single ledgers, and plain files of Pulsar entries (each preceded by its size, a
    big-endian uint32).

    All commands only read, and work beside a writer, except `recover`, `compact` and `convert` with --apply.
    """


command.add_command(compact)
command.add_command(convert)


# --- ls --------------------------------------------------------------------------------------


@command.command(cls=Command, only_reads=True)
@paths_argument
@json_option
def ls(paths: Sequence[Path], as_json: bool) -> int:
    """List ledgers with entries, bytes and times, and cursors with their backlog."""
    for path in paths:
        if is_managed_ledger(path):
            with ClosedManagedLedger(path) as topic:
                _ls_topic(path, topic, as_json)
        else:
            found = list(entries_of(path))
            size_bytes = sum(len(placed.data) for placed in found)
            if as_json:
                report.print_json("entries", path=path, entries=len(found), size_bytes=size_bytes)
            else:
                print(f"{name_of(path)}: {report.count_of(len(found), 'entry', 'entries')}, {report.size(size_bytes)}")
    return 0


def _ls_topic(path: Path, topic: ClosedManagedLedger, as_json: bool) -> None:
    cursors = topic.cursors()
    extent = topic.extent
    backlogs = [state.acknowledged.backlog(extent) for state in cursors]
    rows = []
    for slot, info in enumerate(extent.infos):
        end = info.end
        assert end is not None
        sealed = topic.is_sealed or slot < len(extent.infos) - 1
        if as_json:
            report.print_json(
                "ledger", managed_ledger=name_of(path), ledger_id=info.ledger_id, entries=end.entries,
                size_bytes=end.length_bytes, max_timestamp=end.max_timestamp, created_ms=info.created_ms,
                sealed_ms=end.sealed_ms if sealed else None,
            )
        rows.append([
            str(info.ledger_id), f"{end.entries:,}", report.size(end.length_bytes), report.moment(info.created_ms),
            report.moment(end.sealed_ms) if sealed else "open", report.moment(end.max_timestamp),
        ])
    if as_json:
        for state, backlog in zip(cursors, backlogs, strict=True):
            report.print_json(
                "cursor", managed_ledger=name_of(path), name=state.name, mark_delete=state.acknowledged.mark_delete,
                acknowledged_behind=len(state.acknowledged), backlog=backlog, properties=state.properties,
            )
        report.print_json(
            "summary", managed_ledger=name_of(path), ledgers=len(rows), entries=topic.entry_count,
            size_bytes=topic.size_bytes, cursors=len(cursors), last_index=topic.manifest.last_index,
            properties=topic.manifest.properties,
        )
        return
    print(report.table(("ledger", "entries", "bytes", "created", "sealed", "latest entry"), rows, left=()))
    if cursors:
        print()
        print(report.table(
            ("cursor", "mark-delete", "backlog"),
            [
                [state.name, str(state.acknowledged.mark_delete), f"{backlog:,}"]
                for state, backlog in zip(cursors, backlogs, strict=True)
            ],
        ))


# --- dump ------------------------------------------------------------------------------------


@command.command(cls=Command, only_reads=True)
@paths_argument
@click.option("--from-position", "first", type=PositionType(bare=True),
              help="Start at this entry: 3:17, or 17 in a plain file.")
@limit_option("entries, for each PATH.")
@json_option
def dump(paths: Sequence[Path], first: Position | None, limit: int | None, as_json: bool) -> int:
    """Print every entry with all its fields. With --json, one line for each entry.

    An entry that does not parse is reported and skipped; the status is then 1.
    """
    damaged = 0
    for path in paths:
        for placed in islice(entries_of(path, first), limit):
            if not as_json:
                print(text_of(placed))
                continue
            try:
                print(report.plain_json(fields_of(placed)))
            except SeglogError as error:
                damaged += 1
                report.print_json("damaged", at=placed.label, size=len(placed.data), what=str(error))
    return 1 if damaged else 0


# --- verify ----------------------------------------------------------------------------------


@command.command(cls=Command, only_reads=True)
@paths_argument
@json_option
def verify(paths: Sequence[Path], as_json: bool) -> int:
    """Check every file against its checksum, the other files and itself, and every entry with its index and time.

    `seglog explain CODE` explains a finding. Status 1 if there is an error or a warning.
    """
    clean = True
    for path in paths:
        found = _check(path)
        clean = clean and found.ok
        if as_json:
            for finding in found.findings:
                print(report.plain_json(finding.to_dict()))
            report.print_json(
                "summary", path=found.path, ok=found.ok, ledgers=found.ledgers, entries=found.entries,
                messages=found.messages, size_bytes=found.size_bytes, cursors=found.cursors,
                findings=len(found.findings),
            )
        else:
            print("\n".join(_check_text(path, found)))
    return 0 if clean else 1


def _check(path: Path) -> LedgerReport:
    if is_managed_ledger(path):
        return check_managed_ledger(path)
    if is_ledger(path):
        return check_one_ledger(path)
    if path.is_file():
        return check_entries(path, read_stream(path))
    raise no_entries(path)


def _check_text(path: Path, found: LedgerReport) -> Iterator[str]:
    what = f"{report.count_of(found.entries, 'entry', 'entries')}, {report.size(found.size_bytes)}"
    if found.ledgers:
        what += f" in {report.count_of(found.ledgers, 'ledger')}"
    yield f"{name_of(path)}: {what}, " + ("clean" if found.ok else report.count_of(len(found.findings), "finding"))
    for finding in found.findings:
        place = f"{finding.file}" + (f", byte {finding.position}" if finding.position is not None else "")
        place += f", entry {finding.offset}" if finding.offset is not None else ""
        yield f"  {finding.severity}: {finding.meaning} [{finding.code}]"
        yield f"    at: {place}" + (f": {finding.found}" if finding.found else "")
        yield f"    try: {finding.fix}"


# --- seek ------------------------------------------------------------------------------------


@command.command(cls=Command, only_reads=True)
@paths_argument
@click.option("--time", "time_ms", metavar="TIME", type=TimeType(), help="A time: ISO 8601, milliseconds, or -2h.")
@click.option("--index", type=NumberType(), help="The message index that the broker assigned.")
@click.option("--publish-time", is_flag=True,
              help="With --time: use only the clients' publish times, as before PIP-70.")
@json_option
def seek(
    paths: Sequence[Path], time_ms: int | None, index: int | None, publish_time: bool, as_json: bool
) -> int:
    """Find the first entry of a managed ledger at or after a time, or the one that holds the message with an index.

    An entry's time is its broker timestamp, or the publish time if it has none.
    """
    if (time_ms is None) == (index is None):
        raise click.UsageError("pass --time T or --index N")
    for path in paths:
        config = ManagedLedgerConfig(use_broker_timestamps=not publish_time)
        with ClosedManagedLedger(path, config) as topic:
            if time_ms is not None:
                found = topic.position_at_time(time_ms)
            else:
                assert index is not None
                found = topic.position_at_index(index)
            placed = None if found is None else Placed(topic.read(found).data, topic.extent.before(found), found)
            if as_json:
                target = {"timestamp": time_ms} if time_ms is not None else {"index": index}
                entry = None if placed is None else fields_of(placed)
                report.print_json("seek", managed_ledger=name_of(path), target=target, position=found, entry=entry)
            else:
                print(f"{name_of(path)}: nothing there yet" if placed is None else text_of(placed))
    return 0


# --- recover ---------------------------------------------------------------------------------


@command.command(cls=Command)
@click.argument("path", metavar="PATH", type=SOURCE)
@apply_option("Do it. No other process may write to the managed ledger. Without this, or with --dry-run, change "
              "nothing.")
@click.option("--truncate", is_flag=True, help="Also truncate a ledger that was not sealed at damage in its middle.")
@json_option
def recover(path: Path, applies: bool | None, truncate: bool, as_json: bool) -> int:
    """Repair a managed ledger: seal a ledger whose writer died, reseal one that lost bytes, and rebuild a manifest
    that is missing or damaged.

    Without --apply, show a dry run. After a crash this is not needed: opening a managed ledger recovers it. Cursors do
    not change; properties of a damaged manifest are lost. Status 0 if no bytes of entries are lost and a dry run finds
    nothing to do, otherwise 1.
    """
    if path.is_file() or not is_managed_ledger(path):
        raise NotALogError("not a managed ledger", file=path, hint="pass a directory with a manifest or ledgers in it")
    plan = plan_recovery(path)
    is_needed = bool(plan.makes_manifest or plan.open_ledgers or plan.resealed_ledgers or plan.lost)
    if applies:
        if plan.bad_middles and not truncate:
            raise InvalidArgumentError(
                "a ledger is damaged in its middle", file=plan.lost[0].file, position=plan.lost[0].position,
                hint="with --truncate, --apply truncates the ledger there",
            )
        plan.apply(truncate=truncate)
    more = ["--truncate"] * (plan.bad_middles > 0 and not truncate)
    if as_json:
        for lost in plan.lost:
            report.print_json(
                "lost_range", file=lost.file, position=lost.position, size_bytes=lost.size_bytes,
                first_entry_id=lost.first_offset, reason=lost.reason,
            )
        report.print_json(
            "summary", path=path, **report.dry_run_fields(not applies, is_needed, *more),
            makes_manifest=plan.makes_manifest, ledgers=plan.ledger_ids,
            sealed=plan.open_ledgers, resealed=plan.resealed_ledgers, lost=len(plan.lost), bad_middles=plan.bad_middles,
        )
    else:
        print("\n".join(_recover_text(path, plan, bool(applies))))
        if not applies:
            print(report.dry_run_text(is_needed, *more))
    return 1 if plan.lost or (is_needed and not applies) else 0


def _recover_text(path: Path, plan: RecoveryPlan, done: bool) -> Iterator[str]:
    would = "" if done else "would be "
    if plan.makes_manifest:
        yield f"manifest: {would}rebuilt from {report.count_of(len(plan.ledger_ids), 'ledger')}"
    for ledger_id in plan.open_ledgers:
        yield f"ledger-{ledger_id}: {would}sealed"
    for ledger_id in plan.resealed_ledgers:
        yield f"ledger-{ledger_id}: {would}sealed again with the remaining entries"
    for lost in plan.lost:
        yield f"  {would}truncated at byte {lost.position}, {report.size(lost.size_bytes)}: {lost.reason}"
    if not (plan.makes_manifest or plan.open_ledgers or plan.resealed_ledgers):
        yield f"{name_of(path)}: nothing to do"


