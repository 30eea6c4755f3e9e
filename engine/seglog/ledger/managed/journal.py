"""`queue.journal`: what was delivered, acknowledged, refused and given up, appended record by record.

    acknowledge ── one record, one sync of the journal          the cursor's file is written at checkpoints only
    deliver     ── one record, written before the message is handed out; the next sync covers it

Reads and writes the file; what its records mean for leases, seglog.topic.leases says. docs/formats/queue_journal.md

Each opening of a queue starts a new journal, with a larger id and the state as of then. So a torn tail is never
continued, and no byte of the file is written twice.
"""
import enum
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from seglog._kernels.crc import crc32c
from seglog._kernels.journal_end import JournalEnd
from seglog._kernels.journal_record import encode_record
from seglog._kernels.shield import shielded
from seglog.config import Fsync
from seglog.errors import (
    CorruptJournalError,
    InvalidArgumentError,
    LogClosedError,
    SeglogError,
    StorageError,
    UnsupportedVersionError,
)
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem, WritableFile
from seglog.fs.mapping import read_file
from seglog.fs.refusals import with_room
from seglog.ledger.ledger_metadata import MAX_ID
from seglog.ledger.managed.acknowledgements import Acknowledgements
from seglog.ledger.position import Position
from seglog.logger import Logger
from seglog.named_tuple import NamedTuple
from seglog.threads.write_gate import WriteGate

logger = Logger("seglog")

FILE_NAME = "queue.journal"
MAGIC, VERSION = b"seglogjn", 1
HEADER = struct.Struct(">8sIIQII")          # magic, version, 0, id of the journal, 0, CRC-32C of what is before it
FRAME = struct.Struct(">II")                # length of the body, CRC-32C
SEED = struct.Struct(">QQI")                # what the CRC covers besides the body: journal, position, length
BODY = struct.Struct(">BBHIQQQ")            # kind, 0, subscription, items, synced_to, at_ms, holder
ITEM = struct.Struct(">QQiI")               # ledger, entry, number in the batch or -1, attempt or size of the batch
ALIGNED = 8
MAX_BODY_BYTES = 64 << 20
MAX_UINT32 = 2**32 - 1
SUBSCRIPTIONS_MAX = 2**16
# Space that is reserved ahead of the end: when the disk is full, messages can still be acknowledged.
RESERVED_BYTES, RESERVED_BYTES_MIN = 1 << 20, 16 << 10
# Zeros are written so far ahead of the end: a sync of a record then need not store the file's length and its map of
# blocks, which is another write for the disk (measured on ext4: a third of the sync). One of 500 syncs does.
ZEROS = bytes(64 << 10)


class JournalKind(enum.IntEnum):
    """What a record tells. `number` of its items: the batch's size for ACKED, otherwise the attempt."""

    SUBSCRIPTION = 1    # the text is the name of the subscription with this number
    DELIVERED = 2       # until `at_ms`, to the process `holder`; 0: the one that writes the journal
    ACKED = 3
    WAITING = 4         # to be delivered again at `at_ms`: it was refused (the text is the reason), or given back
    DEAD = 5            # given up at `at_ms`; the text is the reason
    READY = 6           # a dead message that was taken back at `at_ms`, or one that was given back at its first attempt
    UNIQUE = 7          # each has a key; `number`: the bytes of the text that are the end of its window, and the key
    UNIQUE_TO = 8       # all keys of entries up to this one are listed before; without an item: of none


class JournalItem(NamedTuple):
    """A message. `batch_index` -1: its entry is not a batch."""

    ledger_id: int
    entry_id: int
    batch_index: int
    number: int


class JournalRecord(NamedTuple):
    """One record. `position`: where it begins in the file."""

    position: int
    kind: JournalKind
    subscription: str
    items: Sequence[JournalItem]
    at_ms: int
    holder: int
    text: str


