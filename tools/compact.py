"""`seglog compact`: keep the last record of each key, in a log that is not open elsewhere."""
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from seglog.errors import NotALogError
from seglog.upkeep.cleaning_round import CleanedGroup
from seglog.upkeep.compact import Compaction, compact

from . import report
from .cli import Command
from .options import SOURCE, apply_option, config_option, json_option
from .topic_config import COMPACTION, TopicConfig


@click.command(cls=Command)
@click.argument("directory", metavar="DIR", type=SOURCE)
@apply_option("Do it. Without this, or with --dry-run, show what the first round would keep in each segment, and "
              "change nothing.")
@click.option("--prove", is_flag=True,
              help="Read all keys before and afterwards, and compare them. Needs memory for all keys.")
@click.option("--drop-keyless", is_flag=True,
              help="Drop records without a key, as Kafka does. Without this, they are refused.")
@config_option
@json_option
def command(
    directory: Path, applies: bool | None, prove: bool, drop_keyless: bool, settings: Sequence[tuple[str, str]],
    as_json: bool,
) -> int:
    """Keep only the last record of each key in the partition directory DIR, and tombstones until they expire, as
    Kafka's cleaner does. Offsets do not change; the active segment is not compacted.

    Without --apply, show a dry run, which only reads: status 1 if there is something to compact. Otherwise the
    directory must not be open elsewhere. Settings that --config does not have are taken from what is kept with the log,
    else from the cluster's metadata in the log dir (KRaft).
    """
    dry_run = not applies
    if directory.is_file():
        raise NotALogError("not a partition directory", file=directory, hint="compact takes one, such as orders-0")
    if dry_run and prove:
        raise click.UsageError("--prove needs --apply: a dry run writes nothing to prove")
    config = TopicConfig(settings, COMPACTION).of(directory)
    done = compact(directory, config=config, dry_run=dry_run, prove=prove, keyless_go=drop_keyless)
    if as_json:
        _print_json(done, dry_run=dry_run)
    else:
        print("\n".join(_text(done, dry_run=dry_run)))
    return int(dry_run and done.cleaned.outcome != "nothing")


def _print_json(done: Compaction, *, dry_run: bool) -> None:
    for group in done.cleaned.groups:
        report.print_json(
            "cleaned_segments", base_offsets=group.base_offsets, bytes_before=group.bytes_before,
            bytes_after=group.bytes_after, records_read=group.records_read, records_kept=group.records_kept,
            superseded=group.superseded, tombstones=group.tombstones, keyless=group.keyless,
            transaction_records=group.dropped, collisions=group.collisions,
        )
    report.print_json(
        "summary", dry_run=dry_run, partition=done.directory.name, outcome=done.cleaned.outcome,
        first_dirty_offset=done.cleaned.first_dirty_offset, end_offset=done.cleaned.end_offset,
        first_uncleanable_offset=done.plan.first_uncleanable_offset, dirty_ratio=done.plan.ratio,
        rounds=done.cleaned.rounds, keys=done.cleaned.keys, bytes_before=done.cleaned.bytes_before,
        bytes_after=done.cleaned.bytes_after,
        apply=report.applying() if dry_run and done.cleaned.outcome != "nothing" else None,
        proven_keys=done.proven_keys,
    )


def _text(done: Compaction, *, dry_run: bool) -> Iterable[str]:
    yield report.paint(done.directory.name, "bold")
    cleaned = done.cleaned
    if cleaned.outcome == "nothing":
        yield f"  {done.plan.why_not}"
        return
    yield report.table(
        ("segments", "before", "after", "records", "kept", "why others are removed"),
        [_row(group) for group in cleaned.groups], left=(0, 5),
    )
    would = "would be " if dry_run else ""
    rounds = "" if cleaned.rounds == 1 else f", in {report.count_of(cleaned.rounds, 'round')}"
    yield (
        f"{report.size(cleaned.bytes_before)} {would}compacted to {report.size(cleaned.bytes_after)}, up to offset "
        f"{cleaned.end_offset:,}{rounds}"
    )
    if done.proven_keys is not None:
        yield f"proven: the log holds only the last record of each of {report.count_of(done.proven_keys, 'key')}"
    if dry_run:
        yield report.dry_run_text(is_needed=True)


def _row(group: CleanedGroup) -> list[str]:
    first, *others = group.base_offsets
    reasons = [
        (group.superseded, "superseded by later records"), (group.tombstones, "expired tombstones"),
        (group.keyless, "without a key"), (group.dropped, "aborted or markers"),
    ]
    return [
        f"{first:020}" + (f" and {len(others)} more" if others else ""), report.size(group.bytes_before),
        report.size(group.bytes_after), f"{group.records_read:,}", f"{group.records_kept:,}",
        ", ".join(f"{count:,} {what}" for count, what in reasons if count),
    ]
