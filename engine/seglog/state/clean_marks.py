"""Small files that say which partitions are clean while Kafka's clean-shutdown file is missing.
docs/formats/clean_marks.md

`.seglog.cleanshutdown` in the log dir says that we removed that file, and whether it existed before. The time until it
is put back is a period, with its own number. In a partition directory, `.seglog.mark` says that it was written to in
that period, and `.seglog.mark.deleted` that it was closed; a mark of another period is ignored.

Formatting and parsing only; state.log_dir_state decides.
"""
import enum
import os
from pathlib import Path
from typing import Self

from seglog.format.checked_json import format_json, parse_json
from seglog.fs.mapping import read_file
from seglog.named_tuple import NamedTuple

VERSION = 1
PERIOD_FILE = ".seglog.cleanshutdown"
PARTITION_MARK = ".seglog.mark"
CLEAN_MARK = ".seglog.mark.deleted"      # a broker that loads the partition removes it


class PartitionState(enum.Enum):
    DIRTY = "dirty"             # being written, or its writer died: recover it
    UNORDERED = "unordered"     # dirty, and several batches were written without a sync in between
    CLEAN = "clean"             # recovered and closed by us


class Period(NamedTuple):
    """Kafka's clean-shutdown file is missing, because a writer of seglog's is active or has died."""

    id: str                 # 32 hex digits, new each time Kafka's file is removed
    stood: bool             # it existed: partitions without a mark of this period are clean, otherwise not
    content: bytes = b""    # of Kafka's file, to be restored

    @classmethod
    def new(cls, *, stood: bool, content: bytes = b"") -> Self:
        return cls(os.urandom(16).hex(), stood, content)

    def to_bytes(self) -> bytes:
        return format_json(
            "seglog-clean-shutdown", VERSION, period=self.id, stood=self.stood, content=self.content.hex()
        )

    @classmethod
    def parse(cls, raw: bytes, *, file: str | os.PathLike[str] | None = None) -> Self:
        """Raises CorruptCheckpointError, UnsupportedVersionError."""
        return parse_json(raw, "seglog-clean-shutdown", VERSION, file, lambda body: cls(
            _text(body["period"]), _truth(body["stood"]), bytes.fromhex(_text(body["content"]))))


class PartitionMark(NamedTuple):
    """The state of a partition in a period."""

    period: str
    state: PartitionState

    def to_bytes(self) -> bytes:
        return format_json("seglog-partition-mark", VERSION, period=self.period, state=self.state.value)

    @classmethod
    def parse(cls, raw: bytes, *, file: str | os.PathLike[str] | None = None) -> Self:
        """Raises CorruptCheckpointError, UnsupportedVersionError."""
        return parse_json(raw, "seglog-partition-mark", VERSION, file, lambda body: cls(
            _text(body["period"]), PartitionState(body["state"])))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises FileNotFoundError, and what `parse` raises."""
        return cls.parse(read_file(path), file=path)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, not {value!r}")
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"expected true or false, not {value!r}")
    return value
