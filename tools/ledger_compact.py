"""`seglog ledger compact | convert`: keep a topic's last message of each key; convert the stored form."""
from collections.abc import Sequence
from pathlib import Path

import click

from seglog.errors import InvalidArgumentError
from seglog.ledger.compacted.compacted_ledger import CompactedLedger
from seglog.ledger.config import ManagedLedgerConfig
from seglog.ledger.managed.closed import ClosedManagedLedger
from seglog.ledger.managed.compacted_home import COMPACTION_CURSOR, open_compacted, pointed_to
from seglog.ledger.position import EARLIEST
from seglog.pulsar import ManagedLedger
from seglog.upkeep.compacted_conversion import FORMS, digest_of
from seglog.upkeep.topic_compaction import CompactionReport, PulsarTopicCompactionService, plan_compaction

from . import report
from .cli import Command
from .entry_lines import name_of
from .options import ConfigType, json_option, paths_argument


def compacted_of(topic: ClosedManagedLedger) -> CompactedLedger | None:
    """None if the topic was never compacted. Raises CorruptManifestError if the pointer to it was lost."""
    states = {state.name: state for state in topic.cursors()}
    pointer = pointed_to(topic.path, states.get(COMPACTION_CURSOR))
    return None if pointer is None else open_compacted(topic.path, pointer)


@click.command(cls=Command)
@paths_argument
@click.option("--dry-run", is_flag=True, help="Only show what would remain. Works beside a writer.")
@click.option(
    "--config", "settings", type=ConfigType(), multiple=True,
    help="A setting: seglog.compaction.payload, topicCompactionRetainNullKey, seglog.compaction.key.ttl.ms, ... May be "
    "repeated.",
)
@json_option
def compact(paths: Sequence[Path], dry_run: bool, settings: Sequence[tuple[str, str]], as_json: bool) -> int:
    """Write the last message of each key of a managed ledger to a separate compacted ledger.

    Readers of the compacted topic read that ledger; the topic itself does not change. No other process may write to it.
    """
    config = ManagedLedgerConfig.of(dict(settings))
    for path in paths:
        if dry_run:
            with ClosedManagedLedger(path, config) as closed:
                found = plan_compaction(closed, compacted_of(closed))
        else:
            with ManagedLedger(path, config=config, create=False) as topic:
                found = PulsarTopicCompactionService(topic).compact()
        _print_compaction(path, found, dry_run, as_json)
    return 0


def _print_compaction(path: Path, found: CompactionReport, dry_run: bool, as_json: bool) -> None:
    count = found.count
    if as_json:
        report.print_json(
            "summary", managed_ledger=name_of(path), done=not dry_run, rounds=found.rounds, ledger_id=found.ledger_id,
            horizon=found.horizon, last=found.last, keys=found.keys, entries_in=count.entries_in,
            entries_out=count.entries_out, messages_in=count.messages_in, messages_out=count.messages_out,
            bytes_in=count.bytes_in, bytes_out=count.bytes_out, unreadable=count.unreadable,
        )
        return
    if not found.rounds:
        where = f"nothing to compact after {found.horizon}" if found.horizon > EARLIEST else "the topic has no entries"
        print(f"{name_of(path)}: {where}")
        return
    would = "would be left" if dry_run else "left"
    print(
        f"{name_of(path)}: up to {found.horizon}, {count.messages_in:,} messages in "
        f"{report.count_of(count.entries_in, 'entry', 'entries')} ({report.size(count.bytes_in)}): {would} "
        f"{count.messages_out:,} in {report.count_of(count.entries_out, 'entry', 'entries')} "
        f"({report.size(count.bytes_out)}), the last at {found.last}"
    )
    if count.unreadable:
        print(f"  {report.count_of(count.unreadable, 'batch', 'batches')} could not be opened: kept unchanged")


@click.command(cls=Command)
@paths_argument
@click.option(
    "--to", "form", type=click.Choice(list(FORMS)), required=True,
    help="old: as Pulsar 4.0 writes; new: with compacted_batch_indexes, as 4.2 does; retained-only: without "
    "placeholders, which Pulsar clients cannot read without a payload processor.",
)
@click.option("--dry-run", is_flag=True, help="Only show what is there. Works beside a writer.")
@json_option
def convert(paths: Sequence[Path], form: str, dry_run: bool, as_json: bool) -> int:
    """Rewrite the compacted ledger of a managed ledger in another form, and prove that its messages stay the same.

    The result replaces the old compacted ledger once the proof holds; otherwise the status is 1 and nothing changes.
    No other process may write to the topic. The next compaction writes the form that is configured.
    """
    for path in paths:
        if dry_run:
            with ClosedManagedLedger(path) as closed:
                before = compacted_of(closed)
                ledger_id = None
                _print_conversion(path, before, before, ledger_id, form, as_json)
            continue
        with ManagedLedger(path, create=False) as topic:
            service = PulsarTopicCompactionService(topic)
            before = service.compacted_ledger
            ledger_id = service.convert(FORMS[form])
            _print_conversion(path, before, service.compacted_ledger, ledger_id, form, as_json)
    return 0


def _print_conversion(
    path: Path, before: CompactedLedger | None, after: CompactedLedger | None, ledger_id: int | None, form: str,
    as_json: bool,
) -> None:
    if before is None or after is None:
        raise InvalidArgumentError("the topic was never compacted", file=path, hint="run seglog ledger compact")
    proof = digest_of(after)
    was = next(name for name, known in FORMS.items() if known == before.properties.form)
    if as_json:
        report.print_json(
            "summary", managed_ledger=name_of(path), ledger_id=ledger_id, was=was, to=form, entries=proof.entries,
            messages=proof.messages, sha256=proof.sha256, bytes_before=before.size_bytes, bytes_after=after.size_bytes,
        )
        return
    what = f"{proof.messages:,} messages in {report.count_of(proof.entries, 'entry', 'entries')}"
    if ledger_id is None:
        print(f"{name_of(path)}: {what}, {report.size(before.size_bytes)}, {was}")
    else:
        print(
            f"{name_of(path)}: {what}, {report.size(before.size_bytes)} {was} became {report.size(after.size_bytes)} "
            f"{form}; proof {proof.sha256[:16]}"
        )
