"""What a real broker of Kafka 3.9.1 answers to every API in every version: tests/golden/conversation.json.gz.
And what one of 4.4.0 answers in the later versions: newest_conversation.json.gz.

SEGLOG_UPDATE_GOLDEN=1 writes the files; else the broker's answers of today are compared with it. tests/endpoint
compares ours.
"""

import os

import pytest

from support.answers import differences
from support.conversation_golden import GOLDEN, NEWEST, read_golden, write_golden
from support.newest_conversation import NewestConversation
from support.whole_conversation import WholeConversation

pytestmark = pytest.mark.oracle

# Targets of groups are computed with the heartbeat, as ours are, and not up to a second later; transactions that are
# open for too long are looked for more often than every 10 s.
SETTINGS = {
    "4.4.0": {
        "group.consumer.assignment.interval.ms": 0, "group.consumer.assignor.offload.enable": "false",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    }}


@pytest.mark.parametrize(("version", "conversation", "file"), [
    ("3.9.1", WholeConversation, GOLDEN), ("4.4.0", NewestConversation, NEWEST)])
def test_a_broker_answers_as_it_did(kafka_oracle, tmp_path, version, conversation, file):
    with kafka_oracle(version).serving(tmp_path, SETTINGS.get(version)) as broker:
        broker.start()
        held = conversation(*broker.address).hold()
        broker.stop()
    if os.environ.get("SEGLOG_UPDATE_GOLDEN"):
        write_golden(held, file)
    golden = read_golden(file)
    assert held.keys() == golden.keys(), file
    assert [found for key, answer in golden.items() for found in differences(answer, held[key], key)] == []
