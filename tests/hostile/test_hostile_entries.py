"""Mutated golden entries through everything that reads an entry: a result or a SeglogError that says what is wrong.

The kernel and protobuf agree about what parses. `make torture` and the sanitized build go through 10^5 of them,
`make test` through a twentieth. A case is its number.
"""
import os
import random
import struct

import pytest

from seglog._kernels.crc import crc32c
from seglog._kernels.entry_batch import check_entries
from seglog._kernels.entry_columns import metadata_columns
from seglog._kernels.entry_frame import broker_fields, entry_timestamp, put_broker_metadata, strip
from seglog.errors import CorruptRecordError, SeglogError
from seglog.ledger.entry import Entry
from seglog.ledger.entry_fields import entry_fields
from seglog.ledger.message_batch import batch_of
from seglog.pulsar import ManagedLedger
from support.entries import golden_entries

IS_FULL = bool(os.environ.get("SEGLOG_TORTURE") or os.environ.get("SEGLOG_SANITIZE"))
CASES = 100_000 if IS_FULL else 5_000
PART = 5_000
LIMIT_BYTES = 1 << 20
SIZES = [0, 1, 2, 0x7F, 0x80, 0xFF, 2**31 - 1, 2**31, 2**32 - 1]


def mutated(number):
    """Golden entry, changed in one to four places; mostly with a checksum that fits the change."""
    chooser = random.Random(number)
    entries = golden_entries()
    data = bytearray(chooser.choice(entries)[0])
    for _ in range(chooser.randint(1, 4)):
        if len(data) < 8:
            break
        # The frame and the metadata stand at the beginning: there damage says the most.
        at = chooser.randrange(len(data)) if chooser.random() < 0.3 else chooser.randrange(min(len(data), 80))
        match chooser.randrange(8):
            case 0 | 1:
                data[at] ^= 1 << chooser.randrange(8)
            case 2:
                data[at] = chooser.choice([0, 1, 0x0E, 0x7F, 0x80, 0xFF])
            case 3:
                at = min(at, len(data) - 4)
                data[at : at + 4] = struct.pack(">I", chooser.choice([*SIZES, len(data), len(data) - at]))
            case 4:
                del data[at:]
            case 5:
                data[at:at] = bytes(chooser.randrange(256) for _ in range(chooser.randrange(12)))
            case 6:
                del data[at : at + chooser.randrange(12)]
            case 7:
                other = chooser.choice(entries)[0]
                begin = chooser.randrange(len(other))
                data[at : at + 30] = other[begin : begin + 30]
    if chooser.random() < 0.7:
        mend_checksum(data)
    return bytes(data)


def mend_checksum(data):
    try:
        entry = Entry(bytes(data))
    except SeglogError:
        return
    if entry.checksum is not None:
        at = entry.headers_pos
        data[at + 2 : at + 6] = crc32c(data[at + 6 :]).to_bytes(4, "big")


def result_or_error(read):
    """What it gives, or its SeglogError; anything else is raised."""
    try:
        return read()
    except SeglogError as error:
        return error


def look(data):
    """Everything that reads an entry."""
    for read in (strip, broker_fields, entry_timestamp):
        result_or_error(lambda read=read: read(data))
    result_or_error(lambda: put_broker_metadata(data, 1, 2))
    result_or_error(lambda: check_entries([data], None, len(data)))
    columns = result_or_error(lambda: metadata_columns([data]))
    entry = result_or_error(lambda: Entry(data))
    if isinstance(entry, SeglogError):
        assert isinstance(entry, CorruptRecordError)
        assert entry.what
        assert isinstance(columns, CorruptRecordError)
        return
    entry.damage()
    result_or_error(lambda: entry.opened_payload(LIMIT_BYTES))
    result_or_error(lambda: batch_of(entry, LIMIT_BYTES))
    result_or_error(lambda: entry_fields(entry, LIMIT_BYTES))
    fields, whole = result_or_error(entry.fields), result_or_error(lambda: entry.metadata)
    assert isinstance(columns, CorruptRecordError) == (
        isinstance(fields, CorruptRecordError) or isinstance(result_or_error(entry.broker_fields), CorruptRecordError)
    )
    if isinstance(fields, SeglogError):
        # protobuf takes an end of a group that never began for an unknown field. No writer writes one.
        if not isinstance(whole, SeglogError):
            whole.DiscardUnknownFields()
            assert whole.SerializeToString() != entry.metadata_bytes()
    elif not isinstance(whole, SeglogError):
        assert fields.publish_time % 2**64 == whole.publish_time
        assert fields.sequence_id % 2**64 == whole.sequence_id
        assert fields.num_messages == whole.num_messages_in_batch
        assert fields.is_encrypted == bool(whole.encryption_keys)
        assert list(fields.compacted_indexes) == list(whole.compacted_batch_indexes)


@pytest.mark.parametrize("first", range(0, CASES, PART))
def test_a_mutated_entry_gives_a_result_or_a_clear_error(first):
    for number in range(first, first + PART):
        try:
            look(mutated(number))
        except Exception as error:
            error.add_note(f"case {number}")
            raise


def test_a_managed_ledger_takes_what_is_an_entry_and_nothing_else(tmp_path):
    taken = []
    config = {"brokerEntryMetadataInterceptors": "index"}
    with ManagedLedger(tmp_path / "orders", fsync="never", config=config) as topic:
        for number in range(500):
            data = mutated(number)
            if not isinstance(result_or_error(lambda data=data: topic.add_entry(data)), SeglogError):
                taken.append(data)
        assert [entry.headers_and_payload for entry in topic] == taken
    assert 20 < len(taken) < 450


def test_a_case_is_the_same_bytes_every_time():
    assert [mutated(n) for n in range(50)] == [mutated(n) for n in range(50)]
