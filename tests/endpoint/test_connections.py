"""Connections that are many, slow, idle, secret or hostile, and faults that a test asks for."""
import random
import resource
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time

import pytest

import seglog
from seglog.endpoint.authentication import BEFORE
from seglog.endpoint.byte_streams import PlainStream
from seglog.errors import InvalidArgumentError, StorageError
from seglog.wire.error_codes import Errors
from seglog.wire.messages import (
    REQUESTS,
    ApiKey,
    ApiVersionsRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from support.certificates import client_context, server_context
from support.random_messages import random_message
from support.waiting import wait_for
from support.wire_client import WireClient, fetch_request, produce_request

BATCH = seglog.build_batch([(b"k", b"value")])


def served_with(path, **arguments):
    return seglog.serve(path / "data", topics={"orders": 1}, **arguments)


def produced(client):
    return client.ask(produce_request("orders", 0, BATCH), 11).responses[0].partition_responses[0]


# --- many, slow, idle ----------------------------------------------------------------------------


def test_a_thousand_idle_connections_are_in_nobodys_way(served):
    # Both ends are in this process: each takes two descriptors.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    idle = [socket.create_connection((served.host, served.port)) for _ in range(1000)]
    for one in idle[::2]:
        one.sendall(b"\0\0")        # the beginning of a length
    with WireClient(served) as client:
        assert produced(client).base_offset == 0
    for one in idle:
        one.close()


def test_an_idle_connection_is_closed_and_one_that_waits_for_records_is_not(in_memory):
    with (
        served_with(in_memory, config={"connections.max.idle.ms": 200}) as server,
        WireClient(server) as idle, WireClient(server) as slow, WireClient(server) as waiting,
    ):
        header = waiting.send(fetch_request("orders", 0, max_wait_ms=900), 12)
        slow.socket.sendall(struct.pack(">i", 100) + b"\0")
        assert idle.is_closed()
        assert slow.is_closed()
        assert not waiting.receive(header).responses[0].partitions[0].records


def test_a_client_that_takes_no_answer_costs_no_memory_and_stops_nobody(served):
    with WireClient(served) as client:
        for _ in range(8):
            client.ask(produce_request("orders", 0, seglog.build_batch([(b"k", b"x" * 1_000_000)])), 11)
    with WireClient(served) as greedy, WireClient(served) as client:
        for _ in range(50):         # eight MB each
            greedy.send(fetch_request("orders", 0, max_bytes=8 << 20), 12)
        assert produced(client).base_offset == 8


def test_a_request_that_waits_for_its_turn_does_not_keep_the_loop_busy(served, monkeypatch):
    calls, real = [], PlainStream._came
    monkeypatch.setattr(PlainStream, "_came", lambda stream: (calls.append(1), real(stream)))
    request = MetadataRequest(topics=None)
    with WireClient(served) as watched:
        while not calls:        # else each request was there before the server looked
            watched.ask(request, 12)
            time.sleep(0.02)
        del calls[:]
        served.delay_next("Metadata", 0.3)
        headers = [watched.send(request, 12)]
        time.sleep(0.05)
        headers.append(watched.send(request, 12))
        for header in headers:
            watched.receive(header)
    assert len(calls) < 10


def test_requests_wait_for_memory_and_come_in_then(in_memory):
    with (
        served_with(in_memory, config={"queued.max.request.bytes": 1000}) as server,
        WireClient(server) as slow, WireClient(server) as client,
    ):
        slow.socket.sendall(struct.pack(">i", 5000) + b"\0")        # takes all of it
        wait_for(lambda: server.requests_bytes == 5000)
        header, raw = client.frame(produce_request("orders", 0, BATCH), 11)
        client.socket.sendall(raw)
        client.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.socket.recv(1)
        slow.socket.close()
        client.socket.settimeout(20)
        assert client.receive(header).responses[0].partition_responses[0].base_offset == 0


def test_more_connections_than_allowed_are_closed(in_memory):
    with served_with(in_memory, config={"max.connections": 1}) as server, WireClient(server) as first:
        assert produced(first).base_offset == 0
        with WireClient(server) as second:
            assert second.is_closed()


def test_threads_produce_over_connections_of_their_own(served):
    offsets = []

    def run():
        with WireClient(served) as client:
            offsets.extend(produced(client).base_offset for _ in range(50))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(offsets) == list(range(200))
    assert served.log("orders").stats().syncs <= 200


def test_closing_the_server_ends_a_fetch_that_waits(in_memory):
    with served_with(in_memory) as server, WireClient(server) as client:
        client.send(fetch_request("orders", 0, max_wait_ms=60_000), 12)
        assert produced_elsewhere(server) == 0
        client.receive_frame()
        client.send(fetch_request("orders", 1, max_wait_ms=60_000), 12)
        began = time.monotonic()
        server.close()
        assert time.monotonic() - began < 20
        assert client.is_closed()


def produced_elsewhere(server):
    with WireClient(server) as client:
        return produced(client).base_offset


def test_what_was_written_is_there_when_it_is_served_again(in_memory):
    topic_ids = set()
    for offset in range(3):
        with served_with(in_memory) as server, WireClient(server) as client:
            assert produced(client).base_offset == offset
            topic_ids.add(client.ask(MetadataRequest(topics=None), 12).topics[0].topic_id)
    assert len(topic_ids) == 1


def test_an_address_that_is_taken_is_an_error_that_leaves_nothing_open(in_memory):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for arguments in ({"listen": address}, {"http": address}):
            with pytest.raises(StorageError, match="cannot listen"), served_with(in_memory, **arguments):
                pass
    with served_with(in_memory) as server:      # the log dir is free
        assert produced_elsewhere(server) == 0


def test_a_server_that_did_not_start_can_be_closed(in_memory):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = served_with(in_memory, listen=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(StorageError):
            server.__enter__()
        server.close()


def test_a_server_that_did_not_start_can_be_started_again(in_memory):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = served_with(in_memory, listen=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(StorageError):
            server.__enter__()
    with server:
        assert produced_elsewhere(server) == 0


def test_a_start_that_is_interrupted_leaves_nothing_running(in_memory):
    def interrupt():
        wait_for((in_memory / "data/orders-0").is_dir)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt), seglog.serve(in_memory / "data", topics={"orders": 200}):
        time.sleep(20)
    interrupter.join()
    assert "seglog-serve" not in [thread.name for thread in threading.enumerate()]
    seglog.open(in_memory / "data/orders-0").close()        # its lock is free


WITHOUT_DESCRIPTORS = """
import os, resource, sys
sys.modules["uvloop"] = None        # it aborts the process then
import seglog, seglog.endpoint.local_server
server = seglog.serve(sys.argv[1])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) - 1, hard))
try:
    server.__enter__()
except OSError as error:
    print(error.strerror)
"""


def test_a_server_that_can_make_no_loop_says_why(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DESCRIPTORS, str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "Too many open files\n", done.stderr


# --- who may come ---------------------------------------------------------------------------------


def plain(name, password):
    return SaslAuthenticateRequest(auth_bytes=f"\0{name}\0{password}".encode())


def test_who_has_a_password_is_served_and_nobody_else(in_memory):
    with served_with(in_memory, users={"alice": "secret"}) as server:
        with WireClient(server) as client:
            assert not client.ask(ApiVersionsRequest(), 0).error_code
            assert client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).mechanisms[0] == "PLAIN"
            assert not client.ask(plain("alice", "secret"), 2).error_code
            assert produced(client).base_offset == 0
        for name, password in (("alice", "wrong"), ("bob", "secret"), ("bob", "")):
            with WireClient(server) as client:
                client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
                assert client.ask(plain(name, password), 2).error_code == Errors.SASL_AUTHENTICATION_FAILED
                assert client.is_closed()
        with WireClient(server) as client:
            client.send(MetadataRequest(topics=None), 12)
            assert client.is_closed()
        with WireClient(server) as client:
            client.socket.sendall(struct.pack(">i", 600 << 10))
            assert client.is_closed()
        with WireClient(server) as client:
            answer = client.ask(SaslHandshakeRequest(mechanism="GSSAPI"), 1)
            assert (answer.error_code, answer.mechanisms) == (
                Errors.UNSUPPORTED_SASL_MECHANISM, ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])


def test_the_oldest_handshake_is_followed_by_a_bare_token(in_memory):
    with served_with(in_memory, users={"alice": "secret"}) as server, WireClient(server) as client:
        client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 0)
        client.socket.sendall(struct.pack(">i", 13) + b"\0alice\0secret")
        assert client.receive_frame() == b""
        assert produced(client).base_offset == 0


