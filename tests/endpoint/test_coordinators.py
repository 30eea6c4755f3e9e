"""Groups and transactions over real logs: what is committed counts, what a crash leaves is ended at the next start."""
import asyncio
from types import SimpleNamespace

import pytest

from seglog.clock import ManualClock, SystemClock
from seglog.coordinators.internal_topic import java_abs, java_hash
from seglog.coordinators.timer import Timer
from seglog.coordinators.transaction import TransactionState
from seglog.errors import InvalidProducerEpochError, StorageError
from seglog.wire.error_codes import Errors
from seglog.wire.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    DescribeProducersRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from support.coordinators import coordinators

TOPIC = {"t": 2}
T0, T1 = ("t", 0), ("t", 1)
NOW = 1_700_000_000_000


def run(test, *args, **config):
    async def whole():
        async with coordinators(*args, **config) as asked:
            await asked.find()
            return await test(asked)
    return asyncio.run(whole())


def test_the_hash_of_a_group_is_javas():
    """String.hashCode of "hello", of the empty string, and of a name outside of the first plane; Utils.abs."""
    assert [java_hash(text) for text in ("hello", "", "\U0001f600", "polygenelubricants")] == [
        99162322, 0, 1772899, -(2**31)]
    assert java_abs(-(2**31)) == 0

@pytest.mark.parametrize("turns", range(4))
def test_the_timer_ends_when_it_is_cancelled_as_something_becomes_due_sooner(turns):
    """asyncio.wait_for can lose the cancellation then, and a server that stopped waited for ever."""
    async def stop():
        timer = Timer(SystemClock())
        timer.call_in(60_000, lambda: None)
        task = asyncio.ensure_future(timer.run())
        await asyncio.sleep(0.01)
        timer.call_in(30_000, lambda: None)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=30)
        assert task.cancelled()

    asyncio.run(stop())


# --- offsets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
def test_a_commit_of_every_version_is_fetched_after_a_restart(in_memory, version):
    async def commit(asked):
        assert await asked.commit("g", {T0: 7, T1: 8}, version=version) == 0

    async def fetch(asked):
        assert await asked.fetch("g") == {T0: 7, T1: 8}
        old = await asked(OffsetFetchRequest(group_id="g", topics=[
            OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[1, 0, 5]),
        ]), version=min(version, 7))
        assert [(row.partition_index, row.committed_offset, row.error_code) for row in old.topics[0].partitions] == [
            (1, 8, 0), (0, 7, 0), (5, -1, 0)]

    run(commit, in_memory, TOPIC)
    run(fetch, in_memory)


def test_a_commit_is_on_the_disk_when_it_is_answered(in_memory):
    async def commit(asked):
        await asked.commit("g", {T0: 7})
        partition = asked.groups.topic.partition_for("g")
        log = asked.topics.log("__consumer_offsets", partition)
        assert log.durable_offset == log.log_end_offset == 1

    run(commit, in_memory, TOPIC)


def test_commits_are_refused_row_by_row(in_memory):
    async def commit(asked):
        assert await asked.commit("g", {("missing", 0): 1}) == Errors.UNKNOWN_TOPIC_OR_PARTITION
        assert await asked.commit("g", {("t", 9): 1}) == Errors.UNKNOWN_TOPIC_OR_PARTITION
        assert await asked.commit("g", {T0: 1}, generation=3, member="m") == Errors.ILLEGAL_GENERATION
        assert asked.groups.groups == {}
        await asked.commit("g", {T0: 1})
        assert await asked.commit("g", {T0: 2}, generation=3, member="m") == Errors.UNKNOWN_MEMBER_ID
        assert await asked.fetch("g") == {T0: 1}

    run(commit, in_memory, TOPIC)


def test_a_client_that_is_no_member_may_not_commit_to_a_group_that_has_some(in_memory):
    async def commit(asked):
        joined = await join(asked, "g")
        assert await asked.commit("g", {T0: 1}) == Errors.UNKNOWN_MEMBER_ID
        assert await asked.commit("g", {T0: 1}, generation=1, member=joined.member_id) == Errors.REBALANCE_IN_PROGRESS
        await sync(asked, "g", joined)
        assert await asked.commit("g", {T0: 1}, generation=1, member=joined.member_id) == 0
        assert await asked.commit("g", {T0: 1}, generation=0, member=joined.member_id) == Errors.ILLEGAL_GENERATION

    run(commit, in_memory, TOPIC)


