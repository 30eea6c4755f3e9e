"""The records of groups of the new protocol in __consumer_offsets, as a broker of Kafka 4.1.1 writes them.

    ConsumerGroupMetadata                   the group's epoch, and a hash of the topics that it reads
    ConsumerGroupMemberMetadata             what a member told of itself
    ConsumerGroupTargetAssignmentMetadata   the epoch of the target
    ConsumerGroupTargetAssignmentMember     what a member is to have
    ConsumerGroupCurrentMemberAssignment    what it has
    ConsumerGroupRegularExpression          the topics that a regular expression matched
    each without a value                    it was removed

The hash is ours: a broker that takes the group over computes its own, and the group has one more epoch.
"""
import hashlib
from collections.abc import Generator, Iterable, Mapping
from typing import TypeVar

from seglog.config import MAX_INT
from seglog.coordinators.assignors import Assignment
from seglog.coordinators.consumer_group import (
    ConsumerGroup,
    ConsumerMember,
    Current,
    MemberState,
    ResolvedRegex,
    Subscription,
)
from seglog.coordinators.internal_topic import KeyValue
from seglog.errors import ProtocolError
from seglog.wire.codec import decode_versioned, encode_versioned
from seglog.wire.internal_records import encode_key
from seglog.wire.stored_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from seglog.wire.structs import KafkaMessage

_VERSION = 0        # of each value
_Value = TypeVar("_Value")


def hash_of_topics(topics: Mapping[str, tuple[bytes, int]]) -> Generator[None, None, int]:
    """A number for these topics, each with its id and its number of partitions; 0: no topics. It is returned after many
    steps, if there are many."""
    if not topics:
        return 0
    digest = hashlib.sha256()
    for number, (name, (topic_id, partitions)) in enumerate(sorted(topics.items())):
        digest.update(f"{name}\0{topic_id.hex()}\0{partitions}\n".encode())
        if number % 1000 == 999:
            yield
    return int.from_bytes(digest.digest()[:8], "big", signed=True)


# --- writing -----------------------------------------------------------------------------------------


def epoch_record(group: ConsumerGroup) -> KeyValue:
    return _record(ConsumerGroupMetadataKey(group_id=group.group_id), ConsumerGroupMetadataValue(
        epoch=group.epoch, metadata_hash=group.metadata_hash))


def member_record(group: ConsumerGroup, member: ConsumerMember) -> KeyValue:
    told = member.told
    return _record(
        ConsumerGroupMemberMetadataKey(group_id=group.group_id, member_id=member.member_id),
        ConsumerGroupMemberMetadataValue(
            instance_id=told.instance_id, rack_id=told.rack_id, client_id=told.client_id, client_host=told.client_host,
            subscribed_topic_names=list(told.topics), subscribed_topic_regex=told.regex,
            rebalance_timeout_ms=told.rebalance_timeout_ms, server_assignor=told.assignor,
            classic_member_metadata=None))


def target_record(group: ConsumerGroup, member_id: str, target: Assignment) -> KeyValue:
    row = ConsumerGroupTargetAssignmentMemberValue.TopicPartition
    return _record(
        ConsumerGroupTargetAssignmentMemberKey(group_id=group.group_id, member_id=member_id),
        ConsumerGroupTargetAssignmentMemberValue(topic_partitions=[
            row(topic_id=topic, partitions=sorted(numbers)) for topic, numbers in target.items()]))


def target_epoch_record(group: ConsumerGroup) -> KeyValue:
    return _record(
        ConsumerGroupTargetAssignmentMetadataKey(group_id=group.group_id),
        ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=group.target_epoch, assignment_timestamp=group.target_timestamp_ms))


