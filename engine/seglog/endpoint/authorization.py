"""Checks each request against the ACLs, before its handler sees it: what a client may not do is taken out of the
request, and refused in the answer.

    request ── its rule ── what is allowed ── the handler ── the answer ── with rows for what is refused
                  └── the whole request is refused

The rules are those of Kafka's KafkaApis, ControllerApis and AclApis. Each API has one, in RULES.
"""
import copy
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from seglog.coordinators.pending_answer import PendingAnswer
from seglog.endpoint.authorizer import Authorizer
from seglog.endpoint.error_answers import error_answer
from seglog.endpoint.request_context import Handler, RequestContext
from seglog.endpoint.topics import ZERO_ID, Topics
from seglog.errors import ProtocolError
from seglog.named_tuple import NamedTuple
from seglog.state.acls import CLUSTER_NAME, Operation, ResourceType
from seglog.wire.error_codes import Errors
from seglog.wire.messages import (
    ApiKey,
    ConsumerGroupDescribeResponse,
    DeleteTopicsResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    FindCoordinatorResponse,
    MetadataResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
)

TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = (
    ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID)
_REFUSED = {
    TOPIC: Errors.TOPIC_AUTHORIZATION_FAILED,
    GROUP: Errors.GROUP_AUTHORIZATION_FAILED,
    CLUSTER: Errors.CLUSTER_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID: Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_NOT_ALLOWED = "Authorization failed."
# ConfigResource.Type; any other number is the handler's to refuse.
_CONFIGURED = {2: TOPIC, 4: CLUSTER, 8: CLUSTER, 16: CLUSTER, 32: GROUP}
# Since these versions.
_METADATA_WITH_IDS, _COORDINATORS, _TRANSACTIONS, _GROUPS = 12, 4, 4, 8
_OFFSETS_WITH_IDS, _TXN_OFFSETS_WITH_IDS = 10, 6


class Asked:
    """A request that is checked, and what its client may do."""

    def __init__(
        self, key: ApiKey, request: Any, context: RequestContext, handler: Handler, authorizer: Authorizer,
        topics: Topics, creates_topics: bool,
    ) -> None:
        self.key = key
        self.request = request
        self.context = context
        self.topics = topics
        self.creates_topics = creates_topics
        self._handler = handler
        self._authorizer = authorizer
        self._host = context.client_host.removeprefix("/")

    def may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        return self._authorizer.allows(self.context.principal, self._host, operation, kind, name)

    def may_cluster(self, operation: Operation) -> bool:
        return self.may(operation, CLUSTER, CLUSTER_NAME)

    def may_some(self, operation: Operation, kind: ResourceType) -> bool:
        return self._authorizer.allows_some(self.context.principal, self._host, operation, kind)

    def operations(self, possible: int, kind: ResourceType, name: str) -> int:
        """Those of `possible` that the client may do, as bits."""
        return sum(1 << one.value for one in Operation
                   if possible & 1 << one.value and self.may(one, kind, name))

    async def handled(self) -> Any:
        """The handler's answer to what is left of the request."""
        answer = await self._handler(self.request, self.context)
        return await answer if isinstance(answer, PendingAnswer) else answer

    def told(self, operation: Operation, kind: ResourceType, name: object) -> None:
        """Write it to the security log."""
        context = self.context
        context.security.denied(context.client_host, context.principal, operation.name, kind.name, name)

    def refused(self, operation: Operation, kind: ResourceType, name: object, request: Any = None) -> Any:
        """The answer that refuses the whole request, or `request`, which is a part of it. Raises ProtocolError if the
        client expects no answer: the connection is closed then."""
        self.told(operation, kind, name)
        answer = error_answer(self.key, self.request if request is None else request, _REFUSED[kind])
        if answer is None:
            raise ProtocolError(f"{self.key.name} is not allowed, and the client expects no answer")
        if hasattr(answer, "error_message"):
            answer.error_message = _NOT_ALLOWED
        return answer

    async def parted(
        self, rows: Iterable[Any], operation: Operation, kind: ResourceType, name_of: "Callable[[Any], str | None]",
    ) -> tuple[list[Any], list[Any]]:
        """The rows that are allowed, and those that are not. One whose name is None is the handler's to refuse."""
        allowed: list[Any] = []
        refused: list[Any] = []
        for row in rows:
            if self.context.work.is_heavy:
                await self.context.work.pause()
            name = name_of(row)
            (allowed if name is None or self.may(operation, kind, name) else refused).append(row)
        return allowed, refused


Rule = Callable[[Asked], Awaitable[Any]]


class Authorization:
    """Of one server. `creates_topics`: whether a request for metadata creates a topic."""

    def __init__(self, authorizer: Authorizer, topics: Topics, *, creates_topics: bool) -> None:
        self._authorizer = authorizer
        self._topics = topics
        self._creates_topics = creates_topics

    def guarded(self, handlers: Mapping[ApiKey, Handler]) -> dict[ApiKey, Handler]:
        """The handlers behind their rules."""
        return {key: self._guarded(key, handler, RULES[key]) for key, handler in handlers.items()}

    def _guarded(self, key: ApiKey, handler: Handler, rule: Rule) -> Handler:
        async def answer(request: Any, context: RequestContext) -> Any:
            return await rule(
                Asked(key, request, context, handler, self._authorizer, self._topics, self._creates_topics))

        return answer


# --- rules for most APIs ---------------------------------------------------------------------------


class _Needs(NamedTuple):
    """Without this, the whole request is refused. `field`: of the request, which names the resource; None: the
    cluster. A resource without a name needs nothing."""

    operation: Operation
    kind: ResourceType
    field: str | None = None


class _Each(NamedTuple):
    """Each row of a request needs this, and is refused by itself. `unless`: whoever may do this to the cluster may do
    it to each row."""

    operation: Operation
    kind: ResourceType
    field: str
    answer_field: str
    name: str | None = "name"       # of the row; None: the row is the name
    unless: Operation | None = None
    ids_since: int | None = None    # the first version that names topics by ids


def _rule(*needs: _Needs, each: _Each | None = None) -> Rule:
    async def rule(asked: Asked) -> Any:
        for need in needs:
            name = CLUSTER_NAME if need.field is None else getattr(asked.request, need.field)
            if name is not None and not asked.may(need.operation, need.kind, name):
                return asked.refused(need.operation, need.kind, name)
        return await asked.handled() if each is None else await _of_each(asked, each)

    return rule


def _name_of(asked: Asked, each: _Each) -> "Callable[[Any], str | None]":
    """The name of a row; None for the id of no topic, which is the handler's to refuse."""
    field = each.name
    if field is None:
        return lambda row: str(row)
    if each.ids_since is None or asked.context.version < each.ids_since:
        return lambda row: str(getattr(row, field))
    return lambda row: asked.topics.name_of_id(row.topic_id) or None


async def _of_each(asked: Asked, each: _Each) -> Any:
    """The answer to the allowed rows, with those that are refused. Raises ProtocolError if rows are refused to a
    client that expects no answer."""
    if each.unless is not None and asked.may_cluster(each.unless):
        return await asked.handled()
    name_of = _name_of(asked, each)
    allowed, refused = await asked.parted(getattr(asked.request, each.field), each.operation, each.kind, name_of)
    if not refused:
        return await asked.handled()
    others = copy.copy(asked.request)
    setattr(others, each.field, refused)
    setattr(asked.request, each.field, allowed)
    answer = await asked.handled()
    rows = getattr(asked.refused(each.operation, each.kind, name_of(refused[0]), others), each.answer_field)
    for row in rows:
        if hasattr(row, "error_message"):
            row.error_message = _NOT_ALLOWED
    getattr(answer, each.answer_field).extend(rows)
    return answer


async def _anybody(asked: Asked) -> Any:
    return await asked.handled()


def _of_cluster(operation: Operation) -> Rule:
    return _rule(_Needs(operation, CLUSTER))


def _of_topics(operation: Operation, field: str = "topics", answer_field: str = "topics", name: str = "name",
               unless: Operation | None = None) -> Rule:
    return _rule(each=_Each(operation, TOPIC, field, answer_field, name, unless))


def _of_group(operation: Operation) -> Rule:
    return _rule(_Needs(operation, GROUP, "group_id"))


# --- records ---------------------------------------------------------------------------------------


async def _fetch(asked: Asked) -> Any:
    request = asked.request
    state = request.replica_state       # since version 15; before, there is only the number
    if (request.replica_id if state is None else state.replica_id) >= 0:        # it asks as a follower
        if asked.may_cluster(Operation.CLUSTER_ACTION):
            return await asked.handled()
        return asked.refused(Operation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)

    return await _of_each(asked, _Each(Operation.READ, TOPIC, "topics", "responses", name="topic", ids_since=13))


async def _init_producer_id(asked: Asked) -> Any:
    name = asked.request.transactional_id
    if name is not None:
        if not asked.may(Operation.WRITE, TRANSACTIONAL_ID, name):
            return asked.refused(Operation.WRITE, TRANSACTIONAL_ID, name)
    elif not asked.may_cluster(Operation.IDEMPOTENT_WRITE) and not asked.may_some(Operation.WRITE, TOPIC):
        return asked.refused(Operation.IDEMPOTENT_WRITE, CLUSTER, CLUSTER_NAME)
    return await asked.handled()


async def _add_partitions(asked: Asked) -> Any:
    """All partitions are added, or none. From version 4 on, only brokers ask."""
    request = asked.request
    if asked.context.version >= _TRANSACTIONS:
        if not asked.may_cluster(Operation.CLUSTER_ACTION):
            return asked.refused(Operation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)
        return await asked.handled()
    name = request.v3_and_below_transactional_id
    if not asked.may(Operation.WRITE, TRANSACTIONAL_ID, name):
        return asked.refused(Operation.WRITE, TRANSACTIONAL_ID, name)
    _, refused = await asked.parted(
        request.v3_and_below_topics, Operation.WRITE, TOPIC, lambda row: str(row.name))
    if not refused:
        return await asked.handled()
    asked.told(Operation.WRITE, TOPIC, refused[0].name)
    answer = error_answer(asked.key, request, Errors.OPERATION_NOT_ATTEMPTED)
    answer.error_code = Errors.NONE
    names = {row.name for row in refused}
    for topic in answer.results_by_topic_v3_and_below:
        if topic.name in names:
            for row in topic.results_by_partition:
                row.partition_error_code = Errors.TOPIC_AUTHORIZATION_FAILED
    return answer


async def _write_markers(asked: Asked) -> Any:
    """Brokers write markers, and so does an operator who may alter the cluster."""
    if asked.may_cluster(Operation.ALTER) or asked.may_cluster(Operation.CLUSTER_ACTION):
        return await asked.handled()
    return asked.refused(Operation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)


# --- topics ----------------------------------------------------------------------------------------


async def _metadata(asked: Asked) -> Any:
    request, version = asked.request, asked.context.version
    rows = request.topics
    is_of_all = rows is None or (version == 0 and not rows)
    refused: list[Any] = []
    if not is_of_all:
        def name_of(row: Any) -> str | None:
            if version >= _METADATA_WITH_IDS and row.topic_id != ZERO_ID:
                topic = asked.topics.topic_of_id(row.topic_id)
                return None if topic is None else topic.name
            return None if row.topic_id != ZERO_ID else row.name or ""

        allowed, hidden = await asked.parted(rows, Operation.DESCRIBE, TOPIC, name_of)
        # Of a topic that is told by its id, the name is not revealed; of one that is named, the id.
        refused = [MetadataResponse.MetadataResponseTopic(
            error_code=Errors.TOPIC_AUTHORIZATION_FAILED, topic_id=row.topic_id,
            name=None if row.topic_id != ZERO_ID else row.name) for row in hidden]
        if request.allow_auto_topic_creation and asked.creates_topics and not asked.may_cluster(Operation.CREATE):
            allowed, uncreated = await asked.parted(
                allowed, Operation.CREATE, TOPIC,
                lambda row: row.name if row.topic_id == ZERO_ID and row.name and asked.topics.topic(row.name) is None
                else None)
            hidden += uncreated
            refused += (MetadataResponse.MetadataResponseTopic(
                error_code=Errors.TOPIC_AUTHORIZATION_FAILED, name=row.name) for row in uncreated)
        if hidden:
            asked.told(Operation.DESCRIBE, TOPIC, hidden[0].name)
        request.topics = allowed
    answer = await asked.handled()
    if is_of_all:
        answer.topics, _ = await asked.parted(
            answer.topics, Operation.DESCRIBE, TOPIC, lambda row: str(row.name))
    elif version == 0 and not request.topics:
        answer.topics = []      # the handler took it for a request of all topics
    for row in answer.topics:
        if request.include_topic_authorized_operations and not row.error_code:
            row.topic_authorized_operations = asked.operations(row.topic_authorized_operations, TOPIC, row.name)
    answer.topics.extend(refused)
    _cut_cluster_operations(asked, answer)
    return answer


def _cut_cluster_operations(asked: Asked, answer: Any) -> None:
    if asked.request.include_cluster_authorized_operations:
        possible = answer.cluster_authorized_operations
        answer.cluster_authorized_operations = (
            asked.operations(possible, CLUSTER, CLUSTER_NAME) if asked.may_cluster(Operation.DESCRIBE) else 0)


async def _describe_topic_partitions(asked: Asked) -> Any:
    request, row_of = asked.request, DescribeTopicPartitionsRequest.TopicRequest
    is_of_all = not request.topics
    asked_for = [row_of(name=name) for name in asked.topics.names()] if is_of_all else request.topics
    allowed, refused = await asked.parted(asked_for, Operation.DESCRIBE, TOPIC, lambda row: str(row.name))
    if is_of_all:
        refused = []
        if request.cursor is not None:
            allowed = [row for row in allowed if row.name >= request.cursor.topic_name]
            if not allowed or allowed[0].name != request.cursor.topic_name:
                request.cursor = None       # the topic is gone, or it is not for this client: the next one follows
    if allowed:
        request.topics = allowed
        answer = await asked.handled()
        for row in answer.topics:
            row.topic_authorized_operations = asked.operations(row.topic_authorized_operations, TOPIC, row.name)
    else:
        answer = DescribeTopicPartitionsResponse(next_cursor=None)
    if refused:
        asked.told(Operation.DESCRIBE, TOPIC, refused[0].name)
    answer.topics.extend(DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        error_code=Errors.TOPIC_AUTHORIZATION_FAILED, name=row.name) for row in refused)
    return answer