async def join(asked, group, version=3):
    request = JoinGroupRequest
    return await asked(request(
        group_id=group, session_timeout_ms=10_000, rebalance_timeout_ms=10_000, protocol_type="consumer",
        protocols=[request.JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
    ), version)


async def sync(asked, group, joined):
    request = SyncGroupRequest
    return await asked(request(
        group_id=group, generation_id=joined.generation_id, member_id=joined.member_id,
        assignments=[request.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")],
    ), 3)


# ConsumerProtocolSubscription 1: the topic t.
SUBSCRIPTION = bytes.fromhex("0001" "00000001" "000174" "ffffffff" "00000000")


def test_a_group_that_was_loaded_has_its_members_until_their_sessions_end(in_memory):
    async def begin(asked):
        joined = await join(asked, "g")
        synced = await sync(asked, "g", joined)
        assert synced.assignment == b"all"
        return joined

    joined = run(begin, in_memory, TOPIC)
    clock = ManualClock(NOW)

    async def go_on(asked):
        heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id=joined.member_id)
        assert (await asked(heartbeat, 3)).error_code == 0
        described = (await asked(DescribeGroupsRequest(groups=["g", "other"]), 5)).groups
        assert [(g.group_state, g.protocol_data, len(g.members)) for g in described] == [
            ("Stable", "range", 1), ("Dead", "", 0)]
        assert described[0].members[0].member_assignment == b"all"
        clock.advance(10_001)
        asked.groups.timer.run_due()
        assert (await asked(heartbeat, 3)).error_code == Errors.UNKNOWN_MEMBER_ID
        assert [g.group_state for g in (await asked(ListGroupsRequest(), 4)).groups] == ["Empty"]

    run(go_on, in_memory, clock=clock)


def test_a_deleted_group_is_gone_after_a_restart_and_a_deleted_offset_is_too(in_memory):
    async def delete(asked):
        await asked.commit("gone", {T0: 1})
        await asked.commit("left", {T0: 1, T1: 2})
        answer = await asked(DeleteGroupsRequest(groups_names=["gone", "never"]), 2)
        assert [row.error_code for row in answer.results] == [0, Errors.GROUP_ID_NOT_FOUND]
        request = OffsetDeleteRequest
        answer = await asked(request(group_id="left", topics=[request.OffsetDeleteRequestTopic(name="t", partitions=[
            request.OffsetDeleteRequestPartition(partition_index=number) for number in (0, 7)
        ])]), 0)
        assert [row.error_code for row in answer.topics[0].partitions] == [0, Errors.UNKNOWN_TOPIC_OR_PARTITION]

    async def look(asked):
        assert set(asked.groups.groups) == {"left"}
        assert await asked.fetch("left") == {T1: 2}

    run(delete, in_memory, TOPIC)
    run(look, in_memory)


def test_a_group_with_members_is_not_deleted_and_neither_are_offsets_that_it_reads(in_memory):
    async def delete(asked):
        joined = await join(asked, "g")
        await sync(asked, "g", joined)
        await asked.commit("g", {T0: 1}, generation=1, member=joined.member_id)
        answer = await asked(DeleteGroupsRequest(groups_names=["g"]), 2)
        assert answer.results[0].error_code == Errors.NON_EMPTY_GROUP
        request = OffsetDeleteRequest
        answer = await asked(request(group_id="g", topics=[request.OffsetDeleteRequestTopic(
            name="t", partitions=[request.OffsetDeleteRequestPartition(partition_index=0)])]), 0)
        assert answer.topics[0].partitions[0].error_code == Errors.GROUP_SUBSCRIBED_TO_TOPIC

    run(delete, in_memory, TOPIC)


def test_offsets_expire_when_their_group_was_empty_for_so_long(in_memory):
    clock = ManualClock(NOW)

    async def expire(asked):
        await asked.commit("g", {T0: 1})
        clock.advance(59 * 60_000)
        asked.groups.timer.run_due()
        assert await asked.fetch("g") == {T0: 1}
        clock.advance(11 * 60_000)
        asked.groups.timer.run_due()
        assert asked.groups.groups == {}

    async def look(asked):
        assert asked.groups.groups == {}

    run(expire, in_memory, TOPIC, clock=clock, offsets_retention_minutes=60)
    run(look, in_memory, clock=clock)


# --- transactions ------------------------------------------------------------------------------------


async def begin(asked, transactional_id="x", where=T0, value=b"v", sequence=0, producer=None):
    """A producer with a record in an open transaction."""
    producer = producer or await asked.init(transactional_id)
    assert producer.error == 0
    assert await asked.add(transactional_id, producer, [where]) == 0
    asked.produce(producer, where, value, sequence)
    return producer


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_ends_in_every_partition_and_in_the_offsets(in_memory, commit):
    async def end(asked):
        producer = await begin(asked)
        assert await asked.add("x", producer, [T1]) == 0
        asked.produce(producer, T1, b"w", 0)
        assert await asked.commit_in("x", producer, "g", {T0: 5}) == 0
        assert asked.committed(T0) == []
        assert await asked.fetch("g") == {}
        unstable = await asked(OffsetFetchRequest(require_stable=True, groups=[
            OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=[
                OffsetFetchRequest.OffsetFetchRequestTopics(name="t", partition_indexes=[0])])]), 9)
        assert unstable.groups[0].topics[0].partitions[0].error_code == Errors.UNSTABLE_OFFSET_COMMIT
        assert await asked.end("x", producer, commit) == 0
        assert asked.committed(T0) == ([b"v"] if commit else [])
        assert asked.committed(T1) == ([b"w"] if commit else [])
        assert await asked.end("x", producer, commit) == 0              # the answer was lost
        assert await asked.end("x", producer, not commit) == Errors.INVALID_TXN_STATE

    async def look(asked):
        assert await asked.fetch("g") == ({T0: 5} if commit else {})

    run(end, in_memory, TOPIC)
    run(look, in_memory)


