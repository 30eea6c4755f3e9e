"""`<partition>.seglog-exchange`: the state of a conversion in place.

It is beside the backup; docs/formats/exchange_journal.md. The states:

    exchanging      the result is complete, and is about to replace the partition, or has done so
    exchanged       it has replaced the partition: the backup is the former partition
    rolling back    the backup is about to be put back, or has been
"""
import enum
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seglog.conversion.proof import PROOF_FILE
from seglog.format import names
from seglog.format.checked_json import format_json, parse_json
from seglog.fs.aside import write_atomically
from seglog.fs.files import FileSystem
from seglog.fs.mapping import read_file

VERSION = 1
_FORMAT = "seglog-exchange"
SUFFIX = ".seglog-exchange"


class ExchangeState(enum.Enum):
    EXCHANGING = "exchanging"
    EXCHANGED = "exchanged"
    ROLLING_BACK = "rolling back"


@dataclass(frozen=True, slots=True)
class ExchangeJournal:
    """`proof`: SHA-256, in hex, of the result's proof file, which identifies the result wherever it is.

    `logs`: SHA-256 over names and sizes of the result's .log files, which shows whether it was written to since.
    """

    state: ExchangeState
    partition: str          # path from the directory of the journal: a disk may be mounted elsewhere
    proof: str
    logs: str

    @classmethod
    def of(cls, state: ExchangeState, partition: str, result: Path) -> "ExchangeJournal":
        return cls(state, partition, _proof_of(result) or "", logs_of(result))

    def is_result(self, directory: Path) -> bool:
        """Whether this directory is the result of the conversion."""
        return _proof_of(directory) == self.proof

    def put(self, fs: FileSystem, path: Path, state: ExchangeState | None = None) -> None:
        """Write this to the file at `path`, durably; with another `state` if one is given."""
        write_atomically(fs, path, format_json(
            _FORMAT, VERSION, state=(state or self.state).value, partition=self.partition, proof=self.proof,
            logs=self.logs,
        ))

    @classmethod
    def read(cls, path: Path) -> "ExchangeJournal | None":
        """Read the file; None if there is none. Raises CorruptCheckpointError, UnsupportedVersionError."""
        try:
            return parse_json(read_file(path), _FORMAT, VERSION, path, _journal_of)
        except FileNotFoundError:
            return None


def logs_of(directory: Path) -> str:
    """Return SHA-256, in hex, over names and sizes of the .log files."""
    found = ((log.name, log.stat().st_size) for log in names.log_files(directory))
    return hashlib.sha256("\n".join(f"{name} {size}" for name, size in found).encode()).hexdigest()


def _proof_of(directory: Path) -> str | None:
    try:
        return hashlib.sha256(read_file(directory / PROOF_FILE)).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _journal_of(body: dict[str, Any]) -> ExchangeJournal:
    return ExchangeJournal(ExchangeState(body["state"]), *(str(body[name]) for name in ("partition", "proof", "logs")))
