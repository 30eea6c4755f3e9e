"""A server as a process, seen from outside, among clients that mean it no good: mutated requests, requests that come
byte by byte or not at all, lengths that no memory has. It answers whoever behaves, and takes no more memory.
"""
import os
import random
import secrets
import signal
import socket
import struct
import threading
import time
import tracemalloc
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import seglog
from seglog.errors import ProtocolError
from seglog.wire.codec import decode_request
from seglog.wire.messages import REQUESTS, ApiKey, MetadataRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from support.conversation import last_version
from support.mutated_requests import mutate_frame, request_frames
from support.serve_process import ServeProcess
from support.waiting import wait_for
from support.watchdog import goes_on
from support.wire_client import WireClient, produce_request

# `make torture` sets SEGLOG_TORTURE.
IS_FULL = bool(os.environ.get("SEGLOG_TORTURE"))
IDLE, SENDERS, MUTATED = (1000, 8, 100_000) if IS_FULL else (200, 2, 600)
HANDLED = {"login": 200_000, "all": 800_000, "newer": 1_000_000} if IS_FULL else {
    "login": 800, "all": 1_600, "newer": 1_600}
SLOW, LARGE = 16, 40
LARGEST_BYTES = 100 << 20       # socket.request.max.bytes
# Each directory takes its time; and a group waits for others.
LEFT_OUT = {ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}
# Those that are for administrators, the new protocol of groups, and the versions that came after Kafka 3.9.
NEWER = {
    ApiKey.WRITE_TXN_MARKERS, ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS,
    ApiKey.ALTER_REPLICA_LOG_DIRS, ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN, ApiKey.DESCRIBE_DELEGATION_TOKEN, ApiKey.ELECT_LEADERS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.DESCRIBE_CLIENT_QUOTAS,
    ApiKey.ALTER_CLIENT_QUOTAS, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    ApiKey.DESCRIBE_QUORUM, ApiKey.UPDATE_FEATURES, ApiKey.UNREGISTER_BROKER, ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS, ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE,
    ApiKey.LIST_CONFIG_RESOURCES, ApiKey.DESCRIBE_TOPIC_PARTITIONS,
}
# What is answered by somebody who has not logged in yet.
OF_A_LOGIN = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
BATCH = seglog.build_batch([(b"k", b"value")])


def anonymous_bytes(server):
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])


def connect(server):
    return socket.create_connection((server.host, server.port), timeout=60)


class Mutations(threading.Thread):
    """Sends changed requests, each with the length that it has then, and waits for the end of its connection."""

    def __init__(self, server, seed, count):
        super().__init__()
        self.server, self.count = server, count
        self.rnd = random.Random(seed)
        self.fault = None
        self.answered = 0

    def run(self):
        frames = [frame for frame in request_frames(self.rnd, each=1) if frame[1] not in LEFT_OUT]
        try:
            for _ in range(self.count):
                frame = mutate_frame(self.rnd, self.rnd.choice(frames))
                if len(frame) > 2 and frame[1] not in LEFT_OUT:
                    self.answered += self.ask(struct.pack(">i", len(frame)) + frame, frame[1] == ApiKey.FETCH)
        except Exception as error:
            self.fault = error

    def ask(self, data, may_wait):
        """Whether anything came. A fetch waits as long as it says: nobody waits for that."""
        with connect(self.server) as one, suppress(ConnectionError, *([TimeoutError] if may_wait else [])):
            one.sendall(data)
            one.shutdown(socket.SHUT_WR)
            if may_wait:
                one.settimeout(0.5)
            came = 0
            while piece := one.recv(1 << 16):       # to its end: TimeoutError if the server forgets it
                came += len(piece)
            return came > 0
        return False


