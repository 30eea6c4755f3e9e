"""The rest of the conversation: groups, transactions, topics and their configurations."""

import time

from seglog.wire import codec
from seglog.wire import messages as m
from support.conversation import (
    PATIENCE_S,
    UNKNOWN_ID,
    Conversation,
    batch,
    codes_of,
    fetch,
    last_version,
    produce,
    versions,
)

TOPIC, BROKER = 2, 4


class WholeConversation(Conversation):
    # --- groups ------------------------------------------------------------------------------

    def on_groups(self):
        """A group for each of ten steps; step k takes every API in version k, or in its last one."""
        self.topic("committed", 2)
        self.settled(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        for step in range(10):
            self.talk_as_member(step)
            self.talk_without_members(step)

    def at(self, step, label, request):
        last = last_version(type(request))
        return self.say(f"{label} ({step})" if step > last else label, request, min(step, last))

    def talk_as_member(self, step):
        group = f"group-{step}"
        J = m.JoinGroupRequest
        subscription = codec.encode_versioned(m.ConsumerProtocolSubscription(topics=["committed"]), 1)

        def join(member="", group=group, session_ms=30_000, protocols=("range", "other"), protocol_type="consumer"):
            return J(
                group_id=group,
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=30_000,
                member_id=member,
                protocol_type=protocol_type,
                protocols=[J.JoinGroupRequestProtocol(name=name, metadata=subscription) for name in protocols],
            )

        at = lambda label, request: self.at(step, label, request)  # noqa: E731
        at("an unknown member", join("nobody"))
        at("no group id", join(group=""))
        at("too short a session", join(session_ms=1))
        at("too long a session", join(session_ms=10**9))
        at("no protocols", join(protocols=()))
        at("no protocol type", join(protocol_type=""))
        request = join()
        joined = self.settled(request, min(step, J.MAX_VERSION))
        self.answers.name(joined.member_id, f"member of {group}")
        self.held[f"JoinGroup v{min(step, J.MAX_VERSION)}: the first time"] = self.answers.plain(
            joined, min(step, J.MAX_VERSION)
        )
        member = joined.member_id
        if joined.error_code:
            joined = at("with the id that was given", join(member))
        generation = joined.generation_id
        S = m.SyncGroupRequest

        def sync(member=member, generation=generation, **how):
            how = {"protocol_type": "consumer", "protocol_name": "range", **how}
            assignments = [S.SyncGroupRequestAssignment(member_id=member, assignment=b"yours")]
            return S(group_id=group, generation_id=generation, member_id=member, assignments=assignments, **how)

        at("while it waits for the assignment", self.commit(group, member, generation))
        at("while it waits for the assignment", m.DescribeGroupsRequest(groups=[group]))
        at("an unknown member", sync("nobody"))
        at("another generation", sync(generation=generation + 1))
        if step >= 5:
            at("another protocol", sync(protocol_name="other"))
        at("the leader", sync())
        at("again", sync())
        H = m.HeartbeatRequest
        at("a member", H(group_id=group, generation_id=generation, member_id=member))
        at("another generation", H(group_id=group, generation_id=generation - 1, member_id=member))
        at("an unknown member", H(group_id=group, generation_id=generation, member_id="nobody"))
        at("an unknown group", H(group_id="nowhere", generation_id=1, member_id="nobody"))
        at("a stable group", m.DescribeGroupsRequest(groups=[group]))
        at("what is allowed", m.DescribeGroupsRequest(groups=[group], include_authorized_operations=True))
        at("in the middle", self.list_groups(group))
        at("a member", self.commit(group, member, generation))
        at("another generation", self.commit(group, member, generation + 5))
        at("an unknown member", self.commit(group, "nobody", generation))
        at("without a generation", self.commit(group, "", -1))
        at("long metadata", self.commit(group, member, generation, metadata="x" * 4097))
        at("null metadata", self.commit(group, member, generation, metadata=None))
        at("an unknown topic", self.commit(group, member, generation, topic="nowhere"))
        at("an unknown partition", self.commit(group, member, generation, partition=9))
        self.talk_of_offsets(step, group)
        at("a group with members", m.DeleteGroupsRequest(groups_names=[group]))
        if step == 0:
            at("a topic that is read", self.delete_offsets(group))
        again = at("the leader again", join(member))
        if again is not None and not again.error_code:
            at("of the next generation", sync(generation=again.generation_id))
        L = m.LeaveGroupRequest
        members = [L.MemberIdentity(member_id=member)] if step >= 3 else []
        at("a member", L(group_id=group, member_id=member, members=members))
        at("a second time", L(group_id=group, member_id=member, members=members))
        at("an empty group", m.DescribeGroupsRequest(groups=[group]))
        at("without members", self.list_groups(group))

    def talk_of_offsets(self, step, group):
        at = lambda label, request: self.at(step, f"{label}, {group}", request)  # noqa: E731
        F = m.OffsetFetchRequest

        def of(*groups, topics=(("committed", [0, 1]),), **how):
            if step < 8:
                found = (
                    None
                    if topics is None
                    else [F.OffsetFetchRequestTopic(name=name, partition_indexes=parts) for name, parts in topics]
                )
                return F(group_id=groups[0], topics=found, **how)
            found = (
                None
                if topics is None
                else [F.OffsetFetchRequestTopics(name=name, partition_indexes=parts) for name, parts in topics]
            )
            return F(groups=[F.OffsetFetchRequestGroup(group_id=name, topics=found) for name in groups], **how)

        at("of two partitions", of(group))
        at("of an unknown topic", of(group, topics=[("nowhere", [0])]))
        at("of an unknown group", of("nobodies"))
        if step >= 2:
            at("of everything", of(group, topics=None))
            at("of everything of an unknown group", of("nobodies", topics=None))
        if step >= 7:
            at("of what is stable", of(group, require_stable=True))
        if step >= 8:
            at("of two groups", of(group, "nobodies"))

    def talk_without_members(self, step):
        group = f"simple-{step}"
        at = lambda label, request: self.at(step, label, request)  # noqa: E731
        at("of a group without members", self.commit(group, "", -1))
        at("a generation of a group without members", self.commit(group, "", 3))
        at("a group without members", m.DescribeGroupsRequest(groups=[group, "nowhere"]))
        self.talk_of_offsets(step, group)
        if step == 0:
            at("one partition", self.delete_offsets(group))
            at("an unknown group", self.delete_offsets("nowhere"))
            at("unknown ones", self.delete_offsets(group, "nowhere", 4))
        at("groups", m.DeleteGroupsRequest(groups_names=[group, "nowhere", ""]))
        at("a group that is gone", m.DescribeGroupsRequest(groups=[group]))
        self.at(
            step,
            "a member of no group",
            m.LeaveGroupRequest(
                group_id="nowhere", member_id="x", members=[m.LeaveGroupRequest.MemberIdentity(member_id="x")]
            ),
        )
        F = m.FindCoordinatorRequest
        for label, key_type in (("a group", 0), ("a transactional id", 1), ("a type that is none", 7)):
            if not (step == 0 and key_type):
                at(label, F(key="one", key_type=key_type, coordinator_keys=["one", "two"]))
        at("an empty key", F(key="", key_type=0, coordinator_keys=[""]))

    def list_groups(self, group):
        # Groups of other steps are there too, in states of their own.
        return m.ListGroupsRequest(states_filter=["Stable"] if group.endswith(("5", "7")) else [], types_filter=[])

    def commit(self, group, member, generation, topic="committed", partition=0, metadata="of mine"):
        C = m.OffsetCommitRequest
        part = C.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=7, committed_metadata=metadata
        )
        return C(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            topics=[C.OffsetCommitRequestTopic(name=topic, partitions=[part])],
        )

    def delete_offsets(self, group, topic="committed", partition=0):
        D = m.OffsetDeleteRequest
        parts = [D.OffsetDeleteRequestPartition(partition_index=partition)]
        return D(group_id=group, topics=[D.OffsetDeleteRequestTopic(name=topic, partitions=parts)])

    # --- transactions ------------------------------------------------------------------------

    def on_transactions(self):
        self.topic("transactional", 2)
        self.settled(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        self.settled(m.FindCoordinatorRequest(key_type=1, coordinator_keys=["t"]), 4)
        for step in range(6):
            self.talk_of_transactions(step)

    def talk_of_transactions(self, step):
        at = lambda label, request: self.at(step, label, request)  # noqa: E731
        I = m.InitProducerIdRequest  # noqa: E741
        name = f"transaction-{step}"
        idempotent = self.settled(I(transactional_id=None, transaction_timeout_ms=60_000), min(step, 5))
        self.answers.name(idempotent.producer_id, f"idempotent producer {step}")
        self.held[f"InitProducerId v{min(step, 5)}: without a transactional id"] = self.answers.plain(
            idempotent, min(step, 5)
        )
        at("an empty transactional id", I(transactional_id="", transaction_timeout_ms=60_000))
        at("too long a transaction", I(transactional_id=name, transaction_timeout_ms=10**9))
        at("no time", I(transactional_id=name, transaction_timeout_ms=0))
        made = self.producer(name)
        at("the second time", I(transactional_id=name, transaction_timeout_ms=60_000))
        epoch = made.producer_epoch + 1
        pid = made.producer_id
        if step >= 3:
            at(
                "with its epoch",
                I(transactional_id=name, transaction_timeout_ms=60_000, producer_id=pid, producer_epoch=epoch),
            )
            epoch += 1
            at(
                "with an old epoch",
                I(transactional_id=name, transaction_timeout_ms=60_000, producer_id=pid, producer_epoch=0),
            )
            at(
                "with another id",
                I(transactional_id=name, transaction_timeout_ms=60_000, producer_id=pid + 70, producer_epoch=0),
            )
        A, AO, T, E = m.AddPartitionsToTxnRequest, m.AddOffsetsToTxnRequest, m.TxnOffsetCommitRequest, m.EndTxnRequest

        def add(topic="transactional", partition=0, name=name, pid=pid, epoch=epoch, **how):
            topics = [A.AddPartitionsToTxnTopic(name=topic, partitions=[partition])]
            if step >= 4:
                return A(
                    transactions=[
                        A.AddPartitionsToTxnTransaction(
                            transactional_id=name, producer_id=pid, producer_epoch=epoch, topics=topics, **how
                        )
                    ]
                )
            return A(
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=pid,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=topics,
            )

        def offsets(name=name, pid=pid, epoch=epoch):
            return AO(transactional_id=name, producer_id=pid, producer_epoch=epoch, group_id=f"of-{step}")

        def commit(topic="committed", pid=pid, epoch=epoch, offset=5, **how):
            parts = [
                T.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="m")
            ]
            return T(
                transactional_id=name,
                group_id=f"of-{step}",
                producer_id=pid,
                producer_epoch=epoch,
                topics=[T.TxnOffsetCommitRequestTopic(name=topic, partitions=parts)],
                **how,
            )

        def end(committed, name=name, pid=pid, epoch=epoch):
            return E(transactional_id=name, producer_id=pid, producer_epoch=epoch, committed=committed)

        at("nothing was begun", end(True))
        at("an unknown transactional id", end(True, name="nobody"))
        at("an unknown transactional id", add(name="nobody"))
        at("an unknown transactional id", offsets(name="nobody"))
        at("another producer id", add(pid=pid + 50))
        at("an old epoch", add(epoch=epoch - 1))
        at("an old epoch", offsets(epoch=epoch - 1))
        at("an unknown topic", add("nowhere"))
        at("an unknown partition", add(partition=9))
        at("before its partition is added", self.batch_in(name, pid, epoch))
        at("a partition", add())
        at("the same again", add())
        if step >= 4:
            at("whether it is in", add(verify_only=True))
            at("whether another one is in", add(partition=1, verify_only=True))
        at("a batch in a transaction", self.batch_in(name, pid, epoch))
        D = m.DescribeProducersRequest
        describe = D(topics=[D.TopicRequest(name="transactional", partition_indexes=[1])])
        if step == 0:
            self.say("no producers", describe, 0)
            self.say("unknown ones", D(topics=[D.TopicRequest(name="nowhere", partition_indexes=[0])]), 0)
            self.say("an open transaction", D(topics=[D.TopicRequest(name="transactional", partition_indexes=[0])]), 0)
        at("a group", offsets())
        at("an offset", commit())
        if step >= 3:
            at("an offset of an unknown member", commit(generation_id_or_member_epoch=4, member_id="nobody"))
        if step % 2:
            # It makes Kafka forget the offset that is pending.
            at("an offset of an old epoch", commit(epoch=epoch - 1))
        at("an offset of an unknown topic", commit("nowhere"))
        F = m.OffsetFetchRequest
        fetched = F(
            groups=[
                F.OffsetFetchRequestGroup(
                    group_id=f"of-{step}", topics=[F.OffsetFetchRequestTopics(name="committed", partition_indexes=[0])]
                )
            ],
            require_stable=True,
        )
        self.say(f"while a transaction is open ({step})", fetched, 8)
        at("of an old epoch", end(True, epoch=epoch - 1))
        at("committed", end(step % 2 == 0))
        self.await_stable("transactional")
        at("the same once more", end(step % 2 == 0))
        at("the other way", end(step % 2 == 1))
        self.say(f"after its end ({step})", fetched, 8)
        self.say(f"after the end of transaction {step}", fetch("transactional", 0, isolation=1), 11)

    def batch_in(self, name, pid, epoch):
        return produce(
            "transactional",
            batch(producer_id=pid, producer_epoch=epoch, base_sequence=0, transactional=True),
            transactional_id=name,
        )

    # --- topics ------------------------------------------------------------------------------

    def on_users(self):
        A, D = m.AlterUserScramCredentialsRequest, m.DescribeUserScramCredentialsRequest

        def made(name="alice", mechanism=1, iterations=4096, salt=b"salted", password=None):
            password = bytes(32 if mechanism == 1 else 64) if password is None else password
            return A.ScramCredentialUpsertion(
                name=name, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=password)

        def gone(name="alice", mechanism=1):
            return A.ScramCredentialDeletion(name=name, mechanism=mechanism)

        def described(label, *names):
            users = [D.UserName(name=name) for name in names] if names else None
            self.say(label, D(users=users), 0)

        def altered(label, *changes):
            self.say(label, A(
                deletions=[one for one in changes if isinstance(one, A.ScramCredentialDeletion)],
                upsertions=[one for one in changes if isinstance(one, A.ScramCredentialUpsertion)]), 0)

        described("no users yet")
        described("a user that is not there", "alice")
        altered("nothing")
        altered("one", made())
        altered("another mechanism", made(mechanism=2, iterations=16384))
        altered("two users", made("bob"), made("carol", 2))
        time.sleep(1)       # until the broker has what its controller wrote
        described("all")
        self.say("none by name", D(users=[]), 0)
        described("by name", "alice", "bob")
        described("by name, one not there", "alice", "nobody")
        described("one twice", "alice", "alice", "bob")
        described("by no name", "")
        altered("again", made(iterations=8192))
        altered("no name", made(""))
        altered("an unknown mechanism", made(mechanism=7))
        altered("mechanism 0", made(mechanism=0))
        altered("too few iterations", made(iterations=4095))
        altered("too many iterations", made(iterations=16385))
        altered("one bad of two of a user", made(), made(mechanism=2, iterations=1))
        altered("one bad of two users", made("dora"), made("bob", iterations=1))
        altered("the same twice", made(), made())
        altered("made and gone at once", gone("bob"), made("bob"))
        altered("gone and not there", gone("nobody"))
        altered("gone, of no name", gone(""))
        altered("gone, of an unknown mechanism", gone(mechanism=7))
        altered("gone twice at once", gone("bob"), gone("bob"))
        altered("one mechanism gone, the other made", gone("alice", 1), made("alice", 2))
        altered("gone", gone("bob"))
        time.sleep(1)
        described("all that are left")
        altered("the last ones gone", gone("alice", 2), gone("carol", 2), gone("dora"))

    def on_administration(self):
        """What a single node without an authorizer says to an administrator of a cluster."""
        self.topic("administered", 2)
        of = m.CreateAclsRequest
        acls = [of.AclCreation(resource_type=TOPIC, resource_name="administered", principal="User:a", host="*",
                               operation=3, permission_type=3)] * 2
        for version in versions(of):
            self.say("ACLs", m.DescribeAclsRequest(
                resource_type_filter=1, resource_name_filter=None, pattern_type_filter=3, principal_filter=None,
                host_filter=None, operation=1, permission_type=1), version)
            self.say("two ACLs", of(creations=acls), version)
            self.say("two filters of ACLs", m.DeleteAclsRequest(filters=[m.DeleteAclsRequest.DeleteAclsFilter(
                resource_type_filter=TOPIC, resource_name_filter=None, pattern_type_filter=3, principal_filter=None,
                host_filter=None, operation=1, permission_type=1)] * 2), version)
        of = m.ElectLeadersRequest
        for version in versions(of):
            asked = [of.TopicPartitions(topic="administered", partitions=[0, 7]),
                     of.TopicPartitions(topic="nowhere", partitions=[0])]
            self.say("preferred leaders", of(topic_partitions=asked), version)
            if version:
                self.say("any leaders", of(topic_partitions=asked, election_type=1), version)
        of = m.AlterPartitionReassignmentsRequest
        for label, replicas in (("where it is", [1]), ("to another", [2]), ("to none", []), ("no more", None)):
            self.say(f"reassigned {label}", of(topics=[
                of.ReassignableTopic(name=name, partitions=[
                    of.ReassignablePartition(partition_index=index, replicas=replicas) for index in (0, 7)])
                for name in ("administered", "nowhere")]), 0)
        of = m.ListPartitionReassignmentsRequest
        self.say("all reassignments", of(topics=None), 0)
        self.say("reassignments of some", of(topics=[
            of.ListPartitionReassignmentsTopics(name=name, partition_indexes=[0, 7])
            for name in ("administered", "nowhere")]), 0)

    def on_what_one_node_lacks(self):
        """Quotas, tokens, features, other brokers and log dirs."""
        self.topic("elsewhere", 2)
        of = m.AlterReplicaLogDirsRequest
        for version in versions(of):
            self.say("to a log dir that is none", of(dirs=[of.AlterReplicaLogDir(path="/nowhere", topics=[
                of.AlterReplicaLogDirTopic(name="elsewhere", partitions=[0, 1])])]), version)
            self.say("nothing", of(), version)
        of = m.DescribeClientQuotasRequest
        for version in versions(of):
            for label, *components in (
                ("all",), ("of users", ("user", 2, None)), ("of one user", ("user", 0, "alice")),
                ("of two kinds", ("user", 2, None), ("client-id", 1, None)), ("twice", *[("user", 2, None)] * 2),
                ("of no kind", ("", 2, None)), ("of another kind", ("x", 2, None)),
                ("another match", ("user", 7, None)), ("of addresses", ("ip", 2, None)),
                ("of addresses and users", ("ip", 2, None), ("user", 2, None)),
            ):
                self.say(label, of(components=[
                    of.ComponentData(entity_type=kind, match_type=match, match=text)
                    for kind, match, text in components]), version)
        token = bytes(16)
        for version in versions(m.CreateDelegationTokenRequest):
            self.say("a token", m.CreateDelegationTokenRequest(max_lifetime_ms=-1), version)
        for version in versions(m.RenewDelegationTokenRequest):
            self.say("a token", m.RenewDelegationTokenRequest(hmac=token), version)
            self.say("a token", m.ExpireDelegationTokenRequest(hmac=token), version)
        for version in versions(m.DescribeDelegationTokenRequest):
            self.say("all", m.DescribeDelegationTokenRequest(owners=None), version)
        for version in versions(m.DescribeQuorumRequest):
            of = m.DescribeQuorumRequest
            self.say("of another topic", of(topics=[of.TopicData(topic_name="elsewhere", partitions=[
                of.PartitionData(partition_index=0)])]), version)
        of = m.UpdateFeaturesRequest
        for version in versions(of):
            self.say("an unknown one", of(feature_updates=[of.FeatureUpdateKey(
                feature="wire.version", max_version_level=1)]), version)
            self.say("none", of(), version)
        self.say("another broker", m.UnregisterBrokerRequest(broker_id=77), 0)
        self.say("all", m.ListConfigResourcesRequest(), 0)

    def on_partitions_that_are_described(self):
        of = m.DescribeTopicPartitionsRequest
        for name, count in (("parts-a", 3), ("parts-b", 1), ("parts-c", 2)):
            self.topic(name, count)

        def ask(label, *names, limit=2000, cursor=None):
            self.say(label, of(
                topics=[of.TopicRequest(name=name) for name in names], response_partition_limit=limit,
                cursor=None if cursor is None else of.Cursor(topic_name=cursor[0], partition_index=cursor[1])), 0)

        every = ("parts-c", "parts-a", "parts-b")
        ask("three topics", *every)
        ask("one twice", "parts-a", "parts-a")
        for limit in (-1, 0, 1, 2, 3, 4, 5, 6):
            ask(f"at most {limit}", *every, limit=limit)
        for cursor in (("parts-a", 1), ("parts-a", 3), ("parts-a", 9), ("parts-b", 0), ("parts-aa", 0), ("parts-aa", 5),
                       ("z", 0), ("", 0)):
            ask(f"from {cursor[0]} {cursor[1]} on", *every, cursor=cursor)
            ask(f"two from {cursor[0]} {cursor[1]} on", *every, cursor=cursor, limit=2)
        ask("from before the first", *every, cursor=("parts-a", -1))
        ask("unknown", "nowhere", "parts-b")
        ask("a bad name", "a b", "parts-b")
        ask("no name", "")
        ask("unknown ones at the end of the room", "parts-b", "parts-bb", "parts-c", limit=1)

    def on_transactions_that_are_listed(self):
        self.topic("listed-transactions", 2)
        producer = self.producer("listed")
        add = m.AddPartitionsToTxnRequest
        steps = [("begun", None), ("open", add(
            v3_and_below_transactional_id="listed", v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[add.AddPartitionsToTxnTopic(name="listed-transactions", partitions=[0, 1])]))]
        for label, step in steps:
            if step is not None:
                self.settled(step, 3)
            for version in versions(m.ListTransactionsRequest):
                self.say(f"by producer, {label}", m.ListTransactionsRequest(
                    producer_id_filters=[producer.producer_id]), version)
                self.say(f"by states, {label}", m.ListTransactionsRequest(
                    state_filters=["Ongoing", "Empty", "Nonsense"], producer_id_filters=[producer.producer_id]
                ), version)
                self.say(f"by a state that none is in, {label}", m.ListTransactionsRequest(
                    state_filters=["PrepareAbort"]), version)
                self.say(f"by an unknown state, {label}", m.ListTransactionsRequest(state_filters=["x"]), version)
            self.say(f"of long ago, {label}", m.ListTransactionsRequest(
                duration_filter=3_600_000, producer_id_filters=[producer.producer_id]), 1)
            self.say(f"one, an unknown and an empty, {label}", m.DescribeTransactionsRequest(
                transactional_ids=["listed", "nobody's", ""]), 0)

    def on_markers(self):
        self.markers(versions(m.WriteTxnMarkersRequest), self.begin_marked)

    def begin_marked(self, name, made, topic):
        """Begin a transaction in partition 0."""
        A = m.AddPartitionsToTxnRequest
        added = self.settled(A(
            v3_and_below_transactional_id=name, v3_and_below_producer_id=made.producer_id,
            v3_and_below_producer_epoch=made.producer_epoch,
            v3_and_below_topics=[A.AddPartitionsToTxnTopic(name=topic, partitions=[0])]), 3)
        assert not any(codes_of(added)), added
        return self.settled(produce(
            topic, batch(producer_id=made.producer_id, producer_epoch=made.producer_epoch, base_sequence=0,
                         transactional=True), transactional_id=name), 11)

    def on_topics(self):
        for version in versions(m.CreateTopicsRequest):
            self.talk_of_creation(version)
        for version in versions(m.CreatePartitionsRequest):
            self.talk_of_partitions(version)
        for version in versions(m.DeleteTopicsRequest):
            self.talk_of_deletion(version)

    def talk_of_creation(self, version):
        C = m.CreateTopicsRequest

        def of(name, partitions=2, replicas=1, config=(), assignments=(), validate_only=False):
            topic = C.CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=replicas,
                configs=[C.CreatableTopicConfig(name=key, value=value) for key, value in config],
                assignments=[C.CreatableReplicaAssignment(partition_index=n, broker_ids=ids) for n, ids in assignments],
            )
            return C(timeout_ms=10_000, topics=[topic], validate_only=validate_only)

        name = f"made-{version}"
        if version:
            self.say("to see", of(name, validate_only=True), version)
        made = self.client.ask(of(name, config=[("retention.ms", "86400000")]), version)
        self.await_topic(name, 2)
        self.held[f"CreateTopics v{version}: a topic"] = self.answers.plain(made, version)
        self.say("again", of(name), version)
        self.say("no partitions", of("none", 0), version)
        self.say("two replicas", of("none", 1, 2), version)
        self.say("no replicas", of("none", 1, 0), version)
        for label, bad in (
            ("a bad name", "a b"),
            ("no name", ""),
            ("two dots", ".."),
            ("a long name", "x" * 250),
            ("a name that is taken but for a dot", f"made_{version}"),
        ):
            self.say(label, of(bad, validate_only=version > 0), version)
        self.say("an unknown key", of("none", config=[("retention.s", "1")]), version)
        self.say("a bad value", of("none", config=[("retention.ms", "soon")]), version)
        self.say("a null value", of("none", config=[("retention.ms", None)]), version)
        self.say("an assignment", of(f"assigned-{version}", -1, -1, assignments=[(0, [1]), (1, [1])]), version)
        self.say("an assignment to nobody", of("none", -1, -1, assignments=[(0, [5])]), version)
        self.say("an assignment with a hole", of("none", -1, -1, assignments=[(0, [1]), (2, [1])]), version)
        self.say("an assignment and a number", of("none", 2, 1, assignments=[(0, [1])]), version)
        self.say("the same twice", C(timeout_ms=10_000, topics=of("twin").topics * 2), version)
        self.say("nothing", C(timeout_ms=10_000, topics=[]), version)
        self.say("an internal topic", of("__consumer_offsets"), version)
        if version >= 4:
            self.say("as many as usual", of(f"usual-{version}", -1, -1), version)

    def talk_of_partitions(self, version):
        P = m.CreatePartitionsRequest
        name = f"grown-{version}"
        self.topic(name)

        def of(name, count, assignments=None, validate_only=False):
            if assignments is not None:
                assignments = [P.CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
            return P(
                topics=[P.CreatePartitionsTopic(name=name, count=count, assignments=assignments)],
                timeout_ms=10_000,
                validate_only=validate_only,
            )

        self.say("to see", of(name, 3, validate_only=True), version)
        self.say("more", of(name, 3), version)
        self.await_topic(name, 3)
        self.say("as many", of(name, 3), version)
        self.say("fewer", of(name, 2), version)
        self.say("of an unknown topic", of("nowhere", 2), version)
        self.say("assigned", of(name, 4, [[1]]), version)
        self.say("assigned to nobody", of(name, 6, [[5], [5]]), version)
        self.say("too few assigned", of(name, 8, [[1]]), version)
        self.say("twice", P(topics=of(name, 9).topics * 2, timeout_ms=10_000), version)

    def talk_of_deletion(self, version):
        D = m.DeleteTopicsRequest

        def of(*names):
            if version < 6:
                return D(topic_names=list(names), timeout_ms=10_000)
            return D(topics=[D.DeleteTopicState(name=name) for name in names], timeout_ms=10_000)

        name = f"dead-{version}"
        self.topic(name)
        self.say("a topic", of(name), version)
        self.say("again", of(name), version)
        self.say("a bad name", of("a b"), version)
        self.say("nothing", of(), version)
        if version >= 6:
            self.topic("dead-by-id")
            by_id = D(topics=[D.DeleteTopicState(name=None, topic_id=self.id_of("dead-by-id"))], timeout_ms=10_000)
            self.say("by id", by_id, version)
            self.say(
                "by an unknown id",
                D(topics=[D.DeleteTopicState(name=None, topic_id=UNKNOWN_ID)], timeout_ms=10_000),
                version,
            )
            self.say("by nothing", D(topics=[D.DeleteTopicState(name=None)], timeout_ms=10_000), version)

    def on_configs(self):
        self.topic("configured", retention_ms=86_400_000)
        D = m.DescribeConfigsRequest

        def of(kind, name, *keys, **how):
            resource = D.DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
            )
            return D(resources=[resource], **how)

        for version in versions(D):
            self.say("two keys", of(TOPIC, "configured", "retention.ms", "cleanup.policy"), version)
            self.say("an unknown key", of(TOPIC, "configured", "retention.s"), version)
            self.say("every key of a topic", of(TOPIC, "configured"), version)
            none = D.DescribeConfigsResource(resource_type=TOPIC, resource_name="configured", configuration_keys=[])
            self.say("an empty list of keys", D(resources=[none]), version)
            self.say("an unknown topic", of(TOPIC, "nowhere"), version)
            self.say("a bad name", of(TOPIC, "a b"), version)
            self.say(
                "the broker",
                of(BROKER, "1", "num.partitions", "log.retention.ms", "auto.create.topics.enable"),
                version,
            )
            self.say("another broker", of(BROKER, "99", "num.partitions"), version)
            self.say("a type that is none", of(77, "x"), version)
            if version >= 1:
                self.say(
                    "with synonyms",
                    of(TOPIC, "configured", "retention.ms", "segment.bytes", include_synonyms=True),
                    version,
                )
        for version in versions(m.AlterConfigsRequest):
            self.talk_of_changes(version)
        for version in versions(m.IncrementalAlterConfigsRequest):
            self.talk_of_small_changes(version)

    def seen(self, label, topic, *, key, value):
        """What a topic's own settings are when `key` has the value that the last change gave it: Kafka's controller
        answers a change, and its broker hears of that later."""
        D = m.DescribeConfigsRequest
        keys = ["retention.ms", "cleanup.policy", "segment.bytes", "max.message.bytes"]
        resource = D.DescribeConfigsResource(resource_type=TOPIC, resource_name=topic, configuration_keys=keys)
        end = time.monotonic() + PATIENCE_S
        while True:
            configs = self.client.ask(D(resources=[resource]), 4).results[0].configs
            if {config.name: config.value for config in configs}[key] == value:
                break
            assert time.monotonic() < end, configs
            time.sleep(0.02)
        self.say(label, D(resources=[resource]), 4)

    def talk_of_changes(self, version):
        A = m.AlterConfigsRequest
        name = f"changed-{version}"
        self.topic(name, retention_ms=86_400_000)

        def of(name, *pairs, kind=TOPIC, validate_only=False):
            configs = [A.AlterableConfig(name=key, value=value) for key, value in pairs]
            resource = A.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
            return A(resources=[resource], validate_only=validate_only)

        self.say("to see", of(name, ("segment.bytes", "1000000"), validate_only=True), version)
        self.say("a key", of(name, ("segment.bytes", "1000000")), version)
        self.seen(f"after AlterConfigs v{version}", name, key="segment.bytes", value="1000000")
        self.say("an unknown key", of(name, ("segment.kilobytes", "1")), version)
        self.say("a bad value", of(name, ("segment.bytes", "many")), version)
        self.say("a null value", of(name, ("segment.bytes", None)), version)
        self.say("an unknown topic", of("nowhere", ("segment.bytes", "1000000")), version)
        self.say("a type that is none", of("x", ("segment.bytes", "1"), kind=77), version)
        self.say("nothing", of(name), version)
        self.seen(f"after all of AlterConfigs v{version}", name, key="segment.bytes", value="1073741824")

    def talk_of_small_changes(self, version):
        A = m.IncrementalAlterConfigsRequest
        name = f"adjusted-{version}"
        self.topic(name, retention_ms=86_400_000)

        def of(name, *changes, kind=TOPIC, validate_only=False):
            configs = [A.AlterableConfig(name=key, config_operation=op, value=value) for key, op, value in changes]
            resource = A.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
            return A(resources=[resource], validate_only=validate_only)

        self.say("to see", of(name, ("segment.bytes", 0, "1000000"), validate_only=True), version)
        self.say("set", of(name, ("segment.bytes", 0, "1000000")), version)
        self.say("deleted", of(name, ("retention.ms", 1, None)), version)
        self.say("appended", of(name, ("cleanup.policy", 2, "compact")), version)
        self.seen(f"after IncrementalAlterConfigs v{version}", name, key="cleanup.policy", value="delete,compact")
        self.say("subtracted", of(name, ("cleanup.policy", 3, "delete")), version)
        self.say("appended to what is no list", of(name, ("segment.bytes", 2, "1")), version)
        self.say("an unknown key", of(name, ("segment.kilobytes", 0, "1")), version)
        self.say("a bad value", of(name, ("segment.bytes", 0, "many")), version)
        self.say("a null value", of(name, ("segment.bytes", 0, None)), version)
        self.say("the same key twice", of(name, ("segment.bytes", 0, "1000000"), ("segment.bytes", 1, None)), version)
        self.say("an unknown operation", of(name, ("segment.bytes", 9, "1")), version)
        self.say("an unknown topic", of("nowhere", ("segment.bytes", 0, "1000000")), version)
        self.say("a type that is none", of("x", ("segment.bytes", 0, "1"), kind=77), version)
        self.seen(f"after all of IncrementalAlterConfigs v{version}", name, key="cleanup.policy", value="compact")
