"""A start: the port is open at once, what takes time is done beside it, and Kafka's own topics are found as far as they
were made."""
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

import seglog
from seglog.coordinators.offsets_topic import OffsetsTopic, _Loader, group_key
from seglog.coordinators.transaction_topic import TransactionTopic
from seglog.endpoint.topics import Topics
from seglog.errors import StorageError
from seglog.log.open_dir import LogDir
from seglog.wire.error_codes import Errors
from seglog.wire.messages import (
    AddPartitionsToTxnRequest,
    DeleteTopicsRequest,
    DescribeLogDirsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from support.waiting import wait_for
from support.wire_client import WireClient, fetch_request, produce_request

BATCH = seglog.build_batch([(b"k", b"value")])


def find(client, key, key_type=0):
    answer = client.ask(FindCoordinatorRequest(key=key, key_type=key_type), 1)
    assert (Errors(answer.error_code), answer.node_id) == (Errors.NONE, 1)


def init(client, transactional_id):
    answer = client.ask(InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000), 4)
    return Errors(answer.error_code), answer.producer_id, answer.producer_epoch


def commit(client, group, offset):
    request = OffsetCommitRequest
    answer = client.ask(request(group_id=group, generation_id_or_member_epoch=-1, topics=[
        request.OffsetCommitRequestTopic(name="orders", partitions=[
            request.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)])]), 7)
    assert not answer.topics[0].partitions[0].error_code


def committed(client, group):
    request = OffsetFetchRequest
    answer = client.ask(request(group_id=group, topics=[
        request.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])]), 7)
    return answer.topics[0].partitions[0].committed_offset if not answer.error_code else Errors(answer.error_code)


def produced(client, topic, batch=BATCH, **transactional):
    answer = client.ask(produce_request(topic, 0, batch, **transactional), 9)
    return Errors(answer.responses[0].partition_responses[0].error_code)


@pytest.fixture
def held(monkeypatch):
    """`held(owner, name)` lets calls of that method wait until the event is set."""
    events = []

    def hold(owner, name, only=lambda *args: True):
        real, event = getattr(owner, name), threading.Event()

        def wait(*args, **how):
            assert not only(*args) or event.wait(30)
            return real(*args, **how)

        monkeypatch.setattr(owner, name, wait)
        events.append(event)
        return event

    yield hold
    for event in events:
        event.set()


def test_while_groups_and_transactions_are_read_clients_are_told_to_ask_again(in_memory, held):
    with seglog.serve(in_memory, topics={"orders": 1}) as server, WireClient(server) as client:
        find(client, "g")
        find(client, "x", 1)
        commit(client, "g", 7)
        _, producer_id, epoch = init(client, "x")
        request = AddPartitionsToTxnRequest
        client.ask(request(
            v3_and_below_transactional_id="x", v3_and_below_producer_id=producer_id, v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[request.AddPartitionsToTxnTopic(name="orders", partitions=[0])]), 3)
    transactional = seglog.build_batch(
        [(b"k", b"v")], transactional=True, base_sequence=0, producer_id=producer_id, producer_epoch=epoch)
    loaded = held(OffsetsTopic, "load")
    with seglog.serve(in_memory) as server, WireClient(server) as client:
        find(client, "g")
        loading = Errors.COORDINATOR_LOAD_IN_PROGRESS
        assert committed(client, "g") == loading
        assert Errors(client.ask(ListGroupsRequest(), 4).error_code) == loading
        assert init(client, "x")[0] == loading
        # A member that hears an error leaves its group.
        assert not client.ask(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 3).error_code
        # Clients know no error of a coordinator here.
        assert produced(client, "orders", transactional, transactional_id="x") == Errors.NOT_ENOUGH_REPLICAS
        assert produced(client, "orders") == Errors.NONE
        loaded.set()
        wait_for(lambda: committed(client, "g") == 7)
        wait_for(lambda: produced(client, "orders", transactional, transactional_id="x") == Errors.NONE)


@pytest.mark.parametrize("failure", [StorageError("no such disk"), RuntimeError("a fault of ours")], ids=repr)
@pytest.mark.parametrize("failing", [OffsetsTopic, TransactionTopic])
def test_a_coordinator_that_cannot_be_read_says_so_and_the_other_one_works(
    in_memory, monkeypatch, caplog, failing, failure
):
    with seglog.serve(in_memory, topics={"orders": 1}) as server, WireClient(server) as client:
        find(client, "g")
        find(client, "x", 1)
        commit(client, "g", 7)

    def fail(self, *more):
        raise failure

    monkeypatch.setattr(failing, "load", fail)
    with seglog.serve(in_memory) as server, WireClient(server) as client:
        if failing is OffsetsTopic:
            wait_for(lambda: committed(client, "g") == Errors.COORDINATOR_NOT_AVAILABLE)
            wait_for(lambda: init(client, "x")[0] == Errors.NONE)
        else:
            wait_for(lambda: init(client, "x")[0] == Errors.COORDINATOR_NOT_AVAILABLE)
            wait_for(lambda: committed(client, "g") == 7)       # loaded on its own
        wait_for(lambda: str(failure) in caplog.text)