def test_records_of_megabytes_go_and_come_by_tls(in_memory, certificate):
    here, there = server_context(certificate), client_context(certificate)
    value = bytes(range(256)) * 3000
    with served_with(in_memory, tls=here) as server:
        with WireClient(server, wrap=lambda sock: there.wrap_socket(sock, server_hostname="127.0.0.1")) as client:
            answer = client.ask(produce_request("orders", 0, seglog.build_batch([(b"k", value)])), 11)
            assert not answer.responses[0].partition_responses[0].error_code
            rows = client.ask(fetch_request("orders", 0, max_bytes=2 << 20), 12).responses[0].partitions
            assert value in bytes(rows[0].records)
        with WireClient(server) as plain_text:
            plain_text.socket.sendall(b"\0\0\0\x10 no hello of TLS")
            while plain_text.socket.recv(100):      # perhaps an alert
                pass


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_it_does_not_listen_to_other_machines_unasked(tmp_path, certificate, caplog, listen):
    users, tls = {"alice": "secret"}, server_context(certificate)
    optional = server_context(certificate, asks_clients=ssl.CERT_OPTIONAL)
    for lacking, arguments in (
        ("authentication and TLS", {}), ("authentication", {"tls": tls}), ("authentication", {"tls": optional}),
        ("TLS", {"users": users}),
    ):
        with pytest.raises(InvalidArgumentError, match=f"other machines, and without {lacking} anyone"):
            seglog.serve(tmp_path, listen=listen, **arguments)
        caplog.clear()
        seglog.serve(tmp_path, listen=listen, insecure=True, **arguments)
        assert f"and without {lacking} anyone there can" in caplog.text
    seglog.serve(tmp_path, listen=listen, users=users, tls=tls)
    seglog.serve(tmp_path, listen=listen, tls=server_context(certificate, asks_clients=ssl.CERT_REQUIRED))