async def _describe_cluster(asked: Asked) -> Any:
    answer = await asked.handled()
    if not answer.error_code:
        _cut_cluster_operations(asked, answer)
    return answer


async def _create_topics(asked: Asked) -> Any:
    answer = await _of_each(asked, _Each(Operation.CREATE, TOPIC, "topics", "topics", unless=Operation.CREATE))
    for row in answer.topics:
        if not row.error_code and not asked.may(Operation.DESCRIBE_CONFIGS, TOPIC, row.name):
            row.topic_config_error_code = Errors.TOPIC_AUTHORIZATION_FAILED
            row.configs, row.num_partitions, row.replication_factor = None, -1, -1
    return answer


async def _delete_topics(asked: Asked) -> Any:
    """Who may not describe a topic is not told its name."""
    request = asked.request
    if asked.may_cluster(Operation.DELETE):
        return await asked.handled()

    def name_of(row: Any) -> str | None:
        if row.topic_id == ZERO_ID:
            return row.name or ""
        topic = asked.topics.topic_of_id(row.topic_id)
        return None if topic is None else topic.name

    request.topics, refused = await asked.parted(request.topics, Operation.DELETE, TOPIC, name_of)
    request.topic_names, refused_names = await asked.parted(request.topic_names, Operation.DELETE, TOPIC, str)
    rows = []
    for row in [*refused, *refused_names]:
        name = row if isinstance(row, str) else name_of(row) or ""
        is_named = isinstance(row, str) or row.topic_id == ZERO_ID
        rows.append(DeleteTopicsResponse.DeletableTopicResult(
            error_code=Errors.TOPIC_AUTHORIZATION_FAILED, error_message=_NOT_ALLOWED,
            name=name if is_named or asked.may(Operation.DESCRIBE, TOPIC, name) else None,
            topic_id=ZERO_ID if isinstance(row, str) else row.topic_id))
        asked.told(Operation.DELETE, TOPIC, name)
    answer = await asked.handled()
    answer.responses.extend(rows)
    return answer


