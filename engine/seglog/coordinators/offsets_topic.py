"""__consumer_offsets: generations and committed offsets as records, as a broker of Kafka 3.9.1 writes them.

    OffsetCommitKey 1    ── OffsetCommitValue 3, or 1 if the commit says when it expires     an offset of a group
    GroupMetadataKey 2   ── GroupMetadataValue 3                                             a generation
    either               ── no value                                                         it was removed

Offsets of a transaction are in batches of its producer, and take effect at its marker. consumer_records.py has the
records of groups of the new protocol. Those of share groups and streams groups are ignored.
"""
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from seglog.coordinators.consumer_group import ConsumerGroup
from seglog.coordinators.consumer_records import CONSUMER_KEYS, StoredConsumerGroup, no_group
from seglog.coordinators.group import Group, GroupState
from seglog.coordinators.group_member import Member
from seglog.coordinators.group_offsets import CommittedOffset, TopicPartition
from seglog.coordinators.held import Held
from seglog.coordinators.internal_topic import APPEND_ERRORS, InternalTopic, KeyValue, ProducerOfBatch
from seglog.errors import SeglogError
from seglog.logger import Logger
from seglog.wire.codec import decode_versioned, encode_versioned
from seglog.wire.error_codes import Errors
from seglog.wire.internal_records import decode_key, encode_key
from seglog.wire.internal_topics import OFFSETS_TOPIC
from seglog.wire.stored_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    OffsetCommitValue,
)

if TYPE_CHECKING:
    from seglog._kernels.record_batch import Record, RecordBatch

_LOG = Logger(__name__)

AnyGroup = Group | ConsumerGroup

_GROUP_VALUE_VERSION = 3
# Only version 1 of the value has an expiry time.
_OFFSET_VALUE_VERSION, _EXPIRING_VALUE_VERSION = 3, 1

# Many records are split into several batches, each well below max.message.bytes.
_BATCH_BYTES = 256 << 10

# maybeConvertOffsetCommitError
_COMMIT_ERRORS = APPEND_ERRORS | {Errors.MESSAGE_TOO_LARGE: Errors.INVALID_COMMIT_OFFSET_SIZE}


class OffsetsTopic:
    """Writes groups and their offsets, and reads them when the coordinator starts."""

    def __init__(self, topic: InternalTopic) -> None:
        self.topic = topic

    # --- writing -----------------------------------------------------------------------------------

    def store_group(self, group: Group, assignments: Mapping[str, bytes], done: Callable[[Errors], None]) -> None:
        """Write the group as it is now, with these assignments."""

        def appended(error: Errors, log_offset: int | None) -> None:
            done(APPEND_ERRORS.get(error, error))

        self.topic.append(group.group_id, [(group_key(group.group_id), group_value(group, assignments))], appended)

    def store_offsets(
        self, group: AnyGroup, commits: Mapping[TopicPartition, CommittedOffset], records: Sequence[KeyValue],
        done: Callable[[Errors], None], producer: ProducerOfBatch | None = None,
    ) -> None:
        """Write commits, and apply them to the group's offsets once they are durable. `records`: each commit's
        `offset_record`."""
        offsets = group.offsets
        if producer is None:
            offsets.begin(commits)
        else:
            offsets.begin_transactional(producer.producer_id, commits)

        def appended(error: Errors, log_offset: int | None) -> None:
            if group.state is not GroupState.DEAD:
                if producer is None:
                    offsets.finish(commits, log_offset)
                else:
                    offsets.finish_transactional(producer.producer_id, commits, log_offset)
            done(_COMMIT_ERRORS.get(error, error))

        self.topic.append(group.group_id, records, appended, producer)

    def store_records(
        self, group_id: str, records: Sequence[KeyValue], done: Callable[[Errors], None]
    ) -> None:
        """Write records of a group, in batches that are not too large; `done` gets the first error of any of them."""
        pieces = list(_in_pieces(records))
        errors: list[Errors] = []

        def appended(error: Errors, log_offset: int | None) -> None:
            errors.append(APPEND_ERRORS.get(error, error))
            if len(errors) == len(pieces):
                done(next((one for one in errors if one), Errors.NONE))

        for piece in pieces:
            self.topic.append(group_id, piece, appended)

    def remove(
        self, group: AnyGroup, partitions: Sequence[TopicPartition], done: Callable[[Errors], None]
    ) -> None:
        """Write tombstones for these offsets, and for the group if it is dead."""
        keys = [offset_key(group.group_id, *where) for where in partitions]
        if group.state is GroupState.DEAD:
            if isinstance(group, ConsumerGroup):
                keys += no_group(group)
            elif group.generation > 0:
                keys.append(group_key(group.group_id))
        pieces = list(_in_pieces((key, None) for key in keys))
        if not pieces:
            done(Errors.NONE)
            return
        for records in pieces[:-1]:
            self.topic.append(group.group_id, records, _warn_of_tombstones)
        self.topic.append(
            group.group_id, pieces[-1], lambda error, log_offset: done(APPEND_ERRORS.get(error, error))
        )

    # --- reading -----------------------------------------------------------------------------------

    def load(self, held: Held) -> dict[str, AnyGroup]:
        """The groups of all partitions, which count to `held`. Raises what reading the logs raises."""
        groups: dict[str, AnyGroup] = {}
        for batches in self.topic.partitions():
            loader = _Loader(held)
            for batch in batches:
                loader.add(batch)
            groups.update(loader.groups())
        return groups


