"""Log dirs that would make a server work without end, or end with an exception that says nothing."""
import json
import os
import signal
import subprocess
import sys
import time

import pytest

import seglog
from seglog.endpoint.broker_keys import STANDARD_AUTHORIZER
from seglog.errors import CorruptSettingsError, InvalidArgumentError, UnsupportedVersionError
from seglog.format.checked_json import format_json
from seglog.state.acls import FILE_NAME
from seglog.wire import messages as m
from seglog.wire.error_codes import Errors
from support.wire_client import WireClient

ID = "0" * 31 + "7"
CREATION = {"topic": "orders", "topic_id": ID, "first": 0, "end": 2, "settings": {}}
WRONG = [None, True, -1, 1.5, 10**9, 2**70, "", "x", "../up", [], ["x"], {}, {"x": 1}, {"retention.ms": [1]}]


@pytest.fixture
def log_dir(in_memory):
    seglog.open(in_memory / "orders-0").close()
    return in_memory


def served_topics(client):
    return {topic.name: len(topic.partitions) for topic in client.ask(m.MetadataRequest(topics=None), 12).topics}


@pytest.mark.parametrize("number", [10_000, 999_999, 2**31 - 1])
def test_one_directory_does_not_make_a_topic_of_a_million_partitions(log_dir, caplog, number):
    (log_dir / f"x-{number}").mkdir()
    (log_dir / "y-9999").mkdir()
    begin = time.process_time()
    with seglog.serve(log_dir) as server, WireClient(server) as client:
        assert served_topics(client) == {"orders": 1, "y": 10_000}
        assert f"x-{number} is not served: a topic has at most seglog.max.topic.partitions = 10000" in caplog.text
    assert time.process_time() - begin < 5


def test_the_operator_can_allow_more(log_dir):
    (log_dir / "x-10000").mkdir()
    config = {"seglog.max.topic.partitions": 10_001}
    with seglog.serve(log_dir, config=config) as server, WireClient(server) as client:
        assert served_topics(client) == {"orders": 1, "x": 10_001}


def test_no_client_makes_more(in_memory):
    with seglog.serve(in_memory, topics={"t": 2}, config={"seglog.max.topic.partitions": 3}) as server:
        with WireClient(server) as client:
            of = m.CreateTopicsRequest
            row = client.ask(of(topics=[of.CreatableTopic(name="n", num_partitions=4, replication_factor=1)]), 7)
            assert row.topics[0].error_code == Errors.INVALID_PARTITIONS
            of = m.CreatePartitionsRequest
            row = client.ask(of(topics=[of.CreatePartitionsTopic(name="t", count=4, assignments=None)]), 3)
            assert row.results[0].error_code == Errors.INVALID_PARTITIONS
            row = client.ask(of(topics=[of.CreatePartitionsTopic(name="t", count=3, assignments=None)]), 3)
            assert row.results[0].error_code == 0
        with pytest.raises(InvalidArgumentError, match=r"max\.topic\.partitions"):
            server.create_topic("n", 4)


@pytest.mark.parametrize(("file", "kind", "members"), [
    (".seglog.creation", "seglog-topic-creation", {"topics": [CREATION]}),
    (".seglog.deletion", "seglog-topic-deletion", {"topics": [{"topic": "orders", "topic_id": ID}]}),
    ("orders-0/.seglog.config", "seglog-log-settings", {"settings": {}}),
    (".seglog.producer_ids", "seglog-producer-ids", {"next_block": 1000}),
    (".seglog.group_settings", "seglog-group-settings", {"groups": {"g": {"consumer.session.timeout.ms": 50_000}}}),
])
def test_a_file_with_wrong_types_does_not_end_the_start(log_dir, file, kind, members):
    """Its checksum is right: somebody made it."""
    contents = [json.dumps(wrong).encode() for wrong in WRONG] + [b"", b"\xff", b"[" * 100_000]
    for name in [*members, "version"]:
        for wrong in WRONG:
            made = {**members, name: wrong}
            contents.append(format_json(kind, made.pop("version", 1), **made))
    for name in members["topics"][0] if "topics" in members else ():
        contents += [format_json(kind, 1, topics=[{**members["topics"][0], name: wrong}]) for wrong in WRONG]
    for content in contents:
        (log_dir / file).write_bytes(content)
        with seglog.serve(log_dir) as server, WireClient(server) as client:
            assert set(served_topics(client)) <= {"orders"}, content
            client.ask(m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4)
        assert len(os.listdir(log_dir)) < 20
        if not (log_dir / "orders-0").is_dir():
            seglog.open(log_dir / "orders-0").close()


