"""DeleteTopics takes a step for each partition directory. A crash between two of them leaves the topic whole, or the
next start deletes the rest of it."""
import shutil

import pytest

import seglog
from seglog.coordinators.internal_topic import java_abs, java_hash
from seglog.endpoint import topics
from seglog.endpoint.topic_deletion import FILE_NAME, Deletion, mark, read_mark
from seglog.fs.files import OsFileSystem
from seglog.state.partition_metadata import PartitionMetadata
from seglog.wire.error_codes import Errors
from seglog.wire.messages import (
    DeleteTopicsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from support.waiting import wait_for
from support.wire_client import WireClient

KEYS = ("a", "b", "c")
COORDINATORS = {"__consumer_offsets": 0, "__transaction_state": 1}      # the topic, and the type of its keys
COUNTS = {"__consumer_offsets": 3, "__transaction_state": 3, "orders": 4, "single": 1}
CONFIG = {"offsets.topic.num.partitions": 3, "transaction.state.log.num.partitions": 3}


def find(client, topic):
    for key in KEYS:
        assert not client.ask(FindCoordinatorRequest(key=key, key_type=COORDINATORS[topic]), 1).error_code


def delete(client, topic):
    request = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name=topic)])
    return Errors(client.ask(request, 6).responses[0].error_code)


def counts(client):
    return {topic.name: len(topic.partitions) for topic in client.ask(MetadataRequest(topics=None), 12).topics}


def numbers(directory, topic):
    return {int(path.name.rpartition("-")[2]) for path in directory.glob(f"{topic}-*") if path.name[-1].isdigit()}


def filled(directory):
    """A server's log dir with all topics of COUNTS."""
    with seglog.serve(directory, topics={"orders": 4, "single": 1}, config=CONFIG) as server:
        for topic in COORDINATORS:
            with WireClient(server) as client:
                find(client, topic)


@pytest.fixture
def crashes(in_memory, monkeypatch):
    """`crashes(topic)`: copies of a log dir, as a crash leaves it before a deletion and after each step of it."""

    def made(topic):
        data, copies = in_memory / "data", []
        filled(data)

        def copy():
            copies.append(in_memory / f"copy-{len(copies)}")
            shutil.copytree(data, copies[-1])

        def watched(function):
            def step(*arguments):
                function(*arguments)
                copy()

            return step

        with seglog.serve(data, config=CONFIG) as server, WireClient(server) as client:
            for log in range(COUNTS[topic]):
                server.log(topic, log)
            for name in ("rename", "replace"):
                monkeypatch.setattr(OsFileSystem, name, watched(getattr(OsFileSystem, name)))
            copy()
            assert delete(client, topic) == Errors.NONE
            wait_for(lambda: not numbers(data, topic))
            wait_for(lambda: not (data / FILE_NAME).exists())
            monkeypatch.undo()
        return copies

    return made


@pytest.fixture(params=[topics._RENAMED_AT_ONCE, 0])
def renamed_at_once(request, monkeypatch):
    """Directories are renamed before the answer, or behind it, a topic at a time."""
    monkeypatch.setattr(topics, "_RENAMED_AT_ONCE", request.param)
    return request.param


@pytest.mark.usefixtures("renamed_at_once")
@pytest.mark.parametrize("topic", COUNTS)
def test_a_crash_between_two_steps_leaves_all_of_a_topic_or_nothing(crashes, topic):
    whole = []
    copies = crashes(topic)
    for copy in copies:
        before = numbers(copy, topic)
        with seglog.serve(copy, config=CONFIG) as server, WireClient(server) as client:
            have = counts(client)
            whole.append(topic in have)
            if whole[-1]:
                assert have == COUNTS
                assert numbers(copy, topic) == before
            else:
                assert have == {name: count for name, count in COUNTS.items() if name != topic}
                assert not numbers(copy, topic)
            if topic in COORDINATORS:       # a group has the same partition as before
                find(client, topic)
                assert counts(client)[topic] == COUNTS[topic]
                assert {java_abs(java_hash(key)) % COUNTS[topic] for key in KEYS} <= numbers(copy, topic)
    # Once it is gone it does not come back.
    assert whole == sorted(whole, reverse=True)
    assert {whole[0], whole[-1]} == {True, False}


def interrupted(directory):
    """A log dir that a crash left when the first partition of `orders` was deleted."""
    filled(directory)
    topic_id = PartitionMetadata.read(directory / "orders-3/partition.metadata").topic_id.bytes
    mark(OsFileSystem(), directory, [Deletion("orders", topic_id), Deletion("gone", topic_id)])
    shutil.rmtree(directory / "orders-0")