def test_one_producer_after_another_commits_many_transactions(in_memory):
    async def many(asked):
        producer = await asked.init("x")
        for number in range(20):
            await begin(asked, value=b"%d" % number, sequence=number, producer=producer)
            assert await asked.end("x", producer, number % 2 == 0) == 0
        assert asked.committed(T0) == [b"%d" % number for number in range(0, 20, 2)]

    run(many, in_memory, TOPIC)


def test_a_new_producer_of_an_id_fences_the_old_one_and_aborts_what_it_left_open(in_memory):
    async def fence(asked):
        old = await begin(asked)
        assert (await asked.init("x")).error == Errors.CONCURRENT_TRANSACTIONS
        while (new := await asked.init("x")).error:
            await asyncio.sleep(0.01)
        assert (new.id, new.epoch) == (old.id, old.epoch + 2)
        assert await asked.add("x", old, [T0]) == Errors.PRODUCER_FENCED
        assert await asked.end("x", old, True) == Errors.PRODUCER_FENCED
        with pytest.raises(InvalidProducerEpochError):
            asked.produce(old, T0, b"late", 1)
        await begin(asked, producer=new, value=b"new")
        await asked.end("x", new, True)
        assert asked.committed(T0) == [b"new"]

    run(fence, in_memory, TOPIC)


def test_a_partition_that_its_producer_has_not_written_to_is_fenced_too(in_memory):
    """The producer added it and was slow: without the marker its batch would open a transaction that nobody ends."""
    async def fence(asked):
        old = await asked.init("x")
        assert await asked.add("x", old, [T0]) == 0
        await asked.init("x")
        while (await asked.init("x")).error:
            await asyncio.sleep(0.01)
        with pytest.raises(InvalidProducerEpochError):
            asked.produce(old, T0, b"late", 0)

    run(fence, in_memory, TOPIC)


def test_a_batch_is_let_in_only_while_its_partition_is_in_the_transaction(in_memory):
    async def verify(asked):
        verify = asked.transactions.verify
        producer = await asked.init("x")
        assert verify("x", producer.id, producer.epoch, "t", 0) is Errors.INVALID_TXN_STATE
        await begin(asked, producer=producer)
        assert verify("x", producer.id, producer.epoch, "t", 0) is Errors.NONE
        assert verify("x", producer.id, producer.epoch, "t", 1) is Errors.INVALID_TXN_STATE
        assert verify("x", producer.id, producer.epoch - 1, "t", 0) is Errors.INVALID_PRODUCER_EPOCH
        assert verify("y", producer.id, producer.epoch, "t", 0) is Errors.INVALID_PRODUCER_ID_MAPPING
        assert verify(None, producer.id, producer.epoch, "t", 0) is Errors.INVALID_PRODUCER_ID_MAPPING
        await asked.end("x", producer, True)
        assert verify("x", producer.id, producer.epoch, "t", 0) is Errors.INVALID_TXN_STATE
        request = await asked.commit_in("x", producer, "g", {T0: 1})
        assert request == 0

    run(verify, in_memory, TOPIC)


def test_offsets_are_refused_if_their_group_was_not_added(in_memory):
    async def commit(asked):
        from seglog.wire.messages import TxnOffsetCommitRequest as request
        producer = await begin(asked)
        answer = await asked(request(
            transactional_id="x", group_id="g", producer_id=producer.id, producer_epoch=producer.epoch,
            generation_id_or_member_epoch=-1, topics=[request.TxnOffsetCommitRequestTopic(name="t", partitions=[
                request.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)])],
        ), 3)
        assert answer.topics[0].partitions[0].error_code == Errors.INVALID_TXN_STATE

    run(commit, in_memory, TOPIC)


