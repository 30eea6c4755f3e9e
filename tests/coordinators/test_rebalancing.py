"""Groups by a clock that stands still: joins, syncs, heartbeats, leaves, sessions, static members."""
import pytest

from seglog.coordinators.group import GroupState
from seglog.wire.error_codes import Errors
from support.groups_by_hand import REBALANCE_MS, SESSION_MS, GroupByHand


@pytest.fixture
def by_hand():
    return GroupByHand()


# --- joining -----------------------------------------------------------------------------------------


def test_a_first_member_leads_a_generation_of_one(by_hand):
    joined, = by_hand.join()
    assert (joined.error, joined.generation, joined.leader) == (Errors.NONE, 1, joined.member_id)
    assert joined.members == [(joined.member_id, None, b"m")]
    assert by_hand.group.state is GroupState.COMPLETING_REBALANCE


def test_a_new_member_of_a_newer_client_joins_with_the_id_that_it_was_given(by_hand):
    told, = by_hand.join(known=True)
    assert told.error is Errors.MEMBER_ID_REQUIRED
    assert not by_hand.group.members
    joined, = by_hand.join(told.member_id, known=True)
    assert (joined.error, joined.member_id) == (Errors.NONE, told.member_id)


def test_an_id_that_nobody_was_given_is_refused(by_hand):
    by_hand.join()
    refused, = by_hand.join("invented")
    assert refused.error is Errors.UNKNOWN_MEMBER_ID


def test_a_rebalance_does_not_complete_while_an_id_that_was_given_is_out(by_hand):
    first, = by_hand.stable(1)
    by_hand.join(known=True)
    waiting = by_hand.join(first)
    assert not waiting
    by_hand.pass_ms(SESSION_MS)
    assert waiting[0].error is Errors.NONE


def test_a_second_member_makes_the_first_join_again(by_hand):
    first, = by_hand.stable(1)
    waiting = by_hand.join()
    assert not waiting
    assert by_hand.heartbeat(first, 1) is Errors.REBALANCE_IN_PROGRESS
    again, = by_hand.join(first)
    assert (again.generation, waiting[0].generation) == (2, 2)
    assert again.leader == first
    assert len(again.members) == 2
    assert waiting[0].members == []


def test_members_agree_on_the_protocol_that_most_like_best(by_hand):
    first = by_hand.join(protocols=("a", "b", "c"))[0].member_id
    second = by_hand.join(protocols=("b", "a"))
    by_hand.join(first, protocols=("a", "b", "c"))
    third = by_hand.join(protocols=("b", "a", "x"))
    by_hand.join(first, protocols=("a", "b", "c"))
    by_hand.join(second[0].member_id, protocols=("b", "a"))
    assert third[0].protocol_name == "b"


@pytest.mark.parametrize("how", [{"protocols": ("other",)}, {"protocol_type": "connect"}, {"protocols": ()}])
def test_a_member_that_shares_nothing_with_the_others_is_refused(by_hand, how):
    by_hand.stable(1)
    refused, = by_hand.join(**how)
    assert refused.error is Errors.INCONSISTENT_GROUP_PROTOCOL


def test_a_member_that_missed_its_answer_is_told_again(by_hand):
    _leader, follower = by_hand.stable(2)
    again, = by_hand.join(follower)
    assert (again.error, again.generation, again.members) == (Errors.NONE, by_hand.group.generation, [])
    assert by_hand.group.state is GroupState.STABLE


def test_a_leader_that_joins_a_stable_group_begins_a_rebalance(by_hand):
    leader, _follower = by_hand.stable(2)
    assert not by_hand.join(leader)
    assert by_hand.group.state is GroupState.PREPARING_REBALANCE


def test_a_follower_with_another_subscription_begins_a_rebalance(by_hand):
    _leader, follower = by_hand.stable(2)
    assert not by_hand.join(follower, metadata=b"other")
    assert by_hand.group.state is GroupState.PREPARING_REBALANCE


def test_a_full_group_takes_nobody():
    by_hand = GroupByHand(group_max_size=2)
    by_hand.stable(2)
    refused, = by_hand.join()
    assert (refused.error, refused.member_id) == (Errors.GROUP_MAX_SIZE_REACHED, "")


