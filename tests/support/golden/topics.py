"""Entries as producers send them, and managed ledgers to put them in."""
from functools import cache

from seglog.ledger.entry import build_entry
from seglog.ledger.message_batch import build_batch_entry
from seglog.ledger.position import Position
from seglog.pulsar_pb.entry_pb2 import MessageMetadata, SingleMessageMetadata


@cache
def message(number, publish_time=1000, producer="p"):
    """An entry of one message, whose value says its number."""
    metadata = MessageMetadata(producer_name=producer, sequence_id=number, publish_time=publish_time)
    return build_entry(metadata, b"value %d" % number)


@cache
def delayed(number, deliver_at, publish_time=1000):
    """An entry of one message that is to be delivered at a time in ms."""
    metadata = MessageMetadata(
        producer_name="p", sequence_id=number, publish_time=publish_time, deliver_at_time=deliver_at
    )
    return build_entry(metadata, b"value %d" % number)


@cache
def batch(number, count, publish_time=1000, deliver_at=None):
    """An entry of `count` messages, which may be delayed together."""
    metadata = MessageMetadata(
        producer_name="p", sequence_id=number, publish_time=publish_time, deliver_at_time=deliver_at
    )
    return build_batch_entry(metadata, [(SingleMessageMetadata(), b"%d/%d" % (number, n)) for n in range(count)])


def at(text):
    """`at("3:5")` is Position(3, 5)."""
    ledger_id, _, entry_id = text.partition(":")
    return Position(int(ledger_id), int(entry_id))


def positions(entries):
    return [str(entry.position) for entry in entries]


def numbers(entries):
    """The sequence ids of the entries: the numbers they were made with."""
    return [entry.entry.fields().sequence_id for entry in entries]
