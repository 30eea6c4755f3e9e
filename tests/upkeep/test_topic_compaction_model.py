"""Random lives of a compacted topic beside a model, a dict of last values: batches, single messages, tombstones,
messages without a key, encrypted entries, markers, all codecs and forms, many rounds, readers in the middle.
"""
import os
import random

import pytest

from seglog.ledger.position import Position
from seglog.pulsar import ManagedLedger
from seglog.topic.compacted_reader import read_compacted
from seglog.upkeep.compacted_conversion import FORMS, digest_of
from seglog.upkeep.topic_compaction import PulsarTopicCompactionService
from support.keyed_topic import encrypted_batch, keyed, keyed_batch, marker

PROGRAMS = 200 if os.environ.get("SEGLOG_TORTURE") else 6
STEPS = 40
KEYS = 9


class Model:
    """`messages`: all that stand in the topic, in order: (position, number in the entry, key, value, kind)."""

    def __init__(self, retains_null_keys):
        self.retains_null_keys = retains_null_keys
        self.messages = []
        self.horizon = Position(-1, -1)

    def add(self, position, messages, kind="plain"):
        self.messages += [
            (position, n if len(messages) > 1 else -1, key, value, kind) for n, (key, value) in enumerate(messages)
        ]

    def compact(self):
        if not self.messages:
            return
        self.horizon = max(self.horizon, self.messages[-1][0])
        last = {key: (position, n, value) for position, n, key, value, kind in self.messages
                if kind == "plain" and key is not None and position <= self.horizon}
        self.messages = [
            m for m in self.messages
            if m[4] == "encrypted" or (m[4] == "plain" and (
                self.retains_null_keys if m[2] is None else last[m[2]] == (*m[:2], m[3]) and m[3] is not None
            ))
        ]

    def readable(self):
        return [m for m in self.messages if m[4] != "marker"]

    def expected(self):
        """What a reader gets; an encrypted batch as one message, its last."""
        found = []
        for position, n, key, value, kind in self.readable():
            found.append((position, n, None if kind == "encrypted" else key, value or b""))
        return found


def read(reader):
    found = []
    while reader.has_message_available():
        message = reader.read_next()
        at = message.position
        found.append((at.position, at.batch_index, message.key and message.key.decode(), bytes(message.value)))
    return found


class Life:
    def __init__(self, path, seed):
        self.path, self.chance = path, random.Random(seed)
        chance = self.chance
        self.config = {
            "managedLedgerMaxEntriesPerLedger": chance.choice([2, 5, 50]),
            "topicCompactionRetainNullKey": chance.random() < 0.5,
            "seglog.compaction.key.map.bytes": chance.choice([4096, 1 << 20]),
        }
        self.model, self.number, self.last_end = Model(self.config["topicCompactionRetainNullKey"]), 0, None
        self.open()

    def open(self):
        chance = self.chance
        payload = chance.choice(["placeholders", "retained-only"])
        forms = {"seglog.compaction.payload": payload}
        if payload == "placeholders":
            forms["seglog.compaction.batch.indexes"] = chance.random() < 0.5
        self.topic = ManagedLedger(self.path, config=self.config | forms, fsync="never")
        self.topic.interceptors = chance.choice(["", "timestamp,index"])
        self.service = PulsarTopicCompactionService(self.topic)
        self.cursor = self.topic.open_cursor("sub", "earliest")

    def step(self):
        chance, what = self.chance, self.chance.random()
        if what < 0.55:
            self.add()
        elif what < 0.75:
            report = self.service.compact()
            self.model.compact()
            if report.rounds:
                assert report.horizon == self.model.horizon
        elif what < 0.82:
            if self.service.get_last_compacted_position() == self.topic.last_position:
                self.cursor.clear_backlog()
                self.topic.trim()
        elif what < 0.9:
            before = digest_of(self.service.read_compacted_entries(Position(0, 0), 10_000))
            self.service.convert(FORMS[chance.choice(list(FORMS))])
            assert digest_of(self.service.read_compacted_entries(Position(0, 0), 10_000)) == before
        else:
            self.service.close()
            self.topic.close()
            self.open()
        self.check()

    def add(self):
        chance, number = self.chance, self.number
        self.number += 1
        kind, codec = chance.random(), chance.randrange(5)
        if kind < 0.1:
            position = self.topic.add_entry(encrypted_batch(number, 3, f"k{chance.randrange(KEYS)}"))
            self.model.messages.append((position, 2, None, b"nobody reads this", "encrypted"))
            return
        if kind < 0.17:
            self.model.add(self.topic.add_entry(marker(number)), [(None, None)], "marker")
            return
        messages = [
            (None if chance.random() < 0.1 else f"k{chance.randrange(KEYS)}",
             None if chance.random() < 0.2 else b"%d/%d" % (number, n))
            for n in range(1 if kind < 0.4 else chance.randint(2, 6))
        ]
        if kind < 0.3:
            entry = keyed(number, *messages[0], codec)
        else:
            entry = keyed_batch(number, messages, codec)
        self.model.add(self.topic.add_entry(entry), messages)

    def check(self):
        expected = self.model.expected()
        reader = read_compacted(self.topic, self.service)
        last = reader.get_last_message_position()
        if expected:
            assert (last.position, last.batch_index) == expected[-1][:2]
        else:
            assert last == (-1, -1, 0, 0)
        assert read(reader) == expected
        if expected:
            at = self.chance.choice(expected)[0]
            assert read(read_compacted(self.topic, self.service, at)) == [m for m in expected if m[0] >= at]
        if self.chance.random() < 0.2:      # a reader in the middle of a compaction: no last value is missed
            reader, found = read_compacted(self.topic, self.service), []
            for _ in range(self.chance.randint(0, 10)):
                if reader.has_message_available():
                    message = reader.read_next()
                    found.append((message.position.position, message.position.batch_index))
            self.service.compact()
            self.model.compact()
            found += [m[:2] for m in read(reader)]
            assert found == sorted(set(found))
            after = {m[:2] for m in self.model.expected()}
            assert after <= set(found) <= after | {m[:2] for m in expected}


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_a_life_of_a_compacted_topic(tmp_path, seed):
    life = Life(tmp_path / "t", seed)
    for step in range(STEPS):
        try:
            life.step()
        except BaseException as error:
            error.add_note(f"life {seed}, step {step}")
            raise
    life.topic.close()
