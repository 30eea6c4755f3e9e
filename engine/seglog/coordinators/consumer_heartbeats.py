"""Moves groups of the new protocol (KIP-848): heartbeats, sessions, targets. Kafka's GroupMetadataManager.

Each heartbeat says what its member reads and has, and is answered with what it is to have. A change is written before
it is answered. A group is changed only in the timer's loop, one call at a time.
"""
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

from seglog.clock import Clock
from seglog.coordinators.assignors import ASSIGNORS, Assignment, Subscriber
from seglog.coordinators.consumer_group import (
    LEAVING_STATIC,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    ResolvedRegex,
    Subscription,
    replaced,
)
from seglog.coordinators.consumer_records import (
    current_record,
    epoch_record,
    member_record,
    metadata_hash,
    no_member,
    no_old_metadata,
    no_regex,
    regex_record,
    target_epoch_record,
    target_record,
    whole,
)
from seglog.coordinators.coordinator_config import CoordinatorConfig
from seglog.coordinators.internal_topic import KeyValue
from seglog.coordinators.name_pattern import InvalidPatternError, name_pattern
from seglog.coordinators.timer import Timer
from seglog.logger import Logger
from seglog.wire.error_codes import Errors

_LOG = Logger(__name__)

# GroupMetadataManager.REGEX_BATCH_REFRESH_MIN_INTERVAL_MS: so seldom are topics matched again.
_REFRESH_MS = 10_000
# The most regular expressions of a group, since each new topic is matched with each of them. Kafka has no limit.
_REGEXES_MAX = 100
# The most topics of all members together, where they read different ones: this many take the loop a tenth of a second.
# Kafka has no limit.
_READ_MAX = 250_000


class GroupTopics(Protocol):
    """The topics that groups may read."""

    @property
    def changes(self) -> int:
        """How often a topic was made, widened or deleted."""

    def names(self) -> list[str]: ...

    def id_and_partitions(self, name: str) -> tuple[bytes, int] | None:
        """None: there is no such topic."""


class ConsumerStore(Protocol):
    """Where groups are stored."""

    def store_records(
        self, group_id: str, records: Sequence[KeyValue], done: Callable[[Errors], None]
    ) -> None:
        """`done` gets NONE when all of them are durable, or the error that prevents it."""