def test_transactions_time_out_if_groups_cannot_be_read(in_memory, monkeypatch):
    def fail(self, *more):
        raise StorageError("no such disk")

    monkeypatch.setattr(OffsetsTopic, "load", fail)
    often = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 20}
    with seglog.serve(in_memory, topics={"orders": 1}, config=often) as server, WireClient(server) as client:
        find(client, "x", 1)
        wait_for(lambda: init(client, "x")[0] == Errors.NONE)
        request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=100)
        answer = client.ask(request, 4)
        request = AddPartitionsToTxnRequest
        client.ask(request(
            v3_and_below_transactional_id="x", v3_and_below_producer_id=answer.producer_id,
            v3_and_below_producer_epoch=answer.producer_epoch,
            v3_and_below_topics=[request.AddPartitionsToTxnTopic(name="orders", partitions=[0])]), 3)
        wait_for(lambda: server.log("orders").log_end_offset == 1)      # the marker


def test_a_group_whose_record_cannot_be_read_costs_the_others_nothing(in_memory, caplog):
    with seglog.serve(in_memory, topics={"orders": 1}) as server, WireClient(server) as client:
        find(client, "g")
        commit(client, "g", 7)
        server.log("__consumer_offsets", 3).append(b"\0\x63 of another Kafka", key=group_key("hurt"))
    with seglog.serve(in_memory) as server, WireClient(server) as client:
        wait_for(lambda: committed(client, "g") == 7)
    assert "unknown version 99 of GroupMetadataValue" in caplog.text


def test_a_server_that_stops_does_not_wait_until_all_groups_are_read(in_memory, monkeypatch):
    with seglog.serve(in_memory, topics={"orders": 1}) as server, WireClient(server) as client:
        find(client, "g")
        for offset in range(20):
            commit(client, "g", offset)
    begun, added, real = threading.Event(), [], _Loader.add

    def add(loader, batch):
        if not added:
            begun.set()
            wait_for(lambda: stopped._log_dir is not None and stopped._log_dir._closed)
        added.append(batch.base_offset)
        real(loader, batch)

    monkeypatch.setattr(_Loader, "add", add)
    stopped = seglog.serve(in_memory)
    with stopped:
        assert begun.wait(60)
    assert added == [0]


def test_a_log_that_takes_long_to_open_is_waited_for_by_its_own_requests_alone(in_memory, held):
    with seglog.serve(in_memory, topics={"long": 1, "quick": 1}) as server, WireClient(server) as client:
        assert produced(client, "long") == produced(client, "quick") == Errors.NONE
    with seglog.open_dir(in_memory) as log_dir:
        assert log_dir.partitions() == [("long", 0), ("quick", 0)]
    opened = held(Topics, "_open", lambda self, name, *args: name == "long")
    # Its worker has nothing else to do: what is asked for first is opened first.
    with (
        pytest.MonkeyPatch.context() as patch, WireClientOf(in_memory, patch) as (client, other),
    ):
        assert produced(other, "quick") == Errors.NONE
        header = client.send(fetch_request("long", 0), 12)
        assert produced(other, "quick") == Errors.NONE
        opened.set()
        assert client.receive(header).responses[0].partitions[0].high_watermark == 1


class WireClientOf:
    """Two clients of a server that opens no logs in the background."""

    def __init__(self, path, patch):
        async def nothing(self):
            pass

        patch.setattr(Topics, "open_all", nothing)
        self._server = seglog.serve(path)

    def __enter__(self):
        self._server.__enter__()
        self._clients = [WireClient(self._server) for _ in range(2)]
        return self._clients

    def __exit__(self, *_):
        for client in self._clients:
            client.__exit__()
        self._server.close()


@pytest.mark.parametrize(("key_type", "topic"), [(0, "__consumer_offsets"), (1, "__transaction_state")])
def test_of_the_fifty_partitions_those_are_made_that_are_used(in_memory, key_type, topic):
    """All of them, with more than seven syncs each, kept the first client waiting."""
    def made():
        return {int(path.name.rpartition("-")[2]) for path in in_memory.glob(f"{topic}-*")}

    def used(client, offset):
        if key_type == 0:
            commit(client, "g", offset)
            commit(client, "another", offset)
        else:
            assert init(client, "g")[0] == init(client, "another")[0] == Errors.NONE

    # By String.hashCode "g" is in partition 3, "another" in 23.
    with seglog.serve(in_memory, topics={"orders": 1}) as server, WireClient(server) as client:
        find(client, "g", key_type)
        assert made() == {49, 3}
        used(client, 1)         # without a look for its coordinator
        assert made() == {49, 3, 23}
        rows = [row for one in client.ask(DescribeLogDirsRequest(topics=None), 4).results[0].topics
                if one.name == topic for row in one.partitions]
        assert len(rows) == 50
        assert sorted(row.partition_index for row in rows if row.partition_size) == [3, 23]
        assert made() == {49, 3, 23}
    with seglog.serve(in_memory) as server, WireClient(server) as client:
        if key_type == 0:
            wait_for(lambda: committed(client, "g") == 1)
        answer = client.ask(fetch_request(topic, 0, partition=12), 11).responses[0].partitions[0]
        assert (answer.error_code, answer.high_watermark) == (0, 0)
        assert made() == {49, 3, 23, 12}
        ids = {(in_memory / f"{topic}-{number}/partition.metadata").read_bytes() for number in made()}
        assert len(ids) == 1
        for number in made():
            assert server.log(topic, number).config.cleanup_policy == "compact"
            assert server.log(topic, number).settings["cleanup.policy"].source == "kept"


