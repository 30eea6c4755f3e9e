"""Groups of the new protocol (KIP-848): heartbeats, epochs, static members, sessions, restarts, conversions."""
import asyncio
import random
from functools import partial

import pytest

from seglog.clock import ManualClock
from seglog.coordinators.consumer_group import MemberState
from seglog.coordinators.group import Group
from seglog.coordinators.pending_answer import PendingAnswer
from seglog.coordinators.timer import Timer
from seglog.wire.codec import encode_versioned
from seglog.wire.error_codes import Errors
from seglog.wire.internal_records import encode_key
from seglog.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetFetchRequest,
)
from seglog.wire.stored_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from support.models.coordinators import coordinators

TOPICS = {"orders": 4}
WHERE = "orders", 0
beat = ConsumerGroupHeartbeatRequest


class Members:
    """Members of the group `g`. Each heartbeat says what the last answer gave it."""

    def __init__(self, asked):
        self.asked = asked
        self.owned, self.epochs = {}, {}

    async def join(self, name, version=1, **more):
        self.owned[name] = []
        more = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["orders"], "topic_partitions": []} | more
        return await self.told(name, beat(group_id="g", member_id=name, member_epoch=0, **more), version)

    async def beat(self, name, *, owns=True, **more):
        rows = [beat.TopicPartitions(topic_id=self.topic_id, partitions=self.owned[name])] if owns else None
        more = {"member_epoch": self.epochs[name], "topic_partitions": rows} | more
        return await self.told(name, beat(group_id="g", member_id=name, **more))

    async def told(self, name, request, version=1):
        answer = await self.asked(request, version)
        if not answer.error_code:
            self.epochs[name] = answer.member_epoch
            if answer.assignment is not None:
                self.owned[name] = sorted(n for row in answer.assignment.topic_partitions for n in row.partitions)
        return answer

    @property
    def topic_id(self):
        return self.asked.topics.topic("orders").shown_id

    @property
    def group(self):
        return self.asked.groups.get("g")

    async def settle(self):
        """Heartbeats of all, until nothing changes."""
        while True:
            before = dict(self.owned), dict(self.epochs)
            for name in list(self.owned):
                assert not (await self.beat(name)).error_code
            if before == (self.owned, self.epochs):
                return


def run(path, what, *, topics=TOPICS, **config):
    async def whole():
        async with coordinators(path, topics, **config) as asked:
            await asked.find()
            return await what(Members(asked))
    return asyncio.run(whole())


def test_a_first_member_gets_everything_at_once(in_memory):
    async def what(members):
        answer = await members.join("a")
        assert (answer.member_epoch, members.owned["a"], answer.heartbeat_interval_ms) == (2, [0, 1, 2, 3], 5000)
        assert members.group.state.value == "Stable"
        assert (await members.beat("a")).assignment is None     # nothing new
    run(in_memory, what)


def test_a_second_member_gets_its_part_after_the_first_one_has_given_it_up(in_memory):
    async def what(members):
        await members.join("a")
        await members.join("b")
        assert (members.owned["b"], members.group.state.value) == ([], "Reconciling")
        await members.beat("a")
        assert len(members.owned["a"]) == 2
        assert members.group.members["a"].current.state is MemberState.UNREVOKED_PARTITIONS
        await members.beat("b")
        assert members.owned["b"] == []                         # not said to be given up yet
        await members.beat("a")
        await members.beat("b")
        assert sorted(members.owned["a"] + members.owned["b"]) == [0, 1, 2, 3]
        assert members.group.state.value == "Stable"
    run(in_memory, what)


