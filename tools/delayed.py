"""`seglog delayed`: the index of delayed messages of a managed ledger."""
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import click

from seglog.clock import SystemClock
from seglog.delayed.worker import IdleWorker, InlineWorker, Worker
from seglog.errors import CorruptDelayedIndexError, InvalidArgumentError, SnapshotMissingError
from seglog.ledger.managed.manifest import Manifest
from seglog.ledger.position import Position
from seglog.pulsar import ManagedLedger
from seglog.topic.delayed_delivery import DelayedDelivery
from seglog.topic.delayed_index import BUILDING_CURSOR, DelayedIndex
from seglog.topic.delayed_policies import policy_properties, stored_policies
from seglog.verification.snapshot_check import StoredIndex, stored_indexes

from . import report
from .cli import Command, CommandGroup
from .options import SOURCE, NumberType, PositionType, TimeType, dry_run_option, json_option, limit_option

HOUR_MS = 3_600_000
# `count` without times: the times up to which due messages are counted.
HORIZONS = {"now": 0, "in an hour": HOUR_MS, "in 2 hours": 2 * HOUR_MS, "in a day": 24 * HOUR_MS}
# One past the largest timestamp.
FOREVER = 2**63

path_argument = click.argument("path", metavar="PATH", type=SOURCE)
subscription_option = click.option(
    "--subscription", metavar="NAME", help="The subscription, to use its index; without this, the index that all "
    "subscriptions share."
)
first_option = click.option("--since", "first_ms", metavar="TIME", type=TimeType(), default=0,
                            help="From this time on: messages due then.")
end_option = click.option(
    "--until", "end_ms", metavar="TIME", type=TimeType(), help="Up to this time: messages due before it.",
    callback=lambda ctx, param, value: FOREVER if value is None else value,
)


@click.group(name="delayed", cls=CommandGroup)
def command() -> None:
    """Show or change the index of delayed messages of a managed ledger.

    buckets, dump and verify read the snapshots, even beside a process that writes them. The others open the managed
    ledger for writing (status 5 if another process has it open), and also know messages that are in no snapshot yet.
    """


# --- snapshots -------------------------------------------------------------------------------


@command.command(cls=Command, only_reads=True)
@path_argument
@subscription_option
@json_option
def buckets(path: Path, subscription: str | None, as_json: bool) -> int:
    """List buckets: ledgers, snapshot, segments, messages, times, bytes.

    The messages counted are those that were pending when the snapshot was made.
    """
    rows = []
    unreadable = 0
    for index in _stored(path, subscription):
        with closing(index):
            for bucket in index.buckets:
                fields = {
                    "cursor": index.name, "start": bucket.start, "end": bucket.end, "snapshot": bucket.snapshot_id
                }
                try:
                    described = index.metadata(bucket)
                    counts = {
                        "segments": len(described), "messages": sum(map(len, index.segments(bucket))),
                        "first_ms": described[0].min_schedule_timestamp if described else -1,
                        "last_ms": described[-1].max_schedule_timestamp if described else -1,
                        "size": index.size_bytes(bucket),
                    }
                except (SnapshotMissingError, CorruptDelayedIndexError) as error:
                    report.note(f"bucket {bucket.start} to {bucket.end}: {error}")
                    unreadable += 1
                    continue
                if as_json:
                    report.print_json("bucket", **fields, **counts)
                rows.append([
                    index.name, f"{bucket.start}-{bucket.end}", str(bucket.snapshot_id),
                    report.number(counts["segments"]), report.number(counts["messages"]),
                    report.moment(counts["first_ms"]), report.moment(counts["last_ms"]), report.size(counts["size"]),
                ])
    if not as_json:
        head = ("cursor", "ledgers", "snapshot", "segments", "messages", "first due", "last due", "size")
        print(report.table(head, rows, left=(0, 1, 5, 6)))
    return report.PARTIAL if unreadable else 0


@command.command(cls=Command, only_reads=True)
@path_argument
@subscription_option
@click.option("--snapshot-id", "snapshot", type=NumberType(), metavar="ID", help="Only this snapshot.")
@json_option
def dump(path: Path, subscription: str | None, snapshot: int | None, as_json: bool) -> None:
    """Print every message of the snapshots, by bucket and segment: due time, position."""
    for index in _stored(path, subscription):
        with closing(index):
            for bucket in index.buckets:
                if snapshot is not None and bucket.snapshot_id != snapshot:
                    continue
                for number, rows in enumerate(index.segments(bucket), 1):
                    if not as_json:
                        print(f"{index.name}, snapshot {bucket.snapshot_id}, segment {number}")
                    for at, ledger, entry in rows:
                        if as_json:
                            report.print_json(
                                "delayed", cursor=index.name, snapshot=bucket.snapshot_id, segment=number,
                                deliver_at=at, ledger=ledger, entry=entry,
                            )
                        else:
                            print(f"  {report.moment(at)}  {ledger}:{entry}")


