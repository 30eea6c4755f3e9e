"""Moves groups from state to state: joins, syncs, heartbeats, leaves, timeouts. Kafka's GroupCoordinator.

Answers are callbacks, since a join waits for the other members. This module uses no sockets and no files: the log is a
`GroupStore`, time is a `Timer`. A group is changed only in the timer's loop, one call at a time.
"""
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from seglog.clock import Clock
from seglog.coordinators.coordinator_config import CoordinatorConfig
from seglog.coordinators.group import Group, GroupState
from seglog.coordinators.group_member import Joined, JoinResult, Member, Protocols, Synced, SyncResult
from seglog.coordinators.timer import Timer
from seglog.logger import Logger
from seglog.named_tuple import NamedTuple
from seglog.wire.error_codes import Errors

_LOG = Logger(__name__)

# GroupCoordinator.NewMemberJoinTimeoutMs: how long a new member may wait for its first generation. An older client
# learns its id only then, so it cannot leave before, and nothing else would remove a member whose client is gone.
_NEW_MEMBER_TIMEOUT_MS = 5 * 60 * 1000

# The maximum number of ids given out with which no client has joined yet. Kafka has no limit.
_PENDING_MOST = 10_000

_PREPARING, _COMPLETING, _STABLE = (
    GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE, GroupState.STABLE
)


class GroupStore(Protocol):
    """Where generations are stored."""

    def store_group(
        self, group: Group, assignments: Mapping[str, bytes], done: Callable[[Errors], None]
    ) -> None:
        """Write the group as it is now. `done` gets NONE when that is durable, or the error that prevents it."""


class JoinRequest(NamedTuple):
    """What a client asks for with a JoinGroup."""

    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    needs_known_id: bool = False        # from version 4 on: a new member first gets an id, and joins with it
    may_skip_assignment: bool = False   # from version 9 on