def test_a_partition_that_a_crash_left_without_its_settings_gets_them(in_memory):
    with seglog.serve(in_memory, topics={"orders": 1}) as server, WireClient(server) as client:
        find(client, "g")
        commit(client, "g", 1)
    (in_memory / "__consumer_offsets-3/.seglog.config").unlink()
    (in_memory / "__consumer_offsets-3/partition.metadata").unlink()
    with seglog.serve(in_memory) as server, WireClient(server) as client:
        wait_for(lambda: committed(client, "g") == 1)
        # Another thread may be opening it at that moment.
        wait_for(lambda: server.log("__consumer_offsets", 3).settings["cleanup.policy"].source == "kept")
        assert server.log("__consumer_offsets", 3).config.cleanup_policy == "compact"
    assert (in_memory / "__consumer_offsets-3/partition.metadata").exists()


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_what_a_broker_wrote_into_its_own_topics_is_not_deleted_for_its_age(in_memory, topic):
    """A broker keeps its topics' settings elsewhere: by the default, all that is older than a week went."""
    for number in (3, 49):
        with seglog.open(in_memory / f"{topic}-{number}") as log:
            log.append(b"value", key=b"key")
    for config in ({}, {"cleanup.policy": "delete"}):
        with seglog.serve(in_memory, topics={"orders": 1}, config=config) as server:
            assert [server.log(topic, number).config.cleanup_policy for number in (3, 49)] == ["compact"] * 2
            assert server.log("orders").config.cleanup_policy == "delete"


def test_two_threads_that_need_the_same_partition_make_it_once(in_memory, monkeypatch):
    """The start opened it while the groups were read: one of the two found the other's file gone, and no group was
    served."""
    made, real = [], LogDir._create_partitions

    def slowly(log_dir, files):
        made.extend(files)
        time.sleep(0.1)
        real(log_dir, files)

    with seglog.serve(in_memory) as server, WireClient(server) as client:
        find(client, "g")
        monkeypatch.setattr(LogDir, "_create_partitions", slowly)
        with ThreadPoolExecutor() as pool:
            one, other = pool.map(lambda _: server.log("__consumer_offsets", 7), range(2))
        assert one is other
        assert made == [("__consumer_offsets", 7)]


@pytest.mark.parametrize("held_at", ["before it is made", "as it is made"])
def test_a_coordinators_partition_that_is_needed_as_its_topic_is_deleted_goes_with_it(in_memory, monkeypatch, held_at):
    """An empty directory stayed, of which the next start made a topic again, or the request failed."""
    arrived, goes_on = threading.Event(), threading.Event()
    make, has = LogDir._create_partitions, Topics.has

    def hold(function, *arguments):
        done = function(*arguments)
        if threading.current_thread().name.startswith("asks"):
            arrived.set()
            goes_on.wait(20)
        return done

    with seglog.serve(in_memory) as server, WireClient(server) as client:
        find(client, "g")
        if held_at == "before it is made":
            monkeypatch.setattr(Topics, "has", lambda *arguments: hold(has, *arguments))
        else:
            monkeypatch.setattr(LogDir, "_create_partitions", lambda *arguments: hold(make, *arguments))
        with ThreadPoolExecutor(2, "asks") as asks, ThreadPoolExecutor(1, "deletes") as deletes:
            asked = asks.submit(server.log, "__consumer_offsets", 7)
            assert arrived.wait(20)
            request = DeleteTopicsRequest
            deleted = deletes.submit(
                client.ask, request(topics=[request.DeleteTopicState(name="__consumer_offsets")]), 6)
            wait([deleted], timeout=0.5)    # it waits for whoever makes a partition
            goes_on.set()
            assert deleted.result().responses[0].error_code == 0
            log = asked.result()
            assert log is None or log.closed
        wait_for(lambda: not list(in_memory.glob("__consumer_offsets-*")))     # removed after the answer
        find(client, "g")
        assert {path.name for path in in_memory.glob("__consumer_offsets-*")} == {
            "__consumer_offsets-49", "__consumer_offsets-3"}


def test_transactional_ids_are_gone_with_their_topic(in_memory):
    with seglog.serve(in_memory) as server, WireClient(server) as client:
        find(client, "x", 1)
        first, again = init(client, "x"), init(client, "x")
        assert again == (Errors.NONE, first[1], first[2] + 1)
        request = DeleteTopicsRequest
        client.ask(request(topics=[request.DeleteTopicState(name="__transaction_state")]), 6)
        find(client, "x", 1)
        error, producer_id, epoch = init(client, "x")
        assert (error, producer_id != first[1], epoch) == (Errors.NONE, True, 0)