class Change(NamedTuple):
    """A record to be written."""

    kind: JournalKind
    items: Sequence[tuple[int, int, int, int]]
    at_ms: int = 0
    holder: int = 0
    text: str = ""
    subscription: int = 0       # its number in the journal: QueueJournal.numbers


class JournalContents(NamedTuple):
    """What a journal's file contains. `torn_bytes`: those after the last record that a crash left whole, without the
    zeros that were written ahead."""

    journal_id: int
    records: list[JournalRecord]
    torn_bytes: int


# --- reading ----------------------------------------------------------------------------------


def read_journal(directory: Path) -> JournalContents | None:
    """Read a managed ledger's journal; None if it has none.

    A torn tail is left out. Raises CorruptJournalError if bytes are damaged that were on the disk when a later record
    was written; UnsupportedVersionError.
    """
    path = directory / FILE_NAME
    try:
        raw = read_file(path)
    except FileNotFoundError:
        return None
    return parse_journal(raw, file=path)


def parse_journal(raw: bytes, *, file: Path | None = None) -> JournalContents:
    """Parse the bytes of a journal. Raises as `read_journal`."""
    journal_id = _parse_header(raw, file)
    records: list[JournalRecord] = []
    names: dict[int, str] = {}
    position, synced_to = HEADER.size, HEADER.size
    while position < len(raw):
        body = _body_at(raw, journal_id, position)
        if body is None:
            break
        record, number, its_synced_to = _parse_body(body, position, names, file)
        if record.kind is JournalKind.SUBSCRIPTION:
            names[number] = record.text
        synced_to = max(synced_to, its_synced_to)
        records.append(record)
        position += _padded(FRAME.size + len(body))
    end = _end_of(raw)
    if position < end:
        synced_to = max(synced_to, _synced_according_to(raw, journal_id, position, end))
        if synced_to > position:
            raise CorruptJournalError(
                f"damaged record: its {min(synced_to, len(raw)) - position} bytes up to byte {synced_to} were on the "
                "disk when a later record was written",
                file=file, position=position,
            )
    return JournalContents(journal_id, records, max(end - position, 0))


def _end_of(raw: bytes) -> int:
    """Return where the zeros begin that a file ends with."""
    return len(raw.rstrip(b"\0"))


def next_record(raw: "bytes | memoryview", position: int, journal_id: int) -> tuple[int, int] | None:
    """Where the record at a position of a journal ends, and the journal's id. At position 0 that of the header; `None`
    if no whole one is there. For a copy of a journal that is being written."""
    if not position:
        try:
            return HEADER.size, _parse_header(raw, None)
        except SeglogError:
            return None
    body = _body_at(raw, journal_id, position)
    return None if body is None else (position + _padded(FRAME.size + len(body)), journal_id)


def whole_records(raw: bytes) -> JournalContents:
    """Return what is whole of a journal, damaged or not; the id 0 and nothing if its header is not. Raises
    UnsupportedVersionError."""
    try:
        journal_id = _parse_header(raw, None)
    except CorruptJournalError:
        return JournalContents(0, [], len(raw))
    records: list[JournalRecord] = []
    names: dict[int, str] = {}
    position, lost_bytes, end = HEADER.size, 0, _end_of(raw)
    while position < end:
        body = _body_at(raw, journal_id, position)
        size = ALIGNED
        if body is not None:
            size = _padded(FRAME.size + len(body))
            try:
                record, number, _ = _parse_body(body, position, names, None)
                names.setdefault(number, record.text)
                records.append(record)
            except CorruptJournalError:
                body = None
        lost_bytes += size if body is None else 0
        position += size
    return JournalContents(journal_id, records, lost_bytes)