@pytest.mark.parametrize("users", [{"alice": ""}, {"": "secret"}])
def test_no_user_is_without_a_password(tmp_path, users):
    with pytest.raises(InvalidArgumentError, match="needs a name and a password"):
        seglog.serve(tmp_path, users=users)


def test_a_client_without_the_certificate_that_is_required_is_not_served(in_memory, certificate):
    here = server_context(certificate, asks_clients=ssl.CERT_REQUIRED)
    with served_with(in_memory, tls=here) as server:
        for is_known in (True, False):
            there = client_context(certificate)
            if is_known:
                there.load_cert_chain(certificate / "certificate", certificate / "key")
            def wrap(sock, there=there):
                return there.wrap_socket(sock, server_hostname="127.0.0.1")
            if is_known:
                with WireClient(server, wrap=wrap) as client:
                    assert produced(client).base_offset == 0
            else:       # with TLS 1.3 the client hears of it when it reads
                with pytest.raises((ssl.SSLError, ConnectionError)), WireClient(server, wrap=wrap) as client:
                    produced(client)


@pytest.mark.parametrize("arguments", [
    {"listen": 9092}, {"listen": "a..b:0"}, {"listen": "a" * 64 + ":0", "insecure": True}, {"http": 8080},
    {"advertise": ("localhost", 9092)}, {"topics": ["orders"]}, {"topics": "orders"}, {"tls": "certificate.pem"},
    {"users": ["alice"]}, {"users": {"alice": 5}}, {"users": {"alice": b"secret"}},
], ids=repr)
def test_arguments_of_wrong_types_are_refused_before_anything_is_made(in_memory, arguments):
    with pytest.raises(InvalidArgumentError):
        seglog.serve(in_memory / "data", **arguments)


@pytest.mark.parametrize(("name", "partitions"), [
    ("made", 0), ("made", -1), ("made", True), ("made", "3"), ("made", 1.5), (5, 1),
])
def test_a_topic_of_no_such_name_or_number_is_not_made(in_memory, served, name, partitions):
    with pytest.raises(InvalidArgumentError):
        served.create_topic(name, partitions)
    assert {path.name for path in served.path.iterdir() if path.is_dir()} == {f"orders-{n}" for n in range(3)}
    with pytest.raises(InvalidArgumentError), seglog.serve(in_memory / "other", topics={name: partitions}):
        pass


# --- faults --------------------------------------------------------------------------------------


def test_a_request_fails_as_it_was_asked_to_and_the_next_one_does_not(served, client):
    served.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)
    assert [produced(client).error_code for _ in range(3)] == [Errors.NOT_LEADER_OR_FOLLOWER] * 2 + [0]
    assert served.log("orders").log_end_offset == 1


@pytest.mark.parametrize("key", [key for key in REQUESTS if key not in BEFORE], ids=lambda key: ApiKey(key).name)
def test_a_request_of_every_api_can_fail(served, client, key):
    rnd, version, answers = random.Random(1), REQUESTS[key].MAX_VERSION, []
    served.fail_next(ApiKey(key).name, "KAFKA_STORAGE_ERROR", times=20)
    for _ in range(20):         # some have no parts, and so no place for the error
        request = random_message(rnd, REQUESTS[key], version)
        if key == ApiKey.PRODUCE:
            request.acks = 1
        answers.append(repr(client.ask(request, version)))
    assert any(f"error_code={int(Errors.KAFKA_STORAGE_ERROR)}" in answer for answer in answers)


def test_a_produce_that_fails_and_waits_for_no_answer_closes_the_connection(served, client):
    served.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER")
    client.send(produce_request("orders", 0, BATCH, acks=0), 11)
    assert client.is_closed()


def test_a_request_is_late_by_what_was_asked_for(served, client):
    served.delay_next("Metadata", 0.3)
    began = time.monotonic()
    client.ask(MetadataRequest(topics=None), 12)
    assert time.monotonic() - began >= 0.3


def test_a_connection_is_dropped_before_or_after_the_work(served):
    for after in (False, True):
        served.drop_next("Produce", after=after)
        with WireClient(served) as client:
            client.send(produce_request("orders", 0, BATCH), 11)
            assert client.is_closed()
        wait_for(lambda after=after: served.log("orders").log_end_offset == int(after))


@pytest.mark.parametrize(("api", "error"), [("Produced", "NONE"), ("Produce", "NO_SUCH_ERROR")])
def test_names_that_kafka_does_not_have_are_refused(served, api, error):
    with pytest.raises(InvalidArgumentError):
        served.fail_next(api, error)


@pytest.mark.parametrize("delay_s", ["1", None, -1, float("nan")])
def test_a_delay_that_is_no_time_is_refused(served, delay_s):
    with pytest.raises(InvalidArgumentError):
        served.delay_next("Fetch", delay_s)
