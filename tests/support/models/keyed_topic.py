"""Entries with keys, for topics that are compacted; and what a reader of them gets."""
from seglog.ledger.entry import Entry, build_entry
from seglog.ledger.message_batch import build_batch_entry, build_message_entry
from seglog.pulsar_pb.entry_pb2 import MessageMetadata, SingleMessageMetadata
from seglog.topic.compacted_reader import read_compacted
from seglog.upkeep.topic_compaction import PulsarTopicCompactionService


def metadata_of(number, publish_time=None, key=None):
    made = MessageMetadata(
        producer_name="p", sequence_id=number, publish_time=1000 + number if publish_time is None else publish_time
    )
    if key is not None:
        made.partition_key = key
    return made


def single(key, value):
    made = SingleMessageMetadata()
    if key is not None:
        made.partition_key = key
    if value is None:
        made.null_value = True
    return made


def keyed_batch(number, messages, codec=0, publish_time=None):
    """An entry of a batch of (key, value); a value None deletes the key, a key None is none."""
    return build_batch_entry(
        metadata_of(number, publish_time), [(single(key, value), value or b"") for key, value in messages], codec
    )


def keyed(number, key, value, codec=0, publish_time=None):
    """An entry of one message that is no batch."""
    made = metadata_of(number, publish_time, key)
    if value is None:
        made.null_value = True
    return build_message_entry(made, value or b"", codec)


def encrypted_batch(number, count, key=None, payload=b"nobody reads this"):
    made = metadata_of(number, key=key)
    made.num_messages_in_batch = count
    made.uncompressed_size = 100
    made.encryption_keys.add(key="k", value=b"wrapped").metadata.add(key="version", value="1")
    return build_entry(made, payload)


def marker(number):
    made = metadata_of(number)
    made.marker_type = 10
    return build_entry(made, b"")


def read_all(topic, service=None, **options):
    """(key, value) of all that a reader of the compacted topic gets: it ends by itself, and exactly at the end."""
    reader = read_compacted(topic, service or PulsarTopicCompactionService(topic), **options)
    found = []
    while reader.has_message_available():
        message = reader.read_next()
        assert message is not None, "has_message_available, and there is none"
        found.append((message.key and message.key.decode(), bytes(message.value)))
        last = message.position
        assert last <= reader.get_last_message_position()
    assert reader.read_next() is None, "there was one more"
    if found:
        assert last[:2] == reader.get_last_message_position()[:2]
    return found


def compacted_indexes(entry):
    return list(Entry(entry.data).fields().compacted_indexes)