def _parse_header(raw: "bytes | memoryview", file: Path | None) -> int:
    if len(raw) < HEADER.size:
        raise CorruptJournalError(f"{len(raw)} bytes are too few for a journal", file=file, position=0)
    magic, version, zero, journal_id, other_zero, crc = HEADER.unpack_from(raw)
    if magic != MAGIC or crc != crc32c(raw[: HEADER.size - 4]):
        raise CorruptJournalError("not a journal of a queue: wrong magic or checksum", file=file, position=0)
    if version != VERSION:
        raise UnsupportedVersionError(f"version {version} of a queue's journal, expected {VERSION}", file=file)
    if zero or other_zero or not 1 <= journal_id <= MAX_ID:
        raise CorruptJournalError("invalid header of a journal", file=file, position=0)
    return int(journal_id)


def _body_at(raw: "bytes | memoryview", journal_id: int, position: int) -> memoryview | None:
    """Return the body of the record at a position; None if no whole one is there."""
    left = len(raw) - position - FRAME.size
    if left < BODY.size:
        return None
    length, crc = FRAME.unpack_from(raw, position)
    if not BODY.size <= length <= min(left, MAX_BODY_BYTES) or length + -length % ALIGNED > left:
        return None
    begin = position + FRAME.size
    body = memoryview(raw)[begin : begin + length]
    return body if crc == crc32c(body, crc32c(SEED.pack(journal_id, position, length))) else None


def _parse_body(
    body: memoryview, position: int, names: dict[int, str], file: Path | None
) -> tuple[JournalRecord, int, int]:
    """Return the record, the number of its subscription, and up to where the file was synced when it was written."""
    kind, zero, subscription, count, synced_to, at_ms, holder = BODY.unpack_from(body)
    try:
        found = JournalKind(kind)
    except ValueError:
        raise UnsupportedVersionError(
            f"a record of kind {kind} in a queue's journal, expected at most {max(JournalKind)}", file=file
        ) from None
    items_end = BODY.size + count * ITEM.size
    if zero or items_end > len(body) or not HEADER.size <= synced_to <= position or at_ms > MAX_ID:
        raise _invalid("fields", position, file)
    items = [JournalItem._make(fields) for fields in ITEM.iter_unpack(body[BODY.size : items_end])]
    for item in items:
        lowest = item.batch_index + 1 if found is JournalKind.ACKED else 0
        if item.ledger_id > MAX_ID or item.entry_id > MAX_UINT32 or item.batch_index < -1 or item.number < lowest:
            raise _invalid(f"message {item.ledger_id}:{item.entry_id}:{item.batch_index}", position, file)
    if found is JournalKind.UNIQUE and sum(item.number for item in items) != len(body) - items_end:
        raise _invalid("keys", position, file)
    try:
        text = str(body[items_end:], "utf-8")
    except UnicodeDecodeError:
        raise _invalid("text", position, file) from None
    is_declared = subscription in names
    if is_declared == (found is JournalKind.SUBSCRIPTION):
        raise _invalid("number of a subscription", position, file)
    name = text if found is JournalKind.SUBSCRIPTION else names[subscription]
    return JournalRecord(position, found, name, items, at_ms, holder, text), subscription, synced_to


def _invalid(what: str, position: int, file: Path | None) -> CorruptJournalError:
    return CorruptJournalError(f"invalid {what} in a record whose checksum is right", file=file, position=position)


def _synced_according_to(raw: bytes, journal_id: int, position: int, end: int) -> int:
    """Return up to where the file was on the disk, according to the whole records after a damaged one, before `end`."""
    synced_to = 0
    candidate = position + ALIGNED
    while candidate < end:
        body = _body_at(raw, journal_id, candidate)
        if body is not None:
            synced_to = max(synced_to, BODY.unpack_from(body)[4])
            candidate += _padded(FRAME.size + len(body))
        else:
            candidate += ALIGNED
    return synced_to


