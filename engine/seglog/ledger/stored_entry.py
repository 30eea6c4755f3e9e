"""An entry as it is read from a managed ledger: where it stands, and its bytes, which are borrowed."""
from array import array
from collections.abc import Sequence

from seglog._kernels.entry_frame import broker_fields, entry_timestamp, strip
from seglog._kernels.record_batch import Record
from seglog.errors import CorruptRecordError
from seglog.ledger.entry import Entry
from seglog.ledger.position import Position


class StoredEntry:
    """Nothing is parsed before it is asked for. What parses raises CorruptRecordError."""

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
        """All of it, the broker's part included: a view of the file."""
        value = self._record.value_view
        if value is None:
            raise CorruptRecordError("a record without a value is no entry", offset=self._record.offset)
        return value

    @property
    def headers_and_payload(self) -> memoryview:
        """As consumers get it, without the broker's part: a view, no copy."""
        return strip(self.data)

    @property
    def timestamp(self) -> int:
        """The broker's time, else the publish time, in ms (Commands.getEntryTimestamp)."""
        return entry_timestamp(self.data)

    @property
    def broker_timestamp(self) -> int | None:
        """When the broker took it, in ms; None where no interceptor said so."""
        return broker_fields(self.data)[0]

    @property
    def index(self) -> int | None:
        """The index of its last message in the topic; None where no interceptor said so."""
        return broker_fields(self.data)[1]

    @property
    def publish_time(self) -> int:
        """When the client says that it sent it, in ms."""
        return self.entry.fields().publish_time

    @property
    def message_count(self) -> int:
        """How many messages it holds, those that compaction took out included."""
        return self.entry.fields().num_messages

    @property
    def value(self) -> bytes:
        """What its message says, decompressed. Raises as Entry.value, for a batch InvalidArgumentError."""
        return self.entry.value

    @property
    def entry(self) -> Entry:
        """With the parts of its frame."""
        return Entry(self.data)


def columns_of(entries: Sequence[StoredEntry]) -> tuple[list[memoryview], "array[int]", "array[int]"]:
    """The bytes, ledger ids and entry ids of some entries, for the kernels that take them all at once."""
    data: list[memoryview] = []
    ledger_ids, entry_ids = array("q"), array("q")
    for entry in entries:
        # The property's own way, if it is a plain entry: a call each takes longer than all else here.
        value = entry._record.value_view if type(entry) is StoredEntry else None
        data.append(entry.data if value is None else value)
        ledger_id, entry_id = entry.position
        ledger_ids.append(ledger_id)
        entry_ids.append(entry_id)
    return data, ledger_ids, entry_ids


class EntryView(StoredEntry):
    """An entry whose bytes are a part of somebody else's."""

    __slots__ = ("_data",)

    def __init__(self, position: Position, data: memoryview) -> None:
        self.position = position
        self._data = data

    @property
    def data(self) -> memoryview:
        """All of it that is there: a view."""
        return self._data


def as_consumers_get_them(entries: list[StoredEntry], exposes: bool, supports: bool | None) -> list[StoredEntry]:
    """With the broker's part, or without it (PIP-70, PIP-90).

    `exposes`: exposingBrokerEntryMetadataToClientEnabled. `supports`: whether the reader asked for it; None: it is no
    client, and gets what is stored.
    """
    if supports is None or (exposes and supports):
        return entries
    return [EntryView(entry.position, entry.headers_and_payload) for entry in entries]
