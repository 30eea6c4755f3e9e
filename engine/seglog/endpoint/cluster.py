"""Facts about the cluster, which is one node: Metadata, DescribeTopicPartitions, DescribeCluster, DescribeLogDirs."""
import contextlib
import shutil

from seglog.coordinators.refusals import unknown_topic
from seglog.endpoint.error_answers import error_answer
from seglog.endpoint.request_context import Handler, RequestContext
from seglog.endpoint.settings import ServerConfig
from seglog.endpoint.topics import INTERNAL_TOPICS, ZERO_ID, NewTopic, ServedTopic, Topics
from seglog.errors import SeglogError
from seglog.format.names import METADATA_TOPIC
from seglog.wire.error_codes import Errors
from seglog.wire.messages import (
    ApiKey,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
)

# What every client may do, as bits: 1 << code of each AclOperation that Kafka has for the resource.
CLUSTER_OPERATIONS = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
TOPIC_OPERATIONS = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
_NOT_ASKED = -2147483648
_WITH_IDS = 12      # the first version of Metadata that may ask by topic id; the two before it have only the field
_BROKERS, _CONTROLLERS = 1, 2       # endpoint types of DescribeCluster

# max.request.partition.size.limit
_PARTITIONS_MAX = 2000

_Described = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
_Topic = MetadataResponse.MetadataResponseTopic
_Partition = MetadataResponse.MetadataResponsePartition


