"""Compacted ledgers beside Pulsar 4.2.4: it reads what we compacted, and its compactor makes the same of a topic."""
import random

import pytest

from seglog.format.payload_compression import PayloadCodec
from seglog.ledger.compacted.raw_message import raw_message
from seglog.ledger.entry import Entry
from seglog.ledger.entry_fields import entry_fields
from seglog.ledger.ledger import Ledger
from seglog.pulsar import ManagedLedger
from seglog.topic.compacted_reader import pulsar_messages
from seglog.upkeep.compacted_conversion import FORMS
from seglog.upkeep.topic_compaction import PulsarTopicCompactionService
from support.compaction import LIBRARY_CODECS, decoded
from support.delayed import stream
from support.keyed_topic import encrypted_batch, keyed, keyed_batch, marker
from support.pulsar_oracle import write_stream

pytestmark = pytest.mark.oracle
CONFIG = {"managedLedgerMaxEntriesPerLedger": 40, "seglog.compaction.encrypted.by.entry.key": True}


def fill(topic, count=300):
    """Batches and single messages in every codec, tombstones, messages without a key, encrypted ones and markers; in
    several ledgers, with and without the broker's part."""
    chance = random.Random(7)

    def messages(n):
        return [
            (None if chance.random() < 0.1 else f"k{chance.randrange(150)}",
             None if chance.random() < 0.15 else b"value %d of %d" % (m, n))
            for m in range(chance.randint(1, 12))
        ]

    for n in range(count):
        topic.interceptors = "timestamp,index" if n % 5 else ""
        codec = chance.choice(list(PayloadCodec))
        if n % 17 == 3:
            topic.add_entry(encrypted_batch(n, 4, f"k{n % 6}"))
        elif n % 23 == 5:
            topic.add_entry(marker(n))
        elif n % 4 == 1:
            key, value = messages(n)[0]
            topic.add_entry(keyed(n, key, value if key else b"x", codec))
        else:
            topic.add_entry(keyed_batch(n, messages(n), codec))


def records_of(service):
    with Ledger.open(service.compacted_ledger.path) as ledger:
        return [ledger.read(entry_id) for entry_id in range(ledger.entry_count)]


@pytest.mark.parametrize("retain", [True, False])
def test_pulsar_reads_what_we_compacted_and_compacts_to_the_same(pulsar_oracle, tmp_path, retain):
    with ManagedLedger(tmp_path / "t", config=CONFIG | {"topicCompactionRetainNullKey": retain}) as topic:
        fill(topic)
        write_stream(tmp_path / "in.bin", [raw_message(entry.position, bytes(entry.data)) for entry in topic])
        service = PulsarTopicCompactionService(topic)
        service.compact()
        found = records_of(service)
        write_stream(tmp_path / "ours.bin", found)
        entries = list(service.compacted_ledger)
        last = service.get_last_message_position()
    says = pulsar_oracle.compacted(tmp_path / "ours.bin")
    assert len(says) == len(entries) > 40
    for line, stored in zip(says, entries, strict=True):
        assert (line["id"]["ledger_id"], line["id"]["entry_id"]) == stored.position
        told = dict(line)
        for name in ("i", "id", "extract", "last_position_if_last", "last_position_intended"):
            told.pop(name)
        assert told | {"size": len(stored)} == entry_fields(Entry(stored.data))
        assert line["last_position_if_last"] == line["last_position_intended"]
        if line["extract"] is not None:
            assert line["extract"] == [
                [*stored.position, m.batch_index, m.key and m.key.decode(), len(m.value)]
                for m in pulsar_messages(stored)
            ]
    assert says[-1]["last_position_if_last"] == list(last)
    (told,) = pulsar_oracle.compact(tmp_path / "in.bin", tmp_path / "theirs.bin", retain=retain)
    theirs = stream(tmp_path / "theirs.bin")
    assert (told["entries_in"], told["entries_out"]) == (300, len(theirs))
    assert len(theirs) == len(found)
    for ours, pulsars, line in zip(found, theirs, says, strict=True):
        if line["metadata"].get("compression") in LIBRARY_CODECS:
            assert decoded(ours) == decoded(pulsars)
        else:
            assert ours == pulsars


def test_which_forms_pulsar_reads(pulsar_oracle, tmp_path):
    """Of the old form it cannot tell the last message where a batch is compressed; of retained-only it reads batches
    of which nothing was removed, and no other."""
    with ManagedLedger(tmp_path / "t", config=CONFIG) as topic:
        fill(topic)
        service = PulsarTopicCompactionService(topic)
        service.compact()
        said = {}
        for form in ("new", "old", "retained-only"):
            service.convert(FORMS[form])
            write_stream(tmp_path / f"{form}.bin", records_of(service))
            said[form] = pulsar_oracle.compacted(tmp_path / f"{form}.bin")
            messages = [[m.batch_index for m in pulsar_messages(e)] for e in service.compacted_ledger]
    failed = 0
    for new, old in zip(said["new"], said["old"], strict=True):
        assert new["extract"] == old["extract"]
        assert new["last_position_intended"] == old["last_position_intended"]
        if str(old["last_position_if_last"]).startswith("error"):
            assert old["metadata"]["compression"] != "NONE"
            failed += 1
        else:
            assert old["last_position_if_last"] == new["last_position_if_last"]
    assert failed > 10
    refused = 0
    for new, retained, numbers in zip(said["new"], said["retained-only"], messages, strict=True):
        assert retained["last_position_if_last"] == new["last_position_if_last"]
        if new["extract"] is not None and len(numbers) < new["metadata"]["num_messages_in_batch"]:
            assert str(retained["extract"]).startswith("error")
            refused += 1
        else:
            assert retained["extract"] == new["extract"]
    assert refused > 10
