"""The conversation in the versions that Kafka 3.9.1 does not have, with a broker of 4.4.0."""

import time

from seglog import build_batch
from seglog.wire import messages as m
from seglog.wire.error_codes import Errors
from support.conversation import (
    LAST_OF_391,
    PATIENCE_S,
    T0,
    UNKNOWN_ID,
    Conversation,
    batch,
    fetch,
    list_offsets,
    produce,
)


def later(request):
    """The versions of an API that came after 3.9.1."""
    return range(LAST_OF_391[request] + 1, request.MAX_VERSION + 1)


class NewestConversation(Conversation):
    def hold(self, parts=None):
        return super().hold(parts or [name for name in dir(self) if name.startswith("newest_")])

    def newest_metadata(self):
        M = m.MetadataRequest
        self.topic("described", 3)

        def of(*names, **how):
            topics = [M.MetadataRequestTopic(name=name) for name in names]
            return M(topics=topics, allow_auto_topic_creation=False, **how)

        for version in later(M):
            self.say("one topic", of("described"), version)
            self.say("an unknown topic", of("nowhere"), version)
            self.say("a bad name", of("a b"), version)
            self.say("both", of("described", "nowhere"), version)
            self.say("no topic", of(), version)
            self.say("what is allowed", of("described", include_topic_authorized_operations=True), version)
            by_id = [M.MetadataRequestTopic(name=None, topic_id=one) for one in (self.id_of("described"), UNKNOWN_ID)]
            self.say("by ids", M(topics=by_id), version)

    def newest_cluster(self):
        D = m.DescribeClusterRequest
        for version in later(D):
            self.say("plain", D(), version)
            self.say("fenced brokers", D(include_fenced_brokers=True), version)
            self.say("controllers", D(endpoint_type=2), version)
            self.say("fenced brokers of controllers", D(endpoint_type=2, include_fenced_brokers=True), version)
            self.say("an unknown type", D(endpoint_type=9), version)

    def newest_api_versions(self):
        A = m.ApiVersionsRequest
        cluster_id = self.client.ask(m.MetadataRequest(topics=[]), 12).cluster_id
        who = {"client_software_name": "wire", "client_software_version": "1.0"}
        for version in later(A):
            self.say("a client", A(**who), version)
            self.say("no name", A(), version)
            self.say("of this node", A(**who, cluster_id=cluster_id, node_id=1), version)
            self.say("of another cluster", A(**who, cluster_id="another", node_id=1), version)
            self.say("of another node", A(**who, cluster_id=cluster_id, node_id=7), version)
            self.say("of another cluster and node", A(**who, cluster_id="another", node_id=7), version)
            self.say("of another cluster, without a node", A(**who, cluster_id="another"), version)
            self.say("of another node, without a cluster", A(**who, node_id=7), version)
            self.say("of no cluster", A(**who, cluster_id="", node_id=1), version)
            self.say("of a bootstrap server", A(**who, cluster_id=cluster_id, node_id=-1), version)

    def newest_log_dirs(self):
        D = m.DescribeLogDirsRequest
        self.topic("measured", 2)
        self.produced("measured", batch())
        for version in later(D):
            asked = [D.DescribableLogDirTopic(topic="measured", partitions=[0, 1])]
            self.say("two partitions", D(topics=asked), version)
            self.say("none", D(topics=[]), version)

    def newest_groups(self):
        self.topic("committed", 2)
        self.settled(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        C = m.OffsetCommitRequest
        part = C.OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata="of mine")
        self.settled(C(group_id="simple", topics=[C.OffsetCommitRequestTopic(name="committed", partitions=[part])]), 8)
        member = self.joined("busy")
        for version in later(m.DescribeGroupsRequest):
            for group in ("simple", "busy", "nowhere", ""):
                self.say(f"{group or 'no id'}", m.DescribeGroupsRequest(groups=[group]), version)
            self.say("two unknown ones", m.DescribeGroupsRequest(
                groups=["nowhere", "neither"], include_authorized_operations=True), version)
        for version in later(m.DeleteGroupsRequest):
            self.say("groups", m.DeleteGroupsRequest(groups_names=["simple", "busy", "nowhere", ""]), version)
        L = m.LeaveGroupRequest
        self.settled(L(group_id="busy", members=[L.MemberIdentity(member_id=member)]), 5)

    def joined(self, group):
        """The id of the only member of a group."""
        J, S = m.JoinGroupRequest, m.SyncGroupRequest
        how = {
            "group_id": group, "session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000,
            "protocol_type": "consumer", "protocols": [J.JoinGroupRequestProtocol(name="range", metadata=b"m")],
        }
        first = self.settled(J(**how), 7)
        joined = self.settled(J(**how, member_id=first.member_id), 7)
        assert not joined.error_code, joined
        self.answers.name(joined.member_id, f"member of {group}")
        self.settled(S(
            group_id=group, generation_id=joined.generation_id, member_id=joined.member_id, protocol_type="consumer",
            protocol_name="range",
            assignments=[S.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"yours")]), 5)
        return joined.member_id

    def newest_consumer_groups(self):
        """By `range` where there are several members: which partitions `uniform` gives to whom is not Kafka's alone."""
        self.topic("assigned", 4)
        self.topic("further", 2)
        self.settled(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        classic = self.joined("classic")
        for version in later(m.ConsumerGroupHeartbeatRequest):
            self.refused_members(version)
            self.two_members(version)
            self.lost_answers(version)
            self.static_members(version)
        self.members_by_regex()
        for name in ("group of nobody", "classic", ""):
            self.described_group(f"settings of {name!r}", name)
        L = m.LeaveGroupRequest
        self.settled(L(group_id="classic", members=[L.MemberIdentity(member_id=classic)]), 5)

    def described_group(self, label, name, **how):
        D = m.DescribeConfigsRequest
        self.say(label, D(include_synonyms=True, resources=[
            D.DescribeConfigsResource(resource_type=32, resource_name=name, **how)]), 4)

    def newest_group_settings(self):
        """A broker hears of a change a moment after it is answered."""
        session, interval = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
        C, A, L, H = (m.IncrementalAlterConfigsRequest, m.AlterConfigsRequest, m.ListConfigResourcesRequest,
                      m.ConsumerGroupHeartbeatRequest)
        self.settled(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)

        def change(label, name, *configs, **how):
            self.say(label, C(resources=[C.AlterConfigsResource(resource_type=32, resource_name=name, configs=[
                C.AlterableConfig(name=key, config_operation=operation, value=value)
                for key, value, operation in configs])], **how), 1)
            time.sleep(0.3)

        for key, value in (
            (session, "1"), (session, "44999"), (session, "60001"), (session, "4000000000"), (session, ""),
            (session, " 50000 "), (session, "5e4"), (interval, "no number"), (interval, "4999"), (interval, "15001"),
            (interval, "-1"), ("no.key", "1"), ("", "1"), ("group." + session, "50000"),
        ):
            change(f"{key} = {value!r}", "g", (key, value, 0), validate_only=True)
        change("no value", "g", (session, None, 0))
        change("the same twice", "g", (session, "50000", 0), (session, "51000", 0))
        change("of no group", "", (session, "50000", 0))
        change("nothing", "g")
        change("an append", "g", (session, "50000", 2))
        change("a subtraction", "g", (session, "50000", 3))
        change("an unknown one is deleted", "g", ("no.key", None, 1))
        change("what is not set is deleted", "g", (session, None, 1))
        change("one of two is wrong", "g", (session, "50000", 0), (interval, "1", 0))
        self.say("groups before one is set", L(resource_types=[32]), 1)
        change("to see", "tuned", (session, "50000", 0), validate_only=True)
        self.described_group("after a look", "tuned")
        change("both", "tuned", (session, "50000", 0), (interval, "7000", 0))
        self.described_group("both", "tuned")
        self.described_group("one of them", "tuned", configuration_keys=[session])
        self.described_group("an unknown one", "tuned", configuration_keys=["no.key"])
        self.say("groups with settings", L(resource_types=[32]), 1)
        self.say("groups with settings and the broker", L(resource_types=[32, 4]), 1)
        self.topic("tuned-topic")
        made = self.settled(H(
            group_id="tuned", member_id="m", rebalance_timeout_ms=60_000, subscribed_topic_names=["tuned-topic"],
            topic_partitions=[]), 1)
        self.held["ConsumerGroupHeartbeat v1: in a tuned group"] = self.answers.plain(made, 1)
        change("another interval", "tuned", (interval, "8000", 0))
        self.say("of a member of a tuned group", H(group_id="tuned", member_id="m", member_epoch=made.member_epoch), 1)
        change("one is deleted", "tuned", (session, None, 1))
        self.described_group("one is deleted", "tuned")
        for version in (0, 1, 2):
            for label, configs in (
                (f"replaced, v{version}", [(session, "55000")]), (f"a wrong one, v{version}", [(interval, "1")]),
                (f"an unknown one, v{version}", [("no.key", "1")]), (f"none, v{version}", []),
            ):
                self.say(label, A(resources=[A.AlterConfigsResource(
                    resource_type=32, resource_name="tuned", configs=[
                        A.AlterableConfig(name=key, value=value) for key, value in configs])]), version)
                time.sleep(0.3)
                self.described_group(f"after {label}", "tuned")
        self.say("groups after all is deleted", L(resource_types=[32]), 1)
        self.say("of a member, after all is deleted", H(
            group_id="tuned", member_id="m", member_epoch=made.member_epoch), 1)
        self.settled(H(group_id="tuned", member_id="m", member_epoch=-1), 1)

    def refused_members(self, version):
        H = m.ConsumerGroupHeartbeatRequest
        first = {"group_id": "refused", "member_id": "m", "rebalance_timeout_ms": 60_000,
                 "subscribed_topic_names": ["assigned"], "topic_partitions": []}
        row = H.TopicPartitions(topic_id=self.id_of("assigned"), partitions=[0])
        for label, more in (
            ("no rebalance timeout", {"rebalance_timeout_ms": -1}),
            ("a rebalance timeout of 0", {"rebalance_timeout_ms": 0, "server_assignor": "none"}),
            ("no partitions", {"topic_partitions": None}), ("partitions at first", {"topic_partitions": [row]}),
            ("no topics", {"subscribed_topic_names": None}), ("no group", {"group_id": ""}),
            ("an empty instance", {"instance_id": ""}), ("an empty rack", {"rack_id": ""}),
            ("an unknown assignor", {"server_assignor": "mine"}), ("an empty assignor", {"server_assignor": ""}),
            ("epoch 3", {"member_epoch": 3}), ("epoch -1", {"member_epoch": -1}),
            ("epoch -2", {"member_epoch": -2}), ("epoch -2 of a static one", {"member_epoch": -2, "instance_id": "i"}),
            ("epoch -3", {"member_epoch": -3}), ("of a classic group", {"group_id": "classic"}),
            ("of a classic group, epoch 1", {"group_id": "classic", "member_epoch": 1}),
            ("no id, epoch 1", {"member_epoch": 1, "member_id": ""}),
            *((("no id", {"member_id": ""}), ("an expression that is none", {
                "subscribed_topic_names": None, "subscribed_topic_regex": "("})) if version else ()),
        ):
            self.say(f"first, {label}", H(**first | more), version)
        D = m.ConsumerGroupDescribeRequest
        self.say("groups that are none", D(group_ids=["refused", "nowhere", "classic", ""]), version)

    def two_members(self, version):
        H, group = m.ConsumerGroupHeartbeatRequest, f"consumers-{version}"
        epochs = {}

        def beat(label, name, owned=None, epoch=None, **more):
            """`owned`: partitions of the first topic."""
            rows = owned and [H.TopicPartitions(topic_id=self.id_of("assigned"), partitions=owned)]
            answer = self.say(label, H(
                group_id=group, member_id=name, member_epoch=epochs.get(name, 0) if epoch is None else epoch,
                topic_partitions=[] if owned == [] else rows, **more), version)
            if not answer.error_code:
                epochs[name] = answer.member_epoch

        def described(label):
            self.say(label, m.ConsumerGroupDescribeRequest(group_ids=[group]), version)

        first = {"rebalance_timeout_ms": 60_000, "server_assignor": "range", "subscribed_topic_names": ["assigned"]}
        beat("a joins", "a", [], **first)
        described("one member")
        beat("a says nothing", "a")
        beat("a says what it has", "a", [0, 1, 2, 3])
        beat("a says everything", "a", [0, 1, 2, 3], **first)
        beat("b joins", "b", [], **first)
        described("a is to give up")
        beat("b gets nothing yet", "b", [])
        beat("a is told to give up", "a", [0, 1, 2, 3])
        described("a is told to give up")
        beat("a says nothing while it gives up", "a")
        beat("b gets nothing still", "b", [])
        beat("a gave up", "a", [0, 1])
        described("b is to get")
        beat("b gets its part", "b", [])
        described("two members")
        for name, epoch in (("greater", 99), ("previous", epochs["a"] - 1), ("older", 0)):
            beat(f"a with a {name} epoch", "a", [0, 1], epoch=epoch, **first)
            beat(f"a with a {name} epoch and what it has not", "a", [0, 3], epoch=epoch, **first)
            beat(f"a with a {name} epoch and nothing", "a", epoch=epoch, **first)
        beat("b joins again", "b", [], epoch=0, **first)
        described("b joined again")
        beat("a joins again", "a", [], epoch=0, **first)
        described("a joined again")
        beat("an unknown member", "x", epoch=2)
        beat("a reads another topic, too", "a", [0, 1], subscribed_topic_names=["further", "assigned"])
        beat("a reads a topic that is none", "a", [0, 1], subscribed_topic_names=["nowhere"])
        described("a reads a topic that is none")
        beat("a has nothing", "a", [])
        beat("a reads no topic", "a", [], subscribed_topic_names=[])
        described("a reads no topic")
        beat("b gets everything", "b", [2, 3])
        self.member_commits(version, group, epochs)
        self.say(f"{group}", m.ListGroupsRequest(types_filter=["Consumer"], states_filter=["stable"]), 5)
        for other in (5, 6):
            self.say(f"{group}", m.DescribeGroupsRequest(groups=[group]), other)
        self.say(f"{group}, with members", m.DeleteGroupsRequest(groups_names=[group]), 2)
        J = m.JoinGroupRequest
        self.say(f"of another protocol, {group}", J(
            group_id=group, session_timeout_ms=30_000, rebalance_timeout_ms=30_000, protocol_type="other",
            protocols=[J.JoinGroupRequestProtocol(name="range", metadata=b"m")]), 7)
        of = m.HeartbeatRequest
        self.say(f"of a classic member, {group}", of(group_id=group, generation_id=1, member_id="a"), 4)
        beat("a leaves", "a", epoch=-1)
        beat("a leaves again", "a", epoch=-1)
        L = m.LeaveGroupRequest
        self.say(f"of {group}", L(group_id=group, members=[
            L.MemberIdentity(member_id="b"), L.MemberIdentity(member_id="x")]), 5)
        described("no members")
        self.say(f"{group}, without members", m.DeleteGroupsRequest(groups_names=[group]), 2)
        described("a group that was deleted")

    def lost_answers(self, version):
        """Of a member that has given up partitions when it is to give up more: it asks again."""
        H, group, epochs = m.ConsumerGroupHeartbeatRequest, f"more-and-more-{version}", {}
        more = {"rebalance_timeout_ms": 60_000, "server_assignor": "range", "subscribed_topic_names": ["assigned"]}

        def beat(label, name, *owned, epoch=None):
            rows = [H.TopicPartitions(topic_id=self.id_of("assigned"), partitions=list(owned))] if owned else []
            answer = self.say(f"{group}: {label}", H(
                group_id=group, member_id=name, member_epoch=epochs.get(name, 0) if epoch is None else epoch,
                topic_partitions=rows, **more), version)
            epochs.setdefault(name, answer.member_epoch)

        beat("a joins", "a")
        beat("b joins", "b")
        beat("a is told to give up", "a", 0, 1, 2, 3)
        beat("c joins", "c")
        beat("d joins", "d")
        for label in ("a gave up, and is told to give up more", "again, with the same epoch"):
            beat(label, "a", 0, 1)
            self.say(f"{group}: {label}", m.ConsumerGroupDescribeRequest(group_ids=[group]), version)
        beat("a gave up all", "a", 0)
        beat("again, with the epoch before", "a", 0)
        beat("again, with more than it has", "a", 0, 1)
        for name in "bcda":
            beat(f"{name} goes on", name, *([0] if name == "a" else []))
        for name in "abcd":
            beat(f"{name} leaves", name, epoch=-1)

    def member_commits(self, version, group, epochs):
        C, F = m.OffsetCommitRequest, m.OffsetFetchRequest
        part = C.OffsetCommitRequestPartition(partition_index=1, committed_offset=7, committed_metadata="of mine")
        rows = [C.OffsetCommitRequestTopic(
            name="assigned", topic_id=self.id_of("assigned"), partitions=[part])]
        asked = [F.OffsetFetchRequestTopics(
            name="assigned", topic_id=self.id_of("assigned"), partition_indexes=[1])]
        for name, epoch in (("b", epochs["b"]), ("b", epochs["b"] + 1), ("b", -1), ("x", 1), ("", -1), ("", 1)):
            label = f"by {name or 'no id'} of {group}, epoch {epoch}"
            for other in (8, 9, 10):
                self.say(label, C(
                    group_id=group, member_id=name, generation_id_or_member_epoch=epoch, topics=rows), other)
            for other in (9, 10):
                self.say(label, F(groups=[F.OffsetFetchRequestGroup(
                    group_id=group, member_id=name or None, member_epoch=epoch, topics=asked)]), other)

    def static_members(self, version):
        H, group = m.ConsumerGroupHeartbeatRequest, f"static-{version}"
        how = {"group_id": group, "instance_id": "i", "rebalance_timeout_ms": 60_000, "rack_id": "r",
               "subscribed_topic_names": ["assigned"]}

        def beat(label, name, epoch, **more):
            self.say(label, H(member_id=name, member_epoch=epoch, **how | {"topic_partitions": []} | more), version)

        def described(label):
            self.say(label, m.ConsumerGroupDescribeRequest(group_ids=[group]), version)

        beat("a static one joins", "s", 0)
        described("one static member")
        beat("it joins again", "s", 0)
        beat("another of its instance", "t", 0)
        beat("another of its instance, not new", "t", 1)
        beat("an unknown instance", "s", 1, instance_id="j")
        beat("it leaves for a while", "s", -2)
        described("it left for a while")
        beat("it is not new", "s", 1)
        beat("it comes back with another id", "t", 0)
        described("it came back")
        beat("the old id", "s", 1)
        beat("the old id leaves", "s", -1)
        beat("the new id leaves", "t", -1)
        described("it left")

    def members_by_regex(self):
        """Topics are matched some time after the heartbeat."""
        H, version = m.ConsumerGroupHeartbeatRequest, 1
        how = {"rebalance_timeout_ms": 60_000, "topic_partitions": []}
        for number, regex in enumerate(("assig.*|fur[t]her", "__consumer_offse.s|assigned", "")):
            group = f"regex-{number}"
            asked = H(group_id=group, member_id="m", subscribed_topic_regex=regex, **how)
            answer = self.say(f"first, by {regex!r}", asked, version)
            end = time.monotonic() + PATIENCE_S
            while regex and not answer.assignment.topic_partitions:
                assert time.monotonic() < end, regex
                time.sleep(0.05)
                answer = self.settled(H(group_id=group, member_id="m", member_epoch=answer.member_epoch, **how,
                                        subscribed_topic_regex=regex), version)
            D = m.ConsumerGroupDescribeRequest
            self.say(f"by {regex!r}", D(group_ids=[group]), version)
            self.say(f"who matched {regex!r} leaves", H(group_id=group, member_id="m", member_epoch=-1), version)

    def newest_fetch(self):
        self.fetched_topic()
        topic_id = self.id_of("fetched")
        for version in later(m.FetchRequest):
            for label, which, *offsets in (
                ("from the beginning", topic_id, 0), ("from within a batch", topic_id, 7), ("at the end", topic_id, 18),
                ("behind the end", topic_id, 19), ("an unknown topic", UNKNOWN_ID, 0),
                ("two partitions and an unknown one", topic_id, 0, 0, 0),
            ):
                self.say(label, fetch("", *offsets, topic_id=which), version)
            self.say("what is committed", fetch("", 0, topic_id=topic_id, isolation=1), version)
            known = fetch("", 18, topic_id=topic_id)
            known.topics[0].partitions[0].high_watermark = 5
            self.say("with a high watermark, as replicas tell", known, version)

    def newest_list_offsets(self):
        self.topic("listed", 2)
        self.produced("listed", batch(0, 5), batch(5, 4), batch(20, 2))
        for version in later(m.ListOffsetsRequest):
            for label, timestamp in (
                ("latest", -1), ("earliest", -2), ("largest time", -3), ("earliest here", -4), ("tiered", -5),
                ("earliest that is not yet tiered", -6), ("unknown", -7), ("a time", T0 + 6),
                ("a time after all", T0 + 1000),
            ):
                asked = list_offsets("listed", [(0, timestamp), (1, timestamp)])
                asked.timeout_ms = 1000
                self.say(label, asked, version)

    def newest_produce(self):
        self.settled(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        self.await_topic("__consumer_offsets")
        for version in later(m.ProduceRequest):
            topic, compacted = f"produce-{version}", f"compacted-{version}"
            self.topic(topic)
            self.topic(compacted, cleanup_policy="compact")
            good = batch()

            def say(label, name, records, version=version, **how):
                request = produce(name, records, **how)
                if version > 12:
                    for row in request.topic_data:
                        row.topic_id = {"nowhere": UNKNOWN_ID, "": bytes(16)}.get(name) or self.id_of(name)
                self.say(label, request, version)

            say("a good batch", topic, good)
            say("another one, acks 1", topic, batch(3), acks=1)
            say("no records", topic, b"")
            say("acks 5", topic, good, acks=5)
            say("an unknown topic", "nowhere", good)
            say("an unknown topic, acks 5", "nowhere", good, acks=5)
            say("no topic", "", good)
            say("an unknown partition", topic, good, partition=7)
            say("a wrong checksum", topic, good[:-1] + b"\x7f")
            say("format 1", topic, batch(magic=1))
            say("an internal topic", "__consumer_offsets", good)
            say("without a key", compacted, build_batch([(None, b"value", (), T0), (b"k", b"value", (), T0)]))
            of = {"producer_id": 4000 + version, "producer_epoch": 0}
            for sequence in (0, 0, 3, 9):
                label = f"sequence {sequence}"
                again = " again" if f"Produce v{version}: {label}" in self.held else ""
                say(label + again, topic, batch(base_sequence=sequence, **of))
            self.say("an empty request", m.ProduceRequest(acks=-1, timeout_ms=1000), version)

    def newest_offsets(self):
        self.topic("offsets", 2)
        self.topic("others")
        self.settled(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        member = self.joined("members")
        C, F = m.OffsetCommitRequest, m.OffsetFetchRequest
        ids = {"offsets": self.id_of("offsets"), "others": self.id_of("others"), "nowhere": UNKNOWN_ID, "": bytes(16)}

        def commit(group, *topics, partition=0, metadata="of mine", **how):
            part = C.OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=7, committed_metadata=metadata)
            return C(group_id=group, **how, topics=[
                C.OffsetCommitRequestTopic(topic_id=ids[name], partitions=[part]) for name in topics])

        for version in later(C):
            self.say("of a group without members", commit("single", "offsets"), version)
            self.say("of two topics", commit("single", "offsets", "others"), version)
            self.say("of two topics and an unknown one", commit("single", "others", "nowhere", "offsets"), version)
            self.say("of an unknown topic", commit("made by nobody", "nowhere"), version)
            self.say("of no topic", commit("single", ""), version)
            self.say("of an unknown partition", commit("single", "offsets", partition=9), version)
            self.say("of an unknown partition of an unknown topic", commit("single", "nowhere", partition=9), version)
            self.say("long metadata", commit("single", "offsets", metadata="x" * 4097), version)
            self.say("of a member", commit(
                "members", "offsets", member_id=member, generation_id_or_member_epoch=1), version)
            self.say("of another generation", commit(
                "members", "offsets", member_id=member, generation_id_or_member_epoch=9), version)
            self.say("of another generation and an unknown topic", commit(
                "members", "offsets", "nowhere", member_id=member, generation_id_or_member_epoch=9), version)
            self.say("of an unknown member", commit(
                "members", "offsets", member_id="nobody", generation_id_or_member_epoch=1), version)

        def ask(group, *topics, parts=(0, 1), **how):
            asked = [F.OffsetFetchRequestTopics(topic_id=ids[name], partition_indexes=list(parts)) for name in topics]
            return F.OffsetFetchRequestGroup(group_id=group, topics=asked or None, **how)

        for version in later(F):
            self.say("of two partitions", F(groups=[ask("single", "offsets")]), version)
            self.say("of an unknown topic", F(groups=[ask("single", "nowhere")]), version)
            self.say("of topics, one unknown", F(groups=[ask("single", "others", "nowhere", "offsets")]), version)
            self.say("of no topic", F(groups=[ask("single", "")]), version)
            self.say("of an unknown partition", F(groups=[ask("single", "offsets", parts=[9])]), version)
            self.say("of everything", F(groups=[ask("single")]), version)
            self.say("of an unknown group", F(groups=[ask("nobody's", "offsets", "nowhere")]), version)
            self.say("of everything of an unknown group", F(groups=[ask("nobody's")]), version)
            self.say("of two groups", F(groups=[ask("single", "offsets"), ask("members", "offsets")]), version)
            self.say("as a member of a classic group", F(groups=[
                ask("members", "offsets", member_id=member, member_epoch=1)]), version)
            self.say("of what is stable", F(groups=[ask("single", "offsets")], require_stable=True), version)
        L = m.LeaveGroupRequest
        self.settled(L(group_id="members", members=[L.MemberIdentity(member_id=member)]), 5)

    def newest_transactions(self):
        """Of a producer that gets an epoch with each EndTxn (transaction.version 2)."""
        self.topic("transacted", 2)
        self.topic("read-on")
        self.settled(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        self.await_topic("__consumer_offsets")
        E, T = m.EndTxnRequest, m.TxnOffsetCommitRequest
        for version in later(E):
            name = f"with epochs {version}"
            made = self.producer(name)
            pid, epoch = made.producer_id, made.producer_epoch

            def end(label, committed, epoch, version=version, name=name, pid=pid):
                answer = self.say(label, E(
                    transactional_id=name, producer_id=pid, producer_epoch=epoch, committed=committed), version)
                return answer.producer_epoch

            end("a commit of nothing", True, epoch)
            end("of an unknown transactional id", True, epoch, name="nobody")
            end("of another producer", True, epoch, pid=pid + 50)
            end("of an epoch to come", False, epoch + 1)
            end("of an epoch long gone", False, epoch - 1)
            next_epoch = end("an abort of nothing", False, epoch)
            end("the abort of nothing again", False, epoch)
            end("the abort of nothing again, as a commit", True, epoch)
            end("a commit of nothing after an abort", True, next_epoch)
            epoch = end("another abort of nothing", False, next_epoch)
            for committed in (True, False):
                word = "commit" if committed else "abort"
                self.write_in_transaction(word, name, pid, epoch)
                next_epoch = end(f"the {word}", committed, epoch)
                self.await_stable("transacted")
                end(f"the {word} again", committed, epoch)
                end(f"the other of the {word} with the old epoch", not committed, epoch)
                self.say(f"of an old epoch, after the {word}", self.of_producer(name, pid, epoch), 12)
                end(f"a commit of nothing after the {word}", True, next_epoch)
                epoch = end(f"an abort of nothing after the {word}", False, next_epoch)
            self.settled(self.of_producer(name, pid, epoch), 12)
            init = m.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
            fencing = self.say(f"of another producer, before EndTxn v{version}", init, 4)
            self.await_stable("transacted")
            end("a commit by a fenced producer", True, epoch)
            end("an abort by a fenced producer", False, epoch)
            self.say("of a fenced producer", self.of_producer(name, pid, epoch), 12)
            self.settled(self.of_producer(name, pid, fencing.producer_epoch), 12)
            end("a commit by the new producer", True, fencing.producer_epoch)
        name = "reader and writer"
        made = self.producer(name)
        ids = {"read-on": self.id_of("read-on"), "nowhere": UNKNOWN_ID, "": bytes(16)}
        epoch = made.producer_epoch
        for version in later(T):
            def commit(label, topic="read-on", partition=0, epoch=epoch, version=version, **how):
                part = T.TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=5)
                row = T.TxnOffsetCommitRequestTopic(partitions=[part])
                if version < 6:
                    row.name = topic
                else:
                    row.topic_id = ids[topic]
                self.say(label, T(**{
                    "transactional_id": name, "group_id": f"of {version}", "producer_id": made.producer_id,
                    "producer_epoch": epoch, "topics": [row], **how}), version)

            commit("of an unknown topic", "nowhere")
            commit("of no topic", "")
            commit("of an unknown partition", partition=9)
            commit("of an old epoch", epoch=epoch - 1)
            commit("of another producer", producer_id=made.producer_id + 50)
            commit("of an unknown transactional id", transactional_id="nobody")
            commit("that begins a transaction")
            commit("that goes on with it")
            commit("of an unknown member", member_id="nobody", generation_id_or_member_epoch=3)
            ended = self.settled(E(
                transactional_id=name, producer_id=made.producer_id, producer_epoch=epoch, committed=True), 5)
            epoch = ended.producer_epoch
            F = m.OffsetFetchRequest
            fetched = F(require_stable=True, groups=[F.OffsetFetchRequestGroup(
                group_id=f"of {version}", topics=[F.OffsetFetchRequestTopics(
                    topic_id=ids["read-on"], partition_indexes=[0])])])
            self.await_marker(fetched)
            self.say(f"after TxnOffsetCommit v{version}", fetched, 10)

    def newest_transactions_out_of_time(self):
        """What a producer hears whose transaction was open for too long, with and without epochs from EndTxn."""
        self.topic("overdue")
        self.settled(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        self.await_topic("__consumer_offsets")
        A, D, E = m.AddPartitionsToTxnRequest, m.DescribeTransactionsRequest, m.EndTxnRequest
        asked = [(version, word, self.producer(f"overdue {version}, {word}", timeout_ms=200))
                 for version in (E.MAX_VERSION - 1, E.MAX_VERSION)
                 for word in ("commit", "abort", "write", "new epoch")]
        for version, word, made in asked:
            name, pid, epoch = f"overdue {version}, {word}", made.producer_id, made.producer_epoch
            if version < 5:
                self.settled(A(
                    v3_and_below_transactional_id=name, v3_and_below_producer_id=pid, v3_and_below_producer_epoch=epoch,
                    v3_and_below_topics=[A.AddPartitionsToTxnTopic(name="overdue", partitions=[0])]), 3)
            self.settled(self.of_producer(name, pid, epoch, topic="overdue"), version + 7)
        for version, word, made in asked:
            name, pid, epoch = f"overdue {version}, {word}", made.producer_id, made.producer_epoch
            label = f"of one whose time has passed, EndTxn v{version}"
            end = time.monotonic() + PATIENCE_S
            described = D(transactional_ids=[name])
            while self.client.ask(described, 0).transaction_states[0].transaction_state != "CompleteAbort":
                assert time.monotonic() < end
                time.sleep(0.02)
            self.say(f"aborted, {name}", described, 0)
            init = m.InitProducerIdRequest(
                transactional_id=name, transaction_timeout_ms=60_000, producer_id=pid, producer_epoch=epoch)
            if word == "write":
                self.say(label, self.of_producer(name, pid, epoch, sequence=3, topic="overdue"), version + 7)
            elif word == "new epoch":
                self.say(label, init, 5)
                self.say(f"{label}, again", init, 5)
            else:
                self.say(f"the {word} {label}", E(
                    transactional_id=name, producer_id=pid, producer_epoch=epoch, committed=word == "commit"), version)
                self.say(f"after the {word} {label}", init, 5)

    def await_marker(self, fetched):
        """Wait until offsets of a transaction are committed, which may be after the answer of its EndTxn."""
        end = time.monotonic() + PATIENCE_S
        while self.client.ask(fetched, 10).groups[0].topics[0].partitions[0].error_code == (
                Errors.UNSTABLE_OFFSET_COMMIT):
            assert time.monotonic() < end
            time.sleep(0.02)

    @staticmethod
    def of_producer(name, pid, epoch, sequence=0, partition=0, topic="transacted"):
        return produce(
            topic, batch(producer_id=pid, producer_epoch=epoch, base_sequence=sequence, transactional=True),
            transactional_id=name, partition=partition)

    def write_in_transaction(self, word, name, pid, epoch):
        """Say what begins a transaction, and what does not, with Produce alone."""
        written = self.of_producer
        self.say(f"of an unknown transactional id, before the {word}", written("nobody", pid, epoch), 12)
        self.say(f"of an old epoch, before the {word}", written(name, pid, epoch - 1), 12)
        self.say(f"of an epoch to come, before the {word}", written(name, pid, epoch + 1), 12)
        self.say(f"of another producer, before the {word}", written(name, pid + 50, epoch), 12)
        self.say(f"a transaction begins, before the {word}", written(name, pid, epoch), 12)
        self.say(f"it goes on, before the {word}", written(name, pid, epoch, sequence=3), 12)
        self.say(f"a second partition, before the {word}", written(name, pid, epoch, partition=1), 12)
        self.say(f"an unknown topic, before the {word}", written(name, pid, epoch, topic="nowhere"), 12)
        D = m.DescribeTransactionsRequest
        self.say(f"before the {word}", D(transactional_ids=[name]), 0)

    def newest_markers(self):
        self.markers(later(m.WriteTxnMarkersRequest), lambda name, made, topic: self.settled(
            self.of_producer(name, made.producer_id, made.producer_epoch, topic=topic), 12))

    def newest_listings(self):
        self.topic("listed-settings")
        L = m.ListConfigResourcesRequest
        for version in later(L):
            self.say("the metrics of clients", L(resource_types=[16]), version)
            self.say("groups", L(resource_types=[32]), version)
            self.say("the broker", L(resource_types=[4]), version)
            self.say("what cannot be listed", L(resource_types=[4, 77]), version)
        for name in ("pattern-1", "pattern-22"):
            self.producer(name)
        L = m.ListTransactionsRequest
        for version in later(L):
            for pattern in (
                "pattern-1", "pattern-.", "pattern-[0-9]+", "pattern", "(?i)PATTERN-2{2}", "nobody", "pat(", "*",
            ):
                self.say(f"by the pattern {pattern}", L(transactional_id_pattern=pattern), version)
            for pattern in ("", None):
                self.say(f"by the pattern {pattern!r}", L(
                    transactional_id_pattern=pattern, state_filters=["PrepareAbort"]), version)
            self.say("by a pattern and a state", L(
                transactional_id_pattern="pattern-.*", state_filters=["Ongoing"]), version)

    def newest_administration(self):
        self.topic("administered", 2)
        of = m.AlterPartitionReassignmentsRequest
        for version in later(of):
            for label, replicas in (
                ("where it is", [1]), ("to another", [2]), ("to two", [1, 2]), ("to none", []), ("no more", None),
            ):
                for may_change in (True, False):
                    topics = [of.ReassignableTopic(name=name, partitions=[
                        of.ReassignablePartition(partition_index=index, replicas=replicas) for index in (0, 7)])
                        for name in ("administered", "nowhere")]
                    self.say(f"reassigned {label}, {may_change}", of(
                        allow_replication_factor_change=may_change, topics=topics), version)
        of = m.UpdateFeaturesRequest
        for version in later(of):
            self.say("an unknown one", of(feature_updates=[of.FeatureUpdateKey(
                feature="wire.version", max_version_level=1)]), version)
            self.say("none", of(), version)