class _Loader:
    """Builds groups from the batches of one partition, in order (GroupMetadataManager.loadGroupsAndOffsets). A marker
    ends a transaction only in its own partition."""

    def __init__(self, held: Held) -> None:
        self._held = held
        # Includes groups that have only offsets.
        self._offsets: dict[str, Group] = {}
        self._generations: dict[str, bytes] = {}
        self._consumers: dict[str, StoredConsumerGroup] = {}
        self._open: dict[int, set[str]] = {}        # groups by producer

    def add(self, batch: "RecordBatch") -> None:
        producer_id = batch.producer_id if batch.is_transactional else None
        if batch.is_control:
            for record in batch:
                self._end(batch.producer_id, bytes(record.key or b""))
            return
        for record in batch:
            try:
                self._add(record, batch.base_offset, producer_id)
            except SeglogError as error:
                _LOG.warning("%s: ignored record %d, whose format is not Kafka 3.9's: %s",
                             OFFSETS_TOPIC, record.offset, error)

    def _add(self, record: "Record", batch_offset: int, producer_id: int | None) -> None:
        key, value = bytes(record.key or b""), None if record.value is None else bytes(record.value)
        where = decode_key(OFFSETS_TOPIC, key).message
        if isinstance(where, GroupMetadataKey):
            group_id = where.group
            if value is None:
                self._generations.pop(group_id, None)
            else:
                self._generations[group_id] = value
        elif isinstance(where, (OffsetCommitKey, LegacyOffsetCommitKey)):
            offsets = self._group(where.group).offsets
            if producer_id is not None:
                self._open.setdefault(producer_id, set()).add(where.group)
            if value is None:
                offsets.forget((where.topic, where.partition), producer_id)
            else:
                offsets.load((where.topic, where.partition), read_offset(value), batch_offset, producer_id)
        elif isinstance(where, CONSUMER_KEYS):
            consumer = self._consumers.get(where.group_id)
            if consumer is None:
                consumer = self._consumers[where.group_id] = StoredConsumerGroup(where.group_id)
            consumer.add(where, value)

    def _end(self, producer_id: int, key: bytes) -> None:
        is_commit = key[2:4] == b"\0\1"
        for group_id in self._open.pop(producer_id, ()):
            self._offsets[group_id].offsets.end_transaction(producer_id, commit=is_commit)

    def _group(self, group_id: str) -> Group:
        group = self._offsets.get(group_id)
        if group is None:
            group = self._offsets[group_id] = Group(group_id, self._held)
        return group

    def groups(self) -> dict[str, AnyGroup]:
        consumers: dict[str, AnyGroup] = {}
        for group_id, stored in self._consumers.items():
            if stored.is_there and group_id not in self._generations:
                group = ConsumerGroup(group_id, self._held, self._group(group_id).offsets)
                stored.load_into(group)
                consumers[group_id] = group
        for group_id, value in self._generations.items():
            try:
                read_group(self._group(group_id), value)
            except SeglogError as error:
                _LOG.warning("%s: ignored the members of group %.200a: their record's format is not Kafka 3.9's: %s",
                             OFFSETS_TOPIC, group_id, error)
        return {
            group_id: group for group_id, group in self._offsets.items()
            if group_id in self._generations or not group.offsets.is_empty
        } | consumers


