"""Who sees the broker's part of an entry (PIP-70, PIP-90): a client that asks for it, where the broker exposes it."""
import pytest

from seglog.delayed.in_memory import InMemoryDelayedDeliveryTracker
from seglog.pulsar import ManagedLedger
from seglog.topic.compacted_reader import read_compacted
from seglog.topic.dispatcher import Dispatcher
from seglog.upkeep.topic_compaction import PulsarTopicCompactionService
from support.keyed_topic import keyed, keyed_batch

ENTRIES = [keyed(n, f"k{n}", b"v") if n % 2 else keyed_batch(n, [(f"k{n}", b"v"), (f"l{n}", b"v")]) for n in range(6)]


def by_cursor(topic, supports):
    return topic.open_cursor("cursor", "earliest").read(supports_broker_metadata=supports)


def by_dispatcher(topic, supports):
    cursor = topic.open_cursor("dispatcher", "earliest")
    with Dispatcher(topic, cursor, InMemoryDelayedDeliveryTracker()) as dispatcher:
        return dispatcher.read(supports_broker_metadata=supports)


def by_compacted_reader(topic, supports):
    """Half of it compacted, half of it not."""
    reader = read_compacted(topic, PulsarTopicCompactionService(topic), supports_broker_metadata=supports)
    found = {}
    while reader.has_message_available():
        entry = reader.read_next().entry
        found[entry.position] = entry
    return list(found.values())


@pytest.mark.parametrize("read", [by_cursor, by_dispatcher, by_compacted_reader])
@pytest.mark.parametrize("exposes", [True, False])
@pytest.mark.parametrize("supports", [True, False, None])
def test_the_four_combinations_over_entries_with_and_without_it(tmp_path, read, exposes, supports):
    config = {"exposingBrokerEntryMetadataToClientEnabled": exposes}
    with ManagedLedger(tmp_path / "t", config=config) as topic:
        for number, entry in enumerate(ENTRIES):
            topic.interceptors = "timestamp,index" if number % 3 else ""
            topic.add_entry(entry)
            if number == 2 and read is by_compacted_reader:
                PulsarTopicCompactionService(topic).compact()
        found = read(topic, supports)
        assert len(found) == len(ENTRIES)
        for number, (entry, stored) in enumerate(zip(found, topic, strict=True)):
            sees = supports is None or (supports and exposes)
            assert (entry.index is not None) == (entry.broker_timestamp is not None) == bool(sees and number % 3)
            assert bytes(entry.headers_and_payload)[-20:] == bytes(stored.data)[-20:]
            assert entry.position == stored.position
            if not sees:
                assert bytes(entry.data) == bytes(entry.headers_and_payload)
                assert entry.timestamp == entry.publish_time