def _of_configs(operation: Operation, answer_field: str) -> Rule:
    async def rule(asked: Asked) -> Any:
        request = asked.request
        allowed: list[Any] = []
        refused: list[Any] = []
        for row in request.resources:
            if asked.context.work.is_heavy:
                await asked.context.work.pause()
            kind = _CONFIGURED.get(row.resource_type)
            name = CLUSTER_NAME if kind is CLUSTER else row.resource_name
            is_allowed = kind is None or asked.may(operation, kind, name)
            (allowed if is_allowed else refused).append(row)
        request.resources = allowed
        answer = await asked.handled()
        for row in refused:
            others = copy.copy(request)
            others.resources = [row]
            kind = _CONFIGURED[row.resource_type]
            rows = getattr(asked.refused(operation, kind, row.resource_name, others), answer_field)
            for one in rows:
                one.error_message = _NOT_ALLOWED
            getattr(answer, answer_field).extend(rows)
        return answer

    return rule


# --- groups and transactions -----------------------------------------------------------------------


async def _offset_fetch(asked: Asked) -> Any:
    request, version = asked.request, asked.context.version
    if version >= _GROUPS:
        groups, refused = await asked.parted(
            request.groups, Operation.DESCRIBE, GROUP, lambda row: str(row.group_id))
        request.groups = groups
        hidden = {}
        for group in groups:
            group.topics, hidden[group.group_id] = await _offsets_asked(asked, group.topics)
        answer = await asked.handled()
        if refused:
            asked.told(Operation.DESCRIBE, GROUP, refused[0].group_id)
        for group in answer.groups:
            group.topics = await _offsets_told(
                asked, group.topics, [] if group.error_code else hidden.get(group.group_id, []),
                OffsetFetchResponse.OffsetFetchResponseTopics, OffsetFetchResponse.OffsetFetchResponsePartitions)
        answer.groups.extend(OffsetFetchResponse.OffsetFetchResponseGroup(
            group_id=row.group_id, error_code=Errors.GROUP_AUTHORIZATION_FAILED) for row in refused)
        return answer
    topic_of, partition_of = OffsetFetchResponse.OffsetFetchResponseTopic, (
        OffsetFetchResponse.OffsetFetchResponsePartition)
    if not asked.may(Operation.DESCRIBE, GROUP, request.group_id):
        asked.told(Operation.DESCRIBE, GROUP, request.group_id)
        # The first two versions have no error but those of partitions.
        return OffsetFetchResponse(error_code=Errors.GROUP_AUTHORIZATION_FAILED, topics=[] if version >= 2 else [
            _no_offsets(row, Errors.GROUP_AUTHORIZATION_FAILED, topic_of, partition_of)
            for row in request.topics or ()])
    request.topics, refused = await _offsets_asked(asked, request.topics)
    answer = await asked.handled()
    answer.topics = await _offsets_told(
        asked, answer.topics, [] if answer.error_code and version >= 2 else refused, topic_of, partition_of)
    return answer


