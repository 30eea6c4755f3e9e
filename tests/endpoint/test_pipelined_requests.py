"""Requests that a client sends without waiting for answers: the server handles them as they come, several at a time."""
import asyncio
import itertools
import random
import statistics
import struct
import threading
from contextlib import ExitStack

import pytest

import seglog
from seglog.endpoint.byte_streams import PlainStream
from seglog.endpoint.requests import Requests
from seglog.errors import StorageError
from seglog.log.log import Log
from seglog.wire.error_codes import Errors
from seglog.wire.messages import ApiVersionsRequest, MetadataRequest
from support.waiting import wait_for
from support.wire_client import WireClient, fetch_request, produce_request

SMALL = seglog.build_batch([(b"k", b"value")])
LARGE = seglog.build_batch([(b"k", b"x" * 20_000)])
HUGE = seglog.build_batch([(b"k", b"x" * 200_000)])


@pytest.fixture(params=["batch", "interval"])
def server(in_memory, request):
    with seglog.serve(in_memory / "data", topics={"orders": 3}, fsync=request.param) as server:
        yield server


def program(seed, count=300):
    """Requests of a client, with their versions: most produce, and some have to wait for something else."""
    rnd = random.Random(seed)
    for _ in range(count):
        match rnd.randrange(12):
            case 0:
                yield MetadataRequest(topics=None), 12
            case 1:
                yield fetch_request("orders", 0, partition=rnd.randrange(3)), 12
            case 2:
                yield produce_request("nobody", 0, SMALL), 11
            case 3:
                yield produce_request("orders", rnd.randrange(3), SMALL, acks=0), 11
            case 4:
                yield produce_request("orders", rnd.randrange(3), HUGE, acks=1), 11
            case 5 | 6 | 7:
                yield produce_request("orders", rnd.randrange(3), LARGE, acks=1), 11
            case _:
                yield produce_request("orders", rnd.randrange(3), SMALL), 11


def sent_in_pieces(client, raw, rnd):
    at = 0
    while at < len(raw):
        size = rnd.choice((1, 3, 100, 5_000, 70_000, 500_000))
        client.socket.sendall(raw[at : at + size])
        at += size


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("taken_bytes", [None, 7])
def test_each_request_is_answered_once_and_in_its_turn(server, seed, taken_bytes, monkeypatch):
    """`taken_bytes`: the socket takes no more of the answers at once."""
    if taken_bytes:
        monkeypatch.setattr(
            PlainStream, "send_at_once", lambda stream, data: stream._socket.send(memoryview(data)[:taken_bytes]))
    rnd = random.Random(seed)
    with WireClient(server) as client:
        frames = [(client.frame(request, version), request) for request, version in program(seed)]
        raw = b"".join(frame for (_, frame), _ in frames)
        sender = threading.Thread(target=sent_in_pieces, args=(client, raw, rnd))
        sender.start()
        ends = {}
        for (header, _), request in frames:
            if getattr(request, "acks", None) == 0:
                topic = request.topic_data[0]
                key = topic.name, topic.partition_data[0].index
                ends[key] = ends.get(key, 0) + 1
                continue
            response = client.receive(header)       # (which compares the correlation id)
            for topic in getattr(request, "topic_data", ()):
                row = response.responses[0].partition_responses[0]
                if topic.name == "nobody":
                    assert row.error_code == Errors.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    key = topic.name, row.index
                    assert (row.error_code, row.base_offset) == (0, ends.get(key, 0))
                    ends[key] = row.base_offset + 1
        sender.join()
        for (_, partition), end in ends.items():
            log = server.log("orders", partition)
            wait_for(lambda log=log, end=end: log.log_end_offset == end)     # those without an answer, too
    wait_for(lambda: server.requests_bytes == 0)


def test_what_came_before_a_bad_request_is_answered_before_the_connection_is_closed(server):
    with WireClient(server) as client:
        client.ask(produce_request("orders", 0, SMALL), 11)     # so that the log is open
        header, good = client.frame(produce_request("orders", 0, SMALL, acks=1), 11)
        client.socket.sendall(good + struct.pack(">ihhih", 10, 0, 11, 1, 77))
        assert client.receive(header).responses[0].partition_responses[0].base_offset == 1
        assert client.is_closed()