def test_a_transaction_that_is_open_for_too_long_is_aborted_and_its_producer_fenced(in_memory):
    clock = ManualClock(NOW)

    async def wait(asked):
        producer = await asked.init("x", timeout_ms=20_000)
        await begin(asked, producer=producer)
        clock.advance(10_000)
        asked.groups.timer.run_due()
        assert asked.topics.log(*T0).last_stable_offset == 0
        for _ in range(2):
            clock.advance(10_001)
            asked.groups.timer.run_due()
        while asked.transactions.open_transactions():
            await asyncio.sleep(0.01)
        assert asked.topics.log(*T0).last_stable_offset == 2
        assert await asked.end("x", producer, True) == Errors.PRODUCER_FENCED
        assert asked.committed(T0) == []

    run(wait, in_memory, TOPIC, clock=clock)


@pytest.mark.parametrize("commits", [True, False], ids=["its producer is back", "its producer is gone"])
def test_a_transaction_whose_time_passed_while_the_server_was_down_waits_for_its_producer_for_one_interval(
    in_memory, commits
):
    clock = ManualClock(NOW)
    producers = []

    async def leave_open(asked):
        producers.append(await asked.init("x", timeout_ms=10_000))
        await begin(asked, producer=producers[0])

    async def look(asked):
        clock.advance(9_000)
        asked.groups.timer.run_due()
        if commits:
            assert await asked.end("x", producers[0], True) == Errors.NONE
        else:
            assert [one.state.label for one in asked.transactions.open_transactions()] == ["Ongoing"]
            clock.advance(1_001)
            asked.groups.timer.run_due()
        while asked.transactions.open_transactions():
            await asyncio.sleep(0.01)
        assert asked.topics.log(*T0).last_stable_offset == 2
        assert len(asked.committed(T0)) == commits

    run(leave_open, in_memory, TOPIC, clock=clock, stop=False)
    clock.advance(120_000)
    run(lambda asked: asyncio.wait_for(look(asked), 10), in_memory, TOPIC, clock=clock)


@pytest.mark.parametrize(("timeout_ms", "error"), [(0, 50), (900_001, 50), (900_000, 0)])
def test_a_timeout_beyond_the_limits_is_refused(in_memory, timeout_ms, error):
    async def init(asked):
        assert (await asked.init("x", timeout_ms=timeout_ms)).error == error

    run(init, in_memory)


def test_a_producer_that_asks_again_for_its_epoch_gets_the_same_one(in_memory):
    async def ask(asked):
        first = await asked.init("x")
        second = await asked.init("x", producer=(first.id, first.epoch))
        assert (second.id, second.epoch) == (first.id, 1)
        again = await asked.init("x", producer=(first.id, first.epoch))
        assert (again.id, again.epoch) == (first.id, 1)
        await asked.init("x")       # another producer
        fenced = await asked.init("x", producer=(second.id, second.epoch))
        assert fenced.error == Errors.PRODUCER_FENCED
        old = await asked.init("x", producer=(second.id, second.epoch), version=3)
        assert old.error == Errors.INVALID_PRODUCER_EPOCH

    run(ask, in_memory)


def test_epochs_that_are_used_up_bring_another_producer_id(in_memory):
    async def use_up(asked):
        first = await asked.init("x")
        transaction = asked.transactions._transactions["x"]
        transaction.producer_epoch = 2**15 - 3
        assert (await asked.init("x")).epoch == 2**15 - 2
        new = await asked.init("x")
        assert (new.epoch, new.id) == (0, first.id + 1)

    run(use_up, in_memory)


def test_producer_ids_are_not_given_out_twice(in_memory):
    async def ask(asked):
        return [(await asked.init(None)).id for _ in range(1001)]

    given = [run(ask, in_memory) for _ in range(3)]
    assert len({*given[0], *given[1], *given[2]}) == 3003
    assert min(given[0]) > 2**40        # no controller comes that far


def test_a_damaged_file_of_producer_ids_gives_no_id_out(in_memory):
    async def ask(asked):
        return await asked.init(None)

    run(ask, in_memory)
    file = in_memory / ".seglog.producer_ids"
    file.write_bytes(file.read_bytes().replace(b"next_block", b"next_clock"))
    assert run(ask, in_memory).error == Errors.UNKNOWN_SERVER_ERROR


def test_an_expired_transactional_id_is_forgotten_for_good(in_memory):
    clock = ManualClock(NOW)

    async def expire(asked):
        await asked.init("x")
        clock.advance(8 * 86_400_000)
        asked.groups.timer.run_due()
        while asked.transactions._transactions:
            await asyncio.sleep(0.01)

    async def look(asked):
        assert asked.transactions._transactions == {}

    run(expire, in_memory, clock=clock)
    run(look, in_memory, clock=clock)