async def _offsets_asked(asked: Asked, topics: "list[Any] | None") -> "tuple[list[Any] | None, list[Any]]":
    if topics is None:
        return None, []
    if asked.context.version >= _OFFSETS_WITH_IDS:
        for row in topics:
            row.name = asked.topics.name_of_id(row.topic_id)
    allowed, refused = await asked.parted(topics, Operation.DESCRIBE, TOPIC, _offsets_of(asked))
    if refused:
        asked.told(Operation.DESCRIBE, TOPIC, refused[0].name)
    return allowed, refused


def _offsets_of(asked: Asked) -> "Callable[[Any], str | None]":
    """The topic of a row; None for the id of no topic, which is the handler's to refuse."""
    return lambda row: None if not row.name and asked.context.version >= _OFFSETS_WITH_IDS else str(row.name)


async def _offsets_told(
    asked: Asked, topics: list[Any], refused: list[Any], topic_of: Callable[..., Any],
    partition_of: Callable[..., Any],
) -> list[Any]:
    """The rows of the answer: those of all topics of a group are cut, too."""
    allowed, _ = await asked.parted(topics, Operation.DESCRIBE, TOPIC, _offsets_of(asked))
    return [*allowed, *(
        _no_offsets(row, Errors.TOPIC_AUTHORIZATION_FAILED, topic_of, partition_of) for row in refused)]


