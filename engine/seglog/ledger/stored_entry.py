"""An entry read from a managed ledger: its position, and its bytes, which are borrowed."""
from array import array
from collections.abc import Sequence

from seglog._kernels.entry_frame import broker_fields, entry_timestamp, strip
from seglog._kernels.record_batch import Record
from seglog.errors import CorruptRecordError
from seglog.ledger.entry import Entry
from seglog.ledger.position import Position


class StoredEntry:
    """An entry that is parsed only on demand. Whatever parses raises CorruptRecordError."""

    __slots__ = ("_record", "position")

    def __init__(self, position: Position, record: Record) -> None:
        self.position = position
        self._record = record

    def __repr__(self) -> str:
        return f"<StoredEntry {self.position}: {len(self.data)} bytes>"

    def __len__(self) -> int:
        return len(self.data)

    @property
    def data(self) -> memoryview:
        """All bytes of the entry, including broker metadata: a view of the file."""
        value = self._record.value_view
        if value is None:
            raise CorruptRecordError("a record without a value is not an entry", offset=self._record.offset)
        return value

    @property
    def headers_and_payload(self) -> memoryview:
        """The entry as consumers get it, without broker metadata: a view, not a copy."""
        return strip(self.data)

    @property
    def timestamp(self) -> int:
        """The broker's time, otherwise the publish time, in ms (Commands.getEntryTimestamp)."""
        return entry_timestamp(self.data)

    @property
    def broker_timestamp(self) -> int | None:
        """When the broker received it, in ms; None without that interceptor."""
        return broker_fields(self.data)[0]

    @property
    def index(self) -> int | None:
        """The index of its last message in the topic; None without that interceptor."""
        return broker_fields(self.data)[1]

    @property
    def publish_time(self) -> int:
        """When the client sent it, by its own clock, in ms."""
        return self.entry.fields().publish_time

    @property
    def message_count(self) -> int:
        """The number of its messages, including those that compaction removed."""
        return self.entry.fields().num_messages

    @property
    def value(self) -> bytes:
        """The decompressed value of its message. Raises as Entry.value; InvalidArgumentError for a batch."""
        return self.entry.value

    @property
    def entry(self) -> Entry:
        """The entry, with its frame parsed."""
        return Entry(self.data)


def columns_of(entries: Sequence[StoredEntry]) -> tuple[list[memoryview], "array[int]", "array[int]"]:
    """Return bytes, ledger ids and entry ids of several entries, for kernels that take them all at once."""
    data: list[memoryview] = []
    ledger_ids, entry_ids = array("q"), array("q")
    for entry in entries:
        # Written out for plain entries: a call for each takes longer than everything else here.
        value = entry._record.value_view if type(entry) is StoredEntry else None
        data.append(entry.data if value is None else value)
        ledger_id, entry_id = entry.position
        ledger_ids.append(ledger_id)
        entry_ids.append(entry_id)
    return data, ledger_ids, entry_ids


class EntryView(StoredEntry):
    """An entry whose bytes are part of another object's."""

    __slots__ = ("_data",)

    def __init__(self, position: Position, data: memoryview) -> None:
        self.position = position
        self._data = data

    @property
    def data(self) -> memoryview:
        """All bytes of the entry that are present: a view."""
        return self._data


def as_consumers_get_them(entries: list[StoredEntry], exposes: bool, supports: bool | None) -> list[StoredEntry]:
    """Return the entries with or without broker metadata (PIP-70, PIP-90).

    `exposes`: exposingBrokerEntryMetadataToClientEnabled. `supports`: whether the reader asked for it, or None for
    a reader that is not a client and gets entries as stored.
    """
    if supports is None or (exposes and supports):
        return entries
    return [EntryView(entry.position, entry.headers_and_payload) for entry in entries]
