"""Producers' requests: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, DescribeProducers; and what an
operator asks about transactions: DescribeTransactions, ListTransactions, WriteTxnMarkers."""
from collections.abc import Callable

from seglog.coordinators.group_offsets import TopicPartition
from seglog.coordinators.name_pattern import InvalidPatternError, name_pattern
from seglog.coordinators.pending_answer import PendingAnswer
from seglog.coordinators.refusals import error_of
from seglog.coordinators.transaction import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    WITH_EPOCHS,
    WITHOUT_EPOCHS,
    TransactionState,
)
from seglog.coordinators.transactions import OperatorsMarker, TransactionCoordinator
from seglog.endpoint.request_context import Handler, RequestContext
from seglog.endpoint.topics import INTERNAL_TOPICS
from seglog.errors import SeglogError
from seglog.log.log import Log
from seglog.wire.error_codes import Errors
from seglog.wire.internal_topics import OFFSETS_TOPIC
from seglog.wire.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    ApiKey,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

# The first version of each request that knows PRODUCER_FENCED; older ones get INVALID_PRODUCER_EPOCH (KIP-588).
_FENCED_SINCE = {ApiKey.INIT_PRODUCER_ID: 4, ApiKey.ADD_PARTITIONS_TO_TXN: 2, ApiKey.ADD_OFFSETS_TO_TXN: 2,
                 ApiKey.END_TXN: 2}
# The first version of EndTxn that gives the producer its next epoch (KIP-890).
_END_WITH_EPOCH = 5


