"""Producers that commit records and offsets in one transaction while their server is killed and started again."""
import random
import time

import seglog
from seglog.wire.error_codes import Errors
from seglog.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)
from support.server_load import ServerLoad
from support.wire_client import WireClient, produce_request

PARTITIONS = 2


class Refused(Exception):
    pass


class TransactionalLoad(ServerLoad):
    """Moves a counter on: record `n` goes into every partition, and n + 1 is committed as the offset of its group.

    Its topic is "orders", of two partitions. After a fault it begins again at the committed offset, as a program does
    that reads, changes and writes. What it asks again is what clients ask again: a coordinator that is being loaded,
    and CONCURRENT_TRANSACTIONS, while markers of the transaction before are being written (TransactionManager of
    Kafka's client: InitProducerIdHandler, AddPartitionsToTxnHandler).
    `acknowledged`: transactions whose commit was answered. `gets_epochs`: as a client of transaction.version 2, which
    adds no partitions before it writes, and gets an epoch with each EndTxn (KIP-890).
    """

    def __init__(self, server, number, *, gets_epochs=False):
        super().__init__(server, number)
        self.gets_epochs = gets_epochs
        self.name = f"load-{number}"
        self.rng = random.Random(number)

    def run(self):
        while not self.stopped.is_set():
            try:
                with WireClient(self.server) as client:
                    self.begin(client)
                    while not self.stopped.is_set():
                        self.transaction(client)
            except OSError:
                time.sleep(0.005)
            except Refused as error:
                self.faults.append(str(error))
                return

    def begin(self, client):
        for key_type in (0, 1):
            client.ask(FindCoordinatorRequest(key=self.name, key_type=key_type), 1)
        while True:
            answer = client.ask(InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=60_000), 4)
            if answer.error_code not in (Errors.CONCURRENT_TRANSACTIONS, Errors.COORDINATOR_LOAD_IN_PROGRESS):
                break
            time.sleep(0.005)
        self.check("InitProducerId", answer.error_code)
        self.producer = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}
        self.sequence = 0
        self.next = self.committed(client)
        if self.next < self.acknowledged:
            raise Refused(f"{self.acknowledged} were committed, and {self.next} are there")

    def committed(self, client):
        request = OffsetFetchRequest
        while True:
            answer = client.ask(request(group_id=self.name, require_stable=True, topics=[
                request.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])]), 7)
            assert answer.error_code in (Errors.NONE, Errors.COORDINATOR_LOAD_IN_PROGRESS)
            row = None if answer.error_code else answer.topics[0].partitions[0]
            if row is not None and row.error_code != Errors.UNSTABLE_OFFSET_COMMIT:
                return max(row.committed_offset, 0)
            time.sleep(0.005)

    def transaction(self, client):
        if self.gets_epochs:
            self.transaction_with_epoch(client)
        else:
            self.transaction_of_steps(client)

    def transaction_with_epoch(self, client):
        for partition in range(PARTITIONS):
            batch = seglog.build_batch(
                [(b"%d" % self.number, b"%d" % self.next)], transactional=True, base_sequence=0, **self.producer)
            error = Errors.CONCURRENT_TRANSACTIONS
            while error == Errors.CONCURRENT_TRANSACTIONS:
                answer = client.ask(produce_request("orders", partition, batch, transactional_id=self.name), 12)
                error = answer.responses[0].partition_responses[0].error_code
            self.check("Produce", error)
        self.commit_offset(client, 5)
        commit = self.rng.random() < 0.8
        answer = client.ask(EndTxnRequest(
            transactional_id=self.name, **self.producer, committed=commit), 5)
        self.check("EndTxn", answer.error_code)
        if answer.producer_epoch != self.producer["producer_epoch"] + 1:
            raise Refused(f"epoch {answer.producer_epoch} came after {self.producer}")
        self.producer = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}
        self.count(commit)

    def transaction_of_steps(self, client):
        whose = {"transactional_id": self.name, **self.producer}
        request = AddPartitionsToTxnRequest
        errors = {Errors.CONCURRENT_TRANSACTIONS}
        while Errors.CONCURRENT_TRANSACTIONS in errors:     # EndTxn is answered after half a second at the latest
            answer = client.ask(request(
                **{f"v3_and_below_{key}": value for key, value in whose.items()}, v3_and_below_topics=[
                    request.AddPartitionsToTxnTopic(name="orders", partitions=list(range(PARTITIONS)))]), 3)
            rows = answer.results_by_topic_v3_and_below[0].results_by_partition
            errors = {row.partition_error_code for row in rows}
        for error in errors:
            self.check("AddPartitionsToTxn", error)
        for partition in range(PARTITIONS):
            batch = seglog.build_batch(
                [(b"%d" % self.number, b"%d" % self.next)], transactional=True, base_sequence=self.sequence,
                **self.producer)
            answer = client.ask(produce_request("orders", partition, batch, transactional_id=self.name), 9)
            self.check("Produce", answer.responses[0].partition_responses[0].error_code)
        self.sequence += 1
        answer = client.ask(AddOffsetsToTxnRequest(**whose, group_id=self.name), 3)
        self.check("AddOffsetsToTxn", answer.error_code)
        self.commit_offset(client, 3)
        commit = self.rng.random() < 0.8
        self.check("EndTxn", client.ask(EndTxnRequest(**whose, committed=commit), 3).error_code)
        self.count(commit)

    def commit_offset(self, client, version):
        request = TxnOffsetCommitRequest
        answer = client.ask(request(
            transactional_id=self.name, **self.producer, group_id=self.name, generation_id_or_member_epoch=-1, topics=[
                request.TxnOffsetCommitRequestTopic(name="orders", partitions=[
                    request.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=self.next + 1)])]),
            version)
        self.check("TxnOffsetCommit", answer.topics[0].partitions[0].error_code)

    def count(self, commit):
        if commit:
            self.next += 1
            self.acknowledged = self.next

    @staticmethod
    def check(what, error):
        if error:
            raise Refused(f"{what}: {Errors(error).name}")
