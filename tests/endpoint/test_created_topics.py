"""CreateTopics and CreatePartitions take several steps for each partition directory. A crash between two of them leaves
no partition, or the next start creates the rest."""
import asyncio
import contextlib
import shutil
import threading
from types import SimpleNamespace

import pytest

import seglog
from seglog.endpoint import topics as topics_module
from seglog.endpoint.topic_creation import FILE_NAME, Creation, mark
from seglog.endpoint.topics import Topics
from seglog.errors import InvalidArgumentError, StorageError
from seglog.fs.files import OsFileSystem
from seglog.state.kept_settings import read_settings
from seglog.state.partition_metadata import PartitionMetadata
from seglog.wire.error_codes import Errors
from seglog.wire.messages import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
)
from support.waiting import wait_for
from support.wire_client import WireClient

SETTINGS = {"cleanup.policy": "compact", "segment.bytes": "1048576"}
CONFIG = {"offsets.topic.num.partitions": 3}
STEPS = ("mkdir", "rename", "replace", "unlink")


def create(client, topic="orders", partitions=3):
    configs = [CreateTopicsRequest.CreatableTopicConfig(name=name, value=value) for name, value in SETTINGS.items()]
    request = CreateTopicsRequest(topics=[CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=partitions, replication_factor=1, configs=configs)])
    return Errors(client.ask(request, 7).topics[0].error_code)


def widen(client, topic="orders", partitions=5):
    request = CreatePartitionsRequest(topics=[CreatePartitionsRequest.CreatePartitionsTopic(
        name=topic, count=partitions, assignments=None)])
    return Errors(client.ask(request, 3).results[0].error_code)


def find_coordinator(client):
    return Errors(client.ask(FindCoordinatorRequest(key="a", key_type=0), 1).error_code)


def counts(client):
    return {topic.name: len(topic.partitions) for topic in client.ask(MetadataRequest(topics=None), 12).topics}


def numbers(directory, topic="orders"):
    return sorted(int(path.name.rpartition("-")[2]) for path in directory.glob(f"{topic}-*"))


def made_alike(directory, topic="orders"):
    """Whether all directories of the topic have one id, and the same settings."""
    paths = [directory / f"{topic}-{number}" for number in numbers(directory, topic)]
    ids = {PartitionMetadata.read(path / "partition.metadata").topic_id for path in paths}
    return len(ids) == 1 and all(read_settings(path) == read_settings(paths[0]) for path in paths)


@pytest.fixture
def crashes(in_memory, monkeypatch):
    """`crashes(do)`: copies of a log dir as a crash leaves it before `do(client)` and after each step of it.

    The server works in the background, too: no step of any of its threads is taken while a copy is made.
    """

    def made(do, topics):
        data, copies = in_memory / "data", []
        steps = threading.RLock()
        is_recording = False

        def copy():
            copies.append(in_memory / f"copy-{len(copies)}")
            shutil.copytree(data, copies[-1])

        def watched(function):
            def step(*arguments, **options):
                with steps:
                    result = function(*arguments, **options)
                    if is_recording:
                        copy()
                    return result

            return step

        for name in STEPS:
            monkeypatch.setattr(OsFileSystem, name, watched(getattr(OsFileSystem, name)))
        with seglog.serve(data, topics=topics, config=CONFIG) as server, WireClient(server) as client:
            for topic in topics:
                assert widen(client, topic, 3) == Errors.NONE
            with steps:
                copy()
                is_recording = True
            assert do(client) == Errors.NONE
            with steps:
                is_recording = False
        monkeypatch.undo()
        return copies

    return made


def test_an_error_names_the_topic_whose_name_is_refused(tmp_path):
    refused = pytest.raises(InvalidArgumentError, match="Topic name is invalid: 'a b': it may contain only ASCII")
    with seglog.serve(tmp_path / "data", fsync="never") as server, refused:
        server.create_topic("a b")


