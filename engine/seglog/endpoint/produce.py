"""Produce: appends batches of clients to logs.

    acks=0      no answer; an error closes the connection, since the client can learn of it in no other way
    acks=1      answered when the batch is written
    acks=all    answered when it is durable by `fsync=`; the connections of a server share syncs (loop.durability)
"""
import asyncio
import struct
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TypeAlias

from seglog.config import MAX_INT
from seglog.coordinators.group_offsets import TopicPartition
from seglog.coordinators.pending_answer import PendingAnswer
from seglog.coordinators.refusals import error_of, message_of
from seglog.coordinators.timer import Paced
from seglog.endpoint.refused_records import RefusedRecord, refused_records
from seglog.endpoint.request_context import Handler, RequestContext
from seglog.endpoint.topics import INTERNAL_TOPICS, Topics
from seglog.endpoint.workload import UNPACKED_BYTES_MAX
from seglog.errors import ProtocolError, SeglogError
from seglog.format.batch_layout import (
    CODEC_LZ4,
    CODEC_MASK,
    CODEC_ZSTD,
    CONTROL_BIT,
    LOG_OVERHEAD,
    LOW_ATTRIBUTES_POS,
    MAGIC_POS,
    MESSAGE_ATTRIBUTES_POS,
    PRODUCER_EPOCH_POS,
    PRODUCER_ID_POS,
    SIZE_POS,
    TRANSACTIONAL_BIT,
    V2_HEADER_SIZE,
)
from seglog.format.compression import output_bytes_max
from seglog.log.append import AppendResult, CheckedBatch, PendingAppend
from seglog.log.log import Log
from seglog.loop.durability import Durability
from seglog.named_tuple import NamedTuple
from seglog.wire.error_codes import Errors
from seglog.wire.messages import ApiKey, ProduceRequest, ProduceResponse

# (transactional id, producer id, producer epoch, topic, partition) -> NONE if it may write to this partition.
Verify = Callable[[str, int, int, str, int], Errors]
# (transactional id, producer id, producer epoch, partitions) -> NONE if they are in its transaction now.
Join = Callable[[str | None, int, int, Collection[TopicPartition]], Awaitable[Errors]]

ACKS_ALL = -1
_ADMIN_CLIENT = "__admin_client"        # AdminUtils.ADMIN_CLIENT_ID: only it may write to Kafka's internal topics
_FIRST_OF_V2, _FIRST_WITH_ZSTD, _FIRST_WITH_RECORDS, _FIRST_WITH_IDS = 3, 7, 8, 13     # versions of Produce
_FIRST_THAT_JOINS = 12      # adds its partitions to the transaction (KIP-890)
_LZ4_HEADER_BYTES = 7
_SIZE = struct.Struct(">i")

# Clients of every version retry NOT_ENOUGH_REPLICAS, but do not expect a coordinator's errors here.
# (AddPartitionsToTxnManager)
_VERIFIED_LATER = dict.fromkeys(
    (Errors.COORDINATOR_LOAD_IN_PROGRESS, Errors.COORDINATOR_NOT_AVAILABLE), Errors.NOT_ENOUGH_REPLICAS)

# Refusals that do not tell where the log begins. (ReplicaManager.appendToLocalLog)
_WITHOUT_START = frozenset((Errors.MESSAGE_TOO_LARGE, Errors.CORRUPT_MESSAGE, Errors.KAFKA_STORAGE_ERROR))
# Refusals that may be those of single records.
_OF_RECORDS = frozenset((Errors.INVALID_RECORD, Errors.INVALID_TIMESTAMP))

# To build a batch again takes this many times as long as to check it.
_BUILT_AGAIN = 16
# A request that unpacks no more than this takes hardly longer than one that unpacks nothing, so it is not counted.
_UNCOUNTED_BYTES = 128 << 10
# A request that has taken so much CPU time for its checks gets no more: its other batches are to be sent again.
_CHECK_CPU_S_MAX = 0.5
_COUNTS_EVERY_S = 5.0

_Row = ProduceResponse.PartitionProduceResponse

# The log of a partition, why it cannot be opened, or None if there is no such partition.
_Found: TypeAlias = Log | SeglogError | None


class _Appended(NamedTuple):
    """What was written, and the row that says so."""

    row: _Row
    log: Log
    written: PendingAppend[AppendResult]


