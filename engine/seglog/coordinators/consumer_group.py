"""A group of the new protocol of consumers (KIP-848): Kafka's ConsumerGroup. The server assigns its partitions.

    EMPTY        no members
    ASSIGNING    its epoch is higher than that of its target: the next heartbeat computes one
    RECONCILING  some member does not have its part of the target yet
    STABLE       every member has its part

A member gives up what it is no longer to have, says so in a heartbeat, and gets the rest once others have given it up:

    STABLE ── a new target ── UNREVOKED_PARTITIONS ── it gave them up ── UNRELEASED_PARTITIONS ── others did ── STABLE

This module holds what a group is; `consumer_heartbeats` moves it.
"""
import enum
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TypeVar

from seglog.coordinators.assignors import Assignment, TopicIdPartition
from seglog.coordinators.group import GroupState
from seglog.coordinators.group_member import MEMBER_BYTES
from seglog.coordinators.group_offsets import GroupOffsets, TopicPartition
from seglog.coordinators.held import Held, text_bytes
from seglog.coordinators.internal_topic import KeyValue
from seglog.coordinators.timer import Due
from seglog.wire.error_codes import Errors

# What a group takes besides its name, its members and its offsets.
_GROUP_BYTES = 2048
# What a topic that a member reads takes, besides its name.
_NAME_BYTES = 8

# Of a new group: its first members read no topics yet, or it has a higher one at once. Kafka's, since 4.4.
_FIRST_EPOCH = 1
_NO_PARTITIONS: frozenset[int] = frozenset()
_Counted = TypeVar("_Counted")

LEAVING, LEAVING_STATIC = -1, -2        # epochs in requests; a static member that left for a while has the second


class MemberState(enum.IntEnum):
    """As in the records (Kafka's MemberState)."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127       # of a newer release


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member tells of itself. `topics`: sorted; `regex`: of topics, beside those that it names."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None

    @property
    def reads(self) -> tuple[int, str | None]:
        """The same for members with the same list of topics in memory and the same regular expression."""
        return id(self.topics), self.regex

    @property
    def size_bytes(self) -> int:
        names = self.instance_id, self.rack_id, self.client_id, self.client_host, self.regex, self.assignor
        return sum(map(text_bytes, names)) + sum(text_bytes(name) + _NAME_BYTES for name in self.topics)


@dataclass(frozen=True, slots=True)
class Current:
    """What a member has, and what it is to give up first."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assignment = field(default_factory=dict)
    revoking: Assignment = field(default_factory=dict)

    @property
    def owned(self) -> Assignment:
        """What no other member may have."""
        return {topic: self.assigned.get(topic, frozenset()) | self.revoking.get(topic, frozenset())
                for topic in {**self.assigned, **self.revoking}} if self.revoking else self.assigned

    def moved(self, epoch: int, state: MemberState, assigned: Assignment, revoking: Assignment) -> "Current":
        """The same member in another state. Only another epoch makes this one the previous one."""
        return Current(epoch, self.previous_epoch if epoch == self.epoch else self.epoch, state, assigned, revoking)


@dataclass(slots=True, eq=False)
class ConsumerMember:
    """One member."""

    member_id: str
    told: Subscription = field(default_factory=Subscription)
    current: Current = field(default_factory=Current)
    deadline_ms: int = 0            # its session ends then, unless a heartbeat comes
    session: Due | None = None
    revocation: Due | None = None   # by then it must have given up what it is to give up

    @property
    def size_bytes(self) -> int:
        return MEMBER_BYTES + text_bytes(self.member_id) + self.told.size_bytes

    def cancel(self) -> None:
        """Stop its timers."""
        for due in (self.session, self.revocation):
            if due is not None:
                due.cancel()
        self.session = self.revocation = None


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """The topics that a regular expression matched at a time."""

    topics: frozenset[str]
    version: int = 0
    timestamp_ms: int = 0