def test_describe_producers_tells_of_an_open_transaction(in_memory):
    async def describe(asked):
        producer = await begin(asked)
        request = DescribeProducersRequest
        answer = await asked(request(topics=[request.TopicRequest(name="t", partition_indexes=[0, 1, 9])]), 0)
        first, second, third = answer.topics[0].partitions
        row, = first.active_producers
        assert (row.producer_id, row.producer_epoch, row.last_sequence, row.current_txn_start_offset) == (
            producer.id, producer.epoch, 0, 0)
        assert second.active_producers == []
        assert third.error_code == Errors.UNKNOWN_TOPIC_OR_PARTITION

    run(describe, in_memory, TOPIC)


# --- transactions of clients that get an epoch with each end (KIP-890) --------------------------------


def next_of(producer, epochs=1):
    return SimpleNamespace(error=0, id=producer.id, epoch=producer.epoch + epochs)


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_gives_the_next_epoch_and_gives_it_again_if_its_answer_was_lost(in_memory, commit):
    async def end(asked):
        first = await asked.init("x")
        assert await asked.write("x", first, T0, b"v", 0) == 0
        assert await asked.write("x", first, T1, b"w", 0) == 0
        assert await asked.commit_in("x", first, "g", {T0: 5}, version=5) == 0
        assert (asked.committed(T0), await asked.fetch("g")) == ([], {})
        second = await asked.end_with_epoch("x", first, commit)
        assert second == next_of(first)
        assert asked.committed(T0) == ([b"v"] if commit else [])
        assert asked.committed(T1) == ([b"w"] if commit else [])
        assert await asked.end_with_epoch("x", first, commit) == second
        assert (await asked.end_with_epoch("x", first, not commit)).error == Errors.INVALID_TXN_STATE
        # What comes late from before the end is no part of the next transaction.
        assert await asked.write("x", first, T0, b"late", 1) == Errors.INVALID_PRODUCER_EPOCH
        with pytest.raises(InvalidProducerEpochError):
            asked.produce(first, T0, b"late", 1)
        assert await asked.commit_in("x", first, "g", {T0: 6}, version=5) == Errors.INVALID_PRODUCER_EPOCH
        return first, second

    async def go_on(asked):
        assert await asked.fetch("g") == ({T0: 5} if commit else {})
        assert await asked.end_with_epoch("x", first, commit) == second      # asked again after the server was killed
        assert await asked.write("x", second, T0, b"next", 0) == 0
        assert (await asked.end_with_epoch("x", first, commit)).error == Errors.PRODUCER_FENCED
        assert await asked.end_with_epoch("x", second, True) == next_of(second)
        assert asked.committed(T0) == ([b"v"] if commit else []) + [b"next"]

    first, second = run(end, in_memory, TOPIC, stop=False)
    run(go_on, in_memory)


def test_an_abort_of_nothing_gives_an_epoch_and_a_commit_of_nothing_is_refused(in_memory):
    async def end(asked):
        first = await asked.init("x")
        assert (await asked.end_with_epoch("x", first, True)).error == Errors.INVALID_TXN_STATE
        second = await asked.end_with_epoch("x", first, False)
        assert second == next_of(first)
        assert await asked.end_with_epoch("x", first, False) == second
        assert (await asked.end_with_epoch("x", second, True)).error == Errors.INVALID_TXN_STATE
        third = await asked.end_with_epoch("x", second, False)
        assert third == next_of(second)
        assert await asked.write("x", third, T0, b"v", 0) == 0
        fourth = await asked.end_with_epoch("x", third, True)
        assert (await asked.end_with_epoch("x", fourth, True)).error == Errors.INVALID_TXN_STATE
        assert await asked.end_with_epoch("x", fourth, False) == next_of(fourth)
        assert asked.committed(T0) == [b"v"]
        for stranger in (next_of(fourth, 5), SimpleNamespace(id=fourth.id + 9, epoch=0)):
            assert (await asked.end_with_epoch("x", stranger, False)).error == (
                Errors.PRODUCER_FENCED if stranger.id == fourth.id else Errors.INVALID_PRODUCER_ID_MAPPING)
        assert (await asked.end_with_epoch("nobody", fourth, True)).error == Errors.INVALID_PRODUCER_ID_MAPPING

    run(end, in_memory, TOPIC)