def _no_offsets(row: Any, error: Errors, topic_of: Callable[..., Any], partition_of: Callable[..., Any]) -> Any:
    topic = topic_of(name=row.name, partitions=[
        partition_of(partition_index=number, committed_offset=-1, metadata="", error_code=error)
        for number in row.partition_indexes])
    if hasattr(topic, "topic_id"):      # since version 8, and sent since 10
        topic.topic_id = row.topic_id
    return topic


async def _offset_delete(asked: Asked) -> Any:
    request = asked.request
    if not asked.may(Operation.DELETE, GROUP, request.group_id):
        return asked.refused(Operation.DELETE, GROUP, request.group_id)
    request.topics, refused = await asked.parted(request.topics, Operation.READ, TOPIC, lambda row: str(row.name))
    answer = await asked.handled()
    if refused and not answer.error_code:
        asked.told(Operation.READ, TOPIC, refused[0].name)
        answer.topics.extend(OffsetDeleteResponse.OffsetDeleteResponseTopic(name=topic.name, partitions=[
            OffsetDeleteResponse.OffsetDeleteResponsePartition(
                partition_index=row.partition_index, error_code=Errors.TOPIC_AUTHORIZATION_FAILED)
            for row in topic.partitions]) for topic in refused)
    return answer


async def _find_coordinator(asked: Asked) -> Any:
    request = asked.request
    kind = {0: GROUP, 1: TRANSACTIONAL_ID}.get(request.key_type)
    if kind is None:
        return await asked.handled()
    if asked.context.version < _COORDINATORS:
        if not asked.may(Operation.DESCRIBE, kind, request.key):
            return asked.refused(Operation.DESCRIBE, kind, request.key)
        return await asked.handled()
    request.coordinator_keys, refused = await asked.parted(request.coordinator_keys, Operation.DESCRIBE, kind, str)
    # Without a key that is allowed, the coordinator's topic is not created for this client, either.
    answer = await asked.handled() if request.coordinator_keys else FindCoordinatorResponse()
    if refused:
        asked.told(Operation.DESCRIBE, kind, refused[0])
    answer.coordinators.extend(FindCoordinatorResponse.Coordinator(
        key=key, node_id=-1, port=-1, error_code=_REFUSED[kind], error_message=_NOT_ALLOWED) for key in refused)
    return answer