def test_a_batch_that_is_refused_without_an_answer_closes_the_connection(server):
    with WireClient(server) as client:
        client.ask(produce_request("orders", 0, SMALL), 11)
        client.send(produce_request("orders", 0, SMALL[:-1] + b"!", acks=0), 11)
        assert client.is_closed()


def test_faults_happen_to_requests_in_the_middle(server):
    with WireClient(server) as client:
        client.ask(produce_request("orders", 0, SMALL), 11)
        server.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
        headers = [client.send(produce_request("orders", 0, SMALL), 11) for _ in range(4)]
        codes = [client.receive(header).responses[0].partition_responses[0].error_code for header in headers]
    assert codes == [Errors.NOT_LEADER_OR_FOLLOWER] * 2 + [0, 0]


def test_a_request_that_fails_unexpectedly_is_told_so_and_the_next_one_is_served(server, monkeypatch, caplog):
    with WireClient(server) as client:
        client.ask(produce_request("orders", 0, SMALL), 11)
        real = Log.append_batch

        def append_batch(log, raw, **options):
            monkeypatch.setattr(Log, "append_batch", real)
            raise ZeroDivisionError

        monkeypatch.setattr(Log, "append_batch", append_batch)
        headers = [client.send(produce_request("orders", 0, SMALL), 11) for _ in range(2)]
        rows = [client.receive(header).responses[0].partition_responses[0] for header in headers]
    assert [(row.error_code, row.base_offset) for row in rows] == [(Errors.UNKNOWN_SERVER_ERROR, -1), (0, 1)]
    assert "PRODUCE v11 failed" in caplog.text


def test_a_sync_that_fails_is_told_to_everybody_who_waits_for_it(in_memory, monkeypatch):
    with (
        seglog.serve(in_memory / "data", topics={"orders": 1}, fsync="batch") as server,
        WireClient(server) as first, WireClient(server) as second,
    ):
        first.ask(produce_request("orders", 0, SMALL), 11)
        real = Log.when_durable
        monkeypatch.setattr(Log, "when_durable", lambda log, token, callback: real(
            log, token, lambda _: callback(StorageError("the disk is gone"))))
        headers = [(one, one.send(produce_request("orders", 0, SMALL), 11)) for one in (first, second, first)]
        for client, header in headers:
            row = client.receive(header).responses[0].partition_responses[0]
            assert (row.error_code, row.base_offset) == (Errors.KAFKA_STORAGE_ERROR, -1)
            assert row.error_message == "the disk is gone"
        monkeypatch.undo()
        assert first.ask(produce_request("orders", 0, SMALL), 11).responses[0].partition_responses[0].base_offset == 4


def test_a_client_that_leaves_before_its_batch_is_durable_is_in_nobodys_way(in_memory, monkeypatch):
    with seglog.serve(in_memory / "data", topics={"orders": 1}, fsync="batch") as server, WireClient(server) as other:
        other.ask(produce_request("orders", 0, SMALL), 11)
        calls, real = [], Log.when_durable
        monkeypatch.setattr(Log, "when_durable", lambda *arguments: calls.append(arguments))
        with WireClient(server) as client:
            client.send(produce_request("orders", 0, SMALL), 11)
            client.send(ApiVersionsRequest(), 0)
            wait_for(lambda: calls)
        monkeypatch.undo()
        real(*calls[0])
        assert other.ask(produce_request("orders", 0, SMALL), 11).responses[0].partition_responses[0].base_offset == 2
        wait_for(lambda: server.requests_bytes == 0)


def test_answers_that_wait_for_the_disk_keep_their_turn_among_others(in_memory, monkeypatch):
    with seglog.serve(in_memory / "data", topics={"orders": 1}, fsync="batch") as server, WireClient(server) as client:
        client.ask(produce_request("orders", 0, SMALL), 11)
        held, real = [], Log.when_durable
        monkeypatch.setattr(Log, "when_durable", lambda *arguments: held.append(arguments))
        durable = client.send(produce_request("orders", 0, SMALL), 11)
        wait_for(lambda: held)
        written = client.send(produce_request("orders", 0, SMALL, acks=1), 11)
        versions = client.send(ApiVersionsRequest(), 0)
        client.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.socket.recv(1)
        client.socket.settimeout(20)
        monkeypatch.undo()
        real(*held[0])
        offsets = [client.receive(header).responses[0].partition_responses[0].base_offset
                   for header in (durable, written)]
        assert offsets == [1, 2]
        assert client.receive(versions).error_code == 0


