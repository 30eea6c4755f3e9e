"""`queue.journal`: written and read again, cut at every byte, with every byte changed, and with wrong contents.

The records here are made by struct, as docs/formats/queue_journal.md says, not by the writer.
"""
import contextlib
import errno
import random
import struct

import pytest

from seglog._kernels.crc import crc32c
from seglog.errors import CorruptJournalError, LogClosedError, LogFailedError, StorageError, UnsupportedVersionError
from seglog.fs.files import OsFileSystem
from seglog.ledger.managed.journal import (
    FILE_NAME,
    HEADER,
    Change,
    JournalKind,
    QueueJournal,
    parse_journal,
    read_journal,
    whole_records,
)
from support.faultfs import FailingFs

HEADER_BYTES = 32


def header(journal_id=1, version=1, magic=b"seglogjn"):
    raw = struct.pack(">8sIIQI", magic, version, 0, journal_id, 0)
    return raw + struct.pack(">I", crc32c(raw))


def record(position, kind, items=(), *, synced_to=HEADER_BYTES, subscription=0, at_ms=0, holder=0, text=b"",
           journal_id=1, zero=0, count=None):
    body = struct.pack(
        ">BBHIQQQ", kind, zero, subscription, len(items) if count is None else count, synced_to, at_ms, holder
    )
    body += b"".join(struct.pack(">QQiI", *item) for item in items) + text
    crc = crc32c(struct.pack(">QQI", journal_id, position, len(body)) + body)
    raw = struct.pack(">II", len(body), crc) + body
    return raw + bytes(-len(raw) % 8)


def journal(*makers, journal_id=1):
    """A journal of records, each made by a function that gets its position and the positions of all before it."""
    raw = header(journal_id) + record(HEADER_BYTES, 1, text=b"queue", journal_id=journal_id)
    positions = [HEADER_BYTES]
    for make in makers:
        positions.append(len(raw))
        raw += make(len(raw))
    return raw, positions


def acked(entry_id, **options):
    return lambda position: record(position, 3, [(7, entry_id, -1, 1)], **options)


def synced(entry_id):
    """An acknowledgement that was written when everything before it was on the disk."""
    return lambda position: record(position, 3, [(7, entry_id, -1, 1)], synced_to=position)


def entries(contents):
    return [item.entry_id for one in contents.records if one.kind is JournalKind.ACKED for item in one.items]


# --- the writer and the reader agree with the page -------------------------------------------


def test_what_is_written_is_what_the_page_says_and_is_read_again(tmp_path):
    changes = [
        Change(JournalKind.DELIVERED, [(3, 5, -1, 1), (3, 6, 0, 2)], 1_700_000_000_000, 77),
        Change(JournalKind.ACKED, [(3, 5, -1, 1)]),
        Change(JournalKind.WAITING, [(3, 6, 0, 2)], 1_700_000_001_000),
        Change(JournalKind.DEAD, [(3, 6, 1, 3)], 1_700_000_002_000, text="ValueError: zu groß"),
        Change(JournalKind.READY, [(3, 6, 1, 0)], 1_700_000_003_000),
        Change(JournalKind.UNIQUE, [(3, 7, -1, 5), (3, 8, -1, 10)], text="9 tü1700 bAP8="),
        Change(JournalKind.UNIQUE_TO, [(3, 8, -1, 0)]),
        Change(JournalKind.UNIQUE_TO, []),
    ]
    with_state = QueueJournal(OsFileSystem(), tmp_path, 9, ["queue"], changes[:2], "batch")
    begun = with_state.position
    number = [with_state.append(change) for change in changes[2:]][-1]
    with_state.await_number(number)
    with_state.close()
    raw = (tmp_path / FILE_NAME).read_bytes()
    expected = header(9) + record(HEADER_BYTES, 1, text=b"queue", journal_id=9)
    for n, change in enumerate(changes):
        expected += record(
            len(expected), change.kind, change.items, at_ms=change.at_ms, holder=change.holder,
            text=change.text.encode(), journal_id=9, synced_to=begun if n >= 2 else HEADER_BYTES,
        )
    assert raw.rstrip(b"\0") == expected.rstrip(b"\0")
    assert len(raw) >= len(expected)
    found = read_journal(tmp_path)
    assert found.journal_id == 9
    assert found.torn_bytes == 0
    read = [Change(one.kind, [tuple(item) for item in one.items], one.at_ms, one.holder, one.text)
            for one in found.records]
    assert read == [Change(JournalKind.SUBSCRIPTION, [], text="queue"), *changes]


def test_there_may_be_no_journal(tmp_path):
    assert read_journal(tmp_path) is None


# --- torn, or damaged --------------------------------------------------------------------------


def test_a_journal_cut_at_any_byte_is_read_up_to_its_last_whole_record():
    raw, positions = journal(*map(acked, range(5)))
    for size in range(HEADER_BYTES, len(raw)):
        found = parse_journal(raw[:size])
        assert len(found.records) == sum(1 for position in [*positions[1:], len(raw)] if position <= size)
        whole = max(p for p in [HEADER_BYTES, *positions, len(raw)] if p <= size)
        assert found.torn_bytes == len(raw[whole:size].rstrip(b"\0"))