def test_an_end_of_a_producer_whose_epochs_are_used_up_gives_another_id(in_memory):
    async def use_up(asked):
        first = await asked.init("x")
        asked.transactions._transactions["x"].producer_epoch = first.epoch = 2**15 - 2
        assert await asked.write("x", first, T0, b"v", 0) == 0
        second = await asked.end_with_epoch("x", first, True)
        assert (second.error, second.epoch) == (0, 0)
        assert second.id > first.id
        assert await asked.end_with_epoch("x", first, True) == second
        return first, second

    async def go_on(asked):
        assert await asked.end_with_epoch("x", first, True) == second
        with pytest.raises(InvalidProducerEpochError):
            asked.produce(first, T0, b"late", 1)
        assert await asked.write("x", second, T0, b"next", 0) == 0
        assert (await asked.end_with_epoch("x", first, True)).error == Errors.INVALID_PRODUCER_ID_MAPPING
        assert await asked.end_with_epoch("x", second, True) == next_of(second)
        assert asked.committed(T0) == [b"v", b"next"]

    first, second = run(use_up, in_memory, TOPIC, stop=False)
    run(go_on, in_memory)


@pytest.mark.parametrize("epoch", [0, 2**15 - 2])
def test_another_producer_fences_one_that_gets_epochs(in_memory, epoch):
    async def fence(asked):
        old = await asked.init("x")
        asked.transactions._transactions["x"].producer_epoch = old.epoch = epoch
        assert await asked.write("x", old, T0, b"v", 0) == 0
        assert (await asked.init("x")).error == Errors.CONCURRENT_TRANSACTIONS
        while (new := await asked.init("x")).error:
            await asyncio.sleep(0.01)
        if epoch:
            assert (new.epoch, new.id > old.id) == (1, True)
        else:
            assert new == next_of(old, 2)
        fenced = Errors.INVALID_PRODUCER_ID_MAPPING if epoch else Errors.PRODUCER_FENCED
        for commit in (True, False):
            assert (await asked.end_with_epoch("x", old, commit)).error == fenced
        assert await asked.write("x", old, T0, b"late", 1) == (
            Errors.INVALID_PRODUCER_ID_MAPPING if epoch else Errors.INVALID_PRODUCER_EPOCH)
        with pytest.raises(InvalidProducerEpochError):
            asked.produce(old, T0, b"late", 1)
        assert await asked.write("x", new, T0, b"new", 0) == 0
        assert await asked.end_with_epoch("x", new, True) == next_of(new)
        assert asked.committed(T0) == [b"new"]

    run(fence, in_memory, TOPIC)


def test_a_producer_that_gets_epochs_goes_on_after_its_transaction_was_open_for_too_long(in_memory):
    """It cannot commit, and its abort gives it the epoch after that of the server's abort."""
    clock = ManualClock(NOW)

    async def wait(asked):
        producer = await asked.init("x", timeout_ms=20_000)
        assert await asked.write("x", producer, T0, b"v", 0) == 0
        for _ in range(3):
            clock.advance(10_001)
            asked.groups.timer.run_due()
        while asked.transactions.open_transactions():
            await asyncio.sleep(0.01)
        assert asked.topics.log(*T0).last_stable_offset == 2
        assert await asked.write("x", producer, T0, b"late", 1) == Errors.INVALID_PRODUCER_EPOCH
        assert (await asked.end_with_epoch("x", producer, True)).error == Errors.INVALID_TXN_STATE
        again = await asked.end_with_epoch("x", producer, False)
        assert again == next_of(producer)
        assert await asked.write("x", again, T0, b"w", 0) == 0
        await asked.end_with_epoch("x", again, True)
        assert asked.committed(T0) == [b"w"]

    run(wait, in_memory, TOPIC, clock=clock)


def test_an_abort_that_finds_no_room_for_a_producer_id_is_made_later(in_memory, monkeypatch):
    clock = ManualClock(NOW)

    async def wait(asked):
        producer = await asked.init("x", timeout_ms=10_000)
        asked.transactions._transactions["x"].producer_epoch = producer.epoch = 2**15 - 2
        assert await asked.write("x", producer, T0, b"v", 0) == 0
        with monkeypatch.context() as full:
            def refuse():
                raise StorageError("no space left")
            full.setattr(asked.transactions._producer_ids, "next", refuse)
            for _ in range(3):
                clock.advance(10_001)
                asked.groups.timer.run_due()
            transaction, = asked.transactions.open_transactions()
            assert (transaction.state, transaction.pending) == (TransactionState.ONGOING, None)
            with pytest.raises(StorageError):       # answered with its code by `Requests`
                await asked.end_with_epoch("x", producer, True)
            assert (transaction.state, transaction.pending) == (TransactionState.ONGOING, None)
            assert (await asked.init("x")).error == Errors.KAFKA_STORAGE_ERROR
        clock.advance(10_001)
        asked.groups.timer.run_due()
        while asked.transactions.open_transactions():
            await asyncio.sleep(0.01)
        assert asked.committed(T0) == []

    run(wait, in_memory, TOPIC, clock=clock)


