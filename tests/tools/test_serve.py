"""`seglog serve`, as a process."""
import contextlib
import ctypes
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import seglog
from seglog.errors import InvalidConfigError, LogLockedError
from seglog.wire.messages import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from support.serve_process import ServeProcess
from support.waiting import line_of, wait_for
from support.wire_client import WireClient

# What the config/server.properties of Kafka 3.9.1 sets.
SHIPPED = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""
SERVE = [sys.executable, "-m", "seglog.tools", "serve"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_tells_its_address_serves_and_ends_clean(tmp_path, number):
    arguments = ["--listen", "127.0.0.1:0", "--create-topic", "orders:2", "--config", "num.partitions=4"]
    with ServeProcess(tmp_path / "data", *arguments) as server:
        with WireClient(server) as client:
            assert [len(topic.partitions) for topic in client.ask(MetadataRequest(topics=None), 12).topics] == [2]
            asked = [MetadataRequest.MetadataRequestTopic(name="made")]
            wait_for(lambda: len(client.ask(MetadataRequest(topics=asked), 12).topics[0].partitions) == 4)
        assert (server.end(number), server.out, server.err) == (0, "", "")
    with seglog.open(tmp_path / "data/orders-1", create=False) as log:
        assert not log.recovery.repairs


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux sends a signal to one thread of another process")
def test_a_signal_that_another_thread_receives_ends_it(tmp_path):
    """It does not interrupt the main thread, nor does one that comes just before the main thread sleeps."""
    with ServeProcess(tmp_path / "data", "--listen", "127.0.0.1:0") as server:
        others = {int(task.name) for task in Path(f"/proc/{server.process.pid}/task").iterdir()} - {server.process.pid}
        assert ctypes.CDLL(None).tgkill(server.process.pid, min(others), signal.SIGTERM) == 0
        server.out, _ = server.process.communicate(timeout=60)
        assert (server.process.returncode, server.out, server.err) == (0, "", "")


def test_who_reads_its_json_through_a_pipe_gets_the_address_at_once(tmp_path):
    child = subprocess.Popen(
        [*SERVE, str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--json"],
        stdout=subprocess.PIPE, env=os.environ | {"PYTHONUNBUFFERED": ""},
    )
    with child:
        try:
            assert select.select([child.stdout], [], [], 60)[0]
            assert json.loads(line_of(child))["bootstrap_servers"].startswith("127.0.0.1:")
        finally:
            child.terminate()
    assert child.returncode == 0


def test_a_log_dir_that_it_creates_is_named(tmp_path):
    """A mistyped name gives an empty server."""
    for created in (True, False):
        with ServeProcess(tmp_path / "nosuch", "--listen", "127.0.0.1:0") as server:
            assert server.told["created"] is created
    command = [*SERVE, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    new = "a new, empty log dir"
    for directory, words in (
        ("other", f"created {tmp_path / 'other'}, {new}\n"), ("nosuch", None),
        ("nosuhc", f"created {tmp_path / 'nosuhc'}, {new}; did you mean {tmp_path / 'nosuch'}?\n"),
    ):
        with subprocess.Popen([*command, directory], stdout=subprocess.PIPE, text=True, cwd=tmp_path) as child:
            if words is not None:
                assert child.stdout.readline() == words
            first, second = child.stdout.readline(), child.stdout.readline()
            assert first.startswith("listening on 127.0.0.1:")
            assert second.startswith("web page at ")
            child.terminate()
            assert child.stdout.readlines() == []


def partitions_of(server):
    with WireClient(server) as client:
        return {row.name: len(row.partitions) for row in client.ask(MetadataRequest(topics=None), 12).topics}


def test_topics_are_created_with_the_partitions_of_the_server_and_settings_of_their_own(tmp_path):
    """Red: without a number it was one partition whatever num.partitions; there were no settings."""
    arguments = [
        "--listen", "127.0.0.1:0", "--config", "num.partitions=4", "--create-topic", "bills",
        "--create-topic", "orders:2:cleanup.policy=compact,delete,retention.ms=60000"]
    with ServeProcess(tmp_path / "data", *arguments) as server:
        assert partitions_of(server) == {"bills": 4, "orders": 2}
        assert (server.end(signal.SIGTERM), server.err) == (0, "")
    with seglog.open(tmp_path / "data/orders-1", create=False) as log:
        assert (log.config.cleanup_policy, log.config.retention_ms) == ("compact,delete", 60_000)


def test_a_topic_that_exists_with_other_partitions_is_told(tmp_path):
    """Red: nothing was said."""
    with seglog.serve(tmp_path / "data", topics={"bills": 1, "orders": 2}):
        pass
    with ServeProcess(
        tmp_path / "data", "--listen", "127.0.0.1:0", "--create-topic", "bills:6", "--create-topic", "orders",
    ) as server:
        assert partitions_of(server) == {"bills": 1, "orders": 2}
        line, = log_lines(server)
    assert "topic 'bills' exists already, with 1 partition instead of 6" in line


def test_a_brokers_properties_are_taken_whole(tmp_path):
    (tmp_path / "mine").write_text(SHIPPED + "log.retention.bytes=7000000\nno.such.key = 1\n")
    with ServeProcess(
        tmp_path / "data", "--listen", "127.0.0.1:0", "--properties", str(tmp_path / "mine"),
        "--create-topic", "orders", "--config", "log.segment.bytes=2000000",
    ) as server:
        with WireClient(server) as client:
            of = DescribeConfigsRequest
            rows = client.ask(of(resources=[of.DescribeConfigsResource(
                resource_type=2, resource_name="orders", configuration_keys=None)]), 4).results[0].configs
        assert server.end(signal.SIGTERM) == 0
        without, unknown = server.err.splitlines()
    found = {row.name: row.value for row in rows}
    assert (found["retention.ms"], found["retention.bytes"], found["segment.bytes"]) == (
        "604800000", "7000000", "2000000")
    assert f" WARNING seglog.opening: {tmp_path / 'mine'}: no effect here: " in without
    assert {"listeners", "log.dirs", "num.io.threads", "offsets.topic.replication.factor"} <= set(
        without.rpartition(": ")[2].split(", "))
    assert unknown.endswith(f"{tmp_path / 'mine'}: unknown, and left out: no.such.key")


def test_the_listeners_of_a_brokers_properties_are_taken_unless_there_are_others(tmp_path):
    (tmp_path / "mine").write_text(SHIPPED.replace("PLAINTEXT://:9092", "INSIDE://127.0.0.1:0").replace(
        "advertised.listeners=PLAINTEXT://localhost:9092", "advertised.listeners=INSIDE://kafka.example:9094").replace(
        "protocol.map=", "protocol.map=INSIDE:PLAINTEXT,"))
    command = [*SERVE, tmp_path / "data", "--json", "--properties", tmp_path / "mine"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        told = json.loads(child.stdout.readline())
        assert list(told["listeners"]) == ["INSIDE"]
        host, _, port = told["bootstrap_servers"].rpartition(":")
        with WireClient(SimpleNamespace(host=host, port=int(port))) as client:
            (broker,) = client.ask(MetadataRequest(topics=[]), 9).brokers
        assert (broker.host, broker.port) == ("kafka.example", 9094)
        child.terminate()
        assert "listeners," not in child.stderr.read()
    (tmp_path / "mine").write_text(SHIPPED)     # every address of the machine
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "0.0.0.0:9092 can be reached from other machines" in done.stderr
    assert "CONTROLLER" not in done.stderr
    with ServeProcess(tmp_path / "data", "--listen", "127.0.0.1:0", "--properties", str(tmp_path / "mine")) as server:
        assert server.bootstrap_servers.startswith("127.0.0.1:")


def test_python_takes_a_brokers_properties_as_the_command_does(tmp_path, caplog):
    mine = tmp_path / "server.properties"
    mine.write_text("listeners=INSIDE://127.0.0.1:0\nlistener.security.protocol.map=INSIDE:PLAINTEXT\n"
                    "log.retention.bytes=7000000\nlog.segment.bytes=1000000\nnum.io.threads=8\nno.such.key=1\n")
    server = seglog.serve(
        tmp_path / "data", properties=mine, topics={"orders": 1}, config={"segment.bytes": 2_000_000})
    with server:
        config = server.log("orders").config
        assert (config.retention_bytes, config.segment_bytes) == (7_000_000, 2_000_000)
        assert list(server.listeners) == ["INSIDE"]
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"{mine}: no effect here: num.io.threads" in told
    assert f"{mine}: unknown, and left out: no.such.key" in told
    mine.write_text("log.retention.bytes=much\n")
    with pytest.raises(InvalidConfigError, match=r"retention\.bytes"):
        seglog.serve(tmp_path / "data", properties=mine)
    with pytest.raises(FileNotFoundError):
        seglog.serve(tmp_path / "data", properties=tmp_path / "none")


def test_a_second_server_on_the_same_log_dir_is_refused(tmp_path):
    with ServeProcess(tmp_path / "data", "--listen", "127.0.0.1:0") as server:
        done = subprocess.run(
            [*SERVE, str(tmp_path / "data"), "--listen", "127.0.0.1:0"],
            capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (5, "")
        assert f"another server uses this log dir: locked by process {server.process.pid} " in done.stderr
        with seglog.open(tmp_path / "data/mine-0") as log:      # a partition of its own is another matter
            log.append(b"value")
    with ServeProcess(tmp_path / "data", "--listen", "127.0.0.1:0"):
        pass


def test_a_second_server_in_one_process_is_refused(tmp_path):
    with seglog.serve(tmp_path), pytest.raises(LogLockedError, match="another server uses this log dir"):
        seglog.serve(tmp_path).__enter__()
    with seglog.serve(tmp_path):
        pass


def test_it_tells_the_address_of_each_listener(tmp_path):
    (tmp_path / "users").write_text("alice:secret\n")
    arguments = [
        "--listen", "INSIDE://127.0.0.1:0", "--listen", "SASL_PLAINTEXT://127.0.0.1:0", "--sasl-users",
        str(tmp_path / "users"), "--advertise", "SASL_PLAINTEXT://kafka.example:9094", "--config",
        "listener.security.protocol.map=INSIDE:PLAINTEXT",
    ]
    with ServeProcess(tmp_path / "data", *arguments) as server:
        inside, outside = server.told["listeners"].items()
        assert inside == ("INSIDE", server.bootstrap_servers)
        assert outside[0] == "SASL_PLAINTEXT"
    command = [*SERVE, tmp_path / "data", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        lines = [child.stdout.readline() for _ in range(2)]
        child.terminate()
    for line, name in zip(lines, ("INSIDE", "SASL_PLAINTEXT"), strict=True):
        assert re.fullmatch(rf"listening on 127\.0\.0\.1:\d+ \({name}\)\n", line)


@pytest.mark.parametrize(("arguments", "words"), [
    (["--listen", "0.0.0.0:0"], "other machines"),
    (["--listen", "nonsense"], "invalid address 'nonsense'"),
    (["--listen", "SSL://127.0.0.1:0"], "SSL needs a certificate"),
    (["--config", "no.such.key=1"], "no such key"),
    (["--config", "auto.create.topic.enable=false"], "did you mean auto.create.topics.enable"),
    (["--create-topic", "orders:0"], "topic:partitions"),
    (["--create-topic", "orders=3"], "such as orders:3"),
    (["--create-topic", "orders:3:compact"], "key=value"),
    (["--create-topic", "orders:3:no.such.key=1", "--listen", "127.0.0.1:0"], "no such key"),
    (["--tls-client-ca", "authorities"], "--tls-client-ca without --tls-cert"),
])
def test_what_cannot_be_meant_is_refused(tmp_path, arguments, words):
    done = subprocess.run(
        [*SERVE, str(tmp_path / "data"), *arguments],
        capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert words in done.stderr


@pytest.mark.parametrize(("option", "content", "status", "words"), [
    ("--sasl-users", None, 3, "no such file"),
    ("--sasl-users", b"alice:secret\nb\xffb:secret\n", 2, "line 2 is not UTF-8"),
    ("--sasl-users", b"alice\n", 2, "line 1 is not name:password"),
    ("--properties", None, 3, "no such file"),
    ("--properties", b"a=\\u12", 2, "four hexadecimal digits"),
    ("--properties", b"authorizer.class.name=com.example.Rules", 2, "Kafka's rules for ACLs"),
    ("--tls-cert", None, 3, "no such file"),
    ("--tls-cert", b"no certificate", 2, "not a certificate with its key"),
])
def test_a_file_that_cannot_be_used_is_named(tmp_path, option, content, status, words):
    file = tmp_path / "given"
    if content is not None:
        file.write_bytes(content)
    done = subprocess.run(
        [*SERVE, str(tmp_path / "data"), "--listen", "127.0.0.1:0", option, str(file)],
        capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, words in done.stderr, str(file) in done.stderr) == (status, True, True), done.stderr


def test_a_port_that_is_taken_is_an_error_of_the_system(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = subprocess.run(
            [*SERVE, str(tmp_path / "data"),
             "--listen", f"127.0.0.1:{taken.getsockname()[1]}"],
            capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert "cannot listen" in done.stderr
    assert "another port, or port 0 for any free one" in done.stderr


# --- what it logs -----------------------------------------------------------------------------


def log_lines(server):
    """What it has logged when it ends, without the times."""
    assert server.end(signal.SIGTERM) == 0
    return [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ", "", line) for line in server.err.splitlines()]


def test_the_security_log_is_shown(tmp_path):
    """Whoever is at the terminal of a server sees who deletes and who is refused."""
    with ServeProcess(tmp_path / "data", "--listen", "127.0.0.1:0", "--create-topic", "orders:1") as server:
        with WireClient(server) as client:
            deleted = DeleteTopicsRequest(topic_names=["orders"], timeout_ms=20_000)
            assert not client.ask(deleted, 4).responses[0].error_code
        with socket.create_connection((server.host, server.port)) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert sock.recv(1) == b""
        lines = log_lines(server)
    assert [line for line in lines if "deleted topic" in line] == [
        "WARNING seglog.security: 'User:ANONYMOUS' from /127.0.0.1 deleted topic 'orders'"]
    assert sum(line.startswith("WARNING seglog.security: closed the connection of /127.0.0.1") for line in lines) == 1


def test_a_failed_login_is_shown_without_the_password(tmp_path):
    users = tmp_path / "users"
    users.write_text("ada:secret\n")
    arguments = ["--listen", "127.0.0.1:0", "--sasl-users", str(users), "--config",
                 "connection.failed.authentication.delay.ms=0"]
    with ServeProcess(tmp_path / "data", *arguments) as server:
        with WireClient(server) as client:
            client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            client.ask(SaslAuthenticateRequest(auth_bytes=b"\0ada\x1b[31m\0wrong-password"), 1)
        lines = log_lines(server)
        assert "password" not in server.err
    assert lines == ["WARNING seglog.security: login failed: 'ada\\x1b[31m' from /127.0.0.1"]


@pytest.fixture
def damaged(tmp_path):
    """A log dir with a log that was not closed, and has a bad batch in its middle."""
    with seglog.open(tmp_path / "data/orders-0") as log:
        for n in range(3):
            log.append(b"v%d" % n)
        file = log.path / "00000000000000000000.log"
        size = file.stat().st_size
    with open(file, "r+b") as opened:
        opened.seek(size // 2)
        opened.write(b"\xff")
    for mark in [*(tmp_path / "data").glob(".kafka_cleanshutdown"), *(tmp_path / "data").glob("*/.seglog.clean*")]:
        mark.unlink()
    return tmp_path / "data"


@pytest.mark.parametrize(("mode", "words"), [
    ("quarantine", "WARNING seglog."), ("fail", "WARNING seglog.endpoint.topics: orders-0 is not served")])
def test_what_is_wrong_with_a_log_is_shown(damaged, mode, words):
    arguments = ["--listen", "127.0.0.1:0", "--config", f"seglog.recovery.mode={mode}"]
    with ServeProcess(damaged, *arguments) as server:
        wait_for(lambda: words in server.err)
        lines = log_lines(server)
    assert any(line.startswith(words) and "orders-0" in line for line in lines), lines


def test_quiet_shows_no_log(tmp_path):
    with ServeProcess(tmp_path / "data", "--listen", "127.0.0.1:0", "--create-topic", "orders:1", "--quiet") as server:
        with WireClient(server) as client:
            client.ask(DeleteTopicsRequest(topic_names=["orders"], timeout_ms=20_000), 4)
        assert log_lines(server) == []


def test_a_log_that_nobody_takes_does_not_stop_the_server(tmp_path):
    """As of a terminal after ^S, or a pipe whose reader sleeps: lines wait, and those that find no room are left out.
    """
    read, write = os.pipe()
    try:
        with ServeProcess(tmp_path / "data", "--listen", "127.0.0.1:0", stderr=write) as server:
            os.set_blocking(write, False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(write, bytes(4096))
            os.set_blocking(write, True)
            with WireClient(server) as client:
                for _ in range(3):
                    client.ask(DeleteTopicsRequest(topic_names=["none"], timeout_ms=20_000), 4)
                    client.ask(CreateTopicsRequest(topics=[CreateTopicsRequest.CreatableTopic(
                        name="t", num_partitions=1, replication_factor=1)], timeout_ms=20_000), 5)
                    assert not client.ask(
                        DeleteTopicsRequest(topic_names=["t"], timeout_ms=20_000), 4).responses[0].error_code
            assert server.end(signal.SIGTERM) == 0
    finally:
        os.close(read)
        os.close(write)