def test_a_crash_during_create_topics_leaves_the_whole_topic_or_nothing(crashes):
    counted = []
    for copy in crashes(create, {}):
        with seglog.serve(copy) as server, WireClient(server) as client:
            counted.append(counts(client).get("orders", 0))
            if counted[-1]:
                assert numbers(copy) == [0, 1, 2]
                assert made_alike(copy)
                assert read_settings(copy / "orders-0") == SETTINGS
                assert create(client) == Errors.TOPIC_ALREADY_EXISTS
        assert not (copy / FILE_NAME).exists()
    assert set(counted) == {0, 3}
    assert counted == sorted(counted)


def test_a_crash_during_create_partitions_leaves_all_of_them_or_none(crashes):
    counted = []
    for copy in crashes(widen, {"orders": 1}):
        with seglog.serve(copy) as server, WireClient(server) as client:
            counted.append(counts(client)["orders"])
            assert numbers(copy) == list(range(counted[-1]))
            assert made_alike(copy)
        assert not (copy / FILE_NAME).exists()
    assert set(counted) == {3, 5}
    assert counted == sorted(counted)


def test_a_crash_while_the_coordinators_topic_is_created_leaves_its_last_partition_whole(crashes):
    for copy in crashes(find_coordinator, {}):
        with seglog.serve(copy, config=CONFIG) as server, WireClient(server) as client:
            assert find_coordinator(client) == Errors.NONE
            assert counts(client) == {"__consumer_offsets": 3}
            assert made_alike(copy, "__consumer_offsets")
            assert read_settings(copy / "__consumer_offsets-2")["cleanup.policy"] == "compact"


def failing_at(count, monkeypatch):
    """Have the mkdir of this number fail."""
    mkdir, calls = OsFileSystem.mkdir, []

    def refused(fs, path):
        calls.append(path)
        if len(calls) == count:
            raise StorageError("no space left on device", file=path)
        mkdir(fs, path)

    monkeypatch.setattr(OsFileSystem, "mkdir", refused)


def test_a_creation_that_fails_leaves_nothing_and_can_be_tried_again(in_memory, monkeypatch):
    with seglog.serve(in_memory) as server, WireClient(server) as client:
        failing_at(3, monkeypatch)
        assert create(client) == Errors.KAFKA_STORAGE_ERROR
        assert numbers(in_memory) == []
        assert not (in_memory / FILE_NAME).exists()
        assert create(client, partitions=2) == Errors.NONE
        failing_at(2, monkeypatch)
        assert widen(client) == Errors.KAFKA_STORAGE_ERROR
        assert counts(client) == {"orders": 2}
        assert numbers(in_memory) == [0, 1]
        assert widen(client, partitions=3) == Errors.NONE
        assert made_alike(in_memory)


def marked(directory, topic="orders", first=0, end=4):
    """A log dir that a crash left when `orders` had two of four partitions."""
    with seglog.serve(directory, topics={"orders": 2, "other": 1}):
        pass
    topic_id = PartitionMetadata.read(directory / "orders-0/partition.metadata").topic_id.bytes
    mark(OsFileSystem(), directory, [Creation(topic, topic_id, first, end, {})])
    return directory / FILE_NAME


@pytest.mark.parametrize("topic", ["other", "gone"])
def test_the_mark_of_another_topic_creates_nothing(in_memory, topic):
    """A broker that had the log dir in between deleted the topic, or made it again."""
    mark_file = marked(in_memory, topic)
    with seglog.serve(in_memory) as server, WireClient(server) as client:
        assert counts(client) == {"orders": 2, "other": 1}
    assert not mark_file.exists()


def test_a_deleted_topic_is_not_completed(in_memory):
    mark_file = marked(in_memory)
    raw = mark_file.read_bytes()
    with seglog.serve(in_memory) as server, WireClient(server) as client:
        assert counts(client)["orders"] == 4
        request = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="orders")])
        assert not client.ask(request, 6).responses[0].error_code
    mark_file.write_bytes(raw)
    with seglog.serve(in_memory) as server, WireClient(server) as client:
        assert counts(client) == {"other": 1}


def test_a_server_starts_although_it_cannot_read_the_mark(in_memory, caplog):
    mark_file = marked(in_memory)
    mark_file.write_text("{}")
    with seglog.serve(in_memory) as server, WireClient(server) as client:
        assert counts(client)["orders"] == 2
    assert "a topic may have fewer partitions than a client asked for: " in caplog.text
    assert mark_file.exists()