# --- records -----------------------------------------------------------------------------------------


def group_key(group_id: str) -> bytes:
    return encode_key(GroupMetadataKey(group=group_id))


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    return encode_key(OffsetCommitKey(group=group_id, topic=topic, partition=partition))


def offset_record(group_id: str, where: TopicPartition, commit: CommittedOffset) -> KeyValue:
    """Raises ProtocolError if something does not fit into a record."""
    return offset_key(group_id, *where), offset_value(commit)


def group_value(group: Group, assignments: Mapping[str, bytes]) -> bytes:
    members = [
        GroupMetadataValue.MemberMetadata(
            member_id=member.member_id, group_instance_id=member.group_instance_id, client_id=member.client_id,
            client_host=member.client_host, rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=b"" if group.protocol_name is None else member.metadata(group.protocol_name),
            assignment=assignments.get(member.member_id, b""),
        )
        for member in group.members.values()
    ]
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "", generation=group.generation, protocol=group.protocol_name,
        leader=group.leader, current_state_timestamp=group.state_timestamp_ms, members=members,
    )
    return encode_versioned(value, _GROUP_VALUE_VERSION)


def read_group(group: Group, raw: bytes) -> None:
    """Load the group's state from a record. Raises ProtocolError, UnsupportedVersionError."""
    version, value = decode_versioned(GroupMetadataValue, raw)
    group.protocol_type = value.protocol_type or None
    group.protocol_name = value.protocol
    group.generation = value.generation
    group.leader = value.leader
    group.state_timestamp_ms = value.current_state_timestamp
    group.load_members(
        Member(
            member_id=member.member_id, group_instance_id=member.group_instance_id, client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.session_timeout if version == 0 else member.rebalance_timeout,
            session_timeout_ms=member.session_timeout, protocol_type=value.protocol_type,
            protocols=((value.protocol or "", bytes(member.subscription)),), assignment=bytes(member.assignment),
        )
        for member in value.members
    )


def offset_value(commit: CommittedOffset) -> bytes:
    value = OffsetCommitValue(
        offset=commit.offset, leader_epoch=commit.leader_epoch, metadata=commit.metadata,
        commit_timestamp=commit.commit_timestamp, expire_timestamp=commit.expire_timestamp,
    )
    expires = commit.expire_timestamp != -1
    return encode_versioned(value, _EXPIRING_VALUE_VERSION if expires else _OFFSET_VALUE_VERSION)


def read_offset(raw: bytes) -> CommittedOffset:
    """Decode a committed offset. Raises ProtocolError, UnsupportedVersionError."""
    value = decode_versioned(OffsetCommitValue, raw)[1]
    return CommittedOffset(
        value.offset, value.leader_epoch, value.metadata, value.commit_timestamp, value.expire_timestamp
    )


def _in_pieces(records: Iterable[KeyValue]) -> Iterable[list[KeyValue]]:
    piece: list[KeyValue] = []
    size = 0
    for key, value in records:
        more = len(key) + len(value or b"")
        if piece and size + more > _BATCH_BYTES:
            yield piece
            piece, size = [], 0
        piece.append((key, value))
        size += more + 32
    if piece:
        yield piece


def _warn_of_tombstones(error: Errors, log_offset: int | None) -> None:
    if error is not Errors.NONE:
        _LOG.warning("%s: tombstones were not written: %s", OFFSETS_TOPIC, error.name)
