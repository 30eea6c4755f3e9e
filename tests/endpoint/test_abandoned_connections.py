"""Connections whose clients are gone, or never log in: they end, and keep nobody out."""
import logging
import socket
import struct
import time
from contextlib import ExitStack, suppress

import pytest

import seglog
from seglog.wire import messages as m
from support.waiting import wait_for
from support.wire_client import WireClient, fetch_request

MANY = 50
FOREVER_MS = 2**31 - 1      # 24.8 days


def log_in(client, name="alice", password="secret"):
    client.ask(m.SaslHandshakeRequest(mechanism="PLAIN"), 1)
    return client.ask(m.SaslAuthenticateRequest(auth_bytes=f"\0{name}\0{password}".encode()), 2)


def connections(server):
    return server._running().traffic.connections


def test_a_closed_socket_ends_its_long_poll(served):
    for _ in range(MANY):
        with WireClient(served) as client:
            client.send(fetch_request("orders", 0, max_wait_ms=FOREVER_MS), 12)
    wait_for(lambda: connections(served) == 0)


@pytest.mark.parametrize("bytes_behind", [b"", b"\0\0"], ids=["nothing behind", "bytes behind"])
def test_a_closed_socket_ends_a_wait_for_the_other_members(served, bytes_behind):
    def join(client, member_id=""):
        return m.JoinGroupRequest(
            group_id="g", session_timeout_ms=30_000, rebalance_timeout_ms=FOREVER_MS, member_id=member_id,
            protocol_type="consumer", protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name="range")])
    with WireClient(served) as first:
        first.ask(m.FindCoordinatorRequest(key="g"), 3)
        while True:
            answer = first.ask(join(first), 3)
            if not answer.error_code:
                break
        with WireClient(served) as second:      # waits until the first member joins again, which it does not
            second.send(join(second), 3)
            second.socket.sendall(bytes_behind)
            wait_for(lambda: connections(served) == 2)
        wait_for(lambda: connections(served) == 1)


def in_its_time(server, act):
    """When `act(client)` began, and what it returned: tried until the client, on a busy machine, was not too late."""
    for _ in range(100):
        with WireClient(server) as client, suppress(ConnectionError):
            begin = time.monotonic()
            return begin, act(client)
    raise AssertionError("each connection was closed")


def test_a_long_poll_is_no_longer_than_a_connection_may_be_idle(in_memory):
    config = {"connections.max.idle.ms": 500}
    with seglog.serve(in_memory, topics={"orders": 1}, config=config) as server:
        begin, answer = in_its_time(
            server, lambda client: client.ask(fetch_request("orders", 0, max_wait_ms=FOREVER_MS), 12))
        assert not answer.error_code
        assert 0.4 < time.monotonic() - begin < 60


def test_a_client_that_does_not_log_in_in_time_is_closed(in_memory):
    config = {"seglog.connections.login.timeout.ms": 300}
    with seglog.serve(in_memory, users={"alice": "secret"}, config=config) as server:

        def logged_in(known):
            answer = log_in(known)
            with WireClient(server) as silent, WireClient(server) as slow:
                with suppress(ConnectionError):     # of a machine so busy that its time was over
                    slow.socket.sendall(struct.pack(">i", 1000))
                assert silent.is_closed()
                assert slow.is_closed()
            return answer, known.ask(m.MetadataRequest(topics=None), 12)    # the limit is over once it is logged in

        _, (answer, metadata) = in_its_time(server, logged_in)
        assert not answer.error_code
        assert not metadata.topics


def test_those_who_do_not_log_in_keep_nobody_out(in_memory):
    config = {"max.connections": 40, "seglog.max.connections.logging.in": 10}
    with seglog.serve(in_memory, users={"alice": "secret"}, config=config) as server, ExitStack() as stack:
        known = stack.enter_context(WireClient(server))
        assert not log_in(known).error_code
        for _ in range(100):
            stack.enter_context(socket.create_connection((server.host, server.port), timeout=60))
        wait_for(lambda: connections(server) <= 1 + 11)
        later = stack.enter_context(WireClient(server))
        assert not log_in(later).error_code
        for client in (known, later):
            assert not client.ask(m.MetadataRequest(topics=None), 12).topics