@command.command(cls=Command, only_reads=True)
@path_argument
@subscription_option
@json_option
def verify(path: Path, subscription: str | None, as_json: bool) -> int:
    """Read every snapshot, and compare it with its metadata and its range. Changes nothing."""
    buckets = problems = 0
    for index in _stored(path, subscription):
        with closing(index):
            buckets += len(index.buckets)
            for problem in index.check():
                problems += problem.code != "orphan"
                if as_json:
                    report.print_json("problem", code=problem.code, file=problem.file, what=problem.what)
                else:
                    mark = "-" if problem.code == "orphan" else "!"
                    print(f"{mark} {problem.file}: {problem.what} [{problem.code}]")
    if as_json:
        report.print_json("summary", ok=not problems, buckets=buckets, problems=problems)
    else:
        print(f"{report.count_of(buckets, 'bucket')}, {report.count_of(problems, 'problem')}")
        if problems:
            print("  no message is lost: `seglog delayed reset` removes the snapshots, and the log is indexed again")
    return 1 if problems else 0


def _stored(path: Path, subscription: str | None) -> list[StoredIndex]:
    found = stored_indexes(path)
    if subscription is None:
        return found
    named = [index for index in found if index.name == subscription]
    if not named:
        there = ", ".join(index.name for index in found) or "none"
        raise InvalidArgumentError(f"{subscription!r} has no snapshots; these have some: {there}", file=path)
    return named


# --- policies --------------------------------------------------------------------------------


@command.group(name="policies", cls=CommandGroup)
def policies() -> None:
    """Show or set the configuration keys that are stored with the topic. They override what a program passes."""


@policies.command(name="get", cls=Command, only_reads=True)
@path_argument
@json_option
def get_policies(path: Path, as_json: bool) -> None:
    """Print the stored keys. Works beside a process that writes the topic."""
    found = stored_policies(Manifest.read(path).properties)
    for key, value in sorted(found.items()):
        if as_json:
            report.print_json("policy", key=key, value=value)
        else:
            print(f"{key}={value}")


@policies.command(name="set", cls=Command)
@path_argument
@click.argument("settings", metavar="KEY=VALUE...", nargs=-1, required=True)
@dry_run_option
@json_option
def set_policies(path: Path, settings: Sequence[str], dry_run: bool, as_json: bool) -> int:
    """Store keys with the topic; `KEY=` removes one. Status 5 if a program has the topic open: it must set them
    itself, with DelayedDelivery.set_policies."""
    changes: dict[str, object] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise InvalidArgumentError(f"{setting!r} is not KEY=VALUE", file=path)
        changes[key] = value or None
    stored = policy_properties(changes)
    if not dry_run:
        with ManagedLedger(path, create=False) as topic, DelayedDelivery._as_found(topic) as delayed:
            delayed.set_policies(changes)
    if as_json:
        report.print_json(
            "summary", managed_ledger=path.name, **report.dry_run_fields(dry_run, True, apply=False),
            policies=len(stored),
        )
    return int(dry_run)


# --- messages --------------------------------------------------------------------------------


@command.command(cls=Command, only_reads=True)
@path_argument
@subscription_option
@first_option
@end_option
@json_option
def count(path: Path, subscription: str | None, first_ms: int, end_ms: int, as_json: bool) -> None:
    """Count delayed messages, between two times or by when they are due."""
    with _opened(path, subscription) as index:
        if (first_ms, end_ms) != (0, FOREVER):
            found = {"": index.tracker.count(first_ms, end_ms)}
        else:
            now_ms = SystemClock().now_ms()
            edges = [0, *(now_ms + ms for ms in HORIZONS.values()), FOREVER]
            counts = index.tracker.histogram(edges)
            found = {f"due {name}": sum(counts[: slot + 1]) for slot, name in enumerate(HORIZONS)}
            found["in all"] = sum(counts)
    if as_json:
        for name, number in found.items():
            report.print_json("count", **({"of": name} if name else {}), messages=number)
    else:
        for name, number in found.items():
            print(f"{name:16}{number:>14,}" if name else f"{number:,}")


