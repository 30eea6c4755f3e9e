"""Fetch: sends bytes of logs to clients, exactly as stored if the client knows their format.

    look ── enough, or a fault ── answer
      └──── too little ── wait until one of the logs grows (endpoint.long_polls), or for max_wait_ms ── look again

Fetch sessions are not supported: every answer says so (session 0), and clients then name all their partitions in each
request.
"""
import asyncio
import time
from concurrent.futures import Executor

from seglog.coordinators.refusals import error_of
from seglog.endpoint.converted_records import ConvertedRecords, FirstPieces, cut_message
from seglog.endpoint.leader_epoch_check import epoch_fault
from seglog.endpoint.request_context import Handler, RequestContext
from seglog.endpoint.topics import Topics
from seglog.errors import OffsetOutOfRangeError, SeglogError
from seglog.log.log import Log
from seglog.loop.long_polls import LongPolls
from seglog.named_tuple import NamedTuple
from seglog.reading.arguments import Isolation
from seglog.reading.fetch_result import Fetched, FetchSlice
from seglog.wire.error_codes import Errors
from seglog.wire.messages import ApiKey, FetchRequest, FetchResponse

# The first versions of Fetch that know v1 messages, v2 batches, topic ids and zstd.
_WITH_V1, _WITH_V2, _WITH_IDS, _WITH_ZSTD = 2, 4, 13, 10
_HARD_LIMIT_UP_TO = 2       # up to this version a client's limit is strict, even if the first batch is larger
_FINAL_EPOCH = -1           # closes a session
_FIRST_PIECES_BYTES_MAX = 32 << 20

_Row = FetchResponse.PartitionData


class _Look(NamedTuple):
    """The answer to a request as of one moment."""

    responses: "list[FetchResponse.FetchableTopicResponse]"
    size_bytes: int
    is_final: bool              # there is an error, which is sent at once
    ends: list[tuple[Log, int]]