class ClusterFacts:
    """The handlers of these APIs."""

    def __init__(self, topics: Topics, config: ServerConfig, cluster_id: str, log_dir: str) -> None:
        self._topics = topics
        self._config = config
        self._cluster_id = cluster_id
        self._log_dir = log_dir
        self.HANDLERS: dict[ApiKey, Handler] = {
            ApiKey.METADATA: self.metadata,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: self.describe_topic_partitions,
            ApiKey.DESCRIBE_CLUSTER: self.describe_cluster,
            ApiKey.DESCRIBE_LOG_DIRS: self.describe_log_dirs,
        }

    # --- Metadata --------------------------------------------------------------------------------

    async def metadata(self, request: MetadataRequest, context: RequestContext) -> MetadataResponse:
        asked = request.topics
        if context.version < _WITH_IDS and any(one.topic_id != ZERO_ID or one.name is None for one in asked or ()):
            refusal: MetadataResponse = error_answer(ApiKey.METADATA, request, Errors.INVALID_REQUEST)
            return refusal
        topics = []
        if asked is None or (context.version == 0 and not asked):
            topics = [await self._row(topic, context) for name in self._topics.names()
                      if (topic := self._topics.topic(name))]
        else:
            new: list[NewTopic] = []
            room: int | None = None
            for one in {(one.name, one.topic_id): one for one in asked}.values():
                await context.work.step()
                if one.topic_id != ZERO_ID:
                    known = self._topics.topic_of_id(one.topic_id)
                    topics.append(await self._row(known, context) if known else _Topic(
                        error_code=Errors.UNKNOWN_TOPIC_ID, name=None, topic_id=one.topic_id))
                    continue
                row = await self._of_name(one.name or "", request.allow_auto_topic_creation, context)
                if row is None:
                    # Its client is told to ask again, so that it does not wait, and topics that many requests ask for
                    # are created together.
                    room = (self._topics.room if room is None else room) - self._config.num_partitions
                    row = _Topic(error_code=Errors.UNKNOWN_TOPIC_OR_PARTITION, name=one.name)
                    if room >= 0:
                        row.error_code = Errors.LEADER_NOT_AVAILABLE
                        new.append(NewTopic(one.name or "", self._config.num_partitions, {}))
                topics.append(row)
            self._topics.expect(new)
        if request.include_topic_authorized_operations:
            for row in topics:
                if not row.error_code:
                    row.topic_authorized_operations = TOPIC_OPERATIONS
        return MetadataResponse(
            brokers=[MetadataResponse.MetadataResponseBroker(
                node_id=self._config.node_id, host=context.host, port=context.port)],
            cluster_id=self._cluster_id, controller_id=self._config.node_id, topics=topics,
            cluster_authorized_operations=(
                CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else _NOT_ASKED),
        )

    async def _of_name(self, name: str, may_create: bool, context: RequestContext) -> _Topic | None:
        """The row of a topic, or None if it has to be created first."""
        topic = self._topics.topic(name)
        if topic is not None:
            return await self._row(topic, context)
        is_internal = name in INTERNAL_TOPICS
        may_create = may_create and self._config.auto_create_topics_enable and not is_internal
        if may_create and name != METADATA_TOPIC:
            if self._topics.fault(name) is not None:
                return _Topic(error_code=Errors.INVALID_TOPIC_EXCEPTION, name=name)
            return None
        return _Topic(error_code=unknown_topic(name), name=name, is_internal=is_internal)

    async def _row(self, topic: ServedTopic, context: RequestContext) -> _Topic:
        return _Topic(
            name=topic.name, topic_id=topic.shown_id, is_internal=topic.is_internal,
            partitions=[await self._partition_row(topic.name, number, context) for number in range(topic.partitions)])

    async def _partition_row(self, name: str, number: int, context: RequestContext) -> _Partition:
        await context.work.step()
        node = self._config.node_id
        row = _Partition(partition_index=number, leader_id=node, replica_nodes=[node], isr_nodes=[node])
        if self._topics.has(name, number):
            row.leader_epoch = self._topics.leader_epoch(name, number)
        else:       # this partition has no directory, but a later one has
            row.error_code, row.leader_id, row.offline_replicas = Errors.LEADER_NOT_AVAILABLE, -1, [node]
            row.isr_nodes = []
        return row

    # --- DescribeTopicPartitions -----------------------------------------------------------------

    async def describe_topic_partitions(
        self, request: DescribeTopicPartitionsRequest, context: RequestContext
    ) -> DescribeTopicPartitionsResponse:
        """The topics in the order of their names, as many partitions as the client wants; where it may go on."""
        cursor = request.cursor
        asked = sorted({topic.name for topic in request.topics})
        if cursor is not None and (cursor.partition_index < 0 or (asked and cursor.topic_name not in asked)):
            refusal: DescribeTopicPartitionsResponse = error_answer(
                ApiKey.DESCRIBE_TOPIC_PARTITIONS, request, Errors.INVALID_REQUEST)
            return refusal
        room = max(1, min(request.response_partition_limit, _PARTITIONS_MAX))
        answer = DescribeTopicPartitionsResponse(next_cursor=None)
        for name in asked or self._topics.names():
            if cursor is not None and name < cursor.topic_name:
                continue
            await context.work.step()
            if room <= 0:
                answer.next_cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=0)
                break
            topic = self._topics.topic(name)
            if topic is None:
                if asked:
                    answer.topics.append(_Described(
                        error_code=unknown_topic(name), name=name, is_internal=name in INTERNAL_TOPICS,
                        topic_authorized_operations=TOPIC_OPERATIONS))
                continue
            first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
            numbers = range(first, min(first + room, topic.partitions))
            room -= len(numbers)
            answer.topics.append(_Described(
                name=name, topic_id=topic.shown_id, is_internal=topic.is_internal,
                topic_authorized_operations=TOPIC_OPERATIONS,
                partitions=[await self._described(name, number, context) for number in numbers]))
            if numbers and numbers.stop < topic.partitions:
                answer.next_cursor = DescribeTopicPartitionsResponse.Cursor(
                    topic_name=name, partition_index=numbers.stop)
                break
        return answer

    async def _described(
        self, name: str, number: int, context: RequestContext
    ) -> DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition:
        row = await self._partition_row(name, number, context)
        return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition(
            error_code=row.error_code, partition_index=number, leader_id=row.leader_id, leader_epoch=row.leader_epoch,
            replica_nodes=row.replica_nodes, isr_nodes=row.isr_nodes, offline_replicas=row.offline_replicas,
            eligible_leader_replicas=[], last_known_elr=[])

    # --- DescribeCluster, DescribeLogDirs --------------------------------------------------------

    async def describe_cluster(
        self, request: DescribeClusterRequest, context: RequestContext
    ) -> DescribeClusterResponse:
        if request.endpoint_type != _BROKERS:
            error = (Errors.MISMATCHED_ENDPOINT_TYPE if request.endpoint_type == _CONTROLLERS
                     else Errors.UNSUPPORTED_ENDPOINT_TYPE)
            return DescribeClusterResponse(
                error_code=error, error_message="The request was sent to an endpoint of the wrong type.")
        node = self._config.node_id
        return DescribeClusterResponse(
            cluster_id=self._cluster_id, controller_id=node,
            brokers=[DescribeClusterResponse.DescribeClusterBroker(
                broker_id=node, host=context.host, port=context.port)],
            cluster_authorized_operations=(
                CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else _NOT_ASKED),
        )

    async def describe_log_dirs(
        self, request: DescribeLogDirsRequest, context: RequestContext
    ) -> DescribeLogDirsResponse:
        wanted: dict[str, list[int]] = {}
        if request.topics is None:
            wanted = {name: list(range(self._topics.partition_count(name))) for name in self._topics.names()}
        else:
            for topic in request.topics:
                wanted.setdefault(topic.topic, []).extend(topic.partitions)
        topics = []
        for name, numbers in wanted.items():
            rows = []
            for number in dict.fromkeys(numbers):
                await context.work.step()
                size_bytes = None
                with contextlib.suppress(SeglogError):      # requests that need the log report the error
                    size_bytes = await self._size_bytes(name, number)
                if size_bytes is not None:
                    rows.append(DescribeLogDirsResponse.DescribeLogDirsPartition(
                        partition_index=number, partition_size=size_bytes))
            if rows:
                topics.append(DescribeLogDirsResponse.DescribeLogDirsTopic(name=name, partitions=rows))
        usage = shutil.disk_usage(self._log_dir)
        return DescribeLogDirsResponse(results=[DescribeLogDirsResponse.DescribeLogDirsResult(
            log_dir=self._log_dir, topics=topics, total_bytes=usage.total, usable_bytes=usage.free)])

    async def _size_bytes(self, name: str, partition: int) -> int | None:
        """The size of the partition's log, or None if there is no such partition."""
        if not self._topics.has(name, partition):
            return None
        log = await self._topics.opened(name, partition) if self._topics.is_made(name, partition) else None
        return 0 if log is None else log.stats().log_bytes
