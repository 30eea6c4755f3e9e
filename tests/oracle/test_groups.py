"""A log dir with groups and transactions goes from a real broker to us, back to the broker, and to us again."""
import asyncio
import time

import pytest

from seglog.coordinators.consumer_group import ConsumerGroup
from seglog.coordinators.transaction import TransactionState
from seglog.wire.error_codes import Errors
from seglog.wire.messages import ConsumerGroupHeartbeatRequest
from support.coordinators import coordinators
from support.kafka_oracle import VERSIONS

pytestmark = pytest.mark.oracle

T0, T1 = ("topic", 0), ("topic", 1)


def offsets_of(groups):
    return {name: {where: row[0] for where, row in group["offsets"].items()} for name, group in groups.items()}


def loaded(broker, names):
    """The groups of a broker that was started: it loads them while clients may ask already."""
    for _ in range(100):
        groups = broker.groups()
        if set(names) <= set(groups):
            break
        time.sleep(0.2)
    return groups


def ask(path, what):
    async def whole():
        async with coordinators(path) as asked:
            return await what(asked)
    return asyncio.run(whole())


async def begun(asked, transactional_id):
    """A producer of the id, once what an earlier one left open is aborted."""
    while (producer := await asked.init(transactional_id)).error == Errors.CONCURRENT_TRANSACTIONS:
        await asyncio.sleep(0.01)
    assert producer.error == 0
    return producer


async def all_offsets(asked):
    return {
        group.group_id: {f"{topic}-{partition}": offset for (topic, partition), offset in group.offsets.items()}
        for group in asked.groups.overview()
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_groups_and_transactions_go_from_a_broker_to_us_and_back(kafka_oracle, tmp_path, version):
    with kafka_oracle(version).serving(tmp_path) as broker:
        broker.start()
        broker.create("topic", {}, partitions=2)
        broker.produce("topic-0", 0, 12, 1_700_000_000_000)
        for command in (
            "consume-in readers topic 6", "consume-in statics topic 6 instance-1", "commit plain topic-0 5 said",
            "commit-in writer simple topic-0 3 commit", "commit-in hanging open topic-1 4 open",
        ):
            broker.of_groups(command)
        theirs = broker.groups()
        broker.stop()

        async def first(asked):
            known = await all_offsets(asked)
            static, = asked.groups.groups["statics"].members.values()
            assert static.group_instance_id == "instance-1"
            assert asked.transactions._transactions["hanging"].state is TransactionState.ONGOING
            assert await asked.commit("plain", {T0: 7}) == 0
            assert await asked.commit("ours", {T0: 1, T1: 2}) == 0
            writer = await begun(asked, "writer")
            assert await asked.add("writer", writer, [T0]) == 0
            asked.produce(writer, T0, b"by us", 0)
            assert await asked.commit_in("writer", writer, "simple", {T0: 9}) == 0
            assert await asked.end("writer", writer, True) == 0
            aborted = await begun(asked, "hanging")
            assert await asked.add("hanging", aborted, [T1]) == 0
            asked.produce(aborted, T1, b"open again", 0)
            assert await asked.commit_in("hanging", aborted, "open", {T1: 77}) == 0
            # Left open: it is the broker's to end.
            return known

        assert ask(broker.log_dir, first) == offsets_of(theirs)

        broker.start()
        back = loaded(broker, offsets_of(theirs))
        assert offsets_of(back) == offsets_of(theirs) | {
            "plain": {"topic-0": 7}, "ours": {"topic-0": 1, "topic-1": 2}, "simple": {"topic-0": 9}, "open": {},
        }
        assert back["statics"]["members"] == ["instance-1"]
        broker.of_groups("commit-in writer simple topic-0 11 commit")
        broker.of_groups("commit-in hanging open topic-1 13 commit")
        broker.of_groups("consume-in readers topic 1")
        records = broker.consume("topic-1", "read_committed").records
        assert len(records) == 1        # what we left open, the broker aborted, and committed its own
        ends = broker.groups()
        broker.stop()

        async def second(asked):
            assert asked.committed(T1) == [b"in a transaction"]
            return await all_offsets(asked)

        assert ask(broker.log_dir, second) == offsets_of(ends)
        assert offsets_of(ends)["open"] == {"topic-1": 13}


@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= "4"])
def test_a_group_of_the_new_protocol_goes_from_a_broker_to_us_and_back(kafka_oracle, tmp_path, version):
    with kafka_oracle(version).serving(tmp_path) as broker:
        broker.start()
        broker.create("topic", {}, partitions=2)
        broker.produce("topic-0", 0, 12, 1_700_000_000_000)
        broker.of_groups("join joined topic 6")
        theirs = broker.groups()
        broker.stop()

        async def first(asked):
            group = asked.groups.get("joined")
            assert isinstance(group, ConsumerGroup)
            epoch, beat = group.epoch, ConsumerGroupHeartbeatRequest
            known = await all_offsets(asked)
            for old in list(group.members):
                assert not (await asked(beat(group_id="joined", member_id=old, member_epoch=-1))).error_code
            answer = await asked(beat(
                group_id="joined", member_id="ours", instance_id="of ours", member_epoch=0, rebalance_timeout_ms=60_000,
                subscribed_topic_names=["topic"], topic_partitions=[]))
            assert not answer.error_code
            assert answer.member_epoch > epoch
            assert [sorted(row.partitions) for row in answer.assignment.topic_partitions] == [[0, 1]]
            assert await asked.commit("joined", {T1: 4}, generation=answer.member_epoch, member="ours") == 0
            for epoch in (0, -1):       # a group of ours that is empty again
                answer = await asked(beat(
                    group_id="left", member_id="ours", member_epoch=epoch, rebalance_timeout_ms=60_000,
                    subscribed_topic_names=["topic"], topic_partitions=[]))
                assert not answer.error_code
            return known

        assert ask(broker.log_dir, first)["joined"] == offsets_of(theirs)["joined"]

        broker.start()
        back = loaded(broker, ["joined"])
        assert back["joined"]["offsets"]["topic-1"][0] == 4
        assert "of ours" in back["joined"]["members"]      # the broker's own client may be back, too
        broker.of_groups("join left topic 1")
        ends = broker.groups()
        broker.stop()

        async def second(asked):
            for name in ("joined", "left"):
                assert isinstance(asked.groups.get(name), ConsumerGroup)
            return await all_offsets(asked)

        known = ask(broker.log_dir, second)
        assert {name: known[name] for name in ("joined", "left")} == {
            name: offsets_of(ends)[name] for name in ("joined", "left")}
