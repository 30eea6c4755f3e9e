"""What a real broker wrote to __consumer_offsets and __transaction_state: read, and written again as it is."""
import asyncio
import json
import shutil
from dataclasses import replace

import pytest

import seglog
from seglog.coordinators.group import Group
from seglog.coordinators.offsets_topic import group_key, group_value, offset_key, offset_value, read_group, read_offset
from seglog.coordinators.transaction import Transaction, TransactionState, TransactionStep
from seglog.coordinators.transaction_topic import read_transaction, transaction_key, transaction_value
from seglog.wire.codec import decode_versioned
from seglog.wire.error_codes import Errors
from seglog.wire.internal_records import decode_key
from seglog.wire.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from seglog.wire.stored_records import TransactionLogValue
from support.coordinators import coordinators
from support.internal_topics import kraft

PARTITIONS = ("__consumer_offsets-0", "__transaction_state-7", "__transaction_state-10", "__transaction_state-26")


@pytest.fixture(scope="module")
def golden(golden_groups):
    return golden_groups, json.loads((golden_groups / "expected.json").read_text())["groups"]


def records(directory):
    """(key, value) of each record that is no marker."""
    with seglog.open_partition(directory) as partition:
        return [
            (bytes(record.key), None if record.value is None else bytes(record.value))
            for batch in partition.batches() if not batch.is_control for record in batch
        ]


def written_again(name, key, value):
    """The same record, by way of what we make of it."""
    if name.startswith("__transaction_state"):
        transactional_id = decode_key(TRANSACTIONS_TOPIC, key).message.transactional_id
        known = read_transaction(transactional_id, value)
        return transaction_key(transactional_id), transaction_value(TransactionStep(
            known.state, known.producer_id, known.producer_epoch, -1, -1, known.timeout_ms,
            known.partitions, known.start_ms, known.update_ms,
        ))
    if key[:2] == b"\0\2":
        group = Group(decode_key(OFFSETS_TOPIC, key).message.group)
        read_group(group, value)
        assignments = {member.member_id: member.assignment for member in group.members.values()}
        return group_key(group.group_id), group_value(group, assignments)
    where = decode_key(OFFSETS_TOPIC, key).message
    again = None if value is None else offset_value(read_offset(value))
    return offset_key(where.group, where.topic, where.partition), again


@pytest.mark.parametrize("name", PARTITIONS)
def test_each_record_of_a_broker_is_written_again_byte_for_byte(golden, name):
    found = records(golden[0] / name)
    assert len(found) >= 3
    assert [written_again(name, key, value) for key, value in found] == found


def said(value):
    """The fields of a TransactionLogValue, its topics in the order of their names."""
    found = decode_versioned(TransactionLogValue, value)[1]
    found.transaction_partitions = sorted(
        (row.topic, row.partition_ids) for row in found.transaction_partitions or ())
    return {name: getattr(found, name) for name in found.__slots__}


@pytest.mark.parametrize("partition", [0, 1])
def test_each_step_of_a_producer_that_gets_epochs_is_written_as_the_newest_broker_writes_it(partition):
    """From each record of a 4.4.0 broker to its next, by our steps. A broker's topics have no order (those of a
    HashMap), so records with several are compared by what they say."""
    transaction, steps = None, []
    for key, value in records(kraft("4.4.0") / f"__transaction_state-{partition}"):
        transactional_id = decode_key(TRANSACTIONS_TOPIC, key).message.transactional_id
        known = read_transaction(transactional_id, value)
        if transaction is None:
            transaction = Transaction(transactional_id, known.producer_id, known.timeout_ms, known.update_ms)
            step = transaction.prepare_epoch(known.timeout_ms, None, known.update_ms)
        elif known.state is TransactionState.ONGOING:
            step = transaction.prepare_partitions(known.partitions, known.update_ms, 2)
        elif known.is_prepared:
            step = transaction.prepare_end(known.state is TransactionState.PREPARE_COMMIT, known.update_ms, 2)
        else:
            step = transaction.prepare_completion(known.update_ms)
        transaction.complete(step)
        ours = transaction_value(step)
        if known.state is TransactionState.EMPTY:
            # No epoch was given yet: written so that brokers before 3.5 can read it, too.
            assert ours[:2] == b"\0\0"
            assert said(ours) == said(value) | {"previous_producer_id": -1}
        elif len(known.partitions) < 2:
            assert ours == value
        else:
            assert said(ours) == said(value)
            assert (len(ours), ours[:2]) == (len(value), value[:2])
        steps.append(known.state)
    assert len(steps) == (3, 9)[partition]


def test_an_offset_that_says_when_it_expires_is_written_in_the_version_that_has_room_for_it():
    """No client since 2.1 sends one, so the golden data has none: OffsetCommitValue 1, as Kafka chooses it."""
    commit = read_offset(offset_value(replace(read_offset(_v3()), leader_epoch=5, expire_timestamp=77)))
    assert (commit.expire_timestamp, commit.leader_epoch) == (77, -1)


def _v3():
    return bytes.fromhex("0003" "0000000000000007" "ffffffff" "0000" "0000000000000001")


def test_a_coordinator_that_takes_a_brokers_directory_over_knows_its_groups(golden, in_memory):
    path, expected = golden
    for name in PARTITIONS:
        shutil.copytree(path / name, in_memory / "data" / name)
    for number in range(50):        # empty, so that they are not among the golden data
        (in_memory / f"data/__transaction_state-{number}").mkdir(exist_ok=True)

    async def run():
        topics = {"topic": 2, "missing": 1}
        async with coordinators(in_memory / "data", topics) as asked:
            known = {
                group.group_id: {
                    "state": group.state, "members": [],
                    "offsets": {f"{topic}-{partition}": offset for (topic, partition), offset in group.offsets.items()},
                }
                for group in asked.groups.overview()
            }
            for group_id, group in asked.groups.groups.items():
                known[group_id]["members"] = [m.group_instance_id or "" for m in group.members.values()]
            # The open transaction's offsets are there, and count when it ends.
            assert await asked.fetch("open", require_stable=True) == {}
            hanging = asked.transactions._transactions["hanging"]
            assert hanging.state is TransactionState.ONGOING
            producer = await asked.init("hanging")
            assert producer.error == Errors.CONCURRENT_TRANSACTIONS     # it was aborted first
            while (producer := await asked.init("hanging")).error:
                await asyncio.sleep(0.01)
            assert (producer.id, producer.epoch) == (3, 2)
            assert asked.groups.groups["open"].offsets.is_empty
            writer = await asked.init("writer")
            assert (writer.error, writer.id, writer.epoch) == (0, 1, 1)
            return known

    known = asyncio.run(run())
    for group in expected.values():
        group["offsets"] = {where: offset for where, (offset, _) in group["offsets"].items()}
    assert known == expected
