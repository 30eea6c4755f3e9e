"""A server that is killed under members of the consumer protocol: nobody is fenced, no partition has two readers, and
every offset whose commit was answered is there.
"""
import os
import random
import signal

from seglog.wire.messages import ConsumerGroupDescribeRequest, MetadataRequest
from support.consumer_load import GROUP, TOPIC, ConsumerLoad, Shared, committed
from support.server_load import kill_under_load, serve_on_one_port
from support.wire_client import WireClient

MEMBERS, PARTITIONS = 4, 6


def test_members_go_on_with_what_they_have_whenever_the_server_is_killed(tmp_path, request):
    kills = 200 if os.environ.get("SEGLOG_TORTURE") else 3
    server = serve_on_one_port(
        tmp_path / "data", "--create-topic", f"{TOPIC}:{PARTITIONS}", "--config", "offsets.topic.num.partitions=3",
        "--config", "group.consumer.session.timeout.ms=600000")
    request.addfinalizer(server.__exit__)
    with WireClient(server) as client:
        asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=TOPIC)])
        ConsumerLoad.topic_id = client.ask(asked, 12).topics[0].topic_id
    shared = Shared(PARTITIONS)
    loads = [ConsumerLoad(server, number, shared) for number in range(MEMBERS)]
    kill_under_load(server, loads, kills, random.Random(23))
    assert any(shared.committed.values())
    with WireClient(server) as client:
        for partition, offset in committed(client, PARTITIONS).items():
            assert shared.committed[partition] <= offset <= shared.sent[partition]
        group, = client.ask(ConsumerGroupDescribeRequest(group_ids=[GROUP]), 1).groups
        had = {load.member_id: load.owned for load in loads if load.owned}
        told = {member.member_id: {number for row in member.assignment.topic_partitions for number in row.partitions}
                for member in group.members}
        for member_id, owned in had.items():
            assert owned <= told[member_id]
    assert server.end(signal.SIGTERM) == 0
    assert "Traceback" not in server.err, server.err[-3000:]