def test_the_first_member_of_an_empty_group_waits_for_others_and_longer_while_some_come():
    by_hand = GroupByHand(group_initial_rebalance_delay_ms=3000)
    first = by_hand.join()
    by_hand.pass_ms(2000)
    second = by_hand.join()
    by_hand.pass_ms(2000)
    assert not first
    assert not second       # it was prolonged at 3000
    by_hand.pass_ms(2000)
    assert {first[0].generation, second[0].generation} == {1}
    assert len(first[0].members) == 2


# --- syncing -----------------------------------------------------------------------------------------


def test_a_follower_waits_for_the_leaders_assignment_and_both_for_the_disk(by_hand):
    by_hand.store.holds = True
    leader = by_hand.join()[0].member_id
    generation = by_hand.group.generation
    synced = by_hand.sync(leader, generation, {leader: b"all", "invented": b"x"})
    assert not synced
    assert by_hand.group.state is GroupState.COMPLETING_REBALANCE
    by_hand.store.let_go()
    assert (synced[0].error, synced[0].assignment) == (Errors.NONE, b"all")
    assert by_hand.store.generations == [(1, {leader: b"all"})]
    assert by_hand.group.state is GroupState.STABLE


def test_an_assignment_that_cannot_be_written_is_nobodys(by_hand):
    by_hand.store.holds = True
    leader = by_hand.join()[0].member_id
    synced = by_hand.sync(leader, 1, {leader: b"all"})
    by_hand.store.let_go(Errors.NOT_COORDINATOR)
    assert (synced[0].error, synced[0].assignment) == (Errors.NOT_COORDINATOR, b"")
    assert by_hand.group.state is GroupState.PREPARING_REBALANCE


def test_a_rebalance_that_begins_while_the_assignment_is_written_makes_it_void(by_hand):
    by_hand.store.holds = True
    leader = by_hand.join()[0].member_id
    synced = by_hand.sync(leader, 1, {leader: b"all"})
    by_hand.join()
    assert synced[0].error is Errors.REBALANCE_IN_PROGRESS
    by_hand.store.let_go()
    assert by_hand.group.state is GroupState.PREPARING_REBALANCE
    assert by_hand.group.members[leader].assignment == b""


@pytest.mark.parametrize(("generation", "error"), [(0, Errors.ILLEGAL_GENERATION), (2, Errors.ILLEGAL_GENERATION)])
def test_another_generation_is_refused(by_hand, generation, error):
    member, = by_hand.stable(1)
    assert by_hand.sync(member, generation)[0].error is error
    assert by_hand.heartbeat(member, generation) is error