class TransactionRequests:
    """Translates these requests for the coordinator, and its results into answers."""

    def __init__(self, coordinator: TransactionCoordinator, may_remember: Callable[[Log, int], bool]) -> None:
        """`may_remember`: whether a log may remember this producer."""
        self._coordinator = coordinator
        self._may_remember = may_remember
        self.HANDLERS: dict[ApiKey, Handler] = {
            ApiKey.INIT_PRODUCER_ID: self.init_producer_id,
            ApiKey.ADD_PARTITIONS_TO_TXN: self.add_partitions_to_txn,
            ApiKey.ADD_OFFSETS_TO_TXN: self.add_offsets_to_txn,
            ApiKey.END_TXN: self.end_txn,
            ApiKey.DESCRIBE_PRODUCERS: self.describe_producers,
            ApiKey.DESCRIBE_TRANSACTIONS: self.describe_transactions,
            ApiKey.LIST_TRANSACTIONS: self.list_transactions,
            ApiKey.WRITE_TXN_MARKERS: self.write_txn_markers,
        }

    async def init_producer_id(self, request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse:
        error, producer_id, epoch = await self._init(request)
        return InitProducerIdResponse(
            error_code=_told(error, ApiKey.INIT_PRODUCER_ID, context), producer_id=producer_id, producer_epoch=epoch
        )

    async def _init(self, request: InitProducerIdRequest) -> tuple[Errors, int, int]:
        coordinator, transactional_id = self._coordinator, request.transactional_id
        try:
            if transactional_id is None:
                return Errors.NONE, coordinator.new_producer_id(), 0
            is_known = request.producer_id != NO_PRODUCER_ID
            error = coordinator.check(transactional_id)
            if error is Errors.NONE and is_known is not (request.producer_epoch != NO_EPOCH):
                error = Errors.INVALID_REQUEST      # one without the other
            if error is not Errors.NONE:
                return error, NO_PRODUCER_ID, NO_EPOCH
            expected = (request.producer_id, request.producer_epoch) if is_known else None
            answer: PendingAnswer[tuple[Errors, int, int]] = PendingAnswer()
            coordinator.init_producer(
                transactional_id, request.transaction_timeout_ms, expected,
                lambda error, producer_id, epoch: answer.give((error, producer_id, epoch)),
            )
            return await answer
        except SeglogError as error:
            return error_of(error), NO_PRODUCER_ID, NO_EPOCH

    async def add_partitions_to_txn(
        self, request: AddPartitionsToTxnRequest, context: RequestContext
    ) -> AddPartitionsToTxnResponse:
        if context.version < 4:
            rows = await self._add(
                request.v3_and_below_transactional_id, request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch, False, request.v3_and_below_topics, context,
            )
            return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=rows)
        return AddPartitionsToTxnResponse(results_by_transaction=[
            AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                transactional_id=one.transactional_id,
                topic_results=await self._add(
                    one.transactional_id, one.producer_id, one.producer_epoch, one.verify_only, one.topics, context
                ),
            )
            for one in request.transactions
        ])

    async def _add(
        self, transactional_id: str, producer_id: int, producer_epoch: int, verify_only: bool,
        topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic], context: RequestContext,
    ) -> list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult]:
        coordinator = self._coordinator
        wanted = [(topic.name, partition) for topic in topics for partition in topic.partitions]
        errors = await context.work.made(lambda: {
            where: Errors.NONE if 0 <= where[1] < coordinator.logs.partition_count(where[0])
            else Errors.UNKNOWN_TOPIC_OR_PARTITION
            for where in wanted
        })
        if not verify_only:     # only the coordinator adds its own topic: its markers commit offsets
            errors.update(
                (where, Errors.TOPIC_AUTHORIZATION_FAILED) for where in wanted if where[0] in INTERNAL_TOPICS)
        error = coordinator.check(transactional_id)
        if error is Errors.NONE and any(errors.values()):
            # All or nothing.
            errors = {where: found or Errors.OPERATION_NOT_ATTEMPTED for where, found in errors.items()}
        elif error is Errors.NONE and verify_only:
            found = {}
            for where in wanted:
                if context.work.is_heavy:
                    await context.work.pause()
                found[where] = coordinator.verify(transactional_id, producer_id, producer_epoch, *where)
            # A client that sends this request knows the error that tells it to abort.
            errors = {
                where: Errors.TRANSACTION_ABORTABLE if error is Errors.INVALID_TXN_STATE else error
                for where, error in found.items()
            }
        else:
            if error is Errors.NONE and wanted:
                error = await _answered(lambda done: coordinator.add_partitions(
                    transactional_id, producer_id, producer_epoch, set(wanted), done
                ))
            errors = dict.fromkeys(wanted, _told(error, ApiKey.ADD_PARTITIONS_TO_TXN, context))
        return await context.work.made(lambda: [
            AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=[
                AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                    partition_index=partition, partition_error_code=errors[topic.name, partition]
                )
                for partition in topic.partitions
            ])
            for topic in topics
        ])

    async def add_offsets_to_txn(
        self, request: AddOffsetsToTxnRequest, context: RequestContext
    ) -> AddOffsetsToTxnResponse:
        coordinator = self._coordinator
        error = coordinator.check(request.transactional_id)
        if error is Errors.NONE:
            offsets = coordinator.groups.topic
            await offsets.ensure(request.group_id)
            where: TopicPartition = OFFSETS_TOPIC, offsets.partition_for(request.group_id)
            error = await _answered(lambda done: coordinator.add_partitions(
                request.transactional_id, request.producer_id, request.producer_epoch, {where}, done
            ))
        return AddOffsetsToTxnResponse(error_code=_told(error, ApiKey.ADD_OFFSETS_TO_TXN, context))

    async def end_txn(self, request: EndTxnRequest, context: RequestContext) -> EndTxnResponse:
        coordinator = self._coordinator
        error = coordinator.check(request.transactional_id)
        if error is not Errors.NONE:
            return EndTxnResponse(error_code=error)
        answer: PendingAnswer[tuple[Errors, int, int]] = PendingAnswer()
        coordinator.end(
            request.transactional_id, request.producer_id, request.producer_epoch, request.committed,
            lambda error, producer_id, epoch: answer.give((error, producer_id, epoch)),
            WITH_EPOCHS if context.version >= _END_WITH_EPOCH else WITHOUT_EPOCHS,
        )
        error, producer_id, epoch = await answer
        return EndTxnResponse(
            error_code=_told(error, ApiKey.END_TXN, context), producer_id=producer_id, producer_epoch=epoch)

    async def write_txn_markers(
        self, request: WriteTxnMarkersRequest, context: RequestContext
    ) -> WriteTxnMarkersResponse:
        """A partition that is named twice for a marker gets one. (KafkaApis.handleWriteTxnMarkersRequest)"""
        asked = await context.work.made(_markers, request)
        await context.work.step(len(asked))
        if asked:
            where, marker = asked[0]
            context.security.marked(context.client_host, context.principal, marker, len(asked), where)
        found = await self._coordinator.write_markers(asked, self._may_remember, context.work.pause)
        return await context.work.made(_marked, asked, found)

    async def describe_producers(
        self, request: DescribeProducersRequest, context: RequestContext
    ) -> DescribeProducersResponse:
        topics = []
        for topic in request.topics:
            rows = []
            for partition in dict.fromkeys(topic.partition_indexes):
                await context.work.step()
                rows.append(await self._producers(topic.name, partition, context))
            topics.append(DescribeProducersResponse.TopicResponse(name=topic.name, partitions=rows))
        return DescribeProducersResponse(topics=topics)

    async def _producers(
        self, topic: str, partition: int, context: RequestContext
    ) -> DescribeProducersResponse.PartitionResponse:
        described = DescribeProducersResponse.PartitionResponse
        log = await self._coordinator.logs.opened(topic, partition)
        if log is None:
            return described(
                partition_index=partition, error_code=Errors.UNKNOWN_TOPIC_OR_PARTITION,
                error_message="This server does not host this topic-partition.",
            )
        entries = await context.work.in_thread(lambda: log.producers)
        await context.work.step(len(entries))
        return described(partition_index=partition, active_producers=await context.work.made(lambda: [
            DescribeProducersResponse.ProducerState(
                producer_id=entry.producer_id, producer_epoch=entry.producer_epoch, last_sequence=entry.last_sequence,
                last_timestamp=entry.timestamp, coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=entry.current_txn_first_offset,
            )
            for entry in entries
        ]))

    async def describe_transactions(
        self, request: DescribeTransactionsRequest, context: RequestContext
    ) -> DescribeTransactionsResponse:
        rows = []
        for transactional_id in dict.fromkeys(request.transactional_ids):
            await context.work.step()
            row = DescribeTransactionsResponse.TransactionState(transactional_id=transactional_id)
            rows.append(row)
            row.error_code = self._coordinator.check(transactional_id)
            found = self._coordinator.transaction(transactional_id)
            if not row.error_code and found is None:
                row.error_code = Errors.TRANSACTIONAL_ID_NOT_FOUND
            if row.error_code or found is None:
                continue
            row.transaction_state = found.state.label
            row.transaction_timeout_ms, row.transaction_start_time_ms = found.timeout_ms, found.start_ms
            row.producer_id, row.producer_epoch = found.producer_id, found.producer_epoch
            partitions: dict[str, list[int]] = {}
            for topic, partition in sorted(found.partitions):
                await context.work.step()
                partitions.setdefault(topic, []).append(partition)
            row.topics = [DescribeTransactionsResponse.TopicData(topic=topic, partitions=numbers)
                          for topic, numbers in partitions.items()]
        return DescribeTransactionsResponse(transaction_states=rows)

    async def list_transactions(
        self, request: ListTransactionsRequest, context: RequestContext
    ) -> ListTransactionsResponse:
        known = {state.label: state for state in TransactionState}
        states = {known[name] for name in request.state_filters if name in known}
        producer_ids = set(request.producer_id_filters)
        try:
            matches = name_pattern(request.transactional_id_pattern) if request.transactional_id_pattern else None
        except InvalidPatternError:
            return ListTransactionsResponse(error_code=Errors.INVALID_REGULAR_EXPRESSION)
        error, found = self._coordinator.listed()
        now_ms = self._coordinator.now_ms()
        rows = []
        for one in found:
            await context.work.step()
            if (
                (not request.state_filters or one.state in states)
                and (not producer_ids or one.producer_id in producer_ids)
                and (request.duration_filter < 0 or now_ms - one.start_ms > request.duration_filter)
                and (matches is None or matches(one.transactional_id))
            ):
                rows.append(ListTransactionsResponse.TransactionState(
                    transactional_id=one.transactional_id, producer_id=one.producer_id,
                    transaction_state=one.state.label))
        return ListTransactionsResponse(
            error_code=error, transaction_states=rows,
            unknown_state_filters=[] if error else [name for name in request.state_filters if name not in known])