class Produce:
    """Handles Produce requests. `verify`, `join`: those of TransactionCoordinator, or None if there are no
    transactions."""

    def __init__(
        self, topics: Topics, durability: Durability, verify: Verify | None = None, producers_max: int = MAX_INT,
        all_producers_max: int = MAX_INT, join: Join | None = None,
    ) -> None:
        """`producers_max`: how many a partition remembers before it refuses a new one; `all_producers_max`: how many
        all partitions do together."""
        self._topics = topics
        self._durability = durability
        self._verify = verify
        self._join = join
        self._producers_max = producers_max
        self._all_producers_max = all_producers_max
        self._producers_left = all_producers_max
        self.HANDLERS: dict[ApiKey, Handler] = {ApiKey.PRODUCE: self.produce}

    async def count_producers(self) -> None:
        """Count, again and again, how many more producers all partitions together may remember: some expire, and topics
        are deleted. Those that come are counted as they come; one that comes during the count may count twice until the
        next."""
        paced = Paced()
        while True:
            count, left_before = 0, self._producers_left
            for log in self._topics.open_logs():
                count += log._producer_count
                await paced.pause()
            came = left_before - self._producers_left
            self._producers_left = self._all_producers_max - count - came
            await asyncio.sleep(_COUNTS_EVERY_S)

    def take_place(self, log: Log, producer_id: int) -> bool:
        """Whether the log may remember this producer, which then counts."""
        if log._knows_producer(producer_id):
            return True
        has_place = self._producers_left > 0 and log._has_place_for_producer(self._producers_max)
        self._producers_left -= has_place
        return has_place

    async def produce(
        self, request: ProduceRequest, context: RequestContext
    ) -> ProduceResponse | PendingAnswer[ProduceResponse] | None:
        logs: list[_Found] = []
        for topic in request.topic_data:
            if context.version >= _FIRST_WITH_IDS:
                topic.name = self._topics.name_of_id(topic.topic_id)
            for data in topic.partition_data:
                if context.work.is_heavy:
                    await context.work.pause()
                opened = self._topics.open_log(topic.name, data.index)
                log: _Found = opened
                if opened is None or opened._begins_appends:
                    try:
                        log = await self._topics.opened_to_append(topic.name, data.index)
                    except SeglogError as error:
                        log = error
                logs.append(log)
        weight_bytes, sent_bytes = await context.work.made(_weight_of, request, logs)
        are_heavy = weight_bytes > UNPACKED_BYTES_MAX or (
            weight_bytes - sent_bytes > _UNCOUNTED_BYTES and not context.work.has_time_to_unpack(weight_bytes))
        checked = await self._checked(request, context, logs) if are_heavy else None
        joined: dict[TopicPartition, Errors] = {}
        if request.transactional_id is not None and context.version >= _FIRST_THAT_JOINS and self._join is not None:
            joined = await self._joined(request, context, logs, self._join)
        responses, done = await self._appended(request, context, logs, checked, joined)
        waits = self._waits(request.acks, done)
        if request.acks == 0:
            failed = next((row for topic in responses for row in topic.partition_responses if row.error_code), None)
            if failed is not None:
                raise ProtocolError(f"a batch with acks=0 was refused: {Errors(failed.error_code).name}")
            return None
        response = ProduceResponse(responses)
        return self._pending(response, waits) if waits else response

    async def _checked(
        self, request: ProduceRequest, context: RequestContext, logs: list[_Found]
    ) -> "list[_Checked]":
        """Check batches in a thread, because that takes long. They are appended in the loop, where nothing comes
        between the check of their transaction and the append. Those that `_append` refuses itself become None."""
        asked: list[tuple[Log, str, memoryview] | None] = []
        found = iter(logs)
        for topic in request.topic_data:
            for data in topic.partition_data:
                log, records = next(found), memoryview(data.records or b"")
                is_checked = isinstance(log, Log) and not _is_refused_unread(topic.name, records, context)
                asked.append((log, f"{topic.name}-{data.index}", records) if is_checked else None)  # type: ignore[arg-type]
        await context.work.become_heavy()       # its turn: one request at a time is inflated
        inflated_bytes = max((_inflated_bytes(one[0], one[2]) for one in asked if one is not None), default=0)
        with context.work.holding(inflated_bytes):
            return await context.work.in_thread(_check_all, asked)

    @staticmethod
    async def _joined(
        request: ProduceRequest, context: RequestContext, logs: list[_Found], join: Join
    ) -> dict[TopicPartition, Errors]:
        """Add the partitions that have transactional batches to the transactions of their producers. Returns why those
        are refused that could not be added."""
        added: dict[tuple[int, int], list[TopicPartition]] = {}
        found = iter(logs)
        for topic in request.topic_data:
            for data in topic.partition_data:
                log, records = next(found), memoryview(data.records or b"")
                if isinstance(log, Log) and _is_transactional(records) and not _is_refused_unread(
                        topic.name, records, context):
                    producer = _int(records, PRODUCER_ID_POS, 8), _int(records, PRODUCER_EPOCH_POS, 2)
                    added.setdefault(producer, []).append((topic.name, data.index))
        refused: dict[TopicPartition, Errors] = {}
        for producer, partitions in added.items():
            error = await join(request.transactional_id, *producer, frozenset(partitions))
            if error:
                refused.update(dict.fromkeys(partitions, error))
        return refused

    async def _appended(
        self, request: ProduceRequest, context: RequestContext, logs: list[_Found],
        checked: "Sequence[_Checked] | None", joined: dict[TopicPartition, Errors],
    ) -> "tuple[list[ProduceResponse.TopicProduceResponse], list[_Appended]]":
        """Append to `logs`, one for each partition of the request. `checked`: the batches, if they were checked before;
        `joined`: why partitions are not in the transaction. Returns the rows of the answer, and what was written."""
        responses, done = [], []
        found, before = iter(logs), iter(checked or ())
        for topic in request.topic_data:
            rows = []
            for data in topic.partition_data:
                if context.work.is_heavy:
                    await context.work.pause()      # nothing comes between the checks of a batch and its append
                row = _Row(data.index, 0, -1)
                log, batch = next(found), next(before, None)
                if log is None:
                    is_id_of_none = not topic.name and context.version >= _FIRST_WITH_IDS
                    _refuse(row, Errors.UNKNOWN_TOPIC_ID if is_id_of_none else Errors.UNKNOWN_TOPIC_OR_PARTITION)
                elif request.acks not in (0, 1, ACKS_ALL):
                    row.error_code = Errors.INVALID_REQUIRED_ACKS
                elif (topic.name, data.index) in joined:
                    error = joined[topic.name, data.index]
                    _refuse(row, _VERIFIED_LATER.get(error, error))
                else:
                    appended = self._append(request, context, topic.name, data, log, row, batch)
                    if appended is not None:
                        done.append(appended)
                rows.append(row)
            responses.append(ProduceResponse.TopicProduceResponse(topic.name, topic.topic_id, rows))
        return responses, done

    def _append(
        self, request: ProduceRequest, context: RequestContext, topic: str, data: ProduceRequest.PartitionProduceData,
        found: Log | SeglogError, row: _Row, checked: "_Checked",
    ) -> _Appended | None:
        """Append the batches of one partition. Returns None if there is nothing to write, or if they are refused: the
        row has the reason."""
        records = memoryview(b"" if data.records is None else data.records)
        log = None
        is_new_producer = False
        try:
            if isinstance(found, SeglogError):
                raise found
            log = found
            if topic in INTERNAL_TOPICS and context.client_id != _ADMIN_CLIENT:
                _refuse(row, Errors.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {topic}")
                return None
            is_transactional = _is_transactional(records)
            if is_transactional and request.transactional_id is None:
                _refuse(row, Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
                return None
            if context.version < _FIRST_OF_V2 and not len(records):
                return None
            refusal = _fault_of(records, context.version)
            if refusal is not None:
                _refuse(row, *refusal)
                return None
            if self._verify is not None and is_transactional:
                error = self._verify(
                    request.transactional_id or "", _int(records, PRODUCER_ID_POS, 8),
                    _int(records, PRODUCER_EPOCH_POS, 2), topic, data.index,
                )
                if error:
                    _refuse(row, _VERIFIED_LATER.get(error, error))
                    return None
            if records[MAGIC_POS] == 2:
                if not log._has_room_for(records, self._producers_max):
                    _refuse(row, Errors.POLICY_VIOLATION, "The partition remembers as many producers as it may.")
                    return None
                if self._producers_left <= 0 and not log._has_room_for(records, 0):
                    _refuse(row, Errors.POLICY_VIOLATION, "All partitions remember as many producers as they may.")
                    return None
                is_new_producer = log._is_of_new_producer(records)
            if checked is None:
                written = log.append_batch(records, wait=False)
            elif isinstance(checked, _TooLate):
                _refuse(row, Errors.REQUEST_TIMED_OUT, "The batches before this one took too long to check.")
                return None
            elif isinstance(checked, _RefusedBatch):
                raise checked.error
            else:
                written = log.append_checked(checked, wait=False)
        except SeglogError as error:
            _refuse(row, error_of(error), message_of(error))
            if log is not None and row.error_code not in _WITHOUT_START:
                row.log_start_offset = log.log_start_offset
            if log is not None and row.error_code in _OF_RECORDS:
                named = (checked.records if isinstance(checked, _RefusedBatch)
                         else refused_records(log, f"{topic}-{data.index}", records))
                _name_records(row, named, context.version)
            return None
        self._producers_left -= is_new_producer
        row.base_offset = written.result.first_offset
        row.log_start_offset = log.log_start_offset
        return tuple.__new__(_Appended, (row, log, written))        # (quicker, as in log.append)

    def _waits(self, acks: int, done: list[_Appended]) -> list[_Appended]:
        """What the answer waits for, so that it is as durable as `acks` asks; of the rest, the rows are completed."""
        durability = self._durability
        if durability.fsync != "batch":
            for appended in done:
                if _has_time_of_log(appended.log):
                    _tell_time(appended)
            return []
        waits = []
        for appended in done:
            # The time that the log gave a batch can be read once it is published, which is when it is durable.
            if acks == ACKS_ALL or (acks == 1 and _has_time_of_log(appended.log)):
                waits.append(appended)
            else:
                durability.ask(appended.log, appended.written)
        return waits

    def _pending(self, response: ProduceResponse, waits: list[_Appended]) -> PendingAnswer[ProduceResponse]:
        """The answer when everything is on the disk, and its rows say so."""
        pending: PendingAnswer[ProduceResponse] = PendingAnswer()
        left = len(waits)

        def told(appended: _Appended, error: BaseException | None) -> None:
            nonlocal left
            try:
                if error is None and _has_time_of_log(appended.log):
                    _tell_time(appended)
            except SeglogError as failure:
                error = failure
            if error is not None:
                appended.row.base_offset = -1
                _refuse(appended.row, error_of(error), message_of(error))
            left -= 1
            if left == 0:
                pending.give(response)

        for appended in waits:
            self._durability.tell(appended.log, appended.written, partial(told, appended))
        return pending


class _RefusedBatch(NamedTuple):
    """Why a batch was refused that was checked in a thread, and which of its records are to blame."""

    error: SeglogError
    records: list[RefusedRecord]


# A batch that was not checked any more.
class _TooLate:
    pass


_Checked: TypeAlias = CheckedBatch | _RefusedBatch | _TooLate | None


def _check_all(asked: "Sequence[tuple[Log, str, memoryview] | None]") -> list[_Checked]:
    """Check the batches of one request, as many as there is time for. In a thread."""
    begin_s, is_begun = time.thread_time(), False
    checked: list[_Checked] = []
    for one in asked:
        if one is None:
            checked.append(None)
        elif is_begun and time.thread_time() - begin_s > _CHECK_CPU_S_MAX:
            checked.append(_TooLate())
        else:
            checked.append(_check(*one))
            is_begun = True
    return checked


def _check(log: Log, where: str, records: memoryview) -> CheckedBatch | _RefusedBatch:
    try:
        return log.check_batch(records)
    except SeglogError as error:
        return _RefusedBatch(error, refused_records(log, where, records) if error_of(error) in _OF_RECORDS else [])


def _weight_of(request: ProduceRequest, logs: Sequence[_Found]) -> tuple[int, int]:
    """What checking the batches of a request takes, judged by their headers, in bytes to go through, and how many bytes
    they have; counted until it is more than the loop ever unpacks."""
    weight_bytes, sent_bytes, found = 0, 0, iter(logs)
    for topic in request.topic_data:
        for data in topic.partition_data:
            log, records = next(found), data.records
            if records and isinstance(log, Log):
                weight_bytes += _weight_bytes(log, memoryview(records))
                sent_bytes += len(records)
                if weight_bytes > UNPACKED_BYTES_MAX:
                    return weight_bytes, sent_bytes
    return weight_bytes, sent_bytes


def _weight_bytes(log: Log, records: memoryview) -> int:
    """The bytes that checking a batch has to go through: as many as it may have uncompressed, and more for a batch that
    has to be built again."""
    if len(records) <= LOW_ATTRIBUTES_POS:
        return len(records)
    magic = records[MAGIC_POS]
    weight = len(records)
    if records[LOW_ATTRIBUTES_POS if magic == 2 else MESSAGE_ATTRIBUTES_POS] & CODEC_MASK:
        weight = max(weight, _inflated_bytes(log, records))
    config = log.config
    is_built_again = config.compression_type != "producer" or config.message_format_version not in (None, magic)
    return weight * _BUILT_AGAIN if is_built_again else weight


def _inflated_bytes(log: Log, records: memoryview) -> int:
    """As many bytes as the payload of a batch may have uncompressed; 0: it is not compressed."""
    if len(records) <= LOW_ATTRIBUTES_POS:
        return 0
    is_v2 = records[MAGIC_POS] == 2
    codec = records[LOW_ATTRIBUTES_POS if is_v2 else MESSAGE_ATTRIBUTES_POS] & CODEC_MASK
    if not codec:
        return 0
    payload = records[V2_HEADER_SIZE:] if is_v2 else records
    bound = _lz4_bound(payload) if is_v2 and codec == CODEC_LZ4 else UNPACKED_BYTES_MAX + 1
    if bound > UNPACKED_BYTES_MAX:
        bound = output_bytes_max(codec, payload)
    return min(bound, log.config.max_decompressed_message_bytes)


def _lz4_bound(payload: memoryview) -> int:
    """The same for an LZ4 frame, which says how large its blocks may be; they are few in the batches of producers."""
    if len(payload) < _LZ4_HEADER_BYTES:
        return 0
    block_bytes_max = 1 << 8 + 2 * (payload[5] >> 4 & 7)
    bound, at, end = 0, _LZ4_HEADER_BYTES + (8 if payload[4] & 8 else 0), len(payload)
    while at + 4 <= end and bound <= UNPACKED_BYTES_MAX:
        size = int.from_bytes(payload[at : at + 4], "little") & 0x7FFF_FFFF
        bound += min(block_bytes_max, 255 * size)
        at += 4 + size + (4 if payload[4] & 16 else 0)
    return bound


def _is_refused_unread(topic: str, records: memoryview, context: RequestContext) -> bool:
    """Whether a batch is refused before its records are looked at."""
    return (topic in INTERNAL_TOPICS and context.client_id != _ADMIN_CLIENT) or (
        _fault_of(records, context.version) is not None)


def _is_transactional(records: memoryview) -> bool:
    return (
        len(records) > LOW_ATTRIBUTES_POS and records[MAGIC_POS] == 2
        and bool(records[LOW_ATTRIBUTES_POS] & TRANSACTIONAL_BIT))


def _refuse(row: _Row, error: Errors, message: str | None = None) -> None:
    row.error_code = error
    row.error_message = message


def _name_records(row: _Row, refused: list[RefusedRecord], version: int) -> None:
    """Name the refused records in the row. If a timestamp is among the reasons, the batch gets that error, as from a
    broker."""
    if any(record.is_time for record in refused):
        row.error_code = Errors.INVALID_TIMESTAMP
    if version >= _FIRST_WITH_RECORDS:
        row.record_errors = [
            ProduceResponse.BatchIndexAndErrorMessage(batch_index=record.number, batch_index_error_message=record.why)
            for record in refused
        ]


def _fault_of(records: memoryview, version: int) -> tuple[Errors, str] | None:
    """A broker's checks before it reads the records (ProduceRequest.validateRecords, LogValidator): None, or the error
    and its message."""
    if len(records) <= MAGIC_POS:
        return Errors.INVALID_RECORD, "a partition of the Produce request contains no complete batch"
    magic = records[MAGIC_POS]
    if version < _FIRST_OF_V2:
        return None
    if magic != 2:
        return Errors.INVALID_RECORD, f"Produce v{version} requires record batches v2, not v{magic}"
    if len(records) < V2_HEADER_SIZE:
        return Errors.CORRUPT_MESSAGE, f"a batch of {len(records)} bytes is shorter than its header of {V2_HEADER_SIZE}"
    if LOG_OVERHEAD + _SIZE.unpack_from(records, SIZE_POS)[0] != len(records):
        return Errors.INVALID_RECORD, f"Produce v{version} requires exactly one batch for each partition"
    attributes = records[LOW_ATTRIBUTES_POS]
    if attributes & CODEC_MASK == CODEC_ZSTD and version < _FIRST_WITH_ZSTD:
        return Errors.UNSUPPORTED_COMPRESSION_TYPE, "Produce requests with version < 7 are not allowed to use zstd"
    if attributes & CONTROL_BIT:
        return Errors.INVALID_RECORD, "Clients are not allowed to write control records"
    return None


def _int(records: memoryview, position: int, size_bytes: int) -> int:
    return int.from_bytes(records[position : position + size_bytes], "big", signed=True)


def _has_time_of_log(log: Log) -> bool:
    return log.config.message_timestamp_type == "LogAppendTime"


def _tell_time(appended: _Appended) -> None:
    """With LogAppendTime, tell the producer which timestamp its records got."""
    batch = next(iter(appended.log.batches(start=appended.written.result.first_offset)), None)
    if batch is not None:
        appended.row.log_append_time_ms = batch.max_timestamp
