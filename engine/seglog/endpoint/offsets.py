"""Offsets of logs: ListOffsets, OffsetForLeaderEpoch, and DeleteRecords, which moves the start of a log."""
import os
import time
from collections import Counter

from seglog.coordinators.refusals import error_of
from seglog.endpoint.leader_epoch_check import epoch_fault
from seglog.endpoint.request_context import Handler, RequestContext
from seglog.endpoint.topics import Topics
from seglog.errors import SeglogError
from seglog.log.log import Log
from seglog.wire.error_codes import Errors
from seglog.wire.messages import (
    ApiKey,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

# Special times of ListOffsets (ListOffsetsRequest.java). All records are local: there is no remote tier.
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
# The versions that first know the last four.
_FIRST_WITH = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
_READ_COMMITTED = 1
_HIGH_WATERMARK = -1        # as the offset of DeleteRecords

_OffsetRow = ListOffsetsResponse.ListOffsetsPartitionResponse
_DeleteRow = DeleteRecordsResponse.DeleteRecordsPartitionResult
_EpochRow = OffsetForLeaderEpochResponse.EpochEndOffset


class Offsets:
    """The handlers of these APIs."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self.HANDLERS: dict[ApiKey, Handler] = {
            ApiKey.LIST_OFFSETS: self.list_offsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self.offset_for_leader_epoch,
            ApiKey.DELETE_RECORDS: self.delete_records,
        }

    # --- ListOffsets -----------------------------------------------------------------------------

    async def list_offsets(self, request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
        answered = []
        for topic in request.topics:
            times = Counter(part.partition_index for part in topic.partitions)
            rows = []
            for part in topic.partitions:
                await context.work.step()
                row = _OffsetRow(partition_index=part.partition_index)
                rows.append(row)
                if times[part.partition_index] > 1:
                    row.error_code = Errors.INVALID_REQUEST
                    continue
                try:
                    log = await self._topics.opened(topic.name, part.partition_index)
                    if log is None:
                        row.error_code = Errors.UNKNOWN_TOPIC_OR_PARTITION
                    elif context.version == 0:
                        row.old_style_offsets = _offsets_before(log, part.timestamp, part.max_num_offsets)
                    else:
                        row.error_code = epoch_fault(log, part.current_leader_epoch)
                        if not row.error_code:
                            is_committed = request.isolation_level == _READ_COMMITTED
                            find = self._find, log, part.timestamp, is_committed, context.version, row
                            if part.timestamp >= 0 or part.timestamp == MAX_TIMESTAMP:
                                await context.work.in_thread(*find)     # it may decompress a batch
                            else:
                                self._find(*find[1:])
                except SeglogError as error:
                    row.error_code = error_of(error)
            answered.append(ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=rows))
        return ListOffsetsResponse(topics=answered)

    def _find(self, log: Log, timestamp: int, is_committed: bool, version: int, row: _OffsetRow) -> None:
        """Set the row to the first offset with that time or a later one, or to the offset of a special time. It stays
        empty if the reader may not see that offset yet."""
        if timestamp < 0 and version < _FIRST_WITH.get(timestamp, 1 if timestamp >= EARLIEST else version + 1):
            row.error_code = Errors.UNSUPPORTED_VERSION
            return
        if timestamp == LATEST:
            row.offset = log.last_stable_offset if is_committed else log.high_watermark
            row.leader_epoch = log.leader_epoch
            return
        if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return      # nothing is in a tier, nor on its way there: -1, as from a broker without one
        found = log._offset_for_ms(EARLIEST if timestamp == EARLIEST_LOCAL else timestamp)
        if found is None or (is_committed and timestamp >= 0 and found.offset >= log.last_stable_offset):
            return
        row.timestamp, row.offset = found.timestamp, found.offset
        epoch = found.leader_epoch
        if epoch is None and found.offset == log.log_end_offset:
            epoch = log.leader_epoch        # nothing has been written in this epoch yet
        row.leader_epoch = -1 if epoch is None else epoch

    # --- OffsetForLeaderEpoch --------------------------------------------------------------------

    async def offset_for_leader_epoch(
        self, request: OffsetForLeaderEpochRequest, context: RequestContext
    ) -> OffsetForLeaderEpochResponse:
        answered = []
        for topic in request.topics:
            rows = []
            for part in topic.partitions:
                await context.work.step()
                row = _EpochRow(partition=part.partition)
                rows.append(row)
                try:
                    log = await self._topics.opened(topic.topic, part.partition)
                    if log is None:
                        row.error_code = Errors.UNKNOWN_TOPIC_OR_PARTITION
                        continue
                    row.error_code = epoch_fault(log, part.current_leader_epoch)
                    end = None if row.error_code else log.end_offset_for(part.leader_epoch)
                    if end is not None:
                        row.leader_epoch, row.end_offset = end.epoch, end.end_offset
                except SeglogError as error:
                    row.error_code = error_of(error)
            answered.append(OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=rows))
        return OffsetForLeaderEpochResponse(topics=answered)

    # --- DeleteRecords ---------------------------------------------------------------------------

    async def delete_records(self, request: DeleteRecordsRequest, context: RequestContext) -> DeleteRecordsResponse:
        answered = []
        for topic in request.topics:
            rows = []
            for part in topic.partitions:
                await context.work.step()
                row = _DeleteRow(partition_index=part.partition_index, low_watermark=-1)
                rows.append(row)
                try:
                    await self._delete(topic.name, part.offset, row, context)
                except SeglogError as error:
                    row.error_code = error_of(error)
            answered.append(DeleteRecordsResponse.DeleteRecordsTopicResult(name=topic.name, partitions=rows))
        return DeleteRecordsResponse(topics=answered)

    async def _delete(self, name: str, offset: int, row: _DeleteRow, context: RequestContext) -> None:
        topic = self._topics.topic(name)
        log = await self._topics.opened(name, row.partition_index)
        if topic is None or log is None:
            row.error_code = Errors.UNKNOWN_TOPIC_OR_PARTITION
        elif topic.is_internal:
            row.error_code = Errors.INVALID_TOPIC_EXCEPTION
        elif "delete" not in log.config.cleanup_policy:
            row.error_code = Errors.POLICY_VIOLATION
        else:
            before = log.high_watermark if offset == _HIGH_WATERMARK else offset
            row.low_watermark = await self._topics.run(log.delete_records, before)
            context.log_deleted("records before", f"{name}-{row.partition_index} {before}")


def _offsets_before(log: Log, timestamp: int, count: int) -> list[int]:
    """The first offsets of the segments modified at `timestamp` or before, latest first, for version 0 of ListOffsets
    (ReplicaManager.legacyFetchOffsetsBefore)."""
    start, end = log.log_start_offset, log.high_watermark
    begins = [(max(segment.base_offset, start), _changed_ms(segment.path)) for segment in log.segments]
    if begins and begins[-1][0] < end:
        begins.append((end, int(time.time() * 1000)))
    if timestamp == LATEST:
        last = len(begins)
    elif timestamp == EARLIEST:
        last = 1
    else:
        last = next((n for n in range(len(begins), 0, -1) if begins[n - 1][1] <= timestamp), 0)
    offsets = [offset for offset, _ in begins[max(0, last - max(0, count)) : last]]
    return sorted(offsets, reverse=True)


def _changed_ms(path: "str | os.PathLike[str]") -> int:
    try:
        return os.stat(path).st_mtime_ns // 1_000_000
    except OSError:         # deleted meanwhile
        return 0
