"""One side of a long conversation with a broker: every API in every version, what works and what is refused.

    Conversation(host, port).hold() -> {"Produce v3: a good batch": {"responses": [...], ...}, ...}

What a server chooses (ids of topics, members and producers) is named, so that the conversations with two servers can
be compared.
"""

import time

from seglog import build_batch
from seglog.wire import codec
from seglog.wire import messages as m
from seglog.wire.error_codes import Errors
from support.answers import Answers
from support.exact_client import Closed, ExactClient

T0 = 1_700_000_000_000
# Errors that pass: a moment later the answer is another one.
PASSING = {
    Errors.COORDINATOR_LOAD_IN_PROGRESS,
    Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_COORDINATOR,
    Errors.CONCURRENT_TRANSACTIONS,
    Errors.LEADER_NOT_AVAILABLE,
}
PATIENCE_S = 120
UNKNOWN_ID = bytes(range(16))


def batch(first=0, count=3, magic=2, **how):
    # T0 may be years ago: message.timestamp.before.max.ms has no limit by default.
    records = [
        (b"k%d" % n, b"value %d" % n, (), T0 + n) if magic else (b"k%d" % n, b"value %d" % n)
        for n in range(first, first + count)
    ]
    return build_batch(records, magic=magic, **how)


# Where Kafka 3.9.1 ends before we do: newest_conversation.py is about the later versions.
LAST_OF_391 = {
    m.AlterPartitionReassignmentsRequest: 0,
    m.ApiVersionsRequest: 4,
    m.ConsumerGroupDescribeRequest: -1,     # its brokers have none of these groups unless a feature is switched on
    m.ConsumerGroupHeartbeatRequest: -1,
    m.DeleteGroupsRequest: 2,
    m.DescribeClusterRequest: 1,
    m.DescribeGroupsRequest: 5,
    m.DescribeLogDirsRequest: 4,
    m.EndTxnRequest: 4,
    m.FetchRequest: 17,
    m.ListConfigResourcesRequest: 0,
    m.ListOffsetsRequest: 9,
    m.ListTransactionsRequest: 1,
    m.MetadataRequest: 12,
    m.OffsetCommitRequest: 9,
    m.OffsetFetchRequest: 9,
    m.ProduceRequest: 11,
    m.TxnOffsetCommitRequest: 4,
    m.UpdateFeaturesRequest: 1,
    m.WriteTxnMarkersRequest: 1,
}


def last_version(request):
    return LAST_OF_391.get(request, request.MAX_VERSION)


def versions(request):
    return range(request.MIN_VERSION, last_version(request) + 1)


