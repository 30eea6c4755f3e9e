"""Requests that are well formed and mean nothing: each is answered, or closes its connection, and no handler fails."""
import logging
import os
import random
from collections import Counter

import seglog
from seglog.wire.messages import REQUESTS, ApiKey, MetadataRequest
from support.random_messages import random_message
from support.wire_client import WireClient

# `make torture` sets SEGLOG_TORTURE.
COUNT = 20_000 if os.environ.get("SEGLOG_TORTURE") else 600
# They wait for others, for as long as the client says.
WAITING = {ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}
CONFIG = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}


def random_request(rnd):
    key = ApiKey(rnd.choice([*REQUESTS]))
    request = REQUESTS[key]
    version = rnd.randint(request.MIN_VERSION, request.MAX_VERSION)
    made = random_message(rnd, request, version)
    if key == ApiKey.FETCH:
        made.max_wait_ms = 0
    for topic in made.topics if key in (ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS) else ():
        for name in ("num_partitions", "count"):        # each is a directory
            if 2 < getattr(topic, name, 0) <= 10_000:
                setattr(topic, name, 2)
    return key, version, made


def outcome(client, key, version, request):
    """"answered" or "closed"; "waiting" of one that may wait."""
    client.socket.settimeout(0.02 if key in WAITING else 60)
    try:
        header = client.send(request, version)
        if key == ApiKey.PRODUCE and request.acks == 0:     # what comes behind it is answered, or nothing is
            header = client.send(MetadataRequest(), 1)
        client.receive(header)
    except ConnectionError:
        return "closed"
    except TimeoutError:
        return "waiting" if key in WAITING else "silent"
    return "answered"


def test_no_handler_fails(in_memory, caplog):
    rnd = random.Random(21)
    outcomes = Counter()
    with seglog.serve(in_memory / "data", topics={"topic": 2, "a": 1}, config=CONFIG, fsync="never") as server:
        client = WireClient(server)
        for _ in range(COUNT):
            key, version, request = random_request(rnd)
            found = outcome(client, key, version, request)
            outcomes[found] += 1
            assert found != "silent", (key.name, version, request)
            if found != "answered":
                client.socket.close()
                client = WireClient(server)
        client.socket.settimeout(60)
        assert client.ask(MetadataRequest(topics=None), 12).controller_id == 1
        client.socket.close()
    failed = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not failed, failed[0].exc_text or failed[0].getMessage()
    assert outcomes["answered"] > COUNT // 2
