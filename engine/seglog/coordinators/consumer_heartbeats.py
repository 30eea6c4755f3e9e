"""Moves groups of the new protocol (KIP-848): heartbeats, sessions, targets. Kafka's GroupMetadataManager.

Each heartbeat says what its member reads and has, and is answered with what it is to have. A change is written before
it is answered. A group is changed only in the timer's loop, one call at a time. A new target of a large group takes
many steps, and the loop goes on between them: heartbeats wait for it, and what they change counts for the next one.
"""
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

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
    hash_of_topics,
    member_record,
    no_member,
    no_old_metadata,
    no_regex,
    regex_record,
    target_epoch_record,
    target_record,
    whole,
)
from seglog.coordinators.coordinator_config import CoordinatorConfig
from seglog.coordinators.group_settings import GroupSettings
from seglog.coordinators.internal_topic import KeyValue
from seglog.coordinators.name_pattern import InvalidPatternError, name_pattern
from seglog.coordinators.timer import Timer
from seglog.logger import Logger
from seglog.named_tuple import NamedTuple
from seglog.wire.error_codes import Errors

_LOG = Logger(__name__)

# GroupMetadataManager.REGEX_BATCH_REFRESH_MIN_INTERVAL_MS: so seldom are topics matched again.
_REFRESH_MS = 10_000
# The most regular expressions of a group, since each new topic is matched with each of them. Kafka has no limit.
_REGEXES_MAX = 100
# The most topics of all members together, where they read different ones: a target for this many takes a quarter of a
# second, in steps. Kafka has no limit.
_READ_MAX = 250_000
# What the topics that a member names may take as text: its record must fit into a batch of __consumer_offsets.
_NAMES_BYTES_MAX = 768 << 10
# After so many elements the loop may go on.
_STEP = 500


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
        self, store: ConsumerStore, topics: GroupTopics, timer: Timer, config: CoordinatorConfig, clock: Clock,
        settings: GroupSettings | None = None,
    ) -> None:
        self._store = store
        self._topics = topics
        self._timer = timer
        self._config = config
        self._settings = settings or GroupSettings(config)
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
        if sum(len(name.encode("utf-8", "surrogatepass")) + 2 for name in request.topics or ()) > _NAMES_BYTES_MAX:
            raise _invalid(f"SubscribedTopicNames are longer than {_NAMES_BYTES_MAX} bytes together.")

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
        assignor = self.assignor_of(group)
        self._check_regex(group, before, told)
        if member is not None and member.current.state is MemberState.UNKNOWN and request.owned != {}:
            raise RefusedHeartbeatError(
                Errors.FENCED_MEMBER_EPOCH, "The consumer group member is in a unknown state. The member must abandon "
                "all its partitions and rejoin.")
        if member is None:
            old = group.static_member(request.instance_id)
            if old is None:
                member = ConsumerMember(request.member_id, told)
                group.put(member)
                _LOG.info("group %.200a: member %.200a joins", group.group_id, member.member_id)
            else:
                member = self._replace(group, old, request.member_id)
                before = old.told
                told = _told(before, request)
        had = member.current.assigned
        group.is_changed |= self._tell(group, member, before or Subscription(), told, assignor)
        group.wants_target = True
        self._refresh(group, may_read)
        self._hear_of(group, member)

        def renewed(error: Errors) -> None:
            if not error and group.members.get(member.member_id) is not member:     # it left meanwhile
                error = Errors.UNKNOWN_MEMBER_ID
            if error:
                answer(HeartbeatResult(error))
                return
            self._reconcile(group, member, request.owned)
            current, interval_ms = member.current, self._settings.heartbeat_interval_ms(group.group_id)
            self._write(group, lambda error: answer(HeartbeatResult(error) if error else HeartbeatResult(
                Errors.NONE, None, member.member_id, current.epoch, interval_ms,
                current.assigned if request.is_full or current.assigned != had else None)))

        self._renew(group, renewed)

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
        if not group.with_regex(told.regex) and len(group.told_regexes) >= _REGEXES_MAX:
            raise RefusedHeartbeatError(
                Errors.INVALID_REGULAR_EXPRESSION,
                f"the members of the group have {_REGEXES_MAX} regular expressions, the most that a group may have")

    @staticmethod
    def _replace(group: ConsumerGroup, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """Let a static member that left for a while take its old place."""
        target = group.target.get(old.member_id, {})
        group.remove(old)
        member = replaced(old, member_id)
        group.put(member)
        group.target[member_id] = target
        if old.member_id != member_id:
            group.pending += no_member(group, old.member_id)
            group.pending_gone.add(old.member_id)
        group.pending += [
            member_record(group, member), target_record(group, member_id, target), current_record(group, member)]
        _LOG.info("group %.200a: static member %.200a is back", group.group_id, member_id)
        return member

    def _tell(
        self, group: ConsumerGroup, member: ConsumerMember, before: Subscription, told: Subscription, assignor: str
    ) -> bool:
        """Note what a member told of itself. Returns whether the group needs a new target for it. For a new regular
        expression it needs one when the topics are known. `assignor`: of the group before."""
        if before == told:
            return False
        if member.told != told:     # not a new one
            group.tell(member, told)
        group.pending.append(member_record(group, member))
        if before.regex is not None and before.regex != told.regex:
            _drop_regex(group, before.regex)
        is_resolved = told.regex is None or told.regex in group.regexes
        return before.topics != told.topics or (before.regex != told.regex and is_resolved) or (
            self.assignor_of(group) != assignor)

    # --- epochs and targets ------------------------------------------------------------------------

    def _renew(self, group: ConsumerGroup, then: Callable[[Errors], None]) -> None:
        """Begin an epoch if members or their topics changed, and find a target for it if one is wanted; then call
        `then`: now, unless this takes many steps, or some are taken already."""
        group.waiting.append(then)
        if not group.is_renewing:
            group.is_renewing = True
            self._timer.in_pieces(self._renewal(group))

    def _renewal(self, group: ConsumerGroup) -> Iterator[None]:
        """Look once more after each time, for those that came meanwhile."""
        try:
            while group.waiting:
                came_before = len(group.waiting)
                yield from self._look(group)
                while came_before and group.waiting:
                    came_before -= 1
                    first = group.waiting.popleft()
                    try:
                        first(Errors.NONE)
                    except Exception:
                        first(Errors.UNKNOWN_SERVER_ERROR)
                        raise
                    yield
        except Exception:
            group.is_changed = True         # what was looked at counts for the next look
            self._refuse(group, Errors.UNKNOWN_SERVER_ERROR)
            raise
        finally:
            group.is_renewing = False

    def end(self, group: ConsumerGroup) -> None:
        """Answer those that wait for a target: the server stops."""
        self._refuse(group, Errors.COORDINATOR_NOT_AVAILABLE)

    @staticmethod
    def _refuse(group: ConsumerGroup, error: Errors) -> None:
        while group.waiting:
            group.waiting.popleft()(error)

    def _look(self, group: ConsumerGroup) -> Iterator[None]:
        changes, bump, wants_target = self._topics.changes, group.is_changed, group.wants_target
        group.is_changed = group.wants_target = False
        topics: Mapping[str, tuple[bytes, int]] | None = None
        if bump or group.seen_changes != changes:
            group.seen_changes = changes
            topics = yield from self._known_topics(group)
            hashed = yield from hash_of_topics(topics)
            if hashed != group.metadata_hash:
                group.metadata_hash, bump = hashed, True
                if group.has_old_metadata:
                    group.has_old_metadata = False
                    group.pending.append(no_old_metadata(group))
            is_new = group.is_new
            group.epoch += bump
            if bump or is_new:
                group.pending.append(epoch_record(group))
        if wants_target and group.epoch > group.target_epoch and group.epoch != group.too_large_epoch:
            if topics is None:
                topics = yield from self._known_topics(group)
            yield from self._assign(group, topics)

    def _known_topics(self, group: ConsumerGroup) -> Generator[None, None, Mapping[str, tuple[bytes, int]]]:
        """The id and the number of partitions of each topic that the group reads. A group may name a million that
        are none."""
        names: Collection[str] = group.told_topics
        names = list(names) if len(names) < 10 * _STEP else [name for name in self._topics.names() if name in names]
        known: dict[str, tuple[bytes, int]] = {}
        for number, name in enumerate((*names, *group.matched_topics())):
            topic = self._topics.id_and_partitions(name)
            if topic is not None:
                known[name] = topic
            if number % _STEP == _STEP - 1:
                yield
        return known

    def _assign(self, group: ConsumerGroup, topics: Mapping[str, tuple[bytes, int]]) -> Iterator[None]:
        epoch, before = group.epoch, dict(group.target)
        # What they tell may change before this has ended.
        members = [(member.member_id, member.told) for member in group.members.values()]
        read: dict[tuple[int, str | None], list[bytes]] = {}
        subscribers, reads = [], 0
        for number, (member_id, told) in enumerate(members):
            if told.reads not in read:
                read[told.reads] = sorted(topics[name][0] for name in group.topics_of(told) if name in topics)
                yield
            elif number % _STEP == _STEP - 1:
                yield
            mine = read[told.reads]
            reads += len(mine)
            subscribers.append(Subscriber(member_id, told.instance_id, mine, before.get(member_id, {})))
        if len(read) > 1 and reads > _READ_MAX:
            group.too_large_epoch = epoch
            _LOG.warning("group %.200a keeps its old target: %d members read different topics, over %d in all",
                         group.group_id, len(members), _READ_MAX)
            return
        target = yield from ASSIGNORS[self.assignor_of(group)](subscribers, dict(topics.values()))
        records: dict[str, KeyValue] = {}
        taken = 0
        for member_id, assignment in target.items():
            if before.get(member_id) != assignment:
                records[member_id] = target_record(group, member_id, assignment)
            taken += 1 + sum(map(len, assignment.values()))
            if taken > _STEP:
                taken = 0
                yield
        for member_id in group.members:
            if member_id in records:
                group.pending.append(records[member_id])
            elif group.target.get(member_id) is not before.get(member_id):      # it left and came back meanwhile
                group.pending.append(target_record(group, member_id, target.get(member_id, {})))
        # One that came meanwhile, or came back with another id, has its part in the next epoch.
        group.is_changed |= not target.keys() >= group.members.keys()
        group.target = {member_id: target.get(member_id, {}) for member_id in group.members}
        group.target_epoch, group.target_timestamp_ms = epoch, self._now_ms()
        group.pending.append(target_epoch_record(group))

    def _reconcile(self, group: ConsumerGroup, member: ConsumerMember, owned: Assignment | None) -> None:
        if group.is_reconciled(member):
            return
        current = group.next_of(member, owned)
        if current == member.current:
            return
        group.move(member, current)
        group.pending.append(current_record(group, member))
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
            group.pending.append(current_record(group, member))
            self._write(group, written)
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
        group.pending += no_member(group, member.member_id)
        group.pending_gone.add(member.member_id)
        if member.told.regex is not None:
            _drop_regex(group, member.told.regex)
        group.is_changed = True
        group.wants_target |= not group.members     # of others, with their next heartbeat
        self._renew(group, lambda error: done(error) if error else self._write(group, done))

    # --- sessions ----------------------------------------------------------------------------------

    def watch(self, group: ConsumerGroup) -> None:
        """Begin a session for each member of a loaded group."""
        for member in group.members.values():
            self._hear_of(group, member)
            self._watch_revocation(group, member)

    def _hear_of(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        timeout_ms = self._settings.session_timeout_ms(group.group_id)
        due_ms = self._timer.now_ms() + timeout_ms
        is_sooner, member.deadline_ms = due_ms < member.deadline_ms, due_ms     # the group's setting was lowered
        if member.session is not None and is_sooner:
            member.session.cancel()
            member.session = None
        if member.session is None or not member.session.is_waiting:
            member.session = self._timer.call_in(timeout_ms, partial(self._end_session, group, member))

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
        wanted = group.told_regexes
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
        for regex, topics in found.items():
            known = group.regexes.get(regex)
            if group.with_regex(regex) and (known is None or known.topics != topics):
                group.regexes[regex] = ResolvedRegex(frozenset(topics), changes, self._now_ms())
                group.pending.append(regex_record(group, regex))
                group.is_changed = True
        if group.is_changed:
            done = partial(_warn_of_unwritten, group)
            self._renew(group, lambda error: done(error) if error else self._write(group, done))

    # --- writing -----------------------------------------------------------------------------------

    def _write(self, group: ConsumerGroup, done: Callable[[Errors], None]) -> None:
        """Write the records that are pending, and call `done` once they, and those before them, are durable."""
        if group.is_dead or not (group.pending or group.is_unwritten):
            if group.followers is None:
                done(Errors.NONE)
            else:
                group.followers.append(done)
            return
        records, removed = group.pending, group.pending_gone
        group.pending, group.pending_gone = [], set()
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

        try:
            self._store.store_records(group.group_id, records, stored)
        except Exception:
            stored(Errors.UNKNOWN_SERVER_ERROR)     # else whoever follows would wait for ever
            raise


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


def _drop_regex(group: ConsumerGroup, regex: str) -> None:
    """Forget the topics of an expression that no member has any more."""
    if not group.with_regex(regex) and group.regexes.pop(regex, None) is not None:
        group.pending.append(no_regex(group, regex))


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