def test_a_member_with_another_epoch_is_fenced_but_not_one_whose_answer_was_lost(in_memory):
    async def what(members):
        await members.join("a")
        assert (await members.beat("a", member_epoch=9)).error_code == Errors.FENCED_MEMBER_EPOCH
        await members.beat("a", subscribed_topic_names=["orders", "other"])
        assert members.epochs["a"] == 3
        assert (await members.beat("a", member_epoch=2)).error_code == 0
        await members.beat("a", subscribed_topic_names=["orders"])
        assert (await members.beat("a", member_epoch=2)).error_code == Errors.FENCED_MEMBER_EPOCH
        assert (await members.beat("a", owns=False, member_epoch=3)).error_code == Errors.FENCED_MEMBER_EPOCH
        assert (await members.told("x", beat(group_id="g", member_id="x", member_epoch=3))).error_code == (
            Errors.UNKNOWN_MEMBER_ID)
        assert (await members.told("x", beat(group_id="no", member_id="x", member_epoch=3))).error_code == (
            Errors.GROUP_ID_NOT_FOUND)
    run(in_memory, what)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_member_that_is_to_give_up_more_goes_on_though_the_answer_that_said_so_was_lost(in_memory, is_lost):
    async def what(members):
        await members.join("a")
        await members.join("b")
        await members.beat("a")                     # told to give up two
        has = members.owned["a"]
        for name in "cd":
            await members.join(name)
        answer = await members.beat("a")            # it gave them up, and is told to give up one more
        assert len(members.owned["a"]) == 1
        if is_lost:
            members.owned["a"], members.epochs["a"] = has, 2
            more = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["orders"]}
            assert (await members.beat("a", **more)).error_code == 0
            assert len(members.owned["a"]) == 1
        assert answer.member_epoch == 2
        await members.settle()
        assert sorted(n for owned in members.owned.values() for n in owned) == [0, 1, 2, 3]
        assert set(members.epochs.values()) == {5}
    run(in_memory, what)


def test_a_member_that_was_fenced_joins_again_under_its_id(in_memory):
    async def what(members):
        await members.join("a")
        await members.join("b")
        await members.settle()
        had, epoch = members.owned["a"], members.epochs["a"]
        assert (await members.beat("a", member_epoch=9)).error_code == Errors.FENCED_MEMBER_EPOCH
        assert not (await members.join("a")).error_code
        assert (members.owned["a"], members.epochs["a"]) == (had, epoch)
    run(in_memory, what)


@pytest.mark.parametrize(("more", "error"), [
    ({"rebalance_timeout_ms": -1}, Errors.INVALID_REQUEST),
    ({"topic_partitions": None}, Errors.INVALID_REQUEST),
    ({"subscribed_topic_names": None}, Errors.INVALID_REQUEST),
    ({"member_id": ""}, Errors.INVALID_REQUEST),
    ({"instance_id": ""}, Errors.INVALID_REQUEST),
    ({"member_epoch": -3}, Errors.INVALID_REQUEST),
    ({"member_epoch": -2}, Errors.INVALID_REQUEST),
    ({"server_assignor": "mine"}, Errors.UNSUPPORTED_ASSIGNOR),
    ({"subscribed_topic_regex": "x" * 1001}, Errors.INVALID_REGULAR_EXPRESSION),
])
def test_a_first_heartbeat_that_lacks_something_is_refused_and_leaves_no_group(in_memory, more, error):
    async def what(members):
        request = beat(**{
            "group_id": "g", "member_id": "a", "member_epoch": 0, "rebalance_timeout_ms": 1, "topic_partitions": [],
            "subscribed_topic_names": ["orders"]} | more)
        assert (await members.asked(request, 1)).error_code == error
        assert members.group is None
    run(in_memory, what)


def test_a_member_of_an_older_client_gets_its_id_from_the_server(in_memory):
    async def what(members):
        answer = await members.join("", version=0)
        assert len(answer.member_id) == 36
        assert list(members.group.members) == [answer.member_id]
    run(in_memory, what)


def test_the_server_says_which_assignors_there_are_and_which_is_the_default(in_memory):
    async def what(members):
        for name in "abc":
            await members.join(name)
        await members.settle()
        assert [members.owned[name] for name in "abc"] == [[0, 1], [2], [3]]
        row, = (await members.asked(ConsumerGroupDescribeRequest(group_ids=["g"]))).groups
        assert row.assignor_name == "range"
        answer = await members.join("d", server_assignor="uniform")
        assert (answer.error_code, answer.error_message) == (
            Errors.UNSUPPORTED_ASSIGNOR, "ServerAssignor uniform is not supported. Supported assignors: range.")
    run(in_memory, what, **{"group.consumer.assignors": "range"})


