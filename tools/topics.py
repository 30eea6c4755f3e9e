"""`seglog topics`: what a cluster knows of its topics, from the metadata log on a disk, and what of them is here."""
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import click

from seglog.errors import SeglogError
from seglog.format import names
from seglog.reading.cluster_metadata import ClusterMetadata, PartitionReplicas
from seglog.reading.topic_settings import DirectorySettings, ToldSetting, told_settings
from seglog.state.kept_settings import read_settings
from seglog.state.partition_metadata import PartitionMetadata, format_topic_id

from . import report
from .cli import Command
from .each_place import EachPlace
from .options import json_option, paths_argument
from .targets import Place, log_dirs

SOURCES = {"topic": "topic", "broker": "this broker", "brokers": "all brokers", "log": "kept with the log"}


@click.command(cls=Command, only_reads=True)
@paths_argument
@click.option("--topic", "wanted", metavar="GLOB", multiple=True, help="Only topics that match. May be repeated.")
@json_option
def command(paths: Sequence[Path], wanted: Sequence[str], as_json: bool) -> int:
    """List the topics of the cluster to which the log dirs at PATH belong: ids, partitions, replicas, settings, and
    which partitions are on this disk.

    Several PATHs are the log dirs of one broker. Everything is from its metadata log (KRaft): the newest snapshot, and
    what follows it. Settings that seglog keeps with the logs come before those. Without a metadata log, as of a broker
    with ZooKeeper, and for what `server.properties` sets, the answer is "unknown". Status 1 if a topic that was asked
    for is unknown, 7 if something could not be read.
    """
    places = EachPlace(paths, as_json=as_json)
    here = _here(places)
    settings = DirectorySettings()
    metadata, node_id = _metadata_of(paths, settings)
    for error in settings.problems:
        places.unread += 1
        report.show_error(error, click.get_current_context().command_path, as_json=as_json)
    known = {} if metadata is None else metadata.topics
    shown = sorted(name for name in {*known, *here} if not wanted or any(fnmatchcase(name, glob) for glob in wanted))
    if metadata is None:
        report.note("no metadata log here: replicas and settings are unknown")
    elif not as_json:
        print(f"cluster metadata up to offset {metadata.end_offset:,}, broker {node_id or 'unknown'}")
    for n, name in enumerate(shown):
        told = None if metadata is None or name not in known else told_settings(metadata, name, node_id)
        kept = _kept(here.get(name, {}), places, as_json=as_json)
        shown_settings = told if not kept else dict(sorted({**(told or {}), **kept}.items()))
        partitions = known[name].partitions if name in known else {}
        topic_id = known[name].topic_id if name in known else None
        if as_json:
            _print_json(name, topic_id, partitions, here.get(name, {}), told, shown_settings)
        else:
            print("\n" * (metadata is not None or n > 0)
                  + "\n".join(_text(name, topic_id, partitions, here.get(name, {}), told, shown_settings)))
    missing = [glob for glob in wanted if not any(fnmatchcase(name, glob) for name in shown)]
    for name in missing:
        report.note(f"topic {name!r} is unknown here")
    return places.status(found=bool(missing))


def _here(places: Iterable[Place]) -> Mapping[str, Mapping[int, Place]]:
    """The partitions on this disk by topic and number, without the metadata log."""
    found: dict[str, dict[int, Place]] = {}
    for place in places:
        parsed = names.parse_partition_dir(place.directory.resolve().name)
        if parsed is not None and parsed.topic != names.METADATA_TOPIC:
            found.setdefault(parsed.topic, {}).setdefault(parsed.partition, place)
    return found


def _kept(here: Mapping[int, Place], places: EachPlace, *, as_json: bool) -> dict[str, ToldSetting]:
    """The settings that seglog keeps with the logs of a topic: those of its first partition here."""
    for _, place in sorted(here.items()):
        try:
            return {key: ToldSetting(value, "log") for key, value in read_settings(place.directory).items()}
        except (SeglogError, OSError) as error:
            places.unread += 1
            report.show_error(
                report.as_seglog_error(error), click.get_current_context().command_path, as_json=as_json)
    return {}


def _metadata_of(paths: Iterable[Path], settings: DirectorySettings) -> tuple[ClusterMetadata | None, str]:
    for path in paths:
        for log_dir in _log_dirs_of(path):
            metadata, node_id = settings.metadata(log_dir)
            if metadata is not None:
                return metadata, node_id
    return None, ""