def test_it_goes_on_among_clients_that_mean_it_no_good(in_memory):
    with ExitStack() as stack:
        server = stack.enter_context(ServeProcess(
            in_memory / "data", "--listen", "127.0.0.1:0", "--create-topic", "orders:1", "--fsync", "never"))
        client = stack.enter_context(WireClient(server))

        def is_served():
            row = client.ask(produce_request("orders", 0, BATCH), 11).responses[0].partition_responses[0]
            return row.error_code == 0

        assert is_served()
        before_bytes = anonymous_bytes(server)
        for n in range(IDLE):
            idle = stack.enter_context(connect(server))
            idle.sendall(b"\0\0\0"[: n % 4])        # up to the length's last byte
        assert is_served()
        for size in (-1, -(2**31), 0, 7, LARGEST_BYTES + 1, 2**31 - 1):
            with connect(server) as wrong:
                wrong.sendall(struct.pack(">i", size) + bytes(100))
                assert wrong.recv(1) == b""
        for _ in range(LARGE):      # four gigabytes are told of
            large = stack.enter_context(connect(server))
            large.sendall(struct.pack(">i", LARGEST_BYTES) + bytes(100_000))
        assert is_served()

        slow = [stack.enter_context(WireClient(server)) for _ in range(SLOW)]
        header, raw = slow[0].frame(produce_request("orders", 0, BATCH), 11)
        mutations = [Mutations(server, seed, MUTATED // SENDERS) for seed in range(SENDERS)]
        for thread in mutations:
            thread.start()
        for at in range(len(raw)):
            for one in slow:
                one.socket.sendall(raw[at : at + 1])
            if at % 20 == 0:
                assert is_served()
        for one in slow:
            assert one.receive(header).responses[0].partition_responses[0].error_code == 0
        for thread in mutations:
            thread.join()
            assert thread.fault is None, thread.fault
            assert thread.answered > thread.count // 10
        assert is_served()
        grown_bytes = anonymous_bytes(server) - before_bytes
        # What came of the large requests, and a buffer for each connection.
        assert grown_bytes < (IDLE + SLOW + SENDERS) * (16 << 10) + LARGE * (512 << 10) + (30 << 20)
        started = time.monotonic()
        assert server.end(signal.SIGTERM) == 0
        assert time.monotonic() - started < 30
        assert "Traceback" not in server.err, server.err[-3000:]


@pytest.mark.parametrize("claimed_bytes", [50_000, 50 << 20])
def test_a_claimed_length_takes_little_memory(served, claimed_bytes):
    with ExitStack() as stack:
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        for _ in range(100):
            sock = stack.enter_context(socket.create_connection((served.host, served.port)))
            sock.sendall(struct.pack(">i", claimed_bytes) + bytes(1000))
        wait_for(lambda: served.requests_bytes == 100 * claimed_bytes)
        assert tracemalloc.get_traced_memory()[0] < 100 * (48 << 10)


def handled(frame):
    """The API, version and number of a changed request that is still one; None if it is none, or may wait, or has no
    answer, or makes many directories."""
    try:
        header, request = decode_request(frame)
    except ProtocolError:
        return None
    match header.request_api_key:
        case ApiKey.JOIN_GROUP | ApiKey.SYNC_GROUP:
            return None
        case ApiKey.FETCH if request.max_wait_ms > 0:
            return None
        case ApiKey.PRODUCE if request.acks == 0:
            return None
        case ApiKey.CREATE_TOPICS if any(topic.num_partitions > 2 for topic in request.topics):
            return None
        case ApiKey.CREATE_PARTITIONS if any(topic.count > 2 for topic in request.topics):
            return None
    return header.request_api_key, header.request_api_version, header.correlation_id


def is_newer(frame):
    key, version = struct.unpack(">hh", frame[:4])
    return key in NEWER or version > last_version(REQUESTS[key])


def logged_in(server):
    client = WireClient(server)
    client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    assert client.ask(SaslAuthenticateRequest(auth_bytes=b"\0ada\0secret"), 1).error_code == 0
    return client


def ask_changed(server, rnd, frames, count, connect, at_once):
    """Have `count` changed requests answered, `at_once` in a row. How many answers each API and version gave, and how
    often the server closed a connection, as it may."""
    answers, closed = Counter(), 0
    client = connect(server)
    while answers.total() < count:
        goes_on()       # a million take half an hour on a busy machine
        group = []
        while len(group) < at_once:
            frame = mutate_frame(rnd, rnd.choice(frames))
            if (told := handled(frame)) is not None:
                group.append((frame, told))
        try:
            client.socket.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame, _ in group))
            for _, (key, version, correlation_id) in group:
                assert struct.unpack(">i", client.receive_frame()[:4]) == (correlation_id,)
                answers[key, version] += 1
        except ConnectionError:
            closed += 1
            client.socket.close()
            client = connect(server)
    client.socket.close()
    return answers, closed


@pytest.mark.long
def test_changed_requests_that_are_handled_leave_no_traceback_and_little_memory(in_memory):
    """Those that only close a connection are counted nowhere: each here is decoded, handled and answered."""
    rnd = random.Random(secrets.randbelow(2**32) if IS_FULL else 7)
    users = in_memory / "users"
    users.write_text("ada:secret\n")
    frames = list(request_frames(rnd))
    chosen = {
        "login": [frame for frame in frames if int.from_bytes(frame[:2]) in OF_A_LOGIN], "all": frames,
        "newer": [frame for frame in frames if is_newer(frame)],
    }
    settings = {
        "super.users": "User:ada",
        "connection.failed.authentication.delay.ms": 0, "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1, "seglog.max.partitions": 400,
    }
    with ServeProcess(
        in_memory / "data", "--listen", "127.0.0.1:0", "--sasl-users", str(users), "--authorizer",
        "--fsync", "never",
        *(part for topic in ("orders:2", "topic:2", "a:1") for part in ("--create-topic", topic)),
        *(part for name, value in settings.items() for part in ("--config", f"{name}={value}")),
    ) as server:
        ask_changed(server, rnd, frames, HANDLED["all"] // 8, logged_in, 32)
        warm_bytes = anonymous_bytes(server)
        answered = {}
        for what, count in HANDLED.items():
            connect, at_once = (WireClient, 8) if what == "login" else (logged_in, 32)
            answers, closed = ask_changed(server, rnd, chosen[what], count, connect, at_once)
            answered[what] = {key for key, _ in answers}
            print(f"{what}: {answers.total()} answers of {len(answers)} versions of {len(answered[what])} APIs, the "
                  f"fewest {min(answers.values())}; {closed} connections closed")
        # A change may turn one API into another, but JoinGroup and SyncGroup wait for others.
        assert len(answered["all"]) >= len(REQUESTS) - 2
        assert answered["newer"] >= NEWER
        with logged_in(server) as client:
            assert client.ask(MetadataRequest(topics=None), 13).controller_id == 1
        grown_bytes = anonymous_bytes(server) - warm_bytes
        print(f"memory {warm_bytes >> 20} MiB, and {grown_bytes >> 10} KiB more")
        assert grown_bytes < 32 << 20
        assert server.end(signal.SIGTERM) == 0
        assert "Traceback" not in server.err, server.err[-3000:]