def test_a_static_member_that_left_for_a_while_gets_back_what_it_had(in_memory):
    async def what(members):
        await members.join("a", instance_id="i")
        await members.join("b")
        await members.settle()
        had = members.owned["a"]
        assert (await members.join("a2", instance_id="i")).error_code == Errors.UNRELEASED_INSTANCE_ID
        assert (await members.beat("a", instance_id="i", member_epoch=-2)).member_epoch == -2
        answer = await members.join("a2", instance_id="i")
        assert (answer.error_code, members.owned["a2"], answer.member_epoch) == (0, had, members.epochs["b"])
        assert (await members.beat("a", instance_id="i")).error_code == Errors.FENCED_INSTANCE_ID
    run(in_memory, what)


def test_what_a_silent_member_had_goes_to_the_others(in_memory):
    clock = ManualClock()

    async def what(members):
        await members.join("a")
        await members.join("b")
        await members.settle()
        clock.advance(40_000)
        await members.beat("b")
        clock.advance(10_000)
        members.asked.groups.timer.run_due()
        assert list(members.group.members) == ["b"]
        await members.beat("b")
        assert members.owned["b"] == [0, 1, 2, 3]
    run(in_memory, what, clock=clock)


def test_a_member_that_does_not_give_up_its_partitions_in_time_is_removed(in_memory):
    clock = ManualClock()

    async def what(members):
        await members.join("a", rebalance_timeout_ms=20_000)
        await members.join("b")
        await members.beat("a", owns=False)
        for _ in range(3):
            clock.advance(10_000)
            await members.beat("b")
            if "a" in members.group.members:
                await members.beat("a", owns=False)
            members.asked.groups.timer.run_due()
        assert list(members.group.members) == ["b"]
    run(in_memory, what, clock=clock)


def test_members_and_their_partitions_outlive_a_restart(in_memory):
    async def before(members):
        await members.join("a", instance_id="i", rack_id="r", server_assignor="range")
        await members.join("b")
        await members.settle()
        await members.join("gone")
        await members.beat("gone", member_epoch=-1)
        del members.owned["gone"]
        await members.settle()
        return members.owned, members.epochs, members.group

    owned, epochs, group = run(in_memory, before, stop=False)

    async def after(members):
        members.owned, members.epochs = owned, epochs
        loaded = members.group
        assert {name: (one.told, one.current) for name, one in loaded.members.items()} == {
            name: (one.told, one.current) for name, one in group.members.items()}
        assert (loaded.epoch, loaded.target, loaded.target_epoch, loaded.metadata_hash, loaded.owners) == (
            group.epoch, group.target, group.target_epoch, group.metadata_hash, group.owners)
        assert loaded.static_members == {"i": "a"}
        for name in owned:
            answer = await members.beat(name)
            assert (answer.error_code, answer.member_epoch, answer.assignment) == (0, epochs[name], None)
    run(in_memory, after)


def test_a_new_partition_and_a_deleted_topic_change_the_assignment(in_memory):
    async def what(members):
        await members.join("a", subscribed_topic_names=["orders", "later"])
        await members.asked.topics.create("later", 2, {})
        answer = await members.beat("a")
        assert len(answer.assignment.topic_partitions) == 2
        assert (await members.beat("a")).assignment is None
    run(in_memory, what)


def test_a_commit_needs_the_epoch_of_its_member(in_memory):
    async def what(members):
        await members.join("a")
        commit = members.asked.commit
        assert await commit("g", {WHERE: 1}, generation=2, member="a") == 0
        assert await commit("g", {WHERE: 1}, generation=7, member="a") == Errors.STALE_MEMBER_EPOCH
        assert await commit("g", {WHERE: 1}, generation=1, member="x") == Errors.UNKNOWN_MEMBER_ID
        assert await commit("g", {WHERE: 1}) == Errors.UNKNOWN_MEMBER_ID
        assert await commit("g", {WHERE: 1}, generation=2, member="a", version=8) == Errors.UNSUPPORTED_VERSION
        row = OffsetFetchRequest.OffsetFetchRequestGroup
        for member_id, epoch, error in (
            ("a", 2, 0), (None, -1, 0), ("a", 1, Errors.STALE_MEMBER_EPOCH), ("x", 1, Errors.UNKNOWN_MEMBER_ID)
        ):
            answer = await members.asked(OffsetFetchRequest(groups=[
                row(group_id="g", member_id=member_id, member_epoch=epoch, topics=None)]), 9)
            assert answer.groups[0].error_code == error
        await members.beat("a", member_epoch=-1)
        assert await commit("g", {WHERE: 3}) == 0       # nobody is in the group
        assert await members.asked.fetch("g") == {WHERE: 3}
    run(in_memory, what)


