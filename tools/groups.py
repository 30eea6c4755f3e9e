"""`seglog groups`: the groups of consumers that a broker keeps on a disk, without the broker."""
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click

from seglog.coordinators.group_offsets import TopicPartition
from seglog.coordinators.stored_groups import StoredGroup, StoredGroups, StoredMember
from seglog.errors import NotALogError
from seglog.format import names
from seglog.reading.topic_settings import DirectorySettings
from seglog.state.quarantine import offsets_within, quarantined_offsets
from seglog.wire.internal_topics import OFFSETS_TOPIC

from . import report
from .cli import Command
from .each_place import EachPlace
from .options import json_option, paths_argument
from .targets import Place


@click.command(cls=Command, only_reads=True)
@paths_argument
@click.option("--group", "wanted", metavar="GROUP", multiple=True, help="Only this group. May be repeated.")
@json_option
def command(paths: Sequence[Path], wanted: Sequence[str], as_json: bool) -> int:
    """List the groups in __consumer_offsets of the log dirs at PATH: members, committed offsets, and the lag behind the
    logs on this disk.

    Several PATHs are the log dirs of one broker. Groups whose partition of __consumer_offsets is on another broker are
    not shown. Status 1 if a group that was asked for is not there, 7 if a partition could not be read.
    """
    places = EachPlace(paths, as_json=as_json)
    stored, found = StoredGroups(), 0
    for place in places:
        where = place.topic_partition()
        if where is not None and where[0] == OFFSETS_TOPIC:
            found += 1
            with places.reading(place), place.open() as partition:
                stored.add_partition(partition.batches())
    if not found and not _is_served(paths):
        raise NotALogError(
            f"no partition of {OFFSETS_TOPIC} is here", file=paths[0],
            hint="pass the log dirs of a broker that coordinates groups",
        )
    groups = stored.groups()
    missing = [name for name in wanted if name not in groups]
    ends = _Ends(places)
    topics = _topic_names(places)
    for n, group in enumerate(group for name, group in groups.items() if not wanted or name in wanted):
        if as_json:
            _print_json(group, ends, topics)
        else:
            print("\n" * bool(n) + "\n".join(_text(group, ends, topics)))
    if stored.unknown:
        report.note(f"{report.count_of(stored.unknown, 'record')} of types or versions that this release does not know")
    for name in missing:
        report.note(f"no group {name!r} in the {report.count_of(found, 'partition')} of {OFFSETS_TOPIC} here")
    if not found:
        report.note(f"no group here: {OFFSETS_TOPIC} does not exist yet")
    elif not groups:
        report.note(f"no group in the {report.count_of(found, 'partition')} of {OFFSETS_TOPIC} here")
    return places.status(found=bool(missing))


def _is_served(paths: Iterable[Path]) -> bool:
    """Whether seglog's own server has had a log dir: it makes the topic only for the first group."""
    return any((path / names.SERVER_LOCK).exists() for path in paths)


class _Ends:
    """Log end offsets of the partitions on this disk, found when they are asked for."""

    def __init__(self, places: EachPlace) -> None:
        self._each = places
        self._places: dict[TopicPartition, Place] = {}
        for place in places:
            where = place.topic_partition()
            if where is not None:
                self._places.setdefault(where, place)
        self._ends: dict[TopicPartition, int | None] = {}
        self._quarantined: dict[TopicPartition, list[tuple[int, int]]] = {}

    def of(self, where: TopicPartition) -> int | None:
        """None if the partition is not here, or cannot be read."""
        if where not in self._ends:
            self._ends[where] = self._find(where)
        return self._ends[where]

    def missing(self, where: TopicPartition, committed: int) -> int:
        """How many of the offsets from the committed one on are not in the log, but in its quarantine."""
        end = self.of(where)
        if end is None:
            return 0
        if where not in self._quarantined:
            self._quarantined[where] = quarantined_offsets(self._places[where].directory)
        within = offsets_within(self._quarantined[where], committed, end - 1)
        return sum(last - first + 1 for first, last in within)

    def _find(self, where: TopicPartition) -> int | None:
        place = self._places.get(where)
        if place is None:
            return None
        with self._each.reading(place), place.open() as partition:
            return partition.log_end_offset
        return None

    def shown(self, where: TopicPartition) -> str:
        """The end as text, or why it is unknown."""
        end = self.of(where)
        return f"{end:,}" if end is not None else "unread" if where in self._places else "not here"


