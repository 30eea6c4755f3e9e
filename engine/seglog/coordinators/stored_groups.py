"""The groups of a broker as its __consumer_offsets has them: members and committed offsets, of every kind of group.

For people who look at a disk. The coordinator itself (offsets_topic.py) takes what Kafka 3.9's does.
"""
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from seglog.coordinators.group_offsets import GroupOffsets
from seglog.coordinators.offsets_topic import read_offset
from seglog.errors import ProtocolError, UnsupportedVersionError
from seglog.wire.codec import decode_versioned
from seglog.wire.internal_records import decode_key, decode_value
from seglog.wire.internal_topics import OFFSETS_TOPIC
from seglog.wire.json_text import uuid_text
from seglog.wire.messages import ConsumerProtocolAssignment
from seglog.wire.stored_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
)
from seglog.wire.structs import KafkaMessage

if TYPE_CHECKING:
    from seglog._kernels.record_batch import Record, RecordBatch

Kind = Literal["offsets only", "classic", "consumer", "share", "streams"]
_EPOCH_KEYS: dict[type[KafkaMessage], Kind] = {
    ConsumerGroupMetadataKey: "consumer", ShareGroupMetadataKey: "share", StreamsGroupMetadataKey: "streams",
}
_COMMIT = b"\0\1"       # the type of a marker, behind its version


@dataclass(slots=True)
class StoredMember:
    """A member. `assigned`: partitions by topic, or by the topic's id in a group of the new protocol."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    assigned: dict[str, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class StoredGroup:
    """A group. `epoch`: the generation of a classic one; -1 if it never had members. `protocol`: such as "range"."""

    group_id: str
    kind: Kind = "offsets only"
    epoch: int = -1
    protocol_type: str = ""
    protocol: str | None = None
    members: dict[str, StoredMember] = field(default_factory=dict)
    offsets: GroupOffsets = field(default_factory=GroupOffsets)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known of it: it was removed."""
        return self.kind == "offsets only" and self.offsets.is_empty


class StoredGroups:
    """Groups from the batches of partitions of __consumer_offsets, each in order."""

    def __init__(self) -> None:
        self._groups: dict[str, StoredGroup] = {}
        self.unknown = 0        # records that this release does not know

    def add_partition(self, batches: Iterable["RecordBatch"]) -> None:
        """Raises what reading the batches raises."""
        open_in: dict[int, set[str]] = {}       # groups by producer: a marker ends a transaction in its partition alone
        for batch in batches:
            if batch.is_control:
                for record in batch:
                    for group_id in open_in.pop(batch.producer_id, ()):
                        is_commit = (record.key or b"")[2:4] == _COMMIT
                        self._group(group_id).offsets.end_transaction(batch.producer_id, commit=is_commit)
                continue
            producer_id = batch.producer_id if batch.is_transactional else None
            for record in batch:
                try:
                    of_group = self._add(record, batch.base_offset, producer_id)
                except (ProtocolError, UnsupportedVersionError):
                    self.unknown += 1
                    continue
                if producer_id is not None and of_group is not None:
                    open_in.setdefault(producer_id, set()).add(of_group)

    def groups(self) -> dict[str, StoredGroup]:
        return {name: group for name, group in sorted(self._groups.items()) if not group.is_empty}

    def _group(self, group_id: str) -> StoredGroup:
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = StoredGroup(group_id)
        return group

    def _add(self, record: "Record", batch_offset: int, producer_id: int | None) -> str | None:
        """Apply a record; returns the group whose offset it commits."""
        key, value = record.key or b"", record.value
        stored = decode_key(OFFSETS_TOPIC, key)
        what = stored.message
        if isinstance(what, (OffsetCommitKey, LegacyOffsetCommitKey)):
            offsets = self._group(what.group).offsets
            if value is None:
                offsets.forget((what.topic, what.partition), producer_id)
            else:
                offsets.load((what.topic, what.partition), read_offset(value), batch_offset, producer_id)
            return what.group
        told = None if value is None else decode_value(OFFSETS_TOPIC, stored.type, value).message
        if isinstance(what, GroupMetadataKey):
            self._set_classic(self._group(what.group), told)
        elif isinstance(what, (ConsumerGroupMetadataKey, ShareGroupMetadataKey, StreamsGroupMetadataKey)):
            self._set_epoch(self._group(what.group_id), _EPOCH_KEYS[type(what)], told)
        elif isinstance(
            what, (ConsumerGroupMemberMetadataKey, ShareGroupMemberMetadataKey, StreamsGroupMemberMetadataKey)
        ):
            self._set_member(self._group(what.group_id), what.member_id, told)
        elif isinstance(what, ConsumerGroupCurrentMemberAssignmentKey):
            member = self._group(what.group_id).members.get(what.member_id)
            if member is not None and isinstance(told, ConsumerGroupCurrentMemberAssignmentValue):
                member.assigned = {uuid_text(row.topic_id): row.partitions for row in told.assigned_partitions}
        return None

    @staticmethod
    def _set_classic(group: StoredGroup, told: KafkaMessage | None) -> None:
        if not isinstance(told, GroupMetadataValue):
            if group.kind == "classic":
                group.kind, group.epoch, group.members = "offsets only", -1, {}
            return
        group.kind, group.epoch = "classic", told.generation
        group.protocol_type, group.protocol = told.protocol_type, told.protocol
        group.members = {
            row.member_id: StoredMember(
                row.member_id, row.group_instance_id, row.client_id, row.client_host,
                _assigned(row.assignment) if told.protocol_type == "consumer" else {},
            )
            for row in told.members
        }

    @staticmethod
    def _set_epoch(group: StoredGroup, kind: Kind, told: KafkaMessage | None) -> None:
        if isinstance(told, (ConsumerGroupMetadataValue, ShareGroupMetadataValue, StreamsGroupMetadataValue)):
            if group.kind != kind:
                group.kind, group.protocol_type, group.protocol = kind, kind, None
            group.epoch = told.epoch
        elif group.kind == kind:
            group.kind, group.epoch, group.members = "offsets only", -1, {}

    @staticmethod
    def _set_member(group: StoredGroup, member_id: str, told: KafkaMessage | None) -> None:
        known = group.members.pop(member_id, None)
        assigned = {} if known is None else known.assigned
        if isinstance(told, (ConsumerGroupMemberMetadataValue, StreamsGroupMemberMetadataValue)):
            group.members[member_id] = StoredMember(
                member_id, told.instance_id, told.client_id, told.client_host, assigned
            )
        elif isinstance(told, ShareGroupMemberMetadataValue):
            group.members[member_id] = StoredMember(member_id, None, told.client_id, told.client_host, assigned)


def _assigned(assignment: bytes) -> dict[str, list[int]]:
    """What a member of a classic group of consumers was given; empty if the bytes do not say."""
    try:
        told = decode_versioned(ConsumerProtocolAssignment, assignment)[1]
    except (ProtocolError, UnsupportedVersionError):
        return {}
    return {row.topic: list(row.partitions) for row in told.assigned_partitions}