def test_administrators_see_a_group_of_the_new_protocol_as_one_and_may_delete_it_when_it_is_empty(in_memory):
    async def what(members):
        asked = members.asked
        await members.join("a")
        listed = (await asked(ListGroupsRequest(types_filter=["Consumer"], states_filter=["stable"]))).groups
        assert [(one.group_id, one.protocol_type, one.group_state, one.group_type) for one in listed] == [
            ("g", "consumer", "Stable", "consumer")]
        assert not (await asked(ListGroupsRequest(types_filter=["classic"]))).groups
        row, = (await asked(ConsumerGroupDescribeRequest(group_ids=["g"]))).groups
        assert (row.group_state, row.group_epoch, row.assignment_epoch, row.assignor_name) == (
            "Stable", 2, 2, "uniform")
        member, = row.members
        told, = member.assignment.topic_partitions
        assert (told.topic_name, sorted(told.partitions), member.member_epoch, member.member_type) == (
            "orders", [0, 1, 2, 3], 2, 1)
        row, = (await asked(DescribeGroupsRequest(groups=["g"]), 6)).groups
        assert (row.error_code, row.error_message) == (Errors.GROUP_ID_NOT_FOUND, "Group g is not a classic group.")
        deleted = DeleteGroupsRequest(groups_names=["g"])
        assert (await asked(deleted)).results[0].error_code == Errors.NON_EMPTY_GROUP
        of_member = LeaveGroupRequest.MemberIdentity(member_id="a")
        assert not (await asked(LeaveGroupRequest(group_id="g", members=[of_member]))).members[0].error_code
        assert members.group.state.value == "Empty"
        assert not (await asked(deleted)).results[0].error_code
        row, = (await asked(ConsumerGroupDescribeRequest(group_ids=["g"]))).groups
        assert row.error_code == Errors.GROUP_ID_NOT_FOUND

    async def after(members):
        assert members.group is None
    run(in_memory, what, stop=False)
    run(in_memory, after)