class Fetch:
    """The handler of one API. `converters`: threads in which records are converted for old clients. `max_wait_ms`: the
    longest wait for records, whatever a client asks."""

    def __init__(
        self, topics: Topics, polls: LongPolls, converters: Executor, max_bytes: int, max_wait_ms: int
    ) -> None:
        self._topics = topics
        self._polls = polls
        self._converters = converters
        self._max_bytes = max_bytes
        self._max_wait_ms = max_wait_ms
        self._first_pieces = FirstPieces(_FIRST_PIECES_BYTES_MAX)
        self.HANDLERS: dict[ApiKey, Handler] = {ApiKey.FETCH: self.fetch}

    async def fetch(self, request: FetchRequest, context: RequestContext) -> FetchResponse:
        if request.session_id and request.session_epoch != _FINAL_EPOCH:
            return FetchResponse(error_code=Errors.FETCH_SESSION_ID_NOT_FOUND)
        until = time.monotonic() + min(max(0, request.max_wait_ms), self._max_wait_ms) / 1000
        look = await self._look(request, context)
        while not look.is_final and look.size_bytes < request.min_bytes and look.ends:
            left_s = until - time.monotonic()
            # A heavy request does not wait: meanwhile no other one would have its turn.
            if left_s <= 0 or context.peer.is_gone or context.work.is_heavy:
                break
            logs = [log for log, _ in look.ends]
            with self._polls.waiting_for(logs) as grown, context.peer.watched(grown.set):
                if all(not log.closed and log.log_end_offset == end for log, end in look.ends):
                    limit = asyncio.get_running_loop().call_later(left_s, grown.set)
                    try:
                        await grown.wait()
                    finally:
                        limit.cancel()
            look = await self._look(request, context)
        return FetchResponse(responses=look.responses)

    async def _look(self, request: FetchRequest, context: RequestContext) -> _Look:
        left_bytes = min(request.max_bytes, self._max_bytes)
        responses, size_bytes, is_final, ends = [], 0, False, []
        for asked in request.topics:
            name: str | None = asked.topic
            unknown = Errors.UNKNOWN_TOPIC_OR_PARTITION
            if context.version >= _WITH_IDS:
                topic = self._topics.topic_of_id(asked.topic_id)
                name, unknown = (None if topic is None else topic.name), Errors.UNKNOWN_TOPIC_ID
            rows = []
            # Each partition once, as in Kafka: a request that waits is handled again and again.
            for part in {part.partition: part for part in asked.partitions}.values():
                await context.work.step()
                row = _Row(partition_index=part.partition, high_watermark=-1, records=b"")
                rows.append(row)
                try:
                    log = None if name is None else await self._topics.opened(name, part.partition)
                    if log is None:
                        row.error_code = unknown if name is None else Errors.UNKNOWN_TOPIC_OR_PARTITION
                    elif context.version < _WITH_ZSTD and log.config.compression_type == "zstd":
                        # As in Kafka, whatever lies in the log (KafkaApis.handleFetchRequest). Of other topics, zstd
                        # is sent as it lies there: many clients know it, although they ask in an older version.
                        row.error_code, row.records = Errors.UNSUPPORTED_COMPRESSION_TYPE, None
                    else:
                        row.error_code = epoch_fault(log, part.current_leader_epoch)
                        if not row.error_code and not _diverges(log, part, row):
                            limit = min(left_bytes, max(0, part.partition_max_bytes))
                            is_first = size_bytes == 0 and context.version > _HARD_LIMIT_UP_TO
                            size = await self._read(log, part.fetch_offset, limit, is_first, request, context, row)
                            size_bytes += size
                            left_bytes = max(0, left_bytes - size)
                            ends.append((log, row.high_watermark))
                except SeglogError as error:
                    _refuse(row, error)
                is_final = is_final or bool(row.error_code) or row.diverging_epoch is not None
            responses.append(FetchResponse.FetchableTopicResponse(
                topic=asked.topic, topic_id=asked.topic_id, partitions=rows))
        return _Look(responses, size_bytes, is_final, ends)

    async def _read(
        self, log: Log, offset: int, max_bytes: int, min_one: bool, request: FetchRequest, context: RequestContext,
        row: _Row,
    ) -> int:
        """Fill the row, and return the size of its records in bytes. Raises OffsetOutOfRangeError, SeglogError."""
        if offset < 0:
            raise OffsetOutOfRangeError(f"offset {offset}", offset=offset)
        version = context.version
        is_committed = version >= _WITH_V2 and request.isolation_level == 1
        isolation: Isolation = "read_committed" if is_committed else "read_uncommitted"
        magic: int | None = None if version >= _WITH_V2 else 1 if version >= _WITH_V1 else 0
        if magic is None and log._dialect.is_tagged:
            magic = 2       # no client knows messages with tags
        if magic is None:
            fetched: Fetched = log.fetch(offset, max_bytes, min_one=min_one, isolation=isolation)
        else:
            fetched = await asyncio.get_running_loop().run_in_executor(
                self._converters,
                lambda: log.fetch(offset, max_bytes, magic=magic, min_one=min_one, isolation=isolation))
        ends = fetched.ends
        row.high_watermark, row.log_start_offset = ends.high_watermark, ends.log_start_offset
        row.last_stable_offset = ends.last_stable_offset if is_committed else log.last_stable_offset
        row.aborted_transactions = [
            FetchResponse.AbortedTransaction(producer_id=producer_id, first_offset=first)
            for producer_id, first in ends.aborted_transactions
        ] if is_committed else None
        if isinstance(fetched, FetchSlice):
            if fetched.size_bytes:
                row.records = fetched
            elif version <= _HARD_LIMIT_UP_TO and offset < ends.high_watermark:
                row.records = cut_message(max_bytes)
            return len(row.records)
        row.records = ConvertedRecords(fetched, self._first_pieces)
        return len(row.records)


def _refuse(row: _Row, error: SeglogError) -> None:
    row.error_code = error_of(error)
    row.high_watermark = row.last_stable_offset = row.log_start_offset = -1
    row.records = b""


def _diverges(log: Log, part: FetchRequest.FetchPartition, row: _Row) -> bool:
    """Whether the client's log has diverged from ours, judged by the epoch of its last record (KIP-595). If it has,
    fill the row."""
    if part.last_fetched_epoch < 0:
        return False
    end = log.end_offset_for(part.last_fetched_epoch)
    if end is None:
        raise OffsetOutOfRangeError(f"leader epoch {part.last_fetched_epoch} is unknown", file=log.path)
    if end.epoch >= part.last_fetched_epoch and end.end_offset >= part.fetch_offset:
        return False
    row.diverging_epoch = FetchResponse.EpochEndOffset(epoch=end.epoch, end_offset=end.end_offset)
    row.high_watermark, row.log_start_offset = log.high_watermark, log.log_start_offset
    row.last_stable_offset = log.last_stable_offset
    return True