def current_record(group: ConsumerGroup, member: ConsumerMember) -> KeyValue:
    current = member.current
    row = ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions

    def rows(assignment: Assignment) -> list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]:
        return [row(topic_id=topic, partitions=sorted(numbers), assignment_epochs=None)
                for topic, numbers in assignment.items()]

    return _record(
        ConsumerGroupCurrentMemberAssignmentKey(group_id=group.group_id, member_id=member.member_id),
        ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=current.epoch, previous_member_epoch=current.previous_epoch, state=current.state,
            assigned_partitions=rows(current.assigned), partitions_pending_revocation=rows(current.revoking)))


def regex_record(group: ConsumerGroup, regex: str) -> KeyValue:
    resolved = group.regexes[regex]
    return _record(
        ConsumerGroupRegularExpressionKey(group_id=group.group_id, regular_expression=regex),
        ConsumerGroupRegularExpressionValue(
            topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp_ms))


def no_regex(group: ConsumerGroup, regex: str) -> KeyValue:
    return encode_key(ConsumerGroupRegularExpressionKey(group_id=group.group_id, regular_expression=regex)), None


def no_member(group: ConsumerGroup, member_id: str) -> list[KeyValue]:
    """The tombstones of a member."""
    keys: list[KafkaMessage] = [
        kind(group_id=group.group_id, member_id=member_id) for kind in (
            ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupTargetAssignmentMemberKey,
            ConsumerGroupMemberMetadataKey)]
    return [(encode_key(key), None) for key in keys]


def no_old_metadata(group: ConsumerGroup) -> KeyValue:
    """The tombstone of the topics that a group read, which only Kafka 4.0 wrote."""
    return encode_key(ConsumerGroupPartitionMetadataKey(group_id=group.group_id)), None


def no_group(group: ConsumerGroup) -> list[bytes]:
    """The keys of the tombstones of a group without members."""
    name = group.group_id
    keys: list[KafkaMessage] = [
        ConsumerGroupRegularExpressionKey(group_id=name, regular_expression=regex) for regex in group.regexes]
    keys.append(ConsumerGroupTargetAssignmentMetadataKey(group_id=name))
    if group.has_old_metadata:
        keys.append(ConsumerGroupPartitionMetadataKey(group_id=name))
    keys.append(ConsumerGroupMetadataKey(group_id=name))
    gone = {*group.members, *group.unwritten_gone}
    # What was to be removed with the next target is not removed by it any more.
    pending = [key for key, value in group.pending if value is None]
    return [
        *pending, *(key for member_id in gone for key, _ in no_member(group, member_id)), *map(encode_key, keys)]


def whole(group: ConsumerGroup) -> list[KeyValue]:
    """Everything of a group, after a write that failed."""
    gone = [record for member_id in group.unwritten_gone for record in no_member(group, member_id)]
    return [
        *gone, epoch_record(group),
        *(member_record(group, member) for member in group.members.values()),
        *(regex_record(group, regex) for regex in group.regexes),
        *(target_record(group, member_id, group.target.get(member_id, {})) for member_id in group.members),
        target_epoch_record(group),
        *(current_record(group, member) for member in group.members.values()),
    ]


def _record(key: KafkaMessage, value: KafkaMessage) -> KeyValue:
    return encode_key(key), encode_versioned(value, _VERSION)


# --- reading -----------------------------------------------------------------------------------------


