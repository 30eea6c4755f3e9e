"""Golden entries and ledgers changed on purpose, and everything that reads one."""
import random
import shutil
import struct
import tempfile
from functools import cache
from pathlib import Path

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
from support.hostile_files import changed_bytes, changed_text

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


# --- ledgers ---------------------------------------------------------------------------------------


@cache
def golden_ledger() -> dict[str, bytes]:
    """The files of a managed ledger: entries in three ledgers, a cursor that has acknowledged some."""
    with tempfile.TemporaryDirectory() as root:
        with ManagedLedger(Path(root, "orders"), fsync="never") as topic:
            positions = []
            for number, (entry, _) in enumerate(golden_entries()[:90]):
                try:
                    positions.append(topic.add_entry(entry))
                except SeglogError:
                    continue
                if number % 30 == 29:
                    topic.roll()
            cursor = topic.open_cursor("reader")
            for position in positions[1::3]:
                cursor.acknowledge(position)
            topic.flush()
        return {
            str(path.relative_to(root)): path.read_bytes() for path in sorted(Path(root).rglob("*")) if path.is_file()
        }


def changed_ledger(number: int) -> tuple[str, bytes]:
    """One of its files, changed in one to three places."""
    chooser = random.Random(f"ledger {number}")
    files = golden_ledger()
    name = chooser.choice(sorted(files))
    data, other = files[name], files[chooser.choice(sorted(files))]
    for _ in range(chooser.randint(1, 3)):
        if b"\0" in data:
            raw = bytearray(data)
            changed_bytes(chooser, raw, other)
            data = bytes(raw)
        else:
            data, _ = changed_text(chooser, data, other)
    return name, data


def look_at_ledger(number: int, place: Path) -> None:
    """Open a ledger with a changed file, read it, acknowledge, write, and open it again."""
    changed, data = changed_ledger(number)
    shutil.rmtree(place, ignore_errors=True)
    for name, raw in {**golden_ledger(), changed: data}.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
    for _ in range(2):
        result_or_error(lambda: use_ledger(place / "orders"))


def use_ledger(path: Path) -> None:
    with ManagedLedger(path, fsync="never") as topic:
        for entry in topic:
            result_or_error(lambda entry=entry: (entry.publish_time, entry.message_count, entry.value))
            result_or_error(lambda entry=entry: batch_of(Entry(entry.headers_and_payload), LIMIT_BYTES))
        cursor = topic.open_cursor("reader")
        read = result_or_error(lambda: cursor.read(10))
        if not isinstance(read, SeglogError):
            for entry in read[::2]:
                cursor.acknowledge(entry.position)
        topic.add_entry(golden_entries()[0][0])