ACL = {"resource_type": "TOPIC", "resource_name": "orders", "pattern_type": "LITERAL", "principal": "User:alice",
       "host": "*", "operation": "READ", "permission": "ALLOW"}
# What else of ours may lie beside it, all of it with a right checksum, and wrong.
OTHERS = {
    ".seglog.creation": ("seglog-topic-creation", "topics"),
    ".seglog.deletion": ("seglog-topic-deletion", "topics"),
    ".seglog.producer_ids": ("seglog-producer-ids", "next_block"),
    ".seglog.users": ("seglog-users", "users"),
    ".seglog.group_settings": ("seglog-group-settings", "groups"),
    ".seglog.cluster_id": ("seglog-cluster-id", "cluster_id"),
    "orders-0/.seglog.config": ("seglog-log-settings", "settings"),
}


def hostile_acls():
    """Contents of `.seglog.acls` with a right checksum, of which none is a list of ACLs."""
    for wrong in WRONG:
        if wrong != []:
            yield format_json("seglog-acls", 1, acls=wrong)
        yield format_json("seglog-acls", 1, acls=[wrong])
        if wrong is not True:      # equal to 1
            yield format_json("seglog-acls", wrong, acls=[ACL])
        for name in ACL:
            if not (isinstance(wrong, str) and wrong and name in ("resource_name", "host")):
                yield format_json("seglog-acls", 1, acls=[{**ACL, name: wrong}])
    for name in ACL:
        yield format_json("seglog-acls", 1, acls=[{other: ACL[other] for other in ACL if other != name}])
        yield format_json("seglog-acls", 1, acls=[{**ACL, name: "x" * 1025}])
    yield format_json("seglog-acls", 1, acls=[{**ACL, "more": 1}])
    yield format_json("seglog-acls", 1, acls=[ACL] * 10_001)
    yield from (b"", b"\xff", b"[" * 100_000)


def link_to(path):
    def make(file):
        file.symlink_to(path)
    return make


@pytest.mark.parametrize("others", [None, *WRONG[:4], "x", [], {}], ids=str)
def test_hostile_acls_end_the_start_by_their_name_and_nothing_is_served(log_dir, others):
    """Whatever lies beside them: a server that took them for none would let everybody do everything, or nobody."""
    config = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:admin"}
    if others is not None:
        for name, (kind, member) in OTHERS.items():
            (log_dir / name).write_bytes(format_json(kind, 1, **{member: others}))
    contents = list(hostile_acls())
    for content in contents if others is None else contents[::40]:
        (log_dir / FILE_NAME).write_bytes(content)
        with pytest.raises((CorruptSettingsError, UnsupportedVersionError)) as refused, \
                seglog.serve(log_dir, config=config):
            pass
        assert refused.value.file.startswith(str(log_dir)), content[:200]
        assert others is not None or refused.value.file == str(log_dir / FILE_NAME)
        assert (log_dir / FILE_NAME).read_bytes() == content


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, link_to("/etc/passwd"), link_to("/dev/zero"), link_to(FILE_NAME)],
    ids=["pipe", "directory", "link", "link to a device", "link to itself"])
def test_acls_that_are_no_regular_file_end_the_start_at_once(log_dir, make):
    make(log_dir / FILE_NAME)
    config = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:admin"}
    with pytest.raises(CorruptSettingsError, match="in a regular file"), seglog.serve(log_dir, config=config):
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_start_that_takes_long(tmp_path, number):
    directory = tmp_path / "data"
    with subprocess.Popen(
        [sys.executable, "-m", "seglog.tools", "serve", str(directory), "--listen", "127.0.0.1:0",
         *(argument for n in range(20) for argument in ("--create-topic", f"t{n}:5000"))],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:
        while not list(directory.glob("t*-50")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")
    with seglog.open_dir(directory):        # its lock is free
        pass