def test_a_topic_is_completed_although_another_process_has_a_partition_open(in_memory):
    marked(in_memory)
    with seglog.open(in_memory / "orders-1"), seglog.serve(in_memory) as server, WireClient(server) as client:
        assert counts(client)["orders"] == 4


def test_a_thousand_topics_take_a_few_syncs_and_no_log_is_opened_for_their_answer(in_memory, monkeypatch):
    """Each partition took five or six."""
    calls, real = [], OsFileSystem.sync_directory
    monkeypatch.setattr(OsFileSystem, "sync_directory", lambda fs, path: (calls.append(str(path)), real(fs, path)))
    monkeypatch.setattr(Topics, "_sync_later", lambda topics: None)
    monkeypatch.setattr(Topics, "_open_new", nothing)
    monkeypatch.setattr(Topics, "_rename_later", lambda topics: None)       # it is done at the end
    request = CreateTopicsRequest(topics=[CreateTopicsRequest.CreatableTopic(
        name=f"topic-{number}", num_partitions=2, replication_factor=1) for number in range(1000)])
    with seglog.serve(in_memory, topics={"first": 1}) as server, WireClient(server) as client:
        calls.clear()
        assert [row.error_code for row in client.ask(request, 4).topics] == [0] * 1000
        assert server._running().topics.logs() == []
        assert calls == [str(in_memory)] * 3        # the mark, and a thousand directories each time
        server._running().topics._unsynced = ()     # the end would sync their files
        calls.clear()
        request = DeleteTopicsRequest(topics=[
            DeleteTopicsRequest.DeleteTopicState(name=f"topic-{number}") for number in range(1000)])
        assert not any(row.error_code for row in client.ask(request, 6).responses)
        assert calls == [str(in_memory)]            # the mark
    assert len(calls) <= 5      # a thousand directories each time, and no mark; and the end of the log dir itself


async def nothing(*_):
    pass


def test_the_logs_of_new_topics_are_opened_in_the_background(in_memory):
    with seglog.serve(in_memory, topics={"orders": 3}) as server:
        wait_for(lambda: len(server._running().topics.logs()) == 3)


def test_a_server_that_stops_at_once_leaves_a_log_in_each_directory_of_a_new_topic(in_memory):
    """Whoever looks at the directory then must find all partitions."""
    with seglog.serve(in_memory) as server:
        server.create_topic("orders", 3)
        server.log("orders", 1).append(b"v")
    assert sorted(log.parent.name for log in in_memory.glob("orders-*/*.log")) == ["orders-0", "orders-1", "orders-2"]


@pytest.mark.parametrize("patience_s", [60, 0.2])
def test_syncs_of_new_topics_wait_for_a_creation_that_takes_long_but_not_forever(monkeypatch, patience_s):
    monkeypatch.setattr(topics_module, "_QUIET_S", 0.02)
    monkeypatch.setattr(topics_module, "_PATIENCE_S", patience_s)

    async def waits():
        created = SimpleNamespace(_promised=1, _created_s=0.0)
        waiting = asyncio.ensure_future(Topics._quiet(created))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.1)
        assert not waiting.done()
        created._promised = 0 if patience_s == 60 else 1
        await asyncio.wait_for(waiting, 30)

    asyncio.run(waits())


@pytest.mark.parametrize("wanted", ["3", True, 0, (3,), (3, {}, 1), (3, ["a"])])
def test_a_topic_of_the_start_that_cannot_be_meant_is_refused(in_memory, wanted):
    with pytest.raises(InvalidArgumentError), seglog.serve(in_memory / "data", topics={"orders": wanted}):
        pass


def test_topics_of_the_start_may_have_settings(in_memory):
    topics = {"orders": (2, {"cleanup.policy": "compact"}), "bills": None}
    with seglog.serve(in_memory / "data", topics=topics, config={"num.partitions": 3}) as server:
        assert server.log("orders", 1).config.cleanup_policy == "compact"
        assert server.log("bills", 2) is not None
        with pytest.raises(InvalidArgumentError, match="already exists") as caught:
            server.create_topic("orders")
        assert "another name" in caught.value.hint