def _padded(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def covered_by(journal: JournalContents | None, covers: tuple[int, int], file: Path) -> int:
    """Return the position up to which a cursor's file holds the acknowledgements of the journal.

    `covers`: id and position in the cursor's file. Raises CorruptJournalError if that journal is gone.
    """
    journal_id, position = covers
    if journal is None or journal.journal_id < journal_id:
        found = "is missing" if journal is None else f"has the id {journal.journal_id}"
        raise CorruptJournalError(
            f"the cursor's file was written beside journal {journal_id}, but {FILE_NAME} {found}", file=file,
            hint="restore the whole directory from one copy",
        )
    return position if journal.journal_id == journal_id else 0


def acknowledge(acknowledged: Acknowledgements, items: Iterable[JournalItem]) -> None:
    """Apply the items of an ACKED record. Those that are in no ledger stay until Acknowledgements.within."""
    for item in items:
        position = Position(item.ledger_id, item.entry_id)
        if acknowledged.holds(position):
            continue
        if item.batch_index < 0:
            if not acknowledged.take_back(position):
                acknowledged.add(position)
            continue
        part = acknowledged.part_of(position)
        acknowledged.add_part(position, item.number if part is None else part.size, (item.batch_index,))


# --- writing ----------------------------------------------------------------------------------


def give_back_reserve(fs: FileSystem, directory: Path) -> None:
    """Give back the space that a journal has reserved, if there is one: an opening writes a few files before it begins
    the next journal, and on a full disk has no other space. For the holder of the lock. A hint, not a durable step."""
    path = directory / FILE_NAME
    if path.is_file():
        with suppress(StorageError), fs.open_write(path) as file:
            file.release()


class QueueJournal(JournalEnd, WriteGate):
    """The journal of an open queue. Thread-safe; callers of `append` keep the records in order by a lock of their own.

    `path` is replaced by `begin_next`. Raises StorageError, and LogFailedError after a write or sync failed.
    """

    _file: WritableFile

    def __init__(
        self, fs: FileSystem, directory: Path, journal_id: int, subscriptions: Sequence[str], state: Iterable[Change],
        fsync: Fsync,
    ) -> None:
        """Replace the journal of the directory, if there is one, by one of these subscriptions, numbered in this
        order, with this state. Durable at return."""
        super().__init__(directory / FILE_NAME, "queue's journal")
        self._fs = fs
        # The subscriptions and their numbers. They stay as long as this is open.
        self.numbers = {name: number for number, name in enumerate(subscriptions)}
        self._waits = fsync == "batch"
        self.journal_id = journal_id
        self._file = self._begin(journal_id, state)

    def _begin(self, journal_id: int, state: Iterable[Change]) -> WritableFile:
        header = HEADER.pack(MAGIC, VERSION, 0, journal_id, 0, 0)[:-4]
        parts = [header, crc32c(header).to_bytes(4, "big")]
        position = HEADER.size
        declared = [_declaring(name, number) for name, number in self.numbers.items()]
        for change in (*declared, *state):
            raw = _encoded(change, journal_id, position, HEADER.size)
            position += len(raw)
            parts.append(raw)
        write_atomically(self._fs, self.path, b"".join(parts))
        file = self._fs.open_write(self.path)
        self._zeros_to = self._synced_to = self._begin_bytes = position
        self.journal_id = journal_id
        self._reserve(file, position)
        self._find_quiet()
        return file

    def _reserve(self, file: WritableFile, position: int) -> None:
        """Reserve space after a position: as much as a disk that is nearly full has."""
        size_bytes = RESERVED_BYTES
        self._has_reserve = file.reserve(position + size_bytes)
        while not self._has_reserve and size_bytes > RESERVED_BYTES_MIN:
            size_bytes //= 2
            self._has_reserve = file.reserve(position + size_bytes)
        self._reserved_to, self._reserve_at = position + size_bytes, position + size_bytes // 2

    @property
    def position(self) -> int:
        """Where the next record begins."""
        return self._file.position

    @property
    def begin_bytes(self) -> int:
        """The size of the journal when it was begun, with the state as of then."""
        return self._begin_bytes

    def number_of(self, name: str) -> int:
        """The number of a subscription; one that has none gets one. No append may run meanwhile."""
        number = self.numbers.get(name)
        if number is None:
            used = {*self.numbers.values()}
            number = next(one for one in range(SUBSCRIPTIONS_MAX + 1) if one not in used)
            if number == SUBSCRIPTIONS_MAX:
                raise InvalidArgumentError(f"a topic has at most {SUBSCRIPTIONS_MAX} subscriptions", file=self.path)
            self.append(_declaring(name, number))
            self.numbers[name] = number
        return number

    def append(self, change: Change) -> int:
        """Write a record; return the number to `await_number`."""
        return self.change(self._append, change)

    def _append(self, change: Change) -> int:
        file = self._file
        position = file.position
        raw = _encoded(change, self.journal_id, position, self._synced_to)
        end = position + len(raw)
        with self.changing():
            if end > self._zeros_to:
                self._write_zeros(file, end)
            file.append_bytes(raw)
            self.number += 1
        if end > self._reserve_at:
            self._reserve(file, end)
        self._find_quiet()
        return self.number

    def _find_quiet(self) -> None:
        """Note up to where a record needs only a write: neither zeros nor space are due before."""
        self._quiet_to = min(self._reserve_at, self._zeros_to) if self._waits else self._reserve_at

    def _write_zeros(self, file: WritableFile, begin: int) -> None:
        """Write zeros where the next records go. Only into space that is reserved: a full disk would refuse them."""
        end = begin + len(ZEROS)
        if self._waits and self._has_reserve and end <= self._reserved_to:
            file.write_at(begin, ZEROS)
            self._zeros_to = end

    def flush(self) -> None:
        """Return when all records are on the disk."""
        self.wait(self.number)

    def flush_quietly(self) -> None:
        """Do the same in the background: the next caller gets the error."""
        if self.failure is None and self.refusal is None:
            try:
                self.flush()
            except SeglogError as error:
                logger.error("%s: %s", self.path, error)

    def reload(self) -> None:
        """After an interrupt: a record is in the file or not, each in one step; it is counted in any case."""
        self.with_lock(self._count)

    def _count(self) -> None:
        self.number += 1
        self.is_torn = False

    def begin_next(self, state: Iterable[Change]) -> None:
        """Begin the next journal, with this state. All that was acknowledged must be in the cursor's file already.

        No append may run meanwhile.
        """
        shielded(self.alone, self.with_lock, self._begin_next, list(state))

    def _begin_next(self, state: list[Change]) -> None:
        with self.changing():
            old = self._file
            self._file = with_room(partial(self._begin, self.journal_id + 1, state), self._give_back)
            old.close()
            self.cover(self.number)

    def give_back(self) -> bool:
        """Give back the reserved space, for another file that finds the disk full; return whether there was any. The
        next record reserves again."""
        return self.with_lock(self._give_back)

    def _give_back(self) -> bool:
        had_reserve, self._has_reserve = self._has_reserve, False
        self._file.release()
        self._reserve_at = self._reserved_to = self._quiet_to = self._file.position
        return had_reserve

    def close(self, *, flushes: bool = False) -> None:
        """Refuse further records, and close the file. Idempotent. `flushes`: make all records durable first, so that
        those who wait for theirs return; no append may run meanwhile."""
        was_open, self.refusal = self.refusal is None, self.refusal or self._closed_error
        try:
            if flushes and was_open and self.failure is None:
                self.flush()
        finally:
            self._file.close()

    def _closed_error(self) -> LogClosedError:
        return LogClosedError("the queue was closed", file=self.path)


def _declaring(name: str, number: int) -> Change:
    return Change(JournalKind.SUBSCRIPTION, (), text=name, subscription=number)


def _encoded(change: Change, journal_id: int, position: int, synced_to: int) -> bytes:
    kind, items, at_ms, holder, text, subscription = change
    raw = text.encode("utf-8", "replace") if text else b""
    return encode_record(kind, items, at_ms, holder, raw, journal_id, position, synced_to, subscription)
