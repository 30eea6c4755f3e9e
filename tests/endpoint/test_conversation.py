"""A long conversation with our server, field by field the one that was held with a broker of Kafka 3.9.1, but for what
known_differences.py lists with its reason.
"""
import re

import pytest

import seglog
from support.answers import differences
from support.conversation_golden import read_golden
from support.known_differences import KNOWN
from support.whole_conversation import WholeConversation

# As tests/oracle sets up its broker.
CONFIG = {"auto.create.topics.enable": False, "log.retention.ms": -1, "offsets.topic.num.partitions": 1}


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    with seglog.serve(tmp_path_factory.mktemp("served"), config=CONFIG, fsync="never") as server:
        return WholeConversation(server.host, server.port).hold()


@pytest.fixture(scope="module")
def found(held):
    golden = read_golden()
    assert held.keys() == golden.keys()
    return [one for key, theirs in golden.items() for one in differences(theirs, held[key], key)]


def test_every_api_in_every_version_answers_as_kafka_does(found):
    unknown = [one for one in found if not any(re.search(pattern, one[0]) for pattern, _ in KNOWN)]
    assert unknown == []


def test_every_known_difference_is_still_there(found):
    gone = [pattern for pattern, _ in KNOWN if not any(re.search(pattern, path) for path, _, _ in found)]
    assert gone == []