class StoredConsumerGroup:
    """A group of the new protocol, built from its records in the log's order."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch: ConsumerGroupMetadataValue | None = None
        self._target_epoch: ConsumerGroupTargetAssignmentMetadataValue | None = None
        self._members: dict[str, Subscription] = {}
        self._target: dict[str, Assignment] = {}
        self._current: dict[str, Current] = {}
        self._regexes: dict[str, ResolvedRegex] = {}
        self._has_old_metadata = False

    def add(self, key: KafkaMessage, value: bytes | None) -> None:
        """Apply a record. Raises ProtocolError, UnsupportedVersionError."""
        if isinstance(key, ConsumerGroupMetadataKey):
            epoch = None if value is None else decode_versioned(ConsumerGroupMetadataValue, value)[1]
            _check_epochs(epoch.epoch if epoch else 0)
            self.epoch = epoch
        elif isinstance(key, ConsumerGroupPartitionMetadataKey):
            self._has_old_metadata = value is not None
        elif isinstance(key, ConsumerGroupMemberMetadataKey):
            _put(self._members, key.member_id, None if value is None else _subscription(value))
        elif isinstance(key, ConsumerGroupTargetAssignmentMetadataKey):
            target = None if value is None else decode_versioned(ConsumerGroupTargetAssignmentMetadataValue, value)[1]
            _check_epochs(target.assignment_epoch if target else 0)
            self._target_epoch = target
        elif isinstance(key, ConsumerGroupTargetAssignmentMemberKey):
            _put(self._target, key.member_id, None if value is None else _assignment(
                decode_versioned(ConsumerGroupTargetAssignmentMemberValue, value)[1].topic_partitions))
        elif isinstance(key, ConsumerGroupCurrentMemberAssignmentKey):
            _put(self._current, key.member_id, None if value is None else _current(value))
        elif isinstance(key, ConsumerGroupRegularExpressionKey):
            _put(self._regexes, key.regular_expression, None if value is None else _resolved(value))

    @property
    def is_there(self) -> bool:
        """Kafka 4.4 stores no epoch of a group whose members wait for the topics of their first regular expression."""
        return self.epoch is not None or bool(self._members)

    def load_into(self, group: ConsumerGroup) -> None:
        if self.epoch is not None:
            group.epoch, group.metadata_hash = self.epoch.epoch, self.epoch.metadata_hash
        if self._target_epoch is not None:
            group.target_epoch = min(self._target_epoch.assignment_epoch, group.epoch)
            group.target_timestamp_ms = self._target_epoch.assignment_timestamp
        group.has_old_metadata = self._has_old_metadata
        group.regexes = dict(self._regexes)
        for member_id, told in self._members.items():
            group.target[member_id] = self._target.get(member_id, {})
            group.put(ConsumerMember(member_id, told, self._current.get(member_id, Current())))


# The keys of all its records.
CONSUMER_KEYS = (
    ConsumerGroupMetadataKey, ConsumerGroupPartitionMetadataKey, ConsumerGroupMemberMetadataKey,
    ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupRegularExpressionKey,
)


def _check_epochs(*epochs: int) -> None:
    """Raises ProtocolError for one after which no other can come."""
    if any(epoch >= MAX_INT for epoch in epochs):
        raise ProtocolError(f"the epoch {MAX_INT} of a group is the last one")


def _put(table: dict[str, _Value], name: str, value: _Value | None) -> None:
    if value is None:
        table.pop(name, None)
    else:
        table[name] = value


def _subscription(raw: bytes) -> Subscription:
    value = decode_versioned(ConsumerGroupMemberMetadataValue, raw)[1]
    return Subscription(
        value.instance_id, value.rack_id, value.client_id, value.client_host,
        tuple(sorted(set(value.subscribed_topic_names))), value.subscribed_topic_regex or None,
        value.rebalance_timeout_ms, value.server_assignor)


def _assignment(rows: Iterable[
    ConsumerGroupTargetAssignmentMemberValue.TopicPartition | ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions
]) -> Assignment:
    return {row.topic_id: frozenset(row.partitions) for row in rows if row.partitions}


def _current(raw: bytes) -> Current:
    value = decode_versioned(ConsumerGroupCurrentMemberAssignmentValue, raw)[1]
    _check_epochs(value.member_epoch, value.previous_member_epoch)
    state = MemberState(value.state) if value.state in list(MemberState) else MemberState.UNKNOWN
    return Current(value.member_epoch, value.previous_member_epoch, state, _assignment(value.assigned_partitions),
                   _assignment(value.partitions_pending_revocation))


def _resolved(raw: bytes) -> ResolvedRegex:
    value = decode_versioned(ConsumerGroupRegularExpressionValue, raw)[1]
    return ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
