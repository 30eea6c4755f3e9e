"""Clients' administration of topics: CreateTopics, CreatePartitions, DeleteTopics."""
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from seglog.coordinators.refusals import error_of, message_of
from seglog.endpoint.configs import described
from seglog.endpoint.operator_limits import check_lengths
from seglog.endpoint.request_context import Handler, RequestContext
from seglog.endpoint.settings import ServerConfig
from seglog.endpoint.topics import ZERO_ID, NewTopic, Topics
from seglog.errors import SeglogError
from seglog.reading.settings import checked_changes
from seglog.wire.error_codes import Errors
from seglog.wire.messages import (
    ApiKey,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

# A request that would create more is refused (ReplicationControlManager.MAX_PARTITIONS_PER_BATCH).
_PARTITIONS_MAX = 10_000
_BY_DEFAULT = -1
_WITH_CONFIGS = 5       # the first version of CreateTopics that answers with settings
_NOT_HOSTED = "This server does not host this topic-partition."

Deleted = Callable[[Sequence[tuple[str, int]]], Awaitable[None]]


class RequestRefusedError(Exception):
    """A part of a request is refused, with this error and message."""

    def __init__(self, error: Errors, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


class TopicAdmin:
    """The handlers of these APIs. `deleted`: called with the deleted partitions."""

    def __init__(self, topics: Topics, config: ServerConfig, deleted: Deleted | None = None) -> None:
        self._topics = topics
        self._config = config
        self._deleted = deleted
        self.HANDLERS: dict[ApiKey, Handler] = {
            ApiKey.CREATE_TOPICS: self.create_topics,
            ApiKey.CREATE_PARTITIONS: self.create_partitions,
            ApiKey.DELETE_TOPICS: self.delete_topics,
        }

    # --- CreateTopics ----------------------------------------------------------------------------

    async def create_topics(self, request: CreateTopicsRequest, context: RequestContext) -> CreateTopicsResponse:
        times = Counter(topic.name for topic in request.topics)
        rows: list[CreateTopicsResponse.CreatableTopicResult] = []
        wanted: list[tuple[NewTopic, CreateTopicsResponse.CreatableTopicResult]] = []
        room = _PARTITIONS_MAX
        for topic in {topic.name: topic for topic in request.topics}.values():
            await context.work.step()
            row = CreateTopicsResponse.CreatableTopicResult(name=topic.name, error_message=None, configs=[])
            rows.append(row)
            try:
                if times[topic.name] > 1:
                    raise RequestRefusedError(Errors.INVALID_REQUEST, "Duplicate topic name.")
                partitions = self._partitions_of(topic)
                room -= partitions
                if room < 0:
                    raise RequestRefusedError(
                        Errors.POLICY_VIOLATION, "Excessively large number of partitions per request.")
                new = self._checked(topic, partitions)
                row.num_partitions, row.replication_factor = partitions, 1
                if not request.validate_only:
                    wanted.append((new, row))
            except RequestRefusedError as error:
                row.error_code, row.error_message = error.error, error.message
            except SeglogError as error:
                row.error_code, row.error_message = error_of(error), message_of(error)
        if wanted:
            await self._create(wanted, context)
        return CreateTopicsResponse(topics=rows)

    async def _create(
        self, wanted: Sequence[tuple[NewTopic, CreateTopicsResponse.CreatableTopicResult]], context: RequestContext
    ) -> None:
        """Create topics, and fill their rows."""
        shown: dict[tuple[tuple[str, str], ...], list[CreateTopicsResponse.CreatableTopicConfigs]] = {}
        made = await self._topics.create_all([new for new, _ in wanted])
        for (new, row), one in zip(wanted, made, strict=True):
            await context.work.step()
            if isinstance(one, SeglogError):
                row.error_code, row.error_message = error_of(one), message_of(one)
                row.num_partitions = row.replication_factor = -1
                continue
            row.topic_id = one.topic_id
            if context.version < _WITH_CONFIGS:
                continue
            # Topics of a request mostly have the same settings.
            same = tuple(sorted((key, str(value)) for key, value in new.settings.items()))
            if same not in shown or one.is_of_coordinator:
                settings = await self._topics.settings(new.name)
                shown[same] = [
                    CreateTopicsResponse.CreatableTopicConfigs(
                        name=config.name, value=config.value, read_only=False, config_source=config.source)
                    for config in described(settings or {})
                ]
            row.configs = shown[same]

    def _partitions_of(self, topic: CreateTopicsRequest.CreatableTopic) -> int:
        node = self._config.node_id
        if topic.assignments:
            if topic.num_partitions != _BY_DEFAULT or topic.replication_factor != _BY_DEFAULT:
                raise RequestRefusedError(
                    Errors.INVALID_REQUEST,
                    "A manual partition assignment was specified, but numPartitions or replicationFactor was not -1.")
            numbers = sorted(assignment.partition_index for assignment in topic.assignments)
            if numbers != list(range(len(numbers))):
                raise RequestRefusedError(
                    Errors.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence")
            if any(assignment.broker_ids != [node] for assignment in topic.assignments):
                raise RequestRefusedError(
                    Errors.INVALID_REPLICA_ASSIGNMENT, f"Every partition must be assigned to the only broker, {node}.")
            return len(numbers)
        if topic.replication_factor not in (_BY_DEFAULT, 1):
            if topic.replication_factor < 1:
                raise RequestRefusedError(
                    Errors.INVALID_REPLICATION_FACTOR,
                    "Replication factor must be larger than 0, or -1 to use the default value.")
            raise RequestRefusedError(
                Errors.INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {topic.replication_factor} time(s): The target replication factor "
                f"of {topic.replication_factor} cannot be reached because only 1 broker(s) are registered.")
        if topic.num_partitions == _BY_DEFAULT:
            return self._config.num_partitions
        if topic.num_partitions < 1:
            raise RequestRefusedError(
                Errors.INVALID_PARTITIONS,
                "Number of partitions was set to an invalid non-positive value.")
        return int(topic.num_partitions)

    def _checked(self, topic: CreateTopicsRequest.CreatableTopic, partitions: int) -> NewTopic:
        """The topic to create. Raises RequestRefusedError, SeglogError."""
        self._topics.check_name(topic.name)
        if partitions > self._topics.partitions_max:
            raise RequestRefusedError(
                Errors.INVALID_PARTITIONS,
                f"A topic has at most seglog.max.topic.partitions = {self._topics.partitions_max} partitions.")
        why = self._topics.fault(topic.name)
        if self._topics.topic(topic.name) is not None:
            raise RequestRefusedError(Errors.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
        if why is not None:
            raise RequestRefusedError(Errors.INVALID_TOPIC_EXCEPTION, why)
        without = [config.name for config in topic.configs if config.value is None]
        if without:
            raise RequestRefusedError(
                Errors.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(without)}")
        given = {config.name: config.value for config in topic.configs}
        check_lengths(given)
        settings = checked_changes(given, units=False)
        self._topics.limits.check(settings)
        return NewTopic(topic.name, partitions, settings)

    # --- CreatePartitions ------------------------------------------------------------------------

    async def create_partitions(
        self, request: CreatePartitionsRequest, context: RequestContext
    ) -> CreatePartitionsResponse:
        rows: list[CreatePartitionsResponse.CreatePartitionsTopicResult] = []
        times = Counter(topic.name for topic in request.topics)
        for topic in {topic.name: topic for topic in request.topics}.values():
            await context.work.step()
            row = CreatePartitionsResponse.CreatePartitionsTopicResult(name=topic.name)
            rows.append(row)
            try:
                if times[topic.name] > 1:
                    raise RequestRefusedError(Errors.INVALID_REQUEST, "Duplicate topic name.")
                self._check_widening(topic)
                if not request.validate_only and not await self._topics.widen(topic.name, topic.count):
                    raise RequestRefusedError(Errors.UNKNOWN_TOPIC_OR_PARTITION, _NOT_HOSTED)
            except RequestRefusedError as error:
                row.error_code, row.error_message = error.error, error.message
            except SeglogError as error:
                row.error_code, row.error_message = error_of(error), message_of(error)
        return CreatePartitionsResponse(results=rows)

    def _check_widening(self, topic: CreatePartitionsRequest.CreatePartitionsTopic) -> None:
        have = self._topics.partition_count(topic.name)
        if have == 0:
            raise RequestRefusedError(Errors.UNKNOWN_TOPIC_OR_PARTITION, _NOT_HOSTED)
        if topic.count == have:
            raise RequestRefusedError(Errors.INVALID_PARTITIONS, f"Topic already has {have} partition(s).")
        if topic.count < have:
            raise RequestRefusedError(
                Errors.INVALID_PARTITIONS,
                f"The topic {topic.name} currently has {have} partition(s); {topic.count} would not be an increase.")
        if topic.count > self._topics.partitions_max:
            raise RequestRefusedError(
                Errors.INVALID_PARTITIONS,
                f"A topic has at most seglog.max.topic.partitions = {self._topics.partitions_max} partitions.")
        if topic.count - have > _PARTITIONS_MAX:
            raise RequestRefusedError(
                Errors.POLICY_VIOLATION, "Excessively large number of partitions per request.")
        node = self._config.node_id
        if topic.assignments is not None and (
            len(topic.assignments) != topic.count - have or any(a.broker_ids != [node] for a in topic.assignments)
        ):
            raise RequestRefusedError(
                Errors.INVALID_REPLICA_ASSIGNMENT,
                f"Each of the {topic.count - have} new partitions must be assigned to the only broker, {node}.")

    # --- DeleteTopics ----------------------------------------------------------------------------

    async def delete_topics(self, request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
        rows: list[DeleteTopicsResponse.DeletableTopicResult] = []
        wanted: dict[str, DeleteTopicsResponse.DeletableTopicResult] = {}
        asked = [(topic.name, topic.topic_id) for topic in request.topics] or [
            (name, ZERO_ID) for name in request.topic_names
        ]
        for name, topic_id in asked:
            await context.work.step()
            row = DeleteTopicsResponse.DeletableTopicResult(name=name, topic_id=topic_id)
            rows.append(row)
            if not self._config.delete_topic_enable:
                row.error_code = Errors.TOPIC_DELETION_DISABLED
                continue
            topic = self._topics.topic(name) if name is not None else self._topics.topic_of_id(topic_id)
            if name is None and topic_id == ZERO_ID:
                row.error_code, row.error_message = Errors.INVALID_REQUEST, "Neither topic name nor id were specified."
                continue
            if topic is None or topic.name in wanted:
                row.error_code = Errors.UNKNOWN_TOPIC_OR_PARTITION if name is not None else Errors.UNKNOWN_TOPIC_ID
                continue
            wanted[topic.name] = row
            row.name, row.topic_id = topic.name, topic.shown_id
        deleted: list[tuple[str, int]] = []
        for (name, row), done in zip(wanted.items(), await self._topics.delete_all(list(wanted)), strict=True):
            if isinstance(done, SeglogError):
                row.error_code, row.error_message = error_of(done), message_of(done)
                continue
            context.log_deleted("topic", name)
            deleted += [(name, number) for number in range(done)]
        if self._deleted is not None and deleted:
            await self._deleted(deleted)
        return DeleteTopicsResponse(responses=rows)