def _markers(request: WriteTxnMarkersRequest) -> list[tuple[TopicPartition, OperatorsMarker]]:
    asked: list[tuple[TopicPartition, OperatorsMarker]] = []
    for one in request.markers:
        marker = OperatorsMarker(
            one.producer_id, one.producer_epoch, one.transaction_result, one.coordinator_epoch, one.transaction_version)
        asked += ((where, marker) for where in dict.fromkeys(
            (topic.name, number) for topic in one.topics for number in topic.partition_indexes))
    return asked


def _marked(
    asked: list[tuple[TopicPartition, OperatorsMarker]], found: list[Errors]
) -> WriteTxnMarkersResponse:
    # Of a producer with several markers, the last error of each partition.
    results: dict[int, dict[str, dict[int, Errors]]] = {}
    for ((topic, number), marker), error in zip(asked, found, strict=True):
        results.setdefault(marker.producer_id, {}).setdefault(topic, {})[number] = error
    row = WriteTxnMarkersResponse
    return row(markers=[
        row.WritableTxnMarkerResult(producer_id=producer_id, topics=[
            row.WritableTxnMarkerTopicResult(name=topic, partitions=[
                row.WritableTxnMarkerPartitionResult(partition_index=number, error_code=error)
                for number, error in numbers.items()
            ])
            for topic, numbers in topics.items()
        ])
        for producer_id, topics in results.items()
    ])


async def _answered(ask: Callable[[Callable[[Errors], None]], None]) -> Errors:
    """Call `ask` with a callback, and return the error that the callback gets."""
    answer: PendingAnswer[Errors] = PendingAnswer()
    ask(answer.give)
    return await answer


def _told(error: Errors, key: ApiKey, context: RequestContext) -> Errors:
    """The error for a client of this version, which may not know `error`."""
    is_old = error is Errors.PRODUCER_FENCED and context.version < _FENCED_SINCE[key]
    return Errors.INVALID_PRODUCER_EPOCH if is_old else error
