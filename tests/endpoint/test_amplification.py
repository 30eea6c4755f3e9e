"""How much an answer is larger than its question, and what it costs, for every API in every version.

A short question may ask for everything, such as all topics or the records of a partition: its answer is as large as
what the server has, which is little here. So the ratio counts from the first SMALL_BYTES of an answer on.

A table is printed by

    PYTHONPATH=tests .venv/bin/python tests/endpoint/test_amplification.py
"""
import random
import socket
import tempfile
import time
from pathlib import Path

import pytest

import seglog
from seglog.wire import messages as m
from seglog.wire.codec import API_VERSIONS, encode_request, new_header
from seglog.wire.messages import REQUESTS, ApiKey
from seglog.wire.structs import fields
from support.random_messages import random_message
from support.wire_client import WireClient

RATIO_MAX, CPU_S_MAX = 100, 1.0
SMALL_BYTES = 64 << 10
TOPIC, MANY, EACH = "orders", 2000, 3


def questions(rnd, key, version, topic_id):
    """Requests with a random content, and with the topic's name or id many times in each list, or partitions of it."""
    request = REQUESTS[key]
    for _ in range(EACH):
        yield random_message(rnd, request, version)
    for field in fields(request):
        if field.is_list and field.is_struct and version in field.versions:
            element = getattr(request, field.type)
            named = element(**{one.attribute: TOPIC for one in fields(element)
                               if one.type == "string" and not one.is_list and one.name != "Value"})
            if hasattr(named, "resource_type"):
                named.resource_type = 2
            if hasattr(named, "topic_id"):
                named.topic_id = topic_id
            yield request(**{field.attribute: [named]})
            yield request(**{field.attribute: [named] * MANY})
            for inner in fields(element):
                if inner.is_list and version in inner.versions and (inner.is_struct or inner.type == "int32"):
                    part = getattr(request, inner.type)() if inner.is_struct else 0
                    setattr(named, inner.attribute, [part] * MANY)
            yield request(**{field.attribute: [named]})
        elif field.is_list and field.type == "string" and version in field.versions:
            yield request(**{field.attribute: [TOPIC] * MANY})


def measured(server, key, version, rnd, topic_id):
    """The largest ratio of bytes, the largest answer, and the longest time, of one request."""
    most, largest, longest_s = 0.0, 0, 0.0
    for question in questions(rnd, key, version, topic_id):
        frame = encode_request(new_header(question, version, 1, "wire"), question)
        with socket.create_connection((server.host, server.port), timeout=60) as sock:
            begin_s, count = time.process_time(), 0
            sock.sendall(frame)
            sock.shutdown(socket.SHUT_WR)
            try:
                while piece := sock.recv(1 << 20):
                    count += len(piece)
            except ConnectionError:
                pass
            longest_s = max(longest_s, time.process_time() - begin_s)
        most = max(most, max(0, count - SMALL_BYTES) / len(frame))
        largest = max(largest, count)
    return most, largest, longest_s


def ready(server):
    """The id of the topic, when coordinators serve."""
    with WireClient(server) as client:
        for key_type in (0, 1):
            while client.ask(m.FindCoordinatorRequest(key=TOPIC, key_type=key_type), 3).error_code:
                pass
        metadata = m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(name=TOPIC)])
        return client.ask(metadata, 12).topics[0].topic_id


@pytest.mark.parametrize("key", list(API_VERSIONS), ids=lambda key: ApiKey(key).name)
def test_no_answer_is_a_hundred_times_its_question_nor_takes_a_second(served, key):
    topic_id = ready(served)
    rnd = random.Random(key)
    first, last = API_VERSIONS[key]
    for version in range(first, last + 1):
        ratio, _, cpu_s = measured(served, key, version, rnd, topic_id)
        assert ratio < RATIO_MAX, version
        assert cpu_s < CPU_S_MAX, version


def main():
    with tempfile.TemporaryDirectory() as directory, seglog.serve(
        Path(directory) / "data", topics={TOPIC: 3}, fsync="never"
    ) as server:
        topic_id = ready(server)
        for key in sorted(API_VERSIONS):
            first, last = API_VERSIONS[key]
            rows = [measured(server, key, version, random.Random(key), topic_id) for version in range(first, last + 1)]
            print(f"{ApiKey(key).name:28} {first:2}-{last:<2} {max(row[0] for row in rows):8.1f} times "
                  f"{max(row[1] for row in rows):8} bytes {1000 * max(row[2] for row in rows):8.1f} ms", flush=True)


if __name__ == "__main__":
    main()