def test_clients_with_and_without_epochs_take_turns_with_one_id(in_memory):
    async def turns(asked):
        producer = await asked.init("x")
        for number in range(6):
            value = b"%d" % number
            if number % 2:
                assert await asked.write("x", producer, T0, value, 0) == 0
                producer = await asked.end_with_epoch("x", producer, True)
                assert producer.error == 0
            else:
                await begin(asked, value=value, producer=producer)
                assert await asked.end("x", producer, True) == 0
                producer = await asked.init("x", producer=(producer.id, producer.epoch))
        assert asked.committed(T0) == [b"%d" % number for number in range(6)]

    run(turns, in_memory, TOPIC)


# --- crashes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("marked", [(), (T0,), (T0, T1)])
@pytest.mark.parametrize("epoch", [None, 0, 2**15 - 2])
def test_a_transaction_that_a_crash_left_prepared_is_ended_at_the_start(
    in_memory, monkeypatch, commit, marked, epoch
):
    """The end was written, and of the markers those in `marked`: what stands in the log is what was answered, or will
    be. `epoch`: of a producer that gets the next one with the end; None for one that gets none."""
    async def prepare(asked):
        if epoch is None:
            producer = await begin(asked)
            await asked.add("x", producer, [T1])
            asked.produce(producer, T1, b"w", 0)
            await asked.commit_in("x", producer, "g", {T0: 5})
        else:
            producer = await asked.init("x")
            asked.transactions._transactions["x"].producer_epoch = producer.epoch = epoch
            assert await asked.write("x", producer, T0, b"v", 0) == 0
            assert await asked.write("x", producer, T1, b"w", 0) == 0
            assert await asked.commit_in("x", producer, "g", {T0: 5}, version=5) == 0
        real = asked.topics.log

        class Dead:
            """Whatever is asked of it, the process died before."""

            def end_transaction(self, *args, **how):
                raise StorageError("killed")

        async def opened(self, *where):
            return real(*where) if where in marked else Dead()

        asked.transactions.logs = type("Logs", (), {
            "opened": opened,
            "durable": lambda self, *args: asked.topics.durable(*args),
            "partition_count": lambda self, name: asked.topics.partition_count(name),
        })()
        after = producer
        if epoch is None:
            assert await asked.end("x", producer, commit) == 0      # late, but it is decided
            for again in (commit, not commit):
                assert await asked.end("x", producer, again) == Errors.CONCURRENT_TRANSACTIONS
            assert await asked.end("x", next_of(producer), commit) == Errors.PRODUCER_FENCED
        else:
            after = await asked.end_with_epoch("x", producer, commit)
            assert after.error == 0
            assert (after.id > producer.id, after.epoch) == ((True, 0) if epoch else (False, 1))
            for asker in (producer, after, next_of(after, 5)):
                for again in (commit, not commit):
                    assert (await asked.end_with_epoch("x", asker, again)).error == Errors.CONCURRENT_TRANSACTIONS
            assert await asked.write("x", after, T0, b"next", 0) == Errors.CONCURRENT_TRANSACTIONS
        # Whoever asks: afterwards the producer may have another id and epoch. (TransactionCoordinator of Kafka 4.1.1)
        for asker in (producer, after, next_of(producer, 5), SimpleNamespace(id=producer.id + 9, epoch=0)):
            assert await asked.add("x", asker, [T0]) == Errors.CONCURRENT_TRANSACTIONS
            known = asker.id, asker.epoch
            assert (await asked.init("x", producer=known)).error == Errors.CONCURRENT_TRANSACTIONS
        assert asked.transactions._transactions["x"].is_prepared
        return producer, after

    async def look(asked):
        assert asked.transactions._transactions["x"].state is (
            TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT)
        assert asked.committed(T0) == ([b"v"] if commit else [])
        assert asked.committed(T1) == ([b"w"] if commit else [])
        assert await asked.fetch("g") == ({T0: 5} if commit else {})
        if epoch is None:
            assert await asked.end("x", producer, commit) == 0
            await begin(asked, producer=producer, value=b"next", sequence=1)
        else:
            assert await asked.end_with_epoch("x", producer, commit) == after
            assert await asked.write("x", after, T0, b"next", 0) == 0
            assert await asked.end_with_epoch("x", after, True) == next_of(after)
            assert asked.committed(T0) == ([b"v"] if commit else []) + [b"next"]

    monkeypatch.setattr("seglog.coordinators.transactions._STOP_WAIT_S", 0)
    producer, after = run(prepare, in_memory, TOPIC)
    run(look, in_memory)


def test_an_open_transaction_is_open_after_a_restart_and_its_producer_goes_on(in_memory):
    async def leave(asked):
        return await begin(asked)

    async def go_on(asked):
        assert asked.committed(T0) == []
        assert await asked.end("x", producer, True) == 0
        assert asked.committed(T0) == [b"v"]

    producer = run(leave, in_memory, TOPIC)
    run(go_on, in_memory)