class Rebalancing:
    """Moves groups from state to state. The coordinator finds the group for each call."""

    def __init__(self, store: GroupStore, timer: Timer, config: CoordinatorConfig, clock: Clock) -> None:
        self._store = store
        self._timer = timer
        self._config = config
        self._now_ms = clock.now_ms

    # --- join --------------------------------------------------------------------------------------

    def join(self, group: Group, member_id: str, request: JoinRequest, on_joined: Joined) -> None:
        if not self._has_room(group, member_id):
            group.remove(member_id)
            on_joined(JoinResult("", Errors.GROUP_MAX_SIZE_REACHED))
        elif group.state is GroupState.DEAD:
            on_joined(JoinResult(member_id, Errors.COORDINATOR_NOT_AVAILABLE))
        elif not group.supports(request.protocol_type, (name for name, _ in request.protocols)):
            on_joined(JoinResult(member_id, Errors.INCONSISTENT_GROUP_PROTOCOL))
        elif not member_id:
            self._join_new(group, request, on_joined)
        else:
            self._join_known(group, member_id, request, on_joined)
        self._complete_join_if_all_came(group)

    def _has_room(self, group: Group, member_id: str) -> bool:
        member, most = group.members.get(member_id), self._config.group_max_size
        if not member_id and len(group.pending_members) >= _PENDING_MOST:
            return False
        if len(group.members) < most:
            return True
        if group.state is _PREPARING:
            return (member is not None and member.is_awaiting_join) or group.awaiting_join_count < most
        if group.state in (_COMPLETING, _STABLE):
            return member is not None
        return True

    def _join_new(self, group: Group, request: JoinRequest, on_joined: Joined) -> None:
        member_id = group.make_member_id(request.client_id, request.group_instance_id)
        if request.group_instance_id is not None:
            known = group.static_members.get(request.group_instance_id)
            if known is not None:
                self._replace_static(group, group.members[known], member_id, request, on_joined)
                return
        elif request.needs_known_id:
            group.expect(member_id, self._timer.call_in(
                request.session_timeout_ms, partial(self._drop_pending, group, member_id)))
            on_joined(JoinResult(member_id, Errors.MEMBER_ID_REQUIRED))
            return
        self._add(group, member_id, request, on_joined)

    def _join_known(self, group: Group, member_id: str, request: JoinRequest, on_joined: Joined) -> None:
        if member_id in group.pending_members:
            # Static members never get such ids: this client has confused two members.
            if request.group_instance_id is not None:
                on_joined(JoinResult(member_id, Errors.UNKNOWN_MEMBER_ID))
            else:
                self._add(group, member_id, request, on_joined)
            return
        error = self._check_member(group, member_id, request.group_instance_id)
        if error is None and group.state is GroupState.EMPTY:
            error = Errors.UNKNOWN_MEMBER_ID
        if error is not None:
            on_joined(JoinResult(member_id, error))
            return
        member = group.members[member_id]
        is_same = member.protocols == request.protocols
        is_leader = group.leader == member_id
        # Repeat what the member may have missed. A leader that joins a stable group asks for a new assignment.
        if is_same and (group.state is _COMPLETING or (group.state is _STABLE and not is_leader)):
            on_joined(self._joined(group, member))
            return
        self._update(group, member, request, on_joined)
        if group.can_rebalance:
            self._prepare(group, f"member {member_id} joins")

    def _add(self, group: Group, member_id: str, request: JoinRequest, on_joined: Joined) -> None:
        member = Member(
            member_id, request.group_instance_id, request.client_id, request.client_host,
            request.rebalance_timeout_ms, request.session_timeout_ms, request.protocol_type, request.protocols,
            on_joined=on_joined, is_new=True,
        )
        if group.state is _PREPARING and group.generation == 0:
            group.has_new_member = True
        group.add(member)
        self._hear_of(group, member, _NEW_MEMBER_TIMEOUT_MS)
        if group.can_rebalance:
            self._prepare(group, f"member {member_id} is new")

    @staticmethod
    def _update(group: Group, member: Member, request: JoinRequest, on_joined: Joined | None) -> None:
        group.change_protocols(member, request.protocols)
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        stale, member.on_joined = member.on_joined, on_joined
        if stale is not None:
            # A client that asks twice has given up its first request. Kafka never answers that one. We do, since its
            # connection may still be waiting for it.
            stale(JoinResult(member.member_id, Errors.REBALANCE_IN_PROGRESS))

    def _replace_static(
        self, group: Group, member: Member, new_id: str, request: JoinRequest, on_joined: Joined
    ) -> None:
        """Let a restarted static member take its old place. If nothing changes for the others, there is no rebalance
        (KIP-345)."""
        old_id, old_leader = member.member_id, group.leader or ""
        protocols = member.protocols
        before = member.rebalance_timeout_ms, member.session_timeout_ms
        member.answer_join(JoinResult(old_id, Errors.FENCED_INSTANCE_ID))
        member.answer_sync(SyncResult(Errors.FENCED_INSTANCE_ID))
        group.rename_static(member, new_id)
        self._hear_of(group, member)
        self._update(group, member, request, on_joined)
        if group.state is _COMPLETING:
            self._prepare(group, f"static member {new_id} was restarted")
        elif group.state is _STABLE:
            if group.select_protocol() != group.protocol_name:
                self._prepare(group, f"static member {new_id} came back with other protocols")
                return

            def stored(error: Errors) -> None:
                if member.on_joined is not on_joined:
                    return      # a rebalance has answered it, or the member was restarted again
                if error is not Errors.NONE:
                    if group.members.get(new_id) is member:
                        member.on_joined = None
                        group.change_protocols(member, protocols)
                        member.rebalance_timeout_ms, member.session_timeout_ms = before
                        group.rename_static(member, old_id)
                        self._hear_of(group, member)
                    on_joined(JoinResult(
                        "", error, group.generation, group.protocol_type, group.protocol_name, old_leader))
                elif request.may_skip_assignment:
                    result = self._joined(group, member)
                    result.skip_assignment = group.leader == new_id
                    member.answer_join(result)
                else:
                    # The old leader's id: a client that found its own id here would send an assignment.
                    member.answer_join(JoinResult(
                        new_id, Errors.NONE, group.generation, group.protocol_type, group.protocol_name, old_leader))

            self._store.store_group(group, {m.member_id: m.assignment for m in group.members.values()}, stored)

    # --- sync --------------------------------------------------------------------------------------

    def sync(
        self, group: Group, member_id: str, group_instance_id: str | None, generation: int, protocol_type: str | None,
        protocol_name: str | None, assignments: Mapping[str, bytes], on_synced: Synced,
    ) -> None:
        error = self._check_generation(group, member_id, group_instance_id, generation)
        if error is None and (
            protocol_type not in (None, group.protocol_type) or protocol_name not in (None, group.protocol_name)
        ):
            error = Errors.INCONSISTENT_GROUP_PROTOCOL
        if error is None and group.state is GroupState.EMPTY:
            error = Errors.UNKNOWN_MEMBER_ID
        if error is None and group.state is _PREPARING:
            error = Errors.REBALANCE_IN_PROGRESS
        if error is not None:
            on_synced(SyncResult(error))
            return
        member = group.members[member_id]
        self._synced(group, member_id)
        if group.state is _STABLE:
            on_synced(SyncResult(Errors.NONE, group.protocol_type, group.protocol_name, member.assignment))
            self._hear_of(group, member)
            return
        member.answer_sync(SyncResult(Errors.REBALANCE_IN_PROGRESS))    # see _update
        member.on_synced = on_synced
        if group.leader == member_id:
            # A member that the leader left out gets an empty assignment; ids that are not in the group are ignored.
            chosen = {known: assignments.get(known, b"") for known in group.members}
            self._store.store_group(group, chosen, partial(self._assigned, group, group.generation, chosen))

    def _assigned(self, group: Group, generation: int, chosen: Mapping[str, bytes], error: Errors) -> None:
        """Called when the leader's assignment is durable. A rebalance that began meanwhile invalidates it."""
        if group.state is not _COMPLETING or group.generation != generation:
            return
        if error is not Errors.NONE:
            self._propagate(group, error)
            self._prepare(group, f"its assignment could not be stored: {error.name}")
            return
        for member in group.members.values():
            group.assign(member, chosen.get(member.member_id, b""))
        self._propagate(group, Errors.NONE)
        group.become(_STABLE, self._now_ms())

    def _propagate(self, group: Group, error: Errors) -> None:
        for member in list(group.members.values()):
            if error is Errors.NONE:
                result = SyncResult(error, group.protocol_type, group.protocol_name, member.assignment)
            else:
                group.assign(member, b"")
                result = SyncResult(error)
            if member.answer_sync(result):
                self._hear_of(group, member)

    def _synced(self, group: Group, member_id: str) -> None:
        group.pending_syncs.discard(member_id)
        if not group.pending_syncs:
            self._stop_waiting_for_syncs(group)

    @staticmethod
    def _stop_waiting_for_syncs(group: Group) -> None:
        group.pending_syncs.clear()
        if group.sync_due is not None:
            group.sync_due.cancel()
            group.sync_due = None

    def _expire_syncs(self, group: Group, generation: int) -> None:
        """Start a rebalance without the members that got their generation but never asked for their assignment."""
        if generation != group.generation or group.state not in (_COMPLETING, _STABLE) or not group.pending_syncs:
            return
        late = [member_id for member_id in group.members if member_id in group.pending_syncs]
        for member_id in late:
            group.remove(member_id)
        self._prepare(group, f"members {late} sent no SyncGroup")

    # --- heartbeats and leaving ----------------------------------------------------------------------

    def heartbeat(self, group: Group, member_id: str, group_instance_id: str | None, generation: int) -> Errors:
        error = self._check_generation(group, member_id, group_instance_id, generation)
        if error is not None:
            return error
        if group.state is GroupState.EMPTY:
            return Errors.UNKNOWN_MEMBER_ID
        self._hear_of(group, group.members[member_id])
        return Errors.REBALANCE_IN_PROGRESS if group.state is _PREPARING else Errors.NONE

    def leave(self, group: Group, member_id: str, group_instance_id: str | None, reason: str) -> Errors:
        if not member_id:
            # An operator removes a static member by its instance id, without knowing its member id.
            found = None if group_instance_id is None else group.static_members.get(group_instance_id)
            if found is None:
                return Errors.UNKNOWN_MEMBER_ID
            member_id = found
        elif member_id in group.pending_members:
            self._drop_pending(group, member_id)
            return Errors.NONE
        else:
            error = self._check_member(group, member_id, group_instance_id)
            if error is not None:
                return error
        self._remove(group, group.members[member_id], f"member {member_id} leaves: {reason}")
        return Errors.NONE

    def _remove(self, group: Group, member: Member, reason: str) -> None:
        member.answer_join(JoinResult("", Errors.UNKNOWN_MEMBER_ID))
        member.answer_sync(SyncResult(Errors.UNKNOWN_MEMBER_ID))
        group.remove(member.member_id)
        if group.state in (_STABLE, _COMPLETING):
            self._prepare(group, reason)
        else:
            self._complete_join_if_all_came(group)

    def _drop_pending(self, group: Group, member_id: str) -> None:
        """Forget an id that was given out, but with which no client joined."""
        group.forget_pending(member_id)
        self._complete_join_if_all_came(group)

    # --- sessions ----------------------------------------------------------------------------------

    def watch(self, group: Group) -> None:
        """Begin a session for each member of a loaded group."""
        for member in group.members.values():
            self._hear_of(group, member)
        if len(group.members) > self._config.group_max_size:
            self._prepare(group, "it is over group.max.size")

    def hear_of(self, group: Group, member_id: str) -> None:
        """Extend a member's session: a commit is a sign of life, too."""
        self._hear_of(group, group.members[member_id])

    def _hear_of(self, group: Group, member: Member, timeout_ms: int | None = None) -> None:
        timeout_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        member.deadline_ms = self._timer.now_ms() + timeout_ms
        session = member.session
        if session is not None and session.is_waiting:
            if session.at_ms <= member.deadline_ms:
                return      # the timer checks again then
            session.cancel()
        member.session = self._timer.call_in(timeout_ms, partial(self._end_session, group, member))

    def _end_session(self, group: Group, member: Member) -> None:
        if group.state is GroupState.DEAD or group.members.get(member.member_id) is not member:
            return
        left_ms = member.deadline_ms - self._timer.now_ms()
        if left_ms > 0:
            member.session = self._timer.call_in(left_ms, partial(self._end_session, group, member))
        elif not member.is_kept_waiting:
            _LOG.info("group %.200a: member %.200a has sent no heartbeat", group.group_id, member.member_id)
            self._remove(group, member, f"the session of member {member.member_id} ended")

    # --- the rebalance -------------------------------------------------------------------------------

    def _prepare(self, group: Group, reason: str) -> None:
        if group.state is _COMPLETING:
            self._propagate(group, Errors.REBALANCE_IN_PROGRESS)
        self._stop_waiting_for_syncs(group)
        was_empty = group.state is GroupState.EMPTY
        group.become(_PREPARING, self._now_ms())
        _LOG.info("group %.200a: a rebalance after generation %d: %.200a", group.group_id, group.generation, reason)
        if was_empty:
            delay_ms = self._config.group_initial_rebalance_delay_ms
            # A delay of 0 ends in the next turn of the loop, so that the join that began this is answered like one that
            # waits. Nothing prolongs it.
            self._delay(group, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0) if delay_ms else 0)
        else:
            self._wait_for_joins(group)

    def _delay(self, group: Group, delay_ms: int, remaining_ms: int) -> None:
        """Let the first member of an empty group wait for others, and longer while more join (InitialDelayedJoin)."""
        group.is_delayed = True
        group.join_due = self._timer.call_in(delay_ms, partial(self._end_delay, group, delay_ms, remaining_ms))

    def _end_delay(self, group: Group, delay_ms: int, remaining_ms: int) -> None:
        if group.has_new_member and remaining_ms:
            group.has_new_member = False
            delay = min(self._config.group_initial_rebalance_delay_ms, remaining_ms)
            self._delay(group, delay, max(remaining_ms - delay_ms, 0))
            return
        self._complete_join(group)

    def _wait_for_joins(self, group: Group) -> None:
        group.is_delayed = False
        if group.join_due is not None:
            group.join_due.cancel()
        group.join_due = self._timer.call_in(group.rebalance_timeout_ms, partial(self._complete_join, group))
        self._complete_join_if_all_came(group)

    def _complete_join_if_all_came(self, group: Group) -> None:
        if group.state is _PREPARING and not group.is_delayed and group.has_all_joined:
            self._complete_join(group)

    def _complete_join(self, group: Group) -> None:
        """All members have joined, or their time is up: begin a generation with those that have joined."""
        if group.join_due is not None:
            group.join_due.cancel()
            group.join_due = None
        group.is_delayed = False
        if group.state is not _PREPARING:
            return
        # Static members keep their place until their session ends.
        for member in [m for m in group.members.values() if not m.is_awaiting_join and not m.is_static]:
            group.remove(member.member_id)
        if group.members and not group.elect_joined_leader():
            self._wait_for_joins(group)     # only static members are left, and none of them has joined
            return
        group.begin_generation(self._now_ms())
        if group.state is GroupState.EMPTY:
            self._store.store_group(group, {}, partial(_warn_of_unwritten, group))
            return
        for member in list(group.members.values()):
            group.pending_syncs.add(member.member_id)
            member.is_new = False
            result = self._joined(group, member)
            member.answer_join(result)
            self._hear_of(group, member)
        group.sync_due = self._timer.call_in(
            group.rebalance_timeout_ms, partial(self._expire_syncs, group, group.generation)
        )

    @staticmethod
    def _joined(group: Group, member: Member) -> JoinResult:
        """A member's answer about the generation. The leader's also lists all members."""
        members = []
        if group.leader == member.member_id:
            assert group.protocol_name is not None
            members = [
                (m.member_id, m.group_instance_id, m.metadata(group.protocol_name)) for m in group.members.values()
            ]
        return JoinResult(
            member.member_id, Errors.NONE, group.generation, group.protocol_type, group.protocol_name,
            group.leader or "", members,
        )

    # --- checks ------------------------------------------------------------------------------------

    @staticmethod
    def _check_member(group: Group, member_id: str, group_instance_id: str | None) -> Errors | None:
        """The error for a client that is not a member of the group, or None if it is."""
        if group_instance_id is not None:
            current = group.static_members.get(group_instance_id)
            if current is None:
                return Errors.UNKNOWN_MEMBER_ID
            if current != member_id:
                return Errors.FENCED_INSTANCE_ID
        return None if member_id in group.members else Errors.UNKNOWN_MEMBER_ID

    def _check_generation(
        self, group: Group, member_id: str, group_instance_id: str | None, generation: int
    ) -> Errors | None:
        if group.state is GroupState.DEAD:
            return Errors.COORDINATOR_NOT_AVAILABLE
        error = self._check_member(group, member_id, group_instance_id)
        if error is None and generation != group.generation:
            error = Errors.ILLEGAL_GENERATION
        return error

    def check_commit(
        self, group: Group, member_id: str, group_instance_id: str | None, generation: int, *, is_transactional: bool
    ) -> Errors | None:
        """The error for a client that may not commit offsets, or None if it may. A client that is not a member may
        commit only while the group is empty, or in a transaction, which identifies its producer."""
        if group.state is GroupState.DEAD:
            return Errors.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and group.state is GroupState.EMPTY:
            return None
        if generation >= 0 or member_id or group_instance_id is not None:
            return self._check_generation(group, member_id, group_instance_id, generation)
        return None if is_transactional else Errors.UNKNOWN_MEMBER_ID

    # --- the end -----------------------------------------------------------------------------------

    def end(self, group: Group) -> None:
        """Tell waiting members to look for another coordinator, because this one stops."""
        for member in group.members.values():
            member.answer_join(JoinResult(member.member_id, Errors.NOT_COORDINATOR))
            member.answer_sync(SyncResult(Errors.NOT_COORDINATOR))


def _warn_of_unwritten(group: Group, error: Errors) -> None:
    if error is not Errors.NONE:
        _LOG.warning("group %.200a is now empty, but this could not be written: %s", group.group_id, error.name)