def test_while_the_socket_takes_no_more_the_next_request_waits_and_the_next_answer(in_memory, monkeypatch):
    """Three requests arrive together. The socket takes half of the first answer; then the second request's batch is
    durable. Until the client takes the other half, the server may neither send the second answer nor handle the third
    request."""
    with seglog.serve(in_memory / "data", topics={"orders": 1}, fsync="batch") as server, WireClient(server) as client:
        client.ask(produce_request("orders", 0, SMALL), 11)     # so that the log is open
        log = server.log("orders")
        held, halved, client_reads = [], [], threading.Event()
        when_durable, send = Log.when_durable, PlainStream.send

        def send_half(stream, data):
            if stream._socket.getpeername() != client.socket.getsockname():
                return stream._socket.send(data)
            halved.append(stream)
            return stream._socket.send(memoryview(data)[: len(data) // 2])

        async def send_later(stream, data, *, more=False):
            while stream in halved and not client_reads.is_set():
                await asyncio.sleep(0.001)
            await send(stream, data, more=more)

        monkeypatch.setattr(PlainStream, "send_at_once", send_half)
        monkeypatch.setattr(PlainStream, "send", send_later)
        monkeypatch.setattr(Log, "when_durable", lambda log, token, callback: when_durable(
            log, token, lambda error: held.append(lambda: callback(error))))
        frames = [client.frame(produce_request("orders", 0, SMALL, acks=acks), 11) for acks in (1, -1, 1)]
        client.socket.sendall(b"".join(raw for _, raw in frames))
        wait_for(lambda: held)
        held[0]()
        with WireClient(server) as other:
            other.ask(ApiVersionsRequest(), 0)      # the loop has had that callback before it
        assert len(halved) == 1
        assert log.log_end_offset == 3
        client_reads.set()
        rows = [client.receive(header).responses[0].partition_responses[0] for header, _ in frames]
        assert [(row.error_code, row.base_offset) for row in rows] == [(0, 1), (0, 2), (0, 3)]


def test_a_client_that_sends_without_a_pause_leaves_others_their_turn(server):
    raw = produce_request("orders", 0, LARGE, acks=0)
    stop = threading.Event()

    def flood():
        with WireClient(server) as client:
            _, frame = client.frame(raw, 11)
            while not stop.is_set():
                client.socket.sendall(frame * 20)

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        with WireClient(server) as client:
            wait_for(lambda: server.log("orders") is not None and server.log("orders").log_end_offset > 100)
            for _ in range(20):
                answer = client.ask(produce_request("orders", 1, SMALL), 11)
                assert answer.responses[0].partition_responses[0].error_code == 0
                assert client.ask(MetadataRequest(topics=None), 12).brokers
    finally:
        stop.set()
        flooding.join()


def test_connections_that_pipeline_share_the_time_of_one(served, monkeypatch):
    """A turn of the loop would take as many times 2 ms as there are connections; another client has to wait for it."""
    connections, order, real = 30, [], Requests.answer
    monkeypatch.setattr(Requests, "answer", lambda self, frame, *rest: (order.append(rest[-1]), real(
        self, frame, *rest))[1])
    with ExitStack() as stack:
        clients = [stack.enter_context(WireClient(served)) for _ in range(connections)]
        frames = b"".join(clients[0].frame(ApiVersionsRequest(), 0)[1] for _ in range(400))
        for client in clients:
            client.ask(ApiVersionsRequest(), 0)
        order.clear()
        threads = [threading.Thread(target=client.socket.sendall, args=(frames,)) for client in clients]
        for thread in threads:
            thread.start()
        for client in clients:
            for _ in range(400):
                client.receive_frame()
        for thread in threads:
            thread.join()
    turns = [len(list(run)) for _, run in itertools.groupby(order, key=id)]
    assert sum(turns) == 400 * connections
    assert statistics.median(turns) <= 20
