"""Requests about offsets: OffsetCommit, OffsetFetch, OffsetDelete, TxnOffsetCommit, in all their versions."""
from collections.abc import Callable, Iterable, Sequence

from seglog.config import MAX_LONG
from seglog.coordinators.consumer_group import ConsumerGroup
from seglog.coordinators.group import CONSUMER_PROTOCOL, Group, GroupState
from seglog.coordinators.group_offsets import CommittedOffset, TopicPartition
from seglog.coordinators.groups import GroupCoordinator
from seglog.coordinators.internal_topic import KeyValue, ProducerOfBatch, has_room
from seglog.coordinators.offsets_topic import AnyGroup, offset_record
from seglog.coordinators.pending_answer import PendingAnswer
from seglog.endpoint.request_context import Handler, RequestContext
from seglog.endpoint.topics import ZERO_ID, Topics
from seglog.endpoint.workload import Workload
from seglog.wire.error_codes import Errors
from seglog.wire.internal_topics import OFFSETS_TOPIC
from seglog.wire.messages import (
    ApiKey,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

_NO_OFFSET = CommittedOffset(-1)
_WITH_EPOCHS = 9    # the first version of OffsetCommit for members of the new protocol
_WITH_IDS = 10      # the first version of OffsetCommit and OffsetFetch that names topics by ids
# The first versions of TxnOffsetCommit that add the group to the transaction (KIP-890), and that name topics by ids.
_JOINS_TRANSACTION, _TXN_WITH_IDS = 5, 6
# What a fetch of one partition finds.
_Found = tuple[CommittedOffset, Errors]

# Returns the group to commit to, and an error of the whole request.
_Committer = Callable[[], tuple[AnyGroup | None, Errors | None]]


def check_member(
    group: ConsumerGroup, member_id: str, epoch: int, *, at_least: int = 0, version: int = 0, always: bool = False
) -> Errors | None:
    """The error for a client that is not a member of the group with this epoch, or None (ConsumerGroup.validateOffset-
    Commit). Without members, every client that names no epoch may commit, unless `always`."""
    if epoch < 0 and not group.members and not always:
        return None
    member = group.members.get(member_id)
    if member is None:
        return Errors.UNKNOWN_MEMBER_ID
    if version < at_least:
        return Errors.UNSUPPORTED_VERSION
    return None if epoch == member.current.epoch else Errors.STALE_MEMBER_EPOCH


class GroupCommits:
    """Answers these requests from `GroupOffsets`."""

    def __init__(self, coordinator: GroupCoordinator, topics: Topics) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self.HANDLERS: dict[ApiKey, Handler] = {
            ApiKey.OFFSET_COMMIT: self.offset_commit,
            ApiKey.OFFSET_FETCH: self.offset_fetch,
            ApiKey.OFFSET_DELETE: self.offset_delete,
            ApiKey.TXN_OFFSET_COMMIT: self.txn_offset_commit,
        }

    # --- commits -----------------------------------------------------------------------------------

    async def offset_commit(self, request: OffsetCommitRequest, context: RequestContext) -> OffsetCommitResponse:
        now_ms = self._coordinator.now_ms()
        retention_ms = request.retention_time_ms
        if context.version >= _WITH_IDS:
            for topic in request.topics:
                topic.name = self._topics.name_of_id(topic.topic_id)
        wanted = await context.work.made(lambda: {
            (topic.name, row.partition_index): CommittedOffset(
                row.committed_offset, row.committed_leader_epoch, row.committed_metadata or "",
                now_ms if row.commit_timestamp == -1 else row.commit_timestamp,
                -1 if retention_ms == -1 else min(now_ms + retention_ms, MAX_LONG),
            )
            for topic in request.topics for row in topic.partitions
        })
        errors = await self._commit(
            request.group_id, wanted, lambda: self._committer(request, context.version), context.work)
        if context.version >= _WITH_IDS:
            errors.update((where, Errors.UNKNOWN_TOPIC_ID) for where in wanted if not where[0])
        return await context.work.made(lambda: OffsetCommitResponse(topics=[
            OffsetCommitResponse.OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=[
                OffsetCommitResponse.OffsetCommitResponsePartition(
                    partition_index=row.partition_index, error_code=errors[topic.name, row.partition_index]
                )
                for row in topic.partitions
            ])
            for topic in request.topics
        ]))

    def _committer(self, request: OffsetCommitRequest, version: int) -> tuple[AnyGroup | None, Errors | None]:
        """The group, and the error if the client may not commit to it."""
        coordinator, generation = self._coordinator, request.generation_id_or_member_epoch
        error = coordinator.check(request.group_id, may_be_empty=True)
        group = coordinator.get(request.group_id)
        if error is None and group is None:
            if generation >= 0:
                return None, Errors.ILLEGAL_GENERATION
            group = coordinator.get_or_make(request.group_id)
            if group is None:
                return None, Errors.POLICY_VIOLATION
        if isinstance(group, ConsumerGroup):
            return group, error or check_member(
                group, request.member_id, generation, at_least=_WITH_EPOCHS, version=version)
        if error is None and group is not None:
            error = self._check_commit(group, request.member_id, request.group_instance_id, generation)
        return group, error

    def _check_commit(
        self, group: Group, member_id: str, group_instance_id: str | None, generation: int
    ) -> Errors | None:
        rebalancing = self._coordinator.rebalancing
        error = rebalancing.check_commit(group, member_id, group_instance_id, generation, is_transactional=False)
        if error is not None or group.state is GroupState.EMPTY:
            return error
        if group.state is GroupState.COMPLETING_REBALANCE:
            # The member does not know its new assignment yet: its partitions may now belong to another member.
            return Errors.REBALANCE_IN_PROGRESS
        rebalancing.hear_of(group, member_id)
        return None

    async def txn_offset_commit(
        self, request: TxnOffsetCommitRequest, context: RequestContext
    ) -> TxnOffsetCommitResponse:
        now_ms = self._coordinator.now_ms()
        producer = ProducerOfBatch(request.producer_id, request.producer_epoch)
        if context.version >= _TXN_WITH_IDS:
            for topic in request.topics:
                topic.name = self._topics.name_of_id(topic.topic_id)
        wanted = await context.work.made(lambda: {
            (topic.name, row.partition_index): CommittedOffset(
                row.committed_offset, row.committed_leader_epoch, row.committed_metadata or "", now_ms
            )
            for topic in request.topics for row in topic.partitions
        })
        joined = Errors.NONE
        if context.version >= _JOINS_TRANSACTION and any(self._exists(where) for where in wanted):
            joined = await self._joined(request, producer)
        errors = await self._commit(
            request.group_id, wanted, lambda: self._transactional_committer(request, producer, joined), context.work,
            producer)
        if context.version >= _TXN_WITH_IDS:
            errors.update((where, Errors.UNKNOWN_TOPIC_ID) for where in wanted if not where[0])
        return await context.work.made(lambda: TxnOffsetCommitResponse(topics=[
            TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=[
                TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                    partition_index=row.partition_index, error_code=errors[topic.name, row.partition_index]
                )
                for row in topic.partitions
            ])
            for topic in request.topics
        ]))

    async def _joined(self, request: TxnOffsetCommitRequest, producer: ProducerOfBatch) -> Errors:
        """Add the group's partition of __consumer_offsets to the transaction."""
        coordinator = self._coordinator
        error = coordinator.check(request.group_id)
        if error is not None or coordinator.join_transaction is None:
            return error or Errors.NONE
        await coordinator.topic.ensure(request.group_id)
        where: TopicPartition = OFFSETS_TOPIC, coordinator.topic.partition_for(request.group_id)
        return await coordinator.join_transaction(request.transactional_id, *producer, {where})

    def _transactional_committer(
        self, request: TxnOffsetCommitRequest, producer: ProducerOfBatch, joined: Errors
    ) -> tuple[AnyGroup | None, Errors | None]:
        """The group, and the error if the producer may not commit to it. `joined`: the error of adding the group to the
        transaction."""
        coordinator = self._coordinator
        error = joined or coordinator.check(request.group_id)
        if error is None and coordinator.verify is not None:
            partition = coordinator.topic.partition_for(request.group_id)
            verified = coordinator.verify(request.transactional_id, *producer, OFFSETS_TOPIC, partition)
            error = None if verified is Errors.NONE else verified
        if error is not None:
            return None, error
        group = coordinator.get_or_make(request.group_id)
        if group is None:
            return None, Errors.POLICY_VIOLATION
        if isinstance(group, ConsumerGroup):
            return group, check_member(group, request.member_id, request.generation_id_or_member_epoch)
        return group, coordinator.rebalancing.check_commit(
            group, request.member_id, request.group_instance_id, request.generation_id_or_member_epoch,
            is_transactional=True,
        )

    async def _commit(
        self, group_id: str, wanted: dict[TopicPartition, CommittedOffset], committer: "_Committer", work: Workload,
        producer: ProducerOfBatch | None = None,
    ) -> dict[TopicPartition, Errors]:
        """Commit, and return the error of each partition's row. `committer` returns the group, and an error of all of
        them; nothing comes between that and the commit. It is not called if there is no such partition at all: a
        request with only unknown topics does not create a group."""
        # In UTF-16 code units, as Kafka counts.
        longest = self._coordinator.config.offset_metadata_max_bytes
        errors, known = dict.fromkeys(wanted, Errors.NONE), []
        commits: dict[TopicPartition, CommittedOffset] = {}
        records: dict[TopicPartition, KeyValue] = {}
        fits = has_room(group_id)
        for where, commit in wanted.items():
            if work.is_heavy:
                await work.pause()
            if not self._exists(where):
                errors[where] = Errors.UNKNOWN_TOPIC_OR_PARTITION
                continue
            known.append(where)
            if len(commit.metadata.encode("utf-16-be", "surrogatepass")) // 2 > longest:
                errors[where] = Errors.OFFSET_METADATA_TOO_LARGE
            elif fits:
                # Encoded before the commit: if something does not fit into a record, nothing has changed yet.
                commits[where], records[where] = commit, offset_record(group_id, where, commit)
        group, error = committer() if known else (None, None)
        if error is not None:
            errors.update(dict.fromkeys(known, error))
        elif commits and group is not None:
            for where in self._coordinator.without_room(group, commits, producer):
                errors[where] = Errors.POLICY_VIOLATION
                del commits[where], records[where]
            if not commits:
                return errors
            written: PendingAnswer[Errors] = PendingAnswer()
            self._coordinator.commit(group, commits, list(records.values()), written.give, producer)
            errors.update(dict.fromkeys(commits, await written))
        return errors

    def _exists(self, where: TopicPartition) -> bool:
        return 0 <= where[1] < self._coordinator.logs.partition_count(where[0])

    # --- fetches -----------------------------------------------------------------------------------

    async def offset_fetch(self, request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
        if context.version >= 8:
            # Each group once, whatever a client sends.
            asked_once = {asked.group_id: asked for asked in request.groups}.values()
            return OffsetFetchResponse(groups=[await self._of_group(asked, request.require_stable, context)
                                               for asked in asked_once])
        error = self._coordinator.check(request.group_id, may_be_empty=True) or Errors.NONE
        topics = None if request.topics is None else [(row.name, row.partition_indexes) for row in request.topics]
        found = await self._find(request.group_id, topics, request.require_stable, error, context)
        return await context.work.made(lambda: OffsetFetchResponse(
            error_code=error,
            topics=[
                OffsetFetchResponse.OffsetFetchResponseTopic(name=name, partitions=[
                    OffsetFetchResponse.OffsetFetchResponsePartition(
                        partition_index=partition, committed_offset=commit.offset, metadata=commit.metadata,
                        committed_leader_epoch=commit.leader_epoch, error_code=error_code,
                    )
                    for partition, (commit, error_code) in rows
                ])
                # From version 2 on, an error of the group appears only once.
                for name, rows in found if context.version < 2 or error is Errors.NONE
            ],
        ))

    async def _of_group(
        self, asked: OffsetFetchRequest.OffsetFetchRequestGroup, require_stable: bool, context: RequestContext
    ) -> OffsetFetchResponse.OffsetFetchResponseGroup:
        error = self._coordinator.check(asked.group_id, may_be_empty=True) or self._check_fetch(asked)
        by_id = context.version >= _WITH_IDS
        for row in asked.topics or () if by_id else ():
            row.name = self._topics.name_of_id(row.topic_id)
        topics = None if asked.topics is None else [(row.name, row.partition_indexes) for row in asked.topics]
        await context.work.step()
        found = [] if error else await self._find(asked.group_id, topics, require_stable, error, context)
        if not by_id:
            ids = [ZERO_ID] * len(found)
        elif asked.topics is None:      # without an id, a client could not tell which topic is meant
            served = [(one, self._topics.topic(one[0])) for one in found]
            found, ids = [one for one, topic in served if topic], [topic.shown_id for _, topic in served if topic]
        else:
            ids = [row.topic_id for row in asked.topics]
        return await context.work.made(lambda: OffsetFetchResponse.OffsetFetchResponseGroup(
            group_id=asked.group_id, error_code=error,
            topics=[
                OffsetFetchResponse.OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=[
                    OffsetFetchResponse.OffsetFetchResponsePartitions(
                        partition_index=partition, committed_offset=commit.offset, metadata=commit.metadata,
                        committed_leader_epoch=commit.leader_epoch,
                        error_code=Errors.UNKNOWN_TOPIC_ID if by_id and not name else error_code,
                    )
                    for partition, (commit, error_code) in rows
                ])
                for (name, rows), topic_id in zip(found, ids, strict=False)
            ],
        ))

    def _check_fetch(self, asked: OffsetFetchRequest.OffsetFetchRequestGroup) -> Errors:
        """The error for a member of the new protocol whose epoch is not that of its group's member."""
        group = self._coordinator.get(asked.group_id)
        if not isinstance(group, ConsumerGroup) or (asked.member_id is None and asked.member_epoch < 0):
            return Errors.NONE
        return check_member(group, asked.member_id or "", asked.member_epoch, always=True) or Errors.NONE

    async def _find(
        self, group_id: str, topics: Sequence[tuple[str, Iterable[int]]] | None, require_stable: bool, error: Errors,
        context: RequestContext,
    ) -> list[tuple[str, list[tuple[int, _Found]]]]:
        """The offsets of the partitions, by topic; None for `topics`: of all partitions that the group committed."""
        group = None if error else self._coordinator.get(group_id)
        if topics is None:
            by_topic: dict[str, list[int]] = {}
            for name, partition in [] if group is None else group.offsets.partitions():
                by_topic.setdefault(name, []).append(partition)
            topics = list(by_topic.items())

        def found(where: TopicPartition) -> _Found:
            if group is None:
                return _NO_OFFSET, error
            if require_stable and group.offsets.is_unstable(where):
                return _NO_OFFSET, Errors.UNSTABLE_OFFSET_COMMIT
            return group.offsets.get(where) or _NO_OFFSET, Errors.NONE

        answered = []
        for name, partitions in topics:
            rows = []
            for partition in partitions:
                commit, error_code = found((name, partition))
                await context.work.step(size_bytes=len(commit.metadata))
                rows.append((partition, (commit, error_code)))
            answered.append((name, rows))
        return answered

    # --- deletions ---------------------------------------------------------------------------------

    async def offset_delete(self, request: OffsetDeleteRequest, context: RequestContext) -> OffsetDeleteResponse:
        coordinator = self._coordinator
        error = coordinator.check(request.group_id)
        group = coordinator.get(request.group_id)
        if error is None and group is None:
            error = Errors.GROUP_ID_NOT_FOUND
        is_in_use = group is not None and group.state is not GroupState.EMPTY
        if error is None and is_in_use and group is not None and group.protocol_type != CONSUMER_PROTOCOL:
            error = Errors.NON_EMPTY_GROUP      # which topics its members read is not known
        if error is not None or group is None:
            return OffsetDeleteResponse(error_code=error or Errors.NONE)
        errors = {}
        for where in [(topic.name, row.partition_index) for topic in request.topics for row in topic.partitions]:
            if context.work.is_heavy:
                await context.work.pause()
            if not self._exists(where):
                errors[where] = Errors.UNKNOWN_TOPIC_OR_PARTITION
            elif is_in_use and group.is_subscribed_to(where[0]):
                errors[where] = Errors.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                errors[where] = Errors.NONE
        removed = group.offsets.remove([where for where, error in errors.items() if error is Errors.NONE])
        if removed:
            failed = await coordinator.remove(group, removed)
            errors.update(dict.fromkeys(removed, failed))
        return await context.work.made(lambda: OffsetDeleteResponse(topics=[
            OffsetDeleteResponse.OffsetDeleteResponseTopic(name=topic.name, partitions=[
                OffsetDeleteResponse.OffsetDeleteResponsePartition(
                    partition_index=row.partition_index, error_code=errors[topic.name, row.partition_index]
                )
                for row in topic.partitions
            ])
            for topic in request.topics
        ]))
