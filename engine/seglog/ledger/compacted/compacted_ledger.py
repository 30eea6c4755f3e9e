"""A compacted ledger: the last message of each key of a topic, up to its horizon.

It is a sealed ledger beside the topic's own. Each of its records is an entry with its position in the topic
(ledger.raw_message), in that order. Its properties name what it is a compaction of, and its last message, so that
neither needs to be searched for. docs/formats/compacted_ledger.md
"""
import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

from seglog.errors import CorruptManifestError, CorruptRecordError, InvalidArgumentError, UnsupportedVersionError
from seglog.ledger.compacted.batch import BatchForm, Payload
from seglog.ledger.compacted.raw_message import CompactedEntry, message_id_bytes, read_raw_message
from seglog.ledger.ledger import Ledger
from seglog.ledger.ledger_metadata import MAX_ID
from seglog.ledger.message_position import MessagePosition, last_message
from seglog.ledger.position import Position, checked_int, checked_position

if TYPE_CHECKING:
    from typing_extensions import Buffer

VERSION = "1"
# LedgerMetadataUtils.buildMetadataForCompactedLedger
_COMPONENT = {"application": "pulsar", "component": "compacted-ledger"}


def is_compacted(texts: Mapping[str, str]) -> bool:
    """Whether a ledger with these properties is a compacted one, whatever its version."""
    return texts.get("component") == _COMPONENT["component"]


@dataclass(frozen=True, slots=True)
class CompactedProperties:
    """`horizon`: the last entry of the topic that was read. `compacted_to`: the last one not removed completely.

    `by_entry_key`: encrypted entries were compacted by the key in their metadata
    (seglog.compaction.encrypted.by.entry.key).
    `last`: the last message, None if the properties do not say.
    """

    topic: str
    horizon: Position
    compacted_to: Position
    form: BatchForm = field(default_factory=BatchForm)
    by_entry_key: bool = False
    last: MessagePosition | None = None

    def texts(self) -> dict[str, str]:
        """Return the properties as they are stored in ledger.json."""
        found = _COMPONENT | {
            "pulsar/compactedTopic": self.topic,
            "pulsar/compactedTo": message_id_bytes(self.compacted_to).hex(),
            "seglog/version": VERSION,
            "seglog/horizon": str(self.horizon),
            "seglog/compactedTo": str(self.compacted_to),
            "seglog/payload": self.form.payload,
            "seglog/batchIndexes": str(self.form.has_indexes).lower(),
            "seglog/encryptedByEntryKey": str(self.by_entry_key).lower(),
        }
        if self.last is not None:
            found["seglog/last"] = ":".join(map(str, self.last))
        return found

    @classmethod
    def parse(cls, texts: Mapping[str, str], file: Path) -> "CompactedProperties":
        """Parse the properties. Raises CorruptManifestError, UnsupportedVersionError."""
        try:
            if not is_compacted(texts):
                raise ValueError(f"unknown component {texts.get('component')!r}")
            if texts["seglog/version"] != VERSION:
                raise UnsupportedVersionError(
                    f"version {texts['seglog/version']} of a compacted ledger, expected {VERSION}", file=file
                )
            payload = texts["seglog/payload"]
            if payload not in get_args(Payload):
                raise ValueError(f"unknown payload {payload!r}")
            last = texts.get("seglog/last")
            return cls(
                texts["pulsar/compactedTopic"],
                _position(texts["seglog/horizon"]),
                _position(texts["seglog/compactedTo"]),
                BatchForm(cast("Payload", payload), _truth(texts["seglog/batchIndexes"])),
                _truth(texts["seglog/encryptedByEntryKey"]),
                None if last is None else MessagePosition(*_numbers(last, 4)),
            )
        except (KeyError, ValueError) as e:
            raise CorruptManifestError(
                f"invalid properties of a compacted ledger: {e}", file=file,
                hint="restore the ledger from a backup; leave the cursor's file as it is",
            ) from e