def test_a_client_that_went_away_leaves_no_step_half_done(in_memory):
    """A handler is cancelled with its connection, at whatever await it is."""
    async def cancel(asked):
        for turns in range(12):
            producer = await asked.init("x")
            while producer.error:
                await asyncio.sleep(0.01)
                producer = await asked.init("x")
            await begin(asked, producer=producer, sequence=0)
            task = asyncio.ensure_future(asked.end("x", producer, True))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for _ in range(200):
            if not asked.transactions.open_transactions():
                break
            await asyncio.sleep(0.01)
        assert not asked.transactions.open_transactions()
        log = asked.topics.log(*T0)
        assert log.last_stable_offset == log.log_end_offset

    run(cancel, in_memory, TOPIC)


# --- strangers ---------------------------------------------------------------------------------------


def test_a_commit_that_asks_to_be_kept_for_ever_is_kept(in_memory):
    """The time of its expiry was larger than its field: the commit failed, and its partition stayed unstable."""
    async def commit(asked):
        request = OffsetCommitRequest
        answer = await asked(request(
            group_id="g", generation_id_or_member_epoch=-1, retention_time_ms=2**63 - 1,
            topics=[request.OffsetCommitRequestTopic(name="t", partitions=[
                request.OffsetCommitRequestPartition(partition_index=0, committed_offset=5)])],
        ), 3)
        assert answer.topics[0].partitions[0].error_code == 0
        assert await asked.fetch("g", require_stable=True) == {T0: 5}

    run(commit, in_memory, TOPIC)


LONG = "\u00e9" * 20_000      # 40 000 bytes: strings of Kafka's records end at 32 767, those of newer requests do not


def test_names_that_have_no_room_in_a_record_are_refused(in_memory):
    async def ask(asked):
        assert await asked.commit(LONG, {T0: 1}) == Errors.INVALID_GROUP_ID
        assert (await asked.init(LONG)).error == Errors.INVALID_REQUEST
        request = JoinGroupRequest
        for how in (
            {"group_id": LONG}, {"group_instance_id": LONG}, {"protocol_type": LONG},
            {"protocols": [request.JoinGroupRequestProtocol(name=LONG)]},
        ):
            answer = await asked(request(**{
                "group_id": "g", "session_timeout_ms": 10_000, "protocol_type": "consumer",
                "protocols": [request.JoinGroupRequestProtocol(name="range")], **how}), 9)
            assert answer.error_code in (Errors.INVALID_GROUP_ID, Errors.INVALID_REQUEST)
        assert asked.groups.groups == {}
        assert asked.transactions._transactions == {}

    run(ask, in_memory, TOPIC)


def test_groups_go_with_their_topic(in_memory):
    """Members waited for ever, and offsets that no log held were fetched until the next start."""
    async def delete(asked):
        await asked.commit("g", {T0: 5})
        joined = await join(asked, "h")
        waiting = asyncio.ensure_future(join(asked, "h"))
        await asyncio.sleep(0)
        assert joined.error_code == 0
        partitions, = await asked.topics.delete_all(["__consumer_offsets"])
        await asked.groups.partitions_deleted([("__consumer_offsets", number) for number in range(partitions)])
        assert (await asyncio.wait_for(waiting, 60)).error_code == Errors.NOT_COORDINATOR
        assert await asked.commit("g", {T0: 6}) == Errors.NOT_COORDINATOR
        await asked.find()
        assert await asked.fetch("g") == {}
        assert await asked.commit("g", {T0: 7}) == 0

    run(delete, in_memory, TOPIC)


def test_many_overdue_transactions_are_aborted_with_a_few_lines_of_log(in_memory, caplog):
    clock = ManualClock(NOW)

    async def leave(asked):
        for number in range(30):
            await begin(asked, f"x{number}")
        clock.advance(3_600_000)
        asked.groups.timer.run_due()
        while asked.transactions.open_transactions():
            await asyncio.sleep(0)

    run(leave, in_memory, TOPIC, clock=clock)
    lines = [record.getMessage() for record in caplog.records if "aborting" in record.getMessage()]
    assert len(lines) == 21
    assert "10 more transactions" in lines[-1]


def test_a_stop_waits_for_the_markers_of_a_transaction(in_memory):
    async def leave(asked):
        producer = await begin(asked)
        ending = asyncio.ensure_future(asked.end("x", producer, True))
        while not asked.transactions._ending:
            await asyncio.sleep(0)
        await asked.transactions.stop()
        assert asked.transactions._transactions["x"].state is TransactionState.COMPLETE_COMMIT
        assert await ending == 0

    run(leave, in_memory, TOPIC)
