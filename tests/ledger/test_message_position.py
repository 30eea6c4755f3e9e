"""The last message that compaction left in an entry: by metadata alone, or, in the old form, by the payload."""
import pytest

from seglog.errors import CorruptRecordError
from seglog.ledger import entry as entry_module
from seglog.ledger.compacted.raw_message import raw_message, read_raw_message
from seglog.ledger.entry import Entry, build_entry
from seglog.ledger.message_position import MessagePosition, last_message
from seglog.ledger.position import Position
from seglog.pulsar_pb.entry_pb2 import MessageMetadata
from support.compaction import every_golden_record

AT = Position(7, 9)


def test_no_message_at_all():
    assert MessagePosition.EARLIEST == (-1, -1, 0, 0)
    assert MessagePosition(1, 2, 3, 4)._fields == ("ledger_id", "entry_id", "batch_index", "publish_time")


def test_of_every_golden_entry_it_is_what_it_was_meant_to_be():
    """Also of those where getLastMessagePosition of Pulsar 4.2.4 throws: compressed batches of the old form."""
    count = failed = 0
    for record, says in every_golden_record():
        position, data = read_raw_message(record)
        assert raw_message(position, data) == record
        found = last_message(position, Entry(data))
        assert (None if found is None else list(found)) == says["last_position_intended"]
        count += 1
        failed += str(says["last_position_if_last"]).startswith("error")
    assert (count, failed) == (718, 265)


def test_the_metadata_is_enough(monkeypatch):
    """The payload is neither decompressed nor decrypted, whatever it holds."""
    monkeypatch.setattr(entry_module, "open_payload", None)
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=5, num_messages_in_batch=4, compression=1)
    metadata.compacted_batch_indexes.extend([0, 2])
    assert last_message(AT, Entry(build_entry(metadata, b"no LZ4"))) == (7, 9, 2, 5)
    del metadata.compacted_batch_indexes[:]
    metadata.encryption_keys.add(key="k", value=b"v")
    assert last_message(AT, Entry(build_entry(metadata, b"secret"))) == (7, 9, 3, 5)
    metadata.num_messages_in_batch = 1
    assert last_message(AT, Entry(build_entry(metadata, b"secret"))) == (7, 9, -1, 5)


@pytest.mark.parametrize("indexes", [[4], [-1, 2], [1, 7]])
def test_a_number_that_the_batch_does_not_have_is_damage(indexes):
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=5, num_messages_in_batch=4)
    metadata.compacted_batch_indexes.extend(indexes)
    with pytest.raises(CorruptRecordError, match="compacted_batch_indexes"):
        last_message(AT, Entry(build_entry(metadata, b"")))


def test_a_batch_that_cannot_be_read_was_kept_whole():
    metadata = MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=5, num_messages_in_batch=4, compression=1, uncompressed_size=99
    )
    assert last_message(AT, Entry(build_entry(metadata, b"no LZ4"))) == (7, 9, 3, 5)


@pytest.mark.parametrize("cut", [0, 3, 4, 9, 30, -1])
def test_a_record_that_ends_early_is_damage(cut):
    record = raw_message(AT, b"entry")
    assert read_raw_message(record) == (AT, b"entry")
    with pytest.raises(CorruptRecordError):
        read_raw_message(record[:cut])