@pytest.mark.parametrize("zeros", [1, 8, 31, 32, 65536])
def test_zeros_after_the_last_record_are_no_torn_tail_and_hide_no_damage(zeros):
    raw, positions = journal(*map(synced, range(3)))
    found = parse_journal(raw + bytes(zeros))
    assert (entries(found), found.torn_bytes) == ([0, 1, 2], 0)
    assert whole_records(raw + bytes(zeros)) == found
    with pytest.raises(CorruptJournalError) as error:
        parse_journal(raw[: positions[2]] + bytes(8) + raw[positions[2] + 8 :] + bytes(zeros))
    assert error.value.position == positions[2]


def test_most_appends_do_not_change_the_length_of_the_file(tmp_path):
    """The sync of a record then writes its bytes alone."""
    with_zeros = QueueJournal(OsFileSystem(), tmp_path, 1, ["queue"], [], "batch")
    sizes = set()
    for n in range(2000):
        with_zeros.append(Change(JournalKind.ACKED, [(3, n, -1, 1)]))
        sizes.add((tmp_path / FILE_NAME).stat().st_size)
    with_zeros.close()
    assert len(sizes) <= 3
    assert entries(read_journal(tmp_path)) == list(range(2000))


class Unreserved(OsFileSystem):
    """A file system that reserves no space, such as a full one."""

    def open_write(self, path, position=None):
        file = super().open_write(path, position)
        file.reserve = lambda size_bytes: False
        return file


def test_no_zeros_are_written_where_no_space_is_reserved(tmp_path):
    """They could be refused, and with them the acknowledgement."""
    journal = QueueJournal(Unreserved(), tmp_path, 1, ["queue"], [], "batch")
    journal.append(Change(JournalKind.ACKED, [(3, 1, -1, 1)]))
    assert (tmp_path / FILE_NAME).stat().st_size == journal.position
    journal.close()
    assert entries(read_journal(tmp_path)) == [1]


def test_a_journal_cut_in_its_header_is_refused():
    raw, _ = journal()
    for size in range(HEADER_BYTES):
        with pytest.raises(CorruptJournalError):
            parse_journal(raw[:size])


def test_each_changed_byte_is_found_where_a_later_record_says_that_it_was_synced():
    raw, positions = journal(*map(synced, range(6)))
    for at in range(HEADER_BYTES, positions[-1]):
        changed = raw[:at] + bytes([raw[at] ^ 0x41]) + raw[at + 1:]
        if at in range(positions[1] - 3, positions[1]):     # the padding of the subscription's record means nothing
            assert entries(parse_journal(changed)) == list(range(6))
            continue
        with pytest.raises(CorruptJournalError) as error:
            parse_journal(changed, file="queue.journal")
        assert error.value.position == max(p for p in positions if p <= at)
        assert error.value.file == "queue.journal"
    for at in range(HEADER_BYTES):
        with pytest.raises((CorruptJournalError, UnsupportedVersionError)):
            parse_journal(raw[:at] + bytes([raw[at] ^ 0x41]) + raw[at + 1:])


def test_a_hole_among_records_that_no_sync_covered_is_a_torn_tail():
    """A power cut may keep a later page of what was not synced, and lose an earlier one."""
    raw, positions = journal(synced(0), synced(1), acked(2), acked(3), acked(4))
    holed = raw[: positions[3]] + bytes(positions[4] - positions[3]) + raw[positions[4]:]
    found = parse_journal(holed)
    assert entries(found) == [0, 1]
    assert found.torn_bytes == len(raw) - positions[3]


def test_damage_is_found_by_a_record_behind_a_longer_gap():
    raw, positions = journal(*map(synced, range(400)))
    damaged = raw[: positions[2]] + random.Random(1).randbytes(positions[300] - positions[2]) + raw[positions[300]:]
    with pytest.raises(CorruptJournalError) as error:
        parse_journal(damaged)
    assert error.value.position == positions[2]
    found = whole_records(damaged)
    assert entries(found) == [0, *range(299, 400)]


def test_a_record_of_another_place_or_journal_is_none():
    """Bytes of an older journal that the disk shows again must not be taken for records of this one."""
    raw, positions = journal(acked(0), acked(1))
    first = raw[positions[1]: positions[2]]
    assert entries(parse_journal(raw[: positions[2]] + first)) == [0]
    other, _ = journal(acked(0, journal_id=2), acked(1, journal_id=2), journal_id=2)
    assert entries(parse_journal(other)) == [0, 1]
    assert entries(parse_journal(raw[: positions[2]] + other[positions[2]:])) == [0]


# --- wrong contents under a right checksum ---------------------------------------------------


