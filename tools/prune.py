"""`seglog prune`: delete what retention removes, from logs that are not open elsewhere, or show it."""
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from seglog.errors import NotALogError
from seglog.format.names import METADATA_TOPIC
from seglog.upkeep.retain import LogRetention, by_first_name, retain

from . import report
from .cli import Command
from .each_place import EachPlace
from .options import SizeType, apply_option, config_option, json_option, paths_argument
from .targets import Place
from .topic_config import RETENTION, TopicConfig

_REASONS = {
    "start": "before the log start offset", "size": "more than retention.bytes", "time": "older than retention.ms",
    "total": "more than the total",
}


@click.command(cls=Command)
@paths_argument
@apply_option("Do it: delete them. Without this, or with --dry-run, show which segments would be deleted, and why, and "
              "change nothing.")
@click.option("--total-bytes", type=SizeType(), metavar="SIZE",
              help="Limit for all partitions together: the oldest segments are deleted, but never the last of a log.")
@click.option("--delete-compacted", "may_delete_compacted", is_flag=True,
              help="Let --config cleanup.policy=delete concern compacted topics, too. Their keys go with the segments.")
@config_option
@json_option
def command(
    paths: Sequence[Path], applies: bool | None, total_bytes: int | None, may_delete_compacted: bool,
    settings: Sequence[tuple[str, str]], as_json: bool,
) -> int:
    """Delete old segments of the partitions at PATH by Kafka's rules. cleanup.policy, retention.ms and retention.bytes
    are taken from --config, else from what is kept with the log, else from the cluster's metadata in the log dir
    (KRaft). Without retention.ms and retention.bytes, only segments before the log start offset are deleted; with one
    of them, a partition whose cleanup.policy is unknown is refused, and so is a compacted one if --config says
    cleanup.policy=delete.

    Without --apply, show a dry run, which only reads: status 1 if something would be deleted. Otherwise, a partition
    must not be open elsewhere; a log that a process has open with these settings deletes old segments by itself.
    Status 7 if one of several partitions failed.
    """
    dry_run = not applies
    for path in paths:
        if path.is_file():
            raise NotALogError("not a partition directory", file=path, hint="pass a partition directory or a log dir")
    places = EachPlace(paths, as_json=as_json)
    config = TopicConfig(settings, RETENTION)
    # Its controller alone knows which snapshot replaces the start of the metadata log.
    chosen = [place for place in places if not _is_metadata(place)]
    names = set(by_first_name(place.directory for place in chosen).values())
    done: list[LogRetention] = []
    if total_bytes is not None:
        # One decision covers all of them, so an error in one ends the command.
        directories = [place.directory for place in chosen]
        of = {Path(os.path.abspath(path)): config.with_policy(
            path, always=True, may_delete_compacted=may_delete_compacted
        ) for path in directories}
        for one in retain(directories, config=of.__getitem__, total_bytes=total_bytes, dry_run=dry_run):
            done.append(one)
            _print(one, as_json=as_json)
    else:
        for place in chosen:
            if Path(os.path.abspath(place.directory)) not in names:
                report.note(f"{place.name} is another name of a partition that was already processed")
                continue
            with places.reading(place):
                of_place = config.with_policy(place.directory, may_delete_compacted=may_delete_compacted)
                for one in retain([place.directory], config=of_place, dry_run=dry_run):
                    done.append(one)
                    _print(one, as_json=as_json)
    segments = sum(len(one.retained.expired) for one in done)
    gone_bytes = sum(one.retained.deleted_bytes for one in done)
    linked_bytes = sum(one.retained.linked_bytes for one in done)
    if as_json:
        report.print_json(
            "summary", **report.dry_run_fields(dry_run, segments > 0), partitions=len(done), deleted_segments=segments,
            deleted_bytes=gone_bytes,
            linked_bytes=linked_bytes, kept_bytes=sum(one.kept_bytes for one in done), unread=places.unread,
        )
    else:
        would = "would be deleted" if dry_run else "deleted"
        print(f"{report.count_of(segments, 'segment')}, {report.size(gone_bytes)}, {would}")
        if linked_bytes:
            print(f"{report.size(linked_bytes)} of it stay in use: the files have other names, as in a hot backup")
        if dry_run:
            print(report.dry_run_text(segments > 0, unread=places.unread))
    return places.status(found=dry_run and segments > 0)


def _is_metadata(place: Place) -> bool:
    where = place.topic_partition()
    if where is None or where[0] != METADATA_TOPIC:
        return False
    report.note(f"{place.name} is left alone: only its cluster prunes it")
    return True


def _print(one: LogRetention, *, as_json: bool) -> None:
    name = one.directory.name
    if as_json:
        for expired in one.retained.expired:
            report.print_json(
                "expired_segment", partition=name, base_offset=expired.base_offset, next_offset=expired.next_offset,
                size_bytes=expired.size_bytes, reason=expired.reason,
            )
        report.print_json(
            "partition", partition=name, log_start_offset=one.retained.log_start_offset,
            deleted_segments=len(one.retained.expired), deleted_bytes=one.retained.deleted_bytes,
            rewritten_bytes=one.retained.rewritten_bytes, kept_segments=one.kept_segments, kept_bytes=one.kept_bytes,
            next_ms=one.next_ms,
        )
    else:
        print("\n".join(_text(one)))


def _text(one: LogRetention) -> Iterable[str]:
    yield report.paint(one.directory.name, "bold")
    rows = [
        [f"{expired.base_offset:020}", f"{expired.base_offset:,}…{expired.next_offset - 1:,}",
         report.size(expired.size_bytes), _REASONS[expired.reason]]
        for expired in one.retained.expired
    ]
    if rows:
        yield report.table(("segment", "offsets", "size", "why"), rows, left=(0, 1, 3))
    kept = f"{report.count_of(one.kept_segments, 'segment')}, {report.size(one.kept_bytes)}"
    yield f"  begins at {one.retained.log_start_offset:,}; {kept} stay"
    if one.next_ms is not None:
        yield f"  the next segment is due at {report.moment(one.next_ms)}"