def joining(member_id=""):
    return JoinGroupRequest(
        group_id="g", member_id=member_id, session_timeout_ms=30_000, rebalance_timeout_ms=60_000,
        protocol_type="consumer", protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")])


def test_an_empty_group_changes_its_protocol_and_keeps_its_offsets_and_one_with_members_does_not(in_memory):
    async def what(members):
        asked = members.asked
        joined = await asked(joining(), 3)
        assert not joined.error_code
        assert (await members.join("a")).error_code == Errors.GROUP_ID_NOT_FOUND
        await asked(LeaveGroupRequest(
            group_id="g", members=[LeaveGroupRequest.MemberIdentity(member_id=joined.member_id)]))
        assert await asked.commit("g", {WHERE: 5}) == 0
        await members.join("a")
        assert (members.owned["a"], await asked.fetch("g")) == ([0, 1, 2, 3], {WHERE: 5})
        assert (await asked(joining(), 3)).error_code == Errors.INCONSISTENT_GROUP_PROTOCOL
        await members.beat("a", member_epoch=-1)
        assert not (await asked(joining(), 3)).error_code
        assert await asked.fetch("g") == {WHERE: 5}

    async def after(members):
        assert isinstance(members.group, Group)
        assert await members.asked.fetch("g") == {WHERE: 5}
    run(in_memory, what, stop=False)
    run(in_memory, after)


def test_after_a_write_that_failed_the_next_one_writes_the_whole_group(in_memory, monkeypatch):
    async def before(members):
        topic = members.asked.groups.topic
        await members.join("a")
        await members.join("gone")
        await members.settle()
        append = topic.append
        monkeypatch.setattr(topic, "append", lambda key, records, done, producer=None: done(
            Errors.KAFKA_STORAGE_ERROR, None))
        assert (await members.beat("gone", member_epoch=-1)).error_code == Errors.NOT_COORDINATOR
        assert (await members.join("b")).error_code == Errors.NOT_COORDINATOR
        monkeypatch.setattr(topic, "append", append)
        del members.owned["gone"]
        assert not (await members.join("b")).error_code     # again, since it got no answer
        await members.settle()
        assert sorted(members.owned["a"] + members.owned["b"]) == [0, 1, 2, 3]
        return {name: one.current for name, one in members.group.members.items()}

    async def after(members):
        return {name: one.current for name, one in members.group.members.items()}
    assert run(in_memory, before, stop=False) == run(in_memory, after)


def test_a_regular_expression_finds_topics_also_those_that_are_made_later(in_memory):
    pytest.importorskip("re2")
    clock = ManualClock()

    async def what(members):
        await members.join("a", subscribed_topic_names=None, subscribed_topic_regex="or.*|later")
        members.asked.groups.timer.run_due()
        await members.beat("a")
        assert members.owned["a"] == [0, 1, 2, 3]
        await members.asked.topics.create("later", 1, {})
        clock.advance(11_000)
        await members.beat("a")
        members.asked.groups.timer.run_due()
        assert len((await members.beat("a")).assignment.topic_partitions) == 2
        for wrong in ("(", "(?=x)", "x{1000}{1000}", "\ud800"):
            answer = await members.join("b", subscribed_topic_names=None, subscribed_topic_regex=wrong)
            assert answer.error_code == Errors.INVALID_REGULAR_EXPRESSION
    run(in_memory, what, clock=clock)


def test_a_group_that_reads_too_many_different_topics_keeps_its_target(in_memory, monkeypatch):
    monkeypatch.setattr("seglog.coordinators.consumer_heartbeats._READ_MAX", 5)

    async def what(members):
        await members.asked.topics.create("other", 2, {})
        both = ["orders", "other"]
        await members.join("a", subscribed_topic_names=both)
        await members.join("b", subscribed_topic_names=both)
        await members.join("c", subscribed_topic_names=both)        # as many, but the same
        await members.settle()
        owned = {name: one.current.assigned for name, one in members.group.members.items()}
        answer = await members.join("d")
        assert (answer.error_code, members.owned["d"], members.group.state.value) == (0, [], "Assigning")
        for name in "abc":
            assert not (await members.beat(name)).error_code
        assert {name: one.current.assigned for name, one in members.group.members.items() if name != "d"} == owned
        await members.beat("d", member_epoch=-1)
        assert not (await members.beat("a")).error_code
        assert members.group.state.value in ("Stable", "Reconciling")
    run(in_memory, what)


@pytest.fixture
def step_by_step(monkeypatch):
    """The loop goes on after each step, as in large groups."""
    def in_pieces(timer, steps):
        for _ in steps:
            timer.call_in(0, partial(in_pieces, timer, steps))
            return

    monkeypatch.setattr(Timer, "in_pieces", in_pieces)


def test_members_that_come_change_and_leave_while_a_target_is_found_share_all_partitions(in_memory, step_by_step):
    chance = random.Random(5)

    async def one(members, number):
        name, topics = f"m{number}", chance.choice([["orders"], ["other"], ["orders", "other"], ["orders", "none"]])
        asked = {"subscribed_topic_names": topics, "instance_id": f"static-{number}" if number % 3 == 0 else None}
        await members.join(name, **asked)
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(0)
            answer = await members.beat(name, subscribed_topic_names=chance.choice([["orders"], ["orders", "other"]]))
            assert answer.error_code in (0, Errors.FENCED_MEMBER_EPOCH)
        if number % 3 == 0:         # comes back with another id
            await members.told(name, beat(
                group_id="g", member_id=name, instance_id=asked["instance_id"], member_epoch=-2))
            del members.owned[name]
            await members.join(f"again-{name}", **asked)
        elif number % 3 == 1:
            await members.told(name, beat(group_id="g", member_id=name, member_epoch=-1))
            del members.owned[name]

    async def what(members):
        await members.asked.topics.create("other", 3, {})
        await asyncio.gather(*(one(members, number) for number in range(12)))
        group = members.group
        for _ in range(8):
            for name in list(members.owned):
                kept = group.members[name].current.assigned
                rows = [beat.TopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
                        for topic_id, numbers in kept.items()]
                assert not (await members.beat(name, topic_partitions=rows)).error_code
        assert group.state.value == "Stable"
        assert group.members.keys() == group.target.keys() == members.owned.keys()
        held = [(topic_id, number) for member in group.members.values()
                for topic_id, numbers in member.current.assigned.items() for number in numbers]
        reads = [name for name, count in (("orders", 4), ("other", 3)) if group.is_subscribed_to(name)
                 for _ in range(count)]
        assert len(held) == len(set(held)) == len(reads)
        counted = sum(member.size_bytes for member in group.members.values())
        assert members.asked.groups.held.members == counted
        return group, held

    group, held = run(in_memory, what)

    async def loaded(members):
        assert (members.group.target, members.group.epoch) == (group.target, group.epoch)
        assert members.group.owners.keys() == set(held)
    run(in_memory, loaded)


def test_a_stop_answers_a_member_that_waits_for_a_target(in_memory, monkeypatch):
    begun = []      # which go no further
    monkeypatch.setattr(Timer, "in_pieces", lambda timer, steps: begun.append(next(steps, None) or steps))

    async def what(members):
        waiting = asyncio.ensure_future(members.join("a"))
        while members.group is None or not members.group.waiting:
            await asyncio.sleep(0)
        await members.asked.groups.stop()
        assert (await waiting).error_code == Errors.COORDINATOR_NOT_AVAILABLE
    run(in_memory, what)


class HeldSteps:
    """Steps of targets, which are taken when they are asked for."""

    def __init__(self, monkeypatch):
        self.begun = []
        self._patched = monkeypatch.context()

    def __enter__(self):
        self._patched.__enter__().setattr(Timer, "in_pieces", lambda timer, steps: self.begun.append(steps))
        return self

    def __exit__(self, *error):
        self._patched.__exit__(*error)

    async def take_until(self, is_reached):
        while not is_reached():
            if self.begun and next(self.begun[0], self) is self:
                del self.begun[0]
            await asyncio.sleep(0)


async def left_while_a_target_is_found(members, held):
    """A member changes what it reads, and leaves before its group has a target: the answers to both, to come."""
    group, epoch = members.group, members.group.epoch
    first = asyncio.ensure_future(members.beat("a", subscribed_topic_names=["orders", "none"]))
    await held.take_until(lambda: group.epoch > epoch)
    leaves = asyncio.ensure_future(members.beat("a", member_epoch=-1))
    await held.take_until(lambda: not group.members)
    return first, leaves


def test_a_member_that_leaves_and_comes_back_while_a_target_is_found_keeps_its_part_over_a_restart(
        in_memory, monkeypatch):
    """Its target was the same as before it left, and so it was not written again."""
    async def before(members):
        await members.join("a")
        group = members.group
        with HeldSteps(monkeypatch) as held:
            first, leaves = await left_while_a_target_is_found(members, held)
            back = asyncio.ensure_future(members.join("a"))
            await held.take_until(back.done)
            await held.take_until(lambda: first.done() and leaves.done())
        assert (await first).error_code == Errors.UNKNOWN_MEMBER_ID
        assert (back.result().error_code, members.owned["a"]) == (0, [0, 1, 2, 3])
        return group.target

    async def after(members):
        assert members.group.target == target
    target = run(in_memory, before)
    run(in_memory, after)


def test_a_group_that_is_deleted_while_its_last_member_leaves_is_gone_after_a_restart(in_memory, monkeypatch):
    async def before(members):
        await members.join("a")
        with HeldSteps(monkeypatch) as held:
            first, leaves = await left_while_a_target_is_found(members, held)
            deleted = await members.asked(DeleteGroupsRequest(groups_names=["g"]))
            assert [row.error_code for row in deleted.results] == [0]
            await held.take_until(lambda: first.done() and leaves.done())
        assert (first.result().error_code, leaves.result().error_code) == (Errors.UNKNOWN_MEMBER_ID, 0)
        assert members.group is None

    async def after(members):
        assert members.group is None
    run(in_memory, before)
    run(in_memory, after)


def test_a_write_that_fails_by_a_fault_of_ours_leaves_no_heartbeat_without_an_answer(in_memory, monkeypatch):
    async def what(members):
        await members.join("a")
        store = members.asked.groups.store
        with HeldSteps(monkeypatch) as held, monkeypatch.context() as patched:
            def fails(group_id, records, done):
                raise RuntimeError("a fault")

            patched.setattr(store, "store_records", fails)
            joins = [asyncio.ensure_future(members.join(name)) for name in "bc"]
            with pytest.raises(RuntimeError, match="a fault"):
                await held.take_until(lambda: all(one.done() for one in joins))
            del held.begun[:]
            for one in joins:
                assert (await asyncio.wait_for(one, 60)).error_code == Errors.UNKNOWN_SERVER_ERROR
        assert not (await asyncio.wait_for(members.beat("a"), 60)).error_code
        for name in "bc":
            assert not (await asyncio.wait_for(members.join(name), 60)).error_code
        await members.settle()
        assert sorted(len(members.owned[name]) for name in "abc") == [1, 1, 2]
    run(in_memory, what)


def test_topics_that_no_record_holds_are_refused_and_harm_no_other_member(in_memory):
    """They were taken, could not be written, and so the whole group was written again at each heartbeat, in vain."""
    async def what(members):
        await members.join("a")
        answer = await members.join("b", subscribed_topic_names=[f"{number:0249}" for number in range(5000)])
        assert answer.error_code == Errors.INVALID_REQUEST
        assert (await members.beat("a")).error_code == 0
        assert not members.group.is_unwritten
        assert [*members.group.members] == ["a"]
    run(in_memory, what)


LAST = 2**31 - 1


@pytest.mark.parametrize(("key", "value"), [
    (ConsumerGroupMetadataKey(group_id="g"), ConsumerGroupMetadataValue(epoch=LAST)),
    (ConsumerGroupTargetAssignmentMetadataKey(group_id="g"), ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=LAST)),
    (ConsumerGroupTargetAssignmentMetadataKey(group_id="g"), ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=LAST - 1)),
    (ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="a"), ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=LAST, previous_member_epoch=LAST, state=1)),
], ids=lambda one: type(one).__name__)
def test_a_group_with_a_planted_epoch_serves_members_all_the_same(in_memory, key, value):
    """After the largest one no other could be stored: each member that joined got an error, for ever."""
    async def before(members):
        await members.join("a")
        stored = PendingAnswer()
        members.asked.groups.store.store_records("g", [(encode_key(key), encode_versioned(value, 0))], stored.give)
        assert not await stored

    async def after(members):
        for name in ("b", "a"):
            assert (await members.join(name)).error_code == 0
        await members.settle()
        assert sorted(members.owned["a"] + members.owned["b"]) == [0, 1, 2, 3]
        assert len(members.owned["b"]) == 2
    run(in_memory, before)
    run(in_memory, after)


def test_a_group_that_a_broker_stored_without_an_epoch_is_loaded(in_memory):
    """Kafka 4.4 does so while the topics of a first regular expression are not known."""
    async def before(members):
        await members.join("a")
        stored = PendingAnswer()
        members.asked.groups.store.store_records(
            "g", [(encode_key(ConsumerGroupMetadataKey(group_id="g")), None)], stored.give)
        assert not await stored

    async def after(members):
        assert (list(members.group.members), members.group.epoch) == (["a"], 1)
    run(in_memory, before, stop=False)
    run(in_memory, after)


def test_a_server_without_the_package_refuses_regular_expressions(in_memory, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "re2", None)

    async def what(members):
        answer = await members.join("a", subscribed_topic_names=None, subscribed_topic_regex="or.*")
        assert answer.error_code == Errors.INVALID_REGULAR_EXPRESSION
        assert "google-re2" in answer.error_message
    run(in_memory, what)
