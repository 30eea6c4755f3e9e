"""Entries that a managed ledger wrote, read by the real classes of Pulsar 4.2.4: they say what we say."""
import itertools
import random

import pytest

from seglog.clock import ManualClock
from seglog.format.payload_compression import PayloadCodec
from seglog.ledger.entry import Entry, build_entry
from seglog.ledger.entry_fields import entry_fields
from seglog.ledger.message_batch import build_batch_entry, build_message_entry
from seglog.pulsar import ManagedLedger
from seglog.pulsar_pb.entry_pb2 import MessageMetadata, SingleMessageMetadata
from support.pulsar_oracle import write_stream

pytestmark = pytest.mark.oracle
NOW = 1_700_000_000_000


def metadata(chance, n):
    publish_time = NOW + chance.randrange(10_000)
    made = MessageMetadata(producer_name=f"producer-{n % 3}", sequence_id=n, publish_time=publish_time)
    if chance.random() < 0.5:
        made.properties.add(key="größe", value=str(n))
    if chance.random() < 0.3:
        made.partition_key = f"key-{n % 5}"
    if chance.random() < 0.3:
        made.deliver_at_time = NOW + 50_000 + n
    if chance.random() < 0.3:
        made.event_time = NOW - n
    if chance.random() < 0.2:
        made.ordering_key = bytes([n % 256, 255])
    if chance.random() < 0.2:
        made.schema_version = b"\x00\x01"
    return made


def entries():
    """Every codec, one message and batches, with and without checksum; chunks and encrypted ones."""
    chance = random.Random(4)
    numbers = itertools.count()
    for codec, is_batch, checksum in itertools.product(PayloadCodec, (False, True), (False, True)):
        for _ in range(3):
            n = next(numbers)
            value = b"the quick brown fox %d " % n * chance.choice([0, 1, 40])
            if not is_batch:
                yield build_message_entry(metadata(chance, n), value, codec, checksum=checksum), 1
                continue
            count = chance.randint(1, 9)
            messages = [(SingleMessageMetadata(partition_key=str(k), null_value=k == 3), value) for k in range(count)]
            yield build_batch_entry(metadata(chance, n), messages, codec, checksum=checksum), count
    encrypted = metadata(chance, next(numbers))
    encrypted.encryption_keys.add(key="k", value=b"wrapped").metadata.add(key="version", value="1")
    encrypted.encryption_algo = "RSA"
    yield build_entry(encrypted, random.Random(1).randbytes(80)), 1
    chunk = metadata(chance, next(numbers))
    chunk.uuid, chunk.num_chunks_from_msg, chunk.total_chunk_msg_size, chunk.chunk_id = "u", 3, 900, 1
    yield build_entry(chunk, random.Random(2).randbytes(80)), 1


def test_pulsar_reads_what_a_managed_ledger_wrote(pulsar_oracle, tmp_path):
    clock = ManualClock(NOW)
    config = {"managedLedgerMaxEntriesPerLedger": 17}
    switches = itertools.cycle(["timestamp,index", "", "index", "timestamp"])
    with ManagedLedger(tmp_path / "orders", config=config, clock=clock) as topic:
        for n, (entry, count) in enumerate(entries()):
            if n % 9 == 0:
                topic.interceptors = next(switches)
            topic.add_entry(entry, count)
            clock.advance(7)
    with ManagedLedger(tmp_path / "orders", config=config) as topic:
        stored = [bytes(entry.data) for entry in topic]
        times = [entry.timestamp for entry in topic]
        indexes = [entry.index for entry in topic]
    write_stream(tmp_path / "entries.bin", stored)
    says = pulsar_oracle.entries(tmp_path / "entries.bin")
    assert len(says) == len(stored) > 60
    for n, (line, entry) in enumerate(zip(says, stored, strict=True)):
        expected = entry_fields(Entry(entry))
        assert {name: value for name, value in line.items() if name not in ("i", "case")} == expected, n
        assert line["entry_timestamp"] == times[n]
        assert line.get("broker_entry_metadata", {}).get("index") == indexes[n]
        assert line["metadata_canonical"]
        assert line.get("checksum_ok", True)
    assert len({index for index in indexes if index is not None}) > 20
