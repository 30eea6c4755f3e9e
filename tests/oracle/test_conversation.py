"""What a real broker of Kafka 3.9.1 answers to every API in every version: tests/golden/conversation.json.gz.

SEGLOG_UPDATE_GOLDEN=1 writes the file; else the broker's answers of today are compared with it. tests/endpoint
compares ours.
"""

import os

import pytest

from support.answers import differences
from support.conversation_golden import GOLDEN, read_golden, write_golden
from support.whole_conversation import WholeConversation

pytestmark = pytest.mark.oracle


def test_a_broker_answers_as_it_did(kafka_oracle, tmp_path):
    with kafka_oracle("3.9.1").serving(tmp_path) as broker:
        broker.start()
        held = WholeConversation(*broker.address).hold()
        broker.stop()
    if os.environ.get("SEGLOG_UPDATE_GOLDEN"):
        write_golden(held)
    assert held.keys() == read_golden().keys(), GOLDEN
    assert [found for key, answer in read_golden().items() for found in differences(answer, held[key], key)] == []