def commit(client, group, topic):
    request = OffsetCommitRequest
    row = client.ask(request(group_id=group, generation_id_or_member_epoch=-1, topics=[
        request.OffsetCommitRequestTopic(name=topic, partitions=[
            request.OffsetCommitRequestPartition(partition_index=0, committed_offset=5)])]), 7).topics[0].partitions[0]
    assert not row.error_code


def committed(client, group):
    """The topics of which the group has offsets; None: the groups are not loaded yet."""
    answer = client.ask(OffsetFetchRequest(group_id=group, topics=None), 7)
    return None if answer.error_code else [topic.name for topic in answer.topics]


def test_groups_forget_the_offsets_of_a_topic_whose_rest_a_start_deletes(in_memory):
    """Otherwise they would go on in the middle of the next topic of this name."""
    topics = {"orders": 4, "single": 1}
    with seglog.serve(in_memory, topics=topics, config=CONFIG) as server, WireClient(server) as client:
        find(client, "__consumer_offsets")
        commit(client, "a", "orders")
        commit(client, "a", "single")
        commit(client, "b", "orders")
    interrupted(in_memory)
    for _ in range(2):      # they have also written it down
        with seglog.serve(in_memory, config=CONFIG) as server, WireClient(server) as client:
            wait_for(lambda client=client: [committed(client, group) for group in "ab"] == [["single"], []])


def test_the_mark_of_another_topic_deletes_nothing(in_memory):
    """A broker that had the log dir in between made the topic again, or somebody renamed the directories."""
    interrupted(in_memory)
    for number in (1, 2, 3):
        shutil.copy(in_memory / "single-0/partition.metadata", in_memory / f"orders-{number}")
    with seglog.serve(in_memory) as server, WireClient(server) as client:
        assert counts(client) == COUNTS


@pytest.mark.parametrize("fault", ["held", "unreadable mark"])
def test_a_server_starts_although_it_cannot_delete_the_rest_and_the_topic_stays(in_memory, fault, caplog):
    interrupted(in_memory)
    mark_file = in_memory / FILE_NAME
    if fault == "unreadable mark":
        mark_file.write_text("{}")
    with seglog.open(in_memory / ("orders-1" if fault == "held" else "free-0")):
        with seglog.serve(in_memory) as server, WireClient(server) as client:
            assert counts(client)["orders"] == 4
        assert ("topic orders stays, although its deletion had begun: " if fault == "held" else
                "topics whose deletion had begun may be there in part: ") in caplog.text
    # What clients write meanwhile is not deleted at the next start.
    assert mark_file.exists() == (fault == "unreadable mark")
    with seglog.serve(in_memory) as server, WireClient(server) as client:
        assert counts(client)["orders"] == 4


@pytest.mark.usefixtures("renamed_at_once")
def test_a_deletion_that_is_refused_deletes_nothing_and_leaves_no_mark(in_memory):
    filled(in_memory)
    with seglog.open(in_memory / "orders-1"), seglog.serve(in_memory) as server, WireClient(server) as client:
        assert delete(client, "orders") == Errors.KAFKA_STORAGE_ERROR
        assert counts(client) == COUNTS
        assert numbers(in_memory, "orders") == {0, 1, 2, 3}
        assert server.log("orders", 0) is not None
    assert not (in_memory / FILE_NAME).exists()


def test_a_deletion_of_many_partitions_is_answered_before_their_directories_are_renamed(in_memory, monkeypatch):
    filled(in_memory)
    monkeypatch.setattr(topics, "_RENAMED_AT_ONCE", 0)
    monkeypatch.setattr(topics.Topics, "_rename_later", lambda _: None)
    with seglog.serve(in_memory, config=CONFIG) as server, WireClient(server) as client:
        before = PartitionMetadata.read(in_memory / "orders-0/partition.metadata").topic_id
        server.log("orders", 0).append(b"old")
        for topic in ("orders", "single"):
            assert delete(client, topic) == Errors.NONE
            assert topic not in counts(client)
            assert delete(client, topic) == Errors.UNKNOWN_TOPIC_OR_PARTITION
        assert server.log("orders", 0) is None
        assert [one.topic for one in read_mark(in_memory)] == ["orders", "single"]
        assert numbers(in_memory, "orders") == {0, 1, 2, 3}
        # A topic of the same name does not wait for long, and has nothing of the old one.
        server.create_topic("orders", 2)
        assert numbers(in_memory, "orders") == {0, 1}
        assert PartitionMetadata.read(in_memory / "orders-0/partition.metadata").topic_id != before
        assert server.log("orders", 0).log_end_offset == 0
        assert read_mark(in_memory) == []
        assert delete(client, "orders") == Errors.NONE
        assert numbers(in_memory, "orders") == {0, 1}
    # The end of the server finishes it: whoever opens the log dir next may know nothing of the mark.
    assert numbers(in_memory, "orders") == numbers(in_memory, "single") == set()
    assert not (in_memory / FILE_NAME).exists()
