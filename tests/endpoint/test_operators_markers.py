"""WriteTxnMarkers: an operator ends a transaction that hangs, as `kafka-transactions.sh abort` does. How each version
answers stands in the conversation."""
import pytest
from confluent_kafka import Consumer, TopicPartition

import seglog
from seglog.wire import messages as m
from seglog.wire.error_codes import Errors
from support.wire_client import WireClient, produce_request


def marker(client, producer_id, where, *, epoch=0, commit=False, coordinator=0):
    of, (topic, partition) = m.WriteTxnMarkersRequest, where
    answer = client.ask(of(markers=[of.WritableTxnMarker(
        producer_id=producer_id, producer_epoch=epoch, transaction_result=commit, coordinator_epoch=coordinator,
        topics=[of.WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])])]), 1)
    return Errors(answer.markers[0].topics[0].partitions[0].error_code)


def read(server):
    consumer = Consumer({
        "bootstrap.servers": server.bootstrap_servers, "group.id": "reader", "enable.partition.eof": True})
    consumer.assign([TopicPartition("orders", 0, 0)])
    values = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        values.append(message.value())
    consumer.close()
    return values


@pytest.mark.parametrize("commit", [False, True])
def test_a_transaction_that_no_coordinator_knows_is_ended_and_stays_so(in_memory, commit):
    path = in_memory / "data"
    with seglog.serve(path, topics={"orders": 1}) as server:
        log = server.log("orders", 0)
        log.append_batch(seglog.build_batch(
            [(b"k", b"hangs")], producer_id=7, producer_epoch=3, base_sequence=0, transactional=True))
        log.append(b"behind it")
        assert read(server) == []
        with WireClient(server) as client:
            assert marker(client, 7, ("orders", 0), epoch=2) == Errors.INVALID_PRODUCER_EPOCH
            assert read(server) == []
            assert marker(client, 7, ("orders", 0), epoch=3, commit=commit, coordinator=5) == 0
            assert marker(client, 7, ("orders", 0), epoch=3, coordinator=4) == Errors.TRANSACTION_COORDINATOR_FENCED
            assert marker(client, 7, ("__cluster_metadata", 0)) == Errors.UNKNOWN_TOPIC_OR_PARTITION
        expected = [b"hangs", b"behind it"] if commit else [b"behind it"]
        assert log.durable_offset == log.log_end_offset == 3
        assert read(server) == expected
    with seglog.serve(path) as server:
        assert read(server) == expected


@pytest.mark.parametrize("commit", [False, True])
def test_offsets_of_a_transaction_that_hangs_are_committed_or_dropped(in_memory, commit):
    with seglog.serve(in_memory, topics={"orders": 1}, config={"offsets.topic.num.partitions": 1}) as server, \
            WireClient(server) as client:
        for kind, key in ((0, "readers"), (1, "writer")):
            while client.ask(m.FindCoordinatorRequest(key=key, key_type=kind), 3).error_code:
                pass
        made = client.ask(m.InitProducerIdRequest(transactional_id="writer", transaction_timeout_ms=60_000), 4)
        T, F = m.TxnOffsetCommitRequest, m.OffsetFetchRequest
        who = {"transactional_id": "writer", "producer_id": made.producer_id, "producer_epoch": made.producer_epoch,
               "group_id": "readers"}
        assert not client.ask(m.AddOffsetsToTxnRequest(**who), 3).error_code
        assert not client.ask(T(**who, topics=[T.TxnOffsetCommitRequestTopic(name="orders", partitions=[
            T.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=5)])]), 3).topics[0].partitions[
                0].error_code

        def offset():
            answer = client.ask(F(require_stable=True, groups=[F.OffsetFetchRequestGroup(group_id="readers", topics=[
                F.OffsetFetchRequestTopics(name="orders", partition_indexes=[0])])]), 8)
            row = answer.groups[0].topics[0].partitions[0]
            return row.error_code or row.committed_offset

        assert offset() == Errors.UNSTABLE_OFFSET_COMMIT
        assert marker(client, made.producer_id, ("__consumer_offsets", 0), epoch=made.producer_epoch,
                      commit=commit) == 0
        assert offset() == (5 if commit else -1)
        # The producer's own end comes later, and finds nothing to do.
        assert not client.ask(m.EndTxnRequest(
            transactional_id="writer", producer_id=made.producer_id, producer_epoch=made.producer_epoch,
            committed=True), 3).error_code
        assert offset() == (5 if commit else -1)
        assert not client.ask(produce_request("orders", 0, seglog.build_batch([(b"k", b"v")])), 9).responses[
            0].partition_responses[0].error_code
