"""Finds partitions that are missing from a log dir, and ends of logs that consumers were past: what a partition's own
directory cannot say.

    who says that it was here    the lines of the log dir's checkpoints, and the metadata log of the cluster (KRaft)
    who says that it is gone     the same metadata, if it no longer has the topic or this broker among the replicas; a
                                 directory that a broker has marked (-delete, -stray, -future)
"""
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from seglog.errors import StorageError
from seglog.format import names
from seglog.format.java_properties import parse_properties
from seglog.fs.mapping import read_file
from seglog.fs.refusals import refusals
from seglog.reading.cluster_metadata import METADATA_PARTITION, ClusterMetadata, log_dirs_of_node
from seglog.reading.topic_settings import DirectorySettings
from seglog.state.checkpoints import TopicPartition
from seglog.verification.findings import Finding
from seglog.verification.log_dir_checkpoints import offsets_in
from seglog.wire.json_text import uuid_text

_CHECKPOINTS = (
    names.RECOVERY_POINT_CHECKPOINT, names.REPLICATION_CHECKPOINT, names.LOG_START_OFFSET_CHECKPOINT,
)
_METADATA = "the cluster's metadata"
# DirectoryId.UNASSIGNED: the log dir of the replica is not known yet, or the broker has only one.
_UNASSIGNED = bytes(16)


def missing_partitions(log_dir: Path) -> dict[TopicPartition, Finding]:
    """The partitions that should be in this log dir, and are in none of the node's. Raises StorageError."""
    told = _told_by_checkpoints(log_dir)
    metadata, node_id = DirectorySettings().metadata(log_dir)
    if metadata is not None:
        told = {where: by for where, by in told.items() if _is_replica(metadata, where, node_id)}
        for where in _in_metadata(metadata, node_id, log_dir):
            told.setdefault(where, []).append(_METADATA)
    there: set[TopicPartition] = set()
    empty: set[TopicPartition] = set()
    for one in log_dirs_of_node(log_dir) if told else ():
        _add_partitions(one, there, empty)
    return {
        where: Finding(
            "partition_missing", str(log_dir / names.partition_dir(*where)),
            found="a directory without a .log" if where in empty else "no directory", expected=f"by {', '.join(by)}",
        )
        for where, by in sorted(told.items()) if where not in there
    }


def commit_beyond_end(directory: Path, log_end_offset: int, commits: Mapping[str, int]) -> list[Finding]:
    """`commits`: committed offsets of groups in this partition. One finding, with the furthest."""
    beyond = {group: offset for group, offset in commits.items() if offset > log_end_offset}
    if not beyond:
        return []
    furthest = max(beyond, key=beyond.__getitem__)
    others = f", and {len(beyond) - 1} others" if len(beyond) > 1 else ""
    return [Finding(
        "commit_beyond_end", str(directory), offset=log_end_offset, last_offset=beyond[furthest] - 1,
        found=f"the log ends at offset {log_end_offset}",
        expected=f"at least {beyond[furthest]}, by the group {furthest!r}{others}",
    )]


def _told_by_checkpoints(log_dir: Path) -> dict[TopicPartition, list[str]]:
    told: dict[TopicPartition, list[str]] = {}
    for checkpoint in _CHECKPOINTS:
        for where in offsets_in(log_dir / checkpoint):
            told.setdefault(where, []).append(checkpoint)
    return told


def _is_replica(metadata: ClusterMetadata, where: TopicPartition, node_id: str) -> bool:
    topic = metadata.topics.get(where[0])
    state = None if topic is None else topic.partitions.get(where[1])
    return state is not None and node_id in map(str, state.replicas)


def _in_metadata(metadata: ClusterMetadata, node_id: str, log_dir: Path) -> Iterable[TopicPartition]:
    """The partitions that this node should have in this log dir. Without ids of log dirs in the metadata, KRaft brokers
    have a single log dir."""
    ours = _directory_id(log_dir)
    for topic in metadata.topics.values():
        for number, state in topic.partitions.items():
            if not node_id or node_id not in map(str, state.replicas):
                continue
            slot = list(map(str, state.replicas)).index(node_id)
            directory = state.directories[slot] if slot < len(state.directories) else _UNASSIGNED
            if directory == _UNASSIGNED or uuid_text(directory) == ours:
                yield topic.name, number


def _directory_id(log_dir: Path) -> str:
    try:
        found = parse_properties(read_file(log_dir / names.META_PROPERTIES).decode("latin-1"))
    except (FileNotFoundError, StorageError, ValueError):
        return ""
    return found.get("directory.id", "")


def _add_partitions(log_dir: Path, there: set[TopicPartition], empty: set[TopicPartition]) -> None:
    with refusals("list", log_dir):
        listed = os.listdir(log_dir)
    for name in listed:
        parsed = names.parse_partition_dir(name)
        if parsed is None or name == METADATA_PARTITION:
            continue
        where = (parsed.topic, parsed.partition)
        (there if parsed.mark or names.may_have_segments(log_dir / name) else empty).add(where)