@pytest.mark.parametrize(("item", "kind"), [
    ((2**63, 0, -1, 1), 3), ((0, 2**63, -1, 1), 3), ((0, 0, -2, 1), 3), ((0, 0, 3, 3), 3), ((0, 0, 0, 0), 3),
    ((2**64 - 1, 0, -1, 1), 2), ((0, 0, -2**31, 1), 4), ((0, 2**63, 0, 1), 5), ((0, 2**32, -1, 1), 3),
])
def test_a_message_that_cannot_be_is_refused(item, kind):
    raw, _ = journal(lambda position: record(position, kind, [item]))
    with pytest.raises(CorruptJournalError, match="invalid message"):
        parse_journal(raw)


@pytest.mark.parametrize("options", [
    {"zero": 1}, {"synced_to": 0}, {"synced_to": 2**63}, {"at_ms": 2**63}, {"count": 2}, {"count": 2**32 - 1},
    {"subscription": 1}, {"text": b"\xff"},
])
def test_a_field_that_cannot_be_is_refused(options):
    raw, _ = journal(lambda position: record(position, 3, [(0, 0, -1, 1)], **options))
    with pytest.raises(CorruptJournalError, match="whose checksum is right"):
        parse_journal(raw)


def test_a_subscription_is_named_once():
    raw, _ = journal(lambda position: record(position, 1, text=b"other"))
    with pytest.raises(CorruptJournalError):
        parse_journal(raw)


@pytest.mark.parametrize("kind", [0, 9, 255])
def test_a_kind_of_a_newer_version_is_refused(kind):
    raw, _ = journal(lambda position: record(position, kind))
    with pytest.raises(UnsupportedVersionError):
        parse_journal(raw)


def test_a_newer_version_is_refused_and_what_is_no_journal():
    with pytest.raises(UnsupportedVersionError):
        parse_journal(header(version=2))
    for raw in (b"", header(magic=b"seglogjx"), header(journal_id=0), header(journal_id=2**63), bytes(64)):
        with pytest.raises(CorruptJournalError):
            parse_journal(raw)


def test_a_length_beyond_the_file_is_a_torn_tail():
    raw, positions = journal(acked(0))
    for length in (0, 31, 2**31, 2**32 - 1):
        cut = raw[: positions[1]] + struct.pack(">I", length) + raw[positions[1] + 4:]
        assert entries(parse_journal(cut)) == []


def test_random_bytes_raise_nothing_else():
    chance = random.Random(5)
    raw, _ = journal(*map(synced, range(8)))
    for _ in range(2_000):
        changed = bytearray(raw)
        for _ in range(chance.randint(1, 6)):
            changed[chance.randrange(len(raw))] = chance.randrange(256)
        with contextlib.suppress(CorruptJournalError, UnsupportedVersionError):
            parse_journal(bytes(changed[: chance.randint(0, len(raw))]))
        with contextlib.suppress(UnsupportedVersionError):
            whole_records(bytes(changed))


# --- writing ----------------------------------------------------------------------------------


def test_records_that_wait_together_share_a_sync(tmp_path):
    one = QueueJournal(OsFileSystem(), tmp_path, 1, ["queue"], (), "batch")
    numbers = [one.append(Change(JournalKind.ACKED, [(0, n, -1, 1)])) for n in range(100)]
    for number in numbers:
        one.await_number(number)
    assert one.syncs == 1
    one.close()


def test_a_failed_sync_is_told_and_nothing_is_written_after_it(tmp_path):
    fs = FailingFs(OsFileSystem())
    one = QueueJournal(fs, tmp_path, 1, ["queue"], (), "batch")
    number = one.append(Change(JournalKind.ACKED, [(0, 0, -1, 1)]))
    fs.fail(0, errno.EIO)
    with pytest.raises(StorageError):
        one.await_number(number)
    fs.heal()
    with pytest.raises(LogFailedError):
        one.append(Change(JournalKind.ACKED, [(0, 1, -1, 1)]))
    one.close()


def test_a_closed_journal_takes_nothing(tmp_path):
    one = QueueJournal(OsFileSystem(), tmp_path, 1, ["queue"], (), "batch")
    one.close()
    one.close()
    with pytest.raises(LogClosedError):
        one.append(Change(JournalKind.ACKED, [(0, 0, -1, 1)]))


def test_the_next_journal_has_the_next_id_and_the_state(tmp_path):
    one = QueueJournal(OsFileSystem(), tmp_path, 4, ["queue"], (), "batch")
    number = one.append(Change(JournalKind.ACKED, [(0, 0, -1, 1)]))
    one.begin_next([Change(JournalKind.DEAD, [(0, 1, -1, 3)], 5, text="why")])
    one.await_number(number)        # the cursor's file has it
    one.append(Change(JournalKind.ACKED, [(0, 2, -1, 1)]))
    one.flush()
    one.close()
    found = read_journal(tmp_path)
    assert found.journal_id == 5
    assert [(record.kind, [item.entry_id for item in record.items]) for record in found.records] == [
        (JournalKind.SUBSCRIPTION, []), (JournalKind.DEAD, [1]), (JournalKind.ACKED, [2]),
    ]
    assert HEADER.size == HEADER_BYTES