class Conversation:
    """State of one conversation. Parts are methods `on_...`, each with topics and groups of its own."""

    def __init__(self, host, port):
        self.client = ExactClient(host, port)
        self.answers = Answers()
        self.answers.name(UNKNOWN_ID, "an unknown id")
        self.held = {}

    def hold(self, parts=None):
        for name in parts or [name for name in dir(self) if name.startswith("on_")]:
            getattr(self, name)()
        self.client.close()
        return self.held

    # --- what parts are made of --------------------------------------------------------------

    def say(self, label, request, version):
        """Ask, and note the answer under `API vN: label`. Returns the response, None if the connection was closed."""
        api = type(request).__name__.removesuffix("Request")
        response = self.settled(request, version)
        key = f"{api} v{version}: {label}"
        assert key not in self.held, key
        self.held[key] = self.answers.plain(response, version) if response is not None else "<closed>"
        return response

    def settled(self, request, version):
        """The answer, when it is no more one of those that pass."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                response = self.client.ask(request, version)
            except Closed:
                return None
            if response is None or time.monotonic() > end or not any(code in PASSING for code in codes_of(response)):
                return response
            time.sleep(0.05)

    def topic(self, name, partitions=1, **config):
        """Make a topic and wait for its leaders."""
        C = m.CreateTopicsRequest
        configs = [
            C.CreatableTopicConfig(name=key.replace("_", "."), value=str(value)) for key, value in config.items()
        ]
        made = self.client.ask(
            C(
                timeout_ms=30_000,
                topics=[C.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=configs)],
            ),
            5,
        )
        assert made.topics[0].error_code == 0, made
        self.await_topic(name, partitions)

    def await_topic(self, name, partitions=1):
        M = m.MetadataRequest
        end = time.monotonic() + PATIENCE_S
        while True:
            topic = self.client.ask(
                M(topics=[M.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False), 12
            ).topics[0]
            parts = topic.partitions if not topic.error_code else []
            # The leader knows of it a moment later than the metadata.
            if len(parts) == partitions and all(self.has_leader(name, part) for part in parts):
                break
            assert time.monotonic() < end, topic
            time.sleep(0.02)
        self.answers.name(topic.topic_id, f"id of {name}")
        return topic.topic_id

    def has_leader(self, name, part):
        return part.leader_id >= 0 and not part.error_code and self.end_offset(name, part.partition_index) is not None

    def end_offset(self, topic, partition=0, isolation=0):
        found = self.client.ask(list_offsets(topic, [(partition, -1)], isolation), 5).topics[0].partitions[0]
        return None if found.error_code else found.offset

    def id_of(self, topic):
        meaning = f"<id of {topic}>"
        return next(value for value, name in self.answers.names.items() if name == meaning)

    def produced(self, topic, *batches, transactional_id=None):
        for data in batches:
            response = self.client.ask(produce(topic, data, transactional_id=transactional_id), 8)
            assert not response.responses[0].partition_responses[0].error_code, response

    # --- records -----------------------------------------------------------------------------

    def on_produce(self):
        for version in versions(m.ProduceRequest):
            topic = f"produce-{version}"
            self.topic(topic)
            magic = 0 if version < 2 else 1 if version == 2 else 2
            good = batch(magic=magic)
            self.say("a good batch", produce(topic, good), version)
            self.say("another one, acks 1", produce(topic, batch(3, magic=magic), acks=1), version)
            self.say("gzip", produce(topic, batch(6, magic=magic, codec="gzip")), version)
            self.say("no records", produce(topic, b""), version)
            self.say("acks 5", produce(topic, good, acks=5), version)
            self.say("an unknown topic", produce("nowhere", good), version)
            self.say("an unknown partition", produce(topic, good, partition=7), version)
            self.say("a negative partition", produce(topic, good, partition=-1), version)
            self.say("a wrong checksum", produce(topic, good[:-1] + b"\x7f"), version)
            self.say("half a batch", produce(topic, good[:-5]), version)
            self.say("two batches", produce(topic, good + batch(3, magic=magic)), version)
            self.say("an empty request", m.ProduceRequest(acks=-1, timeout_ms=1000), version)
            for other in {0, 1, 2} - {magic}:
                self.say(f"format {other}", produce(topic, batch(magic=other)), version)
            self.say("zstd", produce(topic, batch(magic=2, codec="zstd")), version)
            self.say(f"what Produce v{version} stored", fetch(topic, 0), 11)
            self.produce_what_is_refused(version, magic)
            if version >= 3:
                self.produce_as_producer(topic, version)

    def produce_what_is_refused(self, version, magic):
        """Batches of which some records are refused, in topics that are compacted or do not take every time."""
        compacted, narrow, both = (f"{name}-{version}" for name in ("compacted", "narrow", "compacted-and-narrow"))
        self.topic(compacted, cleanup_policy="compact")
        self.topic(narrow, message_timestamp_before_max_ms=3_600_000)
        self.topic(both, cleanup_policy="compact", message_timestamp_before_max_ms=3_600_000)
        now = int(time.time() * 1000)

        def made(*records, **how):
            """Of (has a key, has a time that is long ago); messages of v0 have no time."""
            return build_batch([
                (b"k" if has_key else None, b"value", (), T0 if is_old else now) if magic
                else (b"k" if has_key else None, b"value") for has_key, is_old in records
            ], magic=magic, **how)

        for packed in (None, "gzip"):
            how = {} if packed is None else {"codec": packed}
            self.say(f"some without a key, {packed}", produce(
                compacted, made((True, False), (False, False), (True, False), (False, True), **how)), version)
            self.say(f"some with a time of long ago, {packed}", produce(
                narrow, made((True, True), (True, False), (False, True), **how)), version)
            self.say(f"some without a key, some with a time of long ago, {packed}", produce(
                both, made((True, False), (False, True), (True, True), (False, False), **how)), version)
            self.say(f"all well, {packed}", produce(both, made((True, False), **how)), version)

    def produce_as_producer(self, topic, version):
        of = {"producer_id": 4000 + version, "producer_epoch": 0}
        self.say("sequence 0", produce(topic, batch(base_sequence=0, **of)), version)
        self.say("sequence 0 again", produce(topic, batch(base_sequence=0, **of)), version)
        self.say("sequence 3", produce(topic, batch(base_sequence=3, **of)), version)
        self.say("sequence 9", produce(topic, batch(base_sequence=9, **of)), version)
        of["producer_epoch"] = 1
        self.say("a new epoch", produce(topic, batch(base_sequence=0, **of)), version)
        of["producer_epoch"] = 0
        self.say("an old epoch", produce(topic, batch(base_sequence=6, **of)), version)
        self.say(
            "a control batch",
            produce(topic, build_batch([(bytes(4), bytes(6))], control=True, transactional=True, **of)),
            version,
        )

    def fetched_topic(self):
        """Plain batches, one that was aborted, one that was committed."""
        self.topic("fetched", 2)
        self.produced("fetched", batch(0, 5), batch(5, 4))
        for end in (False, True):
            producer = self.producer("fetching")
            parts = m.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="fetching",
                v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.producer_epoch,
                v3_and_below_topics=[
                    m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="fetched", partitions=[0])
                ],
            )
            self.settled(parts, 3)
            self.produced(
                "fetched",
                batch(
                    9,
                    2,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    base_sequence=0,
                    transactional=True,
                ),
                transactional_id="fetching",
            )
            self.settled(
                m.EndTxnRequest(
                    transactional_id="fetching",
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    committed=end,
                ),
                3,
            )
            self.await_stable("fetched")
        self.produced("fetched", batch(20, 3))

    def await_stable(self, topic, partition=0):
        end = time.monotonic() + PATIENCE_S
        while self.end_offset(topic, partition) != self.end_offset(topic, partition, isolation=1):
            assert time.monotonic() < end
            time.sleep(0.02)

    def producer(self, transactional_id, timeout_ms=60_000):
        self.settled(m.FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id]), 4)
        made = self.settled(
            m.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms), 4
        )
        assert not made.error_code, made
        self.answers.name(made.producer_id, f"producer of {transactional_id}")
        return made

    def markers(self, which, begins):
        """What an operator writes who ends a transaction that hangs. `begins(name, producer, topic)`: begin one."""
        self.settled(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        self.await_topic("__consumer_offsets")
        for version in which:
            self.talk_of_markers(version, begins)

    def talk_of_markers(self, version, begins):
        W, D = m.WriteTxnMarkersRequest, m.DescribeProducersRequest
        topic = f"marked-{version}"
        self.topic(topic, 2)
        self.producer(f"hangs {version}")
        made = self.producer(f"hangs {version}")
        pid, epoch = made.producer_id, made.producer_epoch
        for n in range(1, 5):
            self.answers.name(pid + 1000 * n, f"producer {n} that is unknown")

        def marker(pid, epoch, *rows, commit=False, coordinator=0, transactions=0):
            return W.WritableTxnMarker(
                producer_id=pid, producer_epoch=epoch, transaction_result=commit, coordinator_epoch=coordinator,
                transaction_version=transactions if version >= 2 else 0,
                topics=[W.WritableTxnMarkerTopic(name=name, partition_indexes=list(partitions))
                        for name, *partitions in rows])

        def write(label, *markers):
            return self.say(label, W(markers=list(markers)), version)

        def look(label, partition=0):
            self.held[f"WriteTxnMarkers v{version}: {label}, the end"] = [
                self.end_offset(topic, partition, isolation=isolation) for isolation in (0, 1)]
            found = self.settled(D(topics=[D.TopicRequest(name=topic, partition_indexes=[partition])]), 0)
            for one in found.topics[0].partitions[0].active_producers:
                one.last_timestamp = 0
            self.held[f"WriteTxnMarkers v{version}: {label}, its producers"] = self.answers.plain(found, 0)
            self.say(f"after WriteTxnMarkers v{version}, {label}", fetch(topic, partition, isolation=1), 11)

        write("none")
        write("of no topic", marker(pid, epoch))
        write("of no partition", marker(pid, epoch, (topic,)))
        write("of what does not exist", marker(pid, epoch, ("nowhere", 0), (topic, 9, -1), ("", 0)))
        write("of an unknown producer", marker(pid + 1000, 7, (topic, 1), coordinator=3))
        write("of an earlier coordinator", marker(pid + 1000, 7, (topic, 1), coordinator=2))
        write("of an earlier epoch", marker(pid + 1000, 6, (topic, 1), coordinator=3))
        write("of no coordinator", marker(pid + 2000, 0, (topic, 1), coordinator=-1))
        write("two of a producer", marker(pid + 3000, 1, (topic, 1)), marker(pid + 3000, 2, (topic, 1), commit=True))
        write("of two producers", marker(pid + 3000, 2, (topic, 1)), marker(pid + 4000, 0, (topic, 0, 1), (topic, 7)))
        look("of unknown ones", 1)
        assert not any(codes_of(begins(f"hangs {version}", made, topic)))
        look("while it hangs")
        write("of an epoch before it", marker(pid, epoch - 1, (topic, 0)))
        if version >= 2:
            for number in (2, 3):
                write(f"of its epoch, transaction version {number}",
                      marker(pid, epoch, (topic, 0), transactions=number))
        write("the end of it, with another partition", marker(pid, epoch, (topic, 0, 7)))
        look("the end of it")
        write("the end of it again", marker(pid, epoch, (topic, 0)))
        write("of the next epoch", marker(pid, epoch + 1, (topic, 0), commit=True, coordinator=5))
        write("of the next epoch, by an earlier coordinator", marker(pid, epoch + 1, (topic, 0), coordinator=4))
        look("at last")
        write("of offsets", marker(pid + 1000, 1, ("__consumer_offsets", 0), coordinator=3))
        write("of offsets, of an earlier coordinator", marker(pid + 1000, 1, ("__consumer_offsets", 0), coordinator=2))
        write("of offsets, of an earlier epoch", marker(pid + 1000, 0, ("__consumer_offsets", 0), coordinator=3))
        write("of transactions", marker(pid + 1000, 1, ("__transaction_state", 0), coordinator=3))
        write("of no producer", marker(-1, 0, (topic, 0)))
        write("of no epoch", marker(pid + 1000, -1, (topic, 0)))
        if version >= 2:
            for number in (1, 2, 3):
                for more in (0, 1):
                    write(f"of transaction version {number}, {more}",
                          marker(pid + 2000, 10 + more, (topic, 0), transactions=number))
            write("of transaction version 2, of offsets",
                  marker(pid + 1000, 1, ("__consumer_offsets", 0), coordinator=3, transactions=2))
            look("of transaction versions")

    def on_fetch(self):
        self.fetched_topic()
        self.topic("zstd")
        self.produced("zstd", batch(codec="zstd"))
        for version in versions(m.FetchRequest):

            def ask(label, *offsets, version=version, topic="fetched", **how):
                if version > 12:
                    how["topic_id"] = self.id_of(topic) if topic != "nowhere" else UNKNOWN_ID
                self.say(label, fetch(topic, *offsets, **how), version)

            # Below version 4 nothing tells aborted records from others, and compressed bytes would be of two libraries.
            ask("from the beginning", 0)
            ask("from within a batch", 7)
            ask("at the end", 18)
            ask("behind the end", 19)
            ask("before the beginning", -1)
            ask("an unknown topic", 0, topic="nowhere")
            ask("two partitions and an unknown one", 0, 0, 0)
            ask("at most 20 bytes of a partition", 0, partition_max_bytes=20)
            ask("0 bytes of a partition", 0, partition_max_bytes=0)
            ask("at most 100 bytes", 0, 0, max_bytes=100)
            ask("zstd", 0, topic="zstd")
            ask("nothing", topic="fetched")
            if version >= 4:
                ask("what is committed", 0, isolation=1)
                ask("what is committed, from behind the aborted", 12, isolation=1)
            if version >= 7:
                ask("a new session", 0, session_epoch=0)
                ask("an unknown session", 0, session_id=12345, session_epoch=1)
            if version >= 9:
                ask("a later leader epoch", 0, leader_epoch=9)
            if version >= 12:
                ask("an epoch that was never", 5, last_fetched_epoch=7)

    def on_fetch_of_zstd(self):
        """Below version 10 a topic whose compression.type is zstd is refused, whatever lies in it; every other one is
        sent as it lies there, zstd too. Conversion for still older clients stops before zstd."""
        for name, config in {"stored-as-zstd": {"compression_type": "zstd"}, "zstd-in-between": {}}.items():
            self.topic(name, **config)
        for version in versions(m.FetchRequest):

            def ask(label, offset, topic, version=version):
                how = {"topic_id": self.id_of(topic)} if version > 12 else {}
                self.say(label, fetch(topic, offset, **how), version)

            if version == 0:
                ask("an empty topic of zstd", 0, "stored-as-zstd")
                self.produced("stored-as-zstd", batch())
                self.produced("zstd-in-between", batch(), batch(3, codec="zstd"), batch(6))
            if version < 10:    # later, bytes that two libraries compressed
                ask("a topic of zstd", 0, "stored-as-zstd")
            ask("a topic of zstd, at its end", 3, "stored-as-zstd")
            ask("a topic of zstd, behind its end", 4, "stored-as-zstd")
            ask("a batch of zstd between others", 0, "zstd-in-between")
            ask("a batch of zstd, and another", 3, "zstd-in-between")
            ask("the batch behind the one of zstd", 6, "zstd-in-between")

    def on_fetch_of_formats(self):
        """Messages of the old formats, kept so by the topic or converted for old clients."""
        for version in (0, 1, 2, 3, 4):
            for magic in (0, 1, 2):
                name = f"format-{magic}"
                if version == 0:
                    self.topic(name)
                    produced = self.client.ask(produce(name, batch(magic=magic)), (1, 2, 3)[magic])
                    assert not produced.responses[0].partition_responses[0].error_code
                self.say(f"messages sent in format {magic}", fetch(name, 0), version)

    def on_list_offsets(self):
        self.topic("listed", 2)
        self.produced("listed", batch(0, 5), batch(5, 4), batch(20, 2))
        for version in versions(m.ListOffsetsRequest):
            for label, timestamp in (
                ("latest", -1),
                ("earliest", -2),
                ("largest time", -3),
                ("earliest here", -4),
                ("tiered", -5),
                ("unknown", -9),
                ("a time", T0 + 6),
                ("between batches", T0 + 9),
                ("a time before all", 5),
                ("a time after all", T0 + 1000),
            ):
                self.say(label, list_offsets("listed", [(0, timestamp)]), version)
            self.say("of an empty partition", list_offsets("listed", [(1, -1)]), version)
            self.say("a time of an empty partition", list_offsets("listed", [(1, T0)]), version)
            self.say("unknown ones", list_offsets("nowhere", [(0, -1)]), version)
            self.say("an unknown partition", list_offsets("listed", [(9, -1)]), version)
            self.say("several", list_offsets("listed", [(0, -1), (1, -2)]), version)
            self.say("the same twice", list_offsets("listed", [(0, -1), (0, -2)]), version)
            if version == 0:
                self.say("up to five", list_offsets("listed", [(0, -1)], most=5), version)
            if version >= 2:
                self.say("of what is committed", list_offsets("listed", [(0, -1)], isolation=1), version)
            if version >= 4:
                self.say("a later epoch", list_offsets("listed", [(0, -1)], epoch=9), version)
                self.say("the epoch", list_offsets("listed", [(0, -1)], epoch=0), version)

    def on_epochs(self):
        E = m.OffsetForLeaderEpochRequest
        self.topic("epochs")
        self.produced("epochs", batch())

        def of(topic, epoch, current=-1, partition=0):
            return E(
                topics=[
                    E.OffsetForLeaderTopic(
                        topic=topic,
                        partitions=[
                            E.OffsetForLeaderPartition(
                                partition=partition, leader_epoch=epoch, current_leader_epoch=current
                            )
                        ],
                    )
                ]
            )

        for version in versions(E):
            self.say("the epoch", of("epochs", 0), version)
            self.say("a later one", of("epochs", 5), version)
            self.say("none", of("epochs", -1), version)
            self.say("a topic that is not there", of("nowhere", 0), version)
            self.say("a partition that is not there", of("epochs", 0, partition=4), version)
            self.say("by a client of a later epoch", of("epochs", 0, current=9), version)

    def on_delete_records(self):
        D = m.DeleteRecordsRequest

        def before(topic, offset, partition=0):
            return D(
                timeout_ms=5000,
                topics=[
                    D.DeleteRecordsTopic(
                        name=topic, partitions=[D.DeleteRecordsPartition(partition_index=partition, offset=offset)]
                    )
                ],
            )

        for version in versions(D):
            name = f"trimmed-{version}"
            self.topic(name)
            self.produced(name, batch(0, 5), batch(5, 5))
            self.say("before 3", before(name, 3), version)
            self.say("before 2", before(name, 2), version)
            self.say("before 11", before(name, 11), version)
            self.say("before -5", before(name, -5), version)
            self.say("all", before(name, -1), version)
            self.say("a topic that is not there", before("nowhere", 1), version)
            self.say("a partition that is not there", before(name, 1, 4), version)

    # --- the cluster -------------------------------------------------------------------------

    def on_metadata(self):
        M = m.MetadataRequest
        self.topic("described", 3)

        def of(*names, **how):
            topics = [M.MetadataRequestTopic(name=name) for name in names]
            return M(topics=topics, allow_auto_topic_creation=False, **how)

        for version in versions(M):
            self.say("one topic", of("described"), version)
            self.say("an unknown topic", of("nowhere"), version)
            self.say("a bad name", of("a b"), version)
            self.say("an empty name", of(""), version)
            self.say("both", of("described", "nowhere"), version)
            self.say("the same twice", of("described", "described"), version)
            if version >= 1:
                self.say("no topic", of(), version)
            if version >= 8:
                how = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
                self.say("what is allowed", of("described", **how), version)
            if version >= 10:
                self.say(
                    "by id", M(topics=[M.MetadataRequestTopic(name=None, topic_id=self.id_of("described"))]), version
                )
                self.say(
                    "by an unknown id", M(topics=[M.MetadataRequestTopic(name=None, topic_id=UNKNOWN_ID)]), version
                )
                self.say("by no name", M(topics=[M.MetadataRequestTopic(name=None)]), version)

    def on_api_versions(self):
        A = m.ApiVersionsRequest
        for version in versions(A):
            self.say("a client", A(client_software_name="wire", client_software_version="1.0"), version)
            self.say("no name", A(), version)
            self.say("a bad name", A(client_software_name="-wire", client_software_version="1 0"), version)
        for version in (98, 99):
            frame = self.client.answer_to(b"\0\0\0\x0f" + codec._HEADER.pack(18, version, 5, 4) + b"wire\0")
            answer = codec.decode_response(m.RequestHeader(18, 0, 5, "wire"), frame)
            self.held[f"ApiVersions v{version}: is not known"] = self.answers.plain(answer, 0)
        for api_key, version in ((0, 99), (3, 99), (1, -1), (999, 0)):
            try:
                self.client.answer_to(b"\0\0\0\x0e" + codec._HEADER.pack(api_key, version, 5, 4) + b"wire")
                said = "an answer"
            except Closed:
                said = "<closed>"
            self.held[f"API {api_key} v{version}: is not known"] = said

    def on_describe_cluster(self):
        for version in versions(m.DescribeClusterRequest):
            self.say("plain", m.DescribeClusterRequest(), version)
            self.say("what is allowed", m.DescribeClusterRequest(include_cluster_authorized_operations=True), version)
            if version >= 1:
                self.say("controllers", m.DescribeClusterRequest(endpoint_type=2), version)

    def on_describe_log_dirs(self):
        D = m.DescribeLogDirsRequest
        self.topic("measured", 2)
        self.produced("measured", batch())
        for version in versions(D):
            self.say(
                "two partitions", D(topics=[D.DescribableLogDirTopic(topic="measured", partitions=[0, 1])]), version
            )
            self.say(
                "one that is not there", D(topics=[D.DescribableLogDirTopic(topic="nowhere", partitions=[0])]), version
            )
            self.say("none", D(topics=[]), version)

    def on_sasl(self):
        for version in versions(m.SaslHandshakeRequest):
            self.say("where nobody asks for it", m.SaslHandshakeRequest(mechanism="PLAIN"), version)
        for version in versions(m.SaslAuthenticateRequest):
            self.say("where nobody asks for it", m.SaslAuthenticateRequest(auth_bytes=b"\0u\0p"), version)


def codes_of(struct):
    """Every error code in a response."""
    for name in struct.__slots__:
        value = getattr(struct, name)
        if name in ("error_code", "partition_error_code"):
            yield value
        for inner in value if isinstance(value, list) else [value]:
            if hasattr(inner, "__slots__"):
                yield from codes_of(inner)


def produce(topic, records, partition=0, acks=-1, transactional_id=None):
    P = m.ProduceRequest
    return P(
        acks=acks,
        timeout_ms=10_000,
        transactional_id=transactional_id,
        topic_data=[
            P.TopicProduceData(name=topic, partition_data=[P.PartitionProduceData(index=partition, records=records)])
        ],
    )


def fetch(
    topic,
    *offsets,
    topic_id=bytes(16),
    max_bytes=1 << 20,
    partition_max_bytes=1 << 20,
    isolation=0,
    session_id=0,
    session_epoch=-1,
    leader_epoch=-1,
    last_fetched_epoch=-1,
):
    """Of partitions 0 and on, from these offsets."""
    F = m.FetchRequest
    partitions = [
        F.FetchPartition(
            partition=n,
            fetch_offset=offset,
            partition_max_bytes=partition_max_bytes,
            current_leader_epoch=leader_epoch,
            last_fetched_epoch=last_fetched_epoch,
        )
        for n, offset in enumerate(offsets)
    ]
    topics = [F.FetchTopic(topic=topic, topic_id=topic_id, partitions=partitions)] if partitions else []
    return F(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=max_bytes,
        isolation_level=isolation,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=topics,
    )


def list_offsets(topic, partitions, isolation=0, epoch=-1, most=1):
    L = m.ListOffsetsRequest
    return L(
        replica_id=-1,
        isolation_level=isolation,
        topics=[
            L.ListOffsetsTopic(
                name=topic,
                partitions=[
                    L.ListOffsetsPartition(
                        partition_index=number, timestamp=timestamp, current_leader_epoch=epoch, max_num_offsets=most
                    )
                    for number, timestamp in partitions
                ],
            )
        ],
    )