def test_a_member_that_never_asks_for_its_assignment_is_removed(by_hand):
    leader, follower = by_hand.stable(2)
    by_hand.join(leader)
    by_hand.join(follower)
    by_hand.sync(leader, by_hand.group.generation)
    for _ in range(REBALANCE_MS // 5000):
        by_hand.pass_ms(5000)
        by_hand.heartbeat(follower, by_hand.group.generation)
        by_hand.heartbeat(leader, by_hand.group.generation)
    assert list(by_hand.group.members) == [leader]


# --- sessions ----------------------------------------------------------------------------------------


def test_a_member_that_is_heard_of_stays_and_one_that_is_not_goes(by_hand):
    leader, _follower = by_hand.stable(2)
    for _ in range(4):
        by_hand.pass_ms(SESSION_MS // 2)
        by_hand.heartbeat(leader, by_hand.group.generation)
    assert list(by_hand.group.members) == [leader]
    assert by_hand.group.state is GroupState.PREPARING_REBALANCE


def test_setting_the_clock_ends_no_session(by_hand):
    member, = by_hand.stable(1)
    by_hand.clock._now_ms += 10 * SESSION_MS
    by_hand.timer.run_due()
    assert member in by_hand.group.members


def test_a_group_whose_members_are_all_gone_is_empty_and_that_is_written(by_hand):
    by_hand.stable(1)
    by_hand.pass_ms(SESSION_MS)
    assert by_hand.group.state is GroupState.EMPTY
    assert by_hand.group.generation == 2
    assert by_hand.store.generations[-1] == (2, {})
    assert by_hand.group.leader is None


def test_a_member_that_waits_for_the_others_is_not_removed_for_its_silence(by_hand):
    leader, follower = by_hand.stable(2)
    waiting = by_hand.join(leader)
    for _ in range(3):
        by_hand.pass_ms(SESSION_MS // 2)
        by_hand.heartbeat(follower, by_hand.group.generation)
    assert leader in by_hand.group.members
    assert not waiting


def test_a_member_that_does_not_join_again_in_time_is_left_out(by_hand):
    leader, follower = by_hand.stable(2)
    waiting = by_hand.join(leader)
    while not waiting:
        by_hand.pass_ms(1000)
        by_hand.heartbeat(follower, by_hand.group.generation)
    assert by_hand.group.state is GroupState.COMPLETING_REBALANCE
    assert list(by_hand.group.members) == [leader]
    assert by_hand.heartbeat(follower, by_hand.group.generation) is Errors.UNKNOWN_MEMBER_ID


def test_a_late_leader_loses_its_place_to_one_who_came(by_hand):
    leader, follower = by_hand.stable(2)
    waiting = by_hand.join(follower, metadata=b"other")
    while not waiting:
        by_hand.pass_ms(1000)
        by_hand.heartbeat(leader, by_hand.group.generation)
    assert waiting[0].leader == follower
    assert waiting[0].members


def test_a_new_member_whose_client_died_while_it_waited_goes_after_five_minutes():
    by_hand = GroupByHand(group_initial_rebalance_delay_ms=2**31 - 1)
    waiting = by_hand.join()
    by_hand.pass_ms(299_000)
    assert by_hand.group.members
    by_hand.pass_ms(2_000)
    assert waiting[0].error is Errors.UNKNOWN_MEMBER_ID
    assert not by_hand.group.members


def test_a_million_heartbeats_leave_one_call_in_the_timer(by_hand):
    member, = by_hand.stable(1)
    for _ in range(10_000):
        by_hand.heartbeat(member, 1)
    assert len(by_hand.timer._heap) < 20


# --- leaving -----------------------------------------------------------------------------------------


def test_a_member_that_leaves_makes_the_others_join_again(by_hand):
    leader, follower = by_hand.stable(2)
    assert by_hand.rebalancing.leave(by_hand.group, leader, None, "") is Errors.NONE
    assert by_hand.group.leader == follower
    assert by_hand.heartbeat(follower, by_hand.group.generation) is Errors.REBALANCE_IN_PROGRESS
    assert by_hand.rebalancing.leave(by_hand.group, leader, None, "") is Errors.UNKNOWN_MEMBER_ID


def test_an_id_that_was_given_can_be_given_back(by_hand):
    first, = by_hand.stable(1)
    told, = by_hand.join(known=True)
    waiting = by_hand.join(first)
    assert by_hand.rebalancing.leave(by_hand.group, told.member_id, None, "") is Errors.NONE
    assert waiting[0].error is Errors.NONE


# --- static members ----------------------------------------------------------------------------------


def test_a_static_member_that_was_started_again_takes_its_place_without_a_rebalance(by_hand):
    old = by_hand.join(instance="i")[0].member_id
    by_hand.sync(old, 1, {old: b"mine"}, instance="i")
    again, = by_hand.join(instance="i", skip=True)
    assert again.error is Errors.NONE
    assert again.member_id != old
    assert (again.generation, again.skip_assignment, again.leader) == (1, True, again.member_id)
    assert by_hand.sync(again.member_id, 1, instance="i")[0].assignment == b"mine"
    assert by_hand.heartbeat(old, 1, "i") is Errors.FENCED_INSTANCE_ID
    assert by_hand.store.generations[-1] == (1, {again.member_id: b"mine"})


def test_an_older_client_that_is_a_static_leader_again_is_told_the_old_leaders_id(by_hand):
    old = by_hand.join(instance="i")[0].member_id
    by_hand.sync(old, 1, instance="i")
    again, = by_hand.join(instance="i")
    assert (again.leader, again.members) == (old, [])


def test_two_with_one_instance_id_fence_each_other(by_hand):
    old = by_hand.join(instance="i")[0].member_id
    synced = by_hand.sync(old, 1, instance="i")
    assert synced      # the leader's own
    by_hand.join(old, instance="i")
    by_hand.join(instance="i")
    assert by_hand.join(old, instance="i")[0].error is Errors.FENCED_INSTANCE_ID
    assert by_hand.sync(old, 1, instance="i")[0].error is Errors.FENCED_INSTANCE_ID


def test_a_static_member_keeps_its_place_over_a_rebalance_until_its_session_ends(by_hand):
    static = by_hand.join(instance="i", session_ms=5 * REBALANCE_MS)[0].member_id
    by_hand.sync(static, 1, instance="i")
    dynamic = by_hand.join()
    by_hand.pass_ms(REBALANCE_MS)
    assert dynamic[0].error is Errors.NONE
    assert {member_id for member_id, _, _ in dynamic[0].members} == {static, dynamic[0].member_id}
    by_hand.sync(dynamic[0].member_id, 2)
    for _ in range(40):
        by_hand.pass_ms(8000)
        by_hand.heartbeat(dynamic[0].member_id, by_hand.group.generation)
    assert static not in by_hand.group.members


def test_an_operator_removes_a_static_member_by_its_instance(by_hand):
    by_hand.join(instance="i")
    assert by_hand.rebalancing.leave(by_hand.group, "", "other", "") is Errors.UNKNOWN_MEMBER_ID
    assert by_hand.rebalancing.leave(by_hand.group, "", "i", "") is Errors.NONE
    assert not by_hand.group.members


def test_a_static_member_that_could_not_be_written_keeps_its_old_id(by_hand):
    old = by_hand.join(instance="i")[0].member_id
    by_hand.sync(old, 1, instance="i")
    by_hand.store.holds = True
    again = by_hand.join(instance="i")
    by_hand.store.let_go(Errors.NOT_COORDINATOR)
    assert again[0].error is Errors.NOT_COORDINATOR
    assert list(by_hand.group.members) == [old]
    assert by_hand.heartbeat(old, 1, "i") is Errors.NONE


@pytest.mark.parametrize("error", [Errors.NONE, Errors.NOT_COORDINATOR])
def test_two_starts_of_a_static_member_are_each_answered_once_and_for_themselves(by_hand, error):
    """The write of the first start, when it was done, told the second one the id of the first, which was fenced."""
    old = by_hand.join(instance="i")[0].member_id
    by_hand.sync(old, 1, instance="i")
    by_hand.store.holds = True
    first, second = by_hand.join(instance="i"), by_hand.join(instance="i")
    second_id, = by_hand.group.members
    by_hand.store.let_go(error)
    assert [answer.error for answer in first] == [Errors.FENCED_INSTANCE_ID]
    assert [(answer.error, answer.member_id) for answer in second] == [(error, "" if error else second_id)]


# --- random lives ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_whatever_members_do_each_join_is_answered_and_the_group_settles(seed):
    import random
    rng = random.Random(seed)
    by_hand = GroupByHand(group_initial_rebalance_delay_ms=rng.choice([0, 3000]))
    known, open_joins = [], []
    for _ in range(300):
        action = rng.random()
        if action < 0.2 or not known:
            open_joins.append(by_hand.join(known=rng.random() < 0.5, instance=rng.choice([None, None, "i", "j"])))
        elif action < 0.5:
            open_joins.append(by_hand.join(rng.choice(known), metadata=rng.choice([b"m", b"n"])))
        elif action < 0.7:
            by_hand.sync(rng.choice(known), by_hand.group.generation - (rng.random() < 0.1))
        elif action < 0.8:
            by_hand.heartbeat(rng.choice(known), by_hand.group.generation)
        elif action < 0.9:
            by_hand.rebalancing.leave(by_hand.group, rng.choice(known), None, "")
        else:
            by_hand.pass_ms(rng.choice([100, 2000, 11_000]))
        known = list({*by_hand.group.members, *by_hand.group.pending_members, *rng.sample(known, len(known) // 2)})
        group = by_hand.group
        assert set(group.static_members.values()) <= set(group.members)
        assert group.leader is None or group.leader in group.members
        assert not group.pending_syncs or group.pending_syncs <= set(group.members)
    by_hand.pass_ms(10 * REBALANCE_MS)
    assert all(len(answers) == 1 for answers in open_joins)
    assert by_hand.group.state is GroupState.EMPTY


def test_ids_are_given_out_to_so_many_clients_that_never_come_back(by_hand):
    from seglog.coordinators.rebalancing import _PENDING_MOST
    for _ in range(_PENDING_MOST):
        assert by_hand.join(known=True)[0].error is Errors.MEMBER_ID_REQUIRED
    assert by_hand.join(known=True)[0].error is Errors.GROUP_MAX_SIZE_REACHED
    by_hand.pass_ms(SESSION_MS)
    assert by_hand.join(known=True)[0].error is Errors.MEMBER_ID_REQUIRED