async def _describe_groups(asked: Asked) -> Any:
    answer = await _of_each(asked, _Each(Operation.DESCRIBE, GROUP, "groups", "groups", name=None))
    if asked.request.include_authorized_operations:
        for row in answer.groups:
            if not row.error_code:
                row.authorized_operations = asked.operations(row.authorized_operations, GROUP, row.group_id)
    return answer


async def _list_groups(asked: Asked) -> Any:
    answer = await asked.handled()
    if not asked.may_cluster(Operation.DESCRIBE):
        answer.groups, _ = await asked.parted(
            answer.groups, Operation.DESCRIBE, GROUP, lambda row: str(row.group_id))
    return answer


async def _consumer_heartbeat(asked: Asked) -> Any:
    """A member needs every topic that it names. Of those that match its regular expression, it gets the allowed."""
    request = asked.request
    if not asked.may(Operation.READ, GROUP, request.group_id):
        return asked.refused(Operation.READ, GROUP, request.group_id)
    _, refused = await asked.parted(request.subscribed_topic_names or (), Operation.DESCRIBE, TOPIC, str)
    return asked.refused(Operation.DESCRIBE, TOPIC, refused[0]) if refused else await asked.handled()


async def _describe_consumer_groups(asked: Asked) -> Any:
    answer = await _of_each(asked, _Each(Operation.DESCRIBE, GROUP, "group_ids", "groups", name=None))
    for number, row in enumerate(answer.groups):
        if row.error_code:
            continue
        if asked.request.include_authorized_operations:
            row.authorized_operations = asked.operations(row.authorized_operations, GROUP, row.group_id)
        named = {topic.topic_name for member in row.members for assignment in (
            member.assignment, member.target_assignment) for topic in assignment.topic_partitions}
        named.update(name for member in row.members for name in member.subscribed_topic_names)
        _, hidden = await asked.parted(named, Operation.DESCRIBE, TOPIC, str)
        if hidden:      # it would tell of topics that are not for this client
            asked.told(Operation.DESCRIBE, TOPIC, hidden[0])
            answer.groups[number] = ConsumerGroupDescribeResponse.DescribedGroup(
                group_id=row.group_id, error_code=Errors.TOPIC_AUTHORIZATION_FAILED,
                error_message="The group has described topic(s) that the client is not authorized to describe.")
    return answer


