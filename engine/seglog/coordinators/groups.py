"""The group coordinator: keeps all groups of this node, finds the group of each request, and expires offsets.

    requests ── group_membership (JoinGroup), group_commits (OffsetCommit), group_administration (ListGroups)
       └── GroupCoordinator ── Rebalancing ── Group ── GroupOffsets
                 ├── ConsumerHeartbeats ── ConsumerGroup ── GroupOffsets, for the new protocol
                 └── OffsetsTopic ── __consumer_offsets

It belongs to the server's loop: everything that waits is a coroutine or a timer callback.
"""
import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from seglog.clock import Clock
from seglog.coordinators.consumer_group import ConsumerGroup, ConsumerMember, Subscription
from seglog.coordinators.consumer_heartbeats import ConsumerHeartbeats
from seglog.coordinators.consumer_records import no_group
from seglog.coordinators.coordinator_config import CoordinatorConfig
from seglog.coordinators.group import Group, GroupState
from seglog.coordinators.group_member import MEMBER_BYTES, Member, Protocols, size_of
from seglog.coordinators.group_offsets import CommittedOffset, TopicPartition
from seglog.coordinators.group_settings import GroupSettings
from seglog.coordinators.held import Held, text_bytes
from seglog.coordinators.internal_topic import CoordinatorLogs, InternalTopic, KeyValue, ProducerOfBatch, has_room
from seglog.coordinators.offsets_topic import AnyGroup, OffsetsTopic, group_key
from seglog.coordinators.pending_answer import PendingAnswer
from seglog.coordinators.rebalancing import Rebalancing
from seglog.coordinators.timer import Paced, Timer
from seglog.logger import Logger
from seglog.named_tuple import NamedTuple
from seglog.wire.error_codes import Errors
from seglog.wire.internal_topics import OFFSETS_TOPIC

_LOG = Logger(__name__)

# The offsets of so many groups are removed before their tombstones are waited for, so that they share syncs.
_GROUPS_AT_ONCE = 256


_Made = TypeVar("_Made", Group, ConsumerGroup)


class OtherProtocolError(Exception):
    """A group has members of the other protocol of groups."""


class GroupOverview(NamedTuple):
    """A group, as the page shows it."""

    group_id: str
    state: str
    protocol_type: str
    members: int
    offsets: dict[TopicPartition, int]


