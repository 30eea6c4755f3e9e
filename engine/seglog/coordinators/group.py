"""A consumer group: its members, its generation, its state. Kafka's GroupMetadata.

    EMPTY ── a member joins ── PREPARING_REBALANCE ── all joined ── COMPLETING_REBALANCE ── the leader's sync ── STABLE
    COMPLETING_REBALANCE, STABLE ── a member joins, leaves or changes ── PREPARING_REBALANCE ── all are gone ── EMPTY
    EMPTY ── nothing is left ── DEAD

This module holds what a group is; `rebalancing` moves it from state to state.
"""
import enum
import uuid
from collections import Counter
from collections.abc import Iterable

from seglog.coordinators.group_member import MEMBER_BYTES, Member, Protocols, size_of
from seglog.coordinators.group_offsets import GroupOffsets, TopicPartition
from seglog.coordinators.held import Held, text_bytes
from seglog.coordinators.timer import Due
from seglog.errors import SeglogError
from seglog.wire.codec import decode_message
from seglog.wire.messages import ConsumerProtocolSubscription

CONSUMER_PROTOCOL = "consumer"
# What a group takes besides its name, its members and its offsets.
_GROUP_BYTES = 1536
_NO_TIME = -1


class GroupState(enum.Enum):
    """Values are Kafka's names, as clients see them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    ASSIGNING = "Assigning"             # this and the next: only in groups of the new protocol
    RECONCILING = "Reconciling"
    DEAD = "Dead"


_BEFORE = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
    GroupState.PREPARING_REBALANCE: {GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY},
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
    GroupState.DEAD: set(GroupState),
}


class Group:
    """One group. Its members are in the order in which they joined."""

    def __init__(self, group_id: str, held: Held | None = None, offsets: GroupOffsets | None = None) -> None:
        """`held`: what all groups hold, which this one counts to. `offsets`: of the group of the new protocol that it
        was."""
        self.group_id = group_id
        self._held = Held() if held is None else held
        self.state = GroupState.EMPTY
        self.state_timestamp_ms = _NO_TIME
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}            # member id by group instance id
        self._supporters: Counter[str] = Counter()          # how many members support each protocol
        self.offsets = GroupOffsets(self._held) if offsets is None else offsets
        # Ids given to clients that have not joined with them yet, and when each is forgotten.
        self.pending_members: dict[str, Due] = {}
        # Members of this generation whose SyncGroup has not arrived.
        self.pending_syncs: set[str] = set()
        self.subscribed_topics: frozenset[str] | None = None     # None if unknown
        # A member joined during the initial delay of the group's first generation, which prolongs the delay.
        self.has_new_member = False
        # When the rebalance ends without late members. During the initial delay nothing else ends it.
        self.join_due: Due | None = None
        self.is_delayed = False
        self.sync_due: Due | None = None

    def __repr__(self) -> str:
        return f"<Group {self.group_id!r}: {self.state.value}, {self.generation}, {len(self.members)} members>"

    @property
    def own_bytes(self) -> int:
        """What it counts for, besides its members and offsets."""
        return _GROUP_BYTES + text_bytes(self.group_id)

    # --- its state ---------------------------------------------------------------------------------

    def become(self, state: GroupState, now_ms: int) -> None:
        assert self.state in _BEFORE[state], f"{self} cannot become {state.value}"
        self.state = state
        self.state_timestamp_ms = now_ms

    @property
    def has_nothing_left(self) -> bool:
        """Whether the group may end: it has no members and no offsets, and none are pending."""
        return self.state is GroupState.EMPTY and self.offsets.is_empty and not self.pending_members

    @property
    def can_rebalance(self) -> bool:
        return self.state in _BEFORE[GroupState.PREPARING_REBALANCE]

    def begin_generation(self, now_ms: int) -> None:
        """End a rebalance: select the protocol of the remaining members; without members the group is empty."""
        self.generation += 1
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed_topics = self._subscribed_topics()
        self.become(GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY, now_ms)
        self.pending_syncs.clear()

    def load_members(self, members: Iterable[Member]) -> None:
        """Add the members from the log. The group becomes stable, or empty if there are none."""
        for member in members:
            self._put(member)
        self.state = GroupState.STABLE if self.members else GroupState.EMPTY
        self.subscribed_topics = self._subscribed_topics()

    # --- its members -------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self._put(member)
        self.forget_pending(member.member_id)

    def _put(self, member: Member) -> None:
        self.members[member.member_id] = member
        self._held.members += member.size_bytes
        self._supporters.update({name for name, _ in member.protocols})
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id

    def remove(self, member_id: str) -> None:
        """Remove a member, if the group has it."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._held.members -= member.size_bytes
            self._supporters.subtract({name for name, _ in member.protocols})
            if member.group_instance_id is not None:
                self.static_members.pop(member.group_instance_id, None)
            if member.session is not None:
                member.session.cancel()
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.forget_pending(member_id)
        self.pending_syncs.discard(member_id)

    def assign(self, member: Member, assignment: bytes) -> None:
        self._held.members += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def expect(self, member_id: str, due: Due) -> None:
        """Give out an id, which is forgotten when it is `due`, unless a client joins with it."""
        self.pending_members[member_id] = due
        self._held.members += MEMBER_BYTES + text_bytes(member_id)

    def forget_pending(self, member_id: str) -> None:
        due = self.pending_members.pop(member_id, None)
        if due is not None:
            due.cancel()
            self._held.members -= MEMBER_BYTES + text_bytes(member_id)

    def rename_static(self, member: Member, new_id: str) -> None:
        """Give a static member that came back a new id; it keeps its place in the group."""
        del self.members[member.member_id]
        if self.leader == member.member_id:
            self.leader = new_id
        if member.member_id in self.pending_syncs:
            self.pending_syncs.discard(member.member_id)
            self.pending_syncs.add(new_id)
        member.member_id = new_id
        self.members[new_id] = member
        assert member.group_instance_id is not None
        self.static_members[member.group_instance_id] = new_id

    @property
    def has_all_joined(self) -> bool:
        return not self.pending_members and all(member.is_awaiting_join for member in self.members.values())

    @property
    def awaiting_join_count(self) -> int:
        return sum(member.is_awaiting_join for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """If the leader has not joined, make the first member that has joined the leader. False: none has joined."""
        if self.leader is None:
            return False
        if not self.members[self.leader].is_awaiting_join:
            joined = next((m.member_id for m in self.members.values() if m.is_awaiting_join), None)
            if joined is None:
                return False
            self.leader = joined
        return True

    @staticmethod
    def make_member_id(client_id: str, group_instance_id: str | None) -> str:
        return f"{client_id if group_instance_id is None else group_instance_id}-{uuid.uuid4()}"

    # --- its protocol ------------------------------------------------------------------------------

    def change_protocols(self, member: Member, protocols: Protocols) -> None:
        self._supporters.subtract({name for name, _ in member.protocols})
        self._held.members += size_of(protocols) - size_of(member.protocols)
        member.protocols = protocols
        self._supporters.update({name for name, _ in protocols})

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member with these protocols can join the group."""
        names = set(names)
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(names)
        if not self.members:        # all have left, but a client with a pending id may still join
            return protocol_type == self.protocol_type and bool(names)
        return protocol_type == self.protocol_type and bool(names & self._candidates())

    def select_protocol(self) -> str:
        """The protocol that most members prefer, among those that all members support."""
        candidates = self._candidates()
        votes = Counter(member.vote(candidates) for member in self.members.values())
        selected = votes.most_common(1)[0][0]
        assert selected is not None     # a member may join only if all others support one of its protocols
        return selected

    def _candidates(self) -> set[str]:
        count = len(self.members)
        # Drop names that no member supports any more: clients may send any names, and they would pile up.
        self._supporters = +self._supporters
        return {name for name, supporters in self._supporters.items() if supporters == count}

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether the group reads the topic; also True if its topics are not known, so that their offsets stay."""
        return self.subscribed_topics is None or topic in self.subscribed_topics

    def _subscribed_topics(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        topics: set[str] = set()
        try:
            for member in self.members.values():
                # After the version, a subscription of any version begins like one of version 0.
                data = member.metadata(self.protocol_name)
                topics.update(decode_message(ConsumerProtocolSubscription, 0, data[2:], trailing=True).topics)
        except SeglogError:
            return None
        return frozenset(topics)

    # --- its offsets -------------------------------------------------------------------------------

    def expired_offsets(self, now_ms: int, retention_ms: int) -> list[TopicPartition]:
        """The offsets to remove (GroupMetadata.removeExpiredOffsets). If a group became empty, its offsets age from
        that moment. If it never had members, all of them age from their commit; in a stable consumer group, only those
        of topics that it no longer reads do."""
        expired = self.offsets.expired
        if self.protocol_type is None:
            return expired(now_ms, retention_ms, since_ms=None, subscribed=())
        if self.state is GroupState.EMPTY:
            since_ms = None if self.state_timestamp_ms == _NO_TIME else self.state_timestamp_ms
            return expired(now_ms, retention_ms, since_ms=since_ms, subscribed=())
        is_known = self.protocol_type == CONSUMER_PROTOCOL and self.subscribed_topics is not None
        if is_known and self.state is GroupState.STABLE:
            assert self.subscribed_topics is not None
            return expired(now_ms, retention_ms, since_ms=None, subscribed=self.subscribed_topics)
        return []
