"""What a broker's own topics say, for a page: settings of topics, and groups of consumers with their lag."""
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from seglog.coordinators.stored_groups import StoredGroup, StoredGroups
from seglog.errors import SeglogError
from seglog.format import names
from seglog.reading.cluster_metadata import ClusterMetadata, log_dirs_of_node
from seglog.reading.topic_settings import DirectorySettings, ToldSetting, told_settings
from seglog.state.checkpoints import TopicPartition
from seglog.wire.internal_topics import OFFSETS_TOPIC

from .. import report
from ..targets import Place, resolve
from .page import ROWS_MAX, Cell, Section, Table

# Shown of every topic, "unknown" if the cluster does not say it: what decides how long its records live.
_ALWAYS = ("cleanup.policy", "retention.ms", "retention.bytes")
_GIVEN_TO = {"topic": "", "broker": " (this broker)", "brokers": " (all brokers)"}
_UNKNOWN = "unknown"


class ClusterOnDisk:
    """What is known of the cluster to which the log dirs of these partitions belong. `problems`: why it is not all.
    `is_broker`: whether they are a broker's."""

    def __init__(self, places: Iterable[Place]) -> None:
        places = list(places)
        self.problems: list[str] = []
        self._metadata, self._node_id = self._find_metadata(places)
        self._groups = self._find_groups(places)
        # Not the directory of logs that seglog alone has written: nothing is unknown there.
        self.is_broker = self._metadata is not None or self._groups is not None or any(
            (log_dir / names.META_PROPERTIES).is_file() for log_dir in _log_dirs_of(places)
        )

    def _find_metadata(self, places: Iterable[Place]) -> tuple[ClusterMetadata | None, str]:
        settings = DirectorySettings()
        found: tuple[ClusterMetadata | None, str] = (None, "")
        for log_dir in _log_dirs_of(places):
            metadata, node_id = settings.metadata(log_dir)
            if metadata is not None:
                found = metadata, node_id
                break
        self.problems += [f"The cluster's metadata cannot be read: {error}." for error in settings.problems]
        return found

    def _find_groups(self, places: Iterable[Place]) -> Mapping[str, StoredGroup] | None:
        """None if no partition of __consumer_offsets is here."""
        stored, found = StoredGroups(), False
        for place in places:
            where = place.topic_partition()
            if where is None or where[0] != OFFSETS_TOPIC:
                continue
            found = True
            try:
                with place.open() as partition:
                    stored.add_partition(partition.batches())
            except (SeglogError, OSError) as error:
                self.problems.append(f"Some groups are unknown: {report.as_seglog_error(error)}.")
        return stored.groups() if found else None

    def _told(self, topic: str) -> Mapping[str, ToldSetting] | None:
        """None if the cluster does not know the topic."""
        if self._metadata is None or topic not in self._metadata.topics:
            return None
        return told_settings(self._metadata, topic, self._node_id)

    def topics(self, here: Iterable[TopicPartition]) -> list[Section]:
        """The topics of the cluster and those of which something is here; nothing if these are no broker's."""
        if not self.is_broker:
            return []
        counts: dict[str, int] = {}
        for topic, _ in here:
            counts[topic] = counts.get(topic, 0) + 1
        known = {} if self._metadata is None else self._metadata.topics
        words = [*self.problems]
        if self._metadata is None:
            words.append(
                "No metadata log (KRaft) is here: replicas and settings are unknown. A broker's server.properties, or "
                "else Kafka's defaults, say what applies."
            )
        rows: list[Sequence[Cell | str]] = []
        for topic in sorted({*known, *counts}):
            told, state = self._told(topic), known.get(topic)
            rows.append([
                topic, _UNKNOWN if state is None else f"{len(state.partitions):,}", f"{counts.get(topic, 0):,}",
                *(_shown(told, key) for key in _ALWAYS),
                ", ".join(f"{key}={_shown(told, key)}" for key in told or () if key not in _ALWAYS),
            ])
        more = f"{len(rows) - ROWS_MAX:,} more: seglog topics." if len(rows) > ROWS_MAX else ""
        head = ("topic", "partitions", "here", *_ALWAYS, "other settings")
        return [Section("Topics", words, tables=[Table("Topics", head, rows[:ROWS_MAX], (0, 3, 6), more)])]

    def groups(self, ends: Mapping[TopicPartition, int], only: TopicPartition | None = None) -> list[Section]:
        """The groups and their lag behind the log ends; nothing if no partition of __consumer_offsets is here. `only`:
        of one partition."""
        if self._groups is None:
            return []
        rows: list[tuple[int, Sequence[Cell | str]]] = []
        for name, group in self._groups.items():
            kind = f"{group.kind}, {report.count_of(len(group.members), 'member')}"
            for where in group.offsets.partitions():
                commit = group.offsets.get(where)
                if commit is None or only not in (None, where):
                    continue
                end = ends.get(where)
                lag = -1 if end is None else end - commit.offset
                rows.append((lag, [
                    name, kind, f"{where[0]}-{where[1]}", f"{commit.offset:,}",
                    "not here" if end is None else f"{end:,}",
                    Cell("?" if end is None else f"{lag:,}", kind="warning" if end is not None and lag < 0 else ""),
                    report.moment(commit.commit_timestamp),
                ]))
        # The largest lag first.
        rows.sort(key=lambda row: -row[0])
        if only is None:
            words = [f"{report.count_of(len(self._groups), 'group')}, with {report.count_of(len(rows), 'commit')}."]
        else:
            words = [f"{report.count_of(len(rows), 'commit')} of groups that this broker coordinates."]
        if any(group.offsets.waiting() for group in self._groups.values()):
            words.append("Commits that wait for the end of their transaction are not counted: seglog groups.")
        more = f"{len(rows) - ROWS_MAX:,} more, with less lag: seglog groups." if len(rows) > ROWS_MAX else ""
        head = ("group", "kind", "partition", "committed", "log end", "lag", "committed at")
        table = Table("Committed offsets", head, [row for _, row in rows[:ROWS_MAX]], (0, 1, 2, 6), more)
        return [Section("Groups of consumers", words, tables=[table] if rows else [])]

    def settings(self, topic: str) -> list[Section]:
        """The settings of one topic, and who gave them; nothing if these are no broker's."""
        if not self.is_broker:
            return []
        told = self._told(topic)
        words = [*self.problems]
        if told is None:
            words.append(
                "No metadata log (KRaft) here knows the topic: its settings are unknown. The broker's "
                "server.properties, or else Kafka's defaults, say what applies."
            )
            return [Section("Settings of the topic", words)]
        given = {"topic": "the topic", "broker": "this broker", "brokers": "all brokers"}
        rows: list[Sequence[Cell | str]] = [[key, one.value, given[one.source]] for key, one in told.items()]
        rows += [
            [key, _UNKNOWN, "server.properties, or else Kafka's default"] for key in _ALWAYS if key not in told
        ]
        table = Table("Settings", ("setting", "value", "given to"), rows, (0, 1, 2))
        return [Section("Settings of the topic", words, tables=[table])]


def _shown(told: Mapping[str, ToldSetting] | None, key: str) -> str:
    if told is None or key not in told:
        return _UNKNOWN
    return f"{told[key].value}{_GIVEN_TO[told[key].source]}"


def _log_dirs_of(places: Iterable[Place]) -> Iterable[Path]:
    return dict.fromkeys(Path(os.path.realpath(place.directory)).parent for place in places)


def neighbours(directory: Path) -> Sequence[Place]:
    """The partitions of the broker that has this one, in all of its log dirs, as far as they can be listed; else that
    one alone."""
    with suppress(SeglogError, OSError):
        return resolve(log_dirs_of_node(Path(os.path.realpath(directory)).parent), unreadable=True)
    return [Place(directory)]