@command.command(cls=Command, only_reads=True)
@path_argument
@subscription_option
@first_option
@end_option
@limit_option("messages.", default=1000)
@json_option
def messages(
    path: Path, subscription: str | None, first_ms: int, end_ms: int, limit: int, as_json: bool
) -> None:
    """List delayed messages in the order in which they will be delivered."""
    with _opened(path, subscription) as index:
        found = index.tracker.list(first_ms, end_ms)
    for at, ledger, entry in found[:limit]:
        if as_json:
            report.print_json("delayed", deliver_at=at, ledger=ledger, entry=entry)
        else:
            print(f"{report.moment(at)}  {ledger}:{entry}")
    if len(found) > limit:
        report.note(f"{len(found) - limit:,} more: raise --limit to see them")


@command.command(cls=Command)
@path_argument
@subscription_option
@click.argument("positions", metavar="LEDGER:ENTRY...", nargs=-1, required=True, type=PositionType())
@dry_run_option
@json_option
def cancel(
    path: Path, subscription: str | None, positions: Sequence[Position], dry_run: bool, as_json: bool
) -> int:
    """Acknowledge messages, so that they are never delivered. Status 1 if one of them was not pending."""
    missing = 0
    with _opened(path, subscription) as index:
        pending = {(ledger, entry) for _, ledger, entry in index.tracker.list(0, FOREVER)} if dry_run else set()
        for position in positions:
            cancelled = position in pending if dry_run else index.cancel(position)
            missing += not cancelled
            if as_json:
                report.print_json(
                    "cancel", **report.dry_run_fields(dry_run, cancelled, apply=False), ledger=position.ledger_id,
                    entry=position.entry_id, cancelled=cancelled,
                )
            else:
                yes = "pending" if dry_run else "cancelled"
                print(f"{position}  {yes if cancelled else 'not pending: delivered, cancelled or never there'}")
    return int(dry_run or missing > 0)


@command.command(cls=Command)
@path_argument
@subscription_option
@click.option("--acknowledge", is_flag=True, help="Acknowledge the pending messages: they are never delivered.")
@dry_run_option
@json_option
def reset(path: Path, subscription: str | None, acknowledge: bool, dry_run: bool, as_json: bool) -> int:
    """Remove all snapshots. Pending messages are indexed again from the log when it is next opened."""
    with _opened(path, subscription, new_worker=InlineWorker, needs_buckets=True) as index:
        pending = index.tracker.count(0, FOREVER) if dry_run else index.clear(acknowledge=acknowledge)
    if as_json:
        report.print_json(
            "reset", **report.dry_run_fields(dry_run, True, apply=False), pending=pending, acknowledged=acknowledge,
        )
    else:
        fate = "acknowledged" if acknowledge else "to be indexed again"
        print(f"{report.count_of(pending, 'pending message')} {fate}" + (": nothing was changed" if dry_run else ""))
    return int(dry_run)


@contextmanager
def _opened(
    path: Path,
    subscription: str | None,
    *,
    new_worker: Callable[[], Worker] = IdleWorker,
    needs_buckets: bool = False,
) -> Iterator[DelayedIndex]:
    """Open the index of a subscription, or the shared one; it then knows every delayed message of the log."""
    with ManagedLedger(path, create=False) as topic:
        names = [name for name in topic.cursors if name != BUILDING_CURSOR]
        with DelayedDelivery._as_found(topic, new_worker=new_worker) as delayed:
            config = delayed.config
            if config.shared_index and subscription is not None:
                raise InvalidArgumentError(
                    "all subscriptions share one index here (enableShareDelayedMessageIndex)",
                    file=path, hint="leave --subscription out",
                )
            if not config.shared_index and subscription is None:
                raise InvalidArgumentError(
                    "enableShareDelayedMessageIndex is off here: each subscription has its own index",
                    file=path, hint=f"pass --subscription: {', '.join(names) or 'there is none'}",
                )
            if needs_buckets and not config.bucket_tracker:
                raise InvalidArgumentError(
                    "enableBucketDelayedDeliveryTracker is off here: there are no snapshots", file=path,
                    hint="there is nothing to reset",
                )
            name = BUILDING_CURSOR if subscription is None else subscription
            if name not in topic.cursors:
                raise InvalidArgumentError(
                    f"unknown subscription {name!r}", file=path, hint=f"known are: {', '.join(names) or 'none'}"
                )
            cursor = topic.open_cursor(name)
            yield delayed.index(cursor)