def test_a_wrong_password_takes_its_time_and_is_logged(in_memory, caplog):
    caplog.set_level(logging.INFO)
    config = {"connection.failed.authentication.delay.ms": 200}
    with seglog.serve(in_memory, users={"alice": "secret"}, config=config) as server:
        with WireClient(server) as client:
            begin = time.monotonic()
            assert log_in(client, "al\x1b[31m\nice", "wrong").error_code
            assert time.monotonic() - begin > 0.2
        with WireClient(server) as client:
            assert not log_in(client).error_code
        with WireClient(server) as client:
            client.socket.sendall(b"\x7f\xff\xff\xff")
            assert client.is_closed()
    records = [record for record in caplog.records if record.name == "seglog.security"]
    assert [record.levelname for record in records] == ["WARNING", "INFO", "WARNING"]    # a login is nothing to warn of
    lines = [record.getMessage() for record in records]
    assert lines[0] == "login failed: 'al\\x1b[31m\\nice' from /127.0.0.1"
    assert lines[1] == "'User:alice' logged in from /127.0.0.1"
    assert "closed the connection of /127.0.0.1: 'a request of 2147483647 bytes" in lines[2]


def test_deletions_and_settings_are_logged_in_one_line_each(in_memory, caplog):
    of = m.IncrementalAlterConfigsRequest
    with seglog.serve(in_memory, topics={"orders": 1}) as server, WireClient(server) as client:
        client.ask(of(resources=[of.AlterConfigsResource(resource_type=2, resource_name="orders", configs=[
            of.AlterableConfig(name="retention.ms", value="5")])]), 1)
        records = m.DeleteRecordsRequest
        client.ask(records(topics=[records.DeleteRecordsTopic(
            name="orders", partitions=[records.DeleteRecordsPartition(offset=0)])]), 2)
        client.ask(m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequest.DeleteTopicState(name="orders")]), 6)
    assert [record.getMessage() for record in caplog.records if record.name == "seglog.security"] == [
        "'User:ANONYMOUS' from /127.0.0.1 configured topic 'orders': \"{'retention.ms': '5'}\"",
        "'User:ANONYMOUS' from /127.0.0.1 deleted records before 'orders-0 0'",
        "'User:ANONYMOUS' from /127.0.0.1 deleted topic 'orders'",
    ]


def test_ids_of_clients_forge_no_line_of_the_log(served, caplog):
    caplog.set_level(logging.INFO)
    name = "g\n\x1b[2J WARNING forged"
    with WireClient(served, client_id=name) as client:
        client.ask(m.FindCoordinatorRequest(key=name), 3)
        join = m.JoinGroupRequest(
            group_id=name, session_timeout_ms=30_000, rebalance_timeout_ms=1000, protocol_type="consumer",
            protocols=[m.JoinGroupRequest.JoinGroupRequestProtocol(name="range")])
        while (answer := client.ask(join, 3)).error_code:
            pass
        client.ask(m.LeaveGroupRequest(
            group_id=name, members=[m.LeaveGroupRequest.MemberIdentity(member_id=answer.member_id, reason=name)]), 5)
    shown = [record.getMessage() for record in caplog.records]
    assert any("forged" in line for line in shown)
    assert not [line for line in shown if "\n" in line or "\x1b" in line]


def test_a_flood_of_bad_requests_writes_few_lines(served, caplog):
    for _ in range(200):
        with WireClient(served) as client:
            client.socket.sendall(b"\x7f\xff\xff\xff")
            assert client.is_closed()
    assert len([record for record in caplog.records if record.name == "seglog.security"]) < 150