class CompactedLedger:
    """Open one for reading, or take one that was just sealed. Thread-safe.

    Raises NotALogError, CorruptManifestError, UnsupportedVersionError, CorruptRecordError if it lost bytes,
    StorageError.
    """

    def __init__(self, path: str | os.PathLike[str] | Ledger) -> None:
        self._ledger = path if isinstance(path, Ledger) else Ledger.open(path, read_only=True)
        if not self._ledger.is_sealed or self._ledger.end is None or self._ledger.end.sealed_ms < 0:
            raise CorruptManifestError("a compacted ledger must be sealed, but this one is not", file=self._ledger.path)
        self.properties = CompactedProperties.parse(self._ledger.properties, self._ledger.path)
        self._last = self.properties.last

    def __repr__(self) -> str:
        return f"<CompactedLedger {self.ledger_id}: {len(self)} entries up to {self.horizon}>"

    def __len__(self) -> int:
        """Entries."""
        return self._ledger.entry_count

    @property
    def ledger_id(self) -> int:
        return self._ledger.ledger_id

    @property
    def path(self) -> Path:
        return self._ledger.path

    @property
    def size_bytes(self) -> int:
        return self._ledger.length_bytes

    @property
    def horizon(self) -> Position:
        """The topic is compacted up to here; later entries are read from the topic."""
        return self.properties.horizon

    def get_last_message_position(self) -> MessagePosition:
        """Return the last message's position, EARLIEST if none is left; from the properties, if they have it."""
        if self._last is None:
            self._last = self._find_last()
        return self._last

    def _find_last(self) -> MessagePosition:
        for entry_id in range(len(self) - 1, -1, -1):
            entry = self._at(entry_id)
            found = last_message(entry.position, entry.entry)
            if found is not None:       # otherwise a batch of the old form, all placeholders
                return found
        return MessagePosition.EARLIEST

    def read(self, start: Position, count: int) -> list[CompactedEntry]:
        """Read at most `count` entries, from the first one at or after `start` in the topic. Raises
        InvalidArgumentError if `start` is not a position or `count` is below 1, CorruptRecordError."""
        if not isinstance(start, Position):
            raise InvalidArgumentError(f"start must be a Position, not {start!r}")
        start = checked_position(start)
        if checked_int("a number of entries", count) < 1:
            raise InvalidArgumentError(f"a number of entries must be 1 or more, not {count}")
        first = self._slot(start)
        return [self._at(entry_id) for entry_id in range(first, min(first + count, len(self)))]

    def __iter__(self) -> Iterator[CompactedEntry]:
        last = self._ledger.last_entry_id
        if last >= 0:
            for entry_id, record in self._ledger.read_range(0, last):
                yield self._entry(entry_id, record)

    def find_entry_by_publish_time(self, timestamp_ms: int) -> Position | None:
        """Find the first entry, in order, whose publish time is `timestamp_ms` or later; None if all are earlier.

        Uses the ledger's time index: correct whether or not publish times rise, without opening entries.
        """
        if not isinstance(timestamp_ms, int):
            raise InvalidArgumentError(f"a time must be an int in ms, not {type(timestamp_ms).__name__}")
        if not len(self):
            return None
        entry_id = self._ledger.segment.seek(min(max(timestamp_ms, 0), MAX_ID), 0)[1]
        return None if entry_id < 0 else self._at(entry_id).position

    def close(self) -> None:
        """Close it. Idempotent; what was read stays readable."""
        self._ledger.close()

    def retire(self) -> None:
        """Prepare for the removal of its files: present readers continue."""
        self._ledger._retire()

    def _slot(self, start: Position) -> int:
        """Return the slot of the first entry at or after a position."""
        return bisect_left(range(len(self)), start, key=lambda entry_id: self._at(entry_id).position)

    def _at(self, entry_id: int) -> CompactedEntry:
        value = self._ledger.record(entry_id).value_view
        if value is None:
            raise CorruptRecordError("a record without a value is not an entry", file=self.path, offset=entry_id)
        return self._entry(entry_id, value)

    def _entry(self, entry_id: int, record: "Buffer") -> CompactedEntry:
        try:
            position, data = read_raw_message(record, str(self.path))
        except CorruptRecordError as error:
            error.offset = entry_id
            raise
        return CompactedEntry(position, data, self.properties.form.payload)


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"expected true or false, not {text!r}")
    return text == "true"


def _position(text: str) -> Position:
    ledger_id, entry_id = _numbers(text, 2)
    return Position(ledger_id, entry_id)


def _numbers(text: str, count: int) -> list[int]:
    numbers = [int(part) for part in text.split(":")]
    if len(numbers) != count or min(numbers) < -1 or max(numbers) > MAX_ID:
        raise ValueError(f"not a position: {text!r}")
    return numbers
