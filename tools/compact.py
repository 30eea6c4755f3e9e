"""`seglog compact`: keep the last record of each key, in logs that are not open elsewhere."""
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from seglog.errors import NotALogError
from seglog.format.names import METADATA_TOPIC
from seglog.upkeep.cleaning_round import CleanedGroup
from seglog.upkeep.compact import Compaction, compact

from . import report
from .cli import Command
from .each_place import EachPlace
from .options import apply_option, config_option, json_option, paths_argument
from .targets import Place
from .topic_config import COMPACTION, POLICY, TopicConfig


@click.command(cls=Command)
@paths_argument
@apply_option("Do it. Without this, or with --dry-run, show what the first round would keep in each segment, and "
              "change nothing.")
@click.option("--prove", is_flag=True,
              help="Read all keys before and afterwards, and compare them. Needs memory for all keys.")
@click.option("--drop-keyless", is_flag=True,
              help="Drop records without a key, as Kafka does. Without this, they are refused.")
@config_option
@json_option
def command(
    paths: Sequence[Path], applies: bool | None, prove: bool, drop_keyless: bool, settings: Sequence[tuple[str, str]],
    as_json: bool,
) -> int:
    """Keep only the last record of each key in the partition directory PATH, and tombstones until they expire, as
    Kafka's cleaner does. Offsets do not change; the active segment is not compacted. In a log dir, those
    partitions whose topic is compacted.

    Without --apply, show a dry run, which only reads: status 1 if there is something to compact. Otherwise the
    directory must not be open elsewhere. Settings that --config does not have are taken from what is kept with the log,
    else from the cluster's metadata in the log dir (KRaft). Status 7 if one of several partitions failed.
    """
    dry_run = not applies
    for path in paths:
        if path.is_file():
            raise NotALogError("not a partition directory", file=path, hint="compact takes one, such as orders-0")
    if dry_run and prove:
        raise click.UsageError("--prove needs --apply: a dry run writes nothing to prove")
    config = TopicConfig(settings, COMPACTION)
    places = EachPlace(paths, as_json=as_json)
    is_alone = len(places) == 1 and not next(iter(places)).in_log_dir
    done: list[Compaction] = []
    for place in places:
        with places.reading(place):
            if place.in_log_dir and not _is_compacted(place, config):
                continue
            one = compact(
                place.directory, config=config.of(place.directory), dry_run=dry_run, prove=prove,
                keyless_go=drop_keyless,
            )
            done.append(one)
            if as_json:
                _print_json(one, dry_run=dry_run, is_alone=is_alone)
            else:
                print("\n".join(_text(one, dry_run=dry_run)))
    is_needed = any(one.cleaned.outcome != "nothing" for one in done)
    if as_json and not is_alone:
        report.print_json(
            "summary", **report.dry_run_fields(dry_run, is_needed), partitions=len(done),
            bytes_before=sum(one.cleaned.bytes_before for one in done),
            bytes_after=sum(one.cleaned.bytes_after for one in done), unread=places.unread,
        )
    elif not as_json:
        if not is_alone:
            print(f"{report.count_of(len(done), 'compacted partition')}")
        if dry_run and (is_needed or not is_alone):
            print(report.dry_run_text(is_needed, unread=places.unread))
    return places.status(found=dry_run and is_needed)


def _is_compacted(place: Place, config: TopicConfig) -> bool:
    """Whether the topic of a partition in a log dir is compacted; of an unknown policy, --config decides."""
    where = place.topic_partition()
    if where is not None and where[0] == METADATA_TOPIC:
        report.note(f"{place.name} is left alone: only its cluster compacts it")
        return False
    policy = config.known_policy(place.directory)
    if policy is None:
        policy = str(config.typed.get(POLICY, ""))
        if not policy:
            report.note(f"{place.name} is left alone: its {POLICY} is unknown; name the directory to compact it")
    return "compact" in policy


def _print_json(done: Compaction, *, dry_run: bool, is_alone: bool) -> None:
    of = {} if is_alone else {"partition": done.directory.name}
    for group in done.cleaned.groups:
        report.print_json(
            "cleaned_segments", **of, base_offsets=group.base_offsets, bytes_before=group.bytes_before,
            bytes_after=group.bytes_after, records_read=group.records_read, records_kept=group.records_kept,
            superseded=group.superseded, tombstones=group.tombstones, keyless=group.keyless,
            transaction_records=group.dropped, collisions=group.collisions,
        )
    told = report.dry_run_fields(dry_run, done.cleaned.outcome != "nothing") if is_alone else {}
    report.print_json(
        "summary" if is_alone else "partition", **told, partition=done.directory.name,
        outcome=done.cleaned.outcome,
        first_dirty_offset=done.cleaned.first_dirty_offset, end_offset=done.cleaned.end_offset,
        first_uncleanable_offset=done.plan.first_uncleanable_offset, dirty_ratio=done.plan.ratio,
        rounds=done.cleaned.rounds, keys=done.cleaned.keys, bytes_before=done.cleaned.bytes_before,
        bytes_after=done.cleaned.bytes_after,
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
