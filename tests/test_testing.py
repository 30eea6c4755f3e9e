"""The plugin of pytest, in a pytest of its own."""
import subprocess
import sys

TESTS = '''
import pytest
from seglog.wire.codec import decode_response, encode_request, new_header
from seglog.wire.messages import MetadataRequest
import socket


def partitions(server, topic):
    """How many the server says that it has, or the error."""
    asked = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    header = new_header(asked, 12)
    with socket.create_connection((server.host, server.port)) as connection:
        connection.sendall(encode_request(header, asked))
        frame = connection.makefile("rb")
        row = decode_response(header, frame.read(int.from_bytes(frame.read(4), "big"))).topics[0]
        frame.close()
    return len(row.partitions) if not row.error_code else -row.error_code


SEEN = []


def test_a_topic_is_there(seglog_kafka, seglog_topic):
    SEEN.append((seglog_kafka.bootstrap_servers, seglog_topic))
    assert partitions(seglog_kafka, seglog_topic) == 1
    seglog_kafka.log(seglog_topic).append(b"value")
    seglog_kafka.fail_next("Metadata", "LEADER_NOT_AVAILABLE", times=5)
    assert partitions(seglog_kafka, seglog_topic) == -5


@pytest.mark.seglog_topic(partitions=3, config={"retention.ms": 1000})
@pytest.mark.parametrize("what", ["a/b", "c"])
def test_the_next_one_has_its_own(seglog_kafka, seglog_topic, what):
    assert partitions(seglog_kafka, seglog_topic) == 3      # the fault went with the test that asked for it
    assert seglog_kafka.log(seglog_topic, 2).config.retention_ms == 1000
    assert SEEN[0][0] == seglog_kafka.bootstrap_servers
    assert seglog_topic not in SEEN
    SEEN.append(seglog_topic)


@pytest.fixture
def seglog_error(request):
    with pytest.raises(ValueError) as caught:
        request.getfixturevalue("seglog_topic")
    return str(caught.value)


@pytest.mark.parametrize("what", [
    pytest.param("takes no positional arguments", marks=pytest.mark.seglog_topic(3)),
    pytest.param("unknown: name", marks=pytest.mark.seglog_topic(name="orders")),
    pytest.param("unknown: partition", marks=pytest.mark.seglog_topic(partition=3)),
])
def test_what_the_marker_does_not_know_is_refused(what, seglog_error):
    assert what in seglog_error
    assert "@pytest.mark.seglog_topic(partitions=3, config={...})" in seglog_error


def test_overridden_arguments_keep_what_they_do_not_name(seglog_kafka, seglog_topic):
    assert seglog_kafka._fsync == "never"
    options = seglog_kafka._options
    assert options.config.num_partitions == 2
    assert options.coordinators.offsets_topic_num_partitions == 3
    assert options.coordinators.transaction_state_log_num_partitions == 1
    assert options.coordinators.consumer_heartbeat_interval_ms == 200


def test_pytest_does_not_rewrite_the_modules_of_seglog(seglog_kafka):
    import sys
    from _pytest.assertion.rewrite import AssertionRewritingHook
    rewritten = [
        name for name, module in list(sys.modules.items())
        if name.startswith("seglog.") and isinstance(getattr(module, "__loader__", None), AssertionRewritingHook)]
    assert not [name for name in rewritten if name.startswith(("seglog.endpoint", "seglog.log"))], rewritten
'''

CONFTEST = '''
import pytest

pytest.register_assert_rewrite("seglog")    # as pytest does with an installed seglog, unlike one that can be edited


@pytest.fixture(scope="session")
def seglog_kafka_arguments():
    return {"config": {"num.partitions": 2, "offsets_topic_num_partitions": 3}}
'''


OTHER_ARGUMENTS = """
import pytest


@pytest.fixture(scope="session")
def seglog_kafka_arguments():
    return {arguments}
"""
OTHER_TESTS = """
def test_the_arguments_are_those_of_this_directory(seglog_kafka):
    assert seglog_kafka._options.config.num_partitions == {partitions}


def test_it_is_the_same_server(seglog_kafka):
    seglog_kafka.create_topic("once-{partitions}")
    assert seglog_kafka.log("once-{partitions}") and not seglog_kafka.log("once-{other}")
"""


def pytest_of(directory):
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:seglog", "-p", "no:cacheprovider", "--strict-markers",
         "-p", "seglog.testing", str(directory)],
        capture_output=True, text=True, timeout=120, check=False, cwd=directory)


def test_a_directory_with_arguments_of_its_own_has_a_server_of_its_own(tmp_path):
    for name, partitions, other in (("a", 2, 3), ("b", 3, 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "conftest.py").write_text(
            OTHER_ARGUMENTS.format(arguments={"config": {"num.partitions": partitions}}))
        (tmp_path / name / f"test_{name}.py").write_text(OTHER_TESTS.format(partitions=partitions, other=other))
    done = pytest_of(tmp_path)
    assert "4 passed" in done.stdout, done.stdout


def test_arguments_must_be_a_mapping(tmp_path):
    (tmp_path / "conftest.py").write_text(OTHER_ARGUMENTS.format(arguments=None))
    (tmp_path / "test_none.py").write_text(OTHER_TESTS.format(partitions=1, other=2))
    assert "the fixture seglog_kafka_arguments must return a dict, not NoneType" in pytest_of(tmp_path).stdout


def test_the_fixtures_give_a_server_and_topics(tmp_path):
    (tmp_path / "test_program.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    done = pytest_of(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "8 passed" in done.stdout
