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
from .options import ConfigType, apply_option, json_option, paths_argument
from .targets import name_of


def compacted_of(topic: ClosedManagedLedger) -> CompactedLedger | None:
    """None if the topic was never compacted. Raises CorruptManifestError if the pointer to it was lost."""
    states = {state.name: state for state in topic.cursors()}
    pointer = pointed_to(topic.path, states.get(COMPACTION_CURSOR))
    return None if pointer is None else open_compacted(topic.path, pointer)


@click.command(cls=Command)
@paths_argument
@apply_option("Do it. Without this, or with --dry-run, only show what would remain, also beside a writer.")
@click.option(
    "--config", "settings", type=ConfigType(), multiple=True,
    help="A setting: seglog.compaction.payload, topicCompactionRetainNullKey, seglog.compaction.key.ttl.ms, ... May be "
    "repeated.",
)
@json_option
def compact(
    paths: Sequence[Path], applies: bool | None, settings: Sequence[tuple[str, str]], as_json: bool
) -> int:
    """Write the last message of each key of a managed ledger to a separate compacted ledger.

    Readers of the compacted topic read that ledger; the topic itself does not change. No other process may write to it.
    Without --apply, show a dry run: status 1 if there is something to compact.
    """
    config = ManagedLedgerConfig.of(dict(settings))
    rounds = 0
    for path in paths:
        if not applies:
            with ClosedManagedLedger(path, config) as closed:
                found = plan_compaction(closed, compacted_of(closed))
        else:
            with ManagedLedger(path, config=config, create=False) as topic:
                found = PulsarTopicCompactionService(topic).compact()
        rounds += found.rounds
        _print_compaction(path, found, not applies, as_json)
    return _ended(applies, rounds > 0, as_json)


def _ended(applies: bool | None, is_needed: bool, as_json: bool) -> int:
    """End a dry run with the command that does it, and return the exit status."""
    if applies:
        return 0
    if not as_json:
        print(report.dry_run_text(is_needed))
    return int(is_needed)


def _print_compaction(path: Path, found: CompactionReport, dry_run: bool, as_json: bool) -> None:
    count = found.count
    if as_json:
        report.print_json(
            "summary", managed_ledger=name_of(path), **report.dry_run_fields(dry_run, found.rounds > 0),
            rounds=found.rounds, ledger_id=found.ledger_id,
            horizon=found.horizon, last=found.last, keys=found.keys, entries_in=count.entries_in,
            entries_out=count.entries_out, messages_in=count.messages_in, messages_out=count.messages_out,
            bytes_in=count.bytes_in, bytes_out=count.bytes_out, unreadable=count.unreadable,
        )
        return
    if not found.rounds:
        where = f"nothing to compact after {found.horizon}" if found.horizon > EARLIEST else "the topic has no entries"
        print(f"{name_of(path)}: {where}")
        return
    print(
        f"{name_of(path)}: up to {found.horizon}, {count.messages_in:,} messages → {count.messages_out:,}, in "
        f"{count.entries_in:,} → {report.count_of(count.entries_out, 'entry', 'entries')} "
        f"({report.size(count.bytes_in)} → {report.size(count.bytes_out)}), the last at {found.last}"
    )
    if count.unreadable:
        print(f"  {report.count_of(count.unreadable, 'batch', 'batches')} could not be opened: kept unchanged")


@click.command(cls=Command)
@paths_argument
@click.option(
    "--form", "form", type=click.Choice(list(FORMS)), required=True,
    help="old: as Pulsar 4.0 writes; new: with compacted_batch_indexes, as 4.2 does; retained-only: without "
    "placeholders, which Pulsar clients cannot read without a payload processor.",
)
@apply_option("Do it. Without this, or with --dry-run, only show what is there, also beside a writer.")
@json_option
def convert(paths: Sequence[Path], form: str, applies: bool | None, as_json: bool) -> int:
    """Rewrite the compacted ledger of a managed ledger in another form, and prove that its messages stay the same.

    The result replaces the old compacted ledger once the proof holds; otherwise the status is 1 and nothing changes.
    No other process may write to the topic. The next compaction writes the form that is configured. Without --apply,
    show a dry run: status 1 if a compacted ledger has another form.
    """
    others = 0
    for path in paths:
        if not applies:
            with ClosedManagedLedger(path) as closed:
                before = compacted_of(closed)
                others += before is not None and before.properties.form != FORMS[form]
                ledger_id = None
                _print_conversion(path, before, before, ledger_id, form, False, as_json)
            continue
        with ManagedLedger(path, create=False) as topic:
            service = PulsarTopicCompactionService(topic)
            before = service.compacted_ledger
            ledger_id = service.convert(FORMS[form])
            _print_conversion(path, before, service.compacted_ledger, ledger_id, form, True, as_json)
    return _ended(applies, others > 0, as_json)


def _print_conversion(
    path: Path, before: CompactedLedger | None, after: CompactedLedger | None, ledger_id: int | None, form: str,
    applies: bool, as_json: bool,
) -> None:
    if before is None or after is None:
        raise InvalidArgumentError(
            "the topic was never compacted", file=path, hint="run `seglog ledger compact --apply`"
        )
    proof = digest_of(after)
    was = next(name for name, known in FORMS.items() if known == before.properties.form)
    if as_json:
        report.print_json(
            "summary", managed_ledger=name_of(path), **report.dry_run_fields(not applies, was != form),
            ledger_id=ledger_id, was=was, to=form, entries=proof.entries, messages=proof.messages,
            sha256=proof.sha256, bytes_before=before.size_bytes, bytes_after=after.size_bytes,
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