async def _describe_transactions(asked: Asked) -> Any:
    answer = await _of_each(
        asked, _Each(Operation.DESCRIBE, TRANSACTIONAL_ID, "transactional_ids", "transaction_states", name=None))
    for row in answer.transaction_states:
        row.topics, _ = await asked.parted(row.topics, Operation.DESCRIBE, TOPIC, lambda topic: str(topic.topic))
    return answer


async def _list_transactions(asked: Asked) -> Any:
    answer = await asked.handled()
    answer.transaction_states, _ = await asked.parted(
        answer.transaction_states, Operation.DESCRIBE, TRANSACTIONAL_ID, lambda row: str(row.transactional_id))
    return answer


_WRITES_TRANSACTION = _Needs(Operation.WRITE, TRANSACTIONAL_ID, "transactional_id")
_READS_GROUP = _Needs(Operation.READ, GROUP, "group_id")
_COMMITS = _Each(Operation.READ, TOPIC, "topics", "topics")
_WRITES_TOPIC = _Each(Operation.WRITE, TOPIC, "topic_data", "responses", ids_since=13)

RULES: Mapping[ApiKey, Rule] = {
    ApiKey.PRODUCE: _rule(_WRITES_TRANSACTION, each=_WRITES_TOPIC),
    ApiKey.FETCH: _fetch,
    ApiKey.LIST_OFFSETS: _of_topics(Operation.DESCRIBE),
    ApiKey.METADATA: _metadata,
    ApiKey.OFFSET_COMMIT: _rule(_READS_GROUP, each=_COMMITS._replace(ids_since=_OFFSETS_WITH_IDS)),
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.JOIN_GROUP: _of_group(Operation.READ),
    ApiKey.HEARTBEAT: _of_group(Operation.READ),
    ApiKey.LEAVE_GROUP: _of_group(Operation.READ),
    ApiKey.SYNC_GROUP: _of_group(Operation.READ),
    ApiKey.DESCRIBE_GROUPS: _describe_groups,
    ApiKey.LIST_GROUPS: _list_groups,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _consumer_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: _describe_consumer_groups,
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.DELETE_RECORDS: _of_topics(Operation.DELETE),
    ApiKey.INIT_PRODUCER_ID: _init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _of_topics(
        Operation.DESCRIBE, name="topic", unless=Operation.CLUSTER_ACTION),
    ApiKey.ADD_PARTITIONS_TO_TXN: _add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: _rule(_WRITES_TRANSACTION, _READS_GROUP),
    ApiKey.END_TXN: _rule(_WRITES_TRANSACTION),
    ApiKey.TXN_OFFSET_COMMIT: _rule(
        _WRITES_TRANSACTION, _READS_GROUP, each=_COMMITS._replace(ids_since=_TXN_OFFSETS_WITH_IDS)),
    ApiKey.DESCRIBE_ACLS: _of_cluster(Operation.DESCRIBE),
    ApiKey.CREATE_ACLS: _of_cluster(Operation.ALTER),
    ApiKey.DELETE_ACLS: _of_cluster(Operation.ALTER),
    ApiKey.DESCRIBE_CONFIGS: _of_configs(Operation.DESCRIBE_CONFIGS, "results"),
    ApiKey.ALTER_CONFIGS: _of_configs(Operation.ALTER_CONFIGS, "responses"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _of_configs(Operation.ALTER_CONFIGS, "responses"),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _of_cluster(Operation.ALTER),
    ApiKey.DESCRIBE_LOG_DIRS: _of_cluster(Operation.DESCRIBE),
    ApiKey.CREATE_PARTITIONS: _of_topics(Operation.ALTER, answer_field="results"),
    # Delegation tokens are refused to everybody.
    ApiKey.CREATE_DELEGATION_TOKEN: _anybody,
    ApiKey.RENEW_DELEGATION_TOKEN: _anybody,
    ApiKey.EXPIRE_DELEGATION_TOKEN: _anybody,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _anybody,
    ApiKey.DELETE_GROUPS: _rule(each=_Each(Operation.DELETE, GROUP, "groups_names", "results", name=None)),
    ApiKey.ELECT_LEADERS: _of_cluster(Operation.ALTER),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _of_cluster(Operation.ALTER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _of_cluster(Operation.DESCRIBE),
    ApiKey.OFFSET_DELETE: _offset_delete,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _of_cluster(Operation.DESCRIBE_CONFIGS),
    ApiKey.ALTER_CLIENT_QUOTAS: _of_cluster(Operation.ALTER_CONFIGS),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _of_cluster(Operation.DESCRIBE),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _of_cluster(Operation.ALTER),
    ApiKey.DESCRIBE_QUORUM: _of_cluster(Operation.DESCRIBE),
    ApiKey.UPDATE_FEATURES: _of_cluster(Operation.ALTER),
    ApiKey.DESCRIBE_CLUSTER: _describe_cluster,
    ApiKey.DESCRIBE_PRODUCERS: _of_topics(Operation.READ),
    ApiKey.UNREGISTER_BROKER: _of_cluster(Operation.ALTER),
    ApiKey.DESCRIBE_TRANSACTIONS: _describe_transactions,
    ApiKey.LIST_TRANSACTIONS: _list_transactions,
    ApiKey.WRITE_TXN_MARKERS: _write_markers,
    ApiKey.LIST_CONFIG_RESOURCES: _of_cluster(Operation.DESCRIBE_CONFIGS),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _describe_topic_partitions,
}