def _total_lag(group: StoredGroup, ends: _Ends) -> int:
    """The lag of all partitions that are here and have a commit."""
    latest = group.offsets.latest()
    return sum(end - offset for where, offset in latest.items() if (end := ends.of(where)) is not None)


def _topic_names(places: Iterable[Place]) -> Mapping[str, str]:
    """Topics by their ids, which members of the new groups are given."""
    settings = DirectorySettings()
    found: dict[str, str] = {}
    for log_dir in dict.fromkeys(Path(os.path.realpath(place.directory)).parent for place in places):
        metadata, _ = settings.metadata(log_dir)
        if metadata is not None:
            found |= {topic.topic_id: topic.name for topic in metadata.topics.values()}
    return found


def _assigned(member: StoredMember, topics: Mapping[str, str]) -> dict[str, list[int]]:
    return {topics.get(topic, topic): partitions for topic, partitions in member.assigned.items()}


def _print_json(group: StoredGroup, ends: _Ends, topics: Mapping[str, str]) -> None:
    offsets = group.offsets
    report.print_json(
        "group", group=group.group_id, kind=group.kind, epoch=group.epoch, protocol_type=group.protocol_type,
        protocol=group.protocol, members=len(group.members), offsets=len(offsets.partitions()),
        waiting=[commit._asdict() for commit in offsets.waiting()],
        lag=_total_lag(group, ends),
    )
    for member in group.members.values():
        report.print_json(
            "group_member", group=group.group_id, member_id=member.member_id, instance_id=member.instance_id,
            client_id=member.client_id, client_host=member.client_host, assigned=_assigned(member, topics),
        )
    for where in sorted(offsets.partitions()):
        commit, end = offsets.get(where), ends.of(where)
        assert commit is not None
        report.print_json(
            "committed_offset", group=group.group_id, topic=where[0], partition=where[1], offset=commit.offset,
            log_end_offset=end, lag=None if end is None else end - commit.offset,
            missing=ends.missing(where, commit.offset), leader_epoch=commit.leader_epoch,
            metadata=commit.metadata, commit_timestamp=commit.commit_timestamp,
            expire_timestamp=commit.expire_timestamp,
        )


def _text(group: StoredGroup, ends: _Ends, topics: Mapping[str, str]) -> Iterable[str]:
    words: list[str] = [group.kind]
    if group.kind == "classic":
        words.append(f"generation {group.epoch}")
        words += [f"protocol {report.printable(group.protocol)}"] if group.protocol else []
    elif group.kind != "offsets only":
        words.append(f"epoch {group.epoch}")
    words.append(report.count_of(len(group.members), "member") if group.members else "no members")
    yield report.paint(report.printable(group.group_id), "bold") + "   " + ", ".join(words)
    if group.members:
        rows = [
            [report.printable(member.member_id), report.printable(member.instance_id or "-"),
             report.printable(member.client_id), report.printable(member.client_host),
             ", ".join(f"{report.printable(topic)} {_ranges(partitions)}"
                       for topic, partitions in sorted(_assigned(member, topics).items())) or "-"]
            for member in group.members.values()
        ]
        yield report.table(("member", "instance", "client", "host", "assigned"), rows, left=range(5), indent=2)
    rows = []
    for where in sorted(group.offsets.partitions()):
        commit, end = group.offsets.get(where), ends.of(where)
        assert commit is not None
        rows.append([
            f"{report.printable(where[0])}-{where[1]}", f"{commit.offset:,}", ends.shown(where),
            "?" if end is None else f"{end - commit.offset:,}",
            f"{missing:,}" if (missing := ends.missing(where, commit.offset)) else "-",
            report.moment(commit.commit_timestamp), report.printable(commit.metadata),
        ])
    if rows:
        yield report.table(
            ("partition", "committed", "log end", "lag", "of these missing", "at", "metadata"), rows, left=(0, 5, 6),
            indent=2, optional=(4, 6),
        )
    if len(rows) > 1:
        total = _total_lag(group, ends)
        yield f"  lag of all partitions here: {report.number(total)}"
    for one in group.offsets.waiting():
        yield (
            f"  {report.printable(one.topic)}-{one.partition}: a commit of offset {one.offset:,} waits for the end of "
            f"the transaction of producer id {one.producer_id}"
        )


def _ranges(numbers: Sequence[int]) -> str:
    """`0-2,5`"""
    parts: list[list[int]] = []
    for n in sorted(numbers):
        if parts and n == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], n]
        else:
            parts.append([n])
    return ",".join("-".join(map(str, part)) for part in parts)