def _log_dirs_of(path: Path) -> Sequence[Path]:
    """The log dirs that a path is, is above, or is in."""
    where = path.resolve()
    if path.is_file():
        where = where.parent
    if names.parse_partition_dir(where.name) is not None and names.has_segments(where):
        return [where.parent]
    return log_dirs(where) or [where]


def _id_on_disk(place: Place) -> str | None:
    try:
        return format_topic_id(PartitionMetadata.read(place.directory / names.PARTITION_METADATA).topic_id)
    except (SeglogError, OSError):
        return None


def _problem(topic_id: str | None, number: int, place: Place | None, state: PartitionReplicas | None) -> str | None:
    """Why a partition on this disk is not the cluster's."""
    if place is None:
        return None
    on_disk = _id_on_disk(place)
    if topic_id is not None and on_disk is not None and on_disk != topic_id:
        return f"has the topic id {on_disk}: of a topic that was deleted"
    if topic_id is not None and state is None:
        return f"the topic has no partition {number}"
    return None


def _print_json(
    name: str, topic_id: str | None, partitions: Mapping[int, PartitionReplicas], here: Mapping[int, Place],
    told: Mapping[str, ToldSetting] | None, settings: Mapping[str, ToldSetting] | None,
) -> None:
    report.print_json(
        "topic", topic=name, topic_id=topic_id or next(filter(None, map(_id_on_disk, here.values())), None),
        in_metadata=told is not None, partitions=len(partitions) if told is not None else None, here=len(here),
        settings=None if settings is None else {
            key: {"value": setting.value, "source": setting.source} for key, setting in settings.items()
        },
    )
    for number in sorted({*partitions, *here}):
        state = partitions.get(number)
        report.print_json(
            "topic_partition", topic=name, partition=number,
            path=here[number].path if number in here else None,
            replicas=None if state is None else state.replicas, isr=None if state is None else state.isr,
            leader=None if state is None else state.leader,
            leader_epoch=None if state is None else state.leader_epoch,
            eligible_leaders=None if state is None else state.eligible_leaders,
            last_known_leaders=None if state is None else state.last_known_leaders,
            leader_is_unclean=None if state is None else state.is_unclean,
            problem=_problem(topic_id, number, here.get(number), state),
        )


def _text(
    name: str, topic_id: str | None, partitions: Mapping[int, PartitionReplicas], here: Mapping[int, Place],
    told: Mapping[str, ToldSetting] | None, settings: Mapping[str, ToldSetting] | None,
) -> Iterable[str]:
    shown_id = topic_id or next(filter(None, map(_id_on_disk, here.values())), None)
    yield report.paint(report.printable(name), "bold") + "   " + "   ".join((
        f"id {shown_id or 'unknown'}",
        report.count_of(len(partitions), "partition") if told is not None else "not in the metadata",
        f"{len(here):,} here",
    ))
    rows = []
    for number in sorted({*partitions, *here}):
        state, problem = partitions.get(number), _problem(topic_id, number, here.get(number), partitions.get(number))
        rows.append([
            str(number), *(["unknown"] * 4 if state is None else [
                _leader(state), str(state.leader_epoch), _ids(state.replicas), _in_sync(state),
            ]), problem or ("yes" if number in here else "no"),
        ])
    yield report.table(
        ("partition", "leader", "epoch", "replicas", "in sync", "here"), rows, left=(3, 4, 5), indent=2
    )
    if settings is None:
        yield "  settings: unknown"
        return
    for key, setting in settings.items():
        yield f"  {report.printable(key)} = {report.printable(setting.value)}   ({SOURCES[setting.source]})"
    for key in ("cleanup.policy", "retention.ms", "retention.bytes"):
        if key not in settings:
            yield f"  {key}: unknown (server.properties, or else Kafka's default)"


def _leader(state: PartitionReplicas) -> str:
    if state.leader < 0:
        return "none"
    return f"{state.leader}, unclean" if state.is_unclean else str(state.leader)


def _in_sync(state: PartitionReplicas) -> str:
    """The replicas in sync; without any, those that may lead, which are the disks to look at."""
    shown = [_ids(state.isr)]
    if state.eligible_leaders:
        shown.append(f"{_ids(state.eligible_leaders)} may lead")
    led_last = [node for node in state.last_known_leaders if node not in state.eligible_leaders]
    if led_last:
        shown.append(f"{_ids(led_last)} led last")
    return ", ".join(shown)


def _ids(nodes: Sequence[int]) -> str:
    return ",".join(map(str, nodes)) or "none"