class ConsumerGroup:
    """One group."""

    protocol_type = "consumer"

    def __init__(self, group_id: str, held: Held | None = None, offsets: GroupOffsets | None = None) -> None:
        """`held`: what all groups hold, which this one counts to. `offsets`: of the classic group that it was."""
        self.group_id = group_id
        self._held = Held() if held is None else held
        self.offsets = GroupOffsets(self._held) if offsets is None else offsets
        self.epoch = _FIRST_EPOCH
        self.metadata_hash = 0          # of the topics that its members read
        self.target_epoch = 0
        self.target_timestamp_ms = 0
        self.target: dict[str, Assignment] = {}
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}        # member id by group instance id
        # What members tell, counted as it comes and goes: to ask each of a thousand takes long. Members that name the
        # same topics have one list in memory.
        self._lists: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._told_lists: Counter[tuple[str, ...]] = Counter()
        self._told_topics: Counter[str] = Counter()     # in how many of the lists
        self._told_regexes: Counter[str] = Counter()
        self._told_assignors: Counter[str] = Counter()
        self.regexes: dict[str, ResolvedRegex] = {}
        self.owners: dict[TopicIdPartition, str] = {}         # who has a partition, or is still to give it up
        self.is_dead = False
        # The number of changes of topics when its own were looked at; None: look again.
        self.seen_changes: int | None = None
        # Its regular expressions are being matched; when they were, and the number of changes of topics then.
        self.is_resolving = False
        self.resolved_at_ms = 0
        self.resolved_changes: int | None = None
        # Its members or topics changed since the last look at them; a member waits for a target; who waits for the next
        # look, and whether there is one just now.
        self.is_changed = self.wants_target = False
        self.waiting: deque[Callable[[Errors], None]] = deque()
        self.is_renewing = False
        # What the next write is to write, and the members that it removes.
        self.pending: list[KeyValue] = []
        self.pending_gone: set[str] = set()
        # Who waits for the last write; None: it is durable.
        self.followers: list[Callable[[Errors], None]] | None = None
        # A write failed: the next one writes everything, and these members' tombstones.
        self.is_unwritten = False
        self.unwritten_gone: set[str] = set()
        self.too_large_epoch = 0        # no target could be computed for this epoch
        self.has_old_metadata = False   # a record that only Kafka 4.0 wrote

    def __repr__(self) -> str:
        return f"<ConsumerGroup {self.group_id!r}: {self.state.value}, {self.epoch}, {len(self.members)} members>"

    @property
    def own_bytes(self) -> int:
        """What it counts for, besides its members and offsets."""
        return _GROUP_BYTES + text_bytes(self.group_id)

    @property
    def state(self) -> GroupState:
        if self.is_dead:
            return GroupState.DEAD
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.target_epoch:
            return GroupState.ASSIGNING
        if all(self.is_reconciled(member) for member in self.members.values()):
            return GroupState.STABLE
        return GroupState.RECONCILING

    def become(self, state: GroupState, now_ms: int) -> None:
        """Dead, which is the only state that does not follow from the members."""
        assert state is GroupState.DEAD
        self.is_dead = True
        for member in self.members.values():
            member.cancel()

    @property
    def has_nothing_left(self) -> bool:
        return not self.is_dead and not self.members and self.offsets.is_empty

    @property
    def is_new(self) -> bool:
        """Whether nothing of it was stored."""
        return self.epoch == _FIRST_EPOCH and self.target_epoch == 0

    def is_reconciled(self, member: ConsumerMember) -> bool:
        return member.current.state is MemberState.STABLE and member.current.epoch == self.target_epoch

    def assignor(self, offered: Sequence[str]) -> str:
        """Of those that the server offers, the one that most members ask for, or the first."""
        return max(offered, key=lambda name: self._told_assignors[name])

    # --- its members -------------------------------------------------------------------------------

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """The member that has this instance id."""
        return None if instance_id is None else self.members.get(self.static_members.get(instance_id, ""))

    def put(self, member: ConsumerMember) -> None:
        member.told = self._told(member.told)
        self.members[member.member_id] = member
        self._held.members += member.size_bytes
        if member.told.instance_id is not None:
            self.static_members[member.told.instance_id] = member.member_id
        self._own(member)

    def remove(self, member: ConsumerMember) -> None:
        """Remove a member; what it had is free."""
        member.cancel()
        self._disown(member)
        self._no_longer_told(member.told)
        del self.members[member.member_id]
        self._held.members -= member.size_bytes
        instance_id = member.told.instance_id
        if instance_id is not None and self.static_members.get(instance_id) == member.member_id:
            del self.static_members[instance_id]
        self.target.pop(member.member_id, None)

    def tell(self, member: ConsumerMember, told: Subscription) -> None:
        self._held.members += told.size_bytes - member.told.size_bytes
        before, member.told = member.told, self._told(told)
        self._no_longer_told(before)

    def _told(self, told: Subscription) -> Subscription:
        """The same, with the list of topics of another member that names the same."""
        topics = self._lists.setdefault(told.topics, told.topics)
        self._told_lists[topics] += 1
        if self._told_lists[topics] == 1:
            self._told_topics.update(topics)
        if told.regex is not None:
            self._told_regexes[told.regex] += 1
        if told.assignor is not None:
            self._told_assignors[told.assignor] += 1
        return told if topics is told.topics else replace(told, topics=topics)

    def _no_longer_told(self, told: Subscription) -> None:
        if _take_one(self._told_lists, told.topics):
            del self._lists[told.topics]
            for topic in told.topics:
                _take_one(self._told_topics, topic)
        if told.regex is not None:
            _take_one(self._told_regexes, told.regex)
        if told.assignor is not None:
            _take_one(self._told_assignors, told.assignor)

    def move(self, member: ConsumerMember, current: Current) -> None:
        self._disown(member)
        member.current = current
        self._own(member)

    def _own(self, member: ConsumerMember) -> None:
        for topic, numbers in member.current.owned.items():
            for number in numbers:
                self.owners[topic, number] = member.member_id

    def _disown(self, member: ConsumerMember) -> None:
        for topic, numbers in member.current.owned.items():
            for number in numbers:
                if self.owners.get((topic, number)) == member.member_id:
                    del self.owners[topic, number]

    @property
    def told_regexes(self) -> Set[str]:
        return self._told_regexes.keys()

    def with_regex(self, regex: str) -> bool:
        return regex in self._told_regexes

    # --- its topics --------------------------------------------------------------------------------

    def topics_of(self, told: Subscription) -> Collection[str]:
        resolved = None if told.regex is None else self.regexes.get(told.regex)
        return told.topics if resolved is None else {*told.topics, *resolved.topics}

    @property
    def told_topics(self) -> Collection[str]:
        """Those that members name."""
        return self._told_topics.keys()

    def matched_topics(self) -> Collection[str]:
        """Those that their regular expressions match."""
        found = (self.regexes[regex].topics for regex in self._told_regexes if regex in self.regexes)
        return frozenset().union(*found)

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self._told_topics or any(
            topic in resolved.topics for regex, resolved in self.regexes.items() if regex in self._told_regexes)

    # --- reconciliation ----------------------------------------------------------------------------

    def next_of(self, member: ConsumerMember, owned: Assignment | None) -> Current:
        """What the member has next on its way to the target (CurrentAssignmentBuilder). `owned`: what it says it has;
        None: as before."""
        current = member.current
        if current.state is MemberState.STABLE:
            return current if current.epoch == self.target_epoch else self._toward(member, current.epoch, owned)
        if current.state is MemberState.UNREVOKED_PARTITIONS and _still_has(owned, current.revoking):
            return current
        # It keeps its epoch when it is to give up more, as in Kafka 4.4. With 4.1's rule, a higher one each time, one
        # lost answer would fence it: it would come with the epoch before, and with more than it is to have.
        if current.state in (MemberState.UNREVOKED_PARTITIONS, MemberState.UNRELEASED_PARTITIONS):
            return self._toward(member, current.epoch, owned)
        return self._toward(member, self.target_epoch, owned)

    def _toward(self, member: ConsumerMember, epoch: int, owned: Assignment | None) -> Current:
        current, target = member.current, self.target.get(member.member_id, {})
        kept: dict[bytes, frozenset[int]] = {}
        revoking: dict[bytes, frozenset[int]] = {}
        coming: dict[bytes, frozenset[int]] = {}
        waits = False
        for topic in {**target, **current.assigned}:
            wanted, has = target.get(topic, _NO_PARTITIONS), current.assigned.get(topic, _NO_PARTITIONS)
            if lacking := wanted - has:
                free = frozenset([number for number in lacking if (topic, number) not in self.owners])
                waits = waits or len(free) < len(lacking)
                if free:
                    coming[topic] = free
            if stays := has & wanted:
                kept[topic] = stays
            if goes := has - wanted:
                revoking[topic] = goes
        if revoking and _still_has(owned, revoking):
            return current.moved(epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
        for topic, numbers in coming.items():
            kept[topic] = kept.get(topic, frozenset()) | numbers
        state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
        return current.moved(self.target_epoch, state, kept, {})

    # --- its offsets -------------------------------------------------------------------------------

    def expired_offsets(self, now_ms: int, retention_ms: int) -> list[TopicPartition]:
        """The offsets to remove: each ages from its commit, but for those of topics that its members read."""
        matched = self.matched_topics()
        return self.offsets.expired(
            now_ms, retention_ms, since_ms=None, subscribed={*self.told_topics, *matched} if matched else
            self.told_topics)


def replaced(member: ConsumerMember, member_id: str) -> ConsumerMember:
    """A static member that came back: it has what the one before it had, and begins anew."""
    return ConsumerMember(member_id, member.told, replace(member.current, epoch=0, previous_epoch=0))


def _take_one(counts: "Counter[_Counted]", what: _Counted) -> bool:
    """Returns whether it was the last one."""
    counts[what] -= 1
    if counts[what]:
        return False
    del counts[what]
    return True


def _still_has(owned: Assignment | None, revoking: Assignment) -> bool:
    """Whether a member that says it owns these still has some of what it is to give up. One that says nothing has."""
    return owned is None or any(numbers & revoking.get(topic, frozenset()) for topic, numbers in owned.items())
