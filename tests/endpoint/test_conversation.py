"""A long conversation with our server, field by field the one that was held with a broker of Kafka 3.9.1, and in later
versions with one of 4.4.0, but for what known_differences.py lists with its reason.
"""
import re

import pytest

import seglog
from support.answers import differences
from support.conversation_golden import NEWEST, read_golden
from support.known_differences import KNOWN, KNOWN_440
from support.newest_conversation import NewestConversation
from support.whole_conversation import WholeConversation

# As tests/oracle sets up its broker.
CONFIG = {
    "auto.create.topics.enable": False, "retention.ms": -1, "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
}


def differing(directory, conversation, golden):
    with seglog.serve(directory, config=CONFIG, fsync="never") as server:
        held = conversation(server.host, server.port).hold()
    assert held.keys() == golden.keys()
    return [
        " | ".join(map(str, one)) for key, theirs in golden.items() for one in differences(theirs, held[key], key)
    ]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return differing(tmp_path_factory.mktemp("served"), WholeConversation, read_golden())


@pytest.fixture(scope="module")
def found_in_later_versions(tmp_path_factory):
    return differing(tmp_path_factory.mktemp("served"), NewestConversation, read_golden(NEWEST))


def test_every_later_version_answers_as_kafka_440_does(found_in_later_versions):
    unknown = [one for one in found_in_later_versions if not any(re.search(pattern, one) for pattern, _ in KNOWN_440)]
    assert unknown == []


@pytest.mark.oracle
def test_every_known_difference_from_kafka_440_is_still_there(found_in_later_versions):
    assert [
        pattern for pattern, _ in KNOWN_440 if not any(re.search(pattern, one) for one in found_in_later_versions)
    ] == []


@pytest.mark.long
def test_every_api_in_every_version_answers_as_kafka_does(found):
    assert [one for one in found if not any(re.search(pattern, one) for pattern, _ in KNOWN)] == []


def test_most_answers_are_the_same(found):
    answers = {one.partition(".")[0].partition(" |")[0] for one in found}
    texts = {one for one in found if "message |" in one or ".configs." in one or ".api_keys." in one}
    assert len(read_golden()) > 2100
    assert len(answers) < len(read_golden()) // 4
    assert len(set(found) - texts) < 400


@pytest.mark.oracle
def test_every_known_difference_is_still_there(found):
    """By `make oracle`, so that what closes a difference can be landed by itself."""
    assert [pattern for pattern, _ in KNOWN if not any(re.search(pattern, one) for one in found)] == []
