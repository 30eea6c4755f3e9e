"""A partition that somebody else has open: the server serves the others, and says what is wrong with this one."""
import pytest

import seglog
from seglog.wire.error_codes import Errors
from seglog.wire.messages import (
    AlterConfigsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
)
from support.wire_client import WireClient, fetch_request, produce_request

TOPIC = 2       # the type of a resource
SMALL = {"offsets.topic.num.partitions": 1}


@pytest.fixture
def holder(in_memory):
    """The log of the topic `held`, open."""
    with seglog.open(in_memory / "data/held-0") as log:
        yield log


@pytest.fixture
def client(in_memory, holder):
    with seglog.serve(in_memory / "data", topics={"free": 1}, config=SMALL) as server, WireClient(server) as client:
        yield client


def test_its_records_are_refused_with_an_error_that_clients_try_again_after(client):
    batch = seglog.build_batch([(b"k", b"value")])
    row = client.ask(produce_request("held", 0, batch), 11).responses[0].partition_responses[0]
    assert Errors(row.error_code) == Errors.KAFKA_STORAGE_ERROR
    row = client.ask(fetch_request("held", 0), 12).responses[0].partitions[0]
    assert Errors(row.error_code) == Errors.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize(("request_type", "resource_type"), [
    (DescribeConfigsRequest, "DescribeConfigsResource"),
    (AlterConfigsRequest, "AlterConfigsResource"),
    (IncrementalAlterConfigsRequest, "AlterConfigsResource"),
])
def test_its_settings_are_shown_but_not_changed(client, request_type, resource_type):
    resource = getattr(request_type, resource_type)
    answer = client.ask(request_type(resources=[
        resource(resource_type=TOPIC, resource_name="held"), resource(resource_type=TOPIC, resource_name="free"),
    ]), 1)
    rows = answer.results if request_type is DescribeConfigsRequest else answer.responses
    needs_log = request_type is not DescribeConfigsRequest
    assert [Errors(row.error_code) for row in rows] == [Errors.KAFKA_STORAGE_ERROR if needs_log else 0, Errors.NONE]


@pytest.mark.parametrize("version", [1, 4])
def test_the_log_dir_is_described_without_it(client, version):
    answer = client.ask(DescribeLogDirsRequest(topics=None), version)
    described, = answer.results
    assert [topic.name for topic in described.topics] == ["free"]


def test_it_is_deleted_once_it_is_free(client, holder):
    request = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="held")])
    assert Errors(client.ask(request, 6).responses[0].error_code) == Errors.KAFKA_STORAGE_ERROR
    assert [topic.name for topic in client.ask(MetadataRequest(topics=None), 12).topics] == ["free", "held"]
    holder.close()
    assert Errors(client.ask(request, 6).responses[0].error_code) == Errors.NONE
    assert [topic.name for topic in client.ask(MetadataRequest(topics=None), 12).topics] == ["free"]


def test_a_coordinator_that_cannot_open_its_log_is_looked_for_again(in_memory, client):
    with seglog.open(in_memory / "data/__consumer_offsets-0"):
        answer = client.ask(FindCoordinatorRequest(key="billing"), 1)
        assert Errors(answer.error_code) == Errors.KAFKA_STORAGE_ERROR
    assert not client.ask(FindCoordinatorRequest(key="billing"), 1).error_code