class HeartbeatRequest(NamedTuple):
    """What a member says. None: as before."""

    member_id: str
    epoch: int
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: Sequence[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Assignment | None = None

    @property
    def is_full(self) -> bool:
        return self.epoch == 0 or (
            self.rebalance_timeout_ms != -1 and self.owned is not None
            and (self.topics is not None or self.regex is not None))


class HeartbeatResult(NamedTuple):
    """The answer. `assignment` is None if it is the same as in the last one."""

    error: Errors
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    interval_ms: int = 0
    assignment: Assignment | None = None


class RefusedHeartbeatError(Exception):
    """A heartbeat gets this error."""

    def __init__(self, error: Errors, message: str) -> None:
        super().__init__(message)
        self.error = error


Answered = Callable[[HeartbeatResult], None]
MayRead = Callable[[str], bool]


class ConsumerHeartbeats:
    """Moves groups from state to state. The coordinator finds the group for each call."""

    def __init__(
        self, store: ConsumerStore, topics: GroupTopics, timer: Timer, config: CoordinatorConfig, clock: Clock
    ) -> None:
        self._store = store
        self._topics = topics
        self._timer = timer
        self._config = config
        self._now_ms = clock.now_ms
        self._assignors = config.consumer_assignors.split(",")

    def assignor_of(self, group: ConsumerGroup) -> str:
        return group.assignor(self._assignors)

    # --- heartbeats --------------------------------------------------------------------------------

    def check(self, request: HeartbeatRequest) -> None:
        """Raises RefusedHeartbeatError for a request that no group takes."""
        if request.epoch == 0:
            if request.rebalance_timeout_ms == -1:
                raise _invalid("RebalanceTimeoutMs must be provided in first request.")
            if request.owned is None or request.owned:
                raise _invalid("TopicPartitions must be empty when (re-)joining.")
            if request.topics is None and request.regex is None:
                raise _invalid(
                    "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
        elif request.epoch == LEAVING_STATIC and request.instance_id is None:
            raise _invalid("InstanceId can't be null.")
        elif request.epoch < LEAVING_STATIC:
            raise _invalid(f"MemberEpoch is invalid: {request.epoch}.")
        if request.assignor is not None and request.assignor not in self._assignors:
            raise RefusedHeartbeatError(
                Errors.UNSUPPORTED_ASSIGNOR, f"ServerAssignor {request.assignor} is not supported. Supported "
                f"assignors: {', '.join(self._assignors)}.")

    def heartbeat(self, group: ConsumerGroup, request: HeartbeatRequest, may_read: MayRead, answer: Answered) -> None:
        """Raises RefusedHeartbeatError, before anything has changed."""
        if request.epoch < 0:
            self._leave(group, request, answer)
            return
        is_new = request.epoch == 0
        if is_new and request.member_id not in group.members and request.instance_id not in group.static_members \
                and len(group.members) >= self._config.consumer_max_size:
            raise RefusedHeartbeatError(
                Errors.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {self._config.consumer_max_size} members.")
        member = self._find(group, request)
        before = None if member is None else member.told
        told = _told(before or Subscription(), request)
        self._check_regex(group, before, told)
        if member is not None and member.current.state is MemberState.UNKNOWN and request.owned != {}:
            raise RefusedHeartbeatError(
                Errors.FENCED_MEMBER_EPOCH, "The consumer group member is in a unknown state. The member must abandon "
                "all its partitions and rejoin.")
        records: list[KeyValue] = []
        gone: set[str] = set()
        if member is None:
            old = group.static_member(request.instance_id)
            if old is None:
                member = ConsumerMember(request.member_id, told)
                group.put(member)
                _LOG.info("group %.200a: member %.200a joins", group.group_id, member.member_id)
            else:
                member = self._replace(group, old, request.member_id, records, gone)
                before = old.told
                told = _told(before, request)
        had = member.current.assigned
        bump = self._tell(group, member, before or Subscription(), told, records)
        self._refresh(group, may_read)
        self._advance(group, records, bump=bump)
        if group.epoch > group.target_epoch:
            self._assign(group, records)
        self._reconcile(group, member, request.owned, records)
        self._hear_of(group, member)
        current = member.current
        self._write(group, records, lambda error: answer(HeartbeatResult(error) if error else HeartbeatResult(
            Errors.NONE, None, member.member_id, current.epoch, self._config.consumer_heartbeat_interval_ms,
            current.assigned if request.is_full or current.assigned != had else None)), gone)

    def _find(self, group: ConsumerGroup, request: HeartbeatRequest) -> ConsumerMember | None:
        """The member that speaks; None: a new one, or a static one that came back with another id."""
        if request.epoch == 0 and request.instance_id is not None:
            member, other = group.static_member(request.instance_id), group.members.get(request.member_id)
            if other is not None and other is not member:
                raise _invalid(f"Member {request.member_id} is another member of the group.")
            if member is not None and member.current.epoch != LEAVING_STATIC:
                raise RefusedHeartbeatError(
                    Errors.UNRELEASED_INSTANCE_ID,
                    f"Static member {request.member_id} with instance id {request.instance_id} cannot join the group "
                    f"because the instance id is owned by {member.member_id} member.")
            return None
        if request.epoch == 0 and request.member_id not in group.members:
            return None
        member = _known(group, request)
        _check_epoch(member, request)
        return member

    @staticmethod
    def _check_regex(group: ConsumerGroup, before: Subscription | None, told: Subscription) -> None:
        if told.regex is None or (before is not None and before.regex == told.regex):
            return
        try:
            name_pattern(told.regex)
        except InvalidPatternError as error:
            raise RefusedHeartbeatError(
                Errors.INVALID_REGULAR_EXPRESSION, f"SubscribedTopicRegex: {error}") from None
        known = {member.told.regex for member in group.members.values()} - {None}
        if told.regex not in known and len(known) >= _REGEXES_MAX:
            raise RefusedHeartbeatError(
                Errors.INVALID_REGULAR_EXPRESSION,
                f"the members of the group have {_REGEXES_MAX} regular expressions, the most that a group may have")

    def _replace(
        self, group: ConsumerGroup, old: ConsumerMember, member_id: str, records: list[KeyValue], gone: set[str]
    ) -> ConsumerMember:
        """Let a static member that left for a while take its old place."""
        target = group.target.get(old.member_id, {})
        group.remove(old)
        member = replaced(old, member_id)
        group.put(member)
        group.target[member_id] = target
        if old.member_id != member_id:
            records += no_member(group, old.member_id)
            gone.add(old.member_id)
        records += [
            member_record(group, member), target_record(group, member_id), current_record(group, member)]
        _LOG.info("group %.200a: static member %.200a is back", group.group_id, member_id)
        return member

    def _tell(
        self, group: ConsumerGroup, member: ConsumerMember, before: Subscription, told: Subscription,
        records: list[KeyValue],
    ) -> bool:
        """Note what a member told of itself. Returns whether the group needs a new target for it. For a new regular
        expression it needs one when the topics are known."""
        if before == told:
            return False
        group.tell(member, before)
        assignor = self.assignor_of(group)
        group.tell(member, told)
        records.append(member_record(group, member))
        if before.regex is not None and before.regex != told.regex:
            _drop_regex(group, before.regex, records)
        is_resolved = told.regex is None or told.regex in group.regexes
        return before.topics != told.topics or (before.regex != told.regex and is_resolved) or (
            self.assignor_of(group) != assignor)

    def _advance(self, group: ConsumerGroup, records: list[KeyValue], *, bump: bool) -> None:
        """Begin an epoch if members or their topics changed, and store that of a new group."""
        if not bump and group.seen_changes == self._topics.changes:
            return
        group.seen_changes = self._topics.changes
        hashed = metadata_hash(self._known_topics(group))
        if hashed != group.metadata_hash:
            group.metadata_hash, bump = hashed, True
            if group.has_old_metadata:
                group.has_old_metadata = False
                records.append(no_old_metadata(group))
        is_new = group.is_new
        group.epoch += bump
        if bump or is_new:
            records.append(epoch_record(group))

    def _known_topics(self, group: ConsumerGroup) -> dict[str, tuple[bytes, int]]:
        found = {name: self._topics.id_and_partitions(name) for name in group.subscribed_topics()}
        return {name: topic for name, topic in found.items() if topic is not None}

    def _assign(self, group: ConsumerGroup, records: list[KeyValue]) -> None:
        topics = self._known_topics(group)
        read = {told.reads: sorted(topics[name][0] for name in group.topics_of(told) if name in topics)
                for told in group.subscriptions()}
        if len(read) > 1 and sum(len(read[member.told.reads]) for member in group.members.values()) > _READ_MAX:
            if group.too_large_epoch != group.epoch:
                group.too_large_epoch = group.epoch
                _LOG.warning("group %.200a keeps its old target: %d members read different topics, over %d in all",
                             group.group_id, len(group.members), _READ_MAX)
            return
        subscribers = [
            Subscriber(member.member_id, member.told.instance_id, read[member.told.reads],
                       group.target.get(member.member_id, {}))
            for member in group.members.values()
        ]
        target = ASSIGNORS[self.assignor_of(group)](subscribers, dict(topics.values()))
        before, group.target = group.target, {name: target.get(name, {}) for name in group.members}
        records += [target_record(group, name) for name in group.members
                    if name not in before or before[name] != group.target[name]]
        group.target_epoch, group.target_timestamp_ms = group.epoch, self._now_ms()
        records.append(target_epoch_record(group))

    def _reconcile(
        self, group: ConsumerGroup, member: ConsumerMember, owned: Assignment | None, records: list[KeyValue]
    ) -> None:
        if group.is_reconciled(member):
            return
        current = group.next_of(member, owned)
        if current == member.current:
            return
        group.move(member, current)
        records.append(current_record(group, member))
        self._watch_revocation(group, member)

    # --- leaving -----------------------------------------------------------------------------------

    def _leave(self, group: ConsumerGroup, request: HeartbeatRequest, answer: Answered) -> None:
        result = HeartbeatResult(Errors.NONE, None, request.member_id, request.epoch)
        member = _known(group, request)

        def written(error: Errors) -> None:
            answer(HeartbeatResult(error) if error else result)

        if request.epoch == LEAVING_STATIC:
            group.move(member, replace(member.current, epoch=LEAVING_STATIC, revoking={}))
            if member.revocation is not None:
                member.revocation.cancel()
            self._write(group, [current_record(group, member)], written)
            return
        _LOG.info("group %.200a: member %.200a leaves", group.group_id, member.member_id)
        self._remove(group, member, written)

    def remove_member(self, group: ConsumerGroup, member_id: str, instance_id: str | None,
                      answer: Callable[[Errors], None]) -> None:
        """Remove a member for an operator: by its instance id alone, if it is static (LeaveGroup)."""
        if instance_id is not None:
            known = group.static_members.get(instance_id)
            if known is not None and member_id and known != member_id:
                answer(Errors.FENCED_INSTANCE_ID)
                return
            member_id = known or ""
        member = group.members.get(member_id)
        if member is None:
            answer(Errors.UNKNOWN_MEMBER_ID)
            return
        self._remove(group, member, answer)

    def _remove(self, group: ConsumerGroup, member: ConsumerMember, done: Callable[[Errors], None]) -> None:
        group.remove(member)
        records = no_member(group, member.member_id)
        if member.told.regex is not None:
            _drop_regex(group, member.told.regex, records)
        self._advance(group, records, bump=True)
        if not group.members:
            self._assign(group, records)    # nothing
        self._write(group, records, done, {member.member_id})

    # --- sessions ----------------------------------------------------------------------------------

    def watch(self, group: ConsumerGroup) -> None:
        """Begin a session for each member of a loaded group."""
        for member in group.members.values():
            self._hear_of(group, member)
            self._watch_revocation(group, member)

    def _hear_of(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        member.deadline_ms = self._timer.now_ms() + self._config.consumer_session_timeout_ms
        if member.session is None or not member.session.is_waiting:
            member.session = self._timer.call_in(
                self._config.consumer_session_timeout_ms, partial(self._end_session, group, member))

    def _end_session(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        if group.is_dead or group.members.get(member.member_id) is not member:
            return
        left_ms = member.deadline_ms - self._timer.now_ms()
        if left_ms > 0:
            member.session = self._timer.call_in(left_ms, partial(self._end_session, group, member))
            return
        _LOG.info("group %.200a: member %.200a has sent no heartbeat", group.group_id, member.member_id)
        self._remove(group, member, partial(_warn_of_unwritten, group))

    def _watch_revocation(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        if member.revocation is not None:
            member.revocation.cancel()
            member.revocation = None
        if member.current.state is MemberState.UNREVOKED_PARTITIONS:
            member.revocation = self._timer.call_in(
                max(member.told.rebalance_timeout_ms, 0),
                partial(self._end_revocation, group, member, member.current.epoch))

    def _end_revocation(self, group: ConsumerGroup, member: ConsumerMember, epoch: int) -> None:
        if group.is_dead or group.members.get(member.member_id) is not member or member.current.epoch != epoch:
            return
        _LOG.info("group %.200a: member %.200a did not give up its partitions of epoch %d",
                  group.group_id, member.member_id, epoch)
        self._remove(group, member, partial(_warn_of_unwritten, group))

    # --- regular expressions -----------------------------------------------------------------------

    def _refresh(self, group: ConsumerGroup, may_read: MayRead) -> None:
        """Match topics in the background, if there is an expression whose topics are not known, or there are others."""
        wanted = {member.told.regex for member in group.members.values() if member.told.regex is not None}
        if not wanted or group.is_resolving:
            return
        is_due = group.resolved_changes != self._topics.changes and (
            self._timer.now_ms() - group.resolved_at_ms >= _REFRESH_MS)
        if is_due or not wanted <= group.regexes.keys():
            group.is_resolving = True
            self._timer.call_in(0, lambda: self._timer.in_pieces(self._resolve(group, sorted(wanted), may_read)))

    def _resolve(self, group: ConsumerGroup, wanted: Sequence[str], may_read: MayRead) -> Iterator[None]:
        changes, names = self._topics.changes, self._topics.names()
        found: dict[str, set[str]] = {}
        try:
            for regex in wanted:
                matched = found[regex] = set()
                try:
                    matches = name_pattern(regex)
                except InvalidPatternError as error:    # taken over from a broker
                    _LOG.warning("group %.200a: %s", group.group_id, error)
                    continue
                for name in names:
                    if matches(name) and may_read(name):
                        matched.add(name)
                    yield       # after each: a client's expression may take 10 ms for one name
        finally:
            group.is_resolving = False
        group.resolved_at_ms, group.resolved_changes = self._timer.now_ms(), changes
        if group.is_dead:
            return
        records: list[KeyValue] = []
        for regex, topics in found.items():
            known = group.regexes.get(regex)
            if group.with_regex(regex) and (known is None or known.topics != topics):
                group.regexes[regex] = ResolvedRegex(frozenset(topics), changes, self._now_ms())
                records.append(regex_record(group, regex))
        if records:
            self._advance(group, records, bump=True)
            self._write(group, records, partial(_warn_of_unwritten, group))

    # --- writing -----------------------------------------------------------------------------------

    def _write(
        self, group: ConsumerGroup, records: Sequence[KeyValue], done: Callable[[Errors], None],
        gone: Collection[str] = (),
    ) -> None:
        """Call `done` once these records, and those before them, are durable. `gone`: members that they remove."""
        if group.is_dead or not (records or group.is_unwritten):
            if group.followers is None:
                done(Errors.NONE)
            else:
                group.followers.append(done)
            return
        removed = set(gone)
        if group.is_unwritten:
            group.unwritten_gone |= removed
            records, removed = whole(group), group.unwritten_gone
            group.is_unwritten, group.unwritten_gone = False, set()
        followers: list[Callable[[Errors], None]] = [done]
        group.followers = followers

        def stored(error: Errors) -> None:
            if group.followers is followers:
                group.followers = None
            if error:
                group.is_unwritten = True
                group.unwritten_gone |= removed - group.members.keys()
            for one in followers:
                one(error)

        self._store.store_records(group.group_id, records, stored)


def _told(before: Subscription, request: HeartbeatRequest) -> Subscription:
    """What is known of a member after this heartbeat."""
    return Subscription(
        instance_id=before.instance_id if request.instance_id is None else request.instance_id,
        rack_id=before.rack_id if request.rack_id is None else request.rack_id,
        client_id=request.client_id, client_host=request.client_host,
        topics=before.topics if request.topics is None else tuple(sorted(set(request.topics))),
        regex=before.regex if request.regex is None else request.regex or None,
        rebalance_timeout_ms=(
            before.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms),
        assignor=before.assignor if request.assignor is None else request.assignor)


def _drop_regex(group: ConsumerGroup, regex: str, records: list[KeyValue]) -> None:
    """Forget the topics of an expression that no member has any more."""
    if not group.with_regex(regex) and group.regexes.pop(regex, None) is not None:
        records.append(no_regex(group, regex))


def _check_epoch(member: ConsumerMember, request: HeartbeatRequest) -> None:
    current, epoch = member.current, request.epoch
    if epoch in (0, current.epoch):     # 0: it was fenced, or lost what it knew, and begins anew
        return
    if epoch > current.epoch:
        raise _fenced("greater", epoch, current.epoch)
    # The answer with the newer epoch may have been lost.
    is_part = request.owned is not None and all(
        numbers <= current.assigned.get(topic, frozenset()) for topic, numbers in request.owned.items())
    if epoch != current.previous_epoch or not is_part:
        raise _fenced("smaller", epoch, current.epoch)


def _known(group: ConsumerGroup, request: HeartbeatRequest) -> ConsumerMember:
    """The member that speaks. Raises RefusedHeartbeatError."""
    if request.instance_id is None:
        member = group.members.get(request.member_id)
        if member is None:
            raise RefusedHeartbeatError(
                Errors.UNKNOWN_MEMBER_ID, f"Member {request.member_id} is not a member of group {group.group_id}.")
        return member
    member = group.static_member(request.instance_id)
    if member is None:
        raise RefusedHeartbeatError(Errors.UNKNOWN_MEMBER_ID, f"Instance id {request.instance_id} is unknown.")
    if member.member_id != request.member_id:
        raise RefusedHeartbeatError(
            Errors.FENCED_INSTANCE_ID,
            f"Static member {request.member_id} with instance id {request.instance_id} was fenced by member "
            f"{member.member_id}.")
    return member


def _fenced(which: str, epoch: int, known: int) -> RefusedHeartbeatError:
    return RefusedHeartbeatError(
        Errors.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {which} member epoch ({epoch}) than the one known by the group coordinator "
        f"({known}). The member must abandon all its partitions and rejoin.")


def _invalid(message: str) -> RefusedHeartbeatError:
    return RefusedHeartbeatError(Errors.INVALID_REQUEST, message)


def _warn_of_unwritten(group: ConsumerGroup, error: Errors) -> None:
    if error:
        _LOG.warning("group %.200a changed, but this could not be written: %s", group.group_id, error.name)