class GroupCoordinator:
    """All groups. `start` loads them, `stop` answers the members that wait."""

    def __init__(
        self, logs: CoordinatorLogs, config: CoordinatorConfig, clock: Clock, *, node_id: int = 1,
        settings: GroupSettings | None = None,
    ) -> None:
        self.logs = logs
        self.config = config
        self.node_id = node_id
        self.now_ms = clock.now_ms
        self.timer = Timer(clock)
        self.topic = InternalTopic(OFFSETS_TOPIC, config.offsets_topic_num_partitions, {
            "cleanup.policy": "compact", "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        }, logs, clock)
        self.store = OffsetsTopic(self.topic)
        self.rebalancing = Rebalancing(self.store, self.timer, config, clock)
        self.consumers = ConsumerHeartbeats(self.store, logs, self.timer, config, clock, settings)
        self.groups: dict[str, AnyGroup] = {}
        # Set by the transaction coordinator: creates its topic; checks whether a partition is in a transaction; adds
        # partitions to one.
        self.ensure_transactions: Callable[..., Awaitable[None]] | None = None
        self.verify: Callable[[str, int, int, str, int], Errors] | None = None
        self.join_transaction: Callable[
            [str | None, int, int, Collection[TopicPartition]], Awaitable[Errors]] | None = None
        self._open: dict[int, set[str]] = {}        # groups with offsets of a producer's transaction
        self._task: asyncio.Task[None] | None = None
        self.held = Held()
        # The error for requests of groups, or None once they can be answered.
        self.unready: Errors | None = Errors.COORDINATOR_LOAD_IN_PROGRESS

    # --- its life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the groups; until then clients are told to retry. Raises what reading __consumer_offsets raises."""
        # First, since transactions share the timer, and are served even if this raises.
        self._task = asyncio.get_running_loop().create_task(self.timer.run())
        try:
            self.groups = await asyncio.to_thread(self.store.load, self.held)
        except BaseException:
            self.unready = Errors.COORDINATOR_NOT_AVAILABLE
            raise
        for group in self.groups.values():
            self.held.offsets += group.own_bytes
            for producer_id in group.offsets.producers():
                self._open.setdefault(producer_id, set()).add(group.group_id)
            if isinstance(group, ConsumerGroup):
                self.consumers.watch(group)
            else:
                self.rebalancing.watch(group)
        self.unready = None
        self._expire_later()

    async def stop(self) -> None:
        """Answer all waiting members, and wait until writes are durable. Idempotent."""
        self.unready = Errors.COORDINATOR_NOT_AVAILABLE
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        for group in self.groups.values():
            if isinstance(group, Group):
                self.rebalancing.end(group)
            else:
                self.consumers.end(group)
        await self.topic.settle()

    # --- finding groups ------------------------------------------------------------------------------

    def check(self, group_id: str | None, *, may_be_empty: bool = False) -> Errors | None:
        """The error for all requests of this group, or None. A group without a name may commit offsets, as Kafka's
        oldest clients did, but has no members."""
        if group_id is None or not (group_id or may_be_empty) or not has_room(group_id):
            return Errors.INVALID_GROUP_ID
        if self.unready is not None:
            return self.unready
        return None if self.topic.exists else Errors.NOT_COORDINATOR

    def get(self, group_id: str) -> AnyGroup | None:
        return self.groups.get(group_id)

    def get_or_make(self, group_id: str) -> AnyGroup | None:
        """The group, or None if a new one would exceed `seglog.max.groups`, or if there is no room for it."""
        group = self.groups.get(group_id)
        if group is None and len(self.groups) < self.config.max_groups:
            made = Group(group_id, self.held)
            if self.held.offsets + made.own_bytes <= self.config.group_offsets_max_bytes:
                self.held.offsets += made.own_bytes
                group = self.groups[group_id] = made
        return group

    def classic(self, group_id: str) -> Group | None:
        """The group, if it is of the classic protocol."""
        group = self.groups.get(group_id)
        return group if isinstance(group, Group) else None

    def classic_to_join(self, group_id: str) -> Group | None:
        """The group for a new member of the classic protocol, as `get_or_make`. A group of the new protocol without
        members becomes a classic one, and keeps its offsets. Raises OtherProtocolError if it has members."""
        group = self.get_or_make(group_id)
        if not isinstance(group, ConsumerGroup):
            return group
        if group.members:
            raise OtherProtocolError(f"{group} has members")
        group.become(GroupState.DEAD, self.now_ms())
        self.store.store_records(
            group_id, [(key, None) for key in no_group(group)], lambda error: None)
        return self._put_instead(group, Group(group_id, self.held, group.offsets))

    def consumer_to_join(self, group_id: str) -> ConsumerGroup | None:
        """The group for a new member of the new protocol, as `get_or_make`. A classic group without members becomes one
        of the new protocol, and keeps its offsets. Raises OtherProtocolError if it has members."""
        group = self.get_or_make(group_id)
        if group is None or isinstance(group, ConsumerGroup):
            return group
        if group.state is not GroupState.EMPTY:
            raise OtherProtocolError(f"{group} has members")
        for member_id in list(group.pending_members):
            group.forget_pending(member_id)
        if group.generation > 0:
            self.store.store_records(group_id, [(group_key(group_id), None)], lambda error: None)
        group.become(GroupState.DEAD, self.now_ms())
        return self._put_instead(group, ConsumerGroup(group_id, self.held, group.offsets))

    def drop_if_new(self, group: ConsumerGroup) -> None:
        """Forget a group whose first member was refused."""
        if group.is_new and group.has_nothing_left:
            self._drop_if_over(group)

    def _put_instead(self, group: AnyGroup, other: _Made) -> _Made:
        self.held.offsets += other.own_bytes - group.own_bytes
        self.groups[group.group_id] = other
        return other

    def has_room_for_consumer(self, group: ConsumerGroup, member_id: str, told: Subscription) -> bool:
        """Whether there is room for this member, with what it told instead of what it told before."""
        member = group.members.get(member_id)
        return self._has_room_for(
            ConsumerMember(member_id, told).size_bytes - (0 if member is None else member.size_bytes))

    def has_room_for_member(self, member: Member | None, names: Iterable[str | None], protocols: Protocols) -> bool:
        """Whether there is room for this member, with these protocols instead of those that it has. `names`: of a new
        one."""
        more_bytes = size_of(protocols) + (
            MEMBER_BYTES + sum(map(text_bytes, names)) if member is None else -size_of(member.protocols))
        return self._has_room_for(more_bytes)

    def has_room_for_assignments(self, group: Group, size_bytes: int) -> bool:
        """Whether there is room for assignments of so many bytes, instead of those that the members have."""
        return self._has_room_for(size_bytes - sum(len(member.assignment) for member in group.members.values()))

    def _has_room_for(self, more_bytes: int) -> bool:
        """Whether members may take so many bytes more; fewer always."""
        return more_bytes <= 0 or self.held.members + more_bytes <= self.config.group_members_max_bytes

    def without_room(
        self, group: AnyGroup, commits: Mapping[TopicPartition, CommittedOffset], producer: ProducerOfBatch | None
    ) -> list[TopicPartition]:
        """Those of the commits that there is no room for. An offset may always be committed again."""
        left_bytes = self.config.group_offsets_max_bytes - self.held.offsets
        if sum(commit.size_bytes for commit in commits.values()) <= left_bytes:
            return []
        found, producer_id = [], None if producer is None else producer.producer_id
        for where, commit in commits.items():
            more_bytes = group.offsets.more_bytes(where, commit, producer_id)
            if more_bytes > max(left_bytes, 0):
                found.append(where)
            else:
                left_bytes -= more_bytes
        return found

    # --- offsets -----------------------------------------------------------------------------------

    def commit(
        self, group: AnyGroup, commits: Mapping[TopicPartition, CommittedOffset], records: Sequence[KeyValue],
        done: Callable[[Errors], None], producer: ProducerOfBatch | None = None,
    ) -> None:
        """`records`: each commit's `offset_record`."""
        if producer is not None:
            self._open.setdefault(producer.producer_id, set()).add(group.group_id)
        self.store.store_offsets(group, commits, records, done, producer)

    def end_transaction(self, producer_id: int, partitions: Iterable[int], *, commit: bool) -> None:
        """End a transaction whose marker is durable in these partitions of __consumer_offsets."""
        ended = set(partitions)
        groups = self._open.get(producer_id, set())
        for group_id in [name for name in groups if self.topic.partition_for(name) in ended]:
            groups.discard(group_id)
            group = self.groups.get(group_id)
            if group is not None and group.state is not GroupState.DEAD:
                group.offsets.end_transaction(producer_id, commit=commit)
        if not groups:
            self._open.pop(producer_id, None)

    async def partitions_deleted(self, partitions: Sequence[TopicPartition]) -> None:
        """Forget the offsets of deleted partitions; if __consumer_offsets was deleted, forget all groups."""
        if any(topic == OFFSETS_TOPIC for topic, _ in partitions):
            for group in self.groups.values():
                if isinstance(group, Group):
                    self.rebalancing.end(group)
                else:
                    self.consumers.end(group)
                group.become(GroupState.DEAD, self.now_ms())
            self.groups.clear()
            self._open.clear()
            self.held = Held()
            return
        gone, paced = frozenset(partitions), Paced()
        waiting: list[PendingAnswer[Errors]] = []
        for group in list(self.groups.values()):
            await paced.pause()
            removed = group.offsets.remove(group.offsets.among(gone))
            if removed:
                waiting.append(self._begin_removal(group, removed))
            if len(waiting) == _GROUPS_AT_ONCE:
                for one in waiting:
                    await one
                waiting = []
        for one in waiting:
            await one

    async def remove(self, group: AnyGroup, removed: Sequence[TopicPartition]) -> Errors:
        """Write tombstones for these offsets. A group without members ends with its last offset."""
        return await self._begin_removal(group, removed)

    def _begin_removal(self, group: AnyGroup, removed: Sequence[TopicPartition]) -> PendingAnswer[Errors]:
        self._drop_if_over(group)
        written: PendingAnswer[Errors] = PendingAnswer()
        self.store.remove(group, removed, written.give)
        return written

    def _drop_if_over(self, group: AnyGroup) -> bool:
        """Drop a group that has nothing left or was deleted. Returns whether it is dead."""
        if group.has_nothing_left:
            group.become(GroupState.DEAD, self.now_ms())
        is_dead = group.state is GroupState.DEAD
        if is_dead and self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
            self.held.offsets -= group.own_bytes
        return is_dead

    def _expire_later(self) -> None:
        self.timer.call_in(self.config.offsets_retention_check_interval_ms, self._expire)

    def _expire(self) -> None:
        self._expire_later()
        self.timer.in_pieces(self._expiry())

    def _expiry(self) -> Iterator[None]:
        """Removes the expired offsets of a group in each step."""
        retention_ms = self.config.offsets_retention_minutes * 60_000
        for group in list(self.groups.values()):
            removed = group.offsets.remove(group.expired_offsets(self.now_ms(), retention_ms))
            is_over = self._drop_if_over(group)
            if removed or is_over:
                _LOG.info("group %.200a: %d offsets have expired", group.group_id, len(removed))
                self.store.remove(group, removed, lambda error: None)
            yield

    def overview(self) -> Iterator[GroupOverview]:
        """Each group as it is when it is its turn."""
        for group in list(self.groups.values()):
            yield GroupOverview(
                group.group_id, group.state.value, group.protocol_type or "", len(group.members), group.offsets.latest()
            )
