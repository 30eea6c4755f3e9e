"""The two coordinators over a log dir, asked without a socket."""
import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import seglog
from seglog.clock import SystemClock
from seglog.coordinators.coordinator_config import CoordinatorConfig
from seglog.coordinators.groups import GroupCoordinator
from seglog.coordinators.transactions import TransactionCoordinator
from seglog.endpoint.consumer_groups import ConsumerGroups
from seglog.endpoint.group_administration import GroupAdministration
from seglog.endpoint.group_commits import GroupCommits
from seglog.endpoint.group_membership import GroupMembership
from seglog.endpoint.request_context import RequestContext
from seglog.endpoint.topics import Topics
from seglog.endpoint.transaction_requests import TransactionRequests
from seglog.fs.files import OsFileSystem
from seglog.loop.durability import Durability
from seglog.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    ApiKey,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)

SMALL = {
    "offsets.topic.num.partitions": 2, "transaction.state.log.num.partitions": 2,
    "group.initial.rebalance.delay.ms": 0,
}


class Asked:
    """`await asked(request)` gives the response; the other methods ask what tests ask often."""

    def __init__(self, groups, transactions, topics):
        self.groups, self.transactions, self.topics = groups, transactions, topics
        self._handlers = {
            **GroupMembership(groups).HANDLERS, **GroupCommits(groups, topics).HANDLERS,
            **GroupAdministration(groups).HANDLERS, **ConsumerGroups(groups, topics).HANDLERS,
            **TransactionRequests(transactions, lambda log, producer_id: True).HANDLERS,
        }

    async def __call__(self, request, version=None, client_id="client"):
        version = type(request).MAX_VERSION if version is None else version
        context = RequestContext(version, client_id, "/127.0.0.1", "127.0.0.1", 9092)
        return await self._handlers[ApiKey(request.API_KEY)](request, context)

    async def find(self):
        for key_type in (0, 1):
            await self(FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x"]), 4)

    async def commit(self, group, offsets, *, generation=-1, member="", version=9):
        """The error of the first row."""
        request = OffsetCommitRequest
        answer = await self(request(
            group_id=group, generation_id_or_member_epoch=generation, member_id=member,
            topics=[request.OffsetCommitRequestTopic(name=topic, partitions=[
                request.OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
            ]) for (topic, partition), offset in offsets.items()],
        ), version)
        return answer.topics[0].partitions[0].error_code

    async def fetch(self, group, *, require_stable=False):
        """{(topic, partition): offset}; an error instead of an offset where there is one."""
        request = OffsetFetchRequest
        answer = await self(request(
            groups=[request.OffsetFetchRequestGroup(group_id=group, topics=None)], require_stable=require_stable
        ), 9)
        return {
            (topic.name, row.partition_index): row.error_code or row.committed_offset
            for topic in answer.groups[0].topics for row in topic.partitions
        }

    async def init(self, transactional_id, timeout_ms=60_000, producer=(-1, -1), version=5):
        answer = await self(InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, producer_id=producer[0],
            producer_epoch=producer[1],
        ), version)
        return SimpleNamespace(error=answer.error_code, id=answer.producer_id, epoch=answer.producer_epoch)

    async def add(self, transactional_id, producer, partitions):
        request = AddPartitionsToTxnRequest
        answer = await self(request(
            v3_and_below_transactional_id=transactional_id, v3_and_below_producer_id=producer.id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[
                request.AddPartitionsToTxnTopic(name=topic, partitions=[partition]) for topic, partition in partitions
            ],
        ), 3)
        return answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code

    async def commit_in(self, transactional_id, producer, group, offsets, version=3):
        """AddOffsetsToTxn before version 5, TxnOffsetCommit."""
        if version < 5:
            added = await self(AddOffsetsToTxnRequest(
                transactional_id=transactional_id, producer_id=producer.id, producer_epoch=producer.epoch,
                group_id=group,
            ), 3)
            if added.error_code:
                return added.error_code
        request = TxnOffsetCommitRequest
        answer = await self(request(
            transactional_id=transactional_id, group_id=group, producer_id=producer.id, producer_epoch=producer.epoch,
            generation_id_or_member_epoch=-1,
            topics=[request.TxnOffsetCommitRequestTopic(name=topic, partitions=[
                request.TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
            ]) for (topic, partition), offset in offsets.items()],
        ), version)
        return answer.topics[0].partitions[0].error_code

    async def write(self, transactional_id, producer, where, value, sequence):
        """What Produce 12 does. Returns the error of adding the partition, or 0 after the append."""
        error = await self.transactions.join(transactional_id, producer.id, producer.epoch, {where})
        if not error:
            self.produce(producer, where, value, sequence)
        return error

    async def end_with_epoch(self, transactional_id, producer, commit):
        """EndTxn 5: the producer's next id and epoch."""
        answer = await self(EndTxnRequest(
            transactional_id=transactional_id, producer_id=producer.id, producer_epoch=producer.epoch, committed=commit
        ), 5)
        return SimpleNamespace(error=answer.error_code, id=answer.producer_id, epoch=answer.producer_epoch)

    async def end(self, transactional_id, producer, commit):
        answer = await self(EndTxnRequest(
            transactional_id=transactional_id, producer_id=producer.id, producer_epoch=producer.epoch, committed=commit
        ), 3)
        return answer.error_code

    def produce(self, producer, where, value, sequence):
        log = self.topics.log(*where)
        log.append_batch(seglog.build_batch(
            [(None, value)], producer_id=producer.id, producer_epoch=producer.epoch, base_sequence=sequence,
            transactional=True,
        ))

    def committed(self, where):
        return [bytes(r.value) for r in self.topics.log(*where).read(isolation="read_committed")]


@asynccontextmanager
async def coordinators(path: Path, topics=None, *, clock=None, fsync="batch", stop=True, **config):
    """Over a log dir; `stop=False` leaves it as a killed process would, but for its locks."""
    clock = clock or SystemClock()
    fs = OsFileSystem()
    with seglog.open_dir(path, fsync=fsync) as log_dir:
        served = Topics(log_dir, fs, Durability(asyncio.get_running_loop(), fsync), {})
        settings = CoordinatorConfig.of(SMALL | {key.replace("_", "."): value for key, value in config.items()})
        groups = GroupCoordinator(served, settings, clock)
        transactions = TransactionCoordinator(served, groups, settings, clock, path, fs)
        try:
            for name, partitions in (topics or {}).items():
                if served.topic(name) is None:
                    await served.create(name, partitions, {})
            await groups.start()
            await transactions.start()
            yield Asked(groups, transactions, served)
            if stop:
                await transactions.stop()
                await groups.stop()
        finally:
            served.close()
